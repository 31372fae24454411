//! Batches of children (PM-8, PM-9): opened once, counted down in slots, joined with the last child's end.

use std::time::Duration;

use waybill_core::{
    bus::Door,
    card::{NewCard, Reading},
    card_box::Span,
    id::{AgentId, BatchId},
    turn::{End, Fence, MessageType, Status},
};
use waybill_kernel::{
    agent, batch,
    batch::Fork,
    call::ClaimedCall,
    card_box, turn,
    turn::{Claimed, DispatchRequest, Ending, Error, Stopped},
};

use crate::turns::{House, LONG, calling, ending, fork, instruction, target};

/// A parent that waits for a batch, and the children that it waits for.
pub(crate) struct Family {
    pub(crate) parent: Fence,
    pub(crate) batch_id: BatchId,
    pub(crate) children: Vec<DispatchRequest>,
}

/// A fork that is not opened yet, and what its handler is to dispatch for it.
pub(crate) struct Plan {
    pub(crate) fork: Fork,
    pub(crate) children: Vec<DispatchRequest>,
    /// What all children are instructed with.
    pub(crate) card: NewCard,
}

impl House {
    /// A fork of `n` children, each of an agent of its own.
    pub(crate) fn plan_fork(&self, n: usize, fail_fast: bool, timeout: Duration) -> Plan {
        let card = instruction("a part of it");
        let agents: Vec<AgentId> = (0..n).map(|_| AgentId::new()).collect();
        let mut children: Vec<DispatchRequest> =
            agents.iter().map(|agent| DispatchRequest::instructed(*agent, card.card_id())).collect();
        let fork = fork(&children, fail_fast, timeout);
        for (task_index, child) in children.iter_mut().enumerate() {
            child.batch_id = Some(fork.batch_id);
            child.task_index = Some(task_index as i32);
            child.recursion_depth = 1;
        }
        Plan { fork, children, card }
    }

    /// Makes the agents of children.
    pub(crate) async fn make(&self, children: &[DispatchRequest]) {
        let agents: Vec<AgentId> = children.iter().map(|child| child.agent_id).collect();
        let mut work = self.t.begin().await;
        agent::create(&mut work, &agents, &target("llm")).await.unwrap();
        work.commit().await.unwrap();
    }

    /// Lets a running turn ask for a fork and wait; gives the call, claimed by its handler.
    async fn ask_for_fork(&self, parent: &Fence) -> ClaimedCall {
        self.step(parent, &calling(1, "sys-pmo", LONG, true)).await.unwrap();
        self.claim_calls("sys-pmo", 1).await.remove(0)
    }

    /// Forks `n` children, each of an agent of its own. They are dispatched.
    pub(crate) async fn family(&self, n: usize, fail_fast: bool, timeout: Duration) -> Family {
        let parent = self.running().await;
        let call = self.ask_for_fork(&parent).await;
        let Plan { fork, children, card } = self.plan_fork(n, fail_fast, timeout);
        self.make(&children).await;
        let mut alone = self.kernel().alone(self.t.project_id).await.unwrap();
        let opened = batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
        assert_eq!((opened.batch_id, opened.duplicate), (fork.batch_id, false));
        // Delivered again, to the handler that claims it next: it was opened once.
        let other = crate::turns::fork(&children, true, timeout);
        let again = batch::open(&mut alone, call.tool_call_id, call.claim_token, &other).await.unwrap();
        assert_eq!((again.batch_id, again.duplicate), (fork.batch_id, true));
        turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
        assert!(batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await.unwrap());
        assert!(!batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await.unwrap());
        let late = turn::Report { claim_token: Some(call.claim_token), ..crate::turns::answer(call.tool_call_id) };
        assert!(crate::turns::is_stale(&self.report(&late).await), "the handler of the fork has nothing more to say");
        Family { parent, batch_id: fork.batch_id, children }
    }

    /// Ends what is left of others, and returns a running turn of another agent.
    async fn running_other(&self) -> Fence {
        while let Some(left) = self.claim().await {
            self.finish(left.fence).await.unwrap();
        }
        self.running().await
    }

    /// Ends a child; says who was rung.
    pub(crate) async fn end_child(&self, claimed: &Claimed, status: End) -> Vec<Door> {
        self.rung();
        let mut work = self.t.begin().await;
        let end = Ending { status, ..ending(claimed.fence) };
        turn::finish(&mut work, &[end]).await.unwrap();
        work.commit().await.unwrap();
        self.rung()
    }

    /// Returns the result that the parent got, as JSON.
    pub(crate) async fn told(&self, parent: &Claimed) -> serde_json::Value {
        let mut work = self.t.begin().await;
        let read = card_box::read(&mut work, Span::whole(parent.output_box_id), None).await.unwrap();
        assert_eq!(read.len(), 2, "the call and its one result");
        let Reading::Live(card) = &read[1].reading else { panic!("gone") };
        serde_json::to_value(&card.content).unwrap()["result"].clone()
    }
}

/// PM-9, L0-12: the last child's end joins; the parent gets one result, in task order, in whatever order the children ended.
#[tokio::test]
async fn a_batch_is_joined_by_its_last_child() {
    let house = House::new().await;
    for n in [1, 3, 16, 17, 40] {
        let family = house.family(n, false, LONG).await;
        let mut claimed = Vec::new();
        while let Some(child) = house.claim().await {
            assert_eq!((child.batch_id, child.recursion_depth), (Some(family.batch_id), 1));
            claimed.push(child);
        }
        assert_eq!(claimed.len(), n);
        claimed.reverse();
        for (place, child) in claimed.iter().enumerate() {
            let rung = house.end_child(child, if place == 0 && n > 1 { End::Failed } else { End::Success }).await;
            assert_eq!(rung == [Door::Agent(target("llm"))], place == n - 1, "{rung:?} at {place} of {n}");
        }
        let parent = house.claim().await.unwrap();
        assert_eq!(parent.fence.agent_turn_id(), family.parent.agent_turn_id());
        assert_eq!(parent.message_type, MessageType::ToolResult);
        let edges = turn::edges(&mut house.t.begin().await, parent.fence.agent_turn_id()).await.unwrap();
        let joins: Vec<_> =
            edges.iter().filter(|edge| edge.primitive == "join").map(|edge| edge.correlation_id).collect();
        assert_eq!(joins, [uuid::Uuid::from(family.batch_id); 2], "{edges:?}");
        let told = house.told(&parent).await;
        assert_eq!(told["status"], if n == 1 { "success" } else { "partial" });
        let results = told["results"].as_array().unwrap();
        let indexes: Vec<u64> = results.iter().map(|result| result["task_index"].as_u64().unwrap()).collect();
        assert_eq!(indexes, (0..n as u64).collect::<Vec<_>>());
        for (result, child) in results.iter().zip(&family.children) {
            assert_eq!(result["output_box_id"], child.output_box_id.to_string());
        }
        house.finish(parent.fence).await.unwrap();
    }
    assert_eq!(house.count("select count(*) from state.execution_edges where primitive = 'join'").await, 10);
}

/// PM-9: many children that end in one call are counted like one by one; above 64 the result is counts and failures.
#[tokio::test]
async fn children_end_many_at_once() {
    let house = House::new().await;
    house.family(100, false, LONG).await;
    let mut claiming = turn::Claiming { most: 100, ..turn::Claiming::new(house.worker, target("llm")) };
    let claimed = turn::claim(house.kernel(), &mut claiming).await.unwrap();
    assert_eq!(claimed.len(), 100);
    let endings: Vec<Ending> = claimed
        .iter()
        .enumerate()
        .map(|(n, child)| Ending { status: if n % 4 == 0 { End::Failed } else { End::Success }, ..ending(child.fence) })
        .collect();
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    let outcome = turn::finish(&mut alone, &endings[..1]).await;
    assert!(matches!(outcome, Err(Error::NotAlone)), "{outcome:?}");
    assert!(matches!(turn::finish(&mut alone, &endings[..2]).await, Err(Error::NotAlone)));
    for part in endings.chunks(30) {
        let mut work = house.t.begin().await;
        turn::finish(&mut work, part).await.unwrap();
        work.commit().await.unwrap();
    }
    let told = house.told(&house.claim().await.unwrap()).await;
    assert_eq!(told["status"], "partial");
    assert_eq!((told["counts"]["success"].as_u64(), told["counts"]["failed"].as_u64()), (Some(75), Some(25)));
    assert_eq!(told["failed"].as_array().unwrap().len(), 20);
    assert!(told.get("results").is_none());
}

/// PM-9, LESSONS: with `fail_fast` the first failure ends the batch, and the others are really stopped.
#[tokio::test]
async fn fail_fast_stops_the_rest() {
    let house = House::new().await;
    let family = house.family(4, true, LONG).await;
    let (first, second) = (house.claim().await.unwrap(), house.claim().await.unwrap());
    let rung = house.end_child(&first, End::Failed).await;
    assert_eq!(rung, [Door::Agent(target("llm"))], "the parent");
    let swept = house.sweep().await;
    assert_eq!(swept.batches_stopped, 1);
    // One was running and is asked; two were dispatched and have ended. The parent gets one result.
    assert_eq!(
        house.step(&second.fence, &calling(0, "x", LONG, false)).await.unwrap().stop_reason.as_deref(),
        Some("its batch has ended")
    );
    let parent = house.claim().await.unwrap();
    assert_eq!(parent.fence.agent_turn_id(), family.parent.agent_turn_id());
    assert!(house.claim().await.is_none());
    let told = house.told(&parent).await;
    assert_eq!((told["status"].as_str(), told["results"][1]["status"].as_str()), (Some("failed"), Some("canceled")));
    house.end_child(&second, End::Canceled).await;
    house.sweep().await;
    assert_eq!(house.count("select count(*) from state.pmo_batch_tasks where status = 'canceled'").await, 3);
    assert_eq!(house.count("select count(*) from state.pmo_batches where stopping").await, 0);
    house.told(&parent).await;
}

/// PM-9, LESSONS: at its deadline a batch ends with what it has; the parent's wait is longer than the batch's.
#[tokio::test]
async fn an_overdue_batch_keeps_what_it_has() {
    let house = House::new().await;
    let family = house.family(3, false, LONG).await;
    let first = house.claim().await.unwrap();
    house.end_child(&first, End::Success).await;
    assert_eq!(
        house.count("select count(*) from state.waiting_calls c join state.pmo_batches b using (tool_call_id) where c.deadline_at > b.deadline_at").await,
        1
    );
    house.meddle("update state.pmo_batches set deadline_at = now()").await;
    let swept = house.sweep().await;
    assert_eq!((swept.batches_closed, swept.batches_stopped), (1, 1));
    let parent = house.claim().await.unwrap();
    assert_eq!(parent.fence.agent_turn_id(), family.parent.agent_turn_id());
    let told = house.told(&parent).await;
    assert_eq!((told["status"].as_str(), told["results"][0]["status"].as_str()), (Some("timeout"), Some("success")));
    assert_eq!(house.sweep().await.batches_closed, 0);
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 1, "only the parent");
}

/// A child that is stopped, or given up, counts too; a parent that is gone gets no result.
#[tokio::test]
async fn every_way_of_ending_is_counted() {
    let house = House::new().await;
    let family = house.family(2, false, LONG).await;
    let mut work = house.t.begin().await;
    let stopped = turn::stop(&mut work, family.children[0].agent_turn_id, "no").await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(stopped, Stopped::Ended);
    house.meddle("update state.agent_inbox set n_lost_leases = 20").await;
    let last = house.claim().await.unwrap();
    let mut work = house.t.begin().await;
    let reclaimed = turn::reclaim(&mut work, &last.fence, &turn::Loss::Lease, turn::Attempts::default()).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(reclaimed, turn::Reclaimed::Ended);
    let parent = house.claim().await.unwrap();
    let told = house.told(&parent).await;
    assert_eq!(told["status"], "failed");
    assert_eq!(
        (told["results"][0]["status"].as_str(), told["results"][1]["status"].as_str()),
        (Some("canceled"), Some("failed"))
    );
    house.finish(parent.fence).await.unwrap();

    let family = house.family(1, false, LONG).await;
    let child = house.claim().await.unwrap();
    house.stop(family.parent.agent_turn_id()).await.unwrap();
    assert_eq!(house.end_child(&child, End::Success).await, []);
    assert_eq!(house.count("select count(*) from state.pmo_batches where status = 'open'").await, 0);
    assert_eq!(house.head(family.parent.agent_id()).await.status, Status::Idle);
}

/// LESSONS: a handler that dies in the middle of a fork leaves it to another, which dispatches the rest.
#[tokio::test]
async fn a_fork_is_taken_over() {
    let house = House::new().await;
    let parent = house.running().await;
    let call = house.ask_for_fork(&parent).await;
    let Plan { fork, children, card } = house.plan_fork(2, false, LONG);
    house.make(&children).await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
    turn::enqueue(&mut alone, &children[..1], std::slice::from_ref(&card)).await.unwrap();
    // It dies here. The call is given to another handler, which finds the batch and its tasks.
    waybill_kernel::call::reclaim(&mut alone, call.tool_call_id, call.claim_token, false).await.unwrap();
    let again = house.claim_calls("sys-pmo", 1).await.remove(0);
    let opened = batch::open(&mut alone, again.tool_call_id, again.claim_token, &fork).await.unwrap();
    assert!(opened.duplicate);
    let left = batch::undispatched(&mut house.t.begin().await, opened.batch_id).await.unwrap();
    assert_eq!(left, [(1, fork.tasks[1])]);
    let answers = turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
    assert_eq!(answers.iter().map(|a| a.duplicate).collect::<Vec<_>>(), [true, false]);
    assert!(batch::dispatched(&mut alone, again.tool_call_id, again.claim_token).await.unwrap());
    for _ in 0..2 {
        let child = house.claim().await.unwrap();
        house.end_child(&child, End::Success).await;
    }
    assert_eq!(house.told(&house.claim().await.unwrap()).await["status"], "success");
}

/// PM-9: no child is dispatched after its batch has ended, nor under another id than its task's.
#[tokio::test]
async fn a_child_comes_too_late_for_its_batch() {
    let house = House::new().await;
    let family = house.family(1, true, LONG).await;
    let card = instruction("x");
    let stranger = DispatchRequest {
        batch_id: Some(family.batch_id),
        task_index: Some(0),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    let both = [stranger.clone(), DispatchRequest::instructed(house.agent().await, card.card_id())];
    for n in [1, 2] {
        let outcome = house.enqueue_all(&both[..n], std::slice::from_ref(&card)).await;
        assert!(crate::turns::is_stale(&outcome), "{outcome:?}");
    }
    // A fork of two, of which one was never dispatched: the failure of the other ends the batch, and it stays undispatched.
    let parent = house.running_other().await;
    let call = house.ask_for_fork(&parent).await;
    let Plan { fork, children, card } = house.plan_fork(2, true, LONG);
    house.make(&children).await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
    turn::enqueue(&mut alone, &children[..1], &[card]).await.unwrap();
    let child = house.claim().await.unwrap();
    house.end_child(&child, End::Failed).await;
    house.sweep().await;
    assert_eq!(house.count("select count(*) from state.pmo_batches where stopping").await, 0);
    let outcome = house.enqueue_all(&children[1..], &[]).await;
    assert!(crate::turns::is_stale(&outcome), "{outcome:?}");
    assert_eq!(house.count("select count(*) from state.pmo_batch_tasks where status = 'canceled'").await, 1);
}

/// A parent that ends takes its forks with it.
#[tokio::test]
async fn the_children_of_an_ended_parent_are_stopped() {
    let house = House::new().await;
    let family = house.family(2, false, LONG).await;
    let running = house.claim().await.unwrap();
    house.stop(family.parent.agent_turn_id()).await.unwrap();
    let swept = house.sweep().await;
    assert_eq!((swept.batches_closed, swept.batches_stopped), (1, 1));
    assert!(house.claim().await.is_none(), "the other child was dispatched, and has ended");
    let stepped = house.step(&running.fence, &calling(0, "x", LONG, false)).await.unwrap();
    assert!(stepped.stop_reason.is_some());
    house.end_child(&running, End::Canceled).await;
    assert_eq!(house.count("select count(*) from state.turns where status = 'open'").await, 0);
}

/// PM-11: a batch that gives its call back does so whether its last child ends before its handler has left the call, or after.
#[tokio::test]
async fn a_call_is_given_back_early_or_late() {
    let house = House::new().await;
    for early in [true, false] {
        let parent = house.running_other().await;
        let call = house.ask_for_fork(&parent).await;
        let Plan { fork, children, card } = house.plan_fork(1, false, LONG);
        house.make(&children).await;
        let fork = Fork { joins_as: batch::JoinsAs::Resume, ..fork };
        let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
        batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
        turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
        let leave = async |alone: &mut _| batch::dispatched(alone, call.tool_call_id, call.claim_token).await.unwrap();
        if !early {
            assert!(leave(&mut alone).await);
        }
        let child = house.claim().await.unwrap();
        house.end_child(&child, End::Success).await;
        if early {
            assert!(house.claim_calls("sys-pmo", 1).await.is_empty(), "its handler has it");
            assert!(leave(&mut alone).await);
        }
        assert!(house.claim().await.is_none(), "the parent waits");
        let again = house.claim_calls("sys-pmo", 1).await.pop().expect("the call is back");
        assert_eq!(again.tool_call_id, call.tool_call_id);
        // The next stage, with a result.
        let next = Fork { stage: 1, ..house.plan_fork(1, false, LONG).fork };
        let opened = batch::open(&mut alone, again.tool_call_id, again.claim_token, &next).await.unwrap();
        assert!(!opened.duplicate);
        let mut work = house.t.begin().await;
        batch::fail_tasks(&mut work, next.batch_id, &[0], "busy").await.unwrap();
        work.commit().await.unwrap();
        let parent = house.claim().await.expect("the second batch has answered");
        assert_eq!(house.told(&parent).await["results"][0]["error"], "busy");
        house.finish(parent.fence).await.unwrap();
    }
}

/// PM-9: a child learns with its next step that its batch has ended, also before a sweep has asked it to stop.
#[tokio::test]
async fn a_step_hears_that_its_batch_has_ended() {
    let house = House::new().await;
    house.family(2, true, LONG).await;
    let (fails, runs) = (house.claim().await.unwrap(), house.claim().await.unwrap());
    assert_eq!(house.step(&runs.fence, &calling(0, "x", LONG, false)).await.unwrap().stop_reason, None);
    house.end_child(&fails, End::Failed).await;
    let heard = house.step(&runs.fence, &calling(1, "x", LONG, true)).await.unwrap();
    assert!(!heard.suspended && heard.stop_reason.is_some(), "{heard:?}");
}

/// The counters of a batch go with its end, however it ends; a child that ends later counts for nothing and is on record all the same.
#[tokio::test]
async fn the_counters_go_with_their_batch() {
    let house = House::new().await;
    let slots = "select count(*) from state.pmo_batch_slots";
    // By its last child.
    house.family(3, false, LONG).await;
    assert_eq!(house.count(slots).await, 3);
    for _ in 0..3 {
        let child = house.claim().await.unwrap();
        house.end_child(&child, End::Success).await;
    }
    assert_eq!(house.count(slots).await, 0);
    // By the first failure, and by its deadline: once the other children know.
    for fail_fast in [true, false] {
        let parent = house.claim().await.unwrap();
        house.finish(parent.fence).await.unwrap();
        house.family(4, fail_fast, LONG).await;
        let (first, late) = (house.claim().await.unwrap(), house.claim().await.unwrap());
        house.end_child(&first, if fail_fast { End::Failed } else { End::Success }).await;
        if !fail_fast {
            house.meddle("update state.pmo_batches set deadline_at = now() where status = 'open'").await;
        }
        house.sweep().await; // closes what is overdue, and asks the children to stop
        house.sweep().await; // finds that all of them know
        assert_eq!(house.count(slots).await, 0, "fail_fast: {fail_fast}");
        assert_eq!(house.count("select count(*) from state.pmo_batches where stopping or status = 'open'").await, 0);
        house.end_child(&late, End::Failed).await;
        let open = "select count(*) from state.pmo_batch_tasks where status = 'open'";
        assert_eq!(house.count(open).await, 0, "fail_fast: {fail_fast}");
    }
    // By giving its tasks up.
    let parent = house.running_other().await;
    let call = house.ask_for_fork(&parent).await;
    let fork = house.plan_fork(2, false, LONG).fork;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
    let mut work = house.t.begin().await;
    batch::fail_tasks(&mut work, fork.batch_id, &[0, 1], "busy").await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(house.count(slots).await, 0);
}
