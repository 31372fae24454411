-- Transaction 3: what one step wrote, and the calls that leave with it; then go on, or suspend until they are answered.
--   p_step  {step_id, calls: [{tool_call_id, target, tool_call_card_id, timeout_seconds, once}], suspend, receipt?, usage?}
-- outcome 'running': go on, nothing is left to wait for. Finishing is a transaction of its own shape: state.finish.
create or replace function state.step(p_fence state.fence, p_step jsonb, p_cards cardbox.new_card[])
returns table (outcome text, stop_reason text, duplicate boolean, budget jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_step     uuid := p_step ->> 'step_id';
  v_n        integer := cardinality(p_cards);
  v_calls    integer := jsonb_array_length(p_step -> 'calls');
  v_box      uuid;
  v_length   bigint;
  v_outcome  text := 'running';
  v_stop     text;
  v_lost     integer;
  v_emit     boolean;
  v_batch    uuid;
  v_session  uuid;
  v_external boolean;
  v_told     integer;
  v_budget   jsonb;
begin
  v_entered := state.enter(p_fence.project_id);
  perform from state.agent_state_head h
    where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id and h.active_agent_turn_id = p_fence.agent_turn_id
      and h.turn_epoch = p_fence.turn_epoch and h.claim_token = p_fence.claim_token and h.status = 'running'
      for no key update;
  if not found then
    -- Ours, and committed without our learning of it?
    return query
    select s.outcome::text, null::text, true, state.budget_of(p_fence.project_id, p_fence.agent_turn_id)
      from state.agent_steps s
     where s.project_id = p_fence.project_id and s.agent_turn_id = p_fence.agent_turn_id and s.step_id = v_step and s.claim_token = p_fence.claim_token;
    if not found then
      raise exception 'turn % is no longer ours', p_fence.agent_turn_id using errcode = 'WB001', detail = p_fence.agent_turn_id::text;
    end if;
    return;
  end if;
  --! step.locked
  select i.stop_reason, i.n_lost_leases + i.retry_count into v_stop, v_lost
    from state.agent_inbox i where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  -- Whether it has seen what came from outside: as state.saw_external.
  select b.box_id, b.length, t.emit_state_event, t.batch_id, t.session_id,
         b.has_external
         or exists (select from cardbox.boxes c where c.project_id = p_fence.project_id and c.box_id = t.context_box_id and c.has_external offset 0)
    into v_box, v_length, v_emit, v_batch, v_session, v_external
    from state.turns t
   cross join lateral (
         select b.box_id, b.length, b.has_external from cardbox.boxes b where b.project_id = p_fence.project_id and b.box_id = t.output_box_id offset 0) b
   where t.project_id = p_fence.project_id and t.agent_turn_id = p_fence.agent_turn_id;
  -- No caller waits for it any more: it ends, also where the sweep has not come to it yet.
  if v_batch is not null and v_stop is null
     and exists (select from state.pmo_batches p where p.project_id = p_fence.project_id and p.batch_id = v_batch and p.status <> 'open') then
    v_stop := 'its batch has ended';
  end if;
  -- A later statement than the head's lock: a report that we waited for is seen.
  -- One that is to stop does not wait: its worker has it in hand, and ends it.
  if (p_step ->> 'suspend')::boolean and v_stop is null
     and (v_calls > 0
          or exists (select from state.waiting_calls c where c.project_id = p_fence.project_id and c.agent_turn_id = p_fence.agent_turn_id)) then
    v_outcome := 'suspended';
  end if;
  insert into state.agent_steps
         (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, n_calls,
          provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
  select p_fence.project_id, p_fence.agent_turn_id, v_step, p_fence.agent_id, p_fence.turn_epoch, p_fence.claim_token, v_outcome, v_length + 1,
         v_length + v_n, v_calls, u.*
    from jsonb_to_record(coalesce(p_step -> 'usage', '{}')) as u
         (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
          n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
      on conflict do nothing;
  if not found then
    -- The head is still running under this claim, so the first time it went on.
    return query select 'running'::text, v_stop, true, state.budget_of(p_fence.project_id, p_fence.agent_turn_id);
    return;
  end if;
  if p_step ? 'receipt' and (p_step #>> '{usage,reported}')::boolean
     and state.is_late(p_fence.project_id, p_fence.agent_turn_id, (p_step ->> 'receipt')::json) then
    raise exception 'turn % has gone on', p_fence.agent_turn_id using errcode = 'WB001', detail = p_fence.agent_turn_id::text;
  end if;
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id)
  values (p_fence.project_id, p_fence.agent_turn_id, 'step', v_step, p_fence.agent_id, v_outcome, p_fence.turn_epoch, v_step);
  if p_step ? 'receipt' then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt) values (p_fence.project_id, p_fence.agent_turn_id, v_step, (p_step ->> 'receipt')::json);
  end if;
  --! step.row
  if p_step ? 'usage' then
    v_budget := state.spend(p_fence.project_id, p_fence.agent_turn_id, p_step -> 'usage');
  end if;
  --! step.spent
  if not v_external and v_session is not null then
    v_external := state.session_saw_external(p_fence.project_id, v_session);
  end if;
  v_labelled := state.label(v_external);
  v_written := cardbox.put(p_fence.project_id, p_cards);
  --! step.cards
  if v_n > 0 then
    update cardbox.boxes b
       set length = v_length + v_n
     where b.project_id = p_fence.project_id and b.box_id = v_box;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_fence.project_id, v_box, v_length + c.ordinality, c.card_id
      from unnest(p_cards) with ordinality c;
  end if;
  --! step.entries
  if v_calls > 0 then
    with call as (
      insert into state.waiting_calls
             (project_id, tool_call_id, agent_turn_id, agent_id, step_id, target, tool_call_card_id, once, deadline_at)
      select p_fence.project_id, c.tool_call_id, p_fence.agent_turn_id, p_fence.agent_id, v_step, c.target, c.tool_call_card_id, c.once,
             now() + make_interval(secs => c.timeout_seconds)
        from jsonb_to_recordset(p_step -> 'calls') as c
             (tool_call_id uuid, target text, tool_call_card_id uuid, timeout_seconds double precision, once boolean)
   returning tool_call_id, tool_call_card_id
    )
    insert into state.execution_edges
           (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id)
    select p_fence.project_id, c.tool_call_id, 'command', 'request', p_fence.agent_turn_id, p_fence.agent_id, p_fence.turn_epoch, c.tool_call_card_id from call c;
  end if;
  --! step.calls
  if v_outcome = 'suspended' then
    update state.agent_state_head h set status = 'suspended' where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
    update state.agent_inbox i
       set status = 'deferred', worker_id = null, silent_by = null
     where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
    if v_emit then
      v_told := state.tell(p_fence.project_id, array[p_fence.agent_turn_id], p_fence.agent_id, 'suspended');
    end if;
  end if;
  if v_lost > 0 and v_n > 0 then
    -- The turn has moved: earlier lost leases and failed attempts say nothing about the next ones. A step without a card only
    -- records a cost; counting it as progress would let a turn that pays and then fails be tried for ever.
    update state.agent_inbox i set n_lost_leases = 0, retry_count = 0 where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  end if;
  --! step.suspended
  return query select v_outcome, v_stop, false, v_budget;
end $$;
