-- What turns may spend: what their limits say, and of what their parent may spend no more than an equal share, which is taken from it.
--   p_asked  [{agent_turn_id, limits?: {steps?, tokens?, microdollars?, seconds?}, shares?}]; shares: among how many the parent's is parted, itself included
-- Nothing left to give is WB016.
create or replace function state.allot(p_project uuid, p_parent uuid, p_asked jsonb) returns integer
language plpgsql as $$
declare
  v_parent state.budgets;
  v_shares integer;
  v_given  record;
  v_turn   record;
begin
  select b.* into v_parent
    from state.budgets b
   where b.project_id = p_project and b.agent_turn_id = p_parent
     for no key update;
  if not found and exists (select from state.turns t
                            where t.project_id = p_project and t.agent_turn_id = p_parent and t.status <> 'open') then
    raise exception 'nothing left to give' using errcode = 'WB016', detail = 'the turn that asks is over';
  end if;
  if v_parent.agent_turn_id is null and not jsonb_path_exists(p_asked, '$[*].limits ? (@ != null)') then
    return 0;
  end if;
  select coalesce(max(a.shares), 2) into v_shares from jsonb_to_recordset(p_asked) as a (shares integer);
  with child as (
    insert into state.budgets
           (project_id, agent_turn_id, parent_agent_turn_id, steps_left, tokens_left, microdollars_left, own_steps, own_tokens,
            own_microdollars, expires_at)
    select p_project, a.agent_turn_id, v_parent.agent_turn_id, g.steps, g.tokens, g.microdollars, g.steps, g.tokens, g.microdollars,
           least(now() + make_interval(secs => l.seconds), v_parent.expires_at)
      from jsonb_to_recordset(p_asked) as a (agent_turn_id uuid, limits jsonb)
     cross join lateral jsonb_to_record(case jsonb_typeof(a.limits) when 'object' then a.limits else '{}' end)
           as l (steps integer, tokens bigint, microdollars bigint, seconds double precision)
     cross join lateral (select least(l.steps, v_parent.steps_left / v_shares) as steps, least(l.tokens, v_parent.tokens_left / v_shares) as tokens,
                                least(l.microdollars, v_parent.microdollars_left / v_shares) as microdollars) g
     where v_parent.agent_turn_id is not null or jsonb_typeof(a.limits) = 'object'
 returning agent_turn_id, steps_left, tokens_left, microdollars_left, expires_at
  )
  select count(*)::integer as n, sum(c.steps_left) as steps, sum(c.tokens_left) as tokens, sum(c.microdollars_left) as microdollars,
         bool_or(c.steps_left < 1) as no_steps, bool_or(c.tokens_left < 1) as no_tokens, bool_or(c.microdollars_left < 1) as no_money,
         bool_or(c.expires_at <= now()) as no_time,
         jsonb_object_agg(c.agent_turn_id, jsonb_strip_nulls(jsonb_build_object(
           'steps', c.steps_left, 'tokens', c.tokens_left, 'microdollars', c.microdollars_left, 'deadline_at', c.expires_at))) as limits
    into v_given
    from child c;
  if v_given.no_steps or v_given.no_tokens or v_given.no_money or v_given.no_time then
    raise exception 'nothing left to give' using errcode = 'WB016', detail = concat_ws(', ',
      case when v_given.no_steps then 'steps' end, case when v_given.no_tokens then 'tokens' end,
      case when v_given.no_money then 'money' end, case when v_given.no_time then 'time' end);
  end if;
  update state.budgets b
     set steps_left = b.steps_left - v_given.steps, tokens_left = b.tokens_left - v_given.tokens, microdollars_left = b.microdollars_left - v_given.microdollars,
         own_steps = b.own_steps - v_given.steps, own_tokens = b.own_tokens - v_given.tokens, own_microdollars = b.own_microdollars - v_given.microdollars
   where b.project_id = p_project and b.agent_turn_id = v_parent.agent_turn_id;
  -- On record with the turn: its budget goes when it ends.
  for v_turn in
    select g.key::uuid as agent_turn_id, g.value as limits from jsonb_each(v_given.limits) g where g.value <> '{}'
  loop
    update state.turns t
       set limits = v_turn.limits
     where t.project_id = p_project and t.agent_turn_id = v_turn.agent_turn_id;
  end loop;
  return v_given.n;
end $$;

-- What a turn may still spend; none: whatever it likes.
create or replace function state.budget_of(p_project uuid, p_turn uuid) returns jsonb
language sql stable as $$
  select jsonb_build_object('steps', b.steps_left, 'tokens', b.tokens_left, 'microdollars', b.microdollars_left,
                            'seconds', extract(epoch from b.expires_at - clock_timestamp()))
    from state.budgets b
   where b.project_id = p_project and b.agent_turn_id = p_turn
$$;

-- What a project has spent this month.
create or replace function state.spent(p_project uuid) returns bigint
language sql stable as $$
  select coalesce(sum(s.microdollars), 0)::bigint
    from state.spending s
   where s.project_id = p_project and s.month = date_trunc('month', now() at time zone 'utc')::date
$$;

-- Whether a project may have so many more turns. More than its settings allow is WB020, with what is full and when to ask again.
create or replace function state.check_quota(p_project uuid, p_more integer) returns boolean
language plpgsql as $$
declare
  v_quota record;
  v_n     bigint;
begin
  select p.max_open_turns, p.max_microdollars into v_quota
    from resource.projects p
   where p.project_id = p_project and (p.max_open_turns is not null or p.max_microdollars is not null);
  if not found then
    return true;
  end if;
  if v_quota.max_open_turns is not null then
    -- In the order of the key: a bitmap would read all of them before the limit counts.
    select count(*) into v_n
      from (select from state.agent_inbox i where i.project_id = p_project order by i.project_id, i.agent_turn_id limit v_quota.max_open_turns) open;
    if v_n + p_more > v_quota.max_open_turns then
      raise exception 'too many open turns' using errcode = 'WB020', hint = '5', detail = format(
        'the project has %s open turns and may have %s: wait until some have ended, or raise `max_open_turns` in its settings', v_n, v_quota.max_open_turns);
    end if;
  end if;
  if v_quota.max_microdollars is not null then
    v_n := state.spent(p_project);
    if v_n >= v_quota.max_microdollars then
      raise exception 'too much is spent' using errcode = 'WB020',
        hint = ceil(extract(epoch from date_trunc('month', now() at time zone 'utc') + interval '1 month' - now() at time zone 'utc'))::text,
        detail = format('the project has spent $%s this month and may spend $%s: wait for the next month, or raise `max_microdollars_per_month` in its settings',
                        round(v_n / 1e6, 2), round(v_quota.max_microdollars / 1e6, 2));
    end if;
  end if;
  return true;
end $$;

-- One step was taken.
create or replace function state.spend(p_project uuid, p_turn uuid, p_usage jsonb) returns jsonb
language plpgsql as $$
declare
  v_cost  bigint := (p_usage ->> 'microdollars')::bigint;
  v_month date := date_trunc('month', now() at time zone 'utc')::date;
begin
  if v_cost > 0 then
    -- A slot that no other transaction has locked: a step never waits here while it holds other locks.
    update state.spending s
       set microdollars = s.microdollars + v_cost
     where s.project_id = p_project and s.month = v_month
       and s.slot = (select f.slot
                       from state.spending f
                      where f.project_id = p_project and f.month = v_month
                      order by f.slot
                      limit 1
                        for no key update skip locked);
    if not found then
      insert into state.spending as s (project_id, month, slot, microdollars)
      values (p_project, v_month, (random() * 32767)::smallint, v_cost)
          on conflict (project_id, month, slot) do update set microdollars = s.microdollars + excluded.microdollars;
    end if;
  end if;
  update state.budgets b
     set steps_left = b.steps_left - 1,
         tokens_left = b.tokens_left - (p_usage ->> 'input_tokens')::bigint - (p_usage ->> 'output_tokens')::bigint,
         microdollars_left = b.microdollars_left - (p_usage ->> 'microdollars')::bigint
   where b.project_id = p_project and b.agent_turn_id = p_turn;
  if not found then
    return null;
  end if;
  return state.budget_of(p_project, p_turn);
end $$;

-- Turns are over: what they have left goes back to where it was taken from; what they spent too much is missing there.
create or replace function state.settle(p_project uuid, p_turns uuid[]) returns integer
language plpgsql as $$
declare
  v_turn uuid;
  v_gone state.budgets;
  v_rest jsonb := '[]';
  v_back record;
  v_n    integer := 0;
begin
  for v_turn in
    select e.agent_turn_id
      from unnest(p_turns) as e (agent_turn_id)
     where exists (select from state.budgets b where b.project_id = p_project and b.agent_turn_id = e.agent_turn_id offset 0)
  loop
    delete from state.budgets b where b.project_id = p_project and b.agent_turn_id = v_turn returning b.* into v_gone;
    if v_gone.parent_agent_turn_id is not null then
      v_rest := v_rest || to_jsonb(v_gone);
    end if;
  end loop;
  -- In one order for every caller.
  for v_back in
    select g.parent_agent_turn_id, coalesce(sum(g.steps_left), 0) as steps, coalesce(sum(g.tokens_left), 0) as tokens,
           coalesce(sum(g.microdollars_left), 0) as microdollars
      from jsonb_to_recordset(v_rest) as g (parent_agent_turn_id uuid, steps_left integer, tokens_left bigint, microdollars_left bigint)
     group by g.parent_agent_turn_id
     order by g.parent_agent_turn_id
  loop
    update state.budgets b
       set steps_left = b.steps_left + v_back.steps, tokens_left = b.tokens_left + v_back.tokens,
           microdollars_left = b.microdollars_left + v_back.microdollars, own_steps = b.own_steps + v_back.steps,
           own_tokens = b.own_tokens + v_back.tokens, own_microdollars = b.own_microdollars + v_back.microdollars
     where b.project_id = p_project and b.agent_turn_id = v_back.parent_agent_turn_id;
    v_n := v_n + 1;
  end loop;
  return v_n;
end $$;
