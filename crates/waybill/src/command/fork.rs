//! `waybill fork`: runs a recorded turn again with changes, several times, and compares the results.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use waybill_context::diff::{self, Diff};
use waybill_core::{
    id::{CardId, Name},
    turn::TurnStatus,
};
use waybill_kernel::{audit, turn::Summary, work::UnitOfWork};
use waybill_orchestrator::{
    fork::{self, Change, Wanted},
    outcome::{Outcome, outcome},
    replay,
};

use crate::{
    command::turn::tree_of,
    connect::{self, Bus, Place},
    follow::{self, Run as Followed},
    live::Live,
    named::{Named, NamedCall},
    output,
    tree::dollars,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The model call to start from: `TURN/STEP`, such as `@last/2`, or `TURN` for the first call of the turn.
    call: NamedCall,
    /// Change the content of a card: `CARD=TEXT`, or `CARD=@FILE` (JSON or text). Repeat it to change several cards at once.
    #[arg(long = "card", value_name = "CARD=TEXT")]
    cards: Vec<String>,
    /// Run the fork with this profile. If omitted, it runs with the profile that the turn had when it was recorded.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Name>,
    /// Use another model: `MODEL`, or `PROVIDER/MODEL`. Repeat it to compare several models, one variant each. If omitted, the recorded model is used.
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Change the profile with a JSON merge patch, such as `{"memory": {"budget": 2000}}`. Repeat it to compare several patches, one variant each.
    #[arg(long = "patch", value_name = "JSON")]
    patches: Vec<String>,
    /// How many times each variant runs, 1 to 100.
    #[arg(short = 'n', long, default_value_t = 1)]
    times: usize,
    /// Call tools and agents for real. If omitted, their recorded answers are used.
    #[arg(long)]
    live_tools: bool,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    place: Place,
}

/// The result of one run: the recorded one, or a run of a variant.
#[derive(Serialize)]
struct Run {
    variant: String,
    #[serde(flatten)]
    outcome: Outcome,
    /// The context of the first call of this run, compared with the recorded call.
    context: Option<Diff>,
}

/// The most cards of a run in which calls are counted.
const MOST_CARDS: i64 = 100_000;

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    ensure!((1..=100).contains(&arguments.times), "-n {}: the number of runs must be 1 to 100", arguments.times);
    let nats = arguments.bus.connect().await?;
    let (kernel, project_id) = arguments.place.open().await?;
    let kernel = connect::on_bus(kernel, nats.as_ref());
    let mut work = connect::begin(&kernel, project_id).await?;
    let (turn_id, step_id) = arguments.call.find(&mut work).await?;
    let variants = variants(&arguments, &mut work).await?;
    drop(work);

    let mut started = Vec::new();
    let mut source_step_id = None;
    for (name, change) in &variants {
        for n in 1..=arguments.times {
            let (change, live_tools) = (change.clone(), arguments.live_tools);
            let wanted = Wanted { turn_id, step_id, change, live_tools, may_widen: true, external: false };
            let mut work = connect::begin(&kernel, project_id).await?;
            let forked = fork::fork(&mut work, &wanted).await?;
            let detail = json!({ "source": turn_id, "live_tools": live_tools });
            audit::record(&mut work, &connect::actor(), "turn.fork", &forked.agent_turn_id.to_string(), &detail)
                .await?;
            work.commit().await?;
            source_step_id = Some(forked.source_step_id);
            let name = if arguments.times > 1 { format!("{name} #{n}") } else { name.clone() };
            started.push((name, forked.agent_turn_id));
        }
    }
    let source_step_id = source_step_id.context("no run was started")?;
    let mut work = connect::begin(&kernel, project_id).await?;
    let recorded_tree = tree_of(&mut work, turn_id).await?;
    let mut runs = vec![of_tree(&mut work, "recorded", &recorded_tree).await?];
    let recorded = replay::replay(&mut work, turn_id, Some(source_step_id)).await?;
    drop(work);
    for (name, forked) in started {
        let run = Followed { kernel: &kernel, project_id, root: forked, live: &Live::default() };
        let Some(tree) = follow::follow(&run, false).await? else { return Ok(follow::left()) };
        let mut work = connect::begin(&kernel, project_id).await?;
        runs.push(finished(&mut work, &name, &tree, &recorded).await?);
    }
    if as_json {
        runs.iter().try_for_each(output::json)?;
    } else {
        print(&runs);
    }
    let failed = runs[1..].iter().any(|run| run.outcome.status != TurnStatus::Success);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn finished(
    work: &mut UnitOfWork,
    name: &str,
    tree: &[Summary],
    recorded: &waybill_context::call::Call<'_>,
) -> Result<Run> {
    let forked = tree[0].agent_turn_id;
    let mut run = of_tree(work, name, tree).await?;
    if let Some(step_id) = replay::first(work, forked).await? {
        let call = replay::replay(work, forked, Some(step_id)).await?;
        run.context = Some(diff::diff(recorded, &call));
    }
    Ok(run)
}

/// Returns the variants by name. Without any change, there is one: the recorded turn again.
async fn variants(arguments: &Arguments, work: &mut UnitOfWork) -> Result<Vec<(String, Change)>> {
    let mut cards = Vec::new();
    for said in &arguments.cards {
        cards.push(changed(said, work).await?);
    }
    let base = Change { cards, profile_name: arguments.profile.clone(), profile_patch: None };
    let mut variants = Vec::new();
    for model in &arguments.models {
        let (provider, name) =
            model.split_once('/').map_or((None, model.as_str()), |(provider, name)| (Some(provider), name));
        let mut llm = json!({ "model": name });
        if let Some(provider) = provider {
            llm["provider"] = provider.into();
        }
        let change = Change { profile_patch: Some(json!({ "llm_config": llm })), ..base.clone() };
        variants.push((format!("model {model}"), change));
    }
    for patch in &arguments.patches {
        let parsed: Value =
            serde_json::from_str(patch).with_context(|| format!("--patch {patch} is not valid JSON"))?;
        ensure!(parsed.is_object(), "--patch {patch}: a merge patch must be a JSON object");
        variants.push((
            format!("patch {}", output::short(patch, 40)),
            Change { profile_patch: Some(parsed), ..base.clone() },
        ));
    }
    if variants.is_empty() {
        let name = match (&base.profile_name, base.cards.len()) {
            (Some(profile), _) => format!("profile {profile}"),
            (None, 0) => "again".to_owned(),
            (None, n) => format!("{n} cards changed"),
        };
        variants.push((name, base));
    }
    Ok(variants)
}

async fn changed(said: &str, work: &mut UnitOfWork) -> Result<(CardId, Value)> {
    let Some((card_id, text)) = said.split_once('=') else { bail!("--card {said}: write CARD=TEXT, or CARD=@FILE") };
    let text = match text.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?,
        None => text.to_owned(),
    };
    // Only a JSON object or list is read as JSON; anything else is text.
    let value = serde_json::from_str(&text).ok().filter(|value: &Value| value.is_object() || value.is_array());
    let card: Named<CardId> = card_id.parse().map_err(anyhow::Error::msg)?;
    Ok((card.find(work).await?, value.unwrap_or(Value::String(text))))
}

async fn of_tree(work: &mut UnitOfWork, variant: &str, tree: &[Summary]) -> Result<Run> {
    let outcome = outcome(work, tree, MOST_CARDS).await?.context("the turn no longer exists")?;
    Ok(Run { variant: variant.to_owned(), outcome, context: None })
}

fn print(runs: &[Run]) {
    output::table(
        ["", "turn", "status", "turns", "steps", "read", "written", "$", "s", "tools", "context"],
        runs.iter().map(|Run { variant, outcome: one, context }| {
            let tools: Vec<String> = one.tools.iter().map(|(name, n)| format!("{name}×{n}")).collect();
            let context = context.as_ref().map_or_else(String::new, |diff| {
                format!(
                    "−{} +{} cards, {} → {} tokens",
                    diff.only_left.len(),
                    diff.only_right.len(),
                    diff.left_tokens.get(),
                    diff.right_tokens.get()
                )
            });
            [
                variant.clone(),
                output::id(&one.agent_turn_id),
                one.status.as_str().to_owned(),
                one.n_turns.to_string(),
                one.n_steps.to_string(),
                one.input_tokens.to_string(),
                one.output_tokens.to_string(),
                dollars(one.microdollars),
                format!("{:.1}", one.seconds.unwrap_or_default()),
                tools.join(" "),
                context,
            ]
        }),
    );
    for run in runs {
        let text = match &run.outcome.deliverable {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => output::content(None),
        };
        let same = run.outcome.deliverable == runs[0].outcome.deliverable && run.variant != runs[0].variant;
        println!(
            "\n{}{}:\n  {}",
            run.variant,
            if same { " (delivers the same)" } else { "" },
            output::preview(&text, 400)
        );
        if run.outcome.not_recorded > 0 {
            println!(
                "  {} calls of this run have no recorded answer, so it left the recorded path: --live-tools makes such calls for real",
                run.outcome.not_recorded
            );
        }
    }
}
