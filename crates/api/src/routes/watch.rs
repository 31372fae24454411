//! Watching a turn as it happens: what became true, from the database, and what is being written, live.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::{sync::mpsc, time::sleep};
use utoipa::IntoParams;
use waybill_core::{bus::EventKind, id::TurnId};
use waybill_kernel::turn::{self, Summary, Told};

use super::turn::{OneTurn, one};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Path, Query},
};

/// How often the database is asked while nothing is heard.
const LOOK: Duration = Duration::from_millis(300);
const MOST: i64 = 500;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Params {
    /// Go on after this event: its `id`. So does the header `Last-Event-ID`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Also what the model is writing, as it writes it. Pieces are sent once, to whoever watches just then.
    #[serde(default)]
    tokens: bool,
}

/// What becomes of a turn, as server-sent events: `state`, `step` and at last `task`, each with an id to go on after; and, where asked for,
/// `token`, which has none. The stream ends with the turn.
#[utoipa::path(
    get, path = "/turns/{turn}/events", tag = "turns",
    params(("turn" = TurnId, Path), ("Last-Event-ID" = Option<i64>, Header, minimum = 0), Params),
    responses((status = 200, description = "Events.", body = String, content_type = "text/event-stream")),
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
            Some(id.ok_or_else(|| Problem::invalid("`Last-Event-ID` is the id of an event of this stream"))?)
        }
    };
    let after = params.after.or(last).unwrap_or(0);
    if after < 0 || last.is_some_and(|last| last < 0) {
        return Err(Problem::invalid("an event's id is not below 0"));
    }
    let place = api.gate.place()?;
    let summary = one(&mut caller.begin(&api).await?, turn).await?;
    let pieces = match params.tokens {
        true => api.kernel.bus().watch(caller.project_id, summary.agent_id),
        false => Box::pin(stream::pending()),
    };
    let (send, events) = mpsc::channel(64);
    tokio::spawn(async move {
        let _place = place;
        tokio::select! {
            _ = follow(&api, &caller, &summary, after, pieces, &send) => {}
            () = api.ended() => {}
            () = send.closed() => {}
        }
    });
    let events = stream::unfold(events, |mut events| async { Some((Ok(events.recv().await?), events)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Sends what there is and what comes. None: nobody listens any more, or that was all.
async fn follow(
    api: &Api,
    caller: &Caller,
    turn: &Summary,
    mut after: i64,
    mut pieces: impl Stream<Item = Vec<u8>> + Unpin,
    send: &mpsc::Sender<Event>,
) -> Option<()> {
    let mut look = LOOK;
    loop {
        match read(api, caller, turn.agent_turn_id, after).await {
            // Whoever comes back after the last event has heard it all.
            Ok(told) if told.is_empty() && turn.status != "open" => return None,
            Ok(told) => {
                look = LOOK;
                for told in told {
                    after = told.outbox_seq;
                    let data = serde_json::to_string(&told).ok()?;
                    let event = Event::default().event(told.event.as_str()).id(after.to_string()).data(data);
                    send.send(event).await.ok()?;
                    if told.event == EventKind::Task {
                        return None;
                    }
                }
            }
            Err(problem) => {
                tracing::debug!(?problem, "the events of a turn could not be read");
                look = (look * 2).min(Duration::from_secs(5));
            }
        }
        let until = sleep(look);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => break,
                Some(piece) = pieces.next() => {
                    let text = String::from_utf8_lossy(&piece);
                    send.send(Event::default().event("token").data(text)).await.ok()?;
                }
            }
        }
    }
}

async fn read(api: &Api, caller: &Caller, turn_id: TurnId, after: i64) -> Result<Vec<Told>, Problem> {
    Ok(turn::events(&mut caller.begin(api).await?, turn_id, after, MOST).await?)
}
