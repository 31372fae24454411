//! `waybill card …`

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use waybill_core::{
    card::{Gone, Reading},
    id::{CardId, ProjectId, TurnId},
    json,
    turn::TurnStatus,
};
use waybill_kernel::{
    audit, card, card_box, handover, migrate,
    work::{Kernel, UnitOfWork},
};
use waybill_orchestrator::blast::{self, How};

use crate::{
    command::turn::stop as stop_turn,
    connect::{self, Owner, Place, Service, project_id},
    named::{Named, find_all},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show cards as JSON, one per line, and verify their hashes. Of a card that has expired, was deleted or was erased, only the id, the hash, the
    /// time and the reason are shown.
    Show {
        /// The cards to show.
        #[arg(required = true, value_name = "CARD")]
        cards: Vec<Named<CardId>>,
        #[command(flatten)]
        place: Place,
    },
    /// List every agent that has had access to a card, and why.
    ///
    /// Covers agents that wrote it, got it in a handover, were granted it, or whose children wrote it.
    Sight {
        /// The id of the card.
        #[arg(value_name = "CARD")]
        card: Named<CardId>,
        /// How many to list at most.
        #[arg(long, default_value_t = 1000)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// List what followed from a card: the turns that saw it, and all that was written after seeing it.
    ///
    /// did: the card was part of a request to a model. derived: something that was written after seeing it was. could: it was there to be read, but in
    /// no request.
    Blast {
        /// The id of the card.
        #[arg(value_name = "CARD")]
        card: Named<CardId>,
        /// How many turns to look at, at most.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        most: u16,
        /// Stop the turns that saw something and are still open, and say why.
        #[arg(long, value_name = "REASON")]
        stop: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Set when cards expire. After that time, models do not see them. The expiry time of a card can be set only once.
    Expire {
        /// The cards that expire.
        #[arg(required = true, value_name = "CARD")]
        cards: Vec<Named<CardId>>,
        /// Seconds from now until the cards expire.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..))]
        ttl: i32,
        #[command(flatten)]
        place: Place,
    },
    /// Delete cards, so that models do not see them any more. The content and the hash of the cards, and the reason, stay in the database.
    Delete {
        /// The cards to delete.
        #[arg(required = true, value_name = "CARD")]
        cards: Vec<Named<CardId>>,
        /// Why they are deleted. It is kept with each card.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        place: Place,
    },
    /// Erase the content of cards for good. The id, hash, type, author and times of the cards stay, and the reason is recorded.
    Erase {
        /// The cards to erase.
        #[arg(required = true, value_name = "CARD")]
        cards: Vec<Named<CardId>>,
        /// The project: its slug or its id.
        #[arg(long)]
        project: String,
        /// Why they are erased. It is kept in the audit.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        service: Service,
        #[command(flatten)]
        owner: Owner,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Sight { card, most, place } => sight(&card, most, &place, as_json).await,
        Command::Blast { card, most, stop, place } => blast(&card, most, stop.as_deref(), &place, as_json).await,
        Command::Show { cards, place } => show(&cards, &place).await,
        Command::Expire { cards, ttl, place } => {
            let mut work = place.begin().await?;
            let card_ids = find_all(&cards, &mut work).await?;
            card::expire(&mut work, &card_ids, ttl).await?;
            ended(work, &card_ids, "card.expire", &json!({ "ttl_seconds": ttl }), as_json).await
        }
        Command::Delete { cards, reason, place } => {
            let mut work = place.begin().await?;
            let card_ids = find_all(&cards, &mut work).await?;
            card::delete(&mut work, &card_ids, &reason).await?;
            ended(work, &card_ids, "card.delete", &json!({ "reason": reason }), as_json).await
        }
        Command::Erase { cards, project, reason, service, owner } => {
            let kernel = service.kernel().await?;
            let project_id = project_id(&kernel, &project).await?;
            let card_ids = find_all(&cards, &mut kernel.begin(project_id).await?).await?;
            let mut owner = migrate::connect_owner(&owner.owner_url).await?;
            let erased = card::erase(&mut owner, project_id, &card_ids, &reason).await?;
            if as_json {
                output::json(&erased)?;
            } else {
                let reason = |why: &Gone| if let Gone::Erased(reason) = why { reason.clone() } else { String::new() };
                output::table(
                    ["card_id", "hash", "erased_at", "reason"],
                    erased
                        .iter()
                        .map(|t| [output::id(&t.card_id), t.hash.to_string(), t.gone_at.to_string(), reason(&t.why)]),
                );
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Records the end of cards in the audit, and prints what is left of them.
async fn ended(
    mut work: UnitOfWork,
    card_ids: &[CardId],
    action: &str,
    detail: &Value,
    as_json: bool,
) -> Result<ExitCode> {
    for card_id in card_ids {
        audit::record(&mut work, &connect::actor(), action, &card_id.to_string(), detail).await?;
    }
    let left = card::fetch(&mut work, card_ids, None).await?.found;
    work.commit().await?;
    if as_json {
        output::json(&left)?;
        return Ok(ExitCode::SUCCESS);
    }
    for reading in left {
        match reading {
            Reading::Live(card) => {
                println!("{} expires at {}", card.card_id, card.expires_at.unwrap_or_default().format("%F %T UTC"));
            }
            Reading::Gone(tombstone) => {
                println!("{} is gone since {}", tombstone.card_id, tombstone.gone_at.format("%F %T UTC"))
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn sight(card: &Named<CardId>, most: i64, place: &Place, as_json: bool) -> Result<ExitCode> {
    let mut work = place.begin().await?;
    let card_id = card.find(&mut work).await?;
    let held = card_box::holders(&mut work, card_id, None, most).await?;
    let seen = handover::sight(&mut work, &held).await?;
    if as_json {
        output::json(&seen)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["agent_id", "right", "why", "from", "turn", "box", "place"],
        seen.into_iter().map(|sight| {
            let from = sight.source_agent_id.map(|agent_id| output::id(&agent_id)).or(sight.granted_by);
            [
                output::id(&sight.agent_id),
                sight.via,
                sight.rule.unwrap_or_default(),
                from.unwrap_or_default(),
                output::id_or_none(sight.agent_turn_id),
                output::id(&sight.box_id),
                sight.place.to_string(),
            ]
        }),
    );
    Ok(ExitCode::SUCCESS)
}

async fn blast(card: &Named<CardId>, most: u16, stop: Option<&str>, place: &Place, as_json: bool) -> Result<ExitCode> {
    let (kernel, project_id) = place.open().await?;
    let mut work = connect::begin(&kernel, project_id).await?;
    let card_id = card.find(&mut work).await?;
    let radius = blast::radius(&mut work, &[card_id], usize::from(most)).await?;
    let open = radius.turns.iter().filter(|turn| turn.status == TurnStatus::Open && turn.how != How::Could);
    let open: Vec<TurnId> = open.map(|turn| turn.agent_turn_id).collect();
    drop(work);
    if as_json {
        output::json(&radius)?;
        return stop_all(&kernel, project_id, &open, stop).await;
    }
    let word = |how: How| match how {
        How::Did => "did",
        How::Derived => "derived",
        How::Could => "could",
    };
    output::table(
        ["turn", "saw it", "calls", "status", "deliverable"],
        radius.turns.iter().map(|turn| {
            [
                output::id(&turn.agent_turn_id),
                word(turn.how).to_owned(),
                turn.calls.len().to_string(),
                turn.status.as_str().to_owned(),
                output::id_or_none(turn.deliverable_card_id),
            ]
        }),
    );
    let of = |how| radius.turns.iter().filter(|turn| turn.how == how).count();
    println!(
        "\n{} turns did see the card, {} saw what was derived from it, {} could have seen it. {} cards were written after seeing it.",
        of(How::Did),
        of(How::Derived),
        of(How::Could),
        radius.n_derived_cards,
    );
    for stored in &radius.artifacts {
        println!(
            "artifact {} (version {}), stored by turn {}",
            stored.path,
            stored.version,
            output::id(&stored.agent_turn_id)
        );
    }
    for session_id in &radius.session_ids {
        println!("the memory of session {} was changed after that", output::id(session_id));
    }
    if radius.is_cut {
        println!(
            "There is more: the walk ended at {most} turns, or after ten seconds. --most allows up to 10000 turns."
        );
    }
    if stop.is_none() && !open.is_empty() {
        println!("{} of these turns are still open. --stop REASON stops them.", open.len());
    }
    stop_all(&kernel, project_id, &open, stop).await
}

/// Stops turns that are open, if there is a reason to. One that cannot be stopped holds up no other.
async fn stop_all(kernel: &Kernel, project_id: ProjectId, open: &[TurnId], reason: Option<&str>) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for turn_id in reason.map_or(&[][..], |_| open) {
        match stop_turn(kernel, project_id, *turn_id, reason.unwrap_or_default()).await {
            Ok(stopped) => eprintln!("turn {turn_id}: {}", stopped.as_str()),
            Err(error) => {
                output::error(&error, false);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn show(cards: &[Named<CardId>], place: &Place) -> Result<ExitCode> {
    let mut work = place.begin().await?;
    let card_ids = find_all(cards, &mut work).await?;
    let batch = card::fetch(&mut work, &card_ids, None).await?;
    for reading in &batch.found {
        println!("{}", json::wire(&serde_json::to_string(reading)?)); // in the form in which it was sent to us
    }
    if !batch.missing.is_empty() {
        bail!("not found in this project: cards {:?}", batch.missing);
    }
    let tampered = |reading: &&Reading| matches!(reading, Reading::Live(card) if !card.verifies());
    if let Some(reading) = batch.found.iter().find(tampered) {
        bail!("card {} does not match its hash: its content was changed directly in the database", reading.card_id());
    }
    Ok(ExitCode::SUCCESS)
}
