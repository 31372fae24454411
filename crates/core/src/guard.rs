//! Guards of the API that a test takes away one at a time, to see that the attack which each of them stops then succeeds.
//!
//! This is compiled into builds with debug assertions only. In what ships every guard stands, and nothing can take it away.

use std::sync::atomic::{AtomicU32, Ordering};

/// A check that keeps a key from what is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A key reaches the project it belongs to.
    Project,
    /// A key does what its scope allows.
    Scope,
    /// A key claims from its own targets.
    Targets,
    /// A key uses artifacts at its own paths.
    Paths,
    /// A key starts its own profiles.
    Profiles,
    /// A developer applies what is its own, and loosens nothing.
    Apply,
    /// Only an admin gives a turn more than its profile allows.
    Widening,
    /// A turn is written by the key that claimed it.
    TurnHolder,
    /// A session belongs to the key that opened it.
    SessionOwner,
    /// A worker's name belongs to its key, and so do the calls that it has claimed.
    WorkerName,
    /// The caller that had a turn started does not decide its requests.
    FourEyes,
    /// A page of another site cannot use the cookie of a browser session.
    CrossSite,
}

impl Guard {
    pub const ALL: [Guard; 12] = [
        Guard::Project,
        Guard::Scope,
        Guard::Targets,
        Guard::Paths,
        Guard::Profiles,
        Guard::Apply,
        Guard::Widening,
        Guard::TurnHolder,
        Guard::SessionOwner,
        Guard::WorkerName,
        Guard::FourEyes,
        Guard::CrossSite,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Guard::Project => "project",
            Guard::Scope => "scope",
            Guard::Targets => "targets",
            Guard::Paths => "paths",
            Guard::Profiles => "profiles",
            Guard::Apply => "apply",
            Guard::Widening => "widening",
            Guard::TurnHolder => "turn holder",
            Guard::SessionOwner => "session owner",
            Guard::WorkerName => "worker name",
            Guard::FourEyes => "four eyes",
            Guard::CrossSite => "cross site",
        }
    }

    /// Returns whether the guard is in force.
    pub fn stands(self) -> bool {
        !cfg!(debug_assertions) || TAKEN_AWAY.load(Ordering::Relaxed) & (1 << self as u32) == 0
    }
}

static TAKEN_AWAY: AtomicU32 = AtomicU32::new(0);

/// Takes a guard away in this process; with `None`, all guards stand again. Returns false if this build cannot do that.
pub fn take_away(guard: Option<Guard>) -> bool {
    TAKEN_AWAY.store(guard.map_or(0, |guard| 1 << guard as u32), Ordering::Relaxed);
    cfg!(debug_assertions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guard_stands_until_a_test_takes_it_away() {
        assert!(Guard::ALL.iter().all(|guard| guard.stands()));
        for guard in Guard::ALL {
            assert_eq!(take_away(Some(guard)), cfg!(debug_assertions));
            let gone: Vec<Guard> = Guard::ALL.into_iter().filter(|guard| !guard.stands()).collect();
            assert_eq!(gone, if cfg!(debug_assertions) { vec![guard] } else { vec![] });
        }
        take_away(None);
        assert!(Guard::ALL.iter().all(|guard| guard.stands()));
    }
}
