//! Makes the attempts: fills the requests with ids, sends them, and judges the answers.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

use super::{
    Walls,
    loot::Loot,
    requests::{READS, writes},
    settle::{CANARY, Settled},
};
use crate::storm::dice::Dice;

/// An attack of the neighbour on the victim, shared by its clients.
pub(super) struct Attack {
    pub(super) http: Client,
    pub(super) base: String,
    pub(super) loot: Loot,
    pub(super) victim: Settled,
    pub(super) neighbour: Settled,
    /// Of browsers that have logged in with the neighbour's keys, in their order.
    pub(super) cookies: Vec<String>,
    pub(super) walls: Walls,
    pub(super) n_left: AtomicU64,
    pub(super) bar: indicatif::ProgressBar,
}

/// The outcome of many attempts.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) attempts: u64,
    pub(super) leaks: u64,
    pub(super) differences: u64,
    pub(super) faults: u64,
}

impl Account {
    pub(super) fn add(&mut self, other: Account) {
        self.attempts += other.attempts;
        self.leaks += other.leaks;
        self.differences += other.differences;
        self.faults += other.faults;
    }
}

/// A request before its placeholders are filled.
struct Attempt {
    method: Method,
    project: &'static str,
    path: String,
    body: Value,
    /// Which of the neighbour's keys.
    key: usize,
    /// Whether the cookie of a browser is sent instead of the key.
    browses: bool,
}

impl Attack {
    /// Makes attempts until none is left.
    pub(super) async fn go_on(&self, mut dice: Dice) -> Result<Account> {
        let (mut account, writes) = (Account::default(), writes());
        while self.n_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            let attempt = self.think_of(&mut dice, &writes);
            let mut missing = dice.clone();
            let foreign = self.ask(&attempt, &mut dice, true).await?;
            let never = self.ask(&attempt, &mut missing, false).await?;
            account.attempts += 1;
            self.bar.inc(1);
            if foreign.leaks {
                account.leaks += 1;
            }
            let Attempt { method, project, path, .. } = &attempt;
            let told = format!("{}: {method} {project} {path}: {} {}", self.walls.name(), foreign.status, foreign.body);
            if foreign.leaks && self.walls != Walls::None {
                eprintln!("{told}");
            }
            // A request that names nothing of the victim's is the same both times: its answer may be of another moment.
            if foreign.asked != never.asked && (foreign.status, &foreign.body) != (never.status, &never.body) {
                account.differences += 1;
                if account.differences < 5 && !self.walls.api_trusts() {
                    eprintln!("{told}\n  and never was: {} {}", never.status, never.body);
                }
            }
            account.faults += u64::from(foreign.status.is_server_error());
            if foreign.status.is_server_error() && !self.walls.api_trusts() {
                eprintln!("{told}");
            }
        }
        Ok(account)
    }

    fn think_of(&self, dice: &mut Dice, writes: &[(Method, &'static str, Value)]) -> Attempt {
        // Mostly in the neighbour's own project, since requests for the victim's project are refused at once.
        let project = match dice.one_of(if self.walls.api_trusts() { 2 } else { 6 }) {
            0 => "{victim}",
            1 => "{victim_id}",
            _ => "{own}",
        };
        let key = dice.one_of(self.neighbour.keys.len());
        // Admins get furthest.
        let (key, browses) = (if dice.chance(0.5) { 0 } else { key }, dice.chance(0.25));
        if dice.chance(0.5) {
            let path = READS[dice.one_of(READS.len())].to_owned();
            return Attempt { method: Method::GET, project, path, body: Value::Null, key, browses };
        }
        let (method, path, body) = &writes[dice.one_of(writes.len())];
        Attempt { method: method.clone(), project, path: (*path).to_owned(), body: body.clone(), key, browses }
    }

    async fn ask(&self, attempt: &Attempt, dice: &mut Dice, foreign: bool) -> Result<Answered> {
        let mut used: Vec<String> = Vec::new();
        let project = self.fill(attempt.project, dice, foreign, &mut used);
        let path = self.fill(&attempt.path, dice, foreign, &mut used);
        let path = if path == "/" { String::new() } else { path };
        let mut asked = format!("{project}{path}");
        let request = self.http.request(attempt.method.clone(), format!("{}/{project}{path}", self.base));
        let mut request = match attempt.browses {
            true => request.header("cookie", &self.cookies[attempt.key]).header("sec-fetch-site", "same-origin"),
            false => request.bearer_auth(&self.neighbour.keys[attempt.key].1),
        };
        if !attempt.body.is_null() {
            let body = self.fill(&attempt.body.to_string(), dice, foreign, &mut used);
            asked.push_str(&body);
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.context("the server answers")?;
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        // The stream of a turn under way does not end by itself: its existence is enough.
        let is_stream = kind.starts_with("text/event-stream");
        let body = if is_stream { "a stream".to_owned() } else { response.text().await? };
        let leaks = is_stream || self.leaks(&body, &used);
        // The answer may repeat ids of the request: they are masked.
        let mut said = body;
        for text in used {
            said = said.replace(&text, "…");
        }
        Ok(Answered { asked, status, body: without_ids(&said), leaks })
    }

    /// Checks whether an answer contains something of the victim's that was not in the request.
    fn leaks(&self, body: &str, used: &[String]) -> bool {
        let mut body = body.to_owned();
        for text in used {
            body = body.replace(text, "");
        }
        body.contains(CANARY) || ids(&body).any(|id| self.loot.all.contains(id))
    }

    /// Fills the placeholders of a request with ids of the victim, or with ids that never existed. Both cases use the same throws of the dice.
    fn fill(&self, text: &str, dice: &mut Dice, foreign: bool, used: &mut Vec<String>) -> String {
        let never = || uuid::Uuid::now_v7().to_string();
        let mut filled = text.to_owned();
        let mut put = |filled: &mut String, place: &str, value: String| {
            *filled = filled.replace(
                &format!("\"{place}\""),
                &if place == "{epoch}" { value.clone() } else { format!("\"{value}\"") },
            );
            *filled = filled.replace(place, &value);
            if value.len() > 4 {
                used.push(value);
            }
        };
        put(&mut filled, "{own}", self.neighbour.slug.to_owned());
        put(&mut filled, "{victim}", if foreign { self.victim.slug.to_owned() } else { "no-such-project".to_owned() });
        put(&mut filled, "{victim_id}", if foreign { self.victim.project_id.to_string() } else { never() });
        put(&mut filled, "{name}", if foreign { CANARY.to_owned() } else { "no-such-7f3a".to_owned() });
        let fence = &self.loot.fences[dice.one_of(self.loot.fences.len())];
        let call = &self.loot.calls[dice.one_of(self.loot.calls.len())];
        for (place, value) in [("{fence_turn}", &fence[0]), ("{fence_agent}", &fence[1]), ("{held_call}", &call[0])] {
            put(&mut filled, place, if foreign { value.clone() } else { never() });
        }
        for (place, value) in [("{epoch}", &fence[2]), ("{token}", &fence[3]), ("{call_token}", &call[1])] {
            put(&mut filled, place, value.clone());
        }
        for (place, known) in &self.loot.ids {
            while filled.contains(place) {
                let value = known[dice.one_of(known.len())].clone();
                let value = if foreign { value } else { almost(&value) };
                filled = filled.replacen(place, &value, 1);
                used.push(value);
            }
        }
        while filled.contains("{fresh}") {
            filled = filled.replacen("{fresh}", &never(), 1);
        }
        filled
    }
}

struct Answered {
    /// Whom and what was asked.
    asked: String,
    status: StatusCode,
    /// Without ids.
    body: String,
    leaks: bool,
}

/// Returns an id with the same timestamp that never existed.
fn almost(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Returns the UUIDs in a text.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').filter(|word| word.len() == 36)
}

fn without_ids(text: &str) -> String {
    let mut text = text.to_owned();
    let found: Vec<String> = ids(&text).map(str::to_owned).collect();
    for id in found {
        text = text.replace(&id, "…");
    }
    // Also removes the times of what the neighbour itself did a moment ago.
    text.split(',').filter(|part| !part.contains("_at\":")).collect::<Vec<_>>().join(",")
}
