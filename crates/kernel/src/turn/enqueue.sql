-- A new place in the queue for a turn that was begun: before all that were not, behind those that were and are ready.
create or replace function state.place_of_begun() returns bigint
language sql as $$ select nextval('state.agent_inbox_inbox_seq_seq') - 4611686018427387904 $$;

-- The last id that may be minted now: a day ahead of the database's clock. The history of a turn with a later one may have no partition.
create or replace function state.horizon() returns uuid
language sql stable as $$
  select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint + 86400000), 12, '0') || '7fff8fffffffffffffff')::uuid
$$;

-- The first id of the day before now: partitions for what came since are there. Those for an earlier id are looked for (state.has_partitions).
create or replace function state.yesterday() returns uuid
language sql stable as $$
  select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 86400000), 12, '0') || '00000000000000000000')::uuid
$$;

-- Transaction 1. One turn alone costs about half as much here as in the form for many below.
-- A turn that is known already changes nothing and is answered as the first time.
create or replace function state.enqueue(p_project uuid, p_new state.new_turn, p_cards cardbox.new_card[],
  out agent_turn_id uuid, out turn_epoch bigint, out worker_target text, out duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_known  record;
  v_later  boolean;
  v_within boolean;
  v_started_by   text;
  v_on_behalf_of text;
  v_root   uuid;
begin
  v_entered := state.enter(p_project);
  enqueue.agent_turn_id := p_new.agent_turn_id;
  enqueue.duplicate := false;
  -- The turn's id is its key: the same id for another agent is not a replay.
  select t.agent_id, t.dispatched_epoch into v_known
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_new.agent_turn_id;
  if found then
    if v_known.agent_id <> p_new.agent_id then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002', detail = p_new.agent_turn_id::text;
    end if;
    enqueue.duplicate := true;
    enqueue.turn_epoch := v_known.dispatched_epoch;
    return;
  end if;
  if p_new.agent_turn_id > state.horizon() then
    raise exception 'the id of a turn is not of the present time' using errcode = '23514', constraint = 'of_the_present';
  end if;
  if p_new.agent_turn_id < state.yesterday() and not state.has_partitions(p_new.agent_turn_id) then
    raise exception 'the history of a turn with this id has no partition' using errcode = '23514', constraint = 'of_the_past';
  end if;
  -- Of an idle agent it is dispatched, behind another it queues up. What is not yet due does neither. The agent's lock comes with it: whatever is
  -- looked up later is as this lock left it. A replay that was not seen above fails at the turn's key, and is retried.
  v_later := coalesce(p_new.not_before > now(), false);
  loop
    if v_later then
      select null::bigint, h.worker_target into enqueue.turn_epoch, enqueue.worker_target
        from state.agent_state_head h
       where h.project_id = p_project and h.agent_id = p_new.agent_id
         for no key update;
    else
      update state.agent_state_head h
         set status = case h.status when 'idle' then 'dispatched' else h.status end,
             active_agent_turn_id = coalesce(h.active_agent_turn_id, p_new.agent_turn_id),
             turn_epoch = h.turn_epoch + (h.status = 'idle')::integer,
             n_queued = h.n_queued + (h.status <> 'idle')::integer
       where h.project_id = p_project and h.agent_id = p_new.agent_id
      returning case when h.active_agent_turn_id = p_new.agent_turn_id then h.turn_epoch end, h.worker_target
        into enqueue.turn_epoch, enqueue.worker_target;
    end if;
    exit when found;
    -- One that was here for its turns only has a head again.
    perform from state.rebuild_head(p_project, p_new.agent_id);
  end loop;
  --! enqueue.locked
  if p_new.parent_agent_turn_id is null then
    v_started_by := nullif(current_setting('waybill.actor', true), '');
    v_on_behalf_of := nullif(current_setting('waybill.on_behalf_of', true), '');
  else
    select t.started_by, t.on_behalf_of, t.root_turn_id into v_started_by, v_on_behalf_of, v_root
      from state.turns t where t.project_id = p_project and t.agent_turn_id = p_new.parent_agent_turn_id;
  end if;
  insert into state.turns
         (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
          source_agent_id, parent_agent_turn_id, root_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth,
          trace_id, traceparent, tracestate, emit_state_event, started_by, on_behalf_of, dispatched_epoch)
  values (p_project, p_new.agent_turn_id, p_new.agent_id, coalesce(p_new.channel, 'public'), p_new.profile_box_id,
          p_new.context_box_id, p_new.output_box_id, p_new.query_card_ids, p_new.session_id, p_new.source_agent_id,
          p_new.parent_agent_turn_id, coalesce(v_root, p_new.parent_agent_turn_id, p_new.agent_turn_id), p_new.parent_step_id,
          p_new.parent_tool_call_id, p_new.batch_id, p_new.task_index, p_new.recursion_depth, p_new.trace_id, p_new.traceparent, p_new.tracestate, p_new.emit_state_event, v_started_by, v_on_behalf_of,
          enqueue.turn_epoch);
  v_within := state.check_quota(p_project, 1);
  if p_new.session_id is not null and not exists (
       select from state.blackboards b where b.project_id = p_project and b.session_id = p_new.session_id) then
    raise exception 'no such session' using errcode = 'WB404', detail = p_new.session_id::text;
  end if;
  if p_new.batch_id is not null then
    -- Its task is still to be done, and by this turn? The task's lock orders this with the end of the batch.
    perform from state.pmo_batch_tasks k
      where k.project_id = p_project and k.batch_id = p_new.batch_id and k.task_index = p_new.task_index
        and k.agent_turn_id = p_new.agent_turn_id and k.status = 'open'
        for no key update;
    if not found or not exists (select from state.pmo_batches b
                                 where b.project_id = p_project and b.batch_id = p_new.batch_id and b.status = 'open') then
      raise exception 'the batch of turn % has ended', p_new.agent_turn_id using errcode = 'WB001', detail = p_new.agent_turn_id::text;
    end if;
  end if;
  --! enqueue.turn
  v_written := cardbox.put(p_project, p_cards);
  --! enqueue.cards
  if p_new.context_card_ids is null then
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
    values (p_project, p_new.output_box_id, 0, p_new.agent_id, p_new.agent_turn_id);
  else
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
    values (p_project, p_new.output_box_id, 0, p_new.agent_id, p_new.agent_turn_id),
           (p_project, p_new.context_box_id, cardinality(p_new.context_card_ids), p_new.agent_id, p_new.agent_turn_id);
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, p_new.context_box_id, c.seq, c.card_id
      from unnest(p_new.context_card_ids) with ordinality as c (card_id, seq);
  end if;
  --! enqueue.boxes
  insert into state.agent_inbox
         (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, next_retry_at, dispatched_at)
  values (p_project, p_new.agent_turn_id, p_new.agent_id,
          case when v_later then 'deferred' when enqueue.turn_epoch is null then 'queued' else 'pending' end,
          enqueue.worker_target, enqueue.turn_epoch, case when v_later then p_new.not_before end,
          case when enqueue.turn_epoch is not null then now() end);
  --! enqueue.row
  if p_new.emit_state_event and enqueue.turn_epoch is not null then
    v_written := state.tell(p_project, array[p_new.agent_turn_id], p_new.agent_id, 'dispatched');
  end if;
  if p_new.limits is not null or p_new.parent_agent_turn_id is not null then
    v_written := state.allot(p_project, p_new.parent_agent_turn_id, jsonb_build_array(
      jsonb_build_object('agent_turn_id', p_new.agent_turn_id, 'limits', p_new.limits, 'shares', p_new.shares)));
  end if;
  --! enqueue.allotted
end $$;

-- The same for many turns at once, set by set.
--   p_agents  whom they are for, each once
-- Answers one row per turn, as the first call did: a turn that is known already changes nothing.
create or replace function state.enqueue_many(p_project uuid, p_agents uuid[], p_turns state.new_turn[], p_cards cardbox.new_card[])
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
  v_count  integer := cardinality(p_turns);
begin
  v_entered := state.enter(p_project);
  -- The agents' locks, in one order for everybody. Whatever is looked up later is as these locks left it.
  v_here := state.lock_heads(p_project, p_agents);
  if cardinality(v_here) <> cardinality(p_agents) then
    -- Those that were here for their turns only have a head again for a new one, and not for one that is over.
    perform state.rebuild_head(p_project, a.agent_id)
       from (select distinct t.agent_id
               from unnest(p_turns) t
              where t.agent_id <> all (v_here)
                and not exists (select from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0)
              order by t.agent_id) a;
  end if;
  --! enqueue_many.locked

  v_new := array(select t.agent_turn_id
                   from unnest(p_turns) t
                  where not exists (select from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0));
  select count(t.batch_id), array_agg(distinct t.batch_id) filter (where t.batch_id is not null),
         array_agg(distinct t.session_id) filter (where t.session_id is not null)
    into v_children, v_batches, v_sessions
    from unnest(p_turns) t
   where t.agent_turn_id = any (v_new);
  if v_children > 0 then
    -- Their tasks are still to be done, and by these turns? The tasks' locks order this with the end of a batch.
    perform from (
           select t.*
             from unnest(p_turns) t
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

  if v_new <> '{}' then
    if exists (select from unnest(v_new) as n (agent_turn_id) where n.agent_turn_id > state.horizon()) then
      raise exception 'the id of a turn is not of the present time' using errcode = '23514', constraint = 'of_the_present';
    end if;
    if exists (select from unnest(v_new) as n (agent_turn_id)
                where n.agent_turn_id < state.yesterday() and not state.has_partitions(n.agent_turn_id)) then
      raise exception 'the history of a turn with this id has no partition' using errcode = '23514', constraint = 'of_the_past';
    end if;
    v_within := state.check_quota(p_project, cardinality(v_new));
    v_written := cardbox.put(p_project, p_cards);
    --! enqueue_many.cards
    with asked as materialized (
      select t.*
        from unnest(p_turns) t
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
      select t.agent_id, (array_agg(t.agent_turn_id order by t.ordinality))[1] as first_turn_id, count(*)::integer as n
        from unnest(p_turns) with ordinality t
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
        from unnest(p_turns) with ordinality t
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
       order by p.ordinality
    ), turn as (
      insert into state.turns
             (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
              source_agent_id, parent_agent_turn_id, root_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth,
              trace_id, traceparent, tracestate, emit_state_event, started_by, on_behalf_of, dispatched_epoch)
      select p_project, p.agent_turn_id, p.agent_id, coalesce(p.channel, 'public'), p.profile_box_id, p.context_box_id,
             p.output_box_id, p.query_card_ids, p.session_id, p.source_agent_id, p.parent_agent_turn_id,
             coalesce(k.root_turn_id, p.parent_agent_turn_id, p.agent_turn_id), p.parent_step_id, p.parent_tool_call_id, p.batch_id, p.task_index, p.recursion_depth, p.trace_id, p.traceparent, p.tracestate, p.emit_state_event,
             case when p.parent_agent_turn_id is null then nullif(current_setting('waybill.actor', true), '') else k.started_by end,
             case when p.parent_agent_turn_id is null then nullif(current_setting('waybill.on_behalf_of', true), '') else k.on_behalf_of end,
             p.epoch
        from placed p
        left join lateral (
             select k.started_by, k.on_behalf_of, k.root_turn_id
               from state.turns k
              where k.project_id = p_project and k.agent_turn_id = p.parent_agent_turn_id
             offset 0) k on true
    )
    select p.agent_turn_id, p.epoch, p.worker_target, false from placed p;
    --! enqueue_many.rows
    if exists (select from unnest(p_turns) t where t.emit_state_event) then
      v_written := state.tell(p_project, v_new, null, 'dispatched');
    end if;
    perform state.allot(p_project, t.parent_agent_turn_id, jsonb_agg(jsonb_build_object(
              'agent_turn_id', t.agent_turn_id, 'limits', t.limits, 'shares', t.shares)))
       from unnest(p_turns) t
      where t.agent_turn_id = any (v_new) and (t.limits is not null or t.parent_agent_turn_id is not null)
      group by t.parent_agent_turn_id
      order by t.parent_agent_turn_id;
    --! enqueue_many.allotted
  end if;

  if cardinality(v_new) < v_count then
    -- The turn's id is its key: the same id for another agent is not a replay.
    if exists (select from unnest(p_turns) t
                where t.agent_turn_id <> all (v_new)
                  and not exists (select from state.turns k
                                   where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id and k.agent_id = t.agent_id
                                  offset 0)) then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002';
    end if;
    return query
    select t.agent_turn_id, k.dispatched_epoch, null::text, true
      from unnest(p_turns) t
     cross join lateral (
           select k.dispatched_epoch from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0) k
     where t.agent_turn_id <> all (v_new);
  end if;
end $$;
