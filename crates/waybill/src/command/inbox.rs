//! `waybill inbox`, `approve`, `reject`, `answer`: requests of agents to people.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;
use waybill_core::{
    id::ToolCallId,
    request::{Decided, Decision, Kind},
};
use waybill_kernel::request;

use crate::{
    connect::{self, Bus, Place},
    named::Named,
    output,
};

/// Lines, and characters of each line, that are shown of what a request is about.
const MOST_LINES: usize = 10;
const MOST_OF_LINE: usize = 500;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How many to list at most.
    #[arg(long, default_value_t = 100)]
    most: i64,
    /// List the requests that were decided, newest first. If omitted, those that wait for a decision are listed.
    #[arg(long)]
    decided: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) async fn list(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    if arguments.decided {
        return list_decided(&arguments, as_json).await;
    }
    let open = request::open(&mut arguments.place.begin().await?, arguments.most).await?;
    if as_json {
        output::json(&open)?;
        return Ok(ExitCode::SUCCESS);
    }
    if open.is_empty() {
        println!("no request waits for a decision");
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["call", "kind", "asked by", "until", "question"],
        open.iter().map(|open| {
            let kind = match open.request.kind {
                Kind::Approval => "approval",
                Kind::Question => "question",
            };
            let until = open.deadline_at.format("%Y-%m-%d %H:%M").to_string();
            let by = open.profile_name.clone().unwrap_or_else(|| output::id(&open.agent_id));
            let question = output::preview(&open.request.question, 100);
            [output::id(&open.tool_call_id), kind.to_owned(), by, until, question]
        }),
    );
    for open in open.iter().filter(|open| !open.request.about.is_null()) {
        println!("\n{} is about", output::id(&open.tool_call_id));
        output::indented(&about(&open.request.about), "  ");
    }
    println!();
    let first =
        |kind: Kind| open.iter().find(|open| open.request.kind == kind).map(|open| output::id(&open.tool_call_id));
    if let Some(id) = first(Kind::Approval) {
        println!("to decide: `waybill approve {id}` or `waybill reject {id}`");
    }
    if let Some(id) = first(Kind::Question) {
        println!("to answer: `waybill answer {id} ANSWER`");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the beginning of what a request is about.
fn about(about: &Value) -> String {
    let said = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let text = match about {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {}", said(value))).collect();
            fields.join("\n")
        }
        other => said(other),
    };
    let mut is_cut = text.lines().count() > MOST_LINES;
    let mut shown = Vec::new();
    for line in text.lines().take(MOST_LINES) {
        let begun: String = line.chars().take(MOST_OF_LINE).collect();
        is_cut |= begun.len() < line.len();
        shown.push(begun);
    }
    if is_cut {
        shown.push("… (`waybill inbox --json` shows all of it)".to_owned());
    }
    shown.join("\n")
}

async fn list_decided(arguments: &Arguments, as_json: bool) -> Result<ExitCode> {
    let mut work = arguments.place.begin().await?;
    let listed = request::list(&mut work, request::State::Decided, None, arguments.most).await?;
    if as_json {
        output::json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_empty() {
        println!("no request has been decided");
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["call", "asked by", "tool", "decision", "by", "at", "question"],
        listed.iter().filter_map(|shown| {
            let decided = shown.decided.as_ref()?;
            Some([
                output::id(&shown.tool_call_id),
                shown.profile_name.clone().unwrap_or_else(|| output::id(&shown.agent_id)),
                shown.tool.clone().unwrap_or_default(),
                decided.decision.as_str().to_owned(),
                decided.by.clone(),
                decided.at.format("%Y-%m-%d %H:%M").to_string(),
                output::preview(shown.title.as_deref().unwrap_or_default(), 100),
            ])
        }),
    );
    Ok(ExitCode::SUCCESS)
}

/// One decision.
#[derive(Debug, Args)]
pub(crate) struct Deciding {
    /// The request, as `waybill inbox` lists it.
    call: Named<ToolCallId>,
    /// A note for the agent that asked. If omitted, no note is sent.
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Answering {
    #[command(flatten)]
    deciding: Deciding,
    /// The answer. It is read as JSON if it is valid JSON, otherwise as text.
    answer: String,
}

pub(crate) async fn answer(arguments: Answering, as_json: bool) -> Result<ExitCode> {
    let text = arguments.answer;
    let answer = waybill_core::json::parse(text.as_bytes()).unwrap_or(Value::String(text));
    decide(arguments.deciding, Decision::Answered, answer, as_json).await
}

pub(crate) async fn decide(deciding: Deciding, decision: Decision, answer: Value, as_json: bool) -> Result<ExitCode> {
    let nats = deciding.bus.connect().await?;
    let (kernel, project_id) = deciding.place.open().await?;
    let kernel = connect::on_bus(kernel, nats.as_ref());
    let decided = Decided { answer, note: deciding.note, ..Decided::new(decision, connect::actor()) };
    let mut work = kernel.begin(project_id).await?;
    let call = deciding.call.find(&mut work).await?;
    let outcome = request::decide_as(&mut work, call, &decided).await?;
    work.commit().await?;
    if as_json {
        output::json(&outcome)?;
    } else {
        println!("{}", decision.as_str());
    }
    Ok(ExitCode::SUCCESS)
}
