//! What turns cost (DESIGN §8), counted: statements, commits, updates that stay on their page.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use waybill_core::id::TurnId;
use waybill_kernel::{
    lease, sweep, turn,
    turn::{Claiming, DispatchRequest},
};

use crate::turns::{House, LONG, ending, instruction, target};

/// Hears every statement that leaves for the database.
#[derive(Clone, Default)]
pub(crate) struct Statements(Arc<Mutex<Vec<String>>>);

impl Statements {
    /// What was heard since. A new connection asks once for each type it meets, and the pool four times a second whether the server takes writes,
    /// in the place of a ping: that is not a turn's.
    pub(crate) fn take(&self) -> Vec<String> {
        let heard = std::mem::take(&mut *self.0.lock().unwrap());
        heard.into_iter().filter(|sql| !sql.contains("pg_type") && !sql.contains("transaction_read_only")).collect()
    }
}

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Summary(String);
        impl Visit for Summary {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "summary" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut summary = Summary(String::new());
        event.record(&mut summary);
        self.0.lock().unwrap().push(summary.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// DESIGN §8: a trivial turn is at most three commits and twelve statements. Ours is three of both: each transition is one
/// statement, and alone it is the whole transaction.
#[tokio::test]
async fn a_trivial_turn_is_three_statements() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    let statements = Statements::default();
    let _guard = tracing::subscriber::set_default(statements.clone());
    let card = instruction("x");
    let request = [DispatchRequest::instructed(agent_id, card.card_id())];
    turn::enqueue(&mut alone, &request, &[card]).await.unwrap();
    let claimed = house.claim().await.unwrap();
    turn::finish(&mut alone, &[ending(claimed.fence)]).await.unwrap();
    let heard = statements.take();
    assert_eq!(heard.len(), 3, "{heard:?}");

    // A child of a batch ends in a unit of work, because its end may be the batch's: begin, finish, commit.
    drop(alone);
    house.family(2, false, LONG).await;
    let child = house.claim().await.unwrap();
    statements.take();
    house.finish(child.fence).await.unwrap();
    assert_eq!(statements.take().len(), 3);
    // The last one joins, and reports to its parent.
    let child = house.claim().await.unwrap();
    statements.take();
    house.finish(child.fence).await.unwrap();
    let heard = statements.take();
    assert!(heard.len() <= 6, "{heard:?}");
}

/// L0-14, DESIGN §8: idle and waiting agents cause no queries at all.
#[tokio::test]
async fn idle_and_waiting_agents_cost_nothing() {
    let house = House::new().await;
    let statements = Statements::default();
    let _guard = tracing::subscriber::set_default(statements.clone());
    // What a process with nothing to do does: sweeps, looks for work, renews its lease.
    let rest = async || {
        statements.take();
        sweep::tick(house.kernel(), &sweep::Config::default()).await.unwrap();
        assert!(house.claim().await.is_none());
        lease::renew::<TurnId>(house.kernel(), house.worker, LONG).await.unwrap();
        statements.take().len()
    };
    let alone = rest().await;
    house
        .meddle(
            "insert into state.agent_state_head (project_id, agent_id, worker_target, status, active_agent_turn_id)
             select '019a0000-0000-7000-8000-000000000001', gen_random_uuid(), 'llm',
                    case when n % 11 = 0 then 'suspended' else 'idle' end, case when n % 11 = 0 then gen_random_uuid() end
               from generate_series(1, 110000) n",
        )
        .await;
    house
        .meddle(
            "with waiting as (
               insert into state.agent_inbox (project_id, agent_turn_id, agent_id, status, worker_target)
               select project_id, active_agent_turn_id, agent_id, 'deferred', 'llm'
                 from state.agent_state_head where status = 'suspended'
            returning *
             )
             insert into state.waiting_calls
                    (project_id, tool_call_id, agent_turn_id, agent_id, step_id, target, status, tool_call_card_id, deadline_at)
             select project_id, gen_random_uuid(), agent_turn_id, agent_id, gen_random_uuid(), 'tool', 'awaiting', gen_random_uuid(),
                    now() + interval '1 hour'
               from waiting",
        )
        .await;
    assert_eq!(house.count("select count(*) from state.waiting_calls").await, 10_000);
    assert_eq!(rest().await, alone, "statements, with 100,000 idle and 10,000 waiting agents");
    assert!(alone <= 14, "{alone}");
}

/// LESSONS: the head is updated three times a turn, and stays on its page. Runs alone: see `.config/nextest.toml`.
#[tokio::test]
async fn updates_of_the_head_stay_on_their_page() {
    let house = House::new().await;
    let agents = house.agents(300).await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    for round in 0..3 {
        for part in agents.chunks(if round == 1 { 30 } else { 1 }) {
            let cards = [instruction("x")];
            let requests: Vec<_> = part.iter().map(|a| DispatchRequest::instructed(*a, cards[0].card_id())).collect();
            turn::enqueue(&mut alone, &requests, &cards).await.unwrap();
            let most = part.len() as i32;
            let mut claiming = Claiming { most, ..Claiming::new(house.worker, target("llm")) };
            let claimed = turn::claim(house.kernel(), &mut claiming).await.unwrap();
            let endings: Vec<_> = claimed.iter().map(|claimed| ending(claimed.fence)).collect();
            turn::finish(&mut alone, &endings).await.unwrap();
        }
    }
    drop(alone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    house.kernel().close().await; // a connection that is closed reports its statistics
    let hot =
        "select (100 * n_tup_hot_upd / n_tup_upd)::bigint from pg_stat_user_tables where relname = 'agent_state_head'";
    let updates = "select n_tup_upd from pg_stat_user_tables where relname = 'agent_state_head'";
    for _ in 0..100 {
        if house.count(updates).await >= 2_700 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(house.count(updates).await >= 2_700, "{}", house.count(updates).await);
    assert!(house.count(hot).await >= 95, "{} % of {}", house.count(hot).await, house.count(updates).await);
}
