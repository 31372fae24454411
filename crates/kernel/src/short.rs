//! Short ids: the last digits of an id, as people type them (UI-14).
//!
//! Ids of one time begin alike, so their ends tell them apart. No index exists for this: the newest hundred thousand ids of a project are looked
//! through, however many it has.

use crate::work::{DbError, UnitOfWork};

/// What an id is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Turn,
    Card,
    Box,
    Session,
    Batch,
    Agent,
    /// A call that a turn waits for.
    Call,
    Grant,
}

/// The most ids that are returned.
pub const MOST: usize = 10;

/// Returns the ids that end with these digits, the newest first; up to one more than [`MOST`].
pub async fn find(work: &mut UnitOfWork, kind: Kind, digits: &str) -> Result<Vec<String>, DbError> {
    let project_id = work.project_id();
    let query = match kind {
        Kind::Turn => sqlx::query_scalar(
            "select n.id::text
               from (select t.agent_turn_id as id from state.turns t where t.project_id = $1 order by t.project_id desc, t.agent_turn_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Card => sqlx::query_scalar(
            "select n.id::text
               from (select c.card_id as id from cardbox.cards c where c.project_id = $1 order by c.project_id desc, c.card_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Box => sqlx::query_scalar(
            "select n.id::text
               from (select b.box_id as id from cardbox.boxes b where b.project_id = $1 order by b.project_id desc, b.box_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Session => sqlx::query_scalar(
            "select n.id::text
               from (select s.session_id as id from state.blackboards s where s.project_id = $1 order by s.project_id desc, s.session_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Batch => sqlx::query_scalar(
            "select n.id::text
               from (select b.batch_id as id from state.pmo_batches b where b.project_id = $1 order by b.project_id desc, b.batch_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Agent => sqlx::query_scalar(
            "select n.id::text
               from (select a.agent_id as id from resource.project_agents a where a.project_id = $1 order by a.project_id desc, a.agent_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Call => sqlx::query_scalar(
            "select n.id::text
               from (select c.tool_call_id as id from state.waiting_calls c where c.project_id = $1 order by c.project_id desc, c.tool_call_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
        Kind::Grant => sqlx::query_scalar(
            "select n.id::text
               from (select g.grant_id as id from state.grants g where g.project_id = $1 order by g.project_id desc, g.grant_id desc limit 100000) n
              where right(n.id::text, length($2::text)) = $2
              order by n.id desc
              limit 11",
        ),
    };
    Ok(query.bind(project_id).bind(digits).fetch_all(&mut **work).await?)
}
