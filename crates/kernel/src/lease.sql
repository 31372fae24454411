-- One lease per process. Its turns and calls name it; renewing does not grow with them.

-- Renews, and tells what the worker holds: turns and calls, and whether they are to stop. No row: the lease was lost, and everything
-- held under it.
create or replace function scheduler.renew_lease(p_worker uuid, p_lease interval)
returns table (held_ids uuid[], stops boolean[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update state.worker_leases l
     set renewed_at = clock_timestamp(), expires_at = clock_timestamp() + p_lease
   where l.worker_id = p_worker and l.expires_at > '-infinity';
  if found then
    return query
    select coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.stop_asked), '{}')
      from (select i.agent_turn_id as id, i.stop_asked
              from state.agent_inbox i
             where i.worker_id = p_worker
             union all
            select c.tool_call_id, false
              from state.waiting_calls c
             where c.worker_id = p_worker) h;
  end if;
end $$;

-- A worker that ends in good order gives its lease up at once.
create or replace function scheduler.end_worker(p_worker uuid) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update state.worker_leases l set expires_at = '-infinity' where l.worker_id = p_worker
$$;

-- Ends the leases that lapsed, for good. Not within one lease after the database, or sweeping itself, came up:
-- until then no worker could have renewed.
create or replace function scheduler.lapse_leases(p_lease interval) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_since  timestamptz;
  v_lapsed integer;
begin
  update state.sweep_clock c
     -- While the server was away no process could sweep: that is not another outage.
     set steady_since = case when clock_timestamp() - greatest(c.beat_at, pg_postmaster_start_time()) > p_lease then clock_timestamp()
                             else c.steady_since end,
         beat_at = clock_timestamp()
   where c.one
     and c.beat_at < clock_timestamp() - p_lease / 8
returning c.steady_since into v_since;
  if v_since is null then
    select c.steady_since into v_since from state.sweep_clock c where c.one;
  end if;
  if greatest(v_since, pg_postmaster_start_time()) + p_lease > clock_timestamp() then
    return 0;
  end if;
  update state.worker_leases l
     set expires_at = '-infinity'
   where l.expires_at < clock_timestamp() and l.expires_at > '-infinity';
  get diagnostics v_lapsed = row_count;
  -- Long enough for any claim that saw the lease to be over.
  delete from state.worker_leases l
   where l.expires_at = '-infinity' and l.renewed_at < clock_timestamp() - interval '1 minute' - p_lease
     and not exists (select from state.agent_inbox i where i.worker_id = l.worker_id offset 0)
     and not exists (select from state.waiting_calls c where c.worker_id = l.worker_id offset 0);
  return v_lapsed;
end $$;

-- Workers that hold a turn or a call and have no lease row. The sweeps start from leases, so they would not find what such a worker holds.
-- Reads one entry of each index per worker.
create or replace function scheduler.workers_without_lease()
returns table (worker_id uuid, worker_target text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive turn (worker_id, worker_target) as (
    (select i.worker_id, i.worker_target::text from state.agent_inbox i where i.worker_id is not null order by i.worker_id limit 1)
    union all
    select n.worker_id, n.worker_target
      from turn t
     cross join lateral (select i.worker_id, i.worker_target::text from state.agent_inbox i
                          where i.worker_id > t.worker_id order by i.worker_id limit 1) n
  ), call (worker_id, worker_target) as (
    (select c.worker_id, c.target::text from state.waiting_calls c where c.worker_id is not null order by c.worker_id limit 1)
    union all
    select n.worker_id, n.worker_target
      from call p
     cross join lateral (select c.worker_id, c.target::text as worker_target from state.waiting_calls c
                          where c.worker_id > p.worker_id order by c.worker_id limit 1) n
  )
  select distinct on (w.worker_id) w.worker_id, w.worker_target
    from (select * from turn union all select * from call) w
   where not exists (select from state.worker_leases l where l.worker_id = w.worker_id offset 0)
$$;

-- Gives each of them a lease that has ended, so that the next sweep takes what it holds. Says how many.
create or replace function scheduler.end_missing_leases() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_n integer;
begin
  insert into state.worker_leases (worker_id, worker_target, expires_at)
  select w.worker_id, w.worker_target, '-infinity' from scheduler.workers_without_lease() w
      on conflict do nothing;
  get diagnostics v_n = row_count;
  return v_n;
end $$;

-- Which of these targets a process serves at this moment, as far as leases say: one that holds work of the target, or has just ended some. An
-- idle process has no lease.
create or replace function scheduler.serving(p_targets text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select distinct l.worker_target::text
    from state.worker_leases l
   where l.expires_at > clock_timestamp() and l.worker_target = any (p_targets)
$$;

alter function scheduler.serving owner to waybill_scheduler;
alter function scheduler.workers_without_lease owner to waybill_scheduler;
alter function scheduler.end_missing_leases owner to waybill_scheduler;
alter function scheduler.renew_lease owner to waybill_scheduler;
alter function scheduler.end_worker owner to waybill_scheduler;
alter function scheduler.lapse_leases owner to waybill_scheduler;
