-- Transaction 4: the answer to a call: a result, or the timeout that stands in for it.
--   p_token     of the claim that was answered; null where no handler had to claim it (a timeout, a join)
--   p_external  what it says came from outside
-- outcome  applied · duplicate (the same answer came before) · dropped (late: the call is over)
-- An unknown call is WB404. A handler that answers for a claim that was taken from it gets WB001.
create or replace function state.report(p_project uuid, p_call uuid, p_token bigint, p_message_type text, p_status text, p_external boolean, p_cards cardbox.new_card[])
returns table (outcome text, agent_turn_id uuid, worker_target text)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_turn     uuid;
  v_agent    uuid;
  v_head     state.agent_state_head;
  v_token    bigint;
  v_answered uuid;
  v_length   bigint;
  v_box      uuid;
begin
  v_entered := state.enter(p_project);
  select c.agent_turn_id, c.agent_id into v_turn, v_agent
    from state.waiting_calls c
   where c.project_id = p_project and c.tool_call_id = p_call;
  if not found then
    select e.agent_turn_id, e.agent_id into v_turn, v_agent
      from state.execution_edges e
     where e.project_id = p_project and e.correlation_id = p_call and e.primitive = 'command' and e.edge_phase = 'request';
    if not found then
      raise exception 'no such call' using errcode = 'WB404', detail = p_call::text;
    end if;
  end if;
  select h.* into v_head from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent for no key update;
  -- One that was here for its turns only has no head once they are over: whatever comes then is late.
  if not found and exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = v_turn and t.status = 'open') then
    raise exception 'the agent of call % has lost its state', p_call using errcode = 'WB006', detail = p_call::text;
  end if;
  --! report.locked
  select c.claim_token into v_token
    from state.waiting_calls c
   where c.project_id = p_project and c.tool_call_id = p_call
     for update;
  if not found then
    select e.card_id into v_answered
      from state.execution_edges e
     where e.project_id = p_project and e.correlation_id = p_call and e.primitive = 'report' and e.edge_phase = 'response';
    if found and v_answered = (p_cards[1]).card_id then
      return query select 'duplicate'::text, v_turn, null::text;
      return;
    end if;
    insert into state.execution_edges
           (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, status)
    values (p_project, p_call, 'report', 'dropped', v_turn, v_agent, p_status)
        on conflict do nothing;
    return query select 'dropped'::text, v_turn, null::text;
    return;
  end if;
  if p_token is not null and p_token <> v_token then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;

  v_labelled := state.label(p_external);
  v_written := cardbox.put(p_project, p_cards);
  --! report.card
  select t.output_box_id into v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = v_turn;
  update cardbox.boxes b
     set length = b.length + 1
   where b.project_id = p_project and b.box_id = v_box
 returning b.length into v_length;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p_project, v_box, v_length, (p_cards[1]).card_id);
  --! report.entry
  delete from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id, status)
  values (p_project, p_call, 'report', 'response', v_turn, v_agent, v_head.turn_epoch, (p_cards[1]).card_id, p_status);
  --! report.applied
  -- The last one that was waited for? Asked after the head's lock, so of two last ones the second sees the first.
  if v_head.status = 'suspended' and v_head.active_agent_turn_id = v_turn
     and not exists (select from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = v_turn) then
    update state.agent_inbox i
       set status = 'pending', inbox_seq = state.place_of_begun(), message_type = p_message_type, armed_at = now()
     where i.project_id = p_project and i.agent_turn_id = v_turn and i.status = 'deferred' and i.next_retry_at is null;
    if found then
      --! report.resumed
      return query select 'applied'::text, v_turn, v_head.worker_target::text;
      return;
    end if;
  end if;
  return query select 'applied'::text, v_turn, null::text;
end $$;
