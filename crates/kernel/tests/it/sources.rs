//! Where content came from (SE-5), and what a project knows (CX-4).

use serde_json::json;
use sqlx::{AssertSqlSafe, Row};
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath},
    card::{CardType, Content, Draft, Origin, Reading, Role},
    id::{BoxId, ProjectId, TurnId},
};
use waybill_kernel::{
    blackboard::{self, Patch},
    card, card_box, external,
    knowledge::{self, Chunk, Kind, NewDocument, Search},
    project, turn,
    turn::{Claimed, DispatchRequest, Report, Step},
    work::UnitOfWork,
};
use waybill_testkit::{TestDb, fresh_db};

use crate::{
    filled_box,
    turns::{House, answer, calling, ending, instruction, thought},
};

async fn saw(house: &House, turn_id: TurnId) -> bool {
    external::saw(&mut house.t.begin().await, turn_id).await.unwrap()
}

async fn has_external(work: &mut UnitOfWork, box_id: BoxId) -> bool {
    let flag = sqlx::query_scalar("select has_external from cardbox.boxes where box_id = $1").bind(box_id);
    flag.fetch_one(&mut **work).await.unwrap()
}

/// A turn that was answered from outside.
async fn tainted(house: &House) -> Claimed {
    let agent = house.agent().await;
    house.enqueue(agent).await;
    let claimed = house.claim().await.unwrap();
    let step = calling(1, "web", crate::turns::LONG, true);
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    turn::step(&mut alone, &claimed.fence, &step).await.unwrap();
    assert!(!saw(house, claimed.fence.agent_turn_id()).await, "there is no answer yet");
    let report = Report { is_external: true, ..answer(step.calls[0].tool_call_id) };
    turn::report(&mut alone, &report).await.unwrap();
    assert!(saw(house, claimed.fence.agent_turn_id()).await);
    house.claim().await.unwrap()
}

/// SE-5: what came from outside is labelled, and so is what a turn writes that has seen it; what other turns write is not.
#[tokio::test]
async fn a_turn_that_saw_the_outside_writes_as_the_outside() {
    let house = House::new().await;
    let claimed = tainted(&house).await;
    let clean = house.agent().await;
    house.enqueue(clean).await;
    let clean = house.claim().await.unwrap();
    let mut origins = Vec::new();
    for (claimed, said) in [(&claimed, "seen"), (&clean, "not seen")] {
        let card = thought(said);
        origins.push(card.card_id());
        let step = Step { cards: vec![card], ..calling(0, "web", crate::turns::LONG, false) };
        let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
        turn::step(&mut alone, &claimed.fence, &step).await.unwrap();
    }
    // Both end in one statement: each by its own label.
    let endings = [ending(claimed.fence), ending(clean.fence)];
    origins.extend(endings.iter().map(|ending| ending.cards.last().unwrap().card_id()));
    let mut work = house.t.begin().await;
    turn::finish(&mut work, &endings).await.unwrap();
    work.commit().await.unwrap();
    let mut work = house.t.begin().await;
    let found = card::fetch(&mut work, &origins, None).await.unwrap().found;
    let origins: Vec<Origin> = found.iter().filter_map(Reading::live).map(|card| card.origin).collect();
    assert_eq!(origins, [Origin::External, Origin::Model, Origin::External, Origin::Model]);
}

/// SE-5: a box carries it to every box that inherits, and a card to every box that it is put into. It does not go away.
#[tokio::test]
async fn boxes_carry_the_label_on() {
    let house = House::new().await;
    let claimed = tainted(&house).await;
    let mut work = house.t.begin().await;
    let (plain, _) = filled_box(&mut work, 3).await;
    assert!(!has_external(&mut work, plain).await);
    let whole = waybill_core::card_box::Span::whole(claimed.output_box_id);
    let inheritor = BoxId::new();
    card_box::create_from(&mut work, &[inheritor], whole).await.unwrap();
    assert!(has_external(&mut work, inheritor).await);
    card_box::inherit(&mut work, plain, whole).await.unwrap();
    assert!(has_external(&mut work, plain).await);
    let cards = card_box::read(&mut work, whole, None).await.unwrap();
    let result = cards.iter().find(|placed| placed.reading.live().is_some_and(|card| card.origin == Origin::External));
    let (other, _) = filled_box(&mut work, 1).await;
    card_box::append(&mut work, other, &[result.unwrap().reading.card_id()]).await.unwrap();
    assert!(has_external(&mut work, other).await);
    work.commit().await.unwrap();
    for undo in ["update cardbox.boxes set has_external = false", "update cardbox.cards set is_external = false"] {
        let undone = sqlx::raw_sql(undo).execute(&mut *house.t.begin().await).await;
        assert!(undone.is_err(), "{undo}");
    }
    // A turn that is handed such a box has seen it.
    let agent = house.agent().await;
    let card = instruction("go on");
    let seen = result.unwrap().reading.card_id();
    let context_card_ids = Some(vec![card.card_id(), seen]);
    let request = DispatchRequest { context_card_ids, ..DispatchRequest::instructed(agent, card.card_id()) };
    let dispatched = house.enqueue_all(&[request], &[card]).await.unwrap();
    assert!(saw(&house, dispatched[0].agent_turn_id).await);
}

/// SE-5: what a session remembers carries it too.
#[tokio::test]
async fn a_session_carries_the_label_on() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    let session_id = waybill_core::id::SessionId::new();
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    work.commit().await.unwrap();
    let agent = house.agent().await;
    let card = instruction("go on");
    let request =
        DispatchRequest { session_id: Some(session_id), ..DispatchRequest::instructed(agent, card.card_id()) };
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let claimed = house.claim().await.unwrap();
    let turn_id = claimed.fence.agent_turn_id();
    assert!(!saw(&house, turn_id).await);
    let mut work = house.t.begin().await;
    external::label(&mut work, true).await.unwrap();
    let list = Draft::new(CardType::todo(), Role::User, Content::Json(json!({ "items": [] }))).seal().unwrap();
    let patch = Patch::default().todo(list, None);
    blackboard::patch(&mut work, session_id, waybill_core::id::StepId::new(), &patch).await.unwrap();
    work.commit().await.unwrap();
    assert!(saw(&house, turn_id).await);
}

async fn db() -> TestDb {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    project::create(&mut work, "acme").await.unwrap();
    work.commit().await.unwrap();
    t
}

fn path(text: &str) -> ArtifactPath {
    text.parse().unwrap()
}

fn chunk(content: &str) -> Chunk {
    let words = content.split(' ').map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    Chunk {
        from_line: 1,
        to_line: 1,
        heading: String::new(),
        content: content.to_owned(),
        n_tokens: 5,
        words: words.into_iter().collect(),
    }
}

pub(crate) async fn put(work: &mut UnitOfWork, at: &str, says: &[&str]) -> bool {
    let chunks: Vec<Chunk> = says.iter().map(|says| chunk(says)).collect();
    let (path, hash) = (path(at), ArtifactHash::of(says.join("\n").as_bytes()));
    let document = NewDocument { kind: Kind::Knowledge, path: &path, title: "", hash, chunks: &chunks, source: None };
    knowledge::put(work, &document).await.unwrap()
}

async fn find(work: &mut UnitOfWork, folders: &[&str], words: &[&str]) -> Vec<String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let search = Search { kind: Kind::Knowledge, folders: folders.to_vec(), words: &words, meaning: None, most: 5 };
    let (found, _) = knowledge::search(work, &search).await.unwrap();
    found.into_iter().map(|found| found.content).collect()
}

/// CX-4: what is rare says more; what was replaced or removed is not found; what is not below the folder is not there.
#[tokio::test]
async fn what_is_known_is_found() {
    let t = db().await;
    let mut work = t.begin().await;
    assert!(put(&mut work, "a/one", &["the gate opens at seven", "the zephyr gate is closed", "the the the"]).await);
    assert!(!put(&mut work, "a/one", &["the gate opens at seven", "the zephyr gate is closed", "the the the"]).await);
    assert!(put(&mut work, "b/two", &["the zephyr blows", "o'brien \\ 日志"]).await);
    assert_eq!(find(&mut work, &["a"], &["the", "zephyr", "gate"]).await[0], "the zephyr gate is closed");
    assert_eq!(find(&mut work, &["b"], &["zephyr", "gate"]).await, ["the zephyr blows"]);
    assert_eq!(find(&mut work, &["a", "b"], &["o'brien"]).await.len(), 1);
    assert_eq!(find(&mut work, &["b"], &["日志", "\\"]).await.len(), 1);
    assert_eq!(find(&mut work, &["b/two"], &["zephyr"]).await.len(), 1, "a folder may be the document itself");
    assert!(find(&mut work, &["c"], &["zephyr"]).await.is_empty());
    assert!(find(&mut work, &["a"], &["nothing"]).await.is_empty());
    assert!(put(&mut work, "a/one", &["the gate is gone"]).await);
    assert!(find(&mut work, &["a"], &["zephyr"]).await.is_empty());
    let listed = knowledge::list(&mut work, Kind::Knowledge, "", 10).await.unwrap();
    assert_eq!((listed[0].version, listed[0].n_chunks, listed.len()), (2, 1, 2));
    knowledge::remove(&mut work, Kind::Knowledge, &path("b/two")).await.unwrap();
    assert!(find(&mut work, &["b"], &["zephyr"]).await.is_empty());
    let gone = knowledge::remove(&mut work, Kind::Knowledge, &path("b/two")).await;
    assert!(matches!(gone, Err(knowledge::Error::NotFound(_))));
    let left: i64 =
        sqlx::query_scalar("select coalesce(sum(n_chunks), 0) from resource.words where word in ('zephyr', 'blows')")
            .fetch_one(&mut *work)
            .await
            .unwrap();
    assert_eq!(left, 0, "words are counted down");
    let meaning = Search {
        kind: Kind::Knowledge,
        folders: vec!["a"],
        words: &["gate".to_owned()],
        meaning: Some(("m", &[1.0, 2.0])),
        most: 5,
    };
    let refused = knowledge::search(&mut work, &meaning).await;
    assert!(matches!(refused, Err(knowledge::Error::NoVectors)), "{refused:?}");
}

/// SE-2: a search sees the project of its unit of work, whatever it is asked.
#[tokio::test]
async fn a_search_stays_in_its_project() {
    let t = db().await;
    let mut work = t.begin().await;
    put(&mut work, "a/one", &["zephyr"]).await;
    work.commit().await.unwrap();
    let mut other = t.kernel.begin(ProjectId::new()).await.unwrap();
    assert!(find(&mut other, &["a"], &["zephyr"]).await.is_empty());
    for function in
        ["search_words($1, 'knowledge', '{a}', '{zephyr}', 5)", "search_meaning($1, 'knowledge', '{a}', 'm', '{1}', 5)"]
    {
        let sql = format!("select count(*) from resource.{function}");
        let mut other = t.kernel.begin(ProjectId::new()).await.unwrap();
        let refused = sqlx::query(AssertSqlSafe(sql)).bind(t.project_id).execute(&mut *other).await.unwrap_err();
        assert!(refused.to_string().contains("another project"), "{refused}");
    }
}

/// The index is used, although row security is on: what a search reads does not grow with what is known.
#[tokio::test]
async fn a_search_reads_what_it_finds() {
    let t = db().await;
    for document in 0..6 {
        let mut work = t.begin().await;
        let says: Vec<String> = (0..500)
            .map(|n| format!("common words of every chunk number {document}-{n} and padding {}", "x".repeat(400)))
            .collect();
        let says: Vec<&str> = says.iter().map(String::as_str).collect();
        put(&mut work, &format!("a/{document}"), &says).await;
        work.commit().await.unwrap();
    }
    let mut work = t.begin().await;
    let explain = format!(
        "explain (analyze, buffers, format json) select * from resource.search_words('{}', 'knowledge', '{{a}}', '{{common,words,3-77}}', 5)",
        t.project_id
    );
    // Once, so that what the server has to know of the tables is not counted.
    sqlx::raw_sql(AssertSqlSafe(explain.clone())).execute(&mut *work).await.unwrap();
    let row = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut *work).await.unwrap();
    let plan: serde_json::Value = row.get(0);
    let read = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
        + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
    assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(1.0));
    let pages: i64 =
        sqlx::query_scalar("select pg_relation_size('resource.chunks') / 8192").fetch_one(&mut *work).await.unwrap();
    assert!(read < pages / 2, "{read} of {pages} pages");
}
