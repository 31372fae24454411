-- The handler of a fork opens the batch: once per call. From here on the call waits for the join, as long as the batch may take.
--   p_batch  {batch_id, stage, joins_as, fail_fast, timeout_seconds, tasks: [{agent_id, agent_turn_id}]}
create or replace function state.open_batch(p_project uuid, p_call uuid, p_token bigint, p_batch jsonb)
returns table (batch_id uuid, duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_call    state.waiting_calls;
  v_known   uuid;
  v_batch   uuid := p_batch ->> 'batch_id';
  v_stage   smallint := p_batch ->> 'stage';
  v_n       integer := jsonb_array_length(p_batch -> 'tasks');
  v_timeout interval := make_interval(secs => (p_batch ->> 'timeout_seconds')::double precision);
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  --! fork.locked
  select b.batch_id into v_known from state.pmo_batches b
   where b.project_id = p_project and b.tool_call_id = p_call and b.stage = v_stage;
  if found then
    return query select v_known, true;
    return;
  end if;
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call for no key update;
  if not found then
    raise exception 'no such call' using errcode = 'WB404', detail = p_call::text;
  end if;
  if v_call.claim_token <> p_token or v_call.status <> 'processing' then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  insert into state.pmo_batches
         (project_id, batch_id, parent_agent_turn_id, parent_agent_id, tool_call_id, stage, joins_as, fail_fast, n_tasks, open_slots,
          deadline_at)
  values (p_project, v_batch, v_call.agent_turn_id, v_call.agent_id, p_call, v_stage, p_batch ->> 'joins_as',
          (p_batch ->> 'fail_fast')::boolean, v_n, least(v_n, 16), now() + v_timeout);
  --! fork.batch
  insert into state.pmo_batch_tasks (project_id, batch_id, task_index, agent_id, agent_turn_id)
  select p_project, v_batch, t.n - 1, t.agent_id, t.agent_turn_id
    from rows from (jsonb_to_recordset(p_batch -> 'tasks') as (agent_id uuid, agent_turn_id uuid)) with ordinality
         as t (agent_id, agent_turn_id, n);
  -- Only slots that count something: an empty one would never reach zero.
  insert into state.pmo_batch_slots (project_id, batch_id, slot, remaining)
  select p_project, v_batch, s, (v_n - s + 15) / 16 from generate_series(0, least(v_n, 16) - 1) s;
  --! fork.tasks
  -- The parent's wait is derived from the batch's: the batch ends first. The call stays claimed until the children are dispatched.
  update state.waiting_calls c
     set deadline_at = now() + v_timeout + interval '1 minute'
   where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.execution_edges (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id)
  values (p_project, v_batch, 'join', 'request', v_call.agent_turn_id, v_call.agent_id);
  --! fork.edge
  return query select v_batch, false;
end $$;

-- All children are dispatched: from here on the call waits for the join alone, and its handler has nothing more to say.
-- A handler that dies before leaves the call to another, who finds the batch open and dispatches the rest: their turns' ids are known.
-- One whose end gives the call back to its handler, and that has ended already, gives it back here.
create or replace function state.await_batch(p_project uuid, p_call uuid, p_token bigint, out awaited boolean, out call_target text)
language plpgsql as $$
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  update state.waiting_calls c
     set status = 'awaiting', worker_id = null, claim_token = c.claim_token + 1
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing';
  awaited := found;
  --! fork.awaited
  -- A later statement than the call's lock: a batch that closed while we waited for it is seen.
  update state.waiting_calls c
     set status = 'pending'
   where c.project_id = p_project and c.tool_call_id = p_call and awaited
     and exists (select from state.pmo_batches b
                  where b.project_id = p_project and b.tool_call_id = p_call and b.joins_as = 'resume' and b.status <> 'open')
     and not exists (select from state.pmo_batches b
                      where b.project_id = p_project and b.tool_call_id = p_call and b.status = 'open')
  returning c.target into call_target;
end $$;

-- The turn that waited for these forks is over: their deadline is now. The caller holds that turn's head, and the transaction that closes a
-- batch wants it after the batch: waiting here could be a deadlock. So a batch that another transaction has locked refuses the end of the turn
-- with 55P03: nothing of it is written, and the caller tries again. Leaving the batch out would let its children run until its own deadline.
create or replace function state.abandon_forks(p_project uuid, p_calls uuid[]) returns integer
language plpgsql as $$
declare
  v_batch uuid;
  v_n     integer := 0;
begin
  for v_batch in
    select b.batch_id
      from unnest(p_calls) as c (tool_call_id)
     cross join lateral (
           select b.batch_id
             from state.pmo_batches b
            where b.project_id = p_project and b.tool_call_id = c.tool_call_id and b.status = 'open'
              for no key update nowait) b
  loop
    update state.pmo_batches b set deadline_at = now() where b.project_id = p_project and b.batch_id = v_batch;
    v_n := v_n + 1;
  end loop;
  return v_n;
end $$;

-- Of a batch that closed before its children were over: what was never dispatched will not be; the turns that are still to be told to stop.
-- None left: every child is over or knows.
create or replace function state.settle_batch(p_project uuid, p_batch uuid, p_most integer) returns uuid[]
language plpgsql as $$
declare
  v_entered text;
  v_turns   uuid[];
begin
  v_entered := state.enter(p_project);
  -- Waits for a dispatch that has the task; after that it is seen.
  perform from state.pmo_batch_tasks k
    where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
    order by k.task_index
      for no key update;
  --! settle.locked
  update state.pmo_batch_tasks k
     set status = 'canceled'
   where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
     and not exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id offset 0);
  select array_agg(i.agent_turn_id) into v_turns
    from (select k.agent_turn_id
            from state.pmo_batch_tasks k
           where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
             and exists (select from state.agent_inbox i
                          where i.project_id = p_project and i.agent_turn_id = k.agent_turn_id and not i.stop_asked
                         offset 0)
           order by k.task_index
           limit p_most) i;
  if v_turns is null then
    -- Before the batch, as a child that counts down locks them. A child that ends later finds no counter, and has nothing to count for.
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = p_batch;
    update state.pmo_batches b set stopping = false where b.project_id = p_project and b.batch_id = p_batch and b.stopping;
  end if;
  --! settle.told
  return coalesce(v_turns, '{}');
end $$;

-- Counts the ended turns that are tasks. Task, slot, batch, each in the order of its key. Answers with the batches of which that
-- was the last task, or with fail_fast the first failure: they are to be joined in this transaction.
create or replace function state.count_down(p_project uuid, p_turns uuid[]) returns uuid[]
language plpgsql as $$
#variable_conflict use_column
declare
  v_task   record;
  v_counted jsonb := '[]';
begin
  for v_task in
    select t.batch_id, t.task_index, t.agent_turn_id, t.status, t.deliverable_card_id, t.output_box_id, t.length
      from unnest(p_turns) as e (agent_turn_id)
     cross join lateral (
           select t.batch_id, t.task_index, t.agent_turn_id, t.status::text, t.deliverable_card_id, t.output_box_id, b.length
             from state.turns t
            cross join lateral (
                  select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id offset 0) b
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id and t.batch_id is not null
           offset 0) t
     order by t.batch_id, t.task_index
  loop
    update state.pmo_batch_tasks k
       set status = v_task.status, deliverable_card_id = v_task.deliverable_card_id, output_box_id = v_task.output_box_id,
           output_length = v_task.length
     where k.project_id = p_project and k.batch_id = v_task.batch_id and k.task_index = v_task.task_index
       and k.agent_turn_id = v_task.agent_turn_id and k.status = 'open';
    if found then
      v_counted := v_counted || jsonb_build_object('batch_id', v_task.batch_id, 'slot', v_task.task_index % 16,
                                                   'failed', (v_task.status <> 'success')::integer);
    end if;
  end loop;
  --! finish.tasks
  return state.count_slots(p_project, v_counted);
end $$;

-- Tasks that could not be dispatched, and will not be. Answers like a count down.
create or replace function state.fail_tasks(p_project uuid, p_batch uuid, p_indexes integer[], p_error text) returns uuid[]
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_counted jsonb;
begin
  v_entered := state.enter(p_project);
  -- Waits for a dispatch that has a task; after that it is seen.
  perform from state.pmo_batch_tasks k
    where k.project_id = p_project and k.batch_id = p_batch and k.task_index = any (p_indexes) and k.status = 'open'
    order by k.task_index
      for no key update;
  --! fail_tasks.locked
  with failed as (
    update state.pmo_batch_tasks k
       set status = 'failed', error = p_error
     where k.project_id = p_project and k.batch_id = p_batch and k.task_index = any (p_indexes) and k.status = 'open'
       and not exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id offset 0)
 returning k.task_index
  )
  select coalesce(jsonb_agg(jsonb_build_object('batch_id', p_batch, 'slot', f.task_index % 16, 'failed', 1)), '[]') into v_counted
    from failed f;
  --! fail_tasks.failed
  return state.count_slots(p_project, v_counted);
end $$;

-- The slots and the batches of tasks that are over: [{batch_id, slot, failed}].
create or replace function state.count_slots(p_project uuid, p_counted jsonb) returns uuid[]
language plpgsql as $$
#variable_conflict use_column
declare
  v_slot   record;
  v_left   integer;
  v_done   uuid[] := '{}';
begin
  for v_slot in
    select c.batch_id, c.slot, count(*)::integer as n, sum(c.failed)::integer as failed
      from jsonb_to_recordset(p_counted) as c (batch_id uuid, slot smallint, failed integer)
     group by c.batch_id, c.slot
     order by c.batch_id, c.slot
  loop
    update state.pmo_batch_slots s
       set remaining = s.remaining - v_slot.n
     where s.project_id = p_project and s.batch_id = v_slot.batch_id and s.slot = v_slot.slot
 returning s.remaining into v_left;
    --! finish.slot
    if v_left = 0 then
      update state.pmo_batches b
         set open_slots = b.open_slots - 1
       where b.project_id = p_project and b.batch_id = v_slot.batch_id
   returning b.open_slots into v_left;
      if v_left = 0 then
        v_done := v_done || v_slot.batch_id;
      end if;
    end if;
    if v_slot.failed > 0 and v_slot.batch_id <> all (v_done)
       and exists (select from state.pmo_batches b
                    where b.project_id = p_project and b.batch_id = v_slot.batch_id and b.fail_fast) then
      v_done := v_done || v_slot.batch_id;
    end if;
  end loop;
  --! finish.batch
  return v_done;
end $$;

-- What a join has to tell, read under the batch's lock. Nothing: it was closed before.
create or replace function state.lock_batch(p_project uuid, p_batch uuid)
returns table (tool_call_id uuid, joins_as text, fail_fast boolean, overdue boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  return query
  select b.tool_call_id, b.joins_as::text, b.fail_fast, b.deadline_at <= clock_timestamp()
    from state.pmo_batches b
   where b.project_id = p_project and b.batch_id = p_batch and b.status = 'open'
     for no key update;
end $$;

-- Closes a batch that the caller has locked, and tells its parent: the join edge, then the result, in one transaction. One whose end
-- gives the call back to its handler tells that one instead.
--   p_results  a box for the deliverables, in task order; null: they are listed, or there are none
create or replace function state.close_batch(p_project uuid, p_batch uuid, p_status text, p_results uuid, p_cards cardbox.new_card[])
returns table (worker_target text, call_target text)
language plpgsql as $$
#variable_conflict use_column
declare
  v_batch    state.pmo_batches;
  v_target   text;
  v_external boolean;
begin
  update state.pmo_batches b
     set status = p_status, closed_at = now(), results_box_id = p_results,
         stopping = exists (select from state.pmo_batch_tasks t
                             where t.project_id = p_project and t.batch_id = p_batch and t.status = 'open')
   where b.project_id = p_project and b.batch_id = p_batch and b.status = 'open'
 returning b.* into v_batch;
  if not found then
    raise exception 'batch % was closed before', p_batch using errcode = 'WB001', detail = p_batch::text;
  end if;
  --! join.closed
  -- Where a task is still open, its turn may be counting down just now, with the slot locked and waiting for the batch: then state.settle_batch
  -- does it.
  if not v_batch.stopping then
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = p_batch;
  end if;
  --! join.slots
  insert into state.execution_edges (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, card_id, status)
  values (p_project, p_batch, 'join', 'response', v_batch.parent_agent_turn_id, v_batch.parent_agent_id, (p_cards[1]).card_id, p_status);
  --! join.edge
  if p_results is not null then
    with result as (
      select row_number() over (order by k.task_index) as seq, k.deliverable_card_id
        from state.pmo_batch_tasks k
       where k.project_id = p_project and k.batch_id = p_batch and k.deliverable_card_id is not null
    ), made as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id)
      select p_project, p_results, count(*), v_batch.parent_agent_id from result
    )
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, p_results, r.seq, r.deliverable_card_id from result r;
  end if;
  --! join.results
  if v_batch.joins_as = 'resume' then
    -- Under its lock: a child that hands it over to us just now waits, and sees that the batch is closed.
    perform from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = v_batch.tool_call_id for no key update;
    update state.waiting_calls c
       set status = 'pending', retry_count = 0
     where c.project_id = p_project and c.tool_call_id = v_batch.tool_call_id and c.status = 'awaiting'
 returning c.target into v_target;
    --! join.resumed
    return query select null::text, v_target;
    return;
  end if;
  v_external := exists (select from state.pmo_batch_tasks k
                         where k.project_id = p_project and k.batch_id = p_batch
                           and exists (select from cardbox.cards c
                                        where c.project_id = p_project and c.card_id = k.deliverable_card_id and c.is_external
                                       offset 0));
  return query
  select r.worker_target, null::text
    from state.report(p_project, v_batch.tool_call_id, null, 'tool_result', p_status, v_external, p_cards) r;
end $$;
