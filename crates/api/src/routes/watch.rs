//! Watching as it happens: the events of a turn, a tree or a project, from the database, and what models are writing, live (UI-10).

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IntoDeserializer, value::StrDeserializer},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    bus::EventKind,
    id::{AgentId, ProjectId, StepId, TurnId},
};
use waybill_kernel::turn::{self, Stretch, Told};

use super::{
    turn::{OneTurn, one},
    watch_tree::Tree,
};
use crate::{
    Api,
    caller::{Caller, STANDING, unauthorized},
    limit::Place,
    problem::Problem,
    reader::{Joined, Line, Of, Sight},
    request::{Path, Query},
};

/// Events that are read from the record in one statement.
const PAGE: i64 = 500;
/// Pages of events that are read before a stream of what comes from now on, to know what came before.
const BEFORE: usize = 20;
/// Events that were sent before they were settled, and are remembered so that they are not sent twice.
const AHEAD: usize = 100_000;
/// How long a stream waits to learn where it begins.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Turns whose tokens one stream may carry.
const MOST_TOKENS: usize = 8;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Params {
    /// Where to continue: the `id` of the last event that you have. The header `Last-Event-ID` does the same, and comes first. If omitted, all events are sent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Whether to also send the text that the model is writing, piece by piece. A piece is sent only while you are connected, and is not repeated
    /// later. If omitted, false.
    #[serde(default)]
    tokens: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProjectParams {
    /// Where to continue: the `id` of the last event that you have; 0 means from the beginning. The header `Last-Event-ID` does the same. If omitted,
    /// or higher than the number of any event, only events from now on are sent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Root turn of a tree: only events of this turn and of the turns below it are sent. If omitted, events of all turns of the project are sent.
    root: Option<TurnId>,
    /// Kinds of events to send, separated by commas. If omitted, all kinds are sent.
    #[serde(default, deserialize_with = "listed")]
    #[param(style = Form, explode = false)]
    kinds: Vec<EventKind>,
    /// Turns, at most 8 and separated by commas: what their models are writing is also sent, piece by piece, as events `token`. If omitted, there are
    /// no such events.
    #[serde(default, deserialize_with = "listed")]
    #[param(style = Form, explode = false, max_items = 8)]
    tokens: Vec<TurnId>,
}

/// Reads values that are separated by commas.
fn listed<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let read = |one: &str| {
        let one: StrDeserializer<'_, D::Error> = one.into_deserializer();
        T::deserialize(one)
    };
    text.split(',').filter(|one| !one.is_empty()).map(read).collect()
}

/// A piece of what a model is writing: the `data` of an event `token`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TokenEvent {
    /// The turn.
    pub(crate) agent_turn_id: TurnId,
    /// Step that is being written.
    pub(crate) step_id: StepId,
    /// Attempt of the step. A new attempt begins from the start.
    pub(crate) attempt: u16,
    /// The piece.
    pub(crate) text: String,
}

/// The `data` of an event, as JSON: a `TokenEvent` for `token`, and a `TurnEvent` for all others.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it describes what is sent")]
pub(crate) enum StreamEvent {
    Turn(Told),
    Token(TokenEvent),
}

/// Watch a turn, as server-sent events.
///
/// The events are `state`, `step`, `request` and, as the last one, `task`. Each has an id, after which an interrupted stream can be continued; its
/// `data` is a `TurnEvent` as JSON. With `tokens=true` there are also `token` events: they have no id, and their `data` is a `TokenEvent`. The stream
/// ends when the turn ends.
#[utoipa::path(
    get, path = "/turns/{turn}/events", tag = "turns",
    params(("turn" = TurnId, Path), ("Last-Event-ID" = Option<i64>, Header, minimum = 0), Params),
    responses((
        status = 200, description = "A stream of server-sent events. The `data` of each is a `StreamEvent` as JSON.", body = String, content_type = "text/event-stream"
    )),
)]
pub(crate) async fn watch_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<Params>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    caller.may_read()?;
    let after = cursor(params.after, &headers)?.unwrap_or(0);
    let place = api.gate.streams.take(caller.lane, 1)?;
    let mut work = caller.begin(&api).await?;
    let summary = one(&mut work, turn).await?;
    // Higher than its own last number, it could pass over the end of the turn.
    let after = if after > 0 { after.min(turn::last_event(&mut work, turn).await?) } else { after };
    drop(work);
    caller.rest();
    let speakers = if params.tokens { BTreeMap::from([(turn, summary.agent_id)]) } else { BTreeMap::new() };
    let sight = Sight { of: Of::Turn(turn), kinds: Vec::new() };
    let (is_over, ahead) = (!summary.status.is_open(), BTreeSet::new());
    Ok(streamed(api, caller, sight, Start { after, ahead, is_over, speakers, place }))
}

/// Watch a whole project, or a tree of turns, as server-sent events.
///
/// The events are `state`, `step`, `request` and `task`, of all turns or of those in the tree of `root`. Each has an id, after which an interrupted
/// stream can be continued; its `data` is a `TurnEvent` as JSON. The events of one turn come in their order, and each event comes once. Only if a
/// transaction in the database stays open for seconds can an event come again after you continue; its `event_id` is then the same. For the turns in
/// `tokens` there are also `token` events: they have no id, and their `data` is a `TokenEvent`. The stream begins
/// with an id without an event, and now and then there is another one, so that you need not continue from long ago. The stream does not end by itself.
#[utoipa::path(
    get, path = "/events", tag = "turns",
    params(("Last-Event-ID" = Option<i64>, Header, minimum = 0), ProjectParams),
    responses((
        status = 200, description = "A stream of server-sent events. The `data` of each is a `StreamEvent` as JSON.", body = String, content_type = "text/event-stream"
    )),
)]
pub(crate) async fn watch_project(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ProjectParams>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    caller.may_read()?;
    let after = cursor(params.after, &headers)?;
    if params.tokens.len() > MOST_TOKENS {
        return Err(Problem::invalid(format!("`tokens` must name at most {MOST_TOKENS} turns")));
    }
    let place = api.gate.streams.take(caller.lane, 1)?;
    let mut work = caller.begin(&api).await?;
    if let Some(root) = params.root {
        let summary = one(&mut work, root).await?;
        if summary.root_turn_id != root {
            let said = format!("turn {root} is not the root of its tree: use `root={}`", summary.root_turn_id);
            return Err(Problem::invalid(said));
        }
    }
    let mut speakers = BTreeMap::new();
    for turn_id in params.tokens {
        let voice = turn::voice(&mut work, turn_id).await?;
        let unknown = || Problem::not_found(format!("there is no turn {turn_id} in this project"));
        speakers.insert(turn_id, voice.ok_or_else(unknown)?.0);
    }
    drop(work);
    caller.rest();
    let sight = Sight { of: params.root.map_or(Of::Project, Of::Tree), kinds: params.kinds };
    let is_known = match after {
        Some(after) => is_drawn(&api, after).await?,
        None => false,
    };
    let (after, ahead) = match after.filter(|_| is_known) {
        Some(after) => (after, BTreeSet::new()),
        // Before the answer: what happens after it is among the events.
        None => from_now(&api, &caller, &sight).await?,
    };
    Ok(streamed(api, caller, sight, Start { after, ahead, is_over: false, speakers, place }))
}

/// Checks whether a number can be that of an event.
async fn is_drawn(api: &Api, seq: i64) -> Result<bool, Problem> {
    if seq == 0 || api.reader.last().is_some_and(|last| seq <= last) {
        return Ok(true);
    }
    // A project without events: only to learn the last number.
    let look = turn::look(&api.kernel, &[(ProjectId::nil(), i64::MAX)], api.reader.last(), 1).await?;
    Ok(seq <= look.last_seq)
}

/// Returns where a stream of what comes from now on begins, and which events after that are older.
async fn from_now(api: &Api, caller: &Caller, sight: &Sight) -> Result<(i64, BTreeSet<i64>), Problem> {
    let joined = timeout(FIRST_LOOK, api.reader.join(caller, sight, None)).await;
    let Ok(Joined { from, settled, .. }) = joined else {
        return Err(Problem::busy("unavailable", "the events cannot be read at the moment: retry", 1));
    };
    // What is not settled may still appear, with a lower number than others that are there.
    let start = from.min(settled);
    let (mut after, mut older) = (start, BTreeSet::new());
    for _ in 0..BEFORE {
        if after >= from {
            break;
        }
        let stretch = Stretch { after, upto: from, most: PAGE };
        let page = turn::events(&mut caller.begin(api).await?, stretch).await?;
        older.extend(page.iter().map(|told| told.outbox_seq));
        after = end_of(&page, usize::try_from(PAGE).unwrap_or_default(), from);
    }
    caller.rest();
    Ok((start, older))
}

/// Returns up to which number a page has all events.
pub(super) fn end_of(page: &[Told], most: usize, upto: i64) -> i64 {
    page.last().filter(|_| page.len() >= most).map_or(upto, |last| last.outbox_seq)
}

/// Reads where a stream continues. `None` means that the request does not say.
fn cursor(after: Option<i64>, headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let last: Option<i64> = match headers.get("last-event-id") {
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
    if [after, last].into_iter().flatten().any(|seq| seq < 0) {
        return Err(Problem::invalid("`after` and `Last-Event-ID` must not be negative"));
    }
    // A browser that opens the same address again says with the header how far it came.
    Ok(last.or(after))
}

/// How a stream begins.
struct Start {
    after: i64,
    /// Events after it that are not sent.
    ahead: BTreeSet<i64>,
    /// The turn was over when it was looked up: there will be no more events than there are.
    is_over: bool,
    /// The turns whose tokens are sent, and their agents.
    speakers: BTreeMap<TurnId, AgentId>,
    place: Place,
}

fn streamed(
    api: Arc<Api>,
    caller: Caller,
    sight: Sight,
    start: Start,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let Start { after, ahead, is_over, speakers, place } = start;
    let pieces = pieces(&api, &caller, speakers);
    let (send, events) = mpsc::channel(64);
    let caller = caller.apart();
    tokio::spawn(async move {
        let _place = place;
        let mut follower = Follower { api: &api, caller, sight, cursor: after, ahead, send: &send };
        tokio::select! {
            _ = follower.follow(is_over) => {}
            _ = pass_on(pieces, &send) => {}
            () = api.ended() => {}
            () = send.closed() => {}
        }
    });
    let events = stream::unfold(events, |mut events| async { Some((Ok(events.recv().await?), events)) });
    // Some proxies pass on the head of an answer only with its first bytes. The id is there for a client that is cut off before the first event.
    let opened = stream::once(async move { Ok(Event::default().comment("open").id(after.to_string())) });
    Sse::new(opened.chain(events)).keep_alive(KeepAlive::default())
}

/// Returns what the models of some turns are writing, from now on. It does not end.
fn pieces(api: &Api, caller: &Caller, speakers: BTreeMap<TurnId, AgentId>) -> BoxStream<'static, String> {
    let agents: BTreeSet<AgentId> = speakers.values().copied().collect();
    let heard = agents.into_iter().map(|agent_id| api.kernel.bus().watch(caller.project_id, agent_id));
    let heard = stream::select_all(heard).filter_map(move |piece| {
        // An agent may be writing in another turn.
        let read: Option<TokenEvent> = serde_json::from_slice(&piece).ok();
        let is_wanted = read.is_some_and(|read| speakers.contains_key(&read.agent_turn_id));
        std::future::ready(is_wanted.then(|| String::from_utf8_lossy(&piece).into_owned()))
    });
    Box::pin(heard.chain(stream::pending()))
}

async fn pass_on(mut pieces: BoxStream<'static, String>, send: &mpsc::Sender<Event>) -> Option<()> {
    loop {
        let piece = pieces.next().await?;
        send.send(Event::default().event("token").data(piece)).await.ok()?;
    }
}

/// Waits until a turn has ended, the time is over, or the server is to end. `place` is one of those for requests that wait.
pub(super) async fn until_over(
    api: &Api,
    caller: &Caller,
    turn_id: TurnId,
    wait: Duration,
    place: Place,
) -> Result<(), Problem> {
    if !is_open(api, caller, turn_id).await? {
        return Ok(());
    }
    let sight = Sight { of: Of::Turn(turn_id), kinds: vec![EventKind::Task] };
    let over = async {
        loop {
            let mut joined = api.reader.join(caller, &sight, None).await;
            // Looked up after joining: an end that comes in between is then among the events.
            let is_over = !is_open(api, caller, turn_id).await? || joined.lines.recv().await.is_some();
            if is_over || caller.is_shut_out(api).await {
                return Ok(());
            }
        }
    };
    let waited: Result<(), Problem> = tokio::select! {
        over = over => over,
        () = sleep(wait) => Ok(()),
        () = api.ended() => Ok(()),
    };
    drop(place);
    waited?;
    caller.enter(api).await?;
    if caller.is_shut_out(api).await {
        return Err(unauthorized("the API key or token has expired or was revoked"));
    }
    Ok(())
}

async fn is_open(api: &Api, caller: &Caller, turn_id: TurnId) -> Result<bool, Problem> {
    let summary = one(&mut caller.begin(api).await?, turn_id).await?;
    caller.rest();
    Ok(summary.status.is_open())
}

/// A stream that sends the events so far and those that come.
struct Follower<'a> {
    api: &'a Api,
    caller: Caller,
    sight: Sight,
    /// Where the client continues if it is cut off now.
    cursor: i64,
    /// Events after the cursor that were sent, or are not to be.
    ahead: BTreeSet<i64>,
    send: &'a mpsc::Sender<Event>,
}

impl Follower<'_> {
    /// Returns `None` once all was sent, or the caller no longer listens or may no longer watch.
    async fn follow(&mut self, is_over: bool) -> Option<()> {
        if is_over {
            self.catch_up(i64::MAX, i64::MAX).await?;
            return None;
        }
        loop {
            let joined = self.api.reader.join(&self.caller, &self.sight, Some(self.cursor)).await;
            let Joined { mut lines, from, settled } = joined;
            self.catch_up(from, settled).await?;
            while let Some(line) = lines.recv().await {
                self.pass(line).await?;
            }
            if self.caller.is_shut_out(self.api).await {
                return None;
            }
        }
    }

    /// Sends a line, unless it was sent before.
    async fn pass(&mut self, Line { id, told }: Line) -> Option<()> {
        let id = self.cursor.max(id);
        self.cursor = id;
        let mut event = Event::default().id(id.to_string());
        let mut is_last = false;
        if let Some(told) = told {
            let seq = told.outbox_seq;
            let is_new = if seq > id { self.ahead.insert(seq) } else { !self.ahead.remove(&seq) };
            if !is_new {
                return Some(());
            }
            event = event.event(told.event.as_str()).data(serde_json::to_string(&*told).ok()?);
            is_last = told.event == EventKind::Task && matches!(self.sight.of, Of::Turn(_));
        }
        while self.ahead.len() > AHEAD || self.ahead.first().is_some_and(|seq| *seq <= id) {
            // What is forgotten is not read again either.
            self.cursor = self.cursor.max(self.ahead.pop_first().unwrap_or_default());
        }
        self.send.send(event).await.ok()?;
        (!is_last).then_some(())
    }

    /// Sends what is on record after the cursor, up to a number. What is after `settled` may be sent again after the client continues.
    async fn catch_up(&mut self, upto: i64, settled: i64) -> Option<()> {
        let (mut after, mut stood, mut tree) = (self.cursor, Instant::now(), None);
        while after < upto {
            if stood.elapsed() >= STANDING {
                if self.caller.is_shut_out(self.api).await {
                    return None;
                }
                stood = Instant::now();
            }
            let page = self.page(after, upto, &mut tree).await;
            self.caller.rest();
            let (page, end) = match page {
                Ok(page) => page,
                Err(problem) => {
                    tracing::debug!(?problem, "the events of turns could not be read");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            for told in page.into_iter().filter(|told| self.sight.has(told)).collect::<Vec<_>>() {
                self.pass(Line { id: told.outbox_seq.min(settled), told: Some(Arc::new(told)) }).await?;
            }
            after = end;
            self.cursor = self.cursor.max(after.min(settled));
        }
        Some(())
    }

    /// Returns the next events on record, and up to which number there are no others. There may be events that the caller does not watch. `tree` is
    /// kept between pages.
    async fn page(&self, after: i64, upto: i64, tree: &mut Option<Tree>) -> Result<(Vec<Told>, i64), Problem> {
        let (stretch, most) = (Stretch { after, upto, most: PAGE }, usize::try_from(PAGE).unwrap_or_default());
        let (api, caller) = (self.api, &self.caller);
        let page = match (self.sight.of, tree.as_mut()) {
            (Of::Tree(_), Some(tree)) => return tree.page(api, caller, after, upto).await,
            (Of::Turn(turn_id), _) => turn::events_of(&mut caller.begin(api).await?, &[turn_id], stretch).await?,
            (Of::Project | Of::Tree(_), _) => turn::events(&mut caller.begin(api).await?, stretch).await?,
        };
        if let (Of::Tree(root), true) = (self.sight.of, page.len() >= most) {
            // Much happens in the project: from here on turn by turn.
            let found = Tree::find(api, caller, root, after).await?;
            return tree.insert(found).page(api, caller, after, upto).await;
        }
        let end = end_of(&page, most, upto);
        Ok((page, end))
    }
}
