//! Who sends a request: recognised by a key, in a header or in the path, or because it is on this machine.
//!
//! A sender that was recognised is let through at once. From time to time the database is asked again, beside the request; if it cannot be asked, the
//! sender is let through for a while.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::http::{StatusCode, request::Parts};
use waybill_core::{
    id::{KeyId, ProjectId},
    key::{ApiKey, Scope},
};

use super::lock;
use crate::{
    Api,
    caller::{self, Caller, STANDING},
    problem::Problem,
};

/// The header with Waybill's own key, for clients whose `Authorization` is the provider's.
const KEY: &str = "x-waybill-key";
/// What our own keys begin with.
const PREFIX: &str = "wb_";

/// How long the database is not asked again about a sender, and how long one is let through without an answer.
const FRESH: Duration = STANDING;
const KNOWN: Duration = Duration::from_secs(15 * 60);
/// How long the database may take to say who sent a request. Only a sender that is not known waits for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// From this many senders on, those that are no longer known are removed.
const MANY: usize = 10_000;

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(super) project_id: ProjectId,
    pub(super) key_id: KeyId,
    pub(super) actor: String,
}

/// The senders that were recognised, by a hash of their key and project.
#[derive(Debug, Default)]
pub(super) struct Senders(Mutex<HashMap<[u8; 32], Known>>);

#[derive(Debug)]
struct Known {
    sender: Sender,
    /// When it was recognised, and when the database was last asked about it.
    at: Instant,
    asked_at: Instant,
}

impl Senders {
    /// Returns a sender that is known, and whether the caller must ask about it again: no other one does meanwhile.
    fn known(&self, hash: &[u8; 32]) -> Option<(Sender, bool)> {
        let mut all = lock(&self.0);
        let known = all.get_mut(hash).filter(|known| known.at.elapsed() < KNOWN)?;
        let is_due = known.asked_at.elapsed() >= FRESH;
        if is_due {
            known.asked_at = Instant::now();
        }
        Some((known.sender.clone(), is_due))
    }

    fn remember(&self, hash: [u8; 32], sender: Sender) {
        let mut all = lock(&self.0);
        if all.len() >= MANY {
            all.retain(|_, known| known.at.elapsed() < KNOWN);
        }
        let now = Instant::now();
        all.insert(hash, Known { sender, at: now, asked_at: now });
    }

    fn forget(&self, hash: &[u8; 32]) {
        lock(&self.0).remove(hash);
    }
}

/// What a request says of its sender.
struct Claim {
    key: Option<ApiKey>,
    /// The project, if the path names it.
    project: Option<String>,
    hash: [u8; 32],
}

impl Claim {
    /// Reads the key and the project. `place` is the part of the path that has one of them.
    fn read(parts: &Parts, place: &str) -> Result<Claim, Problem> {
        let header = parts.headers.get(KEY).and_then(|value| value.to_str().ok());
        let key = header.or_else(|| place.starts_with(PREFIX).then_some(place));
        let key: Option<ApiKey> = key.map(str::parse).transpose().map_err(|_| {
            let said = "the key of Waybill is not valid: copy it again, whole";
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", said)
        })?;
        let project = (!place.starts_with(PREFIX)).then(|| place.to_owned());
        let named = project.as_deref().unwrap_or_default();
        let hash = match &key {
            Some(key) => blake3::hash([key.hash().as_slice(), named.as_bytes()].concat().as_slice()),
            None => blake3::hash(format!("loopback\n{place}").as_bytes()),
        };
        Ok(Claim { key, project, hash: *hash.as_bytes() })
    }
}

/// Recognises the sender of a request. `place` is the part of the path that has its project or its key.
pub(super) async fn recognise(api: &Arc<Api>, parts: &Parts, place: &str) -> Result<Sender, Problem> {
    let claim = Claim::read(parts, place)?;
    if claim.key.is_none() {
        caller::here(api, parts, caller::address(parts))?;
    }
    let Some((sender, is_due)) = api.recorder.senders.known(&claim.hash) else {
        return ask(api, parts, claim).await;
    };
    api.gate.pass(sender.key_id)?;
    if is_due {
        let (api, parts) = (api.clone(), parts.clone());
        tokio::spawn(async move { ask(&api, &parts, claim).await });
    }
    Ok(sender)
}

/// Asks the database who sent a request, and remembers what it says.
async fn ask(api: &Arc<Api>, parts: &Parts, claim: Claim) -> Result<Sender, Problem> {
    let (senders, hash) = (&api.recorder.senders, claim.hash);
    let looked = tokio::time::timeout(PATIENCE, look_up(api, parts, claim)).await;
    let looked = looked.unwrap_or_else(|_| {
        Err(Problem::busy("unavailable", "the database does not answer: retry in a few seconds", 2))
    });
    match &looked {
        Ok(sender) => senders.remember(hash, sender.clone()),
        Err(problem) if problem.is_fault() || problem.is_busy() => {}
        Err(_) => senders.forget(&hash),
    }
    looked
}

async fn look_up(api: &Arc<Api>, parts: &Parts, claim: Claim) -> Result<Sender, Problem> {
    let (address, asker) = (caller::address(parts), caller::asker(parts));
    let project = claim.project.as_deref();
    let caller = match claim.key {
        Some(key) => caller::with_key(api, key, address, project, &asker).await?,
        None => caller::without_key(api, parts, address, project).await?,
    };
    caller.may(&[Scope::Recorder])?;
    let Caller { project_id, actor, lane, .. } = caller;
    Ok(Sender { project_id, key_id: lane.key_id, actor })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-2: of many requests, one asks about a sender again, and a sender that is refused is unknown at once.
    #[test]
    fn one_request_asks_again() {
        let senders = Senders::default();
        let sender = Sender { project_id: ProjectId::nil(), key_id: KeyId::nil(), actor: "key:a".to_owned() };
        assert!(senders.known(&[1; 32]).is_none());
        senders.remember([1; 32], sender.clone());
        assert_eq!(senders.known(&[1; 32]), Some((sender.clone(), false)));
        let Some(long_ago) = Instant::now().checked_sub(FRESH) else { return };
        lock(&senders.0).get_mut(&[1; 32]).unwrap().asked_at = long_ago;
        assert_eq!(senders.known(&[1; 32]), Some((sender.clone(), true)));
        assert_eq!(senders.known(&[1; 32]), Some((sender.clone(), false)));
        let Some(too_long_ago) = Instant::now().checked_sub(KNOWN) else { return };
        lock(&senders.0).get_mut(&[1; 32]).unwrap().at = too_long_ago;
        assert_eq!(senders.known(&[1; 32]), None);
        senders.remember([1; 32], sender);
        senders.forget(&[1; 32]);
        assert_eq!(senders.known(&[1; 32]), None);
    }
}
