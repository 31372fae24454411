//! The life of a turn (L0-1 … L0-8, L0-11 … L0-18, PM-3).

use std::time::Duration;

use chrono::Utc;
use waybill_core::{
    bus::Door,
    card::{CallContent, CardType, Content, Draft, NewCard, Role},
    card_box::Span,
    id::{AgentId, BatchId, ProjectId, StepId, Target, ToolCallId, TurnId, WorkerId},
    request::{Decided, Decision, Request},
    turn::{End, Fence, MessageType, Status, TurnStatus},
};
use waybill_kernel::{
    agent,
    batch::{Fork, JoinsAs, Task},
    call,
    call::ClaimedCall,
    card_box, lease, request,
    retry::Transient,
    sweep, turn,
    turn::{
        Attempts, Call, Claimed, Claiming, DispatchRequest, Dispatched, Ending, Error, Loss, Reclaimed, Report,
        ReportOutcome, Step, Stepped, Stopped,
    },
    work::{Config, Kernel, Work},
};
use waybill_testkit::{TestDb, fresh_db};

/// One test's agents, and a worker to run their turns.
pub(crate) struct House {
    pub(crate) t: TestDb,
    pub(crate) worker: WorkerId,
}

pub(crate) fn target(name: &str) -> Target {
    name.parse().unwrap()
}

pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) fn instruction(text: &str) -> NewCard {
    Draft::instruction(text).seal().unwrap()
}

pub(crate) fn thought(text: &str) -> NewCard {
    Draft::new(CardType::thought(), Role::Assistant, Content::Text(text.to_owned())).seal().unwrap()
}

pub(crate) fn deliverable(text: &str) -> NewCard {
    Draft::new(CardType::deliverable(), Role::Assistant, Content::Text(text.to_owned())).seal().unwrap()
}

pub(crate) fn ending(fence: Fence) -> Ending {
    Ending {
        fence,
        status: End::Success,
        step_id: Some(StepId::new()),
        receipt: None,
        usage: None,
        seen: None,
        cards: vec![thought("so"), deliverable("done")],
    }
}

pub(crate) fn result(tool_call_id: ToolCallId, text: &str) -> NewCard {
    Draft::tool_result(tool_call_id, "success", text.into()).seal().unwrap()
}

/// A step that calls `n` tools of the target and waits for them, or not.
pub(crate) fn calling(n: usize, target_name: &str, timeout: Duration, suspend: bool) -> Step {
    let mut step =
        Step { step_id: StepId::new(), cards: Vec::new(), calls: Vec::new(), suspend, receipt: None, usage: None };
    for _ in 0..n {
        let content = CallContent { tool_name: "look".into(), arguments: "{}".into(), extra: Default::default() };
        let tool_call_id = ToolCallId::new();
        let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
        let card = Draft { tool_call_id: Some(tool_call_id), ..draft }.seal().unwrap();
        let call =
            Call { tool_call_id, target: target(target_name), tool_call_card_id: card.card_id(), timeout, once: false };
        step.calls.push(call);
        step.cards.push(card);
    }
    step
}

pub(crate) fn answer(tool_call_id: ToolCallId) -> Report {
    Report {
        is_external: false,
        tool_call_id,
        claim_token: None,
        message_type: MessageType::ToolResult,
        status: "success".into(),
        card: result(tool_call_id, "seen"),
    }
}

pub(crate) fn fork(children: &[DispatchRequest], fail_fast: bool, timeout: Duration) -> Fork {
    let tasks = children.iter().map(|c| Task { agent_id: c.agent_id, agent_turn_id: c.agent_turn_id }).collect();
    Fork { batch_id: BatchId::new(), stage: 0, joins_as: JoinsAs::List, fail_fast, timeout, tasks }
}

impl House {
    pub(crate) async fn new() -> House {
        House::of(fresh_db().await).await
    }

    pub(crate) async fn of(t: TestDb) -> House {
        let worker = lease::start(&t.kernel, &target("llm"), LONG).await.unwrap();
        House { t, worker }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.t.kernel
    }

    pub(crate) async fn agent(&self) -> AgentId {
        self.agents(1).await[0]
    }

    pub(crate) async fn agents(&self, n: usize) -> Vec<AgentId> {
        let agents: Vec<AgentId> = (0..n).map(|_| AgentId::new()).collect();
        let mut work = self.t.begin().await;
        agent::create(&mut work, &agents, &target("llm")).await.unwrap();
        work.commit().await.unwrap();
        agents
    }

    pub(crate) async fn enqueue(&self, agent_id: AgentId) -> Dispatched {
        let card = instruction("do it");
        self.enqueue_all(&[DispatchRequest::instructed(agent_id, card.card_id())], &[card]).await.unwrap().remove(0)
    }

    pub(crate) async fn enqueue_all(
        &self,
        requests: &[DispatchRequest],
        cards: &[NewCard],
    ) -> Result<Vec<Dispatched>, Error> {
        let mut alone = self.kernel().alone(self.t.project_id).await.unwrap();
        turn::enqueue(&mut alone, requests, cards).await
    }

    /// Claims one turn, whichever is first.
    pub(crate) async fn claim(&self) -> Option<Claimed> {
        self.claim_as(self.worker).await.unwrap().pop()
    }

    pub(crate) async fn claim_as(&self, worker: WorkerId) -> Result<Vec<Claimed>, Error> {
        turn::claim(self.kernel(), &mut Claiming::new(worker, target("llm"))).await
    }

    pub(crate) async fn claim_calls(&self, name: &str, most: i32) -> Vec<ClaimedCall> {
        let mut claiming = Claiming { most, ..Claiming::new(self.worker, target(name)) };
        call::claim(self.kernel(), &mut claiming).await.unwrap()
    }

    /// A turn of a new agent that is running.
    pub(crate) async fn running(&self) -> Fence {
        let agent_id = self.agent().await;
        self.enqueue(agent_id).await;
        self.claim().await.unwrap().fence
    }

    pub(crate) async fn step(&self, fence: &Fence, step: &Step) -> Result<Stepped, Error> {
        turn::step(&mut self.kernel().alone(fence.project_id()).await.unwrap(), fence, step).await
    }

    pub(crate) async fn finish(&self, fence: Fence) -> Result<turn::Ended, Error> {
        let mut work = self.kernel().begin(fence.project_id()).await.unwrap();
        let ended = turn::finish(&mut work, &[ending(fence)]).await?;
        work.commit().await.unwrap();
        Ok(ended)
    }

    pub(crate) async fn report(&self, report: &Report) -> Result<turn::Reported, Error> {
        turn::report(&mut self.kernel().alone(self.t.project_id).await.unwrap(), report).await
    }

    pub(crate) async fn stop(&self, turn_id: TurnId) -> Result<Stopped, Error> {
        let mut work = self.t.begin().await;
        let stopped = turn::stop(&mut work, turn_id, "enough").await?;
        work.commit().await.unwrap();
        Ok(stopped)
    }

    pub(crate) async fn reclaim(&self, fence: &Fence, loss: &Loss) -> Reclaimed {
        let mut work = self.t.begin().await;
        let reclaimed = turn::reclaim(&mut work, fence, loss, Attempts::default()).await.unwrap();
        work.commit().await.unwrap();
        reclaimed
    }

    pub(crate) async fn reclaim_in(&self, claimed: &Claimed, loss: &Loss) {
        let mut work = self.kernel().begin(claimed.fence.project_id()).await.unwrap();
        turn::reclaim(&mut work, &claimed.fence, loss, Attempts::default()).await.unwrap();
        work.commit().await.unwrap();
    }

    pub(crate) async fn head(&self, agent_id: AgentId) -> agent::Head {
        let mut work = self.t.begin().await;
        agent::find(&mut work, agent_id).await.unwrap().unwrap()
    }

    pub(crate) async fn turn(&self, turn_id: TurnId) -> turn::Summary {
        let mut work = self.t.begin().await;
        turn::show(&mut work, &[turn_id]).await.unwrap().remove(0)
    }

    /// Sweeps with a lease of zero: a worker that is not renewed has lapsed.
    pub(crate) async fn sweep(&self) -> sweep::Swept {
        sweep::tick(self.kernel(), &sweep::Config { lease: Duration::ZERO, ..Default::default() }).await.unwrap()
    }

    /// The doors that were rung since this was last asked.
    pub(crate) fn rung(&self) -> Vec<Door> {
        self.t.bus.rung()
    }

    /// A number that the owner of the database can see.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        self.t.count(sql).await
    }

    /// Changes what is there behind the kernel's back, and the guards'.
    pub(crate) async fn meddle(&self, sql: &'static str) {
        let mut admin = self.t.admin().await;
        sqlx::query("set session_replication_role = replica").execute(&mut admin).await.unwrap();
        sqlx::query(sql).execute(&mut admin).await.unwrap();
    }
}

pub(crate) fn is_stale<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Stale(_)))
}

/// L0-1, L0-4, L0-8, L0-12: enqueue, claim, finish; the deliverable stands in the output box and one event names it.
#[tokio::test]
async fn a_trivial_turn_delivers_once() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let card = instruction("say hello");
    let request = DispatchRequest::instructed(agent_id, card.card_id());
    let accepted =
        house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap().remove(0);
    assert!(!accepted.duplicate && accepted.turn_epoch.is_some());
    assert_eq!(house.rung(), [Door::Agent(target("llm"))]);
    assert_eq!(house.head(agent_id).await.status, Status::Dispatched);

    let claimed = house.claim().await.unwrap();
    assert_eq!(claimed.fence.agent_turn_id(), request.agent_turn_id);
    assert_eq!(claimed.context_box_id, request.context_box_id);
    assert_eq!((claimed.message_type, claimed.batch_id), (MessageType::Turn, None));
    assert_eq!(house.head(agent_id).await.status, Status::Running);
    assert!(house.claim().await.is_none(), "one owner");

    let ended = ending(claimed.fence);
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    assert!(!turn::finish(&mut alone, std::slice::from_ref(&ended)).await.unwrap().duplicate);
    let head = house.head(agent_id).await;
    assert_eq!((head.status, head.active_agent_turn_id), (Status::Idle, None));
    let turn = house.turn(request.agent_turn_id).await;
    assert_eq!((turn.status, turn.inbox_status), (TurnStatus::Success, None));
    assert_eq!(turn.deliverable_card_id, Some(ended.cards[1].card_id()));

    let mut work = house.t.begin().await;
    assert_eq!(crate::held(&mut work, request.context_box_id).await, [card.card_id()]);
    assert_eq!(crate::held(&mut work, request.output_box_id).await, crate::ids(&ended.cards));
    drop(work);
    assert_eq!(house.count("select count(*) from state.outbox where event = 'task'").await, 1);
    assert_eq!(house.count("select count(*) from state.edges where primitive = 'enqueue'").await, 2);
    assert_eq!(house.count("select count(*) from state.agent_steps where outcome = 'finished'").await, 1);
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 0);

    // Finished again under the same claim: ours, answered alike.
    assert!(turn::finish(&mut alone, std::slice::from_ref(&ended)).await.unwrap().duplicate);
    assert_eq!(house.count("select count(*) from state.outbox").await, 1);
    // Under the same claim with another deliverable: no.
    assert!(is_stale(&turn::finish(&mut alone, &[ending(claimed.fence)]).await));
}

/// L0-3: the turn's id is its key; a replay changes nothing and is answered alike, whatever has happened since.
#[tokio::test]
async fn a_replayed_enqueue_is_answered_as_the_first() {
    let house = House::new().await;
    let agents = house.agents(2).await;
    let card = instruction("once");
    let request = DispatchRequest::instructed(agents[0], card.card_id());
    let first = house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap().remove(0);
    house.rung();
    let replay = async || {
        let again =
            house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap().remove(0);
        assert_eq!((again.agent_turn_id, again.turn_epoch), (first.agent_turn_id, first.turn_epoch));
        assert!(again.duplicate, "{again:?}");
        assert_eq!(house.rung(), [], "no door is to be rung");
    };
    replay().await;
    let fence = house.claim().await.unwrap().fence;
    replay().await;
    house.finish(fence).await.unwrap();
    replay().await;
    assert_eq!(house.count("select count(*) from state.turns").await, 1);
    assert!(house.claim().await.is_none());

    // Among others, in one call: only what is new is done, and the order of the answers is that of the requests.
    let cards = [instruction("a"), instruction("b")];
    let new = [
        DispatchRequest::instructed(agents[1], cards[0].card_id()),
        request.clone(),
        DispatchRequest::instructed(agents[1], cards[1].card_id()),
    ];
    let answers = house.enqueue_all(&new, &cards).await.unwrap();
    let seen: Vec<_> = answers.iter().map(|a| (a.agent_turn_id, a.turn_epoch.is_some(), a.duplicate)).collect();
    let expected = [
        (new[0].agent_turn_id, true, false),
        (request.agent_turn_id, true, true),
        (new[2].agent_turn_id, false, false),
    ];
    assert_eq!(seen, expected);
    assert_eq!(house.head(agents[1]).await.n_queued, 1);

    // The id of another agent's turn is no replay.
    let stolen = DispatchRequest { agent_id: agents[1], ..request.clone() };
    let outcome = house.enqueue_all(&[stolen], &[]).await;
    assert!(matches!(outcome, Err(Error::Conflict(_))), "{outcome:?}");
    let unknown = DispatchRequest::instructed(AgentId::new(), card.card_id());
    assert!(matches!(house.enqueue_all(std::slice::from_ref(&unknown), &[]).await, Err(Error::NotFound(_))));
    assert!(matches!(house.enqueue_all(&[unknown, new[0].clone()], &[]).await, Err(Error::NotFound(_))));
}

/// L0-3: a turn is kept when its history is pruned, so its replay is still answered as one, alone and among others.
#[tokio::test]
async fn a_replay_is_known_after_its_history_was_pruned() {
    let house = House::new().await;
    let agents = house.agents(2).await;
    let cards = [instruction("old"), instruction("new")];
    let old = DispatchRequest::instructed(agents[0], cards[0].card_id());
    let first = house.enqueue_all(std::slice::from_ref(&old), &cards[..1]).await.unwrap().remove(0);
    house.rung();
    sqlx::query("truncate state.execution_edges").execute(&mut house.t.admin().await).await.unwrap();

    let again = house.enqueue_all(std::slice::from_ref(&old), &cards[..1]).await.unwrap().remove(0);
    assert_eq!((again.agent_turn_id, again.turn_epoch, again.duplicate), (old.agent_turn_id, first.turn_epoch, true));
    assert_eq!(house.rung(), [], "no door is to be rung");

    let new = DispatchRequest::instructed(agents[1], cards[1].card_id());
    let answers = house.enqueue_all(&[old.clone(), new.clone()], &cards).await.unwrap();
    let seen: Vec<_> = answers.iter().map(|a| (a.agent_turn_id, a.duplicate)).collect();
    assert_eq!(seen, [(old.agent_turn_id, true), (new.agent_turn_id, false)]);
    assert_eq!(house.count("select count(*) from state.turns").await, 2);
}

/// L0-4: one active turn per agent; the others are taken in the order in which they came, one by one or many at once.
#[tokio::test]
async fn turns_of_an_agent_are_taken_in_order() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(house.enqueue(agent_id).await.agent_turn_id);
    }
    let cards = [instruction("a"), instruction("b"), instruction("c")];
    let requests: Vec<_> = cards.iter().map(|c| DispatchRequest::instructed(agent_id, c.card_id())).collect();
    let many = house.enqueue_all(&requests, &cards).await.unwrap();
    assert!(many.iter().all(|d| d.turn_epoch.is_none()));
    expected.extend(requests.iter().map(|r| r.agent_turn_id));
    assert_eq!(house.head(agent_id).await.n_queued, 5);
    let mut epochs = Vec::new();
    for turn_id in expected {
        let claimed = house.claim().await.unwrap();
        assert_eq!(claimed.fence.agent_turn_id(), turn_id);
        epochs.push(claimed.fence.turn_epoch());
        assert!(house.claim().await.is_none(), "the next one is not dispatched yet");
        house.finish(claimed.fence).await.unwrap();
    }
    assert!(epochs.is_sorted() && epochs.windows(2).all(|pair| pair[0] < pair[1]), "L0-6: {epochs:?}");
    assert_eq!(house.head(agent_id).await.n_queued, 0);
}

/// PM-3: `busy` is the queue at its cap; nothing of the request is written.
#[tokio::test]
async fn a_full_queue_is_busy() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    house.meddle("update state.agent_state_head set queue_cap = 2").await;
    for _ in 0..3 {
        house.enqueue(agent_id).await;
    }
    let before = house.count("select count(*) from cardbox.cards").await;
    let cards = [instruction("a"), instruction("b")];
    let requests: Vec<_> = cards.iter().map(|c| DispatchRequest::instructed(agent_id, c.card_id())).collect();
    for n in [1, 2] {
        let outcome = house.enqueue_all(&requests[..n], &cards[..n]).await;
        assert!(matches!(outcome, Err(Error::Busy)), "{outcome:?}");
    }
    assert_eq!(house.count("select count(*) from cardbox.cards").await, before, "L0-1: all or nothing");
    assert_eq!(house.count("select count(*) from state.turns").await, 3);
}

/// L0-11
#[tokio::test]
async fn a_dispatch_too_deep_is_rejected() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let card = instruction("deeper");
    let mut request = DispatchRequest::instructed(agent_id, card.card_id());
    request.recursion_depth = turn::MAX_RECURSION_DEPTH;
    house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap();
    assert_eq!(house.claim().await.unwrap().recursion_depth, turn::MAX_RECURSION_DEPTH);
    request.recursion_depth += 1;
    let outcome = house.enqueue_all(&[request], &[card]).await.unwrap_err().to_string();
    assert!(outcome.starts_with("recursion_depth_exceeded"), "{outcome}");
}

/// L0-1: what a unit of work gives up was never there; in it other things can be written beside a transition.
#[tokio::test]
async fn a_transition_joins_a_unit_of_work() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let card = instruction("maybe");
    let request = [DispatchRequest::instructed(agent_id, card.card_id())];
    let mut work = house.t.begin().await;
    turn::enqueue(&mut work, &request, std::slice::from_ref(&card)).await.unwrap();
    drop(work);
    assert!(house.claim().await.is_none());
    assert_eq!(house.head(agent_id).await.status, Status::Idle);

    let mut work = house.t.begin().await;
    turn::enqueue(&mut work, &request, &[card]).await.unwrap();
    let (box_id, _) = crate::filled_box(&mut work, 2).await;
    work.commit().await.unwrap();
    assert!(house.claim().await.is_some());
    assert_eq!(crate::held(&mut house.t.begin().await, box_id).await.len(), 2);

    // A refusal is an error of the database: nothing of the unit of work can be committed after it.
    let mut work = house.t.begin().await;
    let (lost, _) = crate::filled_box(&mut work, 1).await;
    let unknown = turn::stop(&mut work, TurnId::new(), "x").await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    assert!(work.commit().await.is_err());
    let mut work = house.t.begin().await;
    assert_eq!(card_box::find(&mut work, &[lost]).await.unwrap().missing, [lost]);
}

/// SE-2: a transition names its project itself; inside a unit of work it must be that one's, and what it names must be its own.
#[tokio::test]
async fn a_transition_does_not_cross_projects() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let accepted = house.enqueue(agent_id).await;
    let fence = house.claim().await.unwrap().fence;
    let other = ProjectId::new();
    let mut work = house.kernel().begin(other).await.unwrap();
    let outcome = turn::step(&mut work, &fence, &calling(0, "x", LONG, false)).await;
    assert!(matches!(outcome, Err(Error::OtherProject)), "{outcome:?}");
    drop(work);
    let mut alone = house.kernel().alone(other).await.unwrap();
    assert!(matches!(turn::finish(&mut alone, &[ending(fence)]).await, Err(Error::OtherProject)));
    let card = instruction("theirs");
    let request = DispatchRequest::instructed(agent_id, card.card_id());
    assert!(matches!(turn::enqueue(&mut alone, &[request], &[card]).await, Err(Error::NotFound(_))));
    assert!(matches!(turn::stop(&mut alone, accepted.agent_turn_id, "x").await, Err(Error::NotFound(_))));
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    let outcome = turn::report(&mut alone, &answer(step.calls[0].tool_call_id)).await;
    assert!(matches!(outcome, Err(Error::NotFound(_))), "{outcome:?}");
    // The connection is given back without a project: the next one sets its own.
    drop(alone);
    assert_eq!(house.report(&answer(step.calls[0].tool_call_id)).await.unwrap().outcome, ReportOutcome::Applied);
}

/// L0-5, LESSONS: a worker that was reclaimed changes nothing any more, by whatever transition.
#[tokio::test]
async fn a_reclaimed_worker_cannot_write() {
    let house = House::new().await;
    let (other, fence) = (house.running().await, house.running().await);
    let early = calling(1, "tool", LONG, false);
    house.step(&fence, &early).await.unwrap();
    house.rung();
    assert_eq!(house.reclaim(&fence, &Loss::Lease).await, Reclaimed::Armed);
    assert_eq!(house.rung(), [Door::Agent(target("llm"))]);
    let rows = "select (select count(*) from cardbox.cards) + (select count(*) from cardbox.box_entries)
                     + (select count(*) from state.agent_steps) + (select count(*) from state.waiting_calls)";
    let before = house.count(rows).await;
    assert!(is_stale(&house.step(&fence, &calling(1, "tool", LONG, true)).await));
    assert!(is_stale(&house.step(&fence, &calling(0, "tool", LONG, false)).await));
    assert!(is_stale(&house.finish(fence).await));
    let many =
        turn::finish(&mut house.kernel().alone(house.t.project_id).await.unwrap(), &[ending(other), ending(fence)])
            .await;
    assert!(matches!(&many, Err(Error::Stale(who)) if *who == fence.agent_turn_id().to_string()), "{many:?}");
    assert_eq!(house.reclaim(&fence, &Loss::Lease).await, Reclaimed::Stale);
    assert_eq!(house.count(rows).await, before);
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 2, "the same row, armed again");

    let again = house.claim().await.unwrap();
    assert_eq!(again.fence.agent_turn_id(), fence.agent_turn_id());
    assert!(again.fence.turn_epoch() > fence.turn_epoch() && again.fence.claim_token() > fence.claim_token());
    assert_eq!((again.n_lost_leases, again.retry_count), (1, 0));
    // What the lost worker had committed is there: the step is known, and its call still waited for.
    assert!(house.step(&again.fence, &calling(0, "tool", LONG, true)).await.unwrap().suspended);
    assert!(house.report(&answer(early.calls[0].tool_call_id)).await.unwrap().resumed);
}

/// L0-17: lost leases and failed attempts are counted apart, and each has its end.
#[tokio::test]
async fn failed_attempts_wait_and_end() {
    let house = House::new().await;
    let fence = house.running().await;
    let failed = Loss::Attempt { error: "the model said no".into(), backoff: LONG };
    assert_eq!(house.reclaim(&fence, &failed).await, Reclaimed::Armed);
    let failing = turn::failing(&mut house.t.begin().await, &[fence.agent_turn_id()]).await.unwrap();
    assert_eq!(failing, [(fence.agent_turn_id(), 1)]);
    assert!(house.claim().await.is_none(), "it waits");
    assert_eq!(house.sweep().await.turns_released, 0);
    house.meddle("update state.agent_inbox set next_retry_at = now() - interval '1 second'").await;
    assert_eq!(house.sweep().await.turns_released, 1);
    let again = house.claim().await.unwrap();
    assert_eq!((again.n_lost_leases, again.retry_count), (0, 1));
    let at_once = Loss::Attempt { error: "the model said no".into(), backoff: Duration::ZERO };
    assert!(matches!(house.reclaim(&again.fence, &at_once).await, Reclaimed::Armed));
    let last = house.claim().await.unwrap();
    assert!(matches!(house.reclaim(&last.fence, &at_once).await, Reclaimed::Ended), "three attempts");
    let turn = house.turn(fence.agent_turn_id()).await;
    assert_eq!((turn.status, turn.deliverable_card_id.is_some()), (TurnStatus::Failed, true));
    assert_eq!(house.head(fence.agent_id()).await.status, Status::Idle);

    let fence = house.running().await;
    let mut current = fence;
    for _ in 0..20 {
        assert!(matches!(house.reclaim(&current, &Loss::Lease).await, Reclaimed::Armed));
        current = house.claim().await.unwrap().fence;
    }
    assert!(matches!(house.reclaim(&current, &Loss::Lease).await, Reclaimed::Ended), "it takes every worker down");
    assert_eq!(house.turn(fence.agent_turn_id()).await.status, TurnStatus::Failed);
}

/// L0-17: attempts are counted since the turn last wrote something. A step that only records a cost does not count as that.
#[tokio::test]
async fn attempts_are_counted_since_the_turn_moved() {
    let house = House::new().await;
    let failed = Loss::Attempt { error: "the model said no".into(), backoff: Duration::ZERO };
    let moving = || Step { cards: vec![thought("so")], ..calling(0, "tool", LONG, false) };
    let mut fence = house.running().await;
    for round in 0..4 {
        for _ in 0..2 {
            assert_eq!(house.reclaim(&fence, &failed).await, Reclaimed::Armed, "round {round}");
            fence = house.claim().await.unwrap().fence;
        }
        house.step(&fence, &moving()).await.unwrap();
        house.step(&fence, &moving()).await.unwrap();
    }
    assert_eq!(house.count("select sum(retry_count + n_lost_leases)::bigint from state.agent_inbox").await, 0);
    for outcome in [Reclaimed::Armed, Reclaimed::Armed, Reclaimed::Ended] {
        house.step(&fence, &calling(0, "tool", LONG, false)).await.unwrap();
        assert_eq!(house.reclaim(&fence, &failed).await, outcome);
        fence = house.claim().await.map_or(fence, |claimed| claimed.fence);
    }
    assert_eq!(house.turn(fence.agent_turn_id()).await.status, TurnStatus::Failed);
}

/// HO-7: once people are asked about a call, the asker's claim is over: it can neither answer, ask again nor give the call back.
#[tokio::test]
async fn whoever_asked_people_cannot_report_any_more() {
    let house = House::new().await;
    let fence = house.running().await;
    house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    let call = house.claim_calls("tool", 1).await.remove(0);
    let question = serde_json::json!({ "kind": "approval", "question": "May I?", "deadline_seconds": 600 });
    let question: Request = serde_json::from_value(question).unwrap();
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    request::ask(&mut alone, &call, &question).await.unwrap();
    let old = Report { claim_token: Some(call.claim_token), ..answer(call.tool_call_id) };
    assert!(is_stale(&house.report(&old).await), "people are deciding");
    assert!(is_stale(&request::ask(&mut alone, &call, &question).await));
    let approved = Decided::new(Decision::Approved, "an operator");
    let decided = request::decide(&mut alone, call.tool_call_id, &approved).await.unwrap();
    assert_eq!(decided.outcome, request::DecisionOutcome::Decided);
    assert!(is_stale(&house.report(&old).await), "it is decided, and the call is for its next handler");
    // The server may still be ending the refused report, and a claim does not wait for its lock.
    let next = loop {
        match house.claim_calls("tool", 1).await.pop() {
            Some(next) => break next,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(is_stale(&house.report(&old).await));
    let new = Report { claim_token: Some(next.claim_token), ..answer(call.tool_call_id) };
    assert_eq!(house.report(&new).await.unwrap().outcome, ReportOutcome::Applied);
}

/// L0-12, L0-13, LESSONS: the exact set is waited for; each result is applied once; the last one resumes.
#[tokio::test]
async fn a_suspended_turn_resumes_with_its_last_result() {
    let house = House::new().await;
    let fence = house.running().await;
    let step = calling(2, "tool", LONG, true);
    let stepped = house.step(&fence, &step).await.unwrap();
    assert!(stepped.suspended && !stepped.duplicate);
    assert_eq!(house.head(fence.agent_id()).await.status, Status::Suspended);
    assert!(house.step(&fence, &step).await.unwrap().duplicate, "sent again by a worker that got no answer");
    assert!(is_stale(&house.step(&fence, &calling(0, "x", LONG, false)).await), "suspended is not ours");
    assert!(house.claim().await.is_none());

    let [first, second] = [&step.calls[0], &step.calls[1]].map(|call| answer(call.tool_call_id));
    let applied = house.report(&first).await.unwrap();
    assert_eq!((applied.outcome, applied.resumed), (ReportOutcome::Applied, false));
    assert_eq!(house.report(&first).await.unwrap().outcome, ReportOutcome::Duplicate);
    let other = answer(first.tool_call_id);
    assert_eq!(house.report(&other).await.unwrap().outcome, ReportOutcome::Dropped, "another result for the same call");
    assert!(house.claim().await.is_none());
    let applied = house.report(&second).await.unwrap();
    assert!(applied.resumed);
    let again = house.claim().await.unwrap();
    assert_eq!((again.message_type, again.fence.turn_epoch()), (MessageType::ToolResult, fence.turn_epoch()));
    assert!(again.fence.claim_token() > fence.claim_token());
    let mut work = house.t.begin().await;
    let mut expected = crate::ids(&step.cards);
    expected.extend([first.card.card_id(), second.card.card_id()]);
    assert_eq!(crate::held(&mut work, again.output_box_id).await, expected);
    drop(work);
    house.finish(again.fence).await.unwrap();
    assert_eq!(house.report(&first).await.unwrap().outcome, ReportOutcome::Duplicate, "also after the end");
    assert_eq!(house.report(&answer(first.tool_call_id)).await.unwrap().outcome, ReportOutcome::Dropped);
    assert_eq!(house.count("select count(*) from state.execution_edges where edge_phase = 'dropped'").await, 1);
    let foreign = house.report(&answer(ToolCallId::new())).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))), "{foreign:?}");
}

/// LESSONS: a result that comes before the suspend is parked, and the suspend picks it up.
#[tokio::test]
async fn an_early_result_is_not_waited_for() {
    let house = House::new().await;
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, false);
    assert!(!house.step(&fence, &step).await.unwrap().suspended);
    assert!(!house.report(&answer(step.calls[0].tool_call_id)).await.unwrap().resumed);
    let suspend = calling(0, "tool", LONG, true);
    assert!(!house.step(&fence, &suspend).await.unwrap().suspended, "nothing is left to wait for");
    assert_eq!(house.head(fence.agent_id()).await.status, Status::Running);
    house.finish(fence).await.unwrap();
}

/// L0-12, L0-13, LESSONS: a deadline per call; one result does not move another's; at the deadline a timeout stands in.
#[tokio::test]
async fn an_overdue_call_is_answered_by_a_timeout() {
    let house = House::new().await;
    let fence = house.running().await;
    let mut step = calling(2, "tool", Duration::ZERO, true);
    step.calls[1].timeout = LONG;
    house.step(&fence, &step).await.unwrap();
    assert_eq!(house.sweep().await.calls_timed_out, 1);
    assert_eq!(house.sweep().await.calls_timed_out, 0);
    assert!(house.claim().await.is_none(), "the other has time");
    house.meddle("update state.waiting_calls set deadline_at = now()").await;
    let swept = house.sweep().await;
    assert_eq!(swept.calls_timed_out, 1);
    assert!(house.rung().contains(&Door::Agent(target("llm"))), "{swept:?}");
    let again = house.claim().await.unwrap();
    assert_eq!(again.message_type, MessageType::Timeout);
    let late = house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    assert_eq!(late.outcome, ReportOutcome::Dropped, "too late");
    let mut work = house.t.begin().await;
    let read = card_box::read(&mut work, Span::whole(again.output_box_id), None).await.unwrap();
    assert_eq!(read.len(), 4, "two calls, two timeouts");
}

/// L0-13: calls are the command queue: claimed with a token under a lease, given to another process when the lease lapses.
#[tokio::test]
async fn commands_are_claimed_and_reclaimed() {
    let house = House::new().await;
    let fence = house.running().await;
    house.step(&fence, &calling(3, "tool", LONG, true)).await.unwrap();
    assert!(house.claim_calls("other", 10).await.is_empty());
    let tool = WorkerId::new(); // its lease begins with what it claims
    let mut claiming = Claiming { most: 2, lease: LONG, ..Claiming::new(tool, target("tool")) };
    let claimed = call::claim(house.kernel(), &mut claiming).await.unwrap();
    assert_eq!(claimed.len(), 2);
    lease::end(house.kernel(), tool).await.unwrap();
    assert!(matches!(call::claim(house.kernel(), &mut claiming).await, Err(Error::LeaseLost)));
    assert_eq!(house.sweep().await.calls_reclaimed, 2);
    let again = house.claim_calls("tool", 10).await;
    assert_eq!(again.len(), 3);
    assert_eq!(again.iter().map(|call| call.n_lost_leases).sum::<i32>(), 2);
    let lost = Report { claim_token: Some(claimed[0].claim_token), ..answer(claimed[0].tool_call_id) };
    assert!(is_stale(&house.report(&lost).await), "answered for a claim that was taken away");
    for call in again {
        let report = Report { claim_token: Some(call.claim_token), ..answer(call.tool_call_id) };
        assert_eq!(house.report(&report).await.unwrap().outcome, ReportOutcome::Applied);
    }
    assert!(house.claim().await.is_some());
}

/// L0-12, WK-6, LESSONS: a stop ends a turn that no worker runs, asks the worker of a running turn to end it, and always delivers.
#[tokio::test]
async fn a_stopped_turn_still_delivers() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let turns = [house.enqueue(agent_id).await, house.enqueue(agent_id).await, house.enqueue(agent_id).await]
        .map(|dispatched| dispatched.agent_turn_id);
    // Queued: ends here, and those behind it move up.
    assert_eq!(house.stop(turns[1]).await.unwrap(), Stopped::Ended);
    assert_eq!(house.head(agent_id).await.n_queued, 1);
    // Dispatched, not started: ends here, and the next is dispatched.
    assert_eq!(house.stop(turns[0]).await.unwrap(), Stopped::Ended);
    let claimed = house.claim().await.unwrap();
    assert_eq!(claimed.fence.agent_turn_id(), turns[2]);
    // Running: the worker is asked, between its steps and with its lease.
    assert_eq!(house.stop(turns[2]).await.unwrap(), Stopped::Asked);
    assert_eq!(house.stop(turns[2]).await.unwrap(), Stopped::Asked);
    let stepped = house.step(&claimed.fence, &calling(0, "x", LONG, false)).await.unwrap();
    assert_eq!(stepped.stop_reason.as_deref(), Some("enough"));
    let told = lease::renew::<TurnId>(house.kernel(), house.worker, LONG).await.unwrap();
    assert_eq!(told, [(turns[2], true)]);
    let canceled = Ending { status: End::Canceled, ..ending(claimed.fence) };
    turn::finish(&mut house.kernel().alone(house.t.project_id).await.unwrap(), &[canceled]).await.unwrap();
    assert_eq!(house.stop(turns[2]).await.unwrap(), Stopped::Over);
    // Suspended: ends here; what it waited for is dropped.
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    assert!(matches!(house.stop(fence.agent_turn_id()).await.unwrap(), Stopped::Ended));
    assert_eq!(house.report(&answer(step.calls[0].tool_call_id)).await.unwrap().outcome, ReportOutcome::Dropped);
    assert_eq!(house.head(fence.agent_id()).await.status, Status::Idle);
    for turn_id in turns.into_iter().chain([fence.agent_turn_id()]) {
        let turn = house.turn(turn_id).await;
        assert_eq!((turn.status, turn.deliverable_card_id.is_some()), (TurnStatus::Canceled, true));
    }
    assert_eq!(house.count("select count(*) from state.outbox where status = 'canceled'").await, 4);
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 0);
    // One that is to stop does not suspend, nor wait for another attempt.
    let fence = house.running().await;
    house.stop(fence.agent_turn_id()).await.unwrap();
    let stepped = house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    assert!(!stepped.suspended && stepped.stop_reason.is_some());
    let failed = Loss::Attempt { error: "no".into(), backoff: LONG };
    house.rung();
    assert_eq!(house.reclaim(&fence, &failed).await, Reclaimed::Armed);
    assert_eq!(house.rung(), [Door::Agent(target("llm"))]);
    let again = house.claim().await.unwrap();
    assert!(again.stop_asked);
    house.finish(again.fence).await.unwrap();
    // A worker that was lost after it had been asked: the next one finds the reason.
    let fence = house.running().await;
    house.stop(fence.agent_turn_id()).await.unwrap();
    house.reclaim(&fence, &Loss::Lease).await;
    assert!(house.claim().await.unwrap().stop_asked);
}

/// PM-3: a turn that is not to start before a time holds up no other turn until then.
#[tokio::test]
async fn a_turn_for_later_starts_later() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let cards = [instruction("later"), instruction("later still"), instruction("now")];
    let mut requests = cards.each_ref().map(|card| DispatchRequest::instructed(agent_id, card.card_id()));
    requests[0].not_before = Some(Utc::now() + LONG);
    requests[1].not_before = Some(Utc::now() + LONG);
    let later = house.enqueue_all(&requests[..1], &cards[..1]).await.unwrap();
    assert_eq!(later[0].turn_epoch, None);
    let both = house.enqueue_all(&requests[1..], &cards[1..]).await.unwrap();
    assert_eq!((both[0].turn_epoch, both[1].turn_epoch.is_some()), (None, true));
    let now = house.claim().await.unwrap();
    assert_eq!(now.fence.agent_turn_id(), requests[2].agent_turn_id);
    house.meddle("update state.agent_inbox set next_retry_at = now() where next_retry_at is not null").await;
    assert_eq!(house.sweep().await.turns_released, 2);
    assert_eq!(house.head(agent_id).await.n_queued, 2, "behind the one that runs");
    house.finish(now.fence).await.unwrap();
    let first = house.claim().await.unwrap();
    assert_eq!(first.fence.agent_turn_id(), requests[0].agent_turn_id, "in the order in which they came");
    house.finish(first.fence).await.unwrap();
    house.finish(house.claim().await.unwrap().fence).await.unwrap();
    // A time that has passed is no time, also in one call with others.
    let cards = [instruction("p"), instruction("q")];
    let mut requests = cards.each_ref().map(|card| DispatchRequest::instructed(agent_id, card.card_id()));
    requests[1].not_before = Some(Utc::now() - LONG);
    house.enqueue_all(&requests, &cards).await.unwrap();
    assert_eq!(house.head(agent_id).await.n_queued, 1);
    for request in &requests {
        let claimed = house.claim().await.unwrap();
        assert_eq!(claimed.fence.agent_turn_id(), request.agent_turn_id);
        house.finish(claimed.fence).await.unwrap();
    }
    // Alone, it is dispatched when its time has come; stopped before, it ends.
    let cards = [instruction("x"), instruction("y")];
    for (n, card) in cards.iter().enumerate() {
        let mut request = DispatchRequest::instructed(agent_id, card.card_id());
        request.not_before = Some(Utc::now() + LONG);
        house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(card)).await.unwrap();
        if n == 0 {
            assert_eq!(house.stop(request.agent_turn_id).await.unwrap(), Stopped::Ended);
        }
    }
    house.meddle("update state.agent_inbox set next_retry_at = now() where next_retry_at is not null").await;
    assert_eq!(house.sweep().await.turns_released, 1);
    assert!(house.claim().await.is_some());
}

/// L0-8: a deliverable is the end of a turn and nothing else; a call is answered by a result; ids are of the present.
#[tokio::test]
async fn what_does_not_belong_is_refused() {
    let house = House::new().await;
    let fence = house.running().await;
    let mut step = calling(1, "tool", LONG, true);
    step.cards.push(deliverable("early"));
    assert!(matches!(house.step(&fence, &step).await, Err(Error::Invalid(_))));
    step.cards.pop();
    house.step(&fence, &step).await.unwrap();
    let wrong = Report { card: deliverable("x"), ..answer(step.calls[0].tool_call_id) };
    assert!(matches!(house.report(&wrong).await, Err(Error::Invalid(_))));
    let other = Report { card: result(ToolCallId::new(), "x"), ..answer(step.calls[0].tool_call_id) };
    assert!(matches!(house.report(&other).await, Err(Error::Invalid(_))));
    let mut twice = ending(fence);
    twice.cards.insert(0, deliverable("one more"));
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    assert!(matches!(turn::finish(&mut alone, &[twice]).await, Err(Error::Invalid(_))));
    let none = Ending { cards: vec![thought("x")], ..ending(fence) };
    assert!(matches!(turn::finish(&mut alone, &[none]).await, Err(Error::Invalid(_))));
    let card = instruction("x");
    let ahead = "ffffffff-ffff-7000-8000-000000000001".parse().unwrap();
    let far = DispatchRequest { agent_turn_id: ahead, ..DispatchRequest::instructed(fence.agent_id(), card.card_id()) };
    assert!(matches!(turn::enqueue(&mut alone, &[far], &[card]).await, Err(Error::Invalid(_))));
}

/// L0-4: from every status, every transition either keeps the head as it is or takes it where the table says.
#[tokio::test]
async fn the_sql_allows_what_the_table_allows() {
    let house = House::new().await;
    let mut seen = Vec::new();
    for (n, from) in Status::ALL.into_iter().enumerate() {
        for transition in 0..8 {
            // Workers of its own, so that nothing is claimed but what is meant.
            let own = target(&format!("llm-{n}-{transition}"));
            let agent_id = AgentId::new();
            let mut work = house.t.begin().await;
            agent::create(&mut work, &[agent_id], &own).await.unwrap();
            work.commit().await.unwrap();
            let claim = async || {
                let mut claiming = Claiming::new(house.worker, own.clone());
                turn::claim(house.kernel(), &mut claiming).await.unwrap().pop().map(|claimed| claimed.fence)
            };
            let card = instruction("x");
            let request = [DispatchRequest::instructed(agent_id, card.card_id())];
            let step = calling(1, "tool", LONG, true);
            let mut fence = None;
            house.enqueue_all(&request, std::slice::from_ref(&card)).await.unwrap();
            if from != Status::Dispatched {
                fence = claim().await;
            }
            match (from, fence) {
                (Status::Suspended, Some(fence)) => drop(house.step(&fence, &step).await.unwrap()),
                (Status::Idle, Some(fence)) => drop(house.finish(fence).await.unwrap()),
                _ => {}
            }
            assert_eq!(house.head(agent_id).await.status, from);
            match (transition, fence) {
                (0, _) => {
                    house.enqueue(agent_id).await;
                }
                (1, _) => drop(claim().await),
                (2, Some(fence)) => drop(house.step(&fence, &calling(0, "x", LONG, false)).await),
                (3, Some(fence)) => drop(house.step(&fence, &calling(1, "x", LONG, true)).await),
                (4, _) => drop(house.report(&answer(step.calls[0].tool_call_id)).await),
                (5, Some(fence)) => drop(house.finish(fence).await),
                (6, _) => drop(house.stop(request[0].agent_turn_id).await),
                (7, Some(fence)) => drop(house.reclaim(&fence, &Loss::Lease).await),
                _ => {}
            }
            let to = house.head(agent_id).await.status;
            assert!(to == from || from.may_become(to), "{from:?} became {to:?} by {transition}");
            seen.push((from, to));
        }
    }
    for (from, to) in [
        (Status::Idle, Status::Dispatched),
        (Status::Dispatched, Status::Running),
        (Status::Running, Status::Suspended),
        (Status::Running, Status::Dispatched),
        (Status::Running, Status::Idle),
        (Status::Dispatched, Status::Idle),
        (Status::Suspended, Status::Idle),
    ] {
        assert!(seen.contains(&(from, to)), "no turn went from {from:?} to {to:?}");
    }
}

/// DESIGN §9.4: a process that sleeps in a transaction loses it. That says nothing about the turn: the request is retried.
#[tokio::test]
async fn a_transaction_that_was_slept_through_is_done_again() {
    let house = House::new().await;
    let fence = house.running().await;
    let mut asleep = house.t.begin().await;
    sqlx::raw_sql("set local idle_in_transaction_session_timeout = '20ms'").execute(&mut *asleep).await.unwrap();
    let gone =
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'";
    while house.count(gone).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = turn::finish(&mut asleep, &[ending(fence)]).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    house.finish(fence).await.unwrap();
}

/// Two that could not be put in one order: nothing was written, and it is done again.
#[tokio::test]
async fn a_serialization_failure_is_tried_again() {
    let house = House::new().await;
    let fence = house.running().await;
    let mut late = house.t.begin().await;
    sqlx::raw_sql("rollback; begin isolation level repeatable read").execute(&mut *late).await.unwrap();
    let seen =
        format!("set local waybill.project = '{}'; select count(*) from state.agent_state_head", house.t.project_id);
    sqlx::raw_sql(sqlx::AssertSqlSafe(seen)).execute(&mut *late).await.unwrap();
    house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    let refused = turn::finish(&mut late, &[ending(fence)]).await.unwrap_err();
    assert!(matches!(refused, Error::TryAgain(_)) && refused.is_transient(), "{refused:?}");
}

/// A server that became a standby answers reads and refuses writes: that says nothing about the turn, and its connections are closed.
#[tokio::test]
async fn a_connection_to_a_server_that_only_reads_is_not_used_again() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let url = house.t.server.service_url(&house.t.name);
    let kernel = Kernel::connect(&Config { max_connections: 1, ..Config::new(url) }).await.unwrap();
    let enqueue = async || {
        let card = instruction("go");
        let request = DispatchRequest::instructed(agent_id, card.card_id());
        turn::enqueue(&mut kernel.alone(house.t.project_id).await.unwrap(), &[request], &[card]).await
    };
    enqueue().await.unwrap();
    let pid = async || {
        let mut alone = kernel.alone(house.t.project_id).await.unwrap();
        sqlx::query_scalar::<_, i32>("select pg_backend_pid()").fetch_one(alone.connection()).await.unwrap()
    };
    let demoted = pid().await;
    // As it is from one moment to the next for a client that is connected when the server is demoted.
    let mut alone = kernel.alone(house.t.project_id).await.unwrap();
    sqlx::raw_sql("set default_transaction_read_only = on").execute(alone.connection()).await.unwrap();
    drop(alone);
    let begun = std::time::Instant::now();
    while let Err(error) = enqueue().await {
        assert!(error.is_transient(), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "the connection is used for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(pid().await, demoted, "it is another connection");
}
