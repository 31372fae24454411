CREATE SCHEMA cardbox;
CREATE SCHEMA resource;
CREATE SCHEMA scheduler;
CREATE SCHEMA state;
CREATE TYPE cardbox.new_card AS (
	card_id uuid,
	n_tokens integer,
	type text,
	role text,
	author_id text,
	hash bytea,
	salt bytea,
	tool_call_id uuid,
	trace_id uuid,
	step_id uuid,
	parent_step_id uuid,
	ttl_seconds integer,
	content text,
	tool_calls text,
	metadata text
);
CREATE DOMAIN cardbox.role AS text
	CONSTRAINT role_check CHECK ((VALUE = ANY (ARRAY['system'::text, 'user'::text, 'assistant'::text, 'tool'::text])));
CREATE DOMAIN resource.document_kind AS text
	CONSTRAINT document_kind_check CHECK ((VALUE = ANY (ARRAY['knowledge'::text, 'experience'::text])));
CREATE DOMAIN resource.months AS integer
	CONSTRAINT months_check CHECK (((VALUE >= 1) AND (VALUE <= 120)));
CREATE DOMAIN resource.retention_phase AS text
	CONSTRAINT retention_phase_check CHECK ((VALUE = ANY (ARRAY['turns'::text, 'sessions'::text, 'agents'::text, 'boxes'::text, 'refusals'::text, 'cards'::text])));
CREATE DOMAIN resource.scope AS text
	CONSTRAINT scope_check CHECK ((VALUE = ANY (ARRAY['admin'::text, 'operator'::text, 'worker'::text, 'tool'::text, 'reader'::text, 'approver'::text, 'auditor'::text, 'developer'::text, 'recorder'::text])));
CREATE DOMAIN state.batch_status AS text
	CONSTRAINT batch_status_check CHECK ((VALUE = ANY (ARRAY['open'::text, 'success'::text, 'partial'::text, 'failed'::text, 'timeout'::text])));
CREATE DOMAIN state.call_status AS text
	CONSTRAINT call_status_check CHECK ((VALUE = ANY (ARRAY['pending'::text, 'processing'::text, 'awaiting'::text, 'asking'::text])));
CREATE DOMAIN state.channel AS text
	CONSTRAINT channel_check CHECK ((VALUE ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text));
CREATE DOMAIN state.edge_phase AS text
	CONSTRAINT edge_phase_check CHECK ((VALUE = ANY (ARRAY['request'::text, 'response'::text, 'dropped'::text])));
CREATE TYPE state.ending AS (
	agent_id uuid,
	agent_turn_id uuid,
	turn_epoch bigint,
	claim_token bigint,
	status text,
	step_id uuid,
	receipt text,
	usage jsonb,
	seen bigint,
	card_ids uuid[]
);
CREATE DOMAIN state.event AS text
	CONSTRAINT event_check CHECK ((VALUE = ANY (ARRAY['task'::text, 'step'::text, 'state'::text, 'request'::text])));
CREATE DOMAIN state.event_status AS text
	CONSTRAINT event_status_check CHECK ((VALUE = ANY (ARRAY['success'::text, 'failed'::text, 'canceled'::text, 'timeout'::text, 'running'::text, 'suspended'::text, 'idle'::text, 'dispatched'::text, 'asked'::text, 'approved'::text, 'rejected'::text, 'answered'::text, 'expired'::text])));
CREATE TYPE state.fence AS (
	project_id uuid,
	agent_id uuid,
	agent_turn_id uuid,
	turn_epoch bigint,
	claim_token bigint
);
CREATE DOMAIN state.handover_rule AS text
	CONSTRAINT handover_rule_check CHECK ((VALUE = ANY (ARRAY['argument'::text, 'memory'::text, 'output'::text, 'box'::text, 'session'::text, 'parent'::text])));
CREATE DOMAIN state.head_status AS text
	CONSTRAINT head_status_check CHECK ((VALUE = ANY (ARRAY['idle'::text, 'dispatched'::text, 'running'::text, 'suspended'::text])));
CREATE DOMAIN state.inbox_status AS text
	CONSTRAINT inbox_status_check CHECK ((VALUE = ANY (ARRAY['queued'::text, 'pending'::text, 'processing'::text, 'deferred'::text])));
CREATE DOMAIN state.join_shape AS text
	CONSTRAINT join_shape_check CHECK ((VALUE = ANY (ARRAY['list'::text, 'one'::text, 'resume'::text])));
CREATE DOMAIN state.message_type AS text
	CONSTRAINT message_type_check CHECK ((VALUE = ANY (ARRAY['turn'::text, 'tool_result'::text, 'timeout'::text, 'stop'::text])));
CREATE TYPE state.new_turn AS (
	agent_turn_id uuid,
	agent_id uuid,
	channel text,
	profile_box_id uuid,
	context_box_id uuid,
	context_card_ids uuid[],
	output_box_id uuid,
	query_card_ids uuid[],
	session_id uuid,
	source_agent_id uuid,
	parent_agent_turn_id uuid,
	parent_step_id uuid,
	parent_tool_call_id uuid,
	batch_id uuid,
	task_index integer,
	recursion_depth integer,
	trace_id uuid,
	traceparent text,
	tracestate text,
	not_before timestamp with time zone,
	emit_state_event boolean,
	limits jsonb,
	shares integer
);
CREATE DOMAIN state.primitive AS text
	CONSTRAINT primitive_check CHECK ((VALUE = ANY (ARRAY['enqueue'::text, 'report'::text, 'join'::text, 'command'::text, 'steer'::text])));
CREATE DOMAIN state.reading_right AS text
	CONSTRAINT reading_right_check CHECK ((VALUE = ANY (ARRAY['own'::text, 'handed'::text, 'granted'::text, 'joined'::text, 'cloned'::text, 'asked'::text, 'session'::text])));
CREATE DOMAIN state.step_outcome AS text
	CONSTRAINT step_outcome_check CHECK ((VALUE = ANY (ARRAY['running'::text, 'suspended'::text, 'finished'::text])));
CREATE DOMAIN state.target AS text
	CONSTRAINT target_check CHECK ((VALUE ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text));
CREATE DOMAIN state.turn_status AS text
	CONSTRAINT turn_status_check CHECK ((VALUE = ANY (ARRAY['open'::text, 'success'::text, 'failed'::text, 'canceled'::text, 'timeout'::text, 'recorded'::text])));
CREATE FUNCTION cardbox.add_counts(p_one jsonb, p_other jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select coalesce(jsonb_object_agg(n.key, n.total), '{}')
    from (select u.key, sum(u.value::bigint) as total
            from (select o.key, o.value from jsonb_each_text(p_one) o union all select t.key, t.value from jsonb_each_text(p_other) t) u
           group by u.key
          having sum(u.value::bigint) > 0) n
$$;
CREATE FUNCTION cardbox.collect(p_project uuid, p_most integer, p_grace interval) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_removed record;
  v_blob    cardbox.blobs;
  v_gone    integer := 0;
begin
  for v_removed in
    select a.path, a.version, a.hash
      from cardbox.artifacts a
     where a.project_id = p_project and a.removed_at is not null
     order by a.path, a.version
     limit p_most
       for update skip locked
  loop
    -- A later statement than the lock: a card that named it meanwhile is seen.
    continue when exists (
      select from cardbox.pins p
       where p.project_id = p_project and p.path = v_removed.path and p.hash = v_removed.hash
         and exists (select from cardbox.cards c
                      where c.project_id = p_project and c.card_id = p.card_id
                        and c.deleted_at is null and c.erased_at is null and (c.expires_at is null or c.expires_at > now())
                     offset 0));
    delete from cardbox.artifacts a
     where a.project_id = p_project and a.path = v_removed.path and a.version = v_removed.version;
    v_gone := v_gone + 1;
    perform from cardbox.blobs b where b.project_id = p_project and b.hash = v_removed.hash for update;
    if not exists (select from cardbox.artifacts a where a.project_id = p_project and a.hash = v_removed.hash) then
      delete from cardbox.blobs b where b.project_id = p_project and b.hash = v_removed.hash returning b.* into v_blob;
      --! collect.blob
      if found then
        insert into cardbox.uploads (project_id, upload_id, expires_at, condemned)
        values (p_project, v_blob.upload_id, now() + p_grace, true);
        update resource.projects p set artifact_bytes = p.artifact_bytes - v_blob.size where p.project_id = p_project;
      end if;
    end if;
  end loop;
  return v_gone;
end $$;
CREATE FUNCTION cardbox.conflicting(p_project uuid, p_cards cardbox.new_card[]) RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
  select asked.card_id
    from unnest(p_cards) asked
    left join lateral (
         select c.* from cardbox.cards c where c.project_id = p_project and c.card_id = asked.card_id offset 0) c on true
   where c.hash is distinct from asked.hash
     and (c.content::text, c.tool_calls::text, c.tool_call_id, c.type, c.role::text, c.author_id)
         is distinct from (asked.content, asked.tool_calls, asked.tool_call_id, asked.type, asked.role, asked.author_id)
   limit 1
$$;
CREATE FUNCTION cardbox.delete(p_project uuid, p_cards uuid[], p_reason text) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
declare
  v_card    uuid;
  v_unknown uuid[] := '{}';
begin
  foreach v_card in array p_cards loop
    update cardbox.cards c
       set deleted_at = coalesce(c.deleted_at, clock_timestamp()), deleted_reason = coalesce(c.deleted_reason, p_reason)
     where c.project_id = p_project and c.card_id = v_card;
    if not found then
      v_unknown := v_unknown || v_card;
    end if;
  end loop;
  return v_unknown;
end $$;
CREATE FUNCTION cardbox.erase(project uuid, cards uuid[], why text) RETURNS TABLE(card_id uuid, hash bytea, erased_at timestamp with time zone, reason text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  card    uuid;
  unknown uuid[];
begin
  if coalesce(why, '') = '' then
    raise exception 'an erasure needs a reason' using errcode = 'WB011';
  end if;
  perform set_config('waybill.project', project::text, true);
  select array_agg(asked) into unknown
    from unnest(cards) asked
   where not exists (select from cardbox.cards c where c.project_id = project and c.card_id = asked offset 0);
  if unknown is not null then
    raise exception 'cards not found, nothing was erased' using errcode = 'WB012', detail = unknown::text;
  end if;
  foreach card in array cards loop
    update cardbox.cards c
       set salt = null, content = null, tool_calls = null, metadata = null, erased_at = now(), erased_reason = why
     where c.project_id = project and c.card_id = card and c.erased_at is null;
  end loop;
  return query
    select c.card_id, c.hash, c.erased_at, c.erased_reason
      from (select distinct u.card_id from unnest(cards) as u (card_id)) asked
     cross join lateral (
           select c.* from cardbox.cards c where c.project_id = project and c.card_id = asked.card_id offset 0) c;
end $$;
CREATE FUNCTION cardbox.expire(p_project uuid, p_cards uuid[], p_seconds integer) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
declare
  v_card uuid;
  v_set  uuid[] := '{}';
begin
  foreach v_card in array p_cards loop
    update cardbox.cards c
       set ttl_seconds = p_seconds, expires_at = clock_timestamp() + make_interval(secs => p_seconds)
     where c.project_id = p_project and c.card_id = v_card and c.expires_at is null and not c.content_addressed;
    if found then
      v_set := v_set || v_card;
    end if;
  end loop;
  return v_set;
end $$;
CREATE FUNCTION cardbox.guard_card() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  kept boolean :=
    (new.project_id, new.card_id, new.created_at, new.n_tokens, new.content_addressed, new.type, new.role,
     new.author_id, new.hash, new.tool_call_id, new.trace_id, new.step_id, new.parent_step_id)
    is not distinct from
    (old.project_id, old.card_id, old.created_at, old.n_tokens, old.content_addressed, old.type, old.role,
     old.author_id, old.hash, old.tool_call_id, old.trace_id, old.step_id, old.parent_step_id);
  said boolean :=
    (new.salt, new.content::text, new.tool_calls::text, new.metadata::text, new.erased_at, new.erased_reason)
    is not distinct from
    (old.salt, old.content::text, old.tool_calls::text, old.metadata::text, old.erased_at, old.erased_reason);
  ended_once boolean :=
    ((new.expires_at, new.ttl_seconds) is not distinct from (old.expires_at, old.ttl_seconds)
     or old.expires_at is null and new.expires_at is not null)
    and (old.deleted_at is null
         or (new.deleted_at, new.deleted_reason) is not distinct from (old.deleted_at, old.deleted_reason));
begin
  if kept and said and ended_once then
    return new;
  end if;
  if kept and ended_once and current_user = 'waybill_eraser' and old.erased_at is null
     and new.erased_at is not null and num_nonnulls(new.salt, new.content, new.tool_calls, new.metadata) = 0 then
    insert into cardbox.erasures (project_id, card_id, hash, reason, erased_by, erased_at)
    values (old.project_id, old.card_id, old.hash, new.erased_reason, session_user, new.erased_at);
    return new;
  end if;
  if kept and ended_once and current_user = 'waybill_remover' and old.erased_at is null
     and new.erased_at is not null and new.erased_reason = 'retention' and num_nonnulls(new.salt, new.content, new.tool_calls, new.metadata) = 0 then
    return new;
  end if;
  raise exception 'card % never changes', old.card_id
    using errcode = 'WB010', hint = 'Write a new card. To destroy content for good, use cardbox.erase.';
end $$;
CREATE FUNCTION cardbox.hold(p_project uuid, p_cards uuid[], p_boxes uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_id uuid;
begin
  foreach v_id in array p_cards loop
    perform from cardbox.cards c where c.project_id = p_project and c.card_id = v_id for key share;
    if not found then
      raise exception 'a card was removed' using errcode = 'WB404', detail = v_id::text;
    end if;
  end loop;
  foreach v_id in array p_boxes loop
    perform from cardbox.boxes b where b.project_id = p_project and b.box_id = v_id for key share;
    if not found then
      raise exception 'a box was removed' using errcode = 'WB404', detail = v_id::text;
    end if;
  end loop;
  return cardinality(p_cards) + cardinality(p_boxes);
end $$;
CREATE FUNCTION cardbox.hold_retention(p_project uuid, p_reason text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  if p_reason is not null then
    -- A prune looks at the holds each time before it drops something, with this lock for itself.
    perform pg_advisory_xact_lock_shared(hashtextextended('waybill.prune', 0));
    insert into resource.retention (project_id) values (p_project) on conflict do nothing;
  end if;
  update resource.retention r
     set hold_reason = p_reason, held_since = case when p_reason is not null then now() end, walk_at = now()
   where r.project_id = p_project and (r.hold_reason is null) = (p_reason is not null);
  return found;
end $$;
CREATE FUNCTION cardbox.holdings(project uuid, card uuid) RETURNS TABLE(box_id uuid, place bigint)
    LANGUAGE sql STABLE
    AS $$
  select e.box_id, e.seq
    from cardbox.box_entries e
   where e.project_id = project and e.card_id = card
  union all
  select r.box_id, r.seq + e.seq - r.from_seq
    from cardbox.box_entries e
   cross join lateral (
         select r.box_id, r.seq, r.from_seq
           from cardbox.box_entries r
          where r.project_id = project and r.source_box_id = e.box_id
            and e.seq between r.from_seq and r.to_seq
         offset 0) r
   where e.project_id = project and e.card_id = card
$$;
CREATE FUNCTION cardbox.label() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
  v_box  record;
  -- The first id of 25 days ago, three days short of the shortest month, written out: a function would cost more than all else that is done here.
  v_old  uuid := lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 2160000000), 12, '0') || '00000000000000000000';
  v_held integer;
begin
  -- Nearly always there is nothing to do, and every append pays for finding that out. From the entries to the few that are labelled, never
  -- the other way round: that is what `offset 0` is for.
  if not exists (
    select from added a
     where a.card_id < v_old or a.source_box_id < v_old
        or a.card_id is not null
       and exists (select from cardbox.cards c
                    where c.project_id = a.project_id and c.card_id = a.card_id and c.is_external offset 0)
        or a.source_box_id is not null
       and exists (select from cardbox.boxes s
                    where s.project_id = a.project_id and s.box_id = a.source_box_id and s.has_external offset 0)) then
    return null;
  end if;
  for v_box in
    select distinct a.project_id from added a where a.card_id < v_old or a.source_box_id < v_old
  loop
    v_held := cardbox.hold(v_box.project_id,
      array(select distinct a.card_id from added a where a.card_id < v_old and substr(a.card_id::text, 15, 1) = '7' order by a.card_id),
      array(select distinct a.source_box_id from added a
             where a.source_box_id < v_old and substr(a.source_box_id::text, 15, 1) = '7' order by a.source_box_id));
  end loop;
  for v_box in
    select distinct a.project_id, a.box_id
      from added a
     where exists (select from cardbox.cards c
                    where c.project_id = a.project_id and c.card_id = a.card_id and c.is_external offset 0)
        or exists (select from cardbox.boxes s
                    where s.project_id = a.project_id and s.box_id = a.source_box_id and s.has_external offset 0)
  loop
    update cardbox.boxes b set has_external = true
     where b.project_id = v_box.project_id and b.box_id = v_box.box_id and not b.has_external;
  end loop;
  return null;
end $$;
CREATE FUNCTION cardbox.label_card() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  if not new.is_external and json_typeof(new.content -> 'artifacts') = 'object' and exists (
       select from json_each_text(new.content -> 'artifacts') named
        where exists (select from cardbox.artifacts a
                       where a.project_id = new.project_id and a.path = named.key and encode(a.hash, 'hex') = named.value and a.is_external
                      offset 0)) then
    new.is_external := true;
  end if;
  return new;
end $$;
CREATE FUNCTION cardbox.lock_boxes(p_project uuid, p_boxes uuid[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_box uuid;
begin
  foreach v_box in array p_boxes loop
    perform from cardbox.boxes b where b.project_id = p_project and b.box_id = v_box for update skip locked;
    if not found then
      return false;
    end if;
  end loop;
  return not state.are_inherited(p_project, p_boxes)
     and not exists (select
                       from unnest(p_boxes) as u (box_id)
                      where exists (select from state.grants g
                                     where g.box_id = u.box_id and g.project_id = p_project and (g.revoked_at is not null) is not true
                                    offset 0));
end $$;
CREATE FUNCTION cardbox.n_within(p_project uuid, p_cards uuid[], p_bytes bigint) RETURNS integer
    LANGUAGE plpgsql STABLE
    AS $$
declare
  v_bytes bigint := 0;
  v_more  bigint;
begin
  for n in 1 .. cardinality(p_cards) loop
    select coalesce(octet_length(c.content::text), 0) + coalesce(octet_length(c.tool_calls::text), 0) + coalesce(octet_length(c.metadata::text), 0)
      into v_more
      from cardbox.cards c
     where c.project_id = p_project and c.card_id = p_cards[n];
    v_bytes := v_bytes + coalesce(v_more, 0);
    if v_bytes > p_bytes and n > 1 then
      return n - 1;
    end if;
  end loop;
  return cardinality(p_cards);
end $$;
CREATE FUNCTION cardbox.patched(p_patch jsonb) RETURNS uuid[]
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select array[p_patch #>> '{todo,card_id}', p_patch #>> '{todo,instead_of}', p_patch #>> '{compression,card_id}',
               p_patch #>> '{compression,instead_of}']::uuid[]
$$;
CREATE FUNCTION cardbox.pin() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
  v_missing text;
begin
  if json_typeof(new.content -> 'artifacts') is distinct from 'object' then
    return null;
  end if;
  insert into cardbox.pins (project_id, card_id, path, hash)
  select new.project_id, new.card_id, named.key, known.hash
    from json_each_text(new.content -> 'artifacts') named
   cross join lateral (
         select a.hash
           from cardbox.artifacts a
          where a.project_id = new.project_id and a.path = named.key and encode(a.hash, 'hex') = named.value
          order by a.version desc
          limit 1
            for key share) known;
  select string_agg(named.key, ', ') into v_missing
    from json_each_text(new.content -> 'artifacts') named
   where not exists (select from cardbox.pins p
                      where p.project_id = new.project_id and p.card_id = new.card_id and p.path = named.key
                     offset 0);
  if v_missing is not null then
    raise exception 'a card names artifacts that are not there: %', v_missing using errcode = 'WB018', detail = v_missing;
  end if;
  return null;
end $$;
CREATE FUNCTION cardbox.places(project uuid, box uuid, lo bigint, hi bigint) RETURNS TABLE(place bigint, card_id uuid, origin_box_id uuid, origin_seq bigint)
    LANGUAGE sql STABLE
    AS $$
  select p.*
    from (select lo as first, hi as last offset 0) span
   cross join lateral (
         select e.seq, e.card_id, e.box_id, e.seq
           from cardbox.box_entries e
          where e.project_id = project and e.box_id = box and e.card_id is not null
            and e.seq between span.first and span.last
         union all
         select r.seq + s.seq - r.from_seq, s.card_id, r.source_box_id, s.seq
           from (select e.seq, e.source_box_id, e.from_seq, e.from_seq + greatest(span.first - e.seq, 0) as first,
                        least(e.to_seq, e.from_seq + span.last - e.seq) as last
                   from cardbox.box_entries e
                  where e.project_id = project and e.box_id = box and e.source_box_id is not null
                    and e.seq <= span.last
                    and e.seq >= (select coalesce(max(f.seq), 0)
                                    from cardbox.box_entries f
                                   where f.project_id = project and f.box_id = box and f.source_box_id is not null
                                     and f.seq <= span.first)
                 offset 0) r
          cross join lateral (
                select s.seq, s.card_id
                  from cardbox.box_entries s
                 where s.project_id = project and s.box_id = r.source_box_id and s.seq between r.first and r.last
                offset 0) s) p
$$;
CREATE FUNCTION cardbox.portion(p_project uuid, p_phase text, p_after uuid, p_last uuid, p_most integer) RETURNS uuid[]
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if p_phase = 'turns' then
    return array(select t.agent_turn_id from state.turns t
                  where t.project_id = p_project and t.agent_turn_id > p_after and t.agent_turn_id < p_last
                  order by t.agent_turn_id limit p_most);
  elsif p_phase = 'sessions' then
    return array(select s.session_id from state.blackboards s
                  where s.project_id = p_project and s.session_id > p_after order by s.session_id limit p_most);
  elsif p_phase = 'agents' then
    return array(select a.agent_id from resource.project_agents a
                  where a.project_id = p_project and a.agent_id > p_after order by a.agent_id limit p_most);
  elsif p_phase = 'boxes' then
    return array(select b.box_id from cardbox.boxes b
                  where b.project_id = p_project and b.is_shared and b.box_id > p_after and b.box_id < p_last order by b.box_id limit p_most);
  elsif p_phase = 'refusals' then
    return array(select r.refusal_id from state.refusals r
                  where r.project_id = p_project and r.refusal_id > p_after and r.refusal_id < p_last order by r.refusal_id limit p_most);
  end if;
  return array(select c.card_id from cardbox.cards c
                where c.project_id = p_project and c.card_id > p_after and c.card_id < p_last order by c.card_id limit p_most);
end $$;
CREATE FUNCTION cardbox.put(p_project uuid, p_cards cardbox.new_card[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_new     boolean;
  v_written integer;
  v_other   uuid;
begin
  if cardinality(p_cards) = 0 then
    return 0;
  end if;
  -- Nearly always they are new. An insert that may meet what is there already costs each row a second record in the log; one that meets a card
  -- which another transaction writes just now fails, and is retried.
  if cardinality(p_cards) = 1 then
    v_new := not exists (select from cardbox.cards c where c.project_id = p_project and c.card_id = (p_cards[1]).card_id);
  else
    select count(distinct asked.card_id) = cardinality(p_cards) and count(c.card_id) = 0 into v_new
      from unnest(p_cards) asked
      left join lateral (
           select c.card_id from cardbox.cards c where c.project_id = p_project and c.card_id = asked.card_id offset 0) c on true;
  end if;
  if v_new then
    insert into cardbox.cards
           (project_id, card_id, n_tokens, type, role, author_id, hash, salt, tool_call_id, trace_id,
            step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
    select r.* from cardbox.rows(p_project, p_cards) r;
    return cardinality(p_cards);
  end if;
  insert into cardbox.cards
         (project_id, card_id, n_tokens, type, role, author_id, hash, salt, tool_call_id, trace_id,
          step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
  select r.* from cardbox.rows(p_project, p_cards) r
      on conflict do nothing;
  get diagnostics v_written = row_count;
  if v_written < cardinality(p_cards) then
    v_other := cardbox.conflicting(p_project, p_cards);
    if v_other is not null then
      raise exception 'card % exists with other content', v_other using errcode = 'WB002', detail = v_other::text;
    end if;
  end if;
  return v_written;
end $$;
CREATE FUNCTION cardbox.put_artifact(p_project uuid, p_upload uuid, p_path text, p_media_type text, p_author text, p_hash bytea, p_size bigint, p_tokens bigint, p_estimate boolean, p_pieces bytea, p_quota bigint) RETURNS TABLE(version integer, changed boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_last  cardbox.artifacts;
  v_bytes bigint;
  v_new   boolean;
  v_external boolean := coalesce(current_setting('waybill.external', true), '') = 'on';
begin
  perform from cardbox.uploads u
    where u.project_id = p_project and u.upload_id = p_upload and not u.condemned
      for update;
  if not found then
    -- Ours, and committed without our learning of it?
    return query
    select a.version, false
      from cardbox.artifacts a
     where a.project_id = p_project and a.path = p_path and a.hash = p_hash and a.removed_at is null
     order by a.version desc
     limit 1;
    if not found then
      raise exception 'the upload was given up' using errcode = 'WB404', detail = p_upload::text;
    end if;
    return;
  end if;
  loop
    insert into cardbox.blobs (project_id, hash, upload_id, size, n_tokens, is_estimate, pieces)
    values (p_project, p_hash, p_upload, p_size, p_tokens, p_estimate, p_pieces)
        on conflict do nothing;
    v_new := found;
    exit when v_new;
    -- Held, so that it is not deleted before it is named.
    perform from cardbox.blobs b where b.project_id = p_project and b.hash = p_hash for key share;
    exit when found;
  end loop;
  --! artifact.blob
  if v_new then
    delete from cardbox.uploads u where u.project_id = p_project and u.upload_id = p_upload;
    update resource.projects p
       set artifact_bytes = p.artifact_bytes + p_size
     where p.project_id = p_project
 returning p.artifact_bytes into v_bytes;
    if v_bytes > p_quota then
      raise exception 'too much is stored' using errcode = 'WB017', detail = format('%s of %s bytes', v_bytes, p_quota);
    end if;
  else
    -- The same content is there already: this copy of it goes.
    update cardbox.uploads u set condemned = true, expires_at = now() where u.project_id = p_project and u.upload_id = p_upload;
  end if;
  loop
    select a.* into v_last
      from cardbox.artifacts a
     where a.project_id = p_project and a.path = p_path
     order by a.version desc
     limit 1
       for share;
    -- The same content keeps its label, whatever else is said about it. A new version can raise it.
    if v_last.hash = p_hash and v_last.media_type = p_media_type and v_last.removed_at is null and v_last.is_external >= v_external then
      return query select v_last.version, false;
      return;
    end if;
    insert into cardbox.artifacts (project_id, path, version, hash, media_type, author_id, is_external)
    values (p_project, p_path, coalesce(v_last.version, 0) + 1, p_hash, p_media_type, p_author,
            v_external or coalesce(v_last.hash = p_hash and v_last.is_external, false))
        on conflict do nothing;
    exit when found;
  end loop;
  --! artifact.path
  return query select coalesce(v_last.version, 0) + 1, true;
end $$;
CREATE FUNCTION cardbox.put_many(p_project uuid, p_cards cardbox.new_card[]) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
  v_written bigint;
begin
  begin
    insert into cardbox.cards
           (project_id, card_id, n_tokens, type, role, author_id, hash, salt, tool_call_id, trace_id,
            step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
    select r.* from cardbox.rows(p_project, p_cards) r;
  exception when unique_violation then
    insert into cardbox.cards
           (project_id, card_id, n_tokens, type, role, author_id, hash, salt, tool_call_id, trace_id,
            step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
    select r.* from cardbox.rows(p_project, p_cards) r
        on conflict do nothing;
  end;
  get diagnostics v_written = row_count;
  return v_written;
end $$;
CREATE FUNCTION cardbox.reading(project uuid, card uuid, as_of timestamp with time zone) RETURNS TABLE(card_id uuid, type text, role text, author_id text, hash bytea, salt bytea, n_tokens integer, tool_call_id uuid, trace_id uuid, step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamp with time zone, created_at timestamp with time zone, is_external boolean, content json, tool_calls json, metadata json, gone_at timestamp with time zone, gone_why text, gone_reason text)
    LANGUAGE sql STABLE
    AS $$
  select c.card_id, c.type, c.role, c.author_id, c.hash, case when g.at is null then c.salt end, c.n_tokens, c.tool_call_id, c.trace_id,
         c.step_id, c.parent_step_id, c.ttl_seconds, c.expires_at, c.created_at, c.is_external,
         case when g.at is null then c.content end,
         case when g.at is null then c.tool_calls end,
         case when g.at is null then c.metadata end,
         g.at, g.why, g.reason
    from cardbox.cards c
   cross join lateral (
         select case when c.erased_at is not null then c.erased_at
                     when c.deleted_at <= as_of then c.deleted_at
                     when c.expires_at <= as_of then c.expires_at end as at,
                case when c.erased_at is not null then 'erased'
                     when c.deleted_at <= as_of then 'deleted'
                     when c.expires_at <= as_of then 'expired' end as why,
                case when c.erased_at is not null then c.erased_reason
                     when c.deleted_at <= as_of then c.deleted_reason end as reason) g
   where c.project_id = project and c.card_id = card
  offset 0
$$;
CREATE FUNCTION cardbox.record_walk(p_project uuid, p_removed jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_random text := replace(gen_random_uuid()::text, '-', '');
begin
  -- An id that carries its time, as all of the audit do.
  insert into state.audit (project_id, audit_id, actor, action, subject, detail)
  values (p_project, overlay(overlay(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || substr(v_random, 13)
                                     placing '7' from 13) placing '8' from 17)::uuid,
          'retention', 'retention.run', p_project::text, p_removed);
end $$;
CREATE FUNCTION cardbox.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  raise exception '% of %.% is refused: %', lower(tg_op), tg_table_schema, tg_table_name, tg_argv[0]
    using errcode = 'WB010';
end $$;
CREATE FUNCTION cardbox.remove_agent(p_project uuid, p_agent uuid, p_before timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_memory  uuid;
  v_boxes   uuid[];
  v_removed jsonb;
begin
  select a.memory_box_id into v_memory
    from resource.project_agents a
   where a.project_id = p_project and a.agent_id = p_agent and a.ephemeral and a.created_at < p_before and a.retired_at < p_before
     for update skip locked;
  if not found or exists (select from state.turns t where t.agent_id = p_agent and t.project_id = p_project)
     or exists (select from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent) then
    return null;
  end if;
  v_boxes := array_remove(array[v_memory], null);
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  v_removed := cardbox.remove_boxes(p_project, v_boxes);
  delete from state.identity_edges e where e.project_id = p_project and e.agent_id = p_agent;
  delete from resource.project_agents a where a.project_id = p_project and a.agent_id = p_agent;
  return cardbox.add_counts(v_removed, '{"agents": 1}');
end $$;
CREATE FUNCTION cardbox.remove_boxes(p_project uuid, p_boxes uuid[]) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_box     uuid;
  v_cards   uuid[] := '{}';
  v_entries bigint := 0;
  v_n       bigint;
begin
  foreach v_box in array p_boxes loop
    v_cards := v_cards || array(select e.card_id from cardbox.box_entries e
                                 where e.project_id = p_project and e.box_id = v_box and e.card_id is not null);
    delete from cardbox.box_entries e where e.project_id = p_project and e.box_id = v_box;
    get diagnostics v_n = row_count;
    v_entries := v_entries + v_n;
    delete from state.grants g where g.box_id = v_box and g.project_id = p_project;
    delete from cardbox.boxes b where b.project_id = p_project and b.box_id = v_box;
  end loop;
  return jsonb_build_object('boxes', cardinality(p_boxes), 'entries', v_entries, 'cards', cardbox.remove_cards(p_project, v_cards));
end $$;
CREATE FUNCTION cardbox.remove_cards(p_project uuid, p_cards uuid[]) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_locked uuid[];
  v_gone   uuid[];
  v_card   uuid;
begin
  v_locked := array(select c.card_id
                      from (select distinct u.card_id from unnest(p_cards) as u (card_id) where u.card_id is not null) u
                     cross join lateral (
                           select c.card_id
                             from cardbox.cards c
                            where c.project_id = p_project and c.card_id = u.card_id and not c.content_addressed
                              for update skip locked) c);
  -- A later statement than the lock: what was put into a box before it is seen.
  v_gone := array(select u.card_id
                    from unnest(v_locked) as u (card_id)
                   where not exists (select from cardbox.box_entries e where e.project_id = p_project and e.card_id = u.card_id offset 0));
  foreach v_card in array v_gone loop
    delete from cardbox.pins p where p.project_id = p_project and p.card_id = v_card;
    delete from cardbox.cards c where c.project_id = p_project and c.card_id = v_card;
  end loop;
  return cardinality(v_gone);
end $$;
CREATE FUNCTION cardbox.remove_content(p_project uuid, p_card uuid, p_boxes uuid[], p_cards uuid[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_bytes bigint;
begin
  select coalesce(pg_column_size(c.content), 0) + coalesce(pg_column_size(c.tool_calls), 0) + coalesce(pg_column_size(c.metadata), 0) into v_bytes
    from cardbox.cards c
   where c.project_id = p_project and c.card_id = p_card and c.erased_at is null
     and (not c.content_addressed or c.type in ('sys.rendered_prompt', 'sys.request_part'));
  if v_bytes is null then
    return null;
  end if;
  if p_card = any (p_cards)
     or exists (select from cardbox.box_entries e
                 where e.project_id = p_project and e.card_id = p_card and e.box_id = any (p_boxes)) then
    return -1;
  end if;
  -- One that is being expired or deleted is not waited for: it is looked at by the next walk.
  perform from cardbox.cards c where c.project_id = p_project and c.card_id = p_card for no key update skip locked;
  if not found then
    return -1;
  end if;
  update cardbox.cards c
     set salt = null, content = null, tool_calls = null, metadata = null, erased_at = now(), erased_reason = 'retention'
   where c.project_id = p_project and c.card_id = p_card and c.erased_at is null;
  return v_bytes;
end $$;
CREATE FUNCTION cardbox.remove_session(p_project uuid, p_session uuid, p_before timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_board record;
  v_boxes uuid[];
  v_loose uuid[];
  v_n     bigint;
begin
  select s.messages_box_id, s.mapreduce_results_box_id, s.todo_card_id, s.compression_card_id into v_board
    from state.blackboards s
   where s.project_id = p_project and s.session_id = p_session and s.created_at < p_before and s.ended_at < p_before
     for update skip locked;
  if not found or exists (select from state.turns t where t.session_id = p_session and t.project_id = p_project) then
    return null;
  end if;
  v_boxes := array[v_board.messages_box_id, v_board.mapreduce_results_box_id];
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  v_loose := array(select u.card_id
                     from state.patches p
                    cross join lateral unnest(cardbox.patched(p.patch)) as u (card_id)
                    where p.project_id = p_project and p.session_id = p_session);
  delete from state.patches p where p.project_id = p_project and p.session_id = p_session;
  get diagnostics v_n = row_count;
  delete from state.blackboards s where s.project_id = p_project and s.session_id = p_session;
  return cardbox.add_counts(cardbox.remove_boxes(p_project, v_boxes),
    jsonb_build_object('sessions', 1, 'patches', v_n,
                       'cards', cardbox.remove_cards(p_project, v_loose || v_board.todo_card_id || v_board.compression_card_id)));
end $$;
CREATE FUNCTION cardbox.remove_shared(p_project uuid, p_box uuid) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if state.are_inherited(p_project, array[p_box]) or not cardbox.lock_boxes(p_project, array[p_box]) then
    return null;
  end if;
  return cardbox.remove_boxes(p_project, array[p_box]);
end $$;
CREATE FUNCTION cardbox.remove_turn(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_turn    record;
  v_calls   uuid[];
  v_batches uuid[];
  v_boxes   uuid[];
  v_loose   uuid[];
  v_id      uuid;
  v_step    record;
  v_n       bigint;
  v_removed jsonb := '{"turns": 1}';
begin
  -- Nearly all that stay do so for a reason that can be seen without a lock.
  if state.why_kept(p_project, p_turn, p_before, p_relayed) is not null then
    return null;
  end if;
  select t.context_box_id, t.output_box_id, t.session_id, t.steer_card_ids into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn
     for update skip locked;
  if not found then
    return null;
  end if;
  v_calls := state.calls_of(p_project, v_turn.output_box_id);
  v_batches := state.batches_of(p_project, p_turn, v_calls);
  v_boxes := state.boxes_of(p_project, p_turn, v_batches);
  if not cardbox.lock_boxes(p_project, v_boxes) then
    return null;
  end if;
  -- Again, now that it is locked.
  if state.why_kept(p_project, p_turn, p_before, p_relayed) is not null then
    return null;
  end if;
  -- What people were asked about its calls is in no box, and its events may have been dropped.
  v_loose := array(select o.card_id from state.outbox o
                    where o.project_id = p_project and o.agent_turn_id = p_turn and o.event = 'request' and o.card_id is not null)
             || state.asked_of(p_project, p_turn, v_calls);
  if v_turn.session_id is not null then
    for v_step in
      select p.step_id, p.patch
        from state.agent_steps s
       cross join lateral (
             select p.step_id, p.patch
               from state.patches p
              where p.project_id = p_project and p.session_id = v_turn.session_id and p.step_id = s.step_id
             offset 0) p
       where s.project_id = p_project and s.agent_turn_id = p_turn
    loop
      -- What a session still goes by stays with it.
      v_loose := v_loose || array(
        select u.card_id
          from unnest(cardbox.patched(v_step.patch)) as u (card_id)
         where not exists (select from state.blackboards s
                            where s.project_id = p_project and s.session_id = v_turn.session_id
                              and u.card_id in (s.todo_card_id, s.compression_card_id)
                           offset 0));
      delete from state.patches p where p.project_id = p_project and p.session_id = v_turn.session_id and p.step_id = v_step.step_id;
      v_removed := cardbox.add_counts(v_removed, '{"patches": 1}');
    end loop;
  end if;
  foreach v_id in array v_calls || v_batches || v_turn.steer_card_ids loop
    delete from state.execution_edges e where e.project_id = p_project and e.correlation_id = v_id and e.agent_turn_id = p_turn;
    get diagnostics v_n = row_count;
    v_removed := cardbox.add_counts(v_removed, jsonb_build_object('edges', v_n));
    delete from state.requests q where q.project_id = p_project and q.tool_call_id = v_id and q.agent_turn_id = p_turn;
  end loop;
  foreach v_id in array v_batches loop
    delete from state.pmo_batch_tasks k where k.project_id = p_project and k.batch_id = v_id;
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = v_id;
    delete from state.pmo_batches b where b.project_id = p_project and b.batch_id = v_id;
    v_removed := cardbox.add_counts(v_removed, '{"batches": 1}');
  end loop;
  delete from state.receipts r where r.project_id = p_project and r.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('receipts', v_n));
  delete from state.agent_steps s where s.project_id = p_project and s.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('steps', v_n));
  delete from state.outbox o where o.project_id = p_project and o.agent_turn_id = p_turn;
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('events', v_n));
  delete from state.handovers h where h.project_id = p_project and h.context_box_id = v_turn.context_box_id and v_turn.context_box_id = any (v_boxes);
  get diagnostics v_n = row_count;
  v_removed := cardbox.add_counts(v_removed, jsonb_build_object('handovers', v_n));
  delete from state.forks f where f.project_id = p_project and f.agent_turn_id = p_turn;
  delete from state.labels l where l.project_id = p_project and l.agent_turn_id = p_turn;
  delete from state.recordings r where r.project_id = p_project and r.agent_turn_id = p_turn;
  delete from state.recorded_asks a where a.project_id = p_project and a.agent_turn_id = p_turn;
  delete from state.quarantine q where q.subject_id = p_turn and q.project_id = p_project and q.quarantined_at is not null;
  delete from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  v_removed := cardbox.add_counts(v_removed, cardbox.remove_boxes(p_project, v_boxes));
  return cardbox.add_counts(v_removed, jsonb_build_object('cards', cardbox.remove_cards(p_project, v_loose)));
end $$;
CREATE FUNCTION cardbox.retain(p_project uuid, p_most integer) RETURNS TABLE(removed jsonb, is_over boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_walk    record;
  v_set     record;
  v_content timestamptz;
  v_portion record;
  v_total   jsonb;
begin
  -- What another transaction has come to hold meanwhile must be seen.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'retention runs in read committed' using errcode = '25001';
  end if;
  if not pg_try_advisory_xact_lock(hashtextextended('waybill.retention', 0)) then
    return;
  end if;
  v_entered := state.enter(p_project);
  select r.phase, r.walked_to, r.removed, r.kept_after,
         case when date_trunc('month', r.walked_at) = date_trunc('month', now()) then r.done_to
              else '00000000-0000-0000-0000-000000000000' end as done_to
    into v_walk
    from resource.retention r
   where r.project_id = p_project
     for no key update;
  if not found then
    return;
  end if;
  -- The transaction that set it may have been open for long: from now on others see it, and can set it back.
  update resource.retention r
     set next_at = clock_timestamp() + interval '7 days', next_by = null
   where r.project_id = p_project and r.next_by <> pg_current_xact_id();
  select s.content_months, s.record_months, s.next_at, s.hold_reason into v_set from resource.retention_of(p_project) s;
  if v_set.hold_reason is not null or v_set.content_months is null then
    if v_walk.removed <> '{}' then
      perform cardbox.record_walk(p_project, v_walk.removed);
    end if;
    update resource.retention r
       set walk_at = case when v_set.hold_reason is not null then now() + interval '1 day' else coalesce(v_set.next_at, 'infinity') end,
           phase = 'turns', walked_to = '00000000-0000-0000-0000-000000000000', removed = '{}', kept_after = null
     where r.project_id = p_project;
    return query select '{}'::jsonb, true;
    return;
  end if;
  v_content := now() - make_interval(months => v_set.content_months);
  v_portion := cardbox.retain_before(p_project, v_content, now() - make_interval(months => v_set.record_months), v_walk.phase,
    v_walk.walked_to, greatest(p_most, 1));
  v_total := cardbox.add_counts(v_walk.removed, v_portion.removed);
  if v_portion.phase is null and v_total <> '{}' then
    perform cardbox.record_walk(p_project, v_total);
  end if;
  update resource.retention r
     set phase = coalesce(v_portion.phase, 'turns'),
         walked_to = case when v_portion.phase = 'cards' and v_walk.phase <> 'cards' then v_walk.done_to else v_portion.walked_to end,
         kept_after = case when v_portion.phase is not null then least(v_walk.kept_after, v_portion.kept_after) end,
         done_to = case when v_portion.phase is not null then r.done_to
                        else coalesce(least(v_walk.kept_after, v_portion.kept_after), greatest(v_walk.done_to, state.first_id(v_content))) end,
         removed = case when v_portion.phase is null then '{}' else v_total end,
         walked_at = case when v_portion.phase is null then now() else r.walked_at end,
         walk_at = case when v_portion.phase is not null then now()
                        when v_total ?| array['turns', 'sessions', 'agents'] then now() + interval '1 minute'
                        else now() + interval '1 day' end
   where r.project_id = p_project;
  return query select v_portion.removed, v_portion.phase is null;
end $$;
CREATE FUNCTION cardbox.retain_before(p_project uuid, p_content timestamp with time zone, p_record timestamp with time zone, p_phase text, p_after uuid, p_most integer, OUT phase text, OUT walked_to uuid, OUT removed jsonb, OUT kept_after uuid) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  v_entered  text;
  v_deleting text;
  v_relayed  boolean;
  v_ids      uuid[] := '{}';
  v_id       uuid;
  v_boxes    uuid[];
  v_cards    uuid[];
  v_bytes    bigint;
  -- Next to nothing is done to most cards.
  v_most     integer := case p_phase when 'cards' then p_most * 10 else p_most end;
  v_until    timestamptz := clock_timestamp() + interval '5 seconds';
  v_is_cut   boolean := false;
begin
  v_entered := state.enter(p_project);
  v_deleting := set_config('waybill.deleting', p_project::text, true);
  retain_before.removed := '{}';
  -- All events are being published again, to a new stream: no turn goes before its events are there.
  if p_phase = 'cards' and p_content is not null or p_phase <> 'cards' and p_record is not null
     and (p_phase <> 'turns' or not exists (select from state.relay_shards s where s.replay_after < s.replay_upto)) then
    -- A turn that began after the horizon has not ended before it.
    v_ids := cardbox.portion(p_project, p_phase, p_after, state.first_id(case p_phase when 'cards' then p_content else p_record end), v_most);
  end if;
  if v_ids <> '{}' and p_phase = 'turns' then
    v_relayed := exists (select from state.relay_shards s where s.stream_made_at is not null);
  elsif v_ids <> '{}' and p_phase = 'cards' then
    v_boxes := state.reached_boxes(p_project);
    v_cards := state.reached_cards(p_project);
  end if;
  -- The youngest first: children begin after their parents, and go before them.
  for v_id in select u.id from unnest(v_ids) as u (id) order by u.id desc loop
    -- Turns may be large. What is left of the portion is looked at by the next one.
    if retain_before.removed <> '{}' and clock_timestamp() > v_until then
      v_is_cut := true;
      exit;
    end if;
    if p_phase = 'cards' then
      v_bytes := cardbox.remove_content(p_project, v_id, v_boxes, v_cards);
      continue when v_bytes is null;
      if v_bytes < 0 then
        retain_before.kept_after := coalesce(v_ids[array_position(v_ids, v_id) - 1], p_after);
        continue;
      end if;
      retain_before.removed := cardbox.add_counts(retain_before.removed, jsonb_build_object('contents', 1, 'bytes', v_bytes));
    elsif p_phase = 'refusals' then
      delete from state.refusals r where r.project_id = p_project and r.refusal_id = v_id;
      retain_before.removed := cardbox.add_counts(retain_before.removed, '{"refusals": 1}');
    else
      retain_before.removed := cardbox.add_counts(retain_before.removed, coalesce(
        case p_phase when 'turns' then cardbox.remove_turn(p_project, v_id, p_record, v_relayed)
                     when 'sessions' then cardbox.remove_session(p_project, v_id, p_record)
                     when 'agents' then cardbox.remove_agent(p_project, v_id, p_record)
                     else cardbox.remove_shared(p_project, v_id) end, '{}'));
    end if;
  end loop;
  v_deleting := set_config('waybill.deleting', '', true);
  if v_is_cut then
    retain_before.phase := p_phase;
    retain_before.walked_to := p_after;
  elsif cardinality(v_ids) = v_most then
    retain_before.phase := p_phase;
    retain_before.walked_to := v_ids[v_most];
  else
    retain_before.phase := case p_phase when 'turns' then 'sessions' when 'sessions' then 'agents' when 'agents' then 'boxes'
                                        when 'boxes' then 'refusals' when 'refusals' then 'cards' end;
    retain_before.walked_to := '00000000-0000-0000-0000-000000000000';
  end if;
end $$;
CREATE FUNCTION cardbox.rows(p_project uuid, p_cards cardbox.new_card[]) RETURNS TABLE(project_id uuid, card_id uuid, n_tokens integer, type text, role text, author_id text, hash bytea, salt bytea, tool_call_id uuid, trace_id uuid, step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamp with time zone, content json, tool_calls json, metadata json)
    LANGUAGE sql STABLE
    AS $$
  select p_project, c.card_id, c.n_tokens, c.type, c.role, c.author_id, c.hash, c.salt, c.tool_call_id, c.trace_id,
         c.step_id, c.parent_step_id, c.ttl_seconds, now() + make_interval(secs => c.ttl_seconds),
         c.content::json, c.tool_calls::json, c.metadata::json
    from unnest(p_cards) c
$$;
CREATE FUNCTION cardbox.runs(project uuid, box uuid, lo bigint, hi bigint) RETURNS TABLE(place bigint, source_box_id uuid, from_seq bigint, to_seq bigint)
    LANGUAGE sql STABLE
    AS $$
  with held as (
    select greatest(e.seq, lo) as place, e.source_box_id,
           e.from_seq + greatest(lo - e.seq, 0) as from_seq,
           least(e.to_seq, e.from_seq + hi - e.seq) as to_seq
      from cardbox.box_entries e
     where e.project_id = project and e.box_id = box and e.source_box_id is not null
       and lo <= hi
       and e.seq <= hi
       and e.seq + e.to_seq - e.from_seq >= lo
       and e.seq >= (select coalesce(max(f.seq), 0)
                       from cardbox.box_entries f
                      where f.project_id = project and f.box_id = box and f.source_box_id is not null and f.seq <= lo)
  ),
  own as (
    select coalesce(lag(h.place + h.to_seq - h.from_seq) over (order by h.place), lo - 1) + 1 as first, h.place - 1 as last
      from held h
    union all
    select coalesce(max(h.place + h.to_seq - h.from_seq), lo - 1) + 1, hi
      from held h
  )
  select h.place, h.source_box_id, h.from_seq, h.to_seq from held h
  union all
  select o.first, box, o.first, o.last from own o where o.first <= o.last
$$;
CREATE FUNCTION cardbox.set_retention(p_project uuid, p_content integer, p_record integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_entered text;
  v_now     record;
  v_content integer;
  v_record  integer;
begin
  v_entered := state.enter(p_project);
  insert into resource.retention (project_id) values (p_project) on conflict do nothing;
  perform from resource.retention r where r.project_id = p_project for no key update;
  select r.content_months, r.record_months, r.next_content_months, r.next_record_months, r.next_at into v_now
    from resource.retention_of(p_project) r;
  if (v_now.content_months, v_now.record_months, v_now.next_at) is not distinct from (p_content, p_record, null)
     or v_now.next_at is not null and (v_now.next_content_months, v_now.next_record_months) is not distinct from (p_content, p_record) then
    return false;
  end if;
  -- `greatest` passes over nulls, and here they are the longest.
  v_content := case when v_now.content_months is not null and p_content is not null then greatest(v_now.content_months, p_content) end;
  v_record := case when v_now.record_months is not null and p_record is not null then greatest(v_now.record_months, p_record) end;
  if (v_content, v_record) is not distinct from (p_content, p_record) then
    update resource.retention r
       set content_months = p_content, record_months = p_record, next_content_months = null, next_record_months = null, next_at = null,
           next_by = null, walk_at = now()
     where r.project_id = p_project;
  else
    update resource.retention r
       set content_months = v_content, record_months = v_record, next_content_months = p_content, next_record_months = p_record,
           next_at = clock_timestamp() + interval '7 days', next_by = pg_current_xact_id(), walk_at = now()
     where r.project_id = p_project;
  end if;
  return true;
end $$;
CREATE FUNCTION resource.forget_chunks(p_project uuid, p_document uuid) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_words tsvector[];
  v_less  record;
begin
  with gone as (
    delete from resource.chunks c where c.project_id = p_project and c.document_id = p_document returning c.words
  )
  select array_agg(g.words) into v_words from gone g;
  for v_less in
    -- Without the project's mark.
    select substr(w.word, 9) as word, count(*)::integer as n
      from unnest(v_words) as g (words) cross join lateral unnest(tsvector_to_array(g.words)) as w (word)
     group by 1
     order by 1
  loop
    update resource.words w
       set n_chunks = w.n_chunks - v_less.n
     where w.project_id = p_project and w.word = v_less.word;
  end loop;
  return coalesce(cardinality(v_words), 0);
end $$;
CREATE FUNCTION resource.put_chunks(p_project uuid, p_document uuid, p_chunks jsonb) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_mark text := right(p_project::text, 8);
  v_put  integer;
begin
  with given as materialized (
    select c.n, c.chunk, array(select jsonb_array_elements_text(c.chunk -> 'words')) as words
      from jsonb_array_elements(p_chunks) with ordinality as c (chunk, n)
  ), put as (
    insert into resource.chunks (project_id, document_id, seq, from_line, to_line, heading, content, n_tokens, words)
    select p_project, p_document, g.n, (g.chunk ->> 'from_line')::integer, (g.chunk ->> 'to_line')::integer, g.chunk ->> 'heading',
           g.chunk ->> 'content', (g.chunk ->> 'n_tokens')::integer,
           array_to_tsvector(array(select v_mark || w.word from unnest(g.words) as w (word)))
      from given g
 returning 1
  ), counted as (
    select w.word, count(*)::integer as n
      from given g cross join lateral unnest(g.words) as w (word)
     group by w.word
     order by w.word
  ), more as (
    insert into resource.words as w (project_id, word, n_chunks)
    select p_project, c.word, c.n from counted c
        on conflict (project_id, word) do update set n_chunks = w.n_chunks + excluded.n_chunks
  )
  select count(*) into v_put from put;
  return v_put;
end $$;
CREATE FUNCTION resource.retention_of(p_project uuid) RETURNS TABLE(content_months integer, record_months integer, next_content_months integer, next_record_months integer, next_at timestamp with time zone, hold_reason text, held_since timestamp with time zone, walked_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
  select case when n.is_over then r.next_content_months else r.content_months end,
         case when n.is_over then r.next_record_months else r.record_months end,
         case when not n.is_over then r.next_content_months end,
         case when not n.is_over then r.next_record_months end,
         case when not n.is_over then r.next_at end,
         r.hold_reason, r.held_since, r.walked_at
    from resource.retention r
   cross join lateral (select coalesce(r.next_at <= now() and r.next_by is null, false) as is_over) n
   where r.project_id = p_project
$$;
CREATE FUNCTION resource.search_meaning(p_project uuid, p_kind text, p_folders text[], p_model text, p_embedding real[], p_most integer) RETURNS TABLE(document_id uuid, seq integer, score double precision)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
  v_schema text;
begin
  if current_setting('waybill.project', true) is distinct from p_project::text then
    raise exception 'a search of another project inside a unit of work' using errcode = 'WB013';
  end if;
  select n.nspname into v_schema from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'vector';
  if not found then
    raise exception 'the extension `vector` is not there' using errcode = 'WB019';
  end if;
  return query execute format(
    'select c.document_id, c.seq, 1 - (c.embedding::%1$I.vector operator(%1$I.<=>) $5::%1$I.vector) as score
       from resource.documents d
       join resource.chunks c on c.project_id = $1 and c.document_id = d.document_id
      where d.project_id = $1 and d.kind = $2 and d.embedded_by = $4 and cardinality(c.embedding) = cardinality($5)
        and exists (select from unnest($3) as f (folder) where d.path = f.folder or starts_with(d.path, f.folder || ''/''))
      order by c.embedding::%1$I.vector operator(%1$I.<=>) $5::%1$I.vector, c.document_id, c.seq
      limit $6', v_schema)
    using p_project, p_kind, p_folders, p_model, p_embedding, p_most;
end $_$;
CREATE FUNCTION resource.search_words(p_project uuid, p_kind text, p_folders text[], p_words text[], p_most integer) RETURNS TABLE(document_id uuid, seq integer, score double precision)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  c_enough  constant integer := 1000;
  v_mark    text := right(p_project::text, 8);
  v_total   double precision;
  v_queries tsquery[];
  v_counts  integer[];
  v_weights double precision[];
  v_query   tsquery;
  v_sum     bigint := 0;
begin
  if current_setting('waybill.project', true) is distinct from p_project::text then
    raise exception 'a search of another project inside a unit of work' using errcode = 'WB013';
  end if;
  select coalesce(sum(d.n_chunks), 0) into v_total from resource.documents d where d.project_id = p_project;
  select array_agg(('''' || replace(replace(v_mark || w.word, '\', '\\'), '''', '''''') || '''')::tsquery order by w.n_chunks, w.word),
         array_agg(w.n_chunks order by w.n_chunks, w.word),
         array_agg(ln(1 + (v_total - w.n_chunks + 0.5) / (w.n_chunks + 0.5)) order by w.n_chunks, w.word)
    into v_queries, v_counts, v_weights
    from (select distinct u.word from unnest(p_words) as u (word)) asked
   cross join lateral (
         select w.word, w.n_chunks
           from resource.words w
          where w.project_id = p_project and w.word = asked.word and w.n_chunks > 0
         offset 0) w;
  if v_queries is null then
    return;
  end if;
  for i in 1 .. cardinality(v_queries) loop
    exit when v_query is not null and v_sum + v_counts[i] > c_enough;
    v_sum := v_sum + v_counts[i];
    v_query := case when v_query is null then v_queries[i] else v_query || v_queries[i] end;
  end loop;
  return query
  select f.document_id, f.seq, f.score
    from (select c.document_id, c.seq, c.n_tokens,
                 (select sum(w.weight) from unnest(v_queries, v_weights) as w (query, weight) where c.words @@ w.query) as score
            from (select c.document_id, c.seq, c.n_tokens, c.words
                    -- By the words first: that is what the index is for.
                    from (select c.project_id, c.document_id, c.seq, c.n_tokens, c.words
                            from resource.chunks c
                           where c.words @@ v_query
                          offset 0) c
                   cross join lateral (
                         select from resource.documents d
                          where d.document_id = c.document_id and d.project_id = p_project and d.kind = p_kind
                            and exists (select from unnest(p_folders) as f (folder)
                                         where d.path = f.folder or starts_with(d.path, f.folder || '/'))
                         offset 0) d
                   where c.project_id = p_project
                   limit 2 * c_enough) c) f
   order by f.score desc, f.n_tokens, f.document_id, f.seq
   limit p_most;
end $$;
CREATE FUNCTION scheduler.abandoned_calls(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, tool_call_id uuid, claim_token bigint, once boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select c.project_id, c.tool_call_id, c.claim_token, c.once
    from state.worker_leases l
   cross join lateral (
         select c.*
           from state.waiting_calls c
          where c.worker_id = l.worker_id and c.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = c.tool_call_id and q.sweep = 'abandoned_calls' and q.quarantined_at is not null offset 0)
          limit p_most) c
   where l.expires_at = '-infinity'
   limit p_most
$$;
CREATE FUNCTION scheduler.abandoned_turns(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
    from state.worker_leases l
   cross join lateral (
         select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
           from state.agent_inbox i
          where i.worker_id = l.worker_id and i.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'abandoned_turns' and q.quarantined_at is not null offset 0)
          limit p_most) i
   where l.expires_at = '-infinity'
   limit p_most
$$;
CREATE FUNCTION scheduler.agents_to_retire(p_most integer) RETURNS TABLE(project_id uuid, agent_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select a.project_id, a.agent_id
    from resource.project_agents a
   where a.retire_by <= now() and a.retire_by is not null and a.retired_at is null
     and not exists (select from state.agent_state_head h where h.project_id = a.project_id and h.agent_id = a.agent_id offset 0)
   order by a.retire_by
   limit p_most
$$;
CREATE FUNCTION scheduler.busiest(p_most integer) RETURNS TABLE(project_id uuid, slug text, n_pending bigint, n_processing bigint, n_waiting bigint, oldest_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT claim_token bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean, OUT profile_box_id uuid, OUT context_box_id uuid, OUT output_box_id uuid, OUT query_card_ids uuid[], OUT session_id uuid, OUT parent_agent_turn_id uuid, OUT parent_step_id uuid, OUT batch_id uuid, OUT recursion_depth integer, OUT trace_id uuid, OUT channel text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  v_row     record;
  v_project uuid := p_after;
  v_seq     bigint := 9223372036854775807;
  v_last    uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_room    bigint;
  v_measured boolean := state.is_measured();
  v_read    bigint;
  v_wrapped boolean := false;
  v_kept    boolean := false;
  v_marked  boolean;
  v_told    integer;
  v_emit    boolean;
begin
  loop
    if v_measured then
      v_read := state.entries_read();
    end if;
    select n.* into v_row from state.next_ready(p_target, v_project, v_seq, v_last) n;
    if v_row.project_id is null then
      exit when v_wrapped;
      v_wrapped := true;
      v_project := '00000000-0000-0000-0000-000000000000';
      v_seq := 9223372036854775807;
      v_last := p_after;
      continue;
    end if;
    v_project := v_row.project_id;
    v_seq := v_row.inbox_seq;
    v_room := state.room(p_target, v_project, p_in_flight_cap, 1);
    if v_measured and state.is_long(state.entries_read() - v_read) then
      v_marked := state.mark_queue(p_target, v_project);
    end if;
    if not v_kept and not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
      v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
    end if;
    if v_room <= 0 then
      v_seq := 9223372036854775807;
      continue;
    end if;
    --! claim.found
    select state.next_token(h.claim_token) into claim.claim_token
      from state.agent_state_head h
     where h.project_id = v_project and h.agent_id = v_row.agent_id
       and h.active_agent_turn_id = v_row.agent_turn_id and h.turn_epoch = v_row.turn_epoch
       and h.status in ('dispatched', 'suspended')
       for no key update skip locked;
    continue when not found;
    update state.agent_state_head h
       set status = 'running', claim_token = claim.claim_token
     where h.project_id = v_project and h.agent_id = v_row.agent_id;
    --! claim.head
    update state.agent_inbox i
       set status = 'processing', inbox_seq = default, worker_id = p_worker, claim_token = claim.claim_token, silent_by = now() + p_silence
     where i.project_id = v_project and i.agent_turn_id = v_row.agent_turn_id;
    --! claim.taken
    select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
           t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
      into claim.profile_box_id, claim.context_box_id, claim.output_box_id, claim.query_card_ids, claim.session_id,
           claim.parent_agent_turn_id, claim.parent_step_id, claim.batch_id, claim.recursion_depth, claim.trace_id, claim.channel, v_emit
      from state.turns t
     where t.project_id = v_project and t.agent_turn_id = v_row.agent_turn_id;
    claim.project_id := v_project;
    claim.agent_id := v_row.agent_id;
    claim.agent_turn_id := v_row.agent_turn_id;
    claim.turn_epoch := v_row.turn_epoch;
    claim.message_type := v_row.message_type;
    claim.n_lost_leases := v_row.n_lost_leases;
    claim.retry_count := v_row.retry_count;
    claim.stop_asked := v_row.stop_asked;
    if v_emit then
      v_told := state.tell(v_project, array[v_row.agent_turn_id], v_row.agent_id, 'running');
    end if;
    return;
  end loop;
end $$;
CREATE FUNCTION scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer, p_lease interval) RETURNS TABLE(project_id uuid, tool_call_id uuid, agent_turn_id uuid, agent_id uuid, step_id uuid, tool_call_card_id uuid, claim_token bigint, deadline_at timestamp with time zone, n_lost_leases integer, retry_count integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  v_projects uuid[] := '{}';
  v_rooms    integer[] := '{}';
  v_room     integer;
  v_only     uuid := nullif(current_setting('waybill.project', true), '')::uuid;
  v_at       uuid := p_after;
  v_wrapped  boolean := false;
  v_kept     boolean;
begin
  while cardinality(v_projects) < greatest(p_most, 2) loop
    if v_only is not null then
      exit when v_wrapped;
      v_wrapped := true;
      v_at := v_only;
    else
      select c.project_id into v_at
        from state.waiting_calls c
       where c.target = p_target and c.status = 'pending' and c.project_id > v_at
       order by c.project_id
       limit 1;
      if v_at is null or v_wrapped and v_at > p_after then
        exit when v_wrapped;
        v_wrapped := true;
        v_at := '00000000-0000-0000-0000-000000000000';
        continue;
      end if;
    end if;
    select p_in_flight_cap - count(*) into v_room
      from (select from state.waiting_calls c where c.project_id = v_at and c.status = 'processing' limit p_in_flight_cap) running;
    if v_room > 0 then
      v_projects := v_projects || v_at;
      v_rooms := v_rooms || v_room;
    end if;
  end loop;
  if v_projects = '{}' then
    return;
  end if;
  -- Of one project it is not known yet whether there is anything. Who has nothing has no lease; who is given something has a whole one.
  if v_only is not null and not exists (select from state.waiting_calls c
                                         where c.target = p_target and c.project_id = v_only and c.status = 'pending') then
    return;
  end if;
  if v_only is not null
     or not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
    v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
  end if;
  return query
  with candidate as materialized (
    select c.*
      from unnest(v_projects, v_rooms) as p (project_id, room)
     cross join lateral (
           select c.project_id, c.tool_call_id
             from state.waiting_calls c
            where c.target = p_target and c.project_id = p.project_id and c.status = 'pending'
            order by c.call_seq
            limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))
              for no key update skip locked) c
     limit p_most
  ), taken as (
    update state.waiting_calls c
       set status = 'processing', worker_id = p_worker, claim_token = state.next_token(c.claim_token)
      from candidate d
     where c.project_id = any (array[d.project_id]) and c.tool_call_id = d.tool_call_id
 returning c.*
  )
  select t.project_id, t.tool_call_id, t.agent_turn_id, t.agent_id, t.step_id, t.tool_call_card_id, t.claim_token, t.deadline_at,
         t.n_lost_leases, t.retry_count
    from taken t
   order by array_position(v_projects, t.project_id), t.call_seq;
  --! claim_calls.taken
end $$;
CREATE FUNCTION scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, p_most integer) RETURNS TABLE(project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint, message_type text, n_lost_leases integer, retry_count integer, stop_asked boolean, profile_box_id uuid, context_box_id uuid, output_box_id uuid, query_card_ids uuid[], session_id uuid, parent_agent_turn_id uuid, parent_step_id uuid, batch_id uuid, recursion_depth integer, trace_id uuid, channel text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  v_projects uuid[] := '{}';
  v_rooms    bigint[] := '{}';
  v_room     bigint;
  v_only     uuid := nullif(current_setting('waybill.project', true), '')::uuid;
  v_at       uuid := p_after;
  v_last     uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_measured boolean := state.is_measured();
  v_read     bigint;
  v_wrapped  boolean := false;
  v_kept     boolean;
  v_marked   boolean;
begin
  while cardinality(v_projects) < greatest(p_most, 2) loop
    if v_measured then
      v_read := state.entries_read();
    end if;
    if v_only is not null then
      exit when v_wrapped;
      v_wrapped := true;
      select n.project_id into v_at from state.next_ready(p_target, v_only, -9223372036854775808, v_only) n;
      exit when v_at is null;
    else
      select n.project_id into v_at from state.next_ready(p_target, v_at, 9223372036854775807, v_last) n;
      if v_at is null then
        exit when v_wrapped;
        v_wrapped := true;
        v_at := '00000000-0000-0000-0000-000000000000';
        v_last := p_after;
        continue;
      end if;
    end if;
    v_room := state.room(p_target, v_at, p_in_flight_cap, p_most);
    if v_measured and state.is_long(state.entries_read() - v_read) then
      v_marked := state.mark_queue(p_target, v_at);
    end if;
    if v_room > 0 then
      v_projects := v_projects || v_at;
      v_rooms := v_rooms || v_room;
    end if;
  end loop;
  if v_projects = '{}' then
    return;
  end if;
  -- Who has nothing has no lease; who is given something in a project's own transaction has a whole one.
  if v_only is not null
     or not exists (select from state.worker_leases l where l.worker_id = p_worker and l.expires_at > clock_timestamp()) then
    v_kept := scheduler.keep_lease(p_worker, p_target, p_lease);
  end if;
  --! claim_many.found
  return query
  with candidate as materialized (
    select i.*
      from unnest(v_projects, v_rooms) as p (project_id, room)
     cross join lateral (
           select i.*
             from (values (-4611686018427387904, 0), (0, 9223372036854775807)) as l (from_seq, end_seq)
             left join state.queue_marks m on m.worker_target = p_target and m.project_id = p.project_id
            cross join lateral (
                  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p.project_id and i.status = 'pending'
                     and i.inbox_seq >= coalesce(case when l.end_seq = 0 then m.begun_seq else m.new_seq end, l.from_seq) and i.inbox_seq < l.end_seq
                   order by i.inbox_seq
                   limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))
                     for no key update skip locked) i
            limit least(p.room, (p_most + cardinality(v_projects) - 1) / cardinality(v_projects))) i
     limit p_most
  ), free as materialized (
    select c.project_id, c.agent_id, c.agent_turn_id, c.inbox_seq
      from candidate c
     cross join lateral (
           select
             from state.agent_state_head h
            where h.project_id = c.project_id and h.agent_id = c.agent_id
              and h.active_agent_turn_id = c.agent_turn_id and h.turn_epoch = c.turn_epoch
              and h.status in ('dispatched', 'suspended')
              for no key update skip locked) h
  ), head as (
    update state.agent_state_head h
       set status = 'running', claim_token = state.next_token(h.claim_token)
      from free f
     -- Not joined on the project, so that the keys are the only way to the rows: docs/decisions/0018-plans-that-do-not-depend-on-statistics.md.
     where h.project_id = any (array[f.project_id]) and h.agent_id = f.agent_id
 returning h.project_id, f.agent_turn_id, f.inbox_seq, h.claim_token
  ), row as (
    update state.agent_inbox i
       set status = 'processing', inbox_seq = default, worker_id = p_worker, claim_token = h.claim_token, silent_by = now() + p_silence
      from head h
     where i.project_id = any (array[h.project_id]) and i.agent_turn_id = h.agent_turn_id
 returning i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type, i.n_lost_leases, i.retry_count,
           i.stop_asked, h.inbox_seq
  ), turn as materialized (
    select r.*, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
           t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
      from row r
     cross join lateral (
           select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                  t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel, t.emit_state_event
             from state.turns t
            where t.project_id = r.project_id and t.agent_turn_id = r.agent_turn_id
           offset 0) t
  ), told as (
    insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch)
    select t.project_id, t.agent_turn_id, 'state', gen_random_uuid(), t.agent_id, 'running', t.turn_epoch
      from turn t
     where t.emit_state_event
  )
  select t.project_id, t.agent_id, t.agent_turn_id, t.turn_epoch, t.claim_token, t.message_type::text, t.n_lost_leases, t.retry_count,
         t.stop_asked, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
         t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel::text
    from turn t
   order by array_position(v_projects, t.project_id), t.inbox_seq;
  --! claim_many.taken
end $$;
CREATE FUNCTION scheduler.due_turns(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, agent_turn_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select i.project_id, i.agent_turn_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select i.project_id, i.agent_turn_id
           from state.agent_inbox i
          where i.shard = s.shard and i.next_retry_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'due_turns' and q.quarantined_at is not null offset 0)
          order by i.next_retry_at
          limit p_most) i
   limit p_most
$$;
CREATE FUNCTION scheduler.end_browser_session(p_project uuid, p_hash bytea) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  delete from resource.browser_sessions s where s.project_id = p_project and s.hash = p_hash;
  return found;
end $$;
CREATE FUNCTION scheduler.end_missing_leases() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_n integer;
begin
  insert into state.worker_leases (worker_id, worker_target, expires_at)
  select w.worker_id, w.worker_target, '-infinity' from scheduler.workers_without_lease() w
      on conflict do nothing;
  get diagnostics v_n = row_count;
  return v_n;
end $$;
CREATE FUNCTION scheduler.end_worker(p_worker uuid) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  update state.worker_leases l set expires_at = '-infinity' where l.worker_id = p_worker
$$;
CREATE FUNCTION scheduler.ended_uploads(p_most integer) RETURNS TABLE(project_id uuid, upload_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select u.project_id, u.upload_id from cardbox.uploads u where u.expires_at <= now() order by u.expires_at limit p_most
$$;
CREATE FUNCTION scheduler.events_after(p_projects uuid[], p_after bigint[], p_last bigint, p_most integer) RETURNS TABLE(last_seq bigint, before bigint, open_from bigint, project_id uuid, event text, event_id uuid, outbox_seq bigint, agent_turn_id uuid, root_turn_id uuid, agent_id uuid, status text, turn_epoch bigint, step_id uuid, card_id uuid, created_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.find_browser_session(p_hash bytea) RETURNS TABLE(project_id uuid, slug text, key_id uuid, actor text, scope text, bounds jsonb, expires_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select s.project_id, p.slug, s.key_id, coalesce(s.actor, 'key:' || k.name), coalesce(s.scope, k.scope)::text, coalesce(k.bounds, '{}'),
         least(s.expires_at, k.expires_at)
    from resource.browser_sessions s
   cross join lateral (select p.slug from resource.projects p where p.project_id = s.project_id offset 0) p
    left join lateral (select k.name, k.scope, k.bounds, k.expires_at from resource.api_keys k
                        where k.project_id = s.project_id and k.key_id = s.key_id and k.revoked_at is null offset 0) k on true
   where s.hash = p_hash and least(s.expires_at, k.expires_at) > now() and (s.key_id is null or k.name is not null)
   order by p.slug
$$;
CREATE FUNCTION scheduler.find_key(p_key uuid, p_hash bytea) RETURNS TABLE(project_id uuid, slug text, name text, scope text, bounds jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select k.project_id, p.slug, k.name, k.scope::text, k.bounds
    from resource.api_keys k
    join resource.projects p on p.project_id = k.project_id
   where k.key_id = p_key and k.hash = p_hash and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;
CREATE FUNCTION scheduler.find_project(wanted text) RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select p.project_id from resource.projects p where p.slug = wanted
$$;
CREATE FUNCTION scheduler.forget_browser_sessions(p_most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_upto timestamptz;
  v_gone integer;
begin
  select s.expires_at into v_upto from resource.browser_sessions s where s.expires_at <= now() order by s.expires_at offset p_most - 1 limit 1;
  delete from resource.browser_sessions s where s.expires_at <= coalesce(v_upto, now());
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;
CREATE FUNCTION scheduler.forget_keys(p_most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_upto timestamptz;
  v_gone integer;
begin
  select k.expires_at into v_upto from state.idempotency k where k.expires_at <= now() order by k.expires_at offset p_most - 1 limit 1;
  delete from state.idempotency i where i.expires_at <= coalesce(v_upto, now());
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;
CREATE FUNCTION scheduler.forget_marks() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_gone integer;
begin
  delete from state.queue_marks m where m.marked_at < clock_timestamp() - interval '1 minute';
  get diagnostics v_gone = row_count;
  return v_gone;
end $$;
CREATE FUNCTION scheduler.held_calls(p_worker uuid) RETURNS TABLE(project_id uuid, tool_call_id uuid, agent_turn_id uuid, agent_id uuid, step_id uuid, tool_call_card_id uuid, claim_token bigint, deadline_at timestamp with time zone, n_lost_leases integer, retry_count integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select c.project_id, c.tool_call_id, c.agent_turn_id, c.agent_id, c.step_id, c.tool_call_card_id, c.claim_token, c.deadline_at,
         c.n_lost_leases, c.retry_count
    from state.waiting_calls c
   where c.worker_id = p_worker
$$;
CREATE FUNCTION scheduler.held_turns(p_worker uuid) RETURNS TABLE(project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint, message_type text, n_lost_leases integer, retry_count integer, stop_asked boolean, profile_box_id uuid, context_box_id uuid, output_box_id uuid, query_card_ids uuid[], session_id uuid, parent_agent_turn_id uuid, parent_step_id uuid, batch_id uuid, recursion_depth integer, trace_id uuid, channel text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type::text, i.n_lost_leases, i.retry_count,
         i.stop_asked, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
         t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel::text
    from state.agent_inbox i
   cross join lateral (
         select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel
           from state.turns t
          where t.project_id = i.project_id and t.agent_turn_id = i.agent_turn_id
         offset 0) t
   where i.worker_id = p_worker
$$;
CREATE FUNCTION scheduler.hold_shards(p_worker uuid, p_target text, p_lease interval) RETURNS smallint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  insert into state.worker_leases as l (worker_id, worker_target, expires_at)
  values (p_worker, p_target, clock_timestamp() + p_lease)
      on conflict (worker_id) do update
     set renewed_at = clock_timestamp(), expires_at = excluded.expires_at
   where l.expires_at > '-infinity';
  if not found then
    raise exception 'worker % has lost its lease', p_worker using errcode = 'WB005';
  end if;
  return true;
end $$;
CREATE FUNCTION scheduler.lapse_leases(p_lease interval) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.late_turns(p_wait interval) RETURNS TABLE(project_id uuid, worker_target text, oldest_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select i.project_id, i.worker_target::text, extract(epoch from clock_timestamp() - min(i.armed_at))::float8
    from state.agent_inbox i
   where i.status = 'pending' and i.armed_at < clock_timestamp() - p_wait
   group by i.project_id, i.worker_target
$$;
CREATE FUNCTION scheduler.list_projects(after text, most integer) RETURNS TABLE(project_id uuid, slug text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select p.project_id, p.slug from resource.projects p where p.slug > after order by p.slug limit most
$$;
CREATE FUNCTION scheduler.list_quarantine(p_most integer) RETURNS TABLE(project_id uuid, sweep text, subject_id uuid, n_failures integer, last_error text, first_at timestamp with time zone, last_at timestamp with time zone, quarantined_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select q.project_id, q.sweep, q.subject_id, q.n_failures, q.last_error, q.first_at, q.last_at, q.quarantined_at
    from state.quarantine q
   order by q.last_at desc
   limit p_most
$$;
CREATE FUNCTION scheduler.mark_published(p_worker uuid, p_projects uuid[], p_turns uuid[], p_events text[], p_event_ids uuid[], p_shards smallint[], p_replayed bigint[], p_made_at timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.oldest_unpublished() RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select o.agent_turn_id
    from state.outbox o
   where o.published_at is null and exists (select from state.relay_shards s where s.stream_made_at is not null)
   order by o.agent_turn_id
   limit 1
$$;
CREATE FUNCTION scheduler.outbox_lag() RETURNS TABLE(n_unpublished bigint, oldest_at timestamp with time zone, n_replaying integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select count(*), min(o.created_at), (select count(*)::integer from state.relay_shards s where s.replay_after < s.replay_upto)
    from (select o.created_at
            from state.outbox o
           where o.published_at is null
             and not exists (select from state.quarantine q
                              where q.subject_id = o.agent_id and q.sweep = 'events' and q.quarantined_at is not null offset 0)
           limit 100000) o
$$;
CREATE FUNCTION scheduler.overdue_batches(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, batch_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select b.project_id, b.batch_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select b.project_id, b.batch_id
           from state.pmo_batches b
          where b.shard = s.shard and b.closed_at is null and b.deadline_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = b.batch_id and q.sweep = 'overdue_batches' and q.quarantined_at is not null offset 0)
          order by b.deadline_at
          limit p_most) b
   limit p_most
$$;
CREATE FUNCTION scheduler.overdue_calls(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, tool_call_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select c.project_id, c.tool_call_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select c.project_id, c.tool_call_id
           from state.waiting_calls c
          where c.shard = s.shard and c.deadline_at <= now()
            and not exists (select from state.quarantine q
                             where q.subject_id = c.tool_call_id and q.sweep = 'overdue_calls' and q.quarantined_at is not null offset 0)
          order by c.deadline_at
          limit p_most) c
   limit p_most
$$;
CREATE FUNCTION scheduler.projects_on_hold() RETURNS TABLE(project_id uuid, slug text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select r.project_id, p.slug
    from resource.retention r
    left join lateral (select p.slug::text from resource.projects p where p.project_id = r.project_id offset 0) p on true
   where r.held_since is not null
$$;
CREATE FUNCTION scheduler.projects_to_retain(p_most integer) RETURNS TABLE(project_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select r.project_id from resource.retention r where r.walk_at <= now() order by r.walk_at limit p_most
$$;
CREATE FUNCTION scheduler.publish_to(p_made_at timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.ready_doors() RETURNS TABLE(project_id uuid, target text, calls boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  with recursive worker (target, project_id) as (
    (select i.worker_target::text, i.project_id from state.agent_inbox i where i.status = 'pending' order by i.worker_target limit 1)
    union all
    select n.target, n.project_id
      from worker w
     cross join lateral (select i.worker_target::text as target, i.project_id from state.agent_inbox i
                          where i.status = 'pending' and i.worker_target > w.target order by i.worker_target limit 1) n
  ), handler (target, project_id) as (
    (select c.target::text, c.project_id from state.waiting_calls c where c.status = 'pending' order by c.target limit 1)
    union all
    select n.target, n.project_id
      from handler h
     cross join lateral (select c.target::text as target, c.project_id from state.waiting_calls c
                          where c.status = 'pending' and c.target > h.target order by c.target limit 1) n
  )
  select w.project_id, w.target, false from worker w
   union all
  select h.project_id, h.target, true from handler h
$$;
CREATE FUNCTION scheduler.refuse_event(p_project uuid, p_agent uuid, p_error text, p_most integer, p_apart interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.renew_lease(p_worker uuid, p_lease interval) RETURNS TABLE(held_ids uuid[], stops boolean[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.serving(p_targets text[]) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select distinct l.worker_target::text
    from state.worker_leases l
   where l.expires_at > clock_timestamp() and l.worker_target = any (p_targets)
$$;
CREATE FUNCTION scheduler.silent_turns(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, agent_id uuid, agent_turn_id uuid, turn_epoch bigint, claim_token bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
    from state.worker_leases l
   cross join lateral (
         select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token
           from state.agent_inbox i
          where i.worker_id = l.worker_id and i.silent_by <= now() and i.shard = any (p_shards)
            and not exists (select from state.quarantine q
                             where q.subject_id = i.agent_turn_id and q.sweep = 'silent_turns' and q.quarantined_at is not null offset 0)
          limit p_most) i
   where l.expires_at > '-infinity'
   limit p_most
$$;
CREATE FUNCTION scheduler.stopping_batches(p_shards smallint[], p_most integer) RETURNS TABLE(project_id uuid, batch_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select b.project_id, b.batch_id
    from unnest(p_shards) as s (shard)
   cross join lateral (
         select b.project_id, b.batch_id
           from state.pmo_batches b
          where b.shard = s.shard and b.stopping
            and not exists (select from state.quarantine q
                             where q.subject_id = b.batch_id and q.sweep = 'stopping_batches' and q.quarantined_at is not null offset 0)
          limit p_most) b
   limit p_most
$$;
CREATE FUNCTION scheduler.unpublished(p_worker uuid, p_most integer) RETURNS TABLE(shard smallint, replayed boolean, stream_made_at timestamp with time zone, project_id uuid, channel text, agent_id uuid, agent_turn_id uuid, event text, event_id uuid, outbox_seq bigint, status text, turn_epoch bigint, step_id uuid, card_id uuid, trace_id uuid, traceparent text, tracestate text, created_at timestamp with time zone, root_turn_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.vitals() RETURNS TABLE(vital text, target text, status text, value double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION scheduler.workers(p_targets text[]) RETURNS TABLE(worker_target text, alive boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select t.worker_target,
         t.worker_target = any (array(select distinct l.worker_target::text from state.worker_leases l where l.expires_at > clock_timestamp()))
    from unnest(p_targets) as t (worker_target)
$$;
CREATE FUNCTION scheduler.workers_without_lease() RETURNS TABLE(worker_id uuid, worker_target text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION state.abandon_forks(p_project uuid, p_calls uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_batch uuid;
  v_n     integer := 0;
begin
  for v_batch in
    select b.batch_id
      from unnest(p_calls) as c (tool_call_id)
     cross join lateral (
           select b.batch_id
             from state.pmo_batches b
            where b.project_id = p_project and b.tool_call_id = c.tool_call_id and b.status = 'open'
              for no key update nowait) b
  loop
    update state.pmo_batches b set deadline_at = now() where b.project_id = p_project and b.batch_id = v_batch;
    v_n := v_n + 1;
  end loop;
  return v_n;
end $$;
CREATE FUNCTION state.allot(p_project uuid, p_parent uuid, p_asked jsonb) RETURNS integer
    LANGUAGE plpgsql
    AS $_$
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
end $_$;
CREATE FUNCTION state.append_new(p_project uuid, p_box uuid, p_cards uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_n integer;
begin
  with fresh as materialized (
    select c.card_id, row_number() over (order by min(c.n)) as n
      from unnest(p_cards) with ordinality as c (card_id, n)
     where not exists (select from cardbox.box_entries e
                        where e.project_id = p_project and e.card_id = c.card_id and e.box_id = p_box
                       offset 0)
     group by c.card_id
  ), grown as (
    update cardbox.boxes b
       set length = b.length + f.n
      from (select count(*) as n from fresh) f
     where b.project_id = p_project and b.box_id = p_box and f.n > 0
 returning b.length - f.n as before
  )
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select p_project, p_box, g.before + f.n, f.card_id
    from grown g cross join fresh f;
  get diagnostics v_n = row_count;
  return v_n;
end $$;
CREATE FUNCTION state.are_inherited(p_project uuid, p_boxes uuid[]) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select exists (select
                   from unnest(p_boxes) as u (box_id)
                  where exists (select from cardbox.box_entries e
                                 where e.project_id = p_project and e.source_box_id = u.box_id and e.box_id <> all (p_boxes)
                                offset 0))
$$;
CREATE FUNCTION state.ask(p_project uuid, p_call uuid, p_token bigint, p_timeout interval, p_cards cardbox.new_card[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  update state.waiting_calls c
     -- The asker's claim ends here: what it reports from now on is refused.
     set status = 'asking', worker_id = null, claim_token = c.claim_token + 1, request_card_id = (p_cards[1]).card_id, decision_card_id = null, deadline_at = now() + p_timeout
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing';
  if not found then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! ask.card
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, 'asked', v_call.step_id, (p_cards[1]).card_id);
  return true;
end $$;
CREATE FUNCTION state.asked_of(p_project uuid, p_turn uuid, p_calls uuid[]) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  select array(select n.card_id
                 from unnest(p_calls) as u (tool_call_id)
                cross join lateral (
                      select unnest(array[q.request_card_id, q.decision_card_id]) as card_id
                        from state.requests q
                       where q.project_id = p_project and q.tool_call_id = u.tool_call_id and q.agent_turn_id = p_turn
                       union all
                      select unnest(array[w.request_card_id, w.decision_card_id])
                        from state.waiting_calls w
                       where w.project_id = p_project and w.tool_call_id = u.tool_call_id and w.agent_turn_id = p_turn
                      offset 0) n
                where n.card_id is not null)
$$;
CREATE FUNCTION state.await_batch(p_project uuid, p_call uuid, p_token bigint, OUT awaited boolean, OUT call_target text) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  update state.waiting_calls c
     set status = 'awaiting', worker_id = null, claim_token = c.claim_token + 1
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing';
  awaited := found;
  --! fork.awaited
  -- A later statement than the call's lock: a batch that closed while we waited for it is seen.
  update state.waiting_calls c
     set status = 'pending'
   where c.project_id = p_project and c.tool_call_id = p_call and awaited
     and exists (select from state.pmo_batches b
                  where b.project_id = p_project and b.tool_call_id = p_call and b.joins_as = 'resume' and b.status <> 'open')
     and not exists (select from state.pmo_batches b
                      where b.project_id = p_project and b.tool_call_id = p_call and b.status = 'open')
  returning c.target into call_target;
end $$;
CREATE FUNCTION state.batches_of(p_project uuid, p_turn uuid, p_calls uuid[]) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  select array(select b.batch_id
                 from unnest(p_calls) as c (tool_call_id)
                cross join lateral (
                      select b.batch_id
                        from state.pmo_batches b
                       where b.project_id = p_project and b.tool_call_id = c.tool_call_id and b.parent_agent_turn_id = p_turn
                      offset 0) b)
$$;
CREATE FUNCTION state.begin_recording(p_project uuid, p_turn jsonb) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_turn    uuid := p_turn ->> 'agent_turn_id';
  v_agent   uuid := p_turn ->> 'agent_id';
  v_context uuid := p_turn ->> 'context_box_id';
  v_output  uuid := p_turn ->> 'output_box_id';
  v_source  uuid := p_turn ->> 'shares_with';
  v_departs boolean := p_turn ->> 'departs';
  v_n       integer := p_turn ->> 'n_common';
  v_parent  uuid := p_turn ->> 'parent_agent_turn_id';
  v_at      timestamptz := coalesce((p_turn ->> 'at')::timestamptz, now());
  v_box     uuid;
  v_root    uuid;
  v_depth   integer;
  v_held    integer;
begin
  -- Retired from the start: no turn of it can be started.
  insert into resource.project_agents (project_id, agent_id, worker_target, profile_name, retired_at)
  values (p_project, v_agent, 'recorded', p_turn ->> 'profile_name', now())
      on conflict do nothing;
  select t.root_turn_id, t.recursion_depth + 1 into v_root, v_depth
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = v_parent;
  if not found then
    v_parent := null;
  end if;
  insert into state.turns
         (project_id, agent_turn_id, agent_id, status, context_box_id, output_box_id, query_card_ids, parent_agent_turn_id, root_turn_id,
          recursion_depth, trace_id, traceparent, started_by, created_at, finished_at)
  values (p_project, v_turn, v_agent, 'recorded', v_context, v_output,
          array(select q.value::uuid from jsonb_array_elements_text(p_turn -> 'query_card_ids') q), v_parent, coalesce(v_root, v_turn),
          coalesce(v_depth, 0), (p_turn ->> 'trace_id')::uuid, p_turn ->> 'traceparent', p_turn ->> 'started_by', v_at, v_at)
      on conflict do nothing;
  if not found then
    return null;
  end if;
  insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
  values (p_project, v_context, v_n, v_agent, v_turn), (p_project, v_output, 0, v_agent, v_turn);
  if v_source is not null and v_n > 0 then
    select t.context_box_id into strict v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = v_source;
    v_held := cardbox.hold(p_project, '{}', array[v_box]);
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_context, r.place, r.source_box_id, r.from_seq, r.to_seq
      from cardbox.runs(p_project, v_box, 1, v_n) r;
  end if;
  insert into state.recordings (project_id, agent_turn_id, opening, tail, n_messages, departs_from, differs_at)
  values (p_project, v_turn, decode(p_turn ->> 'opening', 'hex'), decode(p_turn ->> 'opening', 'hex'), v_n,
          case when v_departs then v_source end, case when v_departs then v_n + 1 end);
  return v_n;
end $$;
CREATE FUNCTION state.boxes_of(p_project uuid, p_turn uuid, p_batches uuid[]) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  select array(select b.box_id
                 from state.turns t
                cross join lateral (values (t.context_box_id), (t.output_box_id)) as u (box_id)
                cross join lateral (
                      select b.box_id
                        from cardbox.boxes b
                       where b.project_id = p_project and b.box_id = u.box_id and b.agent_turn_id = p_turn
                      offset 0) b
                where t.project_id = p_project and t.agent_turn_id = p_turn
                union
               select k.results_box_id
                 from unnest(p_batches) as u (batch_id)
                cross join lateral (
                      select k.results_box_id from state.pmo_batches k where k.project_id = p_project and k.batch_id = u.batch_id offset 0) k
                where k.results_box_id is not null)
$$;
CREATE FUNCTION state.budget_of(p_project uuid, p_turn uuid) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
  select jsonb_build_object('steps', b.steps_left, 'tokens', b.tokens_left, 'microdollars', b.microdollars_left,
                            'seconds', extract(epoch from b.expires_at - clock_timestamp()))
    from state.budgets b
   where b.project_id = p_project and b.agent_turn_id = p_turn
$$;
CREATE FUNCTION state.calls(p_project uuid, p_calls uuid[]) RETURNS TABLE(tool_call_id uuid, agent_turn_id uuid, tool text, asked_at timestamp with time zone, answered_at timestamp with time zone, status text)
    LANGUAGE sql STABLE
    AS $$
  select q.correlation_id, q.agent_turn_id, k.tool, q.created_at, r.created_at, r.status
    from unnest(p_calls) with ordinality as asked (tool_call_id, n)
   cross join lateral (
         select q.*
           from state.execution_edges q
          where q.project_id = p_project and q.correlation_id = asked.tool_call_id and q.primitive = 'command' and q.edge_phase = 'request'
         offset 0) q
    left join lateral (
         select r.created_at, r.status
           from state.execution_edges r
          where r.project_id = p_project and r.correlation_id = asked.tool_call_id and r.primitive = 'report' and r.edge_phase = 'response'
         offset 0) r on true
    left join lateral (
         select k.content ->> 'tool_name' as tool from cardbox.cards k where k.project_id = p_project and k.card_id = q.card_id offset 0) k on true
   order by asked.n
$$;
CREATE FUNCTION state.calls_of(p_project uuid, p_output uuid) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  select array(select distinct c.tool_call_id
                 from cardbox.box_entries e
                cross join lateral (
                      select c.tool_call_id from cardbox.cards c where c.project_id = p_project and c.card_id = e.card_id offset 0) c
                where e.project_id = p_project and e.box_id = p_output and e.card_id is not null and c.tool_call_id is not null)
$$;
CREATE FUNCTION state.catch_up(p_project uuid, p_turn uuid) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_last   record;
  v_box    uuid;
  v_before bigint;
  v_n      bigint;
  v_added  integer := 0;
begin
  select t.context_box_id into v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  for v_last in
    select h.source_box_id, h.upto, h.agent_id, h.source_agent_id, h.tool_suffix, h.rule, h.via, b.length
      from (select distinct on (h.rule) h.*
              from state.handovers h
             where h.project_id = p_project and h.context_box_id = v_box and (h.rule = 'session' or h.rule = 'memory' and h.via = 'own')
             order by h.rule, h.part desc) h
     cross join lateral (
           select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = h.source_box_id offset 0) b
     where b.length > h.upto
     order by h.rule
  loop
    v_n := v_last.length - v_last.upto;
    update cardbox.boxes b
       set length = b.length + v_n
     where b.project_id = p_project and b.box_id = v_box
   returning b.length - v_n into v_before;
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_box, v_before + r.place - v_last.upto, r.source_box_id, r.from_seq, r.to_seq
      from cardbox.runs(p_project, v_last.source_box_id, v_last.upto + 1, v_last.length) r;
    insert into state.handovers
           (project_id, context_box_id, part, agent_id, source_agent_id, tool_suffix, rule, from_seq, n_cards, source_box_id, upto, via)
    select p_project, v_box, max(m.part) + 1, v_last.agent_id, v_last.source_agent_id, v_last.tool_suffix, v_last.rule, v_before + 1, v_n,
           v_last.source_box_id, v_last.length, v_last.via
      from state.handovers m
     where m.project_id = p_project and m.context_box_id = v_box;
    v_added := v_added + v_n;
  end loop;
  return v_added;
end $$;
CREATE FUNCTION state.check_quota(p_project uuid, p_more integer) RETURNS boolean
    LANGUAGE plpgsql
    AS $_$
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
end $_$;
CREATE FUNCTION state.close_batch(p_project uuid, p_batch uuid, p_status text, p_results uuid, p_cards cardbox.new_card[]) RETURNS TABLE(worker_target text, call_target text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_batch    state.pmo_batches;
  v_target   text;
  v_external boolean;
begin
  update state.pmo_batches b
     set status = p_status, closed_at = now(), results_box_id = p_results,
         stopping = exists (select from state.pmo_batch_tasks t
                             where t.project_id = p_project and t.batch_id = p_batch and t.status = 'open')
   where b.project_id = p_project and b.batch_id = p_batch and b.status = 'open'
 returning b.* into v_batch;
  if not found then
    raise exception 'batch % was closed before', p_batch using errcode = 'WB001', detail = p_batch::text;
  end if;
  --! join.closed
  -- Where a task is still open, its turn may be counting down just now, with the slot locked and waiting for the batch: then state.settle_batch
  -- does it.
  if not v_batch.stopping then
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = p_batch;
  end if;
  --! join.slots
  insert into state.execution_edges (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, card_id, status)
  values (p_project, p_batch, 'join', 'response', v_batch.parent_agent_turn_id, v_batch.parent_agent_id, (p_cards[1]).card_id, p_status);
  --! join.edge
  if p_results is not null then
    with result as (
      select row_number() over (order by k.task_index) as seq, k.deliverable_card_id
        from state.pmo_batch_tasks k
       where k.project_id = p_project and k.batch_id = p_batch and k.deliverable_card_id is not null
    ), made as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id)
      select p_project, p_results, count(*), v_batch.parent_agent_id from result
    )
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, p_results, r.seq, r.deliverable_card_id from result r;
  end if;
  --! join.results
  if v_batch.joins_as = 'resume' then
    -- Under its lock: a child that hands it over to us just now waits, and sees that the batch is closed.
    perform from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = v_batch.tool_call_id for no key update;
    update state.waiting_calls c
       set status = 'pending', retry_count = 0
     where c.project_id = p_project and c.tool_call_id = v_batch.tool_call_id and c.status = 'awaiting'
 returning c.target into v_target;
    --! join.resumed
    return query select null::text, v_target;
    return;
  end if;
  v_external := exists (select from state.pmo_batch_tasks k
                         where k.project_id = p_project and k.batch_id = p_batch
                           and exists (select from cardbox.cards c
                                        where c.project_id = p_project and c.card_id = k.deliverable_card_id and c.is_external
                                       offset 0));
  return query
  select r.worker_target, null::text
    from state.report(p_project, v_batch.tool_call_id, null, 'tool_result', p_status, v_external, p_cards) r;
end $$;
CREATE FUNCTION state.count_down(p_project uuid, p_turns uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_task   record;
  v_counted jsonb := '[]';
begin
  for v_task in
    select t.batch_id, t.task_index, t.agent_turn_id, t.status, t.deliverable_card_id, t.output_box_id, t.length
      from unnest(p_turns) as e (agent_turn_id)
     cross join lateral (
           select t.batch_id, t.task_index, t.agent_turn_id, t.status::text, t.deliverable_card_id, t.output_box_id, b.length
             from state.turns t
            cross join lateral (
                  select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id offset 0) b
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id and t.batch_id is not null
           offset 0) t
     order by t.batch_id, t.task_index
  loop
    update state.pmo_batch_tasks k
       set status = v_task.status, deliverable_card_id = v_task.deliverable_card_id, output_box_id = v_task.output_box_id,
           output_length = v_task.length
     where k.project_id = p_project and k.batch_id = v_task.batch_id and k.task_index = v_task.task_index
       and k.agent_turn_id = v_task.agent_turn_id and k.status = 'open';
    if found then
      v_counted := v_counted || jsonb_build_object('batch_id', v_task.batch_id, 'slot', v_task.task_index % 16,
                                                   'failed', (v_task.status <> 'success')::integer);
    end if;
  end loop;
  --! finish.tasks
  return state.count_slots(p_project, v_counted);
end $$;
CREATE FUNCTION state.count_slots(p_project uuid, p_counted jsonb) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_slot   record;
  v_left   integer;
  v_done   uuid[] := '{}';
begin
  for v_slot in
    select c.batch_id, c.slot, count(*)::integer as n, sum(c.failed)::integer as failed
      from jsonb_to_recordset(p_counted) as c (batch_id uuid, slot smallint, failed integer)
     group by c.batch_id, c.slot
     order by c.batch_id, c.slot
  loop
    update state.pmo_batch_slots s
       set remaining = s.remaining - v_slot.n
     where s.project_id = p_project and s.batch_id = v_slot.batch_id and s.slot = v_slot.slot
 returning s.remaining into v_left;
    --! finish.slot
    if v_left = 0 then
      update state.pmo_batches b
         set open_slots = b.open_slots - 1
       where b.project_id = p_project and b.batch_id = v_slot.batch_id
   returning b.open_slots into v_left;
      if v_left = 0 then
        v_done := v_done || v_slot.batch_id;
      end if;
    end if;
    if v_slot.failed > 0 and v_slot.batch_id <> all (v_done)
       and exists (select from state.pmo_batches b
                    where b.project_id = p_project and b.batch_id = v_slot.batch_id and b.fail_fast) then
      v_done := v_done || v_slot.batch_id;
    end if;
  end loop;
  --! finish.batch
  return v_done;
end $$;
CREATE FUNCTION state.decide(p_project uuid, p_call uuid, p_status text, p_timeout interval, p_cards cardbox.new_card[]) RETURNS TABLE(outcome text, agent_turn_id uuid, target text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_call    state.waiting_calls;
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  if not found then
    return query select 'gone'::text, null::uuid, null::text;
    return;
  end if;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  -- Again, now that no other caller is at it.
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call for update;
  if not found or v_call.status <> 'asking' then
    return query select case when v_call.decision_card_id = (p_cards[1]).card_id then 'duplicate' else 'gone' end, v_call.agent_turn_id, null::text;
    return;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  --! decide.card
  update state.waiting_calls c
     set status = 'pending', decision_card_id = (p_cards[1]).card_id, deadline_at = now() + p_timeout, retry_count = 0
   where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.requests as q (project_id, tool_call_id, agent_turn_id, agent_id, tool_call_card_id, request_card_id, deadline_at, decision,
                                   decision_card_id, decided_by)
  values (p_project, p_call, v_call.agent_turn_id, v_call.agent_id, v_call.tool_call_card_id, v_call.request_card_id, v_call.deadline_at, p_status,
          (p_cards[1]).card_id, coalesce((p_cards[1]).content::json ->> 'by', ''))
      on conflict (project_id, tool_call_id) do update
         set request_card_id = excluded.request_card_id, deadline_at = excluded.deadline_at, decision = excluded.decision,
             decision_card_id = excluded.decision_card_id, decided_by = excluded.decided_by, decided_at = excluded.decided_at;
  --! decide.recorded
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, step_id, card_id)
  values (p_project, v_call.agent_turn_id, 'request', (p_cards[1]).card_id, v_call.agent_id, p_status, v_call.step_id, (p_cards[1]).card_id);
  --! decide.armed
  return query select 'decided'::text, v_call.agent_turn_id, v_call.target::text;
end $$;
CREATE FUNCTION state.end_turn(p_project uuid, p_end state.ending, p_active boolean, p_queued integer, p_keeps boolean, p_alone boolean, p_cards cardbox.new_card[], OUT worker_target text, OUT batch_id uuid, OUT was_told boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_written integer;
  v_labelled text;
  v_n      integer := cardinality(p_cards);
  v_answer uuid := (p_cards[v_n]).card_id;
  v_turn   record;
  v_external boolean;
  v_length bigint;
  v_next   uuid;
  v_epoch  bigint;
  v_calls  uuid[];
  v_forks  integer;
  v_told   integer;
  v_left   jsonb;
begin
  update state.turns t
     set status = p_end.status, finished_at = now(), deliverable_card_id = v_answer, turn_epoch = p_end.turn_epoch,
         claim_token = p_end.claim_token
   where t.project_id = p_project and t.agent_turn_id = p_end.agent_turn_id and t.status = 'open'
  returning t.context_box_id, t.output_box_id, t.batch_id, t.recursion_depth, t.trace_id, t.emit_state_event, t.session_id, t.query_card_ids,
            t.steer_card_ids
    into v_turn;
  if not found then
    raise exception 'turn % has its deliverable already', p_end.agent_turn_id using errcode = 'WB003', detail = p_end.agent_turn_id::text;
  end if;
  if v_turn.batch_id is not null and p_alone then
    raise exception 'a task of a batch ends in a unit of work, which may have to join the batch' using errcode = 'WB014';
  end if;
  end_turn.was_told := v_turn.steer_card_ids <> '{}';
  --! finish.turn
  -- As state.saw_external, with what is in hand.
  update cardbox.boxes b
     set length = b.length + v_n
   where b.project_id = p_project and b.box_id = v_turn.output_box_id
  returning b.length, b.has_external
            or exists (select from cardbox.boxes c where c.project_id = p_project and c.box_id = v_turn.context_box_id and c.has_external)
    into v_length, v_external;
  if not v_external and v_turn.session_id is not null then
    v_external := state.session_saw_external(p_project, v_turn.session_id);
  end if;
  v_labelled := state.label(v_external);
  v_written := cardbox.put(p_project, p_cards);
  --! finish.cards
  insert into cardbox.box_entries (project_id, box_id, seq, card_id)
  select p_project, v_turn.output_box_id, v_length - v_n + c.ordinality, c.card_id
    from unnest(p_cards) with ordinality c;
  --! finish.entries
  if p_end.step_id is not null then
    insert into state.agent_steps
           (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq,
            provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
    select p_project, p_end.agent_turn_id, p_end.step_id, p_end.agent_id, p_end.turn_epoch, p_end.claim_token, 'finished',
           v_length - v_n + 1, v_length, u.*
      from jsonb_to_record(coalesce(p_end.usage, '{}')) as u
           (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
            n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean);
  end if;
  --! finish.step
  delete from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = p_end.agent_turn_id;
  with gone as (
    delete from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = p_end.agent_turn_id returning c.tool_call_id
  )
  select array_agg(g.tool_call_id) into v_calls from gone g;
  if v_calls is not null then
    v_forks := state.abandon_forks(p_project, v_calls);
  end if;
  --! finish.inbox
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id, card_id)
  values (p_project, p_end.agent_turn_id, 'task', p_end.agent_turn_id, p_end.agent_id, p_end.status, p_end.turn_epoch, p_end.step_id,
          v_answer);
  --! finish.event
  -- A later statement than the head's lock: an enqueue that waited for us, or that we waited for, is seen.
  if p_queued > 0 then
    select i.agent_turn_id, i.worker_target into v_next, end_turn.worker_target
      from state.agent_inbox i
     where i.project_id = p_project and i.agent_id = p_end.agent_id and i.status = 'queued'
     order by i.inbox_seq
     limit 1;
    update state.agent_state_head h
       set status = 'dispatched', active_agent_turn_id = v_next, turn_epoch = h.turn_epoch + 1, n_queued = h.n_queued - 1
     where h.project_id = p_project and h.agent_id = p_end.agent_id
    returning h.turn_epoch into v_epoch;
    update state.agent_inbox i
       set status = 'pending', inbox_seq = default, turn_epoch = v_epoch, armed_at = now(), dispatched_at = now()
     where i.project_id = p_project and i.agent_turn_id = v_next;
  end if;
  if v_turn.emit_state_event and p_active or v_next is not null then
    v_told := state.tell(p_project, array[case when p_active then p_end.agent_turn_id end, v_next], p_end.agent_id, null);
  end if;
  --! finish.next
  if v_turn.batch_id is not null then
    end_turn.batch_id := (state.count_down(p_project, array[p_end.agent_turn_id]))[1];
  end if;
  --! finish.counted
  if p_end.usage is not null then
    v_left := state.spend(p_project, p_end.agent_turn_id, p_end.usage);
  end if;
  -- What it has left goes back; the question and the answer join the session's memory, by reference and once. Where a batch is to be joined, the
  -- parent's head comes first: a child that joins does both.
  if end_turn.batch_id is null
     and exists (select from state.budgets b where b.project_id = p_project and b.agent_turn_id = p_end.agent_turn_id) then
    v_told := state.settle(p_project, array[p_end.agent_turn_id]);
  end if;
  --! finish.settled
  if v_turn.session_id is not null and end_turn.batch_id is null then
    v_told := state.remember(p_project, v_turn.session_id, v_turn.query_card_ids || v_turn.steer_card_ids || v_answer);
  end if;
  --! finish.remembered
  if p_keeps then
    v_told := state.part(p_project, array[p_end.agent_id], array[p_end.agent_turn_id]);
  end if;
  if v_next is not null then
    v_told := state.catch_up(p_project, v_next);
  end if;
  --! finish.parted
end $$;
CREATE FUNCTION state.enqueue(p_project uuid, p_new state.new_turn, p_cards cardbox.new_card[], OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT worker_target text, OUT duplicate boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_known  record;
  v_later  boolean;
  v_within boolean;
  v_started_by   text;
  v_on_behalf_of text;
  v_root   uuid;
begin
  v_entered := state.enter(p_project);
  enqueue.agent_turn_id := p_new.agent_turn_id;
  enqueue.duplicate := false;
  -- The turn's id is its key: the same id for another agent is not a replay.
  select t.agent_id, t.dispatched_epoch into v_known
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_new.agent_turn_id;
  if found then
    if v_known.agent_id <> p_new.agent_id then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002', detail = p_new.agent_turn_id::text;
    end if;
    enqueue.duplicate := true;
    enqueue.turn_epoch := v_known.dispatched_epoch;
    return;
  end if;
  if p_new.agent_turn_id > state.horizon() then
    raise exception 'the id of a turn is not of the present time' using errcode = '23514', constraint = 'of_the_present';
  end if;
  if p_new.agent_turn_id < state.yesterday() and not state.has_partitions(p_new.agent_turn_id) then
    raise exception 'the history of a turn with this id has no partition' using errcode = '23514', constraint = 'of_the_past';
  end if;
  -- Of an idle agent it is dispatched, behind another it queues up. What is not yet due does neither. The agent's lock comes with it: whatever is
  -- looked up later is as this lock left it. A replay that was not seen above fails at the turn's key, and is retried.
  v_later := coalesce(p_new.not_before > now(), false);
  loop
    if v_later then
      select null::bigint, h.worker_target into enqueue.turn_epoch, enqueue.worker_target
        from state.agent_state_head h
       where h.project_id = p_project and h.agent_id = p_new.agent_id
         for no key update;
    else
      update state.agent_state_head h
         set status = case h.status when 'idle' then 'dispatched' else h.status end,
             active_agent_turn_id = coalesce(h.active_agent_turn_id, p_new.agent_turn_id),
             turn_epoch = h.turn_epoch + (h.status = 'idle')::integer,
             n_queued = h.n_queued + (h.status <> 'idle')::integer
       where h.project_id = p_project and h.agent_id = p_new.agent_id
      returning case when h.active_agent_turn_id = p_new.agent_turn_id then h.turn_epoch end, h.worker_target
        into enqueue.turn_epoch, enqueue.worker_target;
    end if;
    exit when found;
    -- One that was here for its turns only has a head again.
    perform from state.rebuild_head(p_project, p_new.agent_id);
  end loop;
  --! enqueue.locked
  if p_new.parent_agent_turn_id is null then
    v_started_by := nullif(current_setting('waybill.actor', true), '');
    v_on_behalf_of := nullif(current_setting('waybill.on_behalf_of', true), '');
  else
    select t.started_by, t.on_behalf_of, t.root_turn_id into v_started_by, v_on_behalf_of, v_root
      from state.turns t where t.project_id = p_project and t.agent_turn_id = p_new.parent_agent_turn_id;
  end if;
  insert into state.turns
         (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
          source_agent_id, parent_agent_turn_id, root_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth,
          trace_id, traceparent, tracestate, emit_state_event, started_by, on_behalf_of, dispatched_epoch)
  values (p_project, p_new.agent_turn_id, p_new.agent_id, coalesce(p_new.channel, 'public'), p_new.profile_box_id,
          p_new.context_box_id, p_new.output_box_id, p_new.query_card_ids, p_new.session_id, p_new.source_agent_id,
          p_new.parent_agent_turn_id, coalesce(v_root, p_new.parent_agent_turn_id, p_new.agent_turn_id), p_new.parent_step_id,
          p_new.parent_tool_call_id, p_new.batch_id, p_new.task_index, p_new.recursion_depth, p_new.trace_id, p_new.traceparent, p_new.tracestate, p_new.emit_state_event, v_started_by, v_on_behalf_of,
          enqueue.turn_epoch);
  v_within := state.check_quota(p_project, 1);
  if p_new.session_id is not null and not exists (
       select from state.blackboards b where b.project_id = p_project and b.session_id = p_new.session_id) then
    raise exception 'no such session' using errcode = 'WB404', detail = p_new.session_id::text;
  end if;
  if p_new.batch_id is not null then
    -- Its task is still to be done, and by this turn? The task's lock orders this with the end of the batch.
    perform from state.pmo_batch_tasks k
      where k.project_id = p_project and k.batch_id = p_new.batch_id and k.task_index = p_new.task_index
        and k.agent_turn_id = p_new.agent_turn_id and k.status = 'open'
        for no key update;
    if not found or not exists (select from state.pmo_batches b
                                 where b.project_id = p_project and b.batch_id = p_new.batch_id and b.status = 'open') then
      raise exception 'the batch of turn % has ended', p_new.agent_turn_id using errcode = 'WB001', detail = p_new.agent_turn_id::text;
    end if;
  end if;
  --! enqueue.turn
  v_written := cardbox.put(p_project, p_cards);
  --! enqueue.cards
  if p_new.context_card_ids is null then
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
    values (p_project, p_new.output_box_id, 0, p_new.agent_id, p_new.agent_turn_id);
  else
    insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
    values (p_project, p_new.output_box_id, 0, p_new.agent_id, p_new.agent_turn_id),
           (p_project, p_new.context_box_id, cardinality(p_new.context_card_ids), p_new.agent_id, p_new.agent_turn_id);
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, p_new.context_box_id, c.seq, c.card_id
      from unnest(p_new.context_card_ids) with ordinality as c (card_id, seq);
  end if;
  --! enqueue.boxes
  insert into state.agent_inbox
         (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, next_retry_at, dispatched_at)
  values (p_project, p_new.agent_turn_id, p_new.agent_id,
          case when v_later then 'deferred' when enqueue.turn_epoch is null then 'queued' else 'pending' end,
          enqueue.worker_target, enqueue.turn_epoch, case when v_later then p_new.not_before end,
          case when enqueue.turn_epoch is not null then now() end);
  --! enqueue.row
  if p_new.emit_state_event and enqueue.turn_epoch is not null then
    v_written := state.tell(p_project, array[p_new.agent_turn_id], p_new.agent_id, 'dispatched');
  end if;
  if p_new.limits is not null or p_new.parent_agent_turn_id is not null then
    v_written := state.allot(p_project, p_new.parent_agent_turn_id, jsonb_build_array(
      jsonb_build_object('agent_turn_id', p_new.agent_turn_id, 'limits', p_new.limits, 'shares', p_new.shares)));
  end if;
  --! enqueue.allotted
end $$;
CREATE FUNCTION state.enqueue_many(p_project uuid, p_agents uuid[], p_turns state.new_turn[], p_cards cardbox.new_card[]) RETURNS TABLE(agent_turn_id uuid, turn_epoch bigint, worker_target text, duplicate boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_locked integer;
  v_here   uuid[];
  v_children integer;
  v_batches uuid[];
  v_new    uuid[];
  v_sessions uuid[];
  v_unknown uuid[];
  v_agent  record;
  v_within boolean;
  v_count  integer := cardinality(p_turns);
begin
  v_entered := state.enter(p_project);
  -- The agents' locks, in one order for everybody. Whatever is looked up later is as these locks left it.
  v_here := state.lock_heads(p_project, p_agents);
  if cardinality(v_here) <> cardinality(p_agents) then
    -- Those that were here for their turns only have a head again for a new one, and not for one that is over.
    perform state.rebuild_head(p_project, a.agent_id)
       from (select distinct t.agent_id
               from unnest(p_turns) t
              where t.agent_id <> all (v_here)
                and not exists (select from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0)
              order by t.agent_id) a;
  end if;
  --! enqueue_many.locked
  v_new := array(select t.agent_turn_id
                   from unnest(p_turns) t
                  where not exists (select from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0));
  select count(t.batch_id), array_agg(distinct t.batch_id) filter (where t.batch_id is not null),
         array_agg(distinct t.session_id) filter (where t.session_id is not null)
    into v_children, v_batches, v_sessions
    from unnest(p_turns) t
   where t.agent_turn_id = any (v_new);
  if v_children > 0 then
    -- Their tasks are still to be done, and by these turns? The tasks' locks order this with the end of a batch.
    perform from (
           select t.*
             from unnest(p_turns) t
            where t.batch_id is not null and t.agent_turn_id = any (v_new)
            order by t.batch_id, t.task_index
           offset 0) t
     cross join lateral (
           select k.task_index
             from state.pmo_batch_tasks k
            where k.project_id = p_project and k.batch_id = t.batch_id and k.task_index = t.task_index
              and k.agent_turn_id = t.agent_turn_id and k.status = 'open'
              for no key update) k;
    get diagnostics v_locked = row_count;
    if v_locked <> v_children or exists (
         select from unnest(v_batches) as u (batch_id)
          where not exists (select from state.pmo_batches b
                             where b.project_id = p_project and b.batch_id = u.batch_id and b.status = 'open'
                            offset 0)) then
      raise exception 'a batch of these turns has ended' using errcode = 'WB001', detail = array_to_string(v_new, ',');
    end if;
  end if;
  if v_sessions is not null then
    select array_agg(s.session_id) into v_unknown
      from unnest(v_sessions) as s (session_id)
     where not exists (select from state.blackboards b where b.project_id = p_project and b.session_id = s.session_id offset 0);
    if v_unknown is not null then
      raise exception 'no such session' using errcode = 'WB404', detail = array_to_string(v_unknown, ',');
    end if;
  end if;
  --! enqueue_many.turn
  if v_new <> '{}' then
    if exists (select from unnest(v_new) as n (agent_turn_id) where n.agent_turn_id > state.horizon()) then
      raise exception 'the id of a turn is not of the present time' using errcode = '23514', constraint = 'of_the_present';
    end if;
    if exists (select from unnest(v_new) as n (agent_turn_id)
                where n.agent_turn_id < state.yesterday() and not state.has_partitions(n.agent_turn_id)) then
      raise exception 'the history of a turn with this id has no partition' using errcode = '23514', constraint = 'of_the_past';
    end if;
    v_within := state.check_quota(p_project, cardinality(v_new));
    v_written := cardbox.put(p_project, p_cards);
    --! enqueue_many.cards
    with asked as materialized (
      select t.*
        from unnest(p_turns) t
       where t.agent_turn_id = any (v_new)
    ), box as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
      select p_project, a.output_box_id, 0, a.agent_id, a.agent_turn_id from asked a
       union all
      select p_project, a.context_box_id, cardinality(a.context_card_ids), a.agent_id, a.agent_turn_id from asked a where a.context_card_ids is not null
    )
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, a.context_box_id, c.seq, c.card_id
      from asked a cross join lateral unnest(a.context_card_ids) with ordinality as c (card_id, seq);
    --! enqueue_many.boxes
    -- The first of an idle agent is dispatched, the others queue up behind. What is not yet due does neither.
    for v_agent in
      select t.agent_id, (array_agg(t.agent_turn_id order by t.ordinality))[1] as first_turn_id, count(*)::integer as n
        from unnest(p_turns) with ordinality t
       where t.agent_turn_id = any (v_new) and (t.not_before > now()) is not true
       group by t.agent_id
    loop
      update state.agent_state_head h
         set status = case h.status when 'idle' then 'dispatched' else h.status end,
             active_agent_turn_id = coalesce(h.active_agent_turn_id, v_agent.first_turn_id),
             turn_epoch = h.turn_epoch + (h.status = 'idle')::integer,
             n_queued = h.n_queued + v_agent.n - (h.status = 'idle')::integer
       where h.project_id = p_project and h.agent_id = v_agent.agent_id;
    end loop;
    --! enqueue_many.heads
    return query
    with asked as materialized (
      select t.*, coalesce(t.not_before > now(), false) as later
        from unnest(p_turns) with ordinality t
       where t.agent_turn_id = any (v_new)
    ), placed as materialized (
      select a.*, h.worker_target, case when h.active_agent_turn_id = a.agent_turn_id then h.turn_epoch end as epoch
        from asked a
       cross join lateral (
             select h.worker_target::text, h.active_agent_turn_id, h.turn_epoch
               from state.agent_state_head h
              where h.project_id = p_project and h.agent_id = a.agent_id
             offset 0) h
    ), row as (
      insert into state.agent_inbox
             (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, next_retry_at, dispatched_at)
      select p_project, p.agent_turn_id, p.agent_id,
             case when p.later then 'deferred' when p.epoch is null then 'queued' else 'pending' end,
             p.worker_target, p.epoch, case when p.later then p.not_before end,
             case when p.epoch is not null then now() end
        from placed p
       order by p.ordinality
    ), turn as (
      insert into state.turns
             (project_id, agent_turn_id, agent_id, channel, profile_box_id, context_box_id, output_box_id, query_card_ids, session_id,
              source_agent_id, parent_agent_turn_id, root_turn_id, parent_step_id, parent_tool_call_id, batch_id, task_index, recursion_depth,
              trace_id, traceparent, tracestate, emit_state_event, started_by, on_behalf_of, dispatched_epoch)
      select p_project, p.agent_turn_id, p.agent_id, coalesce(p.channel, 'public'), p.profile_box_id, p.context_box_id,
             p.output_box_id, p.query_card_ids, p.session_id, p.source_agent_id, p.parent_agent_turn_id,
             coalesce(k.root_turn_id, p.parent_agent_turn_id, p.agent_turn_id), p.parent_step_id, p.parent_tool_call_id, p.batch_id, p.task_index, p.recursion_depth, p.trace_id, p.traceparent, p.tracestate, p.emit_state_event,
             case when p.parent_agent_turn_id is null then nullif(current_setting('waybill.actor', true), '') else k.started_by end,
             case when p.parent_agent_turn_id is null then nullif(current_setting('waybill.on_behalf_of', true), '') else k.on_behalf_of end,
             p.epoch
        from placed p
        left join lateral (
             select k.started_by, k.on_behalf_of, k.root_turn_id
               from state.turns k
              where k.project_id = p_project and k.agent_turn_id = p.parent_agent_turn_id
             offset 0) k on true
    )
    select p.agent_turn_id, p.epoch, p.worker_target, false from placed p;
    --! enqueue_many.rows
    if exists (select from unnest(p_turns) t where t.emit_state_event) then
      v_written := state.tell(p_project, v_new, null, 'dispatched');
    end if;
    perform state.allot(p_project, t.parent_agent_turn_id, jsonb_agg(jsonb_build_object(
              'agent_turn_id', t.agent_turn_id, 'limits', t.limits, 'shares', t.shares)))
       from unnest(p_turns) t
      where t.agent_turn_id = any (v_new) and (t.limits is not null or t.parent_agent_turn_id is not null)
      group by t.parent_agent_turn_id
      order by t.parent_agent_turn_id;
    --! enqueue_many.allotted
  end if;
  if cardinality(v_new) < v_count then
    -- The turn's id is its key: the same id for another agent is not a replay.
    if exists (select from unnest(p_turns) t
                where t.agent_turn_id <> all (v_new)
                  and not exists (select from state.turns k
                                   where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id and k.agent_id = t.agent_id
                                  offset 0)) then
      raise exception 'a turn of another agent has this id' using errcode = 'WB002';
    end if;
    return query
    select t.agent_turn_id, k.dispatched_epoch, null::text, true
      from unnest(p_turns) t
     cross join lateral (
           select k.dispatched_epoch from state.turns k where k.project_id = p_project and k.agent_turn_id = t.agent_turn_id offset 0) k
     where t.agent_turn_id <> all (v_new);
  end if;
end $$;
CREATE FUNCTION state.enter(p_project uuid) RETURNS text
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION state.entries_read() RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
  select pg_stat_get_xact_tuples_returned('state.inbox_ready'::regclass) + pg_stat_get_xact_tuples_returned('state.inbox_in_flight'::regclass)
$$;
CREATE FUNCTION state.extend_partitions() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '50ms'
    SET jit TO 'off'
    AS $$
declare
  v_missing record;
  v_used    text[] := '{}';
begin
  if not pg_try_advisory_xact_lock(hashtextextended('waybill.partitions', 0)) then
    return 0;
  end if;
  for v_missing in
    select m.parent, m.starts_at, m.ends_at from state.missing_partitions() m order by m.starts_at, m.parent
  loop
    continue when v_missing.parent = any (v_used);
    begin
      perform state.make_partition(v_missing.parent, v_missing.starts_at, v_missing.ends_at);
      return 1;
    exception
      when lock_not_available then
        v_used := v_used || v_missing.parent;
    end;
  end loop;
  if cardinality(v_used) > 0 then
    raise exception 'in use: %', array_to_string(v_used, ', ') using errcode = 'lock_not_available';
  end if;
  return 0;
end $$;
CREATE FUNCTION state.fail_tasks(p_project uuid, p_batch uuid, p_indexes integer[], p_error text) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_counted jsonb;
begin
  v_entered := state.enter(p_project);
  -- Waits for a dispatch that has a task; after that it is seen.
  perform from state.pmo_batch_tasks k
    where k.project_id = p_project and k.batch_id = p_batch and k.task_index = any (p_indexes) and k.status = 'open'
    order by k.task_index
      for no key update;
  --! fail_tasks.locked
  with failed as (
    update state.pmo_batch_tasks k
       set status = 'failed', error = p_error
     where k.project_id = p_project and k.batch_id = p_batch and k.task_index = any (p_indexes) and k.status = 'open'
       and not exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id offset 0)
 returning k.task_index
  )
  select coalesce(jsonb_agg(jsonb_build_object('batch_id', p_batch, 'slot', f.task_index % 16, 'failed', 1)), '[]') into v_counted
    from failed f;
  --! fail_tasks.failed
  return state.count_slots(p_project, v_counted);
end $$;
CREATE FUNCTION state.finish(p_project uuid, p_end state.ending, p_alone boolean, p_cards cardbox.new_card[], OUT worker_targets text[], OUT batches uuid[], OUT duplicate boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_queued integer;
  v_keeps  boolean;
  v_end    record;
begin
  v_entered := state.enter(p_project);
  update state.agent_state_head h
     set status = 'idle', active_agent_turn_id = null
   where h.project_id = p_project and h.agent_id = p_end.agent_id and h.active_agent_turn_id = p_end.agent_turn_id
     and h.turn_epoch = p_end.turn_epoch and h.claim_token = p_end.claim_token and h.status = 'running'
  returning h.n_queued, h.ephemeral or h.memory_box_id is not null into v_queued, v_keeps;
  finish.duplicate := not found;
  if finish.duplicate then
    -- Ours, and committed without our learning of it?
    perform from state.turns t
      where t.project_id = p_project and t.agent_turn_id = p_end.agent_turn_id
        and t.claim_token = p_end.claim_token and t.deliverable_card_id = (p_cards[cardinality(p_cards)]).card_id;
    if not found then
      raise exception 'turn % is no longer ours', p_end.agent_turn_id using errcode = 'WB001', detail = p_end.agent_turn_id::text;
    end if;
    finish.worker_targets := '{}';
    finish.batches := '{}';
    return;
  end if;
  --! finish.locked
  if (p_end.usage ->> 'reported')::boolean and state.is_late(p_project, p_end.agent_turn_id, p_end.receipt::json) then
    raise exception 'turn % has gone on', p_end.agent_turn_id using errcode = 'WB001', detail = p_end.agent_turn_id::text;
  end if;
  v_end := state.end_turn(p_project, p_end, true, v_queued, v_keeps, p_alone, p_cards);
  if v_end.was_told and p_end.seen is not null and state.has_unseen(p_project, p_end.agent_turn_id, p_end.seen) then
    raise exception 'turn % was told something that it has not seen', p_end.agent_turn_id using errcode = 'WB019', detail = p_end.agent_turn_id::text;
  end if;
  if p_end.receipt is not null then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt)
    values (p_project, p_end.agent_turn_id, p_end.step_id, p_end.receipt::json);
  end if;
  finish.worker_targets := array_remove(array[v_end.worker_target], null);
  finish.batches := array_remove(array[v_end.batch_id], null);
end $$;
CREATE FUNCTION state.finish_many(p_project uuid, p_agents uuid[], p_turns uuid[], p_ends state.ending[], p_alone boolean, p_cards cardbox.new_card[]) RETURNS TABLE(worker_targets text[], batches uuid[], duplicate boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_external uuid[];
  v_count    integer := cardinality(p_ends);
  v_here     uuid[];
  v_end      record;
  v_moved    integer := 0;
  v_queued   integer := 0;
  v_behind   integer;
  v_keeps    boolean := false;
  v_keeping  boolean;
  v_box      uuid;
  v_was_told boolean;
  v_epoch    bigint;
  v_children integer;
  v_call     uuid;
  v_calls    uuid[];
  v_forks    integer;
  v_emits    integer;
  v_told     integer;
  v_sessions integer;
  v_next     uuid[];
  v_targets  text[];
  v_batches  uuid[];
begin
  v_entered := state.enter(p_project);
  v_here := state.lock_heads(p_project, p_agents);
  for v_end in
    select e.*
      from unnest(p_ends) e
  loop
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null
     where h.project_id = p_project and h.agent_id = v_end.agent_id and h.active_agent_turn_id = v_end.agent_turn_id
       and h.turn_epoch = v_end.turn_epoch and h.claim_token = v_end.claim_token and h.status = 'running'
    returning h.n_queued, h.ephemeral or h.memory_box_id is not null into v_behind, v_keeping;
    if found then
      v_moved := v_moved + 1;
      v_queued := v_queued + v_behind;
      v_keeps := v_keeps or v_keeping;
    end if;
  end loop;
  if v_moved = 0 and v_count = (
       select count(*)
         from unnest(p_ends) e
        where exists (select from state.turns t
                       where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id
                         and t.claim_token = e.claim_token and t.deliverable_card_id = e.card_ids[cardinality(e.card_ids)]
                      offset 0)) then
    -- Ours, and committed without our learning of it.
    return query select '{}'::text[], '{}'::uuid[], true;
    return;
  end if;
  if v_moved <> v_count then
    raise exception 'turns are no longer ours' using errcode = 'WB001', detail = (
      select coalesce(string_agg(e.agent_turn_id::text, ','), array_to_string(p_turns, ','))
        from unnest(p_ends) e
       where not exists (select from state.agent_inbox i
                          where i.project_id = p_project and i.agent_turn_id = e.agent_turn_id
                            and i.turn_epoch = e.turn_epoch and i.claim_token = e.claim_token and i.worker_id is not null
                         offset 0));
  end if;
  --! finish_many.locked
  v_external := array(select t.agent_turn_id from unnest(p_turns) as t (agent_turn_id) where state.saw_external(p_project, t.agent_turn_id));
  v_labelled := state.label(v_external <> '{}');
  if v_external = '{}' or v_external @> p_turns then
    v_written := cardbox.put(p_project, p_cards);
  else
    -- Each by its own turn's label.
    v_labelled := state.label(false);
    v_written := cardbox.put(p_project, array(select c
                                                from unnest(p_cards) c
                                               where not exists (select from unnest(p_ends) e
                                                                  where e.agent_turn_id = any (v_external) and c.card_id = any (e.card_ids)
                                                                 offset 0)));
    v_labelled := state.label(true);
    v_written := cardbox.put(p_project, array(select c
                                                from unnest(p_cards) c
                                               where exists (select from unnest(p_ends) e
                                                              where e.agent_turn_id = any (v_external) and c.card_id = any (e.card_ids)
                                                             offset 0)));
  end if;
  --! finish_many.cards
  for v_end in
    select e.*
      from unnest(p_ends) e
  loop
    update state.turns t
       set status = v_end.status, finished_at = now(), deliverable_card_id = v_end.card_ids[cardinality(v_end.card_ids)],
           turn_epoch = v_end.turn_epoch, claim_token = v_end.claim_token
     where t.project_id = p_project and t.agent_turn_id = v_end.agent_turn_id and t.status = 'open'
    returning t.output_box_id, t.steer_card_ids <> '{}' into v_box, v_was_told;
    if not found then
      raise exception 'a turn has its deliverable already' using errcode = 'WB003';
    end if;
    if v_was_told and v_end.seen is not null and state.has_unseen(p_project, v_end.agent_turn_id, v_end.seen) then
      raise exception 'turn % was told something that it has not seen', v_end.agent_turn_id
        using errcode = 'WB019', detail = v_end.agent_turn_id::text;
    end if;
    if (v_end.usage ->> 'reported')::boolean and state.is_late(p_project, v_end.agent_turn_id, v_end.receipt::json) then
      raise exception 'turn % has gone on', v_end.agent_turn_id using errcode = 'WB001', detail = v_end.agent_turn_id::text;
    end if;
    update cardbox.boxes b
       set length = b.length + cardinality(v_end.card_ids)
     where b.project_id = p_project and b.box_id = v_box;
    delete from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = v_end.agent_turn_id;
  end loop;
  with turn as materialized (
    select t.*, e.card_ids, e.step_id, e.usage, b.length
      from unnest(p_ends) e
     cross join lateral (
           select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id offset 0) t
     cross join lateral (
           select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id offset 0) b
  ), entry as (
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, t.output_box_id, t.length - cardinality(t.card_ids) + c.n, c.card_id
      from turn t cross join lateral unnest(t.card_ids) with ordinality as c (card_id, n)
  ), step as (
    insert into state.agent_steps
           (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq,
            provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
    select p_project, t.agent_turn_id, t.step_id, t.agent_id, t.turn_epoch, t.claim_token, 'finished',
           t.length - cardinality(t.card_ids) + 1, t.length, u.*
      from turn t
     cross join lateral jsonb_to_record(coalesce(t.usage, '{}')) as u
           (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
            n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
     where t.step_id is not null
  ), event as (
    insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id, card_id)
    select p_project, t.agent_turn_id, 'task', t.agent_turn_id, t.agent_id, t.status, t.turn_epoch, t.step_id, t.deliverable_card_id
      from turn t
  )
  select count(*) filter (where t.batch_id is not null), count(*) filter (where t.emit_state_event), count(t.session_id)
    into v_children, v_emits, v_sessions
    from turn t;
  v_calls := array(select c.tool_call_id
                     from unnest(p_turns) as e (agent_turn_id)
                    cross join lateral (
                          select c.tool_call_id
                            from state.waiting_calls c
                           where c.project_id = p_project and c.agent_turn_id = e.agent_turn_id
                          offset 0) c);
  if v_calls <> '{}' then
    foreach v_call in array v_calls loop
      delete from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = v_call;
    end loop;
    v_forks := state.abandon_forks(p_project, v_calls);
  end if;
  if v_children > 0 and p_alone then
    raise exception 'a task of a batch ends in a unit of work, which may have to join the batch' using errcode = 'WB014';
  end if;
  --! finish_many.ended
  -- A later statement than the heads' locks: an enqueue that waited for us, or that we waited for, is seen.
  if v_queued > 0 then
    for v_end in
      select a.agent_id, i.agent_turn_id, i.worker_target
        from unnest(p_agents) as a (agent_id)
       cross join lateral (
             select i.agent_turn_id, i.worker_target::text
               from state.agent_inbox i
              where i.project_id = p_project and i.agent_id = a.agent_id and i.status = 'queued'
              order by i.inbox_seq
              limit 1) i
    loop
      update state.agent_state_head h
         set status = 'dispatched', active_agent_turn_id = v_end.agent_turn_id, turn_epoch = h.turn_epoch + 1, n_queued = h.n_queued - 1
       where h.project_id = p_project and h.agent_id = v_end.agent_id and h.status = 'idle'
      returning h.turn_epoch into v_epoch;
      continue when not found;
      update state.agent_inbox i
         set status = 'pending', inbox_seq = default, turn_epoch = v_epoch, armed_at = now(), dispatched_at = now()
       where i.project_id = p_project and i.agent_turn_id = v_end.agent_turn_id;
      v_next := v_next || v_end.agent_turn_id;
      v_targets := v_targets || v_end.worker_target;
    end loop;
    v_targets := array(select distinct t.target from unnest(v_targets) as t (target));
  end if;
  if v_emits > 0 or v_next is not null then
    v_told := state.tell(p_project, p_turns || v_next, null, null);
  end if;
  --! finish_many.next
  if exists (select from unnest(p_ends) e where e.receipt is not null) then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt)
    select p_project, e.agent_turn_id, e.step_id, e.receipt::json
      from unnest(p_ends) e
     where e.receipt is not null;
  end if;
  --! finish_many.receipts
  if v_children > 0 then
    v_batches := state.count_down(p_project, p_turns);
  end if;
  if exists (select from unnest(p_ends) e where e.usage is not null) then
    perform state.spend(p_project, e.agent_turn_id, e.usage)
       from unnest(p_ends) e
      where e.usage is not null;
  end if;
  if coalesce(v_batches, '{}') = '{}' then
    v_told := state.settle(p_project, p_turns);
    if v_sessions > 0 then
      v_told := state.remember_turns(p_project, p_turns);
    end if;
  end if;
  --! finish_many.remembered
  if v_keeps then
    v_told := state.part(p_project, p_agents, p_turns);
  end if;
  perform state.catch_up(p_project, n.agent_turn_id) from unnest(v_next) as n (agent_turn_id);
  --! finish_many.parted
  return query select coalesce(v_targets, '{}'), coalesce(v_batches, '{}'), false;
end $$;
CREATE FUNCTION state.first_id(p_at timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select (lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
CREATE FUNCTION state.graph(p_project uuid, p_turns uuid[]) RETURNS TABLE(agent_turn_id uuid, parent_agent_turn_id uuid, parent_tool_call_id uuid, status text, profile_name text, batch_id uuid, task_index integer, created_at timestamp with time zone, finished_at timestamp with time zone, external boolean, forked boolean, n_steps bigint, input_tokens bigint, cached_tokens bigint, output_tokens bigint, microdollars bigint)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, t.parent_agent_turn_id, t.parent_tool_call_id, t.status::text, a.profile_name, t.batch_id,
         t.task_index, t.created_at, t.finished_at,
         coalesce((select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.context_box_id)
                  or (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id), false),
         f.source_turn_id is not null,
         s.n_steps, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars
    from unnest(p_turns) with ordinality as asked (agent_turn_id, n)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = t.agent_id offset 0) a on true
    left join lateral (
         select f.source_turn_id from state.forks f where f.project_id = p_project and f.agent_turn_id = t.agent_turn_id offset 0) f on true
   cross join lateral (
         select count(*) as n_steps, coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.cached_tokens), 0)::bigint as cached_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens,
                coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s
   order by asked.n;
end $$;
CREATE FUNCTION state.graph_ids(p_project uuid, p_turn uuid, p_after uuid, p_most integer, OUT turn_ids uuid[], OUT is_cut boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
declare
  v_root  uuid;
  v_all   uuid[];
  -- The first stands before all others, whatever the clocks of their makers said.
  v_after uuid := coalesce(nullif(p_after, p_turn), '00000000-0000-0000-0000-000000000000');
begin
  is_cut := false;
  turn_ids := '{}';
  select t.root_turn_id into v_root from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if v_root = p_turn then
    if p_after is null then
      turn_ids := array[p_turn];
    end if;
    turn_ids := turn_ids || array(select t.agent_turn_id
                              from state.turns t
                             where t.root_turn_id = p_turn and t.project_id = p_project and t.root_turn_id <> t.agent_turn_id
                               and t.agent_turn_id > v_after
                             order by t.agent_turn_id
                             limit p_most);
  elsif v_root is not null then
    v_all := state.turns_below(p_project, p_turn, 10001);
    is_cut := cardinality(v_all) > 10000;
    turn_ids := array(select u.id
                     from unnest(v_all[1:10000]) as u (id)
                    where p_after is null or u.id <> p_turn and u.id > v_after
                    order by u.id <> p_turn, u.id
                    limit p_most);
  end if;
  turn_ids := turn_ids[1:p_most];
end $$;
CREATE FUNCTION state.has_partitions(p_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform pg_advisory_xact_lock_shared(hashtextextended('waybill.prune', 0));
  -- A later statement than the lock: what a prune has closed is seen.
  return p_id >= (select s.pruned_before from waybill.schema s)
     and (select bool_and(exists (select from state.partitions(h.parent) p
                                   where p.starts_at <= state.time_of(p_id::text) and state.time_of(p_id::text) < p.ends_at))
            from state.history() h);
end $$;
CREATE FUNCTION state.has_unseen(p_project uuid, p_turn uuid, p_seen bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select exists (select
                   from state.turns t
                  cross join lateral unnest(t.steer_card_ids) as s (card_id)
                  where t.project_id = p_project and t.agent_turn_id = p_turn
                    and exists (select from cardbox.box_entries e
                                 where e.project_id = p_project and e.card_id = s.card_id and e.box_id = t.output_box_id and e.seq > p_seen
                                offset 0))
$$;
CREATE FUNCTION state.history() RETURNS TABLE(parent text)
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  values ('agent_steps'), ('execution_edges'), ('outbox'), ('patches'), ('receipts'), ('refusals')
$$;
CREATE FUNCTION state.history_ahead(p_parent text) RETURNS interval
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select case when bool_or(p.starts_at <= now() and now() < p.ends_at)
              then min(p.ends_at) filter (where now() < p.ends_at and p.next_at is distinct from p.ends_at) - now()
              else interval '0' end
    from state.partitions(p_parent) p
$$;
CREATE FUNCTION state.history_since(p_project uuid, p_before timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
  v_part     record;
  v_is_there boolean;
begin
  for v_part in
    select h.parent, p.starts_at, p.ends_at,
           (select a.attname from pg_attribute a
             where a.attrelid = format('state.%I', h.parent)::regclass
               and a.attnum = (select t.partattrs[0] from pg_partitioned_table t where t.partrelid = format('state.%I', h.parent)::regclass)) as key
      from state.history() h
     cross join lateral state.partitions(h.parent) p
     where p.ends_at <= p_before
     order by p.starts_at
  loop
    execute format('select exists (select from state.%I h where h.project_id = $1 and h.%I >= $2 and h.%2$I < $3)', v_part.parent, v_part.key)
      into v_is_there using p_project, state.first_id(v_part.starts_at), state.first_id(v_part.ends_at);
    if v_is_there then
      return v_part.starts_at;
    end if;
  end loop;
  return null;
end $_$;
CREATE FUNCTION state.hold_granted() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
  v_held integer;
begin
  v_held := cardbox.hold(new.project_id, '{}', array[new.box_id]);
  return new;
end $$;
CREATE FUNCTION state.hold_source() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  perform from state.turns t where t.project_id = new.project_id and t.agent_turn_id = new.source_turn_id for key share;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = new.source_turn_id::text;
  end if;
  -- A prune that comes later sees the fork.
  if new.source_turn_id < state.yesterday() and not state.has_partitions(new.source_turn_id) then
    raise exception 'the history of this turn was dropped' using errcode = 'WB404', detail = new.source_turn_id::text;
  end if;
  return new;
end $$;
CREATE FUNCTION state.horizon() RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
  select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint + 86400000), 12, '0') || '7fff8fffffffffffffff')::uuid
$$;
CREATE FUNCTION state.is_late(p_project uuid, p_turn uuid, p_receipt json) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select exists (select
                   from state.turns t
                  cross join lateral (
                        select e.card_id
                          from cardbox.box_entries e
                         where e.project_id = p_project and e.box_id = t.output_box_id and e.seq > (p_receipt #>> '{output,upto}')::bigint
                        offset 0) e
                  where t.project_id = p_project and t.agent_turn_id = p_turn
                    and not exists (select from cardbox.cards c
                                     where c.project_id = p_project and c.card_id = e.card_id and c.type = 'task.instruction'
                                    offset 0))
$$;
CREATE FUNCTION state.is_long(n_entries bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select n_entries > coalesce(nullif(current_setting('waybill.long_look', true), ''), '500')::bigint
$$;
CREATE FUNCTION state.is_measured() RETURNS boolean
    LANGUAGE sql
    AS $$
  select random() < 0.0625 or coalesce(current_setting('waybill.long_look', true), '') <> ''
$$;
CREATE FUNCTION state.label(p_external boolean) RETURNS text
    LANGUAGE sql
    AS $$
  select set_config('waybill.external', case when p_external then 'on' else 'off' end, true)
$$;
CREATE FUNCTION state.lately(p_project uuid, p_since uuid, p_most integer, p_most_steps integer, OUT n_started bigint, OUT n_success bigint, OUT n_failed bigint, OUT n_canceled bigint, OUT n_timeout bigint, OUT microdollars bigint, OUT n_steps bigint) RETURNS record
    LANGUAGE sql STABLE
    AS $$
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
CREATE FUNCTION state.list_turns(p_project uuid, p_filter jsonb, p_since uuid, p_before uuid, p_most integer, p_look integer, OUT turn_ids uuid[], OUT looked_to uuid) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
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
CREATE FUNCTION state.listen(p_project uuid, p_agent uuid, p_turn uuid, p_epoch bigint, p_token bigint, p_silence interval) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
  v_last timestamptz;
begin
  v_entered := state.enter(p_project);
  perform from state.agent_state_head h
    where h.project_id = p_project and h.agent_id = p_agent and h.active_agent_turn_id = p_turn
      and h.turn_epoch = p_epoch and h.claim_token = p_token and h.status = 'running'
      for no key update;
  if not found then
    return true;
  end if;
  select max(s.created_at) into v_last
    from state.agent_steps s where s.project_id = p_project and s.agent_turn_id = p_turn and s.claim_token = p_token;
  if v_last is null or v_last + p_silence <= now() then
    return false;
  end if;
  update state.agent_inbox i
     set silent_by = v_last + p_silence
   where i.project_id = p_project and i.agent_turn_id = p_turn;
  return true;
end $$;
CREATE FUNCTION state.lock_batch(p_project uuid, p_batch uuid) RETURNS TABLE(tool_call_id uuid, joins_as text, fail_fast boolean, overdue boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
begin
  v_entered := state.enter(p_project);
  return query
  select b.tool_call_id, b.joins_as::text, b.fail_fast, b.deadline_at <= clock_timestamp()
    from state.pmo_batches b
   where b.project_id = p_project and b.batch_id = p_batch and b.status = 'open'
     for no key update;
end $$;
CREATE FUNCTION state.lock_heads(p_project uuid, p_agents uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION state.make_partition(p_parent text, p_starts_at timestamp with time zone, p_ends_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_name constant text := p_parent || '_' || to_char(p_starts_at at time zone 'UTC', 'YYYYMMDD');
begin
  execute format('create table parts.%I (like state.%I including all)
                    with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 0%s)', v_name, p_parent,
                 case p_parent when 'outbox' then ', autovacuum_vacuum_scale_factor = 0.02' else '' end);
  execute format('alter table state.%I attach partition parts.%I for values from (%L) to (%L)',
                 p_parent, v_name, state.first_id(p_starts_at), state.first_id(p_ends_at));
end $$;
CREATE FUNCTION state.mark_queue(p_target text, p_project uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  -- Before the locks are read: a transaction that drew this place or an earlier one holds its lock by then, or is over.
  v_drawn bigint := (select s.last_value from state.agent_inbox_inbox_seq_seq s);
  v_mark  state.queue_marks;
  v_open  text[];
  v_over  boolean;
begin
  -- The queue must be read after the locks, by a snapshot of its own: see "read committed".
  if current_setting('transaction_isolation') <> 'read committed' or not pg_try_advisory_xact_lock(hashtextextended(p_project::text, 1)) then
    return false;
  end if;
  select m.* into v_mark from state.queue_marks m where m.worker_target = p_target and m.project_id = p_project;
  -- Not with every look: it reads all locks, and a mark leaves a dead row behind when it is written.
  if v_mark.drawn_seq > v_drawn - 500 then
    return false;
  end if;
  -- A prepared transaction has no process and another name than before: it may be any of them.
  select coalesce(array_agg(o.virtualtransaction), '{}'),
         not coalesce(bool_or(o.pid is null or o.virtualtransaction = any (v_mark.open_then)), false)
    into v_open, v_over
    from pg_locks o
   where o.database = (select d.oid from pg_database d where d.datname = current_database())
     and o.relation = 'state.agent_inbox'::regclass and o.mode = 'RowExclusiveLock' and o.pid is distinct from pg_backend_pid();
  -- Nothing to begin from yet, and a writer whose places are not known.
  if not v_over and v_mark.project_id is null then
    return false;
  end if;
  insert into state.queue_marks as m
         (worker_target, project_id, begun_seq, new_seq, next_seq, open_then, marked_at, drawn_seq, n_running, running_seq)
  select p_target, p_project,
         case when v_over then least(f.begun_seq, coalesce(v_mark.next_seq, 0) - 4611686018427387904) else v_mark.begun_seq end,
         case when v_over then least(f.new_seq, coalesce(v_mark.next_seq, 0)) else v_mark.new_seq end,
         case when v_over then v_drawn else v_mark.next_seq end, case when v_over then v_open else v_mark.open_then end,
         clock_timestamp(), v_drawn, r.n_running,
         case when v_over then least(r.oldest_seq, coalesce(v_mark.next_seq, 0)) else v_mark.running_seq end
    -- The first that is ready of those that were begun, and of those that are new.
    from (select (select i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p_project and i.status = 'pending'
                     and i.inbox_seq >= coalesce(v_mark.begun_seq, -4611686018427387904) and i.inbox_seq < 0
                   order by i.inbox_seq
                   limit 1) as begun_seq,
                 (select i.inbox_seq
                    from state.agent_inbox i
                   where i.worker_target = p_target and i.project_id = p_project and i.status = 'pending'
                     and i.inbox_seq >= coalesce(v_mark.new_seq, 0)
                   order by i.inbox_seq
                   limit 1) as new_seq) f,
         (select count(*) as n_running, min(i.inbox_seq) as oldest_seq
            from state.agent_inbox i
           where i.project_id = p_project and i.status = 'processing' and i.inbox_seq >= coalesce(v_mark.running_seq, 0)) r
      on conflict (worker_target, project_id) do update
     set begun_seq = excluded.begun_seq, new_seq = excluded.new_seq, next_seq = excluded.next_seq, open_then = excluded.open_then,
         marked_at = excluded.marked_at, drawn_seq = excluded.drawn_seq, n_running = excluded.n_running, running_seq = excluded.running_seq;
  return v_over;
end $$;
CREATE FUNCTION state.memorise(p_project uuid, p_memory uuid, p_question uuid[], p_output uuid) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_length bigint;
  v_before bigint;
begin
  select b.length into v_length from cardbox.boxes b where b.project_id = p_project and b.box_id = p_output;
  if v_length <= 64 then
    return state.append_new(p_project, p_memory, p_question || array(
      select e.card_id from cardbox.box_entries e
       where e.project_id = p_project and e.box_id = p_output and e.card_id is not null
       order by e.seq));
  end if;
  perform state.append_new(p_project, p_memory, p_question);
  update cardbox.boxes b
     set length = b.length + v_length
   where b.project_id = p_project and b.box_id = p_memory
 returning b.length - v_length into v_before;
  insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
  values (p_project, p_memory, v_before + 1, p_output, 1, v_length);
  return v_length;
end $$;
CREATE FUNCTION state.memory_of(p_project uuid, p_agents uuid[], p_boxes uuid[]) RETURNS TABLE(agent_id uuid, memory_box_id uuid, output_box_id uuid)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_here    uuid[];
  v_agent   record;
  v_turn    record;
  v_n       integer;
begin
  v_entered := state.enter(p_project);
  -- A turn that ends just now is seen as ended, or finds the memory.
  v_here := state.lock_heads(p_project, p_agents);
  --! memory.locked
  for v_agent in
    select asked.agent_id, asked.box_id
      from (select u.* from unnest(p_agents, p_boxes) as u (agent_id, box_id) order by u.agent_id offset 0) asked
     cross join lateral (
           select
             from resource.project_agents a
            where a.project_id = p_project and a.agent_id = asked.agent_id and a.memory_box_id is null
              for no key update) a
  loop
    -- Another caller may have been faster while we waited for its row.
    continue when exists (select from resource.project_agents a
                           where a.project_id = p_project and a.agent_id = v_agent.agent_id and a.memory_box_id is not null);
    -- One that was cloned begins with what it was given of the other.
    with given as materialized (
      select r.*, row_number() over (order by h.part, r.place) as n
        from (select t.context_box_id
                from state.turns t
               where t.project_id = p_project and t.agent_id = v_agent.agent_id
               order by t.agent_turn_id
               limit 1) first
       cross join lateral (
             select h.part, h.source_box_id, h.upto
               from state.handovers h
              where h.project_id = p_project and h.context_box_id = first.context_box_id and h.via = 'cloned'
                -- Retention may have removed what it was taken from.
                and exists (select from cardbox.boxes b where b.project_id = p_project and b.box_id = h.source_box_id offset 0)
             offset 0) h
       cross join lateral cardbox.runs(p_project, h.source_box_id, 1, h.upto) r
    ), placed as (
      select g.*, sum(g.to_seq - g.from_seq + 1) over (order by g.n) - (g.to_seq - g.from_seq) as seq from given g
    ), made as (
      insert into cardbox.boxes (project_id, box_id, length, agent_id)
      select p_project, v_agent.box_id, coalesce(sum(g.to_seq - g.from_seq + 1), 0), v_agent.agent_id from given g
    )
    insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
    select p_project, v_agent.box_id, p.seq, p.source_box_id, p.from_seq, p.to_seq from placed p;
    for v_turn in
      select t.query_card_ids, t.output_box_id
        from state.turns t
       where t.project_id = p_project and t.agent_id = v_agent.agent_id and t.status <> 'open' and t.session_id is null
       order by t.agent_turn_id
    loop
      v_n := state.memorise(p_project, v_agent.box_id, v_turn.query_card_ids, v_turn.output_box_id);
    end loop;
    update resource.project_agents a
       set memory_box_id = v_agent.box_id
     where a.project_id = p_project and a.agent_id = v_agent.agent_id;
    update state.agent_state_head h
       set memory_box_id = v_agent.box_id
     where h.project_id = p_project and h.agent_id = v_agent.agent_id;
    --! memory.made
  end loop;
  return query
  select a.agent_id, a.memory_box_id, t.output_box_id
    from unnest(p_agents) as asked (agent_id)
   cross join lateral (
         select a.agent_id, a.memory_box_id
           from resource.project_agents a
          where a.project_id = p_project and a.agent_id = asked.agent_id
         offset 0) a
    left join lateral (
         select h.active_agent_turn_id
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = a.agent_id
         offset 0) h on true
    left join lateral (
         select t.output_box_id
           from state.turns t
          where t.project_id = p_project and t.agent_turn_id = h.active_agent_turn_id
         offset 0) t on true;
end $$;
CREATE FUNCTION state.missing_partitions() RETURNS TABLE(parent text, starts_at timestamp with time zone, ends_at timestamp with time zone)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select h.parent, m.starts_at, least((date_trunc(s.step, m.starts_at at time zone 'UTC') + s.lasts) at time zone 'UTC', m.next_at)
    from (select history_step as step, ('1 ' || history_step)::interval as lasts, now() - interval '2 days' as oldest from waybill.schema) s
   cross join state.history() h
   cross join lateral (
         select case when p.next_at is null then p.ends_at else greatest(p.ends_at, date_trunc(s.step, s.oldest, 'UTC')) end, p.next_at
           from state.partitions(h.parent) p
          where p.next_at is distinct from p.ends_at and coalesce(p.next_at > s.oldest, true)
          union all
         select date_trunc(s.step, s.oldest, 'UTC'), min(p.starts_at)
           from state.partitions(h.parent) p
         having coalesce(min(p.starts_at) > now(), true)) m (starts_at, next_at)
   where m.starts_at < now() + greatest(interval '4 weeks', 2 * s.lasts)
$$;
CREATE FUNCTION state.next_ready(p_target text, p_project uuid, p_seq bigint, p_last uuid, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT inbox_seq bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_project uuid := p_project;
  v_seq     bigint := p_seq;
  v_mark    record;
begin
  loop
    select m.project_id, m.begun_seq, m.new_seq into v_mark
      from state.queue_marks m
     where m.worker_target = p_target and m.project_id >= v_project and m.project_id <= p_last
       and (m.project_id > v_project or v_seq < 9223372036854775807)
     order by m.project_id
     limit 1;
    if v_mark.project_id is distinct from v_project then
      -- Up to the next mark. Not as a row that is less than another: of that, only the first column ends a walk along an index.
      select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
        into next_ready.project_id, next_ready.agent_id, next_ready.agent_turn_id, next_ready.turn_epoch, next_ready.inbox_seq,
             next_ready.message_type, next_ready.n_lost_leases, next_ready.retry_count, next_ready.stop_asked
        from state.agent_inbox i
       where i.worker_target = p_target and i.status = 'pending' and (i.project_id, i.inbox_seq) > (v_project, v_seq)
         and i.project_id <= p_last and i.project_id < coalesce(v_mark.project_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       order by i.project_id, i.inbox_seq
       limit 1
         for no key update skip locked;
      exit when found or v_mark.project_id is null;
      v_project := v_mark.project_id;
      v_seq := -9223372036854775808;
    end if;
    select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
      into next_ready.project_id, next_ready.agent_id, next_ready.agent_turn_id, next_ready.turn_epoch, next_ready.inbox_seq,
           next_ready.message_type, next_ready.n_lost_leases, next_ready.retry_count, next_ready.stop_asked
      -- Those that were begun, then those that are new.
      from (values (v_mark.begun_seq, 0), (v_mark.new_seq, 9223372036854775807)) as l (from_seq, end_seq)
     cross join lateral (
           select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_seq, i.message_type, i.n_lost_leases, i.retry_count, i.stop_asked
             from state.agent_inbox i
            where i.worker_target = p_target and i.project_id = v_project and i.status = 'pending'
              and i.inbox_seq > v_seq and i.inbox_seq >= l.from_seq and i.inbox_seq < l.end_seq
            order by i.inbox_seq
            limit 1
              for no key update skip locked) i
     limit 1;
    exit when found;
    v_seq := 9223372036854775807;
  end loop;
end $$;
CREATE FUNCTION state.next_token(p_token bigint) RETURNS bigint
    LANGUAGE sql
    AS $$
  select p_token + 1 + ('x' || substr(gen_random_uuid()::text, 28))::bit(36)::bigint
$$;
CREATE FUNCTION state.open_batch(p_project uuid, p_call uuid, p_token bigint, p_batch jsonb) RETURNS TABLE(batch_id uuid, duplicate boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_call    state.waiting_calls;
  v_known   uuid;
  v_batch   uuid := p_batch ->> 'batch_id';
  v_stage   smallint := p_batch ->> 'stage';
  v_n       integer := jsonb_array_length(p_batch -> 'tasks');
  v_timeout interval := make_interval(secs => (p_batch ->> 'timeout_seconds')::double precision);
begin
  v_entered := state.enter(p_project);
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  perform from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_call.agent_id for no key update;
  --! fork.locked
  select b.batch_id into v_known from state.pmo_batches b
   where b.project_id = p_project and b.tool_call_id = p_call and b.stage = v_stage;
  if found then
    return query select v_known, true;
    return;
  end if;
  select c.* into v_call from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call for no key update;
  if not found then
    raise exception 'no such call' using errcode = 'WB404', detail = p_call::text;
  end if;
  if v_call.claim_token <> p_token or v_call.status <> 'processing' then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  insert into state.pmo_batches
         (project_id, batch_id, parent_agent_turn_id, parent_agent_id, tool_call_id, stage, joins_as, fail_fast, n_tasks, open_slots,
          deadline_at)
  values (p_project, v_batch, v_call.agent_turn_id, v_call.agent_id, p_call, v_stage, p_batch ->> 'joins_as',
          (p_batch ->> 'fail_fast')::boolean, v_n, least(v_n, 16), now() + v_timeout);
  --! fork.batch
  insert into state.pmo_batch_tasks (project_id, batch_id, task_index, agent_id, agent_turn_id)
  select p_project, v_batch, t.n - 1, t.agent_id, t.agent_turn_id
    from rows from (jsonb_to_recordset(p_batch -> 'tasks') as (agent_id uuid, agent_turn_id uuid)) with ordinality
         as t (agent_id, agent_turn_id, n);
  -- Only slots that count something: an empty one would never reach zero.
  insert into state.pmo_batch_slots (project_id, batch_id, slot, remaining)
  select p_project, v_batch, s, (v_n - s + 15) / 16 from generate_series(0, least(v_n, 16) - 1) s;
  --! fork.tasks
  -- The parent's wait is derived from the batch's: the batch ends first. The call stays claimed until the children are dispatched.
  update state.waiting_calls c
     set deadline_at = now() + v_timeout + interval '1 minute'
   where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.execution_edges (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id)
  values (p_project, v_batch, 'join', 'request', v_call.agent_turn_id, v_call.agent_id);
  --! fork.edge
  return query select v_batch, false;
end $$;
CREATE FUNCTION state.open_work(p_project uuid, p_most integer) RETURNS TABLE(kind text, name text, n bigint, oldest_at timestamp with time zone, n_seen bigint)
    LANGUAGE plpgsql STABLE
    AS $$
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
CREATE FUNCTION state.part(p_project uuid, p_agents uuid[], p_turns uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_turn  record;
  v_agent uuid;
  v_n     integer := 0;
begin
  for v_turn in
    select h.memory_box_id, t.query_card_ids, t.output_box_id
      from unnest(p_turns) with ordinality as e (agent_turn_id, n)
     cross join lateral (
           select t.agent_id, t.query_card_ids, t.output_box_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id and t.session_id is null
           offset 0) t
     cross join lateral (
           select h.memory_box_id
             from state.agent_state_head h
            where h.project_id = p_project and h.agent_id = t.agent_id
           offset 0) h
     where h.memory_box_id is not null
     order by e.n
  loop
    v_n := v_n + state.memorise(p_project, v_turn.memory_box_id, v_turn.query_card_ids, v_turn.output_box_id);
  end loop;
  -- One row at a time: see docs/decisions/0018-plans-that-do-not-depend-on-statistics.md.
  foreach v_agent in array p_agents loop
    -- Idle and with no turn behind, it can have turns only that are to start later.
    delete from state.agent_state_head h
     where h.project_id = p_project and h.agent_id = v_agent and h.ephemeral and h.status = 'idle' and h.n_queued = 0
       and not exists (select from state.agent_inbox i
                        where i.agent_id = v_agent and i.project_id = p_project and i.next_retry_at is not null);
    if found then
      -- After a long turn it is not retired at once.
      update resource.project_agents a
         set retire_by = now() + interval '1 day'
       where a.project_id = p_project and a.agent_id = v_agent and a.retire_by < now() + interval '12 hours';
    end if;
  end loop;
  return v_n;
end $$;
CREATE FUNCTION state.partitions(p_parent text) RETURNS TABLE(partition regclass, starts_at timestamp with time zone, ends_at timestamp with time zone, next_at timestamp with time zone)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select c.oid, state.time_of(b.ids[1]), state.time_of(b.ids[2]), lead(state.time_of(b.ids[1])) over (order by b.ids[1])
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
   cross join lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([0-9a-f-]+)''\) TO \(''([0-9a-f-]+)''\)')) b (ids)
   where i.inhparent = format('state.%I', p_parent)::regclass and not i.inhdetachpending
$$;
CREATE FUNCTION state.patch(p_project uuid, p_session uuid, p_step uuid, p_patch jsonb, p_cards cardbox.new_card[], OUT duplicate boolean) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_board   record;
  v_append  uuid[] := array(select jsonb_array_elements_text(p_patch -> 'append')::uuid);
  v_results uuid[] := array(select jsonb_array_elements_text(p_patch -> 'results')::uuid);
  v_whole   uuid[] := array(select jsonb_array_elements_text(p_patch -> 'replace' -> 'card_ids')::uuid);
  v_new_box uuid := p_patch -> 'replace' ->> 'messages_box_id';
  v_reset   uuid := p_patch ->> 'reset';
  v_changed text;
  v_unknown uuid[];
begin
  v_entered := state.enter(p_project);
  select b.* into v_board
    from state.blackboards b
   where b.project_id = p_project and b.session_id = p_session
     for no key update;
  if not found then
    raise exception 'no such session' using errcode = 'WB404', detail = p_session::text;
  end if;
  --! patch.locked
  insert into state.patches (project_id, session_id, step_id, patch)
  values (p_project, p_session, p_step, p_patch)
      on conflict do nothing;
  patch.duplicate := not found;
  if patch.duplicate then
    return;
  end if;
  --! patch.row
  v_changed := case
    when v_new_box is not null
     and (v_board.messages_box_id, (select x.length from cardbox.boxes x
                                     where x.project_id = p_project and x.box_id = v_board.messages_box_id))
         is distinct from ((p_patch -> 'replace' ->> 'instead_of')::uuid, (p_patch -> 'replace' ->> 'upto')::bigint)
      then 'messages ' || v_board.messages_box_id
    when p_patch ? 'todo' and v_board.todo_card_id is distinct from (p_patch -> 'todo' ->> 'instead_of')::uuid
      then 'todo ' || coalesce(v_board.todo_card_id::text, '')
    -- A summary is of the messages that it covers, and of no others.
    when p_patch ? 'compression'
     and ((v_board.compression_card_id, v_board.messages_box_id)
          is distinct from ((p_patch -> 'compression' ->> 'instead_of')::uuid, (p_patch -> 'compression' ->> 'messages_box_id')::uuid))
      then 'compression ' || coalesce(v_board.compression_card_id::text, '')
  end;
  if v_changed is not null then
    raise exception 'the session was changed by another writer' using errcode = 'WB015', detail = v_changed;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  select array_agg(a.card_id) into v_unknown
    from unnest(v_append || v_results || v_whole) as a (card_id)
   where not exists (select from cardbox.cards c
                      where c.project_id = p_project and c.card_id = a.card_id and c.type not like 'sys.%'
                     offset 0);
  if v_unknown is not null then
    raise exception 'no such cards, or none that a session may remember' using errcode = 'WB404', detail = array_to_string(v_unknown, ',');
  end if;
  --! patch.cards
  if v_new_box is not null then
    insert into cardbox.boxes (project_id, box_id, length) values (p_project, v_new_box, 0);
    v_written := state.append_new(p_project, v_new_box, v_whole);
    --! patch.replaced
    v_board.messages_box_id := v_new_box;
    -- It stood for messages that are no longer remembered.
    v_board.compression_card_id := null;
  end if;
  if v_append <> '{}' then
    v_written := state.append_new(p_project, v_board.messages_box_id, v_append);
  end if;
  --! patch.appended
  if v_reset is not null then
    insert into cardbox.boxes (project_id, box_id, length) values (p_project, v_reset, 0);
    v_board.mapreduce_results_box_id := v_reset;
  end if;
  if v_results <> '{}' then
    v_written := state.append_new(p_project, v_board.mapreduce_results_box_id, v_results);
  end if;
  --! patch.results
  if p_patch ? 'todo' then
    v_board.todo_card_id := p_patch -> 'todo' ->> 'card_id';
  end if;
  if p_patch ? 'compression' then
    v_board.compression_card_id := p_patch -> 'compression' ->> 'card_id';
  end if;
  if v_new_box is not null or v_reset is not null or p_patch ?| array['todo', 'compression'] then
    update state.blackboards b
       set messages_box_id = v_board.messages_box_id, todo_card_id = v_board.todo_card_id,
           compression_card_id = v_board.compression_card_id, mapreduce_results_box_id = v_board.mapreduce_results_box_id
     where b.project_id = p_project and b.session_id = p_session;
  end if;
  --! patch.pointers
end $$;
CREATE FUNCTION state.place_of_begun() RETURNS bigint
    LANGUAGE sql
    AS $$ select nextval('state.agent_inbox_inbox_seq_seq') - 4611686018427387904 $$;
CREATE FUNCTION state.plan_retention(p_project uuid, p_content timestamp with time zone, p_record timestamp with time zone, OUT contents bigint, OUT bytes bigint, OUT turns bigint, OUT boxes bigint, OUT cards bigint, OUT kept jsonb, OUT is_all boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
declare
  v_first   constant uuid := '00000000-0000-0000-0000-000000000000';
  v_boxes   uuid[] := state.reached_boxes(p_project);
  v_cards   uuid[] := state.reached_cards(p_project);
  v_relayed boolean := scheduler.oldest_unpublished() is not null;
  v_last    uuid := state.first_id(p_content);
  v_after   uuid := v_first;
  v_until   timestamptz := clock_timestamp() + interval '1 second';
  v_page    record;
  v_ids     uuid[];
  v_id      uuid;
  v_why     text;
begin
  plan_retention.contents := 0;
  plan_retention.bytes := 0;
  plan_retention.turns := 0;
  plan_retention.boxes := 0;
  plan_retention.cards := 0;
  plan_retention.kept := '{}';
  plan_retention.is_all := true;
  while v_last is not null loop
    select count(*) as n_seen, (array_agg(c.card_id order by c.card_id desc))[1] as last_card_id,
           count(*) filter (where c.is_said and not k.is_reached) as n_gone, count(*) filter (where c.is_said and k.is_reached) as n_kept,
           coalesce(sum(c.size) filter (where c.is_said and not k.is_reached), 0) as n_bytes
      into v_page
      from (select c.card_id, c.erased_at is null and (not c.content_addressed or c.type in ('sys.rendered_prompt', 'sys.request_part')) as is_said,
                   coalesce(pg_column_size(c.content), 0) + coalesce(pg_column_size(c.tool_calls), 0)
                   + coalesce(pg_column_size(c.metadata), 0) as size
              from cardbox.cards c
             where c.project_id = p_project and c.card_id > v_after and c.card_id < v_last
             order by c.card_id
             limit 1000) c
     cross join lateral (
           select c.card_id = any (v_cards)
                  or exists (select from cardbox.box_entries e
                              where e.project_id = p_project and e.card_id = c.card_id and e.box_id = any (v_boxes)
                             offset 0) as is_reached
           offset 0) k;
    plan_retention.contents := plan_retention.contents + v_page.n_gone;
    plan_retention.bytes := plan_retention.bytes + v_page.n_bytes;
    plan_retention.kept := cardbox.add_counts(plan_retention.kept, jsonb_build_object('contents that open turns read', v_page.n_kept));
    exit when v_page.n_seen < 1000;
    v_after := v_page.last_card_id;
    if clock_timestamp() > v_until then
      plan_retention.is_all := false;
      exit;
    end if;
  end loop;
  v_last := state.first_id(p_record);
  v_after := v_first;
  v_until := clock_timestamp() + interval '1 second';
  while v_last is not null loop
    v_ids := array(select t.agent_turn_id from state.turns t
                    where t.project_id = p_project and t.agent_turn_id > v_after and t.agent_turn_id < v_last
                    order by t.agent_turn_id limit 100);
    foreach v_id in array v_ids loop
      v_why := state.why_kept(p_project, v_id, p_record, v_relayed);
      -- What stays because of turns that go too goes by the time that walks come to their end.
      if v_why is null or v_why in ('children', 'batch') then
        select plan_retention.boxes + count(*), plan_retention.cards + coalesce(sum(b.length), 0)
          into plan_retention.boxes, plan_retention.cards
          from unnest(state.boxes_of(p_project, v_id, '{}')) as u (box_id)
         cross join lateral (
               select b.length from cardbox.boxes b where b.project_id = p_project and b.box_id = u.box_id offset 0) b;
        plan_retention.turns := plan_retention.turns + 1;
      elsif v_why <> 'recent' then
        plan_retention.kept := cardbox.add_counts(plan_retention.kept, jsonb_build_object(v_why, 1));
      end if;
    end loop;
    exit when cardinality(v_ids) < 100;
    v_after := v_ids[100];
    if clock_timestamp() > v_until then
      plan_retention.is_all := false;
      exit;
    end if;
  end loop;
end $$;
CREATE FUNCTION state.reached_boxes(p_project uuid) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  with own as materialized (
    select b.box_id
      from state.agent_inbox i
     cross join lateral (
           select t.context_box_id, t.output_box_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
            union all
           select t.context_box_id, t.output_box_id
             from state.forks f
            cross join lateral (
                  select t.context_box_id, t.output_box_id
                    from state.turns t
                   where t.project_id = p_project and t.agent_turn_id = f.source_turn_id
                  offset 0) t
            where f.project_id = p_project and f.agent_turn_id = i.agent_turn_id
            union all
           select c.context_box_id, c.output_box_id
             from state.turns c
            where c.parent_agent_turn_id = i.agent_turn_id and c.project_id = p_project
            union all
           select k.results_box_id, null
             from state.turns t
            cross join lateral unnest(state.batches_of(p_project, t.agent_turn_id, state.calls_of(p_project, t.output_box_id))) as u (batch_id)
            cross join lateral (
                  select k.results_box_id from state.pmo_batches k where k.project_id = p_project and k.batch_id = u.batch_id offset 0) k
            where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
           offset 0) t
     cross join lateral (values (t.context_box_id), (t.output_box_id)) as b (box_id)
     where i.project_id = p_project and b.box_id is not null
  )
  select array(select o.box_id from own o
                union
               select r.source_box_id
                 from own o
                cross join lateral (
                      select e.source_box_id
                        from cardbox.box_entries e
                       where e.project_id = p_project and e.box_id = o.box_id and e.source_box_id is not null
                      offset 0) r)
$$;
CREATE FUNCTION state.reached_cards(p_project uuid) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  select array(select n.card_id
                 from state.agent_inbox i
                cross join lateral (
                      select unnest(array[c.request_card_id, c.decision_card_id]) as card_id
                        from state.waiting_calls c
                       where c.project_id = p_project and c.agent_turn_id = i.agent_turn_id
                       union all
                      select unnest(array[s.todo_card_id, s.compression_card_id])
                        from state.turns t
                       cross join lateral (
                             select s.todo_card_id, s.compression_card_id
                               from state.blackboards s
                              where s.project_id = p_project and s.session_id = t.session_id
                             offset 0) s
                       where t.project_id = p_project and t.agent_turn_id = i.agent_turn_id
                      offset 0) n
                where i.project_id = p_project and n.card_id is not null)
$$;
CREATE FUNCTION state.readable(p_project uuid, p_agent uuid, p_boxes uuid[]) RETURNS TABLE(box_id uuid, length bigint, upto bigint, via text)
    LANGUAGE sql STABLE
    AS $$
  -- `least` passes over nulls: without a right it would be the whole box.
  select b.box_id, b.length, case when r.via is not null then least(r.upto, b.length) end, r.via
    from unnest(p_boxes) as asked (box_id)
   cross join lateral (
         select b.* from cardbox.boxes b where b.project_id = p_project and b.box_id = asked.box_id offset 0) b
    left join lateral (
         select rights.upto, rights.via
           from (select b.length as upto, 'asked' as via, 1 as rank where p_agent is null
                  union all
                 select b.length, 'own', 2 where b.agent_id = p_agent
                  union all
                 (select h.upto, 'handed', 3
                    from state.handovers h
                   where h.project_id = p_project and h.agent_id = p_agent and h.source_box_id = b.box_id
                     -- What it hands to itself it has by another right, which may end.
                     and h.source_agent_id is distinct from p_agent
                   order by h.upto desc
                   limit 1)
                  union all
                 select coalesce(g.upto, b.length), 'granted', 4
                   from state.grants g
                  where g.project_id = p_project and g.agent_id = p_agent and g.box_id = b.box_id and g.revoked_at is null
                  union all
                 select k.output_length, 'joined', 5
                   from state.turns t
                  cross join lateral (
                        select k.output_box_id, k.output_length
                          from state.pmo_batch_tasks k
                         where k.project_id = p_project and k.batch_id = t.batch_id and k.task_index = t.task_index
                        offset 0) k
                  cross join lateral (
                        select p.parent_agent_id
                          from state.pmo_batches p
                         where p.project_id = p_project and p.batch_id = t.batch_id
                        offset 0) p
                  where t.project_id = p_project and t.agent_turn_id = b.agent_turn_id
                    and p.parent_agent_id = p_agent and k.output_box_id = b.box_id) rights
          order by rights.upto desc, rights.rank
          limit 1) r on true
$$;
CREATE FUNCTION state.reason(p_content json) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when pg_column_size(p_content) <= 65536 and json_typeof(p_content) = 'object' then left(p_content ->> 'reason', 500) end
$$;
CREATE FUNCTION state.rebuild_head(p_project uuid, p_agent uuid) RETURNS TABLE(status text, active_agent_turn_id uuid, turn_epoch bigint, n_queued integer, worker_target text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_agent  resource.project_agents;
  v_active state.agent_inbox;
  v_inbox  state.agent_inbox;
  v_epoch  bigint;
  v_token  bigint;
  v_lost   integer := 0;
  v_queued integer := 0;
  v_open   uuid[];
begin
  v_entered := state.enter(p_project);
  -- Under its lock: it may be about to be retired, or to be given a memory.
  select a.* into v_agent from resource.project_agents a where a.project_id = p_project and a.agent_id = p_agent for no key update;
  if not found or v_agent.retired_at is not null then
    raise exception 'no such agent' using errcode = 'WB404', detail = p_agent::text;
  end if;
  loop
    -- A caller that comes meanwhile waits for this row.
    insert into state.agent_state_head (project_id, agent_id, worker_target, ephemeral, memory_box_id)
    values (p_project, p_agent, v_agent.worker_target, v_agent.ephemeral, v_agent.memory_box_id)
        on conflict do nothing;
    exit when found;
    return query
    select h.status::text, h.active_agent_turn_id, h.turn_epoch, h.n_queued, h.worker_target::text
      from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent for no key update;
    if found then
      return;
    end if;
  end loop;
  --! rebuild.row
  if v_agent.ephemeral then
    -- Asked for again: it stays for a while.
    update resource.project_agents a
       set retire_by = greatest(a.retire_by, now() + interval '1 day')
     where a.project_id = p_project and a.agent_id = p_agent;
  end if;
  v_open := array(select t.agent_turn_id from state.turns t
                   where t.project_id = p_project and t.agent_id = p_agent and t.status = 'open');
  select max(greatest(t.turn_epoch, t.dispatched_epoch, s.turn_epoch, i.turn_epoch)), max(greatest(t.claim_token, s.claim_token, i.claim_token))
    into v_epoch, v_token
    -- The newest have the highest.
    from (select t.agent_turn_id, t.turn_epoch, t.dispatched_epoch, t.claim_token
            from state.turns t
           where t.project_id = p_project and t.agent_id = p_agent
           order by t.agent_turn_id desc
           limit 1000) t
    left join lateral (select max(s.turn_epoch) as turn_epoch, max(s.claim_token) as claim_token from state.agent_steps s
                        where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s on true
    left join lateral (select i.turn_epoch, i.claim_token from state.agent_inbox i
                        where i.project_id = p_project and i.agent_turn_id = t.agent_turn_id offset 0) i on true;
  v_epoch := coalesce(v_epoch, 0) + 1;
  for v_inbox in
    select i.*
      from unnest(v_open) as o (agent_turn_id)
     cross join lateral (
           select i.* from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = o.agent_turn_id offset 0) i
     order by i.inbox_seq
  loop
    v_lost := greatest(v_lost, v_inbox.n_lost_leases + v_inbox.retry_count);
    if v_inbox.status = 'queued' then
      v_queued := v_queued + 1;
    end if;
    -- The one that was dispatched and is not over; what is not due yet was not. Else the first that is queued.
    if v_active.agent_turn_id is null and (v_inbox.dispatched_at is not null or v_inbox.status = 'queued')
       or v_active.dispatched_at is null and v_inbox.dispatched_at is not null then
      v_active := v_inbox;
    end if;
  end loop;
  -- Claims and reclaims may have gone beyond what was written down by as much as they were counted; a claim by up to 2^36.
  v_epoch := v_epoch + v_lost;
  v_token := coalesce(v_token, 0) + (v_lost + 2) * 68719476736;
  v_queued := v_queued - coalesce((v_active.status = 'queued')::integer, 0);
  update state.agent_state_head h
     set status = case when v_active.agent_turn_id is null then 'idle'
                       when v_active.status = 'deferred' and v_active.next_retry_at is null then 'suspended'
                       else 'dispatched' end,
         active_agent_turn_id = v_active.agent_turn_id, turn_epoch = v_epoch, claim_token = v_token, n_queued = v_queued
   where h.project_id = p_project and h.agent_id = p_agent;
  update state.agent_inbox i
     set turn_epoch = v_epoch, claim_token = null, worker_id = null, silent_by = null,
         dispatched_at = coalesce(i.dispatched_at, now()),
         status = case when i.status in ('processing', 'queued') then 'pending' else i.status end, inbox_seq = state.place_of_begun()
   where i.project_id = p_project and i.agent_turn_id = v_active.agent_turn_id;
  --! rebuild.armed
  -- Suspended on calls that were all answered while there was no head: nothing else would resume it.
  update state.agent_inbox i
     set status = 'pending', inbox_seq = state.place_of_begun(), message_type = 'tool_result'
   where i.project_id = p_project and i.agent_turn_id = v_active.agent_turn_id
     and i.status = 'deferred' and i.next_retry_at is null
     and not exists (select from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = v_active.agent_turn_id);
  return query
  select h.status::text, h.active_agent_turn_id, h.turn_epoch, h.n_queued, h.worker_target::text
    from state.agent_state_head h where h.project_id = p_project and h.agent_id = p_agent;
end $$;
CREATE FUNCTION state.reclaim(p_fence state.fence, p_lost boolean, p_backoff interval, p_max_lost_leases integer, p_max_attempts integer, p_alone boolean, p_cards cardbox.new_card[]) RETURNS TABLE(outcome text, worker_targets text[], batches uuid[])
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_inbox  state.agent_inbox;
  v_queued integer;
  v_keeps  boolean;
  v_waits  boolean;
  v_told   integer;
  v_end    state.ending;
begin
  v_entered := state.enter(p_fence.project_id);
  select h.n_queued, h.ephemeral or h.memory_box_id is not null into v_queued, v_keeps
    from state.agent_state_head h
    where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id and h.active_agent_turn_id = p_fence.agent_turn_id
      and h.turn_epoch = p_fence.turn_epoch and h.claim_token = p_fence.claim_token and h.status = 'running'
      for no key update;
  if not found then
    return query select 'stale'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  --! reclaim.locked
  select i.* into v_inbox from state.agent_inbox i where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id for no key update;
  if p_lost and v_inbox.n_lost_leases >= p_max_lost_leases or not p_lost and v_inbox.retry_count + 1 >= p_max_attempts then
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null, claim_token = h.claim_token + 1
     where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
    --! reclaim.idle
    v_end.agent_id := p_fence.agent_id;
    v_end.agent_turn_id := p_fence.agent_turn_id;
    v_end.turn_epoch := p_fence.turn_epoch;
    v_end.claim_token := p_fence.claim_token + 1;
    v_end.status := 'failed';
    return query
    select 'ended'::text, array_remove(array[e.worker_target], null), array_remove(array[e.batch_id], null)
      from state.end_turn(p_fence.project_id, v_end, true, v_queued, v_keeps, p_alone, p_cards) e;
    return;
  end if;
  update state.agent_state_head h
     set status = 'dispatched', turn_epoch = p_fence.turn_epoch + 1, claim_token = p_fence.claim_token + 1
   where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
  --! reclaim.head
  -- One that is to stop does not wait: the worker that claims it ends it.
  v_waits := p_backoff > interval '0' and not v_inbox.stop_asked;
  update state.agent_inbox i
     set status = case when v_waits then 'deferred' else 'pending' end, inbox_seq = state.place_of_begun(),
         next_retry_at = case when v_waits then now() + p_backoff end,
         worker_id = null, silent_by = null, claim_token = null, turn_epoch = p_fence.turn_epoch + 1, armed_at = now(),
         n_lost_leases = i.n_lost_leases + p_lost::integer, retry_count = i.retry_count + (not p_lost)::integer
   where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  -- That a worker was lost is on record for every turn.
  v_told := state.tell(p_fence.project_id, array[p_fence.agent_turn_id], p_fence.agent_id, 'dispatched', p_lost);
  --! reclaim.armed
  return query
  select 'armed'::text, case when v_waits then '{}' else array[v_inbox.worker_target::text] end, '{}'::uuid[];
end $$;
CREATE FUNCTION state.reclaim_call(p_project uuid, p_call uuid, p_token bigint, p_failed boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
  v_target text;
begin
  v_entered := state.enter(p_project);
  -- No head's lock: nothing of the turn changes, and the row's own lock orders this with a report.
  update state.waiting_calls c
     set status = 'pending', worker_id = null, claim_token = c.claim_token + 1,
         n_lost_leases = c.n_lost_leases + (not p_failed)::integer, retry_count = c.retry_count + p_failed::integer
   where c.project_id = p_project and c.tool_call_id = p_call and c.claim_token = p_token and c.status = 'processing'
  returning c.target into v_target;
  --! reclaim_call.armed
  return v_target;
end $$;
CREATE FUNCTION state.record_call(p_project uuid, p_call jsonb, p_messages cardbox.new_card[], p_answer cardbox.new_card[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  v_turn    uuid := p_call ->> 'agent_turn_id';
  v_step    uuid := p_call ->> 'step_id';
  v_agent   uuid := p_call ->> 'agent_id';
  v_context uuid := p_call ->> 'context_box_id';
  v_output  uuid := p_call ->> 'output_box_id';
  v_before  integer := p_call ->> 'n_before';
  v_new     integer := cardinality(p_messages);
  v_at      timestamptz := coalesce((p_call ->> 'at')::timestamptz, clock_timestamp());
  v_length  bigint;
  v_label   text;
  v_written integer;
begin
  perform from state.recordings r
    where r.project_id = p_project and r.agent_turn_id = v_turn and r.n_messages = v_before
      for no key update;
  if not found then
    return false;
  end if;
  select b.length into strict v_length from cardbox.boxes b where b.project_id = p_project and b.box_id = v_output for no key update;
  insert into state.agent_steps
         (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, n_calls,
          provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported, request, created_at)
  select p_project, v_turn, v_step, v_agent, 0, 0, 'running', v_length + 1, v_length + cardinality(p_answer), (p_call ->> 'n_calls')::integer, u.*,
         decode(p_call ->> 'request', 'hex'), v_at
    from jsonb_to_record(p_call -> 'usage') as u
         (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
          n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
      on conflict do nothing;
  if not found then
    return false;
  end if;
  insert into state.receipts (project_id, agent_turn_id, step_id, receipt) values (p_project, v_turn, v_step, (p_call ->> 'receipt')::json);
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id)
  values (p_project, v_turn, 'step', v_step, v_agent, 'running', 0, v_step);
  -- Its writer was not Waybill.
  v_label := state.label(true);
  v_written := cardbox.put(p_project, p_messages || p_answer);
  if v_new > 0 then
    update cardbox.boxes b set length = v_before + v_new where b.project_id = p_project and b.box_id = v_context;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, v_context, v_before + c.ordinality, c.card_id
      from unnest(p_messages) with ordinality c;
  end if;
  update state.recordings r
     set tail = decode(p_call ->> 'tail', 'hex'), n_messages = v_before + v_new, answer = decode(p_call ->> 'answer', 'hex'),
         state = decode(p_call ->> 'state', 'hex')
   where r.project_id = p_project and r.agent_turn_id = v_turn;
  if cardinality(p_answer) > 0 then
    update cardbox.boxes b set length = v_length + cardinality(p_answer) where b.project_id = p_project and b.box_id = v_output;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_project, v_output, v_length + c.ordinality, c.card_id
      from unnest(p_answer) with ordinality c;
  end if;
  update state.turns t
     set finished_at = greatest(t.finished_at, v_at), deliverable_card_id = coalesce(p_answer[1].card_id, t.deliverable_card_id)
   where t.project_id = p_project and t.agent_turn_id = v_turn;
  return true;
end $$;
CREATE FUNCTION state.recording_alike(p_project uuid, p_opening bytea, p_marks text[], p_answer bytea) RETURNS TABLE(agent_turn_id uuid, n_common integer, n_messages integer, query_card_ids uuid[], by_answer boolean)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
declare
  v_since  uuid := state.first_id(now() - interval '1 day');
  v_turn   record;
  v_least  integer;
  v_most   integer;
  v_middle integer;
  v_mark   text;
begin
  n_common := 0;
  for v_turn in
    select r.agent_turn_id, r.n_messages, r.by_last, t.context_box_id, t.query_card_ids
      from ((select r.agent_turn_id, r.n_messages, false as by_last
               from state.recordings r
              where r.opening = p_opening and r.project_id = p_project and r.agent_turn_id >= v_since
              order by r.agent_turn_id desc
              limit 8)
             union all
            (select r.agent_turn_id, r.n_messages, true
               from state.recordings r
              where r.answer = p_answer and r.project_id = p_project and r.agent_turn_id >= v_since
              order by r.agent_turn_id desc
              limit 1)) r
     cross join lateral (
           select t.context_box_id, t.query_card_ids from state.turns t where t.project_id = p_project and t.agent_turn_id = r.agent_turn_id offset 0) t
     order by r.by_last, r.agent_turn_id desc
  loop
    -- A mark is the same only where all messages before it are.
    v_least := 0;
    v_most := least(v_turn.n_messages, cardinality(p_marks));
    while v_least < v_most loop
      v_middle := (v_least + v_most + 1) / 2;
      select c.metadata ->> 'mark' into v_mark
        from cardbox.places(p_project, v_turn.context_box_id, v_middle, v_middle) p
       cross join lateral (
             select c.metadata from cardbox.cards c where c.project_id = p_project and c.card_id = p.card_id offset 0) c;
      if found and v_mark = p_marks[v_middle] then
        v_least := v_middle;
      else
        v_most := v_middle - 1;
      end if;
    end loop;
    if v_least > n_common or v_turn.by_last and agent_turn_id is null then
      agent_turn_id := v_turn.agent_turn_id;
      n_common := v_least;
      n_messages := v_turn.n_messages;
      query_card_ids := v_turn.query_card_ids;
      by_answer := v_turn.by_last;
    end if;
  end loop;
  if agent_turn_id is not null then
    return next;
  end if;
end $$;
CREATE FUNCTION state.recording_to_extend(p_project uuid, p_tails bytea[], p_follows bytea[], p_state bytea) RETURNS TABLE(agent_turn_id uuid, n_messages integer, context_box_id uuid, output_box_id uuid)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
declare
  v_since    uuid := state.first_id(now() - interval '1 day');
  v_turn     uuid;
  v_messages integer;
  v_tail     bytea;
  v_leads_to bytea;
begin
  if p_state is not null then
    select r.agent_turn_id, r.n_messages into v_turn, v_messages
      from state.recordings r
     where r.state = p_state and r.project_id = p_project and r.agent_turn_id >= v_since
     order by r.agent_turn_id desc
     limit 1;
  else
    for v_place in 1 .. coalesce(cardinality(p_tails), 0) loop
      v_tail := p_tails[v_place];
      v_leads_to := v_tail || coalesce(p_follows[v_place], '');
      select r.agent_turn_id, r.n_messages into v_turn, v_messages
        from state.recordings r
       where r.leads_to = v_leads_to and r.project_id = p_project and r.agent_turn_id >= v_since
       order by r.agent_turn_id desc
       limit 1;
      if v_turn is null and p_follows[v_place] is not null then
        select r.agent_turn_id, r.n_messages into v_turn, v_messages
          from state.recordings r
         where r.tail = v_tail and r.project_id = p_project and r.agent_turn_id >= v_since
         order by r.agent_turn_id desc
         limit 1;
      end if;
      exit when v_turn is not null;
    end loop;
  end if;
  return query
    select v_turn, v_messages, t.context_box_id, t.output_box_id
      from state.turns t
     where t.project_id = p_project and t.agent_turn_id = v_turn;
end $$;
CREATE FUNCTION state.release(p_project uuid, p_turn uuid) RETURNS TABLE(worker_targets text[])
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_head  state.agent_state_head;
  v_inbox state.agent_inbox;
  v_told  integer;
begin
  v_entered := state.enter(p_project);
  select h.* into v_head
    from state.agent_state_head h
   where h.project_id = p_project
     and h.agent_id = (select t.agent_id from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn)
     for no key update;
  if not found then
    raise exception 'the agent of turn % has lost its state', p_turn using errcode = 'WB006', detail = p_turn::text;
  end if;
  --! release.locked
  select i.* into v_inbox
    from state.agent_inbox i
   where i.project_id = p_project and i.agent_turn_id = p_turn
     for no key update;
  if not found or v_inbox.status <> 'deferred' or (v_inbox.next_retry_at <= now()) is not true then
    return query select '{}'::text[];
    return;
  end if;
  if v_head.status = 'idle' then
    update state.agent_state_head h
       set status = 'dispatched', active_agent_turn_id = p_turn, turn_epoch = h.turn_epoch + 1
     where h.project_id = p_project and h.agent_id = v_head.agent_id
 returning h.* into v_head;
  elsif v_head.active_agent_turn_id <> p_turn and v_head.n_queued >= v_head.queue_cap then
    update state.agent_inbox i
       set next_retry_at = now() + interval '5 seconds'
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select '{}'::text[];
    return;
  elsif v_head.active_agent_turn_id <> p_turn then
    update state.agent_state_head h set n_queued = h.n_queued + 1 where h.project_id = p_project and h.agent_id = v_head.agent_id;
    update state.agent_inbox i
       set status = 'queued', next_retry_at = null
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select '{}'::text[];
    return;
  end if;
  if v_head.memory_box_id is not null then
    v_told := state.catch_up(p_project, p_turn);
  end if;
  --! release.head
  update state.agent_inbox i
     set status = 'pending', inbox_seq = case when i.dispatched_at is null then nextval('state.agent_inbox_inbox_seq_seq') else state.place_of_begun() end,
         next_retry_at = null, turn_epoch = v_head.turn_epoch, armed_at = now(),
         dispatched_at = coalesce(i.dispatched_at, now())
   where i.project_id = p_project and i.agent_turn_id = p_turn;
  v_told := state.tell(p_project, array[p_turn], v_head.agent_id, v_head.status);
  --! release.armed
  return query select array[v_inbox.worker_target::text];
end $$;
CREATE FUNCTION state.remember(p_project uuid, p_session uuid, p_cards uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_box uuid;
begin
  select b.messages_box_id into v_box
    from state.blackboards b
   where b.project_id = p_project and b.session_id = p_session
     for no key update;
  --! remember.locked
  -- A later statement than the lock: what the one before us appended is seen.
  return state.append_new(p_project, v_box, p_cards);
end $$;
CREATE FUNCTION state.remember_turns(p_project uuid, p_turns uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_talk record;
  v_n    integer := 0;
begin
  for v_talk in
    select t.session_id, t.query_card_ids || t.steer_card_ids || t.deliverable_card_id as card_ids
      from unnest(p_turns) with ordinality as e (agent_turn_id, n)
     cross join lateral (
           select t.session_id, t.query_card_ids, t.steer_card_ids, t.deliverable_card_id
             from state.turns t
            where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id
           offset 0) t
     where t.session_id is not null and t.deliverable_card_id is not null
     order by t.session_id, e.n
  loop
    v_n := v_n + state.remember(p_project, v_talk.session_id, v_talk.card_ids);
  end loop;
  return v_n;
end $$;
CREATE FUNCTION state.report(p_project uuid, p_call uuid, p_token bigint, p_message_type text, p_status text, p_external boolean, p_cards cardbox.new_card[]) RETURNS TABLE(outcome text, agent_turn_id uuid, worker_target text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_turn     uuid;
  v_agent    uuid;
  v_head     state.agent_state_head;
  v_token    bigint;
  v_answered uuid;
  v_length   bigint;
  v_box      uuid;
begin
  v_entered := state.enter(p_project);
  select c.agent_turn_id, c.agent_id into v_turn, v_agent
    from state.waiting_calls c
   where c.project_id = p_project and c.tool_call_id = p_call;
  if not found then
    select e.agent_turn_id, e.agent_id into v_turn, v_agent
      from state.execution_edges e
     where e.project_id = p_project and e.correlation_id = p_call and e.primitive = 'command' and e.edge_phase = 'request';
    if not found then
      raise exception 'no such call' using errcode = 'WB404', detail = p_call::text;
    end if;
  end if;
  select h.* into v_head from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent for no key update;
  -- One that was here for its turns only has no head once they are over: whatever comes then is late.
  if not found and exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = v_turn and t.status = 'open') then
    raise exception 'the agent of call % has lost its state', p_call using errcode = 'WB006', detail = p_call::text;
  end if;
  --! report.locked
  select c.claim_token into v_token
    from state.waiting_calls c
   where c.project_id = p_project and c.tool_call_id = p_call
     for update;
  if not found then
    select e.card_id into v_answered
      from state.execution_edges e
     where e.project_id = p_project and e.correlation_id = p_call and e.primitive = 'report' and e.edge_phase = 'response';
    if found and v_answered = (p_cards[1]).card_id then
      return query select 'duplicate'::text, v_turn, null::text;
      return;
    end if;
    insert into state.execution_edges
           (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, status)
    values (p_project, p_call, 'report', 'dropped', v_turn, v_agent, p_status)
        on conflict do nothing;
    return query select 'dropped'::text, v_turn, null::text;
    return;
  end if;
  if p_token is not null and p_token <> v_token then
    raise exception 'call % is no longer ours', p_call using errcode = 'WB001', detail = p_call::text;
  end if;
  v_labelled := state.label(p_external);
  v_written := cardbox.put(p_project, p_cards);
  --! report.card
  select t.output_box_id into v_box from state.turns t where t.project_id = p_project and t.agent_turn_id = v_turn;
  update cardbox.boxes b
     set length = b.length + 1
   where b.project_id = p_project and b.box_id = v_box
 returning b.length into v_length;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p_project, v_box, v_length, (p_cards[1]).card_id);
  --! report.entry
  delete from state.waiting_calls c where c.project_id = p_project and c.tool_call_id = p_call;
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id, status)
  values (p_project, p_call, 'report', 'response', v_turn, v_agent, v_head.turn_epoch, (p_cards[1]).card_id, p_status);
  --! report.applied
  -- The last one that was waited for? Asked after the head's lock, so of two last ones the second sees the first.
  if v_head.status = 'suspended' and v_head.active_agent_turn_id = v_turn
     and not exists (select from state.waiting_calls c where c.project_id = p_project and c.agent_turn_id = v_turn) then
    update state.agent_inbox i
       set status = 'pending', inbox_seq = state.place_of_begun(), message_type = p_message_type, armed_at = now()
     where i.project_id = p_project and i.agent_turn_id = v_turn and i.status = 'deferred' and i.next_retry_at is null;
    if found then
      --! report.resumed
      return query select 'applied'::text, v_turn, v_head.worker_target::text;
      return;
    end if;
  end if;
  return query select 'applied'::text, v_turn, null::text;
end $$;
CREATE FUNCTION state.retire(p_project uuid, p_agents uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
  v_agent   uuid;
  v_n       integer := 0;
begin
  v_entered := state.enter(p_project);
  foreach v_agent in array p_agents loop
    update resource.project_agents a
       set retired_at = now()
     where a.project_id = p_project and a.agent_id = v_agent and a.retired_at is null and (a.retire_by <= now()) is true
       and not exists (select from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent);
    if found then
      insert into state.identity_edges (project_id, agent_id, action) values (p_project, v_agent, 'retired');
      v_n := v_n + 1;
    end if;
  end loop;
  --! retire.retired
  return v_n;
end $$;
CREATE FUNCTION state.room(p_target text, p_project uuid, p_in_flight_cap integer, p_most integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
  v_mark record;
  -- The project's own quota may be less.
  v_cap  integer := least(p_in_flight_cap, (select p.max_running_turns from resource.projects p where p.project_id = p_project));
begin
  select m.running_seq, v_cap - m.n_running - (s.last_value - m.drawn_seq) as room into v_mark
    from state.queue_marks m
   cross join state.agent_inbox_inbox_seq_seq s
   where m.worker_target = p_target and m.project_id = p_project;
  if v_mark.room >= p_most then
    return v_mark.room;
  end if;
  return v_cap - (select count(*)
                    from (select from state.agent_inbox i
                           where i.project_id = p_project and i.status = 'processing' and i.inbox_seq >= coalesce(v_mark.running_seq, 0)
                           limit v_cap) running);
end $$;
CREATE FUNCTION state.said(p_text text, p_type text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when p_type <> 'wire.message' then p_text
              else replace(replace(replace(substring(p_text from '(?:^|"(?:text|content)"\s*:\s*)"((?:[^"\\]|\\.){1,250})'), '\n', E'\n'), '\"', '"'), '\\', '\') end
$$;
CREATE FUNCTION state.saw_external(p_project uuid, p_turn uuid) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
declare
  v_saw boolean;
begin
  select exists (select from unnest(array[t.context_box_id, t.output_box_id]) as u (box_id)
                  where exists (select from cardbox.boxes b
                                 where b.project_id = p_project and b.box_id = u.box_id and b.has_external
                                offset 0))
      or t.session_id is not null
     and state.session_saw_external(p_project, t.session_id)
    into v_saw
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  return coalesce(v_saw, false);
end $$;
CREATE FUNCTION state.session_saw_external(p_project uuid, p_session uuid) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
begin
  return exists (select from state.blackboards s
                  cross join lateral unnest(array[s.todo_card_id, s.compression_card_id]) as u (card_id)
                  where s.project_id = p_project and s.session_id = p_session
                    and exists (select from cardbox.cards c
                                 where c.project_id = p_project and c.card_id = u.card_id and c.is_external
                                offset 0));
end $$;
CREATE FUNCTION state.sessions(p_project uuid, p_sessions uuid[]) RETURNS TABLE(session_id uuid, owner text, title text, labels text[], messages_box_id uuid, n_messages bigint, has_external boolean, todo_card_id uuid, compression_card_id uuid, mapreduce_results_box_id uuid, created_at timestamp with time zone, ended_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
  select s.session_id, s.owner, s.title, s.labels, s.messages_box_id, b.length,
         b.has_external or exists (select from unnest(array[s.todo_card_id, s.compression_card_id]) as u (card_id)
                                    where exists (select from cardbox.cards c
                                                   where c.project_id = p_project and c.card_id = u.card_id and c.is_external
                                                  offset 0)),
         s.todo_card_id, s.compression_card_id, s.mapreduce_results_box_id, s.created_at, s.ended_at
    from unnest(p_sessions) with ordinality as asked (session_id, n)
   cross join lateral (
         select s.* from state.blackboards s where s.project_id = p_project and s.session_id = asked.session_id offset 0) s
   cross join lateral (
         select b.length, b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = s.messages_box_id offset 0) b
   order by asked.n
$$;
CREATE FUNCTION state.settle(p_project uuid, p_turns uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION state.settle_batch(p_project uuid, p_batch uuid, p_most integer) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
declare
  v_entered text;
  v_turns   uuid[];
begin
  v_entered := state.enter(p_project);
  -- Waits for a dispatch that has the task; after that it is seen.
  perform from state.pmo_batch_tasks k
    where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
    order by k.task_index
      for no key update;
  --! settle.locked
  update state.pmo_batch_tasks k
     set status = 'canceled'
   where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
     and not exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id offset 0);
  select array_agg(i.agent_turn_id) into v_turns
    from (select k.agent_turn_id
            from state.pmo_batch_tasks k
           where k.project_id = p_project and k.batch_id = p_batch and k.status = 'open'
             and exists (select from state.agent_inbox i
                          where i.project_id = p_project and i.agent_turn_id = k.agent_turn_id and not i.stop_asked
                         offset 0)
           order by k.task_index
           limit p_most) i;
  if v_turns is null then
    -- Before the batch, as a child that counts down locks them. A child that ends later finds no counter, and has nothing to count for.
    delete from state.pmo_batch_slots s where s.project_id = p_project and s.batch_id = p_batch;
    update state.pmo_batches b set stopping = false where b.project_id = p_project and b.batch_id = p_batch and b.stopping;
  end if;
  --! settle.told
  return coalesce(v_turns, '{}');
end $$;
CREATE FUNCTION state.show_requests(p_project uuid, p_calls uuid[]) RETURNS TABLE(tool_call_id uuid, agent_turn_id uuid, agent_id uuid, profile_name text, tool text, effect json, arguments_hash text, saw_external boolean, title text, request_card_id uuid, request json, asked_at timestamp with time zone, deadline_at timestamp with time zone, decided json)
    LANGUAGE sql STABLE
    AS $$
  select q.tool_call_id, q.agent_turn_id, q.agent_id, a.profile_name, c.tool, t.effect,
         encode(sha256(convert_to(c.arguments, 'UTF8')), 'hex'), state.saw_external(p_project, q.agent_turn_id),
         left(split_part(r.content ->> 'question', chr(10), 1), 120), q.request_card_id, r.content, r.created_at, q.deadline_at,
         case when q.decision is not null then
           json_build_object('decision', q.decision, 'by', q.decided_by, 'at', q.decided_at, 'note', d.content ->> 'note',
                             'card_id', q.decision_card_id)
         end
    from unnest(p_calls) with ordinality as asked (tool_call_id, n)
   cross join lateral (
         select o.tool_call_id, o.agent_turn_id, o.agent_id, o.tool_call_card_id, o.request_card_id, o.deadline_at, null::text as decision,
                null::uuid as decision_card_id, null::text as decided_by, null::timestamptz as decided_at
           from state.waiting_calls o
          where o.project_id = p_project and o.tool_call_id = asked.tool_call_id and o.status = 'asking'
          union all
         select o.tool_call_id, o.agent_turn_id, o.agent_id, o.tool_call_card_id, o.request_card_id, o.deadline_at, o.decision, o.decision_card_id,
                o.decided_by, o.decided_at
           from state.requests o
          where o.project_id = p_project and o.tool_call_id = asked.tool_call_id
            and not exists (select from state.waiting_calls w
                             where w.project_id = p_project and w.tool_call_id = o.tool_call_id and w.status = 'asking'
                            offset 0)
         offset 0) q
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = q.agent_id offset 0) a on true
    left join lateral cardbox.reading(p_project, q.request_card_id, statement_timestamp()) r on true
    left join lateral (
         select s.content ->> 'tool_name' as tool, s.content ->> 'arguments' as arguments
           from cardbox.reading(p_project, q.tool_call_card_id, statement_timestamp()) s
         offset 0) c on true
    left join lateral cardbox.reading(p_project, q.decision_card_id, statement_timestamp()) d on true
    left join lateral (
         select to_json(coalesce(s.content ->> 'effect', 'once')) as effect
           from resource.tools k
          cross join lateral cardbox.reading(p_project, k.tool_card_id, statement_timestamp()) s
          where k.project_id = p_project and k.name = c.tool
         offset 0) t on true
   order by asked.n
$$;
CREATE FUNCTION state.spend(p_project uuid, p_turn uuid, p_usage jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION state.spent(p_project uuid) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
  select coalesce(sum(s.microdollars), 0)::bigint
    from state.spending s
   where s.project_id = p_project and s.month = date_trunc('month', now() at time zone 'utc')::date
$$;
CREATE FUNCTION state.steer(p_project uuid, p_turn uuid, p_cards cardbox.new_card[], OUT outcome text, OUT agent_id uuid, OUT turn_epoch bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_turn    record;
  v_length  bigint;
begin
  v_entered := state.enter(p_project);
  select t.agent_id into steer.agent_id from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = p_turn::text;
  end if;
  select h.turn_epoch into steer.turn_epoch
    from state.agent_state_head h
   where h.project_id = p_project and h.agent_id = steer.agent_id
     for no key update;
  if not found then
    steer.outcome := 'over';
    return;
  end if;
  --! steer.locked
  -- A later statement than the lock: an end that we waited for is seen.
  select t.status, t.output_box_id, t.steer_card_ids, t.trace_id, t.recursion_depth into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  if (p_cards[1]).card_id = any (v_turn.steer_card_ids) then
    steer.outcome := 'steered';
    return;
  end if;
  if v_turn.status <> 'open' then
    steer.outcome := 'over';
    return;
  end if;
  v_written := cardbox.put(p_project, p_cards);
  update cardbox.boxes b
     set length = b.length + 1
   where b.project_id = p_project and b.box_id = v_turn.output_box_id
  returning b.length into v_length;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p_project, v_turn.output_box_id, v_length, (p_cards[1]).card_id);
  --! steer.card
  update state.turns t
     set steer_card_ids = t.steer_card_ids || (p_cards[1]).card_id
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  insert into state.execution_edges
         (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id, recursion_depth, trace_id)
  values (p_project, (p_cards[1]).card_id, 'steer', 'request', p_turn, steer.agent_id, steer.turn_epoch, (p_cards[1]).card_id, v_turn.recursion_depth,
          v_turn.trace_id);
  --! steer.edge
  steer.outcome := 'steered';
end $$;
CREATE FUNCTION state.step(p_fence state.fence, p_step jsonb, p_cards cardbox.new_card[]) RETURNS TABLE(outcome text, stop_reason text, duplicate boolean, budget jsonb)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_written integer;
  v_labelled text;
  v_step     uuid := p_step ->> 'step_id';
  v_n        integer := cardinality(p_cards);
  v_calls    integer := jsonb_array_length(p_step -> 'calls');
  v_box      uuid;
  v_length   bigint;
  v_outcome  text := 'running';
  v_stop     text;
  v_lost     integer;
  v_emit     boolean;
  v_batch    uuid;
  v_session  uuid;
  v_external boolean;
  v_told     integer;
  v_budget   jsonb;
begin
  v_entered := state.enter(p_fence.project_id);
  perform from state.agent_state_head h
    where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id and h.active_agent_turn_id = p_fence.agent_turn_id
      and h.turn_epoch = p_fence.turn_epoch and h.claim_token = p_fence.claim_token and h.status = 'running'
      for no key update;
  if not found then
    -- Ours, and committed without our learning of it?
    return query
    select s.outcome::text, null::text, true, state.budget_of(p_fence.project_id, p_fence.agent_turn_id)
      from state.agent_steps s
     where s.project_id = p_fence.project_id and s.agent_turn_id = p_fence.agent_turn_id and s.step_id = v_step and s.claim_token = p_fence.claim_token;
    if not found then
      raise exception 'turn % is no longer ours', p_fence.agent_turn_id using errcode = 'WB001', detail = p_fence.agent_turn_id::text;
    end if;
    return;
  end if;
  --! step.locked
  select i.stop_reason, i.n_lost_leases + i.retry_count into v_stop, v_lost
    from state.agent_inbox i where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  -- Whether it has seen what came from outside: as state.saw_external.
  select b.box_id, b.length, t.emit_state_event, t.batch_id, t.session_id,
         b.has_external
         or exists (select from cardbox.boxes c where c.project_id = p_fence.project_id and c.box_id = t.context_box_id and c.has_external offset 0)
    into v_box, v_length, v_emit, v_batch, v_session, v_external
    from state.turns t
   cross join lateral (
         select b.box_id, b.length, b.has_external from cardbox.boxes b where b.project_id = p_fence.project_id and b.box_id = t.output_box_id offset 0) b
   where t.project_id = p_fence.project_id and t.agent_turn_id = p_fence.agent_turn_id;
  -- No caller waits for it any more: it ends, also where the sweep has not come to it yet.
  if v_batch is not null and v_stop is null
     and exists (select from state.pmo_batches p where p.project_id = p_fence.project_id and p.batch_id = v_batch and p.status <> 'open') then
    v_stop := 'its batch has ended';
  end if;
  -- A later statement than the head's lock: a report that we waited for is seen.
  -- One that is to stop does not wait: its worker has it in hand, and ends it.
  if (p_step ->> 'suspend')::boolean and v_stop is null
     and (v_calls > 0
          or exists (select from state.waiting_calls c where c.project_id = p_fence.project_id and c.agent_turn_id = p_fence.agent_turn_id)) then
    v_outcome := 'suspended';
  end if;
  insert into state.agent_steps
         (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, n_calls,
          provider, model, input_tokens, cached_tokens, output_tokens, microdollars, took_ms, n_asked, asked_again, cache_miss, reported)
  select p_fence.project_id, p_fence.agent_turn_id, v_step, p_fence.agent_id, p_fence.turn_epoch, p_fence.claim_token, v_outcome, v_length + 1,
         v_length + v_n, v_calls, u.*
    from jsonb_to_record(coalesce(p_step -> 'usage', '{}')) as u
         (provider text, model text, input_tokens integer, cached_tokens integer, output_tokens integer, microdollars bigint, took_ms integer,
          n_asked smallint, asked_again boolean, cache_miss jsonb, reported boolean)
      on conflict do nothing;
  if not found then
    -- The head is still running under this claim, so the first time it went on.
    return query select 'running'::text, v_stop, true, state.budget_of(p_fence.project_id, p_fence.agent_turn_id);
    return;
  end if;
  if p_step ? 'receipt' and (p_step #>> '{usage,reported}')::boolean
     and state.is_late(p_fence.project_id, p_fence.agent_turn_id, (p_step ->> 'receipt')::json) then
    raise exception 'turn % has gone on', p_fence.agent_turn_id using errcode = 'WB001', detail = p_fence.agent_turn_id::text;
  end if;
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id)
  values (p_fence.project_id, p_fence.agent_turn_id, 'step', v_step, p_fence.agent_id, v_outcome, p_fence.turn_epoch, v_step);
  if p_step ? 'receipt' then
    insert into state.receipts (project_id, agent_turn_id, step_id, receipt) values (p_fence.project_id, p_fence.agent_turn_id, v_step, (p_step ->> 'receipt')::json);
  end if;
  --! step.row
  if p_step ? 'usage' then
    v_budget := state.spend(p_fence.project_id, p_fence.agent_turn_id, p_step -> 'usage');
  end if;
  --! step.spent
  if not v_external and v_session is not null then
    v_external := state.session_saw_external(p_fence.project_id, v_session);
  end if;
  v_labelled := state.label(v_external);
  v_written := cardbox.put(p_fence.project_id, p_cards);
  --! step.cards
  if v_n > 0 then
    update cardbox.boxes b
       set length = v_length + v_n
     where b.project_id = p_fence.project_id and b.box_id = v_box;
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select p_fence.project_id, v_box, v_length + c.ordinality, c.card_id
      from unnest(p_cards) with ordinality c;
  end if;
  --! step.entries
  if v_calls > 0 then
    with call as (
      insert into state.waiting_calls
             (project_id, tool_call_id, agent_turn_id, agent_id, step_id, target, tool_call_card_id, once, deadline_at)
      select p_fence.project_id, c.tool_call_id, p_fence.agent_turn_id, p_fence.agent_id, v_step, c.target, c.tool_call_card_id, c.once,
             now() + make_interval(secs => c.timeout_seconds)
        from jsonb_to_recordset(p_step -> 'calls') as c
             (tool_call_id uuid, target text, tool_call_card_id uuid, timeout_seconds double precision, once boolean)
   returning tool_call_id, tool_call_card_id
    )
    insert into state.execution_edges
           (project_id, correlation_id, primitive, edge_phase, agent_turn_id, agent_id, turn_epoch, card_id)
    select p_fence.project_id, c.tool_call_id, 'command', 'request', p_fence.agent_turn_id, p_fence.agent_id, p_fence.turn_epoch, c.tool_call_card_id from call c;
  end if;
  --! step.calls
  if v_outcome = 'suspended' then
    update state.agent_state_head h set status = 'suspended' where h.project_id = p_fence.project_id and h.agent_id = p_fence.agent_id;
    update state.agent_inbox i
       set status = 'deferred', worker_id = null, silent_by = null
     where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
    if v_emit then
      v_told := state.tell(p_fence.project_id, array[p_fence.agent_turn_id], p_fence.agent_id, 'suspended');
    end if;
  end if;
  if v_lost > 0 and v_n > 0 then
    -- The turn has moved: earlier lost leases and failed attempts say nothing about the next ones. A step without a card only
    -- records a cost; counting it as progress would let a turn that pays and then fails be tried for ever.
    update state.agent_inbox i set n_lost_leases = 0, retry_count = 0 where i.project_id = p_fence.project_id and i.agent_turn_id = p_fence.agent_turn_id;
  end if;
  --! step.suspended
  return query select v_outcome, v_stop, false, v_budget;
end $$;
CREATE FUNCTION state.stop(p_project uuid, p_turn uuid, p_reason text, p_alone boolean, p_cards cardbox.new_card[]) RETURNS TABLE(outcome text, worker_targets text[], batches uuid[])
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
  v_entered text;
  v_agent uuid;
  v_head  state.agent_state_head;
  v_inbox state.agent_inbox;
  v_end   state.ending;
begin
  v_entered := state.enter(p_project);
  select t.agent_id into v_agent from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn;
  if not found then
    raise exception 'no such turn' using errcode = 'WB404', detail = p_turn::text;
  end if;
  select h.* into v_head from state.agent_state_head h where h.project_id = p_project and h.agent_id = v_agent for no key update;
  if not found then
    -- One that was here for its turns only has no head once they are over.
    if exists (select from state.turns t where t.project_id = p_project and t.agent_turn_id = p_turn and t.status <> 'open') then
      return query select 'over'::text, '{}'::text[], '{}'::uuid[];
      return;
    end if;
    raise exception 'the agent of turn % has lost its state', p_turn using errcode = 'WB006', detail = p_turn::text;
  end if;
  --! stop.locked
  -- A claim may hold the row, but it never waits: it sees our lock on the head, leaves the row, and we go on.
  select i.* into v_inbox from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = p_turn for no key update;
  if not found then
    return query select 'over'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  if v_inbox.status = 'processing' then
    update state.agent_inbox i
       set stop_asked = true, stop_reason = coalesce(i.stop_reason, p_reason)
     where i.project_id = p_project and i.agent_turn_id = p_turn;
    return query select 'asked'::text, '{}'::text[], '{}'::uuid[];
    return;
  end if;
  if v_head.active_agent_turn_id = p_turn then
    update state.agent_state_head h
       set status = 'idle', active_agent_turn_id = null
     where h.project_id = p_project and h.agent_id = v_agent;
  elsif v_inbox.status = 'queued' then
    update state.agent_state_head h set n_queued = h.n_queued - 1 where h.project_id = p_project and h.agent_id = v_agent;
  end if;
  --! stop.head
  v_end.agent_id := v_agent;
  v_end.agent_turn_id := p_turn;
  v_end.turn_epoch := v_head.turn_epoch;
  v_end.claim_token := v_head.claim_token;
  v_end.status := 'canceled';
  return query
  select 'ended'::text, array_remove(array[e.worker_target], null), array_remove(array[e.batch_id], null)
    from state.end_turn(p_project, v_end, coalesce(v_head.active_agent_turn_id = p_turn, false),
           case when v_head.active_agent_turn_id = p_turn then v_head.n_queued else 0 end,
           v_head.ephemeral or v_head.memory_box_id is not null, p_alone, p_cards) e;
end $$;
CREATE FUNCTION state.summaries(p_project uuid, p_turns uuid[]) RETURNS TABLE(agent_turn_id uuid, agent_id uuid, profile_name text, title text, status text, reason text, waiting_for jsonb, inbox_status text, agent_status text, n_lost_leases integer, session_id uuid, channel text, labels jsonb, source_agent_id uuid, parent_agent_turn_id uuid, root_turn_id uuid, n_below bigint, parent_step_id uuid, parent_tool_call_id uuid, batch_id uuid, task_index integer, recursion_depth integer, trace_id uuid, profile_box_id uuid, context_box_id uuid, output_box_id uuid, query_card_ids uuid[], deliverable_card_id uuid, external boolean, forked_from uuid, started_by text, on_behalf_of text, limits jsonb, created_at timestamp with time zone, finished_at timestamp with time zone, models text[], n_steps bigint, input_tokens bigint, cached_tokens bigint, output_tokens bigint, microdollars bigint)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, t.agent_id, a.profile_name, q.title, t.status::text, coalesce(d.reason, i.stop_reason), w.waiting_for, i.status::text,
         h.status::text, i.n_lost_leases, t.session_id, t.channel::text, l.labels, t.source_agent_id, t.parent_agent_turn_id,
         t.root_turn_id, b.n_below, t.parent_step_id, t.parent_tool_call_id, t.batch_id, t.task_index, t.recursion_depth,
         t.trace_id, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.deliverable_card_id,
         -- Its boxes carry whether what it was handed, was answered or wrote came from outside.
         coalesce((select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.context_box_id)
                  or (select b.has_external from cardbox.boxes b where b.project_id = p_project and b.box_id = t.output_box_id), false),
         coalesce(f.source_turn_id, e.departs_from), t.started_by, t.on_behalf_of, t.limits, t.created_at, t.finished_at, s.models,
         s.n_steps, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars
    from unnest(p_turns) with ordinality as asked (agent_turn_id, n)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
    left join lateral (
         select a.profile_name from resource.project_agents a where a.project_id = p_project and a.agent_id = t.agent_id offset 0) a on true
    left join lateral (
         select i.* from state.agent_inbox i where i.project_id = p_project and i.agent_turn_id = t.agent_turn_id offset 0) i on true
    left join lateral (
         select h.status
           from state.agent_state_head h
          where h.project_id = p_project and h.agent_id = t.agent_id and h.active_agent_turn_id = t.agent_turn_id
         offset 0) h on true
    left join lateral (
         select f.source_turn_id from state.forks f where f.project_id = p_project and f.agent_turn_id = t.agent_turn_id offset 0) f on true
    left join lateral (
         select r.departs_from from state.recordings r where r.project_id = p_project and r.agent_turn_id = t.agent_turn_id offset 0) e on true
    left join lateral (select state.title(c.content, c.type) as title from cardbox.reading(p_project, t.query_card_ids[1], statement_timestamp()) c) q on true
    left join lateral (
         select state.reason(c.content) as reason
           from cardbox.reading(p_project, case when t.status not in ('open', 'success') then t.deliverable_card_id end,
                                statement_timestamp()) c) d on true
   cross join lateral (
         select case i.status::text
                  when 'queued' then jsonb_build_object('kind', 'queue', 'since', i.created_at)
                  when 'pending' then jsonb_build_object('kind', 'worker', 'name', i.worker_target, 'since', i.armed_at)
                  when 'deferred' then case
                    when i.next_retry_at is not null then jsonb_build_object('kind', 'retry', 'since', i.armed_at)
                    else (select c.waiting_for
                            from state.waits(p_project, t.agent_turn_id) c
                           order by c.waiting_for ->> 'kind' <> 'person', c.call_seq
                           limit 1) end
                end as waiting_for) w
   cross join lateral (
         select coalesce(jsonb_object_agg(l.name, l.value), '{}') as labels
           from state.labels l
          where l.agent_turn_id = t.agent_turn_id and l.project_id = p_project) l
   cross join lateral (
         select case when t.root_turn_id = t.agent_turn_id then (
                  select count(*)
                    from (select from state.turns c
                           where c.root_turn_id = t.agent_turn_id and c.project_id = p_project and c.root_turn_id <> c.agent_turn_id
                           limit 1000) c) end as n_below) b
   cross join lateral (
         select count(*) as n_steps, coalesce(array_agg(distinct s.model) filter (where s.model is not null), '{}') as models,
                coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.cached_tokens), 0)::bigint as cached_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens,
                coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id) s
   order by asked.n;
end $$;
CREATE FUNCTION state.talks(p_project uuid, p_turns uuid[]) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select exists (select from unnest(p_turns) as e (agent_turn_id)
                  where (select t.session_id from state.turns t
                          where t.project_id = p_project and t.agent_turn_id = e.agent_turn_id) is not null
                     or exists (select from state.budgets b
                                 where b.project_id = p_project and b.agent_turn_id = e.agent_turn_id
                                offset 0))
$$;
CREATE FUNCTION state.tell(p_project uuid, p_turns uuid[], p_agent uuid, p_status text, p_always boolean DEFAULT false) RETURNS integer
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION state.time_of(p_id text) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select to_timestamp(('x' || lpad(replace(left(p_id, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0)
$$;
CREATE FUNCTION state.times(p_project uuid, p_turns uuid[], p_most integer) RETURNS TABLE(agent_turn_id uuid, source text, reference uuid, status text, from_at timestamp with time zone, to_at timestamp with time zone, is_child boolean)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
begin
  return query
  select t.agent_turn_id, m.source, m.reference, m.status, m.from_at, m.to_at, m.is_child
    from unnest(p_turns) as asked (agent_turn_id)
   cross join lateral (
         select t.* from state.turns t where t.project_id = p_project and t.agent_turn_id = asked.agent_turn_id offset 0) t
   cross join lateral (
         select 'step' as source, s.step_id as reference, s.outcome::text as status, s.created_at - s.took_ms * interval '1 ms' as from_at,
                s.created_at as to_at, false as is_child
           from state.agent_steps s
          where s.project_id = p_project and s.agent_turn_id = t.agent_turn_id and s.took_ms is not null
          union all
         select 'call', c.tool_call_id, c.status, c.asked_at, c.answered_at,
                exists (select from state.pmo_batches b where b.tool_call_id = c.tool_call_id and b.project_id = p_project offset 0)
           from state.calls(p_project, state.calls_of(p_project, t.output_box_id)) c
          where c.agent_turn_id = t.agent_turn_id
          union all
         select case o.event::text when 'state' then 'state' else 'ask' end, k.tool_call_id, o.status::text, o.created_at, o.created_at, false
           from state.outbox o
           left join lateral (
                select k.tool_call_id from cardbox.cards k where k.project_id = p_project and k.card_id = o.card_id offset 0) k on true
          where o.project_id = p_project and o.agent_turn_id = t.agent_turn_id and o.event in ('state', 'request')) m
   limit p_most;
end $$;
CREATE FUNCTION state.title(p_content json, p_type text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when pg_column_size(p_content) > 65536 then null
              else nullif(left(split_part(ltrim(case json_typeof(p_content) when 'string' then state.said(p_content #>> '{}', p_type)
                                                                            when 'object' then p_content ->> 'user_requirement' end,
                                                E' \t\r\n'), E'\n', 1), 120), '') end
$$;
CREATE FUNCTION state.turns_below(p_project uuid, p_turn uuid, p_most bigint) RETURNS uuid[]
    LANGUAGE plpgsql STABLE
    AS $$
declare
  v_found uuid[] := '{}';
  v_level uuid[];
begin
  select coalesce(array_agg(t.agent_turn_id), '{}') into v_level
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  while cardinality(v_level) > 0 loop
    v_found := (v_found || v_level)[1:p_most];
    exit when cardinality(v_found) >= p_most;
    select coalesce(array_agg(c.agent_turn_id order by c.agent_turn_id), '{}') into v_level
      from (select c.agent_turn_id
              from unnest(v_level) as asker (agent_turn_id)
             cross join lateral (
                   select c.agent_turn_id
                     from state.turns c
                    where c.project_id = p_project and c.parent_agent_turn_id = asker.agent_turn_id
                   offset 0) c
             limit p_most - cardinality(v_found)) c;
  end loop;
  return v_found;
end $$;
CREATE FUNCTION state.turns_of_session(p_project uuid, p_session uuid) RETURNS TABLE(agent_turn_id uuid, status text, context_box_id uuid, output_box_id uuid)
    LANGUAGE sql STABLE
    AS $$
  with recursive turns as (
    select t.agent_turn_id, t.status, t.context_box_id, t.output_box_id
      from state.turns t
     where t.session_id = p_session and t.project_id = p_project
     union
    select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
      from turns t
     cross join lateral (
           select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
             from state.turns c
            where c.project_id = p_project and c.parent_agent_turn_id = t.agent_turn_id
            union all
           select c.agent_turn_id, c.status, c.context_box_id, c.output_box_id
             from state.forks f
            cross join lateral (
                  select c.* from state.turns c where c.project_id = p_project and c.agent_turn_id = f.agent_turn_id offset 0) c
            where f.source_turn_id = t.agent_turn_id and f.project_id = p_project
           offset 0) c
  )
  select t.agent_turn_id, t.status::text, t.context_box_id, t.output_box_id from turns t
$$;
CREATE FUNCTION state.waiting_for(p_project uuid, p_agents uuid[], p_caller uuid) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
  with recursive chain as (
    select a.agent_id as asked, a.agent_id from unnest(p_agents) as a (agent_id)
     union
    select c.asked, k.agent_id
      from chain c
     cross join lateral (
           select h.active_agent_turn_id
             from state.agent_state_head h
            where h.project_id = p_project and h.agent_id = c.agent_id and h.status = 'suspended'
           offset 0) h
     cross join lateral (
           select w.tool_call_id
             from state.waiting_calls w
            where w.project_id = p_project and w.agent_turn_id = h.active_agent_turn_id
           offset 0) w
     cross join lateral (
           select b.batch_id
             from state.pmo_batches b
            where b.project_id = p_project and b.tool_call_id = w.tool_call_id and b.status = 'open'
           offset 0) b
     cross join lateral (
           select k.agent_id
             from state.pmo_batch_tasks k
            where k.project_id = p_project and k.batch_id = b.batch_id and k.status = 'open'
           offset 0) k
  )
  select coalesce(array_agg(distinct c.asked), '{}') from chain c where c.agent_id = p_caller
$$;
CREATE FUNCTION state.waits(p_project uuid, p_turn uuid) RETURNS TABLE(call_seq bigint, waiting_for jsonb)
    LANGUAGE sql STABLE
    AS $$
  select c.call_seq,
         jsonb_build_object('kind', case c.status::text when 'asking' then 'person' when 'awaiting' then 'child' else 'tool' end,
                            'name', k.name, 'since', coalesce(r.created_at, c.created_at))
    from (select c.* from state.waiting_calls c where c.agent_turn_id = p_turn and c.project_id = p_project offset 0) c
    left join lateral (
         select k.content ->> 'tool_name' as name
           from cardbox.cards k
          where k.project_id = p_project and k.card_id = c.tool_call_card_id
         offset 0) k on true
    left join lateral (
         select r.created_at
           from cardbox.cards r
          where r.project_id = p_project and r.card_id = c.request_card_id and c.status = 'asking'
         offset 0) r on true
$$;
CREATE FUNCTION state.why_kept(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
declare
  v_turn    record;
  v_batches uuid[];
  v_boxes   uuid[];
begin
  select t.status::text as is_status, t.finished_at, t.parent_agent_turn_id, t.output_box_id into v_turn
    from state.turns t
   where t.project_id = p_project and t.agent_turn_id = p_turn;
  if v_turn.is_status = 'open' then
    return 'open';
  end if;
  if (v_turn.finished_at < p_before) is not true then
    return 'recent';
  end if;
  if exists (select from state.turns t
              where t.project_id = p_project and t.agent_turn_id = v_turn.parent_agent_turn_id
                and (t.status = 'open' or t.finished_at >= p_before)) then
    return 'parent';
  end if;
  if exists (select from state.turns t where t.parent_agent_turn_id = p_turn and t.project_id = p_project) then
    return 'children';
  end if;
  if exists (select from state.forks f where f.source_turn_id = p_turn and f.project_id = p_project) then
    return 'fork';
  end if;
  if p_relayed and exists (select from state.outbox o
                            where o.project_id = p_project and o.agent_turn_id = p_turn and o.published_at is null) then
    return 'event';
  end if;
  v_batches := state.batches_of(p_project, p_turn, state.calls_of(p_project, v_turn.output_box_id));
  if exists (select
               from unnest(v_batches) as u (batch_id)
              where exists (select from state.pmo_batches b
                             where b.project_id = p_project and b.batch_id = u.batch_id and (b.status = 'open' or b.stopping)
                            offset 0)
                 or exists (select
                              from state.pmo_batch_tasks k
                             cross join lateral (
                                   select t.agent_turn_id
                                     from state.turns t
                                    where t.project_id = p_project and t.agent_turn_id = k.agent_turn_id
                                   offset 0) t
                             where k.project_id = p_project and k.batch_id = u.batch_id
                            offset 0)) then
    return 'batch';
  end if;
  v_boxes := state.boxes_of(p_project, p_turn, v_batches);
  if state.are_inherited(p_project, v_boxes) then
    return 'box';
  end if;
  if exists (select
               from unnest(v_boxes) as u (box_id)
              where exists (select from state.grants g
                             where g.box_id = u.box_id and g.project_id = p_project and (g.revoked_at < p_before) is not true
                            offset 0)) then
    return 'grant';
  end if;
  return null;
end $$;
CREATE FUNCTION state.yesterday() RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
  select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 86400000), 12, '0') || '00000000000000000000')::uuid
$$;
CREATE TABLE cardbox.artifacts (
    project_id uuid NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    hash bytea NOT NULL,
    media_type text NOT NULL,
    author_id text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    removed_at timestamp with time zone,
    is_external boolean DEFAULT (COALESCE(current_setting('waybill.external'::text, true), ''::text) = 'on'::text) NOT NULL,
    CONSTRAINT artifacts_path_check CHECK (((octet_length(path) >= 1) AND (octet_length(path) <= 1024))),
    CONSTRAINT artifacts_version_check CHECK ((version >= 1))
);
ALTER TABLE ONLY cardbox.artifacts FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.blobs (
    project_id uuid NOT NULL,
    hash bytea NOT NULL,
    upload_id uuid NOT NULL,
    size bigint NOT NULL,
    n_tokens bigint,
    is_estimate boolean DEFAULT false NOT NULL,
    pieces bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT blobs_check CHECK ((octet_length(pieces) = (32 * ((size + 1048575) / 1048576)))),
    CONSTRAINT blobs_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT blobs_n_tokens_check CHECK ((n_tokens >= 0)),
    CONSTRAINT blobs_size_check CHECK ((size >= 0))
);
ALTER TABLE ONLY cardbox.blobs FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.box_entries (
    project_id uuid NOT NULL,
    box_id uuid NOT NULL,
    seq bigint NOT NULL,
    card_id uuid,
    source_box_id uuid,
    from_seq bigint,
    to_seq bigint,
    CONSTRAINT box_entries_check CHECK ((num_nonnulls(card_id, source_box_id) = 1)),
    CONSTRAINT box_entries_check1 CHECK ((num_nonnulls(source_box_id, from_seq, to_seq) = ANY (ARRAY[0, 3]))),
    CONSTRAINT box_entries_check2 CHECK (((from_seq >= 1) AND (to_seq >= from_seq))),
    CONSTRAINT box_entries_check3 CHECK ((source_box_id <> box_id)),
    CONSTRAINT box_entries_seq_check CHECK ((seq >= 1))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.02', autovacuum_freeze_min_age='0');
ALTER TABLE ONLY cardbox.box_entries FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.boxes (
    project_id uuid NOT NULL,
    box_id uuid NOT NULL,
    length bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    agent_id uuid,
    agent_turn_id uuid,
    is_shared boolean DEFAULT false NOT NULL,
    has_external boolean DEFAULT false NOT NULL,
    CONSTRAINT boxes_length_check CHECK ((length >= 0))
)
WITH (fillfactor='80');
ALTER TABLE ONLY cardbox.boxes FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.cards (
    project_id uuid NOT NULL,
    card_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    n_tokens integer NOT NULL,
    content_addressed boolean DEFAULT false NOT NULL,
    type text NOT NULL,
    role cardbox.role NOT NULL,
    author_id text,
    hash bytea NOT NULL,
    salt bytea,
    tool_call_id uuid,
    trace_id uuid,
    step_id uuid,
    parent_step_id uuid,
    ttl_seconds integer,
    expires_at timestamp with time zone,
    deleted_at timestamp with time zone,
    deleted_reason text,
    erased_at timestamp with time zone,
    erased_reason text,
    content json,
    tool_calls json,
    metadata json,
    is_external boolean DEFAULT (COALESCE(current_setting('waybill.external'::text, true), ''::text) = 'on'::text) NOT NULL,
    CONSTRAINT cards_check CHECK (((content IS NULL) = (erased_at IS NOT NULL))),
    CONSTRAINT cards_check1 CHECK (((deleted_at IS NULL) = (deleted_reason IS NULL))),
    CONSTRAINT cards_check2 CHECK (((erased_at IS NULL) = (erased_reason IS NULL))),
    CONSTRAINT cards_check3 CHECK (
CASE
    WHEN content_addressed THEN ((salt IS NULL) AND (expires_at IS NULL))
    ELSE ((type !~~ 'sys.%'::text) AND (COALESCE(octet_length(salt), 0) =
    CASE
        WHEN (erased_at IS NULL) THEN 16
        ELSE 0
    END))
END),
    CONSTRAINT cards_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT cards_n_tokens_check CHECK ((n_tokens >= 0)),
    CONSTRAINT cards_ttl_seconds_check CHECK ((ttl_seconds > 0))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.02', autovacuum_freeze_min_age='0');
ALTER TABLE ONLY cardbox.cards FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.erasures (
    project_id uuid NOT NULL,
    card_id uuid NOT NULL,
    hash bytea NOT NULL,
    reason text NOT NULL,
    erased_by text NOT NULL,
    erased_at timestamp with time zone NOT NULL,
    CONSTRAINT erasures_reason_check CHECK ((reason <> ''::text))
);
ALTER TABLE ONLY cardbox.erasures FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.pins (
    project_id uuid NOT NULL,
    card_id uuid NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    hash bytea NOT NULL
);
ALTER TABLE ONLY cardbox.pins FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.uploads (
    project_id uuid NOT NULL,
    upload_id uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    condemned boolean DEFAULT false NOT NULL
);
ALTER TABLE ONLY cardbox.uploads FORCE ROW LEVEL SECURITY;
CREATE TABLE state.agent_steps (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    step_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    turn_epoch bigint NOT NULL,
    claim_token bigint NOT NULL,
    outcome state.step_outcome NOT NULL,
    from_seq bigint,
    to_seq bigint,
    n_calls integer DEFAULT 0 NOT NULL,
    provider text,
    model text,
    input_tokens integer,
    cached_tokens integer,
    output_tokens integer,
    microdollars bigint,
    took_ms integer,
    n_asked smallint,
    asked_again boolean,
    cache_miss jsonb,
    reported boolean,
    request bytea,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT agent_steps_cache_miss_check CHECK ((pg_column_size(cache_miss) <= 2000)),
    CONSTRAINT agent_steps_request_check CHECK ((octet_length(request) = 16))
)
PARTITION BY RANGE (agent_turn_id);
ALTER TABLE ONLY state.agent_steps FORCE ROW LEVEL SECURITY;
CREATE TABLE state.execution_edges (
    project_id uuid NOT NULL,
    correlation_id uuid NOT NULL,
    primitive state.primitive NOT NULL,
    edge_phase state.edge_phase NOT NULL,
    agent_turn_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    source_agent_id uuid,
    turn_epoch bigint,
    card_id uuid,
    status text,
    recursion_depth integer DEFAULT 0 NOT NULL,
    trace_id uuid,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
PARTITION BY RANGE (correlation_id);
ALTER TABLE ONLY state.execution_edges FORCE ROW LEVEL SECURITY;
CREATE SEQUENCE state.outbox_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE state.outbox (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    event state.event NOT NULL,
    event_id uuid NOT NULL,
    outbox_seq bigint DEFAULT nextval('state.outbox_seq'::regclass) NOT NULL,
    agent_id uuid NOT NULL,
    status state.event_status NOT NULL,
    turn_epoch bigint,
    step_id uuid,
    card_id uuid,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    published_at timestamp with time zone,
    shard smallint GENERATED ALWAYS AS (((uuid_hash(agent_id) & 15))::smallint) STORED NOT NULL
)
PARTITION BY RANGE (agent_turn_id);
ALTER TABLE ONLY state.outbox FORCE ROW LEVEL SECURITY;
CREATE TABLE state.patches (
    project_id uuid NOT NULL,
    session_id uuid NOT NULL,
    step_id uuid NOT NULL,
    patch jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
PARTITION BY RANGE (step_id);
ALTER TABLE ONLY state.patches FORCE ROW LEVEL SECURITY;
CREATE TABLE state.receipts (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    step_id uuid NOT NULL,
    receipt json NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
PARTITION BY RANGE (agent_turn_id);
ALTER TABLE ONLY state.receipts FORCE ROW LEVEL SECURITY;
CREATE TABLE state.refusals (
    project_id uuid NOT NULL,
    refusal_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    box_id uuid NOT NULL,
    tool_suffix text NOT NULL,
    why text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT refusals_why_check CHECK ((why = ANY (ARRAY['not_found'::text, 'forbidden'::text])))
)
PARTITION BY RANGE (refusal_id);
ALTER TABLE ONLY state.refusals FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.api_keys (
    project_id uuid NOT NULL,
    key_id uuid NOT NULL,
    name text NOT NULL,
    scope resource.scope NOT NULL,
    bounds jsonb DEFAULT '{}'::jsonb NOT NULL,
    hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT api_keys_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT api_keys_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.api_keys FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.browser_sessions (
    project_id uuid NOT NULL,
    hash bytea NOT NULL,
    key_id uuid,
    actor text,
    scope resource.scope,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT browser_sessions_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT browser_sessions_check CHECK ((((key_id IS NULL) = (actor IS NOT NULL)) AND ((key_id IS NULL) = (scope IS NOT NULL)))),
    CONSTRAINT browser_sessions_check1 CHECK ((expires_at <= (created_at + '12:00:00'::interval))),
    CONSTRAINT browser_sessions_hash_check CHECK ((octet_length(hash) = 32))
);
ALTER TABLE ONLY resource.browser_sessions FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.chunks (
    project_id uuid NOT NULL,
    document_id uuid NOT NULL,
    seq integer NOT NULL,
    from_line integer NOT NULL,
    to_line integer NOT NULL,
    heading text DEFAULT ''::text NOT NULL,
    content text NOT NULL,
    n_tokens integer NOT NULL,
    words tsvector NOT NULL,
    embedding real[],
    CONSTRAINT chunks_seq_check CHECK ((seq >= 1))
);
ALTER TABLE ONLY resource.chunks FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.documents (
    project_id uuid NOT NULL,
    kind resource.document_kind NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    document_id uuid NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    hash bytea NOT NULL,
    title text DEFAULT ''::text NOT NULL,
    n_chunks integer NOT NULL,
    n_tokens bigint NOT NULL,
    is_external boolean DEFAULT (COALESCE(current_setting('waybill.external'::text, true), ''::text) = 'on'::text) NOT NULL,
    agent_turn_id uuid,
    card_id uuid,
    embedded_by text,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT documents_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT documents_path_check CHECK (((octet_length(path) >= 1) AND (octet_length(path) <= 1024)))
);
ALTER TABLE ONLY resource.documents FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.handoff_types (
    project_id uuid NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    handoff_type_card_id uuid NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT handoff_types_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.handoff_types FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.plans (
    project_id uuid NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    plan_card_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT plans_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.plans FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.profiles (
    project_id uuid NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    profile_card_id uuid NOT NULL,
    profile_box_id uuid NOT NULL,
    worker_target state.target NOT NULL,
    tags text[] DEFAULT '{}'::text[] NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT profiles_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.profiles FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.project_agents (
    project_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    worker_target state.target NOT NULL,
    profile_name text,
    memory_box_id uuid,
    ephemeral boolean DEFAULT false NOT NULL,
    retire_by timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    retired_at timestamp with time zone,
    CONSTRAINT project_agents_check CHECK ((ephemeral OR (retire_by IS NULL)))
);
ALTER TABLE ONLY resource.project_agents FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.projects (
    project_id uuid NOT NULL,
    slug text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    seal_key bytea DEFAULT (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) NOT NULL,
    settings_card_id uuid,
    settings_version integer DEFAULT 0 NOT NULL,
    settings_at timestamp with time zone,
    max_open_turns integer,
    max_running_turns integer,
    max_microdollars bigint,
    artifact_bytes bigint DEFAULT 0 NOT NULL,
    CONSTRAINT projects_max_microdollars_check CHECK ((max_microdollars > 0)),
    CONSTRAINT projects_max_open_turns_check CHECK ((max_open_turns > 0)),
    CONSTRAINT projects_max_running_turns_check CHECK ((max_running_turns > 0)),
    CONSTRAINT projects_slug_check CHECK ((slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.projects FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.retention (
    project_id uuid NOT NULL,
    content_months resource.months,
    record_months resource.months,
    next_content_months resource.months,
    next_record_months resource.months,
    next_at timestamp with time zone,
    next_by xid8,
    hold_reason text,
    held_since timestamp with time zone,
    phase resource.retention_phase DEFAULT 'turns'::text NOT NULL,
    walked_to uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    removed jsonb DEFAULT '{}'::jsonb NOT NULL,
    walk_at timestamp with time zone DEFAULT now() NOT NULL,
    walked_at timestamp with time zone,
    done_to uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    kept_after uuid,
    CONSTRAINT retention_check CHECK (((hold_reason IS NULL) = (held_since IS NULL))),
    CONSTRAINT retention_check1 CHECK ((COALESCE((content_months)::integer, 1000) <= COALESCE((record_months)::integer, 1000))),
    CONSTRAINT retention_check2 CHECK ((COALESCE((next_content_months)::integer, 1000) <= COALESCE((next_record_months)::integer, 1000))),
    CONSTRAINT retention_hold_reason_check CHECK (((length(hold_reason) >= 1) AND (length(hold_reason) <= 1000)))
);
ALTER TABLE ONLY resource.retention FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.tools (
    project_id uuid NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    tool_card_id uuid,
    target state.target NOT NULL,
    registered_by text,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT tools_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.tools FORCE ROW LEVEL SECURITY;
CREATE TABLE resource.words (
    project_id uuid NOT NULL,
    word text NOT NULL COLLATE pg_catalog."C",
    n_chunks integer NOT NULL,
    CONSTRAINT words_n_chunks_check CHECK ((n_chunks >= 0))
)
WITH (fillfactor='70');
ALTER TABLE ONLY resource.words FORCE ROW LEVEL SECURITY;
CREATE TABLE state.agent_inbox (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    inbox_seq bigint NOT NULL,
    message_type state.message_type DEFAULT 'turn'::text NOT NULL,
    status state.inbox_status NOT NULL,
    worker_target state.target NOT NULL,
    turn_epoch bigint,
    claim_token bigint,
    worker_id uuid,
    silent_by timestamp with time zone,
    next_retry_at timestamp with time zone,
    retry_count integer DEFAULT 0 NOT NULL,
    n_lost_leases integer DEFAULT 0 NOT NULL,
    stop_asked boolean DEFAULT false NOT NULL,
    stop_reason text,
    armed_at timestamp with time zone DEFAULT now() NOT NULL,
    dispatched_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    shard smallint GENERATED ALWAYS AS (((uuid_hash(agent_id) & 15))::smallint) STORED NOT NULL,
    CONSTRAINT agent_inbox_check CHECK ((((status)::text = 'processing'::text) = (worker_id IS NOT NULL))),
    CONSTRAINT agent_inbox_check1 CHECK (((next_retry_at IS NULL) OR ((status)::text = 'deferred'::text)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY state.agent_inbox FORCE ROW LEVEL SECURITY;
ALTER TABLE state.agent_inbox ALTER COLUMN inbox_seq ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME state.agent_inbox_inbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE state.agent_state_head (
    project_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    status state.head_status DEFAULT 'idle'::text NOT NULL,
    active_agent_turn_id uuid,
    turn_epoch bigint DEFAULT 0 NOT NULL,
    claim_token bigint DEFAULT 0 NOT NULL,
    n_queued integer DEFAULT 0 NOT NULL,
    queue_cap integer DEFAULT 1000 NOT NULL,
    worker_target state.target NOT NULL,
    ephemeral boolean DEFAULT false NOT NULL,
    memory_box_id uuid,
    CONSTRAINT agent_state_head_check CHECK ((((status)::text = 'idle'::text) = (active_agent_turn_id IS NULL))),
    CONSTRAINT agent_state_head_n_queued_check CHECK ((n_queued >= 0)),
    CONSTRAINT queue_is_full CHECK ((n_queued <= queue_cap))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE ONLY state.agent_state_head FORCE ROW LEVEL SECURITY;
CREATE TABLE state.audit (
    project_id uuid NOT NULL,
    audit_id uuid NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    db_role text DEFAULT SESSION_USER NOT NULL,
    address text DEFAULT COALESCE(NULLIF(current_setting('waybill.address'::text, true), ''::text), host(inet_client_addr())),
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT audit_action_check CHECK ((action <> ''::text)),
    CONSTRAINT audit_actor_check CHECK ((actor <> ''::text))
);
ALTER TABLE ONLY state.audit FORCE ROW LEVEL SECURITY;
CREATE TABLE state.blackboards (
    project_id uuid NOT NULL,
    session_id uuid NOT NULL,
    owner text,
    title text,
    labels text[] DEFAULT '{}'::text[] NOT NULL,
    messages_box_id uuid NOT NULL,
    todo_card_id uuid,
    compression_card_id uuid,
    mapreduce_results_box_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT blackboards_labels_check CHECK ((cardinality(labels) <= 32)),
    CONSTRAINT blackboards_owner_check CHECK ((length(owner) <= 1000)),
    CONSTRAINT blackboards_title_check CHECK ((length(title) <= 300))
)
WITH (fillfactor='70');
ALTER TABLE ONLY state.blackboards FORCE ROW LEVEL SECURITY;
CREATE TABLE state.budgets (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    parent_agent_turn_id uuid,
    steps_left integer,
    tokens_left bigint,
    microdollars_left bigint,
    own_steps integer,
    own_tokens bigint,
    own_microdollars bigint,
    expires_at timestamp with time zone
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.budgets FORCE ROW LEVEL SECURITY;
CREATE TABLE state.turns (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    channel state.channel DEFAULT 'public'::text NOT NULL,
    status state.turn_status DEFAULT 'open'::text NOT NULL,
    profile_box_id uuid,
    context_box_id uuid NOT NULL,
    output_box_id uuid NOT NULL,
    query_card_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    steer_card_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    session_id uuid,
    source_agent_id uuid,
    parent_agent_turn_id uuid,
    root_turn_id uuid NOT NULL,
    parent_step_id uuid,
    parent_tool_call_id uuid,
    batch_id uuid,
    task_index integer,
    recursion_depth integer DEFAULT 0 NOT NULL,
    trace_id uuid,
    traceparent text,
    tracestate text,
    emit_state_event boolean DEFAULT false NOT NULL,
    started_by text,
    on_behalf_of text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    limits jsonb,
    dispatched_epoch bigint,
    finished_at timestamp with time zone,
    deliverable_card_id uuid,
    turn_epoch bigint,
    claim_token bigint,
    CONSTRAINT turns_check CHECK ((((status)::text = 'recorded'::text) OR (((status)::text = 'open'::text) = (deliverable_card_id IS NULL)))),
    CONSTRAINT turns_check1 CHECK (((batch_id IS NULL) = (task_index IS NULL)))
)
WITH (fillfactor='70');
ALTER TABLE ONLY state.turns FORCE ROW LEVEL SECURITY;
CREATE VIEW state.edges WITH (security_invoker='true') AS
 SELECT e.project_id,
    e.correlation_id,
    (e.primitive)::text AS primitive,
    (e.edge_phase)::text AS edge_phase,
    e.agent_turn_id,
    e.agent_id,
    e.source_agent_id,
    e.turn_epoch,
    e.card_id,
    e.status,
    e.recursion_depth,
    e.trace_id,
    e.created_at
   FROM state.execution_edges e
UNION ALL
 SELECT t.project_id,
    t.agent_turn_id AS correlation_id,
    'enqueue'::text AS primitive,
    'request'::text AS edge_phase,
    t.agent_turn_id,
    t.agent_id,
    t.source_agent_id,
    t.dispatched_epoch AS turn_epoch,
    t.query_card_ids[1] AS card_id,
    NULL::text AS status,
    t.recursion_depth,
    t.trace_id,
    t.created_at
   FROM state.turns t
UNION ALL
 SELECT t.project_id,
    t.agent_turn_id AS correlation_id,
    'enqueue'::text AS primitive,
    'response'::text AS edge_phase,
    t.agent_turn_id,
    t.agent_id,
    NULL::uuid AS source_agent_id,
    t.turn_epoch,
    t.deliverable_card_id AS card_id,
    (t.status)::text AS status,
    t.recursion_depth,
    t.trace_id,
    t.finished_at AS created_at
   FROM state.turns t
  WHERE ((t.status)::text <> 'open'::text);
CREATE TABLE state.forgotten_sessions (
    project_id uuid NOT NULL,
    session_id uuid NOT NULL,
    forgotten_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY state.forgotten_sessions FORCE ROW LEVEL SECURITY;
CREATE TABLE state.forks (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    source_turn_id uuid NOT NULL,
    source_step_id uuid,
    live_tools boolean NOT NULL,
    change jsonb NOT NULL,
    forked_by text DEFAULT NULLIF(current_setting('waybill.actor'::text, true), ''::text),
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY state.forks FORCE ROW LEVEL SECURITY;
CREATE TABLE state.grants (
    project_id uuid NOT NULL,
    grant_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    box_id uuid NOT NULL,
    upto bigint,
    granted_by text NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    revoked_at timestamp with time zone,
    revoked_by text,
    CONSTRAINT grants_check CHECK (((revoked_at IS NULL) = (revoked_by IS NULL))),
    CONSTRAINT grants_granted_by_check CHECK ((granted_by <> ''::text)),
    CONSTRAINT grants_reason_check CHECK ((reason <> ''::text)),
    CONSTRAINT grants_upto_check CHECK ((upto >= 0))
);
ALTER TABLE ONLY state.grants FORCE ROW LEVEL SECURITY;
CREATE TABLE state.handovers (
    project_id uuid NOT NULL,
    context_box_id uuid NOT NULL,
    part integer NOT NULL,
    agent_id uuid NOT NULL,
    source_agent_id uuid,
    tool_suffix text NOT NULL,
    rule state.handover_rule NOT NULL,
    arg_key text,
    from_seq bigint NOT NULL,
    n_cards bigint NOT NULL,
    source_box_id uuid,
    upto bigint,
    via state.reading_right,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT handovers_check CHECK ((num_nonnulls(source_box_id, upto, via) = ANY (ARRAY[0, 3])))
);
ALTER TABLE ONLY state.handovers FORCE ROW LEVEL SECURITY;
CREATE TABLE state.idempotency (
    project_id uuid NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    answer json,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT idempotency_key_check CHECK (((length(key) >= 1) AND (length(key) <= 255))),
    CONSTRAINT idempotency_request_hash_check CHECK ((octet_length(request_hash) = 32))
);
ALTER TABLE ONLY state.idempotency FORCE ROW LEVEL SECURITY;
CREATE TABLE state.identity_edges (
    project_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    action text NOT NULL,
    source_agent_id uuid,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT identity_edges_action_check CHECK ((action = ANY (ARRAY['created'::text, 'cloned'::text, 'retired'::text])))
);
ALTER TABLE ONLY state.identity_edges FORCE ROW LEVEL SECURITY;
CREATE TABLE state.labels (
    project_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C",
    agent_turn_id uuid NOT NULL,
    CONSTRAINT labels_name_check CHECK ((name ~ '^[a-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT labels_value_check CHECK (((length(value) >= 1) AND (length(value) <= 200)))
);
ALTER TABLE ONLY state.labels FORCE ROW LEVEL SECURITY;
CREATE TABLE state.pmo_batch_slots (
    project_id uuid NOT NULL,
    batch_id uuid NOT NULL,
    slot smallint NOT NULL,
    remaining integer NOT NULL,
    CONSTRAINT pmo_batch_slots_remaining_check CHECK ((remaining >= 0))
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.pmo_batch_slots FORCE ROW LEVEL SECURITY;
CREATE TABLE state.pmo_batch_tasks (
    project_id uuid NOT NULL,
    batch_id uuid NOT NULL,
    task_index integer NOT NULL,
    agent_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    status state.turn_status DEFAULT 'open'::text NOT NULL,
    deliverable_card_id uuid,
    output_box_id uuid,
    output_length bigint,
    error text
)
WITH (fillfactor='70');
ALTER TABLE ONLY state.pmo_batch_tasks FORCE ROW LEVEL SECURITY;
CREATE TABLE state.pmo_batches (
    project_id uuid NOT NULL,
    batch_id uuid NOT NULL,
    parent_agent_turn_id uuid NOT NULL,
    parent_agent_id uuid NOT NULL,
    tool_call_id uuid NOT NULL,
    status state.batch_status DEFAULT 'open'::text NOT NULL,
    stage smallint DEFAULT 0 NOT NULL,
    joins_as state.join_shape DEFAULT 'list'::text NOT NULL,
    results_box_id uuid,
    fail_fast boolean DEFAULT false NOT NULL,
    n_tasks integer NOT NULL,
    open_slots integer NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    closed_at timestamp with time zone,
    stopping boolean DEFAULT false NOT NULL,
    shard smallint GENERATED ALWAYS AS (((uuid_hash(batch_id) & 15))::smallint) STORED NOT NULL,
    CONSTRAINT pmo_batches_check CHECK ((((status)::text = 'open'::text) = (closed_at IS NULL))),
    CONSTRAINT pmo_batches_n_tasks_check CHECK ((n_tasks > 0)),
    CONSTRAINT pmo_batches_open_slots_check CHECK ((open_slots >= 0))
)
WITH (fillfactor='70');
ALTER TABLE ONLY state.pmo_batches FORCE ROW LEVEL SECURITY;
CREATE TABLE state.quarantine (
    project_id uuid NOT NULL,
    sweep text NOT NULL,
    subject_id uuid NOT NULL,
    n_failures integer DEFAULT 1 NOT NULL,
    last_error text NOT NULL,
    first_at timestamp with time zone DEFAULT now() NOT NULL,
    last_at timestamp with time zone DEFAULT now() NOT NULL,
    quarantined_at timestamp with time zone
);
ALTER TABLE ONLY state.quarantine FORCE ROW LEVEL SECURITY;
CREATE TABLE state.queue_marks (
    worker_target state.target NOT NULL,
    project_id uuid NOT NULL,
    begun_seq bigint NOT NULL,
    new_seq bigint NOT NULL,
    next_seq bigint NOT NULL,
    open_then text[] NOT NULL,
    marked_at timestamp with time zone NOT NULL,
    drawn_seq bigint NOT NULL,
    n_running bigint NOT NULL,
    running_seq bigint NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.queue_marks FORCE ROW LEVEL SECURITY;
CREATE TABLE state.recorded_asks (
    project_id uuid NOT NULL,
    said bytea NOT NULL,
    agent_turn_id uuid NOT NULL,
    CONSTRAINT recorded_asks_said_check CHECK ((octet_length(said) = 16))
);
ALTER TABLE ONLY state.recorded_asks FORCE ROW LEVEL SECURITY;
CREATE TABLE state.recordings (
    project_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    opening bytea NOT NULL,
    tail bytea NOT NULL,
    n_messages integer NOT NULL,
    answer bytea,
    state bytea,
    leads_to bytea GENERATED ALWAYS AS ((tail || COALESCE(answer, '\x'::bytea))) STORED,
    departs_from uuid,
    differs_at integer,
    CONSTRAINT recordings_check CHECK (((departs_from IS NULL) = (differs_at IS NULL))),
    CONSTRAINT recordings_n_messages_check CHECK ((n_messages >= 0)),
    CONSTRAINT recordings_opening_check CHECK ((octet_length(opening) = 16)),
    CONSTRAINT recordings_tail_check CHECK ((octet_length(tail) = 16))
)
WITH (fillfactor='80');
ALTER TABLE ONLY state.recordings FORCE ROW LEVEL SECURITY;
CREATE TABLE state.relay_shards (
    shard smallint NOT NULL,
    worker_id uuid,
    stream_made_at timestamp with time zone,
    replay_after bigint DEFAULT 0 NOT NULL,
    replay_upto bigint DEFAULT 0 NOT NULL,
    CONSTRAINT relay_shards_shard_check CHECK (((shard >= 0) AND (shard <= 15)))
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.relay_shards FORCE ROW LEVEL SECURITY;
CREATE TABLE state.requests (
    project_id uuid NOT NULL,
    tool_call_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    tool_call_card_id uuid NOT NULL,
    request_card_id uuid NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    decision text NOT NULL,
    decision_card_id uuid NOT NULL,
    decided_by text NOT NULL,
    decided_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT requests_decision_check CHECK ((decision = ANY (ARRAY['approved'::text, 'rejected'::text, 'answered'::text, 'expired'::text])))
);
ALTER TABLE ONLY state.requests FORCE ROW LEVEL SECURITY;
CREATE TABLE state.spending (
    project_id uuid NOT NULL,
    month date NOT NULL,
    slot smallint NOT NULL,
    microdollars bigint NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.spending FORCE ROW LEVEL SECURITY;
CREATE TABLE state.sweep_clock (
    one boolean DEFAULT true NOT NULL,
    beat_at timestamp with time zone DEFAULT now() NOT NULL,
    steady_since timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT sweep_clock_one_check CHECK (one)
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.sweep_clock FORCE ROW LEVEL SECURITY;
CREATE TABLE state.waiting_calls (
    project_id uuid NOT NULL,
    tool_call_id uuid NOT NULL,
    agent_turn_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    step_id uuid NOT NULL,
    call_seq bigint NOT NULL,
    target state.target NOT NULL,
    status state.call_status DEFAULT 'pending'::text NOT NULL,
    tool_call_card_id uuid NOT NULL,
    once boolean DEFAULT false NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    claim_token bigint DEFAULT 0 NOT NULL,
    worker_id uuid,
    n_lost_leases integer DEFAULT 0 NOT NULL,
    retry_count integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    shard smallint GENERATED ALWAYS AS (((uuid_hash(agent_id) & 15))::smallint) STORED NOT NULL,
    request_card_id uuid,
    decision_card_id uuid,
    admitted_token bigint,
    CONSTRAINT waiting_calls_check CHECK ((((status)::text = 'processing'::text) = (worker_id IS NOT NULL)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY state.waiting_calls FORCE ROW LEVEL SECURITY;
ALTER TABLE state.waiting_calls ALTER COLUMN call_seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME state.waiting_calls_call_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE state.worker_leases (
    worker_id uuid NOT NULL,
    worker_target state.target NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    renewed_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE ONLY state.worker_leases FORCE ROW LEVEL SECURITY;
ALTER TABLE ONLY cardbox.artifacts
    ADD CONSTRAINT artifacts_pkey PRIMARY KEY (project_id, path, version);
ALTER TABLE ONLY cardbox.blobs
    ADD CONSTRAINT blobs_pkey PRIMARY KEY (project_id, hash);
ALTER TABLE ONLY cardbox.box_entries
    ADD CONSTRAINT box_entries_pkey PRIMARY KEY (project_id, box_id, seq);
ALTER TABLE ONLY cardbox.boxes
    ADD CONSTRAINT boxes_pkey PRIMARY KEY (project_id, box_id);
ALTER TABLE ONLY cardbox.cards
    ADD CONSTRAINT cards_pkey PRIMARY KEY (project_id, card_id);
ALTER TABLE ONLY cardbox.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (project_id, card_id);
ALTER TABLE ONLY cardbox.pins
    ADD CONSTRAINT pins_pkey PRIMARY KEY (project_id, card_id, path);
ALTER TABLE ONLY cardbox.uploads
    ADD CONSTRAINT uploads_pkey PRIMARY KEY (project_id, upload_id);
ALTER TABLE ONLY resource.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (project_id, key_id);
ALTER TABLE ONLY resource.browser_sessions
    ADD CONSTRAINT browser_sessions_pkey PRIMARY KEY (project_id, hash);
ALTER TABLE ONLY resource.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (project_id, document_id, seq);
ALTER TABLE ONLY resource.documents
    ADD CONSTRAINT documents_pkey PRIMARY KEY (project_id, kind, path);
ALTER TABLE ONLY resource.handoff_types
    ADD CONSTRAINT handoff_types_pkey PRIMARY KEY (project_id, name);
ALTER TABLE ONLY resource.plans
    ADD CONSTRAINT plans_pkey PRIMARY KEY (project_id, name, version);
ALTER TABLE ONLY resource.profiles
    ADD CONSTRAINT profiles_pkey PRIMARY KEY (project_id, name);
ALTER TABLE ONLY resource.project_agents
    ADD CONSTRAINT project_agents_pkey PRIMARY KEY (project_id, agent_id);
ALTER TABLE ONLY resource.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (project_id);
ALTER TABLE ONLY resource.projects
    ADD CONSTRAINT projects_slug_key UNIQUE (slug);
ALTER TABLE ONLY resource.retention
    ADD CONSTRAINT retention_pkey PRIMARY KEY (project_id);
ALTER TABLE ONLY resource.tools
    ADD CONSTRAINT tools_pkey PRIMARY KEY (project_id, name);
ALTER TABLE ONLY resource.words
    ADD CONSTRAINT words_pkey PRIMARY KEY (project_id, word);
ALTER TABLE ONLY state.agent_inbox
    ADD CONSTRAINT agent_inbox_pkey PRIMARY KEY (project_id, agent_turn_id);
ALTER TABLE ONLY state.agent_state_head
    ADD CONSTRAINT agent_state_head_pkey PRIMARY KEY (project_id, agent_id);
ALTER TABLE ONLY state.agent_steps
    ADD CONSTRAINT agent_steps_pkey PRIMARY KEY (project_id, agent_turn_id, step_id);
ALTER TABLE ONLY state.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (project_id, audit_id);
ALTER TABLE ONLY state.blackboards
    ADD CONSTRAINT blackboards_pkey PRIMARY KEY (project_id, session_id);
ALTER TABLE ONLY state.budgets
    ADD CONSTRAINT budgets_pkey PRIMARY KEY (project_id, agent_turn_id);
ALTER TABLE ONLY state.execution_edges
    ADD CONSTRAINT execution_edges_pkey PRIMARY KEY (project_id, correlation_id, primitive, edge_phase);
ALTER TABLE ONLY state.forgotten_sessions
    ADD CONSTRAINT forgotten_sessions_pkey PRIMARY KEY (project_id, session_id);
ALTER TABLE ONLY state.forks
    ADD CONSTRAINT forks_pkey PRIMARY KEY (project_id, agent_turn_id);
ALTER TABLE ONLY state.grants
    ADD CONSTRAINT grants_pkey PRIMARY KEY (project_id, grant_id);
ALTER TABLE ONLY state.handovers
    ADD CONSTRAINT handovers_pkey PRIMARY KEY (project_id, context_box_id, part);
ALTER TABLE ONLY state.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (project_id, key);
ALTER TABLE ONLY state.identity_edges
    ADD CONSTRAINT identity_edges_pkey PRIMARY KEY (project_id, agent_id, action);
ALTER TABLE ONLY state.labels
    ADD CONSTRAINT labels_pkey PRIMARY KEY (project_id, name, value, agent_turn_id);
ALTER TABLE ONLY state.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (project_id, agent_turn_id, event, event_id);
ALTER TABLE ONLY state.patches
    ADD CONSTRAINT patches_pkey PRIMARY KEY (project_id, session_id, step_id);
ALTER TABLE ONLY state.pmo_batch_slots
    ADD CONSTRAINT pmo_batch_slots_pkey PRIMARY KEY (project_id, batch_id, slot);
ALTER TABLE ONLY state.pmo_batch_tasks
    ADD CONSTRAINT pmo_batch_tasks_pkey PRIMARY KEY (project_id, batch_id, task_index);
ALTER TABLE ONLY state.pmo_batches
    ADD CONSTRAINT pmo_batches_pkey PRIMARY KEY (project_id, batch_id);
ALTER TABLE ONLY state.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (project_id, sweep, subject_id);
ALTER TABLE ONLY state.queue_marks
    ADD CONSTRAINT queue_marks_pkey PRIMARY KEY (worker_target, project_id);
ALTER TABLE ONLY state.receipts
    ADD CONSTRAINT receipts_pkey PRIMARY KEY (project_id, agent_turn_id, step_id);
ALTER TABLE ONLY state.recorded_asks
    ADD CONSTRAINT recorded_asks_pkey PRIMARY KEY (project_id, said, agent_turn_id);
ALTER TABLE ONLY state.recordings
    ADD CONSTRAINT recordings_pkey PRIMARY KEY (project_id, agent_turn_id);
ALTER TABLE ONLY state.refusals
    ADD CONSTRAINT refusals_pkey PRIMARY KEY (project_id, refusal_id);
ALTER TABLE ONLY state.relay_shards
    ADD CONSTRAINT relay_shards_pkey PRIMARY KEY (shard);
ALTER TABLE ONLY state.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (project_id, tool_call_id);
ALTER TABLE ONLY state.spending
    ADD CONSTRAINT spending_pkey PRIMARY KEY (project_id, month, slot);
ALTER TABLE ONLY state.sweep_clock
    ADD CONSTRAINT sweep_clock_pkey PRIMARY KEY (one);
ALTER TABLE ONLY state.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (project_id, agent_turn_id);
ALTER TABLE ONLY state.waiting_calls
    ADD CONSTRAINT waiting_calls_pkey PRIMARY KEY (project_id, tool_call_id);
ALTER TABLE ONLY state.worker_leases
    ADD CONSTRAINT worker_leases_pkey PRIMARY KEY (worker_id);
CREATE INDEX artifacts_by_hash ON cardbox.artifacts USING btree (hash, project_id);
CREATE INDEX artifacts_removed ON cardbox.artifacts USING btree (project_id, path, version) WHERE (removed_at IS NOT NULL);
CREATE INDEX box_entries_by_card ON cardbox.box_entries USING btree (card_id, project_id) WHERE (card_id IS NOT NULL);
CREATE INDEX box_entries_by_source ON cardbox.box_entries USING btree (source_box_id, project_id) WHERE (source_box_id IS NOT NULL);
CREATE INDEX box_entries_ranges ON cardbox.box_entries USING btree (box_id, project_id, seq) WHERE (source_box_id IS NOT NULL);
CREATE INDEX boxes_shared ON cardbox.boxes USING btree (project_id, box_id) WHERE is_shared;
CREATE UNIQUE INDEX cards_by_content ON cardbox.cards USING btree (project_id, hash) WHERE (content_addressed AND (deleted_at IS NULL) AND (erased_at IS NULL));
CREATE INDEX cards_ending ON cardbox.cards USING btree (project_id, LEAST(expires_at, deleted_at, erased_at)) WHERE ((expires_at IS NOT NULL) OR (deleted_at IS NOT NULL) OR (erased_at IS NOT NULL));
CREATE INDEX cards_external ON cardbox.cards USING btree (project_id, card_id) WHERE is_external;
CREATE INDEX pins_by_path ON cardbox.pins USING btree (path, project_id, hash);
CREATE INDEX uploads_ended ON cardbox.uploads USING btree (expires_at);
CREATE INDEX agents_to_retire ON resource.project_agents USING btree (retire_by) WHERE ((retire_by IS NOT NULL) AND (retired_at IS NULL));
CREATE UNIQUE INDEX api_keys_by_id ON resource.api_keys USING btree (key_id);
CREATE INDEX api_keys_by_name ON resource.api_keys USING btree (name, project_id);
CREATE INDEX browser_sessions_by_hash ON resource.browser_sessions USING btree (hash);
CREATE INDEX browser_sessions_ended ON resource.browser_sessions USING btree (expires_at);
CREATE INDEX chunks_by_word ON resource.chunks USING gin (words) WITH (fastupdate=off);
CREATE UNIQUE INDEX documents_by_id ON resource.documents USING btree (document_id, project_id);
CREATE INDEX retention_due ON resource.retention USING btree (walk_at);
CREATE INDEX retention_held ON resource.retention USING btree (project_id) WHERE (held_since IS NOT NULL);
CREATE INDEX agent_steps_by_request ON ONLY state.agent_steps USING btree (request, project_id, step_id) WHERE (request IS NOT NULL);
CREATE UNIQUE INDEX batches_by_call ON state.pmo_batches USING btree (tool_call_id, project_id, stage);
CREATE INDEX batches_due ON state.pmo_batches USING btree (shard, deadline_at) WHERE (closed_at IS NULL);
CREATE INDEX batches_stopping ON state.pmo_batches USING btree (shard) WHERE stopping;
CREATE INDEX blackboards_by_owner ON state.blackboards USING btree (owner, project_id, session_id) WHERE (owner IS NOT NULL);
CREATE INDEX calls_asking ON state.waiting_calls USING btree (project_id, tool_call_id) WHERE ((status)::text = 'asking'::text);
CREATE INDEX calls_due ON state.waiting_calls USING btree (shard, deadline_at);
CREATE INDEX calls_held ON state.waiting_calls USING btree (worker_id) WHERE (worker_id IS NOT NULL);
CREATE INDEX calls_in_flight ON state.waiting_calls USING btree (project_id, tool_call_id) WHERE ((status)::text = 'processing'::text);
CREATE INDEX calls_of_turn ON state.waiting_calls USING btree (agent_turn_id, project_id);
CREATE INDEX calls_ready ON state.waiting_calls USING btree (target, project_id, call_seq) WHERE ((status)::text = 'pending'::text);
CREATE INDEX forks_by_source ON state.forks USING btree (source_turn_id, project_id, agent_turn_id);
CREATE INDEX granted ON state.grants USING btree (agent_id, box_id) WHERE (revoked_at IS NULL);
CREATE INDEX grants_of_agent ON state.grants USING btree (agent_id, project_id, grant_id);
CREATE INDEX grants_of_box ON state.grants USING btree (box_id, project_id);
CREATE INDEX handed ON state.handovers USING btree (agent_id, source_box_id, upto) WHERE (source_box_id IS NOT NULL);
CREATE INDEX idempotency_ended ON state.idempotency USING btree (expires_at);
CREATE INDEX inbox_due ON state.agent_inbox USING btree (shard, next_retry_at) WHERE (next_retry_at IS NOT NULL);
CREATE INDEX inbox_held ON state.agent_inbox USING btree (worker_id, silent_by) WHERE (worker_id IS NOT NULL);
CREATE INDEX inbox_in_flight ON state.agent_inbox USING btree (project_id, inbox_seq) WHERE ((status)::text = 'processing'::text);
CREATE INDEX inbox_later ON state.agent_inbox USING btree (agent_id, project_id) WHERE (next_retry_at IS NOT NULL);
CREATE INDEX inbox_queue ON state.agent_inbox USING btree (agent_id, inbox_seq) WHERE ((status)::text = 'queued'::text);
CREATE INDEX inbox_ready ON state.agent_inbox USING btree (worker_target, project_id, inbox_seq) WHERE ((status)::text = 'pending'::text);
CREATE INDEX labels_of_turn ON state.labels USING btree (agent_turn_id, project_id, name, value);
CREATE INDEX outbox_by_project ON ONLY state.outbox USING btree (project_id, outbox_seq) WHERE (outbox_seq > 0);
CREATE INDEX outbox_order ON ONLY state.outbox USING btree (shard, outbox_seq) WHERE (published_at IS NOT NULL);
CREATE INDEX outbox_unpublished ON ONLY state.outbox USING btree (shard, outbox_seq) WHERE (published_at IS NULL);
CREATE INDEX quarantined ON state.quarantine USING btree (subject_id, sweep) WHERE (quarantined_at IS NOT NULL);
CREATE INDEX recorded_asks_by_turn ON state.recorded_asks USING btree (agent_turn_id, project_id);
CREATE INDEX recordings_by_answer ON state.recordings USING btree (answer, project_id, agent_turn_id) WHERE (answer IS NOT NULL);
CREATE INDEX recordings_by_leads_to ON state.recordings USING btree (leads_to, project_id, agent_turn_id);
CREATE INDEX recordings_by_opening ON state.recordings USING btree (opening, project_id, agent_turn_id);
CREATE INDEX recordings_by_state ON state.recordings USING btree (state, project_id, agent_turn_id) WHERE (state IS NOT NULL);
CREATE INDEX recordings_by_tail ON state.recordings USING btree (tail, project_id, agent_turn_id);
CREATE INDEX turns_by_agent ON state.turns USING btree (agent_id, project_id, agent_turn_id);
CREATE INDEX turns_by_parent ON state.turns USING btree (parent_agent_turn_id, project_id) WHERE (parent_agent_turn_id IS NOT NULL);
CREATE INDEX turns_by_root ON state.turns USING btree (root_turn_id, project_id, agent_turn_id) WHERE (root_turn_id <> agent_turn_id);
CREATE INDEX turns_by_session ON state.turns USING btree (session_id, project_id, agent_turn_id) WHERE (session_id IS NOT NULL);
CREATE TRIGGER fixed BEFORE UPDATE ON cardbox.box_entries FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER fixed BEFORE UPDATE ON cardbox.erasures FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('the audit is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON cardbox.pins FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a card says what it said');
CREATE TRIGGER grow BEFORE UPDATE ON cardbox.boxes FOR EACH ROW WHEN (((new.length < old.length) OR (new.box_id <> old.box_id) OR (new.project_id <> old.project_id))) EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER guard BEFORE UPDATE ON cardbox.cards FOR EACH ROW EXECUTE FUNCTION cardbox.guard_card();
CREATE TRIGGER keep BEFORE UPDATE ON cardbox.blobs FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('content never changes');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.box_entries FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.boxes FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a box is kept for ever');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.cards FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a card is kept for ever');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.erasures FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('the audit is append-only');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.pins FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a card says what it said');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.box_entries FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.boxes FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('boxes are kept for ever');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.cards FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('cards are kept for ever');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.erasures FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('the audit is append-only');
CREATE TRIGGER label AFTER INSERT ON cardbox.box_entries REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cardbox.label();
CREATE TRIGGER label BEFORE INSERT ON cardbox.cards FOR EACH ROW WHEN (((new.type = ANY (ARRAY['handoff.package'::text, 'tool.result'::text])) AND (POSITION(('"artifacts":{'::text) IN ((new.content)::text)) > 0))) EXECUTE FUNCTION cardbox.label_card();
CREATE TRIGGER pin AFTER INSERT ON cardbox.cards FOR EACH ROW WHEN (((new.type = ANY (ARRAY['handoff.package'::text, 'tool.result'::text])) AND (POSITION(('"artifacts":{'::text) IN ((new.content)::text)) > 0))) EXECUTE FUNCTION cardbox.pin();
CREATE TRIGGER "real" BEFORE INSERT ON cardbox.erasures FOR EACH ROW WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION cardbox.refuse('only an erasure writes its record');
CREATE TRIGGER stay BEFORE UPDATE ON cardbox.boxes FOR EACH ROW WHEN ((old.has_external AND (NOT new.has_external))) EXECUTE FUNCTION cardbox.refuse('what came from outside stays so');
CREATE TRIGGER stay BEFORE UPDATE ON cardbox.cards FOR EACH ROW WHEN ((new.is_external <> old.is_external)) EXECUTE FUNCTION cardbox.refuse('where a card came from never changes');
CREATE TRIGGER once BEFORE UPDATE ON resource.api_keys FOR EACH ROW WHEN ((old.revoked_at IS NOT NULL)) EXECUTE FUNCTION cardbox.refuse('a key that was revoked stays revoked');
CREATE TRIGGER fixed BEFORE UPDATE ON state.agent_steps FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.audit FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('what was done is on record');
CREATE TRIGGER fixed BEFORE UPDATE ON state.execution_edges FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.forks FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('what was changed is on record');
CREATE TRIGGER fixed BEFORE UPDATE ON state.handovers FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a handover is on record');
CREATE TRIGGER fixed BEFORE UPDATE ON state.identity_edges FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.patches FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.receipts FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.refusals FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER fixed BEFORE UPDATE ON state.requests FOR EACH ROW WHEN ((new.request_card_id = old.request_card_id)) EXECUTE FUNCTION cardbox.refuse('a request is decided once');
CREATE TRIGGER hold BEFORE INSERT ON state.forks FOR EACH ROW EXECUTE FUNCTION state.hold_source();
CREATE TRIGGER hold BEFORE INSERT ON state.grants FOR EACH ROW EXECUTE FUNCTION state.hold_granted();
CREATE TRIGGER keep BEFORE DELETE ON state.agent_steps FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.audit FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('what was done is on record');
CREATE TRIGGER keep BEFORE DELETE ON state.execution_edges FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.forks FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('what was changed is on record');
CREATE TRIGGER keep BEFORE DELETE ON state.grants FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a grant is on record');
CREATE TRIGGER keep BEFORE DELETE ON state.handovers FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('a handover is on record');
CREATE TRIGGER keep BEFORE DELETE ON state.identity_edges FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.patches FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.receipts FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.refusals FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('history is append-only');
CREATE TRIGGER keep BEFORE DELETE ON state.requests FOR EACH ROW WHEN (((old.project_id)::text IS DISTINCT FROM current_setting('waybill.deleting'::text, true))) EXECUTE FUNCTION cardbox.refuse('what was decided is on record');
CREATE TRIGGER once BEFORE UPDATE ON state.grants FOR EACH ROW WHEN ((old.revoked_at IS NOT NULL)) EXECUTE FUNCTION cardbox.refuse('a grant ends once');
CREATE TRIGGER once BEFORE UPDATE ON state.turns FOR EACH ROW WHEN ((((old.status)::text <> 'open'::text) AND (((old.status)::text <> 'recorded'::text) OR ((new.status)::text <> 'recorded'::text)))) EXECUTE FUNCTION cardbox.refuse('a turn ends once');
ALTER TABLE cardbox.artifacts ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.blobs ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.box_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.boxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.cards ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.pins ENABLE ROW LEVEL SECURITY;
CREATE POLICY project ON cardbox.artifacts USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.blobs USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.box_entries USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.boxes USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.cards USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.erasures USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.pins USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.uploads USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY scheduler ON cardbox.uploads FOR SELECT TO waybill_scheduler USING (true);
ALTER TABLE cardbox.uploads ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.browser_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.documents ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.handoff_types ENABLE ROW LEVEL SECURITY;
CREATE POLICY librarian ON resource.chunks FOR SELECT TO waybill_librarian USING (true);
CREATE POLICY librarian ON resource.documents FOR SELECT TO waybill_librarian USING (true);
CREATE POLICY librarian ON resource.words FOR SELECT TO waybill_librarian USING (true);
ALTER TABLE resource.plans ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.profiles ENABLE ROW LEVEL SECURITY;
CREATE POLICY project ON resource.api_keys USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.browser_sessions USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.chunks USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.documents USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.handoff_types USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.plans USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.profiles USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.project_agents USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.projects USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.retention USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.tools USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.words USING ((project_id = (current_setting('waybill.project'::text))::uuid));
ALTER TABLE resource.project_agents ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.projects ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.retention ENABLE ROW LEVEL SECURITY;
CREATE POLICY scheduler ON resource.api_keys FOR SELECT TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON resource.browser_sessions TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON resource.project_agents FOR SELECT TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON resource.projects FOR SELECT TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON resource.retention FOR SELECT TO waybill_scheduler USING (true);
ALTER TABLE resource.tools ENABLE ROW LEVEL SECURITY;
ALTER TABLE resource.words ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.agent_inbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.agent_state_head ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.agent_steps ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.audit ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.blackboards ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.execution_edges ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.forgotten_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.forks ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.handovers ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.idempotency ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.identity_edges ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.labels ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.patches ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.pmo_batch_slots ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.pmo_batch_tasks ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.pmo_batches ENABLE ROW LEVEL SECURITY;
CREATE POLICY project ON state.agent_inbox USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.agent_state_head USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.agent_steps USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.audit USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.blackboards USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.budgets USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.execution_edges USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.forgotten_sessions USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.forks USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.grants USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.handovers USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.idempotency USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.identity_edges USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.labels USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.outbox USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.patches USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.pmo_batch_slots USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.pmo_batch_tasks USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.pmo_batches USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.quarantine USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.queue_marks USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.receipts USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.recorded_asks USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.recordings USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.refusals USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.requests USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.spending USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.turns USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON state.waiting_calls USING ((project_id = (current_setting('waybill.project'::text))::uuid));
ALTER TABLE state.quarantine ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.queue_marks ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.receipts ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.recorded_asks ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.recordings ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.refusals ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.relay_shards ENABLE ROW LEVEL SECURITY;
CREATE POLICY remover ON state.relay_shards FOR SELECT TO waybill_remover USING (true);
ALTER TABLE state.requests ENABLE ROW LEVEL SECURITY;
CREATE POLICY scheduler ON state.agent_inbox TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.agent_state_head TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.idempotency TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.outbox TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.pmo_batches TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.quarantine TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.queue_marks TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.relay_shards TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.sweep_clock TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.turns TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.waiting_calls TO waybill_scheduler USING (true);
CREATE POLICY scheduler ON state.worker_leases TO waybill_scheduler USING (true);
ALTER TABLE state.spending ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.sweep_clock ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.turns ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.waiting_calls ENABLE ROW LEVEL SECURITY;
ALTER TABLE state.worker_leases ENABLE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA cardbox TO waybill_common;
GRANT ALL ON SCHEMA cardbox TO waybill_eraser;
GRANT ALL ON SCHEMA cardbox TO waybill_remover;
GRANT USAGE ON SCHEMA cardbox TO waybill_scheduler;
GRANT USAGE ON SCHEMA resource TO waybill_common;
GRANT USAGE ON SCHEMA resource TO waybill_scheduler;
GRANT USAGE ON SCHEMA resource TO waybill_remover;
GRANT ALL ON SCHEMA resource TO waybill_librarian;
GRANT USAGE ON SCHEMA scheduler TO waybill_common;
GRANT ALL ON SCHEMA scheduler TO waybill_scheduler;
GRANT USAGE ON SCHEMA state TO waybill_common;
GRANT USAGE ON SCHEMA state TO waybill_scheduler;
GRANT USAGE ON SCHEMA state TO waybill_remover;
REVOKE ALL ON FUNCTION cardbox.add_counts(p_one jsonb, p_other jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.add_counts(p_one jsonb, p_other jsonb) TO waybill_remover;
GRANT ALL ON FUNCTION cardbox.add_counts(p_one jsonb, p_other jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.collect(p_project uuid, p_most integer, p_grace interval) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.collect(p_project uuid, p_most integer, p_grace interval) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.conflicting(p_project uuid, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.conflicting(p_project uuid, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.delete(p_project uuid, p_cards uuid[], p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.delete(p_project uuid, p_cards uuid[], p_reason text) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.erase(project uuid, cards uuid[], why text) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.expire(p_project uuid, p_cards uuid[], p_seconds integer) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.expire(p_project uuid, p_cards uuid[], p_seconds integer) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.guard_card() FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.hold(p_project uuid, p_cards uuid[], p_boxes uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.hold(p_project uuid, p_cards uuid[], p_boxes uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.hold_retention(p_project uuid, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.hold_retention(p_project uuid, p_reason text) TO waybill_service;
REVOKE ALL ON FUNCTION cardbox.holdings(project uuid, card uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.holdings(project uuid, card uuid) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.label() FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.label_card() FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.lock_boxes(p_project uuid, p_boxes uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.n_within(p_project uuid, p_cards uuid[], p_bytes bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.n_within(p_project uuid, p_cards uuid[], p_bytes bigint) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.patched(p_patch jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.pin() FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.places(project uuid, box uuid, lo bigint, hi bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.places(project uuid, box uuid, lo bigint, hi bigint) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.portion(p_project uuid, p_phase text, p_after uuid, p_last uuid, p_most integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.put(p_project uuid, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.put(p_project uuid, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.put_artifact(p_project uuid, p_upload uuid, p_path text, p_media_type text, p_author text, p_hash bytea, p_size bigint, p_tokens bigint, p_estimate boolean, p_pieces bytea, p_quota bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.put_artifact(p_project uuid, p_upload uuid, p_path text, p_media_type text, p_author text, p_hash bytea, p_size bigint, p_tokens bigint, p_estimate boolean, p_pieces bytea, p_quota bigint) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.put_many(p_project uuid, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.put_many(p_project uuid, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.reading(project uuid, card uuid, as_of timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.reading(project uuid, card uuid, as_of timestamp with time zone) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.record_walk(p_project uuid, p_removed jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.refuse() FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_agent(p_project uuid, p_agent uuid, p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_boxes(p_project uuid, p_boxes uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_cards(p_project uuid, p_cards uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_content(p_project uuid, p_card uuid, p_boxes uuid[], p_cards uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_session(p_project uuid, p_session uuid, p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_shared(p_project uuid, p_box uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.remove_turn(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.retain(p_project uuid, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.retain(p_project uuid, p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION cardbox.retain(p_project uuid, p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION cardbox.retain_before(p_project uuid, p_content timestamp with time zone, p_record timestamp with time zone, p_phase text, p_after uuid, p_most integer, OUT phase text, OUT walked_to uuid, OUT removed jsonb, OUT kept_after uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.rows(p_project uuid, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.rows(p_project uuid, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.runs(project uuid, box uuid, lo bigint, hi bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.runs(project uuid, box uuid, lo bigint, hi bigint) TO waybill_common;
REVOKE ALL ON FUNCTION cardbox.set_retention(p_project uuid, p_content integer, p_record integer) FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.set_retention(p_project uuid, p_content integer, p_record integer) TO waybill_service;
REVOKE ALL ON FUNCTION resource.forget_chunks(p_project uuid, p_document uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION resource.forget_chunks(p_project uuid, p_document uuid) TO waybill_common;
REVOKE ALL ON FUNCTION resource.put_chunks(p_project uuid, p_document uuid, p_chunks jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION resource.put_chunks(p_project uuid, p_document uuid, p_chunks jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION resource.retention_of(p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION resource.retention_of(p_project uuid) TO waybill_remover;
GRANT ALL ON FUNCTION resource.retention_of(p_project uuid) TO waybill_common;
REVOKE ALL ON FUNCTION resource.search_meaning(p_project uuid, p_kind text, p_folders text[], p_model text, p_embedding real[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION resource.search_meaning(p_project uuid, p_kind text, p_folders text[], p_model text, p_embedding real[], p_most integer) TO waybill_common;
REVOKE ALL ON FUNCTION resource.search_words(p_project uuid, p_kind text, p_folders text[], p_words text[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION resource.search_words(p_project uuid, p_kind text, p_folders text[], p_words text[], p_most integer) TO waybill_common;
REVOKE ALL ON FUNCTION scheduler.abandoned_calls(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.abandoned_calls(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.abandoned_calls(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.abandoned_turns(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.abandoned_turns(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.abandoned_turns(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.agents_to_retire(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.agents_to_retire(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.agents_to_retire(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.busiest(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.busiest(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.busiest(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT claim_token bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean, OUT profile_box_id uuid, OUT context_box_id uuid, OUT output_box_id uuid, OUT query_card_ids uuid[], OUT session_id uuid, OUT parent_agent_turn_id uuid, OUT parent_step_id uuid, OUT batch_id uuid, OUT recursion_depth integer, OUT trace_id uuid, OUT channel text) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT claim_token bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean, OUT profile_box_id uuid, OUT context_box_id uuid, OUT output_box_id uuid, OUT query_card_ids uuid[], OUT session_id uuid, OUT parent_agent_turn_id uuid, OUT parent_step_id uuid, OUT batch_id uuid, OUT recursion_depth integer, OUT trace_id uuid, OUT channel text) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT claim_token bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean, OUT profile_box_id uuid, OUT context_box_id uuid, OUT output_box_id uuid, OUT query_card_ids uuid[], OUT session_id uuid, OUT parent_agent_turn_id uuid, OUT parent_step_id uuid, OUT batch_id uuid, OUT recursion_depth integer, OUT trace_id uuid, OUT channel text) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.claim(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT claim_token bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean, OUT profile_box_id uuid, OUT context_box_id uuid, OUT output_box_id uuid, OUT query_card_ids uuid[], OUT session_id uuid, OUT parent_agent_turn_id uuid, OUT parent_step_id uuid, OUT batch_id uuid, OUT recursion_depth integer, OUT trace_id uuid, OUT channel text) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer, p_lease interval) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer, p_lease interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.claim_calls(p_worker uuid, p_target text, p_after uuid, p_most integer, p_in_flight_cap integer, p_lease interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, p_most integer) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.claim_many(p_worker uuid, p_target text, p_after uuid, p_in_flight_cap integer, p_silence interval, p_lease interval, p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.due_turns(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.due_turns(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.due_turns(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.end_browser_session(p_project uuid, p_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.end_browser_session(p_project uuid, p_hash bytea) TO waybill_service;
REVOKE ALL ON FUNCTION scheduler.end_missing_leases() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.end_missing_leases() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.end_missing_leases() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.end_worker(p_worker uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.end_worker(p_worker uuid) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.end_worker(p_worker uuid) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.end_worker(p_worker uuid) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.ended_uploads(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.ended_uploads(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.ended_uploads(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.events_after(p_projects uuid[], p_after bigint[], p_last bigint, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.events_after(p_projects uuid[], p_after bigint[], p_last bigint, p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.events_after(p_projects uuid[], p_after bigint[], p_last bigint, p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.find_browser_session(p_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.find_browser_session(p_hash bytea) TO waybill_service;
REVOKE ALL ON FUNCTION scheduler.find_key(p_key uuid, p_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.find_key(p_key uuid, p_hash bytea) TO waybill_service;
REVOKE ALL ON FUNCTION scheduler.find_project(wanted text) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.find_project(wanted text) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.find_project(wanted text) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.find_project(wanted text) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.forget_browser_sessions(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.forget_browser_sessions(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.forget_browser_sessions(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.forget_keys(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.forget_keys(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.forget_keys(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.forget_marks() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.forget_marks() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.forget_marks() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.held_calls(p_worker uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.held_calls(p_worker uuid) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.held_calls(p_worker uuid) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.held_calls(p_worker uuid) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.held_turns(p_worker uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.held_turns(p_worker uuid) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.held_turns(p_worker uuid) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.held_turns(p_worker uuid) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.hold_shards(p_worker uuid, p_target text, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.hold_shards(p_worker uuid, p_target text, p_lease interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.hold_shards(p_worker uuid, p_target text, p_lease interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.keep_lease(p_worker uuid, p_target text, p_lease interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.lapse_leases(p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.lapse_leases(p_lease interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.lapse_leases(p_lease interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.late_turns(p_wait interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.late_turns(p_wait interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.late_turns(p_wait interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.list_projects(after text, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.list_projects(after text, most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.list_projects(after text, most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.list_quarantine(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.list_quarantine(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.list_quarantine(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.mark_published(p_worker uuid, p_projects uuid[], p_turns uuid[], p_events text[], p_event_ids uuid[], p_shards smallint[], p_replayed bigint[], p_made_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.mark_published(p_worker uuid, p_projects uuid[], p_turns uuid[], p_events text[], p_event_ids uuid[], p_shards smallint[], p_replayed bigint[], p_made_at timestamp with time zone) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.mark_published(p_worker uuid, p_projects uuid[], p_turns uuid[], p_events text[], p_event_ids uuid[], p_shards smallint[], p_replayed bigint[], p_made_at timestamp with time zone) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.oldest_unpublished() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.oldest_unpublished() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.oldest_unpublished() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.outbox_lag() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.outbox_lag() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.outbox_lag() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.overdue_batches(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.overdue_batches(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.overdue_batches(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.overdue_calls(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.overdue_calls(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.overdue_calls(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.projects_on_hold() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.projects_on_hold() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.projects_on_hold() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.projects_to_retain(p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.projects_to_retain(p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.projects_to_retain(p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.publish_to(p_made_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.publish_to(p_made_at timestamp with time zone) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.publish_to(p_made_at timestamp with time zone) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.ready_doors() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.ready_doors() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.ready_doors() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.refuse_event(p_project uuid, p_agent uuid, p_error text, p_most integer, p_apart interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.refuse_event(p_project uuid, p_agent uuid, p_error text, p_most integer, p_apart interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.refuse_event(p_project uuid, p_agent uuid, p_error text, p_most integer, p_apart interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.renew_lease(p_worker uuid, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.renew_lease(p_worker uuid, p_lease interval) TO waybill_common;
GRANT ALL ON FUNCTION scheduler.renew_lease(p_worker uuid, p_lease interval) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.renew_lease(p_worker uuid, p_lease interval) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.serving(p_targets text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.serving(p_targets text[]) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.serving(p_targets text[]) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.silent_turns(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.silent_turns(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.silent_turns(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.stopping_batches(p_shards smallint[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.stopping_batches(p_shards smallint[], p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.stopping_batches(p_shards smallint[], p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.unpublished(p_worker uuid, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.unpublished(p_worker uuid, p_most integer) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.unpublished(p_worker uuid, p_most integer) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.vitals() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.vitals() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.vitals() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.workers(p_targets text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.workers(p_targets text[]) TO waybill_service;
GRANT ALL ON FUNCTION scheduler.workers(p_targets text[]) TO waybill_orchestrator;
REVOKE ALL ON FUNCTION scheduler.workers_without_lease() FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.workers_without_lease() TO waybill_service;
GRANT ALL ON FUNCTION scheduler.workers_without_lease() TO waybill_orchestrator;
REVOKE ALL ON FUNCTION state.abandon_forks(p_project uuid, p_calls uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.abandon_forks(p_project uuid, p_calls uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.allot(p_project uuid, p_parent uuid, p_asked jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION state.allot(p_project uuid, p_parent uuid, p_asked jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION state.append_new(p_project uuid, p_box uuid, p_cards uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.append_new(p_project uuid, p_box uuid, p_cards uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.are_inherited(p_project uuid, p_boxes uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.are_inherited(p_project uuid, p_boxes uuid[]) TO waybill_remover;
GRANT ALL ON FUNCTION state.are_inherited(p_project uuid, p_boxes uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.ask(p_project uuid, p_call uuid, p_token bigint, p_timeout interval, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.ask(p_project uuid, p_call uuid, p_token bigint, p_timeout interval, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.asked_of(p_project uuid, p_turn uuid, p_calls uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.asked_of(p_project uuid, p_turn uuid, p_calls uuid[]) TO waybill_remover;
GRANT ALL ON FUNCTION state.asked_of(p_project uuid, p_turn uuid, p_calls uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.await_batch(p_project uuid, p_call uuid, p_token bigint, OUT awaited boolean, OUT call_target text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.await_batch(p_project uuid, p_call uuid, p_token bigint, OUT awaited boolean, OUT call_target text) TO waybill_common;
REVOKE ALL ON FUNCTION state.batches_of(p_project uuid, p_turn uuid, p_calls uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.batches_of(p_project uuid, p_turn uuid, p_calls uuid[]) TO waybill_remover;
GRANT ALL ON FUNCTION state.batches_of(p_project uuid, p_turn uuid, p_calls uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.begin_recording(p_project uuid, p_turn jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION state.begin_recording(p_project uuid, p_turn jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION state.boxes_of(p_project uuid, p_turn uuid, p_batches uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.boxes_of(p_project uuid, p_turn uuid, p_batches uuid[]) TO waybill_remover;
GRANT ALL ON FUNCTION state.boxes_of(p_project uuid, p_turn uuid, p_batches uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.budget_of(p_project uuid, p_turn uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.budget_of(p_project uuid, p_turn uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.calls(p_project uuid, p_calls uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.calls(p_project uuid, p_calls uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.calls_of(p_project uuid, p_output uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.calls_of(p_project uuid, p_output uuid) TO waybill_remover;
GRANT ALL ON FUNCTION state.calls_of(p_project uuid, p_output uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.catch_up(p_project uuid, p_turn uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.catch_up(p_project uuid, p_turn uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.check_quota(p_project uuid, p_more integer) FROM PUBLIC;
GRANT ALL ON FUNCTION state.check_quota(p_project uuid, p_more integer) TO waybill_common;
REVOKE ALL ON FUNCTION state.close_batch(p_project uuid, p_batch uuid, p_status text, p_results uuid, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.close_batch(p_project uuid, p_batch uuid, p_status text, p_results uuid, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.count_down(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.count_down(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.count_slots(p_project uuid, p_counted jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION state.count_slots(p_project uuid, p_counted jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION state.decide(p_project uuid, p_call uuid, p_status text, p_timeout interval, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.decide(p_project uuid, p_call uuid, p_status text, p_timeout interval, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.end_turn(p_project uuid, p_end state.ending, p_active boolean, p_queued integer, p_keeps boolean, p_alone boolean, p_cards cardbox.new_card[], OUT worker_target text, OUT batch_id uuid, OUT was_told boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.end_turn(p_project uuid, p_end state.ending, p_active boolean, p_queued integer, p_keeps boolean, p_alone boolean, p_cards cardbox.new_card[], OUT worker_target text, OUT batch_id uuid, OUT was_told boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.enqueue(p_project uuid, p_new state.new_turn, p_cards cardbox.new_card[], OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT worker_target text, OUT duplicate boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.enqueue(p_project uuid, p_new state.new_turn, p_cards cardbox.new_card[], OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT worker_target text, OUT duplicate boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.enqueue_many(p_project uuid, p_agents uuid[], p_turns state.new_turn[], p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.enqueue_many(p_project uuid, p_agents uuid[], p_turns state.new_turn[], p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.enter(p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.enter(p_project uuid) TO waybill_remover;
GRANT ALL ON FUNCTION state.enter(p_project uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.entries_read() FROM PUBLIC;
GRANT ALL ON FUNCTION state.entries_read() TO waybill_common;
GRANT ALL ON FUNCTION state.entries_read() TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.extend_partitions() FROM PUBLIC;
GRANT ALL ON FUNCTION state.extend_partitions() TO waybill_common;
REVOKE ALL ON FUNCTION state.fail_tasks(p_project uuid, p_batch uuid, p_indexes integer[], p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.fail_tasks(p_project uuid, p_batch uuid, p_indexes integer[], p_error text) TO waybill_common;
REVOKE ALL ON FUNCTION state.finish(p_project uuid, p_end state.ending, p_alone boolean, p_cards cardbox.new_card[], OUT worker_targets text[], OUT batches uuid[], OUT duplicate boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.finish(p_project uuid, p_end state.ending, p_alone boolean, p_cards cardbox.new_card[], OUT worker_targets text[], OUT batches uuid[], OUT duplicate boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.finish_many(p_project uuid, p_agents uuid[], p_turns uuid[], p_ends state.ending[], p_alone boolean, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.finish_many(p_project uuid, p_agents uuid[], p_turns uuid[], p_ends state.ending[], p_alone boolean, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.first_id(p_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION state.first_id(p_at timestamp with time zone) TO waybill_remover;
GRANT ALL ON FUNCTION state.first_id(p_at timestamp with time zone) TO waybill_common;
REVOKE ALL ON FUNCTION state.graph(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.graph(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.graph_ids(p_project uuid, p_turn uuid, p_after uuid, p_most integer, OUT turn_ids uuid[], OUT is_cut boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.graph_ids(p_project uuid, p_turn uuid, p_after uuid, p_most integer, OUT turn_ids uuid[], OUT is_cut boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.has_partitions(p_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.has_partitions(p_id uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.has_unseen(p_project uuid, p_turn uuid, p_seen bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.has_unseen(p_project uuid, p_turn uuid, p_seen bigint) TO waybill_common;
REVOKE ALL ON FUNCTION state.history() FROM PUBLIC;
GRANT ALL ON FUNCTION state.history() TO waybill_common;
GRANT ALL ON FUNCTION state.history() TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.history_ahead(p_parent text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.history_ahead(p_parent text) TO waybill_common;
GRANT ALL ON FUNCTION state.history_ahead(p_parent text) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.history_since(p_project uuid, p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION state.history_since(p_project uuid, p_before timestamp with time zone) TO waybill_common;
REVOKE ALL ON FUNCTION state.hold_granted() FROM PUBLIC;
GRANT ALL ON FUNCTION state.hold_granted() TO waybill_common;
REVOKE ALL ON FUNCTION state.hold_source() FROM PUBLIC;
GRANT ALL ON FUNCTION state.hold_source() TO waybill_common;
REVOKE ALL ON FUNCTION state.horizon() FROM PUBLIC;
GRANT ALL ON FUNCTION state.horizon() TO waybill_common;
REVOKE ALL ON FUNCTION state.is_late(p_project uuid, p_turn uuid, p_receipt json) FROM PUBLIC;
GRANT ALL ON FUNCTION state.is_late(p_project uuid, p_turn uuid, p_receipt json) TO waybill_common;
REVOKE ALL ON FUNCTION state.is_long(n_entries bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.is_long(n_entries bigint) TO waybill_common;
GRANT ALL ON FUNCTION state.is_long(n_entries bigint) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.is_measured() FROM PUBLIC;
GRANT ALL ON FUNCTION state.is_measured() TO waybill_common;
GRANT ALL ON FUNCTION state.is_measured() TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.label(p_external boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.label(p_external boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.lately(p_project uuid, p_since uuid, p_most integer, p_most_steps integer, OUT n_started bigint, OUT n_success bigint, OUT n_failed bigint, OUT n_canceled bigint, OUT n_timeout bigint, OUT microdollars bigint, OUT n_steps bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.lately(p_project uuid, p_since uuid, p_most integer, p_most_steps integer, OUT n_started bigint, OUT n_success bigint, OUT n_failed bigint, OUT n_canceled bigint, OUT n_timeout bigint, OUT microdollars bigint, OUT n_steps bigint) TO waybill_common;
REVOKE ALL ON FUNCTION state.list_turns(p_project uuid, p_filter jsonb, p_since uuid, p_before uuid, p_most integer, p_look integer, OUT turn_ids uuid[], OUT looked_to uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.list_turns(p_project uuid, p_filter jsonb, p_since uuid, p_before uuid, p_most integer, p_look integer, OUT turn_ids uuid[], OUT looked_to uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.listen(p_project uuid, p_agent uuid, p_turn uuid, p_epoch bigint, p_token bigint, p_silence interval) FROM PUBLIC;
GRANT ALL ON FUNCTION state.listen(p_project uuid, p_agent uuid, p_turn uuid, p_epoch bigint, p_token bigint, p_silence interval) TO waybill_common;
REVOKE ALL ON FUNCTION state.lock_batch(p_project uuid, p_batch uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.lock_batch(p_project uuid, p_batch uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.lock_heads(p_project uuid, p_agents uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.lock_heads(p_project uuid, p_agents uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.make_partition(p_parent text, p_starts_at timestamp with time zone, p_ends_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION state.make_partition(p_parent text, p_starts_at timestamp with time zone, p_ends_at timestamp with time zone) TO waybill_common;
REVOKE ALL ON FUNCTION state.mark_queue(p_target text, p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.mark_queue(p_target text, p_project uuid) TO waybill_common;
GRANT ALL ON FUNCTION state.mark_queue(p_target text, p_project uuid) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.memorise(p_project uuid, p_memory uuid, p_question uuid[], p_output uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.memorise(p_project uuid, p_memory uuid, p_question uuid[], p_output uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.memory_of(p_project uuid, p_agents uuid[], p_boxes uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.memory_of(p_project uuid, p_agents uuid[], p_boxes uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.missing_partitions() FROM PUBLIC;
GRANT ALL ON FUNCTION state.missing_partitions() TO waybill_common;
REVOKE ALL ON FUNCTION state.next_ready(p_target text, p_project uuid, p_seq bigint, p_last uuid, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT inbox_seq bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.next_ready(p_target text, p_project uuid, p_seq bigint, p_last uuid, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT inbox_seq bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean) TO waybill_common;
GRANT ALL ON FUNCTION state.next_ready(p_target text, p_project uuid, p_seq bigint, p_last uuid, OUT project_id uuid, OUT agent_id uuid, OUT agent_turn_id uuid, OUT turn_epoch bigint, OUT inbox_seq bigint, OUT message_type text, OUT n_lost_leases integer, OUT retry_count integer, OUT stop_asked boolean) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.next_token(p_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.next_token(p_token bigint) TO waybill_common;
GRANT ALL ON FUNCTION state.next_token(p_token bigint) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.open_batch(p_project uuid, p_call uuid, p_token bigint, p_batch jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION state.open_batch(p_project uuid, p_call uuid, p_token bigint, p_batch jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION state.open_work(p_project uuid, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION state.open_work(p_project uuid, p_most integer) TO waybill_common;
REVOKE ALL ON FUNCTION state.part(p_project uuid, p_agents uuid[], p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.part(p_project uuid, p_agents uuid[], p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.partitions(p_parent text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.partitions(p_parent text) TO waybill_common;
GRANT ALL ON FUNCTION state.partitions(p_parent text) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.patch(p_project uuid, p_session uuid, p_step uuid, p_patch jsonb, p_cards cardbox.new_card[], OUT duplicate boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.patch(p_project uuid, p_session uuid, p_step uuid, p_patch jsonb, p_cards cardbox.new_card[], OUT duplicate boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.place_of_begun() FROM PUBLIC;
GRANT ALL ON FUNCTION state.place_of_begun() TO waybill_common;
REVOKE ALL ON FUNCTION state.plan_retention(p_project uuid, p_content timestamp with time zone, p_record timestamp with time zone, OUT contents bigint, OUT bytes bigint, OUT turns bigint, OUT boxes bigint, OUT cards bigint, OUT kept jsonb, OUT is_all boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.plan_retention(p_project uuid, p_content timestamp with time zone, p_record timestamp with time zone, OUT contents bigint, OUT bytes bigint, OUT turns bigint, OUT boxes bigint, OUT cards bigint, OUT kept jsonb, OUT is_all boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.reached_boxes(p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.reached_boxes(p_project uuid) TO waybill_remover;
GRANT ALL ON FUNCTION state.reached_boxes(p_project uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.reached_cards(p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.reached_cards(p_project uuid) TO waybill_remover;
GRANT ALL ON FUNCTION state.reached_cards(p_project uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.readable(p_project uuid, p_agent uuid, p_boxes uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.readable(p_project uuid, p_agent uuid, p_boxes uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.reason(p_content json) FROM PUBLIC;
GRANT ALL ON FUNCTION state.reason(p_content json) TO waybill_common;
REVOKE ALL ON FUNCTION state.rebuild_head(p_project uuid, p_agent uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.rebuild_head(p_project uuid, p_agent uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.reclaim(p_fence state.fence, p_lost boolean, p_backoff interval, p_max_lost_leases integer, p_max_attempts integer, p_alone boolean, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.reclaim(p_fence state.fence, p_lost boolean, p_backoff interval, p_max_lost_leases integer, p_max_attempts integer, p_alone boolean, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.reclaim_call(p_project uuid, p_call uuid, p_token bigint, p_failed boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.reclaim_call(p_project uuid, p_call uuid, p_token bigint, p_failed boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.record_call(p_project uuid, p_call jsonb, p_messages cardbox.new_card[], p_answer cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.record_call(p_project uuid, p_call jsonb, p_messages cardbox.new_card[], p_answer cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.recording_alike(p_project uuid, p_opening bytea, p_marks text[], p_answer bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION state.recording_alike(p_project uuid, p_opening bytea, p_marks text[], p_answer bytea) TO waybill_common;
REVOKE ALL ON FUNCTION state.recording_to_extend(p_project uuid, p_tails bytea[], p_follows bytea[], p_state bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION state.recording_to_extend(p_project uuid, p_tails bytea[], p_follows bytea[], p_state bytea) TO waybill_common;
REVOKE ALL ON FUNCTION state.release(p_project uuid, p_turn uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.release(p_project uuid, p_turn uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.remember(p_project uuid, p_session uuid, p_cards uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.remember(p_project uuid, p_session uuid, p_cards uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.remember_turns(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.remember_turns(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.report(p_project uuid, p_call uuid, p_token bigint, p_message_type text, p_status text, p_external boolean, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.report(p_project uuid, p_call uuid, p_token bigint, p_message_type text, p_status text, p_external boolean, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.retire(p_project uuid, p_agents uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.retire(p_project uuid, p_agents uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.room(p_target text, p_project uuid, p_in_flight_cap integer, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION state.room(p_target text, p_project uuid, p_in_flight_cap integer, p_most integer) TO waybill_common;
GRANT ALL ON FUNCTION state.room(p_target text, p_project uuid, p_in_flight_cap integer, p_most integer) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.said(p_text text, p_type text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.said(p_text text, p_type text) TO waybill_common;
REVOKE ALL ON FUNCTION state.saw_external(p_project uuid, p_turn uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.saw_external(p_project uuid, p_turn uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.session_saw_external(p_project uuid, p_session uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.session_saw_external(p_project uuid, p_session uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.sessions(p_project uuid, p_sessions uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.sessions(p_project uuid, p_sessions uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.settle(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.settle(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.settle_batch(p_project uuid, p_batch uuid, p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION state.settle_batch(p_project uuid, p_batch uuid, p_most integer) TO waybill_common;
REVOKE ALL ON FUNCTION state.show_requests(p_project uuid, p_calls uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.show_requests(p_project uuid, p_calls uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.spend(p_project uuid, p_turn uuid, p_usage jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION state.spend(p_project uuid, p_turn uuid, p_usage jsonb) TO waybill_common;
REVOKE ALL ON FUNCTION state.spent(p_project uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.spent(p_project uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.steer(p_project uuid, p_turn uuid, p_cards cardbox.new_card[], OUT outcome text, OUT agent_id uuid, OUT turn_epoch bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.steer(p_project uuid, p_turn uuid, p_cards cardbox.new_card[], OUT outcome text, OUT agent_id uuid, OUT turn_epoch bigint) TO waybill_common;
REVOKE ALL ON FUNCTION state.step(p_fence state.fence, p_step jsonb, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.step(p_fence state.fence, p_step jsonb, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.stop(p_project uuid, p_turn uuid, p_reason text, p_alone boolean, p_cards cardbox.new_card[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.stop(p_project uuid, p_turn uuid, p_reason text, p_alone boolean, p_cards cardbox.new_card[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.summaries(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.summaries(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.talks(p_project uuid, p_turns uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION state.talks(p_project uuid, p_turns uuid[]) TO waybill_common;
REVOKE ALL ON FUNCTION state.tell(p_project uuid, p_turns uuid[], p_agent uuid, p_status text, p_always boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.tell(p_project uuid, p_turns uuid[], p_agent uuid, p_status text, p_always boolean) TO waybill_common;
GRANT ALL ON FUNCTION state.tell(p_project uuid, p_turns uuid[], p_agent uuid, p_status text, p_always boolean) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.time_of(p_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.time_of(p_id text) TO waybill_common;
GRANT ALL ON FUNCTION state.time_of(p_id text) TO waybill_scheduler;
REVOKE ALL ON FUNCTION state.times(p_project uuid, p_turns uuid[], p_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION state.times(p_project uuid, p_turns uuid[], p_most integer) TO waybill_common;
REVOKE ALL ON FUNCTION state.title(p_content json, p_type text) FROM PUBLIC;
GRANT ALL ON FUNCTION state.title(p_content json, p_type text) TO waybill_common;
REVOKE ALL ON FUNCTION state.turns_below(p_project uuid, p_turn uuid, p_most bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION state.turns_below(p_project uuid, p_turn uuid, p_most bigint) TO waybill_common;
REVOKE ALL ON FUNCTION state.turns_of_session(p_project uuid, p_session uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.turns_of_session(p_project uuid, p_session uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.waiting_for(p_project uuid, p_agents uuid[], p_caller uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.waiting_for(p_project uuid, p_agents uuid[], p_caller uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.waits(p_project uuid, p_turn uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION state.waits(p_project uuid, p_turn uuid) TO waybill_common;
REVOKE ALL ON FUNCTION state.why_kept(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION state.why_kept(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) TO waybill_remover;
GRANT ALL ON FUNCTION state.why_kept(p_project uuid, p_turn uuid, p_before timestamp with time zone, p_relayed boolean) TO waybill_common;
REVOKE ALL ON FUNCTION state.yesterday() FROM PUBLIC;
GRANT ALL ON FUNCTION state.yesterday() TO waybill_common;
GRANT SELECT,INSERT,DELETE ON TABLE cardbox.artifacts TO waybill_common;
GRANT UPDATE(removed_at) ON TABLE cardbox.artifacts TO waybill_common;
GRANT SELECT,INSERT,DELETE ON TABLE cardbox.blobs TO waybill_common;
GRANT UPDATE(is_estimate) ON TABLE cardbox.blobs TO waybill_common;
GRANT SELECT,INSERT ON TABLE cardbox.box_entries TO waybill_common;
GRANT SELECT,DELETE ON TABLE cardbox.box_entries TO waybill_remover;
GRANT SELECT ON TABLE cardbox.boxes TO waybill_common;
GRANT SELECT,DELETE ON TABLE cardbox.boxes TO waybill_remover;
GRANT INSERT(project_id) ON TABLE cardbox.boxes TO waybill_common;
GRANT INSERT(box_id) ON TABLE cardbox.boxes TO waybill_common;
GRANT INSERT(length),UPDATE(length) ON TABLE cardbox.boxes TO waybill_common;
GRANT INSERT(agent_id) ON TABLE cardbox.boxes TO waybill_common;
GRANT INSERT(agent_turn_id) ON TABLE cardbox.boxes TO waybill_common;
GRANT INSERT(is_shared) ON TABLE cardbox.boxes TO waybill_common;
GRANT UPDATE(has_external) ON TABLE cardbox.boxes TO waybill_common;
GRANT UPDATE(has_external) ON TABLE cardbox.boxes TO waybill_remover;
GRANT SELECT ON TABLE cardbox.cards TO waybill_common;
GRANT SELECT ON TABLE cardbox.cards TO waybill_eraser;
GRANT SELECT,DELETE ON TABLE cardbox.cards TO waybill_remover;
GRANT INSERT(project_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(card_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(n_tokens) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(content_addressed) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(type) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(role) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(author_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(hash) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(salt) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(salt) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(salt) ON TABLE cardbox.cards TO waybill_remover;
GRANT INSERT(tool_call_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(trace_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(step_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(parent_step_id) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(ttl_seconds),UPDATE(ttl_seconds) ON TABLE cardbox.cards TO waybill_common;
GRANT INSERT(expires_at),UPDATE(expires_at) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(deleted_at) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(deleted_reason) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(erased_at) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(erased_at) ON TABLE cardbox.cards TO waybill_remover;
GRANT UPDATE(erased_reason) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(erased_reason) ON TABLE cardbox.cards TO waybill_remover;
GRANT INSERT(content) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(content) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(content) ON TABLE cardbox.cards TO waybill_remover;
GRANT INSERT(tool_calls) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(tool_calls) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(tool_calls) ON TABLE cardbox.cards TO waybill_remover;
GRANT INSERT(metadata) ON TABLE cardbox.cards TO waybill_common;
GRANT UPDATE(metadata) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(metadata) ON TABLE cardbox.cards TO waybill_remover;
GRANT SELECT ON TABLE cardbox.erasures TO waybill_common;
GRANT SELECT,INSERT ON TABLE cardbox.erasures TO waybill_eraser;
GRANT SELECT,INSERT ON TABLE cardbox.pins TO waybill_common;
GRANT SELECT,DELETE ON TABLE cardbox.pins TO waybill_remover;
GRANT SELECT,INSERT,DELETE ON TABLE cardbox.uploads TO waybill_common;
GRANT SELECT(project_id) ON TABLE cardbox.uploads TO waybill_scheduler;
GRANT SELECT(upload_id) ON TABLE cardbox.uploads TO waybill_scheduler;
GRANT UPDATE(expires_at) ON TABLE cardbox.uploads TO waybill_common;
GRANT SELECT(expires_at) ON TABLE cardbox.uploads TO waybill_scheduler;
GRANT UPDATE(condemned) ON TABLE cardbox.uploads TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.agent_steps TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.agent_steps TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.execution_edges TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.execution_edges TO waybill_remover;
GRANT USAGE ON SEQUENCE state.outbox_seq TO waybill_common;
GRANT SELECT,USAGE ON SEQUENCE state.outbox_seq TO waybill_scheduler;
GRANT SELECT,INSERT ON TABLE state.outbox TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.outbox TO waybill_scheduler;
GRANT SELECT,DELETE ON TABLE state.outbox TO waybill_remover;
GRANT UPDATE(published_at) ON TABLE state.outbox TO waybill_scheduler;
GRANT SELECT,INSERT ON TABLE state.patches TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.patches TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.receipts TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.receipts TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.refusals TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.refusals TO waybill_remover;
GRANT INSERT ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(project_id) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(project_id) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(key_id) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(key_id) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(name) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(name) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(scope) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(scope) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(bounds) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(bounds) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(hash) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(created_at) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(expires_at),UPDATE(expires_at) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(expires_at) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT SELECT(revoked_at),UPDATE(revoked_at) ON TABLE resource.api_keys TO waybill_service;
GRANT SELECT(revoked_at) ON TABLE resource.api_keys TO waybill_scheduler;
GRANT INSERT ON TABLE resource.browser_sessions TO waybill_service;
GRANT DELETE ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(project_id) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(project_id) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(hash) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(key_id) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(key_id) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(actor) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(actor) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(scope) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(scope) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT(created_at) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(expires_at) ON TABLE resource.browser_sessions TO waybill_service;
GRANT SELECT(expires_at) ON TABLE resource.browser_sessions TO waybill_scheduler;
GRANT SELECT,DELETE ON TABLE resource.chunks TO waybill_common;
GRANT SELECT ON TABLE resource.chunks TO waybill_librarian;
GRANT INSERT(project_id) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(document_id) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(seq) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(from_line) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(to_line) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(heading) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(content) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(n_tokens) ON TABLE resource.chunks TO waybill_common;
GRANT INSERT(words) ON TABLE resource.chunks TO waybill_common;
GRANT UPDATE(embedding) ON TABLE resource.chunks TO waybill_common;
GRANT SELECT,DELETE ON TABLE resource.documents TO waybill_common;
GRANT SELECT ON TABLE resource.documents TO waybill_librarian;
GRANT INSERT(project_id) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(kind) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(path) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(document_id) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(version) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(hash) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(title) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(n_chunks) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(n_tokens) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(agent_turn_id) ON TABLE resource.documents TO waybill_common;
GRANT INSERT(card_id) ON TABLE resource.documents TO waybill_common;
GRANT UPDATE(embedded_by) ON TABLE resource.documents TO waybill_common;
GRANT SELECT ON TABLE resource.handoff_types TO waybill_common;
GRANT INSERT ON TABLE resource.handoff_types TO waybill_service;
GRANT UPDATE(version) ON TABLE resource.handoff_types TO waybill_service;
GRANT UPDATE(handoff_type_card_id) ON TABLE resource.handoff_types TO waybill_service;
GRANT UPDATE(updated_at) ON TABLE resource.handoff_types TO waybill_service;
GRANT SELECT ON TABLE resource.plans TO waybill_common;
GRANT INSERT ON TABLE resource.plans TO waybill_service;
GRANT SELECT ON TABLE resource.profiles TO waybill_common;
GRANT INSERT,DELETE ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(version) ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(profile_card_id) ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(profile_box_id) ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(worker_target) ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(tags) ON TABLE resource.profiles TO waybill_service;
GRANT UPDATE(updated_at) ON TABLE resource.profiles TO waybill_service;
GRANT SELECT,INSERT ON TABLE resource.project_agents TO waybill_common;
GRANT SELECT,DELETE ON TABLE resource.project_agents TO waybill_remover;
GRANT SELECT(project_id) ON TABLE resource.project_agents TO waybill_scheduler;
GRANT SELECT(agent_id) ON TABLE resource.project_agents TO waybill_scheduler;
GRANT UPDATE(memory_box_id) ON TABLE resource.project_agents TO waybill_common;
GRANT UPDATE(retire_by) ON TABLE resource.project_agents TO waybill_common;
GRANT SELECT(retire_by) ON TABLE resource.project_agents TO waybill_scheduler;
GRANT UPDATE(retire_by) ON TABLE resource.project_agents TO waybill_remover;
GRANT UPDATE(retired_at) ON TABLE resource.project_agents TO waybill_common;
GRANT SELECT(retired_at) ON TABLE resource.project_agents TO waybill_scheduler;
GRANT SELECT(project_id) ON TABLE resource.projects TO waybill_common;
GRANT INSERT(project_id) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(project_id) ON TABLE resource.projects TO waybill_scheduler;
GRANT SELECT(slug) ON TABLE resource.projects TO waybill_common;
GRANT INSERT(slug) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(slug) ON TABLE resource.projects TO waybill_scheduler;
GRANT SELECT(created_at) ON TABLE resource.projects TO waybill_common;
GRANT SELECT(seal_key) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(settings_card_id) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(settings_card_id) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(settings_version) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(settings_version) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(settings_at) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(settings_at) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(max_open_turns) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(max_open_turns) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(max_running_turns) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(max_running_turns) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(max_running_turns) ON TABLE resource.projects TO waybill_scheduler;
GRANT SELECT(max_microdollars) ON TABLE resource.projects TO waybill_common;
GRANT UPDATE(max_microdollars) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(artifact_bytes),UPDATE(artifact_bytes) ON TABLE resource.projects TO waybill_common;
GRANT SELECT ON TABLE resource.retention TO waybill_common;
GRANT SELECT,UPDATE ON TABLE resource.retention TO waybill_remover;
GRANT SELECT(project_id) ON TABLE resource.retention TO waybill_scheduler;
GRANT INSERT(project_id) ON TABLE resource.retention TO waybill_remover;
GRANT SELECT(held_since) ON TABLE resource.retention TO waybill_scheduler;
GRANT SELECT(walk_at) ON TABLE resource.retention TO waybill_scheduler;
GRANT SELECT ON TABLE resource.tools TO waybill_common;
GRANT INSERT ON TABLE resource.tools TO waybill_service;
GRANT UPDATE(version) ON TABLE resource.tools TO waybill_service;
GRANT UPDATE(tool_card_id) ON TABLE resource.tools TO waybill_service;
GRANT UPDATE(target) ON TABLE resource.tools TO waybill_service;
GRANT UPDATE(registered_by) ON TABLE resource.tools TO waybill_service;
GRANT UPDATE(updated_at) ON TABLE resource.tools TO waybill_service;
GRANT SELECT,INSERT,DELETE ON TABLE resource.words TO waybill_common;
GRANT SELECT ON TABLE resource.words TO waybill_librarian;
GRANT UPDATE(n_chunks) ON TABLE resource.words TO waybill_common;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.agent_inbox TO waybill_common;
GRANT SELECT ON TABLE state.agent_inbox TO waybill_remover;
GRANT SELECT(project_id) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(agent_turn_id) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(agent_id) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(inbox_seq),UPDATE(inbox_seq) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(message_type) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(status),UPDATE(status) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(worker_target) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(turn_epoch) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(claim_token),UPDATE(claim_token) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(worker_id),UPDATE(worker_id) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(silent_by),UPDATE(silent_by) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(next_retry_at) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(retry_count) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(n_lost_leases) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(stop_asked) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(armed_at) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(dispatched_at) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(created_at) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT(shard) ON TABLE state.agent_inbox TO waybill_scheduler;
GRANT SELECT,USAGE ON SEQUENCE state.agent_inbox_inbox_seq_seq TO waybill_scheduler;
GRANT USAGE ON SEQUENCE state.agent_inbox_inbox_seq_seq TO waybill_common;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.agent_state_head TO waybill_common;
GRANT SELECT ON TABLE state.agent_state_head TO waybill_scheduler;
GRANT SELECT ON TABLE state.agent_state_head TO waybill_remover;
GRANT UPDATE(status) ON TABLE state.agent_state_head TO waybill_scheduler;
GRANT UPDATE(claim_token) ON TABLE state.agent_state_head TO waybill_scheduler;
GRANT SELECT,INSERT ON TABLE state.audit TO waybill_service;
GRANT INSERT(project_id) ON TABLE state.audit TO waybill_remover;
GRANT INSERT(audit_id) ON TABLE state.audit TO waybill_remover;
GRANT INSERT(actor) ON TABLE state.audit TO waybill_remover;
GRANT INSERT(action) ON TABLE state.audit TO waybill_remover;
GRANT INSERT(subject) ON TABLE state.audit TO waybill_remover;
GRANT INSERT(detail) ON TABLE state.audit TO waybill_remover;
GRANT SELECT,INSERT,DELETE ON TABLE state.blackboards TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.blackboards TO waybill_remover;
GRANT UPDATE(title) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(title) ON TABLE state.blackboards TO waybill_remover;
GRANT UPDATE(labels) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(messages_box_id) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(todo_card_id) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(compression_card_id) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(mapreduce_results_box_id) ON TABLE state.blackboards TO waybill_common;
GRANT UPDATE(ended_at) ON TABLE state.blackboards TO waybill_common;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.budgets TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.turns TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.turns TO waybill_remover;
GRANT SELECT(project_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(agent_turn_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(agent_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(channel) ON TABLE state.turns TO waybill_scheduler;
GRANT UPDATE(status) ON TABLE state.turns TO waybill_common;
GRANT SELECT(profile_box_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(context_box_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(output_box_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(query_card_ids) ON TABLE state.turns TO waybill_scheduler;
GRANT UPDATE(steer_card_ids) ON TABLE state.turns TO waybill_common;
GRANT SELECT(session_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(parent_agent_turn_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(root_turn_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(parent_step_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(batch_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(recursion_depth) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(trace_id) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(traceparent) ON TABLE state.turns TO waybill_scheduler;
GRANT SELECT(tracestate) ON TABLE state.turns TO waybill_scheduler;
GRANT UPDATE(tracestate) ON TABLE state.turns TO waybill_remover;
GRANT SELECT(emit_state_event) ON TABLE state.turns TO waybill_scheduler;
GRANT UPDATE(limits) ON TABLE state.turns TO waybill_common;
GRANT UPDATE(finished_at) ON TABLE state.turns TO waybill_common;
GRANT UPDATE(deliverable_card_id) ON TABLE state.turns TO waybill_common;
GRANT UPDATE(turn_epoch) ON TABLE state.turns TO waybill_common;
GRANT UPDATE(claim_token) ON TABLE state.turns TO waybill_common;
GRANT SELECT ON TABLE state.edges TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.forgotten_sessions TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.forks TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.forks TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.grants TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.grants TO waybill_remover;
GRANT UPDATE(revoked_at) ON TABLE state.grants TO waybill_common;
GRANT UPDATE(revoked_by) ON TABLE state.grants TO waybill_common;
GRANT SELECT,INSERT ON TABLE state.handovers TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.handovers TO waybill_remover;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.idempotency TO waybill_common;
GRANT DELETE ON TABLE state.idempotency TO waybill_scheduler;
GRANT SELECT(project_id) ON TABLE state.idempotency TO waybill_scheduler;
GRANT SELECT(expires_at) ON TABLE state.idempotency TO waybill_scheduler;
GRANT SELECT,INSERT ON TABLE state.identity_edges TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.identity_edges TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.labels TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.labels TO waybill_remover;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.pmo_batch_slots TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.pmo_batch_slots TO waybill_remover;
GRANT SELECT,INSERT,UPDATE ON TABLE state.pmo_batch_tasks TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.pmo_batch_tasks TO waybill_remover;
GRANT SELECT,INSERT,UPDATE ON TABLE state.pmo_batches TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.pmo_batches TO waybill_remover;
GRANT SELECT(project_id) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(batch_id) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(status) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(deadline_at) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(closed_at) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(stopping) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT(shard) ON TABLE state.pmo_batches TO waybill_scheduler;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.quarantine TO waybill_common;
GRANT SELECT,INSERT,UPDATE ON TABLE state.quarantine TO waybill_scheduler;
GRANT SELECT,DELETE ON TABLE state.quarantine TO waybill_remover;
GRANT SELECT ON TABLE state.queue_marks TO waybill_common;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.queue_marks TO waybill_scheduler;
GRANT SELECT,INSERT ON TABLE state.recorded_asks TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.recorded_asks TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.recordings TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.recordings TO waybill_remover;
GRANT UPDATE(tail) ON TABLE state.recordings TO waybill_common;
GRANT UPDATE(n_messages) ON TABLE state.recordings TO waybill_common;
GRANT UPDATE(answer) ON TABLE state.recordings TO waybill_common;
GRANT UPDATE(state) ON TABLE state.recordings TO waybill_common;
GRANT SELECT,UPDATE ON TABLE state.relay_shards TO waybill_scheduler;
GRANT SELECT(stream_made_at) ON TABLE state.relay_shards TO waybill_remover;
GRANT SELECT(replay_after) ON TABLE state.relay_shards TO waybill_remover;
GRANT SELECT(replay_upto) ON TABLE state.relay_shards TO waybill_remover;
GRANT SELECT,INSERT ON TABLE state.requests TO waybill_common;
GRANT SELECT,DELETE ON TABLE state.requests TO waybill_remover;
GRANT UPDATE(request_card_id) ON TABLE state.requests TO waybill_common;
GRANT UPDATE(deadline_at) ON TABLE state.requests TO waybill_common;
GRANT UPDATE(decision) ON TABLE state.requests TO waybill_common;
GRANT UPDATE(decision_card_id) ON TABLE state.requests TO waybill_common;
GRANT UPDATE(decided_by) ON TABLE state.requests TO waybill_common;
GRANT UPDATE(decided_at) ON TABLE state.requests TO waybill_common;
GRANT SELECT,INSERT,UPDATE ON TABLE state.spending TO waybill_common;
GRANT SELECT,UPDATE ON TABLE state.sweep_clock TO waybill_scheduler;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.waiting_calls TO waybill_common;
GRANT SELECT ON TABLE state.waiting_calls TO waybill_scheduler;
GRANT SELECT ON TABLE state.waiting_calls TO waybill_remover;
GRANT UPDATE(status) ON TABLE state.waiting_calls TO waybill_scheduler;
GRANT UPDATE(claim_token) ON TABLE state.waiting_calls TO waybill_scheduler;
GRANT UPDATE(worker_id) ON TABLE state.waiting_calls TO waybill_scheduler;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE state.worker_leases TO waybill_scheduler;
