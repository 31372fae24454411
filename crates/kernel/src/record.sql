-- Recorded calls: what an agent elsewhere sent to a model provider, and what was answered.

-- The recorded turn that a request goes on with: the one whose messages so far are the first messages of the request, the longest first. Of several that
-- are the same so far, the one whose last answer the request goes on from. The same request again begins another turn, unless the call had failed.
--   p_tails    digests of the first messages of the request, from all of them down
--   p_follows  for each of these, the digest of what comes next in the request, as of an answer; null: nothing
--   p_state    of what the provider itself remembers and the request builds on: then this alone counts
-- A turn takes calls for a day: then the conversation goes on in a new one, so that history is dropped by its age.
create or replace function state.recording_to_extend(p_project uuid, p_tails bytea[], p_follows bytea[], p_state bytea)
returns table (agent_turn_id uuid, n_messages integer, context_box_id uuid, output_box_id uuid)
language plpgsql stable as $$
#variable_conflict use_column
declare
  v_since    uuid := state.first_id(now() - interval '1 day');
  v_turn     uuid;
  v_messages integer;
  v_tail     bytea;
  v_leads_to bytea;
begin
  if p_state is not null then
    select r.agent_turn_id, r.n_messages into v_turn, v_messages
      from state.recordings r
     where r.state = p_state and r.project_id = p_project and r.agent_turn_id >= v_since
     order by r.agent_turn_id desc
     limit 1;
  else
    for v_place in 1 .. coalesce(cardinality(p_tails), 0) loop
      v_tail := p_tails[v_place];
      v_leads_to := v_tail || coalesce(p_follows[v_place], '');
      select r.agent_turn_id, r.n_messages into v_turn, v_messages
        from state.recordings r
       where r.leads_to = v_leads_to and r.project_id = p_project and r.agent_turn_id >= v_since
       order by r.agent_turn_id desc
       limit 1;
      if v_turn is null and p_follows[v_place] is not null then
        select r.agent_turn_id, r.n_messages into v_turn, v_messages
          from state.recordings r
         where r.tail = v_tail and r.project_id = p_project and r.agent_turn_id >= v_since
         order by r.agent_turn_id desc
         limit 1;
      end if;
      exit when v_turn is not null;
    end loop;
  end if;
  return query
    select v_turn, v_messages, t.context_box_id, t.output_box_id
      from state.turns t
     where t.project_id = p_project and t.agent_turn_id = v_turn;
end $$;

-- The recorded turn that has most of the first messages of a request: of the newest that begin with the same. If there is none, the one whose last
-- answer the request has as its last.
--   p_marks   the mark of each message of the request, as the cards of messages have it: it says what they and all before them are
--   p_answer  digest of the last answer in the request; null: it has none that tells much
create or replace function state.recording_alike(p_project uuid, p_opening bytea, p_marks text[], p_answer bytea)
returns table (agent_turn_id uuid, n_common integer, n_messages integer, query_card_ids uuid[], by_answer boolean)
language plpgsql stable as $$
#variable_conflict use_column
declare
  v_since  uuid := state.first_id(now() - interval '1 day');
  v_turn   record;
  v_least  integer;
  v_most   integer;
  v_middle integer;
  v_mark   text;
begin
  n_common := 0;
  for v_turn in
    select r.agent_turn_id, r.n_messages, r.by_last, t.context_box_id, t.query_card_ids
      from ((select r.agent_turn_id, r.n_messages, false as by_last
               from state.recordings r
              where r.opening = p_opening and r.project_id = p_project and r.agent_turn_id >= v_since
              order by r.agent_turn_id desc
              limit 8)
             union all
            (select r.agent_turn_id, r.n_messages, true
               from state.recordings r
              where r.answer = p_answer and r.project_id = p_project and r.agent_turn_id >= v_since
              order by r.agent_turn_id desc
              limit 1)) r
     cross join lateral (
           select t.context_box_id, t.query_card_ids from state.turns t where t.project_id = p_project and t.agent_turn_id = r.agent_turn_id offset 0) t
     order by r.by_last, r.agent_turn_id desc
  loop
    -- A mark is the same only where all messages before it are.
    v_least := 0;
    v_most := least(v_turn.n_messages, cardinality(p_marks));
    while v_least < v_most loop
      v_middle := (v_least + v_most + 1) / 2;
      select c.metadata ->> 'mark' into v_mark
        from cardbox.places(p_project, v_turn.context_box_id, v_middle, v_middle) p
       cross join lateral (
             select c.metadata from cardbox.cards c where c.project_id = p_project and c.card_id = p.card_id offset 0) c;
      if found and v_mark = p_marks[v_middle] then
        v_least := v_middle;
      else
        v_most := v_middle - 1;
      end if;
    end loop;
    if v_least > n_common or v_turn.by_last and agent_turn_id is null then
      agent_turn_id := v_turn.agent_turn_id;
      n_common := v_least;
      n_messages := v_turn.n_messages;
      query_card_ids := v_turn.query_card_ids;
      by_answer := v_turn.by_last;
    end if;
  end loop;
  if agent_turn_id is not null then
    return next;
  end if;
end $$;

-- Begins a recorded turn. It is never in an inbox, so that no worker can claim it, and it has ended whenever its last call has. Null: it had begun before,
-- and nothing was written.
--   p_turn  {agent_turn_id, agent_id, profile_name, context_box_id, output_box_id, query_card_ids, parent_agent_turn_id?, trace_id?, traceparent?,
--            started_by?, opening, shares_with?, n_common, departs, at?}
--           `at`: when its first call was sent, of a call that was imported; else it is now
create or replace function state.begin_recording(p_project uuid, p_turn jsonb) returns integer
language plpgsql as $$
declare
  v_turn    uuid := p_turn ->> 'agent_turn_id';
  v_agent   uuid := p_turn ->> 'agent_id';
  v_context uuid := p_turn ->> 'context_box_id';
  v_output  uuid := p_turn ->> 'output_box_id';
  v_source  uuid := p_turn ->> 'shares_with';
  v_departs boolean := p_turn ->> 'departs';
  v_n       integer := p_turn ->> 'n_common';
  v_parent  uuid := p_turn ->> 'parent_agent_turn_id';
  v_at      timestamptz := coalesce((p_turn ->> 'at')::timestamptz, now());
  v_box     uuid;
  v_root    uuid;
  v_depth   integer;
  v_held    integer;
begin
  -- Retired from the start: no turn of it can be started.
  insert into resource.project_agents (project_id, agent_id, worker_target, profile_name, retired_at)
  values (p_project, v_agent, 'recorded', p_turn ->> 'profile_name', now())
      on conflict do nothing;
  select t.root_turn_id, t.recursion_depth + 1 into v_root, v_depth
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = v_parent;
  if not found then
    v_parent := null;
  end if;
  insert into state.turns
         (project_id, agent_turn_id, agent_id, status, context_box_id, output_box_id, query_card_ids, parent_agent_turn_id, root_turn_id,
          recursion_depth, trace_id, traceparent, started_by, created_at, finished_at)
  values (p_project, v_turn, v_agent, 'recorded', v_context, v_output,
          array(select q.value::uuid from jsonb_array_elements_text(p_turn -> 'query_card_ids') q), v_parent, coalesce(v_root, v_turn),
          coalesce(v_depth, 0), (p_turn ->> 'trace_id')::uuid, p_turn ->> 'traceparent', p_turn ->> 'started_by', v_at, v_at)
      on conflict do nothing;
  if not found then
    return null;
  end if;
  insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
  values (p_project, v_context, v_n, v_agent, v_turn), (p_project, v_output, 0, v_agent, v_turn);
  if v_source is not null and v_n > 0 then
    select t.context_box_id into strict v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = v_source;
    v_held := cardbox.hold(p_project, '{}', array[v_box]);
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_context, r.place, r.source_box_id, r.from_seq, r.to_seq
      from cardbox.runs(p_project, v_box, 1, v_n) r;
  end if;
  insert into state.recordings (project_id, agent_turn_id, opening, tail, n_messages, departs_from, differs_at)
  values (p_project, v_turn, decode(p_turn ->> 'opening', 'hex'), decode(p_turn ->> 'opening', 'hex'), v_n,
          case when v_departs then v_source end, case when v_departs then v_n + 1 end);
  return v_n;
end $$;

-- Writes a recorded call as a step of its turn. False: the turn has gone on meanwhile, with this call or another one, and nothing was written.
--   p_call      {agent_turn_id, agent_id, step_id, context_box_id, output_box_id, n_before, tail, answer?, state?, request?, n_calls, receipt, usage,
--                at?}; `at`: when its answer came, of a call that was imported; else it is now
--   p_messages  those that are new, for the context box
--   p_answer    for the output box; none: there was no answer
create or replace function state.record_call(p_project uuid, p_call jsonb, p_messages cardbox.new_card[], p_answer cardbox.new_card[]) returns boolean
language plpgsql as $$
declare
  v_turn    uuid := p_call ->> 'agent_turn_id';
  v_step    uuid := p_call ->> 'step_id';
  v_agent   uuid := p_call ->> 'agent_id';
  v_context uuid := p_call ->> 'context_box_id';
  v_output  uuid := p_call ->> 'output_box_id';
  v_before  integer := p_call ->> 'n_before';
  v_new     integer := cardinality(p_messages);
  v_at      timestamptz := coalesce((p_call ->> 'at')::timestamptz, clock_timestamp());
  v_length  bigint;
  v_label   text;
  v_written integer;
begin
  perform from state.recordings r
    where r.project_id = p_project and r.agent_turn_id = v_turn and r.n_messages = v_before
      for no key update;
  if not found then
    return false;
  end if;
  select b.length into strict v_length from cardbox.boxes b where b.project_id = p_project and b.box_id = v_output for no key update;
  insert into state.agent_steps
         (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, n_calls,
          provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported, request, created_at)
  select p_project, v_turn, v_step, v_agent, 0, 0, 'running', v_length + 1, v_length + cardinality(p_answer), (p_call ->> 'n_calls')::integer, u.*,
         decode(p_call ->> 'request', 'hex'), v_at
    from jsonb_to_record(p_call -> 'usage') as u
         (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
          n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
      on conflict do nothing;
  if not found then
    return false;
  end if;
  insert into state.receipts (project_id, agent_turn_id, step_id, receipt) values (p_project, v_turn, v_step, (p_call ->> 'receipt')::json);
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id)
  values (p_project, v_turn, 'step', v_step, v_agent, 'running', 0, v_step);
  -- Its writer was not Waybill.
  v_label := state.label(true);
  v_written := cardbox.put(p_project, p_messages || p_answer);
  if v_new > 0 then
    update cardbox.boxes b set length = v_before + v_new where b.project_id = p_project and b.box_id = v_context;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, v_context, v_before + c.ordinality, c.card_id
      from unnest(p_messages) with ordinality c;
  end if;
  update state.recordings r
     set tail = decode(p_call ->> 'tail', 'hex'), n_messages = v_before + v_new, answer = decode(p_call ->> 'answer', 'hex'),
         state = decode(p_call ->> 'state', 'hex')
   where r.project_id = p_project and r.agent_turn_id = v_turn;
  if cardinality(p_answer) > 0 then
    update cardbox.boxes b set length = v_length + cardinality(p_answer) where b.project_id = p_project and b.box_id = v_output;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, v_output, v_length + c.ordinality, c.card_id
      from unnest(p_answer) with ordinality c;
  end if;
  update state.turns t
     set finished_at = greatest(t.finished_at, v_at), deliverable_card_id = coalesce(p_answer[1].card_id, t.deliverable_card_id)
   where t.project_id = p_project and t.agent_turn_id = v_turn;
  return true;
end $$;
