-- The next turns of a graph, in the order of their ids: a turn and the turns below it. Below a root the index has them in this order; below another
-- turn they are looked for level by level, 10,000 at most.
create or replace function state.graph_ids(p_project uuid, p_turn uuid, p_after uuid, p_most integer, out turn_ids uuid[], out is_cut boolean)
language plpgsql stable as $$
declare
  v_root  uuid;
  v_all   uuid[];
  -- The first stands before all others, whatever the clocks of their makers said.
  v_after uuid := coalesce(nullif(p_after, p_turn), '00000000-0000-0000-0000-000000000000');
begin
  is_cut := false;
  turn_ids := '{}';
  select t.root_turn_id into v_root from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if v_root = p_turn then
    if p_after is null then
      turn_ids := array[p_turn];
    end if;
    turn_ids := turn_ids || array(select t.agent_turn_id
                              from state.turns t
                             where t.root_turn_id = p_turn and t.project_id = p_project and t.root_turn_id <> t.agent_turn_id
                               and t.agent_turn_id > v_after
                             order by t.agent_turn_id
                             limit p_most);
  elsif v_root is not null then
    v_all := state.turns_below(p_project, p_turn, 10001);
    is_cut := cardinality(v_all) > 10000;
    turn_ids := array(select u.id
                     from unnest(v_all[1:10000]) as u (id)
                    where p_after is null or u.id <> p_turn and u.id > v_after
                    order by u.id <> p_turn, u.id
                    limit p_most);
  end if;
  turn_ids := turn_ids[1:p_most];
end $$;

-- What a graph says of each turn, in the order asked for.
create or replace function state.graph(p_project uuid, p_turns uuid[])
returns table (agent_turn_id uuid, parent_agent_turn_id uuid, parent_tool_call_id uuid, status text, profile_name text, batch_id uuid,
  task_index integer, created_at timestamptz, finished_at timestamptz, external boolean, forked boolean, n_steps bigint, input_tokens bigint,
  cached_tokens bigint, output_tokens bigint, microdollars bigint)
language plpgsql stable as $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, t.parent_agent_turn_id, t.parent_tool_call_id, t.status::text, a.profile_name, t.batch_id,
         t.task_index, t.created_at, t.finished_at,
         coalesce((select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.context_box_id)
                  or (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id), false),
         f.source_turn_id is not null,
         s.n_steps, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars
    from unnest(p_turns) with ordinality as asked (agent_turn_id, n)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = t.agent_id offset 0) a on true
    left join lateral (
         select f.source_turn_id from state.forks f where f.project_id = p_project and f.agent_turn_id = t.agent_turn_id offset 0) f on true
   cross join lateral (
         select count(*) as n_steps, coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.cached_tokens), 0)::bigint as cached_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens,
                coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s
   order by asked.n;
end $$;

-- The calls of these ids: which turn made each, with which tool, when, and when and how it was answered.
create or replace function state.calls(p_project uuid, p_calls uuid[])
returns table (tool_call_id uuid, agent_turn_id uuid, tool text, asked_at timestamptz, answered_at timestamptz, status text)
language sql stable as $$
  select q.correlation_id, q.agent_turn_id, k.tool, q.created_at, r.created_at, r.status
    from unnest(p_calls) with ordinality as asked (tool_call_id, n)
   cross join lateral (
         select q.*
           from state.execution_edges q
          where q.project_id = p_project and q.correlation_id = asked.tool_call_id and q.primitive = 'command' and q.edge_phase = 'request'
         offset 0) q
    left join lateral (
         select r.created_at, r.status
           from state.execution_edges r
          where r.project_id = p_project and r.correlation_id = asked.tool_call_id and r.primitive = 'report' and r.edge_phase = 'response'
         offset 0) r on true
    left join lateral (
         select k.content ->> 'tool_name' as tool from cardbox.cards k where k.project_id = p_project and k.card_id = q.card_id offset 0) k on true
   order by asked.n
$$;

-- What is recorded of how these turns spent their time, in no order. Of a call that no answer came to, the end is null.
--   source  step · call · ask (people are asked, or have decided: status says which) · state (what the agent does: status)
create or replace function state.times(p_project uuid, p_turns uuid[], p_most integer)
returns table (agent_turn_id uuid, source text, reference uuid, status text, from_at timestamptz, to_at timestamptz, is_child boolean)
language plpgsql stable as $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, m.source, m.reference, m.status, m.from_at, m.to_at, m.is_child
    from unnest(p_turns) as asked (agent_turn_id)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
   cross join lateral (
         select 'step' as source, s.step_id as reference, s.outcome::text as status, s.created_at - s.took_ms * interval '1 ms' as from_at,
                s.created_at as to_at, false as is_child
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id and s.took_ms is not null
          union all
         select 'call', c.tool_call_id, c.status, c.asked_at, c.answered_at,
                exists (select from state.pmo_batches b where b.tool_call_id = c.tool_call_id and b.project_id = p_project offset 0)
           from state.calls(p_project, state.calls_of(p_project, t.output_box_id)) c
          where c.agent_turn_id = t.agent_turn_id
          union all
         select case o.event::text when 'state' then 'state' else 'ask' end, k.tool_call_id, o.status::text, o.created_at, o.created_at, false
           from state.outbox o
           left join lateral (
                select k.tool_call_id from cardbox.cards k where k.project_id = p_project and k.card_id = o.card_id offset 0) k on true
          where o.project_id = p_project and o.agent_turn_id = t.agent_turn_id and o.event in ('state', 'request')) m
   limit p_most;
end $$;
