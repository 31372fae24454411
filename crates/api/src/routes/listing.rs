//! Lists of turns, by what people look for.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use waybill_core::{
    id::{AgentId, Channel, Name, SessionId, TurnId},
    label::Label,
    turn::TurnStatus,
};
use waybill_kernel::turn::{self, Filter, Listing, Summary};

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Page, Query, most},
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<TurnId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
    /// Only turns in this state. If omitted, turns in any state.
    status: Option<TurnStatus>,
    /// Only turns of agents with this profile. If omitted, turns of all profiles.
    profile: Option<Name>,
    /// Only turns of this agent. If omitted, turns of all agents.
    agent: Option<AgentId>,
    /// Only turns of this session. If omitted, turns of any session or none.
    session: Option<SessionId>,
    /// Only turns with this label: `name=value`. If omitted, turns with any labels.
    #[param(pattern = r"^[a-z0-9_.-]{1,64}=[^\x00-\x1f\x7f-\x9f]{1,200}$")]
    label: Option<String>,
    /// Only turns whose events are published to this channel. If omitted, turns of all channels.
    channel: Option<Channel>,
    /// Only turns that were started at this time or later. If omitted, from the first turn on.
    since: Option<DateTime<Utc>>,
    /// Only turns that were started before this time. If omitted, until now.
    until: Option<DateTime<Utc>>,
    /// Only forks of this turn. If omitted, all turns.
    forked_from: Option<TurnId>,
    /// Only turns that have external content in their context or output; with `false`, only those that have not. If omitted, both.
    external: Option<bool>,
    /// Only turns that cost at least this much, in millionths of a dollar. If omitted, turns of any cost.
    #[param(minimum = 0)]
    min_microdollars: Option<i64>,
    /// Whether to list only root turns: those that a caller started, not another turn. If omitted, false.
    #[serde(default)]
    roots: bool,
    /// Whether to list only turns that have not ended. If omitted, false.
    #[serde(default)]
    open: bool,
}

impl ListParams {
    fn listing(self, n: usize) -> Result<Listing, Problem> {
        if self.min_microdollars.is_some_and(|least| least < 0) {
            return Err(Problem::invalid("`min_microdollars` must be 0 or more"));
        }
        let label = self.label.map(|label| label.parse::<Label>()).transpose();
        let label = label.map_err(|error| Problem::invalid(format!("`label`: {error}")))?;
        let (label_name, label_value) = label.map(|Label { name, value }| (name, value)).unzip();
        let until = self.until.map(TurnId::at);
        Ok(Listing {
            filter: Filter {
                status: self.status,
                profile_name: self.profile,
                agent_id: self.agent,
                session_id: self.session,
                label_name,
                label_value,
                channel: self.channel,
                forked_from: self.forked_from,
                external: self.external,
                min_microdollars: self.min_microdollars,
                roots: self.roots,
                open: self.open,
            },
            before: self.after.into_iter().chain(until).min(),
            since: self.since.map(TurnId::at),
            most: i32::try_from(n).unwrap_or(i32::MAX),
        })
    }
}

/// List turns, newest first.
///
/// All filters must hold. A page looks at up to 2,000 turns, so with a filter that few turns pass it may have fewer entries than asked for, or none:
/// continue with `next`.
#[utoipa::path(
    get, path = "/turns", tag = "turns", params(ListParams),
    responses((status = 200, body = Page<Summary>)),
)]
pub(crate) async fn list_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<Summary>>, Problem> {
    caller.may_audit()?;
    let n = most(params.most)?;
    let listing = params.listing(n)?;
    let mut listed = turn::list(&mut caller.begin(&api).await?, &listing).await?;
    without_content(&caller, &mut listed.turns);
    Ok(Json(Page::upto(listed.turns, listed.next)))
}

/// Leaves out what turns say, if the caller may read only the record.
pub(super) fn without_content(caller: &Caller, turns: &mut [Summary]) {
    if caller.may_read().is_err() {
        for turn in turns {
            (turn.title, turn.reason) = (None, None);
        }
    }
}
