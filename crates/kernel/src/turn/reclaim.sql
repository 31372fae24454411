-- Transaction 6: takes a turn from a worker. The same inbox row is armed again under a fence of its own; the old holder is
-- powerless for ever. Or, where it has been tried often enough, the turn ends as failed with the deliverable brought along.
--   p_lost     the lease lapsed, or the worker fell silent: counted apart from attempts that failed
--   p_backoff  how long an attempt that failed waits for the next
-- outcome  armed · ended · stale (another caller was faster, or it is over)
create or replace function state.reclaim(p_fence state.fence, p_lost boolean, p_backoff interval,
  p_max_lost_leases integer, p_max_attempts integer, p_alone boolean, p_cards cardbox.new_card[])
returns table (outcome text, worker_targets text[], batches uuid[])
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_inbox  state.agent_inbox;
  v_queued integer;
  v_keeps  boolean;
  v_waits  boolean;
  v_told   integer;
  v_end    state.ending;
begin
  v_entered := state.enter(p_fence.project_id);
  select h.n_queued, h.ephemeral or h.memory_box_id is not null into v_queued, v_keeps
    from state.agent_state_head h
    where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id and h.active_agent_turn_id = p_fence.agent_turn_id
      and h.turn_epoch = p_fence.turn_epoch and h.claim_token = p_fence.claim_token and h.status = 'running'
      for no key update;
  if not found then
    return query select 'stale'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  --! reclaim.locked
  select i.* into v_inbox from state.agent_inbox i where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id for no key update;
  if p_lost and v_inbox.n_lost_leases >= p_max_lost_leases or not p_lost and v_inbox.retry_count + 1 >= p_max_attempts then
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null, claim_token = h.claim_token + 1
     where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
    --! reclaim.idle
    v_end.agent_id := p_fence.agent_id;
    v_end.agent_turn_id := p_fence.agent_turn_id;
    v_end.turn_epoch := p_fence.turn_epoch;
    v_end.claim_token := p_fence.claim_token + 1;
    v_end.status := 'failed';
    return query
    select 'ended'::text, array_remove(array[e.worker_target], null), array_remove(array[e.batch_id], null)
      from state.end_turn(p_fence.project_id, v_end, true, v_queued, v_keeps, p_alone, p_cards) e;
    return;
  end if;
  update state.agent_state_head h
     set status = 'dispatched', turn_epoch = p_fence.turn_epoch + 1, claim_token = p_fence.claim_token + 1
   where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
  --! reclaim.head
  -- One that is to stop does not wait: the worker that claims it ends it.
  v_waits := p_backoff > interval '0' and not v_inbox.stop_asked;
  update state.agent_inbox i
     set status = case when v_waits then 'deferred' else 'pending' end, inbox_seq = state.place_of_begun(),
         next_retry_at = case when v_waits then now() + p_backoff end,
         worker_id = null, silent_by = null, claim_token = null, turn_epoch = p_fence.turn_epoch + 1, armed_at = now(),
         n_lost_leases = i.n_lost_leases + p_lost::integer, retry_count = i.retry_count + (not p_lost)::integer
   where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  -- That a worker was lost is on record for every turn.
  v_told := state.tell(p_fence.project_id, array[p_fence.agent_turn_id], p_fence.agent_id, 'dispatched', p_lost);
  --! reclaim.armed
  return query
  select 'armed'::text, case when v_waits then '{}' else array[v_inbox.worker_target::text] end, '{}'::uuid[];
end $$;

-- A deferred row whose time has come: a turn that was not to start before now, or the next attempt of one.
create or replace function state.release(p_project uuid, p_turn uuid)
returns table (worker_targets text[])
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_head  state.agent_state_head;
  v_inbox state.agent_inbox;
  v_told  integer;
begin
  v_entered := state.enter(p_project);
  select h.* into v_head
    from state.agent_state_head h
   where h.project_id = p_project
     and h.agent_id = (select t.agent_id from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn)
     for no key update;
  if not found then
    raise exception 'the agent of turn % has lost its state', p_turn using errcode = 'WB006', detail = p_turn::text;
  end if;
  --! release.locked
  select i.* into v_inbox
    from state.agent_inbox i
   where i.project_id = p_project and i.agent_turn_id = p_turn
     for no key update;
  if not found or v_inbox.status <> 'deferred' or (v_inbox.next_retry_at <= now()) is not true then
    return query select '{}'::text[];
    return;
  end if;
  if v_head.status = 'idle' then
    update state.agent_state_head h
       set status = 'dispatched', active_agent_turn_id = p_turn, turn_epoch = h.turn_epoch + 1
     where h.project_id = p_project and h.agent_id = v_head.agent_id
 returning h.* into v_head;
  elsif v_head.active_agent_turn_id <> p_turn and v_head.n_queued >= v_head.queue_cap then
    update state.agent_inbox i
       set next_retry_at = now() + interval '5 seconds'
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select '{}'::text[];
    return;
  elsif v_head.active_agent_turn_id <> p_turn then
    update state.agent_state_head h set n_queued = h.n_queued + 1 where h.project_id = p_project and h.agent_id = v_head.agent_id;
    update state.agent_inbox i
       set status = 'queued', next_retry_at = null
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select '{}'::text[];
    return;
  end if;
  if v_head.memory_box_id is not null then
    v_told := state.catch_up(p_project, p_turn);
  end if;
  --! release.head
  update state.agent_inbox i
     set status = 'pending', inbox_seq = case when i.dispatched_at is null then nextval('state.agent_inbox_inbox_seq_seq') else state.place_of_begun() end,
         next_retry_at = null, turn_epoch = v_head.turn_epoch, armed_at = now(),
         dispatched_at = coalesce(i.dispatched_at, now())
   where i.project_id = p_project and i.agent_turn_id = p_turn;
  v_told := state.tell(p_project, array[p_turn], v_head.agent_id, v_head.status);
  --! release.armed
  return query select array[v_inbox.worker_target::text];
end $$;
