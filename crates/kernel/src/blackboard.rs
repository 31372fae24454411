//! What a session remembers: one row of pointers to cards and boxes, changed by one patch at a time (CX-9, CX-10).
//!
//! ```text
//!   memory       append      never conflicts; a card is there once
//!                replace     only instead of what was read, to its last message; the summary of it goes too
//!   todo         put         only instead of the card that it was made from
//!   compression  put         only instead of the summary that it goes on from, and of the messages that it stands for
//!   mapreduce    append, reset
//! ```
//! A patch is kept under the step that made it: writing it twice changes nothing, and it can be read who changed a memory.
//! What a turn did belongs to its steps, edges and output box and is not repeated here: routing, timeline and deliverables are read from
//! there. A patch is written in one unit of work with the step that made it, after it: the fence of the step guards the patch too.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, postgres::PgDatabaseError, types::Json};
use waybill_core::{
    card::{CardType, NewCard},
    card_box::Span,
    id::{BoxId, CardId, SessionId, StepId},
};

use crate::work::{DbError, UnitOfWork, Work, from_driver};

/// What the blackboard of a session points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, FromRow)]
pub struct Blackboard {
    pub session_id: SessionId,
    pub messages_box_id: BoxId,
    pub todo_card_id: Option<CardId>,
    pub compression_card_id: Option<CardId>,
    pub mapreduce_results_box_id: BoxId,
    pub created_at: DateTime<Utc>,
}

/// The parts of a blackboard that each have their own writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    Messages,
    Todo,
    Compression,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another writer was faster. Read again, and redo the change.
    #[error("another writer has changed session {session_id} (its {module:?} is now {now}): read it again, then retry", now = .found.as_deref().unwrap_or("empty"))]
    Conflict { session_id: SessionId, module: Module, found: Option<String> },
    #[error("session or card not found: {0}")]
    NotFound(String),
    #[error("the card has type `{found}`, but must have type `{wanted}`")]
    WrongType { wanted: CardType, found: CardType },
    #[error("card {0} already exists with different content: a card cannot be changed, so use a new id")]
    CardConflict(String),
    #[error("the summary is not valid, or it covers more than the messages of its session")]
    NoSummary,
    /// Another transaction held a lock for too long, or two waited for each other. Nothing was written; retry.
    #[error("the database was busy and nothing was written: try again")]
    TryAgain(#[source] DbError),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// One change of a blackboard.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    wire: Wire,
    cards: Vec<NewCard>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Wire {
    append: Vec<CardId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replace: Option<Replace>,
    results: Vec<CardId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<BoxId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<Put>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<Summary>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    put: Put,
    messages_box_id: BoxId,
}

#[derive(Clone, Debug, Serialize)]
struct Replace {
    messages_box_id: BoxId,
    card_ids: Vec<CardId>,
    instead_of: BoxId,
    upto: i64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Put {
    card_id: CardId,
    instead_of: Option<CardId>,
}

impl Patch {
    /// Appends messages to the memory.
    pub fn append(mut self, card_ids: &[CardId]) -> Patch {
        self.wire.append.extend(card_ids);
        self
    }

    /// Replaces the memory by another, in a new box. `read` is what was read of the old one; messages that were appended since are a conflict.
    pub fn replace(mut self, messages_box_id: BoxId, card_ids: &[CardId], read: Span) -> Patch {
        let (instead_of, upto) = (read.box_id, read.upto);
        self.wire.replace = Some(Replace { messages_box_id, card_ids: card_ids.to_vec(), instead_of, upto });
        self
    }

    /// Puts another todo list.
    pub fn todo(mut self, card: NewCard, instead_of: Option<CardId>) -> Patch {
        self.wire.todo = Some(Put { card_id: card.card_id(), instead_of });
        self.cards.push(card);
        self
    }

    /// Puts another summary of the messages of this box.
    pub fn compression(mut self, card: NewCard, instead_of: Option<CardId>, messages_box_id: BoxId) -> Patch {
        self.wire.compression = Some(Summary { put: Put { card_id: card.card_id(), instead_of }, messages_box_id });
        self.cards.push(card);
        self
    }

    /// Appends results.
    pub fn results(mut self, card_ids: &[CardId]) -> Patch {
        self.wire.results.extend(card_ids);
        self
    }

    /// Drops all results by beginning a new box; results of the same patch come after.
    pub fn reset(mut self, mapreduce_results_box_id: BoxId) -> Patch {
        self.wire.reset = Some(mapreduce_results_box_id);
        self
    }

    fn check(&self) -> Result<(), Error> {
        let typed = |put: Put, wanted: CardType| -> Result<&NewCard, Error> {
            let card = self.cards.iter().find(|card| card.card_id() == put.card_id).expect("it was pushed with its id");
            let found = &card.metadata().card_type;
            if *found == wanted { Ok(card) } else { Err(Error::WrongType { wanted, found: found.clone() }) }
        };
        if let Some(put) = self.wire.todo {
            typed(put, CardType::todo())?;
        }
        if let Some(Summary { put, messages_box_id }) = self.wire.compression {
            #[derive(Deserialize)]
            struct Covering {
                covers: Vec<Span>,
            }
            let card = typed(put, CardType::compression())?;
            // Every turn in the session sees it: it may stand for what all of them see, and for nothing else.
            let read: Result<Covering, _> = serde_json::from_str(card.content_json());
            if !read.is_ok_and(|read| read.covers.iter().all(|span| span.box_id == messages_box_id)) {
                return Err(Error::NoSummary);
            }
        }
        Ok(())
    }
}

/// Creates the blackboards of sessions that have none, for their owner.
pub async fn open(work: &mut UnitOfWork, owner: Option<&str>, session_ids: &[SessionId]) -> Result<(), Error> {
    let project_id = work.project_id();
    let boxes = || -> Vec<BoxId> { session_ids.iter().map(|_| BoxId::new()).collect() };
    sqlx::query(
        "with made as (
           insert into state.blackboards (project_id, session_id, owner, messages_box_id, mapreduce_results_box_id)
           select $1, asked.session_id, $5, asked.messages_box_id, asked.results_box_id
             from unnest($2::uuid[], $3::uuid[], $4::uuid[]) as asked (session_id, messages_box_id, results_box_id)
            where not exists (select from state.forgotten_sessions f where f.project_id = $1 and f.session_id = asked.session_id offset 0)
            order by asked.session_id
               on conflict do nothing
        returning messages_box_id, mapreduce_results_box_id
         )
         insert into cardbox.boxes (project_id, box_id, length)
         select $1, box.box_id, 0
           from made
          cross join lateral unnest(array[made.messages_box_id, made.mapreduce_results_box_id]) as box (box_id)",
    )
    .bind(project_id)
    .bind(session_ids)
    .bind(boxes())
    .bind(boxes())
    .bind(owner)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Looks up a blackboard.
pub async fn find(work: &mut UnitOfWork, session_id: SessionId) -> Result<Option<Blackboard>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select session_id, messages_box_id, todo_card_id, compression_card_id, mapreduce_results_box_id, created_at
           from state.blackboards
          where project_id = $1 and session_id = $2",
    )
    .bind(project_id)
    .bind(session_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// A patch that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Patched {
    /// It was written before.
    pub duplicate: bool,
}

/// Writes the patch of a step, all of it or nothing.
pub async fn patch(
    work: &mut impl Work,
    session_id: SessionId,
    step_id: StepId,
    patch: &Patch,
) -> Result<Patched, Error> {
    patch.check()?;
    let query = sqlx::query_as(
        "select duplicate
           from state.patch(p_project => $1, p_session => $2, p_step => $3, p_patch => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(session_id)
    .bind(step_id)
    .bind(Json(&patch.wire))
    .bind(&patch.cards);
    let patched = query.fetch_one(work.connection()).await;
    patched.map_err(|error| refusal(session_id, error))
}

fn refusal(session_id: SessionId, error: sqlx::Error) -> Error {
    let Some(refusal) = error.as_database_error().and_then(|e| e.try_downcast_ref::<PgDatabaseError>()) else {
        return error.into();
    };
    let detail = refusal.detail().unwrap_or_else(|| refusal.message());
    match refusal.code() {
        "WB002" => Error::CardConflict(detail.to_owned()),
        "WB404" => Error::NotFound(detail.to_owned()),
        "WB015" => {
            let (module, found) = detail.split_once(' ').unwrap_or((detail, ""));
            let module = match module {
                "todo" => Module::Todo,
                "compression" => Module::Compression,
                _ => Module::Messages,
            };
            Error::Conflict { session_id, module, found: (!found.is_empty()).then(|| found.to_owned()) }
        }
        "40001" | "40P01" | "55P03" => Error::TryAgain(error.into()),
        _ => error.into(),
    }
}
