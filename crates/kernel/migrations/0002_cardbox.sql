-- Immutable cards, boxes that only grow. docs/spec.md, CB-1 … CB-13.

-- Words of a closed set are domains: a CHECK on the table would be read from the catalog's text again by every statement.
create domain cardbox.role as text check (value in ('system', 'user', 'assistant', 'tool'));

create table cardbox.cards (
  project_id        uuid        not null,
  card_id           uuid        not null,
  created_at        timestamptz not null default now(),
  n_tokens          integer     not null check (n_tokens >= 0),
  content_addressed boolean     not null default false,
  type              text        not null,
  role              cardbox.role not null,
  author_id         text,
  hash              bytea       not null check (octet_length(hash) = 32),
  -- Hashed before everything else, and destroyed with the content: what is left of a card cannot be compared with a guess.
  salt              bytea,
  tool_call_id      uuid,
  trace_id          uuid,
  step_id           uuid,
  parent_step_id    uuid,
  ttl_seconds       integer     check (ttl_seconds > 0),
  expires_at        timestamptz,
  deleted_at        timestamptz,
  deleted_reason    text,
  erased_at         timestamptz,
  erased_reason     text,
  -- json, not jsonb: the stored bytes are the hashed bytes.
  content           json,
  tool_calls        json,
  metadata          json,
  primary key (project_id, card_id),
  check ((content is null) = (erased_at is not null)),
  check ((deleted_at is null) = (deleted_reason is null)),
  check ((erased_at is null) = (erased_reason is null)),
  -- A hash that is to be found by the content has no salt.
  check (case when content_addressed then salt is null and expires_at is null
              else type not like 'sys.%' and coalesce(octet_length(salt), 0) = case when erased_at is null then 16 else 0 end end)
  -- Next to no row changes: each is frozen once, early.
) with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 0);

-- A card as a transition takes it. Its JSON comes as text, and is read as json by the insert.
create type cardbox.new_card as (
  card_id        uuid,
  n_tokens       integer,
  type           text,
  role           text,
  author_id      text,
  hash           bytea,
  salt           bytea,
  tool_call_id   uuid,
  trace_id       uuid,
  step_id        uuid,
  parent_step_id uuid,
  ttl_seconds    integer,
  content        text,
  tool_calls     text,
  metadata       text
);

-- Content-addressed cards exist once per project and hash. One that was deleted or erased no longer counts.
create unique index cards_by_content on cardbox.cards (project_id, hash)
  where content_addressed and deleted_at is null and erased_at is null;

-- What has ended, or will, by when: whether anything has since it was read is one look.
create index cards_ending on cardbox.cards (project_id, least(expires_at, deleted_at, erased_at))
  where expires_at is not null or deleted_at is not null or erased_at is not null;

create table cardbox.erasures (
  project_id uuid        not null,
  card_id    uuid        not null,
  hash       bytea       not null,
  reason     text        not null check (reason <> ''),
  erased_by  text        not null,
  erased_at  timestamptz not null,
  primary key (project_id, card_id)
);

create table cardbox.boxes (
  project_id uuid        not null,
  box_id     uuid        not null,
  length     bigint      not null default 0 check (length >= 0),
  created_at timestamptz not null default now(),
  -- Whose it is: the agent that may read all of it, and the turn that writes it or was handed it.
  agent_id      uuid,
  agent_turn_id uuid,
  -- Made so that many boxes can hold ranges of it, and for nothing else: it goes once none of them does.
  is_shared     boolean     not null default false,
  primary key (project_id, box_id)
) with (fillfactor = 80);
create index boxes_shared on cardbox.boxes (project_id, box_id) where is_shared;

-- seq is the position of the entry's first card. An entry is one card, or a frozen range of another box's own
-- cards: reading is one level deep. Entries of a box leave no gap: 1 … length.
create table cardbox.box_entries (
  project_id    uuid   not null,
  box_id        uuid   not null,
  seq           bigint not null check (seq >= 1),
  card_id       uuid,
  source_box_id uuid,
  from_seq      bigint,
  to_seq        bigint,
  primary key (project_id, box_id, seq),
  check (num_nonnulls(card_id, source_box_id) = 1),
  check (num_nonnulls(source_box_id, from_seq, to_seq) in (0, 3)),
  check (from_seq >= 1 and to_seq >= from_seq),
  check (source_box_id <> box_id)
) with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 0);
-- These lead with the id: with the project in front, the planner may read all ranges of a project to find a few.
create index box_entries_by_card on cardbox.box_entries (card_id, project_id) where card_id is not null;
create index box_entries_by_source on cardbox.box_entries (source_box_id, project_id) where source_box_id is not null;
-- Without it, inheriting a box of a million cards reads a million entries to find that there is no range.
create index box_entries_ranges on cardbox.box_entries (box_id, project_id, seq) where source_box_id is not null;

-- ── one project at a time ───────────────────────────────────────────────────────────────────────────────────────
-- An unset or empty project does not become a uuid: the policy fails instead of answering "nothing".

alter table cardbox.cards enable row level security;
alter table cardbox.cards force row level security;
create policy project on cardbox.cards using (project_id = current_setting('waybill.project')::uuid);

alter table cardbox.erasures enable row level security;
alter table cardbox.erasures force row level security;
create policy project on cardbox.erasures using (project_id = current_setting('waybill.project')::uuid);

alter table cardbox.boxes enable row level security;
alter table cardbox.boxes force row level security;
create policy project on cardbox.boxes using (project_id = current_setting('waybill.project')::uuid);

alter table cardbox.box_entries enable row level security;
alter table cardbox.box_entries force row level security;
create policy project on cardbox.box_entries using (project_id = current_setting('waybill.project')::uuid);

-- The service may write a card once, and later say when it ends. created_at and erased_* are not its to set.
grant select on cardbox.cards, cardbox.erasures, cardbox.boxes, cardbox.box_entries to waybill_common;
grant insert (project_id, card_id, n_tokens, content_addressed, type, role, author_id, hash, salt, tool_call_id, trace_id,
              step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata)
  on cardbox.cards to waybill_common;
grant update (ttl_seconds, expires_at, deleted_at, deleted_reason) on cardbox.cards to waybill_common;
grant insert (project_id, box_id, length, agent_id, agent_turn_id, is_shared) on cardbox.boxes to waybill_common;
grant update (length) on cardbox.boxes to waybill_common;
grant insert on cardbox.box_entries to waybill_common;

grant select on cardbox.cards to waybill_eraser;
grant update (salt, content, tool_calls, metadata, erased_at, erased_reason) on cardbox.cards to waybill_eraser;
grant select, insert on cardbox.erasures to waybill_eraser;

-- ── the backstop, for every role ────────────────────────────────────────────────────────────────────────────────

-- Who deletes a project says so first (waybill.deleting), and may then delete its rows: each guard of rows asks for that before it calls this. The
-- service may not delete any of them in the first place.
create function cardbox.refuse() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception '% of %.% is refused: %', lower(tg_op), tg_table_schema, tg_table_name, tg_argv[0]
    using errcode = 'WB010';
end $$;

-- A card's end may be set once. Its content may go once: by the eraser, and that writes its own audit row; or by the remover, because of the
-- project's retention, and that is one entry in the project's audit for all cards of a run.
create function cardbox.guard_card() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
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

create trigger guard before update on cardbox.cards for each row execute function cardbox.guard_card();
create trigger keep before delete on cardbox.cards for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a card is kept for ever');
create trigger keep_all before truncate on cardbox.cards execute function cardbox.refuse('cards are kept for ever');

-- A row without an erasure could never be removed, and would stand in the way of the real one.
create trigger real before insert on cardbox.erasures for each row when (pg_trigger_depth() = 0)
  execute function cardbox.refuse('only an erasure writes its record');
create trigger fixed before update on cardbox.erasures for each row execute function cardbox.refuse('the audit is append-only');
create trigger keep before delete on cardbox.erasures for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('the audit is append-only');
create trigger keep_all before truncate on cardbox.erasures execute function cardbox.refuse('the audit is append-only');

create trigger fixed before update on cardbox.box_entries for each row execute function cardbox.refuse('a box only grows');
create trigger keep before delete on cardbox.box_entries for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a box only grows');
create trigger keep_all before truncate on cardbox.box_entries execute function cardbox.refuse('a box only grows');

create trigger grow before update on cardbox.boxes for each row
  when (new.length < old.length or new.box_id <> old.box_id or new.project_id <> old.project_id)
  execute function cardbox.refuse('a box only grows');
create trigger keep before delete on cardbox.boxes for each row
  when (old.project_id::text is distinct from current_setting('waybill.deleting', true)) execute function cardbox.refuse('a box is kept for ever');
create trigger keep_all before truncate on cardbox.boxes execute function cardbox.refuse('boxes are kept for ever');

-- ── the one way content goes ────────────────────────────────────────────────────────────────────────────────────

create function cardbox.erase(project uuid, cards uuid[], why text)
returns table (card_id uuid, hash bytea, erased_at timestamptz, reason text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
revoke execute on all functions in schema cardbox from public;
alter function cardbox.erase owner to waybill_eraser;

-- ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────
-- Definitions that every read and every inheritance is made of. Plain SQL, so that the planner writes them into the caller, under the
-- caller's row policy; `offset 0` keeps the nested loops that read nothing beyond what was asked for. Bounds are worked out first: under a row
-- policy an index serves `seq <= last`, and not `seq <= n - 1`, which could fail on another project's row.

-- The cards at positions lo … hi of a box, repeats included, and where each stands itself.
create function cardbox.places(project uuid, box uuid, lo bigint, hi bigint)
returns table (place bigint, card_id uuid, origin_box_id uuid, origin_seq bigint)
language sql stable as $$
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

-- The same span as runs, for each box that inherits it: the ranges it holds, and one range for each run of its own cards.
-- A range always points at plain cards, however deep the inheritance.
create function cardbox.runs(project uuid, box uuid, lo bigint, hi bigint)
returns table (place bigint, source_box_id uuid, from_seq bigint, to_seq bigint)
language sql stable as $$
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

-- What reading a card gives: its content while it is live, else why not. CB-11 is decided here and nowhere else.
create function cardbox.reading(project uuid, card uuid, as_of timestamptz) returns table (
  card_id uuid, type text, role text, author_id text, hash bytea, salt bytea, n_tokens integer, tool_call_id uuid, trace_id uuid,
  step_id uuid, parent_step_id uuid, ttl_seconds integer, expires_at timestamptz, created_at timestamptz,
  content json, tool_calls json, metadata json, gone_at timestamptz, gone_why text, gone_reason text)
language sql stable as $$
  select c.card_id, c.type, c.role, c.author_id, c.hash, case when g.at is null then c.salt end, c.n_tokens, c.tool_call_id, c.trace_id,
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

-- Every place where a card stands, directly or by range: the way back from a card to its boxes.
create function cardbox.holdings(project uuid, card uuid) returns table (box_id uuid, place bigint)
language sql stable as $$
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
grant execute on function cardbox.places, cardbox.runs, cardbox.reading, cardbox.holdings to waybill_common;
