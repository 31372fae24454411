-- Who was handed what, by whom, and by which right. docs/spec.md, PM-4 … PM-6, PM-12, SE-3.

create domain state.handover_rule as text check (value in ('argument', 'memory', 'output', 'box', 'session', 'parent'));
create domain state.reading_right as text check (value in ('own', 'handed', 'granted', 'joined', 'cloned', 'asked', 'session'));

-- One row for each part of a context box, in order: which handover put it there. Kept as long as the box.
create table state.handovers (
  project_id      uuid        not null,
  context_box_id  uuid        not null,
  part            integer     not null,
  -- Who may read it from now on.
  agent_id        uuid        not null,
  -- Who handed it over; none: a person.
  source_agent_id uuid,
  tool_suffix     text        not null,
  rule            state.handover_rule not null,
  arg_key         text,
  -- The places of the context box that it filled.
  from_seq        bigint      not null,
  n_cards         bigint      not null,
  -- What it was taken from, how far, and by which right of the agent that handed it over.
  source_box_id   uuid,
  upto            bigint,
  via             state.reading_right,
  created_at      timestamptz not null default now(),
  primary key (project_id, context_box_id, part),
  check (num_nonnulls(source_box_id, upto, via) in (0, 3))
);
-- "Was this box ever handed to this agent": by the receiver, then the box.
create index handed on state.handovers (agent_id, source_box_id, upto) where source_box_id is not null;

-- What a person or key decided outside of any handover. Never changed but for its end.
create table state.grants (
  project_id uuid        not null,
  grant_id   uuid        not null,
  agent_id   uuid        not null,
  box_id     uuid        not null,
  -- None: all of it, also what is yet to come.
  upto       bigint      check (upto >= 0),
  granted_by text        not null check (granted_by <> ''),
  reason     text        not null check (reason <> ''),
  created_at timestamptz not null default now(),
  revoked_at timestamptz,
  revoked_by text,
  primary key (project_id, grant_id),
  check ((revoked_at is null) = (revoked_by is null))
);
create index granted on state.grants (agent_id, box_id) where revoked_at is null;
create index grants_of_box on state.grants (box_id, project_id);
create index grants_of_agent on state.grants (agent_id, project_id, grant_id);

do $$
declare
  t text;
begin
  foreach t in array array['state.handovers', 'state.grants'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
end $$;

grant select, insert on state.handovers, state.grants to waybill_common;
grant update (revoked_at, revoked_by) on state.grants to waybill_common;

create trigger fixed before update on state.handovers for each row execute function cardbox.refuse('a handover is on record');
create trigger keep before delete on state.handovers for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a handover is on record');
create trigger once before update on state.grants for each row when (old.revoked_at is not null)
  execute function cardbox.refuse('a grant ends once');
create trigger keep before delete on state.grants for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a grant is on record');

-- For finding, over all projects, whom no caller asked for any more.
create policy scheduler on resource.project_agents for select to waybill_scheduler using (true);
grant select (project_id, agent_id, retire_by, retired_at) on resource.project_agents to waybill_scheduler;
