-- What an operator watches, and which versions the schema serves. docs/operations.md.

-- One row: the version, the oldest version whose processes may go on with it, and what the walls are known by. Written by `waybill migrate`.
create table waybill.schema (
  is_it   boolean primary key default true check (is_it),
  version bigint  not null,
  oldest  bigint  not null,
  walls   text    not null,
  -- History of turns before this one may have been dropped.
  pruned_before uuid not null default '00000000-0000-0000-0000-000000000000'
);
grant select on waybill.schema to waybill_service;

grant select (armed_at, dispatched_at, created_at) on state.agent_inbox to waybill_scheduler;

-- So that the oldest transaction is seen whoever holds it. Not every owner may give this away: see `waybill doctor`.
do $$
begin
  grant pg_read_all_stats to waybill_scheduler;
exception when insufficient_privilege then
  raise notice 'run as a superuser: grant pg_read_all_stats to waybill_scheduler';
end $$;
