//! The one reader of events in a process (UI-10): however many callers watch, it polls for the events of all their projects with one statement, and
//! gives each event to the callers that watch it.
//!
//! Numbers of events are drawn before their transactions commit, so a lower one can appear after a higher one. An event is given out once no event
//! with a lower number can still appear (it is settled), in the order of the numbers: then its number is a place to continue after. Events of one
//! turn appear in their order, so a caller that watches one turn gets them at once.
//!
//! A transaction that stays open keeps everything behind it from being settled. After two seconds events are given out all the same, with the id of
//! the last settled one: a caller that continues there gets them again. Once they are settled, and from time to time until then, all callers are sent
//! back to the record for what may have appeared late.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};
use waybill_core::{
    bus::EventKind,
    id::{KeyId, ProjectId, TurnId},
};
use waybill_kernel::turn::{self, Look, Told};

use crate::{
    Api,
    caller::{Caller, STANDING},
};

/// How often the database is polled.
const POLL: Duration = Duration::from_millis(300);
/// How soon it is polled again if something is not settled yet; then half as often each time.
const AGAIN: Duration = Duration::from_millis(20);
/// How long an event waits until it is settled.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often callers are sent back to the record while something is not settled; and the longest time between, for callers that watch more than one
/// turn: they read everything since then again.
const BACK: Duration = Duration::from_secs(5);
const LONGEST_BACK: Duration = Duration::from_secs(60);
/// A reader that begins while a transaction stays open does not know what is settled. It takes so many numbers as not settled.
const UNKNOWN: i64 = 10_000;
/// How often callers learn how far the stream is, also without events.
const PLACES: Duration = Duration::from_secs(15);
/// The most events of one project in a poll, and of all.
const MOST: i32 = 500;
const MOST_OF_ALL: i32 = 20_000;
/// Events that a caller may be behind. One that is further behind reads them from the record.
const QUEUE: usize = 512;

/// Which events a caller watches.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) of: Of,
    /// If empty, all.
    pub(crate) kinds: Vec<EventKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Project,
    /// The turn at the top, and all below it.
    Tree(TurnId),
    Turn(TurnId),
}

impl Sight {
    pub(crate) fn has(&self, told: &Told) -> bool {
        let is_there = match self.of {
            Of::Project => true,
            Of::Tree(root) => told.root_turn_id == root,
            Of::Turn(turn_id) => told.agent_turn_id == turn_id,
        };
        is_there && (self.kinds.is_empty() || self.kinds.contains(&told.event))
    }
}

/// One event for a caller; without an event, how far the stream is.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Where to continue after it.
    pub(crate) id: i64,
    pub(crate) told: Option<Arc<Told>>,
}

/// What a caller that joins gets: events after `from` as they come. Those before are on record, and settled up to `settled`. The lines end if the
/// caller is too far behind, must read the record again, or may no longer watch.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) lines: mpsc::Receiver<Line>,
    pub(crate) from: i64,
    pub(crate) settled: i64,
}

/// The reader, as callers join it.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    state: Mutex<State>,
    woken: Notify,
    looked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// A caller waits for the first look, or will be back before the next one.
    is_wanted: bool,
    horizon: Horizon,
    /// All callers have all events up to this number: the id of what is given out before it is settled.
    base: i64,
    /// Something that was given out is not settled.
    unsure: Option<Unsure>,
    projects: HashMap<ProjectId, Watched>,
}

/// Since when that is so, and when callers were last sent back to the record: all, and those that watch one turn.
#[derive(Clone, Copy, Debug)]
struct Unsure {
    since: Instant,
    all_at: Instant,
    turns_at: Instant,
}

/// A project that is watched.
#[derive(Debug)]
struct Watched {
    /// All events up to this number were given out.
    after: i64,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    caller: Arc<Caller>,
    sight: Sight,
    /// The last event that it got, or where it began.
    after: i64,
    tell: mpsc::Sender<Line>,
}

impl Reader {
    /// Begins to watch after an event; with `None`, from now on.
    pub(crate) async fn join(&self, caller: &Caller, sight: &Sight, after: Option<i64>) -> Joined {
        let (tell, lines) = mpsc::channel(QUEUE);
        loop {
            let looked = self.looked.notified();
            tokio::pin!(looked);
            looked.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(place) = state.horizon.place {
                    let settled = state.horizon.settled.unwrap_or_default();
                    let new = || Watched { after: place, watchers: Vec::new() };
                    let watched = state.projects.entry(caller.project_id).or_insert_with(new);
                    let from = watched.after;
                    let after = after.unwrap_or(from).max(from);
                    let (caller, sight) = (Arc::new(caller.apart()), sight.clone());
                    watched.watchers.push(Watcher { caller, sight, after, tell });
                    return Joined { lines, from, settled };
                }
                state.is_wanted = true;
            }
            self.woken.notify_one();
            looked.await;
        }
    }

    /// Returns the last number that was drawn, as far as the looks so far know.
    pub(crate) fn last(&self) -> Option<i64> {
        self.lock().horizon.last
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls while there are callers that watch, until the server ends.
pub(crate) async fn read(api: Arc<Api>) {
    let reader = &api.reader;
    let (mut pace, mut placed) = (Pace::default(), Instant::now());
    loop {
        let asked = reader.lock().asked();
        let Some(asked) = asked else {
            tokio::select! {
                () = reader.woken.notified() => {}
                () = api.ended() => return,
            }
            continue;
        };
        let last = reader.last();
        let most = (MOST_OF_ALL / i32::try_from(asked.len()).unwrap_or(MOST_OF_ALL)).clamp(10, MOST);
        let pause = match turn::look(&api.kernel, &asked, last, most).await {
            Ok(look) => {
                let mut state = reader.lock();
                let rest = state.give(&asked, look, usize::try_from(most).unwrap_or_default(), Instant::now());
                if placed.elapsed() >= PLACES {
                    state.tell_places();
                    placed = Instant::now();
                }
                drop(state);
                reader.looked.notify_waiters();
                pace.next(rest)
            }
            Err(error) => {
                tracing::debug!(%error, "the events of turns could not be read");
                POLL * 10
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = api.ended() => return,
        }
    }
}

/// Drops callers that may no longer watch, until the server ends. Apart from the reader: no event waits for it.
pub(crate) async fn stand(api: Arc<Api>) {
    loop {
        tokio::select! {
            () = sleep(STANDING) => {}
            () = api.ended() => return,
        }
        drop_shut_out(&api).await;
    }
}

/// Drops the callers whose key was revoked or has expired. That ends their streams. One lookup for all callers with the same key or browser session.
async fn drop_shut_out(api: &Api) {
    let callers: Vec<Arc<Caller>> = {
        let state = api.reader.lock();
        state.projects.values().flat_map(|watched| &watched.watchers).map(|watcher| watcher.caller.clone()).collect()
    };
    let mut known: HashMap<KeyId, bool> = HashMap::new();
    let mut out = Vec::new();
    for caller in callers {
        let key_id = caller.key_id();
        let is_shut_out = match key_id.and_then(|key_id| known.get(&key_id)) {
            Some(known) => *known,
            None => caller.is_shut_out(api).await,
        };
        known.extend(key_id.map(|key_id| (key_id, is_shut_out)));
        if is_shut_out {
            out.push(caller);
        }
    }
    for watched in api.reader.lock().projects.values_mut() {
        watched.watchers.retain(|watcher| !out.iter().any(|caller| Arc::ptr_eq(caller, &watcher.caller)));
    }
}

/// What is left after a look.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// There are more events that are settled.
    more: bool,
    /// There are events that are not settled, or it is not known yet what is.
    held: bool,
    last_seq: i64,
    place: i64,
}

impl State {
    /// Returns the projects that are watched, and after which number each. `None` means that there is nothing to watch.
    fn asked(&mut self) -> Option<Vec<(ProjectId, i64)>> {
        self.projects.retain(|_, watched| {
            watched.watchers.retain(|watcher| !watcher.tell.is_closed());
            !watched.watchers.is_empty()
        });
        if !self.projects.is_empty() {
            return Some(self.projects.iter().map(|(project_id, watched)| (*project_id, watched.after)).collect());
        }
        if self.is_wanted {
            // A project without events: only to learn what is settled.
            return Some(vec![(ProjectId::nil(), i64::MAX)]);
        }
        (self.horizon, self.unsure) = (Horizon::default(), None);
        None
    }

    /// Gives out what a look found.
    fn give(&mut self, asked: &[(ProjectId, i64)], look: Look, most: usize, now: Instant) -> Rest {
        let (was_sure, is_first) = (self.horizon.is_sure(), self.horizon.place.is_none());
        self.horizon.note(&look, now);
        self.is_wanted &= self.horizon.place.is_none();
        let last_seq = look.last_seq;
        let Some(place) = self.horizon.place else { return Rest { held: true, last_seq, ..Rest::default() } };
        let mut rest = Rest { last_seq, place, ..Rest::default() };
        // Before anything is given out: the look did not ask for what has appeared late, and has a lower number.
        let is_sent_back = self.send_back(was_sure, now);
        let is_sure = self.horizon.is_sure();
        if is_sure || is_sent_back || is_first {
            self.base = self.horizon.settled.unwrap_or_default();
        }
        let mut ends: HashMap<ProjectId, (usize, i64)> = HashMap::new();
        for (project_id, told) in look.told {
            let end = ends.entry(project_id).or_default();
            *end = (end.0 + 1, told.outbox_seq);
            let Some(watched) = self.projects.get_mut(&project_id) else { continue };
            let seq = told.outbox_seq;
            let line = Line { id: if is_sure { seq } else { seq.min(self.base) }, told: Some(Arc::new(told)) };
            rest.held |= seq > place && watched.watchers.iter().any(|watcher| !watcher.is_of_turn());
            watched.watchers.retain_mut(|watcher| watcher.give(&line, seq, seq <= place));
        }
        for (project_id, _) in asked {
            let Some(watched) = self.projects.get_mut(project_id) else { continue };
            let (n, end) = ends.get(project_id).copied().unwrap_or_default();
            let is_cut = n >= most && end < place;
            rest.more |= is_cut;
            watched.after = watched.after.max(if is_cut { end } else { place });
        }
        rest
    }

    /// Sends callers back to the record, if there may be events that no look asks for again. True if that was all callers.
    fn send_back(&mut self, was_sure: bool, now: Instant) -> bool {
        if self.horizon.is_sure() {
            self.unsure = None;
            if was_sure {
                return false;
            }
        } else {
            let unsure = self.unsure.get_or_insert(Unsure { since: now, all_at: now, turns_at: now });
            let every = (now.duration_since(unsure.since) / 10).clamp(BACK, LONGEST_BACK);
            if now.duration_since(unsure.all_at) < every {
                if now.duration_since(unsure.turns_at) >= BACK {
                    unsure.turns_at = now;
                    for watched in self.projects.values_mut() {
                        watched.watchers.retain(|watcher| !watcher.is_of_turn());
                    }
                    self.is_wanted = true;
                }
                return false;
            }
            (unsure.all_at, unsure.turns_at) = (now, now);
        }
        self.projects.clear();
        self.is_wanted = true;
        true
    }

    /// Tells callers how far the stream is, so that those without events need not continue from long ago.
    fn tell_places(&self) {
        if self.horizon.is_sure() {
            for watched in self.projects.values() {
                for watcher in watched.watchers.iter().filter(|watcher| !watcher.is_of_turn()) {
                    // One that is behind needs none.
                    watcher.tell.try_send(Line { id: watched.after, told: None }).ok();
                }
            }
        }
    }
}

impl Watcher {
    fn is_of_turn(&self) -> bool {
        matches!(self.sight.of, Of::Turn(_))
    }

    /// Gives it an event, if it is one of its own and may be given out. False if it is too far behind: nothing later may be given to it.
    fn give(&mut self, line: &Line, seq: i64, is_due: bool) -> bool {
        let is_given = is_due || self.is_of_turn();
        if !is_given || seq <= self.after || !line.told.as_ref().is_some_and(|told| self.sight.has(told)) {
            return true;
        }
        self.after = seq;
        self.tell.try_send(line.clone()).is_ok()
    }
}

/// Which numbers are settled: no event with such a number can still appear.
#[derive(Debug, Default)]
struct Horizon {
    /// Numbers that were drawn and are not known to be settled.
    drawn: VecDeque<Drawn>,
    /// The last number that was drawn, as far as is known.
    last: Option<i64>,
    settled: Option<i64>,
    /// Up to which number events are given out: those that are settled, or have waited long enough.
    place: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Drawn {
    at: Instant,
    /// All numbers up to `last_seq` are settled once no transaction before this one is open.
    before: i64,
    last_seq: i64,
}

impl Horizon {
    fn note(&mut self, look: &Look, now: Instant) {
        if let Some(before) = look.before {
            self.drawn.push_back(Drawn { at: now, before, last_seq: look.last_seq });
            self.last = Some(look.last_seq);
        }
        while let Some(drawn) = self.drawn.front().copied().filter(|drawn| drawn.before <= look.open_from) {
            self.settled = Some(drawn.last_seq);
            self.drawn.pop_front();
        }
        let waited = self.drawn.iter().rev().find(|drawn| now.duration_since(drawn.at) >= PATIENCE);
        let waited = waited.map(|drawn| drawn.last_seq);
        if let (None, Some(_), Some(first)) = (self.settled, waited, self.drawn.front()) {
            self.settled = Some((first.last_seq - UNKNOWN).max(0));
        }
        self.place = self.place.max(self.settled).max(waited);
    }

    /// Checks whether everything that was given out is settled.
    fn is_sure(&self) -> bool {
        self.settled >= self.place
    }
}

/// How long to wait for the next poll.
#[derive(Debug, Default)]
struct Pace {
    /// Polled sooner until everything up to this number is given out.
    goal: Option<i64>,
    again: Duration,
}

impl Pace {
    fn next(&mut self, rest: Rest) -> Duration {
        if rest.more {
            return Duration::ZERO;
        }
        match self.goal {
            Some(goal) if rest.place >= goal => self.goal = None,
            Some(_) => self.again = (self.again * 2).min(POLL),
            None if rest.held => (self.goal, self.again) = (Some(rest.last_seq), AGAIN),
            None => {}
        }
        if self.goal.is_some() { self.again } else { POLL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(last_seq: i64, before: Option<i64>, open_from: i64) -> Look {
        Look { last_seq, before, open_from, told: Vec::new() }
    }

    /// UI-10: a number is settled once every transaction that can have drawn a lower one is over.
    #[test]
    fn a_number_is_settled_once_no_older_transaction_is_open() {
        let (mut horizon, now) = (Horizon::default(), Instant::now());
        horizon.note(&look(7, Some(100), 99), now);
        assert_eq!((horizon.settled, horizon.place), (None, None), "transaction 99 may have drawn 7 or less");
        horizon.note(&look(9, Some(103), 100), now);
        assert_eq!((horizon.settled, horizon.place), (Some(7), Some(7)));
        horizon.note(&look(9, None, 104), now);
        assert_eq!((horizon.settled, horizon.place), (Some(9), Some(9)));
        horizon.note(&look(12, Some(110), 110), now);
        assert_eq!(horizon.settled, Some(12), "at once, if no other transaction is open");
    }

    /// UI-10: what has waited long enough is given out, and is not sure until it is settled.
    #[test]
    fn a_transaction_that_stays_open_holds_events_up_for_a_while() {
        let (mut horizon, now) = (Horizon::default(), Instant::now());
        horizon.note(&look(5, Some(50), 50), now);
        horizon.note(&look(8, Some(60), 55), now);
        assert_eq!((horizon.place, horizon.is_sure()), (Some(5), true));
        horizon.note(&look(9, Some(70), 55), now + PATIENCE);
        assert_eq!((horizon.settled, horizon.place, horizon.is_sure()), (Some(5), Some(8), false));
        horizon.note(&look(9, None, 80), now + PATIENCE);
        assert_eq!((horizon.settled, horizon.place, horizon.is_sure()), (Some(9), Some(9), true));
    }

    /// UI-10: callers are sent back to the record once everything is settled, and from time to time until then.
    #[test]
    fn callers_are_sent_back_for_what_appears_late() {
        let (mut state, now) = (State::default(), Instant::now());
        let seconds = |n: u64| now + Duration::from_secs(n);
        state.give(&[], look(20_000, Some(100), 99), 10, now);
        assert_eq!((state.horizon.settled, state.is_wanted), (None, false));
        state.give(&[], look(20_000, None, 99), 10, seconds(2));
        assert_eq!((state.horizon.settled, state.horizon.place), (Some(10_000), Some(20_000)), "a process that begins");
        assert_eq!((state.base, state.is_wanted), (10_000, false));
        state.give(&[], look(20_000, None, 99), 10, seconds(6));
        assert!(!state.is_wanted);
        state.give(&[], look(20_001, Some(110), 99), 10, seconds(7));
        assert!(state.is_wanted, "every five seconds");
        state.give(&[], look(20_002, Some(120), 110), 10, seconds(10));
        assert_eq!((state.horizon.settled, state.base), (Some(20_001), 20_001), "as it is now, everything is settled");
        assert!(state.is_wanted && state.unsure.is_none());
        state.give(&[], look(20_002, None, 121), 10, seconds(11));
        assert_eq!((state.base, state.is_wanted), (20_002, false), "nothing was sent that was not settled");
    }

    #[test]
    fn it_polls_sooner_until_what_was_held_is_given_out() {
        let mut pace = Pace::default();
        let rest = |held, last_seq, place| Rest { more: false, held, last_seq, place };
        assert_eq!(pace.next(rest(false, 5, 5)), POLL);
        assert_eq!(pace.next(rest(true, 8, 5)), AGAIN);
        assert_eq!(pace.next(rest(true, 9, 6)), AGAIN * 2);
        assert_eq!(pace.next(rest(true, 12, 8)), POLL, "what came since then waits for the next poll");
        assert_eq!(pace.next(Rest { more: true, ..rest(true, 12, 8) }), Duration::ZERO);
    }
}
