-- Where content came from, and what a project knows. docs/spec.md, CX-4, CX-5, SE-5; docs/tools.md; docs/knowledge.md.

-- ── from outside ────────────────────────────────────────────────────────────────────────────────────────────────
-- The kernel says so, not the writer: a transition sets `waybill.external` before it writes what came from outside, or was written by
-- a turn that has seen such. No column of it is the service's to set.

alter table cardbox.cards
  add column is_external boolean not null default coalesce(current_setting('waybill.external', true), '') = 'on';
alter table cardbox.artifacts
  add column is_external boolean not null default coalesce(current_setting('waybill.external', true), '') = 'on';

-- A box that has held such a card, or was handed one that had. It carries the label to each agent that is handed it.
alter table cardbox.boxes add column has_external boolean not null default false;
grant update (has_external) on cardbox.boxes to waybill_common;

create index cards_external on cardbox.cards (project_id, card_id) where is_external;

-- A card that names an artifact from outside says something from outside: its name.
create function cardbox.label_card() returns trigger
language plpgsql as $$
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
create trigger label before insert on cardbox.cards for each row
  when (new.type in ('handoff.package', 'tool.result') and position('"artifacts":{' in new.content::text) > 0)
  execute function cardbox.label_card();

-- What a box is to hold must be there when its transaction ends. Retention removes nothing that is younger than a month, so that what is older is
-- locked until then: cardbox.remove_turn takes the other lock, and looks for entries after it has it.
create function cardbox.hold(p_project uuid, p_cards uuid[], p_boxes uuid[]) returns integer
language plpgsql as $$
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
grant execute on function cardbox.hold to waybill_common;

-- A box that an agent is given the right to read is not removed meanwhile.
create function state.hold_granted() returns trigger
language plpgsql as $$
declare
  v_held integer;
begin
  v_held := cardbox.hold(new.project_id, '{}', array[new.box_id]);
  return new;
end $$;
create trigger hold before insert on state.grants for each row execute function state.hold_granted();

create function cardbox.label() returns trigger
language plpgsql as $$
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
create trigger label after insert on cardbox.box_entries referencing new table as added
  for each statement execute function cardbox.label();

create trigger stay before update on cardbox.boxes for each row when (old.has_external and not new.has_external)
  execute function cardbox.refuse('what came from outside stays so');
create trigger stay before update on cardbox.cards for each row when (new.is_external <> old.is_external)
  execute function cardbox.refuse('where a card came from never changes');

-- The claim that was let through: its handler is not asked again.
alter table state.waiting_calls add column admitted_token bigint;

-- ── what a project knows ────────────────────────────────────────────────────────────────────────────────────────

create domain resource.document_kind as text check (value in ('knowledge', 'experience'));

-- One row per document, in its newest version.
create table resource.documents (
  project_id    uuid             not null,
  kind          resource.document_kind not null,
  path          text collate "C" not null check (octet_length(path) between 1 and 1024),
  document_id   uuid             not null,
  version       integer          not null default 1,
  hash          bytea            not null check (octet_length(hash) = 32),
  title         text             not null default '',
  n_chunks      integer          not null,
  n_tokens      bigint           not null,
  is_external   boolean          not null default coalesce(current_setting('waybill.external', true), '') = 'on',
  -- Experience: whose deliverable it was.
  agent_turn_id uuid,
  card_id       uuid,
  -- The model that its vectors are of. None: it has none.
  embedded_by   text,
  updated_at    timestamptz      not null default now(),
  primary key (project_id, kind, path)
);
create unique index documents_by_id on resource.documents (document_id, project_id);

-- A piece of a document that is found and shown as one. Its words are ours: cut, folded, and marked with the project, so that one
-- project's common words are not another's.
create table resource.chunks (
  project_id  uuid     not null,
  document_id uuid     not null,
  seq         integer  not null check (seq >= 1),
  from_line   integer  not null,
  to_line     integer  not null,
  heading     text     not null default '',
  content     text     not null,
  n_tokens    integer  not null,
  words       tsvector not null,
  embedding   real[],
  primary key (project_id, document_id, seq)
);
create index chunks_by_word on resource.chunks using gin (words) with (fastupdate = off);

-- In how many chunks of the project a word stands: what is rare says more, and what is common is not looked for.
create table resource.words (
  project_id uuid             not null,
  word       text collate "C" not null,
  n_chunks   integer          not null check (n_chunks >= 0),
  primary key (project_id, word)
) with (fillfactor = 70);

do $$
declare
  t text;
begin
  foreach t in array array['resource.documents', 'resource.chunks', 'resource.words'] loop
    execute format('alter table %s enable row level security', t);
    execute format('alter table %s force row level security', t);
    execute format('create policy project on %s using (project_id = current_setting(''waybill.project'')::uuid)', t);
  end loop;
end $$;

grant select, delete on resource.documents, resource.chunks, resource.words to waybill_common;
grant insert (project_id, kind, path, document_id, version, hash, title, n_chunks, n_tokens, agent_turn_id, card_id)
  on resource.documents to waybill_common;
grant update (embedded_by) on resource.documents to waybill_common;
grant insert (project_id, document_id, seq, from_line, to_line, heading, content, n_tokens, words) on resource.chunks to waybill_common;
grant update (embedding) on resource.chunks to waybill_common;
grant insert, update (n_chunks) on resource.words to waybill_common;

-- `@@` is not leakproof: under a row policy its index would not be used. Searching is two functions of a role that sees these tables
-- whole, and each of them answers for the project of the unit of work alone.
grant usage, create on schema resource to waybill_librarian;
grant select on resource.documents, resource.chunks, resource.words to waybill_librarian;
create policy librarian on resource.documents for select to waybill_librarian using (true);
create policy librarian on resource.chunks for select to waybill_librarian using (true);
create policy librarian on resource.words for select to waybill_librarian using (true);

-- ── made again ──────────────────────────────────────────────────────────────────────────────────────────────────

-- What reading a card gives now says where it came from.
drop function cardbox.reading(uuid, uuid, timestamptz);
create function cardbox.reading(project uuid, card uuid, as_of timestamptz) returns table (
  card_id uuid, type text, role text, author_id text, hash bytea, salt bytea, n_tokens integer, tool_call_id uuid, trace_id uuid,
  step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamptz, created_at timestamptz, is_external boolean,
  content json, tool_calls json, metadata json, gone_at timestamptz, gone_why text, gone_reason text)
language sql stable as $$
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
revoke execute on function cardbox.reading from public;
grant execute on function cardbox.reading to waybill_common;
