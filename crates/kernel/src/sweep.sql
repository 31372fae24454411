-- What the sweeps look for. Each reads one index in order, with a limit, for the shards it is given; each row is then handled in
-- a transaction of its own project. A row in quarantine is left alone.

create or replace function scheduler.abandoned_turns(p_shards smallint[], p_most integer)
returns table (project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
    from state.worker_leases l
   cross join lateral (
         select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
           from state.agent_inbox i
          where i.worker_id = l.worker_id and i.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'abandoned_turns' and q.quarantined_at is not null offset 0)
          limit p_most) i
   where l.expires_at = '-infinity'
   limit p_most
$$;

create or replace function scheduler.silent_turns(p_shards smallint[], p_most integer)
returns table (project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
    from state.worker_leases l
   cross join lateral (
         select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
           from state.agent_inbox i
          where i.worker_id = l.worker_id and i.silent_by <= now() and i.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'silent_turns' and q.quarantined_at is not null offset 0)
          limit p_most) i
   where l.expires_at > '-infinity'
   limit p_most
$$;

create or replace function scheduler.due_turns(p_shards smallint[], p_most integer)
returns table (project_id uuid, agent_turn_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.project_id, i.agent_turn_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select i.project_id, i.agent_turn_id
           from state.agent_inbox i
          where i.shard = s.shard and i.next_retry_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'due_turns' and q.quarantined_at is not null offset 0)
          order by i.next_retry_at
          limit p_most) i
   limit p_most
$$;

create or replace function scheduler.abandoned_calls(p_shards smallint[], p_most integer)
returns table (project_id uuid, tool_call_id uuid, claim_token bigint, once boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.project_id, c.tool_call_id, c.claim_token, c.once
    from state.worker_leases l
   cross join lateral (
         select c.*
           from state.waiting_calls c
          where c.worker_id = l.worker_id and c.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = c.tool_call_id and q.sweep = 'abandoned_calls' and q.quarantined_at is not null offset 0)
          limit p_most) c
   where l.expires_at = '-infinity'
   limit p_most
$$;

create or replace function scheduler.overdue_calls(p_shards smallint[], p_most integer)
returns table (project_id uuid, tool_call_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.project_id, c.tool_call_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select c.project_id, c.tool_call_id
           from state.waiting_calls c
          where c.shard = s.shard and c.deadline_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = c.tool_call_id and q.sweep = 'overdue_calls' and q.quarantined_at is not null offset 0)
          order by c.deadline_at
          limit p_most) c
   limit p_most
$$;

create or replace function scheduler.overdue_batches(p_shards smallint[], p_most integer)
returns table (project_id uuid, batch_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.project_id, b.batch_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select b.project_id, b.batch_id
           from state.pmo_batches b
          where b.shard = s.shard and b.closed_at is null and b.deadline_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = b.batch_id and q.sweep = 'overdue_batches' and q.quarantined_at is not null offset 0)
          order by b.deadline_at
          limit p_most) b
   limit p_most
$$;

create or replace function scheduler.stopping_batches(p_shards smallint[], p_most integer)
returns table (project_id uuid, batch_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.project_id, b.batch_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select b.project_id, b.batch_id
           from state.pmo_batches b
          where b.shard = s.shard and b.stopping
            and not exists (select from state.quarantine q
                             where q.subject_id = b.batch_id and q.sweep = 'stopping_batches' and q.quarantined_at is not null offset 0)
          limit p_most) b
   limit p_most
$$;

-- Doors behind which work is ready, of which perhaps no worker has heard; of each one project that has some.
create or replace function scheduler.ready_doors()
returns table (project_id uuid, target text, calls boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive worker (target, project_id) as (
    (select i.worker_target::text, i.project_id from state.agent_inbox i where i.status = 'pending' order by i.worker_target limit 1)
    union all
    select n.target, n.project_id
      from worker w
     cross join lateral (select i.worker_target::text as target, i.project_id from state.agent_inbox i
                          where i.status = 'pending' and i.worker_target > w.target order by i.worker_target limit 1) n
  ), handler (target, project_id) as (
    (select c.target::text, c.project_id from state.waiting_calls c where c.status = 'pending' order by c.target limit 1)
    union all
    select n.target, n.project_id
      from handler h
     cross join lateral (select c.target::text as target, c.project_id from state.waiting_calls c
                          where c.status = 'pending' and c.target > h.target order by c.target limit 1) n
  )
  select w.project_id, w.target, false from worker w
   union all
  select h.project_id, h.target, true from handler h
$$;

create or replace function scheduler.forget_keys(p_most integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_upto timestamptz;
  v_gone integer;
begin
  select k.expires_at into v_upto from state.idempotency k where k.expires_at <= now() order by k.expires_at offset p_most - 1 limit 1;
  delete from state.idempotency i where i.expires_at <= coalesce(v_upto, now());
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;

create or replace function scheduler.forget_browser_sessions(p_most integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_upto timestamptz;
  v_gone integer;
begin
  select s.expires_at into v_upto from resource.browser_sessions s where s.expires_at <= now() order by s.expires_at offset p_most - 1 limit 1;
  delete from resource.browser_sessions s where s.expires_at <= coalesce(v_upto, now());
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;

-- Marks of queues that are of no use any more: no look was long for a minute.
create or replace function scheduler.forget_marks() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_gone integer;
begin
  delete from state.queue_marks m where m.marked_at < clock_timestamp() - interval '1 minute';
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;

create or replace function scheduler.list_quarantine(p_most integer)
returns table (project_id uuid, sweep text, subject_id uuid, n_failures integer, last_error text, first_at timestamptz,
  last_at timestamptz, quarantined_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select q.project_id, q.sweep, q.subject_id, q.n_failures, q.last_error, q.first_at, q.last_at, q.quarantined_at
    from state.quarantine q
   order by q.last_at desc
   limit p_most
$$;

alter function scheduler.abandoned_turns owner to waybill_scheduler;
alter function scheduler.silent_turns owner to waybill_scheduler;
alter function scheduler.due_turns owner to waybill_scheduler;
alter function scheduler.abandoned_calls owner to waybill_scheduler;
alter function scheduler.overdue_calls owner to waybill_scheduler;
alter function scheduler.overdue_batches owner to waybill_scheduler;
alter function scheduler.stopping_batches owner to waybill_scheduler;
alter function scheduler.ready_doors owner to waybill_scheduler;
alter function scheduler.forget_keys owner to waybill_scheduler;
alter function scheduler.forget_browser_sessions owner to waybill_scheduler;
alter function scheduler.forget_marks owner to waybill_scheduler;
alter function scheduler.list_quarantine owner to waybill_scheduler;

-- A turn that looks silent: its last step says whether it is. 'alive' moves the time it is looked at next.
create or replace function state.listen(p_project uuid, p_agent uuid, p_turn uuid, p_epoch bigint, p_token bigint, p_silence interval)
returns boolean language plpgsql as $$
declare
  v_entered text;
  v_last timestamptz;
begin
  v_entered := state.enter(p_project);
  perform from state.agent_state_head h
    where h.project_id = p_project and h.agent_id = p_agent and h.active_agent_turn_id = p_turn
      and h.turn_epoch = p_epoch and h.claim_token = p_token and h.status = 'running'
      for no key update;
  if not found then
    return true;
  end if;
  select max(s.created_at) into v_last
    from state.agent_steps s where s.project_id = p_project and s.agent_turn_id = p_turn and s.claim_token = p_token;
  if v_last is null or v_last + p_silence <= now() then
    return false;
  end if;
  update state.agent_inbox i
     set silent_by = v_last + p_silence
   where i.project_id = p_project and i.agent_turn_id = p_turn;
  return true;
end $$;

-- An agent's head, from what else is known of it: the inbox says what it is about, turns and steps which epochs were used.
-- A turn that a worker was running is armed again under a new fence, as in a reclaim.
create or replace function state.rebuild_head(p_project uuid, p_agent uuid)
returns table (status text, active_agent_turn_id uuid, turn_epoch bigint, n_queued integer, worker_target text)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_agent  resource.project_agents;
  v_active state.agent_inbox;
  v_inbox  state.agent_inbox;
  v_epoch  bigint;
  v_token  bigint;
  v_lost   integer := 0;
  v_queued integer := 0;
  v_open   uuid[];
begin
  v_entered := state.enter(p_project);
  -- Under its lock: it may be about to be retired, or to be given a memory.
  select a.* into v_agent from resource.project_agents a where a.project_id = p_project and a.agent_id = p_agent for no key update;
  if not found or v_agent.retired_at is not null then
    raise exception 'no such agent' using errcode = 'WB404', detail = p_agent::text;
  end if;
  loop
    -- A caller that comes meanwhile waits for this row.
    insert into state.agent_state_head (project_id, agent_id, worker_target, ephemeral, memory_box_id)
    values (p_project, p_agent, v_agent.worker_target, v_agent.ephemeral, v_agent.memory_box_id)
        on conflict do nothing;
    exit when found;
    return query
    select h.status::text, h.active_agent_turn_id, h.turn_epoch, h.n_queued, h.worker_target::text
      from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent for no key update;
    if found then
      return;
    end if;
  end loop;
  --! rebuild.row
  if v_agent.ephemeral then
    -- Asked for again: it stays for a while.
    update resource.project_agents a
       set retire_by = greatest(a.retire_by, now() + interval '1 day')
     where a.project_id = p_project and a.agent_id = p_agent;
  end if;
  v_open := array(select t.agent_turn_id from state.turns t
                   where t.project_id = p_project and t.agent_id = p_agent and t.status = 'open');
  select max(greatest(t.turn_epoch, t.dispatched_epoch, s.turn_epoch, i.turn_epoch)), max(greatest(t.claim_token, s.claim_token, i.claim_token))
    into v_epoch, v_token
    -- The newest have the highest.
    from (select t.agent_turn_id, t.turn_epoch, t.dispatched_epoch, t.claim_token
            from state.turns t
           where t.project_id = p_project and t.agent_id = p_agent
           order by t.agent_turn_id desc
           limit 1000) t
    left join lateral (select max(s.turn_epoch) as turn_epoch, max(s.claim_token) as claim_token from state.agent_steps s
                        where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s on true
    left join lateral (select i.turn_epoch, i.claim_token from state.agent_inbox i
                        where i.project_id = p_project and i.agent_turn_id = t.agent_turn_id offset 0) i on true;
  v_epoch := coalesce(v_epoch, 0) + 1;
  for v_inbox in
    select i.*
      from unnest(v_open) as o (agent_turn_id)
     cross join lateral (
           select i.* from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = o.agent_turn_id offset 0) i
     order by i.inbox_seq
  loop
    v_lost := greatest(v_lost, v_inbox.n_lost_leases + v_inbox.retry_count);
    if v_inbox.status = 'queued' then
      v_queued := v_queued + 1;
    end if;
    -- The one that was dispatched and is not over; what is not due yet was not. Else the first that is queued.
    if v_active.agent_turn_id is null and (v_inbox.dispatched_at is not null or v_inbox.status = 'queued')
       or v_active.dispatched_at is null and v_inbox.dispatched_at is not null then
      v_active := v_inbox;
    end if;
  end loop;
  -- Claims and reclaims may have gone beyond what was written down by as much as they were counted; a claim by up to 2^36.
  v_epoch := v_epoch + v_lost;
  v_token := coalesce(v_token, 0) + (v_lost + 2) * 68719476736;
  v_queued := v_queued - coalesce((v_active.status = 'queued')::integer, 0);
  update state.agent_state_head h
     set status = case when v_active.agent_turn_id is null then 'idle'
                       when v_active.status = 'deferred' and v_active.next_retry_at is null then 'suspended'
                       else 'dispatched' end,
         active_agent_turn_id = v_active.agent_turn_id, turn_epoch = v_epoch, claim_token = v_token, n_queued = v_queued
   where h.project_id = p_project and h.agent_id = p_agent;
  update state.agent_inbox i
     set turn_epoch = v_epoch, claim_token = null, worker_id = null, silent_by = null,
         dispatched_at = coalesce(i.dispatched_at, now()),
         status = case when i.status in ('processing', 'queued') then 'pending' else i.status end, inbox_seq = state.place_of_begun()
   where i.project_id = p_project and i.agent_turn_id = v_active.agent_turn_id;
  --! rebuild.armed
  -- Suspended on calls that were all answered while there was no head: nothing else would resume it.
  update state.agent_inbox i
     set status = 'pending', inbox_seq = state.place_of_begun(), message_type = 'tool_result'
   where i.project_id = p_project and i.agent_turn_id = v_active.agent_turn_id
     and i.status = 'deferred' and i.next_retry_at is null
     and not exists (select from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = v_active.agent_turn_id);
  return query
  select h.status::text, h.active_agent_turn_id, h.turn_epoch, h.n_queued, h.worker_target::text
    from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent;
end $$;
