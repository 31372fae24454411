-- Somebody tells a turn something while it is open: it is shown at the turn's next step. The head's lock orders it with steps, reports and the
-- end. The card's id is its key: told again it changes nothing.
-- outcome  steered · over (the turn has ended)
create or replace function state.steer(p_project uuid, p_turn uuid,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[],
  out outcome text, out agent_id uuid, out turn_epoch bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_turn    record;
  v_length  bigint;
begin
  v_entered := state.enter(p_project);
  select t.agent_id into steer.agent_id from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = p_turn::text;
  end if;
  select h.turn_epoch into steer.turn_epoch
    from state.agent_state_head h
   where h.project_id = p_project and h.agent_id = steer.agent_id
     for no key update;
  if not found then
    steer.outcome := 'over';
    return;
  end if;
  --! steer.locked
  -- A later statement than the lock: an end that we waited for is seen.
  select t.status, t.output_box_id, t.steer_card_ids, t.trace_id, t.recursion_depth into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  if c_ids[1] = any (v_turn.steer_card_ids) then
    steer.outcome := 'steered';
    return;
  end if;
  if v_turn.status <> 'open' then
    steer.outcome := 'over';
    return;
  end if;
  v_written := cardbox.put(p_project, c_ids, c_tokens, c_types, c_roles, c_authors, c_hashes, c_calls, c_traces, c_steps, c_parents, c_ttls, c_contents, c_tool_calls, c_metadata);
  update cardbox.boxes b
     set length = b.length + 1
   where b.project_id = p_project and b.box_id = v_turn.output_box_id
  returning b.length into v_length;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p_project, v_turn.output_box_id, v_length, c_ids[1]);
  --! steer.card
  update state.turns t
     set steer_card_ids = t.steer_card_ids || c_ids[1]
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id, recursion_depth, trace_id)
  values (p_project, c_ids[1], 'steer', 'request', p_turn, steer.agent_id, steer.turn_epoch, c_ids[1], v_turn.recursion_depth,
          v_turn.trace_id);
  --! steer.edge
  steer.outcome := 'steered';
end $$;
