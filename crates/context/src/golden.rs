//! Eleven realistic turns, each as a small script and as the requests that it gives. `UPDATE=1` writes the requests again.
//!
//! ```text
//!   react cache_first 900           process, order, budget; `alone` where the project does not share, `wants KEY` for what is on demand
//!   prompt: …  knowledge: …         what stands before the messages; a star behind a key: collected for every step
//!   fields: name = description      what the result must have
//!   history                         and then query: …, and steps
//!     user: …   assistant: … -> a=search({"q":1}) b=fetch({})   tool a: …   summary 1-4: …   reasoning ADAPTER: … -> [{"type":…}]
//! ```

use std::{collections::HashMap, fs, path::Path};

use chrono::DateTime;
use serde_json::{Value, json};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Field, Reading, ResultForm, Role, ToolCall},
    card_box::{Origin, Placed, Places, Span},
    id::{AgentId, BoxId, CardId, ToolCallId},
    resource::{Order, Process},
};

use crate::{
    call::{Call, Collected, Materials, RenderConfig},
    compact::Summary,
    framework::{Facts, Framework},
    kit::{stored, tokens},
    layer::BlockKey,
    lint,
    policy::{Audience, Policy},
    receipt::Found,
    wire::{Adapter, Params, reasoning_draft},
};

/// Returns the same id for the same arguments, so that the bytes stay the same.
fn id<T: std::str::FromStr<Err = waybill_core::id::Malformed>>(kind: u8, n: usize) -> T {
    format!("00000000-0000-7000-8{kind:03}-{n:012}").parse().unwrap()
}

/// A parsed script.
pub(crate) struct Scene {
    pub(crate) materials: Materials,
    policy: Policy,
}

/// Names of calls, and how many cards there are.
#[derive(Default)]
struct Pen {
    calls: HashMap<String, ToolCallId>,
    n_cards: usize,
}

impl Pen {
    fn call_id(&mut self, name: &str) -> ToolCallId {
        let n = self.calls.len() + 1;
        *self.calls.entry(name.to_owned()).or_insert_with(|| id(1, n))
    }

    fn card(&mut self, draft: Draft) -> Card {
        self.n_cards += 1;
        stored(Draft { card_id: id::<CardId>(2, self.n_cards), ..draft })
    }

    fn text(&mut self, card_type: CardType, role: Role, text: &str) -> Card {
        self.card(Draft::new(card_type, role, Content::Text(text.to_owned())))
    }

    /// Makes a card whose id follows from its text, so that it exists once.
    fn shared(&self, text: &str) -> Card {
        let draft = Draft::new(CardType::rendered_prompt(), Role::System, Content::Text(text.to_owned()));
        let n = text.bytes().fold(7, |n: usize, byte| (n * 31 + usize::from(byte)) % 1_000_000_007);
        stored(Draft { card_id: id::<CardId>(5, n), ..draft })
    }

    /// `user: …`, `assistant: … -> a=search({"q":1})`, `tool a: …`, `summary 1-4: …`, `reasoning openai_chat: …`
    fn line(&mut self, line: &str, history_box_id: BoxId) -> Card {
        let (who, said) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
        match who.split_once(' ') {
            Some(("tool", name)) => {
                let tool_call_id = self.call_id(name);
                self.card(Draft::tool_result(tool_call_id, "success", json!(said)))
            }
            Some(("summary", span)) => {
                let summary = summary(span, said, history_box_id);
                self.card(summary.draft())
            }
            Some(("reasoning", adapter)) => {
                let adapter: Adapter = serde_json::from_value(json!(adapter)).unwrap();
                let (text, verbatim) = said.split_once(" -> ").map_or((said, None), |(text, json)| (text, Some(json)));
                self.card(reasoning_draft(adapter, text.to_owned(), verbatim.map(str::to_owned)))
            }
            _ if who == "user" => self.text(CardType::instruction(), Role::User, said),
            _ if who == "deliverable" => self.text(CardType::deliverable(), Role::Assistant, said),
            _ => {
                let (text, calls) = said.split_once("-> ").unwrap_or((said, ""));
                let tool_calls = calls.split_whitespace().map(|call| {
                    let (name, call) = call.split_once('=').unwrap();
                    let (tool, arguments) = call.trim_end_matches(')').split_once('(').unwrap();
                    ToolCall {
                        tool_call_id: self.call_id(name),
                        tool_name: tool.to_owned(),
                        arguments: arguments.to_owned(),
                        provider_call_id: Some("label".into()),
                    }
                });
                let tool_calls = tool_calls.collect();
                let content = Content::Text(text.trim().to_owned());
                self.card(Draft { tool_calls, ..Draft::new(CardType::thought(), Role::Assistant, content) })
            }
        }
    }
}

fn summary(span: &str, text: &str, box_id: BoxId) -> Summary {
    let (from, upto) = span.split_once('-').unwrap();
    let span = Span { box_id, from: from.parse().unwrap(), upto: upto.parse().unwrap() };
    Summary {
        text: text.to_owned(),
        n_tokens: waybill_core::tokens::count(text),
        covers: Places::from_iter([span]),
        previous_card_id: None,
    }
}

pub(crate) fn read(script: &str) -> Scene {
    let (history_box_id, output_box_id): (BoxId, BoxId) = (id(3, 1), id(3, 2));
    let mut pen = Pen::default();
    let mut lines = script.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let process: Process = serde_json::from_value(json!(head[0])).unwrap();
    let order: Order = serde_json::from_value(json!(head[1])).unwrap();
    let policy = Policy { order, budget: tokens(head[2].parse().unwrap()), per_message: tokens(4) };
    let mut audience = Audience::of(process);
    audience.enable_share_context = !head.contains(&"alone");
    let mut materials = Materials {
        system_prompt: None,
        tools: Some(tools(&mut pen)),
        blocks: Vec::new(),
        session_summary: None,
        history: Vec::new(),
        read: Vec::new(),
        n_pinned: 0,
        query: Vec::new(),
        steps: Vec::new(),
        output: Span::prefix(output_box_id, 0),
        framework_version: Framework::builtin().version().to_owned(),
        left_out: Vec::new(),
        read_at: DateTime::UNIX_EPOCH,
    };
    let mut fields: Vec<Field> = Vec::new();
    let mut in_steps = false;
    for line in lines.filter(|line| !line.trim().is_empty()) {
        if let Some(line) = line.strip_prefix("  ") {
            let (list, box_id) = match in_steps {
                true => (&mut materials.steps, output_box_id),
                false => (&mut materials.history, history_box_id),
            };
            // `again`: what stands there once more, as after a replay.
            let reading = match line.strip_prefix("again ") {
                Some(n) => list[n.parse::<usize>().unwrap() - 1].reading.clone(),
                None => Reading::Live(Box::new(pen.line(line, history_box_id))),
            };
            let seq = i64::try_from(list.len()).unwrap() + 1;
            list.push(Placed { place: seq, origin: Origin { box_id, seq }, also: Vec::new(), reading });
            continue;
        }
        let (key, text) = line.split_once(": ").unwrap_or((line, ""));
        match key {
            "history" => in_steps = false,
            "steps" => in_steps = true,
            "prompt" => {
                materials.system_prompt = Some(pen.shared(text));
            }
            "pinned" => materials.n_pinned = text.parse().unwrap(),
            "wants" => {
                audience.demands = text.split(' ').map(|key| format!("{key}__context").parse().unwrap()).collect();
            }
            "query" => materials.query.push(pen.line(&format!("user: {text}"), history_box_id)),
            "query again" => {
                let query = Reading::Live(Box::new(materials.query[0].clone()));
                let list = if in_steps { &mut materials.steps } else { &mut materials.history };
                let (box_id, seq) =
                    (if in_steps { output_box_id } else { history_box_id }, i64::try_from(list.len()).unwrap() + 1);
                list.push(Placed { place: seq, origin: Origin { box_id, seq }, also: Vec::new(), reading: query });
            }
            "fields" => {
                let (name, description) = text.split_once(" = ").unwrap();
                fields.push(Field { name: name.into(), description: description.into(), extra: Default::default() });
            }
            key if key.starts_with("summary ") => {
                let draft = summary(&key[8..], text, history_box_id).draft();
                materials.session_summary = Some(pen.card(draft));
            }
            key => {
                let every_step = key.ends_with('*');
                let key: BlockKey = format!("{}__context", key.trim_end_matches('*')).parse().unwrap();
                let card = pen.shared(&text.replace(" / ", "\n"));
                materials.blocks.push(Collected { key, card, every_step, sources: Vec::new() });
            }
        }
    }
    let facts = Facts {
        agent_id: id::<AgentId>(4, 1),
        parent_agent_id: None,
        process,
        result_form: &ResultForm::Fields(fields),
        context_box_id: history_box_id,
        output_box_id: materials.output.box_id,
        budget: None,
    };
    let framework = Framework::builtin();
    for (key, text) in
        [(BlockKey::Turn, framework.render_turn(&facts)), (BlockKey::Framework, framework.render(&facts))]
    {
        let card = pen.shared(&text);
        materials.blocks.insert(0, Collected { key, card, every_step: false, sources: Vec::new() });
    }
    materials.allow(&audience);
    materials.read = vec![Span::prefix(history_box_id, i64::try_from(materials.history.len()).unwrap())];
    materials.output.upto = i64::try_from(materials.steps.len()).unwrap();
    Scene { materials, policy }
}

fn tools(pen: &mut Pen) -> Card {
    let tool =
        |name: &str, what: &str| json!({ "tool_name": name, "description": what, "parameters": { "type": "object" } });
    let list = json!([tool("search", "Finds pages."), tool("fetch", "Reads a page.")]);
    pen.card(Draft::new(CardType::tools(), Role::System, Content::Json(list)))
}

impl Scene {
    pub(crate) fn call(&self, adapter: Adapter) -> Call<'static> {
        self.materials.call(&self.config(adapter)).unwrap().into_owned()
    }

    pub(crate) fn config(&self, adapter: Adapter) -> RenderConfig {
        let Value::Object(params) = json!({ "model": "m-1", "max_tokens": 1000 }) else { unreachable!() };
        RenderConfig { adapter, policy: self.policy, params: Params::try_from(params).unwrap() }
    }

    /// Returns what a replay finds by the receipt.
    pub(crate) fn found(&self) -> Found {
        Found {
            cards: self.materials.cards().map(|card| Reading::Live(Box::new(card.clone()))).collect(),
            history: self.materials.history.clone(),
            steps: self.materials.steps.clone(),
        }
    }
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

pub(crate) fn scripts() -> Vec<(String, String)> {
    let mut scripts: Vec<(String, String)> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    scripts.sort();
    scripts
}

/// CX-1, CX-3, CX-7, CX-8, CX-10, CX-12, CX-13: all together, on realistic turns.
#[test]
fn eleven_turns_are_rendered_as_they_were() {
    let scripts = scripts();
    assert_eq!(scripts.len(), 11);
    for (name, script) in scripts {
        let scene = read(&script);
        for adapter in Adapter::ALL {
            let call = scene.call(adapter);
            let text = String::from_utf8(call.request).unwrap();
            let mut pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&text).unwrap()).unwrap();
            let left: Vec<Value> = call.composed.omitted.iter().map(|omitted| json!(omitted)).collect();
            pretty.push_str(&format!("\n// {} tokens, left out: {}\n", call.composed.n_tokens.get(), json!(left)));
            assert!(call.composed.n_tokens <= scene.policy.budget);
            let path = folder().join(format!("{name}.{}.json", adapter.as_str()));
            if std::env::var_os("UPDATE").is_some() {
                fs::write(&path, &pretty).unwrap();
            }
            let expected = fs::read_to_string(&path).unwrap_or_default();
            assert!(expected == pretty, "{} is not what is rendered; UPDATE=1 writes it:\n{pretty}", path.display());
            assert_eq!(lint::lint(&text).unwrap(), [], "{name}");
        }
    }
}
