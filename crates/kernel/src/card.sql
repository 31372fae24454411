-- Cards as the rows that they become. Plain SQL, so that the planner writes it into the caller.
create or replace function cardbox.rows(p_project uuid, p_cards cardbox.new_card[])
returns table (project_id uuid, card_id uuid, n_tokens integer, type text, role text, author_id text, hash bytea, salt bytea, tool_call_id uuid,
  trace_id uuid, step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamptz, content json, tool_calls json, metadata json)
language sql stable as $$
  select p_project, c.card_id, c.n_tokens, c.type, c.role, c.author_id, c.hash, c.salt, c.tool_call_id, c.trace_id,
         c.step_id, c.parent_step_id, c.ttl_seconds, now() + make_interval(secs => c.ttl_seconds),
         c.content::json, c.tool_calls::json, c.metadata::json
    from unnest(p_cards) c
$$;

-- One of these cards that is not there as it is given; null: all are. The salt is another where a writer that lost its answer seals its card again,
-- so what is said counts, and not the hash alone. Of a card that was erased only the hash is left.
create or replace function cardbox.conflicting(p_project uuid, p_cards cardbox.new_card[]) returns uuid
language sql stable as $$
  select asked.card_id
    from unnest(p_cards) asked
    left join lateral (
         select c.* from cardbox.cards c where c.project_id = p_project and c.card_id = asked.card_id offset 0) c on true
   where c.hash is distinct from asked.hash
     and (c.content::text, c.tool_calls::text, c.tool_call_id, c.type, c.role::text, c.author_id)
         is distinct from (asked.content, asked.tool_calls, asked.tool_call_id, asked.type, asked.role, asked.author_id)
   limit 1
$$;

-- Writes the cards of a transition; says how many were new. Written before with the same content: nothing. With other content: WB002.
create or replace function cardbox.put(p_project uuid, p_cards cardbox.new_card[])
returns integer language plpgsql as $$
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

-- Writes many cards; says how many were new. That all of them are is tried first: an insert that may meet what is there already costs each row a second
-- look at the index and a second record in the log.
create or replace function cardbox.put_many(p_project uuid, p_cards cardbox.new_card[])
returns bigint language plpgsql as $$
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

-- Lets cards end by themselves, once; says which of them have their end from here.
create or replace function cardbox.expire(p_project uuid, p_cards uuid[], p_seconds integer) returns uuid[]
language plpgsql as $$
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

-- Takes cards out of every later hydration; says which of them there are not.
create or replace function cardbox.delete(p_project uuid, p_cards uuid[], p_reason text) returns uuid[]
language plpgsql as $$
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

-- How many of these cards, from the first on, have no more than so many bytes in all: one at least.
create or replace function cardbox.n_within(p_project uuid, p_cards uuid[], p_bytes bigint) returns integer
language plpgsql stable as $$
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
