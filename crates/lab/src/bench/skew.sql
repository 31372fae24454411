-- Projects as they are after a while: agents that have each had a turn, and its cards. Loaded without triggers, by a superuser.
--   $1  the project; null: each agent has one of its own
--   $2  how many agents; $3  how many cards each
with agent as materialized (
  select coalesce($1, bench.id()) as project_id, bench.id() as agent_id, bench.id() as turn_id, bench.id() as context_id,
         bench.id() as output_id, bench.id() as step_id, array(select bench.id() from generate_series(1, $3) where n > 0) as cards
    from generate_series(1, $2) n
), roster as (
  insert into resource.project_agents (project_id, agent_id, worker_target) select project_id, agent_id, 'llm' from agent
), head as (
  insert into state.agent_state_head (project_id, agent_id, worker_target, turn_epoch, claim_token)
  select project_id, agent_id, 'llm', 1, 1 from agent
), card as (
  insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
  select project_id, c, 170, 'agent.thought', 'assistant', decode(md5(c::text) || md5(c::text), 'hex'), decode(md5(c::text), 'hex'),
         to_json(repeat(md5(c::text), 4))
    from agent, unnest(cards) c
), box as (
  insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
  select project_id, context_id, 1, agent_id, turn_id from agent
   union all
  select project_id, output_id, $3 - 1, agent_id, turn_id from agent
), entry as (
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select project_id, case n when 1 then context_id else output_id end, greatest(n - 1, 1), c
    from agent, unnest(cards) with ordinality as c (c, n)
), turn as (
  insert into state.turns (project_id, agent_turn_id, agent_id, context_box_id, output_box_id, status, finished_at, deliverable_card_id,
                           turn_epoch, claim_token, root_turn_id)
  select project_id, turn_id, agent_id, context_id, output_id, 'success', now(), cards[$3], 1, 1, turn_id from agent
), step as (
  insert into state.agent_steps (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq)
  select project_id, turn_id, step_id, agent_id, 1, 1, 'finished', 1, $3 - 1 from agent
), event as (
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, published_at)
  select project_id, turn_id, 'task', turn_id, agent_id, 'success', now() from agent
)
select agent_id from agent
