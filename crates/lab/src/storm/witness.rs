//! Checks that are possible only during a storm: a queue's mark, and what a prune would drop at that moment.

use std::{collections::HashSet, time::Duration};

use anyhow::Result;
use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use uuid::Uuid;
use waybill_core::id::TurnId;
use waybill_kernel::{retention, work::Kernel};

use super::{PROJECTS, schedule::Plan};
use crate::figure::{Bar, Figure};

const PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
struct Seen {
    looks: usize,
    marked: HashSet<(Uuid, String)>,
    hidden: HashSet<TurnId>,
    pruned: HashSet<TurnId>,
}

/// Observes a storm from its beginning to its end.
#[derive(Debug)]
pub(super) struct Witness {
    over: watch::Sender<bool>,
    looking: JoinHandle<Seen>,
}

impl Witness {
    /// Starts to observe. `url` is an administrator's.
    pub(super) fn begin(url: String, kernel: Kernel) -> Witness {
        let (over, ended) = watch::channel(false);
        let looking = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !*ended.borrow() {
                // While the server is down, there is nothing to see.
                let _ = look(&url, &kernel, &ended, &mut seen).await;
                sleep(PAUSE).await;
            }
            seen
        });
        Witness { over, looking }
    }

    pub(super) async fn end(self, plan: &Plan) -> Result<[Figure; 4]> {
        self.over.send_replace(true);
        let seen = self.looking.await?;
        let (none, some) = (Bar::AtMost(0.0), Bar::AtLeast(plan.duration.as_secs_f64() / 2.0));
        // A queue is examined again after five hundred places were drawn in all queues together, and is marked the second time.
        let marked = Bar::AtLeast(PROJECTS.min(plan.turns / 60) as f64);
        let count = |what: &str, n: usize, unit: &'static str, bar: Bar| Figure::new(what, n as f64, unit, bar);
        Ok([
            count("looks at queues and at what a prune would drop", seen.looks, "looks", some),
            count("queues that were marked", seen.marked.len(), "queues", marked),
            count("turns that were ready before the mark of their queue", seen.hidden.len(), "turns", none),
            count(
                "live turns and unpublished events that a prune would have dropped",
                seen.pruned.len(),
                "turns",
                none,
            ),
        ])
    }
}

async fn look(url: &str, kernel: &Kernel, ended: &watch::Receiver<bool>, seen: &mut Seen) -> Result<()> {
    let mut admin = PgConnection::connect(url).await?;
    while !*ended.borrow() {
        let marked: Vec<(Uuid, String)> =
            sqlx::query_as("select project_id, worker_target::text from state.queue_marks where new_seq > 0")
                .fetch_all(&mut admin)
                .await?;
        seen.marked.extend(marked);
        let hidden: Vec<TurnId> = sqlx::query_scalar(
            "select i.agent_turn_id
               from state.agent_inbox i
               join state.queue_marks m on m.project_id = i.project_id and m.worker_target = i.worker_target
              where i.status = 'pending' and i.inbox_seq < case when i.inbox_seq < 0 then m.begun_seq else m.new_seq end",
        )
        .fetch_all(&mut admin)
        .await?;
        seen.hidden.extend(hidden);
        // A turn that is needed both before and after the plan was made was needed during it too.
        let before = needed(&mut admin).await?;
        let plan = retention::plan(kernel, &mut admin, Duration::ZERO, false).await?;
        let after = needed(&mut admin).await?;
        let dropped = |turn_id: &&TurnId| turn_id.minted_at().is_some_and(|at: DateTime<Utc>| at < plan.before);
        seen.pruned.extend(before.intersection(&after).filter(dropped).copied());
        seen.looks += 1;
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns turns that have not ended, or that have an unpublished event. If no relay has ever published, no reader waits for events.
async fn needed(admin: &mut PgConnection) -> Result<HashSet<TurnId>> {
    let turns: Vec<TurnId> = sqlx::query_scalar(
        "select agent_turn_id from state.agent_inbox
          union
         select agent_turn_id from state.outbox
          where published_at is null and exists (select from state.relay_shards where stream_made_at is not null)",
    )
    .fetch_all(admin)
    .await?;
    Ok(turns.into_iter().collect())
}
