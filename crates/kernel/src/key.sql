-- Whose key it is. Nothing: there is no such key, its secret is another, it has expired, or it was revoked.
create or replace function scheduler.find_key(p_key uuid, p_hash bytea)
returns table (project_id uuid, slug text, name text, scope text, bounds jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select k.project_id, p.slug, k.name, k.scope::text, k.bounds
    from resource.api_keys k
    join resource.projects p on p.project_id = k.project_id
   where k.key_id = p_key and k.hash = p_hash and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
$$;
alter function scheduler.find_key owner to waybill_scheduler;

-- What a browser session reaches: one project for each row. Nothing: there is no such session, it has expired, or its key has expired or was revoked.
create or replace function scheduler.find_browser_session(p_hash bytea)
returns table (project_id uuid, slug text, key_id uuid, actor text, scope text, bounds jsonb, expires_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.project_id, p.slug, s.key_id, coalesce(s.actor, 'key:' || k.name), coalesce(s.scope, k.scope)::text, coalesce(k.bounds, '{}'),
         least(s.expires_at, k.expires_at)
    from resource.browser_sessions s
   cross join lateral (select p.slug from resource.projects p where p.project_id = s.project_id offset 0) p
    left join lateral (select k.name, k.scope, k.bounds, k.expires_at from resource.api_keys k
                        where k.project_id = s.project_id and k.key_id = s.key_id and k.revoked_at is null offset 0) k on true
   where s.hash = p_hash and least(s.expires_at, k.expires_at) > now() and (s.key_id is null or k.name is not null)
   order by p.slug
$$;
alter function scheduler.find_browser_session owner to waybill_scheduler;

create or replace function scheduler.end_browser_session(p_project uuid, p_hash bytea) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from resource.browser_sessions s where s.project_id = p_project and s.hash = p_hash;
  return found;
end $$;
alter function scheduler.end_browser_session owner to waybill_scheduler;
