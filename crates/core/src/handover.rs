//! What one agent hands to another (PM-4): which arguments become cards, which boxes go along, whether it learns who sent it.
//!
//! A handover is data: whoever adds a flow writes down its own and calls the same packing as everybody.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{card::CardType, id::Name};

/// How the context of a turn is made of the arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Handover {
    pub target_profile_config: TargetProfile,
    pub context_packing_config: ContextPacking,
}

/// For whom, where the arguments do not say `profile_name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetProfile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_name: Option<Name>,
}

/// Which arguments become cards, in this order, and what goes along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextPacking {
    pub pack_arguments: Vec<PackArgument>,
    pub inherit_context: InheritContext,
}

/// One argument that becomes a card, if it is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackArgument {
    pub arg_key: String,
    #[serde(default = "CardType::instruction")]
    pub as_card_type: CardType,
    /// Goes along with the card; `role` says who speaks, by default the user.
    #[serde(default)]
    pub card_metadata: Map<String, Value>,
}

/// What goes along by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InheritContext {
    /// Arguments that name a box, or a list of boxes.
    pub include_boxes_from_args: Vec<String>,
    /// The receiver is told who sent it.
    pub include_parent: bool,
}

impl Handover {
    /// PM-5, the recipe behind every delegation: an instruction, what goes along, and who sends it.
    pub fn instruction() -> Handover {
        Handover::of(&["instruction"], &["input_box_ids"])
    }

    /// These arguments become cards, the boxes that those name go along, and the receiver is told who sent it.
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
