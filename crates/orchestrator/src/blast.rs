//! Blast radius (NX-3): what followed from a card.
//!
//! ```text
//!   card ─▶ boxes that have it ─▶ calls that showed it ─▶ what their turns wrote from then on ─┐
//!             ▲                                                                                │
//!             └── ranges, deliverables, arguments, results, summaries, todo lists, artifacts ◀─┘
//! ```
//! A call *did* see the card if it was part of the request. Everything that the turn wrote with that call and later is *derived*, and so is what
//! others wrote after they had seen that. A turn *could* see the card if it was there for it, but in none of its requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    hash::Hash,
    mem,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use serde::Serialize;
use waybill_context::{layer::BlockKey, receipt::Receipt, unit::Reason};
use waybill_core::{
    artifact::ArtifactPath,
    card_box::Span,
    id::{AgentId, BoxId, CardId, SessionId, StepId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{
    blast::{self as kernel, Called},
    offload, receipt,
    work::UnitOfWork,
};

use crate::replay::{self, Error, Recorded};

/// How something came to be in a blast radius. What comes first is more certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BlastHow)]
pub enum How {
    /// The card was part of the request to a model.
    Did,
    /// Something that was written after seeing the card was part of the request.
    Derived,
    /// The card was there to be read, but in no request.
    Could,
}

/// A model call in a blast radius.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = BlastCall)]
pub struct Call {
    /// Step of the model call.
    pub step_id: StepId,
    /// `did` or `derived`.
    pub how: How,
    /// When the call was recorded.
    pub at: DateTime<Utc>,
}

/// A turn in a blast radius.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = BlastTurn)]
pub struct Turn {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    /// How certain it is: the most certain of its calls; `could` if none saw anything.
    pub how: How,
    pub status: TurnStatus,
    /// Calls that saw the card, or what was derived from it, in their order.
    pub calls: Vec<Call>,
    /// What the turn delivered after that.
    pub deliverable_card_id: Option<CardId>,
}

/// An artifact that a turn stored after it had seen the card.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[schema(as = BlastArtifact)]
pub struct Stored {
    #[schema(value_type = String)]
    pub path: ArtifactPath,
    pub version: i32,
    /// Turn that stored it.
    pub agent_turn_id: TurnId,
}

/// What followed from cards.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = BlastRadius)]
pub struct Radius {
    /// Turns that saw one of the cards, or could, in the order of their ids.
    pub turns: Vec<Turn>,
    /// Cards that were written after seeing one of them.
    pub n_derived_cards: usize,
    /// Sessions whose memory was changed after that.
    pub session_ids: Vec<SessionId>,
    /// Artifacts that were stored after that.
    pub artifacts: Vec<Stored>,
    /// There is more: the walk ended at the maximum number of turns.
    pub is_cut: bool,
}

/// The most entries that are followed from one card or box.
const MOST_EACH: i64 = 10_000;
/// Turns whose receipts are in memory at a time, and boxes or cards of one statement.
const PORTION: usize = 10;
const IDS: usize = 200;
/// How long a walk may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Places of a range that are looked at one by one.
const PLACES: usize = 1_000;

/// Walks from cards to everything that followed from them, up to `most` turns.
pub async fn radius(work: &mut UnitOfWork, card_ids: &[CardId], most: usize) -> Result<Radius, Error> {
    let mut walk = Walk {
        work,
        most,
        cards: HashMap::new(),
        spans: HashMap::new(),
        turns: BTreeMap::new(),
        artifacts: BTreeSet::new(),
        sessions: BTreeSet::new(),
        todos: HashMap::new(),
        to_follow: Vec::new(),
        to_spread: Vec::new(),
        to_look: BTreeSet::new(),
        n_could: 0,
        until: Instant::now() + PATIENCE,
        is_cut: false,
    };
    for card_id in card_ids {
        walk.taint(*card_id, How::Did);
    }
    walk.go().await?;
    walk.found(card_ids.len()).await
}

/// What is known of a turn.
#[derive(Debug, Default)]
struct Seen {
    calls: Vec<Call>,
    /// From which place of its output box on it was written after seeing.
    from: Option<i64>,
    /// One of its boxes has the card, or what was derived from it.
    could: bool,
}

/// A model call, without its receipt.
#[derive(Clone, Copy)]
struct Known {
    step_id: StepId,
    from_seq: Option<i64>,
    created_at: DateTime<Utc>,
}

/// From a time on, until another.
type Period = (DateTime<Utc>, DateTime<Utc>);

/// A part of a box, and what it has.
type Part = (i64, i64, How);

/// Checks whether something has as many entries as are read of it: it may have more.
fn is_full<T: Eq + Hash>(of: impl Iterator<Item = T>) -> bool {
    let mut counts: HashMap<T, i64> = HashMap::new();
    of.into_iter().any(|one| {
        let n = counts.entry(one).or_default();
        *n += 1;
        *n >= MOST_EACH
    })
}

/// Lists the cards of which a request was made, and those that a summary in it covers. `None` means that it cannot be composed again.
fn sources(recorded: Recorded) -> Option<Vec<(CardId, bool)>> {
    let call = recorded.render().ok()?;
    let shown = call.composed.manifest().flat_map(|shown| shown.sources).map(|source| (source.card_id, false));
    let covered = call.composed.omitted.iter().filter(|omitted| omitted.reason == Reason::Covered);
    Some(shown.chain(covered.flat_map(|omitted| &omitted.card_ids).map(|card_id| (*card_id, true))).collect())
}

struct Walk<'w> {
    work: &'w mut UnitOfWork,
    most: usize,
    cards: HashMap<CardId, How>,
    spans: HashMap<BoxId, Vec<Part>>,
    turns: BTreeMap<TurnId, Seen>,
    artifacts: BTreeSet<Stored>,
    sessions: BTreeSet<SessionId>,
    /// When the todo list of a session was one that is derived.
    todos: HashMap<SessionId, Vec<Period>>,
    /// Cards whose boxes are still to be found, and entries of boxes whose ranges are.
    to_follow: Vec<CardId>,
    to_spread: Vec<(Span, How)>,
    to_look: BTreeSet<TurnId>,
    /// Turns that count towards the most.
    n_could: usize,
    until: Instant,
    is_cut: bool,
}

impl Walk<'_> {
    async fn go(&mut self) -> Result<(), Error> {
        loop {
            if Instant::now() >= self.until {
                self.is_cut = true;
                return Ok(());
            }
            if !self.to_follow.is_empty() {
                self.follow().await?;
            } else if !self.to_spread.is_empty() {
                self.spread().await?;
            } else if !self.to_look.is_empty() {
                self.look().await?;
            } else {
                return Ok(());
            }
        }
    }

    fn taint(&mut self, card_id: CardId, how: How) {
        if let Entry::Vacant(place) = self.cards.entry(card_id) {
            place.insert(how);
            self.to_follow.push(card_id);
        }
    }

    /// Adds a part of a box. Returns whether it is new.
    fn add(&mut self, span: Span, how: How) -> bool {
        let parts = self.spans.entry(span.box_id).or_default();
        let is_new = !parts.iter().any(|(from, upto, known)| *from <= span.from && span.upto <= *upto && *known <= how);
        if is_new {
            parts.push((span.from, span.upto, how));
        }
        is_new
    }

    /// Finds the boxes that have the cards as entries of their own.
    async fn follow(&mut self) -> Result<(), Error> {
        let card_ids = self.to_follow.split_off(self.to_follow.len().saturating_sub(IDS));
        let found = kernel::standing(self.work, &card_ids, MOST_EACH).await?;
        self.is_cut |= is_full(found.iter().map(|at| at.card_id));
        for at in found {
            let how = self.cards[&at.card_id];
            let span = Span { box_id: at.box_id, from: at.place, upto: at.place };
            if self.add(span, how) {
                self.to_spread.push((span, how));
            }
        }
        Ok(())
    }

    /// Finds the boxes that took ranges of these entries, and the turns that any of these boxes is for.
    async fn spread(&mut self) -> Result<(), Error> {
        let parts = self.to_spread.split_off(self.to_spread.len().saturating_sub(IDS));
        let spans: Vec<Span> = parts.iter().map(|(span, _)| *span).collect();
        let ranges = kernel::ranges(self.work, &spans, MOST_EACH).await?;
        self.is_cut |= is_full(ranges.iter().map(|range| range.n));
        let mut box_ids: BTreeSet<BoxId> = spans.iter().map(|span| span.box_id).collect();
        for range in ranges {
            let (span, how) = parts[usize::try_from(range.n).unwrap_or_default()];
            let from = range.place + span.from.max(range.from_seq) - range.from_seq;
            let upto = range.place + span.upto.min(range.to_seq) - range.from_seq;
            if self.add(Span { box_id: range.box_id, from, upto }, how) {
                box_ids.insert(range.box_id);
            }
        }
        let box_ids: Vec<BoxId> = box_ids.into_iter().collect();
        for box_ids in box_ids.chunks(IDS) {
            let mut owned = HashSet::new();
            let readers = receipt::readers(self.work, box_ids, None, MOST_EACH).await?;
            self.is_cut |= is_full(readers.iter().map(|(box_id, _)| *box_id));
            for (box_id, turn_id) in readers {
                // First comes the turn that the box is for, then its forks, which may have read less of it.
                self.see(turn_id, owned.insert(box_id));
            }
        }
        Ok(())
    }

    /// Looks at a turn, unless there are enough.
    fn see(&mut self, turn_id: TurnId, could: bool) {
        let known = self.turns.get(&turn_id).is_some_and(|seen| seen.could);
        if could && !known {
            if self.n_could >= self.most {
                self.is_cut = true;
                return;
            }
            self.n_could += 1;
        }
        self.turns.entry(turn_id).or_default().could |= could;
        self.to_look.insert(turn_id);
    }

    /// Reads the calls of turns, and follows what these wrote after they had seen something.
    async fn look(&mut self) -> Result<(), Error> {
        let turn_ids: Vec<TurnId> = self.to_look.iter().take(PORTION).copied().collect();
        self.to_look.retain(|turn_id| !turn_ids.contains(turn_id));
        let writers = kernel::writers(self.work, &turn_ids).await?;
        let sessions: HashMap<TurnId, Option<SessionId>> =
            writers.iter().map(|writer| (writer.agent_turn_id, writer.session_id)).collect();
        let mut calls: BTreeMap<TurnId, Vec<(Known, Option<How>)>> = BTreeMap::new();
        for called in kernel::calls(self.work, &turn_ids).await? {
            let session_id = sessions.get(&called.agent_turn_id).copied().flatten();
            let how = self.shows(&called, session_id).await?;
            let Called { agent_turn_id, step_id, from_seq, created_at, receipt: _ } = called;
            calls.entry(agent_turn_id).or_default().push((Known { step_id, from_seq, created_at }, how));
            if Instant::now() >= self.until {
                self.is_cut = true;
                return Ok(());
            }
        }
        for writer in writers {
            let turn_id = writer.agent_turn_id;
            let calls = calls.remove(&turn_id).unwrap_or_default();
            let Some(first) = calls.iter().position(|(_, how)| how.is_some()) else { continue };
            let saw = calls
                .iter()
                .filter_map(|(call, how)| Some(Call { step_id: call.step_id, how: (*how)?, at: call.created_at }));
            let since = calls[first].0.created_at;
            let after: HashSet<StepId> = calls[first..].iter().map(|(call, _)| call.step_id).collect();
            let from = calls[first..].iter().find_map(|(call, _)| call.from_seq);
            let known = {
                let seen = self.turns.entry(turn_id).or_default();
                seen.calls = saw.collect();
                mem::replace(&mut seen.from, from)
            };
            let Some(from) = from.filter(|from| known.is_none_or(|known| *from < known)) else { continue };
            self.wrote(turn_id, Span { box_id: writer.output_box_id, from, upto: writer.length }, since).await?;
            if let Some(answer) = writer.answer_card_id {
                self.taint(answer, How::Derived);
            }
            self.asked(turn_id, &after).await?;
            if let Some(session_id) = writer.session_id {
                self.remembered(session_id, &after).await?;
            }
        }
        Ok(())
    }

    /// Returns what a call was shown.
    async fn shows(&mut self, called: &Called, session_id: Option<SessionId>) -> Result<Option<How>, Error> {
        let receipt: Receipt = serde_json::from_str(called.receipt.0.get())?;
        let parts = |span: &Span| {
            let parts = self.spans.get(&span.box_id).into_iter().flatten();
            let has = |(from, upto, _): &&Part| {
                let places = (*from).max(span.from)..=(*upto).min(span.upto);
                places.take(PLACES).any(|place| !receipt.gone.contains(span.box_id, place))
            };
            parts.filter(has).map(|(_, _, how)| *how).min()
        };
        let placed = receipt.history.iter().chain([&receipt.output]).filter_map(parts).min();
        let named = receipt.card_ids().iter().filter_map(|card_id| self.cards.get(card_id)).min().copied();
        let todo = receipt.blocks.iter().any(|block| block.key == BlockKey::Todo)
            && session_id
                .and_then(|session_id| self.todos.get(&session_id))
                .is_some_and(|todos| todos.iter().any(|(from, until)| (*from..*until).contains(&receipt.read_at)));
        let todo = todo.then_some(How::Derived);
        if placed.is_some() {
            self.turns.entry(called.agent_turn_id).or_default().could = true;
        }
        let read = placed.into_iter().chain(named).min();
        // A summary may be one that a newer one has replaced.
        let is_whole = receipt.n_omitted == 0 && receipt.session_summary_card_id.is_none();
        if read.is_none() || is_whole {
            return Ok(read.into_iter().chain(todo).min());
        }
        // Something was left out: whether it was this can only be seen in the request.
        let recorded = replay::record(self.work, called.step_id, receipt).await?;
        let sources = offload::run(recorded.n_bytes(), move || sources(recorded)).await;
        // A request that cannot be composed again accuses no one.
        let shown = sources.into_iter().flatten().filter_map(|(card_id, is_covered)| {
            let how = *self.cards.get(&card_id)?;
            Some(if is_covered { How::Derived } else { how })
        });
        Ok(shown.chain(todo).min())
    }

    /// Follows what a turn wrote.
    async fn wrote(&mut self, turn_id: TurnId, span: Span, since: DateTime<Utc>) -> Result<(), Error> {
        if self.add(span, How::Derived) {
            self.to_spread.push((span, How::Derived));
        }
        let written: Vec<CardId> =
            kernel::written(self.work, &[span]).await?.iter().map(|standing| standing.card_id).collect();
        for card_id in &written {
            self.taint(*card_id, How::Derived);
        }
        let pinned = kernel::pinned(self.work, &written, MOST_EACH).await?;
        self.is_cut |= is_full(pinned.iter().map(|pinned| (pinned.card_id, pinned.path.clone())));
        for pinned in pinned {
            if pinned.created_at >= since {
                self.taint(pinned.other_card_id, How::Derived);
                let (path, version) = (pinned.path, pinned.version);
                self.artifacts.insert(Stored { path, version, agent_turn_id: turn_id });
            }
        }
        Ok(())
    }

    /// Follows what a turn asked other turns for.
    async fn asked(&mut self, turn_id: TurnId, steps: &HashSet<StepId>) -> Result<(), Error> {
        let found = kernel::asked(self.work, &[turn_id], MOST_EACH).await?;
        self.is_cut |= is_full(found.iter().map(|_| turn_id));
        for asked in found {
            if !steps.contains(&asked.parent_step_id) {
                continue;
            }
            for card_id in &asked.query_card_ids {
                self.taint(*card_id, How::Derived);
            }
            if let Some((from, n_cards)) = asked.from_seq.zip(asked.n_cards) {
                let span = Span { box_id: asked.context_box_id, from, upto: from + n_cards - 1 };
                if self.add(span, How::Derived) {
                    self.to_spread.push((span, How::Derived));
                    for standing in kernel::written(self.work, &[span]).await? {
                        self.taint(standing.card_id, How::Derived);
                    }
                }
            }
            self.see(asked.agent_turn_id, true);
        }
        Ok(())
    }

    /// Follows what a turn changed in the memory of its session.
    async fn remembered(&mut self, session_id: SessionId, steps: &HashSet<StepId>) -> Result<(), Error> {
        let patches = kernel::remembered(self.work, session_id, MOST_EACH).await?;
        if !patches.iter().any(|patch| steps.contains(&patch.step_id)) {
            return Ok(());
        }
        self.is_cut |= is_full(patches.iter().map(|_| session_id));
        self.sessions.insert(session_id);
        let lists: Vec<_> = patches.iter().filter(|patch| patch.todo).collect();
        let todos = self.todos.entry(session_id).or_default();
        let n_known = todos.len();
        for (n, list) in lists.iter().enumerate().filter(|(_, list)| steps.contains(&list.step_id)) {
            let until = lists.get(n + 1).map_or(DateTime::<Utc>::MAX_UTC, |next| next.created_at);
            if !todos.contains(&(list.created_at, until)) {
                todos.push((list.created_at, until));
            }
        }
        if todos.len() > n_known {
            let turn_ids = kernel::of_session(self.work, session_id, MOST_EACH).await?;
            self.is_cut |= is_full(turn_ids.iter().map(|_| session_id));
            turn_ids.into_iter().for_each(|turn_id| self.see(turn_id, false));
        }
        Ok(())
    }

    async fn found(self, n_cards: usize) -> Result<Radius, Error> {
        let mut turns = Vec::new();
        let seen: Vec<(TurnId, Seen)> =
            self.turns.into_iter().filter(|(_, seen)| seen.could || !seen.calls.is_empty()).collect();
        for portion in seen.chunks(IDS) {
            let turn_ids: Vec<TurnId> = portion.iter().map(|(turn_id, _)| *turn_id).collect();
            let writers = kernel::writers(self.work, &turn_ids).await?;
            let mut writers: HashMap<TurnId, _> =
                writers.into_iter().map(|writer| (writer.agent_turn_id, writer)).collect();
            for (turn_id, seen) in portion {
                let Some(writer) = writers.remove(turn_id) else { continue };
                turns.push(Turn {
                    agent_turn_id: *turn_id,
                    agent_id: writer.agent_id,
                    how: seen.calls.iter().map(|call| call.how).min().unwrap_or(How::Could),
                    status: writer.status,
                    calls: seen.calls.clone(),
                    deliverable_card_id: writer.deliverable_card_id.filter(|_| seen.from.is_some()),
                });
            }
        }
        Ok(Radius {
            turns,
            n_derived_cards: self.cards.len() - n_cards,
            session_ids: self.sessions.into_iter().collect(),
            artifacts: self.artifacts.into_iter().collect(),
            is_cut: self.is_cut,
        })
    }
}
