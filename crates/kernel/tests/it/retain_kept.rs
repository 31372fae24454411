//! What retention must not touch, and when it must not run (RT-3 … RT-6): results of batches, sources of forks, rights that are being given.

use chrono::{TimeDelta, Utc};
use waybill_core::{
    card::Draft,
    card_box::Span,
    id::{BoxId, CardId, SessionId, TurnId},
    turn::End,
};
use waybill_kernel::{
    audit,
    batch::{self, JoinsAs},
    blackboard, card,
    card_box::{self, MOST_RUNS},
    fork::{self, Fork},
    grant, retain, session, turn,
    turn::DispatchRequest,
};

use crate::{
    batches::Plan,
    held,
    retain::{Horizon, Removed, settle},
    turns::{House, LONG, calling, instruction, result},
};

impl House {
    /// Why the record of a turn would stay if everything were old.
    async fn why_kept(&self, turn_id: TurnId) -> Option<String> {
        sqlx::query_scalar("select state.why_kept($1, $2, $3, false)")
            .bind(self.t.project_id)
            .bind(turn_id)
            .bind(Horizon::all().record)
            .fetch_one(&mut *self.t.begin().await)
            .await
            .unwrap()
    }
}

/// RT-3: a turn that has not ended reads the results of its batches and what its children wrote, however long ago it began.
#[tokio::test]
async fn what_an_open_turn_waited_for_stays() {
    let house = House::new().await;
    let parent = house.running().await;
    house.step(&parent, &calling(1, "sys-pmo", LONG, true)).await.unwrap();
    let call = house.claim_calls("sys-pmo", 1).await.remove(0);
    let Plan { mut fork, mut children, card } = house.plan_fork(2, false, LONG);
    fork.joins_as = JoinsAs::Resume;
    // The other one has no parent on record: only the box of the results leads to what it delivered.
    children[0].parent_agent_turn_id = Some(parent.agent_turn_id());
    house.make(&children).await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
    turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
    assert!(batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await.unwrap());
    for _ in 0..2 {
        let child = house.claim().await.unwrap();
        house.end_child(&child, End::Success).await;
    }

    let mut work = house.t.begin().await;
    let results_box_id = batch::find(&mut work, fork.batch_id).await.unwrap().unwrap().results_box_id.unwrap();
    let results = held(&mut work, results_box_id).await;
    let own = held(&mut work, children[0].output_box_id).await;
    let other = held(&mut work, children[1].output_box_id).await;
    drop(work);
    assert_eq!(results, [own[1], other[1]], "a thought, and then the deliverable");
    let content = Horizon { record: None, ..Horizon::all() };
    let removed = house.settle(content).await;
    assert_eq!(removed["contents"], 1, "{removed:?}");
    for (card_id, is_live) in [(own[0], true), (own[1], true), (other[0], false), (other[1], true)] {
        assert_eq!(house.is_live(card_id).await, is_live, "{card_id}");
    }

    house.stop(parent.agent_turn_id()).await.unwrap();
    house.settle(content).await;
    for card_id in results {
        assert!(!house.is_live(card_id).await, "no open turn reads {card_id}");
    }
}

/// RT-4: a turn goes with what is its own. A fork has a result of a call of its source, and the batch and the edges of the call are the source's.
#[tokio::test]
async fn a_fork_goes_without_what_its_source_did() {
    let house = House::new().await;
    let family = house.family(1, false, LONG).await;
    while let Some(claimed) = house.claim().await {
        house.finish(claimed.fence).await.unwrap();
    }
    let source_turn_id = family.parent.agent_turn_id();
    let source = house.turn(source_turn_id).await;
    let reader = house.agent().await;
    let forked = house.running().await;
    let output_box_id = house.turn(forked.agent_turn_id()).await.output_box_id;

    let mut work = house.t.begin().await;
    let batch = batch::find(&mut work, family.batch_id).await.unwrap().unwrap();
    let changed = result(batch.tool_call_id, "changed");
    card::insert(&mut work, std::slice::from_ref(&changed)).await.unwrap();
    let call_and_result = Span::prefix(source.output_box_id, 2);
    fork::fill(&mut work, output_box_id, call_and_result, &[(2, changed.card_id())]).await.unwrap();
    let fork = Fork { source_turn_id, source_step_id: None, live_tools: false, change: serde_json::json!({}) };
    fork::record(&mut work, forked.agent_turn_id(), &fork).await.unwrap();
    let right = grant::give(&mut work, reader, source.output_box_id, None, "ann", "for the review").await.unwrap();
    let n_edges = turn::edges(&mut work, source_turn_id).await.unwrap().len();
    work.commit().await.unwrap();
    house.finish(forked).await.unwrap();

    let removed = house.settle(Horizon::record()).await;
    assert_eq!((removed["turns"], removed.get("batches")), (2, None), "the child and the fork: {removed:?}");
    assert_eq!(house.why_kept(source_turn_id).await.as_deref(), Some("grant"));
    let mut work = house.t.begin().await;
    assert_eq!(batch::find(&mut work, family.batch_id).await.unwrap(), Some(batch));
    assert_eq!(turn::edges(&mut work, source_turn_id).await.unwrap().len(), n_edges);
    grant::revoke(&mut work, right, "ann").await.unwrap();
    work.commit().await.unwrap();
    let removed = house.settle(Horizon::record()).await;
    assert_eq!((removed["turns"], removed["batches"]), (1, 1), "{removed:?}");
    assert_eq!(house.rows().await, 0);
}

/// RT-5: a walk must see what other transactions come to hold, so it runs in `read committed` alone.
#[tokio::test]
async fn a_walk_with_an_old_view_is_refused() {
    let house = House::new().await;
    for level in ["set transaction isolation level repeatable read", "set transaction isolation level serializable"] {
        let mut work = house.t.begin().await;
        sqlx::raw_sql(level).execute(&mut *work).await.unwrap();
        let walk = sqlx::query("select removed, is_over from cardbox.retain($1, 1)").bind(house.t.project_id);
        let refused = walk.execute(&mut *work).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "25001", "{level}: {refused}");
    }
    assert_eq!(retain::portion(house.kernel(), house.t.project_id, 1).await.unwrap(), None, "nothing was ever set");
}

/// RT-5: a right to read a box keeps its turn, also while it is being given.
#[tokio::test]
async fn a_right_that_is_being_given_keeps_its_box() {
    let house = House::new().await;
    let ended = house.running().await;
    let (turn_id, reader) = (ended.agent_turn_id(), house.agent().await);
    let output_box_id = house.turn(turn_id).await.output_box_id;
    house.finish(ended).await.unwrap();

    let mut work = house.t.begin().await;
    let right = grant::give(&mut work, reader, output_box_id, None, "ann", "for the review").await.unwrap();
    let owner = &mut house.t.owner().await;
    assert_eq!(house.why_kept(turn_id).await, None, "no other transaction sees it yet");
    assert_eq!(settle(owner, house.t.project_id, Horizon::record()).await, Removed::new());
    work.commit().await.unwrap();
    assert_eq!(house.why_kept(turn_id).await.as_deref(), Some("grant"));
    assert_eq!(house.settle(Horizon::record()).await, Removed::new());

    let mut work = house.t.begin().await;
    grant::revoke(&mut work, right, "ann").await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(house.settle(Horizon::record()).await["turns"], 1);
    assert_eq!(house.count("select count(*) from state.grants").await, 0, "it goes with its box");
}

/// RT-4, RT-5: a session that ended long ago stays while an agent may read its messages.
#[tokio::test]
async fn a_session_whose_messages_may_be_read_stays() {
    let house = House::new().await;
    let (session_id, reader) = (SessionId::new(), house.agent().await);
    let mut work = house.t.begin().await;
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    let messages_box_id = blackboard::find(&mut work, session_id).await.unwrap().unwrap().messages_box_id;
    let right = grant::give(&mut work, reader, messages_box_id, None, "ann", "for the review").await.unwrap();
    session::end(&mut work, session_id).await.unwrap();
    work.commit().await.unwrap();
    let sixty_days = "update state.blackboards set created_at = created_at - interval '60 days', ended_at = now() - interval '60 days'";
    house.meddle(sixty_days).await;
    let month = Some(Utc::now() - TimeDelta::days(30));
    let horizon = Horizon { content: month, record: month };
    assert_eq!(house.settle(horizon).await, Removed::new());

    let mut work = house.t.begin().await;
    grant::revoke(&mut work, right, "ann").await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(house.settle(horizon).await["sessions"], 1);
    assert_eq!(house.rows().await, 0);
}

/// RT-2, RT-6: a hold, or a project that keeps everything from now on, ends a walk that is half done. What it had removed is on record.
#[tokio::test]
async fn a_walk_that_is_cut_short_is_on_record() {
    for is_held in [true, false] {
        let house = House::new().await;
        for n in 0..12 {
            house.old_card(60, Draft::instruction(&format!("message {n}"))).await;
        }
        house.keep(Some(1), None).await.unwrap();
        house.seven_days_later().await;
        let removed = loop {
            let done = retain::portion(house.kernel(), house.t.project_id, 1).await.unwrap().unwrap();
            assert!(!done.is_over, "{done:?}");
            if !done.removed.is_empty() {
                break done.removed;
            }
        };
        assert_eq!(removed["contents"], 10, "of twelve: {removed:?}");
        if is_held {
            assert!(house.hold(Some("case 17")).await);
        } else {
            assert!(house.keep(None, None).await.unwrap());
        }
        let due = retain::due(house.kernel(), 10).await.unwrap();
        assert_eq!(due, [house.t.project_id], "an orchestrator ends the walk; held: {is_held}");
        for _ in 0..2 {
            assert_eq!(house.retain().await, Removed::new(), "held: {is_held}");
        }
        assert_eq!(retain::due(house.kernel(), 10).await.unwrap(), [], "held: {is_held}");
        let entries = audit::list(&mut house.t.begin().await, None, 10).await.unwrap();
        let found: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), entry.detail.clone())).collect();
        assert_eq!(found, [("retention.run", serde_json::json!(removed))], "held: {is_held}");
    }
}

impl House {
    /// Whether the next walk begins to look at what cards say after this one.
    async fn is_done_with(&self, card_id: CardId) -> bool {
        sqlx::query_scalar("select done_to >= $2 from resource.retention where project_id = $1")
            .bind(self.t.project_id)
            .bind(card_id)
            .fetch_one(&mut self.t.admin().await)
            .await
            .unwrap()
    }
}

/// RT-3: a walk begins where the last one was done, so that it does not look at every tombstone again; and before what was kept back.
#[tokio::test]
async fn a_walk_looks_at_what_is_new_and_at_what_was_kept_back() {
    let house = House::new().await;
    let mut old = Vec::new();
    for n in 0..12 {
        old.push(house.old_card(80 - n, Draft::instruction(&format!("message {n}"))).await.0);
    }
    // A turn that has not ended reads the sixth.
    let asked = old[5];
    let request = DispatchRequest::instructed(house.agent().await, asked);
    house.enqueue_all(std::slice::from_ref(&request), &[]).await.unwrap();
    house.keep(Some(1), None).await.unwrap();
    house.seven_days_later().await;
    assert_eq!(house.retain().await["contents"], 11);
    assert!(house.is_done_with(old[4]).await && !house.is_done_with(asked).await);

    house.stop(request.agent_turn_id).await.unwrap();
    assert_eq!(house.retain().await["contents"], 1);
    assert!(house.is_done_with(old[11]).await && !house.is_live(asked).await);
    // One that was written late under an old id goes with the first walk of a month.
    let (late, _) = house.old_card(70, Draft::instruction("late")).await;
    assert_eq!(house.retain().await, Removed::new());
    house.meddle("update resource.retention set walked_at = walked_at - interval '1 month'").await;
    assert_eq!(house.retain().await["contents"], 1);
    assert!(!house.is_live(late).await);
}

/// RT-4, RT-5: a box that was made to be shared goes once no box holds a range of it and no agent has a right to it.
#[tokio::test]
async fn a_shared_box_goes_after_its_last_heir() {
    let house = House::new().await;
    let (fence, reader) = (house.running().await, house.agent().await);
    let context_box_id = house.turn(fence.agent_turn_id()).await.context_box_id;
    let mut work = house.t.begin().await;
    let source = BoxId::new();
    card_box::create(&mut work, &[source]).await.unwrap();
    for n in 0..=MOST_RUNS {
        let (card, piece) = (instruction(&format!("piece {n}")), BoxId::new());
        card::insert(&mut work, std::slice::from_ref(&card)).await.unwrap();
        card_box::create(&mut work, &[piece]).await.unwrap();
        card_box::append(&mut work, piece, &[card.card_id()]).await.unwrap();
        card_box::inherit(&mut work, source, Span::whole(piece)).await.unwrap();
    }
    let flat = card_box::share(&mut work, Span::whole(source)).await.unwrap();
    assert_ne!(flat.box_id, source);
    card_box::inherit(&mut work, context_box_id, flat).await.unwrap();
    let right = grant::give(&mut work, reader, flat.box_id, None, "ann", "for the review").await.unwrap();
    work.commit().await.unwrap();

    assert_eq!(house.settle(Horizon::record()).await, Removed::new(), "its heir is there");
    house.finish(fence).await.unwrap();
    let removed = house.settle(Horizon::record()).await;
    assert_eq!((removed["turns"], removed["boxes"]), (1, 2), "an agent may read it: {removed:?}");
    let mut work = house.t.begin().await;
    grant::revoke(&mut work, right, "ann").await.unwrap();
    work.commit().await.unwrap();
    let removed = house.settle(Horizon::record()).await;
    assert_eq!((removed["boxes"], removed["entries"], removed.get("cards")), (1, MOST_RUNS + 1, None), "{removed:?}");
    let left = card_box::find(&mut house.t.begin().await, &[flat.box_id, source]).await.unwrap();
    assert_eq!(left.missing, [flat.box_id], "a box that a caller made stays");
}
