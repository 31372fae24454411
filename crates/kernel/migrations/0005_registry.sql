-- What a project has: profiles, tools, plans, settings (PM-1). Each is a card, shared by content; what changes is where a name points.

alter table resource.projects add column settings_card_id uuid;
alter table resource.projects add column settings_version integer not null default 0;
alter table resource.projects add column settings_at timestamptz;
-- What its settings allow, where they do not allow any number: turns that are open, turns that run, money in a month.
alter table resource.projects add column max_open_turns integer check (max_open_turns > 0);
alter table resource.projects add column max_running_turns integer check (max_running_turns > 0);
alter table resource.projects add column max_microdollars bigint check (max_microdollars > 0);
grant select (settings_card_id, settings_version, settings_at, max_open_turns, max_running_turns, max_microdollars) on resource.projects to waybill_common;
grant update (settings_card_id, settings_version, settings_at, max_open_turns, max_running_turns, max_microdollars) on resource.projects to waybill_service;
grant select (max_running_turns) on resource.projects to waybill_scheduler;

create table resource.profiles (
  project_id      uuid         not null,
  name            text         not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  version         integer      not null default 1,
  profile_card_id uuid         not null,
  -- Holds this version and nothing else: a turn that was dispatched with it keeps it.
  profile_box_id  uuid         not null,
  worker_target   state.target not null,
  tags            text[]       not null default '{}',
  updated_at      timestamptz  not null default now(),
  primary key (project_id, name)
);

create table resource.tools (
  project_id   uuid         not null,
  name         text         not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  version      integer      not null default 1,
  -- None: the tool was removed. Its name stays with its target, so that no key of another target takes it over.
  tool_card_id uuid,
  target       state.target not null,
  -- The key that registered it, where it was not applied: another key of the same target may then change it.
  registered_by text,
  updated_at   timestamptz  not null default now(),
  primary key (project_id, name)
);

-- Every version stays: a turn may be following it.
create table resource.plans (
  project_id   uuid        not null,
  name         text        not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  version      integer     not null,
  plan_card_id uuid        not null,
  created_at   timestamptz not null default now(),
  primary key (project_id, name, version)
);

do $$
declare
  t text;
begin
  foreach t in array array['resource.profiles', 'resource.tools', 'resource.plans'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
end $$;

grant select on resource.profiles, resource.tools, resource.plans to waybill_common;
-- Only where people manage them, on record: over the API, and by commands.
grant insert on resource.profiles, resource.tools, resource.plans to waybill_service;
grant update (version, profile_card_id, profile_box_id, worker_target, tags, updated_at), delete on resource.profiles to waybill_service;
grant update (version, tool_card_id, target, registered_by, updated_at) on resource.tools to waybill_service;
