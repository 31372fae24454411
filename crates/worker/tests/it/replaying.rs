//! CX-11, NX-1: the same bytes again, from what is stored.

use waybill_context::{diff::diff, receipt};
use waybill_core::{
    card::{NewCard, Role},
    id::StepId,
};
use waybill_kernel::card;
use waybill_orchestrator::replay::{self, Error, replay};

use crate::{Desk, sealed, tool_round};

impl Desk {
    /// Asks for the next call's bytes, and keeps its receipt with a step that says something.
    async fn call(&self, claimed: &crate::Claimed, answer: &[NewCard]) -> (StepId, Vec<u8>) {
        let gathered = self.gather(claimed).await;
        let call = gathered.materials.call(&self.config()).unwrap();
        let receipt = serde_json::to_string(&call.receipt).unwrap();
        (self.step(claimed, answer, Some(receipt)).await, call.request)
    }
}

/// Rendered again after everything has ended, and after more was said: what each call saw is what it saw.
#[tokio::test]
async fn every_call_of_a_turn_can_be_had_again() {
    let desk = Desk::new().await;
    let project_id = desk.t.project_id;
    let session_id = desk.session().await;
    let before: Vec<NewCard> = [(Role::User, "one"), (Role::Assistant, "two"), (Role::User, "three")]
        .map(|(role, text)| sealed(role, text))
        .into();
    desk.remember(session_id, &before).await;
    let claimed = desk.ask(session_id, "four?").await;
    let turn_id = claimed.fence.agent_turn_id();
    let mut sent = vec![desk.call(&claimed, &tool_round("five", "six")).await];

    // One card ends between the calls: the second does not see it.
    let mut work = desk.t.begin().await;
    card::delete(&mut work, &[before[1].card_id()], "wrong").await.unwrap();
    work.commit().await.unwrap();
    sent.push(desk.call(&claimed, &[sealed(Role::Assistant, "seven")]).await);
    assert!(String::from_utf8(sent[0].1.clone()).unwrap().contains("\"two\""));
    assert!(!String::from_utf8(sent[1].1.clone()).unwrap().contains("\"two\""));
    desk.finish(&claimed, "eight").await;

    // And now everything else ends.
    let mut work = desk.t.begin().await;
    card::delete(&mut work, &[before[0].card_id(), before[2].card_id()], "old").await.unwrap();
    work.commit().await.unwrap();
    let listed = replay::list(&mut desk.t.begin().await, turn_id).await.unwrap();
    assert_eq!(listed.iter().map(|(step_id, _)| *step_id).collect::<Vec<_>>(), [sent[0].0, sent[1].0]);
    let mut calls = Vec::new();
    for (step_id, request) in &sent {
        let call = replay(&mut desk.t.begin().await, turn_id, Some(*step_id)).await.unwrap();
        assert!(call.request == *request, "step {step_id}");
        calls.push(call);
    }

    // NX-2: what broke the prefix is the card that was deleted.
    let found = diff(&calls[0], &calls[1]);
    assert_eq!(found.first_break.unwrap().message, 3);
    assert_eq!(found.only_left.iter().map(|line| line.card_id).collect::<Vec<_>>(), [before[1].card_id()]);

    // Erased, it is named, and its hash still stands for it.
    let mut owner = desk.t.owner().await;
    card::erase(&mut owner, project_id, &[before[0].card_id()], "asked").await.unwrap();
    match replay(&mut desk.t.begin().await, turn_id, Some(sent[0].0)).await {
        Err(Error::Render(receipt::Error::Erased { card_ids, cards_verified: true })) => {
            assert_eq!(card_ids, [before[0].card_id()]);
        }
        other => panic!("{other:?}"),
    }
    let unknown = replay(&mut desk.t.begin().await, turn_id, Some(StepId::new())).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })));
    let elsewhere =
        replay(&mut desk.kernel().begin(waybill_core::id::ProjectId::new()).await.unwrap(), turn_id, Some(sent[0].0))
            .await;
    assert!(matches!(elsewhere, Err(Error::NotFound { .. })), "another project learns nothing");
}
