//! Notation for tests: a history in one line.
//!
//! `u3` a user says something of three tokens · `a2` an assistant · `c1xy` an assistant calls x and y · `r1x` the result of x · `t1x` a `tool.call`
//! card of x · `s1` a system card · `q1x` what an assistant thought, x for the adapter · a `!` behind it: gone.

use std::collections::HashMap;

use chrono::DateTime;
use proptest::prelude::*;
use serde_json::json;
use waybill_core::{
    card::{self, CallContent, Card, CardHash, CardType, Content, Draft, Gone, Reading, Role, Tombstone, ToolCall},
    card_box::{Origin, Placed},
    id::{BoxId, CardId, ToolCallId},
    tokens::Tokens,
};

use crate::{
    layer::{Block, BlockKey, Contexts, Text},
    unit::{Message, Source},
    wire::{Adapter, reasoning_draft},
};

/// Returns how many cases a random test runs: the short count, or the value of `WAYBILL_CASES`.
pub(crate) fn cases(short: u32) -> u32 {
    std::env::var("WAYBILL_CASES").map_or(short, |count| count.parse().expect("WAYBILL_CASES is a number"))
}

/// Generates any history: messages, calls, and results that are missing, doubled, orphaned, out of order or gone.
pub(crate) fn any_line() -> impl Strategy<Value = String> {
    let word = (prop::sample::select(vec!["u", "a", "c", "r", "t", "s", "e", "q"]), 1..9u8, "[w-z]{1,2}", 0..8u8)
        .prop_map(|(kind, n, names, gone)| {
            let names = match kind {
                "c" if names.len() == 2 && names[..1] == names[1..] => &names[..1],
                "c" => &names,
                "r" | "t" | "q" => &names[..1],
                _ => "",
            };
            format!("{kind}{n}{names}{}", if gone == 0 { "!" } else { "" })
        });
    prop::collection::vec(word, 0..14).prop_map(|words| words.join(" "))
}

/// Generates complete steps: messages and calls, the model's own or on cards of their own, with thoughts and empty cards before them.
pub(crate) fn any_steps() -> impl Strategy<Value = String> {
    let step = (
        prop::collection::vec("q[1-9][w-z]|e1", 0..3),
        prop::sample::select(vec!["a1", "cX rX", "tX rX", "a1 tX rX", "cX tX rX"]),
    );
    prop::collection::vec(step, 0..6).prop_map(|steps| {
        let step = |((thoughts, said), call): ((Vec<String>, &str), char)| {
            format!("{} {}", thoughts.join(" "), said.replace('X', &format!("1{call}")))
        };
        steps.into_iter().zip('a'..).map(step).collect::<Vec<_>>().join(" ")
    })
}

/// Returns a card as it is read after it was written.
pub(crate) fn stored(draft: Draft) -> Card {
    draft.seal().unwrap().into_card(DateTime::UNIX_EPOCH)
}

pub(crate) fn tokens(n: i32) -> Tokens {
    Tokens::new(n).unwrap()
}

/// Makes the content of a reasoning: through chat, messages, responses, or malformed.
fn thought(text: &str, name: char) -> Content {
    let (adapter, verbatim) = match name {
        'w' => (Adapter::OpenaiChat, None),
        'x' => (Adapter::AnthropicMessages, Some(json!([{ "type": "thinking", "thinking": text, "signature": "s" }]))),
        'y' => {
            (Adapter::OpenaiResponses, Some(json!([{ "type": "reasoning", "summary": [], "encrypted_content": text }])))
        }
        _ => return Content::Text(text.to_owned()),
    };
    reasoning_draft(adapter, text.to_owned(), verbatim.map(|blocks| blocks.to_string())).content
}

/// Remembers the name of each card.
#[derive(Debug, Default)]
pub(crate) struct Kit {
    pub(crate) names: HashMap<CardId, String>,
    calls: HashMap<char, ToolCallId>,
}

impl Kit {
    fn call(&mut self, name: char) -> ToolCallId {
        *self.calls.entry(name).or_insert_with(ToolCallId::new)
    }

    pub(crate) fn placed(&mut self, line: &str) -> Vec<Placed> {
        let box_id = BoxId::new();
        line.split_whitespace()
            .zip(1..)
            .map(|(word, seq)| Placed {
                place: seq,
                origin: Origin { box_id, seq },
                also: Vec::new(),
                reading: self.reading(word),
            })
            .collect()
    }

    pub(crate) fn cards(&mut self, line: &str) -> Vec<Card> {
        line.split_whitespace().map(|word| self.card(word)).collect()
    }

    fn reading(&mut self, word: &str) -> Reading {
        let card = self.card(word.trim_end_matches('!'));
        if word.ends_with('!') {
            let gone_at = DateTime::UNIX_EPOCH;
            return Reading::Gone(Tombstone { card_id: card.card_id, hash: card.hash, gone_at, why: Gone::Expired });
        }
        Reading::Live(Box::new(card))
    }

    pub(crate) fn card(&mut self, word: &str) -> Card {
        let kind = word.chars().next().unwrap();
        let digits: String = word[1..].chars().take_while(char::is_ascii_digit).collect();
        let names: Vec<char> = word[1 + digits.len()..].chars().collect();
        let said = Content::Text(word.to_owned());
        let (card_type, role, content) = match kind {
            'u' => (CardType::instruction(), Role::User, said),
            'a' | 'c' => (CardType::thought(), Role::Assistant, said),
            'e' => (CardType::thought(), Role::Assistant, Content::Text(String::new())),
            's' => (CardType::parent_pointer(), Role::System, said),
            'r' => (CardType::tool_result(), Role::Tool, said),
            'q' => (CardType::reasoning(), Role::Assistant, thought(word, names[0])),
            't' => {
                let content =
                    CallContent { tool_name: "look".into(), arguments: "{}".into(), extra: Default::default() };
                (CardType::tool_call(), Role::Assistant, Content::ToolCall(content))
            }
            other => panic!("{other}"),
        };
        let tool_calls = if kind == 'c' {
            let call = |name: &char| ToolCall {
                tool_call_id: self.call(*name),
                tool_name: "look".into(),
                arguments: "{}".into(),
                provider_call_id: None,
            };
            names.iter().map(call).collect()
        } else {
            Vec::new()
        };
        let tool_call_id = matches!(kind, 'r' | 't').then(|| self.call(names[0]));
        let draft = Draft { tool_calls, tool_call_id, ..Draft::new(card_type, role, content) };
        self.names.insert(draft.card_id, word.to_owned());
        Card { n_tokens: tokens(digits.parse().unwrap()), ..stored(draft) }
    }

    /// Names a message by the cards it came from.
    pub(crate) fn name(&self, message: &Message<'_>) -> String {
        let name = |card_id: &CardId| self.names.get(card_id).cloned().unwrap_or_else(|| "block".into());
        message.sources.iter().map(|source| name(&source.card_id)).collect::<Vec<_>>().join("+")
    }

    pub(crate) fn text(&mut self, name: &str, n: i32) -> Text {
        let source = Source { card_id: CardId::new(), hash: CardHash::from_bytes([7; 32]), origin: card::Origin::User };
        self.names.insert(source.card_id, name.to_owned());
        Text { text: name.to_owned(), n_tokens: tokens(n), sources: smallvec::smallvec![source] }
    }

    /// Reads `todo framework* zoo`: a star marks blocks of every step.
    pub(crate) fn contexts(&mut self, line: &str) -> Contexts {
        let block = |word: &str| {
            let name = format!("{}__context", word.trim_end_matches('*'));
            let key: BlockKey = name.parse().unwrap();
            (key, Block { text: self.text(word, 1), every_step: word.ends_with('*') })
        };
        line.split_whitespace().map(block).collect()
    }
}
