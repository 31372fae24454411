//! Policies as values: the order of layers (CX-3), the budget (CX-12), and what each process is shown (CX-7).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use waybill_core::{
    resource::{Order, Process},
    tokens::Tokens,
};

use crate::layer::{BlockKey, Contexts};

/// Changes whenever equal input would give other messages. Receipts name it.
pub const POLICY_VERSION: u32 = 2;

/// The order of layers, and the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Policy {
    pub order: Order,
    /// The tokens of everything that the model reads.
    pub budget: Tokens,
    /// What a provider adds to each message.
    pub per_message: Tokens,
}

/// Whether a layer is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Always,
    /// Only if the profile asks for it.
    OnDemand,
    Never,
}

/// One row per process: framework, experience, knowledge, todo, compression, extras.
const RULES: [(Process, [Shown; 6]); 7] = {
    use Process::*;
    use Shown::{Always as A, Never as N, OnDemand as D};
    [
        (Sequential, [A, A, A, A, A, A]),
        (Dynamic, [A, A, A, A, A, A]),
        (Hierarchical, [A, A, A, A, A, A]),
        (React, [A, A, A, A, A, A]),
        (MapreducePlanner, [A, D, D, A, A, A]),
        (MapreduceWorker, [A, N, D, N, N, N]),
        (MapreduceReducer, [A, D, D, A, A, A]),
    ]
};

/// Who is shown what (CX-7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audience {
    pub process: Process,
    /// The project's switch: whether experience, knowledge and todo are shared. Framework and compression are always shown.
    pub enable_share_context: bool,
    /// Blocks that the profile asks for.
    pub demands: BTreeSet<BlockKey>,
}

impl Audience {
    /// Returns an audience with sharing switched on, and no block on demand.
    pub fn of(process: Process) -> Audience {
        Audience { process, enable_share_context: true, demands: BTreeSet::new() }
    }

    fn rule(&self, column: usize) -> Shown {
        RULES.iter().find(|(process, _)| *process == self.process).map_or(Shown::Never, |(_, rules)| rules[column])
    }

    pub fn sees(&self, key: &BlockKey) -> bool {
        let (column, shared) = match key {
            BlockKey::Framework => (0, false),
            BlockKey::Experience => (1, true),
            BlockKey::Knowledge => (2, true),
            BlockKey::Todo => (3, true),
            BlockKey::Compression => (4, false),
            BlockKey::Extra(_) => (5, false),
            // Every agent sees what describes its own turn.
            BlockKey::Turn => return true,
        };
        let by_process = match self.rule(column) {
            Shown::Always => true,
            Shown::OnDemand => self.demands.contains(key),
            Shown::Never => false,
        };
        by_process && (self.enable_share_context || !shared)
    }

    /// Keeps the blocks that are shown.
    pub fn allow(&self, contexts: Contexts) -> Contexts {
        contexts.into_iter().filter(|(key, _)| self.sees(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what an audience sees, as the first letters of layers.
    #[track_caller]
    fn check(process: Process, share: bool, demands: &[BlockKey], seen: &str) {
        let audience = Audience {
            enable_share_context: share,
            demands: demands.iter().cloned().collect(),
            ..Audience::of(process)
        };
        let mut letters = String::new();
        if process.sees_checkpoint_messages() {
            letters.push('m');
        }
        for key in BlockKey::KNOWN.into_iter().filter(|key| *key != BlockKey::Turn) {
            if audience.sees(&key) {
                letters.push_str(&key.as_str()[..1]);
            }
        }
        assert_eq!(letters, seen, "{process:?} share {share} demands {demands:?}");
    }

    /// CX-7
    #[test]
    fn a_process_is_shown_what_its_row_says() {
        use Process::*;
        for process in [Sequential, Dynamic, Hierarchical, React] {
            check(process, true, &[], "mfektc");
            check(process, false, &[], "mfc");
        }
        for process in [MapreducePlanner, MapreduceReducer] {
            check(process, true, &[], "ftc");
            check(process, true, &[BlockKey::Experience, BlockKey::Knowledge], "fektc");
            check(process, false, &[BlockKey::Knowledge], "fc");
        }
        check(MapreduceWorker, true, &[], "f");
        check(MapreduceWorker, true, &[BlockKey::Knowledge, BlockKey::Experience], "fk");
        check(MapreduceWorker, false, &[BlockKey::Knowledge], "f");
    }
}
