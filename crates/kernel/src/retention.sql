-- Partitions of history: made before their week comes, without anybody waiting for it; and what lies in the rest because its week was missing.

-- The tables whose history lies in partitions, and the id that each is cut on.
create or replace function state.history() returns table (parent text, cut_on text)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  values ('agent_steps', 'agent_turn_id'), ('execution_edges', 'correlation_id'), ('outbox', 'agent_turn_id'),
         ('patches', 'step_id'), ('receipts', 'agent_turn_id'), ('refusals', 'refusal_id')
$$;

-- The first id of a time: what partitions are cut at.
create or replace function state.first_id(p_at timestamptz) returns uuid
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

create or replace function state.partition_name(p_parent text, p_week timestamptz) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select p_parent || '_' || to_char(p_week at time zone 'UTC', 'YYYYMMDD')
$$;

-- Makes the partition of one week, with what lies in the rest of it. Says how many rows that were. Attached, not created in place: that takes no
-- lock on the parent that a turn would wait for, and one on the rest. Rows of a week that is there are written without it. A statement that reads
-- history by its generic plan locks every partition, and waits for as long as this takes: that is why it takes so little.
create or replace function state.make_partition(p_parent text, p_week timestamptz, p_with_rest boolean) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_name    constant text := state.partition_name(p_parent, p_week);
  v_from    constant uuid := state.first_id(p_week);
  v_to      constant uuid := state.first_id(p_week + interval '7 days');
  v_cut_on  constant text := (select h.cut_on from state.history() h where h.parent = p_parent);
  v_columns text;
  v_moved   bigint := 0;
begin
  if not p_with_rest then
    -- What attaching would wait for, before anything is made.
    execute format('lock table parts.%I in access exclusive mode', p_parent || '_rest');
  end if;
  execute format('create table parts.%I (like state.%I including all)', v_name, p_parent)
          || case p_parent when 'outbox' then ' with (autovacuum_vacuum_scale_factor = 0.02)' else '' end;
  if p_with_rest then
    -- History is append-only; this moves it. Also keeps writers away from the rest until it is done.
    execute format('alter table parts.%I disable trigger user', p_parent || '_rest');
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into v_columns
      from pg_attribute a
     where a.attrelid = format('state.%I', p_parent)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '';
    execute format('insert into parts.%1$I (%2$s) select %2$s from parts.%3$I where %4$I >= $1 and %4$I < $2',
                   v_name, v_columns, p_parent || '_rest', v_cut_on) using v_from, v_to;
    get diagnostics v_moved = row_count;
    execute format('delete from parts.%1$I where %2$I >= $1 and %2$I < $2', p_parent || '_rest', v_cut_on) using v_from, v_to;
    execute format('alter table parts.%I enable trigger user', p_parent || '_rest');
  end if;
  execute format('alter table state.%I attach partition parts.%I for values from (%L) to (%L)', p_parent, v_name, v_from, v_to);
  return v_moved;
end $$;

-- Makes one partition that is missing for this week or the weeks to come. Says whether: 0 means that all are there, or that another process makes
-- them just now. A table that is in use (a dump, a long read) is not waited for: others are made, and where all are in use it is an error.
create or replace function state.extend_partitions(weeks integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' as $$
declare
  v_missing record;
  v_used    text[] := '{}';
begin
  if not pg_try_advisory_xact_lock(hashtextextended('waybill.partitions', 0)) then
    return 0;
  end if;
  for v_missing in
    select h.parent, w.week
      from state.history() h
     cross join lateral (select date_trunc('week', now(), 'UTC') + n * interval '7 days' as week
                           from generate_series(0, least(weeks, 104)) n) w
     where to_regclass(format('parts.%I', state.partition_name(h.parent, w.week))) is null
     order by w.week, h.parent
  loop
    continue when v_missing.parent = any (v_used);
    begin
      perform state.make_partition(v_missing.parent, v_missing.week, false);
      return 1;
    exception
      when lock_not_available then
        v_used := v_used || v_missing.parent;
      when check_violation then
        -- Rows of that week lie in the rest. `waybill admin empty-rest` moves them.
        raise warning 'no partition of % for the week of %: rows of it are in the rest', v_missing.parent, v_missing.week::date;
    end;
  end loop;
  if cardinality(v_used) > 0 then
    raise exception 'in use: %', array_to_string(v_used, ', ') using errcode = 'lock_not_available';
  end if;
  return 0;
end $$;

-- What lies in the rest, by table and week, counted to 100,000 of each table. No week: its id carries none that a partition would be made for.
create or replace function state.rest()
returns table (parent text, week timestamptz, n_rows bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_table record;
begin
  for v_table in select h.* from state.history() h loop
    return query execute format(
      'select %1$L::text, r.week, count(*)
         from (select case when m.at between ''2020-01-01'' and now() + interval ''104 weeks'' then date_trunc(''week'', m.at, ''UTC'') end as week
                 from (select state.minted_at(%2$I) as at from parts.%3$I limit 100000) m) r
        group by r.week', v_table.parent, v_table.cut_on, v_table.parent || '_rest');
  end loop;
end $$;

-- For how many weeks after this one every table has its partition.
create or replace function state.weeks_ahead() returns integer
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(min(w.n) - 1, 105)::integer
    from generate_series(0, 105) as w (n)
   where exists (select from state.history() h
                  where to_regclass(format('parts.%I', state.partition_name(h.parent,
                          date_trunc('week', now(), 'UTC') + w.n * interval '7 days'))) is null)
$$;
