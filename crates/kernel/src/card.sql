-- Writes the cards of a transition; says how many were new. Written before with the same hash: nothing. With another: WB002.
create or replace function cardbox.put(p_project uuid,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[])
returns integer language plpgsql as $$
declare
  v_written integer;
  v_other   uuid;
begin
  if cardinality(c_ids) = 0 then
    return 0;
  end if;
  insert into cardbox.cards
         (project_id, card_id, n_tokens, type, role, author_id, hash, tool_call_id, trace_id,
          step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
  -- By place, not by `unnest` of fourteen arrays, which would be fourteen sets to build for one or two cards.
  select p_project, c_ids[i], c_tokens[i], c_types[i], c_roles[i], c_authors[i], c_hashes[i], c_calls[i], c_traces[i],
         c_steps[i], c_parents[i], c_ttls[i], now() + make_interval(secs => c_ttls[i]),
         c_contents[i]::json, c_tool_calls[i]::json, c_metadata[i]::json
    from generate_series(1, cardinality(c_ids)) i
      on conflict do nothing;
  get diagnostics v_written = row_count;
  if v_written < cardinality(c_ids) then
    select asked.card_id into v_other
      from unnest(c_ids, c_hashes) as asked (card_id, hash)
      left join lateral (
           select c.hash from cardbox.cards c where c.project_id = p_project and c.card_id = asked.card_id offset 0) c on true
     where c.hash is distinct from asked.hash
     limit 1;
    if found then
      raise exception 'card % exists with other content', v_other using errcode = 'WB002', detail = v_other::text;
    end if;
  end if;
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
