-- Transaction 3: what one step wrote, and the calls that leave with it; then go on, or suspend until they are answered.
--   p_step  {step_id, card_ids, calls: [{tool_call_id, target, tool_call_card_id, timeout_seconds, once}], suspend, receipt?, usage?}
-- outcome 'running': go on, nothing is left to wait for. Finishing is a transaction of its own shape: state.finish.
create or replace function state.step(p_project uuid, p_agent uuid, p_turn uuid, p_epoch bigint, p_token bigint, p_step jsonb,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[])
returns table (outcome text, stop_reason text, duplicate boolean, budget jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_step     uuid := p_step ->> 'step_id';
  v_card_ids uuid[] := array(select jsonb_array_elements_text(p_step -> 'card_ids')::uuid);
  v_calls    integer := jsonb_array_length(p_step -> 'calls');
  v_box      uuid;
  v_length   bigint;
  v_outcome  text := 'running';
  v_stop     text;
  v_lost     integer;
  v_emit     boolean;
  v_batch    uuid;
  v_told     integer;
  v_budget   jsonb;
begin
  v_entered := state.enter(p_project);
  perform from state.agent_state_head h
    where h.project_id = p_project and h.agent_id = p_agent and h.active_agent_turn_id = p_turn
      and h.turn_epoch = p_epoch and h.claim_token = p_token and h.status = 'running'
      for no key update;
  if not found then
    -- Ours, and committed without our learning of it?
    return query
    select s.outcome::text, null::text, true, state.budget_of(p_project, p_turn)
      from state.agent_steps s
     where s.project_id = p_project and s.agent_turn_id = p_turn and s.step_id = v_step and s.claim_token = p_token;
    if not found then
      raise exception 'turn % is no longer ours', p_turn using errcode = 'WB001', detail = p_turn::text;
    end if;
    return;
  end if;
  --! step.locked
  select i.stop_reason, i.n_lost_leases + i.retry_count into v_stop, v_lost
    from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = p_turn;
  select b.box_id, b.length, t.emit_state_event, t.batch_id into v_box, v_length, v_emit, v_batch
    from state.turns t
   cross join lateral (
         select b.box_id, b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id offset 0) b
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  -- Nobody waits for it any more: it ends, also where the sweep has not come to it yet.
  if v_batch is not null and v_stop is null
     and exists (select from state.pmo_batches p where p.project_id = p_project and p.batch_id = v_batch and p.status <> 'open') then
    v_stop := 'its batch has ended';
  end if;
  -- A later statement than the head's lock: a report that we waited for is seen.
  -- One that is to stop does not wait: its worker has it in hand, and ends it.
  if (p_step ->> 'suspend')::boolean and v_stop is null
     and (v_calls > 0
          or exists (select from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = p_turn)) then
    v_outcome := 'suspended';
  end if;
  insert into state.agent_steps
         (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, n_calls,
          provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
  select p_project, p_turn, v_step, p_agent, p_epoch, p_token, v_outcome, v_length + 1, v_length + cardinality(v_card_ids), v_calls, u.*
    from jsonb_to_record(coalesce(p_step -> 'usage', '{}')) as u
         (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
          n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
      on conflict do nothing;
  if not found then
    -- The head is still running under this claim, so the first time it went on.
    return query select 'running'::text, v_stop, true, state.budget_of(p_project, p_turn);
    return;
  end if;
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id)
  values (p_project, p_turn, 'step', v_step, p_agent, v_outcome, p_epoch, v_step);
  if p_step ? 'receipt' then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt) values (p_project, p_turn, v_step, (p_step ->> 'receipt')::json);
  end if;
  --! step.row
  if p_step ? 'usage' then
    v_budget := state.spend(p_project, p_turn, p_step -> 'usage');
  end if;
  --! step.spent
  v_labelled := state.label(state.saw_external(p_project, p_turn));
  v_written := cardbox.put(p_project, c_ids, c_tokens, c_types, c_roles, c_authors, c_hashes, c_calls, c_traces, c_steps, c_parents, c_ttls, c_contents, c_tool_calls, c_metadata);
  --! step.cards
  if v_card_ids <> '{}' then
    update cardbox.boxes b
       set length = v_length + cardinality(v_card_ids)
     where b.project_id = p_project and b.box_id = v_box;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, v_box, v_length + c.n, c.card_id
      from unnest(v_card_ids) with ordinality as c (card_id, n);
  end if;
  --! step.entries
  if v_calls > 0 then
    with call as (
      insert into state.waiting_calls
             (project_id, tool_call_id, agent_turn_id, agent_id, step_id, target, tool_call_card_id, once, deadline_at)
      select p_project, c.tool_call_id, p_turn, p_agent, v_step, c.target, c.tool_call_card_id, c.once,
             now() + make_interval(secs => c.timeout_seconds)
        from jsonb_to_recordset(p_step -> 'calls') as c
             (tool_call_id uuid, target text, tool_call_card_id uuid, timeout_seconds double precision, once boolean)
   returning tool_call_id, tool_call_card_id
    )
    insert into state.execution_edges
           (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id)
    select p_project, c.tool_call_id, 'command', 'request', p_turn, p_agent, p_epoch, c.tool_call_card_id from call c;
  end if;
  --! step.calls
  if v_outcome = 'suspended' then
    update state.agent_state_head h set status = 'suspended' where h.project_id = p_project and h.agent_id = p_agent;
    update state.agent_inbox i
       set status = 'deferred', worker_id = null, silent_by = null
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    if v_emit then
      v_told := state.tell(p_project, array[p_turn], p_agent, 'suspended');
    end if;
  end if;
  if v_lost > 0 and v_card_ids <> '{}' then
    -- The turn has moved: earlier lost leases and failed attempts say nothing about the next ones. A step without a card only
    -- records a cost; counting it as progress would let a turn that pays and then fails be tried for ever.
    update state.agent_inbox i set n_lost_leases = 0, retry_count = 0 where i.project_id = p_project and i.agent_turn_id = p_turn;
  end if;
  --! step.suspended
  return query select v_outcome, v_stop, false, v_budget;
end $$;
