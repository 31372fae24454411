//! What the arguments of a turn say: its profile, its cards, and the boxes that it inherits.

use serde_json::{Map, Value};
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    handover::{Handover, PackArgument},
    id::{AgentId, BoxId, Name},
    json,
};

use super::{Pack, Packing};
use crate::handover::Error;

/// Returns the profile that is to run the turn: the one that the arguments name, or else the handover.
pub(super) fn target_name(handover: &Handover, pack: &Pack) -> Result<Name, Error> {
    match pack.arguments.get("profile_name").filter(|value| !value.is_null()) {
        Some(Value::String(name)) => {
            name.parse().map_err(|error| Error::BadRequest(format!("`profile_name`: {error}")))
        }
        Some(_) => Err(Error::BadRequest("`profile_name` must be a string: the name of a profile".to_owned())),
        None => handover.target_profile_config.profile_name.clone().ok_or_else(|| {
            Error::BadRequest("no profile is named: set `profile_name` in the arguments, or in `target_profile_config` of the handover".to_owned())
        }),
    }
}

/// Makes a card of each argument that a rule packs.
pub(super) fn argument_cards(packing: &Packing<'_>, pack: &Pack) -> Result<Vec<(String, NewCard)>, Error> {
    let rules = &packing.handover.context_packing_config.pack_arguments;
    let given = rules.iter().filter_map(|rule| Some((rule, pack.arguments.get(&rule.arg_key)?)));
    let cards = given.filter(|(_, value)| !value.is_null()).map(|(rule, value)| {
        let card = argument_card(packing, rule, value)?;
        Ok((rule.arg_key.clone(), card))
    });
    cards.collect()
}

fn argument_card(packing: &Packing<'_>, rule: &PackArgument, value: &Value) -> Result<NewCard, Error> {
    let PackArgument { arg_key, as_card_type, card_metadata } = rule;
    let is_ours = as_card_type.is_system() || as_card_type.as_str().starts_with("meta.");
    if is_ours || *as_card_type == CardType::deliverable() {
        return Err(Error::BadRequest(format!(
            "argument `{arg_key}`: a card of type `{as_card_type}` cannot be handed over"
        )));
    }
    let fields = *as_card_type == CardType::result_fields();
    let content = match value {
        Value::Array(_) if fields => Content::read(as_card_type, value.clone()),
        _ if *as_card_type == CardType::handoff_package() => Content::read(as_card_type, value.clone()),
        _ if fields => {
            return Err(Error::BadRequest(format!("argument `{arg_key}` must be a list of `{{name, description}}`")));
        }
        _ if *as_card_type == CardType::result_schema() && !value.is_object() => {
            return Err(Error::BadRequest(format!("argument `{arg_key}` must be a JSON Schema: an object")));
        }
        Value::Object(_) | Value::Array(_) => Ok(Content::Json(value.clone())),
        Value::String(text) => Ok(Content::Text(json::readmit(text.clone()))),
        other => Ok(Content::Text(other.to_string())),
    };
    let invalid = |source| Error::Argument { arg_key: arg_key.clone(), source };
    let role = match card_metadata.get("role") {
        Some(role) => serde_json::from_value(role.clone()).map_err(|error| {
            Error::BadRequest(format!("the handover rule for `{arg_key}` has an invalid `role`: {error}"))
        })?,
        None if as_card_type.is_result_form() => Role::System,
        None => Role::User,
    };
    let mut draft = Draft::new(as_card_type.clone(), role, content.map_err(invalid)?);
    draft.metadata.extra = card_metadata.clone();
    draft.metadata.extra.remove("role");
    sign(packing, &mut draft);
    draft.seal().map_err(invalid)
}

/// Makes the card that says which agent asks.
pub(super) fn parent_card(packing: &Packing<'_>, source: AgentId) -> Result<NewCard, Error> {
    let content = Content::Json(serde_json::json!({ "parent_agent_id": source }));
    let mut draft = Draft::new(CardType::parent_pointer(), Role::System, content);
    sign(packing, &mut draft);
    draft.seal().map_err(|source| Error::Argument { arg_key: "parent".to_owned(), source })
}

fn sign(packing: &Packing<'_>, draft: &mut Draft) {
    draft.metadata.author_id = Some(packing.tool_suffix.to_owned());
    draft.metadata.trace_id = packing.trace_id;
    draft.metadata.parent_step_id = packing.parent_step_id;
}

/// Returns the boxes that arguments name, each once, in order.
pub(super) fn named_boxes(handover: &Handover, arguments: &Map<String, Value>) -> Result<Vec<(String, BoxId)>, Error> {
    let mut named: Vec<(String, BoxId)> = Vec::new();
    for arg_key in &handover.context_packing_config.inherit_context.include_boxes_from_args {
        let values = match arguments.get(arg_key) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        for value in values {
            let text = value.as_str().ok_or_else(|| {
                Error::BadRequest(format!("argument `{arg_key}` must be the id of a box, or a list of box ids"))
            })?;
            let box_id: BoxId =
                text.parse().map_err(|error| Error::BadRequest(format!("argument `{arg_key}`: {error}")))?;
            if named.iter().all(|(_, known)| *known != box_id) {
                named.push((arg_key.clone(), box_id));
            }
        }
    }
    Ok(named)
}
