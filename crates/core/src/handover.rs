//! What one agent hands to another (PM-4): which arguments become cards, which boxes go along, whether the receiver learns who sent it.
//!
//! A handover is data: a new flow writes down its own handover and uses the same packing as all others.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{card::CardType, id::Name};

/// How the context of a turn is made from the arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Handover {
    pub target_profile_config: TargetProfile,
    pub context_packing_config: ContextPacking,
}

/// The receiver, if the arguments do not name a `profile_name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TargetProfile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_name: Option<Name>,
}

/// Which arguments become cards, in this order, and what goes along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContextPacking {
    pub pack_arguments: Vec<PackArgument>,
    pub inherit_context: InheritContext,
}

/// One argument that becomes a card, if it is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PackArgument {
    pub arg_key: String,
    #[serde(default = "CardType::instruction")]
    pub as_card_type: CardType,
    /// Metadata of the card. `role` says who speaks, by default the user.
    #[serde(default)]
    pub card_metadata: Map<String, Value>,
}

/// What goes along by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InheritContext {
    /// Arguments that name a box, or a list of boxes.
    pub include_boxes_from_args: Vec<String>,
    /// Whether the receiver sees who sent it.
    pub include_parent: bool,
}

impl Handover {
    /// Returns the recipe behind every delegation (PM-5): an instruction, what goes along, and who sends it.
    pub fn instruction() -> Handover {
        Handover::of(&["instruction"], &["input_box_ids"])
    }

    /// Makes a handover in which `arguments` become cards, the boxes that the arguments `boxes` name go along, and the receiver sees who sent it.
    pub fn of(arguments: &[&str], boxes: &[&str]) -> Handover {
        Handover {
            context_packing_config: ContextPacking {
                pack_arguments: arguments.iter().map(|arg_key| PackArgument::new(arg_key)).collect(),
                inherit_context: InheritContext {
                    include_boxes_from_args: boxes.iter().map(|arg_key| (*arg_key).to_owned()).collect(),
                    include_parent: true,
                },
            },
            ..Handover::default()
        }
    }
}

impl PackArgument {
    pub fn new(arg_key: &str) -> PackArgument {
        PackArgument { arg_key: arg_key.to_owned(), as_card_type: CardType::instruction(), card_metadata: Map::new() }
    }

    #[must_use]
    pub fn typed(self, as_card_type: CardType) -> PackArgument {
        PackArgument { as_card_type, ..self }
    }
}
