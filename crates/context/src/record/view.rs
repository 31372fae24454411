//! How people see a piece of a request: who speaks, what is said, which tools are called.
//!
//! It never fails. What is not understood is shown as the JSON that it is. Long data, such as an image, is named and counted but not shown.

use waybill_core::card::Role;

use super::{
    data::{audio, file, image, label, n_bytes, without_data},
    raw::{self, Object},
};
use crate::wire::Adapter;

/// One element of `messages` or `input`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub role: Role,
    /// What is said. Parts that are not text have a line of their own, such as `[image image/png, 2048 bytes]`.
    pub text: String,
    pub calls: Vec<Call>,
    /// The ids of the calls whose results these are. Only Anthropic puts several results into one message.
    pub answers: Vec<String>,
    pub reasoning: Option<String>,
    /// Whether it is an item of a kind that has no view of its own, such as a web search: the text is its JSON.
    pub is_other: bool,
}

/// A tool call of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The provider's id of the call. It is empty for the old `function_call`, which has none.
    pub provider_call_id: String,
    pub tool_name: String,
    /// As the model wrote them: usually JSON, but not always.
    pub arguments: String,
}

/// How deep content is shown inside content: a result has blocks, and one of them may be a document with blocks.
const DEPTH: usize = 2;

/// Shows one element of `messages` or `input`.
pub fn view(adapter: Adapter, raw: &str) -> View {
    let raw = raw.trim();
    let known = match Object::of(raw) {
        Some(object) if adapter == Adapter::OpenaiResponses => item(&object, raw),
        Some(object) => message(&object),
        // Responses accepts a string instead of a list.
        None => raw::text(raw).map(|text| View { text: text.into_owned(), ..View::of(Role::User) }),
    };
    known.unwrap_or_else(|| View { text: without_data(raw), ..View::of(Role::User) })
}

/// Shows Anthropic's `system` or Responses' `instructions`.
pub fn view_system(adapter: Adapter, raw: &str) -> String {
    let raw = raw.trim();
    let mut seen = View::of(Role::System);
    match raw::elements(raw) {
        Some(elements) => {
            for element in elements {
                match Object::of(element) {
                    Some(object) if object.get("role").is_some() => seen.say(&view(adapter, element).text),
                    _ => seen.part(element, 0),
                }
            }
        }
        None => seen.content(raw, 0),
    }
    seen.text
}

/// Returns the names of the tools in `tools`, in their order. A tool of the provider has the name of its type or of its server.
pub fn tool_names(adapter: Adapter, raw_tools: &str) -> Vec<String> {
    let names: &[&str] = match adapter {
        Adapter::OpenaiChat | Adapter::OpenaiResponses => &["name", "server_label", "type"],
        Adapter::AnthropicMessages => &["name", "mcp_server_name", "type"],
    };
    let name = |raw: &str| {
        let tool = Object::of(raw)?;
        // Chat completions puts the name one level deeper, under the type.
        let inner = ["function", "custom"].iter().find_map(|key| tool.object(key)?.text("name"));
        inner.or_else(|| names.iter().find_map(|key| tool.text(key))).map(|name| name.into_owned())
    };
    let tools = raw::elements(raw_tools.trim()).unwrap_or_default();
    tools.into_iter().map(|raw| name(raw).unwrap_or_else(|| "?".to_owned())).collect()
}

/// Shows a message of any format: the kinds of content have different names, so they need not be told apart.
fn message(object: &Object<'_>) -> Option<View> {
    let role = match &*object.text("role")? {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        _ => return None,
    };
    let mut seen = View::of(role);
    let content = object.get("content");
    if let Some(content) = content {
        seen.content(content, 0);
    }
    if let Some(refusal) = object.text("refusal") {
        seen.say(&refusal);
    }
    if let Some(thought) = object.text("reasoning_content").or_else(|| object.text("reasoning")) {
        seen.think(&thought);
    }
    for call in object.get("tool_calls").and_then(raw::elements).unwrap_or_default() {
        match Object::of(call).and_then(|call| chat_call(&call)) {
            Some(call) => seen.calls.push(call),
            None => seen.say(&without_data(call)),
        }
    }
    if let Some(function) = object.object("function_call") {
        seen.calls.extend(call_of(String::new(), &function));
    }
    seen.answers.extend(object.text("tool_call_id").map(|id| id.into_owned()));

    let n_blocks = content.and_then(raw::elements).map_or(0, |blocks| blocks.len());
    if role == Role::User && n_blocks > 0 && seen.answers.len() == n_blocks {
        seen.role = Role::Tool;
    }
    let is_blank = content.is_none() && seen == View::of(role);
    (!is_blank).then_some(seen)
}

/// Shows an item of Responses.
fn item(object: &Object<'_>, raw: &str) -> Option<View> {
    let kind = object.text("type").unwrap_or("message".into());
    let id = || object.text("call_id").map(|id| id.into_owned());
    match &*kind {
        "message" => message(object),
        "function_call" | "custom_tool_call" => {
            let call = call_of(id().unwrap_or_default(), object)?;
            Some(View { calls: vec![call], ..View::of(Role::Assistant) })
        }
        "function_call_output" | "custom_tool_call_output" => {
            let mut seen = View { answers: id().into_iter().collect(), ..View::of(Role::Tool) };
            seen.content(object.get("output")?, 0);
            Some(seen)
        }
        "reasoning" => Some(reasoning(object)),
        // A name such as `web_search_call`, `shell_call_output` or `mcp_approval_response` says who speaks.
        _ => {
            let is_output = kind.ends_with("_output");
            let role = match &*kind {
                "additional_tools" => Role::System,
                _ if is_output => Role::Tool,
                _ if kind.ends_with("_response") => Role::User,
                _ => Role::Assistant,
            };
            let answers = id().filter(|_| is_output).into_iter().collect();
            Some(View { text: typed(&kind, raw), answers, is_other: true, ..View::of(role) })
        }
    }
}

/// Shows what a model thought. Often that is encrypted, with or without a summary.
fn reasoning(object: &Object<'_>) -> View {
    let mut seen = View::of(Role::Assistant);
    for texts in [object.get("summary"), object.get("content")].into_iter().flatten() {
        seen.content(texts, 0);
    }
    let text = std::mem::take(&mut seen.text);
    let is_sealed = text.is_empty() && object.get("encrypted_content").is_some();
    seen.reasoning = Some(if is_sealed { "[encrypted]".to_owned() } else { text });
    seen
}

/// Reads a call of chat completions: of a function with arguments, or of a custom tool with text.
fn chat_call(call: &Object<'_>) -> Option<Call> {
    let id = call.text("id").unwrap_or_default().into_owned();
    call_of(id, &["function", "custom"].iter().find_map(|key| call.object(key))?)
}

/// Reads a call from an object with a name and arguments. Custom tools and Anthropic have an input instead.
fn call_of(provider_call_id: String, object: &Object<'_>) -> Option<Call> {
    let tool_name = object.text("name")?.into_owned();
    let arguments = object.get("arguments").or(object.get("input")).unwrap_or("");
    let arguments = raw::text(arguments).map_or_else(|| arguments.to_owned(), |text| text.into_owned());
    Some(Call { provider_call_id, tool_name, arguments })
}

impl View {
    fn of(role: Role) -> View {
        View { role, text: String::new(), calls: Vec::new(), answers: Vec::new(), reasoning: None, is_other: false }
    }

    fn say(&mut self, text: &str) {
        add_line(&mut self.text, text);
    }

    fn think(&mut self, text: &str) {
        add_line(self.reasoning.get_or_insert_default(), text);
    }

    /// Adds content: a string, or a list of parts.
    fn content(&mut self, raw: &str, depth: usize) {
        match (raw::text(raw), raw::elements(raw)) {
            (Some(text), _) => self.say(&text),
            (None, Some(parts)) => parts.into_iter().for_each(|part| self.part(part, depth)),
            (None, None) => self.say(&without_data(raw)),
        }
    }

    /// Adds one part of a content.
    fn part(&mut self, raw: &str, depth: usize) {
        let Some(part) = Object::of(raw) else {
            return match raw::text(raw) {
                Some(text) => self.say(&text),
                None => self.say(&without_data(raw)),
            };
        };
        let kind = part.text("type").unwrap_or_default();
        if self.known_part(&kind, &part, depth).is_none() {
            self.say(&if kind.is_empty() { without_data(raw) } else { typed(&kind, raw) });
        }
    }

    /// Adds a part of a known kind. None means that it is not, or lacks what this kind needs.
    fn known_part(&mut self, kind: &str, part: &Object<'_>, depth: usize) -> Option<()> {
        match kind {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => self.say(&part.text("text")?),
            "refusal" => self.say(&part.text("refusal")?),
            "image_url" | "input_image" | "image" => self.say(&image(part)),
            "input_audio" => self.say(&audio(part)),
            "file" | "input_file" => self.say(&file(part)),
            "document" => self.document(part, depth),
            "thinking" => self.think(&part.text("thinking")?),
            "redacted_thinking" => self.think("[redacted_thinking]"),
            "tool_use" => self.calls.push(call_of(part.text("id").unwrap_or_default().into_owned(), part)?),
            "tool_result" if depth == 0 => {
                self.answers.push(part.text("tool_use_id")?.into_owned());
                if let Some(content) = part.get("content") {
                    self.content(content, depth + 1);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Adds a document of Anthropic's. What the model reads as text is shown.
    fn document(&mut self, part: &Object<'_>, depth: usize) {
        let source = part.object("source").unwrap_or_default();
        let (title, kind) = (part.text("title"), source.text("type").unwrap_or_default());
        let data = source.get("data").filter(|_| kind != "text");
        let media_type = source.text("media_type").filter(|_| data.is_some());
        self.say(&label("document", [title.as_deref(), media_type.as_deref()], data.map(n_bytes)));
        let content = source.get(if kind == "text" { "data" } else { "content" });
        if let Some(content) = content {
            if depth < DEPTH { self.content(content, depth + 1) } else { self.say(&without_data(content)) }
        }
    }
}

fn add_line(lines: &mut String, line: &str) {
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines.push_str(line);
}

/// Shows an object of a kind that has no view of its own.
fn typed(kind: &str, raw: &str) -> String {
    format!("[{kind}] {}", without_data(raw))
}

#[cfg(test)]
mod tests;
