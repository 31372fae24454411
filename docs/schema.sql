CREATE SCHEMA cardbox;
CREATE SCHEMA resource;
CREATE SCHEMA scheduler;
CREATE FUNCTION cardbox.erase(project uuid, cards uuid[], why text) RETURNS TABLE(card_id uuid, hash bytea, erased_at timestamp with time zone, reason text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  unknown uuid[];
begin
  if coalesce(why, '') = '' then
    raise exception 'an erasure needs a reason' using errcode = 'WB011';
  end if;
  perform set_config('waybill.project', project::text, true);
  select array_agg(asked) into unknown
    from unnest(cards) asked
   where not exists (select from cardbox.cards c where c.project_id = project and c.card_id = asked);
  if unknown is not null then
    raise exception 'cards not found, nothing was erased' using errcode = 'WB012', detail = unknown::text;
  end if;
  update cardbox.cards c
     set content = null, tool_calls = null, metadata = null, erased_at = now(), erased_reason = why
   where c.project_id = project
     and c.card_id = any(cards)
     and c.erased_at is null;
  return query
    select e.card_id, e.hash, e.erased_at, e.reason
      from cardbox.erasures e
     where e.project_id = project and e.card_id = any(cards);
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
    (new.content::text, new.tool_calls::text, new.metadata::text, new.erased_at, new.erased_reason)
    is not distinct from
    (old.content::text, old.tool_calls::text, old.metadata::text, old.erased_at, old.erased_reason);
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
     and new.erased_at is not null and num_nonnulls(new.content, new.tool_calls, new.metadata) = 0 then
    insert into cardbox.erasures (project_id, card_id, hash, reason, erased_by, erased_at)
    values (old.project_id, old.card_id, old.hash, new.erased_reason, session_user, new.erased_at);
    return new;
  end if;
  raise exception 'card % never changes', old.card_id
    using errcode = 'WB010', hint = 'Write a new card. To destroy content for good, use cardbox.erase.';
end $$;
CREATE FUNCTION cardbox.places(project uuid, box uuid, lo bigint, hi bigint) RETURNS TABLE(place bigint, card_id uuid)
    LANGUAGE sql STABLE
    AS $$
  select e.seq, e.card_id
    from cardbox.box_entries e
   where e.project_id = project and e.box_id = box and e.card_id is not null
     and e.seq between lo and hi
  union all
  select e.seq + s.seq - e.from_seq, s.card_id
    from cardbox.box_entries e
   cross join lateral (
         select s.seq, s.card_id
           from cardbox.box_entries s
          where s.project_id = project and s.box_id = e.source_box_id
            and s.seq between e.from_seq + greatest(lo - e.seq, 0) and least(e.to_seq, e.from_seq + hi - e.seq)
         offset 0) s
   where e.project_id = project and e.box_id = box and e.source_box_id is not null
     and e.seq <= hi
     and e.seq >= coalesce((select max(f.seq)
                              from cardbox.box_entries f
                             where f.project_id = project and f.box_id = box and f.source_box_id is not null
                               and f.seq <= lo), 0)
$$;
CREATE FUNCTION cardbox.reading(project uuid, card uuid, as_of timestamp with time zone) RETURNS TABLE(card_id uuid, type text, role text, author_id text, hash bytea, n_tokens integer, tool_call_id uuid, trace_id uuid, step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamp with time zone, created_at timestamp with time zone, content json, tool_calls json, metadata json, gone_at timestamp with time zone, gone_why text, gone_reason text)
    LANGUAGE sql STABLE
    AS $$
  select c.card_id, c.type, c.role, c.author_id, c.hash, c.n_tokens, c.tool_call_id, c.trace_id,
         c.step_id, c.parent_step_id, c.ttl_seconds, c.expires_at, c.created_at,
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
CREATE FUNCTION cardbox.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  raise exception '% of %.% is refused: %', lower(tg_op), tg_table_schema, tg_table_name, tg_argv[0]
    using errcode = 'WB010';
end $$;
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
       and e.seq >= coalesce((select max(f.seq)
                                from cardbox.box_entries f
                               where f.project_id = project and f.box_id = box and f.source_box_id is not null
                                 and f.seq <= lo), 0)
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
CREATE FUNCTION scheduler.find_project(wanted text) RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select p.project_id from resource.projects p where p.slug = wanted
$$;
CREATE FUNCTION scheduler.list_projects(after text, most integer) RETURNS TABLE(project_id uuid, slug text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select p.project_id, p.slug from resource.projects p where p.slug > after order by p.slug limit most
$$;
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
);
ALTER TABLE ONLY cardbox.box_entries FORCE ROW LEVEL SECURITY;
CREATE TABLE cardbox.boxes (
    project_id uuid NOT NULL,
    box_id uuid NOT NULL,
    length bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
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
    role text NOT NULL,
    author_id text,
    hash bytea NOT NULL,
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
    CONSTRAINT cards_check CHECK (((content IS NULL) = (erased_at IS NOT NULL))),
    CONSTRAINT cards_check1 CHECK (((deleted_at IS NULL) = (deleted_reason IS NULL))),
    CONSTRAINT cards_check2 CHECK (((erased_at IS NULL) = (erased_reason IS NULL))),
    CONSTRAINT cards_check3 CHECK ((content_addressed OR (type !~~ 'sys.%'::text))),
    CONSTRAINT cards_check4 CHECK (((NOT content_addressed) OR (expires_at IS NULL))),
    CONSTRAINT cards_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT cards_n_tokens_check CHECK ((n_tokens >= 0)),
    CONSTRAINT cards_role_check CHECK ((role = ANY (ARRAY['system'::text, 'user'::text, 'assistant'::text, 'tool'::text]))),
    CONSTRAINT cards_ttl_seconds_check CHECK ((ttl_seconds > 0))
);
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
CREATE TABLE resource.projects (
    project_id uuid NOT NULL,
    slug text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT projects_slug_check CHECK ((slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);
ALTER TABLE ONLY resource.projects FORCE ROW LEVEL SECURITY;
ALTER TABLE ONLY cardbox.box_entries
    ADD CONSTRAINT box_entries_pkey PRIMARY KEY (project_id, box_id, seq);
ALTER TABLE ONLY cardbox.boxes
    ADD CONSTRAINT boxes_pkey PRIMARY KEY (project_id, box_id);
ALTER TABLE ONLY cardbox.cards
    ADD CONSTRAINT cards_pkey PRIMARY KEY (project_id, card_id);
ALTER TABLE ONLY cardbox.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (project_id, card_id);
ALTER TABLE ONLY resource.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (project_id);
ALTER TABLE ONLY resource.projects
    ADD CONSTRAINT projects_slug_key UNIQUE (slug);
CREATE INDEX box_entries_by_card ON cardbox.box_entries USING btree (card_id, project_id) WHERE (card_id IS NOT NULL);
CREATE INDEX box_entries_by_source ON cardbox.box_entries USING btree (source_box_id, project_id, box_id) WHERE (source_box_id IS NOT NULL);
CREATE INDEX box_entries_ranges ON cardbox.box_entries USING btree (box_id, project_id, seq) WHERE (source_box_id IS NOT NULL);
CREATE UNIQUE INDEX cards_by_content ON cardbox.cards USING btree (project_id, hash) WHERE (content_addressed AND (deleted_at IS NULL) AND (erased_at IS NULL));
CREATE TRIGGER grow BEFORE UPDATE ON cardbox.boxes FOR EACH ROW WHEN (((new.length < old.length) OR (new.box_id <> old.box_id) OR (new.project_id <> old.project_id))) EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER guard BEFORE UPDATE ON cardbox.cards FOR EACH ROW EXECUTE FUNCTION cardbox.guard_card();
CREATE TRIGGER keep BEFORE DELETE OR UPDATE ON cardbox.box_entries FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.boxes FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a box is kept for ever');
CREATE TRIGGER keep BEFORE DELETE ON cardbox.cards FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('a card is kept for ever');
CREATE TRIGGER keep BEFORE DELETE OR UPDATE ON cardbox.erasures FOR EACH ROW EXECUTE FUNCTION cardbox.refuse('the audit is append-only');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.box_entries FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('a box only grows');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.boxes FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('boxes are kept for ever');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.cards FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('cards are kept for ever');
CREATE TRIGGER keep_all BEFORE TRUNCATE ON cardbox.erasures FOR EACH STATEMENT EXECUTE FUNCTION cardbox.refuse('the audit is append-only');
CREATE TRIGGER "real" BEFORE INSERT ON cardbox.erasures FOR EACH ROW WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION cardbox.refuse('only an erasure writes its record');
ALTER TABLE cardbox.box_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.boxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.cards ENABLE ROW LEVEL SECURITY;
ALTER TABLE cardbox.erasures ENABLE ROW LEVEL SECURITY;
CREATE POLICY project ON cardbox.box_entries USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.boxes USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.cards USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON cardbox.erasures USING ((project_id = (current_setting('waybill.project'::text))::uuid));
CREATE POLICY project ON resource.projects USING ((project_id = (current_setting('waybill.project'::text))::uuid));
ALTER TABLE resource.projects ENABLE ROW LEVEL SECURITY;
CREATE POLICY scheduler ON resource.projects FOR SELECT TO waybill_scheduler USING (true);
GRANT USAGE ON SCHEMA cardbox TO waybill_service;
GRANT ALL ON SCHEMA cardbox TO waybill_eraser;
GRANT USAGE ON SCHEMA resource TO waybill_service;
GRANT USAGE ON SCHEMA resource TO waybill_scheduler;
GRANT USAGE ON SCHEMA scheduler TO waybill_service;
GRANT CREATE ON SCHEMA scheduler TO waybill_scheduler;
REVOKE ALL ON FUNCTION cardbox.erase(project uuid, cards uuid[], why text) FROM PUBLIC;
REVOKE ALL ON FUNCTION cardbox.guard_card() FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.places(project uuid, box uuid, lo bigint, hi bigint) TO waybill_service;
GRANT ALL ON FUNCTION cardbox.reading(project uuid, card uuid, as_of timestamp with time zone) TO waybill_service;
REVOKE ALL ON FUNCTION cardbox.refuse() FROM PUBLIC;
GRANT ALL ON FUNCTION cardbox.runs(project uuid, box uuid, lo bigint, hi bigint) TO waybill_service;
REVOKE ALL ON FUNCTION scheduler.find_project(wanted text) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.find_project(wanted text) TO waybill_service;
REVOKE ALL ON FUNCTION scheduler.list_projects(after text, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION scheduler.list_projects(after text, most integer) TO waybill_service;
GRANT SELECT,INSERT ON TABLE cardbox.box_entries TO waybill_service;
GRANT SELECT ON TABLE cardbox.boxes TO waybill_service;
GRANT INSERT(project_id) ON TABLE cardbox.boxes TO waybill_service;
GRANT INSERT(box_id) ON TABLE cardbox.boxes TO waybill_service;
GRANT INSERT(length),UPDATE(length) ON TABLE cardbox.boxes TO waybill_service;
GRANT SELECT ON TABLE cardbox.cards TO waybill_service;
GRANT SELECT ON TABLE cardbox.cards TO waybill_eraser;
GRANT INSERT(project_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(card_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(n_tokens) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(content_addressed) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(type) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(role) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(author_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(hash) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(tool_call_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(trace_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(step_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(parent_step_id) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(ttl_seconds),UPDATE(ttl_seconds) ON TABLE cardbox.cards TO waybill_service;
GRANT INSERT(expires_at),UPDATE(expires_at) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(deleted_at) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(deleted_reason) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(erased_at) ON TABLE cardbox.cards TO waybill_eraser;
GRANT UPDATE(erased_reason) ON TABLE cardbox.cards TO waybill_eraser;
GRANT INSERT(content) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(content) ON TABLE cardbox.cards TO waybill_eraser;
GRANT INSERT(tool_calls) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(tool_calls) ON TABLE cardbox.cards TO waybill_eraser;
GRANT INSERT(metadata) ON TABLE cardbox.cards TO waybill_service;
GRANT UPDATE(metadata) ON TABLE cardbox.cards TO waybill_eraser;
GRANT SELECT ON TABLE cardbox.erasures TO waybill_service;
GRANT SELECT,INSERT ON TABLE cardbox.erasures TO waybill_eraser;
GRANT SELECT ON TABLE resource.projects TO waybill_service;
GRANT INSERT(project_id) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(project_id) ON TABLE resource.projects TO waybill_scheduler;
GRANT INSERT(slug) ON TABLE resource.projects TO waybill_service;
GRANT SELECT(slug) ON TABLE resource.projects TO waybill_scheduler;
