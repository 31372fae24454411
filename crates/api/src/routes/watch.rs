//! Watching a turn as it happens: its events, from the database, and what the model is writing, live.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::{sync::mpsc, time::sleep};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    bus::EventKind,
    id::{KeyId, StepId, TurnId},
};
use waybill_kernel::turn::{self, Told};

use super::turn::{OneTurn, one};
use crate::{
    Api,
    caller::{Caller, STANDING, unauthorized},
    limit::Place,
    problem::Problem,
    request::{Path, Query},
};

/// How often the database is polled.
const LOOK: Duration = Duration::from_millis(300);
const MOST: i64 = 500;
/// Turns that are looked up in one statement.
const AT_ONCE: usize = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Params {
    /// Where to continue: the `id` of the last event that you have. The header `Last-Event-ID` does the same. If omitted, all events are sent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Whether to also send the text that the model is writing, piece by piece. A piece is sent only while you are connected, and is not repeated
    /// later. If omitted, false.
    #[serde(default)]
    tokens: bool,
}

/// A piece of what the model is writing: the `data` of an event `token`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "pieces are passed on as the worker wrote them: this describes them")]
pub(crate) struct TokenEvent {
    /// The turn.
    agent_turn_id: TurnId,
    /// Step that is being written.
    step_id: StepId,
    /// Attempt of the step. A new attempt begins from the start.
    attempt: u16,
    /// The piece.
    text: String,
}

/// Watch a turn, as server-sent events.
///
/// The events are `state`, `step`, `request` and, as the last one, `task`. Each has an id, after which an interrupted stream can be continued; its
/// `data` is a `TurnEvent` as JSON. With `tokens=true` there are also `token` events: they have no id, and their `data` is a `TokenEvent`. The stream
/// ends when the turn ends.
#[utoipa::path(
    get, path = "/turns/{turn}/events", tag = "turns",
    params(("turn" = TurnId, Path), ("Last-Event-ID" = Option<i64>, Header, minimum = 0), Params),
    responses((status = 200, description = "A stream of server-sent events.", body = String, content_type = "text/event-stream")),
)]
pub(crate) async fn watch_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<Params>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    caller.may_read()?;
    let last = match headers.get("last-event-id") {
        None => None,
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.trim().parse().ok());
            Some(id.ok_or_else(|| {
                Problem::invalid(
                    "the header `Last-Event-ID` must be the id of an event of this stream, which is a number",
                )
            })?)
        }
    };
    let after = params.after.or(last).unwrap_or(0);
    if after < 0 || last.is_some_and(|last| last < 0) {
        return Err(Problem::invalid("`after` and `Last-Event-ID` must not be negative"));
    }
    let place = api.gate.streams.take(caller.lane, 1)?;
    let summary = one(&mut caller.begin(&api).await?, turn).await?;
    caller.rest();
    let pieces = match params.tokens {
        true => api.kernel.bus().watch(caller.project_id, summary.agent_id),
        false => Box::pin(stream::pending()),
    };
    let (send, events) = mpsc::channel(64);
    let told = api.watchers.add(&caller, turn, after, !summary.status.is_open());
    tokio::spawn(async move {
        let _place = place;
        tokio::select! {
            _ = follow(told, pieces, &send) => {}
            () = api.ended() => {}
            () = send.closed() => {}
        }
    });
    let events = stream::unfold(events, |mut events| async { Some((Ok(events.recv().await?), events)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Waits until a turn has ended, the time is over, or the server is to end. `place` is one of those for requests that wait.
pub(super) async fn until_over(
    api: &Api,
    caller: &Caller,
    turn_id: TurnId,
    wait: Duration,
    place: Place,
) -> Result<(), Problem> {
    let mut work = caller.begin(api).await?;
    // Before the turn is looked up: an end that comes in between is then among the events that come.
    let after = turn::last_event(&mut work, turn_id).await?;
    let is_open = one(&mut work, turn_id).await?.status.is_open();
    drop(work);
    if !is_open {
        return Ok(());
    }
    caller.rest();
    let mut told = api.watchers.add(caller, turn_id, after, false);
    let over = async { while told.recv().await.is_some_and(|told| told.event != EventKind::Task) {} };
    tokio::select! {
        () = over => {}
        () = sleep(wait) => {}
        () = api.ended() => {}
    }
    drop(place);
    caller.enter(api).await?;
    if caller.is_shut_out(api).await {
        return Err(unauthorized("the API key or token has expired or was revoked"));
    }
    Ok(())
}

/// Sends the events so far and those that come. Returns `None` once the caller no longer listens, or all was sent.
async fn follow(
    mut told: mpsc::Receiver<Told>,
    mut pieces: impl Stream<Item = Vec<u8>> + Unpin,
    send: &mpsc::Sender<Event>,
) -> Option<()> {
    loop {
        tokio::select! {
            biased;
            told = told.recv() => {
                let told = told?;
                let data = serde_json::to_string(&told).ok()?;
                let event = Event::default().event(told.event.as_str()).id(told.outbox_seq.to_string()).data(data);
                send.send(event).await.ok()?;
                if told.event == EventKind::Task {
                    return None;
                }
            }
            Some(piece) = pieces.next() => {
                let text = String::from_utf8_lossy(&piece);
                send.send(Event::default().event("token").data(text)).await.ok()?;
            }
        }
    }
}

/// The callers that watch turns through this process. One query serves all of a project.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<Watcher>>);

#[derive(Debug)]
struct Watcher {
    caller: Caller,
    turn_id: TurnId,
    after: i64,
    /// The turn was over when it was looked up: once there are no events left, there never will be.
    is_over: bool,
    /// The last poll found no events.
    is_quiet: bool,
    /// Room for the events of one poll. A slow receiver gets the rest with the next one.
    tell: mpsc::Sender<Told>,
}

impl Watchers {
    fn add(&self, caller: &Caller, turn_id: TurnId, after: i64, is_over: bool) -> mpsc::Receiver<Told> {
        let (tell, told) = mpsc::channel(MOST as usize);
        self.lock().push(Watcher { caller: caller.apart(), turn_id, after, is_over, is_quiet: false, tell });
        told
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls for events of the turns that are watched, and drops callers that may no longer watch, until the server ends.
pub(crate) async fn look_around(api: Arc<Api>) {
    let (mut look, mut stood) = (LOOK, Instant::now());
    loop {
        tokio::select! {
            () = sleep(look) => {}
            () = api.ended() => return,
        }
        let mut watchers = std::mem::take(&mut *api.watchers.lock());
        watchers.retain(|watcher| !watcher.tell.is_closed());
        if stood.elapsed() >= STANDING {
            watchers = those_who_may(&api, watchers).await;
            stood = Instant::now();
        }
        // Puts those of one project next to each other.
        watchers.sort_by_key(|watcher| watcher.caller.project_id);
        look = LOOK;
        for of_project in watchers.chunk_by_mut(|one, next| one.caller.project_id == next.caller.project_id) {
            for some in of_project.chunks_mut(AT_ONCE) {
                if let Err(problem) = news(&api, some).await {
                    tracing::debug!(?problem, "the events of turns could not be read");
                    look = LOOK * 10;
                }
            }
        }
        // Dropping a watcher ends its stream.
        watchers.retain(|watcher| !(watcher.is_over && watcher.is_quiet || watcher.tell.is_closed()));
        api.watchers.lock().append(&mut watchers);
    }
}

/// Sends new events to some watchers of one project. A watcher that has not taken the last ones gets no more.
async fn news(api: &Api, watchers: &mut [Watcher]) -> Result<(), Problem> {
    let mut ready: Vec<&mut Watcher> = watchers.iter_mut().filter(|watcher| watcher.tell.capacity() > 0).collect();
    let Some(first) = ready.first() else { return Ok(()) };
    let asked: Vec<(TurnId, i64)> = ready.iter().map(|watcher| (watcher.turn_id, watcher.after)).collect();
    let mut work = api.kernel.begin(first.caller.project_id).await?;
    let told = turn::news(&mut work, &asked, MOST).await?;
    drop(work);
    ready.iter_mut().for_each(|watcher| watcher.is_quiet = true);
    for (n, told) in told {
        let Some(watcher) = ready.get_mut(n) else { continue };
        watcher.is_quiet = false;
        // What does not fit is sent with the next poll: no later event may be sent before it.
        if told.outbox_seq > watcher.after && watcher.tell.capacity() > 0 {
            let seq = told.outbox_seq;
            if watcher.tell.try_send(told).is_ok() {
                watcher.after = seq;
            }
        }
    }
    Ok(())
}

/// Returns the watchers without those whose key was revoked or has expired.
async fn those_who_may(api: &Api, watchers: Vec<Watcher>) -> Vec<Watcher> {
    let mut known: HashMap<KeyId, bool> = HashMap::new();
    let mut may = Vec::with_capacity(watchers.len());
    for watcher in watchers {
        let key_id = watcher.caller.key_id();
        let is_shut_out = match key_id.and_then(|key_id| known.get(&key_id)) {
            Some(known) => *known,
            None => watcher.caller.is_shut_out(api).await,
        };
        known.extend(key_id.map(|key_id| (key_id, is_shut_out)));
        if !is_shut_out {
            may.push(watcher);
        }
    }
    may
}
