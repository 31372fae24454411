-- Who may do what. Migrations run as the owner of the database, who need not be a superuser: CREATEROLE is enough, or roles that an administrator
-- made. Three logins. They own nothing and see one project per transaction:
--   waybill_service       the API and the commands of an operator: also keys and the audit
--   waybill_orchestrator  also sweeps and the relay of events
--   waybill_worker        claims, leases, steps
-- and five roles without a login:
--   waybill_common     has the rights that the three logins share
--   waybill_scheduler  owns the closed list of functions that cross projects
--   waybill_eraser     owns the one function that destroys a card's content
--   waybill_remover    owns the one function that removes what a project's retention does not keep
--   waybill_librarian  owns the functions that search documents (0009)
-- Roles belong to the cluster: what is there already, made by an administrator or by another installation, is left as it is.
do $$
declare
  v_logins constant text[] := array['waybill_service', 'waybill_orchestrator', 'waybill_worker'];
  -- Roles that own functions. A function can be given only to a role that one may become.
  v_owners constant text[] := array['waybill_scheduler', 'waybill_eraser', 'waybill_remover', 'waybill_librarian'];
  -- Settings of the login, not of the session, so that they hold behind a transaction pooler too. Members of a role do not inherit its settings.
  v_settings constant text[] := array[
    'statement_timeout=5s', 'idle_in_transaction_session_timeout=5s', 'lock_timeout=1s',
    -- What a statement sees after it has waited for a lock is what was committed meanwhile: see docs/protocol.md.
    'default_transaction_isolation=read committed',
    -- Generic plans: every statement is written to have one good plan, and a test holds it to that plan.
    'plan_cache_mode=force_generic_plan', 'enable_seqscan=off', 'enable_mergejoin=off', 'enable_hashjoin=off', 'jit=off'];
  -- Since PostgreSQL 16, a member may not become the role if it was only given the right to give it away.
  v_become constant text := case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end;
  v_missing text[];
  v_statement text;
begin
  select array_agg(statement order by step, statement) into v_missing
    from (select 1, format('create role %I login', login) from unnest(v_logins) login where to_regrole(login) is null
           union all
          select 1, format('create role %I nologin', name) from unnest(v_owners || array['waybill_common']) name where to_regrole(name) is null
           union all
          select 2, format('grant waybill_common to %I', login)
            from unnest(v_logins) login
           where not exists (select from pg_auth_members m where m.roleid = to_regrole('waybill_common') and m.member = to_regrole(login))
           union all
          select 3, format('alter role %I set %s = %L', login, split_part(setting, '=', 1), split_part(setting, '=', 2))
            from unnest(v_logins) login cross join unnest(v_settings) setting
           where not exists (select from pg_db_role_setting s
                              where s.setdatabase = 0 and s.setrole = to_regrole(login) and setting = any (s.setconfig))
           union all
          select 4, format('grant %I to %I', name, current_user)
            from unnest(v_owners) name
           where not coalesce(pg_has_role(current_user, to_regrole(name)::oid, v_become), false)
              or not coalesce(pg_has_role(current_user, to_regrole(name)::oid, 'usage'), false)
         ) as needed (step, statement);
  foreach v_statement in array coalesce(v_missing, array[]::text[]) loop
    execute v_statement;
  end loop;
exception when insufficient_privilege then
  raise exception using errcode = 'insufficient_privilege', message = format(
    'the role %s may not set up the roles of Waybill (%s). Run these statements as a superuser, then migrate again:%s',
    current_user, sqlerrm, (select string_agg(chr(10) || statement || ';', '' order by place) from unnest(v_missing) with ordinality m (statement, place)));
end $$;

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
