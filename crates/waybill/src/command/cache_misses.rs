//! `waybill cache-misses`: where calls found less in the provider's prompt cache than it could have kept.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{TimeDelta, Utc};
use clap::Args;
use serde_json::Value;
use waybill_kernel::cache::{self, By, CacheMisses, Why};

use crate::{command::worker::Reached, connect::Place, output, tree::dollars};

/// How many single calls are shown.
const SHOWN: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to add up by: what had changed, the day, the profile, the model, or the conversation.
    #[arg(long, default_value = "why", value_parser = ["why", "day", "profile", "model", "conversation"])]
    by: String,
    /// Look at turns that began in the last so many hours.
    #[arg(long, default_value_t = 24)]
    hours: u16,
    /// The prices are in the file of providers.
    #[command(flatten)]
    models: Reached,
    #[command(flatten)]
    place: Place,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let by: By = serde_json::from_value(Value::String(arguments.by.clone()))?;
    let models = arguments.models.read()?.models();
    let until = Utc::now() + TimeDelta::seconds(1);
    let since = until - TimeDelta::hours(arguments.hours.into());
    let mut work = arguments.place.begin().await?;
    let price = |provider: &str, model: &str| models.price(provider, model);
    let found = cache::misses(&mut work, by, since, until, price).await?;
    if as_json {
        output::json(&found)?;
    } else {
        say(&arguments.by, &found);
    }
    Ok(ExitCode::SUCCESS)
}

fn say(by: &str, found: &CacheMisses) {
    let money = |microdollars: Option<u64>| microdollars.map_or_else(String::new, |n| dollars(n as i64));
    output::table(
        [by, "calls", "missed", "read", "cached", "lost", "$ lost"],
        found.rows.iter().map(|row| {
            [
                row.key.clone().unwrap_or_else(|| "no miss".to_owned()),
                row.n_calls.to_string(),
                row.n_misses.to_string(),
                row.input.to_string(),
                row.cached.to_string(),
                row.lost.to_string(),
                money(row.microdollars),
            ]
        }),
    );
    if !found.largest.is_empty() {
        println!("\nThe calls that lost most:");
    }
    for miss in found.largest.iter().take(SHOWN) {
        let who = miss.profile_name.as_deref().unwrap_or("an agent");
        let says = miss
            .provider_says
            .as_ref()
            .map(|says| format!(" (the provider says: {})", output::printable(&says.to_string())))
            .unwrap_or_default();
        let what = described(miss.why, miss.message, miss.idle_seconds);
        println!("  {} tokens, {}: {what}{says}", miss.lost, output::printable(who));
        println!(
            "    waybill context diff {}/{} {}/{}",
            miss.previous_turn_id, miss.previous_step_id, miss.agent_turn_id, miss.step_id
        );
    }
    if let Some(until) = found.complete_until {
        println!("only turns that began before {until}: later ones have too many calls for one answer");
    }
}

fn described(why: Why, message: Option<i32>, idle_seconds: u64) -> String {
    match why {
        Why::Model => "another model".to_owned(),
        Why::Tools => "the tools changed".to_owned(),
        Why::System => "the system prompt changed".to_owned(),
        Why::Message => format!("message {} changed (what follows it may be new)", message.unwrap_or_default()),
        Why::Context => "a block of the context changed".to_owned(),
        Why::Parameters => "another parameter of the request changed".to_owned(),
        Why::Idle => format!("nothing changed, but it came {} minutes later", idle_seconds / 60),
        Why::Provider => "nothing changed; the provider had not kept it".to_owned(),
        Why::NoCache => "nothing changed; no call of this model read from a cache".to_owned(),
    }
}
