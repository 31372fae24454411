-- A caller tells a turn something while it is open: it is shown at the turn's next step. The head's lock orders it with steps, reports and the
-- end. The card's id is its key: told again it changes nothing.
-- outcome  steered · over (the turn has ended)
create or replace function state.steer(p_project uuid, p_turn uuid, p_cards cardbox.new_card[],
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
  if (p_cards[1]).card_id = any (v_turn.steer_card_ids) then
    steer.outcome := 'steered';
    return;
  end if;
  if v_turn.status <> 'open' then
    steer.outcome := 'over';
    return;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  update cardbox.boxes b
     set length = b.length + 1
   where b.project_id = p_project and b.box_id = v_turn.output_box_id
  returning b.length into v_length;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p_project, v_turn.output_box_id, v_length, (p_cards[1]).card_id);
  --! steer.card
  update state.turns t
     set steer_card_ids = t.steer_card_ids || (p_cards[1]).card_id
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id, recursion_depth, trace_id)
  values (p_project, (p_cards[1]).card_id, 'steer', 'request', p_turn, steer.agent_id, steer.turn_epoch, (p_cards[1]).card_id, v_turn.recursion_depth,
          v_turn.trace_id);
  --! steer.edge
  steer.outcome := 'steered';
end $$;
