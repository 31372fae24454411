-- How the whole system is, as rows of (vital, target, status, value): what `/metrics` and `waybill top` show. Counts of pointers, of no project by name.
create or replace function scheduler.vitals()
returns table (vital text, target text, status text, value double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select 'waybill_queue_turns', i.worker_target::text, i.status::text, count(*)::float8
    from state.agent_inbox i group by i.worker_target, i.status
   union all
  select 'waybill_queue_oldest_seconds', i.worker_target::text, null, extract(epoch from clock_timestamp() - min(i.armed_at))
    from state.agent_inbox i where i.status = 'pending' group by i.worker_target
   union all
  select 'waybill_calls', c.target::text, c.status::text, count(*)
    from state.waiting_calls c group by c.target, c.status
   union all
  select 'waybill_calls_oldest_seconds', c.target::text, null, extract(epoch from clock_timestamp() - min(c.created_at))
    from state.waiting_calls c where c.status = 'pending' group by c.target
   union all
  select 'waybill_workers', l.worker_target::text, null, count(*)
    from state.worker_leases l where l.expires_at > clock_timestamp() group by l.worker_target
   union all
  select 'waybill_batches', null, null, count(*) from state.pmo_batches b where b.closed_at is null
   union all
  select 'waybill_outbox_events', null, null, l.n_unpublished from scheduler.outbox_lag() l
   union all
  select 'waybill_outbox_oldest_seconds', null, null, coalesce(extract(epoch from clock_timestamp() - l.oldest_at), 0) from scheduler.outbox_lag() l
   union all
  select 'waybill_quarantined', null, null, count(*) from state.quarantine q where q.quarantined_at is not null
   union all
  select 'waybill_history_ahead_seconds', h.parent, null, extract(epoch from state.history_ahead(h.parent)) from state.history() h
   union all
  select 'waybill_updates', s.schemaname || '.' || s.relname, u.status, u.n
    from pg_stat_user_tables s
   cross join lateral (values ('hot', s.n_tup_hot_upd), ('cold', s.n_tup_upd - s.n_tup_hot_upd)) as u (status, n)
   where (s.schemaname, s.relname) in
         (('state', 'agent_state_head'), ('state', 'agent_inbox'), ('state', 'waiting_calls'), ('state', 'turns'), ('cardbox', 'boxes'))
   union all
  select 'waybill_dead_rows', s.schemaname || '.' || s.relname, null, s.n_dead_tup
    from pg_stat_user_tables s
   where (s.schemaname, s.relname) in
         (('state', 'agent_state_head'), ('state', 'agent_inbox'), ('state', 'waiting_calls'), ('state', 'turns'), ('cardbox', 'boxes'))
   union all
  -- A value has one row or more there, and 2^32 values are the most that a table can have.
  select 'waybill_toast_rows', n.nspname || '.' || c.relname, null, greatest(t.reltuples, 0)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_class t on t.oid = c.reltoastrelid
   where n.nspname = 'cardbox' and c.relname = 'cards'
   union all
  -- Who else is connected is for those to see who may: whether they may is a check of `waybill doctor`.
  select 'waybill_oldest_transaction_seconds', null, null, coalesce(extract(epoch from clock_timestamp() - min(a.xact_start)), 0)
    from pg_stat_activity a where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
$$;
alter function scheduler.vitals owner to waybill_scheduler;

-- Where the work is: open turns by project, the busiest first.
create or replace function scheduler.busiest(p_most integer)
returns table (project_id uuid, slug text, n_pending bigint, n_processing bigint, n_waiting bigint, oldest_seconds double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.project_id, p.slug::text, b.n_pending, b.n_processing, b.n_waiting, b.oldest_seconds
    from (select i.project_id, count(*) filter (where i.status = 'pending') as n_pending,
                 count(*) filter (where i.status = 'processing') as n_processing,
                 count(*) filter (where i.status not in ('pending', 'processing')) as n_waiting,
                 coalesce(extract(epoch from clock_timestamp() - min(i.armed_at) filter (where i.status = 'pending')), 0)::float8 as oldest_seconds
            from state.agent_inbox i
           group by i.project_id
           order by count(*) desc
           limit p_most) b
    left join resource.projects p on p.project_id = b.project_id
   order by b.n_pending + b.n_processing + b.n_waiting desc
$$;
alter function scheduler.busiest owner to waybill_scheduler;

-- Who has turns that have been ready for longer than this: more is asked for than is done.
create or replace function scheduler.late_turns(p_wait interval)
returns table (project_id uuid, worker_target text, oldest_seconds double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.project_id, i.worker_target::text, extract(epoch from clock_timestamp() - min(i.armed_at))::float8
    from state.agent_inbox i
   where i.status = 'pending' and i.armed_at < clock_timestamp() - p_wait
   group by i.project_id, i.worker_target
$$;
alter function scheduler.late_turns owner to waybill_scheduler;

-- The oldest turn of which an event was not published yet, as the partitions of events are cut. Null where no relay has ever published: then
-- nothing waits for them.
create or replace function scheduler.oldest_unpublished() returns uuid
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select o.agent_turn_id
    from state.outbox o
   where o.published_at is null and exists (select from state.relay_shards s where s.stream_made_at is not null)
   order by o.agent_turn_id
   limit 1
$$;
alter function scheduler.oldest_unpublished owner to waybill_scheduler;
