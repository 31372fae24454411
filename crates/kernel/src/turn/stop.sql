-- A caller wants a turn to end. If no worker runs it, it ends here, with the deliverable that was brought along. A worker runs
-- it: the worker finds the reason between its steps and ends it.
-- outcome  ended · asked (a worker has it) · over (it had its end before)
create or replace function state.stop(p_project uuid, p_turn uuid, p_reason text, p_alone boolean, p_cards cardbox.new_card[])
returns table (outcome text, worker_targets text[], batches uuid[])
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_agent uuid;
  v_head  state.agent_state_head;
  v_inbox state.agent_inbox;
  v_end   state.ending;
begin
  v_entered := state.enter(p_project);
  select t.agent_id into v_agent from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = p_turn::text;
  end if;
  select h.* into v_head from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent for no key update;
  if not found then
    -- One that was here for its turns only has no head once they are over.
    if exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn and t.status <> 'open') then
      return query select 'over'::text, '{}'::text[], '{}'::uuid[];
      return;
    end if;
    raise exception 'the agent of turn % has lost its state', p_turn using errcode = 'WB006', detail = p_turn::text;
  end if;
  --! stop.locked
  -- A claim may hold the row, but it never waits: it sees our lock on the head, leaves the row, and we go on.
  select i.* into v_inbox from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = p_turn for no key update;
  if not found then
    return query select 'over'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  if v_inbox.status = 'processing' then
    update state.agent_inbox i
       set stop_asked = true, stop_reason = coalesce(i.stop_reason, p_reason)
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select 'asked'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  if v_head.active_agent_turn_id = p_turn then
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null
     where h.project_id = p_project and h.agent_id = v_agent;
  elsif v_inbox.status = 'queued' then
    update state.agent_state_head h set n_queued = h.n_queued - 1 where h.project_id = p_project and h.agent_id = v_agent;
  end if;
  --! stop.head
  v_end.agent_id := v_agent;
  v_end.agent_turn_id := p_turn;
  v_end.turn_epoch := v_head.turn_epoch;
  v_end.claim_token := v_head.claim_token;
  v_end.status := 'canceled';
  return query
  select 'ended'::text, array_remove(array[e.worker_target], null), array_remove(array[e.batch_id], null)
    from state.end_turn(p_project, v_end, coalesce(v_head.active_agent_turn_id = p_turn, false),
           case when v_head.active_agent_turn_id = p_turn then v_head.n_queued else 0 end,
           v_head.ephemeral or v_head.memory_box_id is not null, p_alone, p_cards) e;
end $$;
