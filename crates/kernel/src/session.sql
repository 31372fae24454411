-- Sessions for people, in the order asked for.
create or replace function state.sessions(p_project uuid, p_sessions uuid[])
returns table (session_id uuid, owner text, title text, labels text[], messages_box_id uuid, n_messages bigint, has_external boolean,
  todo_card_id uuid, compression_card_id uuid, mapreduce_results_box_id uuid, created_at timestamptz, ended_at timestamptz)
language sql stable as $$
  select s.session_id, s.owner, s.title, s.labels, s.messages_box_id, b.length,
         b.has_external or exists (select from unnest(array[s.todo_card_id, s.compression_card_id]) as u (card_id)
                                    where exists (select from cardbox.cards c
                                                   where c.project_id = p_project and c.card_id = u.card_id and c.is_external
                                                  offset 0)),
         s.todo_card_id, s.compression_card_id, s.mapreduce_results_box_id, s.created_at, s.ended_at
    from unnest(p_sessions) with ordinality as asked (session_id, n)
   cross join lateral (
         select s.* from state.blackboards s where s.project_id = p_project and s.session_id = asked.session_id offset 0) s
   cross join lateral (
         select b.length, b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = s.messages_box_id offset 0) b
   order by asked.n
$$;

-- All that was begun for a session: its turns, the turns that these asked for, and forks of any of them.
create or replace function state.turns_of_session(p_project uuid, p_session uuid)
returns table (agent_turn_id uuid, status text, context_box_id uuid, output_box_id uuid)
language sql stable as $$
  with recursive turns as (
    select t.agent_turn_id, t.status, t.context_box_id, t.output_box_id
      from state.turns t
     where t.session_id = p_session and t.project_id = p_project
     union
    select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
      from turns t
     cross join lateral (
           select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
             from state.turns c
            where c.project_id = p_project and c.parent_agent_turn_id = t.agent_turn_id
            union all
           select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
             from state.forks f
            cross join lateral (
                  select c.* from state.turns c where c.project_id = p_project and c.agent_turn_id = f.agent_turn_id offset 0) c
            where f.source_turn_id = t.agent_turn_id and f.project_id = p_project
           offset 0) c
  )
  select t.agent_turn_id, t.status::text, t.context_box_id, t.output_box_id from turns t
$$;
