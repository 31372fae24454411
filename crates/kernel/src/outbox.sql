-- State events of those of these turns that asked for them. The caller holds the heads' locks, so the order of an agent's events is theirs.
--   p_agent   the one agent they are all of; null: of several
--   p_status  what the agents do now; null: as their heads say
--   p_always  also of turns that did not ask
drop function if exists state.tell(uuid, uuid[], uuid, text);
create or replace function state.tell(p_project uuid, p_turns uuid[], p_agent uuid, p_status text, p_always boolean default false) returns integer
language plpgsql as $$
declare
  v_told integer;
begin
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch)
  select p_project, t.agent_turn_id, 'state', gen_random_uuid(), t.agent_id, coalesce(p_status, h.status::text), h.turn_epoch
    from unnest(p_turns) as e (agent_turn_id)
   cross join lateral (
         select t.agent_turn_id, t.agent_id
           from state.turns t
          where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id and (t.emit_state_event or p_always)
         offset 0) t
   cross join lateral (
         select h.status, h.turn_epoch, h.active_agent_turn_id
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = t.agent_id
         offset 0) h
   where (p_status is distinct from 'dispatched' or h.active_agent_turn_id = t.agent_turn_id)
     and (p_agent is null or t.agent_id = p_agent)
   order by t.agent_turn_id;
  get diagnostics v_told = row_count;
  return v_told;
end $$;

-- Shares the outbox among the relays that are alive. Answers with the shards that are this one's. A shard goes over when its owner's lease
-- is lost, or when the owner gives it up because there are more relays now.
create or replace function scheduler.hold_shards(p_worker uuid, p_target text, p_lease interval) returns smallint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_kept  boolean := scheduler.keep_lease(p_worker, p_target, p_lease);
  v_share integer;
  v_held  integer;
begin
  select ceil(16.0 / count(*)) into v_share
    from state.worker_leases l
   where l.worker_target = p_target and l.expires_at > clock_timestamp();
  update state.relay_shards s
     set worker_id = null
   where s.shard in (select r.shard from state.relay_shards r where r.worker_id = p_worker order by r.shard offset v_share);
  select count(*) into v_held from state.relay_shards s where s.worker_id = p_worker;
  if v_held < v_share then
    update state.relay_shards s
       set worker_id = p_worker
      from (select r.shard
              from state.relay_shards r
             where r.worker_id is null
                or not exists (select from state.worker_leases l where l.worker_id = r.worker_id and l.expires_at > '-infinity')
             order by r.shard
             limit v_share - v_held
               for update skip locked) f
     where s.shard = f.shard;
  end if;
  -- All that is published again has been. What commits later with a number of that range is not published yet, so it is found.
  update state.relay_shards s
     set replay_after = s.replay_upto
   where s.worker_id = p_worker and s.replay_after < s.replay_upto
     and not exists (select from state.outbox o
                      where o.shard = s.shard and o.outbox_seq > s.replay_after and o.outbox_seq <= s.replay_upto
                        and o.published_at is not null
                        and not exists (select from state.quarantine q
                                         where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
                     offset 0)
     and not exists (select from state.outbox o
                      where o.shard = s.shard and o.outbox_seq > s.replay_after and o.outbox_seq <= s.replay_upto
                        and o.published_at is null
                        and not exists (select from state.quarantine q
                                         where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
                     offset 0);
  return array(select s.shard from state.relay_shards s where s.worker_id = p_worker order by s.shard);
end $$;

-- The stream that events go to, known by when it was made. Another one than before: it was lost, and all events are published again.
create or replace function scheduler.publish_to(p_made_at timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_moved integer;
  v_aside record;
begin
  -- Agents in quarantine are left out while all events are published again: their events are published again once they are let out.
  if exists (select from state.relay_shards s where s.stream_made_at <> p_made_at) then
    for v_aside in
      select t.project_id, t.agent_turn_id
        from state.quarantine q
       cross join lateral (
             select t.project_id, t.agent_turn_id
               from state.turns t
              where t.agent_id = q.subject_id and t.project_id = q.project_id
             offset 0) t
       where q.sweep = 'events' and q.quarantined_at is not null
    loop
      update state.outbox o
         set published_at = null
       where o.project_id = v_aside.project_id and o.agent_turn_id = v_aside.agent_turn_id and o.published_at is not null;
    end loop;
  end if;
  update state.relay_shards s
     set stream_made_at = p_made_at, replay_after = 0,
         replay_upto = case when s.stream_made_at is null then 0 else (select q.last_value from state.outbox_seq q) end
   where s.stream_made_at is distinct from p_made_at;
  get diagnostics v_moved = row_count;
  return v_moved;
end $$;

-- What is to be published next, of the shards of one relay, each in order. Found by what is not published yet, never by a number that was
-- reached: a transaction that drew a lower number may commit later. Events of an agent that are in quarantine wait.
create or replace function scheduler.unpublished(p_worker uuid, p_most integer)
returns table (shard smallint, replayed boolean, stream_made_at timestamptz, project_id uuid, channel text, agent_id uuid, agent_turn_id uuid,
  event text, event_id uuid, outbox_seq bigint, status text, turn_epoch bigint, step_id uuid, card_id uuid, trace_id uuid,
  traceparent text, tracestate text, created_at timestamptz, root_turn_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.shard, s.replay_after < s.replay_upto, s.stream_made_at, o.project_id, coalesce(t.channel, 'public'), o.agent_id, o.agent_turn_id,
         o.event, o.event_id, o.outbox_seq, o.status, o.turn_epoch, o.step_id, o.card_id, t.trace_id, t.traceparent, t.tracestate,
         o.created_at, coalesce(t.root_turn_id, o.agent_turn_id)
    from state.relay_shards s
   cross join lateral (
         (select o.* from state.outbox o
           where s.replay_after >= s.replay_upto and o.shard = s.shard and o.published_at is null
             and not exists (select from state.quarantine q
                              where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
           order by o.outbox_seq
           limit p_most)
          union all
         (select o.*
            from (select o.*
                    from ((select o.* from state.outbox o
                            where o.shard = s.shard and o.outbox_seq > s.replay_after and o.outbox_seq <= s.replay_upto
                              and o.published_at is not null
                              and not exists (select from state.quarantine q
                                               where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
                            order by o.outbox_seq
                            limit p_most)
                           union all
                          (select o.* from state.outbox o
                            where o.shard = s.shard and o.outbox_seq > s.replay_after and o.outbox_seq <= s.replay_upto
                              and o.published_at is null
                              and not exists (select from state.quarantine q
                                               where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
                            order by o.outbox_seq
                            limit p_most)) o
                   where s.replay_after < s.replay_upto
                   order by o.outbox_seq
                   limit p_most) o)) o
    left join lateral (
         select t.channel, t.root_turn_id, t.trace_id, t.traceparent, t.tracestate
           from state.turns t
          where t.project_id = o.project_id and t.agent_turn_id = o.agent_turn_id
         offset 0) t on true
   where s.worker_id = p_worker
   order by o.outbox_seq
$$;

-- These have arrived in the stream. What is published again goes on behind p_replayed, where the shard and the stream are still the same.
create or replace function scheduler.mark_published(p_worker uuid, p_projects uuid[], p_turns uuid[], p_events text[], p_event_ids uuid[],
  p_shards smallint[], p_replayed bigint[], p_made_at timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_event  record;
  v_marked integer := 0;
begin
  for v_event in
    select * from unnest(p_projects, p_turns, p_events, p_event_ids) as e (project_id, agent_turn_id, event, event_id)
  loop
    update state.outbox o
       set published_at = clock_timestamp()
     where o.project_id = v_event.project_id and o.agent_turn_id = v_event.agent_turn_id and o.event = v_event.event
       and o.event_id = v_event.event_id and o.published_at is null;
    v_marked := v_marked + found::integer;
  end loop;
  update state.relay_shards s
     set replay_after = r.replayed
    from unnest(p_shards, p_replayed) as r (shard, replayed)
   where s.shard = r.shard and s.worker_id = p_worker and s.stream_made_at = p_made_at;
  return v_marked;
end $$;

-- The stream takes events, and not this agent's. Often enough, they are set aside. True: from now on.
create or replace function scheduler.refuse_event(p_project uuid, p_agent uuid, p_error text, p_most integer, p_apart interval)
returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_failures integer;
  v_event    record;
begin
  insert into state.quarantine as q (project_id, sweep, subject_id, last_error, quarantined_at)
  values (p_project, 'events', p_agent, left(p_error, 2000), case when p_most <= 1 then clock_timestamp() end)
      on conflict (project_id, sweep, subject_id) do update
         set n_failures = case when q.last_at < clock_timestamp() - interval '1 hour' then 1 else q.n_failures + 1 end,
             last_error = excluded.last_error, last_at = clock_timestamp(),
             quarantined_at = case when q.last_at >= clock_timestamp() - interval '1 hour' and q.n_failures + 1 >= p_most then clock_timestamp() end
       where q.quarantined_at is null and q.last_at <= clock_timestamp() - p_apart
  returning q.n_failures into v_failures;
  if v_failures is null or v_failures < p_most then
    return false;
  end if;
  -- Events that are being published again to a new stream: this goes on without this agent, so its events are published later.
  for v_event in
    select o.agent_turn_id, o.event, o.event_id
      from state.relay_shards s
     cross join lateral (
           select o.project_id, o.agent_id, o.agent_turn_id, o.event, o.event_id
             from state.outbox o
            where o.shard = s.shard and o.outbox_seq > s.replay_after and o.outbox_seq <= s.replay_upto and o.published_at is not null
           offset 0) o
     where s.shard = (uuid_hash(p_agent) & 15) and s.replay_after < s.replay_upto
       and o.project_id = p_project and o.agent_id = p_agent
  loop
    update state.outbox o
       set published_at = null
     where o.project_id = p_project and o.agent_turn_id = v_event.agent_turn_id and o.event = v_event.event
       and o.event_id = v_event.event_id;
  end loop;
  return true;
end $$;

-- How far behind the relay is. What is in quarantine has an alert of its own.
create or replace function scheduler.outbox_lag()
returns table (n_unpublished bigint, oldest_at timestamptz, n_replaying integer)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*), min(o.created_at), (select count(*)::integer from state.relay_shards s where s.replay_after < s.replay_upto)
    from (select o.created_at
            from state.outbox o
           where o.published_at is null
             and not exists (select from state.quarantine q
                              where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
           limit 100000) o
$$;

-- What is new in these projects, for the callers that watch them: of each at most p_most events after its p_after, in order. One row for each
-- project that has none, without an event.
--   last_seq   the last number that was drawn before this look
--   before     every number up to last_seq was drawn in a transaction older than this one. None: last_seq is p_last, which is known already
--   open_from  every transaction older than this one is over, and what it wrote is seen by this look
-- So numbers up to last_seq are settled once open_from is not below before: no event with such a number can still appear. A writer of events has
-- locked a head before it draws a number, so that its transaction has an id by then. pg_snapshot_xmax would not do: it is one more than the newest
-- transaction that is over, and some that are open may be newer.
create or replace function scheduler.events_after(p_projects uuid[], p_after bigint[], p_last bigint, p_most integer)
returns table (last_seq bigint, before bigint, open_from bigint, project_id uuid, event text, event_id uuid, outbox_seq bigint, agent_turn_id uuid,
  root_turn_id uuid, agent_id uuid, status text, turn_epoch bigint, step_id uuid, card_id uuid, created_at timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_last   bigint;
  v_before bigint;
begin
  select case when q.is_called then q.last_value else 0 end into v_last from state.outbox_seq q;
  if v_last is distinct from p_last then
    v_before := pg_current_xact_id()::text::bigint;
  end if;
  -- A new snapshot, later than both.
  return query
  select v_last, v_before, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, o.project_id, o.event::text, o.event_id, o.outbox_seq,
         o.agent_turn_id, o.root_turn_id, o.agent_id, o.status::text, o.turn_epoch, o.step_id, o.card_id, o.created_at
    from unnest(p_projects, p_after) as w (project_id, after)
    left join lateral (
         select o.project_id, o.event, o.event_id, o.outbox_seq, o.agent_turn_id, coalesce(t.root_turn_id, o.agent_turn_id) as root_turn_id,
                o.agent_id, o.status, o.turn_epoch, o.step_id, o.card_id, o.created_at
           from (select o.*
                   from state.outbox o
                  where o.project_id = w.project_id and o.outbox_seq > w.after and o.outbox_seq > 0
                  order by o.outbox_seq
                  limit p_most) o
           left join lateral (
                select t.root_turn_id
                  from state.turns t
                 where t.project_id = o.project_id and t.agent_turn_id = o.agent_turn_id
                offset 0) t on true
         offset 0) o on true
   order by o.project_id, o.outbox_seq;
end $$;

alter function scheduler.hold_shards owner to waybill_scheduler;
alter function scheduler.publish_to owner to waybill_scheduler;
alter function scheduler.unpublished owner to waybill_scheduler;
alter function scheduler.mark_published owner to waybill_scheduler;
alter function scheduler.refuse_event owner to waybill_scheduler;
alter function scheduler.outbox_lag owner to waybill_scheduler;
alter function scheduler.events_after owner to waybill_scheduler;
