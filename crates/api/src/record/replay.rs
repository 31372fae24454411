//! Replays (RC-8): a request that was recorded gets the answer that was recorded, and the provider is not asked.
//!
//! In one run, the first time that a request comes it gets its first recorded answer, the second time its second one, and so on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::Value;
use tokio::sync::Semaphore;
use waybill_core::{
    id::{CardId, KeyId, StepId},
    json,
};
use waybill_kernel::{
    card, offload,
    record::{self as stored, Mark},
    work::UnitOfWork,
};
use waybill_orchestrator::replay;

use super::{
    answer::{self, Kept},
    lock,
    pieces::{self, WITHHELD},
    queue::Call,
    sender::Sender,
};
use crate::{Api, Config, problem::Problem};

/// The header with which a client asks for a replay: `strict`, `new` or `off`, then `; in_time` or `; run=NAME`.
const ASKED: HeaderName = HeaderName::from_static("x-waybill-replay");
/// Says of an answer which recorded call it is from.
const REPLAYED: HeaderName = HeaderName::from_static("x-waybill-replayed");
/// How many requests of a key's runs are remembered. When there are more, those of runs that have paused are forgotten.
const MANY: usize = 20_000;
const PAUSE: Duration = Duration::from_secs(10 * 60);
/// How many of the last calls an unknown request is compared with, and up to which size.
const COMPARED: i64 = 100;
const LONG: usize = 512 << 10;
/// How many differences are shown, how much of each text and of each path, and from how many on the rest is not looked for.
const SHOWN: usize = 3;
const EXCERPT: usize = 60;
const LONG_PATH: usize = 200;
const ENOUGH: usize = 1_000;

/// How recorded answers are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    pub unknown: Unknown,
    /// Whether answers take as long as they took.
    pub in_time: bool,
}

/// What happens to a request that was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It is refused.
    Refuse,
    /// It goes on to the provider, and is recorded.
    Record,
}

/// A replay that a request is part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    replay: Replay,
    /// A name for the run. In another run, everything is replayed from the beginning.
    run: String,
}

/// How far each run is with each request.
#[derive(Debug)]
pub(super) struct Replays {
    /// By the key that sends the requests.
    places: Mutex<HashMap<KeyId, Places>>,
    /// Showing differences reads many calls: one client at a time.
    comparing: Semaphore,
}

/// By request and run; and when it came last.
type Places = HashMap<(Mark, String), (Arc<Place>, Instant)>;
/// The recorded call whose answer was given last. None means that all were given.
type Place = tokio::sync::Mutex<Option<StepId>>;

impl Default for Replays {
    fn default() -> Replays {
        Replays { places: Mutex::default(), comparing: Semaphore::new(1) }
    }
}

impl Replays {
    /// Returns how far a run is with a request. None means that there is no room for another one.
    fn place(&self, key_id: KeyId, request: Mark, run: &str) -> Option<Arc<Place>> {
        let mut all = lock(&self.places);
        let all = all.entry(key_id).or_default();
        let named = (request, run.to_owned());
        if all.len() >= MANY && !all.contains_key(&named) {
            all.retain(|_, (_, at)| at.elapsed() < PAUSE);
            if all.len() >= MANY {
                return None;
            }
        }
        let begun = || (Arc::new(Place::new(Some(StepId::nil()))), Instant::now());
        let (place, at) = all.entry(named).or_insert_with(begun);
        *at = Instant::now();
        Some(place.clone())
    }

    /// Forgets a request that has no recorded answer.
    fn forget(&self, key_id: KeyId, request: Mark, run: &str) {
        if let Some(all) = lock(&self.places).get_mut(&key_id) {
            all.remove(&(request, run.to_owned()));
        }
    }
}

/// Reads what a client asks for, if clients of this server may ask for it.
pub(super) fn wanted(headers: &HeaderMap, config: &Config, sender: &Sender) -> Result<Option<Wanted>, Problem> {
    let Some(said) = headers.get(&ASKED) else {
        return Ok(config.replay.map(|replay| Wanted { replay, run: String::new() }));
    };
    let wanted = read(said)?;
    let has_key = sender.key_id != KeyId::nil();
    if wanted.is_some() && has_key && !config.may_replay {
        let said =
            "this server does not replay recorded answers: its operator can allow it with `waybill serve --replay`";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", said));
    }
    if has_key && wanted.as_ref().is_some_and(|wanted| wanted.run.is_empty()) {
        let said = "name the run, such as `x-waybill-replay: strict; run=build-7`: each run gets the recorded answers from the first on";
        return Err(Problem::invalid(said));
    }
    Ok(wanted)
}

fn read(said: &HeaderValue) -> Result<Option<Wanted>, Problem> {
    let invalid = || {
        Problem::invalid(
            "`x-waybill-replay` is `strict`, `new` or `off`. `; in_time` and `; run=NAME` may follow, such as `strict; run=build-7`",
        )
    };
    let mut parts = said.to_str().map_err(|_| invalid())?.split(';').map(str::trim);
    let unknown = match parts.next().unwrap_or_default() {
        "off" => return Ok(None),
        "strict" => Unknown::Refuse,
        "new" => Unknown::Record,
        _ => return Err(invalid()),
    };
    let mut wanted = Wanted { replay: Replay { unknown, in_time: false }, run: String::new() };
    for part in parts {
        match part.split_once('=') {
            None if part == "in_time" => wanted.replay.in_time = true,
            Some(("run", name)) if (1..=200).contains(&name.len()) => name.clone_into(&mut wanted.run),
            _ => return Err(invalid()),
        }
    }
    Ok(Some(wanted))
}

impl Wanted {
    pub(super) fn is_strict(&self) -> bool {
        self.replay.unknown == Unknown::Refuse
    }

    /// Returns the recorded answer. None means that the request goes on to the provider.
    pub(super) async fn answer(
        &self,
        api: &Api,
        call: Option<&Call>,
        is_model_call: bool,
    ) -> Result<Option<Response>, Problem> {
        let Some(call) = call else {
            return match (self.is_strict(), is_model_call) {
                (false, _) => Ok(None),
                (true, false) => Err(not_recorded("only model calls are recorded, and this is none")),
                (true, true) => Err(full()),
            };
        };
        let key = api.recorder.projects.secret(&api.kernel, call.sender.project_id).await?.key;
        let (whose, adapter) = (call.whose(), call.adapter);
        let (encoding, request, of) = (call.encoding.clone(), call.request.clone(), whose.clone());
        let read = offload::run(request.len(), move || {
            let body = answer::unpacked(encoding.as_deref(), request.to_vec())?;
            Ok::<_, &str>((pieces::request_mark(adapter, &body, &key, &of), body))
        });
        let (mark, body) = read.await.map_err(|_| Problem::invalid("the body of the request cannot be unpacked"))?;
        let (replays, key_id) = (&api.recorder.replays, call.sender.key_id);
        let Some(place) = replays.place(key_id, mark, &self.run) else {
            return if self.is_strict() { Err(full()) } else { Ok(None) };
        };
        // The same request at the same time gets the next answer.
        let mut last = place.lock().await;
        let mut work = api.kernel.begin(call.sender.project_id).await?;
        if let Some(after) = *last {
            if let Some(found) = stored::next_answer(&mut work, mark, after).await? {
                let kept = content(&mut work, found.card_id).await?;
                *last = Some(found.step_id);
                match kept {
                    Some(kept) => {
                        let took = Duration::from_millis(u64::try_from(found.took_ms).unwrap_or_default());
                        return Ok(Some(response(kept, found.step_id, self.replay.in_time.then_some(took))));
                    }
                    None if self.is_strict() => {
                        return Err(not_recorded("the recorded answer to this request was deleted"));
                    }
                    None => return Ok(None),
                }
            }
            if after == StepId::nil() {
                replays.forget(key_id, mark, &self.run);
            } else {
                *last = None;
            }
        }
        let had_all = last.is_none();
        drop(last);
        if !self.is_strict() {
            return Ok(None);
        }
        if had_all {
            return Err(not_recorded(
                "this run has had every recorded answer to this request: record it once more, with `new` in place of `strict`",
            ));
        }
        let Ok(_comparing) = replays.comparing.try_acquire() else {
            return Err(not_recorded("this request is not recorded: send it alone to see how it differs"));
        };
        let known = stored::last_answered(&mut work, whose.source.agent_id(call.sender.project_id), COMPARED).await?;
        if known.is_empty() {
            return Err(not_recorded(
                "no call of this key, session, agent, provider and format is recorded: record the calls first, with `new` in place of `strict`",
            ));
        }
        let mut requests = Vec::new();
        for (turn_id, step_id) in known {
            requests.extend(replay::recorded_within(&mut work, turn_id, step_id, LONG).await.ok().flatten());
        }
        drop(work);
        let n_bytes = requests.iter().map(replay::Recorded::n_bytes).sum::<usize>() + body.len();
        Err(offload::run(n_bytes, move || unlike(&pieces::without_credentials(adapter, &body), requests)).await)
    }
}

fn full() -> Problem {
    let said = "there is no room to replay this call now: other calls, or other runs of the last ten minutes, take it. Retry later";
    Problem::busy("replays_full", said, 60)
}

fn not_recorded(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_recorded", detail)
}

/// Reads a recorded answer. None means that it was deleted.
async fn content(work: &mut UnitOfWork, card_id: CardId) -> Result<Option<Kept>, Problem> {
    let read = card::fetch(work, &[card_id], None).await?.found;
    let card = read.first().and_then(|reading| reading.live());
    card.map(|card| card.read_as().map_err(Problem::internal)).transpose()
}

/// Answers as the provider did. `took` says how long that took, if this answer is to take as long.
fn response(kept: Kept, step_id: StepId, took: Option<Duration>) -> Response {
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::BAD_GATEWAY);
    // As it came: what cannot be stored is written in another way.
    let body = Bytes::from(json::wire(&kept.body.unwrap_or_default()).into_owned());
    let is_stream = kept.pieces.iter().map(|(_, n)| n).sum::<usize>() == body.len();
    let mut from = 0;
    let pieces: Vec<(Duration, Bytes)> = if is_stream {
        let piece = |(at, n): &(u64, usize)| {
            from += n;
            (Duration::from_millis(*at), body.slice(from - n..from))
        };
        kept.pieces.iter().map(piece).collect()
    } else {
        vec![(took.unwrap_or_default(), body)]
    };
    let begun = tokio::time::Instant::now();
    let pieces = stream::iter(pieces).then(move |(at, piece)| async move {
        if took.is_some() {
            tokio::time::sleep_until(begun + at).await;
        }
        Ok::<_, std::convert::Infallible>(piece)
    });
    let mut response = (status, Body::from_stream(pieces)).into_response();
    let kind = kept.content_type.and_then(|kind| HeaderValue::from_str(&kind).ok());
    if let Some(kind) = kind {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    if let Ok(step_id) = HeaderValue::from_str(&step_id.to_string()) {
        response.headers_mut().insert(REPLAYED, step_id);
    }
    response
}

/// Says how a request differs from the one most like it.
fn unlike(body: &str, known: Vec<replay::Recorded>) -> Problem {
    let Ok(now) = serde_json::from_str::<Value>(body) else {
        return not_recorded("this request is not recorded, and it is not JSON");
    };
    let mut nearest: Option<(StepId, Differences)> = None;
    for recorded in known {
        let step_id = recorded.step_id;
        let Some(was) = recorded.render().ok().and_then(|call| serde_json::from_slice(&call.request).ok()) else {
            continue;
        };
        let mut found = Differences::default();
        found.compare(&mut Vec::new(), &was, &now);
        if nearest.as_ref().is_none_or(|(_, least)| found.size() < least.size()) {
            nearest = Some((step_id, found));
        }
    }
    let Some((step_id, Differences { mut shown, n, .. })) = nearest else {
        return not_recorded("this request is not recorded, and no recorded request can be shown beside it");
    };
    if shown.is_empty() {
        shown.push("only in spaces, escapes or the order of its fields, or in its address".to_owned());
    }
    let n_more = n.saturating_sub(shown.len());
    let more = if n_more > 0 { format!("; and in {n_more} more places") } else { String::new() };
    not_recorded(format!(
        "this request is not recorded. From the recorded call {step_id} it differs {}{more}. If the change is meant, record it with `new` in place of `strict`",
        shown.join("; ")
    ))
}

/// Where two requests differ.
#[derive(Default)]
struct Differences {
    /// The first ones.
    shown: Vec<String>,
    n: usize,
    /// How many characters of texts differ.
    n_characters: usize,
}

impl Differences {
    /// Fewer places come first, then fewer characters.
    fn size(&self) -> (usize, usize) {
        (self.n, self.n_characters)
    }

    fn note(&mut self, path: &[Step<'_>], says: impl FnOnce() -> String) {
        self.n += 1;
        if self.shown.len() < SHOWN {
            let named = named(path);
            self.shown.push(format!("in `{named}`{}", says()));
        }
    }

    fn compare<'v>(&mut self, path: &mut Vec<Step<'v>>, was: &'v Value, now: &'v Value) {
        if self.n >= ENOUGH {
            return;
        }
        match (was, now) {
            (Value::Object(was), Value::Object(now)) => {
                for (name, before) in was {
                    path.push(Step::Field(name));
                    match now.get(name) {
                        Some(after) => self.compare(path, before, after),
                        None => self.note(path, || ", which is missing now".to_owned()),
                    }
                    path.pop();
                }
                for name in now.keys().filter(|name| !was.contains_key(*name)) {
                    path.push(Step::Field(name));
                    self.note(path, || ", which is new".to_owned());
                    path.pop();
                }
            }
            (Value::Array(was), Value::Array(now)) => {
                for (n, (before, after)) in was.iter().zip(now).enumerate() {
                    path.push(Step::Element(n));
                    self.compare(path, before, after);
                    path.pop();
                }
                if was.len() != now.len() {
                    self.note(path, || format!(", which has {} elements in place of {}", now.len(), was.len()));
                }
            }
            // A credential is not stored, only a hash of it; in the request that came it was taken out.
            (Value::String(was), Value::String(now)) if was.starts_with("withheld:") && now == WITHHELD => {}
            (Value::String(was), Value::String(now)) if was != now => {
                let same = was.chars().zip(now.chars()).take_while(|(before, after)| before == after).count();
                let rest = was.chars().skip(same).count().max(now.chars().skip(same).count());
                let end = was.chars().rev().zip(now.chars().rev()).take_while(|(before, after)| before == after);
                self.n_characters += rest - end.count().min(rest);
                let from = same.saturating_sub(EXCERPT / 3);
                self.note(path, || {
                    format!(": {:?} was recorded, and now it is {:?}", excerpt(was, from), excerpt(now, from))
                });
            }
            (was, now) if was != now => self.note(path, || {
                let (was, now) = (excerpt(&was.to_string(), 0), excerpt(&now.to_string(), 0));
                format!(": {was} was recorded, and now it is {now}")
            }),
            _ => {}
        }
    }
}

/// A step of a path into JSON.
enum Step<'v> {
    Field(&'v str),
    Element(usize),
}

/// Writes a path, such as `messages[1].content`.
fn named(path: &[Step<'_>]) -> String {
    let mut named = String::new();
    for step in path {
        match step {
            Step::Field(name) if named.is_empty() => named.extend(name.chars().take(LONG_PATH)),
            Step::Field(name) => named.extend(".".chars().chain(name.chars().take(LONG_PATH))),
            Step::Element(n) => named.push_str(&format!("[{n}]")),
        }
        if named.len() > LONG_PATH {
            return excerpt(&named, 0);
        }
    }
    named
}

/// Returns the part of a text that begins at this character.
fn excerpt(text: &str, from: usize) -> String {
    let before = if from > 0 { "…" } else { "" };
    let after = if text.chars().nth(from + EXCERPT).is_some() { "…" } else { "" };
    format!("{before}{}{after}", text.chars().skip(from).take(EXCERPT).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waybill_core::id::ProjectId;

    use super::*;

    fn asked(said: Option<&'static str>, key_id: KeyId, config: &Config) -> Result<Option<Wanted>, Problem> {
        let sender = Sender { project_id: ProjectId::nil(), key_id, actor: "key:a".to_owned() };
        let headers: HeaderMap = said.map(|said| (ASKED, HeaderValue::from_static(said))).into_iter().collect();
        wanted(&headers, config, &sender)
    }

    #[test]
    fn a_client_says_how_it_is_answered() {
        let (here, elsewhere) = (KeyId::nil(), KeyId::new());
        let replay = |unknown, in_time| Replay { unknown, in_time };
        let (off, on) = (Config::default(), Config { may_replay: true, ..Config::default() });
        let is = |said, replay, run: &str| {
            let found = asked(Some(said), here, &off).unwrap();
            assert_eq!(found, Some(Wanted { replay, run: run.to_owned() }), "{said}");
        };
        is("strict", replay(Unknown::Refuse, false), "");
        is("new;run=a", replay(Unknown::Record, false), "a");
        is("strict; in_time; run=build 7", replay(Unknown::Refuse, true), "build 7");
        assert_eq!(asked(Some("off"), here, &on).unwrap(), None);
        for wrong in ["", "Strict", "strict; slowly", "strict; run=", "new; run"] {
            assert!(asked(Some(wrong), here, &on).is_err(), "{wrong}");
        }
        // With a key: only if the operator allows it, and only for a run with a name.
        assert!(asked(Some("strict; run=a"), elsewhere, &off).is_err());
        assert!(asked(Some("strict"), elsewhere, &on).is_err());
        assert!(asked(Some("strict; run=a"), elsewhere, &on).unwrap().is_some());
        let usual = replay(Unknown::Refuse, false);
        let all = Config { replay: Some(usual), ..Config::default() };
        assert_eq!(asked(None, here, &all).unwrap().unwrap().replay, usual);
        assert_eq!(asked(None, here, &on).unwrap(), None);
    }

    #[tokio::test]
    async fn each_run_begins_with_the_first_answer() {
        let (replays, mark) = (Replays::default(), |n| Mark::from_bytes([n; 16]));
        let given = StepId::new();
        let (key, other) = (KeyId::new(), KeyId::new());
        *replays.place(key, mark(1), "a").unwrap().lock().await = Some(given);
        let first = StepId::nil();
        for (key, n, run, last) in
            [(key, 1, "a", given), (key, 1, "b", first), (key, 2, "a", first), (other, 1, "a", first)]
        {
            assert_eq!(*replays.place(key, mark(n), run).unwrap().lock().await, Some(last), "{n} {run}");
        }
        // Those of another key take no room of this one.
        (0..MANY).for_each(|n| drop(replays.place(other, mark(3), &n.to_string())));
        assert!(replays.place(other, mark(3), "one more").is_none());
        assert!(replays.place(key, mark(3), "one more").is_some());
        replays.forget(other, mark(3), "1");
        assert!(replays.place(other, mark(3), "one more").is_some());
    }

    #[test]
    fn a_difference_names_its_place() {
        let was = json!({ "api_key": "withheld:00", "model": "m", "messages": [{ "role": "user", "content": "What is two and two?" }], "seed": 1 });
        let now = json!({ "api_key": "withheld", "model": "m", "messages": [{ "role": "user", "content": "What is two and three?" }, 1], "top_p": 1 });
        let mut differences = Differences::default();
        differences.compare(&mut Vec::new(), &was, &now);
        assert_eq!(differences.n, 4, "a credential is compared with nothing");
        let found = differences.shown;
        let said =
            r#"in `messages[0].content`: "What is two and two?" was recorded, and now it is "What is two and three?""#;
        assert_eq!(found[0], said);
        assert_eq!(
            found[1..],
            ["in `messages`, which has 2 elements in place of 1", "in `seed`, which is missing now",]
        );
        let mut same = Differences::default();
        same.compare(&mut Vec::new(), &was, &was);
        assert_eq!(same.n, 0);
        // Many differences with long names take little room.
        let long = |n: i32| json!({ ("x".repeat(100_000)): vec![n; 5_000] });
        let mut many = Differences::default();
        many.compare(&mut Vec::new(), &long(0), &long(1));
        assert_eq!((many.n, many.shown.len()), (ENOUGH, SHOWN));
        assert!(many.shown.iter().all(|shown| shown.len() < 500));
    }
}
