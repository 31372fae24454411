//! Cards that a worker writes.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waybill_core::{
    card::{CardType, Content, Draft, Metadata, NewCard, Role},
    id::{CardId, StepId, ToolCallId},
};

use crate::{caller::Caller, problem::Problem};

/// A card to write. The worker generates its id, so that a repeated request does not write the card twice.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardDraft {
    /// Id of the card: a UUIDv7 that the worker generates.
    card_id: CardId,
    /// Type of the card, such as `agent.thought`, `tool.call`, `task.deliverable`.
    #[serde(rename = "type")]
    #[schema(pattern = "^[a-z0-9_.]{1,64}$")]
    card_type: String,
    /// `assistant`, or `tool` for the answer of a tool. A worker cannot write cards with the role `user` or `system`.
    role: Role,
    /// Content of the card: text or JSON, as the type requires.
    content: Value,
    /// Id of the call that a `tool.call` card makes, or that a `tool.result` card answers. If omitted, the card belongs to no call.
    #[serde(default)]
    tool_call_id: Option<ToolCallId>,
    /// Further metadata of the card. It is not part of the card's hash.
    #[serde(default)]
    extra: Map<String, Value>,
    /// Seconds until the content expires. If omitted, it does not expire.
    #[serde(default)]
    #[schema(minimum = 1)]
    ttl_seconds: Option<i32>,
}

impl CardDraft {
    pub(super) fn seal(self, caller: &Caller, step_id: Option<StepId>) -> Result<NewCard, Problem> {
        if !matches!(self.role, Role::Assistant | Role::Tool) {
            return Err(Problem::invalid("a worker may write only cards with the role `assistant` or `tool`"));
        }
        caller.may_say(&self.content)?;
        let card_type: CardType = self.card_type.parse().map_err(invalid)?;
        let content = Content::read(&card_type, self.content).map_err(invalid)?;
        let metadata = Metadata {
            author_id: Some(caller.actor.clone()),
            step_id,
            extra: self.extra,
            ..Metadata::new(card_type.clone(), self.role)
        };
        let draft = Draft::new(card_type, self.role, content);
        let (card_id, tool_call_id, ttl_seconds) = (self.card_id, self.tool_call_id, self.ttl_seconds);
        Draft { card_id, metadata, tool_call_id, ttl_seconds, ..draft }.seal().map_err(invalid)
    }
}

/// Returns the refusal of a card that cannot be sealed, with its cause.
pub(super) fn invalid(error: impl std::error::Error) -> Problem {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Problem::invalid(format!("{error}{cause}"))
}
