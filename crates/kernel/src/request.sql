-- People are asked about a call: it waits for them instead of for its handler. Its handler has claimed it.
create or replace function state.ask(p_project uuid, p_call uuid, p_token bigint, p_timeout interval, p_cards cardbox.new_card[])
returns boolean language plpgsql as $$
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  update state.waiting_calls c
     -- The asker's claim ends here: what it reports from now on is refused.
     set status = 'asking', worker_id = null, claim_token = c.claim_token + 1, request_card_id = (p_cards[1]).card_id, decision_card_id = null, deadline_at = now() + p_timeout
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing';
  if not found then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! ask.card
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, 'asked', v_call.step_id, (p_cards[1]).card_id);
  return true;
end $$;

-- It is decided: the call is ready again, and its handler finds the decision with it.
-- outcome  decided · duplicate (the same decision came before) · gone (no call waits for it any more, or another person decided)
create or replace function state.decide(p_project uuid, p_call uuid, p_status text, p_timeout interval, p_cards cardbox.new_card[])
returns table (outcome text, agent_turn_id uuid, target text)
language plpgsql as $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  if not found then
    return query select 'gone'::text, null::uuid, null::text;
    return;
  end if;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  -- Again, now that no other caller is at it.
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call for update;
  if not found or v_call.status <> 'asking' then
    return query select case when v_call.decision_card_id = (p_cards[1]).card_id then 'duplicate' else 'gone' end, v_call.agent_turn_id, null::text;
    return;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! decide.card
  update state.waiting_calls c
     set status = 'pending', decision_card_id = (p_cards[1]).card_id, deadline_at = now() + p_timeout, retry_count = 0
   where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.requests as q (project_id, tool_call_id, agent_turn_id, agent_id, tool_call_card_id, request_card_id, deadline_at, decision,
                                   decision_card_id, decided_by)
  values (p_project, p_call, v_call.agent_turn_id, v_call.agent_id, v_call.tool_call_card_id, v_call.request_card_id, v_call.deadline_at, p_status,
          (p_cards[1]).card_id, coalesce((p_cards[1]).content::json ->> 'by', ''))
      on conflict (project_id, tool_call_id) do update
         set request_card_id = excluded.request_card_id, deadline_at = excluded.deadline_at, decision = excluded.decision,
             decision_card_id = excluded.decision_card_id, decided_by = excluded.decided_by, decided_at = excluded.decided_at;
  --! decide.recorded
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, p_status, v_call.step_id, (p_cards[1]).card_id);
  --! decide.armed
  return query select 'decided'::text, v_call.agent_turn_id, v_call.target::text;
end $$;

-- Requests for people to look at, in the order asked for: open ones, and those that were decided. A call that is asked about again is open.
--   effect  of a tool of the project, as it is now
create or replace function state.show_requests(p_project uuid, p_calls uuid[])
returns table (tool_call_id uuid, agent_turn_id uuid, agent_id uuid, profile_name text, tool text, effect json, arguments_hash text,
  saw_external boolean, title text, request_card_id uuid, request json, asked_at timestamptz, deadline_at timestamptz, decided json)
language sql stable as $$
  select q.tool_call_id, q.agent_turn_id, q.agent_id, a.profile_name, c.tool, t.effect,
         encode(sha256(convert_to(c.arguments, 'UTF8')), 'hex'), state.saw_external(p_project, q.agent_turn_id),
         left(split_part(r.content ->> 'question', chr(10), 1), 120), q.request_card_id, r.content, r.created_at, q.deadline_at,
         case when q.decision is not null then
           json_build_object('decision', q.decision, 'by', q.decided_by, 'at', q.decided_at, 'note', d.content ->> 'note',
                             'card_id', q.decision_card_id)
         end
    from unnest(p_calls) with ordinality as asked (tool_call_id, n)
   cross join lateral (
         select o.tool_call_id, o.agent_turn_id, o.agent_id, o.tool_call_card_id, o.request_card_id, o.deadline_at, null::text as decision,
                null::uuid as decision_card_id, null::text as decided_by, null::timestamptz as decided_at
           from state.waiting_calls o
          where o.project_id = p_project and o.tool_call_id = asked.tool_call_id and o.status = 'asking'
          union all
         select o.tool_call_id, o.agent_turn_id, o.agent_id, o.tool_call_card_id, o.request_card_id, o.deadline_at, o.decision, o.decision_card_id,
                o.decided_by, o.decided_at
           from state.requests o
          where o.project_id = p_project and o.tool_call_id = asked.tool_call_id
            and not exists (select from state.waiting_calls w
                             where w.project_id = p_project and w.tool_call_id = o.tool_call_id and w.status = 'asking'
                            offset 0)
         offset 0) q
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = q.agent_id offset 0) a on true
    left join lateral cardbox.reading(p_project, q.request_card_id, statement_timestamp()) r on true
    left join lateral (
         select s.content ->> 'tool_name' as tool, s.content ->> 'arguments' as arguments
           from cardbox.reading(p_project, q.tool_call_card_id, statement_timestamp()) s
         offset 0) c on true
    left join lateral cardbox.reading(p_project, q.decision_card_id, statement_timestamp()) d on true
    left join lateral (
         select to_json(coalesce(s.content ->> 'effect', 'once')) as effect
           from resource.tools k
          cross join lateral cardbox.reading(p_project, k.tool_card_id, statement_timestamp()) s
          where k.project_id = p_project and k.name = c.tool
         offset 0) t on true
   order by asked.n
$$;
