-- What a project does now: of up to p_most open turns and p_most open calls. See now.rs.
create or replace function state.open_work(p_project uuid, p_most integer)
returns table (kind text, name text, n bigint, oldest_at timestamptz, n_seen bigint)
language plpgsql stable as $$
#variable_conflict use_column
begin
  return query
  with turns as materialized (
    select i.agent_turn_id, i.status::text as status, i.worker_target::text as worker_target, i.next_retry_at, i.armed_at, i.created_at
      from state.agent_inbox i
     where i.project_id = p_project
     order by i.agent_turn_id
     limit p_most
  ), calls as materialized (
    select c.status::text as status, c.target::text as target, c.created_at
      from state.waiting_calls c
     where c.project_id = p_project
     order by c.tool_call_id
     limit p_most
  ), one as (
    select case t.status when 'processing' then 'running' when 'pending' then 'worker' when 'queued' then 'queue'
                         else case when t.next_retry_at is null then 'calls' else 'retry' end end as kind,
           case t.status when 'pending' then t.worker_target end as name,
           case t.status when 'queued' then t.created_at else t.armed_at end as since
      from turns t
     union all
    select case c.status when 'asking' then 'person' when 'awaiting' then 'child' else 'tool' end,
           case when c.status not in ('asking', 'awaiting') then c.target end, c.created_at
      from calls c
  )
  select o.kind, o.name, count(*), min(o.since),
         case when o.kind in ('person', 'child', 'tool') then (select count(*) from calls) else (select count(*) from turns) end
    from one o
   group by o.kind, o.name
   order by o.kind, o.name;
end $$;

-- What became of the turns that were started from an id on, up to p_most, the newest first; and what their steps cost, up to p_most_steps.
create or replace function state.lately(p_project uuid, p_since uuid, p_most integer, p_most_steps integer,
  out n_started bigint, out n_success bigint, out n_failed bigint, out n_canceled bigint, out n_timeout bigint, out microdollars bigint,
  out n_steps bigint)
language sql stable as $$
  select t.n_started, t.n_success, t.n_failed, t.n_canceled, t.n_timeout, s.microdollars, s.n_steps
    from (select count(*) as n_started, count(*) filter (where t.status = 'success') as n_success,
                 count(*) filter (where t.status = 'failed') as n_failed, count(*) filter (where t.status = 'canceled') as n_canceled,
                 count(*) filter (where t.status = 'timeout') as n_timeout
            from (select t.status::text as status
                    from state.turns t
                   where t.project_id = p_project and t.agent_turn_id >= p_since
                   order by t.agent_turn_id desc
                   limit p_most) t) t
   cross join (select coalesce(sum(s.microdollars), 0)::bigint as microdollars, count(*) as n_steps
                 from (select s.microdollars
                         from state.agent_steps s
                        where s.project_id = p_project and s.agent_turn_id >= p_since
                        order by s.agent_turn_id desc
                        limit p_most_steps) s) s
$$;

-- Whether any worker is alive, for each of these targets. Not how many: workers of a target may serve other projects.
create or replace function scheduler.workers(p_targets text[]) returns table (worker_target text, alive boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select t.worker_target,
         t.worker_target = any (array(select distinct l.worker_target::text from state.worker_leases l where l.expires_at > clock_timestamp()))
    from unnest(p_targets) as t (worker_target)
$$;
alter function scheduler.workers owner to waybill_scheduler;
