-- Called by assignment throughout, which costs a third of PERFORM.
-- Sets the project of a transaction that begins with a transition. Inside a unit of work it must be that one's.
create or replace function state.enter(p_project uuid) returns text
language plpgsql as $$
declare
  v_at text := current_setting('waybill.project', true);
begin
  if v_at is null or v_at = '' then
    v_at := set_config('waybill.project', p_project::text, true);
  elsif v_at <> p_project::text then
    raise exception 'a transition of another project inside a unit of work' using errcode = 'WB013';
  end if;
  return v_at;
end $$;
