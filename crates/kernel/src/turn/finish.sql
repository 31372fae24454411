-- What agents keep of turns that have ended: those that remember, the question and what came of it; those that were here for them only,
-- not even their heads. What was done in a session is remembered by the session, and not by an agent whom others may ask.
-- The caller holds the heads' locks.
create or replace function state.part(p_project uuid, p_agents uuid[], p_turns uuid[]) returns integer
language plpgsql as $$
declare
  v_turn  record;
  v_agent uuid;
  v_n     integer := 0;
begin
  for v_turn in
    select h.memory_box_id, t.query_card_ids, t.output_box_id
      from unnest(p_turns) with ordinality as e (agent_turn_id, n)
     cross join lateral (
           select t.agent_id, t.query_card_ids, t.output_box_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id and t.session_id is null
           offset 0) t
     cross join lateral (
           select h.memory_box_id
             from state.agent_state_head h
            where h.project_id = p_project and h.agent_id = t.agent_id
           offset 0) h
     where h.memory_box_id is not null
     order by e.n
  loop
    v_n := v_n + state.memorise(p_project, v_turn.memory_box_id, v_turn.query_card_ids, v_turn.output_box_id);
  end loop;
  -- One row at a time: see docs/decisions/0018-plans-that-do-not-depend-on-statistics.md.
  foreach v_agent in array p_agents loop
    -- Idle and with no turn behind, it can have turns only that are to start later.
    delete from state.agent_state_head h
     where h.project_id = p_project and h.agent_id = v_agent and h.ephemeral and h.status = 'idle' and h.n_queued = 0
       and not exists (select from state.agent_inbox i
                        where i.agent_id = v_agent and i.project_id = p_project and i.next_retry_at is not null);
    if found then
      -- After a long turn it is not retired at once.
      update resource.project_agents a
         set retire_by = now() + interval '1 day'
       where a.project_id = p_project and a.agent_id = v_agent and a.retire_by < now() + interval '12 hours';
    end if;
  end loop;
  return v_n;
end $$;

-- A turn that waited behind others of its agent begins: what the agent and the session have come to remember since it was packed joins its
-- context, on record.
create or replace function state.catch_up(p_project uuid, p_turn uuid) returns integer
language plpgsql as $$
declare
  v_last   record;
  v_box    uuid;
  v_before bigint;
  v_n      bigint;
  v_added  integer := 0;
begin
  select t.context_box_id into v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  for v_last in
    select h.source_box_id, h.upto, h.agent_id, h.source_agent_id, h.tool_suffix, h.rule, h.via, b.length
      from (select distinct on (h.rule) h.*
              from state.handovers h
             where h.project_id = p_project and h.context_box_id = v_box and (h.rule = 'session' or h.rule = 'memory' and h.via = 'own')
             order by h.rule, h.part desc) h
     cross join lateral (
           select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = h.source_box_id offset 0) b
     where b.length > h.upto
     order by h.rule
  loop
    v_n := v_last.length - v_last.upto;
    update cardbox.boxes b
       set length = b.length + v_n
     where b.project_id = p_project and b.box_id = v_box
   returning b.length - v_n into v_before;
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_box, v_before + r.place - v_last.upto, r.source_box_id, r.from_seq, r.to_seq
      from cardbox.runs(p_project, v_last.source_box_id, v_last.upto + 1, v_last.length) r;
    insert into state.handovers
           (project_id, context_box_id, part, agent_id, source_agent_id, tool_suffix, rule, from_seq, n_cards, source_box_id, upto, via)
    select p_project, v_box, max(m.part) + 1, v_last.agent_id, v_last.source_agent_id, v_last.tool_suffix, v_last.rule, v_before + 1, v_n,
           v_last.source_box_id, v_last.length, v_last.via
      from state.handovers m
     where m.project_id = p_project and m.context_box_id = v_box;
    v_added := v_added + v_n;
  end loop;
  return v_added;
end $$;

-- What every end of a turn has in common; the caller holds the head's lock and has proved its right. The cards go to the output
-- box, the last of them is the deliverable.
--   p_active  the agent was on it; else it ends in the queue, or before its time
--   p_queued  how many turns wait behind it
--   p_keeps   the agent remembers its turns, or is here for them only
-- Writes deliverable and event, takes the inbox row away, dispatches the agent's next turn and counts down the batch.
-- Answers with the target to ring, with the batch that is to be joined in this transaction, and whether it was told something while it ran.
create or replace function state.end_turn(p_project uuid, p_end state.ending, p_active boolean, p_queued integer, p_keeps boolean,
  p_alone boolean, p_cards cardbox.new_card[],
  out worker_target text, out batch_id uuid, out was_told boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_written integer;
  v_labelled text;
  v_n      integer := cardinality(p_cards);
  v_answer uuid := (p_cards[v_n]).card_id;
  v_turn   record;
  v_external boolean;
  v_length bigint;
  v_next   uuid;
  v_epoch  bigint;
  v_calls  uuid[];
  v_forks  integer;
  v_told   integer;
  v_left   jsonb;
begin
  update state.turns t
     set status = p_end.status, finished_at = now(), deliverable_card_id = v_answer, turn_epoch = p_end.turn_epoch,
         claim_token = p_end.claim_token
   where t.project_id = p_project and t.agent_turn_id = p_end.agent_turn_id and t.status = 'open'
  returning t.context_box_id, t.output_box_id, t.batch_id, t.recursion_depth, t.trace_id, t.emit_state_event, t.session_id, t.query_card_ids,
            t.steer_card_ids
    into v_turn;
  if not found then
    raise exception 'turn % has its deliverable already', p_end.agent_turn_id using errcode = 'WB003', detail = p_end.agent_turn_id::text;
  end if;
  if v_turn.batch_id is not null and p_alone then
    raise exception 'a task of a batch ends in a unit of work, which may have to join the batch' using errcode = 'WB014';
  end if;
  end_turn.was_told := v_turn.steer_card_ids <> '{}';
  --! finish.turn
  -- As state.saw_external, with what is in hand.
  update cardbox.boxes b
     set length = b.length + v_n
   where b.project_id = p_project and b.box_id = v_turn.output_box_id
  returning b.length, b.has_external
            or exists (select from cardbox.boxes c where c.project_id = p_project and c.box_id = v_turn.context_box_id and c.has_external)
    into v_length, v_external;
  if not v_external and v_turn.session_id is not null then
    v_external := state.session_saw_external(p_project, v_turn.session_id);
  end if;
  v_labelled := state.label(v_external);
  v_written := cardbox.put(p_project, p_cards);
  --! finish.cards
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select p_project, v_turn.output_box_id, v_length - v_n + c.ordinality, c.card_id
    from unnest(p_cards) with ordinality c;
  --! finish.entries
  if p_end.step_id is not null then
    insert into state.agent_steps
           (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq,
            provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
    select p_project, p_end.agent_turn_id, p_end.step_id, p_end.agent_id, p_end.turn_epoch, p_end.claim_token, 'finished',
           v_length - v_n + 1, v_length, u.*
      from jsonb_to_record(coalesce(p_end.usage, '{}')) as u
           (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
            n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean);
  end if;
  --! finish.step
  delete from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = p_end.agent_turn_id;
  with gone as (
    delete from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = p_end.agent_turn_id returning c.tool_call_id
  )
  select array_agg(g.tool_call_id) into v_calls from gone g;
  if v_calls is not null then
    v_forks := state.abandon_forks(p_project, v_calls);
  end if;
  --! finish.inbox
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id, card_id)
  values (p_project, p_end.agent_turn_id, 'task', p_end.agent_turn_id, p_end.agent_id, p_end.status, p_end.turn_epoch, p_end.step_id,
          v_answer);
  --! finish.event
  -- A later statement than the head's lock: an enqueue that waited for us, or that we waited for, is seen.
  if p_queued > 0 then
    select i.agent_turn_id, i.worker_target into v_next, end_turn.worker_target
      from state.agent_inbox i
     where i.project_id = p_project and i.agent_id = p_end.agent_id and i.status = 'queued'
     order by i.inbox_seq
     limit 1;
    update state.agent_state_head h
       set status = 'dispatched', active_agent_turn_id = v_next, turn_epoch = h.turn_epoch + 1, n_queued = h.n_queued - 1
     where h.project_id = p_project and h.agent_id = p_end.agent_id
    returning h.turn_epoch into v_epoch;
    update state.agent_inbox i
       set status = 'pending', inbox_seq = default, turn_epoch = v_epoch, armed_at = now(), dispatched_at = now()
     where i.project_id = p_project and i.agent_turn_id = v_next;
  end if;
  if v_turn.emit_state_event and p_active or v_next is not null then
    v_told := state.tell(p_project, array[case when p_active then p_end.agent_turn_id end, v_next], p_end.agent_id, null);
  end if;
  --! finish.next
  if v_turn.batch_id is not null then
    end_turn.batch_id := (state.count_down(p_project, array[p_end.agent_turn_id]))[1];
  end if;
  --! finish.counted
  if p_end.usage is not null then
    v_left := state.spend(p_project, p_end.agent_turn_id, p_end.usage);
  end if;
  -- What it has left goes back; the question and the answer join the session's memory, by reference and once. Where a batch is to be joined, the
  -- parent's head comes first: a child that joins does both.
  if end_turn.batch_id is null
     and exists (select from state.budgets b where b.project_id = p_project and b.agent_turn_id = p_end.agent_turn_id) then
    v_told := state.settle(p_project, array[p_end.agent_turn_id]);
  end if;
  --! finish.settled
  if v_turn.session_id is not null and end_turn.batch_id is null then
    v_told := state.remember(p_project, v_turn.session_id, v_turn.query_card_ids || v_turn.steer_card_ids || v_answer);
  end if;
  --! finish.remembered
  if p_keeps then
    v_told := state.part(p_project, array[p_end.agent_id], array[p_end.agent_turn_id]);
  end if;
  if v_next is not null then
    v_told := state.catch_up(p_project, v_next);
  end if;
  --! finish.parted
end $$;

-- Whether a turn was told something after it had seen so much of its output box.
create or replace function state.has_unseen(p_project uuid, p_turn uuid, p_seen bigint) returns boolean
language sql stable as $$
  select exists (select
                   from state.turns t
                  cross join lateral unnest(t.steer_card_ids) as s (card_id)
                  where t.project_id = p_project and t.agent_turn_id = p_turn
                    and exists (select from cardbox.box_entries e
                                 where e.project_id = p_project and e.card_id = s.card_id and e.box_id = t.output_box_id and e.seq > p_seen
                                offset 0))
$$;

-- Whether the answer that a worker reports comes too late: more than messages came into the turn's output box since its request was composed.
create or replace function state.is_late(p_project uuid, p_turn uuid, p_receipt json) returns boolean
language sql stable as $$
  select exists (select
                   from state.turns t
                  cross join lateral (
                        select e.card_id
                          from cardbox.box_entries e
                         where e.project_id = p_project and e.box_id = t.output_box_id and e.seq > (p_receipt #>> '{output,upto}')::bigint
                        offset 0) e
                  where t.project_id = p_project and t.agent_turn_id = p_turn
                    and not exists (select from cardbox.cards c
                                     where c.project_id = p_project and c.card_id = e.card_id and c.type = 'task.instruction'
                                    offset 0))
$$;

-- Transaction 5: a worker ends a turn that it holds, with its last step.
--   p_end.seen  how much of its output box it had seen by then; null: it does not say
create or replace function state.finish(p_project uuid, p_end state.ending, p_alone boolean, p_cards cardbox.new_card[],
  out worker_targets text[], out batches uuid[], out duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_queued integer;
  v_keeps  boolean;
  v_end    record;
begin
  v_entered := state.enter(p_project);
  update state.agent_state_head h
     set status = 'idle', active_agent_turn_id = null
   where h.project_id = p_project and h.agent_id = p_end.agent_id and h.active_agent_turn_id = p_end.agent_turn_id
     and h.turn_epoch = p_end.turn_epoch and h.claim_token = p_end.claim_token and h.status = 'running'
  returning h.n_queued, h.ephemeral or h.memory_box_id is not null into v_queued, v_keeps;
  finish.duplicate := not found;
  if finish.duplicate then
    -- Ours, and committed without our learning of it?
    perform from state.turns t
      where t.project_id = p_project and t.agent_turn_id = p_end.agent_turn_id
        and t.claim_token = p_end.claim_token and t.deliverable_card_id = (p_cards[cardinality(p_cards)]).card_id;
    if not found then
      raise exception 'turn % is no longer ours', p_end.agent_turn_id using errcode = 'WB001', detail = p_end.agent_turn_id::text;
    end if;
    finish.worker_targets := '{}';
    finish.batches := '{}';
    return;
  end if;
  --! finish.locked
  if (p_end.usage ->> 'reported')::boolean and state.is_late(p_project, p_end.agent_turn_id, p_end.receipt::json) then
    raise exception 'turn % has gone on', p_end.agent_turn_id using errcode = 'WB001', detail = p_end.agent_turn_id::text;
  end if;
  v_end := state.end_turn(p_project, p_end, true, v_queued, v_keeps, p_alone, p_cards);
  if v_end.was_told and p_end.seen is not null and state.has_unseen(p_project, p_end.agent_turn_id, p_end.seen) then
    raise exception 'turn % was told something that it has not seen', p_end.agent_turn_id using errcode = 'WB019', detail = p_end.agent_turn_id::text;
  end if;
  if p_end.receipt is not null then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt)
    values (p_project, p_end.agent_turn_id, p_end.step_id, p_end.receipt::json);
  end if;
  finish.worker_targets := array_remove(array[v_end.worker_target], null);
  finish.batches := array_remove(array[v_end.batch_id], null);
end $$;

-- The same for many turns at once, set by set.
create or replace function state.finish_many(p_project uuid, p_agents uuid[], p_turns uuid[], p_ends state.ending[], p_alone boolean,
  p_cards cardbox.new_card[])
returns table (worker_targets text[], batches uuid[], duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_external uuid[];
  v_count    integer := cardinality(p_ends);
  v_here     uuid[];
  v_end      record;
  v_moved    integer := 0;
  v_queued   integer := 0;
  v_behind   integer;
  v_keeps    boolean := false;
  v_keeping  boolean;
  v_box      uuid;
  v_was_told boolean;
  v_epoch    bigint;
  v_children integer;
  v_call     uuid;
  v_calls    uuid[];
  v_forks    integer;
  v_emits    integer;
  v_told     integer;
  v_sessions integer;
  v_next     uuid[];
  v_targets  text[];
  v_batches  uuid[];
begin
  v_entered := state.enter(p_project);
  v_here := state.lock_heads(p_project, p_agents);
  for v_end in
    select e.*
      from unnest(p_ends) e
  loop
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null
     where h.project_id = p_project and h.agent_id = v_end.agent_id and h.active_agent_turn_id = v_end.agent_turn_id
       and h.turn_epoch = v_end.turn_epoch and h.claim_token = v_end.claim_token and h.status = 'running'
    returning h.n_queued, h.ephemeral or h.memory_box_id is not null into v_behind, v_keeping;
    if found then
      v_moved := v_moved + 1;
      v_queued := v_queued + v_behind;
      v_keeps := v_keeps or v_keeping;
    end if;
  end loop;
  if v_moved = 0 and v_count = (
       select count(*)
         from unnest(p_ends) e
        where exists (select from state.turns t
                       where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id
                         and t.claim_token = e.claim_token and t.deliverable_card_id = e.card_ids[cardinality(e.card_ids)]
                      offset 0)) then
    -- Ours, and committed without our learning of it.
    return query select '{}'::text[], '{}'::uuid[], true;
    return;
  end if;
  if v_moved <> v_count then
    raise exception 'turns are no longer ours' using errcode = 'WB001', detail = (
      select coalesce(string_agg(e.agent_turn_id::text, ','), array_to_string(p_turns, ','))
        from unnest(p_ends) e
       where not exists (select from state.agent_inbox i
                          where i.project_id = p_project and i.agent_turn_id = e.agent_turn_id
                            and i.turn_epoch = e.turn_epoch and i.claim_token = e.claim_token and i.worker_id is not null
                         offset 0));
  end if;
  --! finish_many.locked
  v_external := array(select t.agent_turn_id from unnest(p_turns) as t (agent_turn_id) where state.saw_external(p_project, t.agent_turn_id));
  v_labelled := state.label(v_external <> '{}');
  if v_external = '{}' or v_external @> p_turns then
    v_written := cardbox.put(p_project, p_cards);
  else
    -- Each by its own turn's label.
    v_labelled := state.label(false);
    v_written := cardbox.put(p_project, array(select c
                                                from unnest(p_cards) c
                                               where not exists (select from unnest(p_ends) e
                                                                  where e.agent_turn_id = any (v_external) and c.card_id = any (e.card_ids)
                                                                 offset 0)));
    v_labelled := state.label(true);
    v_written := cardbox.put(p_project, array(select c
                                                from unnest(p_cards) c
                                               where exists (select from unnest(p_ends) e
                                                              where e.agent_turn_id = any (v_external) and c.card_id = any (e.card_ids)
                                                             offset 0)));
  end if;
  --! finish_many.cards
  for v_end in
    select e.*
      from unnest(p_ends) e
  loop
    update state.turns t
       set status = v_end.status, finished_at = now(), deliverable_card_id = v_end.card_ids[cardinality(v_end.card_ids)],
           turn_epoch = v_end.turn_epoch, claim_token = v_end.claim_token
     where t.project_id = p_project and t.agent_turn_id = v_end.agent_turn_id and t.status = 'open'
    returning t.output_box_id, t.steer_card_ids <> '{}' into v_box, v_was_told;
    if not found then
      raise exception 'a turn has its deliverable already' using errcode = 'WB003';
    end if;
    if v_was_told and v_end.seen is not null and state.has_unseen(p_project, v_end.agent_turn_id, v_end.seen) then
      raise exception 'turn % was told something that it has not seen', v_end.agent_turn_id
        using errcode = 'WB019', detail = v_end.agent_turn_id::text;
    end if;
    if (v_end.usage ->> 'reported')::boolean and state.is_late(p_project, v_end.agent_turn_id, v_end.receipt::json) then
      raise exception 'turn % has gone on', v_end.agent_turn_id using errcode = 'WB001', detail = v_end.agent_turn_id::text;
    end if;
    update cardbox.boxes b
       set length = b.length + cardinality(v_end.card_ids)
     where b.project_id = p_project and b.box_id = v_box;
    delete from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = v_end.agent_turn_id;
  end loop;
  with turn as materialized (
    select t.*, e.card_ids, e.step_id, e.usage, b.length
      from unnest(p_ends) e
     cross join lateral (
           select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id offset 0) t
     cross join lateral (
           select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id offset 0) b
  ), entry as (
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, t.output_box_id, t.length - cardinality(t.card_ids) + c.n, c.card_id
      from turn t cross join lateral unnest(t.card_ids) with ordinality as c (card_id, n)
  ), step as (
    insert into state.agent_steps
           (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq,
            provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
    select p_project, t.agent_turn_id, t.step_id, t.agent_id, t.turn_epoch, t.claim_token, 'finished',
           t.length - cardinality(t.card_ids) + 1, t.length, u.*
      from turn t
     cross join lateral jsonb_to_record(coalesce(t.usage, '{}')) as u
           (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
            n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
     where t.step_id is not null
  ), event as (
    insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id, card_id)
    select p_project, t.agent_turn_id, 'task', t.agent_turn_id, t.agent_id, t.status, t.turn_epoch, t.step_id, t.deliverable_card_id
      from turn t
  )
  select count(*) filter (where t.batch_id is not null), count(*) filter (where t.emit_state_event), count(t.session_id)
    into v_children, v_emits, v_sessions
    from turn t;
  v_calls := array(select c.tool_call_id
                     from unnest(p_turns) as e (agent_turn_id)
                    cross join lateral (
                          select c.tool_call_id
                            from state.waiting_calls c
                           where c.project_id = p_project and c.agent_turn_id = e.agent_turn_id
                          offset 0) c);
  if v_calls <> '{}' then
    foreach v_call in array v_calls loop
      delete from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = v_call;
    end loop;
    v_forks := state.abandon_forks(p_project, v_calls);
  end if;
  if v_children > 0 and p_alone then
    raise exception 'a task of a batch ends in a unit of work, which may have to join the batch' using errcode = 'WB014';
  end if;
  --! finish_many.ended

  -- A later statement than the heads' locks: an enqueue that waited for us, or that we waited for, is seen.
  if v_queued > 0 then
    for v_end in
      select a.agent_id, i.agent_turn_id, i.worker_target
        from unnest(p_agents) as a (agent_id)
       cross join lateral (
             select i.agent_turn_id, i.worker_target::text
               from state.agent_inbox i
              where i.project_id = p_project and i.agent_id = a.agent_id and i.status = 'queued'
              order by i.inbox_seq
              limit 1) i
    loop
      update state.agent_state_head h
         set status = 'dispatched', active_agent_turn_id = v_end.agent_turn_id, turn_epoch = h.turn_epoch + 1, n_queued = h.n_queued - 1
       where h.project_id = p_project and h.agent_id = v_end.agent_id and h.status = 'idle'
      returning h.turn_epoch into v_epoch;
      continue when not found;
      update state.agent_inbox i
         set status = 'pending', inbox_seq = default, turn_epoch = v_epoch, armed_at = now(), dispatched_at = now()
       where i.project_id = p_project and i.agent_turn_id = v_end.agent_turn_id;
      v_next := v_next || v_end.agent_turn_id;
      v_targets := v_targets || v_end.worker_target;
    end loop;
    v_targets := array(select distinct t.target from unnest(v_targets) as t (target));
  end if;
  if v_emits > 0 or v_next is not null then
    v_told := state.tell(p_project, p_turns || v_next, null, null);
  end if;
  --! finish_many.next
  if exists (select from unnest(p_ends) e where e.receipt is not null) then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt)
    select p_project, e.agent_turn_id, e.step_id, e.receipt::json
      from unnest(p_ends) e
     where e.receipt is not null;
  end if;
  --! finish_many.receipts

  if v_children > 0 then
    v_batches := state.count_down(p_project, p_turns);
  end if;
  if exists (select from unnest(p_ends) e where e.usage is not null) then
    perform state.spend(p_project, e.agent_turn_id, e.usage)
       from unnest(p_ends) e
      where e.usage is not null;
  end if;
  if coalesce(v_batches, '{}') = '{}' then
    v_told := state.settle(p_project, p_turns);
    if v_sessions > 0 then
      v_told := state.remember_turns(p_project, p_turns);
    end if;
  end if;
  --! finish_many.remembered
  if v_keeps then
    v_told := state.part(p_project, p_agents, p_turns);
  end if;
  perform state.catch_up(p_project, n.agent_turn_id) from unnest(v_next) as n (agent_turn_id);
  --! finish_many.parted
  return query select coalesce(v_targets, '{}'), coalesce(v_batches, '{}'), false;
end $$;
