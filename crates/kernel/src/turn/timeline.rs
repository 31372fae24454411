//! How turns spent their time, as far as the record tells: what waited, for whom, and for how long.
//!
//! A step says when its model call ended and how long it took; a call, when it was asked and answered; a request, when a person was asked and when
//! the decision came. That a worker was lost is recorded for every turn. When a worker took a turn up is recorded only for turns with state events,
//! which are those that were started over HTTP. Of all others the time before the first model call is known, and after a loss until the next one.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;
use uuid::Uuid;
use waybill_core::id::TurnId;

use super::{Error, graph};
use crate::work::UnitOfWork;

/// The most turns below that are looked at, the most of them that are shown, and the most rows of the record that are read for one timeline.
const MOST_LOOKED_AT: i32 = 10_000;
const MOST_TURNS: i32 = 2_000;
const MOST_ROWS: i32 = 50_000;

/// Which part of a timeline is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    pub from: DateTime<Utc>,
    pub to: DateTime<Utc>,
    /// Whether the turns below are wanted too.
    pub tree: bool,
    pub most: usize,
}

/// How turns spent their time.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Timeline {
    /// Segments, in the order in which they began.
    pub segments: Vec<Segment>,
    /// Whether there are more: ask for a shorter time, or for one of the turns below.
    pub truncated: bool,
}

/// What a turn did, or waited for, over a time. Segments of one turn may overlap: it waits for several calls at once, and a person is asked while the
/// call is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Segment {
    pub agent_turn_id: TurnId,
    pub kind: SegmentKind,
    /// When it began, in milliseconds since 1970.
    pub from_ms: i64,
    /// When it ended. `null` if it has not ended, or if its end is not recorded.
    pub to_ms: Option<i64>,
    /// The step of a model call, or the tool call. `null` if there is none.
    #[serde(rename = "ref")]
    pub reference: Option<Uuid>,
    /// What the step led to, how the call ended, or what the person decided. `null` if there is nothing to say.
    pub status: Option<String>,
}

/// What a turn did. `queued`: it waited for a worker, or for another turn of its agent. `model`: it called a model. `tool`: it waited for the answer
/// of a tool. `child`: it waited for turns that it started. `person`: it waited for a decision or an answer. `lost`: its worker was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    Queued,
    Model,
    Tool,
    Child,
    Person,
    Lost,
}

#[derive(FromRow)]
struct Life {
    agent_turn_id: TurnId,
    created_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    /// Whether it has state events. Without them, only the loss of a worker is one.
    emit_state_event: bool,
}

/// One row of the record: see `state.times`.
#[derive(FromRow)]
struct Recorded {
    agent_turn_id: TurnId,
    source: String,
    reference: Option<Uuid>,
    status: Option<String>,
    from_at: DateTime<Utc>,
    to_at: Option<DateTime<Utc>>,
    is_child: bool,
}

/// Returns how a turn, or also the turns below it, spent their time.
pub async fn timeline(work: &mut UnitOfWork, turn_id: TurnId, period: Period) -> Result<Timeline, Error> {
    let (ids, is_cut) = match period.tree {
        true => graph::ids(work, turn_id, None, MOST_LOOKED_AT).await?,
        false => (vec![turn_id], false),
    };
    let mut truncated = is_cut || ids.len() >= MOST_LOOKED_AT as usize;
    let mut lives = lives(work, &ids, period).await?;
    truncated |= lives.len() > MOST_TURNS as usize;
    lives.truncate(MOST_TURNS as usize);
    let ids: Vec<TurnId> = lives.iter().map(|life| life.agent_turn_id).collect();
    let recorded = times(work, &ids).await?;
    truncated |= recorded.len() >= MOST_ROWS as usize;
    let mut times: HashMap<TurnId, Vec<Recorded>> = HashMap::new();
    for one in recorded {
        times.entry(one.agent_turn_id).or_default().push(one);
    }
    let mut segments: Vec<Segment> = Vec::new();
    for life in &lives {
        let mut times = times.remove(&life.agent_turn_id).unwrap_or_default();
        times.sort_by_key(|one| one.from_at);
        segments.extend(of_turn(life, &times));
    }
    let (from, to) = (period.from.timestamp_millis(), period.to.timestamp_millis());
    segments.retain(|one| one.from_ms < to && one.to_ms.is_none_or(|end| end >= from));
    segments.sort_by_key(|one| (one.from_ms, one.agent_turn_id));
    truncated |= segments.len() > period.most;
    segments.truncate(period.most);
    Ok(Timeline { segments, truncated })
}

/// Returns the segments of one turn. `times` are in the order in which they began.
fn of_turn(life: &Life, times: &[Recorded]) -> Vec<Segment> {
    let segment = |kind, from: DateTime<Utc>, to: Option<DateTime<Utc>>| Segment {
        agent_turn_id: life.agent_turn_id,
        kind,
        from_ms: from.timestamp_millis(),
        to_ms: to.map(|to| to.timestamp_millis()),
        reference: None,
        status: None,
    };
    let is_state = |one: &&Recorded, status: &str| one.source == "state" && one.status.as_deref() == Some(status);
    let begun =
        times.iter().filter(|one| one.source == "step" || is_state(one, "running")).map(|one| one.from_at).min();
    let states: Vec<&Recorded> = times.iter().filter(|one| one.source == "state").collect();
    let losses = if life.emit_state_event { &[] } else { states.as_slice() };
    let mut segments = Vec::new();
    if losses.first().is_none_or(|loss| begun.is_some_and(|begun| begun < loss.from_at)) {
        segments.push(segment(SegmentKind::Queued, life.created_at, begun.or(life.finished_at)));
    }
    let mut since = life.created_at;
    for (n, loss) in losses.iter().enumerate() {
        // From its last sign of life to when that was noticed.
        let ends = times.iter().filter(|one| one.source != "state").filter_map(|one| one.to_at);
        let last = ends.filter(|at| *at <= loss.from_at).fold(since, Ord::max);
        let later = times.iter().filter(|one| one.source == "step").map(|one| one.from_at);
        let next = later.chain(losses.get(n + 1).map(|next| next.from_at)).filter(|at| *at >= loss.from_at).min();
        since = loss.from_at;
        segments.push(segment(SegmentKind::Lost, last, Some(loss.from_at)));
        segments.push(segment(SegmentKind::Queued, loss.from_at, next.or(life.finished_at)));
    }
    for one in times {
        let kind = match (one.source.as_str(), one.is_child) {
            ("step", _) => SegmentKind::Model,
            ("call", true) => SegmentKind::Child,
            ("call", false) => SegmentKind::Tool,
            ("ask", _) if one.status.as_deref() == Some("asked") => SegmentKind::Person,
            _ => continue,
        };
        let decided = || times.iter().find(|other| is_decision(other, one));
        let (to, status) = match kind {
            SegmentKind::Person => {
                (decided().map(|other| other.from_at), decided().and_then(|other| other.status.clone()))
            }
            _ => (one.to_at, one.status.clone()),
        };
        // What was asked of a turn that has ended is asked no more.
        let to = to.or(life.finished_at);
        segments.push(Segment { reference: one.reference, status, ..segment(kind, one.from_at, to) });
    }
    for pair in if life.emit_state_event { states.as_slice() } else { &[] }.windows(2) {
        let [before, after] = [pair[0], pair[1]];
        match (before.status.as_deref(), after.status.as_deref()) {
            (Some("running"), Some("dispatched")) => {
                let signs = times.iter().filter(|one| one.source == "step").filter_map(|one| one.to_at);
                let last = signs.filter(|at| *at <= after.from_at).fold(before.from_at, Ord::max);
                segments.push(segment(SegmentKind::Lost, last, Some(after.from_at)));
            }
            (Some("dispatched"), Some("running")) if Some(after.from_at) != begun => {
                segments.push(segment(SegmentKind::Queued, before.from_at, Some(after.from_at)));
            }
            (Some("suspended"), Some("running")) => {
                let answers = times.iter().filter(|one| one.source == "call").filter_map(|one| one.to_at);
                let ready = answers.filter(|at| *at <= after.from_at).fold(before.from_at, Ord::max);
                segments.push(segment(SegmentKind::Queued, ready, Some(after.from_at)));
            }
            _ => {}
        }
    }
    segments
}

/// Checks whether a row is the decision about what was asked.
fn is_decision(row: &Recorded, asked: &Recorded) -> bool {
    row.source == "ask"
        && row.reference == asked.reference
        && row.status.as_deref() != Some("asked")
        && row.from_at >= asked.from_at
}

/// Looks up when turns began and ended: those that were open at some time of the period.
async fn lives(work: &mut UnitOfWork, turn_ids: &[TurnId], period: Period) -> Result<Vec<Life>, Error> {
    let project_id = work.project_id();
    let lives = sqlx::query_as(
        "select t.agent_turn_id, t.created_at, t.finished_at, t.emit_state_event
           from unnest($2::uuid[]) with ordinality as asked (agent_turn_id, n)
          cross join lateral (
                select t.agent_turn_id, t.created_at, t.finished_at, t.emit_state_event
                  from state.turns t
                 where t.project_id = $1 and t.agent_turn_id = asked.agent_turn_id
                offset 0) t
          where t.created_at < $4 and coalesce(t.finished_at >= $3, true)
          order by asked.n
          limit $5",
    )
    .bind(project_id)
    .bind(turn_ids)
    .bind(period.from)
    .bind(period.to)
    .bind(i64::from(MOST_TURNS) + 1)
    .fetch_all(&mut **work)
    .await?;
    Ok(lives)
}

async fn times(work: &mut UnitOfWork, turn_ids: &[TurnId]) -> Result<Vec<Recorded>, Error> {
    let project_id = work.project_id();
    let times = sqlx::query_as("select t.* from state.times($1, $2, $3) t");
    Ok(times.bind(project_id).bind(turn_ids).bind(MOST_ROWS).fetch_all(&mut **work).await?)
}
