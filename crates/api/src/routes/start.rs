//! Many starts in one request: each has its own key and its own outcome, and a start that is refused does not stop the others.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use waybill_core::{card::CardHash, key::Scope};
use waybill_kernel::{idempotency, work};
use waybill_orchestrator::launch::{DispatchResult, Launch};

use super::turn::{Start, begin, wanted};
use crate::{
    Api,
    caller::Caller,
    limit::Late,
    problem::Problem,
    request::{Body, Traced, not_too_many},
    write::{Once, is_key, taken},
};

/// How many turns are started in one transaction.
const GROUP: usize = 50;

/// The turns to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartAll {
    /// Turns to start, 1 to 1,000.
    #[schema(min_items = 1, max_items = 1000)]
    starts: Vec<KeyedStart>,
}

/// A turn to start, and the key under which it is started once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyedStart {
    /// Idempotency key of this start. If you send the same start again with the same key within 24 hours, the outcome names the same turn. The same
    /// key with another start is refused.
    #[schema(min_length = 1, max_length = 200, pattern = "^[!-~]+$")]
    key: String,
    /// The turn to start, as for a single one.
    // Read later, so that one that cannot be read does not stop the others.
    #[schema(value_type = Start)]
    start: Value,
}

/// The outcomes of all starts.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "describes the answer, which is written as JSON once and may be repeated")]
pub(crate) struct StartedAll {
    /// One outcome for each start, in the order of the request.
    outcomes: Vec<StartOutcome>,
}

/// What became of a start: the turn, or the problem.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the answer, which is written as JSON once and may be repeated")]
pub(crate) enum StartOutcome {
    Started(StartedOne),
    Refused(RefusedOne),
}

/// A start that led to a turn.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "describes the answer, which is written as JSON once and may be repeated")]
pub(crate) struct StartedOne {
    /// Key of the start.
    key: String,
    #[serde(flatten)]
    dispatched: DispatchResult,
}

/// A start that was refused. It has left nothing.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "describes the answer, which is written as JSON once and may be repeated")]
pub(crate) struct RefusedOne {
    /// Key of the start.
    key: String,
    /// Why it was refused, and what to do.
    problem: Problem,
}

/// Start many turns, up to 1,000. Each has its own idempotency key and its own outcome.
///
/// A start that is refused does not stop the others. If all are refused, the response is the problem of the first. Send no `Idempotency-Key` header:
/// each start has its own `key`.
#[utoipa::path(
    post, path = "/turns/batch", tag = "turns", request_body = StartAll,
    responses((status = 200, body = StartedAll)),
)]
pub(crate) async fn start_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Traced(traceparent): Traced,
    Body { value: StartAll { starts }, .. }: Body<StartAll>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    once.refuse("leave out this header, because each start has its own `key`")?;
    if starts.is_empty() {
        return Err(Problem::invalid("`starts` must not be empty"));
    }
    not_too_many("starts", &starts)?;
    let keys: Vec<String> = starts.iter().map(|start| start.key.clone()).collect();
    let mut outcomes: Vec<Result<Value, Problem>> = Vec::with_capacity(starts.len());
    let mut ready: Vec<(usize, Keyed)> = Vec::new();
    for (n, start) in starts.into_iter().enumerate() {
        match Keyed::read(&caller, start, traceparent.as_deref()) {
            Ok(keyed) => {
                ready.push((n, keyed));
                outcomes.push(Ok(Value::Null));
            }
            Err(problem) => outcomes.push(Err(problem)),
        }
    }
    for ((n, _), outcome) in ready.iter().zip(start_all(&api, &caller, &ready).await) {
        outcomes[*n] = outcome;
    }
    if let Some(Err(problem)) = outcomes.first()
        && outcomes.iter().all(Result::is_err)
    {
        return Err(problem.clone());
    }
    let outcomes = keys.into_iter().zip(outcomes).map(|(key, outcome)| match outcome {
        Ok(mut started) => {
            started["key"] = key.into();
            started
        }
        Err(problem) => json!({ "key": key, "problem": problem }),
    });
    Ok(Json(json!({ "outcomes": outcomes.collect::<Vec<Value>>() })))
}

/// A start that was read and checked.
struct Keyed {
    key: String,
    hash: CardHash,
    launch: Launch,
}

impl Keyed {
    fn read(
        caller: &Caller,
        KeyedStart { key, start }: KeyedStart,
        traceparent: Option<&str>,
    ) -> Result<Keyed, Problem> {
        if !is_key(&key) {
            return Err(Problem::invalid("`key` must have 1 to 200 visible ASCII characters, without spaces"));
        }
        // The fields of an object are sorted, so that equal starts have equal hashes.
        let hash = blake3::hash(format!("turns/batch\n{start}").as_bytes());
        let start: Start = serde_json::from_value(start)
            .map_err(|error| Problem::invalid(format!("`start` is not valid: {error}")))?;
        let launch = wanted(caller, start, traceparent.map(str::to_owned))?;
        Ok(Keyed { key, hash: CardHash::from_bytes(*hash.as_bytes()), launch })
    }
}

/// Starts turns, a group at a time. If a group fails, its starts are made one by one. If the server fails, the rest is not tried.
async fn start_all(api: &Api, caller: &Caller, starts: &[(usize, Keyed)]) -> Vec<Result<Value, Problem>> {
    let mut outcomes = Vec::with_capacity(starts.len());
    for group in starts.chunks(GROUP) {
        let late = api.backlog.late(&api.kernel).await;
        match start_group(api, caller, &late, group).await {
            Ok(started) => outcomes.extend(started.into_iter().map(Ok)),
            Err(problem) if group.len() == 1 => outcomes.push(Err(problem)),
            Err(_) => {
                for one in group.chunks(1) {
                    let started = start_group(api, caller, &late, one).await;
                    let fault = started.as_ref().err().filter(|problem| problem.is_fault()).cloned();
                    outcomes.push(started.map(|mut started| started.pop().unwrap_or_default()));
                    if let Some(fault) = fault {
                        outcomes.resize(starts.len(), Err(fault));
                        return outcomes;
                    }
                }
            }
        }
        // Requests that wait are answered between two groups.
        caller.rest();
    }
    outcomes
}

/// Starts turns in one transaction: all of them, or none if one is refused.
async fn start_group(api: &Api, caller: &Caller, late: &Late, group: &[(usize, Keyed)]) -> Result<Vec<Value>, Problem> {
    let mut work = caller.begin(api).await?;
    let mut answers = Vec::with_capacity(group.len());
    let mut is_user_set = false;
    for (_, Keyed { key, hash, launch }) in group {
        let key = caller.once(key);
        if let Some(answer) = taken(&mut work, &key, *hash).await? {
            answers.push(answer);
            continue;
        }
        // The user of the start before this one is not its own.
        if is_user_set && launch.on_behalf_of.is_none() {
            work::on_behalf_of(&mut work, "").await?;
        }
        is_user_set = launch.on_behalf_of.is_some();
        let answer = serde_json::to_value(begin(&mut work, caller, late, launch).await?).map_err(Problem::internal)?;
        idempotency::answer(&mut work, &key, &answer).await?;
        answers.push(answer);
    }
    work.commit().await?;
    Ok(answers)
}
