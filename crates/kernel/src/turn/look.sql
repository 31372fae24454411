-- Turns for people to look at, in the order asked for, each with what it has used so far. Not on the path of a turn.
create or replace function state.summaries(p_project uuid, p_turns uuid[])
returns table (agent_turn_id uuid, agent_id uuid, profile_name text, status text, inbox_status text, agent_status text, n_lost_leases integer,
  session_id uuid, channel text, source_agent_id uuid, parent_agent_turn_id uuid, root_turn_id uuid, parent_step_id uuid, parent_tool_call_id uuid,
  batch_id uuid, task_index integer, recursion_depth integer, trace_id uuid,
  profile_box_id uuid, context_box_id uuid, output_box_id uuid, query_card_ids uuid[], deliverable_card_id uuid, forked_from uuid, started_by text,
  on_behalf_of text, limits jsonb, created_at timestamptz, finished_at timestamptz, n_steps bigint, input_tokens bigint, cached_tokens bigint, output_tokens bigint,
  microdollars bigint)
language sql stable as $$
  select t.agent_turn_id, t.agent_id, a.profile_name, t.status::text, i.status::text, h.status::text, i.n_lost_leases,
         t.session_id, t.channel::text, t.source_agent_id, t.parent_agent_turn_id, t.root_turn_id, t.parent_step_id, t.parent_tool_call_id,
         t.batch_id, t.task_index, t.recursion_depth, t.trace_id,
         t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.deliverable_card_id, f.source_turn_id, t.started_by,
         t.on_behalf_of, t.limits, t.created_at, t.finished_at, s.n_steps, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars
    from unnest(p_turns) with ordinality as asked (agent_turn_id, n)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = t.agent_id offset 0) a on true
    left join lateral (
         select i.* from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = t.agent_turn_id offset 0) i on true
    left join lateral (
         select h.status
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = t.agent_id and h.active_agent_turn_id = t.agent_turn_id
         offset 0) h on true
    left join lateral (
         select f.source_turn_id from state.forks f where f.project_id = p_project and f.agent_turn_id = t.agent_turn_id offset 0) f on true
   cross join lateral (
         select count(*) as n_steps, coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.cached_tokens), 0)::bigint as cached_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens,
                coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s
   order by asked.n
$$;

-- A turn and the turns that it asked for, directly or not: level by level, each level by id. Up to p_most: the deepest are left out.
create or replace function state.turns_below(p_project uuid, p_turn uuid, p_most bigint) returns uuid[]
language plpgsql stable as $$
declare
  v_found uuid[] := '{}';
  v_level uuid[];
begin
  select coalesce(array_agg(t.agent_turn_id), '{}') into v_level
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  while cardinality(v_level) > 0 loop
    v_found := (v_found || v_level)[1:p_most];
    exit when cardinality(v_found) >= p_most;
    select coalesce(array_agg(c.agent_turn_id order by c.agent_turn_id), '{}') into v_level
      from (select c.agent_turn_id
              from unnest(v_level) as asker (agent_turn_id)
             cross join lateral (
                   select c.agent_turn_id
                     from state.turns c
                    where c.project_id = p_project and c.parent_agent_turn_id = asker.agent_turn_id
                   offset 0) c
             limit p_most - cardinality(v_found)) c;
  end loop;
  return v_found;
end $$;
