-- A new place in the queue for a turn that was begun: before all that were not, behind those that were and are ready.
create or replace function state.place_of_begun() returns bigint
language sql as $$ select nextval('state.agent_inbox_inbox_seq_seq') - 4611686018427387904 $$;

-- Transaction 1. One turn alone costs about half as much here as in the form for many below.
-- A turn that is known already changes nothing and is answered as the first time.
create or replace function state.enqueue(p_project uuid, p_turn uuid, p_agent uuid, p_channel text, p_profile_box uuid, p_context_box uuid,
  p_output_box uuid, p_context_cards uuid[], p_query_cards uuid[], p_session uuid, p_source_agent uuid, p_parent_turn uuid,
  p_parent_step uuid, p_parent_call uuid, p_batch uuid, p_task_index integer, p_recursion_depth integer, p_trace uuid,
  p_traceparent text, p_tracestate text, p_not_before timestamptz, p_emit_state_event boolean, p_limits jsonb, p_shares integer,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[],
  out agent_turn_id uuid, out turn_epoch bigint, out worker_target text, out duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_status text;
  v_later  boolean;
  v_within boolean;
  v_started_by   text;
  v_on_behalf_of text;
begin
  v_entered := state.enter(p_project);
  enqueue.agent_turn_id := p_turn;
  enqueue.duplicate := false;
  -- The agent's lock. Whatever is looked up later is as this lock left it.
  select h.status, h.turn_epoch, h.worker_target into v_status, enqueue.turn_epoch, enqueue.worker_target
    from state.agent_state_head h
   where h.project_id = p_project and h.agent_id = p_agent
     for no key update;
  -- One that was here for its turns only has a head again for a new one, and not for one that is over.
  if not found and not exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn) then
    select r.status, r.turn_epoch, r.worker_target into v_status, enqueue.turn_epoch, enqueue.worker_target
      from state.rebuild_head(p_project, p_agent) r;
  end if;
  --! enqueue.locked
  if p_parent_turn is null then
    v_started_by := nullif(current_setting('waybill.actor', true), '');
    v_on_behalf_of := nullif(current_setting('waybill.on_behalf_of', true), '');
  else
    select t.started_by, t.on_behalf_of into v_started_by, v_on_behalf_of
      from state.turns t where t.project_id = p_project and t.agent_turn_id = p_parent_turn;
  end if;
  insert into state.turns
         (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
          source_agent_id, parent_agent_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth, trace_id,
          traceparent, tracestate, emit_state_event, started_by, on_behalf_of)
  values (p_project, p_turn, p_agent, coalesce(p_channel, 'public'), p_profile_box,
          p_context_box, p_output_box, p_query_cards, p_session, p_source_agent,
          p_parent_turn, p_parent_step, p_parent_call, p_batch, p_task_index,
          p_recursion_depth, p_trace, p_traceparent, p_tracestate, p_emit_state_event, v_started_by, v_on_behalf_of)
      on conflict do nothing;
  if not found then
    -- The turn's id is its key: the same id for another agent is not a replay.
    perform from state.turns t
      where t.project_id = p_project and t.agent_turn_id = p_turn and t.agent_id = p_agent;
    if not found then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002', detail = p_turn::text;
    end if;
    enqueue.duplicate := true;
    enqueue.worker_target := null;
    -- Nothing found: the edge was pruned with its week, and the epoch is no longer known.
    select e.turn_epoch into enqueue.turn_epoch
      from state.execution_edges e
     where e.project_id = p_project and e.correlation_id = p_turn
       and e.primitive = 'enqueue' and e.edge_phase = 'request';
    return;
  end if;
  v_within := state.check_quota(p_project, 1);
  if p_session is not null and not exists (
       select from state.blackboards b where b.project_id = p_project and b.session_id = p_session) then
    raise exception 'no such session' using errcode = 'WB404', detail = p_session::text;
  end if;
  if p_batch is not null then
    -- Its task is still to be done, and by this turn? The task's lock orders this with the end of the batch.
    perform from state.pmo_batch_tasks k
      where k.project_id = p_project and k.batch_id = p_batch and k.task_index = p_task_index
        and k.agent_turn_id = p_turn and k.status = 'open'
        for no key update;
    if not found or not exists (select from state.pmo_batches b
                                 where b.project_id = p_project and b.batch_id = p_batch and b.status = 'open') then
      raise exception 'the batch of turn % has ended', p_turn using errcode = 'WB001', detail = p_turn::text;
    end if;
  end if;
  --! enqueue.turn
  v_written := cardbox.put(p_project, c_ids, c_tokens, c_types, c_roles, c_authors, c_hashes, c_calls, c_traces, c_steps, c_parents, c_ttls, c_contents, c_tool_calls, c_metadata);
  --! enqueue.cards
  if p_context_cards is null then
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id) values (p_project, p_output_box, 0, p_agent, p_turn);
  else
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
    values (p_project, p_output_box, 0, p_agent, p_turn), (p_project, p_context_box, cardinality(p_context_cards), p_agent, p_turn);
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, p_context_box, c.seq, c.card_id
      from unnest(p_context_cards) with ordinality as c (card_id, seq);
  end if;
  --! enqueue.boxes
  -- Of an idle agent it is dispatched, behind another it queues up. What is not yet due does neither.
  v_later := coalesce(p_not_before > now(), false);
  if v_status = 'idle' and not v_later then
    enqueue.turn_epoch := enqueue.turn_epoch + 1;
    update state.agent_state_head h
       set status = 'dispatched', active_agent_turn_id = p_turn, turn_epoch = enqueue.turn_epoch
     where h.project_id = p_project and h.agent_id = p_agent;
  else
    enqueue.turn_epoch := null;
    if not v_later then
      update state.agent_state_head h
         set n_queued = h.n_queued + 1
       where h.project_id = p_project and h.agent_id = p_agent;
    end if;
  end if;
  --! enqueue.head
  insert into state.agent_inbox
         (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, next_retry_at, dispatched_at)
  values (p_project, p_turn, p_agent,
          case when v_later then 'deferred' when enqueue.turn_epoch is null then 'queued' else 'pending' end,
          enqueue.worker_target, enqueue.turn_epoch, case when v_later then p_not_before end,
          case when enqueue.turn_epoch is not null then now() end);
  --! enqueue.row
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, source_agent_id, turn_epoch, card_id,
          recursion_depth, trace_id)
  values (p_project, p_turn, 'enqueue', 'request', p_turn, p_agent, p_source_agent,
          enqueue.turn_epoch, p_context_cards[1], p_recursion_depth, p_trace);
  --! enqueue.edge
  if p_emit_state_event and enqueue.turn_epoch is not null then
    v_written := state.tell(p_project, array[p_turn], p_agent, 'dispatched');
  end if;
  if p_limits is not null or p_parent_turn is not null then
    v_written := state.allot(p_project, p_parent_turn, jsonb_build_array(
      jsonb_build_object('agent_turn_id', p_turn, 'limits', p_limits, 'shares', p_shares)));
  end if;
  --! enqueue.allotted
end $$;

-- The same for many turns at once, set by set.
--   p_agents  whom they are for, each once
--   p_turns   [{agent_turn_id, agent_id, context_box_id, output_box_id, context_card_ids?, …}], see turn/enqueue.rs
-- Answers one row per turn, as the first call did: a turn that is known already changes nothing.
create or replace function state.enqueue_many(p_project uuid, p_agents uuid[], p_turns jsonb,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[])
returns table (agent_turn_id uuid, turn_epoch bigint, worker_target text, duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_locked integer;
  v_here   uuid[];
  v_children integer;
  v_batches uuid[];
  v_new    uuid[];
  v_sessions uuid[];
  v_unknown uuid[];
  v_agent  record;
  v_within boolean;
  v_count  integer := jsonb_array_length(p_turns);
begin
  v_entered := state.enter(p_project);
  -- The agents' locks, in one order for everybody. Whatever is looked up later is as these locks left it.
  v_here := state.lock_heads(p_project, p_agents);
  if cardinality(v_here) <> cardinality(p_agents) then
    -- Those that were here for their turns only have a head again for a new one, and not for one that is over.
    perform state.rebuild_head(p_project, a.agent_id)
       from (select distinct t.agent_id
               from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, agent_id uuid)
              where t.agent_id <> all (v_here)
                and not exists (select from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0)
              order by t.agent_id) a;
  end if;
  --! enqueue_many.locked

  with new as (
    insert into state.turns
           (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
            source_agent_id, parent_agent_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth, trace_id,
            traceparent, tracestate, emit_state_event, started_by, on_behalf_of)
    select p_project, t.agent_turn_id, t.agent_id, coalesce(t.channel, 'public'), t.profile_box_id, t.context_box_id,
           t.output_box_id, coalesce(t.query_card_ids, '{}'), t.session_id, t.source_agent_id, t.parent_agent_turn_id, t.parent_step_id,
           t.parent_tool_call_id, t.batch_id, t.task_index, coalesce(t.recursion_depth, 0), t.trace_id, t.traceparent, t.tracestate,
           coalesce(t.emit_state_event, false),
           case when t.parent_agent_turn_id is null then nullif(current_setting('waybill.actor', true), '') else p.started_by end,
           case when t.parent_agent_turn_id is null then nullif(current_setting('waybill.on_behalf_of', true), '') else p.on_behalf_of end
      from jsonb_to_recordset(p_turns) as t
           (agent_turn_id uuid, agent_id uuid, channel text, profile_box_id uuid, context_box_id uuid, output_box_id uuid,
            query_card_ids uuid[], session_id uuid, source_agent_id uuid, parent_agent_turn_id uuid, parent_step_id uuid,
            parent_tool_call_id uuid, batch_id uuid, task_index integer, recursion_depth integer, trace_id uuid, traceparent text,
            tracestate text, emit_state_event boolean)
      left join lateral (
           select k.started_by, k.on_behalf_of
             from state.turns k
            where k.project_id = p_project and k.agent_turn_id = t.parent_agent_turn_id
           offset 0) p on true
        on conflict do nothing
 returning agent_turn_id
  )
  select array_agg(n.agent_turn_id) into v_new from new n;
  select count(t.batch_id), array_agg(distinct t.batch_id) filter (where t.batch_id is not null),
         array_agg(distinct t.session_id) filter (where t.session_id is not null)
    into v_children, v_batches, v_sessions
    from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, batch_id uuid, session_id uuid)
   where t.agent_turn_id = any (v_new);
  if v_children > 0 then
    -- Their tasks are still to be done, and by these turns? The tasks' locks order this with the end of a batch.
    perform from (
           select t.*
             from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, batch_id uuid, task_index integer)
            where t.batch_id is not null and t.agent_turn_id = any (v_new)
            order by t.batch_id, t.task_index
           offset 0) t
     cross join lateral (
           select k.task_index
             from state.pmo_batch_tasks k
            where k.project_id = p_project and k.batch_id = t.batch_id and k.task_index = t.task_index
              and k.agent_turn_id = t.agent_turn_id and k.status = 'open'
              for no key update) k;
    get diagnostics v_locked = row_count;
    if v_locked <> v_children or exists (
         select from unnest(v_batches) as u (batch_id)
          where not exists (select from state.pmo_batches b
                             where b.project_id = p_project and b.batch_id = u.batch_id and b.status = 'open'
                            offset 0)) then
      raise exception 'a batch of these turns has ended' using errcode = 'WB001', detail = array_to_string(v_new, ',');
    end if;
  end if;
  if v_sessions is not null then
    select array_agg(s.session_id) into v_unknown
      from unnest(v_sessions) as s (session_id)
     where not exists (select from state.blackboards b where b.project_id = p_project and b.session_id = s.session_id offset 0);
    if v_unknown is not null then
      raise exception 'no such session' using errcode = 'WB404', detail = array_to_string(v_unknown, ',');
    end if;
  end if;
  --! enqueue_many.turn

  if v_new is not null then
    v_within := state.check_quota(p_project, cardinality(v_new));
    v_written := cardbox.put(p_project, c_ids, c_tokens, c_types, c_roles, c_authors, c_hashes, c_calls, c_traces, c_steps, c_parents, c_ttls, c_contents, c_tool_calls, c_metadata);
    --! enqueue_many.cards
    with asked as materialized (
      select t.*
        from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, agent_id uuid, context_box_id uuid, output_box_id uuid, context_card_ids uuid[])
       where t.agent_turn_id = any (v_new)
    ), box as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
      select p_project, a.output_box_id, 0, a.agent_id, a.agent_turn_id from asked a
       union all
      select p_project, a.context_box_id, cardinality(a.context_card_ids), a.agent_id, a.agent_turn_id from asked a where a.context_card_ids is not null
    )
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, a.context_box_id, c.seq, c.card_id
      from asked a cross join lateral unnest(a.context_card_ids) with ordinality as c (card_id, seq);
    --! enqueue_many.boxes

    -- The first of an idle agent is dispatched, the others queue up behind. What is not yet due does neither.
    for v_agent in
      select t.agent_id, (array_agg(t.agent_turn_id order by t.n))[1] as first_turn_id, count(*)::integer as n
        from rows from (jsonb_to_recordset(p_turns) as (agent_turn_id uuid, agent_id uuid, not_before timestamptz)) with ordinality
             as t (agent_turn_id, agent_id, not_before, n)
       where t.agent_turn_id = any (v_new) and (t.not_before > now()) is not true
       group by t.agent_id
    loop
      update state.agent_state_head h
         set status = case h.status when 'idle' then 'dispatched' else h.status end,
             active_agent_turn_id = coalesce(h.active_agent_turn_id, v_agent.first_turn_id),
             turn_epoch = h.turn_epoch + (h.status = 'idle')::integer,
             n_queued = h.n_queued + v_agent.n - (h.status = 'idle')::integer
       where h.project_id = p_project and h.agent_id = v_agent.agent_id;
    end loop;
    --! enqueue_many.heads
    return query
    with asked as materialized (
      select t.*, coalesce(t.not_before > now(), false) as later
        from rows from (jsonb_to_recordset(p_turns) as
               (agent_turn_id uuid, agent_id uuid, not_before timestamptz, source_agent_id uuid, recursion_depth integer, trace_id uuid,
                context_card_ids uuid[])) with ordinality
             as t (agent_turn_id, agent_id, not_before, source_agent_id, recursion_depth, trace_id, context_card_ids, n)
       where t.agent_turn_id = any (v_new)
    ), placed as materialized (
      select a.*, h.worker_target, case when h.active_agent_turn_id = a.agent_turn_id then h.turn_epoch end as epoch
        from asked a
       cross join lateral (
             select h.worker_target::text, h.active_agent_turn_id, h.turn_epoch
               from state.agent_state_head h
              where h.project_id = p_project and h.agent_id = a.agent_id
             offset 0) h
    ), row as (
      insert into state.agent_inbox
             (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, next_retry_at, dispatched_at)
      select p_project, p.agent_turn_id, p.agent_id,
             case when p.later then 'deferred' when p.epoch is null then 'queued' else 'pending' end,
             p.worker_target, p.epoch, case when p.later then p.not_before end,
             case when p.epoch is not null then now() end
        from placed p
       order by p.n
    ), edge as (
      insert into state.execution_edges
             (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, source_agent_id, turn_epoch,
              card_id, recursion_depth, trace_id)
      select p_project, p.agent_turn_id, 'enqueue', 'request', p.agent_turn_id, p.agent_id, p.source_agent_id, p.epoch,
             p.context_card_ids[1], coalesce(p.recursion_depth, 0), p.trace_id
        from placed p
    )
    select p.agent_turn_id, p.epoch, p.worker_target, false from placed p;
    --! enqueue_many.rows
    if exists (select from jsonb_to_recordset(p_turns) as t (emit_state_event boolean) where t.emit_state_event) then
      v_written := state.tell(p_project, v_new, null, 'dispatched');
    end if;
    perform state.allot(p_project, t.parent_agent_turn_id, jsonb_agg(jsonb_build_object(
              'agent_turn_id', t.agent_turn_id, 'limits', t.limits, 'shares', t.shares)))
       from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, parent_agent_turn_id uuid, limits jsonb, shares integer)
      where t.agent_turn_id = any (v_new) and (t.limits is not null or t.parent_agent_turn_id is not null)
      group by t.parent_agent_turn_id
      order by t.parent_agent_turn_id;
    --! enqueue_many.allotted
  end if;

  if coalesce(cardinality(v_new), 0) < v_count then
    -- The turn's id is its key: the same id for another agent is not a replay.
    if exists (select from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid, agent_id uuid)
                where exists (select from state.turns k
                               where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id and k.agent_id <> t.agent_id
                              offset 0)) then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002';
    end if;
    -- Of a turn whose edge was pruned with its week, the epoch is no longer known.
    return query
    select t.agent_turn_id, e.turn_epoch, null::text, true
      from jsonb_to_recordset(p_turns) as t (agent_turn_id uuid)
      left join lateral (
           select e.turn_epoch
             from state.execution_edges e
            where e.project_id = p_project and e.correlation_id = t.agent_turn_id
              and e.primitive = 'enqueue' and e.edge_phase = 'request'
           offset 0) e on true
     where t.agent_turn_id <> all (coalesce(v_new, '{}'));
  end if;
end $$;
