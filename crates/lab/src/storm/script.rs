//! What the turns of a storm do: a script in the instruction, which a worker follows from the step that the cards show.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use waybill_core::{
    card::{Card, CardType, Content},
    card_box::Placed,
    id::AgentId,
};

use super::dice::Dice;

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Ask the model, write what it said.
    Think,
    /// Ask for this many calls, and wait for them.
    Call(usize),
    /// Call a target that has no worker, and wait for the timeout.
    Wait,
    /// Fork these tasks, and wait for all; or, with `fail_fast`, until one fails.
    Fork { tasks: Vec<Task>, fail_fast: bool },
    /// End as failed.
    Fail,
}

/// The agent, and its script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `None` means a new agent.
    pub agent_id: Option<AgentId>,
    pub script: Script,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    pub ops: Vec<Op>,
}

impl Script {
    /// Returns a random script for a turn that no other turn waits for.
    pub fn any(dice: &mut Dice, children: &[AgentId]) -> Script {
        let mut ops = Vec::new();
        for _ in 0..dice.one_of(3) {
            ops.push(Op::Think);
        }
        match dice.one_of(100) {
            0..40 => {}
            40..80 => ops.push(Op::Call(1 + dice.one_of(3))),
            80..82 => ops.push(Op::Wait),
            82..92 => {
                ops.push(Op::Call(1));
                ops.push(Op::Call(2));
            }
            _ => {
                let first = dice.one_of(children.len());
                let fail_fast = dice.chance(0.2);
                let mut tasks: Vec<Task> = (0..1 + dice.one_of(4))
                    .map(|n| Task {
                        agent_id: dice.chance(0.5).then(|| children[(first + n) % children.len()]),
                        script: Script { ops: vec![Op::Think; 1 + 4 * usize::from(fail_fast)] },
                    })
                    .collect();
                if fail_fast {
                    let fails = dice.one_of(tasks.len());
                    tasks[fails].script = Script { ops: vec![Op::Think, Op::Fail] };
                }
                ops.push(Op::Fork { tasks, fail_fast });
            }
        }
        Script { ops }
    }

    pub fn read(context: &[Placed]) -> Result<Script> {
        let text = live(context).find_map(|card| match &card.content {
            Content::Text(text) if card.metadata.card_type == CardType::instruction() => Some(text),
            _ => None,
        });
        Ok(serde_json::from_str(text.context("a turn of a storm has an instruction")?)?)
    }
}

/// Returns the number of steps taken, from the cards of an output box: each step left one thought.
pub fn steps_taken(output: &[Placed]) -> usize {
    live(output).filter(|card| card.metadata.card_type == CardType::thought()).count()
}

/// Returns the number of answers.
pub fn answers(output: &[Placed]) -> usize {
    live(output).filter(|card| card.metadata.card_type == CardType::tool_result()).count()
}

fn live(placed: &[Placed]) -> impl Iterator<Item = &Card> {
    placed.iter().filter_map(|placed| placed.reading.live())
}
