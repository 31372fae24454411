-- The lease of a worker that is about to hold something: renewed where it is not lost, begun where there is none yet. An idle
-- worker needs none. A lease that was lost stays lost: whoever had it comes back under another name.
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

-- Transaction 2: the right to run a turn, for a worker whose lease holds. Crosses projects, so it reaches pointers only.
-- Round robin over the projects that have ready work, from the one after p_after; of each the oldest first, and none of a project
-- that has p_in_flight_cap turns running.
-- A claim waits for nobody: what somebody else has locked, an inbox row or a head, is left for the next claim.
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
  v_wrapped boolean := false;
  v_kept    boolean := false;
  v_told    integer;
  v_emit    boolean;
begin
  loop
    select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count,
           i.stop_asked,
           exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) as alive,
           exists (select from state.agent_inbox r
                    where r.project_id = i.project_id and r.status = 'processing'
                   offset p_in_flight_cap - 1) as capped
      into v_row
      from state.agent_inbox i
     where i.worker_target = p_target and i.status = 'pending' and (i.project_id, i.inbox_seq) > (v_project, v_seq)
     order by i.project_id, i.inbox_seq
     limit 1
       for no key update skip locked;
    if not found or v_wrapped and v_row.project_id > p_after then
      exit when v_wrapped;
      v_wrapped := true;
      v_project := '00000000-0000-0000-0000-000000000000';
      continue;
    end if;
    if not v_row.alive and not v_kept then
      v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
    end if;
    v_project := v_row.project_id;
    v_seq := v_row.inbox_seq;
    if v_row.capped then
      v_seq := 9223372036854775807;
      continue;
    end if;
    --! claim.found
    select h.claim_token + 1 into claim.claim_token
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
       set status = 'processing', worker_id = p_worker, claim_token = claim.claim_token, silent_by = now() + p_silence
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
  v_rooms    integer[] := '{}';
  v_room     integer;
  v_only     uuid := nullif(current_setting('waybill.project', true), '')::uuid;
  v_at       uuid := p_after;
  v_wrapped  boolean := false;
  v_kept     boolean;
begin
  while cardinality(v_projects) < greatest(p_most, 2) loop
    if v_only is not null then
      exit when v_wrapped;
      v_wrapped := true;
      v_at := v_only;
    else
      select i.project_id into v_at
        from state.agent_inbox i
       where i.worker_target = p_target and i.status = 'pending' and i.project_id > v_at
       order by i.project_id
       limit 1;
      if v_at is null or v_wrapped and v_at > p_after then
        exit when v_wrapped;
        v_wrapped := true;
        v_at := '00000000-0000-0000-0000-000000000000';
        continue;
      end if;
    end if;
    select p_in_flight_cap - count(*) into v_room
      from (select from state.agent_inbox i where i.project_id = v_at and i.status = 'processing' limit p_in_flight_cap) running;
    if v_room > 0 then
      v_projects := v_projects || v_at;
      v_rooms := v_rooms || v_room;
    end if;
  end loop;
  if v_projects = '{}' then
    return;
  end if;
  -- Of one project it is not known yet whether there is anything. Who has nothing has no lease; who is given something has a whole one.
  if v_only is not null and not exists (select from state.agent_inbox i
                                         where i.worker_target = p_target and i.project_id = v_only and i.status = 'pending') then
    return;
  end if;
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
           select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch
             from state.agent_inbox i
            where i.worker_target = p_target and i.project_id = p.project_id and i.status = 'pending'
            order by i.inbox_seq
            limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))
              for no key update skip locked) i
     limit p_most
  ), free as materialized (
    select h.project_id, h.agent_id, c.agent_turn_id
      from candidate c
      join state.agent_state_head h on h.project_id = c.project_id and h.agent_id = c.agent_id
     where h.active_agent_turn_id = c.agent_turn_id and h.turn_epoch = c.turn_epoch
       and h.status in ('dispatched', 'suspended')
       for no key update of h skip locked
  ), head as (
    update state.agent_state_head h
       set status = 'running', claim_token = h.claim_token + 1
      from free f
     where h.project_id = f.project_id and h.agent_id = f.agent_id
 returning h.project_id, f.agent_turn_id, h.claim_token
  ), row as (
    update state.agent_inbox i
       set status = 'processing', worker_id = p_worker, claim_token = h.claim_token, silent_by = now() + p_silence
      from head h
     where i.project_id = h.project_id and i.agent_turn_id = h.agent_turn_id
 returning i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type, i.n_lost_leases, i.retry_count,
           i.stop_asked, i.inbox_seq
  ), turn as materialized (
    select r.*, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
           t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
      from row r
      join state.turns t on t.project_id = r.project_id and t.agent_turn_id = r.agent_turn_id
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
    join state.turns t on t.project_id = i.project_id and t.agent_turn_id = i.agent_turn_id
   where i.worker_id = p_worker and i.status = 'processing'
$$;
alter function scheduler.held_turns owner to waybill_scheduler;
