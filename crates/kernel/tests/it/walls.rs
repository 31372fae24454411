//! SE-2: projects are walled off in the database itself.

use sqlx::{AssertSqlSafe, Connection, Row};
use waybill_core::{
    card_box::Span,
    handover::{Handover, TargetProfile},
    id::{BoxId, CardId, ProjectId, SessionId, TurnId},
    tokens::Tokens,
};
use waybill_kernel::{
    blackboard, card, card_box,
    card_box::Window,
    check, grant,
    handover::{self, Pack, Packing, pack_context},
    project,
    turn::{self, Ending},
    work::UnitOfWork,
};
use waybill_testkit::{TestDb, fresh_db};

use crate::{cases, filled_box, ids, instructions};

/// What an attacker learned from an attempt, with the id it asked about blanked out.
type Learned = String;

const WINDOW: Window = Window { pinned: 1, budget: Tokens::ZERO, as_of: None };

/// Every way through the kernel in which a project can name a card or box of another project.
async fn through_the_kernel(work: &mut UnitOfWork, mine: BoxId, way: u32, card_id: CardId, box_id: BoxId) -> Learned {
    let span = Span::whole(box_id);
    match way {
        0 => format!("{:?}", card::fetch(work, &[card_id], None).await),
        1 => format!("{:?}", card::delete(work, &[card_id], "x").await),
        2 => format!("{:?}", card::expire(work, &[card_id], 1).await),
        3 => format!("{:?}", card_box::find(work, &[box_id]).await),
        4 => format!("{:?}", card_box::read(work, span, None).await),
        5 => format!("{:?}", card_box::hydrate(work, box_id, None, WINDOW).await),
        6 => format!("{:?}", card_box::append(work, mine, &[card_id]).await),
        7 => format!("{:?}", card_box::append(work, box_id, &[]).await),
        8 => format!("{:?}", card_box::inherit(work, mine, span).await),
        9 => format!("{:?}", card_box::inherit(work, box_id, Span::whole(mine)).await),
        10 => format!("{:?}", card_box::create_from(work, &[BoxId::new()], span).await),
        11 => format!("{:?}", card_box::share(work, span).await),
        _ => format!("{:?}", card_box::holdings(work, card_id, None, 10).await),
    }
}

/// The same without the application's checks: SQL as the service, which forgets the project or names another.
const ROUND_THE_KERNEL: [&str; 14] = [
    "select count(*) from cardbox.cards where card_id = $1 and $2::uuid is not null and $3::uuid is not null",
    "select count(*) from cardbox.cards where project_id = $3 and card_id = $1 and $2::uuid is not null",
    "select count(*) from cardbox.boxes where box_id = $2 and $1::uuid is not null and $3::uuid is not null",
    "select count(*) from cardbox.box_entries where box_id = $2 or card_id = $1 or project_id = $3",
    "select count(*) from cardbox.erasures where card_id = $1 or project_id = $3 or $2::uuid is null",
    "select count(*) from cardbox.places($3, $2, 1, 10) where $1::uuid is not null",
    "select count(*) from cardbox.reading($3, $1, now()) where $2::uuid is not null",
    "select count(*) from cardbox.runs($3, $2, 1, 10) where source_box_id <> $2 and $1::uuid is not null",
    "select count(*) from resource.projects where project_id = $3 and $1::uuid is not null and $2::uuid is not null",
    "with x as (update cardbox.cards set deleted_at = now(), deleted_reason = '' where card_id = $1 returning 1)
     select count(*) from x where $2::uuid is not null and $3::uuid is not null",
    "with x as (update cardbox.boxes set length = length + 1 where box_id = $2 returning 1)
     select count(*) from x where $1::uuid is not null and $3::uuid is not null",
    "with x as (insert into cardbox.boxes (project_id, box_id) values ($3, $2) returning 1)
     select count(*) from x where $1::uuid is not null",
    "with x as (insert into cardbox.box_entries (project_id, box_id, seq, card_id) values ($3, $2, 999, $1) returning 1)
     select count(*) from x",
    "with x as (insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
                values ($3, $1, 1, 'x', 'user', decode(repeat('00', 32), 'hex'), decode(repeat('00', 16), 'hex'), '1') on conflict do nothing returning 1)
     select count(*) from x where $2::uuid is not null",
];

async fn round_the_kernel(
    work: &mut UnitOfWork,
    way: u32,
    card_id: CardId,
    box_id: BoxId,
    project: ProjectId,
) -> Learned {
    let answer = sqlx::query_scalar::<_, i64>(ROUND_THE_KERNEL[way as usize])
        .bind(card_id)
        .bind(box_id)
        .bind(project)
        .fetch_one(&mut **work)
        .await;
    format!("{answer:?}")
}

/// SE-2: none succeeds, and none learns whether the id exists: a foreign id gets the answer of one made up.
#[tokio::test]
async fn another_projects_cards_and_boxes_are_out_of_reach() {
    let t = fresh_db().await;
    let (theirs, ours) = (ProjectId::new(), t.project_id);
    let mut work = t.kernel.begin(theirs).await.unwrap();
    project::create(&mut work, "theirs").await.unwrap();
    let (their_box, their_cards) = filled_box(&mut work, 3).await;
    work.commit().await.unwrap();
    let before = everything_of(&t, theirs).await;

    let mut work = t.begin().await;
    let (our_box, _) = filled_box(&mut work, 2).await;
    work.commit().await.unwrap();

    let ways = 13 + ROUND_THE_KERNEL.len() as u32;
    for attempt in 0..cases(500) {
        let card_id = their_cards[attempt as usize % 3];
        let (no_card, no_box, nobody) = (CardId::new(), BoxId::new(), ProjectId::new());
        let way = attempt % ways;
        let (foreign, made_up) = if way < 13 {
            let foreign = through_the_kernel(&mut t.begin().await, our_box, way, card_id, their_box).await;
            let made_up = through_the_kernel(&mut t.begin().await, our_box, way, no_card, no_box).await;
            (foreign, made_up)
        } else {
            let foreign = round_the_kernel(&mut t.begin().await, way - 13, card_id, their_box, theirs).await;
            let made_up = round_the_kernel(&mut t.begin().await, way - 13, no_card, no_box, nobody).await;
            assert!(foreign == "Ok(0)" || foreign.contains("42501"), "way {way}: {foreign}");
            (foreign, made_up)
        };
        let blank = |text: String, card: CardId, in_box: BoxId| {
            text.replace(&card.to_string(), "CARD").replace(&in_box.to_string(), "BOX")
        };
        assert_eq!(blank(foreign, card_id, their_box), blank(made_up, no_card, no_box), "way {way}");
    }
    assert_eq!(everything_of(&t, theirs).await, before, "nothing of theirs has changed");
    assert_eq!(card_box::find(&mut t.kernel.begin(ours).await.unwrap(), &[our_box]).await.unwrap().found[0].length, 2);
}

async fn everything_of(t: &TestDb, project_id: ProjectId) -> Vec<String> {
    let rows = sqlx::query(
        "select to_json(c)::text as row from cardbox.cards c where project_id = $1
         union all select to_json(b)::text from cardbox.boxes b where project_id = $1
         union all select to_json(e)::text from cardbox.box_entries e where project_id = $1
         union all select to_json(p)::text from resource.projects p where project_id = $1
         order by 1",
    )
    .bind(project_id)
    .fetch_all(&mut t.admin().await)
    .await
    .unwrap();
    rows.iter().map(|row| row.get("row")).collect()
}

/// A reference that was forced into one's own box from outside the kernel points at nothing.
#[tokio::test]
async fn a_smuggled_reference_shows_nothing() {
    let t = fresh_db().await;
    let theirs = ProjectId::new();
    let mut work = t.kernel.begin(theirs).await.unwrap();
    let (their_box, their_cards) = filled_box(&mut work, 3).await;
    work.commit().await.unwrap();
    let mut work = t.begin().await;
    let (our_box, ours) = filled_box(&mut work, 1).await;
    sqlx::query(
        "with grown as (update cardbox.boxes set length = 5 where box_id = $2)
         insert into cardbox.box_entries (project_id, box_id, seq, card_id, source_box_id, from_seq, to_seq)
         values ($1, $2, 2, $3, null, null, null), ($1, $2, 3, null, $4, 1, 3)",
    )
    .bind(t.project_id)
    .bind(our_box)
    .bind(their_cards[0])
    .bind(their_box)
    .execute(&mut *work)
    .await
    .unwrap();
    let read = card_box::read(&mut work, Span::whole(our_box), None).await.unwrap();
    assert_eq!(crate::card_ids(&read), ours);
    let hydrated =
        card_box::hydrate(&mut work, our_box, None, Window { budget: Tokens::new(9999).unwrap(), ..WINDOW }).await;
    assert_eq!(crate::card_ids(&hydrated.unwrap().cards), ours);
}

/// SE-2: an unset or empty project is an error, not an empty answer, for every table and every verb.
#[tokio::test]
async fn without_a_project_every_statement_fails() {
    let t = fresh_db().await;
    let mut service = sqlx::PgConnection::connect(&t.server.service_url(&t.name)).await.unwrap();
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p')",
    )
    .fetch_all(&mut service)
    .await
    .unwrap();
    assert!(tables.len() >= 5, "{tables:?}");
    for rows in ["empty tables", "filled tables"] {
        for project in ["", "begin; set local waybill.project = 'x'; rollback", "set waybill.project = ''"] {
            sqlx::raw_sql(AssertSqlSafe(project.to_owned())).execute(&mut service).await.unwrap();
            for table in &tables {
                let sql = format!("select count(*) from {table}");
                let outcome = sqlx::query(AssertSqlSafe(sql)).execute(&mut service).await;
                assert!(outcome.is_err(), "{table}, {rows}, after {project:?}: answered");
            }
            let by_id = "select content from cardbox.cards where project_id = gen_random_uuid() and card_id = gen_random_uuid()";
            assert!(sqlx::query(by_id).execute(&mut service).await.is_err(), "{rows}, after {project:?}");
            let insert = "insert into cardbox.boxes (project_id, box_id) values (gen_random_uuid(), gen_random_uuid())";
            assert!(sqlx::query(insert).execute(&mut service).await.is_err(), "{rows}, after {project:?}");
            let update = "update cardbox.boxes set length = length + 1";
            assert!(sqlx::query(update).execute(&mut service).await.is_err(), "{rows}, after {project:?}");
        }
        if rows == "empty tables" {
            let mut work = t.begin().await;
            filled_box(&mut work, 2).await;
            project::create(&mut work, "ours").await.unwrap();
            work.commit().await.unwrap();
        }
        service = sqlx::PgConnection::connect(&t.server.service_url(&t.name)).await.unwrap();
    }
}

/// SE-2: what crosses projects is a closed list, over pointer-only columns, and can reach nothing else.
#[tokio::test]
async fn the_scheduler_can_read_no_card_box_or_payload() {
    let t = fresh_db().await;
    let mut admin = t.admin().await;
    let readable: Vec<String> = sqlx::query_scalar(
        "select n.nspname || '.' || c.relname || '.' || a.attname
           from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
           join pg_type t on t.oid = a.atttypid
          where n.nspname in ('cardbox', 'resource', 'state', 'waybill', 'parts') and c.relkind in ('r', 'p', 'v') and a.attnum > 0
            and has_column_privilege('waybill_scheduler', c.oid, a.attnum, 'select, insert, update')
            and (n.nspname <> 'state' or t.typname in ('text', '_text', 'json', 'jsonb', 'bytea'))
          order by 1",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    // In `state` only ids, numbers, times, words of closed sets, two texts of our own, the server's names of transactions, and the trace's headers that go
    // with events.
    let projects = [
        "resource.projects.max_running_turns",
        "resource.projects.project_id",
        "resource.projects.slug",
        "resource.retention.held_since",
        "resource.retention.project_id",
        "resource.retention.walk_at",
    ];
    let ours = ["state.quarantine.last_error", "state.quarantine.sweep", "state.queue_marks.open_then"];
    let headers = ["state.turns.traceparent", "state.turns.tracestate"];
    // What identifies a request before its project is known.
    let keys = ["bounds", "expires_at", "hash", "key_id", "name", "project_id", "revoked_at", "scope"];
    let keys = keys.map(|c| format!("resource.api_keys.{c}"));
    let browsers = ["actor", "expires_at", "hash", "key_id", "project_id", "scope"];
    let browsers = browsers.map(|c| format!("resource.browser_sessions.{c}"));
    let roster = ["agent_id", "project_id", "retire_by", "retired_at"].map(|c| format!("resource.project_agents.{c}"));
    // Objects that nothing names: which, and since when.
    let uploads = ["expires_at", "project_id", "upload_id"].map(|c| format!("cardbox.uploads.{c}"));
    assert_eq!(readable[..3], uploads);
    assert_eq!(readable[3..11], keys);
    assert_eq!(readable[11..17], browsers);
    assert_eq!(readable[17..21], roster);
    assert_eq!(readable[21..], [&projects[..], &ours, &headers].concat());

    let functions: Vec<(String, bool, bool, bool)> = sqlx::query_as(
        "select n.nspname || '.' || p.proname, p.prosecdef,
                coalesce('search_path=pg_catalog, pg_temp' = any(p.proconfig), false),
                has_function_privilege('public', p.oid, 'execute')
           from pg_proc p join pg_namespace n on n.oid = p.pronamespace
          where p.proowner = 'waybill_scheduler'::regrole or n.nspname = 'scheduler'
          order by 1",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    let names: Vec<&str> = functions.iter().map(|function| function.0.as_str()).collect();
    assert_eq!(names, check::CROSSING_PROJECTS);
    for (name, definer, pinned, public) in &functions {
        assert!(*definer && *pinned && !public, "{name}");
    }

    // As the scheduler itself, with any project set, every card, box and payload is out of reach.
    let mut work = t.begin().await;
    filled_box(&mut work, 2).await;
    project::create(&mut work, "ours").await.unwrap();
    work.commit().await.unwrap();
    let set = format!("set waybill.project = '{}'; set role waybill_scheduler", t.project_id);
    sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut admin).await.unwrap();
    for table in ["cardbox.cards", "cardbox.boxes", "cardbox.box_entries", "cardbox.erasures"] {
        let sql = format!("select 1 from {table}");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect_err(table);
        assert!(error.to_string().contains("permission denied"), "{error}");
    }
    assert!(sqlx::query("select created_at from resource.projects").execute(&mut admin).await.is_err());
}

/// SE-2: the login owns nothing, cannot become another role, and cannot make anything.
#[tokio::test]
async fn the_service_owns_nothing_and_can_become_nobody() {
    let t = fresh_db().await;
    let attempts = [
        "set role waybill_eraser",
        "set role waybill_remover",
        "set role waybill_scheduler",
        "set role waybill_librarian",
        "set row_security = off; select count(*) from cardbox.cards",
        "alter table cardbox.cards disable row level security",
        "alter table cardbox.cards disable trigger user",
        "set session_replication_role = replica",
        "create table cardbox.mine ()",
        "create table public.mine ()",
        "create function scheduler.mine() returns int language sql as 'select 1'",
        "drop policy project on cardbox.cards",
    ];
    for attempt in attempts {
        let mut work = t.begin().await;
        let outcome = sqlx::raw_sql(attempt).execute(&mut *work).await;
        assert!(outcome.is_err(), "{attempt}");
    }
}

/// A slug finds its project across projects; a bad or taken one is refused.
#[tokio::test]
async fn projects_are_found_by_their_slug() {
    let t = fresh_db().await;
    for slug in ["b-team", "a-team"] {
        let mut work = t.kernel.begin(ProjectId::new()).await.unwrap();
        project::create(&mut work, slug).await.unwrap();
        work.commit().await.unwrap();
    }
    let listed = project::list(&t.kernel, "", 10).await.unwrap();
    assert_eq!(listed.iter().map(|found| found.slug.as_str()).collect::<Vec<_>>(), ["a-team", "b-team"]);
    assert_eq!(project::list(&t.kernel, "a-team", 10).await.unwrap(), listed[1..]);
    assert_eq!(project::find(&t.kernel, "b-team").await.unwrap(), listed[1].project_id);
    assert!(matches!(project::find(&t.kernel, "c-team").await, Err(project::Error::NotFound(_))));
    let taken = project::create(&mut t.kernel.begin(ProjectId::new()).await.unwrap(), "a-team").await;
    assert!(matches!(taken, Err(project::Error::Taken(_))), "{taken:?}");
    let bad = project::create(&mut t.kernel.begin(ProjectId::new()).await.unwrap(), "A team").await;
    assert!(matches!(bad, Err(project::Error::Slug(_))), "{bad:?}");
}

/// A project's walls do not keep it from its own.
#[tokio::test]
async fn ones_own_cards_are_in_reach() {
    let t = fresh_db().await;
    let cards = instructions(2);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(card::fetch(&mut t.begin().await, &ids(&cards), None).await.unwrap().found.len(), 2);
}

/// Writes rows of a project to every table that has a project, except where only an erasure or a failed sweep writes.
async fn write_to_every_table(house: &crate::turns::House) {
    house.family(2, false, crate::turns::LONG).await;
    let child = house.claim().await.unwrap();
    let usage = waybill_core::turn::Usage { microdollars: 7, ..Default::default() };
    let ending = Ending { receipt: Some("{}".into()), usage: Some(usage), ..crate::turns::ending(child.fence) };
    let mut work = house.t.begin().await;
    turn::finish(&mut work, &[ending]).await.unwrap();
    let limits = waybill_core::turn::Limits { steps: Some(1), ..Default::default() };
    let limited = crate::budgets::limited(house, limits, None).await;
    turn::enqueue(&mut work, &[limited.0], &[limited.1]).await.unwrap();
    let session_id = SessionId::new();
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    let patch = blackboard::Patch::default();
    blackboard::patch(&mut work, session_id, waybill_core::id::StepId::new(), &patch).await.unwrap();
    let other = SessionId::new();
    blackboard::open(&mut work, None, &[other]).await.unwrap();
    waybill_kernel::session::forget(&mut work, other).await.unwrap();
    work.commit().await.unwrap();
    let mut work = house.t.begin().await;
    project::create(&mut work, "mine").await.unwrap();
    let key = waybill_core::card::CardHash::from_bytes([1; 32]);
    for manifest in [
        serde_json::json!({ "tool": { "name": "t", "description": "", "target": "web" } }),
        serde_json::json!({ "plan": { "name": "p", "document": 1 } }),
        serde_json::json!({ "handoff_type": { "name": "h" } }),
        serde_json::json!({ "profile": { "name": "a", "worker_target": "llm", "system_prompt_template": "",
                                         "llm_config": { "provider": "p", "model": "m" } } }),
    ] {
        let manifest = serde_json::from_value(manifest).unwrap();
        waybill_kernel::resource::apply(&mut work, &[manifest]).await.unwrap();
    }
    let whole = Pack::new(child.fence.agent_id(), TurnId::new(), serde_json::Map::new());
    let handover = Handover {
        target_profile_config: TargetProfile { profile_name: Some("a".parse().unwrap()) },
        ..Handover::of(&[], &[])
    };
    let packing = Packing::new("x", Some(child.fence.agent_id()), &handover);
    pack_context(&mut work, packing, std::slice::from_ref(&whole)).await.unwrap();
    let (box_id, _) = filled_box(&mut work, 1).await;
    grant::give(&mut work, child.fence.agent_id(), box_id, None, "me", "why not").await.unwrap();
    waybill_kernel::idempotency::take(&mut work, "k", key, crate::turns::LONG).await.unwrap();
    let key = waybill_core::key::ApiKey::mint("test");
    waybill_kernel::key::create(
        &mut work,
        &key,
        &"k".parse().unwrap(),
        waybill_core::key::Scope::Admin,
        &Default::default(),
        None,
    )
    .await
    .unwrap();
    let secret = waybill_core::key::BrowserSecret::mint();
    waybill_kernel::browser::open(&mut work, &secret, key.key_id()).await.unwrap().unwrap();
    waybill_kernel::audit::record(&mut work, "me", "did", "this", &serde_json::json!({})).await.unwrap();
    waybill_kernel::retain::hold(&mut work, Some("why not")).await.unwrap();
    let labels = serde_json::from_value(serde_json::json!({ "team": "blue" })).unwrap();
    turn::label(&mut work, child.fence.agent_turn_id(), &labels).await.unwrap();
    let fork = waybill_kernel::fork::Fork {
        source_turn_id: child.fence.agent_turn_id(),
        source_step_id: None,
        live_tools: false,
        change: serde_json::json!({}),
    };
    waybill_kernel::fork::record(&mut work, TurnId::new(), &fork).await.unwrap();
    crate::artifacts::put(&mut work, "a", b"one").await;
    crate::artifacts::put(&mut work, "b", b"one").await;
    crate::sources::put(&mut work, "c", &["words"]).await;
    let hash = waybill_core::artifact::ArtifactHash::of(b"one");
    card::insert(&mut work, &[crate::artifacts::package(&[("a", hash)])]).await.unwrap();
    work.commit().await.unwrap();
    let foreign = Handover::instruction();
    let arguments = serde_json::json!({ "profile_name": "a", "input_box_ids": BoxId::new().to_string() });
    let pack = Pack { arguments: arguments.as_object().unwrap().clone(), ..whole };
    let refused = pack_context(&mut house.t.begin().await, Packing { handover: &foreign, ..packing }, &[pack]).await;
    assert!(matches!(refused, Err(handover::Error::NoBox(_))), "{refused:?}");
    // As after a long look.
    let mark = "insert into state.queue_marks select 'other', project_id, 0, 0, 0, '{}', now(), 0, 0, 0 from resource.projects";
    house.meddle(mark).await;
    let decided = "insert into state.requests (project_id, tool_call_id, agent_turn_id, agent_id, tool_call_card_id, request_card_id, deadline_at,
                                               decision, decision_card_id, decided_by)
                   select project_id, gen_random_uuid(), agent_turn_id, agent_id, gen_random_uuid(), gen_random_uuid(), now(),
                          'approved', gen_random_uuid(), 'key:k'
                     from state.turns limit 1";
    house.meddle(decided).await;
    let recorded = "insert into state.recordings (project_id, agent_turn_id, opening, tail, n_messages)
                    select project_id, agent_turn_id, decode(repeat('00', 16), 'hex'), decode(repeat('00', 16), 'hex'), 0 from state.turns limit 1";
    house.meddle(recorded).await;
    let asked = "insert into state.recorded_asks (project_id, said, agent_turn_id)
                 select project_id, decode(repeat('00', 16), 'hex'), agent_turn_id from state.turns limit 1";
    house.meddle(asked).await;
}

/// SE-2: every table that has a project shows another project nothing, takes nothing for it, and fails without one.
#[tokio::test]
async fn every_table_is_walled_off() {
    let house = crate::turns::House::new().await;
    write_to_every_table(&house).await;
    let mut admin = house.t.admin().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text
           from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
          where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p', 'v') and a.attname = 'project_id'
          order by 1",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    assert_eq!(tables.len(), 50, "{tables:?}");
    for table in tables {
        let count = format!("select count(*) from {table} where project_id = '{}'", house.t.project_id);
        let seen: i64 = sqlx::query_scalar(AssertSqlSafe(count.clone())).fetch_one(&mut admin).await.unwrap();
        let empty = ["cardbox.erasures", "state.quarantine"];
        assert_eq!(seen == 0, empty.contains(&table.as_str()), "{table} is not tried");
        let mut own = house.t.begin().await;
        let own: i64 = sqlx::query_scalar(AssertSqlSafe(count.clone())).fetch_one(&mut *own).await.unwrap();
        assert_eq!(own, seen, "{table}");
        let mut other = house.kernel().begin(ProjectId::new()).await.unwrap();
        let foreign: i64 = sqlx::query_scalar(AssertSqlSafe(count.clone())).fetch_one(&mut *other).await.unwrap();
        assert_eq!(foreign, 0, "{table}");
        let theft = format!("insert into {table} select * from {table}");
        let copied = sqlx::query(AssertSqlSafe(theft)).execute(&mut *other).await;
        assert!(copied.is_err() || copied.unwrap().rows_affected() == 0, "{table}");
        let without: Result<i64, _> = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(house.kernel().pool()).await;
        assert!(without.is_err() || seen == 0, "{table} answers without a project");
    }
    let parts =
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'parts'::regnamespace and c.relkind = 'r'";
    let parts: Vec<String> = sqlx::query_scalar(parts).fetch_all(&mut house.t.admin().await).await.unwrap();
    assert!(parts.len() >= 30, "{parts:?}");
    for table in ["state.worker_leases", "state.sweep_clock"].map(str::to_owned).into_iter().chain(parts) {
        let sql = format!("select count(*) from {table}");
        let seen: Result<i64, _> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *house.t.begin().await).await;
        assert!(seen.is_err(), "{table} can be read by the service");
    }
}

/// SE-1, SE-2: only the login of the API and of commands reaches keys and the audit; a hash is read by none of them.
#[tokio::test]
async fn workers_and_orchestrators_reach_neither_keys_nor_the_audit() {
    let t = fresh_db().await;
    let mut session = t.admin().await;
    let tries = [
        ("select count(*) from state.audit", ["waybill_service"].as_slice()),
        (
            "insert into state.audit (project_id, audit_id, actor, action, subject) values (waybill_project(), gen_random_uuid(), 'a', 'b', 'c')",
            &["waybill_service"],
        ),
        ("select count(key_id) from resource.api_keys", &["waybill_service"]),
        ("select count(hash) from resource.api_keys", &[]),
        ("update resource.api_keys set revoked_at = now()", &["waybill_service"]),
        (
            "insert into resource.api_keys (project_id, key_id, name, scope, hash) values (waybill_project(), gen_random_uuid(), 'k', 'admin', sha256('x'))",
            &["waybill_service"],
        ),
        ("select scheduler.find_key(gen_random_uuid(), sha256('x'))", &["waybill_service"]),
        ("select count(key_id) from resource.browser_sessions", &["waybill_service"]),
        ("select count(hash) from resource.browser_sessions", &[]),
        ("delete from resource.browser_sessions", &[]),
        ("update resource.browser_sessions set expires_at = now()", &[]),
        ("select scheduler.find_browser_session(sha256('x'))", &["waybill_service"]),
        ("select scheduler.end_browser_session(waybill_project(), sha256('x'))", &["waybill_service"]),
        (
            "set local waybill.project = '00000000-0000-4000-8000-000000000001'; insert into resource.projects (project_id, slug) values ('00000000-0000-4000-8000-000000000001', 'mine')",
            &["waybill_service"],
        ),
        ("update resource.projects set max_open_turns = null", &["waybill_service"]),
        ("select count(seal_key) from resource.projects", &["waybill_service"]),
        ("update resource.projects set seal_key = ''", &[]),
        ("update resource.tools set target = target", &["waybill_service"]),
        ("delete from resource.tools", &[]),
        ("update resource.profiles set tags = tags", &["waybill_service"]),
        ("delete from resource.profiles", &["waybill_service"]),
        ("select scheduler.list_projects('', 1)", &["waybill_service", "waybill_orchestrator"]),
        ("select scheduler.unpublished(gen_random_uuid(), 1)", &["waybill_service", "waybill_orchestrator"]),
        ("select count(*) from cardbox.cards", &check::LOGINS),
        ("select cardbox.retain(waybill_project(), 1)", &["waybill_service", "waybill_orchestrator"]),
        ("select cardbox.set_retention(waybill_project(), 1, 1)", &["waybill_service"]),
        ("select cardbox.hold_retention(waybill_project(), 'x')", &["waybill_service"]),
        ("select cardbox.retain_before(waybill_project(), now(), now(), 'turns', waybill_project(), 1)", &[]),
        ("update resource.retention set next_at = now()", &[]),
        ("delete from state.turns", &[]),
    ];
    for (sql, may) in tries {
        for login in check::LOGINS {
            let project = format!("'{}'::uuid", t.project_id);
            let set = format!(
                "begin; set local session authorization {login}; set local waybill.project = '{}'",
                t.project_id
            );
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut session).await.unwrap();
            let done =
                sqlx::raw_sql(AssertSqlSafe(sql.replace("waybill_project()", &project))).execute(&mut session).await;
            sqlx::raw_sql("rollback").execute(&mut session).await.unwrap();
            match done {
                Ok(_) => assert!(may.contains(&login), "{login} may: {sql}"),
                Err(error) => {
                    let code = error.as_database_error().and_then(|error| error.code());
                    assert_eq!(code.as_deref(), Some("42501"), "{login}: {sql}: {error}");
                    assert!(!may.contains(&login), "{login} may not: {sql}: {error}");
                }
            }
        }
    }
}
