//! `waybill run`: starts a turn and waits for its result.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use waybill_core::{
    id::{AgentId, BoxId, Name, ProjectId, SessionId},
    label::Label,
    tokens,
    turn::TurnStatus,
};
use waybill_kernel::{turn, work::Kernel};
use waybill_orchestrator::launch::{DispatchResult, Launch, WhileRunning, launch};

use crate::{
    connect::{self, Bus, Place},
    follow::{self, Run},
    live::Live,
    named::{Named, find_all, find_some},
    output, usage,
};

/// What to do, and which agent does it.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// The profile of the agent that does the work.
    profile: Name,
    /// What the agent should do.
    instruction: String,
    /// The fields that the result must have: `[{"name": …, "description": …}]`. If omitted, the result is free-form.
    #[arg(long, value_name = "JSON")]
    result_fields: Option<String>,
    /// The JSON Schema that the result must fit, with `"type": "object"`. If omitted, the result has no schema.
    #[arg(long, value_name = "JSON", conflicts_with = "result_fields")]
    result_schema: Option<String>,
    /// A YAML or JSON file with a handover, which says what the agent gets as context. If omitted, it gets the instruction, the result fields and the
    /// boxes of --box.
    #[arg(long, value_name = "FILE")]
    handover: Option<PathBuf>,
    /// Arguments for the handover as a JSON object, in addition to `instruction`, `result_fields`, `result_schema` and `input_box_ids` (the boxes of
    /// --box). If omitted, none.
    #[arg(long, value_name = "JSON", requires = "handover")]
    arguments: Option<String>,
    /// Use this existing agent, which has a memory. If omitted, a new agent is created for the task.
    #[arg(long)]
    agent: Option<Named<AgentId>>,
    /// The session that the turn belongs to: a new UUIDv7 opens one, `@last` is the newest. If omitted, the turn belongs to no session.
    #[arg(long)]
    session: Option<Named<SessionId>>,
    /// What to do if a turn of the session is running: `start` a turn beside it, `queue` the next turn, or `steer` the running one.
    #[arg(long, default_value = "start", value_parser = while_running, requires = "session")]
    while_running: WhileRunning,
    /// A box that the turn also sees; can be repeated. If omitted, none.
    #[arg(long = "box", value_name = "BOX")]
    context_boxes: Vec<Named<BoxId>>,
    /// A label to file the turn under, such as team=blue; can be repeated. If omitted, none.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<Label>,
    /// Mark the instruction as content from outside, such as an email: the turn may need an approval for some tools.
    #[arg(long)]
    external: bool,
    /// The user of your application for whom this is done. It is kept on record. If omitted, no user is recorded.
    #[arg(long, value_name = "USER")]
    on_behalf_of: Option<String>,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    pub(crate) place: Place,
}

impl Wanted {
    /// Dispatches the turn. Also returns the kernel and the project, to follow it.
    pub(crate) async fn start(self) -> Result<(Kernel, ProjectId, DispatchResult)> {
        // A handover can do without the instruction.
        let is_said = self.handover.is_some() || !self.instruction.trim().is_empty();
        ensure!(is_said, "the instruction is empty: say what the agent should do");
        let fields = self.result_fields.map(|text| serde_json::from_str(&text)).transpose().context(
            "--result-fields must be JSON, such as [{\"name\": \"title\", \"description\": \"The title.\"}]",
        )?;
        let schema = self.result_schema.map(|text| serde_json::from_str(&text)).transpose().context(
            "--result-schema must be a JSON Schema, such as {\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\"}}}",
        )?;
        let handover = match &self.handover {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                Some(
                    serde_saphyr::from_str(&text)
                        .with_context(|| format!("{} is not a valid handover", file.display()))?,
                )
            }
            None => None,
        };
        let arguments = self
            .arguments
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .context("--arguments must be a JSON object")?;
        let labels: BTreeMap<String, String> =
            self.labels.into_iter().map(|Label { name, value }| (name, value)).collect();
        let labels = labels.try_into()?;
        let nats = self.bus.connect().await?;
        let (kernel, project_id) = self.place.open().await?;
        tokens::open();
        let kernel = connect::on_bus(kernel, nats.as_ref());
        let mut work = connect::begin(&kernel, project_id).await?;
        let wanted = Launch {
            result_fields: fields,
            result_schema: schema,
            handover,
            arguments: arguments.unwrap_or_default(),
            agent_id: find_some(self.agent.as_ref(), &mut work).await?,
            session_id: find_some(self.session.as_ref(), &mut work).await?,
            while_running: self.while_running,
            context_box_ids: find_all(&self.context_boxes, &mut work).await?,
            labels,
            external: self.external,
            on_behalf_of: self.on_behalf_of,
            may_widen: true,
            ..Launch::new(self.profile.clone(), self.instruction)
        };
        let launched = match launch(&mut work, &wanted).await {
            Ok(launched) => launched,
            Err(error) => {
                drop(work);
                return Err(usage::of_profile(&kernel, project_id, &self.profile, error.into()).await);
            }
        };
        work.commit().await?;
        Ok((kernel, project_id, launched))
    }
}

fn while_running(text: &str) -> Result<WhileRunning, String> {
    serde_json::from_value(text.into()).map_err(|_| "must be `start`, `queue` or `steer`".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,
    /// Show what happens while the turn runs: the text, the tool calls, the turns that it starts, and the tree with tokens and cost. If omitted,
    /// only the result is printed.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    live: Live,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let (kernel, project_id, launched) = arguments.wanted.start().await?;
    if arguments.watch {
        eprintln!("turn {}", launched.agent_turn_id);
    }
    let run = Run { kernel: &kernel, project_id, root: launched.agent_turn_id, live: &arguments.live };
    let Some(tree) = follow::follow(&run, arguments.watch).await? else { return Ok(follow::left()) };
    let root = &tree[0];
    let content = turn::delivered(&mut connect::begin(&kernel, project_id).await?, root).await?;
    if as_json {
        output::json(&serde_json::json!({ "turn": root, "tree": tree, "deliverable": content }))?;
    } else {
        output::deliverable(content.as_ref());
    }
    Ok(if root.status == TurnStatus::Success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
