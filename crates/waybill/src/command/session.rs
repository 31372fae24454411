//! `waybill session …`: manages conversations of several turns.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use serde_json::json;
use waybill_core::{
    card::{Card, Reading},
    card_box::{Placed, Span},
    id::SessionId,
};
use waybill_kernel::{
    audit, card, card_box, migrate,
    session::{self, About},
    work::UnitOfWork,
};

use crate::{
    connect::{self, Owner, Place},
    named::{Named, find_some},
    output,
};

/// Cards that are erased at a time.
const PORTION: usize = 500;
/// Messages that are read at a time.
const PAGE: i64 = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Open a session and print its id. `waybill run --session` with a new id opens one too.
    New {
        /// The title of the session. If omitted, it has none.
        #[arg(long)]
        title: Option<String>,
        /// A label of the session; can be repeated. If omitted, it has none.
        #[arg(long)]
        label: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// List sessions, newest first.
    List {
        /// Continue after this session, the last one of the previous page. If omitted, start with the newest.
        #[arg(long)]
        after: Option<Named<SessionId>>,
        /// How many to list at most.
        #[arg(long, default_value_t = 50)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// Show the messages, the todo list, the summary and the turns of a session. With --json, export all of it.
    Show {
        /// The session to show.
        session: Named<SessionId>,
        #[command(flatten)]
        place: Place,
    },
    /// Change the title or the labels of a session.
    Describe {
        /// The session to change.
        session: Named<SessionId>,
        /// The new title. If omitted, the title stays.
        #[arg(long)]
        title: Option<String>,
        /// A label; can be repeated. The new labels replace all present ones. If omitted, the labels stay.
        #[arg(long)]
        label: Option<Vec<String>>,
        #[command(flatten)]
        place: Place,
    },
    /// End a session: no new turn can start in it. Open turns continue.
    End {
        /// The session to end.
        session: Named<SessionId>,
        #[command(flatten)]
        place: Place,
    },
    /// Forget a session: delete its list of messages, its todo list and its summary.
    ///
    /// The cards of its turns stay. To erase their content too, use `waybill session erase`.
    Forget {
        /// The session to forget.
        session: Named<SessionId>,
        #[command(flatten)]
        place: Place,
    },
    /// Erase a session for good: the content of all cards that were written for its turns and for turns that they started, then the session itself.
    ///
    /// Artifacts that they stored and documents that were published from them stay. The audit records who did it, and why.
    Erase {
        /// The session to erase.
        session: Named<SessionId>,
        /// Why the session is erased. This reason is kept in the audit and with each erased card.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        owner: Owner,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::New { title, label, place } => {
            let mut work = place.begin().await?;
            let session_id = SessionId::new();
            session::enter(&mut work, session_id, None).await?;
            session::describe(&mut work, session_id, &About { title, labels: Some(label) }).await?;
            work.commit().await?;
            if as_json {
                output::json(&json!({ "session_id": session_id }))?;
            } else {
                println!("{session_id}");
            }
        }
        Command::List { after, most, place } => {
            let mut work = place.begin().await?;
            let after = find_some(after.as_ref(), &mut work).await?;
            let listed = session::list(&mut work, None, after, most).await?;
            if as_json {
                output::json(&listed)?;
            } else {
                output::table(
                    ["session", "opened", "messages", "state", "title"],
                    listed.into_iter().map(|session| {
                        [
                            output::id(&session.session_id),
                            output::time(session.created_at),
                            session.n_messages.to_string(),
                            if session.ended_at.is_some() { "ended" } else { "open" }.to_owned(),
                            output::preview(session.title.as_deref().unwrap_or_default(), 60),
                        ]
                    }),
                );
            }
        }
        Command::Show { session, place } => {
            let mut work = place.begin().await?;
            let session = session.find(&mut work).await?;
            show(&mut work, session, as_json).await?;
        }
        Command::Describe { session, title, label, place } => {
            let mut work = place.begin().await?;
            let session = session.find(&mut work).await?;
            session::find(&mut work, session, None).await?;
            session::describe(&mut work, session, &About { title, labels: label }).await?;
            work.commit().await?;
        }
        Command::End { session, place } => {
            let mut work = place.begin().await?;
            let session = session.find(&mut work).await?;
            session::find(&mut work, session, None).await?;
            session::end(&mut work, session).await?;
            audit::record(&mut work, &connect::actor(), "session.end", &session.to_string(), &json!({})).await?;
            work.commit().await?;
        }
        Command::Forget { session, place } => {
            let mut work = place.begin().await?;
            let session = session.find(&mut work).await?;
            session::find(&mut work, session, None).await?;
            session::forget(&mut work, session).await?;
            audit::record(&mut work, &connect::actor(), "session.forget", &session.to_string(), &json!({})).await?;
            work.commit().await?;
        }
        Command::Erase { session, reason, place, owner } => {
            let session = session.find(&mut place.begin().await?).await?;
            let n_cards = erase(session, &reason, &place, &owner).await?;
            if as_json {
                output::json(&json!({ "session_id": session, "n_cards": n_cards }))?;
            } else {
                println!("{n_cards} cards and the session were erased");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn erase(session_id: SessionId, reason: &str, place: &Place, owner: &Owner) -> Result<usize> {
    let (kernel, project_id) = place.open().await?;
    let mut work = kernel.begin(project_id).await?;
    session::find(&mut work, session_id, None).await?;
    session::end(&mut work, session_id).await?;
    work.commit().await?;
    // Read after the session has ended: no new turn can begin in it.
    let mut work = kernel.begin(project_id).await?;
    if session::is_at_work(&mut work, session_id).await? {
        bail!(
            "session {session_id} still has a running turn, or one of its turns has a running child: wait, or stop it with `waybill turn stop`, then try again"
        );
    }
    let cards = session::written(&mut work, session_id).await?;
    drop(work);
    let mut owner = migrate::connect_owner(&owner.owner_url).await?;
    let mut n_cards = 0;
    for cards in cards.chunks(PORTION) {
        n_cards += card::erase(&mut owner, project_id, cards, reason).await?.len();
    }
    let mut work = kernel.begin(project_id).await?;
    session::forget(&mut work, session_id).await?;
    let about = json!({ "reason": reason, "n_cards": n_cards });
    audit::record(&mut work, &connect::actor(), "session.erase", &session_id.to_string(), &about).await?;
    work.commit().await?;
    Ok(n_cards)
}

/// Reads all messages of a session.
async fn messages(work: &mut UnitOfWork, session: &session::Session) -> Result<Vec<Placed>> {
    let (mut messages, mut from) = (Vec::new(), 1);
    while from <= session.n_messages {
        let span = Span { box_id: session.messages_box_id, from, upto: from + PAGE - 1 };
        messages.extend(card_box::read(work, span, None).await?);
        from += PAGE;
    }
    Ok(messages)
}

async fn show(work: &mut UnitOfWork, session_id: SessionId, as_json: bool) -> Result<()> {
    let session = session::find(work, session_id, None).await?;
    let messages = messages(work, &session).await?;
    let turns = session::turns(work, session_id, None, 1_000).await?;
    let named: Vec<_> = [session.todo_card_id, session.compression_card_id].into_iter().flatten().collect();
    let cards = card::fetch(work, &named, None).await?.found;
    let live = |card_id| cards.iter().filter_map(Reading::live).find(|card| Some(card.card_id) == card_id);
    let (todo, summary) = (live(session.todo_card_id), live(session.compression_card_id));
    if as_json {
        let changes = session::changes(work, session_id, None, 1_000).await?;
        return output::json(&json!({
            "session": session, "messages": messages, "todo": todo, "summary": summary, "turns": turns, "changes": changes,
        }));
    }
    let state = if session.ended_at.is_some() { "ended" } else { "open" };
    println!("session {session_id}  {state}  {}", session.title.as_deref().unwrap_or_default());
    if !session.labels.is_empty() {
        println!("labels  {}", session.labels.join(", "));
    }
    if session.has_external {
        println!("contains content from outside");
    }
    for placed in &messages {
        match &placed.reading {
            Reading::Live(card) => {
                println!("\n{}\n{}", speaker(card), output::printable(&output::content(Some(&card.content))))
            }
            Reading::Gone(gone) => println!("\n(card {} is gone)", gone.card_id),
        }
    }
    if let Some(todo) = todo {
        println!("\ntodo\n{}", output::printable(&output::content(Some(&todo.content))));
    }
    if let Some(summary) = summary {
        println!("\nsummary\n{}", output::printable(&output::content(Some(&summary.content))));
    }
    println!();
    output::table(
        ["turn", "profile", "status", "steps", "tokens in", "cached", "out"],
        turns.into_iter().map(|turn| {
            [
                output::id(&turn.agent_turn_id),
                turn.profile_name.map(|name| name.to_string()).unwrap_or_default(),
                turn.status.as_str().to_owned(),
                turn.n_steps.to_string(),
                turn.input_tokens.to_string(),
                turn.cached_tokens.to_string(),
                turn.output_tokens.to_string(),
            ]
        }),
    );
    Ok(())
}

fn speaker(card: &Card) -> String {
    let when = card.created_at.format("%H:%M:%S");
    format!("{:?}  {when}", card.metadata.role).to_lowercase()
}
