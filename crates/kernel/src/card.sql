-- Writes the cards of a transition. Written before with the same hash: nothing. With another: WB002.
create or replace function cardbox.put(p_project uuid,
  c_ids uuid[], c_tokens integer[], c_types text[], c_roles text[], c_authors text[], c_hashes bytea[], c_calls uuid[],
  c_traces uuid[], c_steps uuid[], c_parents uuid[], c_ttls integer[], c_contents text[], c_tool_calls text[], c_metadata text[])
returns void language plpgsql as $$
declare
  v_written integer;
  v_other   uuid;
begin
  if cardinality(c_ids) = 0 then
    return;
  end if;
  insert into cardbox.cards
         (project_id, card_id, n_tokens, type, role, author_id, hash, tool_call_id, trace_id,
          step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
  select p_project, card_id, n_tokens, type, role, author_id, hash, tool_call_id, trace_id,
         step_id, parent_step_id, ttl_seconds, now() + make_interval(secs => ttl_seconds),
         content::json, tool_calls::json, metadata::json
    from unnest(c_ids, c_tokens, c_types, c_roles, c_authors, c_hashes, c_calls, c_traces, c_steps, c_parents, c_ttls, c_contents, c_tool_calls, c_metadata)
         as card (card_id, n_tokens, type, role, author_id, hash, tool_call_id, trace_id,
                  step_id, parent_step_id, ttl_seconds, content, tool_calls, metadata)
      on conflict do nothing;
  get diagnostics v_written = row_count;
  if v_written < cardinality(c_ids) then
    select asked.card_id into v_other
      from unnest(c_ids, c_hashes) as asked (card_id, hash)
      left join cardbox.cards c on c.project_id = p_project and c.card_id = asked.card_id
     where c.hash is distinct from asked.hash
     limit 1;
    if found then
      raise exception 'card % exists with other content', v_other using errcode = 'WB002', detail = v_other::text;
    end if;
  end if;
end $$;
