//! Loads who the agent is, and what it may call and spend (WK-1).

use std::time::Duration;

use tokio::time::Instant;
use waybill_context::{
    framework::Framework,
    layer::BlockKey,
    policy::{Audience, Policy},
};
use waybill_core::{
    id::Name,
    resource::{LlmConfig, Profile, Settings},
    tokens::Tokens,
    turn::Limits,
};
use waybill_kernel::{
    fork, resource,
    retry::retry,
    turn::{self, Claimed},
    work,
};
use waybill_tool::check::fault;

use super::{Error, Halt, Turn};
use crate::{
    gather::Setting,
    serve::Worker,
    toolbox::{Toolbox, artifact::Folders},
};

impl<'w> Turn<'w> {
    /// Makes the turn from what the database has of it.
    pub(super) async fn load(worker: &'w Worker, claimed: &'w Claimed) -> Result<Turn<'w>, Halt> {
        let found = resources(worker, claimed).await?;
        let Some(profile) = found.profile else {
            return Err(no_profile("the turn has no profile, or its profile has expired or was deleted".to_owned()));
        };
        let Settings { enable_share_context, max_steps, max_tokens, max_seconds, framework, .. } =
            found.settings.unwrap_or_default();
        let toolbox = Toolbox::new(&profile, &found.tools).with_delegates(found.delegates);
        let folders = Folders { readable: profile.readable_artifacts, writable: profile.writable_artifacts };
        let author = profile.name.to_string();
        let Profile { system_prompt_template, llm_config, process, memory, knowledge, experience, summariser, .. } =
            profile;
        let summariser = match &summariser {
            Some(name) => Some(summariser_of(worker, claimed, name).await?),
            None => None,
        };
        let demands = [(BlockKey::Knowledge, &knowledge), (BlockKey::Experience, &experience)];
        let demands = demands.into_iter().filter(|(_, shelf)| shelf.is_some()).map(|(key, _)| key).collect();
        let policy = Policy { order: memory.order, budget: memory.budget, per_message: per_message() };
        let llms = with_fallbacks(llm_config);
        let setting = Setting {
            system_prompt_template: Some(system_prompt_template),
            toolbox,
            audience: Audience { enable_share_context, demands, ..Audience::of(process) },
            policy,
            n_pinned: memory.n_pinned.into(),
            knowledge,
            experience,
            fork: found.fork,
            budget: found.budget,
            framework: framework.as_ref().map(Framework::of),
        };
        let recorded = match &setting.fork {
            Some(fork) if !fork.live_tools => Some(recorded(worker, claimed, fork).await?),
            _ => None,
        };
        let mut turn = Turn {
            worker,
            claimed,
            llms,
            summariser,
            memory,
            setting,
            author,
            reporter: None,
            folders,
            budget: None,
            expires: None,
            default: Limits {
                steps: Some(max_steps),
                tokens: Some(max_tokens),
                microdollars: None,
                seconds: Some(max_seconds),
            },
            n_steps: found.n_steps,
            n_tokens: found.n_tokens,
            stop_asked: claimed.stop_asked,
            stop_reason: found.stop_reason,
            asked_again: claimed.n_lost_leases + claimed.retry_count > 0,
            previous_message: None,
            n_failed: claimed.retry_count,
            gathered: None,
            seen: 0,
            recorded,
        };
        if found.has_registered {
            turn.mark_external().await?;
        }
        turn.set_budget(found.budget);
        if turn.expires.is_none() {
            let left = f64::from(max_seconds) - found.age_seconds;
            turn.expires = Some(Instant::now() + Duration::from_secs_f64(left.max(0.0)));
        }
        Ok(turn)
    }
}

/// Reads the resources of a turn.
pub(super) async fn resources(worker: &Worker, claimed: &Claimed) -> Result<turn::Resources, turn::Error> {
    retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await?;
            turn::resources(&mut work, claimed).await
        })
    })
    .await
}

/// Returns the models and the prompt of the profile that writes the summaries.
async fn summariser_of(worker: &Worker, claimed: &Claimed, name: &Name) -> Result<(Vec<LlmConfig>, String), Halt> {
    let found = retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await.map_err(turn::Error::from)?;
            match resource::profile(&mut work, name).await {
                Ok(found) => Ok(found),
                Err(error) => {
                    Err(no_profile(format!("the profile of the summariser cannot be used: {}", fault(error)?)))
                }
            }
        })
    })
    .await?;
    let prompt = found.profile.system_prompt_template.render(|_| None);
    Ok((with_fallbacks(found.profile.llm_config), prompt))
}

/// Returns the results of all calls of the turn that is forked.
async fn recorded(worker: &Worker, claimed: &Claimed, forked: &fork::Fork) -> Result<Vec<fork::Answered>, Error> {
    retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
            Ok(fork::answered(&mut work, forked.source_turn_id).await?)
        })
    })
    .await
    .map_err(Error::Gather)
}

fn no_profile(why: String) -> Halt {
    Halt::GiveUp { code: "no_profile", why }
}

/// Returns a model and its fallbacks.
fn with_fallbacks(mut llm: LlmConfig) -> Vec<LlmConfig> {
    let fallbacks = std::mem::take(&mut llm.fallbacks);
    std::iter::once(llm).chain(fallbacks).collect()
}

/// Returns what a provider adds to each message: a generous estimate.
fn per_message() -> Tokens {
    Tokens::new(4).unwrap_or_default()
}
