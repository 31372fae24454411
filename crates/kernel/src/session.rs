//! Sessions: conversations of several turns, of one agent or of many. What a session remembers is its blackboard ([`crate::blackboard`]).
//!
//! A session belongs to the key or user that opened it. Other keys and users of the project do not see it; a person with access to the database
//! sees all sessions.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use waybill_core::id::{AgentId, BoxId, CardId, SessionId, StepId, TurnId};

use crate::{
    blackboard,
    work::{DbError, UnitOfWork, from_driver},
};

const MOST_LABELS: usize = 32;
const MOST_TEXT: usize = 300;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no session {0} in this project")]
    NotFound(SessionId),
    #[error("session {0} has ended: open a new one")]
    Ended(SessionId),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Blackboard(#[from] blackboard::Error),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// A session (conversation), without its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Session {
    pub session_id: SessionId,
    /// Caller that opened the session: `key:NAME` (API key) or `user:SUBJECT` (token of the identity provider). `null` if a caller of scope `admin`
    /// or a command of `waybill` opened it.
    pub owner: Option<String>,
    pub title: Option<String>,
    pub labels: Vec<String>,
    pub messages_box_id: BoxId,
    pub n_messages: i64,
    /// Whether the session contains external content. All its later turns then count as having seen external content.
    pub has_external: bool,
    pub todo_card_id: Option<CardId>,
    /// Card with the summary that replaces the older messages, if there is one.
    pub compression_card_id: Option<CardId>,
    pub mapreduce_results_box_id: BoxId,
    pub created_at: DateTime<Utc>,
    /// When the session was ended. Since then, no turn can start in it.
    pub ended_at: Option<DateTime<Utc>>,
}

/// What people call a session, and sort it by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub title: Option<String>,
    pub labels: Option<Vec<String>>,
}

impl About {
    fn check(&self) -> Result<(), Error> {
        let labels = self.labels.iter().flatten();
        let too_long = |text: &String| text.chars().count() > MOST_TEXT || text.contains(char::is_control);
        if self.title.iter().chain(labels).any(too_long) {
            return Err(Error::Invalid(format!("a title or label must be one line of at most {MOST_TEXT} characters")));
        }
        if self.labels.as_ref().is_some_and(|labels| labels.len() > MOST_LABELS) {
            return Err(Error::Invalid(format!("a session can have at most {MOST_LABELS} labels")));
        }
        Ok(())
    }
}

/// Opens a session with its first use, for `owner`. A session that exists is left as it is: it must be the owner's, and not have ended.
/// If `owner` is `None`, all sessions are visible.
pub async fn enter(work: &mut UnitOfWork, session_id: SessionId, owner: Option<&str>) -> Result<Session, Error> {
    let minted = session_id.minted_at().is_some_and(|at| at <= Utc::now() + chrono::TimeDelta::days(1));
    if !minted {
        return Err(Error::Invalid(
            "the id of a session must be a UUIDv7 whose time is not in the future: check this machine's clock"
                .to_owned(),
        ));
    }
    let session = match find(work, session_id, owner).await {
        Err(Error::NotFound(_)) => {
            blackboard::open(work, owner, &[session_id]).await?;
            find(work, session_id, owner).await?
        }
        found => found?,
    };
    match session.ended_at {
        Some(_) => Err(Error::Ended(session_id)),
        None => Ok(session),
    }
}

/// Looks up one session. A session of another owner is not found.
pub async fn find(work: &mut UnitOfWork, session_id: SessionId, owner: Option<&str>) -> Result<Session, Error> {
    let project_id = work.project_id();
    let found: Option<Session> = sqlx::query_as("select s.* from state.sessions($1, array[$2::uuid]) s")
        .bind(project_id)
        .bind(session_id)
        .fetch_optional(&mut **work)
        .await?;
    let theirs = |session: &Session| owner.is_none_or(|owner| session.owner.as_deref() == Some(owner));
    found.filter(theirs).ok_or(Error::NotFound(session_id))
}

/// Lists sessions, the newest first. If `owner` is `None`, lists all.
pub async fn list(
    work: &mut UnitOfWork,
    owner: Option<&str>,
    before: Option<SessionId>,
    most: i64,
) -> Result<Vec<Session>, Error> {
    let project_id = work.project_id();
    let query = match owner {
        None => sqlx::query_as(
            "select s.*
               from state.sessions($1, array(
                      select b.session_id
                        from state.blackboards b
                       where b.project_id = $1 and b.session_id < $2
                       order by b.session_id desc
                       limit $3)) s",
        ),
        Some(_) => sqlx::query_as(
            "select s.*
               from state.sessions($1, array(
                      select b.session_id
                        from state.blackboards b
                       where b.project_id = $1 and b.owner = $4 and b.session_id < $2
                       order by b.session_id desc
                       limit $3)) s",
        ),
    };
    let query = query.bind(project_id).bind(before.unwrap_or(SessionId::max())).bind(most);
    let query = match owner {
        Some(owner) => query.bind(owner),
        None => query,
    };
    Ok(query.fetch_all(&mut **work).await?)
}

/// Sets the title and labels of a session. What is not given stays.
pub async fn describe(work: &mut UnitOfWork, session_id: SessionId, about: &About) -> Result<(), Error> {
    about.check()?;
    let project_id = work.project_id();
    sqlx::query(
        "update state.blackboards
            set title = coalesce($3, title), labels = coalesce($4, labels)
          where project_id = $1 and session_id = $2",
    )
    .bind(project_id)
    .bind(session_id)
    .bind(&about.title)
    .bind(&about.labels)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Ends a session: no turn begins in it any more. Open turns go on, and are remembered.
pub async fn end(work: &mut UnitOfWork, session_id: SessionId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "update state.blackboards set ended_at = coalesce(ended_at, now()) where project_id = $1 and session_id = $2",
    )
    .bind(project_id)
    .bind(session_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Forgets a session: its list of messages, todo list and summary. The cards stay with the turns that wrote them; what an open turn still says is
/// not remembered.
pub async fn forget(work: &mut UnitOfWork, session_id: SessionId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "with gone as (
           delete from state.blackboards where project_id = $1 and session_id = $2 returning session_id
         )
         insert into state.forgotten_sessions (project_id, session_id) select $1, g.session_id from gone g on conflict do nothing",
    )
    .bind(project_id)
    .bind(session_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Lets no other unit of work queue or steer in a session until this one ends.
pub async fn alone(work: &mut UnitOfWork, session_id: SessionId) -> Result<(), Error> {
    sqlx::query("select pg_advisory_xact_lock(uuid_hash_extended($1, 7))")
        .bind(session_id)
        .execute(&mut **work)
        .await?;
    Ok(())
}

/// Holds the agent's head until this unit of work ends: its turn does not end meanwhile.
pub async fn hold(work: &mut UnitOfWork, agent_id: AgentId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("select from state.agent_state_head h where h.project_id = $1 and h.agent_id = $2 for no key update")
        .bind(project_id)
        .bind(agent_id)
        .execute(&mut **work)
        .await?;
    Ok(())
}

/// Lists the turns of a session, the newest first.
pub async fn turns(
    work: &mut UnitOfWork,
    session_id: SessionId,
    before: Option<TurnId>,
    most: i64,
) -> Result<Vec<crate::turn::Summary>, Error> {
    let project_id = work.project_id();
    let turns = sqlx::query_as(
        "select s.*
           from state.summaries($1, array(
                  select t.agent_turn_id
                    from state.turns t
                   where t.session_id = $2 and t.project_id = $1 and t.agent_turn_id < $3
                   order by t.agent_turn_id desc
                   limit $4)) s",
    )
    .bind(project_id)
    .bind(session_id)
    .bind(before.unwrap_or(TurnId::max()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(turns)
}

/// Lists the cards with content that were written for a session: by all turns that were begun for it, in its messages, as its todo lists and
/// summaries, what people were asked and decided, and the blocks that were made of these for its model calls.
pub async fn written(work: &mut UnitOfWork, session_id: SessionId) -> Result<Vec<CardId>, Error> {
    let project_id = work.project_id();
    let cards = sqlx::query_scalar(
        "with turns as materialized (
           select t.agent_turn_id, t.context_box_id, t.output_box_id from state.turns_of_session($1, $2) t
         ), boxes as (
           select t.context_box_id as box_id from turns t
            union
           select t.output_box_id from turns t
            union
           select unnest(array[b.messages_box_id, b.mapreduce_results_box_id])
             from state.blackboards b
            where b.project_id = $1 and b.session_id = $2
         ), named as (
           select e.card_id
             from boxes b
            cross join lateral (
                  select e.card_id from cardbox.box_entries e where e.project_id = $1 and e.box_id = b.box_id offset 0) e
            where e.card_id is not null
            union
           select (p.patch #>> array[part, 'card_id'])::uuid
             from state.patches p
            cross join unnest(array['todo', 'compression']) as part
            where p.project_id = $1 and p.session_id = $2
            union
           select unnest(array[b.todo_card_id, b.compression_card_id])
             from state.blackboards b
            where b.project_id = $1 and b.session_id = $2
            union
           select o.card_id
             from turns t
            cross join lateral (
                  select o.card_id
                    from state.outbox o
                   where o.project_id = $1 and o.agent_turn_id = t.agent_turn_id and o.event = 'request'
                  offset 0) o
            where o.card_id is not null
            union
           select unnest(state.asked_of($1, t.agent_turn_id, state.calls_of($1, t.output_box_id))) from turns t
         ), blocks as (
           select (b ->> 'card_id')::uuid as card_id
             from turns t
            cross join lateral (
                  select r.receipt from state.receipts r where r.project_id = $1 and r.agent_turn_id = t.agent_turn_id offset 0) r
            cross join lateral json_array_elements(r.receipt -> 'blocks') as b
            where b ->> 'key' in ('todo__context', 'turn__context', 'knowledge__context', 'experience__context', 'compression__context')
         )
         select distinct c.card_id
           from (select n.card_id, false as is_block from named n union all select b.card_id, true from blocks b) n
          cross join lateral (
                select c.card_id
                  from cardbox.cards c
                 where c.project_id = $1 and c.card_id = n.card_id and c.erased_at is null and (n.is_block or not c.content_addressed)
                offset 0) c",
    )
    .bind(project_id)
    .bind(session_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(cards)
}

/// Lists the turns of a session that a caller asked for, not another turn, and that have not ended: the newest first.
pub async fn open_turns(work: &mut UnitOfWork, session_id: SessionId) -> Result<Vec<crate::turn::Summary>, Error> {
    let project_id = work.project_id();
    // Among the last few: a conversation has one or two open turns, and each may have brought in others.
    let turns = sqlx::query_as(
        "select s.*
           from state.summaries($1, array(
                  select t.agent_turn_id
                    from (select t.agent_turn_id, t.status, t.parent_agent_turn_id
                            from state.turns t
                           where t.session_id = $2 and t.project_id = $1
                           order by t.agent_turn_id desc
                           limit 1000) t
                   where t.status = 'open' and t.parent_agent_turn_id is null
                   order by t.agent_turn_id desc
                   limit 16)) s",
    )
    .bind(project_id)
    .bind(session_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(turns)
}

/// Checks whether any turn that was begun for a session has not ended.
pub async fn is_at_work(work: &mut UnitOfWork, session_id: SessionId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let is_open =
        sqlx::query_scalar("select exists (select from state.turns_of_session($1, $2) t where t.status = 'open')")
            .bind(project_id)
            .bind(session_id)
            .fetch_one(&mut **work)
            .await?;
    Ok(is_open)
}

/// A change of what a session remembers, and the step that made it.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = SessionChange)]
pub struct Change {
    pub step_id: StepId,
    pub patch: Value,
    pub created_at: DateTime<Utc>,
}

/// Lists changes of a session's todo list, summary and results, the newest first: those before one, if its step is given. They are kept as long
/// as history is.
pub async fn changes(
    work: &mut UnitOfWork,
    session_id: SessionId,
    before: Option<StepId>,
    most: i64,
) -> Result<Vec<Change>, Error> {
    let project_id = work.project_id();
    let changes = sqlx::query_as(
        "select p.step_id, p.patch, p.created_at
           from state.patches p
          where p.project_id = $1 and p.session_id = $2 and p.step_id < $3
          order by p.step_id desc
          limit $4",
    )
    .bind(project_id)
    .bind(session_id)
    .bind(before.unwrap_or(StepId::max()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(changes)
}
