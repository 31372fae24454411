-- Turns of a project, and what lists show beside them. Every fifth turn is open, and with it come a session, an open and a decided request, a
-- grant, a refusal, an entry of the audit, a key and an artifact. Loaded without triggers, by a superuser.
--   $1  the project; $2  how many turns
with turn as materialized (
  select $1::uuid as project_id, n % 5 = 0 as is_open, now() - random() * interval '1 hour' as at, bench.id() as agent_id, bench.id() as turn_id,
         bench.id() as context_id, bench.id() as output_id, bench.id() as step_id, bench.id() as asked_id, bench.id() as told_id
    from generate_series(1, $2::integer) n
), roster as (
  insert into resource.project_agents (project_id, agent_id, worker_target, profile_name) select project_id, agent_id, 'llm', 'echo' from turn
), head as (
  insert into state.agent_state_head (project_id, agent_id, worker_target) select project_id, agent_id, 'llm' from turn where is_open
), card as (
  insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
  select project_id, c, 20, kind, role, decode(md5(c::text) || md5(c::text), 'hex'), decode(md5(c::text), 'hex'), to_json(repeat(md5(c::text), 4))
    from turn, lateral (values (asked_id, 'task.instruction', 'user'), (told_id, 'task.deliverable', 'assistant')) as c (c, kind, role)
), box as (
  insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
  select project_id, b, 1, agent_id, turn_id from turn, unnest(array[context_id, output_id]) b
), entry as (
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select project_id, context_id, 1, asked_id from turn
   union all
  select project_id, output_id, 1, told_id from turn
), turns as (
  insert into state.turns (project_id, agent_turn_id, agent_id, context_box_id, output_box_id, query_card_ids, status, created_at, finished_at,
                           deliverable_card_id, turn_epoch, claim_token, root_turn_id)
  select project_id, turn_id, agent_id, context_id, output_id, array[asked_id], case when is_open then 'open' else 'success' end, at,
         case when not is_open then at + random() * interval '1 hour' end, case when not is_open then told_id end, 1, 1, turn_id
    from turn
), step as (
  insert into state.agent_steps (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq,
                                 input_tokens, cached_tokens, output_tokens, microdollars)
  select project_id, turn_id, step_id, agent_id, 1, 1, 'finished', 1, 1, 2000 + random() * 50000, random() * 2000, random() * 2000, random() * 90000
    from turn
), inbox as (
  insert into state.agent_inbox (project_id, agent_turn_id, agent_id, status, worker_target)
  select project_id, turn_id, agent_id, 'queued', 'llm' from turn where is_open
), session as (
  insert into state.blackboards (project_id, session_id, messages_box_id, mapreduce_results_box_id)
  select project_id, turn_id, context_id, output_id from turn where is_open
), asking as (
  insert into state.waiting_calls (project_id, tool_call_id, agent_turn_id, agent_id, step_id, target, status, tool_call_card_id, request_card_id,
                                   deadline_at)
  select project_id, turn_id, turn_id, agent_id, step_id, 'llm', 'asking', asked_id, step_id, now() + interval '1 day' from turn where is_open
), decided as (
  insert into state.requests (project_id, tool_call_id, agent_turn_id, agent_id, tool_call_card_id, request_card_id, deadline_at, decision,
                              decision_card_id, decided_by)
  select project_id, output_id, turn_id, agent_id, asked_id, step_id, now(), 'approved', told_id, 'key:bench' from turn where is_open
), granted as (
  insert into state.grants (project_id, grant_id, agent_id, box_id, granted_by, reason)
  select project_id, turn_id, agent_id, output_id, 'key:bench', 'to compare' from turn where is_open
), refused as (
  insert into state.refusals (project_id, refusal_id, agent_id, box_id, tool_suffix, why)
  select project_id, turn_id, agent_id, output_id, 'read', 'forbidden' from turn where is_open
), done as (
  insert into state.audit (project_id, audit_id, actor, action, subject)
  select project_id, turn_id, 'key:bench', 'grant.give', output_id::text from turn where is_open
), key as (
  insert into resource.api_keys (project_id, key_id, name, scope, hash)
  select project_id, turn_id, 'other', 'reader', sha256(uuid_send(turn_id)) from turn where is_open
), blob as (
  insert into cardbox.blobs (project_id, hash, upload_id, size, n_tokens, pieces)
  select project_id, sha256(uuid_send(turn_id)), turn_id, 0, 0, '' from turn where is_open
)
insert into cardbox.artifacts (project_id, path, version, hash, media_type)
select project_id, 'notes/' || turn_id, 1, sha256(uuid_send(turn_id)), 'text/plain' from turn where is_open
