-- Who may do what. Migrations run as the owner of the database, who need not be a superuser (CREATEROLE is enough).
--   waybill_service    what every process logs in as; owns nothing, sees one project per transaction
--   waybill_scheduler  owns the closed list of functions that cross projects; nobody logs in as it
--   waybill_eraser     owns the one function that destroys a card's content; nobody logs in as it
do $$
begin
  if not exists (select from pg_roles where rolname = 'waybill_service') then
    create role waybill_service login;
  end if;
  if not exists (select from pg_roles where rolname = 'waybill_scheduler') then
    create role waybill_scheduler nologin;
  end if;
  if not exists (select from pg_roles where rolname = 'waybill_eraser') then
    create role waybill_eraser nologin;
  end if;
end $$;

-- Settings of the role, not of the session, so that they hold behind a transaction pooler too.
-- Generic plans: every statement is written to have one good plan, and a test holds it to that plan.
alter role waybill_service set statement_timeout = '5s';
alter role waybill_service set idle_in_transaction_session_timeout = '5s';
alter role waybill_service set lock_timeout = '1s';
-- What a statement sees after it has waited for a lock is what was committed meanwhile: see docs/protocol.md.
alter role waybill_service set default_transaction_isolation = 'read committed';
alter role waybill_service set plan_cache_mode = 'force_generic_plan';
alter role waybill_service set enable_seqscan = off;
alter role waybill_service set enable_mergejoin = off;
alter role waybill_service set enable_hashjoin = off;
alter role waybill_service set jit = off;

-- A function can be given only to a role one belongs to.
grant waybill_scheduler, waybill_eraser to current_user;

create schema cardbox;
create schema resource;
create schema scheduler;
grant usage on schema cardbox to waybill_service, waybill_eraser;
grant usage on schema resource to waybill_service, waybill_scheduler;
grant usage on schema scheduler to waybill_service;
grant create on schema cardbox to waybill_eraser;
grant create on schema scheduler to waybill_scheduler;

-- So that a process can tell whether the schema is the one it was built for.
grant usage on schema waybill to waybill_service;
grant select on waybill.migrations to waybill_service;
