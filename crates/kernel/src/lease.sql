-- One lease per process. Its turns and calls name it; renewing does not grow with them.

create or replace function scheduler.start_worker(p_worker uuid, p_target text, p_lease interval) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into state.worker_leases (worker_id, worker_target, expires_at) values (p_worker, p_target, clock_timestamp() + p_lease)
$$;

-- Renews, and tells which of the worker's turns are to stop. No row: the lease was lost, and everything held under it.
create or replace function scheduler.renew_lease(p_worker uuid, p_lease interval)
returns table (project_ids uuid[], agent_turn_ids uuid[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update state.worker_leases l
     set renewed_at = clock_timestamp(), expires_at = clock_timestamp() + p_lease
   where l.worker_id = p_worker and l.expires_at > '-infinity';
  if found then
    return query
    select coalesce(array_agg(i.project_id), '{}'), coalesce(array_agg(i.agent_turn_id), '{}')
      from state.agent_inbox i
     where i.worker_id = p_worker and i.status = 'processing' and i.stop_asked;
  end if;
end $$;

-- A worker that ends in good order gives its lease up at once.
create or replace function scheduler.end_worker(p_worker uuid) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update state.worker_leases l set expires_at = '-infinity' where l.worker_id = p_worker
$$;

-- Ends the leases that lapsed, for good. Not within one lease after the database, or sweeping itself, came up:
-- until then nobody could have renewed.
create or replace function scheduler.lapse_leases(p_lease interval) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_since  timestamptz;
  v_lapsed integer;
begin
  update state.sweep_clock c
     set steady_since = case when clock_timestamp() - c.beat_at > p_lease then clock_timestamp() else c.steady_since end,
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
     and not exists (select from state.agent_inbox i where i.worker_id = l.worker_id and i.status = 'processing')
     and not exists (select from state.waiting_calls c where c.worker_id = l.worker_id and c.status = 'processing');
  return v_lapsed;
end $$;

alter function scheduler.start_worker owner to waybill_scheduler;
alter function scheduler.renew_lease owner to waybill_scheduler;
alter function scheduler.end_worker owner to waybill_scheduler;
alter function scheduler.lapse_leases owner to waybill_scheduler;
