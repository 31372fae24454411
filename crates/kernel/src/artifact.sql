-- What an upload wrote is to stand at a path. The same content at the same path is the same version.
-- An upload that was given up is WB404; more than the project may store is WB017.
create or replace function cardbox.put_artifact(p_project uuid, p_upload uuid, p_path text, p_media_type text, p_author text, p_hash bytea,
  p_size bigint, p_tokens bigint, p_estimate boolean, p_pieces bytea, p_quota bigint)
returns table (version integer, changed boolean)
language plpgsql as $$
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

-- Of what was removed, whatever no card speaks of goes; of content that no path is left for, the object is due to be deleted.
create or replace function cardbox.collect(p_project uuid, p_most integer, p_grace interval) returns integer
language plpgsql as $$
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

-- Objects that nothing names, whose time has come.
create or replace function scheduler.ended_uploads(p_most integer) returns table (project_id uuid, upload_id uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select u.project_id, u.upload_id from cardbox.uploads u where u.expires_at <= now() order by u.expires_at limit p_most
$$;
alter function scheduler.ended_uploads owner to waybill_scheduler;
