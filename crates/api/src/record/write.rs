//! Writes a call that passed: cut into cards, put where its conversation is.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio::sync::OnceCell;
use waybill_context::{
    receipt::{Digest, Receipt},
    record::{
        Unreadable,
        receipt::{Parts, Recording, RestsOn},
        withhold,
    },
    wire::Adapter,
};
use waybill_core::{
    card::{CardHash, CardType, Content, Draft, Invalid, NewCard, Role},
    card_box::Span,
    id::{AgentId, BoxId, CardId, StepId, TraceId, TurnId},
    json,
    label::Labels,
    tokens::Tokens,
    turn::Usage,
};
use waybill_kernel::{
    card, card_box, offload,
    record::{self as stored, Mark, NewRecording, RecordedCall},
    resource,
    retry::Transient,
    turn,
    work::{self, DbError, Kernel, UnitOfWork},
};
use waybill_worker::model::Models;

use super::{
    answer::{self, Kept, Said},
    lock,
    pieces::{Counted, Pieces},
    queue::{Call, Room},
    sender::Sender,
    source::{Projects, Secret, Source, Whose},
};
use crate::{Api, problem::Problem};

/// How often a call is tried again whose turn went on meanwhile.
const MOST_RACES: usize = 3;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Work(#[from] work::Error),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    CardBox(#[from] card_box::Error),
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("the request cannot be read")]
    Unreadable(#[from] Unreadable),
    #[error("the settings of the project cannot be read, and with them what it withholds: {0}")]
    Settings(String),
    #[error(transparent)]
    Resource(#[from] resource::Error),
    #[error("the turn went on each time while its next call was written")]
    Raced,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error {
            Error::Work(error) => error.into(),
            Error::Db(error) => error.into(),
            Error::Resource(error) => error.into(),
            other => Problem::internal(other),
        }
    }
}

impl Error {
    /// Checks whether it is about this call alone: another one may well be written.
    pub(super) fn is_of_call(&self) -> bool {
        let is_of_project = matches!(self, Error::Work(_) | Error::Resource(_) | Error::Settings(_));
        matches!(self, Error::Raced) || !is_of_project && !self.may_pass()
    }

    /// Checks whether it may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Error::Work(work::Error::Unreachable { .. }) => true,
            // Locks too: those of an attempt whose connection broke may stay for a while, and agents that start together store the same tools.
            Error::Work(work::Error::Db(error))
            | Error::Db(error)
            | Error::Card(card::Error::Db(error))
            | Error::CardBox(card_box::Error::Db(error))
            | Error::Resource(resource::Error::Db(error)) => error.is_transient() || error.is_contended(),
            Error::Turn(error) => error.is_transient(),
            Error::Settings(_)
            | Error::Resource(_)
            | Error::Work(_)
            | Error::Card(_)
            | Error::CardBox(_)
            | Error::Invalid(_)
            | Error::Unreadable(_) => false,
            Error::Raced => true,
        }
    }
}

/// What writing calls needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Desk<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) projects: &'a Projects,
    pub(super) counted: &'a Arc<Counted>,
    /// The operator's providers, with their prices.
    pub(super) models: Option<&'a Models>,
}

impl<'a> Desk<'a> {
    pub(super) fn of(api: &'a Api) -> Desk<'a> {
        let recorder = &api.recorder;
        Desk {
            kernel: &api.kernel,
            projects: &recorder.projects,
            counted: &recorder.counted,
            models: Some(&api.config.models),
        }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is a step of this turn.
    Now(TurnId),
    /// It was imported before.
    Before,
}

/// A call that is ready to be written. Written again, it is the same step, and begins the same turn.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) sender: Sender,
    pub(super) whose: Whose,
    /// The agent that asked this one, if the client says so.
    pub(super) parent: Option<Source>,
    pub(super) provider: String,
    pub(super) adapter: Adapter,
    pub(super) encoding: Option<String>,
    pub(super) session: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) traceparent: Option<String>,
    /// The request, without its compression.
    pub(super) body: Arc<Vec<u8>>,
    /// The request and the answer as cards, once the request was cut.
    pub(super) cards: OnceCell<Cards>,
    pub(super) kept: Kept,
    pub(super) said: Said,
    /// When it was sent and what it cost, if it was imported.
    pub(super) imported: Option<Extra>,
    /// Whether the provider answered, whole and without an error.
    pub(super) is_answered: bool,
    /// Whether the answer is there whole, as it was sent, also if it is an error.
    pub(super) is_replayable: bool,
    pub(super) took: Duration,
    pub(super) begun: Instant,
    pub(super) step_id: StepId,
    /// The turn that begins with it, if one does.
    pub(super) turn_id: TurnId,
    /// The turn that it was last written to, if it is not known whether that was committed.
    pub(super) tried: Mutex<Option<TurnId>>,
    /// Given back once the call is written.
    pub(super) _room: Option<Room>,
}

/// What a log says of a call. One that passed has its time from the clock, and its price from the operator's file.
#[derive(Clone, Debug)]
pub(super) struct Extra {
    /// When it was sent: now, unless the log says so.
    pub(super) at: DateTime<Utc>,
    pub(super) said_at: Option<DateTime<Utc>>,
    pub(super) microdollars: Option<u64>,
    /// What the log calls it, if it does.
    pub(super) id: Option<String>,
    /// The name of the log.
    pub(super) log: String,
}

impl Prepared {
    /// Unpacks and reads what passed. An error says why it cannot be recorded.
    pub(super) async fn new(call: Call) -> Result<Prepared, &'static str> {
        // A compressed body becomes much larger.
        let is_packed = call.encoding.is_some() || call.answer_encoding.is_some();
        let n_bytes = call.request.len() + call.answer.iter().map(|(_, piece)| piece.len()).sum::<usize>();
        offload::run(if is_packed { usize::MAX } else { n_bytes }, move || prepare(call)).await
    }

    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed().saturating_sub(self.took)
    }

    /// Writes the call in one transaction, if it is not on record yet.
    pub(super) async fn write(&self, desk: Desk<'_>) -> Result<Written, Error> {
        // Outside the transaction: the server ends one that does nothing for seconds.
        let cards = self.cards.get_or_try_init(|| self.cut(desk)).await?;
        for _ in 0..MOST_RACES {
            let mut work = desk.kernel.begin(self.sender.project_id).await?;
            let tried = *lock(&self.tried);
            if let Some(turn_id) = tried
                && stored::is_written(&mut work, turn_id, self.step_id).await?
            {
                return Ok(Written::Now(turn_id));
            }
            if self.imported.is_some() && stored::is_imported(&mut work, self.known_by(&cards.pieces)).await? {
                return Ok(Written::Before);
            }
            if let Some(turn_id) = self.put(desk, &mut work, cards).await? {
                work.commit().await?;
                return Ok(Written::Now(turn_id));
            }
        }
        Err(Error::Raced)
    }

    async fn cut(&self, desk: Desk<'_>) -> Result<Cards, Error> {
        let secret = desk.projects.secret(desk.kernel, self.sender.project_id).await?;
        let (body, adapter, whose) = (self.body.clone(), self.adapter, self.whose.clone());
        let (counted, mut kept, joined) = (desk.counted.clone(), self.kept.clone(), self.said.joined.clone());
        let n_tokens = i32::try_from(self.said.read.output).ok().and_then(Tokens::new).unwrap_or_default();
        // How long a pattern takes, its size does not say.
        let n_bytes = if secret.has_patterns() { usize::MAX } else { body.len() };
        offload::run(n_bytes, move || {
            let pieces = Pieces::new(adapter, &body, &secret, &whose, &counted)?;
            kept.withhold(&secret, joined.as_deref());
            let has_body = kept.body.is_some();
            let content = Content::Json(serde_json::to_value(&kept).unwrap_or_default());
            let answer = Draft::new(CardType::wire_answer(), Role::Assistant, content).seal_counted(n_tokens)?;
            Ok(Cards { pieces, answer, has_body, secret })
        })
        .await
    }

    /// Returns the mark by which a call is known that is imported again.
    fn known_by(&self, pieces: &Pieces) -> Mark {
        let imported = self.imported.as_ref();
        let (at, id) =
            (imported.and_then(|imported| imported.said_at), imported.and_then(|imported| imported.id.as_ref()));
        // Calls without a time are the same only in the same conversation.
        let place = at.is_none().then_some(&self.session);
        let said = json!([at, id, place, String::from_utf8_lossy(&self.body), self.kept.body]);
        pieces.imported(&said.to_string())
    }

    /// Puts the call where its conversation is, and returns its turn. None means that that has gone on meanwhile.
    async fn put(&self, desk: Desk<'_>, work: &mut UnitOfWork, cards: &Cards) -> Result<Option<TurnId>, Error> {
        let Cards { pieces, answer, has_body, secret } = cards;
        let Some(place) = self.place(work, cards).await? else { return Ok(None) };
        let new = &pieces.messages[place.n_shared..];
        let known = card::intern(work, &pieces.shared).await?;
        let receipt = self.receipt(work, cards, &place, &known).await?;
        let call = RecordedCall {
            agent_turn_id: place.turn_id,
            agent_id: place.agent_id,
            step_id: self.step_id,
            context_box_id: place.context_box_id,
            output_box_id: place.output_box_id,
            n_before: place.n_before,
            tail: pieces.tail(),
            answer: self.mark().map(|said| pieces.marked("answer", &said)),
            request: match self.imported {
                Some(_) => Some(self.known_by(pieces)),
                None => (self.is_replayable && *has_body).then_some(pieces.request),
            },
            // After a failed call the same request comes again, with what the provider remembers from before.
            state: match &self.said.id {
                Some(id) if !pieces.is_conversation => Some(pieces.marked("state", id)),
                _ => pieces.state,
            },
            n_calls: self.said.n_calls,
            receipt: serde_json::to_string(&receipt).unwrap_or_default(),
            usage: self.usage(desk, pieces, secret),
            at: self.imported.as_ref().map(|imported| imported.at + self.took),
        };
        if !stored::write(work, &call, new, Some(answer)).await? {
            return Ok(None);
        }
        let asks: Vec<Mark> = self.said.asks.iter().filter_map(|said| pieces.asks(said)).collect();
        stored::note_asks(work, place.turn_id, &asks).await?;
        Ok(Some(place.turn_id))
    }

    /// Returns what the next request says of the answer. Of an answer that cannot be read, that is not known; but it is one, and the same request
    /// again is not the next call of its conversation. None means that the call failed.
    fn mark(&self) -> Option<String> {
        let unknown = || self.is_answered.then(|| self.step_id.to_string());
        self.said.mark.clone().or_else(unknown)
    }

    /// Finds the turn that the request goes on with, or begins one. None means that an earlier attempt has begun it.
    async fn place(&self, work: &mut UnitOfWork, cards: &Cards) -> Result<Option<Place>, Error> {
        let pieces = &cards.pieces;
        let agent_id = self.whose.source.agent_id(work.project_id());
        if let Some(found) = stored::to_extend(work, &pieces.tails(), pieces.state).await? {
            *lock(&self.tried) = Some(found.agent_turn_id);
            return Ok(Some(Place {
                turn_id: found.agent_turn_id,
                agent_id,
                context_box_id: found.context_box_id,
                output_box_id: found.output_box_id,
                n_before: found.n_messages,
                // Of what the provider remembers, the request says nothing.
                n_shared: if pieces.state.is_some() {
                    0
                } else {
                    usize::try_from(found.n_messages).unwrap_or_default()
                },
            }));
        }
        self.begin(work, cards, agent_id).await
    }

    /// Begins a turn, with the messages that it has in common with another one by reference.
    async fn begin(&self, work: &mut UnitOfWork, cards: &Cards, agent_id: AgentId) -> Result<Option<Place>, Error> {
        let Cards { pieces, secret, .. } = cards;
        let marks: Vec<String> = pieces.marks.iter().map(Mark::to_hex).collect();
        let alike = match pieces.messages.len() {
            0 => None,
            _ => stored::alike(work, pieces.opening(), &marks, pieces.last_answer()).await?,
        };
        let by_answer = alike.as_ref().is_some_and(|found| found.by_answer);
        let (shares_with, n_common, n_theirs, query) = match alike {
            Some(found) => (Some(found.agent_turn_id), found.n_common, found.n_messages, found.query_card_ids),
            None => (None, 0, 0, Vec::new()),
        };
        let n_shared = usize::try_from(n_common).unwrap_or_default();
        // What was said before the first answer is often the same in conversations that have nothing to do with each other.
        let has_answer = pieces.messages[..n_shared].iter().any(|card| card.metadata().role == Role::Assistant);
        let departs = (has_answer || by_answer) && n_shared < pieces.messages.len() && n_common < n_theirs;
        // What both have in common is in the cards of the other.
        let own = pieces.messages[n_shared..].iter().find(|card| card.metadata().role == Role::User);
        let has_query = pieces.messages[..n_shared].iter().any(|card| card.metadata().role == Role::User);
        let query_card_ids = if has_query { query } else { own.map(NewCard::card_id).into_iter().collect() };
        let turn_id = self.turn_id;
        let place = Place {
            turn_id,
            agent_id,
            context_box_id: BoxId::new(),
            output_box_id: BoxId::new(),
            n_before: n_common,
            n_shared,
        };
        let parent = match (self.parent(work, pieces).await?, shares_with) {
            (None, Some(other)) => stored::parent_of(work, other).await?.map(|turn_id| (turn_id, "inferred")),
            (found, _) => found,
        };
        let trace_id = self.traceparent.as_deref().and_then(trace_id);
        let recording = NewRecording {
            agent_turn_id: turn_id,
            agent_id,
            profile_name: self.name(cards),
            context_box_id: place.context_box_id,
            output_box_id: place.output_box_id,
            query_card_ids,
            parent_agent_turn_id: parent.map(|(turn_id, _)| turn_id),
            trace_id,
            traceparent: self.traceparent.clone().filter(|_| trace_id.is_some()),
            started_by: self.sender.actor.clone(),
            opening: pieces.opening(),
            shares_with,
            n_common,
            departs,
            at: self.imported.as_ref().map(|imported| imported.at),
        };
        *lock(&self.tried) = Some(turn_id);
        if !stored::begin(work, &recording).await? {
            return Ok(None);
        }
        let session = self.session.iter().map(|session| ("session", secret.shown(session)));
        // Who asked for it is on record, and how that is known.
        let parent = parent.map(|(_, how)| ("parent", how.to_owned()));
        let log = self.imported.iter().map(|imported| ("imported", secret.shown(&imported.log)));
        let labels = session.chain(parent).chain(log);
        let short = |value: String| -> String { value.chars().filter(|c| !c.is_control()).take(200).collect() };
        let labels = labels.map(|(name, value)| (name.to_owned(), short(value).into()));
        let labels = serde_json::Map::from_iter(labels.filter(|(_, value)| *value != ""));
        if !labels.is_empty()
            && let Ok(labels) = serde_json::from_value::<Labels>(labels.into())
        {
            turn::label(work, turn_id, &labels).await?;
        }
        Ok(Some(place))
    }

    /// Returns the turn of the agent that asked for this conversation, and how it is known: the client says so, or a tool call of that turn said what
    /// this one begins with.
    async fn parent(&self, work: &mut UnitOfWork, pieces: &Pieces) -> Result<Option<(TurnId, &'static str)>, Error> {
        if let Some(parent) = &self.parent {
            let last = stored::last_turn(work, parent.agent_id(work.project_id())).await?;
            return Ok(last.map(|turn_id| (turn_id, "said by the client")));
        }
        let Some(asked) = pieces.asked else { return Ok(None) };
        let at = self.imported.as_ref().map(|imported| imported.at);
        let found = stored::asked_by(work, asked, at).await?;
        Ok(found.map(|turn_id| (turn_id, "inferred")))
    }

    fn name(&self, cards: &Cards) -> String {
        let name = self.agent.clone().or_else(|| cards.pieces.model.clone());
        let name = name.unwrap_or_else(|| "recorded".to_owned());
        json::text(&cards.secret.shown(&name)).chars().take(200).collect()
    }

    async fn receipt(
        &self,
        work: &mut UnitOfWork,
        cards: &Cards,
        place: &Place,
        known: &[CardId],
    ) -> Result<Receipt, Error> {
        let Cards { pieces, secret, .. } = cards;
        let mut hashes: Vec<CardHash> = match place.n_shared {
            0 => Vec::new(),
            _ => card_box::hashes(work, Span::prefix(place.context_box_id, i64::from(place.n_before))).await?,
        };
        hashes.extend(pieces.messages[hashes.len()..].iter().map(NewCard::hash));
        let mut shared = known.iter().copied().zip(pieces.shared.iter().map(NewCard::hash));
        let skeleton = shared.next().unwrap_or((CardId::nil(), pieces.shared[0].hash()));
        let system = pieces.has_system.then(|| shared.next()).flatten();
        let tools = pieces.has_tools.then(|| shared.next()).flatten();
        let n_shared = pieces.shared.iter().map(NewCard::n_tokens).sum::<Tokens>();
        let n_tokens = n_shared + pieces.messages.iter().map(NewCard::n_tokens).sum();
        let recording = Recording {
            provider: self.provider.clone(),
            skeleton_card_id: skeleton.0,
            rests_on: match (&self.imported, &pieces.rests_on) {
                (Some(_), _) => RestsOn::Import,
                (None, Some(_)) => RestsOn::Provider,
                (None, None) => RestsOn::Bytes,
            },
            state_id: pieces.rests_on.clone(),
            withheld: pieces.withheld.clone(),
            encoding: self.encoding.clone(),
        };
        // What patterns withhold may be short, such as a number: a reader of the hash must not be able to guess it.
        let request_hash = match secret.has_patterns() && !pieces.withheld.is_empty() {
            true => Digest::keyed(&secret.key, &self.body),
            false => Digest::of(&self.body),
        };
        let from = i64::from(place.n_before) - i64::try_from(place.n_shared).unwrap_or_default() + 1;
        let upto = from + i64::try_from(pieces.messages.len()).unwrap_or(i64::MAX) - 1;
        let context = Span { box_id: place.context_box_id, from, upto };
        Ok(Receipt::recorded(Parts {
            recording,
            adapter: self.adapter,
            skeleton: skeleton.1,
            system,
            tools,
            messages: context,
            hashes: &hashes,
            n_tokens,
            request_hash,
        }))
    }

    fn usage(&self, desk: Desk<'_>, pieces: &Pieces, secret: &Secret) -> Usage {
        let model = pieces.model.clone().unwrap_or_default();
        let read = self.said.read;
        let usage = Usage {
            provider: self.provider.clone(),
            model: json::text(&secret.shown(&model)).chars().take(200).collect(),
            input_tokens: storable(read.input),
            cached_tokens: storable(read.cached),
            output_tokens: storable(read.output),
            microdollars: 0,
            took_ms: storable(u32::try_from(self.took.as_millis()).unwrap_or(u32::MAX)),
            n_asked: 1,
            asked_again: false,
            cache_miss: self.said.cache_miss.as_ref().and_then(|why| {
                let (why, _) = secret.withheld_from(&why.to_string());
                serde_json::from_str(&why).ok()
            }),
            reported: false,
        };
        let price = desk.models.and_then(|models| models.price(&self.provider, &model));
        let paid = self.imported.as_ref().and_then(|imported| imported.microdollars);
        Usage { microdollars: paid.unwrap_or_else(|| price.map_or(0, |price| price.of(&usage))), ..usage }
    }
}

/// A call as cards, without what the project withholds.
#[derive(Debug)]
pub(super) struct Cards {
    pieces: Pieces,
    answer: NewCard,
    /// Whether the body of the answer is in its card.
    has_body: bool,
    secret: Secret,
}

/// Where a call is written.
struct Place {
    turn_id: TurnId,
    agent_id: AgentId,
    context_box_id: BoxId,
    output_box_id: BoxId,
    /// How many messages the turn has already, and how many of these are messages of the request too.
    n_before: i32,
    n_shared: usize,
}

/// A provider may answer with any number.
fn storable(n: u32) -> u32 {
    n.min(i32::MAX.unsigned_abs())
}

fn prepare(mut call: Call) -> Result<Prepared, &'static str> {
    let whose = call.whose();
    let parent = call.parent.as_deref().map(|parent| call.source_as(Some(parent)));
    let encoding = call.encoding.take().filter(|encoding| !encoding.eq_ignore_ascii_case("identity"));
    let body = answer::unpacked(encoding.as_deref(), call.request.to_vec())?;
    call.credentials.add(withhold::credentials(call.adapter, &body));
    let (kept, said) = answer::read(&call);
    let is_answered = call.is_whole && (200..300).contains(&call.status);
    let is_replayable = call.is_whole && call.status > 0 && kept.body.is_some();
    let Call { room, sender, provider, adapter, session, agent, traceparent, begun, took, .. } = call;
    let inside = |text: Option<String>| text.map(|text| json::text(&text).into_owned());
    Ok(Prepared {
        sender,
        whose,
        parent,
        provider,
        adapter,
        encoding,
        session: inside(session),
        agent: inside(agent),
        traceparent,
        body: Arc::new(body),
        cards: OnceCell::new(),
        kept,
        said,
        imported: None,
        is_answered,
        is_replayable,
        took,
        begun,
        step_id: StepId::new(),
        turn_id: TurnId::new(),
        tried: Mutex::default(),
        _room: Some(room),
    })
}

/// Returns the trace of a W3C `traceparent`.
fn trace_id(traceparent: &str) -> Option<TraceId> {
    let id = traceparent.split('-').nth(1).filter(|id| id.len() == 32)?;
    let n = u128::from_str_radix(id, 16).ok().filter(|n| *n != 0)?;
    Some(TraceId::from_bytes(n.to_be_bytes()))
}
