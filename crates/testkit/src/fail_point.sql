-- Made only in the databases of tests that ask for it.
create table if not exists waybill.fail_points (name text, action text);
delete from waybill.fail_points;
insert into waybill.fail_points default values;
create sequence if not exists waybill.fired; -- counts what is rolled back, too

-- As the administrator: the transitions run as roles that may not end a connection.
create or replace function waybill.fail_point(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_action text;
begin
  select f.action into v_action from waybill.fail_points f where f.name = p_name;
  if v_action = 'fail' then
    perform nextval('waybill.fired');
    perform pg_terminate_backend(pg_backend_pid());
    perform pg_sleep(5);
  elsif v_action = 'pause' then
    perform set_config('lock_timeout', '4s', true);
    perform pg_advisory_xact_lock(4711);
    perform set_config('lock_timeout', '1s', true);
  end if;
end $$;
grant usage on schema waybill to waybill_common, waybill_scheduler;
grant execute on function waybill.fail_point to public;
