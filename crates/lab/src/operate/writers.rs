//! Writers that enqueue turns, each under its own id, and retry until the turn is known to exist; and the check that every acknowledged turn exists.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use sqlx::PgConnection;
use tokio::{task::JoinSet, time::sleep};
use waybill_core::{
    card::{CardType, Role},
    id::{AgentId, ProjectId, TurnId},
};
use waybill_kernel::{
    agent,
    retry::Transient,
    turn::{self, DispatchRequest},
    work::Kernel,
};

use crate::{
    bench::new_card,
    figure::{Bar, Figure},
};

const WRITERS: usize = 8;
/// Agents per writer: a thousand turns may wait for each agent.
const AGENTS: usize = 200;
/// A write whose outcome is not known by then is an error.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the writers know.
#[derive(Debug, Default)]
pub(super) struct Known {
    over: AtomicBool,
    minted: AtomicU64,
    /// Commits whose outcome was unknown, and that a retry found to exist.
    found: AtomicU64,
    acknowledged: Mutex<Vec<(Instant, TurnId)>>,
}

impl Known {
    pub(super) fn acknowledged(&self) -> Vec<(Instant, TurnId)> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn since(&self, at: Instant) -> Option<Duration> {
        let known = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(acknowledged, _)| *acknowledged).filter(|then| *then > at).min().map(|then| then - at)
    }
}

#[derive(Debug)]
pub(super) struct Writers {
    project_id: ProjectId,
    pub(super) known: Arc<Known>,
    at_work: JoinSet<Result<()>>,
}

impl Writers {
    pub(super) async fn start(kernel: &Kernel) -> Result<Writers> {
        let (project_id, known) = (ProjectId::new(), Arc::new(Known::default()));
        let agents: Vec<AgentId> = (0..WRITERS * AGENTS).map(|_| AgentId::new()).collect();
        let mut work = kernel.begin(project_id).await?;
        agent::create(&mut work, &agents, &"nobody".parse()?).await?;
        work.commit().await?;
        let mut at_work = JoinSet::new();
        for agents in agents.chunks(AGENTS) {
            at_work.spawn(write(kernel.clone(), project_id, agents.to_vec(), known.clone()));
        }
        Ok(Writers { project_id, known, at_work })
    }

    /// Stops the writers, and compares the acknowledged writes with the database.
    pub(super) async fn account(mut self, admin: &mut PgConnection) -> Result<Vec<Figure>> {
        self.known.over.store(true, Relaxed);
        while let Some(writer) = self.at_work.join_next().await {
            writer??;
        }
        let there: Vec<TurnId> = sqlx::query_scalar("select agent_turn_id from state.turns where project_id = $1")
            .bind(self.project_id)
            .fetch_all(&mut *admin)
            .await?;
        let there: HashSet<TurnId> = there.into_iter().collect();
        let acknowledged = self.known.acknowledged();
        let lost = acknowledged.iter().filter(|(_, turn_id)| !there.contains(turn_id)).count();
        let twice: i64 = sqlx::query_scalar(
            "select count(*) from (select from cardbox.boxes
                                    where project_id = $1 and agent_turn_id is not null
                                    group by agent_turn_id having count(*) > 2) e",
        )
        .bind(self.project_id)
        .fetch_one(admin)
        .await?;
        let beyond = (there.len() as u64).abs_diff(self.known.minted.load(Relaxed));
        let found = self.known.found.load(Relaxed);
        let none = Bar::AtMost(0.0);
        Ok(vec![
            Figure::new("acknowledged writes", acknowledged.len() as f64, "writes", Bar::AtLeast(1.0)),
            Figure::new("acknowledged writes that are gone", lost as f64, "writes", none),
            Figure::new("writes that were asked for and are not there once", beyond as f64, "writes", none),
            Figure::new("writes that are there twice", twice as f64, "writes", none),
            Figure::new("commits of unknown outcome, found by their key", found as f64, "commits", Bar::None),
        ])
    }
}

/// Enqueues one turn after the other, each under its own id, and retries until it is known to exist.
async fn write(kernel: Kernel, project_id: ProjectId, agents: Vec<AgentId>, known: Arc<Known>) -> Result<()> {
    for n in 0.. {
        if known.over.load(Relaxed) {
            break;
        }
        let card = new_card(CardType::instruction(), Role::User);
        let request = DispatchRequest::instructed(agents[n % agents.len()], card.card_id());
        known.minted.fetch_add(1, Relaxed);
        let cards = [card];
        let begun = Instant::now();
        let mut was_unknown = false;
        loop {
            let asked = async {
                let mut alone = kernel.alone(project_id).await.map_err(turn::Error::from)?;
                turn::enqueue(&mut alone, std::slice::from_ref(&request), &cards).await
            };
            match asked.await {
                Ok(dispatched) => {
                    let found = was_unknown && dispatched.first().is_some_and(|dispatched| dispatched.duplicate);
                    known.found.fetch_add(u64::from(found), Relaxed);
                    let mut told = known.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                    told.push((Instant::now(), request.agent_turn_id));
                    break;
                }
                Err(error) if error.is_transient() || matches!(error, turn::Error::TryAgain(_)) => {
                    was_unknown = true;
                    sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error).context("a write was refused"),
            }
            ensure!(begun.elapsed() < PATIENCE, "a write was not known within {PATIENCE:?}");
        }
    }
    Ok(())
}
