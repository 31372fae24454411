//! How long a project keeps what (RT-1 … RT-6): what is set, what goes, and that nothing goes that something needs.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{AssertSqlSafe, PgConnection, types::Json};
use uuid::Uuid;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Reading, Role},
    card_box::Span,
    id::{BoxId, CardId, ProjectId, SessionId},
    turn::TurnStatus,
};
use waybill_kernel::{
    audit, blackboard, card, card_box,
    fork::{self, Fork},
    invariant,
    retain::{self, Error, Kept, Portion},
    session, turn,
    turn::DispatchRequest,
};

use crate::turns::{House, LONG, answer, calling, instruction};

/// How much was removed, by kind.
pub(crate) type Removed = BTreeMap<String, i64>;

/// Before when content and record go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon {
    pub(crate) content: Option<DateTime<Utc>>,
    pub(crate) record: Option<DateTime<Utc>>,
}

impl Horizon {
    /// All that there is by now.
    pub(crate) fn all() -> Horizon {
        let tomorrow = Some(Utc::now() + TimeDelta::days(1));
        Horizon { content: tomorrow, record: tomorrow }
    }

    /// The record of all that there is, and no content of what stays.
    pub(crate) fn record() -> Horizon {
        Horizon { content: None, ..Horizon::all() }
    }
}

/// Where a walk is.
pub(crate) type Place = (Option<String>, Uuid);

pub(crate) fn start() -> Place {
    (Some("turns".to_owned()), Uuid::nil())
}

/// One portion of a walk, as the owner: tests cannot wait for months.
pub(crate) async fn portion(
    owner: &mut PgConnection,
    project_id: ProjectId,
    horizon: Horizon,
    place: &Place,
    most: i32,
) -> (Place, Removed) {
    let (phase, after, removed): (Option<String>, Uuid, Json<Removed>) =
        sqlx::query_as("select phase, walked_to, removed from cardbox.retain_before($1, $2, $3, $4, $5, $6)")
            .bind(project_id)
            .bind(horizon.content)
            .bind(horizon.record)
            .bind(&place.0)
            .bind(place.1)
            .bind(most)
            .fetch_one(owner)
            .await
            .unwrap();
    ((phase, after), removed.0)
}

/// Walks until there is nothing more to remove. Returns what was.
pub(crate) async fn settle(owner: &mut PgConnection, project_id: ProjectId, horizon: Horizon) -> Removed {
    let mut total = Removed::new();
    loop {
        let (mut place, mut is_done) = (start(), true);
        while place.0.is_some() {
            let (next, removed) = portion(owner, project_id, horizon, &place, 7).await;
            place = next;
            is_done &= removed.is_empty();
            removed.into_iter().for_each(|(what, n)| *total.entry(what).or_default() += n);
        }
        if is_done {
            return total;
        }
    }
}

impl House {
    pub(crate) async fn settle(&self, horizon: Horizon) -> Removed {
        let removed = settle(&mut self.t.owner().await, self.t.project_id, horizon).await;
        let broken = invariant::of_project(self.kernel(), self.t.project_id).await.unwrap();
        assert!(broken.is_empty(), "{broken:?}");
        removed
    }

    /// Does what an orchestrator does, until the walk is over.
    pub(crate) async fn retain(&self) -> Removed {
        let mut total = Removed::new();
        loop {
            let done = retain::portion(self.kernel(), self.t.project_id, 3).await.unwrap();
            let Portion { removed, is_over } = done.expect("something is set, and no other process removes");
            removed.into_iter().for_each(|(what, n)| *total.entry(what).or_default() += n);
            if is_over {
                return total;
            }
        }
    }

    pub(crate) async fn keep(&self, content_months: Option<i32>, record_months: Option<i32>) -> Result<bool, Error> {
        let mut work = self.t.begin().await;
        let changed = retain::set(&mut work, Kept { content_months, record_months }).await?;
        work.commit().await.unwrap();
        Ok(changed)
    }

    pub(crate) async fn hold(&self, reason: Option<&str>) -> bool {
        let mut work = self.t.begin().await;
        let changed = retain::hold(&mut work, reason).await.unwrap();
        work.commit().await.unwrap();
        changed
    }

    async fn shown(&self) -> retain::Retention {
        retain::show(&mut self.t.begin().await).await.unwrap()
    }

    pub(crate) async fn seven_days_later(&self) {
        let later =
            "update resource.retention set next_at = next_at - interval '7 days', next_by = null, walk_at = now()";
        self.meddle(later).await;
    }

    /// Writes a card that was minted so many days ago, into a new box.
    pub(crate) async fn old_card(&self, days: i64, draft: Draft) -> (CardId, BoxId) {
        let sealed = minted(days, draft);
        let box_id = BoxId::new();
        let mut work = self.t.begin().await;
        if sealed.metadata().card_type.is_system() {
            card::intern(&mut work, std::slice::from_ref(&sealed)).await.unwrap();
        } else {
            card::insert(&mut work, std::slice::from_ref(&sealed)).await.unwrap();
        }
        card_box::create(&mut work, &[box_id]).await.unwrap();
        card_box::append(&mut work, box_id, &[sealed.card_id()]).await.unwrap();
        work.commit().await.unwrap();
        (sealed.card_id(), box_id)
    }

    pub(crate) async fn is_live(&self, card_id: CardId) -> bool {
        let found = card::fetch(&mut self.t.begin().await, &[card_id], None).await.unwrap().found;
        crate::is_live(&found[0])
    }

    /// Rows of the project in all tables that a record is made of.
    pub(crate) async fn rows(&self) -> i64 {
        let tables = [
            "state.turns",
            "state.labels",
            "state.agent_steps",
            "state.receipts",
            "state.execution_edges",
            "state.patches",
            "state.outbox",
            "state.requests",
            "state.handovers",
            "state.forks",
            "state.pmo_batches",
            "state.pmo_batch_tasks",
            "state.blackboards",
            "cardbox.boxes",
            "cardbox.box_entries",
            "cardbox.cards",
        ];
        let counts = tables.map(|table| format!("(select count(*) from {table})")).join(" + ");
        let sql = AssertSqlSafe(format!("select {counts}"));
        sqlx::query_scalar(sql).fetch_one(&mut self.t.admin().await).await.unwrap()
    }
}

fn days_ago<Id: std::str::FromStr<Err: std::fmt::Debug>>(days: i64) -> Id {
    let at = (Utc::now() - TimeDelta::days(days)).timestamp().unsigned_abs();
    let id = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at, 0));
    id.to_string().parse().unwrap()
}

fn minted(days: i64, draft: Draft) -> NewCard {
    Draft { card_id: days_ago(days), ..draft }.seal().unwrap()
}

/// RT-1: longer at once, shorter after seven days; until then it can be undone.
#[tokio::test]
async fn a_shortening_waits_seven_days() {
    let house = House::new().await;
    assert_eq!(house.shown().await, retain::Retention::default(), "for ever");
    assert!(house.keep(Some(6), Some(36)).await.unwrap());
    let shown = house.shown().await;
    assert_eq!((shown.content_months, shown.next_content_months, shown.next_record_months), (None, Some(6), Some(36)));
    assert!(shown.next_at.is_some_and(|at| at > Utc::now() + TimeDelta::days(6)));
    // The same again is no other: it does not wait for longer.
    assert!(!house.keep(Some(6), Some(36)).await.unwrap());
    assert_eq!(house.shown().await.next_at, shown.next_at);
    // Undone.
    assert!(house.keep(None, None).await.unwrap());
    assert_eq!(house.shown().await, retain::Retention::default());

    house.keep(Some(6), Some(36)).await.unwrap();
    house.seven_days_later().await;
    let shown = house.shown().await;
    assert_eq!((shown.content_months, shown.record_months, shown.next_at), (Some(6), Some(36), None));
    // One longer, one shorter.
    assert!(house.keep(Some(12), Some(24)).await.unwrap());
    let shown = house.shown().await;
    assert_eq!((shown.content_months, shown.record_months), (Some(12), Some(36)));
    assert_eq!((shown.next_content_months, shown.next_record_months), (Some(12), Some(24)));
    // Longer cancels what was to become shorter.
    assert!(house.keep(Some(12), Some(72)).await.unwrap());
    let shown = house.shown().await;
    assert_eq!((shown.content_months, shown.record_months, shown.next_at), (Some(12), Some(72), None));

    for (content, record) in [(Some(0), None), (Some(1), Some(121)), (Some(7), Some(6)), (None, Some(6))] {
        let refused = house.keep(content, record).await;
        assert!(matches!(refused, Err(Error::Months | Error::Order)), "{content:?} {record:?}: {refused:?}");
    }
}

/// RT-1: the seven days begin once others can see the shortening, however long its transaction was open.
#[tokio::test]
async fn a_shortening_that_was_hidden_waits_too() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    retain::set(&mut work, Kept { content_months: Some(1), record_months: None }).await.unwrap();
    // A walk in the same transaction is not one that others could have seen.
    let walk = sqlx::query("select removed, is_over from cardbox.retain($1, 1)").bind(house.t.project_id);
    walk.execute(&mut *work).await.unwrap();
    work.commit().await.unwrap();
    house.meddle("update resource.retention set next_at = next_at - interval '8 days'").await;
    assert_eq!(house.shown().await.content_months, None, "no walk has seen it");
    assert_eq!(house.retain().await, Removed::new());
    let shown = house.shown().await;
    assert_eq!((shown.content_months, shown.next_content_months), (None, Some(1)));
    assert!(shown.next_at.is_some_and(|at| at > Utc::now() + TimeDelta::days(6)), "{shown:?}");
}

/// RT-2, RT-3: a hold wins; content goes and the card stays, with its hash; the walk is one entry of the audit.
#[tokio::test]
async fn content_goes_and_its_tombstone_stays() {
    let house = House::new().await;
    let text = |card_type, text: &str| Draft::new(card_type, Role::System, Content::Text(text.to_owned()));
    let (old, old_box) = house.old_card(60, Draft::instruction("5 Elm Street")).await;
    let hash = card_box::read(&mut house.t.begin().await, Span::whole(old_box), None).await.unwrap()[0].reading.hash();
    let (young, _) = house.old_card(20, Draft::instruction("still said")).await;
    let (rendered, _) = house.old_card(60, text(CardType::rendered_prompt(), "rendered")).await;
    let profile = Draft::new(CardType::profile(), Role::System, Content::Json(serde_json::json!({ "name": "p" })));
    let (defined, _) = house.old_card(60, profile).await;
    // A turn that has not ended reads one directly and one by range.
    let (asked, _) = house.old_card(60, Draft::instruction("asked")).await;
    let (handed, handed_box) = house.old_card(60, Draft::instruction("handed over")).await;
    let request = DispatchRequest::instructed(house.agent().await, asked);
    house.enqueue_all(std::slice::from_ref(&request), &[]).await.unwrap();
    let mut work = house.t.begin().await;
    card_box::inherit(&mut work, request.context_box_id, Span::whole(handed_box)).await.unwrap();
    work.commit().await.unwrap();

    house.keep(Some(1), None).await.unwrap();
    assert_eq!(house.retain().await, Removed::new(), "it is not in effect yet");
    house.seven_days_later().await;
    assert!(house.hold(Some("case 17")).await && !house.hold(Some("case 18")).await);
    assert_eq!(house.shown().await.hold_reason.as_deref(), Some("case 17"));
    assert_eq!(house.retain().await, Removed::new(), "a hold wins");
    assert_eq!(retain::due(house.kernel(), 10).await.unwrap(), []);
    assert!(house.hold(None).await && !house.hold(None).await);
    assert_eq!(retain::due(house.kernel(), 10).await.unwrap(), [house.t.project_id]);

    let mut work = house.t.begin().await;
    let plan = retain::plan(&mut work, house.shown().await.now()).await.unwrap();
    assert_eq!((plan.contents, plan.turns, plan.is_all), (2, 0, true), "{plan:?}");
    assert_eq!(plan.kept.values().copied().collect::<Vec<_>>(), [2], "{plan:?}");
    drop(work);
    assert_eq!(house.retain().await["contents"], 2);
    for (card_id, is_live) in
        [(old, false), (young, true), (rendered, false), (defined, true), (asked, true), (handed, true)]
    {
        assert_eq!(house.is_live(card_id).await, is_live, "{card_id}");
    }
    let read = card_box::read(&mut house.t.begin().await, Span::whole(old_box), None).await.unwrap();
    let Reading::Gone(tombstone) = &read[0].reading else { panic!("{read:?}") };
    assert_eq!(tombstone.hash, hash, "its hash stays");
    assert_eq!(house.count("select count(*) from cardbox.erasures").await, 0);
    let entries = audit::list(&mut house.t.begin().await, None, 10).await.unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((entries[0].action.as_str(), &entries[0].detail["contents"]), ("retention.run", &2.into()));
    assert_eq!(retain::due(house.kernel(), 10).await.unwrap(), [], "the next walk is tomorrow");
}

/// RT-4: a turn goes with all that belongs to it, and so do sessions and their memory.
#[tokio::test]
async fn the_record_goes_whole() {
    let house = House::new().await;
    let family = house.family(3, false, LONG).await;
    while let Some(claimed) = house.claim().await {
        house.finish(claimed.fence).await.unwrap();
    }
    assert_eq!(house.turn(family.parent.agent_turn_id()).await.status, TurnStatus::Success);
    let session_id = SessionId::new();
    let mut work = house.t.begin().await;
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    let labels = serde_json::from_value(serde_json::json!({ "team": "blue" })).unwrap();
    turn::label(&mut work, family.parent.agent_turn_id(), &labels).await.unwrap();
    work.commit().await.unwrap();
    let card = instruction("hello");
    let request = DispatchRequest {
        session_id: Some(session_id),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    let mut work = house.t.begin().await;
    session::end(&mut work, session_id).await.unwrap();
    work.commit().await.unwrap();

    let (before, yesterday) = (house.rows().await, Some(Utc::now() - TimeDelta::days(1)));
    assert_eq!(house.settle(Horizon { content: yesterday, record: yesterday }).await, Removed::new());
    assert_eq!(house.rows().await, before, "nothing of it is that old");
    let removed = house.settle(Horizon::all()).await;
    assert_eq!((removed["turns"], removed["batches"], removed["sessions"]), (5, 1, 1), "{removed:?}");
    assert_eq!(house.rows().await, 0);
}

/// RT-5: what a turn that has not ended, a fork, a parent or a relay needs stays whole, and goes when that is over.
#[tokio::test]
async fn what_something_younger_needs_stays() {
    let house = House::new().await;
    let ended = house.running().await;
    let output_box_id = house.turn(ended.agent_turn_id()).await.output_box_id;
    house.finish(ended).await.unwrap();
    let reader = house.enqueue(house.agent().await).await.agent_turn_id;
    let context_box_id = house.turn(reader).await.context_box_id;
    let mut work = house.t.begin().await;
    card_box::inherit(&mut work, context_box_id, Span::whole(output_box_id)).await.unwrap();
    work.commit().await.unwrap();
    let before = house.rows().await;
    assert_eq!(house.settle(Horizon::record()).await, Removed::new(), "an open turn has it in its context");
    assert_eq!(house.rows().await, before);
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();

    // A fork of the first.
    let fork = Fork {
        source_turn_id: ended.agent_turn_id(),
        source_step_id: None,
        live_tools: false,
        change: serde_json::json!({}),
    };
    let forked = house.running().await;
    let mut work = house.t.begin().await;
    fork::record(&mut work, forked.agent_turn_id(), &fork).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(house.settle(Horizon::record()).await["turns"], 1, "the one that had read it");
    house.finish(forked).await.unwrap();

    // A relay publishes, and has not published these.
    house.meddle("update state.relay_shards set stream_made_at = now()").await;
    assert_eq!(house.settle(Horizon::record()).await, Removed::new());
    let kept = retain::plan(&mut house.t.begin().await, Kept::default()).await.unwrap();
    assert_eq!((kept.turns, kept.record_before), (0, None));
    house.meddle("update state.outbox set published_at = now()").await;
    house.meddle("update state.relay_shards set replay_upto = 1 where shard = 0").await;
    assert_eq!(house.settle(Horizon::record()).await, Removed::new(), "it is published again");
    house.meddle("update state.relay_shards set replay_upto = 0").await;
    assert_eq!(house.settle(Horizon::all()).await["turns"], 2);
    assert_eq!(house.rows().await, 0);
    // What was forked must be there.
    let mut work = house.t.begin().await;
    assert!(fork::record(&mut work, forked.agent_turn_id(), &fork).await.is_err());
}

/// RT-5: a transaction that is about to hold a range of what could go keeps it; and none gets what is gone.
#[tokio::test]
async fn a_box_that_is_being_inherited_stays() {
    let house = House::new().await;
    let card = instruction("do it");
    let request = DispatchRequest {
        output_box_id: days_ago(60),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    house.enqueue_all(std::slice::from_ref(&request), &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();

    let heir = BoxId::new();
    let mut work = house.t.begin().await;
    card_box::create(&mut work, &[heir]).await.unwrap();
    card_box::inherit(&mut work, heir, Span::whole(request.output_box_id)).await.unwrap();
    let owner = &mut house.t.owner().await;
    assert_eq!(settle(owner, house.t.project_id, Horizon::record()).await, Removed::new());
    drop(work);
    // A rollback is done behind our back.
    while house.settle(Horizon::record()).await.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut work = house.t.begin().await;
    card_box::create(&mut work, &[heir]).await.unwrap();
    let gone = card_box::inherit(&mut work, heir, Span::whole(request.output_box_id)).await;
    assert!(matches!(gone, Err(card_box::Error::NotFound(_))), "{gone:?}");
    drop(work);
    let mut work = house.t.begin().await;
    card_box::create(&mut work, &[heir]).await.unwrap();
    let sql = "insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq) values ($1, $2, 1, $3, 1, 1)";
    let entry = sqlx::query(sql).bind(house.t.project_id).bind(heir).bind(request.output_box_id);
    assert!(entry.execute(&mut *work).await.is_err(), "whatever the writer has seen before");
}

/// RT-4: an answer that comes after its turn was removed is an answer to an unknown call.
#[tokio::test]
async fn an_answer_to_what_was_removed_is_unknown() {
    let house = House::new().await;
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    house.settle(Horizon::all()).await;
    let late = house.report(&answer(step.calls[0].tool_call_id)).await;
    assert!(matches!(late, Err(turn::Error::NotFound(_))), "{late:?}");
}
