-- Commands are the calls that turns wait for. Claimed like turns: round robin over projects, a token, a lease. In a project's own
-- transaction, of that one alone.
create or replace function scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer,
  p_lease interval)
returns table (project_id uuid, tool_call_id uuid, agent_turn_id uuid, agent_id uuid, step_id uuid, tool_call_card_id uuid,
  claim_token bigint, deadline_at timestamptz, n_lost_leases integer, retry_count integer)
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
      select c.project_id into v_at
        from state.waiting_calls c
       where c.target = p_target and c.status = 'pending' and c.project_id > v_at
       order by c.project_id
       limit 1;
      if v_at is null or v_wrapped and v_at > p_after then
        exit when v_wrapped;
        v_wrapped := true;
        v_at := '00000000-0000-0000-0000-000000000000';
        continue;
      end if;
    end if;
    select p_in_flight_cap - count(*) into v_room
      from (select from state.waiting_calls c where c.project_id = v_at and c.status = 'processing' limit p_in_flight_cap) running;
    if v_room > 0 then
      v_projects := v_projects || v_at;
      v_rooms := v_rooms || v_room;
    end if;
  end loop;
  if v_projects = '{}' then
    return;
  end if;
  -- Of one project it is not known yet whether there is anything. Who has nothing has no lease; who is given something has a whole one.
  if v_only is not null and not exists (select from state.waiting_calls c
                                         where c.target = p_target and c.project_id = v_only and c.status = 'pending') then
    return;
  end if;
  if v_only is not null
     or not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
    v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
  end if;
  return query
  with candidate as materialized (
    select c.*
      from unnest(v_projects, v_rooms) as p (project_id, room)
     cross join lateral (
           select c.project_id, c.tool_call_id
             from state.waiting_calls c
            where c.target = p_target and c.project_id = p.project_id and c.status = 'pending'
            order by c.call_seq
            limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))
              for no key update skip locked) c
     limit p_most
  ), taken as (
    update state.waiting_calls c
       set status = 'processing', worker_id = p_worker, claim_token = state.next_token(c.claim_token)
      from candidate d
     where c.project_id = any (array[d.project_id]) and c.tool_call_id = d.tool_call_id
 returning c.*
  )
  select t.project_id, t.tool_call_id, t.agent_turn_id, t.agent_id, t.step_id, t.tool_call_card_id, t.claim_token, t.deadline_at,
         t.n_lost_leases, t.retry_count
    from taken t
   order by array_position(v_projects, t.project_id), t.call_seq;
  --! claim_calls.taken
end $$;
alter function scheduler.claim_calls owner to waybill_scheduler;

-- What a service holds: for one whose claim was committed without its learning of it.
create or replace function scheduler.held_calls(p_worker uuid)
returns table (project_id uuid, tool_call_id uuid, agent_turn_id uuid, agent_id uuid, step_id uuid, tool_call_card_id uuid,
  claim_token bigint, deadline_at timestamptz, n_lost_leases integer, retry_count integer)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.project_id, c.tool_call_id, c.agent_turn_id, c.agent_id, c.step_id, c.tool_call_card_id, c.claim_token, c.deadline_at,
         c.n_lost_leases, c.retry_count
    from state.waiting_calls c
   where c.worker_id = p_worker
$$;
alter function scheduler.held_calls owner to waybill_scheduler;

-- Takes a call from the process that claimed it, so that another may: that process was lost, or its attempt failed. The two are counted apart.
create or replace function state.reclaim_call(p_project uuid, p_call uuid, p_token bigint, p_failed boolean default false) returns text
language plpgsql as $$
declare
  v_entered text;
  v_target text;
begin
  v_entered := state.enter(p_project);
  -- No head's lock: nothing of the turn changes, and the row's own lock orders this with a report.
  update state.waiting_calls c
     set status = 'pending', worker_id = null, claim_token = c.claim_token + 1,
         n_lost_leases = c.n_lost_leases + (not p_failed)::integer, retry_count = c.retry_count + p_failed::integer
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing'
  returning c.target into v_target;
  --! reclaim_call.armed
  return v_target;
end $$;
