-- The lease of a worker that is about to hold something: renewed where it is not lost, begun where there is none yet. An idle
-- worker needs none. A lease that was lost stays lost: the worker that had it comes back under another name.
create or replace function scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into state.worker_leases as l (worker_id, worker_target, expires_at)
  values (p_worker, p_target, clock_timestamp() + p_lease)
      on conflict (worker_id) do update
     set renewed_at = clock_timestamp(), expires_at = excluded.expires_at
   where l.expires_at > '-infinity';
  if not found then
    raise exception 'worker % has lost its lease', p_worker using errcode = 'WB005';
  end if;
  return true;
end $$;
alter function scheduler.keep_lease owner to waybill_scheduler;

-- The next turn that is ready, locked, in the order of projects and places from beyond (p_project, p_seq) to the end of p_last. What another claim
-- has locked is left out, and so is what comes before the mark of its project. Nothing: there is none.
create or replace function state.next_ready(p_target text, p_project uuid, p_seq bigint, p_last uuid,
  out project_id uuid, out agent_id uuid, out agent_turn_id uuid, out turn_epoch bigint, out inbox_seq bigint, out message_type text,
  out n_lost_leases integer, out retry_count integer, out stop_asked boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_project uuid := p_project;
  v_seq     bigint := p_seq;
  v_mark    record;
begin
  loop
    select m.project_id, m.begun_seq, m.new_seq into v_mark
      from state.queue_marks m
     where m.worker_target = p_target and m.project_id >= v_project and m.project_id <= p_last
       and (m.project_id > v_project or v_seq < 9223372036854775807)
     order by m.project_id
     limit 1;
    if v_mark.project_id is distinct from v_project then
      -- Up to the next mark. Not as a row that is less than another: of that, only the first column ends a walk along an index.
      select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
        into next_ready.project_id, next_ready.agent_id, next_ready.agent_turn_id, next_ready.turn_epoch, next_ready.inbox_seq,
             next_ready.message_type, next_ready.n_lost_leases, next_ready.retry_count, next_ready.stop_asked
        from state.agent_inbox i
       where i.worker_target = p_target and i.status = 'pending' and (i.project_id, i.inbox_seq) > (v_project, v_seq)
         and i.project_id <= p_last and i.project_id < coalesce(v_mark.project_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       order by i.project_id, i.inbox_seq
       limit 1
         for no key update skip locked;
      exit when found or v_mark.project_id is null;
      v_project := v_mark.project_id;
      v_seq := -9223372036854775808;
    end if;
    select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
      into next_ready.project_id, next_ready.agent_id, next_ready.agent_turn_id, next_ready.turn_epoch, next_ready.inbox_seq,
           next_ready.message_type, next_ready.n_lost_leases, next_ready.retry_count, next_ready.stop_asked
      -- Those that were begun, then those that are new.
      from (values (v_mark.begun_seq, 0), (v_mark.new_seq, 9223372036854775807)) as l (from_seq, end_seq)
     cross join lateral (
           select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
             from state.agent_inbox i
            where i.worker_target = p_target and i.project_id = v_project and i.status = 'pending'
              and i.inbox_seq > v_seq and i.inbox_seq >= l.from_seq and i.inbox_seq < l.end_seq
            order by i.inbox_seq
            limit 1
              for no key update skip locked) i
     limit 1;
    exit when found;
    v_seq := 9223372036854775807;
  end loop;
end $$;

-- Marks how far a project's queue is done and how many of its turns run, after a long look, for the next one to begin there. Never waits.
-- Says whether the mark moved.
--
-- A place is drawn in a statement that writes to the inbox. Such a statement first takes a lock on the table, and its transaction keeps that lock
-- until others can see what it wrote. So a mark moves in two steps: one notes the last place that was drawn, and after that who holds such a lock;
-- the mark may move that far once none of them does, and not beyond a turn that is ready by then.
create or replace function state.mark_queue(p_target text, p_project uuid) returns boolean
language plpgsql as $$
declare
  -- Before the locks are read: a transaction that drew this place or an earlier one holds its lock by then, or is over.
  v_drawn bigint := (select s.last_value from state.agent_inbox_inbox_seq_seq s);
  v_mark  state.queue_marks;
  v_open  text[];
  v_over  boolean;
begin
  -- The queue must be read after the locks, by a snapshot of its own: see "read committed".
  if current_setting('transaction_isolation') <> 'read committed' or not pg_try_advisory_xact_lock(hashtextextended(p_project::text, 1)) then
    return false;
  end if;
  select m.* into v_mark from state.queue_marks m where m.worker_target = p_target and m.project_id = p_project;
  -- Not with every look: it reads all locks, and a mark leaves a dead row behind when it is written.
  if v_mark.drawn_seq > v_drawn - 500 then
    return false;
  end if;
  -- A prepared transaction has no process and another name than before: it may be any of them.
  select coalesce(array_agg(o.virtualtransaction), '{}'),
         not coalesce(bool_or(o.pid is null or o.virtualtransaction = any (v_mark.open_then)), false)
    into v_open, v_over
    from pg_locks o
   where o.database = (select d.oid from pg_database d where d.datname = current_database())
     and o.relation = 'state.agent_inbox'::regclass and o.mode = 'RowExclusiveLock' and o.pid is distinct from pg_backend_pid();
  -- Nothing to begin from yet, and a writer whose places are not known.
  if not v_over and v_mark.project_id is null then
    return false;
  end if;
  insert into state.queue_marks as m
         (worker_target, project_id, begun_seq, new_seq, next_seq, open_then, marked_at, drawn_seq, n_running, running_seq)
  select p_target, p_project,
         case when v_over then least(f.begun_seq, coalesce(v_mark.next_seq, 0) - 4611686018427387904) else v_mark.begun_seq end,
         case when v_over then least(f.new_seq, coalesce(v_mark.next_seq, 0)) else v_mark.new_seq end,
         case when v_over then v_drawn else v_mark.next_seq end, case when v_over then v_open else v_mark.open_then end,
         clock_timestamp(), v_drawn, r.n_running,
         case when v_over then least(r.oldest_seq, coalesce(v_mark.next_seq, 0)) else v_mark.running_seq end
    -- The first that is ready of those that were begun, and of those that are new.
    from (select (select i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p_project and i.status = 'pending'
                     and i.inbox_seq >= coalesce(v_mark.begun_seq, -4611686018427387904) and i.inbox_seq < 0
                   order by i.inbox_seq
                   limit 1) as begun_seq,
                 (select i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p_project and i.status = 'pending'
                     and i.inbox_seq >= coalesce(v_mark.new_seq, 0)
                   order by i.inbox_seq
                   limit 1) as new_seq) f,
         (select count(*) as n_running, min(i.inbox_seq) as oldest_seq
            from state.agent_inbox i
           where i.project_id = p_project and i.status = 'processing' and i.inbox_seq >= coalesce(v_mark.running_seq, 0)) r
      on conflict (worker_target, project_id) do update
     set begun_seq = excluded.begun_seq, new_seq = excluded.new_seq, next_seq = excluded.next_seq, open_then = excluded.open_then,
         marked_at = excluded.marked_at, drawn_seq = excluded.drawn_seq, n_running = excluded.n_running, running_seq = excluded.running_seq;
  return v_over;
end $$;

-- Whether so many more turns of a project may run, or how many. Counted only where too many may have been claimed since they were counted last.
create or replace function state.room(p_target text, p_project uuid, p_in_flight_cap integer, p_most integer) returns bigint
language plpgsql as $$
declare
  v_mark record;
  -- The project's own quota may be less.
  v_cap  integer := least(p_in_flight_cap, (select p.max_running_turns from resource.projects p where p.project_id = p_project));
begin
  select m.running_seq, v_cap - m.n_running - (s.last_value - m.drawn_seq) as room into v_mark
    from state.queue_marks m
   cross join state.agent_inbox_inbox_seq_seq s
   where m.worker_target = p_target and m.project_id = p_project;
  if v_mark.room >= p_most then
    return v_mark.room;
  end if;
  return v_cap - (select count(*)
                    from (select from state.agent_inbox i
                           where i.project_id = p_project and i.status = 'processing' and i.inbox_seq >= coalesce(v_mark.running_seq, 0)
                           limit v_cap) running);
end $$;

-- How many entries of the indexes of ready and running turns this session has read. Those of turns that vacuum could not take away are among them.
create or replace function state.entries_read() returns bigint
language sql stable as $$
  select pg_stat_get_xact_tuples_returned('state.inbox_ready'::regclass) + pg_stat_get_xact_tuples_returned('state.inbox_in_flight'::regclass)
$$;

-- Whether this look is measured: one of sixteen, because to measure costs as much as a short look.
create or replace function state.is_measured() returns boolean
language sql volatile as $$
  select random() < 0.0625 or coalesce(current_setting('waybill.long_look', true), '') <> ''
$$;

-- Whether a look was so long that it is worth a mark: over five hundred entries, a millisecond or so.
create or replace function state.is_long(n_entries bigint) returns boolean
language sql stable as $$
  select n_entries > coalesce(nullif(current_setting('waybill.long_look', true), ''), '500')::bigint
$$;

-- The token of the next claim: higher than the one before, by a step of up to 2^36 that cannot be guessed.
create or replace function state.next_token(p_token bigint) returns bigint
language sql volatile as $$
  select p_token + 1 + ('x' || substr(gen_random_uuid()::text, 28))::bit(36)::bigint
$$;

-- Transaction 2: the right to run a turn, for a worker whose lease holds. Crosses projects, so it reaches pointers only.
-- Round robin over the projects that have ready work, from the one after p_after; of each those that were begun first, then the
-- new ones, in the order in which they became ready; none of a project that has p_in_flight_cap turns running.
-- A claim never waits: what another transaction has locked, an inbox row or a head, is left for the next claim.
create or replace function scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval,
  p_lease interval,
  out project_id uuid, out agent_id uuid, out agent_turn_id uuid, out turn_epoch bigint, out claim_token bigint, out message_type text,
  out n_lost_leases integer, out retry_count integer, out stop_asked boolean, out profile_box_id uuid, out context_box_id uuid,
  out output_box_id uuid, out query_card_ids uuid[], out session_id uuid, out parent_agent_turn_id uuid, out parent_step_id uuid,
  out batch_id uuid, out recursion_depth integer, out trace_id uuid, out channel text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_row     record;
  v_project uuid := p_after;
  v_seq     bigint := 9223372036854775807;
  v_last    uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_room    bigint;
  v_measured boolean := state.is_measured();
  v_read    bigint;
  v_wrapped boolean := false;
  v_kept    boolean := false;
  v_marked  boolean;
  v_told    integer;
  v_emit    boolean;
begin
  loop
    if v_measured then
      v_read := state.entries_read();
    end if;
    select n.* into v_row from state.next_ready(p_target, v_project, v_seq, v_last) n;
    if v_row.project_id is null then
      exit when v_wrapped;
      v_wrapped := true;
      v_project := '00000000-0000-0000-0000-000000000000';
      v_seq := 9223372036854775807;
      v_last := p_after;
      continue;
    end if;
    v_project := v_row.project_id;
    v_seq := v_row.inbox_seq;
    v_room := state.room(p_target, v_project, p_in_flight_cap, 1);
    if v_measured and state.is_long(state.entries_read() - v_read) then
      v_marked := state.mark_queue(p_target, v_project);
    end if;
    if not v_kept and not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
      v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
    end if;
    if v_room <= 0 then
      v_seq := 9223372036854775807;
      continue;
    end if;
    --! claim.found
    select state.next_token(h.claim_token) into claim.claim_token
      from state.agent_state_head h
     where h.project_id = v_project and h.agent_id = v_row.agent_id
       and h.active_agent_turn_id = v_row.agent_turn_id and h.turn_epoch = v_row.turn_epoch
       and h.status in ('dispatched', 'suspended')
       for no key update skip locked;
    continue when not found;
    update state.agent_state_head h
       set status = 'running', claim_token = claim.claim_token
     where h.project_id = v_project and h.agent_id = v_row.agent_id;
    --! claim.head
    update state.agent_inbox i
       set status = 'processing', inbox_seq = default, worker_id = p_worker, claim_token = claim.claim_token, silent_by = now() + p_silence
     where i.project_id = v_project and i.agent_turn_id = v_row.agent_turn_id;
    --! claim.taken
    select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
           t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
      into claim.profile_box_id, claim.context_box_id, claim.output_box_id, claim.query_card_ids, claim.session_id,
           claim.parent_agent_turn_id, claim.parent_step_id, claim.batch_id, claim.recursion_depth, claim.trace_id, claim.channel, v_emit
      from state.turns t
     where t.project_id = v_project and t.agent_turn_id = v_row.agent_turn_id;
    claim.project_id := v_project;
    claim.agent_id := v_row.agent_id;
    claim.agent_turn_id := v_row.agent_turn_id;
    claim.turn_epoch := v_row.turn_epoch;
    claim.message_type := v_row.message_type;
    claim.n_lost_leases := v_row.n_lost_leases;
    claim.retry_count := v_row.retry_count;
    claim.stop_asked := v_row.stop_asked;
    if v_emit then
      v_told := state.tell(v_project, array[v_row.agent_turn_id], v_row.agent_id, 'running');
    end if;
    return;
  end loop;
end $$;
alter function scheduler.claim owner to waybill_scheduler;

-- The same for many turns at once: of each project that has ready work an equal share. In a project's own transaction, of that one alone.
create or replace function scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval,
  p_lease interval, p_most integer)
returns table (project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint, message_type text,
  n_lost_leases integer, retry_count integer, stop_asked boolean, profile_box_id uuid, context_box_id uuid, output_box_id uuid,
  query_card_ids uuid[], session_id uuid, parent_agent_turn_id uuid, parent_step_id uuid, batch_id uuid, recursion_depth integer,
  trace_id uuid, channel text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_projects uuid[] := '{}';
  v_rooms    bigint[] := '{}';
  v_room     bigint;
  v_only     uuid := nullif(current_setting('waybill.project', true), '')::uuid;
  v_at       uuid := p_after;
  v_last     uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_measured boolean := state.is_measured();
  v_read     bigint;
  v_wrapped  boolean := false;
  v_kept     boolean;
  v_marked   boolean;
begin
  while cardinality(v_projects) < greatest(p_most, 2) loop
    if v_measured then
      v_read := state.entries_read();
    end if;
    if v_only is not null then
      exit when v_wrapped;
      v_wrapped := true;
      select n.project_id into v_at from state.next_ready(p_target, v_only, -9223372036854775808, v_only) n;
      exit when v_at is null;
    else
      select n.project_id into v_at from state.next_ready(p_target, v_at, 9223372036854775807, v_last) n;
      if v_at is null then
        exit when v_wrapped;
        v_wrapped := true;
        v_at := '00000000-0000-0000-0000-000000000000';
        v_last := p_after;
        continue;
      end if;
    end if;
    v_room := state.room(p_target, v_at, p_in_flight_cap, p_most);
    if v_measured and state.is_long(state.entries_read() - v_read) then
      v_marked := state.mark_queue(p_target, v_at);
    end if;
    if v_room > 0 then
      v_projects := v_projects || v_at;
      v_rooms := v_rooms || v_room;
    end if;
  end loop;
  if v_projects = '{}' then
    return;
  end if;
  -- Who has nothing has no lease; who is given something in a project's own transaction has a whole one.
  if v_only is not null
     or not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
    v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
  end if;
  --! claim_many.found
  return query
  with candidate as materialized (
    select i.*
      from unnest(v_projects, v_rooms) as p (project_id, room)
     cross join lateral (
           select i.*
             from (values (-4611686018427387904, 0), (0, 9223372036854775807)) as l (from_seq, end_seq)
             left join state.queue_marks m on m.worker_target = p_target and m.project_id = p.project_id
            cross join lateral (
                  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p.project_id and i.status = 'pending'
                     and i.inbox_seq >= coalesce(case when l.end_seq = 0 then m.begun_seq else m.new_seq end, l.from_seq) and i.inbox_seq < l.end_seq
                   order by i.inbox_seq
                   limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))
                     for no key update skip locked) i
            limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))) i
     limit p_most
  ), free as materialized (
    select c.project_id, c.agent_id, c.agent_turn_id, c.inbox_seq
      from candidate c
     cross join lateral (
           select
             from state.agent_state_head h
            where h.project_id = c.project_id and h.agent_id = c.agent_id
              and h.active_agent_turn_id = c.agent_turn_id and h.turn_epoch = c.turn_epoch
              and h.status in ('dispatched', 'suspended')
              for no key update skip locked) h
  ), head as (
    update state.agent_state_head h
       set status = 'running', claim_token = state.next_token(h.claim_token)
      from free f
     -- Not joined on the project, so that the keys are the only way to the rows: docs/decisions/0018-plans-that-do-not-depend-on-statistics.md.
     where h.project_id = any (array[f.project_id]) and h.agent_id = f.agent_id
 returning h.project_id, f.agent_turn_id, f.inbox_seq, h.claim_token
  ), row as (
    update state.agent_inbox i
       set status = 'processing', inbox_seq = default, worker_id = p_worker, claim_token = h.claim_token, silent_by = now() + p_silence
      from head h
     where i.project_id = any (array[h.project_id]) and i.agent_turn_id = h.agent_turn_id
 returning i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type, i.n_lost_leases, i.retry_count,
           i.stop_asked, h.inbox_seq
  ), turn as materialized (
    select r.*, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
           t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
      from row r
     cross join lateral (
           select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                  t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
             from state.turns t
            where t.project_id = r.project_id and t.agent_turn_id = r.agent_turn_id
           offset 0) t
  ), told as (
    insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch)
    select t.project_id, t.agent_turn_id, 'state', gen_random_uuid(), t.agent_id, 'running', t.turn_epoch
      from turn t
     where t.emit_state_event
  )
  select t.project_id, t.agent_id, t.agent_turn_id, t.turn_epoch, t.claim_token, t.message_type::text, t.n_lost_leases, t.retry_count,
         t.stop_asked, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
         t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel::text
    from turn t
   order by array_position(v_projects, t.project_id), t.inbox_seq;
  --! claim_many.taken
end $$;
alter function scheduler.claim_many owner to waybill_scheduler;

-- What a worker holds: for one whose claim was committed without its learning of it.
create or replace function scheduler.held_turns(p_worker uuid)
returns table (project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint, message_type text,
  n_lost_leases integer, retry_count integer, stop_asked boolean, profile_box_id uuid, context_box_id uuid, output_box_id uuid,
  query_card_ids uuid[], session_id uuid, parent_agent_turn_id uuid, parent_step_id uuid, batch_id uuid, recursion_depth integer,
  trace_id uuid, channel text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type::text, i.n_lost_leases, i.retry_count,
         i.stop_asked, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
         t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel::text
    from state.agent_inbox i
   cross join lateral (
         select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel
           from state.turns t
          where t.project_id = i.project_id and t.agent_turn_id = i.agent_turn_id
         offset 0) t
   where i.worker_id = p_worker
$$;
alter function scheduler.held_turns owner to waybill_scheduler;
