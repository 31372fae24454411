//! Commands: the calls that turns wait for, claimed by the services that answer them (L0-13).

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgConnection, Row, types::Json};
use waybill_core::{
    bus::Door,
    card::{CallContent, Draft, NewCard},
    id::{
        AgentId, BoxId, CardId, Channel, ProjectId, SessionId, StepId, Target, ToolCallId, TraceId, TurnId, WorkerId,
    },
    request::Decided,
    resource::Profile,
    turn::{ClaimToken, MessageType},
};

use crate::{
    turn::{self, Attempts, Claiming, Error, Report, interval},
    work::{Kernel, UnitOfWork, Work},
};

/// A call that is ours to answer until its deadline, or until it is taken from us.
#[derive(Clone, Debug, FromRow)]
pub struct ClaimedCall {
    pub project_id: ProjectId,
    pub tool_call_id: ToolCallId,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub step_id: StepId,
    pub tool_call_card_id: CardId,
    pub claim_token: ClaimToken,
    pub deadline_at: DateTime<Utc>,
    /// How often the process that had it was lost.
    pub n_lost_leases: i32,
    /// How many attempts failed.
    pub retry_count: i32,
}

/// Claims up to `most` calls, as turns are claimed.
pub async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<ClaimedCall>, Error> {
    let mut lease = kernel.lease().await?;
    let claimed = claim_with(&mut lease, claiming).await;
    lease.settle(&claimed);
    Ok(claimed?)
}

/// Claims calls of the unit of work's own project, and of no other.
pub async fn claim_in(work: &mut UnitOfWork, claiming: &mut Claiming) -> Result<Vec<ClaimedCall>, Error> {
    Ok(claim_with(work, claiming).await?)
}

async fn claim_with(connection: &mut PgConnection, claiming: &mut Claiming) -> sqlx::Result<Vec<ClaimedCall>> {
    let claimed: Vec<ClaimedCall> = sqlx::query_as(
        "select *
           from scheduler.claim_calls(p_worker => $1, p_target => $2, p_after => $3, p_most => $4, p_in_flight_cap => $5, p_lease => $6)",
    )
        .bind(claiming.worker_id)
        .bind(&claiming.target)
        .bind(claiming.after)
        .bind(claiming.most.max(1))
        .bind(claiming.in_flight_cap.max(1))
        .bind(interval(claiming.lease))
        .fetch_all(connection)
        .await?;
    if let Some(last) = claimed.last() {
        claiming.after = last.project_id;
    }
    Ok(claimed)
}

/// Returns what a service holds: more than it knows of, if a claim was committed and its answer was lost.
pub async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<ClaimedCall>, Error> {
    let held = sqlx::query_as("select * from scheduler.held_calls($1)").bind(worker_id);
    Ok(held.fetch_all(&mut *kernel.lease().await?).await?)
}

/// Looks up a call that this process has claimed and not answered.
pub async fn find(
    work: &mut UnitOfWork,
    worker_id: WorkerId,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
) -> Result<Option<ClaimedCall>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select project_id, tool_call_id, agent_turn_id, agent_id, step_id, tool_call_card_id, claim_token, deadline_at, n_lost_leases, retry_count
           from state.waiting_calls
          where project_id = $1 and tool_call_id = $2 and claim_token = $3 and worker_id = $4 and status = 'processing'",
    )
    .bind(project_id)
    .bind(tool_call_id)
    .bind(claim_token)
    .bind(worker_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Checks whether a turn waits for the answer of a call.
pub async fn is_open(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let open = sqlx::query_scalar(
        "select exists (select from state.waiting_calls where project_id = $1 and tool_call_id = $2)",
    );
    Ok(open.bind(project_id).bind(tool_call_id).fetch_one(&mut **work).await?)
}

/// What a call asks for, and on whose behalf.
#[derive(Clone, Debug)]
pub struct Asked {
    pub tool_name: String,
    /// The arguments, as the model wrote them.
    pub arguments: String,
    /// The profile of the calling turn. `None` means that the turn was dispatched without one.
    pub profile: Option<Profile>,
    pub channel: Channel,
    pub output_box_id: BoxId,
    pub session_id: Option<SessionId>,
    pub recursion_depth: i32,
    pub trace_id: Option<TraceId>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    /// The user of the caller on whose behalf the turn runs.
    pub on_behalf_of: Option<String>,
    /// The service that is to answer. `None` means that the call is over.
    pub target: Option<Target>,
    /// The time until its deadline, by the database's clock.
    pub left: Duration,
    /// The turn has seen content from outside.
    pub saw_external: bool,
    /// What people decided about it, where they were asked.
    pub decided: Option<Decided>,
}

/// Reads what a claimed call asks for. Returns `None` if the card or the profile cannot be read any more.
pub async fn asked(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<Option<Asked>, Error> {
    let project_id = work.project_id();
    let row = sqlx::query(
        "select t.channel::text, t.output_box_id, t.session_id, t.recursion_depth, t.trace_id, t.traceparent, t.tracestate, t.on_behalf_of, t.profile_box_id,
                asked.content as call, profile.content as profile, decision.content as decided,
                state.saw_external($1, $2) as saw_external,
                (select c.target::text from state.waiting_calls c where c.project_id = $1 and c.tool_call_id = $4) as target,
                (select extract(epoch from c.deadline_at - now())::float8 from state.waiting_calls c
                  where c.project_id = $1 and c.tool_call_id = $4) as seconds_left
           from state.turns t
          cross join lateral cardbox.reading($1, $3, statement_timestamp()) asked
           left join lateral (
                select r.content
                  from cardbox.box_entries e
                 cross join lateral cardbox.reading($1, e.card_id, statement_timestamp()) r
                 where e.project_id = $1 and e.box_id = t.profile_box_id and e.seq = 1
                offset 0) profile on true
           left join lateral (
                select r.content
                  from state.waiting_calls c
                 cross join lateral cardbox.reading($1, c.decision_card_id, statement_timestamp()) r
                 where c.project_id = $1 and c.tool_call_id = $4) decision on true
          where t.project_id = $1 and t.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(call.agent_turn_id)
    .bind(call.tool_call_card_id)
    .bind(call.tool_call_id)
    .fetch_optional(&mut **work)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let Ok(Json(CallContent { tool_name, arguments, .. })) = row.try_get("call") else { return Ok(None) };
    let profile = match row.try_get::<Option<BoxId>, _>("profile_box_id")? {
        None => None,
        Some(_) => match row.try_get("profile") {
            Ok(Json(profile)) => Some(profile),
            Err(_) => return Ok(None),
        },
    };
    Ok(Some(Asked {
        tool_name,
        arguments,
        profile,
        channel: row.try_get("channel")?,
        output_box_id: row.try_get("output_box_id")?,
        session_id: row.try_get("session_id")?,
        recursion_depth: row.try_get("recursion_depth")?,
        trace_id: row.try_get("trace_id")?,
        traceparent: row.try_get("traceparent")?,
        tracestate: row.try_get("tracestate")?,
        on_behalf_of: row.try_get("on_behalf_of")?,
        target: row.try_get("target")?,
        left: Duration::from_secs_f64(row.try_get::<Option<f64>, _>("seconds_left")?.unwrap_or_default().max(0.0)),
        saw_external: row.try_get("saw_external")?,
        decided: row.try_get::<Option<Json<Decided>>, _>("decided")?.map(|Json(decided)| decided),
    }))
}

/// Notes that the process that has claimed the call may make it. Done once for each claim.
pub async fn admit(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "update state.waiting_calls
            set admitted_token = claim_token
          where project_id = $1 and tool_call_id = $2 and claim_token = $3 and status = 'processing'",
    )
    .bind(project_id)
    .bind(call.tool_call_id)
    .bind(call.claim_token)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Checks whether the process that has claimed the call was admitted already.
pub async fn is_admitted(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<bool, Error> {
    let project_id = work.project_id();
    let admitted = sqlx::query_scalar(
        "select exists (select from state.waiting_calls
                         where project_id = $1 and tool_call_id = $2 and claim_token = $3 and admitted_token = $3)",
    );
    Ok(admitted.bind(project_id).bind(call.tool_call_id).bind(call.claim_token).fetch_one(&mut **work).await?)
}

/// Checks whether a process holds a call that must not be done twice: at its deadline it is unknown whether it was done.
pub(crate) async fn is_once_in_hand(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let in_hand = sqlx::query_scalar(
        "select exists (select from state.waiting_calls
                         where project_id = $1 and tool_call_id = $2 and once and status = 'processing')",
    );
    Ok(in_hand.bind(project_id).bind(tool_call_id).fetch_one(&mut **work).await?)
}

/// Makes sure that a claimed call is ours until the unit of work ends.
pub async fn hold(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<(), Error> {
    let project_id = work.project_id();
    let held: Option<ToolCallId> = sqlx::query_scalar(
        "select tool_call_id
           from state.waiting_calls
          where project_id = $1 and tool_call_id = $2 and claim_token = $3 and status = 'processing'
            for no key update",
    )
    .bind(project_id)
    .bind(call.tool_call_id)
    .bind(call.claim_token)
    .fetch_optional(&mut **work)
    .await?;
    held.map(|_| ()).ok_or_else(|| Error::Stale(call.tool_call_id.to_string()))
}

/// Returns the card that answered a call, if one did.
pub async fn answer(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<Option<CardId>, Error> {
    let project_id = work.project_id();
    let card_id = sqlx::query_scalar(
        "select card_id
           from state.execution_edges
          where project_id = $1 and correlation_id = $2 and primitive = 'report' and edge_phase = 'response'",
    )
    .bind(project_id)
    .bind(tool_call_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(card_id)
}

/// Takes a call from the process that claimed it, because the process was lost or because its attempt failed. Returns false if the call was
/// answered, or taken before.
pub async fn reclaim(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
    has_failed: bool,
) -> Result<bool, Error> {
    let target: Option<Target> = sqlx::query_scalar("select state.reclaim_call($1, $2, $3, $4)")
        .bind(work.project_id())
        .bind(tool_call_id)
        .bind(claim_token)
        .bind(has_failed)
        .fetch_one(work.connection())
        .await?;
    let taken = target.is_some();
    target.into_iter().for_each(|target| work.ring(Door::of_calls(target)));
    Ok(taken)
}

/// The pause after the first failed attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);

/// Gives a call back after a failed attempt to answer it. It is retried up to `attempts`; then it is answered with the reason. A call that must
/// not be done twice is answered at once: it may have been done.
pub async fn give_back(kernel: &Kernel, call: &ClaimedCall, why: &str, attempts: Attempts) -> Result<(), Error> {
    let mut work = kernel.begin(call.project_id).await?;
    let tool_call_id = call.tool_call_id;
    let (status, card) = if is_once_in_hand(&mut work, tool_call_id).await? {
        ("outcome_unknown", unknown_card(tool_call_id)?)
    } else if call.retry_count + 1 < attempts.max_attempts {
        // The call is held during the pause: retried at once, it would fail again.
        drop(work);
        tokio::time::sleep(PAUSE * 2_u32.pow(call.retry_count.clamp(0, 4).unsigned_abs())).await;
        work = kernel.begin(call.project_id).await?;
        reclaim(&mut work, tool_call_id, call.claim_token, true).await?;
        return Ok(work.commit().await?);
    } else {
        let why = format!("it was tried {} times and failed each time; the last time: {why}", attempts.max_attempts);
        ("failed", Draft::tool_result(tool_call_id, "failed", why.into()).seal()?)
    };
    drop(work);
    let report = Report {
        is_external: false,
        tool_call_id,
        claim_token: Some(call.claim_token),
        message_type: MessageType::ToolResult,
        status: status.to_owned(),
        card,
    };
    turn::report(&mut kernel.alone(call.project_id).await?, &report).await?;
    Ok(())
}

/// Returns the answer that stands in for one that did not come in time.
pub fn timeout_card(tool_call_id: ToolCallId) -> Result<NewCard, Error> {
    let result = serde_json::json!("the call was not answered before its deadline");
    Ok(Draft::tool_result(tool_call_id, "timeout", result).seal()?)
}

/// What a model reads of a call that must be done once and whose process was lost.
pub const OUTCOME_UNKNOWN: &str = "the worker that made this call was lost before it reported the outcome: it may or may not have been done, and it is not retried";

/// Returns the answer for a call that must be done once and whose process was lost while it held the call.
pub fn unknown_card(tool_call_id: ToolCallId) -> Result<NewCard, Error> {
    Ok(Draft::tool_result(tool_call_id, "outcome_unknown", OUTCOME_UNKNOWN.into()).seal()?)
}
