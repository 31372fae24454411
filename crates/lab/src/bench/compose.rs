//! What it costs to build a model call: composing, writing the request and hashing it, compared with plainly writing the same messages.

use std::hint::black_box;

use anyhow::{Context, Result};
use chrono::Utc;
use serde_json::json;
use waybill_context::{
    call::{Collected, Materials, RenderConfig},
    layer::BlockKey,
    policy::Policy,
    wire::{Adapter, Params},
};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Reading, Role, ToolCall},
    card_box::{Origin, Placed, Span},
    id::{BoxId, ToolCallId},
    resource::Order,
    tokens::Tokens,
};

use super::ratio;
use crate::figure::{Bar, Figure};

/// How large the conversations are, and how often each is measured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub messages: usize,
    pub samples: u64,
}

/// Tokens of each message: a million in ten thousand messages.
const TOKENS: i32 = 100;

pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let materials = materials(options.messages)?;
    let policy = Policy {
        order: Order::CacheFirst,
        budget: Tokens::new(i32::MAX).context("positive")?,
        per_message: Tokens::ZERO,
    };
    let mut figures = Vec::new();
    for adapter in Adapter::ALL {
        let config = RenderConfig { adapter, policy, params: Params::default() };
        let call = materials.call(&config)?;
        let figure = format!("{} messages, {} tokens", call.composed.messages.len(), call.composed.n_tokens.get());
        let name = adapter.as_str();
        let call_again = async || {
            black_box(materials.call(&config)?);
            Ok(())
        };
        let write_plainly = async || {
            black_box(serde_json::to_vec(&call.composed.messages)?);
            Ok(())
        };
        let value = ratio(name, options.samples, call_again, write_plainly).await?;
        figures.push(Figure::new(
            format!("{figure}: composed, written as {name} and hashed ÷ one serde_json::to_vec"),
            value,
            "ratio",
            Bar::AtMost(3.0),
        ));
        let receipt = serde_json::to_vec(&call.receipt)?.len();
        figures.push(Figure::new(
            format!("bytes of the receipt of a request of {} bytes", call.request.len()),
            receipt as f64,
            "bytes",
            Bar::AtMost(4_096.0),
        ));
    }
    Ok(figures)
}

/// Returns a long conversation with tools. Of every four messages, one asks, one calls a tool, one is the tool's result, and one answers.
fn materials(n: usize) -> Result<Materials> {
    let box_id = BoxId::new();
    let mut history = Vec::with_capacity(n);
    let mut tool_call_id = ToolCallId::new();
    for place in 0..n.saturating_sub(3) {
        let draft = match place % 4 {
            0 => said(CardType::instruction(), Role::User),
            1 => {
                tool_call_id = ToolCallId::new();
                let arguments = json!({ "query": "the next chapter", "page": place }).to_string();
                let call = ToolCall { tool_call_id, tool_name: "search".into(), arguments, provider_call_id: None };
                Draft { tool_calls: vec![call], ..said(CardType::thought(), Role::Assistant) }
            }
            2 => Draft::tool_result(tool_call_id, "success", text().into()),
            _ => said(CardType::thought(), Role::Assistant),
        };
        let reading = Reading::Live(Box::new(card(draft)?));
        let seq = i64::try_from(place)? + 1;
        history.push(Placed { place: seq, origin: Origin { box_id, seq }, also: Vec::new(), reading });
    }
    let framework = Collected {
        key: BlockKey::Framework,
        card: card(said(CardType::rendered_prompt(), Role::System))?,
        every_step: false,
        sources: Vec::new(),
    };
    let length = i64::try_from(history.len())?;
    Ok(Materials {
        system_prompt: Some(card(said(CardType::rendered_prompt(), Role::System))?),
        tools: None,
        blocks: vec![framework],
        session_summary: None,
        history,
        read: vec![Span::prefix(box_id, length)],
        n_pinned: 0,
        query: vec![card(said(CardType::instruction(), Role::User))?],
        steps: Vec::new(),
        output: Span::prefix(BoxId::new(), 0),
        framework_version: "bench".into(),
        left_out: Vec::new(),
        read_at: Utc::now(),
    })
}

/// Returns about a hundred tokens, with some characters that a JSON writer must escape.
fn text() -> String {
    "He said: \"the river runs north\", and so it does.\nNobody asked why; nobody ever does. ".repeat(5)
}

fn said(card_type: CardType, role: Role) -> Draft {
    Draft::new(card_type, role, Content::Text(text()))
}

/// Returns a card whose tokens are already counted, so the benchmark does not count them again.
fn card(draft: Draft) -> Result<Card> {
    let tokens = Tokens::new(TOKENS).context("positive")?;
    Ok(draft.seal_counted(tokens)?.into_card(Utc::now()))
}
