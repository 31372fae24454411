//! What people are asked: a call waits for them instead of for its handler, and goes back to it with what was decided (HO-7).
//!
//! ```text
//!   claimed by its handler ──ask──▶ asking ──decide, or at its deadline what was said beforehand──▶ ready for its handler again
//! ```
//! What was asked and what was decided are cards. A decided request is on record as long as its turn.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::{CardType, Content, Draft, NewCard, Role},
    guard::Guard,
    id::{AgentId, CardId, Target, ToolCallId, TurnId},
    request::{Decided, Decision, Kind, Request},
    resource::Effect,
};

use crate::{
    audit,
    call::ClaimedCall,
    turn::{Error, interval},
    work::{UnitOfWork, Work},
};

/// How long a handler may take after the decision.
const HANDLING: Duration = Duration::from_secs(3600);

/// Asks people about a call that is ours. After that it is no longer ours.
pub async fn ask(work: &mut impl Work, call: &ClaimedCall, request: &Request) -> Result<CardId, Error> {
    let card = card(CardType::request(), call.tool_call_id, request)?;
    let card_id = card.card_id();
    let cards = [card];
    let query = sqlx::query_scalar::<_, bool>(
        "select state.ask(p_project => $1, p_call => $2, p_token => $3, p_timeout => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(call.tool_call_id)
    .bind(call.claim_token)
    .bind(interval(Duration::from_secs(request.deadline_seconds)))
    .bind(&cards[..]);
    query.fetch_one(work.connection()).await?;
    Ok(card_id)
}

/// Whether a decision counts. `decided`: it does. `duplicate`: the same decision was recorded before. `gone`: it came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum DecisionOutcome {
    Decided,
    /// The same decision came before.
    Duplicate,
    /// No turn waits for it any more, or another decision came first.
    Gone,
}

/// What happened to a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = RequestDecided)]
pub struct Outcome {
    /// `decided`: the decision counts. Over HTTP, a decision that comes too late gets 404 `not_found` instead of `gone`.
    pub outcome: DecisionOutcome,
    pub decision_card_id: CardId,
    pub agent_turn_id: Option<TurnId>,
}

/// Decides a request, once: of two decisions the first counts.
pub async fn decide(work: &mut impl Work, tool_call_id: ToolCallId, decided: &Decided) -> Result<Outcome, Error> {
    let card = card(CardType::decision(), tool_call_id, decided)?;
    let decision_card_id = card.card_id();
    let cards = [card];
    let query = sqlx::query_as::<_, (DecisionOutcome, Option<TurnId>, Option<Target>)>(
        "select outcome, agent_turn_id, target
           from state.decide(p_project => $1, p_call => $2, p_status => $3, p_timeout => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(tool_call_id)
    .bind(decided.decision.as_str())
    .bind(interval(HANDLING))
    .bind(&cards[..]);
    let (outcome, agent_turn_id, target) = query.fetch_one(work.connection()).await?;
    target.into_iter().for_each(|target| work.ring(Door::of_calls(target)));
    Ok(Outcome { outcome, decision_card_id, agent_turn_id })
}

/// Decides a request for a person: looks up first what is to be decided, and puts the decision on record.
pub async fn decide_as(work: &mut UnitOfWork, tool_call_id: ToolCallId, decided: &Decided) -> Result<Outcome, Refused> {
    let request = find(work, tool_call_id).await?.ok_or(Refused::Gone(tool_call_id))?;
    if request.four_eyes && Guard::FourEyes.stands() && is_for(work, tool_call_id, &decided.by).await? {
        return Err(work.refuse(Refused::FourEyes));
    }
    if !decided.decision.fits(request.kind) {
        return Err(work.refuse(Refused::Unfit(request.kind)));
    }
    if decided.decision == Decision::Answered && decided.answer.is_null() {
        return Err(work.refuse(Refused::NoAnswer));
    }
    let outcome = decide(work, tool_call_id, decided).await?;
    if outcome.outcome == DecisionOutcome::Gone {
        return Err(work.refuse(Refused::Gone(tool_call_id)));
    }
    let detail = serde_json::json!({ "decision": decided.decision, "note": decided.note });
    let recorded = audit::record(work, &decided.by, "request.decide", &tool_call_id.to_string(), &detail).await;
    recorded.map_err(Error::from)?;
    Ok(outcome)
}

/// Why a person's decision is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("no turn waits for a decision about call {0}: it has already been decided, or the turn has ended")]
    Gone(ToolCallId),
    #[error("{}", match .0 { Kind::Approval => "this request is an approval: approve or reject it", Kind::Question => "this request is a question: answer it" })]
    Unfit(Kind),
    #[error(
        "the person who started this turn, or for whom it was started, may not decide this request: another person must decide it"
    )]
    FourEyes,
    #[error("the answer must not be empty")]
    NoAnswer,
    #[error(transparent)]
    Turn(#[from] Error),
}

fn card<T: Serialize>(card_type: CardType, tool_call_id: ToolCallId, says: &T) -> Result<NewCard, Error> {
    let content =
        serde_json::to_value(says).map_err(|_| Error::Invalid("the content of the card cannot be written as JSON"))?;
    let draft = Draft::new(card_type, Role::User, Content::Json(content));
    Ok(Draft { tool_call_id: Some(tool_call_id), ..draft }.seal()?)
}

/// A request that waits for a person's decision, and the turn that made it.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Open {
    pub tool_call_id: ToolCallId,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    /// Profile of the agent that asks.
    pub profile_name: Option<String>,
    pub request_card_id: CardId,
    #[sqlx(json)]
    pub request: Request,
    pub deadline_at: DateTime<Utc>,
}

/// Lists open requests, in the order of their calls.
pub async fn open(work: &mut UnitOfWork, most: i64) -> Result<Vec<Open>, Error> {
    let project_id = work.project_id();
    let open = sqlx::query_as(
        "select c.tool_call_id, c.agent_turn_id, c.agent_id, a.profile_name, c.request_card_id, r.content as request, c.deadline_at
           from (select * from state.waiting_calls c
                  where c.project_id = $1 and c.status = 'asking'
                  order by c.tool_call_id
                  limit $2) c
          cross join lateral cardbox.reading($1, c.request_card_id, statement_timestamp()) r
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = c.agent_id offset 0) a on true
          where r.content is not null
          order by c.tool_call_id",
    )
    .bind(project_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(open)
}

/// State of a request. `open`: it waits for a decision. `decided`: a person decided it, or its deadline passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RequestState)]
pub enum State {
    #[default]
    Open,
    Decided,
}

/// How a request was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RequestDecision)]
pub struct DecisionShown {
    pub decision: Decision,
    /// Caller that decided: `key:NAME`, `user:SUBJECT` or `cli:USER`. `deadline` if no person decided in time.
    pub by: String,
    pub at: DateTime<Utc>,
    /// Note of the person who decided. `null` if there is none, or if it can no longer be shown.
    pub note: Option<String>,
    /// Card with the whole decision. For a question it has the answer.
    pub card_id: CardId,
}

/// An approval or a question for a person: what is asked, about which tool call, and how it was decided.
#[derive(Clone, Debug, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = ShownRequest)]
pub struct Shown {
    pub tool_call_id: ToolCallId,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    /// Profile of the agent that asks.
    pub profile_name: Option<String>,
    /// Tool that the agent called. `null` if the call can no longer be shown.
    pub tool: Option<String>,
    /// What calling the tool twice does, as the project defines the tool now. `null` for Waybill's own tools, and for a tool that no longer exists.
    #[sqlx(json(nullable))]
    pub effect: Option<Effect>,
    /// SHA-256 of the arguments of the call, byte for byte as the model wrote them. `null` if the call can no longer be shown.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub arguments_hash: Option<String>,
    /// Whether the turn that asks has seen external content.
    pub saw_external: bool,
    /// First line of the question, up to 120 characters. `null` if the request can no longer be shown.
    pub title: Option<String>,
    pub request_card_id: CardId,
    /// The request. `null` if it can no longer be shown.
    #[sqlx(json(nullable))]
    pub request: Option<Request>,
    pub asked_at: Option<DateTime<Utc>>,
    pub deadline_at: DateTime<Utc>,
    /// How it was decided. `null` if it waits for a decision.
    #[sqlx(json(nullable))]
    pub decided: Option<DecisionShown>,
}

/// Lists requests in one state, the newest call first. A call that is asked about again is open. A request whose turn ended before a decision is in
/// neither state.
pub async fn list(
    work: &mut UnitOfWork,
    state: State,
    before: Option<ToolCallId>,
    most: i64,
) -> Result<Vec<Shown>, Error> {
    let project_id = work.project_id();
    let query = match state {
        State::Open => sqlx::query_as(
            "select s.*
               from state.show_requests($1, array(
                      select c.tool_call_id
                        from state.waiting_calls c
                       where c.project_id = $1 and c.status = 'asking' and c.tool_call_id < $2
                       order by c.tool_call_id desc
                       limit $3)) s",
        ),
        State::Decided => sqlx::query_as(
            "select s.*
               from state.show_requests($1, array(
                      select q.tool_call_id
                        from state.requests q
                       where q.project_id = $1 and q.tool_call_id < $2
                         and not exists (select from state.waiting_calls w
                                          where w.project_id = $1 and w.tool_call_id = q.tool_call_id and w.status = 'asking'
                                         offset 0)
                       order by q.tool_call_id desc
                       limit $3)) s",
        ),
    };
    let before = before.unwrap_or(ToolCallId::max());
    Ok(query.bind(project_id).bind(before).bind(most).fetch_all(&mut **work).await?)
}

/// Returns the requests about these calls. Calls about which no person was asked are left out.
pub async fn about(work: &mut UnitOfWork, tool_call_ids: &[ToolCallId]) -> Result<Vec<Shown>, Error> {
    let project_id = work.project_id();
    let shown = sqlx::query_as("select s.* from state.show_requests($1, $2) s");
    Ok(shown.bind(project_id).bind(tool_call_ids).fetch_all(&mut **work).await?)
}

/// Returns the request about a call. `None` means that no person was asked about it, or that its turn ended before a decision.
pub async fn show(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<Option<Shown>, Error> {
    let project_id = work.project_id();
    let shown = sqlx::query_as("select s.* from state.show_requests($1, array[$2::uuid]) s");
    Ok(shown.bind(project_id).bind(tool_call_id).fetch_optional(&mut **work).await?)
}

/// Returns what is asked about a call. `None` means that nothing is asked any more.
pub async fn find(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<Option<Request>, Error> {
    let project_id = work.project_id();
    let request: Option<Json<Request>> = sqlx::query_scalar(
        "select r.content
           from (select c.* from state.waiting_calls c where c.project_id = $1 and c.tool_call_id = $2 offset 0) c
          cross join lateral cardbox.reading($1, c.request_card_id, statement_timestamp()) r
          where c.status = 'asking' and r.content is not null",
    )
    .bind(project_id)
    .bind(tool_call_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(request.map(|Json(request)| request))
}

/// Checks whether the turn of a call was started by this actor, or for the user who logs in as it.
async fn is_for(work: &mut UnitOfWork, tool_call_id: ToolCallId, actor: &str) -> Result<bool, Error> {
    let project_id = work.project_id();
    let is_for: Option<Option<bool>> = sqlx::query_scalar(
        "select t.started_by = $3 or 'user:' || t.on_behalf_of = $3
           from (select c.agent_turn_id from state.waiting_calls c where c.project_id = $1 and c.tool_call_id = $2 offset 0) c
          cross join lateral (
                select t.started_by, t.on_behalf_of
                  from state.turns t
                 where t.project_id = $1 and t.agent_turn_id = c.agent_turn_id
                offset 0) t",
    )
    .bind(project_id)
    .bind(tool_call_id)
    .bind(actor)
    .fetch_optional(&mut **work)
    .await?;
    Ok(is_for.flatten().unwrap_or_default())
}

/// Expires a request that was not decided in time: its default holds. Returns false if nothing was asked, or it was decided already.
pub(crate) async fn expire(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<bool, Error> {
    let Some(request) = find(work, tool_call_id).await? else { return Ok(false) };
    let decided = Decided { answer: request.default, ..Decided::new(Decision::Expired, "deadline") };
    Ok(decide(work, tool_call_id, &decided).await?.outcome == DecisionOutcome::Decided)
}
