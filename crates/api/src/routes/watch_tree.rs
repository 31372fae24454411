//! The events of a tree on record, turn by turn: the cost does not depend on how much else happens in the project.

use std::collections::HashMap;

use waybill_core::id::TurnId;
use waybill_kernel::turn::{self, Stretch, Told};

use super::watch::end_of;
use crate::{Api, caller::Caller, problem::Problem};

/// Turns whose events are read in one statement, and events of one page.
const TURNS: usize = 200;
const MOST: usize = 5_000;

/// What is left to read of a tree.
pub(super) struct Tree {
    /// Its turns that may have more events, in the order of these: each has none before its number.
    turns: Vec<(i64, TurnId)>,
}

impl Tree {
    /// Finds the turns of a tree, to read their events after a number.
    pub(super) async fn find(api: &Api, caller: &Caller, root: TurnId, after: i64) -> Result<Tree, Problem> {
        let (mut turns, mut below) = (vec![(after, root)], None);
        loop {
            let most = i64::try_from(MOST).unwrap_or_default();
            let found = turn::below(&mut caller.begin(api).await?, root, below, most).await?;
            caller.rest();
            turns.extend(found.iter().map(|turn_id| (after, *turn_id)));
            below = found.last().copied();
            if found.len() < MOST {
                return Ok(Tree { turns });
            }
        }
    }

    /// Returns the next events after a number, and up to which number there are no others. Reads only turns that have events on this page, as far as
    /// is known.
    pub(super) async fn page(
        &mut self,
        api: &Api,
        caller: &Caller,
        after: i64,
        upto: i64,
    ) -> Result<(Vec<Told>, i64), Problem> {
        let stretch = Stretch { after, upto, most: i64::try_from(MOST).unwrap_or_default() };
        let mut page: Vec<Told> = Vec::new();
        // Where the turns that were read go on.
        let mut next: HashMap<TurnId, i64> = HashMap::new();
        let mut n_read = 0;
        while n_read < self.turns.len() {
            if page.len() >= MOST && page.last().is_some_and(|last| last.outbox_seq < self.turns[n_read].0) {
                break;
            }
            let chunk = &self.turns[n_read..self.turns.len().min(n_read + TURNS)];
            let turn_ids: Vec<TurnId> = chunk.iter().map(|(_, turn_id)| *turn_id).collect();
            let found = turn::events_of(&mut caller.begin(api).await?, &turn_ids, stretch).await?;
            caller.rest();
            if let Some(last) = found.last().filter(|_| found.len() >= MOST) {
                next.extend(turn_ids.iter().map(|turn_id| (*turn_id, last.outbox_seq + 1)));
            }
            n_read += turn_ids.len();
            page.extend(found);
            page.sort_unstable_by_key(|told| told.outbox_seq);
            for told in page.drain(page.len().min(MOST)..) {
                let seq = next.entry(told.agent_turn_id).or_insert(told.outbox_seq);
                *seq = told.outbox_seq.min(*seq);
            }
        }
        self.turns.drain(..n_read);
        self.turns.extend(next.into_iter().map(|(turn_id, seq)| (seq, turn_id)));
        self.turns.sort_unstable();
        let end = end_of(&page, MOST, upto);
        Ok((page, end))
    }
}
