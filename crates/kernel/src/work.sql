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

-- Locks the heads of agents, in one order for everybody; says whose there are.
create or replace function state.lock_heads(p_project uuid, p_agents uuid[]) returns uuid[]
language plpgsql as $$
declare
  v_here uuid[];
begin
  select array_agg(l.agent_id) into v_here
    from (select a.agent_id from unnest(p_agents) as a (agent_id) order by a.agent_id offset 0) a
   cross join lateral (
         select h.agent_id
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = a.agent_id
            for no key update) l;
  return coalesce(v_here, '{}');
end $$;
