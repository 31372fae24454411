//! A turn and the turns below it as a graph, in columns, for a client that draws it: ten thousand turns are one answer.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;
use waybill_core::{
    id::{BatchId, Name, ToolCallId, TurnId},
    turn::TurnStatus,
};

use super::Error;
use crate::{batch, work::UnitOfWork};

/// A turn and the turns below it, in columns: each list from `parent` to `forked` has one entry for each of `ids`, in the same order. An index counts
/// from 0.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub struct Graph {
    /// Number of turns on this page.
    pub n: usize,
    /// Ids of the turns. The turn that was asked for is the first one of the first page. The others follow in the order of their ids, which is
    /// the order in which they were started.
    pub ids: Vec<TurnId>,
    /// Ids of parents that are not on this page.
    pub above: Vec<TurnId>,
    /// The turn that started it: an index into `ids` continued by `above`. -1 for the turn that was asked for.
    pub parent: Vec<i32>,
    pub status: Vec<TurnStatus>,
    /// Its profile: an index into `profiles`. -1 if it has none.
    pub profile: Vec<i32>,
    /// The batch that it is a task of: an index into `batches`. -1 if there is none.
    pub batch: Vec<i32>,
    /// Its place in the batch. -1 if there is none.
    pub task_index: Vec<i32>,
    /// The call that asked for it: an index into `edges`. -1 if there is none.
    pub edge: Vec<i32>,
    /// When it was started, in milliseconds since 1970.
    pub created_ms: Vec<i64>,
    /// When it ended, in milliseconds since 1970. -1 while it is open.
    pub finished_ms: Vec<i64>,
    /// Number of its steps.
    pub steps: Vec<i64>,
    /// Tokens that it read.
    pub input: Vec<i64>,
    /// Of these, tokens that the provider had cached.
    pub cached: Vec<i64>,
    /// Tokens that it wrote.
    pub output: Vec<i64>,
    /// Its cost in millionths of a dollar.
    pub microdollars: Vec<i64>,
    /// Whether its context or its output has external content.
    pub external: Vec<bool>,
    /// Whether it is a fork.
    pub forked: Vec<bool>,
    /// Names of profiles.
    pub profiles: Vec<Name>,
    pub batches: Vec<GraphBatch>,
    /// Calls that asked for turns of this page.
    pub edges: Vec<GraphEdge>,
    /// Whether turns are left out: below a turn that is no root, 10,000 are shown. Ask for the graph of its root to see all.
    pub truncated: bool,
    /// Value of `after` for the next page. `null` on the last page.
    pub next: Option<TurnId>,
}

/// A batch of a graph: turns that one call started together, and that are joined when they have ended.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
pub struct GraphBatch {
    pub batch_id: BatchId,
    /// The call that it belongs to.
    pub tool_call_id: ToolCallId,
    /// `null` if the call can no longer be shown.
    #[sqlx(default)]
    pub tool: Option<String>,
    pub status: batch::Status,
    pub n_tasks: i32,
    /// Whether the batch ends with the first task that fails.
    pub fail_fast: bool,
    pub deadline_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
    /// When its tasks were joined.
    pub closed_at: Option<DateTime<Utc>>,
}

/// A call that asked for turns.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
pub struct GraphEdge {
    pub tool_call_id: ToolCallId,
    /// The turn that made the call.
    pub agent_turn_id: TurnId,
    /// `null` if the call can no longer be shown.
    pub tool: Option<String>,
    pub asked_at: DateTime<Utc>,
    /// `null` if no answer is recorded.
    pub answered_at: Option<DateTime<Utc>>,
    /// How the call ended.
    pub status: Option<String>,
}

#[derive(FromRow)]
struct Node {
    agent_turn_id: TurnId,
    parent_agent_turn_id: Option<TurnId>,
    parent_tool_call_id: Option<ToolCallId>,
    status: TurnStatus,
    profile_name: Option<Name>,
    batch_id: Option<BatchId>,
    task_index: Option<i32>,
    created_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    external: bool,
    forked: bool,
    n_steps: i64,
    input_tokens: i64,
    cached_tokens: i64,
    output_tokens: i64,
    microdollars: i64,
}

/// Returns one page of the graph below a turn. `None` means that there is no such turn.
pub async fn graph(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    after: Option<TurnId>,
    most: i32,
) -> Result<Option<Graph>, Error> {
    let (mut ids, truncated) = ids(work, turn_id, after, most + 1).await?;
    if ids.is_empty() && (after.is_none() || super::voice(work, turn_id).await?.is_none()) {
        return Ok(None);
    }
    let most = usize::try_from(most).unwrap_or_default();
    let more = ids.len() > most;
    ids.truncate(most);
    let project_id = work.project_id();
    let nodes: Vec<Node> = sqlx::query_as("select g.* from state.graph($1, $2) g")
        .bind(project_id)
        .bind(&ids)
        .fetch_all(&mut **work)
        .await?;
    let next = ids.last().copied().filter(|_| more);
    let mut graph = Graph { n: nodes.len(), truncated, next, ..Graph::default() };
    graph.ids = nodes.iter().map(|node| node.agent_turn_id).collect();
    graph.profiles = distinct(nodes.iter().filter_map(|node| node.profile_name.clone()));
    // What asked for the first turn is not part of the graph.
    let below = || nodes.iter().filter(move |node| node.agent_turn_id != turn_id);
    let call_ids = distinct(below().filter_map(|node| node.parent_tool_call_id));
    let batch_ids = distinct(below().filter_map(|node| node.batch_id));
    graph.edges = edges(work, &call_ids).await?;
    graph.batches = batches(work, &batch_ids).await?;
    let calls = places(graph.edges.iter().map(|edge| edge.tool_call_id));
    for batch in &mut graph.batches {
        batch.tool = calls.get(&batch.tool_call_id).and_then(|place| graph.edges[*place].tool.clone());
    }
    graph.fill(turn_id, &nodes);
    Ok(Some(graph))
}

impl Graph {
    fn fill(&mut self, turn_id: TurnId, nodes: &[Node]) {
        let mut turns = places(self.ids.iter().copied());
        let profiles = places(self.profiles.iter().cloned());
        let batches = places(self.batches.iter().map(|batch| batch.batch_id));
        let edges = places(self.edges.iter().map(|edge| edge.tool_call_id));
        for node in nodes {
            let is_first = node.agent_turn_id == turn_id;
            let parent = node.parent_agent_turn_id.filter(|_| !is_first).map(|parent| {
                *turns.entry(parent).or_insert_with(|| {
                    self.above.push(parent);
                    nodes.len() + self.above.len() - 1
                })
            });
            self.parent.push(index(parent));
            self.status.push(node.status);
            self.profile.push(index(node.profile_name.as_ref().and_then(|name| profiles.get(name).copied())));
            self.batch.push(index(node.batch_id.and_then(|batch_id| batches.get(&batch_id).copied())));
            self.task_index.push(node.task_index.filter(|_| !is_first).unwrap_or(-1));
            self.edge.push(index(node.parent_tool_call_id.and_then(|call| edges.get(&call).copied())));
            self.created_ms.push(node.created_at.timestamp_millis());
            self.finished_ms.push(node.finished_at.map_or(-1, |at| at.timestamp_millis()));
            self.steps.push(node.n_steps);
            self.input.push(node.input_tokens);
            self.cached.push(node.cached_tokens);
            self.output.push(node.output_tokens);
            self.microdollars.push(node.microdollars);
            self.external.push(node.external);
            self.forked.push(node.forked);
        }
    }
}

/// Returns the next turns of a graph, and whether more are left out than the next pages have.
pub(super) async fn ids(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    after: Option<TurnId>,
    most: i32,
) -> Result<(Vec<TurnId>, bool), Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as("select g.turn_ids, g.is_cut from state.graph_ids($1, $2, $3, $4) g");
    Ok(found.bind(project_id).bind(turn_id).bind(after).bind(most).fetch_one(&mut **work).await?)
}

async fn edges(work: &mut UnitOfWork, calls: &[ToolCallId]) -> Result<Vec<GraphEdge>, Error> {
    let project_id = work.project_id();
    let edges = sqlx::query_as("select c.* from state.calls($1, $2) c").bind(project_id).bind(calls);
    Ok(edges.fetch_all(&mut **work).await?)
}

async fn batches(work: &mut UnitOfWork, batch_ids: &[BatchId]) -> Result<Vec<GraphBatch>, Error> {
    let project_id = work.project_id();
    let batches = sqlx::query_as(
        "select b.batch_id, b.tool_call_id, b.status::text, b.n_tasks, b.fail_fast, b.deadline_at, b.created_at, b.closed_at
           from unnest($2::uuid[]) with ordinality as asked (batch_id, n)
          cross join lateral (
                select b.* from state.pmo_batches b where b.project_id = $1 and b.batch_id = asked.batch_id offset 0) b
          order by asked.n",
    )
    .bind(project_id)
    .bind(batch_ids)
    .fetch_all(&mut **work)
    .await?;
    Ok(batches)
}

/// Returns each value once, in the order in which they first came.
fn distinct<T: Clone + Eq + Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(value.clone())).collect()
}

fn places<T: Eq + Hash>(values: impl Iterator<Item = T>) -> HashMap<T, usize> {
    values.enumerate().map(|(place, value)| (value, place)).collect()
}

fn index(place: Option<usize>) -> i32 {
    place.and_then(|place| i32::try_from(place).ok()).unwrap_or(-1)
}
