-- Who may do what. Migrations run as the owner of the database, who need not be a superuser (CREATEROLE is enough).
-- Three logins. They own nothing and see one project per transaction:
--   waybill_service       the API and the commands of an operator: also keys and the audit
--   waybill_orchestrator  also sweeps and the relay of events
--   waybill_worker        claims, leases, steps
-- and five roles without a login:
--   waybill_common     has the rights that the three logins share
--   waybill_scheduler  owns the closed list of functions that cross projects
--   waybill_eraser     owns the one function that destroys a card's content
--   waybill_remover    owns the one function that removes what a project's retention does not keep
--   waybill_librarian  owns the functions that search documents (0009)
do $$
declare
  v_login text;
begin
  if not exists (select from pg_roles where rolname = 'waybill_common') then
    create role waybill_common nologin;
  end if;
  foreach v_login in array array['waybill_service', 'waybill_orchestrator', 'waybill_worker'] loop
    if not exists (select from pg_roles where rolname = v_login) then
      execute format('create role %I login', v_login);
    end if;
    execute format('grant waybill_common to %I', v_login);
    -- Settings of the login, not of the session, so that they hold behind a transaction pooler too. Members of a role do not inherit its settings.
    execute format('alter role %I set statement_timeout = ''5s''', v_login);
    execute format('alter role %I set idle_in_transaction_session_timeout = ''5s''', v_login);
    execute format('alter role %I set lock_timeout = ''1s''', v_login);
    -- What a statement sees after it has waited for a lock is what was committed meanwhile: see docs/protocol.md.
    execute format('alter role %I set default_transaction_isolation = ''read committed''', v_login);
    -- Generic plans: every statement is written to have one good plan, and a test holds it to that plan.
    execute format('alter role %I set plan_cache_mode = force_generic_plan', v_login);
    execute format('alter role %I set enable_seqscan = off', v_login);
    execute format('alter role %I set enable_mergejoin = off', v_login);
    execute format('alter role %I set enable_hashjoin = off', v_login);
    execute format('alter role %I set jit = off', v_login);
  end loop;
  if not exists (select from pg_roles where rolname = 'waybill_scheduler') then
    create role waybill_scheduler nologin;
  end if;
  if not exists (select from pg_roles where rolname = 'waybill_eraser') then
    create role waybill_eraser nologin;
  end if;
  if not exists (select from pg_roles where rolname = 'waybill_remover') then
    create role waybill_remover nologin;
  end if;
end $$;

-- A function can be given only to a role one belongs to.
grant waybill_scheduler, waybill_eraser, waybill_remover to current_user;

create schema cardbox;
create schema resource;
create schema scheduler;
grant usage on schema cardbox to waybill_common, waybill_eraser, waybill_remover;
grant usage on schema resource to waybill_common, waybill_scheduler, waybill_remover;
grant usage on schema scheduler to waybill_common;
grant create on schema cardbox to waybill_eraser, waybill_remover;
grant create on schema scheduler to waybill_scheduler;

-- So that a process can tell whether the schema is the one it was built for.
grant usage on schema waybill to waybill_common;
grant select on waybill.migrations to waybill_common;
