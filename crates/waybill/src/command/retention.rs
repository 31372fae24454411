//! `waybill project retention`: how long a project keeps content and record, and its legal hold.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::json;
use waybill_kernel::{
    audit,
    retain::{self, Kept, Plan, Retention},
};

use crate::{
    connect::{self, Service},
    output,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The project: its slug or its id.
    slug: String,
    /// Keep what cards say for so many months: 1 to 120, or `forever`. If omitted, it stays as it is.
    #[arg(long, value_name = "MONTHS", value_parser = months)]
    content_months: Option<Months>,
    /// Keep the record for so many months: 1 to 120, at least as many as the content, or `forever`. If omitted, it stays as it is.
    #[arg(long, value_name = "MONTHS", value_parser = months)]
    record_months: Option<Months>,
    /// Undo a shortening that has not taken effect yet.
    #[arg(long, conflicts_with_all = ["content_months", "record_months", "dry_run"])]
    undo: bool,
    /// Put the project under a legal hold, for this reason: nothing is removed. The reason is kept on record.
    #[arg(long, value_name = "REASON", conflicts_with_all = ["content_months", "record_months", "undo", "dry_run"])]
    hold: Option<String>,
    /// Lift the legal hold, for this reason. The reason is kept on record.
    #[arg(long, value_name = "REASON", conflicts_with_all = ["content_months", "record_months", "undo", "dry_run", "hold"])]
    lift: Option<String>,
    /// Only count what would be removed now, with the months that are given or set.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    service: Service,
}

/// A number of months. `None` means for ever.
#[derive(Clone, Copy, Debug)]
struct Months(Option<i32>);

fn months(text: &str) -> Result<Months, String> {
    if text == "forever" {
        return Ok(Months(None));
    }
    match text.parse() {
        Ok(months) if (1..=Kept::MOST).contains(&months) => Ok(Months(Some(months))),
        _ => Err(format!("write a number from 1 to {}, or `forever`", Kept::MOST)),
    }
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let kernel = arguments.service.kernel().await?;
    let project_id = connect::project_id(&kernel, &arguments.slug).await?;
    let mut work = connect::begin(&kernel, project_id).await?;
    let shown = retain::show(&mut work).await?;
    let last = shown.last();
    let asked = match arguments.undo {
        true => shown.now(),
        false => Kept {
            content_months: arguments.content_months.map_or(last.content_months, |months| months.0),
            record_months: arguments.record_months.map_or(last.record_months, |months| months.0),
        },
    };
    if arguments.dry_run {
        let plan = retain::plan(&mut work, asked).await?;
        if as_json {
            output::json(&plan)?;
        } else {
            print_plan(&plan, &shown);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let actor = connect::actor();
    let done = match (&arguments.hold, &arguments.lift) {
        (Some(reason), _) => {
            let changed = retain::hold(&mut work, Some(reason)).await?;
            changed.then(|| ("retention.hold", json!({ "reason": reason })))
        }
        (_, Some(reason)) => {
            let changed = retain::hold(&mut work, None).await?;
            changed.then(|| ("retention.lift", json!({ "reason": reason })))
        }
        _ if asked == last => None,
        _ => retain::set(&mut work, asked).await?.then(|| ("retention.set", json!(asked))),
    };
    if let Some((action, detail)) = &done {
        audit::record(&mut work, &actor, action, "retention", detail).await?;
    }
    let shown = retain::show(&mut work).await?;
    work.commit().await?;
    if as_json {
        output::json(&shown)?;
    } else {
        print(&shown);
    }
    Ok(ExitCode::SUCCESS)
}

fn kept(months: Option<i32>) -> String {
    months.map_or("for ever".to_owned(), |months| format!("{months} months"))
}

fn print(shown: &Retention) {
    let next = |months: Option<i32>| match shown.next_at {
        Some(at) => format!("{} from {}", kept(months), at.format("%Y-%m-%d %H:%M UTC")),
        None => String::new(),
    };
    output::table(
        ["kept", "now", "next"],
        [
            ["content".to_owned(), kept(shown.content_months), next(shown.next_content_months)],
            ["record".to_owned(), kept(shown.record_months), next(shown.next_record_months)],
        ],
    );
    print_hold(shown);
}

fn print_hold(shown: &Retention) {
    if let (Some(reason), Some(since)) = (&shown.hold_reason, shown.held_since) {
        let since = since.format("%Y-%m-%d");
        println!("under a legal hold since {since}, so nothing is removed: {}", output::printable(reason));
    }
}

fn print_plan(plan: &Plan, shown: &Retention) {
    let before = |at: Option<DateTime<Utc>>| at.map_or("never".to_owned(), |at| at.format("%Y-%m-%d").to_string());
    let at_least = if plan.is_all { "" } else { "at least " };
    let row = |what: &str, n: i64, before: String| [what.to_owned(), format!("{at_least}{n}"), before];
    output::table(
        ["would be removed", "number", "older than"],
        [
            row("content of cards", plan.contents, before(plan.content_before)),
            row("bytes of it", plan.bytes, String::new()),
            row("turns", plan.turns, before(plan.record_before)),
            row("boxes of these", plan.boxes, String::new()),
            row("places in these", plan.cards, String::new()),
        ],
    );
    for (why, n) in &plan.kept {
        println!("stays beyond its time: {n} ({why})");
    }
    print_hold(shown);
}
