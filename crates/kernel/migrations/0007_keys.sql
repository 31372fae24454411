-- Who may ask over HTTP, what was managed by whom, and turns that were run again with something changed. docs/spec.md, SE-1, SE-2, NX-6.

create domain resource.scope as text check (value in ('admin', 'operator', 'worker', 'tool', 'reader', 'approver', 'auditor', 'developer', 'recorder'));

-- A key is shown once, when it is made; what is kept cannot be turned back into it.
create table resource.api_keys (
  project_id uuid           not null,
  key_id     uuid           not null,
  name       text           not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  scope      resource.scope not null,
  -- What it is for, beside its scope: targets, paths, profiles, external.
  bounds     jsonb          not null default '{}',
  hash       bytea          not null check (octet_length(hash) = 32),
  created_at timestamptz    not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  primary key (project_id, key_id)
);
-- A request names its key before the project is known.
create unique index api_keys_by_id on resource.api_keys (key_id);
create index api_keys_by_name on resource.api_keys (name, project_id);

-- A person in a browser: with the rights of a key, for as long as both last, or of an identity of the provider, with the rights that it had at login, in
-- each of its projects. The cookie has the secret; what is kept cannot be turned back into it.
create table resource.browser_sessions (
  project_id uuid           not null,
  hash       bytea          not null check (octet_length(hash) = 32),
  key_id     uuid,
  actor      text           check (actor <> ''),
  scope      resource.scope,
  created_at timestamptz    not null default now(),
  expires_at timestamptz    not null,
  primary key (project_id, hash),
  check ((key_id is null) = (actor is not null) and (key_id is null) = (scope is not null)),
  check (expires_at <= created_at + interval '12 hours')
);
-- A request has its secret before the project is known.
create index browser_sessions_by_hash on resource.browser_sessions (hash);
create index browser_sessions_ended on resource.browser_sessions (expires_at);

-- What was managed: resources, agents, keys, grants, erasures, stops. Never changed.
create table state.audit (
  project_id uuid        not null,
  audit_id   uuid        not null,
  -- `key:NAME`, or a person with the database: `cli:USER`.
  actor      text        not null check (actor <> ''),
  action     text        not null check (action <> ''),
  subject    text        not null,
  detail     jsonb       not null default '{}',
  -- As the database knows it: which login wrote this, and from where. Over HTTP, where the request came from.
  db_role    text        not null default session_user,
  address    text                 default coalesce(nullif(current_setting('waybill.address', true), ''), host(inet_client_addr())),
  created_at timestamptz not null default now(),
  primary key (project_id, audit_id)
);

-- A turn that does a recorded one again from a step on. Its tools answer as they did then, or run again.
create table state.forks (
  project_id     uuid        not null,
  agent_turn_id  uuid        not null,
  source_turn_id uuid        not null,
  -- The first step that is done again; none: the whole turn.
  source_step_id uuid,
  live_tools     boolean     not null,
  -- What was changed, and by whom.
  change         jsonb       not null,
  forked_by      text                 default nullif(current_setting('waybill.actor', true), ''),
  created_at     timestamptz not null default now(),
  primary key (project_id, agent_turn_id)
);
create index forks_by_source on state.forks (source_turn_id, project_id, agent_turn_id);

-- Who was asked by whom: the tree of a run.
create index turns_by_parent on state.turns (parent_agent_turn_id, project_id) where parent_agent_turn_id is not null;

do $$
declare
  t text;
begin
  foreach t in array array['resource.api_keys', 'resource.browser_sessions', 'state.audit', 'state.forks'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
end $$;

grant select, insert on state.forks to waybill_common;
-- Only the API and the commands of an operator. A hash can be written and compared, and not read.
grant select, insert on state.audit to waybill_service;
grant insert, select (project_id, key_id, name, scope, bounds, created_at, expires_at, revoked_at), update (expires_at, revoked_at)
  on resource.api_keys to waybill_service;
grant insert, select (project_id, key_id, actor, scope, created_at, expires_at) on resource.browser_sessions to waybill_service;

create trigger fixed before update on state.audit for each row execute function cardbox.refuse('what was done is on record');
create trigger keep before delete on state.audit for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('what was done is on record');
create trigger fixed before update on state.forks for each row execute function cardbox.refuse('what was changed is on record');
create trigger keep before delete on state.forks for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('what was changed is on record');
create trigger once before update on resource.api_keys for each row when (old.revoked_at is not null)
  execute function cardbox.refuse('a key that was revoked stays revoked');

-- For looking up a key: which project it belongs to, and whether it is the one.
create policy scheduler on resource.api_keys for select to waybill_scheduler using (true);
grant select (project_id, key_id, name, scope, bounds, hash, expires_at, revoked_at) on resource.api_keys to waybill_scheduler;
create policy scheduler on resource.browser_sessions to waybill_scheduler using (true);
grant select (project_id, hash, key_id, actor, scope, expires_at), delete on resource.browser_sessions to waybill_scheduler;

-- ── how long a project keeps what ────────────────────────────────────────────────────────────────────────────────
-- One row for each project that has set something. docs/spec.md, RT-1 … RT-6; the functions are in crates/kernel/src/retain.sql.

create domain resource.months as integer check (value between 1 and 120);
create domain resource.retention_phase as text check (value in ('turns', 'sessions', 'agents', 'boxes', 'refusals', 'cards'));

create table resource.retention (
  project_id          uuid            not null primary key,
  -- How long what cards say is kept, and how long the record. None: for ever.
  content_months      resource.months,
  record_months       resource.months,
  -- A shortening, and when it takes effect.
  next_content_months resource.months,
  next_record_months  resource.months,
  next_at             timestamptz,
  -- The transaction that set it, until a walk has seen it: only then do the seven days begin, however long that transaction was open.
  next_by             xid8,
  -- While it is held, nothing is removed.
  hold_reason         text            check (length(hold_reason) between 1 and 1000),
  held_since          timestamptz,
  -- How far the walk over the project is, what it has removed so far, when it goes on, and when the last one came to its end.
  phase               resource.retention_phase not null default 'turns',
  walked_to           uuid            not null default '00000000-0000-0000-0000-000000000000',
  removed             jsonb           not null default '{}',
  walk_at             timestamptz     not null default now(),
  walked_at           timestamptz,
  -- No card up to this one has content that could go. And of this walk: after which card the next one has to look, because a later one was kept back.
  done_to             uuid            not null default '00000000-0000-0000-0000-000000000000',
  kept_after          uuid,
  check ((hold_reason is null) = (held_since is null)),
  -- What is said is not kept for longer than the record of it.
  check (coalesce(content_months, 1000) <= coalesce(record_months, 1000)),
  check (coalesce(next_content_months, 1000) <= coalesce(next_record_months, 1000))
);
create index retention_due on resource.retention (walk_at);
create index retention_held on resource.retention (project_id) where held_since is not null;

alter table resource.retention enable row level security;
alter table resource.retention force row level security;
create policy project on resource.retention using (project_id = current_setting('waybill.project')::uuid);
create policy scheduler on resource.retention for select to waybill_scheduler using (true);
grant select on resource.retention to waybill_common;
grant select (project_id, walk_at, held_since) on resource.retention to waybill_scheduler;

-- What a fork does again stays for as long as the fork does.
create function state.hold_source() returns trigger
language plpgsql as $$
begin
  perform from state.turns t where t.project_id = new.project_id and t.agent_turn_id = new.source_turn_id for key share;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = new.source_turn_id::text;
  end if;
  -- A prune that comes later sees the fork.
  if new.source_turn_id < state.yesterday() and not state.has_partitions(new.source_turn_id) then
    raise exception 'the history of this turn was dropped' using errcode = 'WB404', detail = new.source_turn_id::text;
  end if;
  return new;
end $$;
create trigger hold before insert on state.forks for each row execute function state.hold_source();
