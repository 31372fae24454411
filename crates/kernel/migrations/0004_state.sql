-- Execution: who runs what, what waits for whom, and what happened. docs/spec.md, L0-1 … L0-18; docs/protocol.md.
-- The transitions are functions beside the Rust that calls them: crates/kernel/src/**/*.sql.
--   live rows     agent_state_head, agent_inbox, waiting_calls, budgets, worker_leases: small, updated, gone when done
--   records       turns, labels, pmo_batches and what belongs to them: inserted, ended once, kept
--   memory        blackboards: one row of pointers per session
--   history       agent_steps, execution_edges, patches, receipts, refusals, outbox: inserted, dropped by partition

create schema state;
create schema parts; -- the partitions of history
grant usage on schema state to waybill_common, waybill_scheduler, waybill_remover;
grant usage on schema cardbox to waybill_scheduler;

-- Words of closed sets, as domains: see cardbox.role.
create domain state.target as text check (value ~ '^[a-z0-9][a-z0-9_-]{0,62}$');
create domain state.channel as text check (value ~ '^[a-z0-9][a-z0-9_-]{0,62}$');
create domain state.head_status as text check (value in ('idle', 'dispatched', 'running', 'suspended'));
create domain state.turn_status as text check (value in ('open', 'success', 'failed', 'canceled', 'timeout', 'recorded'));
create domain state.message_type as text check (value in ('turn', 'tool_result', 'timeout', 'stop'));
create domain state.inbox_status as text check (value in ('queued', 'pending', 'processing', 'deferred'));
create domain state.call_status as text check (value in ('pending', 'processing', 'awaiting'));
create domain state.join_shape as text check (value in ('list', 'one', 'resume'));
create domain state.batch_status as text check (value in ('open', 'success', 'partial', 'failed', 'timeout'));
create domain state.step_outcome as text check (value in ('running', 'suspended', 'finished'));
create domain state.primitive as text check (value in ('enqueue', 'report', 'join', 'command', 'steer'));
create domain state.edge_phase as text check (value in ('request', 'response', 'dropped'));
create domain state.event_status as text
  check (value in ('success', 'failed', 'canceled', 'timeout', 'running', 'suspended', 'idle', 'dispatched'));
create domain state.event as text check (value in ('task', 'step', 'state'));

-- ── what a transition takes ─────────────────────────────────────────────────────────────────────────────────────

-- The right to act on one turn: see docs/protocol.md.
create type state.fence as (
  project_id    uuid,
  agent_id      uuid,
  agent_turn_id uuid,
  turn_epoch    bigint,
  claim_token   bigint
);

-- A turn that is to be dispatched: see turn/enqueue.rs, which says what each means.
create type state.new_turn as (
  agent_turn_id        uuid,
  agent_id             uuid,
  channel              text,
  profile_box_id       uuid,
  context_box_id       uuid,
  context_card_ids     uuid[],
  output_box_id        uuid,
  query_card_ids       uuid[],
  session_id           uuid,
  source_agent_id      uuid,
  parent_agent_turn_id uuid,
  parent_step_id       uuid,
  parent_tool_call_id  uuid,
  batch_id             uuid,
  task_index           integer,
  recursion_depth      integer,
  trace_id             uuid,
  traceparent          text,
  tracestate           text,
  not_before           timestamptz,
  emit_state_event     boolean,
  limits               jsonb,
  shares               integer
);

-- How a turn ends, with its last step: see turn/finish.rs. The last of its cards is the deliverable.
create type state.ending as (
  agent_id      uuid,
  agent_turn_id uuid,
  turn_epoch    bigint,
  claim_token   bigint,
  status        text,
  step_id       uuid,
  receipt       text,
  usage         jsonb,
  seen          bigint,
  card_ids      uuid[]
);

-- ── the roster ──────────────────────────────────────────────────────────────────────────────────────────────────

create table resource.project_agents (
  project_id    uuid        not null,
  agent_id      uuid        not null,
  worker_target state.target        not null,
  profile_name  text,
  -- What it remembers of its turns. None until a caller asks for it, except of those that are here to stay.
  memory_box_id uuid,
  -- Made for one task: it has a head while it has work, and is retired if no caller asked for it until then.
  ephemeral     boolean     not null default false,
  retire_by     timestamptz,
  created_at    timestamptz not null default now(),
  retired_at    timestamptz,
  primary key (project_id, agent_id),
  check (ephemeral or retire_by is null)
);
create index agents_to_retire on resource.project_agents (retire_by) where retire_by is not null and retired_at is null;

create table state.identity_edges (
  project_id      uuid        not null,
  agent_id        uuid        not null,
  action          text        not null check (action in ('created', 'cloned', 'retired')),
  source_agent_id uuid,
  created_at      timestamptz not null default now(),
  primary key (project_id, agent_id, action)
);

-- ── one row per agent: the gate of everything it does ───────────────────────────────────────────────────────────
-- Updated three times a turn and never indexed beyond its key, so that every update stays on its page.

create table state.agent_state_head (
  project_id           uuid    not null,
  agent_id             uuid    not null,
  status               state.head_status    not null default 'idle',
  active_agent_turn_id uuid,
  turn_epoch           bigint  not null default 0,
  claim_token          bigint  not null default 0,
  n_queued             integer not null default 0 check (n_queued >= 0),
  queue_cap            integer not null default 1000,
  worker_target        state.target    not null,
  -- As the roster says.
  ephemeral            boolean not null default false,
  memory_box_id        uuid,
  primary key (project_id, agent_id),
  check ((status = 'idle') = (active_agent_turn_id is null)),
  constraint queue_is_full check (n_queued <= queue_cap)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- ── turns: one delivery each ────────────────────────────────────────────────────────────────────────────────────

create table state.turns (
  project_id           uuid        not null,
  agent_turn_id        uuid        not null,
  agent_id             uuid        not null,
  channel              state.channel        not null default 'public',
  status               state.turn_status        not null default 'open',
  profile_box_id       uuid,
  context_box_id       uuid        not null,
  output_box_id        uuid        not null,
  query_card_ids       uuid[]      not null default '{}',
  -- What it was told while it ran, in its output box too.
  steer_card_ids       uuid[]      not null default '{}',
  session_id           uuid,
  source_agent_id      uuid,
  parent_agent_turn_id uuid,
  -- The turn at the top of its tree: itself, where no turn asked for it.
  root_turn_id         uuid        not null,
  parent_step_id       uuid,
  parent_tool_call_id  uuid,
  batch_id             uuid,
  task_index           integer,
  recursion_depth      integer     not null default 0,
  trace_id             uuid,
  traceparent          text,
  tracestate           text,
  emit_state_event     boolean     not null default false,
  -- Who had it started, and for which of their users. Children have both from their parent.
  started_by           text,
  on_behalf_of         text,
  created_at           timestamptz not null default now(),
  -- What it was given to spend, where it has limits: {steps?, tokens?, microdollars?, deadline_at?}. What is left of it is in state.budgets.
  limits               jsonb,
  -- The epoch at which it was dispatched, where that was done when it was enqueued: what a replay is answered with.
  dispatched_epoch     bigint,
  -- Of the end, and the fence under which it came.
  finished_at          timestamptz,
  deliverable_card_id  uuid,
  turn_epoch           bigint,
  claim_token          bigint,
  primary key (project_id, agent_turn_id),
  check (status = 'recorded' or (status = 'open') = (deliverable_card_id is null)),
  check ((batch_id is null) = (task_index is null))
) with (fillfactor = 70);
-- The project too: without it the planner may read all turns of a project to find an agent's.
create index turns_by_agent on state.turns (agent_id, project_id, agent_turn_id);
create index turns_by_session on state.turns (session_id, project_id, agent_turn_id) where session_id is not null;
-- A whole tree, below its root. A turn that stands alone is not in it.
create index turns_by_root on state.turns (root_turn_id, project_id, agent_turn_id) where root_turn_id <> agent_turn_id;

-- What a caller files its turns under: for each name one value. A turn without labels has no row here.
create table state.labels (
  project_id    uuid             not null,
  name          text collate "C" not null check (name ~ '^[a-z0-9_.-]{1,64}$'),
  value         text collate "C" not null check (length(value) between 1 and 200),
  agent_turn_id uuid             not null,
  primary key (project_id, name, value, agent_turn_id)
);
-- With all it has: else a plan may read the labels of a whole project to find a turn's without their rows.
create index labels_of_turn on state.labels (agent_turn_id, project_id, name, value);

-- ── the inbox: one row per turn that is not over ────────────────────────────────────────────────────────────────
--   queued      behind another turn of its agent
--   pending     ready: a worker may claim it
--   processing  claimed, by worker_id under claim_token
--   deferred    waits for calls, or until next_retry_at

create table state.agent_inbox (
  project_id     uuid        not null,
  agent_turn_id  uuid        not null,
  agent_id       uuid        not null,
  inbox_seq      bigint      not null generated always as identity,
  message_type   state.message_type        not null default 'turn',
  status         state.inbox_status        not null,
  worker_target  state.target        not null,
  turn_epoch     bigint,
  claim_token    bigint,
  worker_id      uuid,
  silent_by      timestamptz,
  next_retry_at  timestamptz,
  retry_count    integer     not null default 0,
  n_lost_leases  integer     not null default 0,
  stop_asked     boolean     not null default false,
  stop_reason    text,
  -- Moves with every arming; dispatched_at never does.
  armed_at       timestamptz not null default now(),
  dispatched_at  timestamptz,
  created_at     timestamptz not null default now(),
  shard          smallint    not null generated always as ((uuid_hash(agent_id) & 15)::smallint) stored,
  primary key (project_id, agent_turn_id),
  check ((status = 'processing') = (worker_id is not null)),
  check (next_retry_at is null or status = 'deferred')
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index inbox_ready on state.agent_inbox (worker_target, project_id, inbox_seq) where status = 'pending';
create index inbox_in_flight on state.agent_inbox (project_id) where status = 'processing';
create index inbox_held on state.agent_inbox (worker_id, silent_by) where worker_id is not null;
create index inbox_queue on state.agent_inbox (agent_id, inbox_seq) where status = 'queued';
create index inbox_due on state.agent_inbox (shard, next_retry_at) where next_retry_at is not null;
create index inbox_later on state.agent_inbox (agent_id, project_id) where next_retry_at is not null;

-- ── what a turn may still spend: one row per open turn that has a limit ─────────────────────────────────────────
-- Spent in the transaction of the step. What a child may spend is taken from its parent's, and the rest comes back when it ends.
-- Locked after every head, a child's before its parent's, and before a session's memory.

create table state.budgets (
  project_id           uuid        not null,
  agent_turn_id        uuid        not null,
  -- Whose it was taken from.
  parent_agent_turn_id uuid,
  -- None: no limit.
  steps_left           integer,
  tokens_left          bigint,
  microdollars_left    bigint,
  -- For steps of its own, taken or not: its limit, less what its children hold or have spent. Less what is left, it is what its steps used.
  own_steps            integer,
  own_tokens           bigint,
  own_microdollars     bigint,
  expires_at           timestamptz,
  primary key (project_id, agent_turn_id)
) with (fillfactor = 50);

-- ── what a project has spent, by month, counted in slots so that steps do not wait for each other ───────────────

create table state.spending (
  project_id   uuid     not null,
  month        date     not null,
  slot         smallint not null,
  microdollars bigint   not null,
  primary key (project_id, month, slot)
) with (fillfactor = 50);

-- ── calls that a turn waits for; also the queue of commands (L0-13) ─────────────────────────────────────────────
--   pending     ready: its target may claim it
--   processing  claimed, by worker_id under claim_token
--   awaiting    its handler has taken it over for good, as a batch
-- A call that is answered is gone: what is here is what is waited for.

create table state.waiting_calls (
  project_id        uuid        not null,
  tool_call_id      uuid        not null,
  agent_turn_id     uuid        not null,
  agent_id          uuid        not null,
  step_id           uuid        not null,
  call_seq          bigint      not null generated always as identity,
  target            state.target        not null,
  status            state.call_status        not null default 'pending',
  tool_call_card_id uuid        not null,
  -- It may not be done twice: if the handler that claimed it was lost, it is not known whether it was done.
  once              boolean     not null default false,
  deadline_at       timestamptz not null,
  claim_token       bigint      not null default 0,
  worker_id         uuid,
  -- How often the process that had it was lost, and how many attempts failed.
  n_lost_leases     integer     not null default 0,
  retry_count       integer     not null default 0,
  created_at        timestamptz not null default now(),
  shard             smallint    not null generated always as ((uuid_hash(agent_id) & 15)::smallint) stored,
  primary key (project_id, tool_call_id),
  check ((status = 'processing') = (worker_id is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index calls_of_turn on state.waiting_calls (agent_turn_id, project_id);
create index calls_ready on state.waiting_calls (target, project_id, call_seq) where status = 'pending';
create index calls_in_flight on state.waiting_calls (project_id, tool_call_id) where status = 'processing';
create index calls_held on state.waiting_calls (worker_id) where worker_id is not null;
create index calls_due on state.waiting_calls (shard, deadline_at);

-- ── batches of children, counted down in slots ──────────────────────────────────────────────────────────────────

create table state.pmo_batches (
  project_id           uuid        not null,
  batch_id             uuid        not null,
  parent_agent_turn_id uuid        not null,
  parent_agent_id      uuid        not null,
  tool_call_id         uuid        not null,
  status               state.batch_status        not null default 'open',
  -- A call may take several batches, one after the other.
  stage                smallint    not null default 0,
  -- What its end gives: the list of results, the one result, or the call back to its handler.
  joins_as             state.join_shape not null default 'list',
  -- The deliverables in task order, where they are too many to list.
  results_box_id       uuid,
  fail_fast            boolean     not null default false,
  n_tasks              integer     not null check (n_tasks > 0),
  open_slots           integer     not null check (open_slots >= 0),
  deadline_at          timestamptz not null,
  created_at           timestamptz not null default now(),
  closed_at            timestamptz,
  -- Closed before its children were over: they are still to be stopped.
  stopping             boolean     not null default false,
  shard                smallint    not null generated always as ((uuid_hash(batch_id) & 15)::smallint) stored,
  primary key (project_id, batch_id),
  check ((status = 'open') = (closed_at is null))
) with (fillfactor = 70);
create unique index batches_by_call on state.pmo_batches (tool_call_id, project_id, stage);
create index batches_due on state.pmo_batches (shard, deadline_at) where closed_at is null;
create index batches_stopping on state.pmo_batches (shard) where stopping;

-- Gone once the batch has ended.
create table state.pmo_batch_slots (
  project_id uuid     not null,
  batch_id   uuid     not null,
  slot       smallint not null,
  remaining  integer  not null check (remaining >= 0),
  primary key (project_id, batch_id, slot)
) with (fillfactor = 50);

create table state.pmo_batch_tasks (
  project_id          uuid    not null,
  batch_id            uuid    not null,
  task_index          integer not null,
  agent_id            uuid    not null,
  agent_turn_id       uuid    not null,
  status              state.turn_status    not null default 'open',
  deliverable_card_id uuid,
  output_box_id       uuid,
  -- What the output box held when the child ended: what its parent may read.
  output_length       bigint,
  -- Why it could not be dispatched.
  error               text,
  primary key (project_id, batch_id, task_index)
) with (fillfactor = 70);

-- ── sessions: what is remembered, as pointers (CX-9, CX-10) ─────────────────────────────────────────────────────
-- Cards and boxes are written once; what changes is where these point. Each is compared before it is set.

create table state.blackboards (
  project_id               uuid        not null,
  session_id               uuid        not null,
  -- Who opened it: for other keys and users it is not there. Null: no key or user, but a person with the database.
  owner                    text        check (length(owner) <= 1000),
  title                    text        check (length(title) <= 300),
  labels                   text[]      not null default '{}' check (cardinality(labels) <= 32),
  messages_box_id          uuid        not null,
  todo_card_id             uuid,
  compression_card_id      uuid,
  mapreduce_results_box_id uuid        not null,
  created_at               timestamptz not null default now(),
  -- No turn begins in it after this.
  ended_at                 timestamptz,
  primary key (project_id, session_id)
) with (fillfactor = 70);
create index blackboards_by_owner on state.blackboards (owner, project_id, session_id) where owner is not null;

-- Sessions that were forgotten. None of them is opened again, so that no other caller gets what their turns still say.
create table state.forgotten_sessions (
  project_id   uuid        not null,
  session_id   uuid        not null,
  forgotten_at timestamptz not null default now(),
  primary key (project_id, session_id)
);

-- ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────
-- Belongs to no project, so only the scheduler's functions can reach it.

create table state.worker_leases (
  worker_id     uuid        not null primary key,
  worker_target state.target        not null,
  started_at    timestamptz not null default now(),
  renewed_at    timestamptz not null default now(),
  expires_at    timestamptz not null
) with (fillfactor = 50);

-- When a process last swept. A gap means that leases may have lapsed while no worker could renew them.
create table state.sweep_clock (
  one          boolean     not null primary key default true check (one),
  beat_at      timestamptz not null default now(),
  steady_since timestamptz not null default now()
) with (fillfactor = 50);
insert into state.sweep_clock default values;

-- Who publishes which part of the outbox: one owner each, whose lease holds. Belongs to no project.
create table state.relay_shards (
  shard          smallint    not null primary key check (shard between 0 and 15),
  worker_id      uuid,
  -- The stream that is published to, known by when it was made.
  stream_made_at timestamptz,
  -- Events of a lost stream that are published again: those after this number and up to the next one. Equal: none.
  replay_after   bigint      not null default 0,
  replay_upto    bigint      not null default 0
) with (fillfactor = 50);
insert into state.relay_shards (shard) select generate_series(0, 15);

-- Rows whose sweep failed again and again stand aside until a person looks.
create table state.quarantine (
  project_id     uuid        not null,
  sweep          text        not null,
  subject_id     uuid        not null,
  n_failures     integer     not null default 1,
  last_error     text        not null,
  first_at       timestamptz not null default now(),
  last_at        timestamptz not null default now(),
  quarantined_at timestamptz,
  primary key (project_id, sweep, subject_id)
);
create index quarantined on state.quarantine (subject_id, sweep) where quarantined_at is not null;

-- A caller's own key, and the answer its request got.
create table state.idempotency (
  project_id   uuid        not null,
  key          text        not null check (length(key) between 1 and 255),
  request_hash bytea       not null check (octet_length(request_hash) = 32),
  answer       json,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null,
  primary key (project_id, key)
);
create index idempotency_ended on state.idempotency (expires_at);

-- ── history, in partitions cut on ids that carry their time (v7) ────────────────────────────────────────────────

create table state.agent_steps (
  project_id    uuid        not null,
  agent_turn_id uuid        not null,
  step_id       uuid        not null,
  agent_id      uuid        not null,
  turn_epoch    bigint      not null,
  claim_token   bigint      not null,
  outcome       state.step_outcome        not null,
  -- The places in the output box of what it wrote.
  from_seq      bigint,
  to_seq        bigint,
  n_calls       integer     not null default 0,
  -- Where a model was asked: which, how much it read and wrote, what that cost, how long it took.
  provider      text,
  model         text,
  input_tokens  integer,
  cached_tokens integer,
  output_tokens integer,
  microdollars  bigint,
  took_ms       integer,
  -- How often it was asked until it answered; and whether a lost worker may have asked before.
  n_asked       smallint,
  asked_again   boolean,
  -- Why the provider found less in its prompt cache than it could, in its own words.
  cache_miss    jsonb check (pg_column_size(cache_miss) <= 2000),
  -- A worker reported these numbers over HTTP; Waybill did not make the call.
  reported      boolean,
  -- Of a recorded call with a whole answer: what its request was, as a digest with the key of the project. A replay finds the call by it.
  request       bytea       check (octet_length(request) = 16),
  created_at    timestamptz not null default now(),
  primary key (project_id, agent_turn_id, step_id)
) partition by range (agent_turn_id);
create index agent_steps_by_request on state.agent_steps (request, project_id, step_id) where request is not null;

create table state.execution_edges (
  project_id      uuid        not null,
  correlation_id  uuid        not null,
  primitive       state.primitive        not null,
  edge_phase      state.edge_phase        not null,
  agent_turn_id   uuid        not null,
  agent_id        uuid        not null,
  source_agent_id uuid,
  turn_epoch      bigint,
  card_id         uuid,
  status          text,
  recursion_depth integer     not null default 0,
  trace_id        uuid,
  created_at      timestamptz not null default now(),
  primary key (project_id, correlation_id, primitive, edge_phase)
) partition by range (correlation_id);

-- All edges. Those of an enqueue are columns of the turn.
create view state.edges with (security_invoker = true) as
  select e.project_id, e.correlation_id, e.primitive::text, e.edge_phase::text, e.agent_turn_id, e.agent_id, e.source_agent_id, e.turn_epoch,
         e.card_id, e.status, e.recursion_depth, e.trace_id, e.created_at
    from state.execution_edges e
   union all
  select t.project_id, t.agent_turn_id, 'enqueue', 'request', t.agent_turn_id, t.agent_id, t.source_agent_id, t.dispatched_epoch,
         t.query_card_ids[1], null, t.recursion_depth, t.trace_id, t.created_at
    from state.turns t
   union all
  select t.project_id, t.agent_turn_id, 'enqueue', 'response', t.agent_turn_id, t.agent_id, null, t.turn_epoch, t.deliverable_card_id,
         t.status::text, t.recursion_depth, t.trace_id, t.finished_at
    from state.turns t
   where t.status <> 'open';

-- What changed a session's memory, by the step that did it: a patch is written once, and who changed what can be read.
create table state.patches (
  project_id uuid        not null,
  session_id uuid        not null,
  step_id    uuid        not null,
  -- Pointers only.
  patch      jsonb       not null,
  created_at timestamptz not null default now(),
  primary key (project_id, session_id, step_id)
) partition by range (step_id);

-- What each model call saw, as pointers and hashes (CX-11). json: the text is kept as it was written.
create table state.receipts (
  project_id    uuid        not null,
  agent_turn_id uuid        not null,
  step_id       uuid        not null,
  receipt       json        not null,
  created_at    timestamptz not null default now(),
  primary key (project_id, agent_turn_id, step_id)
) partition by range (agent_turn_id);

-- What was asked for and refused. Written in a transaction of its own: what was to be done with it is not.
create table state.refusals (
  project_id  uuid        not null,
  refusal_id  uuid        not null,
  agent_id    uuid        not null,
  box_id      uuid        not null,
  tool_suffix text        not null,
  why         text        not null check (why in ('not_found', 'forbidden')),
  created_at  timestamptz not null default now(),
  primary key (project_id, refusal_id)
) partition by range (refusal_id);

create sequence state.outbox_seq;
-- Taken while the head is locked: the order of an agent's events. Never the order of commits across agents.
create table state.outbox (
  project_id    uuid        not null,
  agent_turn_id uuid        not null,
  event         state.event        not null,
  -- The turn of a task event, so that there is one; the step of a step event; of a state event, any.
  event_id      uuid        not null,
  outbox_seq    bigint      not null default nextval('state.outbox_seq'),
  agent_id      uuid        not null,
  status        state.event_status        not null,
  turn_epoch    bigint,
  step_id       uuid,
  card_id       uuid,
  created_at    timestamptz not null default now(),
  published_at  timestamptz,
  shard         smallint    not null generated always as ((uuid_hash(agent_id) & 15)::smallint) stored,
  primary key (project_id, agent_turn_id, event, event_id)
) partition by range (agent_turn_id);
create index outbox_unpublished on state.outbox (shard, outbox_seq) where published_at is null;
-- For telling everything again, when the stream was lost. Not for what is unpublished: a plan that read that here would pass over all history.
create index outbox_order on state.outbox (shard, outbox_seq) where published_at is not null;
-- For those who watch a project. Every number is above zero, and only a statement that says so can use it: one that looks for the events of a turn
-- would pass over all history here.
create index outbox_by_project on state.outbox (project_id, outbox_seq) where outbox_seq > 0;

-- ── one project at a time ───────────────────────────────────────────────────────────────────────────────────────

do $$
declare
  t text;
begin
  foreach t in array array['resource.project_agents', 'state.identity_edges', 'state.agent_state_head', 'state.turns', 'state.labels',
                           'state.agent_inbox', 'state.waiting_calls', 'state.budgets', 'state.spending', 'state.pmo_batches', 'state.pmo_batch_slots',
                           'state.pmo_batch_tasks', 'state.quarantine', 'state.idempotency', 'state.agent_steps',
                           'state.execution_edges', 'state.patches', 'state.receipts', 'state.refusals', 'state.blackboards', 'state.forgotten_sessions',
                           'state.outbox'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
  -- What the scheduler's functions cross projects for. Pointers only: no card, no box, no text of a user.
  foreach t in array array['state.agent_state_head', 'state.agent_inbox', 'state.waiting_calls', 'state.pmo_batches',
                           'state.turns', 'state.quarantine', 'state.idempotency', 'state.outbox'] loop
    execute format('create policy scheduler on %s to waybill_scheduler using (true)', t);
  end loop;
end $$;

grant select, insert, update, delete on state.agent_state_head, state.agent_inbox, state.waiting_calls, state.budgets to waybill_common;
grant select, insert, update on state.pmo_batches, state.pmo_batch_tasks, state.spending to waybill_common;
grant select, insert, update, delete on state.pmo_batch_slots to waybill_common;
grant select, insert, update, delete on state.quarantine, state.idempotency to waybill_common;
grant select on state.edges to waybill_common;
grant select, insert on state.turns, state.agent_steps, state.execution_edges, state.receipts, state.refusals, state.identity_edges
  to waybill_common;
grant select, insert on state.patches, state.labels to waybill_common;
grant select, insert, delete on state.blackboards to waybill_common;
grant select, insert on state.forgotten_sessions to waybill_common;
grant update (title, labels, messages_box_id, todo_card_id, compression_card_id, mapreduce_results_box_id, ended_at) on state.blackboards
  to waybill_common;
grant update (status, steer_card_ids, limits, finished_at, deliverable_card_id, turn_epoch, claim_token) on state.turns to waybill_common;
grant select, insert on state.outbox to waybill_common;
grant usage on sequence state.outbox_seq to waybill_common;
grant select, insert on resource.project_agents to waybill_common;
grant update (memory_box_id, retire_by, retired_at) on resource.project_agents to waybill_common;

grant select on state.agent_state_head, state.waiting_calls to waybill_scheduler;
-- All but why a turn is to stop: that is a user's text.
grant select (project_id, agent_turn_id, agent_id, inbox_seq, message_type, status, worker_target, turn_epoch, claim_token, worker_id,
              silent_by, next_retry_at, retry_count, n_lost_leases, stop_asked, shard) on state.agent_inbox to waybill_scheduler;
grant update (status, claim_token) on state.agent_state_head to waybill_scheduler;
grant update (status, claim_token, worker_id, silent_by) on state.agent_inbox to waybill_scheduler;
grant update (status, claim_token, worker_id) on state.waiting_calls to waybill_scheduler;
grant select (project_id, batch_id, status, deadline_at, closed_at, stopping, shard) on state.pmo_batches to waybill_scheduler;
grant select (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
              parent_agent_turn_id, root_turn_id, parent_step_id, batch_id, recursion_depth, trace_id, traceparent, tracestate, emit_state_event)
   on state.turns to waybill_scheduler;
grant select, insert, update (published_at) on state.outbox to waybill_scheduler;
grant usage, select on sequence state.outbox_seq to waybill_scheduler;
grant select, update on state.relay_shards to waybill_scheduler;
grant select, insert, update on state.quarantine to waybill_scheduler;
grant select (project_id, expires_at), delete on state.idempotency to waybill_scheduler;
grant select, insert, update, delete on state.worker_leases to waybill_scheduler;
grant select, update on state.sweep_clock to waybill_scheduler;
alter table state.worker_leases enable row level security;
alter table state.worker_leases force row level security;
create policy scheduler on state.worker_leases to waybill_scheduler using (true);
alter table state.sweep_clock enable row level security;
alter table state.sweep_clock force row level security;
create policy scheduler on state.sweep_clock to waybill_scheduler using (true);
alter table state.relay_shards enable row level security;
alter table state.relay_shards force row level security;
create policy scheduler on state.relay_shards to waybill_scheduler using (true);
create policy remover on state.relay_shards for select to waybill_remover using (true);

-- History is not rewritten, by any role. Whole partitions are dropped.
create trigger fixed before update on state.agent_steps for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.agent_steps for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger fixed before update on state.execution_edges for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.execution_edges for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger fixed before update on state.patches for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.patches for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger fixed before update on state.receipts for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.receipts for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger fixed before update on state.refusals for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.refusals for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger fixed before update on state.identity_edges for each row execute function cardbox.refuse('history is append-only');
create trigger keep before delete on state.identity_edges for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('history is append-only');
create trigger once before update on state.turns for each row when (old.status <> 'open' and (old.status <> 'recorded' or new.status <> 'recorded'))
  execute function cardbox.refuse('a turn ends once');
