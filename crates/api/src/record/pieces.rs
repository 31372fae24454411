//! A request as cards, and the marks by which its conversation is found.

use std::{borrow::Cow, collections::HashMap, fmt, sync::Mutex};

use serde_json::Value;
use waybill_context::{
    record::{
        self, Cut,
        view::{self, View},
        withhold,
    },
    wire::Adapter,
};
use waybill_core::{
    card::{CardType, Content, Draft, Invalid, NewCard, Role},
    json,
    tokens::Tokens,
};
use waybill_kernel::record::Mark;

use super::{
    lock,
    source::{Secret, Whose},
    write::Error,
};

/// How many of the last messages of a request may be new, for it to be found at once that it goes on with a turn.
const MOST_NEW: usize = 64;
/// A shorter text is said in many conversations: it does not tell which one a request goes on with.
const TELLING: usize = 40;
/// With more, a request is another one whenever one of them changes.
const MOST_CREDENTIALS: usize = 16;
/// What stands in place of a credential in a request that is compared with others.
pub(super) const WITHHELD: &str = "withheld";
/// From here on the tokens of a message are estimated: a token is about four bytes.
const COUNTED: usize = 64 << 10;
/// How many messages are remembered with their tokens.
const MOST_COUNTED: usize = 50_000;

/// The tokens of messages that were counted: the next request of a conversation has them again.
#[derive(Debug, Default)]
pub(super) struct Counted(Mutex<HashMap<Mark, Tokens>>);

impl Counted {
    fn of(&self, mark: Mark) -> Option<Tokens> {
        lock(&self.0).get(&mark).copied()
    }

    fn add(&self, mark: Mark, n_tokens: Tokens) {
        let mut all = lock(&self.0);
        if all.len() >= MOST_COUNTED {
            all.clear();
        }
        all.insert(mark, n_tokens);
    }
}

/// A request as cards.
pub(super) struct Pieces {
    /// The skeleton, then the system text and the tools, if it has them: they exist once per project.
    pub(super) shared: Vec<NewCard>,
    pub(super) has_system: bool,
    pub(super) has_tools: bool,
    pub(super) messages: Vec<NewCard>,
    /// For each message: what it and all before it are.
    pub(super) marks: Vec<Mark>,
    /// What a request without messages is.
    empty: Mark,
    pub(super) model: Option<String>,
    pub(super) withheld: Vec<String>,
    pub(super) rests_on: Option<String>,
    /// The mark of the earlier call or conversation at the provider that the request builds on.
    pub(super) state: Option<Mark>,
    pub(super) is_conversation: bool,
    /// The mark of the whole request.
    pub(super) request: Mark,
    /// The mark of the first words of the user, if they tell who asked for it.
    pub(super) asked: Option<Mark>,
    /// For each message: what it says as a part of an answer. None: the model did not write it.
    answers: Vec<Option<Part>>,
    marking: Marking,
    kin: String,
}

/// A part of an answer, as marks: of its first call, and of its text.
struct Part {
    call: Option<Mark>,
    text: Option<Mark>,
    is_telling: bool,
}

impl fmt::Debug for Pieces {
    /// Without what it says, and without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("n_messages", &self.messages.len()).finish_non_exhaustive()
    }
}

impl Pieces {
    /// Cuts a request. `whose` says whose conversations it may belong to.
    pub(super) fn new(
        adapter: Adapter,
        body: &[u8],
        secret: &Secret,
        whose: &Whose,
        counted: &Counted,
    ) -> Result<Pieces, Error> {
        let Whose { source, kin, address } = whose;
        let source = source.as_str();
        let key = &secret.key;
        let withheld = secret.withheld();
        let cut = match secret.has_patterns() {
            true => record::cut(adapter, body, key, &[&withheld])?,
            false => record::cut(adapter, body, key, &[])?,
        };
        let Cut { skeleton, system, tools, messages, withheld, model, rests_on, goes_on, is_conversation, .. } = cut;
        let (has_system, has_tools) = (system.is_some(), tools.is_some());
        let mut shared = vec![seal(part(serde_json::to_string(&skeleton).unwrap_or_default()))?];
        for raw in system.into_iter().chain(tools) {
            shared.push(seal(part(raw))?);
        }
        let marking = Marking::new(key, source);
        let state = rests_on.as_ref().filter(|_| goes_on).map(|id| marking.of("state", id));
        let empty = match &state {
            Some(state) => marking.after(&marking.whose, state.as_bytes()),
            None => marking.whose,
        };
        let n = messages.len();
        let (mut marks, mut cards, mut answers) = (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
        let (mut last, mut asked) = (empty, None);
        for raw in messages {
            last = marking.after(&last, raw.as_bytes());
            let view = view::view(adapter, &raw);
            let role = view.role;
            if role == Role::User && asked.is_none() {
                asked = Some(asks(&view.text, key, kin));
            }
            answers.push(marking.part(view));
            let mut draft = Draft::new(CardType::wire_message(), role, Content::Text(json::text(&raw).into_owned()));
            draft.metadata.extra.insert("mark".to_owned(), Value::from(last.to_hex()));
            let card = match counted.of(last) {
                Some(n_tokens) => draft.seal_counted(n_tokens)?,
                None => {
                    let card = seal(draft)?;
                    counted.add(last, card.n_tokens());
                    card
                }
            };
            cards.push(card);
            marks.push(last);
        }
        let rests_on = rests_on.map(|id| json::text(&id).chars().take(200).collect());
        Ok(Pieces {
            shared,
            has_system,
            has_tools,
            messages: cards,
            marks,
            empty,
            model,
            withheld,
            rests_on,
            state,
            is_conversation,
            request: marking.request(adapter, body, address),
            asked: asked.flatten(),
            answers,
            marking,
            kin: kin.clone(),
        })
    }

    /// Returns the marks from that of all messages down, as many as are looked for, each with what comes next.
    pub(super) fn tails(&self) -> Vec<(Mark, Option<Mark>)> {
        let n = self.marks.len();
        (0..n).rev().take(MOST_NEW).map(|n| (self.marks[n], self.next(n + 1))).collect()
    }

    /// Returns the mark of the answer that begins with this message: of its first call, or else of its text. If it is no answer, no turn has that
    /// mark. None means that there is no such message.
    fn next(&self, n: usize) -> Option<Mark> {
        let rest = self.answers.get(n..).filter(|rest| !rest.is_empty())?;
        // A model that reasons says that first, in items of its own.
        let parts = || rest.iter().map_while(Option::as_ref);
        let call = parts().find_map(|part| part.call);
        call.or_else(|| parts().find_map(|part| part.text)).or(Some(self.empty))
    }

    /// Returns the mark of the last answer in the request, if it tells in which conversation it was given.
    pub(super) fn last_answer(&self) -> Option<Mark> {
        let last = self.answers.iter().rposition(Option::is_some)?;
        let first = self.answers[..last].iter().rposition(Option::is_none).map_or(0, |n| n + 1);
        let is_telling = self.answers[first..=last].iter().flatten().any(|part| part.is_telling);
        self.next(first).filter(|_| is_telling)
    }

    /// Returns the mark of an answer, or of a call as the provider remembers it.
    pub(super) fn marked(&self, what: &str, said: &str) -> Mark {
        self.marking.of(what, said)
    }

    /// Returns the mark of an imported call, whichever conversation it is in: a session that was resumed has the calls before once more.
    pub(super) fn imported(&self, said: &str) -> Mark {
        mark(&self.marking.key, &[b"import\n", said.as_bytes()])
    }

    /// Returns the mark of what an agent of this conversation asks another. None means that it is too short to tell.
    pub(super) fn asks(&self, said: &str) -> Option<Mark> {
        asks(said, &self.marking.key, &self.kin)
    }

    pub(super) fn tail(&self) -> Mark {
        self.marks.last().copied().unwrap_or(self.empty)
    }

    /// Returns the mark of what the conversation begins with: all up to the first message that is no system prompt.
    pub(super) fn opening(&self) -> Mark {
        let first = self.messages.iter().position(|card| card.metadata().role != Role::System).unwrap_or_default();
        self.marks.get(first).copied().unwrap_or(self.empty)
    }
}

/// Returns the mark of what one agent asks another. None means that it is too short to tell.
fn asks(said: &str, key: &[u8; 32], kin: &str) -> Option<Mark> {
    let said = said.trim();
    (said.len() >= TELLING).then(|| mark(key, &[b"asks\n", kin.as_bytes(), b"\n", said.as_bytes()]))
}

/// Returns the mark of a whole request.
pub(super) fn request_mark(adapter: Adapter, body: &[u8], key: &[u8; 32], whose: &Whose) -> Mark {
    Marking::new(key, whose.source.as_str()).request(adapter, body, &whose.address)
}

/// Returns a body with `withheld` in place of each of its credentials: they change, and the request stays the same.
pub(super) fn without_credentials(adapter: Adapter, body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body);
    let found = withhold::credentials(adapter, body);
    if found.is_empty() || found.len() > MOST_CREDENTIALS {
        return text;
    }
    let all = found.iter().filter(|credential| !credential.is_empty());
    Cow::Owned(all.fold(text.into_owned(), |text, credential| text.replace(credential.as_str(), WITHHELD)))
}

/// Makes marks with the key of a project, for the conversations of one source.
struct Marking {
    key: [u8; 32],
    whose: Mark,
}

impl Marking {
    fn new(key: &[u8; 32], source: &str) -> Marking {
        Marking { key: *key, whose: mark(key, &[b"record\n", source.as_bytes()]) }
    }

    fn of(&self, what: &str, said: &str) -> Mark {
        mark(&self.key, &[self.whose.as_bytes(), what.as_bytes(), b"\n", said.as_bytes()])
    }

    fn request(&self, adapter: Adapter, body: &[u8], address: &str) -> Mark {
        let body = without_credentials(adapter, body);
        mark(&self.key, &[self.whose.as_bytes(), b"request\n", address.as_bytes(), b"\n", body.as_bytes()])
    }

    fn after(&self, last: &Mark, raw: &[u8]) -> Mark {
        mark(&self.key, &[last.as_bytes(), raw])
    }

    fn part(&self, view: View) -> Option<Part> {
        let View { role, text, calls, is_other, .. } = view;
        let said = |said: &str| (!said.is_empty()).then(|| self.of("answer", said));
        let call = calls.first().and_then(|call| said(&call.provider_call_id));
        let text = if is_other { "" } else { text.as_str() };
        let is_telling = call.is_some() || text.len() >= TELLING;
        (role == Role::Assistant).then(|| Part { call, text: said(text), is_telling })
    }
}

fn mark(key: &[u8; 32], parts: &[&[u8]]) -> Mark {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Mark::from_bytes(bytes)
}

/// Makes a card that exists once per project.
fn part(raw: String) -> Draft {
    Draft::new(CardType::request_part(), Role::System, Content::Text(json::text(&raw).into_owned()))
}

/// Seals a card. The tokens of a long one are estimated: counting them would keep others waiting.
fn seal(draft: Draft) -> Result<NewCard, Invalid> {
    match &draft.content {
        Content::Text(text) if text.len() > COUNTED => {
            let estimated = i32::try_from(text.len() / 4).unwrap_or(i32::MAX);
            draft.seal_counted(Tokens::new(estimated).unwrap_or_default())
        }
        _ => draft.seal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(adapter: Adapter, body: &str) -> Pieces {
        Pieces::new(adapter, body.as_bytes(), &Secret::of_test(), &Whose::named("me"), &Counted::default())
            .unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// RC-5: a request says which answer it goes on from, also where a model reasons before it speaks.
    #[test]
    fn a_request_names_the_answer_that_it_goes_on_from() {
        let check = |adapter: Adapter, answer: &str, said: Option<&str>| {
            let name = if adapter == Adapter::OpenaiResponses { "input" } else { "messages" };
            let body = format!(r#"{{"{name}":[{{"role":"user","content":"Hi"}},{answer}]}}"#);
            let pieces = pieces(adapter, &body);
            let (tail, follows) = *pieces.tails().last().unwrap();
            assert_eq!(tail, pieces.marks[0]);
            let expected = said.map_or(pieces.empty, |said| pieces.marked("answer", said));
            assert_eq!(follows, Some(expected), "{answer}");
        };
        let reasoning = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}"#;
        let call = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}","name":"f","arguments":"{{}}"}}"#);
        let words = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello."}]}"#;
        let output = r#"{"type":"function_call_output","call_id":"c1","output":"1"}"#;
        let search = r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#;
        let responses = |items: &[&str], said| check(Adapter::OpenaiResponses, &items.join(","), said);
        responses(&[reasoning, &call("c1"), &call("c2"), output], Some("c1"));
        responses(&[reasoning, words, &call("c1"), output], Some("c1"));
        responses(&[reasoning, search, words, output, &call("c3")], Some("Hello."));
        responses(&[reasoning, output, &call("c3")], None);
        responses(&[output, words], None);
        let chat = r#"{"role":"assistant","content":"Look.","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]}"#;
        check(Adapter::OpenaiChat, chat, Some("c1"));
        check(Adapter::OpenaiChat, r#"{"role":"assistant","content":"Hello."}"#, Some("Hello."));
        check(Adapter::OpenaiChat, r#"{"role":"user","content":"Hello?"}"#, None);
        let use_tool = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"tool_use","id":"t1","name":"f","input":{}}]}"#;
        check(Adapter::AnthropicMessages, use_tool, Some("t1"));
        let alone = pieces(Adapter::OpenaiChat, r#"{"messages":[{"role":"user","content":"Hi"}]}"#);
        assert_eq!(alone.tails(), [(alone.marks[0], None)]);
    }

    /// RC-5: also where the first message is another one, a long answer or the id of a call says where a request goes on from.
    #[test]
    fn the_last_answer_tells_the_conversation() {
        let last = |messages: &str| {
            let pieces = pieces(Adapter::OpenaiChat, &format!(r#"{{"messages":[{messages}]}}"#));
            (pieces.last_answer(), pieces)
        };
        let user = r#"{"role":"user","content":"And?"}"#;
        let call = r#"{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]}"#;
        let result = r#"{"role":"tool","tool_call_id":"c1","content":"1"}"#;
        let long = "Zürich is warmest: 21 °C. Quito has 14 °C.";
        let says = |text: &str| format!(r#"{{"role":"assistant","content":"{text}"}}"#);
        let (found, pieces) = last(&[user, call, result].join(","));
        assert_eq!(found, Some(pieces.marked("answer", "c1")));
        let (found, pieces) = last(&[user, call, result, &says(long), user].join(","));
        assert_eq!(found, Some(pieces.marked("answer", long)));
        assert_eq!(last(&[user, &says("Yes."), user].join(",")).0, None);
        assert_eq!(last(user).0, None);
    }

    /// RC-4, RC-5: a prompt that is stored at the provider is more than the bytes, but it is no conversation.
    #[test]
    fn only_what_came_before_is_a_state() {
        let of = |body: &str| pieces(Adapter::OpenaiResponses, body);
        let plain = of(r#"{"input":"Hi"}"#);
        let prompt = of(r#"{"input":"Hi","prompt":{"id":"pmpt_1"}}"#);
        assert_eq!((prompt.rests_on.as_deref(), prompt.state), (Some("pmpt_1"), None));
        assert_eq!(prompt.tail(), plain.tail());
        let earlier = of(r#"{"input":"Hi","previous_response_id":"resp_1"}"#);
        assert_eq!(earlier.state, Some(plain.marked("state", "resp_1")));
        assert_ne!(earlier.tail(), plain.tail());
        let other = Pieces::new(
            Adapter::OpenaiResponses,
            br#"{"input":"Hi"}"#,
            &Secret::of_test(),
            &Whose::named("you"),
            &Counted::default(),
        )
        .unwrap();
        assert_ne!(other.tail(), plain.tail());
        assert_ne!(other.marked("state", "resp_1"), plain.marked("state", "resp_1"));
    }
}
