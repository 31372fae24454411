-- Projects, and the first of the few questions that cross them.

create table resource.projects (
  project_id uuid        not null primary key,
  slug       text        not null unique check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  created_at timestamptz not null default now(),
  -- With it the API recognises the receipts that it has composed.
  seal_key   bytea       not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
);

alter table resource.projects enable row level security;
alter table resource.projects force row level security;
create policy project on resource.projects using (project_id = current_setting('waybill.project')::uuid);
create policy scheduler on resource.projects for select to waybill_scheduler using (true);
grant select (project_id, slug, created_at) on resource.projects to waybill_common;
grant select (seal_key) on resource.projects to waybill_service;
grant insert (project_id, slug) on resource.projects to waybill_service;
grant select (project_id, slug) on resource.projects to waybill_scheduler;

-- The scheduler's functions: a closed list over pointer-only tables. docs/decisions/0003-crossing-projects.md
create function scheduler.find_project(wanted text) returns uuid
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.project_id from resource.projects p where p.slug = wanted
$$;

create function scheduler.list_projects(after text, most integer) returns table (project_id uuid, slug text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.project_id, p.slug from resource.projects p where p.slug > after order by p.slug limit most
$$;

revoke execute on all functions in schema scheduler from public;
alter function scheduler.find_project owner to waybill_scheduler;
alter function scheduler.list_projects owner to waybill_scheduler;
