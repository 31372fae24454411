//! `waybill session …`: conversations of several turns.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use waybill_core::{
    card::{Card, Content, Reading},
    card_box::{Placed, Span},
    id::SessionId,
};
use waybill_kernel::{
    audit, card, card_box,
    session::{self, About},
    work::UnitOfWork,
};

use crate::{
    connect::{self, Place},
    output,
};

/// Messages that are read at a time.
const PAGE: i64 = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Open a session, and print its id. `run --session` with a new id opens one too.
    New {
        /// What it is called.
        #[arg(long)]
        title: Option<String>,
        /// To sort it by; as often as there are any.
        #[arg(long)]
        label: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Sessions, the newest first.
    List {
        /// Go on after this one.
        #[arg(long)]
        after: Option<SessionId>,
        #[arg(long, default_value_t = 50)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// What was said, the todo list, the summary and what it covers, and the turns. With --json all of it, to keep elsewhere.
    Show {
        session: SessionId,
        #[command(flatten)]
        place: Place,
    },
    /// Give a session another title or other labels.
    Describe {
        session: SessionId,
        /// What it is called.
        #[arg(long)]
        title: Option<String>,
        /// Instead of the labels that it has.
        #[arg(long)]
        label: Option<Vec<String>>,
        #[command(flatten)]
        place: Place,
    },
    /// Let no turn begin in a session any more. Those that are open go on.
    End {
        session: SessionId,
        #[command(flatten)]
        place: Place,
    },
    /// Forget a session: its list of messages, todo list and summary. The cards stay with their turns; `waybill card erase` destroys them.
    Forget {
        session: SessionId,
        #[command(flatten)]
        place: Place,
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
            let listed = session::list(&mut place.begin().await?, None, after, most).await?;
            if as_json {
                output::json(&listed)?;
            } else {
                output::table(
                    ["session", "opened", "messages", "state", "title"],
                    listed.into_iter().map(|session| {
                        [
                            session.session_id.to_string(),
                            session.created_at.format("%Y-%m-%d %H:%M").to_string(),
                            session.n_messages.to_string(),
                            if session.ended_at.is_some() { "ended" } else { "open" }.to_owned(),
                            output::short(session.title.as_deref().unwrap_or_default(), 60),
                        ]
                    }),
                );
            }
        }
        Command::Show { session, place } => show(&mut place.begin().await?, session, as_json).await?,
        Command::Describe { session, title, label, place } => {
            let mut work = place.begin().await?;
            session::find(&mut work, session, None).await?;
            session::describe(&mut work, session, &About { title, labels: label }).await?;
            work.commit().await?;
        }
        Command::End { session, place } => {
            let mut work = place.begin().await?;
            session::find(&mut work, session, None).await?;
            session::end(&mut work, session).await?;
            audit::record(&mut work, &connect::actor(), "session.end", &session.to_string(), &json!({})).await?;
            work.commit().await?;
        }
        Command::Forget { session, place } => {
            let mut work = place.begin().await?;
            session::find(&mut work, session, None).await?;
            session::forget(&mut work, session).await?;
            audit::record(&mut work, &connect::actor(), "session.forget", &session.to_string(), &json!({})).await?;
            work.commit().await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was said in a session, all of it.
pub(crate) async fn messages(work: &mut UnitOfWork, session: &session::Session) -> Result<Vec<Placed>> {
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
        let changes = session::changes(work, session_id, 1_000).await?;
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
        println!("holds content from outside");
    }
    for placed in &messages {
        match &placed.reading {
            Reading::Live(card) => println!("\n{}\n{}", speaker(card), said(card)),
            Reading::Gone(gone) => println!("\n(card {} is gone)", gone.card_id),
        }
    }
    if let Some(todo) = todo {
        println!("\ntodo\n{}", said(todo));
    }
    if let Some(summary) = summary {
        println!("\nsummary\n{}", said(summary));
    }
    println!();
    output::table(
        ["turn", "profile", "status", "steps", "tokens in", "cached", "out"],
        turns.into_iter().map(|turn| {
            [
                turn.agent_turn_id.to_string(),
                turn.profile_name.map(|name| name.to_string()).unwrap_or_default(),
                turn.status,
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

/// What a card says, for people.
pub(crate) fn said(card: &Card) -> String {
    match &card.content {
        Content::Text(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}
