//! Finding a thing by what a person has of it: an id, the beginning of an id, or a hash. Only where an index leads there: a step is found with its
//! turn, and a card that is not shared by content has no index by its hash.

use serde::Serialize;
use sqlx::FromRow;
use uuid::Uuid;
use waybill_core::id::TurnId;

use crate::work::{DbError, UnitOfWork};

/// The least digits of an id that are looked for.
const LEAST: usize = 8;

/// What was found. `call` is a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
#[schema(as = FoundKind)]
pub enum Kind {
    Turn,
    Card,
    Box,
    Session,
    Agent,
    Batch,
    Call,
    Artifact,
}

/// A thing with an id that was found.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Found {
    pub kind: Kind,
    pub id: Uuid,
    /// What people know it by: the beginning of an instruction, a title, a type, a name.
    pub title: Option<String>,
    /// The turn of a call.
    pub agent_turn_id: Option<TurnId>,
}

/// Returns the first and the last id that begin with this text. `None` means that it is not the beginning of an id, or too short.
pub fn ids_from(text: &str) -> Option<(Uuid, Uuid)> {
    let digits: String = text.chars().filter(|sign| *sign != '-').collect();
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !are_digits || !(LEAST..=32).contains(&digits.len()) {
        return None;
    }
    let id = |fill: &str| {
        let padded = format!("{digits}{}", fill.repeat(32 - digits.len()));
        u128::from_str_radix(&padded, 16).ok().map(Uuid::from_u128)
    };
    Some((id("0")?, id("f")?))
}

/// Finds what has an id between two, up to `most` of each kind. Sessions are found only if they are the owner's; `None` means those of all owners.
pub async fn by_id(
    work: &mut UnitOfWork,
    (first, last): (Uuid, Uuid),
    owner: Option<&str>,
    most: i64,
) -> Result<Vec<Found>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select 'turn' as kind, t.agent_turn_id as id, q.title, null::uuid as agent_turn_id
           from (select t.agent_turn_id, t.query_card_ids[1] as card_id
                   from state.turns t
                  where t.project_id = $1 and t.agent_turn_id >= $2 and t.agent_turn_id <= $3
                  order by t.agent_turn_id
                  limit $5) t
           left join lateral (select state.title(c.content, c.type) as title from cardbox.reading($1, t.card_id, statement_timestamp()) c) q on true
          union all
         select 'session', s.session_id, s.title, null
           from (select s.session_id, s.title
                   from state.blackboards s
                  where $4::text is null and s.project_id = $1 and s.session_id >= $2 and s.session_id <= $3
                  order by s.session_id
                  limit $5) s
          union all
         select 'session', s.session_id, s.title, null
           from (select s.session_id, s.title
                   from state.blackboards s
                  where s.owner = $4 and s.project_id = $1 and s.session_id >= $2 and s.session_id <= $3
                  order by s.session_id
                  limit $5) s
          union all
         select 'agent', a.agent_id, a.profile_name, null
           from (select a.agent_id, a.profile_name
                   from resource.project_agents a
                  where a.project_id = $1 and a.agent_id >= $2 and a.agent_id <= $3
                  order by a.agent_id
                  limit $5) a
          union all
         select 'batch', b.batch_id, null, null
           from (select b.batch_id
                   from state.pmo_batches b
                  where b.project_id = $1 and b.batch_id >= $2 and b.batch_id <= $3
                  order by b.batch_id
                  limit $5) b
          union all
         select 'card', c.card_id, c.type, null
           from (select c.card_id, c.type
                   from cardbox.cards c
                  where c.project_id = $1 and c.card_id >= $2 and c.card_id <= $3
                  order by c.card_id
                  limit $5) c
          union all
         select 'box', b.box_id, null, null
           from (select b.box_id
                   from cardbox.boxes b
                  where b.project_id = $1 and b.box_id >= $2 and b.box_id <= $3
                  order by b.box_id
                  limit $5) b
          union all
         select 'call', e.correlation_id, k.title, e.agent_turn_id
           from (select e.correlation_id, e.card_id, e.agent_turn_id
                   from (select e.correlation_id, e.primitive, e.edge_phase, e.card_id, e.agent_turn_id
                           from state.execution_edges e
                          where e.project_id = $1 and e.correlation_id >= $2 and e.correlation_id <= $3
                          order by e.correlation_id
                          limit $5 * 4) e
                  where e.primitive = 'command' and e.edge_phase = 'request'
                  order by e.correlation_id
                  limit $5) e
           left join lateral (
                select k.content ->> 'tool_name' as title from cardbox.cards k where k.project_id = $1 and k.card_id = e.card_id offset 0) k on true",
    )
    .bind(project_id)
    .bind(first)
    .bind(last)
    .bind(owner)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Finds the card that is shared by content under this hash, if there is one.
pub async fn card_by_hash(work: &mut UnitOfWork, hash: &[u8]) -> Result<Option<Found>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select 'card' as kind, c.card_id as id, c.type as title, null::uuid as agent_turn_id
           from cardbox.cards c
          where c.project_id = $1 and c.hash = $2 and c.content_addressed and c.deleted_at is null and c.erased_at is null",
    )
    .bind(project_id)
    .bind(hash);
    Ok(found.fetch_optional(&mut **work).await?)
}

/// Returns the paths of artifacts that have, or had, this hash.
pub async fn paths_by_hash(work: &mut UnitOfWork, hash: &[u8], most: i64) -> Result<Vec<String>, DbError> {
    let project_id = work.project_id();
    let paths = sqlx::query_scalar(
        "select distinct a.path
           from (select a.path from cardbox.artifacts a where a.hash = $2 and a.project_id = $1 and a.removed_at is null limit $3) a
          order by a.path",
    )
    .bind(project_id)
    .bind(hash)
    .bind(most);
    Ok(paths.fetch_all(&mut **work).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, first: &str, last: &str) {
        let found = ids_from(text).map(|(first, last)| (first.to_string(), last.to_string()));
        assert_eq!(found, Some((first.to_owned(), last.to_owned())));
    }

    /// UI-9
    #[test]
    fn the_beginning_of_an_id_is_a_range() {
        let (first, last) = ("019a84f2-6000-0000-0000-000000000000", "019a84f2-6fff-ffff-ffff-ffffffffffff");
        check("019a84f2-6", first, last);
        check("019A84F26", first, last);
        check(first, first, first);
        assert_eq!(ids_from("019a84f"), None, "too short");
        assert_eq!(ids_from("reports/a"), None);
        assert_eq!(ids_from(&"0".repeat(33)), None);
    }
}
