//! `waybill run`: have something done, and see it done.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use waybill_core::id::{AgentId, BoxId, Name, ProjectId, SessionId};
use waybill_kernel::{turn, work::Kernel};
use waybill_orchestrator::launch::{DispatchResult, Launch, WhileRunning, launch};

use crate::{
    connect::{self, Bus, Place},
    output, tree,
};

/// What is wanted, and of whom.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    profile: Name,
    instruction: String,
    /// What the result must have: `[{"name": …, "description": …}]`
    #[arg(long, value_name = "JSON")]
    result_fields: Option<String>,
    /// A YAML or JSON file that says how the context is packed, instead of the usual way: a handover.
    #[arg(long, value_name = "FILE")]
    handover: Option<PathBuf>,
    /// Arguments that the handover speaks of besides `instruction`, `result_fields` and `input_box_ids` (the boxes of --box).
    #[arg(long, value_name = "JSON", requires = "handover")]
    arguments: Option<String>,
    /// An agent that there is, with what it remembers; without it one is made for the task.
    #[arg(long)]
    agent: Option<AgentId>,
    /// A conversation that it is part of: opened with its first use.
    #[arg(long)]
    session: Option<SessionId>,
    /// What becomes of it where a turn of the session runs: `start` a turn beside it, `queue` as the next one, or `steer` the one that runs.
    #[arg(long, default_value = "start", value_parser = while_running, requires = "session")]
    while_running: WhileRunning,
    /// A box that it is to see besides; as often as there are any.
    #[arg(long = "box", value_name = "BOX")]
    context_box_ids: Vec<BoxId>,
    /// What is wanted came from outside, such as a mail: the turn has seen content from outside from the start.
    #[arg(long)]
    external: bool,
    /// The user of yours for whom this is done.
    #[arg(long, value_name = "USER")]
    on_behalf_of: Option<String>,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    pub(crate) place: Place,
}

impl Wanted {
    /// Dispatches it. Gives the way back to it, too.
    pub(crate) async fn start(self) -> Result<(Kernel, ProjectId, DispatchResult)> {
        let fields =
            self.result_fields.map(|text| serde_json::from_str(&text)).transpose().context("--result-fields")?;
        let handover = match &self.handover {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
                Some(serde_saphyr::from_str(&text).with_context(|| format!("{}: not a handover", file.display()))?)
            }
            None => None,
        };
        let arguments = self.arguments.map(|text| serde_json::from_str(&text)).transpose().context("--arguments")?;
        let nats = self.bus.connect().await?;
        let (kernel, project_id) = self.place.open().await?;
        let kernel = connect::on_bus(kernel, nats.as_ref());
        let wanted = Launch {
            result_fields: fields,
            handover,
            arguments: arguments.unwrap_or_default(),
            agent_id: self.agent,
            session_id: self.session,
            while_running: self.while_running,
            context_box_ids: self.context_box_ids,
            external: self.external,
            on_behalf_of: self.on_behalf_of,
            may_widen: true,
            ..Launch::new(self.profile, self.instruction)
        };
        let mut work = connect::begin(&kernel, project_id).await?;
        let launched = launch(&mut work, &wanted).await?;
        work.commit().await?;
        Ok((kernel, project_id, launched))
    }
}

fn while_running(text: &str) -> Result<WhileRunning, String> {
    serde_json::from_value(text.into()).map_err(|_| "`start`, `queue` or `steer`".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,
    /// Show who works on it, and what each used, while it happens: as a tree in a terminal, line by line elsewhere.
    #[arg(long)]
    watch: bool,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let (kernel, project_id, launched) = arguments.wanted.start().await?;
    if arguments.watch {
        eprintln!("turn {}", launched.agent_turn_id);
    }
    let tree = tree::watch(&kernel, project_id, launched.agent_turn_id, arguments.watch).await?;
    let root = &tree[0];
    let content = turn::delivered(&mut connect::begin(&kernel, project_id).await?, root).await?;
    if as_json {
        output::json(&serde_json::json!({ "turn": root, "tree": tree, "deliverable": content }))?;
    } else {
        println!("{}", output::content(content.as_ref()));
    }
    Ok(if root.status == "success" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
