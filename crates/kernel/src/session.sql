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
