-- Bulk content by reference, packages that name it, and people who are asked. docs/spec.md, HO-1 … HO-9.

-- ── artifacts ───────────────────────────────────────────────────────────────────────────────────────────────────
-- The object store has bytes, by the upload that wrote them; what they are is said here. Locked in the order of these tables.

-- Objects that nothing names, yet or any more. Condemned: it is about to be deleted, and will not be named.
create table cardbox.uploads (
  project_id uuid        not null,
  upload_id  uuid        not null,
  expires_at timestamptz not null,
  condemned  boolean     not null default false,
  primary key (project_id, upload_id)
);
create index uploads_ended on cardbox.uploads (expires_at);

-- Content, once per project however often it is named.
create table cardbox.blobs (
  project_id  uuid        not null,
  hash        bytea       not null check (octet_length(hash) = 32),
  upload_id   uuid        not null,
  size        bigint      not null check (size >= 0),
  -- None: it is no text.
  n_tokens    bigint      check (n_tokens >= 0),
  is_estimate boolean     not null default false,
  -- 32 bytes for each piece of a MiB.
  pieces      bytea       not null,
  created_at  timestamptz not null default now(),
  primary key (project_id, hash),
  check (octet_length(pieces) = 32 * ((size + 1048575) / 1048576))
);

-- What stands at a path. Every version stays until the path is removed, and then as long as a card speaks of it.
create table cardbox.artifacts (
  project_id uuid             not null,
  path       text collate "C" not null check (octet_length(path) between 1 and 1024),
  version    integer          not null check (version >= 1),
  hash       bytea            not null,
  media_type text             not null,
  author_id  text,
  created_at timestamptz      not null default now(),
  removed_at timestamptz,
  primary key (project_id, path, version)
);
create index artifacts_by_hash on cardbox.artifacts (hash, project_id);
create index artifacts_removed on cardbox.artifacts (project_id, path, version) where removed_at is not null;

-- Which version of a path a card speaks of: a reader gets that one.
create table cardbox.pins (
  project_id uuid             not null,
  card_id    uuid             not null,
  path       text collate "C" not null,
  hash       bytea            not null,
  primary key (project_id, card_id, path)
);
create index pins_by_path on cardbox.pins (path, project_id, hash);

alter table resource.projects add column artifact_bytes bigint not null default 0;
grant select (artifact_bytes), update (artifact_bytes) on resource.projects to waybill_common;

-- No card names an artifact that is not there, whichever role writes it.
create function cardbox.pin() returns trigger
language plpgsql as $$
declare
  v_missing text;
begin
  if json_typeof(new.content -> 'artifacts') is distinct from 'object' then
    return null;
  end if;
  insert into cardbox.pins (project_id, card_id, path, hash)
  select new.project_id, new.card_id, named.key, known.hash
    from json_each_text(new.content -> 'artifacts') named
   cross join lateral (
         select a.hash
           from cardbox.artifacts a
          where a.project_id = new.project_id and a.path = named.key and encode(a.hash, 'hex') = named.value
          order by a.version desc
          limit 1
            for key share) known;
  select string_agg(named.key, ', ') into v_missing
    from json_each_text(new.content -> 'artifacts') named
   where not exists (select from cardbox.pins p
                      where p.project_id = new.project_id and p.card_id = new.card_id and p.path = named.key
                     offset 0);
  if v_missing is not null then
    raise exception 'a card names artifacts that are not there: %', v_missing using errcode = 'WB018', detail = v_missing;
  end if;
  return null;
end $$;
-- The text is looked at before the function is called: next to no card has any.
create trigger pin after insert on cardbox.cards for each row
  when (new.type in ('handoff.package', 'tool.result') and position('"artifacts":{' in new.content::text) > 0)
  execute function cardbox.pin();

-- ── types of packages ───────────────────────────────────────────────────────────────────────────────────────────

create table resource.handoff_types (
  project_id           uuid        not null,
  name                 text        not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  version              integer     not null default 1,
  handoff_type_card_id uuid        not null,
  updated_at           timestamptz not null default now(),
  primary key (project_id, name)
);

-- ── people who are asked ────────────────────────────────────────────────────────────────────────────────────────
--   asking      a person is asked: once it is decided, it is pending again, and its handler goes on

alter domain state.call_status drop constraint call_status_check;
alter domain state.call_status add constraint call_status_check check (value in ('pending', 'processing', 'awaiting', 'asking'));
alter table state.waiting_calls add column request_card_id uuid, add column decision_card_id uuid;
create index calls_asking on state.waiting_calls (project_id, tool_call_id) where status = 'asking';

-- Requests that were decided, by the call that they were about. Cards say what was asked and decided; while a request is open, its call says so.
create table state.requests (
  project_id        uuid        not null,
  tool_call_id      uuid        not null,
  agent_turn_id     uuid        not null,
  agent_id          uuid        not null,
  tool_call_card_id uuid        not null,
  request_card_id   uuid        not null,
  deadline_at       timestamptz not null,
  decision          text        not null check (decision in ('approved', 'rejected', 'answered', 'expired')),
  decision_card_id  uuid        not null,
  decided_by        text        not null,
  decided_at        timestamptz not null default now(),
  primary key (project_id, tool_call_id)
);

alter domain state.event drop constraint event_check;
alter domain state.event add constraint event_check check (value in ('task', 'step', 'state', 'request'));
alter domain state.event_status drop constraint event_status_check;
alter domain state.event_status add constraint event_status_check
  check (value in ('success', 'failed', 'canceled', 'timeout', 'running', 'suspended', 'idle', 'dispatched',
                   'asked', 'approved', 'rejected', 'answered', 'expired'));

-- ── one project at a time ───────────────────────────────────────────────────────────────────────────────────────

do $$
declare
  t text;
begin
  foreach t in array array['cardbox.uploads', 'cardbox.blobs', 'cardbox.artifacts', 'cardbox.pins', 'resource.handoff_types', 'state.requests'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
end $$;

grant select, insert, delete on cardbox.uploads, cardbox.blobs, cardbox.artifacts to waybill_common;
grant update (condemned, expires_at) on cardbox.uploads to waybill_common;
grant update (removed_at) on cardbox.artifacts to waybill_common;
-- So that a row may be held: nothing of it changes.
grant update (is_estimate) on cardbox.blobs to waybill_common;
grant select, insert on cardbox.pins to waybill_common;
grant select on resource.handoff_types to waybill_common;
grant select, insert on state.requests to waybill_common;
grant update (request_card_id, deadline_at, decision, decision_card_id, decided_by, decided_at) on state.requests to waybill_common;
grant insert, update (version, handoff_type_card_id, updated_at) on resource.handoff_types to waybill_service;

create policy scheduler on cardbox.uploads for select to waybill_scheduler using (true);
grant select (project_id, upload_id, expires_at) on cardbox.uploads to waybill_scheduler;

create trigger fixed before update on cardbox.pins for each row execute function cardbox.refuse('a card says what it said');
create trigger keep before delete on cardbox.pins for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a card says what it said');
create trigger keep before update on cardbox.blobs for each row execute function cardbox.refuse('content never changes');
-- Asked about again, a call has another request.
create trigger fixed before update on state.requests for each row when (new.request_card_id = old.request_card_id)
  execute function cardbox.refuse('a request is decided once');
create trigger keep before delete on state.requests for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('what was decided is on record');
