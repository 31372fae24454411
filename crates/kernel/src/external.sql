-- Whether a turn has seen what came from outside: in its context, in what it was answered and wrote, or in what its session remembers.
create or replace function state.saw_external(p_project uuid, p_turn uuid) returns boolean
language plpgsql stable as $$
declare
  v_saw boolean;
begin
  select exists (select from unnest(array[t.context_box_id, t.output_box_id]) as u (box_id)
                  where exists (select from cardbox.boxes b
                                 where b.project_id = p_project and b.box_id = u.box_id and b.has_external
                                offset 0))
      or t.session_id is not null
     and state.session_saw_external(p_project, t.session_id)
    into v_saw
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  return coalesce(v_saw, false);
end $$;

-- Whether what a session remembers in its own words came from outside. Its messages are in the context of each of its turns.
create or replace function state.session_saw_external(p_project uuid, p_session uuid) returns boolean
language plpgsql stable as $$
begin
  return exists (select from state.blackboards s
                  cross join lateral unnest(array[s.todo_card_id, s.compression_card_id]) as u (card_id)
                  where s.project_id = p_project and s.session_id = p_session
                    and exists (select from cardbox.cards c
                                 where c.project_id = p_project and c.card_id = u.card_id and c.is_external
                                offset 0));
end $$;

-- What is written from here on in this transaction came from outside, or did not.
create or replace function state.label(p_external boolean) returns text
language sql as $$
  select set_config('waybill.external', case when p_external then 'on' else 'off' end, true)
$$;
