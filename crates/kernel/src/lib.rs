//! Waybill's truth: cards, boxes and turns in PostgreSQL, one project per transaction.
//!
//! ```no_run
//! # use std::error::Error;
//! use waybill_core::{card::Draft, id::{AgentId, BoxId, ProjectId, WorkerId}, turn::End};
//! use waybill_kernel::{
//!     agent::{self, NewAgent, Stay},
//!     card, card_box, project,
//!     turn::{self, Claiming, DispatchRequest, Ending},
//!     work::{Config, Kernel},
//! };
//!
//! # async fn run() -> Result<(), Box<dyn Error>> {
//! let kernel = Kernel::connect(&Config::new("postgres://waybill_service@localhost/waybill")).await?;
//!
//! // One transaction in one project: a card in a box, an agent, and a turn that may see the box.
//! let mut work = kernel.begin(ProjectId::new()).await?;
//! project::create(&mut work, "acme").await?;
//! let question = Draft::instruction("Which offer is better?").seal()?;
//! card::insert(&mut work, std::slice::from_ref(&question)).await?;
//! let context = BoxId::new();
//! card_box::create(&mut work, &[context]).await?;
//! card_box::append(&mut work, context, &[question.card_id()]).await?;
//! let agent = NewAgent::new(AgentId::new(), "llm".parse()?);
//! let request = DispatchRequest::new(agent.agent_id, context);
//! agent::provision(&mut work, &[agent], Stay::Plain, None).await?;
//! turn::enqueue(&mut work, &[request], &[]).await?;
//! work.commit().await?;
//!
//! // A worker claims it, and ends it under the fence of its claim.
//! let mut claiming = Claiming::new(WorkerId::new(), "llm".parse()?);
//! for claimed in turn::claim(&kernel, &mut claiming).await? {
//!     let deliverable = turn::ending_card(End::Success, "the second one")?;
//!     let ending = Ending {
//!         fence: claimed.fence, status: End::Success, step_id: None, receipt: None, usage: None, seen: None, cards: vec![deliverable],
//!     };
//!     turn::finish(&mut kernel.alone(claimed.fence.project_id()).await?, &[ending]).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! * Connection: [`work`], [`retry`], [`check`], [`migrate`], [`login`].
//! * Cards and boxes: [`card`], [`card_box`], [`artifact`], [`external`], [`blast`].
//! * Turns: [`turn`], [`call`], [`batch`], [`request`], [`agent`], [`handover`], [`grant`], [`fork`], [`receipt`], [`record`].
//! * Conversations and knowledge: [`session`], [`blackboard`], [`knowledge`].
//! * Processes: [`intake`], [`lease`], [`outbox`], [`sweep`], [`quarantine`], [`idempotency`].
//! * Management and operation: [`project`], [`resource`], [`register`], [`key`], [`browser`], [`audit`], [`spend`], [`vitals`], [`now`],
//!   [`find`], [`short`], [`trace`], [`invariant`], [`retain`], [`retention`].
//!
//! * All SQL of Waybill is here, each statement a literal beside its binds; one test prepares them all.
//! * A unit of work belongs to one project. Row-level security holds it there, whatever a statement says.
//! * A card never changes and a box only grows; the database refuses anything else, to every role.
//! * A turn is acted on under a fence; a worker that lost it changes nothing. The transitions are functions in the database, each
//!   in a file beside the Rust that calls it.
//! * Time is the database's. Order is a sequence column.
//!
//! Not here: NATS, HTTP, models, files, environment. Nothing is published inside a transaction.

mod connections;
pub mod offload;
pub mod retry;
pub mod work;

pub mod artifact;
pub mod card;
pub mod card_box;

pub mod blackboard;
pub mod blast;
pub mod receipt;
pub mod record;
pub mod session;

pub mod agent;
pub mod external;
pub mod fork;
pub mod grant;
pub mod handover;

pub mod batch;
pub mod call;
pub mod intake;
pub mod lease;
pub mod outbox;
pub mod request;
pub mod turn;

pub mod idempotency;
pub mod quarantine;
pub mod sweep;

pub mod cache;
pub mod find;
pub mod now;
pub mod short;
pub mod spend;
pub mod trace;
pub mod vitals;

pub mod audit;
pub mod browser;
pub mod key;
pub mod knowledge;
pub mod project;
pub mod register;
pub mod resource;

pub mod check;
pub mod invariant;
pub mod login;
pub mod migrate;
pub mod retain;
pub mod retention;
