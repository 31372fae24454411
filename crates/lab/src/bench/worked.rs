//! What the API adds to the work of a worker: the median time of a step and of the end of a turn over HTTP, compared with the same inside the process.

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use waybill_core::{
    card::{CardType, NewCard, Role},
    id::{AgentId, CardId, ProjectId, StepId, TurnId},
    key::{ApiKey, Bounds, Scope},
    turn::{ClaimToken, End, Fence, TurnEpoch},
};
use waybill_kernel::{
    key,
    turn::{self, Ending, Step},
    work::Kernel,
};
use waybill_orchestrator::launch::{Launch, launch};

use super::{
    api::{CLIENTS, Caller, echo, found, timed},
    draft, median, noise, progress,
};
use crate::figure::{Bar, Figure};

const TARGET: &str = "hands";
/// Turns of each side and round.
const TURNS: usize = 160;
/// As many as one request may claim.
const PORTION: usize = 80;

/// A turn that the API's worker holds.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Held {
    agent_turn_id: TurnId,
    fence: HeldFence,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct HeldFence {
    agent_id: AgentId,
    turn_epoch: TurnEpoch,
    claim_token: ClaimToken,
}

impl HeldFence {
    fn json(self) -> Value {
        json!({ "agent_id": self.agent_id, "turn_epoch": self.turn_epoch, "claim_token": self.claim_token })
    }
}

#[derive(Deserialize)]
struct Claimed {
    turns: Vec<Held>,
}

/// Where the work is done.
#[derive(Clone)]
struct Place {
    kernel: Kernel,
    caller: Caller,
    project_id: ProjectId,
}

/// Measures on the API that serves these projects.
pub(super) async fn run(
    rounds: usize,
    kernel: &Kernel,
    http: &reqwest::Client,
    projects: &str,
    bar: f64,
) -> Result<Vec<Figure>> {
    let (project_id, _) = found(kernel, "worked", &[echo(TARGET)?]).await?;
    let key = ApiKey::mint("bench");
    let mut work = kernel.begin(project_id).await?;
    key::create(&mut work, &key, &"hands".parse()?, Scope::Admin, &Bounds::default(), None).await?;
    work.commit().await?;
    let caller = Caller { http: http.clone(), url: format!("{projects}/worked"), key: key.expose().to_owned() };
    let place = Place { kernel: kernel.clone(), caller, project_id };
    let shown = progress("steps and ends of turns", rounds as u64);
    let (mut steps, mut ends) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let held = place.claim(2 * TURNS).await?;
        let (near, far) = held.split_at(TURNS);
        let (step, end) = if round % 2 == 0 {
            let inside = (place.time(near, Place::step_inside).await?, place.time(near, Place::end_inside).await?);
            let outside = (place.time(far, Place::step_outside).await?, place.time(far, Place::end_outside).await?);
            (outside.0 / inside.0, outside.1 / inside.1)
        } else {
            let outside = (place.time(far, Place::step_outside).await?, place.time(far, Place::end_outside).await?);
            let inside = (place.time(near, Place::step_inside).await?, place.time(near, Place::end_inside).await?);
            (outside.0 / inside.0, outside.1 / inside.1)
        };
        // The first round warms up connections and plans.
        if round > 0 {
            steps.push(step);
            ends.push(end);
            shown.inc(1);
        }
    }
    shown.finish_and_clear();
    let figure = |what: &str, ratios| {
        Figure::new(
            format!("{what} over HTTP ÷ inside the process, 32 clients"),
            median(ratios),
            "ratio",
            Bar::AtMost(bar),
        )
    };
    Ok(vec![figure("writing a step", steps), figure("finishing a turn", ends)])
}

impl Place {
    /// Starts turns, and lets the API's worker claim them.
    async fn claim(&self, n: usize) -> Result<Vec<Held>> {
        let starts = stream::iter(0..n).map(|_| async {
            let mut work = self.kernel.begin(self.project_id).await?;
            launch(&mut work, &Launch::new("echo".parse()?, "Say this once more.")).await?;
            anyhow::Ok(work.commit().await?)
        });
        starts.buffer_unordered(CLIENTS).try_collect::<Vec<_>>().await?;
        let mut held = Vec::new();
        while held.len() < n {
            let asked = json!({ "worker": "hands", "target": TARGET, "most": PORTION, "lease_seconds": 300 });
            let claimed: Claimed = serde_json::from_str(&self.caller.post("/worker/claim", &asked).await?)?;
            ensure!(!claimed.turns.is_empty(), "{} of {n} turns were claimed, and then none", held.len());
            held.extend(claimed.turns);
        }
        Ok(held)
    }

    /// Lets all clients together do this with these turns, and returns how many seconds one takes: the median.
    async fn time<F>(&self, held: &[Held], act: impl Fn(Place, Held) -> F) -> Result<f64>
    where
        F: Future<Output = Result<()>>,
    {
        let acts = stream::iter(held).map(|held| timed(act(self.clone(), *held)));
        Ok(median(acts.buffer_unordered(CLIENTS).try_collect().await?))
    }

    fn fence(&self, held: Held) -> Fence {
        let HeldFence { agent_id, turn_epoch, claim_token } = held.fence;
        Fence::claimed(self.project_id, agent_id, held.agent_turn_id, turn_epoch, claim_token)
    }

    async fn step_inside(self, held: Held) -> Result<()> {
        let cards = vec![card(CardType::thought())?];
        let step =
            Step { step_id: StepId::new(), cards, calls: Vec::new(), suspend: false, receipt: None, usage: None };
        let mut work = self.kernel.begin(self.project_id).await?;
        turn::step(&mut work, &self.fence(held), &step).await?;
        Ok(work.commit().await?)
    }

    async fn end_inside(self, held: Held) -> Result<()> {
        let cards = vec![card(CardType::deliverable())?];
        let (fence, step_id) = (self.fence(held), Some(StepId::new()));
        let ending = Ending { fence, status: End::Success, step_id, receipt: None, usage: None, seen: None, cards };
        let mut work = self.kernel.begin(self.project_id).await?;
        turn::finish(&mut work, &[ending]).await?;
        Ok(work.commit().await?)
    }

    async fn step_outside(self, held: Held) -> Result<()> {
        let asked =
            json!({ "fence": held.fence.json(), "step_id": StepId::new(), "cards": [drafted("agent.thought")] });
        self.caller.post(&format!("/turns/{}/steps", held.agent_turn_id), &asked).await.map(drop)
    }

    async fn end_outside(self, held: Held) -> Result<()> {
        let asked = json!({ "fence": held.fence.json(), "step_id": StepId::new(), "status": "success",
            "cards": [drafted("task.deliverable")] });
        self.caller.post(&format!("/turns/{}/finish", held.agent_turn_id), &asked).await.map(drop)
    }
}

/// Makes a card, and counts its tokens as the API does.
fn card(card_type: CardType) -> Result<NewCard> {
    Ok(draft(card_type, Role::Assistant).seal()?)
}

/// Returns a card of the same length as the API reads it.
fn drafted(card_type: &str) -> Value {
    json!({ "card_id": CardId::new(), "type": card_type, "role": "assistant", "content": noise() })
}
