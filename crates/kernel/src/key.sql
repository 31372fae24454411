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
