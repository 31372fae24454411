//! `waybill fork`: runs a recorded turn again with changes, several times, and compares the results.

use std::{collections::BTreeMap, fs, process::ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use waybill_context::diff::{self, Diff};
use waybill_core::{
    card::Content,
    card_box::Span,
    id::{CardId, Name, ProjectId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{
    audit, card_box,
    turn::{self, Summary},
    work::{Kernel, UnitOfWork},
};
use waybill_orchestrator::{
    fork::{self, Change, Wanted},
    replay,
};

use crate::{
    command::{context::CallId, turn::tree_of},
    connect::{self, Bus, Place},
    output,
    tree::{self, dollars},
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The model call to start from: `TURN/STEP`, or `TURN` for the first call of the turn.
    call: CallId,
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
struct Outcome {
    variant: String,
    agent_turn_id: TurnId,
    status: TurnStatus,
    n_turns: usize,
    n_steps: i64,
    input_tokens: i64,
    output_tokens: i64,
    microdollars: i64,
    seconds: f64,
    /// The tools that were called, and how often.
    tools: BTreeMap<String, usize>,
    deliverable: Option<Value>,
    /// The context of the first call of this run, compared with the recorded call.
    context: Option<Diff>,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    ensure!((1..=100).contains(&arguments.times), "-n {}: the number of runs must be 1 to 100", arguments.times);
    let variants = variants(&arguments)?;
    let nats = arguments.bus.connect().await?;
    let (kernel, project_id) = arguments.place.open().await?;
    let kernel = connect::on_bus(kernel, nats.as_ref());
    let CallId { turn_id, step_id } = arguments.call;

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
    let mut outcomes = vec![outcome(&mut work, "recorded", recorded_tree).await?];
    let recorded = replay::replay(&mut work, turn_id, Some(source_step_id)).await?;
    drop(work);
    for (name, forked) in started {
        outcomes.push(finished(&kernel, project_id, &name, forked, &recorded).await?);
    }
    if as_json {
        outcomes.iter().try_for_each(output::json)?;
    } else {
        print(&outcomes);
    }
    let failed = outcomes[1..].iter().any(|outcome| outcome.status != TurnStatus::Success);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn finished(
    kernel: &Kernel,
    project_id: ProjectId,
    name: &str,
    forked: TurnId,
    recorded: &waybill_context::call::Call<'_>,
) -> Result<Outcome> {
    let tree = tree::watch(kernel, project_id, forked, false).await?;
    let mut work = connect::begin(kernel, project_id).await?;
    let mut outcome = outcome(&mut work, name, tree).await?;
    if let Some((step_id, _)) = replay::list(&mut work, forked).await?.first() {
        let call = replay::replay(&mut work, forked, Some(*step_id)).await?;
        outcome.context = Some(diff::diff(recorded, &call));
    }
    Ok(outcome)
}

/// Returns the variants by name. Without any change, there is one: the recorded turn again.
fn variants(arguments: &Arguments) -> Result<Vec<(String, Change)>> {
    let cards: Vec<(CardId, Value)> = arguments.cards.iter().map(|said| changed(said)).collect::<Result<_>>()?;
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

fn changed(said: &str) -> Result<(CardId, Value)> {
    let Some((card_id, text)) = said.split_once('=') else { bail!("--card {said}: write CARD=TEXT, or CARD=@FILE") };
    let text = match text.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?,
        None => text.to_owned(),
    };
    // Only a JSON object or list is read as JSON; anything else is text.
    let value = serde_json::from_str(&text).ok().filter(|value: &Value| value.is_object() || value.is_array());
    Ok((card_id.parse()?, value.unwrap_or(Value::String(text))))
}

async fn outcome(work: &mut UnitOfWork, variant: &str, tree: Vec<Summary>) -> Result<Outcome> {
    let sum = |of: fn(&Summary) -> i64| tree.iter().map(of).sum::<i64>();
    let mut tools: BTreeMap<String, usize> = BTreeMap::new();
    for turn in &tree {
        for placed in card_box::read(work, Span::whole(turn.output_box_id), None).await? {
            if let Some(Content::ToolCall(call)) = placed.reading.live().map(|card| &card.content) {
                *tools.entry(call.tool_name.clone()).or_default() += 1;
            }
        }
    }
    let root = &tree[0];
    let content = turn::delivered(work, root).await?;
    Ok(Outcome {
        variant: variant.to_owned(),
        agent_turn_id: root.agent_turn_id,
        status: root.status,
        n_turns: tree.len(),
        n_steps: sum(|turn| turn.n_steps),
        input_tokens: sum(|turn| turn.input_tokens),
        output_tokens: sum(|turn| turn.output_tokens),
        microdollars: sum(|turn| turn.microdollars),
        seconds: root.finished_at.map_or(0.0, |at| (at - root.created_at).as_seconds_f64()),
        tools,
        deliverable: content.and_then(|content| serde_json::to_value(content).ok()),
        context: None,
    })
}

fn print(outcomes: &[Outcome]) {
    output::table(
        ["", "turn", "status", "turns", "steps", "read", "written", "$", "s", "tools", "context"],
        outcomes.iter().map(|one| {
            let tools: Vec<String> = one.tools.iter().map(|(name, n)| format!("{name}×{n}")).collect();
            let context = one.context.as_ref().map_or_else(String::new, |diff| {
                format!(
                    "−{} +{} cards, {} → {} tokens",
                    diff.only_left.len(),
                    diff.only_right.len(),
                    diff.left_tokens.get(),
                    diff.right_tokens.get()
                )
            });
            [
                one.variant.clone(),
                one.agent_turn_id.to_string(),
                one.status.as_str().to_owned(),
                one.n_turns.to_string(),
                one.n_steps.to_string(),
                one.input_tokens.to_string(),
                one.output_tokens.to_string(),
                dollars(one.microdollars),
                format!("{:.1}", one.seconds),
                tools.join(" "),
                context,
            ]
        }),
    );
    for one in outcomes {
        let text = match &one.deliverable {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => output::content(None),
        };
        let same = one.deliverable == outcomes[0].deliverable && one.variant != outcomes[0].variant;
        println!(
            "\n{}{}:\n  {}",
            one.variant,
            if same { " (delivers the same)" } else { "" },
            output::short(&text, 400)
        );
    }
}
