//! Transcripts of Claude Code: one line for each block of an answer and each message of a user, each naming the line before it.
//!
//! A transcript has what was said, but not the system prompt and the tools, which Claude Code sends too.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use serde_json::json;
use waybill_api::ImportedCall;
use waybill_context::wire::Adapter;

use super::logs::{Fields, Read};

struct Line<'a> {
    uuid: Option<String>,
    parent_uuid: Option<String>,
    session_id: Option<String>,
    agent_id: Option<String>,
    is_sidechain: bool,
    timestamp: Option<DateTime<Utc>>,
    message: Option<Message<'a>>,
}

struct Message<'a> {
    role: String,
    id: Option<String>,
    model: Option<String>,
    content: &'a str,
    stop_reason: Option<String>,
    usage: Option<&'a str>,
}

impl<'a> Line<'a> {
    /// Reads a line. What of it cannot be read is left out: other lines name it all the same.
    fn of(raw: &'a str) -> Option<Line<'a>> {
        let fields = Fields::of(raw)?;
        let text = |name| fields.text(&[name]).filter(|text| !text.is_empty());
        let message = fields.raw(&["message"]).and_then(Fields::of).and_then(|message| {
            let text = |name| message.text(&[name]).filter(|text| !text.is_empty());
            Some(Message {
                role: text("role")?,
                id: text("id"),
                model: text("model"),
                content: message.raw(&["content"])?,
                stop_reason: text("stop_reason"),
                usage: message.raw(&["usage"]),
            })
        });
        Some(Line {
            uuid: text("uuid"),
            parent_uuid: text("parentUuid"),
            session_id: text("sessionId"),
            agent_id: text("agentId"),
            is_sidechain: fields.raw(&["isSidechain"]) == Some("true"),
            timestamp: fields.time(&["timestamp"]).ok().flatten(),
            message,
        })
    }
}

/// What Claude Code itself puts into a transcript in place of an answer.
const NOT_A_MODEL: &str = "<synthetic>";

/// Checks whether the entries of a file are those of a transcript.
pub(super) fn is_transcript(entries: &[(String, Result<&str, String>)]) -> bool {
    let is_line = |raw: &str| {
        let fields = Fields::of(raw);
        fields.is_some_and(|fields| {
            let is_said = matches!(fields.text(&["type"]).as_deref(), Some("user" | "assistant"));
            is_said && fields.raw(&["message"]).is_some() && fields.raw(&["uuid"]).is_some()
        })
    };
    entries.iter().take(50).any(|(_, raw)| raw.as_ref().is_ok_and(|raw| is_line(raw)))
}

/// Returns the calls of a transcript, one for each answer.
pub(super) fn calls<'a>(
    entries: Vec<(String, Result<&'a str, String>)>,
    log: &'a str,
) -> Box<dyn Iterator<Item = (f64, Read)> + 'a> {
    let (mut unread, mut lines, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    for (at, raw) in entries {
        match raw.and_then(|raw| Line::of(raw).ok_or_else(|| "this is not a JSON object".to_owned())) {
            // A line may be there twice.
            Ok(line) if line.uuid.as_ref().is_some_and(|uuid| !known.insert(uuid.clone())) => {}
            Ok(line) => lines.push((at, line)),
            Err(why) => unread.push((0.0, Err((at, why)))),
        }
    }
    let transcript = Transcript::new(lines);
    let n = transcript.answers.len();
    let calls = (0..n).filter_map(move |i| Some((i as f64 / n as f64, Ok(transcript.call(i, log)?))));
    Box::new(unread.into_iter().chain(calls))
}

struct Transcript<'a> {
    lines: Vec<(String, Line<'a>)>,
    /// The place of each line, by its id.
    by_id: HashMap<String, usize>,
    /// The lines of each answer, in the order of their first ones.
    answers: Vec<Vec<usize>>,
    /// The answer that a line is a block of.
    answer_of: HashMap<usize, usize>,
}

impl<'a> Transcript<'a> {
    fn new(lines: Vec<(String, Line<'a>)>) -> Transcript<'a> {
        let mut by_id = HashMap::new();
        let mut answers: Vec<Vec<usize>> = Vec::new();
        let (mut known, mut answer_of) = (HashMap::new(), HashMap::new());
        for (i, (_, line)) in lines.iter().enumerate() {
            if let Some(uuid) = &line.uuid {
                by_id.insert(uuid.clone(), i);
            }
            let Some(message) = line.message.as_ref().filter(|message| message.role == "assistant") else { continue };
            let id = message.id.as_deref().or(line.uuid.as_deref()).unwrap_or_default().to_owned();
            let answer = *known.entry(id).or_insert_with(|| {
                answers.push(Vec::new());
                answers.len() - 1
            });
            answers[answer].push(i);
            answer_of.insert(i, answer);
        }
        Transcript { lines, by_id, answers, answer_of }
    }

    /// Returns the call of an answer: what was said before it, on the branch on which it is.
    fn call(&self, answer: usize, log: &str) -> Option<(String, ImportedCall)> {
        let own = self.answers.get(answer)?;
        let (place, first) = self.lines.get(*own.first()?)?;
        let said = first.message.as_ref()?;
        let model = said.model.clone().filter(|model| model != NOT_A_MODEL)?;
        let before = self.before(answer, *own.first()?);
        let last = before.last().and_then(|i| self.lines[*i].1.timestamp).or(first.timestamp)?;
        let request = format!(r#"{{"model":{},"messages":[{}]}}"#, json!(model), self.messages(&before).join(","));
        let end = own.iter().filter_map(|i| self.lines[*i].1.timestamp).max().unwrap_or(last);
        let usage = own.iter().rev().find_map(|i| self.lines[*i].1.message.as_ref()?.usage).unwrap_or("null");
        let stop = own.iter().rev().find_map(|i| self.lines[*i].1.message.as_ref()?.stop_reason.clone());
        let body = format!(
            r#"{{"id":{},"type":"message","role":"assistant","model":{},"content":{},"stop_reason":{},"usage":{usage}}}"#,
            json!(said.id),
            json!(model),
            self.content(own),
            json!(stop.as_deref().unwrap_or("end_turn")),
        );
        let agent = first.agent_id.as_ref().map(|id| format!("sub-agent {id}"));
        let agent = agent.or_else(|| first.is_sidechain.then(|| "sub-agent".to_owned()));
        let call = ImportedCall {
            adapter: Adapter::AnthropicMessages,
            provider: "anthropic".to_owned(),
            session: first.session_id.clone(),
            agent: Some(agent.unwrap_or_else(|| "claude-code".to_owned())),
            at: Some(last),
            took: (end - last).to_std().unwrap_or_default(),
            status: 200,
            request,
            answer: Some(body),
            microdollars: None,
            id: said.id.clone(),
            log: log.to_owned(),
        };
        Some((place.clone(), call))
    }

    /// Returns the lines that are said before an answer, in the order of the file. Of tools that ran at the same time, only one result is among the lines
    /// that the answer goes back to; the others belong to it as well.
    fn before(&self, answer: usize, first: usize) -> Vec<usize> {
        let mut path = HashSet::new();
        let mut at = self.parent(first);
        while let Some(i) = at.filter(|i| path.insert(*i)) {
            at = self.parent(i);
        }
        let answers: HashSet<usize> = path.iter().filter_map(|i| self.answer_of.get(i)).copied().collect();
        let is_of = |i: usize| self.answer_of.get(&i).is_some_and(|of| *of != answer && answers.contains(of));
        let is_result = |i: usize| {
            let is_user = self.lines[i].1.message.as_ref().is_some_and(|message| message.role == "user");
            is_user && self.parent(i).is_some_and(is_of) && self.has_results(i)
        };
        let is_said = |i: &usize| self.lines[*i].1.message.is_some();
        (0..first).filter(is_said).filter(|i| path.contains(i) || is_of(*i) || is_result(*i)).collect()
    }

    fn parent(&self, i: usize) -> Option<usize> {
        self.by_id.get(self.lines[i].1.parent_uuid.as_ref()?).copied()
    }

    fn has_results(&self, i: usize) -> bool {
        self.lines[i].1.message.as_ref().is_some_and(|message| message.content.contains("\"tool_result\""))
    }

    /// Returns messages as they are sent: the blocks of an answer in one.
    fn messages(&self, lines: &[usize]) -> Vec<String> {
        let mut done = HashSet::new();
        let one = |i: &usize| match self.answer_of.get(i) {
            Some(answer) if !done.insert(*answer) => None,
            Some(answer) => {
                Some(format!(r#"{{"role":"assistant","content":{}}}"#, self.content(&self.answers[*answer])))
            }
            None => {
                let message = self.lines[*i].1.message.as_ref()?;
                Some(format!(r#"{{"role":{},"content":{}}}"#, json!(message.role), message.content))
            }
        };
        lines.iter().filter_map(one).collect()
    }

    /// Returns the blocks of an answer.
    fn content(&self, lines: &[usize]) -> String {
        let blocks = lines.iter().filter_map(|i| Some(self.lines[*i].1.message.as_ref()?.content.trim()));
        let inside = blocks.map(|list| match list.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
            Some(blocks) => blocks.trim().to_owned(),
            None => format!(r#"{{"type":"text","text":{list}}}"#),
        });
        let inside: Vec<String> = inside.filter(|blocks| !blocks.is_empty()).collect();
        format!("[{}]", inside.join(","))
    }
}
