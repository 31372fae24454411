-- How far an agent may read each of these boxes, and by which right (SE-3). No row: there is no such box. No right: it may not.
--   own      it was made for it
--   handed   a handover put it into one of its context boxes, so far
--   granted  a person or key decided so
--   joined   a child of one of its batches wrote it, and had written so much when it ended
--   asked    only a person asks, no agent: all of it
-- Two more stand in handovers alone: `cloned`, the memory of the agent it is made of; `session`, the messages of a session that the turn is in.
create or replace function state.readable(p_project uuid, p_agent uuid, p_boxes uuid[])
returns table (box_id uuid, length bigint, upto bigint, via text)
language sql stable as $$
  -- `least` passes over nulls: without a right it would be the whole box.
  select b.box_id, b.length, case when r.via is not null then least(r.upto, b.length) end, r.via
    from unnest(p_boxes) as asked (box_id)
   cross join lateral (
         select b.* from cardbox.boxes b where b.project_id = p_project and b.box_id = asked.box_id offset 0) b
    left join lateral (
         select rights.upto, rights.via
           from (select b.length as upto, 'asked' as via, 1 as rank where p_agent is null
                  union all
                 select b.length, 'own', 2 where b.agent_id = p_agent
                  union all
                 (select h.upto, 'handed', 3
                    from state.handovers h
                   where h.project_id = p_project and h.agent_id = p_agent and h.source_box_id = b.box_id
                     -- What it hands to itself it has by another right, which may end.
                     and h.source_agent_id is distinct from p_agent
                   order by h.upto desc
                   limit 1)
                  union all
                 select coalesce(g.upto, b.length), 'granted', 4
                   from state.grants g
                  where g.project_id = p_project and g.agent_id = p_agent and g.box_id = b.box_id and g.revoked_at is null
                  union all
                 select k.output_length, 'joined', 5
                   from state.turns t
                  cross join lateral (
                        select k.output_box_id, k.output_length
                          from state.pmo_batch_tasks k
                         where k.project_id = p_project and k.batch_id = t.batch_id and k.task_index = t.task_index
                        offset 0) k
                  cross join lateral (
                        select p.parent_agent_id
                          from state.pmo_batches p
                         where p.project_id = p_project and p.batch_id = t.batch_id
                        offset 0) p
                  where t.project_id = p_project and t.agent_turn_id = b.agent_turn_id
                    and p.parent_agent_id = p_agent and k.output_box_id = b.box_id) rights
          order by rights.upto desc, rights.rank
          limit 1) r on true
$$;

-- Which of these agents wait, through whatever batches, for this one: a wait for them would never end (PM-6).
create or replace function state.waiting_for(p_project uuid, p_agents uuid[], p_caller uuid) returns uuid[]
language sql stable as $$
  with recursive chain as (
    select a.agent_id as asked, a.agent_id from unnest(p_agents) as a (agent_id)
     union
    select c.asked, k.agent_id
      from chain c
     cross join lateral (
           select h.active_agent_turn_id
             from state.agent_state_head h
            where h.project_id = p_project and h.agent_id = c.agent_id and h.status = 'suspended'
           offset 0) h
     cross join lateral (
           select w.tool_call_id
             from state.waiting_calls w
            where w.project_id = p_project and w.agent_turn_id = h.active_agent_turn_id
           offset 0) w
     cross join lateral (
           select b.batch_id
             from state.pmo_batches b
            where b.project_id = p_project and b.tool_call_id = w.tool_call_id and b.status = 'open'
           offset 0) b
     cross join lateral (
           select k.agent_id
             from state.pmo_batch_tasks k
            where k.project_id = p_project and k.batch_id = b.batch_id and k.status = 'open'
           offset 0) k
  )
  select coalesce(array_agg(distinct c.asked), '{}') from chain c where c.agent_id = p_caller
$$;

-- Puts a turn's question and what came of it at the end of a memory, by reference and once. Few cards one by one, so that the memory
-- stays one run for each box that inherits it; many as one range.
create or replace function state.memorise(p_project uuid, p_memory uuid, p_question uuid[], p_output uuid) returns integer
language plpgsql as $$
declare
  v_length bigint;
  v_before bigint;
begin
  select b.length into v_length from cardbox.boxes b where b.project_id = p_project and b.box_id = p_output;
  if v_length <= 64 then
    return state.append_new(p_project, p_memory, p_question || array(
      select e.card_id from cardbox.box_entries e
       where e.project_id = p_project and e.box_id = p_output and e.card_id is not null
       order by e.seq));
  end if;
  perform state.append_new(p_project, p_memory, p_question);
  update cardbox.boxes b
     set length = b.length + v_length
   where b.project_id = p_project and b.box_id = p_memory
 returning b.length - v_length into v_before;
  insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
  values (p_project, p_memory, v_before + 1, p_output, 1, v_length);
  return v_length;
end $$;

-- The memories of agents. One that has none yet gets it here, of all that it has done; from then on every end adds to it.
--   p_boxes  for those that have none
create or replace function state.memory_of(p_project uuid, p_agents uuid[], p_boxes uuid[])
returns table (agent_id uuid, memory_box_id uuid, output_box_id uuid)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_here    uuid[];
  v_agent   record;
  v_turn    record;
  v_n       integer;
begin
  v_entered := state.enter(p_project);
  -- A turn that ends just now is seen as ended, or finds the memory.
  v_here := state.lock_heads(p_project, p_agents);
  --! memory.locked
  for v_agent in
    select asked.agent_id, asked.box_id
      from (select u.* from unnest(p_agents, p_boxes) as u (agent_id, box_id) order by u.agent_id offset 0) asked
     cross join lateral (
           select
             from resource.project_agents a
            where a.project_id = p_project and a.agent_id = asked.agent_id and a.memory_box_id is null
              for no key update) a
  loop
    -- Another caller may have been faster while we waited for its row.
    continue when exists (select from resource.project_agents a
                           where a.project_id = p_project and a.agent_id = v_agent.agent_id and a.memory_box_id is not null);
    -- One that was cloned begins with what it was given of the other.
    with given as materialized (
      select r.*, row_number() over (order by h.part, r.place) as n
        from (select t.context_box_id
                from state.turns t
               where t.project_id = p_project and t.agent_id = v_agent.agent_id
               order by t.agent_turn_id
               limit 1) first
       cross join lateral (
             select h.part, h.source_box_id, h.upto
               from state.handovers h
              where h.project_id = p_project and h.context_box_id = first.context_box_id and h.via = 'cloned'
                -- Retention may have removed what it was taken from.
                and exists (select from cardbox.boxes b where b.project_id = p_project and b.box_id = h.source_box_id offset 0)
             offset 0) h
       cross join lateral cardbox.runs(p_project, h.source_box_id, 1, h.upto) r
    ), placed as (
      select g.*, sum(g.to_seq - g.from_seq + 1) over (order by g.n) - (g.to_seq - g.from_seq) as seq from given g
    ), made as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id)
      select p_project, v_agent.box_id, coalesce(sum(g.to_seq - g.from_seq + 1), 0), v_agent.agent_id from given g
    )
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_agent.box_id, p.seq, p.source_box_id, p.from_seq, p.to_seq from placed p;
    for v_turn in
      select t.query_card_ids, t.output_box_id
        from state.turns t
       where t.project_id = p_project and t.agent_id = v_agent.agent_id and t.status <> 'open' and t.session_id is null
       order by t.agent_turn_id
    loop
      v_n := state.memorise(p_project, v_agent.box_id, v_turn.query_card_ids, v_turn.output_box_id);
    end loop;
    update resource.project_agents a
       set memory_box_id = v_agent.box_id
     where a.project_id = p_project and a.agent_id = v_agent.agent_id;
    update state.agent_state_head h
       set memory_box_id = v_agent.box_id
     where h.project_id = p_project and h.agent_id = v_agent.agent_id;
    --! memory.made
  end loop;
  return query
  select a.agent_id, a.memory_box_id, t.output_box_id
    from unnest(p_agents) as asked (agent_id)
   cross join lateral (
         select a.agent_id, a.memory_box_id
           from resource.project_agents a
          where a.project_id = p_project and a.agent_id = asked.agent_id
         offset 0) a
    left join lateral (
         select h.active_agent_turn_id
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = a.agent_id
         offset 0) h on true
    left join lateral (
         select t.output_box_id
           from state.turns t
          where t.project_id = p_project and t.agent_turn_id = h.active_agent_turn_id
         offset 0) t on true;
end $$;

-- Agents that were made for a task and that no caller asked for until their time: off the roster. Who they were stays on record.
create or replace function state.retire(p_project uuid, p_agents uuid[]) returns integer
language plpgsql as $$
declare
  v_entered text;
  v_agent   uuid;
  v_n       integer := 0;
begin
  v_entered := state.enter(p_project);
  foreach v_agent in array p_agents loop
    update resource.project_agents a
       set retired_at = now()
     where a.project_id = p_project and a.agent_id = v_agent and a.retired_at is null and (a.retire_by <= now()) is true
       and not exists (select from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent);
    if found then
      insert into state.identity_edges (project_id, agent_id, action) values (p_project, v_agent, 'retired');
      v_n := v_n + 1;
    end if;
  end loop;
  --! retire.retired
  return v_n;
end $$;

create or replace function scheduler.agents_to_retire(p_most integer) returns table (project_id uuid, agent_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select a.project_id, a.agent_id
    from resource.project_agents a
   where a.retire_by <= now() and a.retire_by is not null and a.retired_at is null
     and not exists (select from state.agent_state_head h where h.project_id = a.project_id and h.agent_id = a.agent_id offset 0)
   order by a.retire_by
   limit p_most
$$;
alter function scheduler.agents_to_retire owner to waybill_scheduler;
