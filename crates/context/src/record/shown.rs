//! Cards of recorded requests as messages that people read.

use std::borrow::Cow;

use smallvec::smallvec;
use waybill_core::{
    card::{Card, Content, Role, ToolCall},
    id::ToolCallId,
};

use super::view::{self, View, view, view_system};
use crate::{
    layer::Layer,
    receipt::Receipt,
    unit::{Message, Reasoning, source},
    wire::Adapter,
};

/// Returns the raw JSON that a card of a recorded request holds.
pub(crate) fn raw_of(card: &Card) -> Cow<'_, str> {
    let Content::Text(text) = &card.content else { return Cow::Borrowed("") };
    // What JSON cannot have in a text is not in it, so this is the only escape.
    if text.contains('␛') { Cow::Owned(text.replace("␛␛", "␛")) } else { Cow::Borrowed(text) }
}

/// Shows the system text of a recorded request, where it is no message.
pub(crate) fn system_message(adapter: Adapter, card: &Card) -> Message<'static> {
    let text = view_system(adapter, &raw_of(card));
    Message::text(Layer::SystemPrompt, Role::System, text, smallvec![source(card)], card.n_tokens)
}

/// Shows a message of a recorded request.
pub(crate) fn message(adapter: Adapter, card: &Card) -> Message<'static> {
    let View { role, text, calls, answers, reasoning, .. } = view(adapter, &raw_of(card));
    let layer = if role == Role::System { Layer::SystemPrompt } else { Layer::CheckpointMessages };
    let call = |call: view::Call| ToolCall {
        tool_call_id: id_of(&call.provider_call_id),
        tool_name: call.tool_name,
        arguments: call.arguments,
        provider_call_id: Some(call.provider_call_id),
    };
    let reasoning =
        reasoning.map(|text| Reasoning { adapter: adapter.as_str().into(), text: text.into(), verbatim: None });
    Message {
        tool_calls: calls.into_iter().map(call).collect::<Vec<_>>().into(),
        tool_call_id: answers.first().map(|id| id_of(id)),
        reasoning,
        ..Message::text(layer, role, text, smallvec![source(card)], card.n_tokens)
    }
}

/// Lists the tools of a recorded request, by the card that has them.
pub fn tool_names(receipt: &Receipt, tools: &Card) -> Vec<String> {
    let adapter = Adapter::ALL.into_iter().find(|adapter| adapter.as_str() == receipt.adapter);
    adapter.map(|adapter| view::tool_names(adapter, &raw_of(tools))).unwrap_or_default()
}

/// Returns our id of a call that only a provider has given one.
fn id_of(provider_call_id: &str) -> ToolCallId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(provider_call_id.as_bytes()).as_bytes()[..16]);
    ToolCallId::from_bytes(bytes)
}
