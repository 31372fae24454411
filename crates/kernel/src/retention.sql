-- Partitions of history: made before their time comes, while others read and write. There is no default partition: a row has its own, or is refused.

-- The tables whose history lies in partitions, each cut on an id that carries its time.
create or replace function state.history() returns table (parent text)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  values ('agent_steps'), ('execution_edges'), ('outbox'), ('patches'), ('receipts'), ('refusals')
$$;

-- The first id of a time: what partitions are cut at.
create or replace function state.first_id(p_at timestamptz) returns uuid
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- The time of an id of version 7.
create or replace function state.time_of(p_id text) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select to_timestamp(('x' || lpad(replace(left(p_id, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0)
$$;

-- The partitions of a table, each with its time and where the next one begins. Not those whose detaching has begun.
create or replace function state.partitions(p_parent text)
returns table (partition regclass, starts_at timestamptz, ends_at timestamptz, next_at timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.oid, state.time_of(b.ids[1]), state.time_of(b.ids[2]), lead(state.time_of(b.ids[1])) over (order by b.ids[1])
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
   cross join lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([0-9a-f-]+)''\) TO \(''([0-9a-f-]+)''\)')) b (ids)
   where i.inhparent = format('state.%I', p_parent)::regclass and not i.inhdetachpending
$$;

-- Whether history with this id finds its partitions, and will until the transaction is over: a prune waits for that, and then sees its turn.
create or replace function state.has_partitions(p_id uuid) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock_shared(hashtextextended('waybill.prune', 0));
  -- A later statement than the lock: what a prune has closed is seen.
  return p_id >= (select s.pruned_before from waybill.schema s)
     and (select bool_and(exists (select from state.partitions(h.parent) p
                                   where p.starts_at <= state.time_of(p_id::text) and state.time_of(p_id::text) < p.ends_at))
            from state.history() h);
end $$;

-- Since when a project has history in partitions that end before a time: where the first of them begins. Null: it has none there.
create or replace function state.history_since(p_project uuid, p_before timestamptz) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_part     record;
  v_is_there boolean;
begin
  for v_part in
    select h.parent, p.starts_at, p.ends_at,
           (select a.attname from pg_attribute a
             where a.attrelid = format('state.%I', h.parent)::regclass
               and a.attnum = (select t.partattrs[0] from pg_partitioned_table t where t.partrelid = format('state.%I', h.parent)::regclass)) as key
      from state.history() h
     cross join lateral state.partitions(h.parent) p
     where p.ends_at <= p_before
     order by p.starts_at
  loop
    execute format('select exists (select from state.%I h where h.project_id = $1 and h.%I >= $2 and h.%2$I < $3)', v_part.parent, v_part.key)
      into v_is_there using p_project, state.first_id(v_part.starts_at), state.first_id(v_part.ends_at);
    if v_is_there then
      return v_part.starts_at;
    end if;
  end loop;
  return null;
end $$;

-- For how long from now a table has its partitions, without a gap.
create or replace function state.history_ahead(p_parent text) returns interval
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when bool_or(p.starts_at <= now() and now() < p.ends_at)
              then min(p.ends_at) filter (where now() < p.ends_at and p.next_at is distinct from p.ends_at) - now()
              else interval '0' end
    from state.partitions(p_parent) p
$$;

-- The next partition that each table lacks for the four weeks to come, or for two steps if those are longer. It begins where another ends, and goes
-- to the end of its step or to where the next one begins, so that steps may change at any time. The first one of all holds what is two days old: ids
-- of steps and calls may be a day old.
create or replace function state.missing_partitions()
returns table (parent text, starts_at timestamptz, ends_at timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select h.parent, m.starts_at, least((date_trunc(s.step, m.starts_at at time zone 'UTC') + s.lasts) at time zone 'UTC', m.next_at)
    from (select history_step as step, ('1 ' || history_step)::interval as lasts, now() - interval '2 days' as oldest from waybill.schema) s
   cross join state.history() h
   cross join lateral (
         select case when p.next_at is null then p.ends_at else greatest(p.ends_at, date_trunc(s.step, s.oldest, 'UTC')) end, p.next_at
           from state.partitions(h.parent) p
          where p.next_at is distinct from p.ends_at and coalesce(p.next_at > s.oldest, true)
          union all
         select date_trunc(s.step, s.oldest, 'UTC'), min(p.starts_at)
           from state.partitions(h.parent) p
         having coalesce(min(p.starts_at) > now(), true)) m (starts_at, next_at)
   where m.starts_at < now() + greatest(interval '4 weeks', 2 * s.lasts)
$$;

-- Makes one partition. Attached, not created in place: that takes no lock on the parent that a turn or a dump stands in the way of. A statement that
-- reads history by its generic plan locks every partition, and waits for as long as this takes: that is why it takes so little. Rows are inserted and
-- then stay, so they are frozen once, early; each event leaves an index when it is published, so events are vacuumed early too.
create or replace function state.make_partition(p_parent text, p_starts_at timestamptz, p_ends_at timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_name constant text := p_parent || '_' || to_char(p_starts_at at time zone 'UTC', 'YYYYMMDD');
begin
  execute format('create table parts.%I (like state.%I including all)
                    with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 0%s)', v_name, p_parent,
                 case p_parent when 'outbox' then ', autovacuum_vacuum_scale_factor = 0.02' else '' end);
  execute format('alter table state.%I attach partition parts.%I for values from (%L) to (%L)',
                 p_parent, v_name, state.first_id(p_starts_at), state.first_id(p_ends_at));
end $$;

-- Makes one partition that is missing. Says whether: 0 means that all are there, or that another process makes them just now. A table of which
-- another session changes the partitions is not waited for: others are made, and where all are in use it is an error. Compiling the look at the catalog
-- would take a hundred times as long as the look itself.
create or replace function state.extend_partitions() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' set jit = off as $$
declare
  v_missing record;
  v_used    text[] := '{}';
begin
  if not pg_try_advisory_xact_lock(hashtextextended('waybill.partitions', 0)) then
    return 0;
  end if;
  for v_missing in
    select m.parent, m.starts_at, m.ends_at from state.missing_partitions() m order by m.starts_at, m.parent
  loop
    continue when v_missing.parent = any (v_used);
    begin
      perform state.make_partition(v_missing.parent, v_missing.starts_at, v_missing.ends_at);
      return 1;
    exception
      when lock_not_available then
        v_used := v_used || v_missing.parent;
    end;
  end loop;
  if cardinality(v_used) > 0 then
    raise exception 'in use: %', array_to_string(v_used, ', ') using errcode = 'lock_not_available';
  end if;
  return 0;
end $$;
