-- Puts cards that a box does not hold yet at its end; says how many. The caller holds the lock that orders the box's writers.
create or replace function state.append_new(p_project uuid, p_box uuid, p_cards uuid[]) returns integer
language plpgsql as $$
declare
  v_n integer;
begin
  with fresh as materialized (
    select c.card_id, row_number() over (order by min(c.n)) as n
      from unnest(p_cards) with ordinality as c (card_id, n)
     where not exists (select from cardbox.box_entries e
                        where e.project_id = p_project and e.card_id = c.card_id and e.box_id = p_box
                       offset 0)
     group by c.card_id
  ), grown as (
    update cardbox.boxes b
       set length = b.length + f.n
      from (select count(*) as n from fresh) f
     where b.project_id = p_project and b.box_id = p_box and f.n > 0
 returning b.length - f.n as before
  )
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select p_project, p_box, g.before + f.n, f.card_id
    from grown g cross join fresh f;
  get diagnostics v_n = row_count;
  return v_n;
end $$;

-- Appends to a session's memory, under the row's lock: two never lose to each other, and a card is there once.
create or replace function state.remember(p_project uuid, p_session uuid, p_cards uuid[]) returns integer
language plpgsql as $$
declare
  v_box uuid;
begin
  select b.messages_box_id into v_box
    from state.blackboards b
   where b.project_id = p_project and b.session_id = p_session
     for no key update;
  --! remember.locked
  -- A later statement than the lock: what the one before us appended is seen.
  return state.append_new(p_project, v_box, p_cards);
end $$;

-- Whether one of these turns belongs to a session, or had a limit: what is to be done once the batches that they ended are joined.
create or replace function state.talks(p_project uuid, p_turns uuid[]) returns boolean
language sql stable as $$
  select exists (select from unnest(p_turns) as e (agent_turn_id)
                  where (select t.session_id from state.turns t
                          where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id) is not null
                     or exists (select from state.budgets b
                                 where b.project_id = p_project and b.agent_turn_id = e.agent_turn_id
                                offset 0))
$$;

-- What turns of sessions said, when they have ended: the question, what they were told meanwhile, and the answer. In one order for everybody, and after every head
-- that the transaction locks: a holder of a head may wait for a blackboard, never the other way round.
create or replace function state.remember_turns(p_project uuid, p_turns uuid[]) returns integer
language plpgsql as $$
declare
  v_talk record;
  v_n    integer := 0;
begin
  for v_talk in
    select t.session_id, t.query_card_ids || t.steer_card_ids || t.deliverable_card_id as card_ids
      from unnest(p_turns) with ordinality as e (agent_turn_id, n)
     cross join lateral (
           select t.session_id, t.query_card_ids, t.steer_card_ids, t.deliverable_card_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id
           offset 0) t
     where t.session_id is not null and t.deliverable_card_id is not null
     order by t.session_id, e.n
  loop
    v_n := v_n + state.remember(p_project, v_talk.session_id, v_talk.card_ids);
  end loop;
  return v_n;
end $$;

-- One patch of a blackboard, all of it or nothing. The step that made it is its key: written again it changes nothing.
--   p_patch  {append: [card_id], replace: {messages_box_id, card_ids, instead_of, upto}, results: [card_id], reset: box_id,
--             todo: {card_id, instead_of}, compression: {card_id, instead_of, messages_box_id}}
-- WB015: another writer was faster; the detail says with what.
create or replace function state.patch(p_project uuid, p_session uuid, p_step uuid, p_patch jsonb, p_cards cardbox.new_card[],
  out duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_board   record;
  v_append  uuid[] := array(select jsonb_array_elements_text(p_patch -> 'append')::uuid);
  v_results uuid[] := array(select jsonb_array_elements_text(p_patch -> 'results')::uuid);
  v_whole   uuid[] := array(select jsonb_array_elements_text(p_patch -> 'replace' -> 'card_ids')::uuid);
  v_new_box uuid := p_patch -> 'replace' ->> 'messages_box_id';
  v_reset   uuid := p_patch ->> 'reset';
  v_changed text;
  v_unknown uuid[];
begin
  v_entered := state.enter(p_project);
  select b.* into v_board
    from state.blackboards b
   where b.project_id = p_project and b.session_id = p_session
     for no key update;
  if not found then
    raise exception 'no such session' using errcode = 'WB404', detail = p_session::text;
  end if;
  --! patch.locked
  insert into state.patches (project_id, session_id, step_id, patch)
  values (p_project, p_session, p_step, p_patch)
      on conflict do nothing;
  patch.duplicate := not found;
  if patch.duplicate then
    return;
  end if;
  --! patch.row
  v_changed := case
    when v_new_box is not null
     and (v_board.messages_box_id, (select x.length from cardbox.boxes x
                                     where x.project_id = p_project and x.box_id = v_board.messages_box_id))
         is distinct from ((p_patch -> 'replace' ->> 'instead_of')::uuid, (p_patch -> 'replace' ->> 'upto')::bigint)
      then 'messages ' || v_board.messages_box_id
    when p_patch ? 'todo' and v_board.todo_card_id is distinct from (p_patch -> 'todo' ->> 'instead_of')::uuid
      then 'todo ' || coalesce(v_board.todo_card_id::text, '')
    -- A summary is of the messages that it covers, and of no others.
    when p_patch ? 'compression'
     and ((v_board.compression_card_id, v_board.messages_box_id)
          is distinct from ((p_patch -> 'compression' ->> 'instead_of')::uuid, (p_patch -> 'compression' ->> 'messages_box_id')::uuid))
      then 'compression ' || coalesce(v_board.compression_card_id::text, '')
  end;
  if v_changed is not null then
    raise exception 'the session was changed by another writer' using errcode = 'WB015', detail = v_changed;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  select array_agg(a.card_id) into v_unknown
    from unnest(v_append || v_results || v_whole) as a (card_id)
   where not exists (select from cardbox.cards c
                      where c.project_id = p_project and c.card_id = a.card_id and c.type not like 'sys.%'
                     offset 0);
  if v_unknown is not null then
    raise exception 'no such cards, or none that a session may remember' using errcode = 'WB404', detail = array_to_string(v_unknown, ',');
  end if;
  --! patch.cards

  if v_new_box is not null then
    insert into cardbox.boxes (project_id, box_id, length) values (p_project, v_new_box, 0);
    v_written := state.append_new(p_project, v_new_box, v_whole);
    --! patch.replaced
    v_board.messages_box_id := v_new_box;
    -- It stood for messages that are no longer remembered.
    v_board.compression_card_id := null;
  end if;
  if v_append <> '{}' then
    v_written := state.append_new(p_project, v_board.messages_box_id, v_append);
  end if;
  --! patch.appended
  if v_reset is not null then
    insert into cardbox.boxes (project_id, box_id, length) values (p_project, v_reset, 0);
    v_board.mapreduce_results_box_id := v_reset;
  end if;
  if v_results <> '{}' then
    v_written := state.append_new(p_project, v_board.mapreduce_results_box_id, v_results);
  end if;
  --! patch.results
  if p_patch ? 'todo' then
    v_board.todo_card_id := p_patch -> 'todo' ->> 'card_id';
  end if;
  if p_patch ? 'compression' then
    v_board.compression_card_id := p_patch -> 'compression' ->> 'card_id';
  end if;
  if v_new_box is not null or v_reset is not null or p_patch ?| array['todo', 'compression'] then
    update state.blackboards b
       set messages_box_id = v_board.messages_box_id, todo_card_id = v_board.todo_card_id,
           compression_card_id = v_board.compression_card_id, mapreduce_results_box_id = v_board.mapreduce_results_box_id
     where b.project_id = p_project and b.session_id = p_session;
  end if;
  --! patch.pointers
end $$;
