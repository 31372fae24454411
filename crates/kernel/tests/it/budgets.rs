//! What turns may spend, and what is done once.

use waybill_core::{
    card::NewCard,
    id::{AgentId, TurnId},
    turn::{Budget, Limit, Limits, Usage},
};
use waybill_kernel::turn::{DispatchRequest, Ending, Error, Given, Step};

use crate::turns::{House, LONG, calling, ending, instruction};

/// A turn of a new agent that has limits, and is a child of another where one is named.
pub(crate) async fn limited(house: &House, limits: Limits, parent: Option<TurnId>) -> (DispatchRequest, NewCard) {
    let card = instruction("do it");
    let request = DispatchRequest {
        limits: Some(limits),
        parent_agent_turn_id: parent,
        ..DispatchRequest::instructed(AgentId::new(), card.card_id())
    };
    let agents = [request.agent_id];
    let mut work = house.t.begin().await;
    waybill_kernel::agent::create(&mut work, &agents, &crate::turns::target("llm")).await.unwrap();
    work.commit().await.unwrap();
    (request, card)
}

fn limits(steps: u32, tokens: u32) -> Limits {
    Limits { steps: Some(steps), tokens: Some(tokens), ..Limits::default() }
}

fn used(tokens: u32) -> Option<Usage> {
    Some(Usage { input_tokens: tokens - 1, output_tokens: 1, microdollars: 7, ..Usage::default() })
}

async fn left(house: &House, turn_id: TurnId) -> Option<(Option<i64>, Option<i64>)> {
    let mut work = house.t.begin().await;
    let budget: Option<sqlx::types::Json<Budget>> = sqlx::query_scalar("select state.budget_of($1, $2)")
        .bind(house.t.project_id)
        .bind(turn_id)
        .fetch_one(&mut *work)
        .await
        .unwrap();
    budget.map(|budget| (budget.steps, budget.tokens))
}

/// Spent in the transaction of the step, once however often it is written, and gone with the turn.
#[tokio::test]
async fn a_step_spends_what_it_used() {
    let house = House::new().await;
    let (request, card) = limited(&house, limits(3, 100), None).await;
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    let step = Step { usage: used(40), ..calling(0, "tool", LONG, false) };
    let stepped = house.step(&fence, &step).await.unwrap();
    let after = stepped.budget.unwrap();
    assert_eq!((after.steps, after.tokens, after.microdollars), (Some(2), Some(60), None));
    let again = house.step(&fence, &step).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(again.budget.unwrap().tokens, Some(60), "written again it spends nothing");
    let over = house.step(&fence, &Step { usage: used(70), ..calling(0, "tool", LONG, false) }).await.unwrap();
    assert_eq!(over.budget.unwrap().exhausted(), Some(Limit::Tokens), "one step may go over");
    house.finish(fence).await.unwrap();
    assert_eq!(left(&house, fence.agent_turn_id()).await, None);
    let (tokens, microdollars): (i64, i64) = sqlx::query_as(
        "select sum(input_tokens + output_tokens), sum(microdollars)::bigint from state.agent_steps where model is not null",
    )
    .fetch_one(&mut house.t.admin().await)
    .await
    .unwrap();
    assert_eq!((tokens, microdollars), (110, 14), "what was used is on record");
}

/// What a child may spend is taken from its parent's, in equal shares, and the rest comes back.
#[tokio::test]
async fn a_child_spends_its_parents() {
    let house = House::new().await;
    let (request, card) = limited(&house, limits(9, 900), None).await;
    let parent = request.agent_turn_id;
    house.enqueue_all(&[request], &[card]).await.unwrap();
    house.claim().await.unwrap();
    // Two of three that are to come: a quarter each; one wants less.
    let (one, card_one) = limited(&house, Limits::default(), Some(parent)).await;
    let (two, card_two) = limited(&house, limits(1, 9_999), Some(parent)).await;
    let [one, two] = [one, two].map(|request| DispatchRequest { shares: Some(4), ..request });
    house.enqueue_all(&[one.clone(), two.clone()], &[card_one, card_two]).await.unwrap();
    assert_eq!(left(&house, one.agent_turn_id).await, Some((Some(2), Some(225))));
    assert_eq!(left(&house, two.agent_turn_id).await, Some((Some(1), Some(225))));
    assert_eq!(left(&house, parent).await, Some((Some(6), Some(450))));

    let fence = house.claim().await.unwrap().fence;
    assert_eq!(fence.agent_turn_id(), one.agent_turn_id);
    let last = Ending { usage: used(300), ..ending(fence) };
    let mut work = house.t.begin().await;
    waybill_kernel::turn::finish(&mut work, &[last]).await.unwrap();
    work.commit().await.unwrap();
    // It went over by 75 tokens, which its parent pays for.
    assert_eq!(left(&house, parent).await, Some((Some(7), Some(375))));
    house.stop(two.agent_turn_id).await.unwrap();
    assert_eq!(left(&house, parent).await, Some((Some(8), Some(600))), "the rest comes back, however it ended");
    assert_eq!(house.count("select count(*) from state.budgets").await, 1);
    let broken = waybill_kernel::invariant::of_project(house.kernel(), house.t.project_id).await.unwrap();
    assert!(broken.is_empty(), "what came back was not used: {broken:?}");
}

/// WK-8: what a turn was given is on record with it, also when it is over; a turn without limits was given none.
#[tokio::test]
async fn what_a_turn_was_given_outlives_its_budget() {
    let house = House::new().await;
    let (request, card) = limited(&house, Limits { seconds: Some(60), ..limits(9, 900) }, None).await;
    let parent = request.agent_turn_id;
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let (child, card) = limited(&house, limits(1, 9_999), Some(parent)).await;
    house.enqueue_all(std::slice::from_ref(&child), &[card]).await.unwrap();
    for turn_id in [child.agent_turn_id, parent] {
        house.stop(turn_id).await.unwrap();
    }
    assert_eq!(house.count("select count(*) from state.budgets").await, 0);
    let turn = house.turn(parent).await;
    let deadline_at = Some(turn.created_at + chrono::TimeDelta::seconds(60));
    let given = Given { steps: Some(9), tokens: Some(900), microdollars: None, deadline_at };
    assert_eq!(turn.limits, Some(given));
    let given = Given { steps: Some(1), tokens: Some(450), ..given };
    assert_eq!(house.turn(child.agent_turn_id).await.limits, Some(given), "of its parent's, its share");
    let plain = house.enqueue(house.agent().await).await.agent_turn_id;
    assert_eq!(house.turn(plain).await.limits, None);
}

/// There is nothing to give: the child is refused, and nothing of it is written.
#[tokio::test]
async fn nothing_left_is_nothing_given() {
    let house = House::new().await;
    let (request, card) = limited(&house, limits(1, 900), None).await;
    let parent = request.agent_turn_id;
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let (child, card) = limited(&house, Limits::default(), Some(parent)).await;
    let refused = house.enqueue_all(&[child], &[card]).await;
    assert!(matches!(&refused, Err(Error::BudgetExhausted(what)) if what == "steps"), "{refused:?}");
    assert_eq!(left(&house, parent).await, Some((Some(1), Some(900))));
    assert_eq!(house.count("select count(*) from state.turns").await, 1);
    // Nor may a turn that is over hand anything on: what it had went back.
    house.stop(parent).await.unwrap();
    let (late, card) = limited(&house, Limits::default(), Some(parent)).await;
    let late = DispatchRequest { limits: None, ..late };
    assert!(matches!(house.enqueue_all(&[late], &[card]).await, Err(Error::BudgetExhausted(_))));
}

/// WK-7: the process that held the calls is lost: a call that may be done once is answered as unknown, and the others are given to another process.
#[tokio::test]
async fn what_is_done_once_is_never_done_again() {
    let house = House::new().await;
    let fence = house.running().await;
    let mut step = calling(2, "tool", LONG, true);
    step.calls[1].once = true;
    house.step(&fence, &step).await.unwrap();
    assert_eq!(house.claim_calls("tool", 8).await.len(), 2);
    waybill_kernel::lease::end(house.kernel(), house.worker).await.unwrap();
    assert_eq!(house.sweep().await.calls_reclaimed, 2);
    let house = House::of(house.t).await;
    let again = house.claim_calls("tool", 8).await;
    assert_eq!(again.iter().map(|call| call.tool_call_id).collect::<Vec<_>>(), [step.calls[0].tool_call_id]);
    let unknown = "select count(*) from cardbox.cards where content ->> 'status' = 'outcome_unknown'";
    assert_eq!(house.count(unknown).await, 1);
}
