-- What people read of a text: of a recorded message, which is raw JSON, its first text.
create or replace function state.said(p_text text, p_type text) returns text
language sql immutable as $$
  select case when p_type <> 'wire.message' then p_text
              else replace(replace(replace(substring(p_text from '(?:^|"(?:text|content)"\s*:\s*)"((?:[^"\\]|\\.){1,250})'), '\n', E'\n'), '\"', '"'), '\\', '\') end
$$;

-- The first line of what a card says. Null: it says nothing that is a text, or so much that a list would take long to read it.
create or replace function state.title(p_content json, p_type text) returns text
language sql immutable as $$
  select case when pg_column_size(p_content) > 65536 then null
              else nullif(left(split_part(ltrim(case json_typeof(p_content) when 'string' then state.said(p_content #>> '{}', p_type)
                                                                            when 'object' then p_content ->> 'user_requirement' end,
                                                E' \t\r\n'), E'\n', 1), 120), '') end
$$;

-- Why a turn ended as it did: what ending_card of turn/mod.rs writes.
create or replace function state.reason(p_content json) returns text
language sql immutable as $$
  select case when pg_column_size(p_content) <= 65536 and json_typeof(p_content) = 'object' then left(p_content ->> 'reason', 500) end
$$;

-- The calls that a turn waits for, and for whom each of them does: a person, a child, or whatever answers a tool.
create or replace function state.waits(p_project uuid, p_turn uuid) returns table (call_seq bigint, waiting_for jsonb)
language sql stable as $$
  select c.call_seq,
         jsonb_build_object('kind', case c.status::text when 'asking' then 'person' when 'awaiting' then 'child' else 'tool' end,
                            'name', k.name, 'since', coalesce(r.created_at, c.created_at))
    from (select c.* from state.waiting_calls c where c.agent_turn_id = p_turn and c.project_id = p_project offset 0) c
    left join lateral (
         select k.content ->> 'tool_name' as name
           from cardbox.cards k
          where k.project_id = p_project and k.card_id = c.tool_call_card_id
         offset 0) k on true
    left join lateral (
         select r.created_at
           from cardbox.cards r
          where r.project_id = p_project and r.card_id = c.request_card_id and c.status = 'asking'
         offset 0) r on true
$$;

-- Turns for people to look at, in the order asked for, each with what it has used so far. Not on the path of a turn.
create or replace function state.summaries(p_project uuid, p_turns uuid[])
returns table (agent_turn_id uuid, agent_id uuid, profile_name text, title text, status text, reason text, waiting_for jsonb, inbox_status text,
  agent_status text, n_lost_leases integer, session_id uuid, channel text, labels jsonb, source_agent_id uuid, parent_agent_turn_id uuid,
  root_turn_id uuid, n_below bigint, parent_step_id uuid, parent_tool_call_id uuid, batch_id uuid, task_index integer, recursion_depth integer,
  trace_id uuid, profile_box_id uuid, context_box_id uuid, output_box_id uuid, query_card_ids uuid[], deliverable_card_id uuid, external boolean,
  forked_from uuid, started_by text, on_behalf_of text, limits jsonb, created_at timestamptz, finished_at timestamptz, models text[],
  n_steps bigint, input_tokens bigint, cached_tokens bigint, output_tokens bigint, microdollars bigint)
language plpgsql stable as $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, t.agent_id, a.profile_name, q.title, t.status::text, coalesce(d.reason, i.stop_reason), w.waiting_for, i.status::text,
         h.status::text, i.n_lost_leases, t.session_id, t.channel::text, l.labels, t.source_agent_id, t.parent_agent_turn_id,
         t.root_turn_id, b.n_below, t.parent_step_id, t.parent_tool_call_id, t.batch_id, t.task_index, t.recursion_depth,
         t.trace_id, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.deliverable_card_id,
         -- Its boxes carry whether what it was handed, was answered or wrote came from outside.
         coalesce((select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.context_box_id)
                  or (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id), false),
         coalesce(f.source_turn_id, e.departs_from), t.started_by, t.on_behalf_of, t.limits, t.created_at, t.finished_at, s.models,
         s.n_steps, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars
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
    left join lateral (
         select r.departs_from from state.recordings r where r.project_id = p_project and r.agent_turn_id = t.agent_turn_id offset 0) e on true
    left join lateral (select state.title(c.content, c.type) as title from cardbox.reading(p_project, t.query_card_ids[1], statement_timestamp()) c) q on true
    left join lateral (
         select state.reason(c.content) as reason
           from cardbox.reading(p_project, case when t.status not in ('open', 'success') then t.deliverable_card_id end,
                                statement_timestamp()) c) d on true
   cross join lateral (
         select case i.status::text
                  when 'queued' then jsonb_build_object('kind', 'queue', 'since', i.created_at)
                  when 'pending' then jsonb_build_object('kind', 'worker', 'name', i.worker_target, 'since', i.armed_at)
                  when 'deferred' then case
                    when i.next_retry_at is not null then jsonb_build_object('kind', 'retry', 'since', i.armed_at)
                    else (select c.waiting_for
                            from state.waits(p_project, t.agent_turn_id) c
                           order by c.waiting_for ->> 'kind' <> 'person', c.call_seq
                           limit 1) end
                end as waiting_for) w
   cross join lateral (
         select coalesce(jsonb_object_agg(l.name, l.value), '{}') as labels
           from state.labels l
          where l.agent_turn_id = t.agent_turn_id and l.project_id = p_project) l
   cross join lateral (
         select case when t.root_turn_id = t.agent_turn_id then (
                  select count(*)
                    from (select from state.turns c
                           where c.root_turn_id = t.agent_turn_id and c.project_id = p_project and c.root_turn_id <> c.agent_turn_id
                           limit 1000) c) end as n_below) b
   cross join lateral (
         select count(*) as n_steps, coalesce(array_agg(distinct s.model) filter (where s.model is not null), '{}') as models,
                coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.cached_tokens), 0)::bigint as cached_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens,
                coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s
   order by asked.n;
end $$;

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
