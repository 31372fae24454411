-- The next turns of a list, the newest first: those before p_before and from p_since on that pass the filter (turn/list.rs), up to p_most.
-- It goes along the index of the most selective field, and looks at p_look turns at most.
--   looked_to  the last turn looked at, where there may be more; null: these were all
create or replace function state.list_turns(p_project uuid, p_filter jsonb, p_since uuid, p_before uuid, p_most integer, p_look integer,
  out turn_ids uuid[], out looked_to uuid)
language plpgsql stable as $$
declare
  v_status   text    := p_filter ->> 'status';
  v_profile  text    := p_filter ->> 'profile_name';
  v_agent    uuid    := p_filter ->> 'agent_id';
  v_session  uuid    := p_filter ->> 'session_id';
  v_name     text    := p_filter ->> 'label_name';
  v_value    text    := p_filter ->> 'label_value';
  v_channel  text    := p_filter ->> 'channel';
  v_source   uuid    := p_filter ->> 'forked_from';
  v_external boolean := p_filter ->> 'external';
  v_spent    bigint  := p_filter ->> 'min_microdollars';
  v_roots    boolean := coalesce((p_filter ->> 'roots')::boolean, false);
  v_open     boolean := coalesce((p_filter ->> 'open')::boolean, false);
  -- Few filters let nearly all pass: as many as are wanted are looked at first, and then more at a time.
  v_portion  integer := least(p_most, p_look);
  v_looked   integer := 0;
  v_next     uuid[];
begin
  turn_ids := '{}';
  looked_to := p_before;
  loop
    if v_source is not null then
      v_next := array(select f.agent_turn_id
                        from (select f.agent_turn_id from state.forks f where f.source_turn_id = v_source and f.project_id = p_project offset 0) f
                       where f.agent_turn_id < looked_to and f.agent_turn_id >= p_since
                       order by f.agent_turn_id desc
                       limit v_portion);
    elsif v_session is not null then
      v_next := array(select t.agent_turn_id
                        from state.turns t
                       where t.session_id = v_session and t.project_id = p_project and t.agent_turn_id < looked_to and t.agent_turn_id >= p_since
                       order by t.agent_turn_id desc
                       limit v_portion);
    elsif v_agent is not null then
      v_next := array(select t.agent_turn_id
                        from state.turns t
                       where t.agent_id = v_agent and t.project_id = p_project and t.agent_turn_id < looked_to and t.agent_turn_id >= p_since
                       order by t.agent_turn_id desc
                       limit v_portion);
    elsif v_name is not null then
      v_next := array(select l.agent_turn_id
                        from state.labels l
                       where l.project_id = p_project and l.name = v_name and l.value = v_value
                         and l.agent_turn_id < looked_to and l.agent_turn_id >= p_since
                       order by l.agent_turn_id desc
                       limit v_portion);
    elsif v_open or v_status = 'open' then
      v_next := array(select i.agent_turn_id
                        from state.agent_inbox i
                       where i.project_id = p_project and i.agent_turn_id < looked_to and i.agent_turn_id >= p_since
                       order by i.agent_turn_id desc
                       limit v_portion);
    else
      v_next := array(select t.agent_turn_id
                        from state.turns t
                       where t.project_id = p_project and t.agent_turn_id < looked_to and t.agent_turn_id >= p_since
                       order by t.agent_turn_id desc
                       limit v_portion);
    end if;
    turn_ids := turn_ids || array(
      select u.agent_turn_id
        from unnest(v_next) with ordinality as u (agent_turn_id, n)
       cross join lateral (
             select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = u.agent_turn_id offset 0) t
       where (v_status is null or t.status = v_status)
         and (not v_open or t.status = 'open')
         and (not v_roots or t.parent_agent_turn_id is null)
         and (v_agent is null or t.agent_id = v_agent)
         and (v_session is null or t.session_id = v_session)
         and (v_channel is null or t.channel = v_channel)
         and (v_profile is null or exists (
               select from resource.project_agents a
                where a.project_id = p_project and a.agent_id = t.agent_id and a.profile_name = v_profile
               offset 0))
         and (v_name is null or exists (
               select from state.labels l
                where l.project_id = p_project and l.name = v_name and l.value = v_value and l.agent_turn_id = t.agent_turn_id
               offset 0))
         and (v_external is null or v_external = coalesce(
               (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.context_box_id)
               or (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id), false))
         and (v_spent is null or v_spent <= (
               select coalesce(sum(s.microdollars), 0)
                 from state.agent_steps s
                where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id))
       order by u.n);
    v_looked := v_looked + cardinality(v_next);
    if cardinality(turn_ids) >= p_most then
      turn_ids := turn_ids[1:p_most];
      looked_to := turn_ids[p_most];
      return;
    end if;
    if cardinality(v_next) < v_portion then
      looked_to := null;
      return;
    end if;
    looked_to := v_next[v_portion];
    exit when v_looked >= p_look;
    v_portion := least(greatest(v_portion, 200), p_look - v_looked);
  end loop;
end $$;
