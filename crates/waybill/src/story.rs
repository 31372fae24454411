//! What a turn says and does, as text for people: its instruction, its steps with their calls and results, and what people decided.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::Value;
use uuid::Uuid;
use waybill_core::{
    card::{Card, CardType, Content, Reading, ResultContent},
    card_box::{Placed, Span},
    id::{StepId, ToolCallId},
};
use waybill_kernel::{
    card, card_box,
    request::{self, Shown},
    turn::{Summary, Taken},
    work::UnitOfWork,
};

use crate::{output, tree};

/// Characters that are shown of arguments, results and thoughts.
const MOST: usize = 240;
/// Cards that are read at a time.
const PAGE: i64 = 500;

/// What was told of a turn so far: the tools of its calls, so that a result has the name of its tool.
#[derive(Debug, Default)]
pub(crate) struct Story {
    tools: HashMap<ToolCallId, String>,
}

impl Story {
    /// Returns what a card of the turn's output says. Text is whole; arguments and results are cut, and their length is given.
    pub(crate) fn tell(&mut self, card: &Card) -> String {
        let text = || output::content(Some(&card.content));
        let cut = |what: &str| format!("({what}) {}", output::beginning(&text(), MOST));
        match (&card.content, card.metadata.card_type.as_str()) {
            (Content::ToolCall(call), _) => {
                if let Some(tool_call_id) = card.tool_call_id {
                    self.tools.insert(tool_call_id, call.tool_name.clone());
                }
                format!("→ {} {}", call.tool_name, output::beginning(&call.arguments, MOST))
            }
            (Content::ToolResult(result), _) => {
                let tool = card.tool_call_id.and_then(|call| self.tools.get(&call)).map_or("a call", String::as_str);
                format!("← {tool} {}: {}", result.status, of_result(result))
            }
            (_, "agent.reasoning") => cut("thinks"),
            (_, "agent.reminder") => cut("reminder"),
            (_, "context.compression") => cut("summary"),
            (_, "context.todo") => cut("todo"),
            (_, "task.instruction") => format!("(message) {}", text()),
            _ => text(),
        }
    }
}

fn of_result(result: &ResultContent) -> String {
    match &result.result {
        Value::String(text) => output::beginning(text, MOST),
        other => output::beginning(&other.to_string(), MOST),
    }
}

/// Returns what a person was asked about a call, and what was decided.
fn of_request(shown: &Shown) -> String {
    let asked = shown.title.as_deref().unwrap_or("a question that can no longer be shown");
    match &shown.decided {
        None => format!("? {asked}\n  no person has decided yet: `waybill inbox` lists what waits"),
        Some(decided) => {
            let note = decided.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            format!("? {asked}\n  {} by {}{note}", decided.decision.as_str(), decided.by)
        }
    }
}

/// Prints a turn as a conversation, without its deliverable.
pub(crate) async fn print(work: &mut UnitOfWork, turn: &Summary, steps: &[Taken]) -> Result<()> {
    println!("turn {}  {}  {}", turn.agent_turn_id, tree::name(turn), tree::state(turn));
    let by = turn.started_by.as_ref().filter(|_| turn.parent_agent_turn_id.is_none());
    println!("\ninstruction{}", by.map(|by| format!(", by {by}")).unwrap_or_default());
    for reading in card::fetch(work, &turn.query_card_ids, None).await?.found {
        match reading {
            Reading::Live(card) => output::indented(&output::content(Some(&card.content)), "  "),
            Reading::Gone(gone) => println!("  (card {} has expired or was deleted)", gone.card_id),
        }
    }
    let cards = written(work, turn, 0).await?;
    let calls: Vec<ToolCallId> = cards.iter().filter_map(|placed| placed.reading.live()).filter_map(call_of).collect();
    let requests = request::about(work, &calls).await?;
    let numbers: HashMap<StepId, usize> = steps.iter().enumerate().map(|(n, step)| (step.step_id, n + 1)).collect();
    let (mut story, mut at) = (Story::default(), None);
    for Placed { reading, .. } in &cards {
        let Reading::Live(card) = reading else {
            println!("  (card {} has expired or was deleted)", reading.card_id());
            continue;
        };
        if Some(card.card_id) == turn.deliverable_card_id {
            continue;
        }
        let number = card.metadata.step_id.and_then(|step_id| numbers.get(&step_id));
        if let Some(number) = number
            && at != Some(number)
        {
            println!("\nstep {number}");
            at = Some(number);
        }
        output::indented(&story.tell(card), "  ");
        let asked = call_of(card).and_then(|call| requests.iter().find(|shown| shown.tool_call_id == call));
        if let Some(shown) = asked {
            output::indented(&of_request(shown), "  ");
        }
    }
    Ok(())
}

/// Returns the call that a card makes, if it makes one.
fn call_of(card: &Card) -> Option<ToolCallId> {
    card.tool_call_id.filter(|_| card.metadata.card_type == CardType::tool_call())
}

/// Returns the tools of the calls that a turn has made.
pub(crate) async fn tools(work: &mut UnitOfWork, turn: &Summary) -> Result<HashMap<Uuid, String>> {
    let mut tools = HashMap::new();
    for placed in written(work, turn, 0).await? {
        if let Reading::Live(card) = &placed.reading
            && let (Content::ToolCall(call), Some(tool_call_id)) = (&card.content, card.tool_call_id)
        {
            tools.insert(Uuid::from(tool_call_id), call.tool_name.clone());
        }
    }
    Ok(tools)
}

/// Reads everything that a turn has written after this place of its output box.
pub(crate) async fn written(work: &mut UnitOfWork, turn: &Summary, after: i64) -> Result<Vec<Placed>> {
    let (mut cards, mut from) = (Vec::new(), after + 1);
    loop {
        let span = Span { box_id: turn.output_box_id, from, upto: from + PAGE - 1 };
        let page = card_box::read(work, span, None).await?;
        let Some(last) = page.last() else { return Ok(cards) };
        from = last.place + 1;
        cards.extend(page);
    }
}
