-- People are asked about a call: it waits for them instead of for its handler. Whoever handles it has claimed it.
create or replace function state.ask(p_project uuid, p_call uuid, p_token bigint, p_timeout interval, p_cards cardbox.new_card[])
returns boolean language plpgsql as $$
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  update state.waiting_calls c
     -- The asker's claim ends here: what it reports from now on is refused.
     set status = 'asking', worker_id = null, claim_token = c.claim_token + 1, request_card_id = (p_cards[1]).card_id, decision_card_id = null, deadline_at = now() + p_timeout
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing';
  if not found then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! ask.card
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, 'asked', v_call.step_id, (p_cards[1]).card_id);
  return true;
end $$;

-- It is decided: the call is ready again, and its handler finds the decision with it.
-- outcome  decided · duplicate (the same decision came before) · gone (nobody waits for it any more, or somebody else decided)
create or replace function state.decide(p_project uuid, p_call uuid, p_status text, p_timeout interval, p_cards cardbox.new_card[])
returns table (outcome text, agent_turn_id uuid, target text)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  if not found then
    return query select 'gone'::text, null::uuid, null::text;
    return;
  end if;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  -- Again, now that nobody else is at it.
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call for update;
  if not found or v_call.status <> 'asking' then
    return query select case when v_call.decision_card_id = (p_cards[1]).card_id then 'duplicate' else 'gone' end, v_call.agent_turn_id, null::text;
    return;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! decide.card
  update state.waiting_calls c
     set status = 'pending', decision_card_id = (p_cards[1]).card_id, deadline_at = now() + p_timeout, retry_count = 0
   where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, p_status, v_call.step_id, (p_cards[1]).card_id);
  --! decide.armed
  return query select 'decided'::text, v_call.agent_turn_id, v_call.target::text;
end $$;
