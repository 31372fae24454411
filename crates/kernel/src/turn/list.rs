//! Lists of turns, by what people look for. A page looks at a bounded number of turns, whatever the filter: it may be short, and says where the next
//! one begins.

use serde::Serialize;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    id::{AgentId, Channel, Name, SessionId, TurnId},
    turn::TurnStatus,
};

use super::{Error, Summary, show};
use crate::work::UnitOfWork;

/// The most turns that one page looks at.
const MOST_LOOKED_AT: i32 = 2_000;

/// Which turns are listed. A field that is not set asks for nothing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Filter {
    pub status: Option<TurnStatus>,
    pub profile_name: Option<Name>,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<SessionId>,
    /// Only those with this label: its name, and its value.
    pub label_name: Option<String>,
    pub label_value: Option<String>,
    pub channel: Option<Channel>,
    /// Only forks of this turn.
    pub forked_from: Option<TurnId>,
    /// Only those that have seen external content, or only those that have not.
    pub external: Option<bool>,
    /// Only those that cost at least this much.
    pub min_microdollars: Option<i64>,
    /// Only those that no other turn asked for.
    pub roots: bool,
    /// Only those that have not ended.
    pub open: bool,
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub filter: Filter,
    /// Only turns before this one: for the next page, and those that were started before a time.
    pub before: Option<TurnId>,
    /// Only turns from this one on: those that were started since a time.
    pub since: Option<TurnId>,
    pub most: i32,
}

/// Turns of the project, the newest first.
#[derive(Clone, Debug)]
pub struct Listed {
    pub turns: Vec<Summary>,
    /// Where the next page begins. `None` means that there is none.
    pub next: Option<TurnId>,
}

#[derive(FromRow)]
struct Found {
    turn_ids: Vec<TurnId>,
    looked_to: Option<TurnId>,
}

/// Lists turns of the project, the newest first.
pub async fn list(work: &mut UnitOfWork, listing: &Listing) -> Result<Listed, Error> {
    let project_id = work.project_id();
    let mut found: Found =
        sqlx::query_as(
            "select l.turn_ids, l.looked_to
               from state.list_turns(p_project => $1, p_filter => $2, p_since => $3, p_before => $4, p_most => $5, p_look => $6) l",
        )
            .bind(project_id)
            .bind(Json(&listing.filter))
            .bind(listing.since.unwrap_or(TurnId::nil()))
            .bind(listing.before.unwrap_or(TurnId::max()))
            // One more, to learn whether there are more.
            .bind(listing.most + 1)
            .bind(MOST_LOOKED_AT.max(listing.most + 1))
            .fetch_one(&mut **work)
            .await?;
    let most = usize::try_from(listing.most).unwrap_or_default();
    let is_full = found.turn_ids.len() > most;
    found.turn_ids.truncate(most);
    let next = if is_full { found.turn_ids.last().copied() } else { found.looked_to };
    Ok(Listed { turns: show(work, &found.turn_ids).await?, next })
}
