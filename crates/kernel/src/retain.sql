-- How long a project keeps what (RT-1 … RT-6): what is set, what would go, and the one function that removes it.
--   content  what cards say: their content, tool calls and metadata. The card stays, with its hash
--   record   turns that have ended, with all that belongs to them; then sessions that have ended, agents that were retired, boxes that were made to
--            be shared, refusals
-- A walk goes over a project in portions, phase by phase, each from the oldest id on, and keeps its place in resource.retention. What something
-- younger needs stays whole, and is looked at again by the next walk.

-- ── what is set ─────────────────────────────────────────────────────────────────────────────────────────────────

-- What is in effect now. No row: everything is kept for ever. A shortening that no walk has seen yet is not in effect, whatever its time.
create or replace function resource.retention_of(p_project uuid)
returns table (content_months integer, record_months integer, next_content_months integer, next_record_months integer, next_at timestamptz,
  hold_reason text, held_since timestamptz, walked_at timestamptz)
language sql stable as $$
  select case when n.is_over then r.next_content_months else r.content_months end,
         case when n.is_over then r.next_record_months else r.record_months end,
         case when not n.is_over then r.next_content_months end,
         case when not n.is_over then r.next_record_months end,
         case when not n.is_over then r.next_at end,
         r.hold_reason, r.held_since, r.walked_at
    from resource.retention r
   cross join lateral (select coalesce(r.next_at <= now() and r.next_by is null, false) as is_over) n
   where r.project_id = p_project
$$;

-- Sets both. What becomes longer does so at once; what becomes shorter does so after seven days, and until then can be set back. Set again as it
-- is to become, it becomes so no later. No login may write the row itself: the seven days are kept here.
create or replace function cardbox.set_retention(p_project uuid, p_content integer, p_record integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_entered text;
  v_now     record;
  v_content integer;
  v_record  integer;
begin
  v_entered := state.enter(p_project);
  insert into resource.retention (project_id) values (p_project) on conflict do nothing;
  perform from resource.retention r where r.project_id = p_project for no key update;
  select r.content_months, r.record_months, r.next_content_months, r.next_record_months, r.next_at into v_now
    from resource.retention_of(p_project) r;
  if (v_now.content_months, v_now.record_months, v_now.next_at) is not distinct from (p_content, p_record, null)
     or v_now.next_at is not null and (v_now.next_content_months, v_now.next_record_months) is not distinct from (p_content, p_record) then
    return false;
  end if;
  -- `greatest` passes over nulls, and here they are the longest.
  v_content := case when v_now.content_months is not null and p_content is not null then greatest(v_now.content_months, p_content) end;
  v_record := case when v_now.record_months is not null and p_record is not null then greatest(v_now.record_months, p_record) end;
  if (v_content, v_record) is not distinct from (p_content, p_record) then
    update resource.retention r
       set content_months = p_content, record_months = p_record, next_content_months = null, next_record_months = null, next_at = null,
           next_by = null, walk_at = now()
     where r.project_id = p_project;
  else
    update resource.retention r
       set content_months = v_content, record_months = v_record, next_content_months = p_content, next_record_months = p_record,
           next_at = clock_timestamp() + interval '7 days', next_by = pg_current_xact_id(), walk_at = now()
     where r.project_id = p_project;
  end if;
  return true;
end $$;

-- Places a hold, or lifts it: no reason. Says whether that changed something; a hold that is there keeps its reason and its time.
create or replace function cardbox.hold_retention(p_project uuid, p_reason text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  if p_reason is not null then
    -- A prune looks at the holds each time before it drops something, with this lock for itself.
    perform pg_advisory_xact_lock_shared(hashtextextended('waybill.prune', 0));
    insert into resource.retention (project_id) values (p_project) on conflict do nothing;
  end if;
  update resource.retention r
     set hold_reason = p_reason, held_since = case when p_reason is not null then now() end, walk_at = now()
   where r.project_id = p_project and (r.hold_reason is null) = (p_reason is not null);
  return found;
end $$;

-- ── what is kept beyond its time ────────────────────────────────────────────────────────────────────────────────

-- The calls of a turn, as its output box has them.
create or replace function state.calls_of(p_project uuid, p_output uuid) returns uuid[]
language sql stable as $$
  select array(select distinct c.tool_call_id
                 from cardbox.box_entries e
                cross join lateral (
                      select c.tool_call_id from cardbox.cards c where c.project_id = p_project and c.card_id = e.card_id offset 0) c
                where e.project_id = p_project and e.box_id = p_output and e.card_id is not null and c.tool_call_id is not null)
$$;

-- What people were asked about these calls of a turn, and what they decided, as far as its requests name it: the last of each call.
create or replace function state.asked_of(p_project uuid, p_turn uuid, p_calls uuid[]) returns uuid[]
language sql stable as $$
  select array(select n.card_id
                 from unnest(p_calls) as u (tool_call_id)
                cross join lateral (
                      select unnest(array[q.request_card_id, q.decision_card_id]) as card_id
                        from state.requests q
                       where q.project_id = p_project and q.tool_call_id = u.tool_call_id and q.agent_turn_id = p_turn
                       union all
                      select unnest(array[w.request_card_id, w.decision_card_id])
                        from state.waiting_calls w
                       where w.project_id = p_project and w.tool_call_id = u.tool_call_id and w.agent_turn_id = p_turn
                      offset 0) n
                where n.card_id is not null)
$$;

-- The batches of a turn, by its calls. A fork has calls of its source in its output box: their batches are the source's.
create or replace function state.batches_of(p_project uuid, p_turn uuid, p_calls uuid[]) returns uuid[]
language sql stable as $$
  select array(select b.batch_id
                 from unnest(p_calls) as c (tool_call_id)
                cross join lateral (
                      select b.batch_id
                        from state.pmo_batches b
                       where b.project_id = p_project and b.tool_call_id = c.tool_call_id and b.parent_agent_turn_id = p_turn
                      offset 0) b)
$$;

-- The boxes that turns which have not ended read: their own, those of their children and of the results of their batches, those of the turn that a
-- fork does again, and those that one of these holds a range of.
create or replace function state.reached_boxes(p_project uuid) returns uuid[]
language sql stable as $$
  with own as materialized (
    select b.box_id
      from state.agent_inbox i
     cross join lateral (
           select t.context_box_id, t.output_box_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
            union all
           select t.context_box_id, t.output_box_id
             from state.forks f
            cross join lateral (
                  select t.context_box_id, t.output_box_id
                    from state.turns t
                   where t.project_id = p_project and t.agent_turn_id = f.source_turn_id
                  offset 0) t
            where f.project_id = p_project and f.agent_turn_id = i.agent_turn_id
            union all
           select c.context_box_id, c.output_box_id
             from state.turns c
            where c.parent_agent_turn_id = i.agent_turn_id and c.project_id = p_project
            union all
           select k.results_box_id, null
             from state.turns t
            cross join lateral unnest(state.batches_of(p_project, t.agent_turn_id, state.calls_of(p_project, t.output_box_id))) as u (batch_id)
            cross join lateral (
                  select k.results_box_id from state.pmo_batches k where k.project_id = p_project and k.batch_id = u.batch_id offset 0) k
            where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
           offset 0) t
     cross join lateral (values (t.context_box_id), (t.output_box_id)) as b (box_id)
     where i.project_id = p_project and b.box_id is not null
  )
  select array(select o.box_id from own o
                union
               select r.source_box_id
                 from own o
                cross join lateral (
                      select e.source_box_id
                        from cardbox.box_entries e
                       where e.project_id = p_project and e.box_id = o.box_id and e.source_box_id is not null
                      offset 0) r)
$$;

-- The cards that such turns read without a box: what people are asked, and what their sessions have written down.
create or replace function state.reached_cards(p_project uuid) returns uuid[]
language sql stable as $$
  select array(select n.card_id
                 from state.agent_inbox i
                cross join lateral (
                      select unnest(array[c.request_card_id, c.decision_card_id]) as card_id
                        from state.waiting_calls c
                       where c.project_id = p_project and c.agent_turn_id = i.agent_turn_id
                       union all
                      select unnest(array[s.todo_card_id, s.compression_card_id])
                        from state.turns t
                       cross join lateral (
                             select s.todo_card_id, s.compression_card_id
                               from state.blackboards s
                              where s.project_id = p_project and s.session_id = t.session_id
                             offset 0) s
                       where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
                      offset 0) n
                where i.project_id = p_project and n.card_id is not null)
$$;

-- The boxes that were made for a turn, and for the results of its batches.
create or replace function state.boxes_of(p_project uuid, p_turn uuid, p_batches uuid[]) returns uuid[]
language sql stable as $$
  select array(select b.box_id
                 from state.turns t
                cross join lateral (values (t.context_box_id), (t.output_box_id)) as u (box_id)
                cross join lateral (
                      select b.box_id
                        from cardbox.boxes b
                       where b.project_id = p_project and b.box_id = u.box_id and b.agent_turn_id = p_turn
                      offset 0) b
                where t.project_id = p_project and t.agent_turn_id = p_turn
                union
               select k.results_box_id
                 from unnest(p_batches) as u (batch_id)
                cross join lateral (
                      select k.results_box_id from state.pmo_batches k where k.project_id = p_project and k.batch_id = u.batch_id offset 0) k
                where k.results_box_id is not null)
$$;

-- Whether a box beside these holds a range of one of them.
create or replace function state.are_inherited(p_project uuid, p_boxes uuid[]) returns boolean
language sql stable as $$
  select exists (select
                   from unnest(p_boxes) as u (box_id)
                  where exists (select from cardbox.box_entries e
                                 where e.project_id = p_project and e.source_box_id = u.box_id and e.box_id <> all (p_boxes)
                                offset 0))
$$;

-- Why the record of a turn stays beyond its time: null where it does not.
--   open      it has not ended
--   recent    it has ended since
--   parent    the turn that asked for it has not ended, or has ended since
--   children  turns that it asked for are still there
--   fork      a turn does it again
--   batch     a batch of it is not over
--   event     an event of it was not published, and relays publish
--   box       another box holds a range of its boxes
--   grant     an agent may read one of its boxes
create or replace function state.why_kept(p_project uuid, p_turn uuid, p_before timestamptz, p_relayed boolean) returns text
language plpgsql stable as $$
declare
  v_turn    record;
  v_batches uuid[];
  v_boxes   uuid[];
begin
  select t.status::text as is_status, t.finished_at, t.parent_agent_turn_id, t.output_box_id into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  if v_turn.is_status = 'open' then
    return 'open';
  end if;
  if (v_turn.finished_at < p_before) is not true then
    return 'recent';
  end if;
  if exists (select from state.turns t
              where t.project_id = p_project and t.agent_turn_id = v_turn.parent_agent_turn_id
                and (t.status = 'open' or t.finished_at >= p_before)) then
    return 'parent';
  end if;
  if exists (select from state.turns t where t.parent_agent_turn_id = p_turn and t.project_id = p_project) then
    return 'children';
  end if;
  if exists (select from state.forks f where f.source_turn_id = p_turn and f.project_id = p_project) then
    return 'fork';
  end if;
  if p_relayed and exists (select from state.outbox o
                            where o.project_id = p_project and o.agent_turn_id = p_turn and o.published_at is null) then
    return 'event';
  end if;
  v_batches := state.batches_of(p_project, p_turn, state.calls_of(p_project, v_turn.output_box_id));
  if exists (select
               from unnest(v_batches) as u (batch_id)
              where exists (select from state.pmo_batches b
                             where b.project_id = p_project and b.batch_id = u.batch_id and (b.status = 'open' or b.stopping)
                            offset 0)
                 or exists (select
                              from state.pmo_batch_tasks k
                             cross join lateral (
                                   select t.agent_turn_id
                                     from state.turns t
                                    where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id
                                   offset 0) t
                             where k.project_id = p_project and k.batch_id = u.batch_id
                            offset 0)) then
    return 'batch';
  end if;
  v_boxes := state.boxes_of(p_project, p_turn, v_batches);
  if state.are_inherited(p_project, v_boxes) then
    return 'box';
  end if;
  if exists (select
               from unnest(v_boxes) as u (box_id)
              where exists (select from state.grants g
                             where g.box_id = u.box_id and g.project_id = p_project and (g.revoked_at < p_before) is not true
                            offset 0)) then
    return 'grant';
  end if;
  return null;
end $$;

-- ── what is removed ─────────────────────────────────────────────────────────────────────────────────────────────
-- All of these belong to waybill_remover and are called by cardbox.retain alone.

-- Adds up what was removed, by kind.
create or replace function cardbox.add_counts(p_one jsonb, p_other jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_object_agg(n.key, n.total), '{}')
    from (select u.key, sum(u.value::bigint) as total
            from (select o.key, o.value from jsonb_each_text(p_one) o union all select t.key, t.value from jsonb_each_text(p_other) t) u
           group by u.key
          having sum(u.value::bigint) > 0) n
$$;

-- Removes those of these cards that no box holds. Shared ones stay. A card that another transaction is about to put into a box is locked by it.
create or replace function cardbox.remove_cards(p_project uuid, p_cards uuid[]) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_locked uuid[];
  v_gone   uuid[];
  v_card   uuid;
begin
  v_locked := array(select c.card_id
                      from (select distinct u.card_id from unnest(p_cards) as u (card_id) where u.card_id is not null) u
                     cross join lateral (
                           select c.card_id
                             from cardbox.cards c
                            where c.project_id = p_project and c.card_id = u.card_id and not c.content_addressed
                              for update skip locked) c);
  -- A later statement than the lock: what was put into a box before it is seen.
  v_gone := array(select u.card_id
                    from unnest(v_locked) as u (card_id)
                   where not exists (select from cardbox.box_entries e where e.project_id = p_project and e.card_id = u.card_id offset 0));
  foreach v_card in array v_gone loop
    delete from cardbox.pins p where p.project_id = p_project and p.card_id = v_card;
    delete from cardbox.cards c where c.project_id = p_project and c.card_id = v_card;
  end loop;
  return cardinality(v_gone);
end $$;

-- Locks boxes against those that would hold a range of them or give a right to them. False: another transaction has one, a box holds a range of one,
-- or an agent may read one.
create or replace function cardbox.lock_boxes(p_project uuid, p_boxes uuid[]) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_box uuid;
begin
  foreach v_box in array p_boxes loop
    perform from cardbox.boxes b where b.project_id = p_project and b.box_id = v_box for update skip locked;
    if not found then
      return false;
    end if;
  end loop;
  return not state.are_inherited(p_project, p_boxes)
     and not exists (select
                       from unnest(p_boxes) as u (box_id)
                      where exists (select from state.grants g
                                     where g.box_id = u.box_id and g.project_id = p_project and (g.revoked_at is not null) is not true
                                    offset 0));
end $$;

-- Removes boxes that are locked, with what they hold and no other box does.
create or replace function cardbox.remove_boxes(p_project uuid, p_boxes uuid[]) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_box     uuid;
  v_cards   uuid[] := '{}';
  v_entries bigint := 0;
  v_n       bigint;
begin
  foreach v_box in array p_boxes loop
    v_cards := v_cards || array(select e.card_id from cardbox.box_entries e
                                 where e.project_id = p_project and e.box_id = v_box and e.card_id is not null);
    delete from cardbox.box_entries e where e.project_id = p_project and e.box_id = v_box;
    get diagnostics v_n = row_count;
    v_entries := v_entries + v_n;
    delete from state.grants g where g.box_id = v_box and g.project_id = p_project;
    delete from cardbox.boxes b where b.project_id = p_project and b.box_id = v_box;
  end loop;
  return jsonb_build_object('boxes', cardinality(p_boxes), 'entries', v_entries, 'cards', cardbox.remove_cards(p_project, v_cards));
end $$;

-- The cards that a patch put in place, and those that it replaced: todo lists and summaries are in no box.
create or replace function cardbox.patched(p_patch jsonb) returns uuid[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array[p_patch #>> '{todo,card_id}', p_patch #>> '{todo,instead_of}', p_patch #>> '{compression,card_id}',
               p_patch #>> '{compression,instead_of}']::uuid[]
$$;

-- Removes one turn with all that belongs to it. Null: it stays.
create or replace function cardbox.remove_turn(p_project uuid, p_turn uuid, p_before timestamptz, p_relayed boolean) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_turn    record;
  v_calls   uuid[];
  v_batches uuid[];
  v_boxes   uuid[];
  v_loose   uuid[];
  v_id      uuid;
  v_step    record;
  v_n       bigint;
  v_removed jsonb := '{"turns": 1}';
begin
  -- Nearly all that stay do so for a reason that can be seen without a lock.
  if state.why_kept(p_project, p_turn, p_before, p_relayed) is not null then
    return null;
  end if;
  select t.context_box_id, t.output_box_id, t.session_id, t.steer_card_ids into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn
     for update skip locked;
  if not found then
    return null;
  end if;
  v_calls := state.calls_of(p_project, v_turn.output_box_id);
  v_batches := state.batches_of(p_project, p_turn, v_calls);
  v_boxes := state.boxes_of(p_project, p_turn, v_batches);
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  -- Again, now that it is locked.
  if state.why_kept(p_project, p_turn, p_before, p_relayed) is not null then
    return null;
  end if;
  -- What people were asked about its calls is in no box, and its events may have been dropped.
  v_loose := array(select o.card_id from state.outbox o
                    where o.project_id = p_project and o.agent_turn_id = p_turn and o.event = 'request' and o.card_id is not null)
             || state.asked_of(p_project, p_turn, v_calls);
  if v_turn.session_id is not null then
    for v_step in
      select p.step_id, p.patch
        from state.agent_steps s
       cross join lateral (
             select p.step_id, p.patch
               from state.patches p
              where p.project_id = p_project and p.session_id = v_turn.session_id and p.step_id = s.step_id
             offset 0) p
       where s.project_id = p_project and s.agent_turn_id = p_turn
    loop
      -- What a session still goes by stays with it.
      v_loose := v_loose || array(
        select u.card_id
          from unnest(cardbox.patched(v_step.patch)) as u (card_id)
         where not exists (select from state.blackboards s
                            where s.project_id = p_project and s.session_id = v_turn.session_id
                              and u.card_id in (s.todo_card_id, s.compression_card_id)
                           offset 0));
      delete from state.patches p where p.project_id = p_project and p.session_id = v_turn.session_id and p.step_id = v_step.step_id;
      v_removed := cardbox.add_counts(v_removed, '{"patches": 1}');
    end loop;
  end if;
  foreach v_id in array v_calls || v_batches || v_turn.steer_card_ids loop
    delete from state.execution_edges e where e.project_id = p_project and e.correlation_id = v_id and e.agent_turn_id = p_turn;
    get diagnostics v_n = row_count;
    v_removed := cardbox.add_counts(v_removed, jsonb_build_object('edges', v_n));
    delete from state.requests q where q.project_id = p_project and q.tool_call_id = v_id and q.agent_turn_id = p_turn;
  end loop;
  foreach v_id in array v_batches loop
    delete from state.pmo_batch_tasks k where k.project_id = p_project and k.batch_id = v_id;
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = v_id;
    delete from state.pmo_batches b where b.project_id = p_project and b.batch_id = v_id;
    v_removed := cardbox.add_counts(v_removed, '{"batches": 1}');
  end loop;
  delete from state.receipts r where r.project_id = p_project and r.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('receipts', v_n));
  delete from state.agent_steps s where s.project_id = p_project and s.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('steps', v_n));
  delete from state.outbox o where o.project_id = p_project and o.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('events', v_n));
  delete from state.handovers h where h.project_id = p_project and h.context_box_id = v_turn.context_box_id and v_turn.context_box_id = any (v_boxes);
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('handovers', v_n));
  delete from state.forks f where f.project_id = p_project and f.agent_turn_id = p_turn;
  delete from state.labels l where l.project_id = p_project and l.agent_turn_id = p_turn;
  delete from state.recordings r where r.project_id = p_project and r.agent_turn_id = p_turn;
  delete from state.recorded_asks a where a.project_id = p_project and a.agent_turn_id = p_turn;
  delete from state.quarantine q where q.subject_id = p_turn and q.project_id = p_project and q.quarantined_at is not null;
  delete from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  v_removed := cardbox.add_counts(v_removed, cardbox.remove_boxes(p_project, v_boxes));
  return cardbox.add_counts(v_removed, jsonb_build_object('cards', cardbox.remove_cards(p_project, v_loose)));
end $$;

-- Removes a session that has ended and has no turn any more. Null: it stays.
create or replace function cardbox.remove_session(p_project uuid, p_session uuid, p_before timestamptz) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_board record;
  v_boxes uuid[];
  v_loose uuid[];
  v_n     bigint;
begin
  select s.messages_box_id, s.mapreduce_results_box_id, s.todo_card_id, s.compression_card_id into v_board
    from state.blackboards s
   where s.project_id = p_project and s.session_id = p_session and s.created_at < p_before and s.ended_at < p_before
     for update skip locked;
  if not found or exists (select from state.turns t where t.session_id = p_session and t.project_id = p_project) then
    return null;
  end if;
  v_boxes := array[v_board.messages_box_id, v_board.mapreduce_results_box_id];
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  v_loose := array(select u.card_id
                     from state.patches p
                    cross join lateral unnest(cardbox.patched(p.patch)) as u (card_id)
                    where p.project_id = p_project and p.session_id = p_session);
  delete from state.patches p where p.project_id = p_project and p.session_id = p_session;
  get diagnostics v_n = row_count;
  delete from state.blackboards s where s.project_id = p_project and s.session_id = p_session;
  return cardbox.add_counts(cardbox.remove_boxes(p_project, v_boxes),
    jsonb_build_object('sessions', 1, 'patches', v_n,
                       'cards', cardbox.remove_cards(p_project, v_loose || v_board.todo_card_id || v_board.compression_card_id)));
end $$;

-- Removes an agent that was made for a task, was retired, and has no turn any more, with its memory. Null: it stays.
create or replace function cardbox.remove_agent(p_project uuid, p_agent uuid, p_before timestamptz) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_memory  uuid;
  v_boxes   uuid[];
  v_removed jsonb;
begin
  select a.memory_box_id into v_memory
    from resource.project_agents a
   where a.project_id = p_project and a.agent_id = p_agent and a.ephemeral and a.created_at < p_before and a.retired_at < p_before
     for update skip locked;
  if not found or exists (select from state.turns t where t.agent_id = p_agent and t.project_id = p_project)
     or exists (select from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent) then
    return null;
  end if;
  v_boxes := array_remove(array[v_memory], null);
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  v_removed := cardbox.remove_boxes(p_project, v_boxes);
  delete from state.identity_edges e where e.project_id = p_project and e.agent_id = p_agent;
  delete from resource.project_agents a where a.project_id = p_project and a.agent_id = p_agent;
  return cardbox.add_counts(v_removed, '{"agents": 1}');
end $$;

-- Removes a box that was made to be shared and of which no box holds a range any more. Null: it stays.
create or replace function cardbox.remove_shared(p_project uuid, p_box uuid) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if state.are_inherited(p_project, array[p_box]) or not cardbox.lock_boxes(p_project, array[p_box]) then
    return null;
  end if;
  return cardbox.remove_boxes(p_project, array[p_box]);
end $$;

-- Removes what a card says, unless a turn that has not ended can read it. Definitions stay: profiles, tools, plans, settings. Answers with the bytes
-- that it took; null: there is nothing to remove; -1: it stays for now.
create or replace function cardbox.remove_content(p_project uuid, p_card uuid, p_boxes uuid[], p_cards uuid[]) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_bytes bigint;
begin
  select coalesce(pg_column_size(c.content), 0) + coalesce(pg_column_size(c.tool_calls), 0) + coalesce(pg_column_size(c.metadata), 0) into v_bytes
    from cardbox.cards c
   where c.project_id = p_project and c.card_id = p_card and c.erased_at is null
     and (not c.content_addressed or c.type in ('sys.rendered_prompt', 'sys.request_part'));
  if v_bytes is null then
    return null;
  end if;
  if p_card = any (p_cards)
     or exists (select from cardbox.box_entries e
                 where e.project_id = p_project and e.card_id = p_card and e.box_id = any (p_boxes)) then
    return -1;
  end if;
  -- One that is being expired or deleted is not waited for: it is looked at by the next walk.
  perform from cardbox.cards c where c.project_id = p_project and c.card_id = p_card for no key update skip locked;
  if not found then
    return -1;
  end if;
  update cardbox.cards c
     set salt = null, content = null, tool_calls = null, metadata = null, erased_at = now(), erased_reason = 'retention'
   where c.project_id = p_project and c.card_id = p_card and c.erased_at is null;
  return v_bytes;
end $$;

-- What a portion looks at: the next ids of a phase.
create or replace function cardbox.portion(p_project uuid, p_phase text, p_after uuid, p_last uuid, p_most integer) returns uuid[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_phase = 'turns' then
    return array(select t.agent_turn_id from state.turns t
                  where t.project_id = p_project and t.agent_turn_id > p_after and t.agent_turn_id < p_last
                  order by t.agent_turn_id limit p_most);
  elsif p_phase = 'sessions' then
    return array(select s.session_id from state.blackboards s
                  where s.project_id = p_project and s.session_id > p_after order by s.session_id limit p_most);
  elsif p_phase = 'agents' then
    return array(select a.agent_id from resource.project_agents a
                  where a.project_id = p_project and a.agent_id > p_after order by a.agent_id limit p_most);
  elsif p_phase = 'boxes' then
    return array(select b.box_id from cardbox.boxes b
                  where b.project_id = p_project and b.is_shared and b.box_id > p_after and b.box_id < p_last order by b.box_id limit p_most);
  elsif p_phase = 'refusals' then
    return array(select r.refusal_id from state.refusals r
                  where r.project_id = p_project and r.refusal_id > p_after and r.refusal_id < p_last order by r.refusal_id limit p_most);
  end if;
  return array(select c.card_id from cardbox.cards c
                where c.project_id = p_project and c.card_id > p_after and c.card_id < p_last order by c.card_id limit p_most);
end $$;

-- One portion of a walk: so many rows are looked at. Answers where the walk goes on, what was removed, and after which card the next walk has to look
-- because one was kept back; no phase: it is over. Takes the horizons as they are given, so no login may call it.
create or replace function cardbox.retain_before(p_project uuid, p_content timestamptz, p_record timestamptz, p_phase text, p_after uuid,
  p_most integer, out phase text, out walked_to uuid, out removed jsonb, out kept_after uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_entered  text;
  v_deleting text;
  v_relayed  boolean;
  v_ids      uuid[] := '{}';
  v_id       uuid;
  v_boxes    uuid[];
  v_cards    uuid[];
  v_bytes    bigint;
  -- Next to nothing is done to most cards.
  v_most     integer := case p_phase when 'cards' then p_most * 10 else p_most end;
  v_until    timestamptz := clock_timestamp() + interval '5 seconds';
  v_is_cut   boolean := false;
begin
  v_entered := state.enter(p_project);
  v_deleting := set_config('waybill.deleting', p_project::text, true);
  retain_before.removed := '{}';
  -- All events are being published again, to a new stream: no turn goes before its events are there.
  if p_phase = 'cards' and p_content is not null or p_phase <> 'cards' and p_record is not null
     and (p_phase <> 'turns' or not exists (select from state.relay_shards s where s.replay_after < s.replay_upto)) then
    -- A turn that began after the horizon has not ended before it.
    v_ids := cardbox.portion(p_project, p_phase, p_after, state.first_id(case p_phase when 'cards' then p_content else p_record end), v_most);
  end if;
  if v_ids <> '{}' and p_phase = 'turns' then
    v_relayed := exists (select from state.relay_shards s where s.stream_made_at is not null);
  elsif v_ids <> '{}' and p_phase = 'cards' then
    v_boxes := state.reached_boxes(p_project);
    v_cards := state.reached_cards(p_project);
  end if;
  -- The youngest first: children begin after their parents, and go before them.
  for v_id in select u.id from unnest(v_ids) as u (id) order by u.id desc loop
    -- Turns may be large. What is left of the portion is looked at by the next one.
    if retain_before.removed <> '{}' and clock_timestamp() > v_until then
      v_is_cut := true;
      exit;
    end if;
    if p_phase = 'cards' then
      v_bytes := cardbox.remove_content(p_project, v_id, v_boxes, v_cards);
      continue when v_bytes is null;
      if v_bytes < 0 then
        retain_before.kept_after := coalesce(v_ids[array_position(v_ids, v_id) - 1], p_after);
        continue;
      end if;
      retain_before.removed := cardbox.add_counts(retain_before.removed, jsonb_build_object('contents', 1, 'bytes', v_bytes));
    elsif p_phase = 'refusals' then
      delete from state.refusals r where r.project_id = p_project and r.refusal_id = v_id;
      retain_before.removed := cardbox.add_counts(retain_before.removed, '{"refusals": 1}');
    else
      retain_before.removed := cardbox.add_counts(retain_before.removed, coalesce(
        case p_phase when 'turns' then cardbox.remove_turn(p_project, v_id, p_record, v_relayed)
                     when 'sessions' then cardbox.remove_session(p_project, v_id, p_record)
                     when 'agents' then cardbox.remove_agent(p_project, v_id, p_record)
                     else cardbox.remove_shared(p_project, v_id) end, '{}'));
    end if;
  end loop;
  v_deleting := set_config('waybill.deleting', '', true);
  if v_is_cut then
    retain_before.phase := p_phase;
    retain_before.walked_to := p_after;
  elsif cardinality(v_ids) = v_most then
    retain_before.phase := p_phase;
    retain_before.walked_to := v_ids[v_most];
  else
    retain_before.phase := case p_phase when 'turns' then 'sessions' when 'sessions' then 'agents' when 'agents' then 'boxes'
                                        when 'boxes' then 'refusals' when 'refusals' then 'cards' end;
    retain_before.walked_to := '00000000-0000-0000-0000-000000000000';
  end if;
end $$;

-- Writes what a walk has removed into the project's audit.
create or replace function cardbox.record_walk(p_project uuid, p_removed jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_random text := replace(gen_random_uuid()::text, '-', '');
begin
  -- An id that carries its time, as all of the audit do.
  insert into state.audit (project_id, audit_id, actor, action, subject, detail)
  values (p_project, overlay(overlay(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || substr(v_random, 13)
                                     placing '7' from 13) placing '8' from 17)::uuid,
          'retention', 'retention.run', p_project::text, p_removed);
end $$;

-- The next portion of a project's walk, by what is in effect. No row: another process removes something just now, or nothing was ever set. What a
-- walk has removed is one entry in the project's audit. One that has removed a part of the record is soon followed by another: what
-- stayed because of that part may go now. What cards say is looked at from where the last walk was done with it; once a month from the first card
-- on, so that one which was written late under an old id goes too.
create or replace function cardbox.retain(p_project uuid, p_most integer)
returns table (removed jsonb, is_over boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_entered text;
  v_walk    record;
  v_set     record;
  v_content timestamptz;
  v_portion record;
  v_total   jsonb;
begin
  -- What another transaction has come to hold meanwhile must be seen.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'retention runs in read committed' using errcode = '25001';
  end if;
  if not pg_try_advisory_xact_lock(hashtextextended('waybill.retention', 0)) then
    return;
  end if;
  v_entered := state.enter(p_project);
  select r.phase, r.walked_to, r.removed, r.kept_after,
         case when date_trunc('month', r.walked_at) = date_trunc('month', now()) then r.done_to
              else '00000000-0000-0000-0000-000000000000' end as done_to
    into v_walk
    from resource.retention r
   where r.project_id = p_project
     for no key update;
  if not found then
    return;
  end if;
  -- The transaction that set it may have been open for long: from now on others see it, and can set it back.
  update resource.retention r
     set next_at = clock_timestamp() + interval '7 days', next_by = null
   where r.project_id = p_project and r.next_by <> pg_current_xact_id();
  select s.content_months, s.record_months, s.next_at, s.hold_reason into v_set from resource.retention_of(p_project) s;
  if v_set.hold_reason is not null or v_set.content_months is null then
    if v_walk.removed <> '{}' then
      perform cardbox.record_walk(p_project, v_walk.removed);
    end if;
    update resource.retention r
       set walk_at = case when v_set.hold_reason is not null then now() + interval '1 day' else coalesce(v_set.next_at, 'infinity') end,
           phase = 'turns', walked_to = '00000000-0000-0000-0000-000000000000', removed = '{}', kept_after = null
     where r.project_id = p_project;
    return query select '{}'::jsonb, true;
    return;
  end if;
  v_content := now() - make_interval(months => v_set.content_months);
  v_portion := cardbox.retain_before(p_project, v_content, now() - make_interval(months => v_set.record_months), v_walk.phase,
    v_walk.walked_to, greatest(p_most, 1));
  v_total := cardbox.add_counts(v_walk.removed, v_portion.removed);
  if v_portion.phase is null and v_total <> '{}' then
    perform cardbox.record_walk(p_project, v_total);
  end if;
  update resource.retention r
     set phase = coalesce(v_portion.phase, 'turns'),
         walked_to = case when v_portion.phase = 'cards' and v_walk.phase <> 'cards' then v_walk.done_to else v_portion.walked_to end,
         kept_after = case when v_portion.phase is not null then least(v_walk.kept_after, v_portion.kept_after) end,
         done_to = case when v_portion.phase is not null then r.done_to
                        else coalesce(least(v_walk.kept_after, v_portion.kept_after), greatest(v_walk.done_to, state.first_id(v_content))) end,
         removed = case when v_portion.phase is null then '{}' else v_total end,
         walked_at = case when v_portion.phase is null then now() else r.walked_at end,
         walk_at = case when v_portion.phase is not null then now()
                        when v_total ?| array['turns', 'sessions', 'agents'] then now() + interval '1 minute'
                        else now() + interval '1 day' end
   where r.project_id = p_project;
  return query select v_portion.removed, v_portion.phase is null;
end $$;

-- The projects whose walk goes on, the one that has waited longest first.
create or replace function scheduler.projects_to_retain(p_most integer) returns table (project_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select r.project_id from resource.retention r where r.walk_at <= now() order by r.walk_at limit p_most
$$;

-- The projects under a hold: history of theirs is not dropped either.
create or replace function scheduler.projects_on_hold() returns table (project_id uuid, slug text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select r.project_id, p.slug
    from resource.retention r
    left join lateral (select p.slug::text from resource.projects p where p.project_id = r.project_id offset 0) p on true
   where r.held_since is not null
$$;

-- ── what would be removed ───────────────────────────────────────────────────────────────────────────────────────

-- What a walk would remove, and what would stay beyond its time, by reason. Changes nothing. Looks for a second at cards and for a second at turns:
-- not `is_all` means that there is more.
--   cards  of the turns, as many as they wrote: those that another box holds stay
create or replace function state.plan_retention(p_project uuid, p_content timestamptz, p_record timestamptz, out contents bigint, out bytes bigint,
  out turns bigint, out boxes bigint, out cards bigint, out kept jsonb, out is_all boolean)
language plpgsql stable as $$
#variable_conflict use_column
declare
  v_first   constant uuid := '00000000-0000-0000-0000-000000000000';
  v_boxes   uuid[] := state.reached_boxes(p_project);
  v_cards   uuid[] := state.reached_cards(p_project);
  v_relayed boolean := scheduler.oldest_unpublished() is not null;
  v_last    uuid := state.first_id(p_content);
  v_after   uuid := v_first;
  v_until   timestamptz := clock_timestamp() + interval '1 second';
  v_page    record;
  v_ids     uuid[];
  v_id      uuid;
  v_why     text;
begin
  plan_retention.contents := 0;
  plan_retention.bytes := 0;
  plan_retention.turns := 0;
  plan_retention.boxes := 0;
  plan_retention.cards := 0;
  plan_retention.kept := '{}';
  plan_retention.is_all := true;
  while v_last is not null loop
    select count(*) as n_seen, (array_agg(c.card_id order by c.card_id desc))[1] as last_card_id,
           count(*) filter (where c.is_said and not k.is_reached) as n_gone, count(*) filter (where c.is_said and k.is_reached) as n_kept,
           coalesce(sum(c.size) filter (where c.is_said and not k.is_reached), 0) as n_bytes
      into v_page
      from (select c.card_id, c.erased_at is null and (not c.content_addressed or c.type in ('sys.rendered_prompt', 'sys.request_part')) as is_said,
                   coalesce(pg_column_size(c.content), 0) + coalesce(pg_column_size(c.tool_calls), 0)
                   + coalesce(pg_column_size(c.metadata), 0) as size
              from cardbox.cards c
             where c.project_id = p_project and c.card_id > v_after and c.card_id < v_last
             order by c.card_id
             limit 1000) c
     cross join lateral (
           select c.card_id = any (v_cards)
                  or exists (select from cardbox.box_entries e
                              where e.project_id = p_project and e.card_id = c.card_id and e.box_id = any (v_boxes)
                             offset 0) as is_reached
           offset 0) k;
    plan_retention.contents := plan_retention.contents + v_page.n_gone;
    plan_retention.bytes := plan_retention.bytes + v_page.n_bytes;
    plan_retention.kept := cardbox.add_counts(plan_retention.kept, jsonb_build_object('contents that open turns read', v_page.n_kept));
    exit when v_page.n_seen < 1000;
    v_after := v_page.last_card_id;
    if clock_timestamp() > v_until then
      plan_retention.is_all := false;
      exit;
    end if;
  end loop;
  v_last := state.first_id(p_record);
  v_after := v_first;
  v_until := clock_timestamp() + interval '1 second';
  while v_last is not null loop
    v_ids := array(select t.agent_turn_id from state.turns t
                    where t.project_id = p_project and t.agent_turn_id > v_after and t.agent_turn_id < v_last
                    order by t.agent_turn_id limit 100);
    foreach v_id in array v_ids loop
      v_why := state.why_kept(p_project, v_id, p_record, v_relayed);
      -- What stays because of turns that go too goes by the time that walks come to their end.
      if v_why is null or v_why in ('children', 'batch') then
        select plan_retention.boxes + count(*), plan_retention.cards + coalesce(sum(b.length), 0)
          into plan_retention.boxes, plan_retention.cards
          from unnest(state.boxes_of(p_project, v_id, '{}')) as u (box_id)
         cross join lateral (
               select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = u.box_id offset 0) b;
        plan_retention.turns := plan_retention.turns + 1;
      elsif v_why <> 'recent' then
        plan_retention.kept := cardbox.add_counts(plan_retention.kept, jsonb_build_object(v_why, 1));
      end if;
    end loop;
    exit when cardinality(v_ids) < 100;
    v_after := v_ids[100];
    if clock_timestamp() > v_until then
      plan_retention.is_all := false;
      exit;
    end if;
  end loop;
end $$;

-- ── who may do what ─────────────────────────────────────────────────────────────────────────────────────────────

alter function cardbox.set_retention owner to waybill_remover;
alter function cardbox.hold_retention owner to waybill_remover;
alter function cardbox.remove_cards owner to waybill_remover;
alter function cardbox.lock_boxes owner to waybill_remover;
alter function cardbox.remove_boxes owner to waybill_remover;
alter function cardbox.patched owner to waybill_remover;
alter function cardbox.remove_turn owner to waybill_remover;
alter function cardbox.remove_session owner to waybill_remover;
alter function cardbox.remove_agent owner to waybill_remover;
alter function cardbox.remove_shared owner to waybill_remover;
alter function cardbox.remove_content owner to waybill_remover;
alter function cardbox.portion owner to waybill_remover;
alter function cardbox.retain_before owner to waybill_remover;
alter function cardbox.record_walk owner to waybill_remover;
alter function cardbox.retain owner to waybill_remover;
alter function scheduler.projects_to_retain owner to waybill_scheduler;
alter function scheduler.projects_on_hold owner to waybill_scheduler;

grant execute on function state.enter, state.first_id, state.why_kept, state.calls_of, state.asked_of, state.batches_of, state.boxes_of, state.are_inherited,
  state.reached_boxes, state.reached_cards, resource.retention_of, cardbox.add_counts to waybill_remover;
grant select on cardbox.cards, cardbox.boxes, cardbox.box_entries, cardbox.pins, state.turns, state.agent_inbox, state.agent_state_head,
  state.waiting_calls, state.pmo_batches, state.pmo_batch_tasks, state.pmo_batch_slots, state.blackboards, state.quarantine, state.agent_steps,
  state.execution_edges, state.patches, state.receipts, state.refusals, state.outbox, state.requests, state.handovers, state.grants,
  state.forks, state.labels, state.recordings, state.recorded_asks, state.identity_edges, resource.project_agents, resource.retention to waybill_remover;
grant delete on cardbox.cards, cardbox.boxes, cardbox.box_entries, cardbox.pins, state.turns, state.pmo_batches, state.pmo_batch_tasks,
  state.pmo_batch_slots, state.blackboards, state.quarantine, state.agent_steps, state.execution_edges, state.patches, state.receipts,
  state.refusals, state.outbox, state.requests, state.handovers, state.grants, state.forks, state.labels, state.recordings, state.recorded_asks, state.identity_edges,
  resource.project_agents
  to waybill_remover;
grant update (salt, content, tool_calls, metadata, erased_at, erased_reason) on cardbox.cards to waybill_remover;
grant insert (project_id), update on resource.retention to waybill_remover;
-- So that rows may be locked: nothing of them changes.
grant update (has_external) on cardbox.boxes to waybill_remover;
grant update (tracestate) on state.turns to waybill_remover;
grant update (title) on state.blackboards to waybill_remover;
grant update (retire_by) on resource.project_agents to waybill_remover;
grant select (stream_made_at, replay_after, replay_upto) on state.relay_shards to waybill_remover;
grant insert (project_id, audit_id, actor, action, subject, detail) on state.audit to waybill_remover;
