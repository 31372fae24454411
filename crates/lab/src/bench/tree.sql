-- Makes one tree of all turns of a project: each has ten children, which one call started as a batch. Returns the root. Run without triggers, by a
-- superuser.
--   $1  the project
with turn as materialized (
  select t.agent_turn_id, t.agent_id, t.query_card_ids[1] as card_id, row_number() over (order by t.agent_turn_id) - 1 as n
    from state.turns t
   where t.project_id = $1
), child as materialized (
  select c.agent_turn_id, c.n, (c.n - 1) / 10 as parent from turn c where c.n > 0
), call as materialized (
  select p.n, p.agent_turn_id, p.agent_id, p.card_id, bench.id() as call_id, bench.id() as batch_id, k.n_tasks
    from (select c.parent, count(*) as n_tasks from child c group by c.parent) k
    join turn p on p.n = k.parent
), edge as (
  insert into state.execution_edges (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, card_id, status)
  select $1, k.call_id, e.primitive, e.phase, k.agent_turn_id, k.agent_id, k.card_id, e.status
    from call k, (values ('command', 'request', null), ('report', 'response', 'success')) as e (primitive, phase, status)
), batch as (
  insert into state.pmo_batches (project_id, batch_id, parent_agent_turn_id, parent_agent_id, tool_call_id, status, n_tasks, open_slots, deadline_at,
                                 closed_at)
  select $1, k.batch_id, k.agent_turn_id, k.agent_id, k.call_id, 'success', k.n_tasks, 0, now() + interval '1 hour', now() from call k
), placed as (
  update state.turns t
     set root_turn_id = r.agent_turn_id, parent_agent_turn_id = k.agent_turn_id, parent_tool_call_id = k.call_id, batch_id = k.batch_id,
         task_index = (c.n - 1) % 10
    from child c
    join call k on k.n = c.parent
   cross join (select r.agent_turn_id from turn r where r.n = 0) r
   where t.project_id = $1 and t.agent_turn_id = c.agent_turn_id
)
select r.agent_turn_id from turn r where r.n = 0
