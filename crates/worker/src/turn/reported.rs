//! The two halves of a step, for a worker elsewhere that asks the model itself and reports its answer (WK-9): what to send, and what comes of the
//! answer. Both are the steps of this crate's own loop; only the call between them is made elsewhere.
//!
//! What is recorded of the call is composed here. That its bytes were sent, and that this is what the model answered, is the reporter's word.

use serde_json::value::RawValue;
use waybill_context::{
    call::{self, Call, Materials, RenderConfig},
    receipt::{Digest, Receipt},
    unit::Omitted,
    wire::Adapter,
};
use waybill_core::{
    artifact::ArtifactPath,
    id::{Name, StepId},
    resource::LlmConfig,
    turn::{Budget, End, Fence, Usage},
};
use waybill_kernel::{
    offload, project,
    retry::retry,
    turn::{self, Claimed},
};

use super::{Error, Halt, Next, Outcome, Turn, end, think::ModelStep};
use crate::{
    gather::gather_again,
    model::{self, Answer, Answered},
    serve::Worker,
};

/// How many tool calls an answer may have.
const MOST_CALLS: usize = 100;

/// The worker that asks the model.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The author of what is written.
    pub actor: String,
    /// The folders whose artifacts its tool calls may use. `None` means all that the turn itself may use.
    pub paths: Option<Vec<ArtifactPath>>,
}

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Composed {
    /// The id that the step will have.
    pub step_id: StepId,
    pub provider: Name,
    pub model: String,
    pub adapter: Adapter,
    /// The request, byte for byte.
    pub request: Vec<u8>,
    pub receipt: Receipt,
    /// By which the server recognises the receipt as its own, and as that of this step.
    pub seal: Digest,
    /// Cards that the model is not shown.
    pub omitted: Vec<Omitted>,
    /// Whether the context is long enough to be compacted: it was composed without a new summary, because that takes a model.
    pub compaction_due: bool,
    /// What the turn may still spend.
    pub left: Budget,
}

/// What a turn needs next.
#[derive(Clone, Debug)]
pub enum Needs {
    Model(Box<Composed>),
    /// Nothing: it has ended, because it was stopped, has used up a limit, cannot be composed, or has its result.
    Nothing(End),
}

/// What a worker reports of a model call.
#[derive(Debug)]
pub struct ModelReport {
    pub step_id: StepId,
    pub proof: Proof,
    /// The provider's answer, as it came.
    pub response: Box<RawValue>,
    /// What the call used, as far as the provider's answer does not say it. A provider that is named here is the one that was asked.
    pub usage: Usage,
}

/// Which call was made.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The receipt that came with the request, and its seal.
    Receipt { receipt: Box<Receipt>, seal: Digest },
    /// The hash of the request. It must be composed again to the same bytes.
    Hash(Digest),
}

/// Why nothing was composed, or nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the profile has {0} fallback models: `fallback` must be at most that")]
    NoFallback(usize),
    /// The request to this model cannot be written.
    #[error(transparent)]
    Model(model::Error),
    #[error(
        "this is not the receipt or the hash of the turn's next model call: compose the request again, and send it"
    )]
    Mismatch,
    #[error("the response of the provider cannot be used: {0}")]
    Response(#[source] model::Error),
}

/// Composes the next request of a turn: with its model, or with the n-th fallback of it. If nothing is to be asked any more, ends the turn.
pub async fn compose(worker: &Worker, claimed: &Claimed, reporter: Reporter, fallback: usize) -> Result<Needs, Error> {
    let halt = match next_request(worker, claimed, reporter, fallback).await {
        Ok(needs) => return Ok(needs),
        Err(halt) => halt,
    };
    match end::halt(worker, claimed, halt).await? {
        Outcome::Finished(end) => Ok(Needs::Nothing(end)),
        _ => Err(turn::Error::Stale(claimed.fence.to_string()).into()),
    }
}

async fn next_request(worker: &Worker, claimed: &Claimed, reporter: Reporter, fallback: usize) -> Result<Needs, Halt> {
    let mut turn = Turn::load(worker, claimed).await?;
    turn.reporter = Some(reporter);
    while let Some(next) = turn.begin(false).await? {
        if let Next::Done(Outcome::Finished(end)) = next {
            return Ok(Needs::Nothing(end));
        }
    }
    let llm = turn.llms.get(fallback).ok_or(Refused::NoFallback(turn.llms.len() - 1))?;
    let config = turn.config(llm).map_err(Refused::Model)?;
    let adapter = config.adapter;
    let call = composed(turn.gathered().materials.clone(), config).await?;
    turn.afford(&call)?;
    let compaction_due = turn.is_compaction_due()?;
    let Call { composed, request, mut receipt } = call;
    receipt.reported = true;
    let step_id = StepId::new();
    let seal = seal(worker, &claimed.fence, step_id, &receipt).await?;
    Ok(Needs::Model(Box::new(Composed {
        step_id,
        provider: llm.provider.clone(),
        model: llm.model.clone(),
        adapter,
        request,
        receipt,
        seal,
        omitted: composed.omitted,
        compaction_due,
        left: turn.left(),
    })))
}

/// Writes what a model answered elsewhere, as if it had been asked here. Returns what became of the turn; `None` means that it goes on.
pub async fn answer(
    worker: &Worker,
    claimed: &Claimed,
    reporter: Reporter,
    report: ModelReport,
) -> Result<Option<Outcome>, Error> {
    match written(worker, claimed, reporter, report).await {
        Ok(Next::Step) => Ok(None),
        Ok(Next::Done(outcome)) => Ok(Some(outcome)),
        Err(halt) => Ok(Some(end::halt(worker, claimed, halt).await?)),
    }
}

async fn written(worker: &Worker, claimed: &Claimed, reporter: Reporter, report: ModelReport) -> Result<Next, Halt> {
    let ModelReport { step_id, proof, response, usage: said } = report;
    if let Proof::Receipt { receipt, seal: given } = &proof
        && !seal(worker, &claimed.fence, step_id, receipt).await?.is_same(given)
    {
        return Err(Refused::Mismatch.into());
    }
    let mut turn = Turn::load(worker, claimed).await?;
    turn.reporter = Some(reporter);
    turn.check(false)?;
    match &proof {
        Proof::Receipt { receipt, .. } => turn.gather_again(receipt).await?,
        Proof::Hash(_) => turn.gather().await?,
    }
    let (llm, adapter, receipt) = turn.recognise(&proof, &said.provider).await?;
    let answer = model::read(adapter, &response).map_err(Refused::Response)?;
    if answer.calls.len() > MOST_CALLS {
        let why = format!("it has {} tool calls, and may have {MOST_CALLS}", answer.calls.len());
        return Err(Refused::Response(model::Error::Garbled(why)).into());
    }
    let n_tokens = u32::try_from(receipt.n_tokens.get()).unwrap_or_default();
    let mut answered = worker.models().charged(&llm, filled(answer, &said), n_tokens);
    if !worker.models().has_price(&llm) {
        answered.usage.microdollars = said.microdollars;
    }
    let Answered { usage, .. } = &mut answered;
    (usage.took_ms, usage.asked_again, usage.reported) = (said.took_ms, turn.asked_again, true);
    let receipt = serde_json::to_string(&receipt).unwrap_or_default();
    Ok(turn.write(ModelStep { step_id, adapter, answered, receipt }).await?)
}

impl Turn<'_> {
    /// Reads again what the call of a receipt was made of.
    async fn gather_again(&mut self, receipt: &Receipt) -> Result<(), Halt> {
        let (kernel, claimed, collector) = (self.kernel(), self.claimed, self.worker.collector());
        let setting = &self.setting;
        let gathered = retry(|| Box::pin(gather_again(kernel, claimed, setting, collector, receipt))).await?;
        let gathered = gathered.ok_or(Refused::Mismatch)?;
        self.seen = gathered.materials.output.upto;
        self.gathered = Some(gathered);
        Ok(())
    }

    /// Finds the model that was asked, by composing the request for each that may have been. Returns it with the receipt that was composed.
    async fn recognise(&self, proof: &Proof, provider: &str) -> Result<(LlmConfig, Adapter, Receipt), Refused> {
        let named = |llm: &&LlmConfig| provider.is_empty() || llm.provider.as_str() == provider;
        for llm in self.llms.iter().filter(named) {
            let Ok(config) = self.config(llm) else { continue };
            let adapter = config.adapter;
            // What can no longer be composed is not what was sent.
            let Ok(call) = composed(self.gathered().materials.clone(), config).await else { continue };
            if let Some(receipt) = proof.fits(call.receipt) {
                return Ok((llm.clone(), adapter, receipt));
            }
        }
        Err(Refused::Mismatch)
    }

    /// Checks whether this crate's own worker would ask for a summary first.
    fn is_compaction_due(&self) -> Result<bool, Halt> {
        let Some(compaction) = self.memory.compaction else { return Ok(false) };
        let gathered = self.gathered();
        let plan = gathered.materials.plan_compaction(&self.setting.policy, compaction, gathered.messages_box_id)?;
        Ok(plan.is_some())
    }
}

impl Proof {
    /// Returns the receipt that was composed, if it is the one of this call.
    fn fits(&self, mut composed: Receipt) -> Option<Receipt> {
        composed.reported = true;
        match self {
            Proof::Hash(hash) => (composed.request_hash == *hash).then_some(composed),
            Proof::Receipt { receipt: given, .. } => {
                // It was read before.
                composed.read_at = composed.read_at.min(given.read_at);
                (composed == **given).then_some(composed)
            }
        }
    }
}

/// Seals the receipt of a step. No caller can: so a receipt that comes back with its seal is one that was composed here, for this step under this
/// claim.
async fn seal(worker: &Worker, fence: &Fence, step_id: StepId, receipt: &Receipt) -> Result<Digest, Halt> {
    let project_id = fence.project_id();
    let mut work = worker.kernel().begin(project_id).await.map_err(turn::Error::from)?;
    let key = project::seal_key(&mut work).await.map_err(turn::Error::from)?;
    let receipt = serde_json::to_string(receipt).unwrap_or_default();
    Ok(Digest::keyed(&key, format!("receipt\n{project_id}\n{fence}\n{step_id}\n{receipt}").as_bytes()))
}

/// Composes a call. A long one is composed apart from the threads that answer requests.
async fn composed(materials: Materials, config: RenderConfig) -> Result<Call<'static>, call::Error> {
    let placed = materials.history.iter().chain(&materials.steps).filter_map(|placed| placed.reading.live());
    let n_tokens: i64 = placed.map(|card| i64::from(card.n_tokens.get())).sum();
    let n_bytes = usize::try_from(n_tokens).unwrap_or_default() * 4;
    offload::run(n_bytes, move || materials.call(&config).map(Call::into_owned)).await
}

/// Fills in what the provider's answer does not say of the tokens, within what the database can store.
fn filled(mut answer: Answer, said: &Usage) -> Answer {
    let most = i32::MAX.unsigned_abs();
    let or = |read: u32, said: u32| (if read == 0 { said } else { read }).min(most);
    answer.read.input = or(answer.read.input, said.input_tokens);
    answer.read.cached = or(answer.read.cached, said.cached_tokens);
    answer.read.output = or(answer.read.output, said.output_tokens);
    answer
}
