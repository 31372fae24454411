//! `waybill record`: records what the models of agents elsewhere see.

use std::{env, ffi::OsString, process::ExitCode};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use waybill_api::{Replay, Unknown};
use waybill_worker::model::Provider;

use super::dev::{self, Recording};

/// Where the clients of these providers send their calls: to the address in their environment, or by default to this one. LlamaIndex and older clients
/// read another name.
const USUAL: [(&str, &[&str], &str); 2] = [
    ("openai", &["OPENAI_BASE_URL", OLDER], "https://api.openai.com/v1"),
    ("anthropic", &["ANTHROPIC_BASE_URL"], "https://api.anthropic.com/v1"),
];
/// An older name of OPENAI_BASE_URL.
pub(crate) const OLDER: &str = "OPENAI_API_BASE";

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) dev: dev::Arguments,
    /// A provider and its address, such as `openai=https://api.openai.com/v1`. May be given more than once. If omitted, `openai` and `anthropic` are where
    /// OPENAI_BASE_URL and ANTHROPIC_BASE_URL say, or at their usual addresses.
    #[arg(long, value_name = "NAME=URL", value_parser = upstream)]
    upstream: Vec<Provider>,
    /// Refuse calls that cannot be recorded. If omitted, they pass and are counted.
    #[arg(long)]
    require_record: bool,
    /// Answer from the record: the first time that a request comes it gets its first recorded answer, the second time its second one, and so on.
    #[arg(long, value_name = "HOW")]
    replay: Option<How>,
    /// Let replayed answers take as long as they took.
    #[arg(long, requires = "replay")]
    in_time: bool,
    /// Command to run with `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` set to the recorder. When it ends, everything ends, with its exit code.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What happens to requests that are not recorded.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// They are refused, and the answer says how they differ from what is recorded. Nothing goes to a provider.
    Strict,
    /// They go on to the provider, and are recorded.
    New,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { dev, upstream: mut upstreams, require_record, replay, in_time, command } = arguments;
    let replay = replay.map(|how| {
        let unknown = match how {
            How::Strict => Unknown::Refuse,
            How::New => Unknown::Record,
        };
        Replay { unknown, in_time }
    });
    for usual in usual() {
        if !upstreams.iter().any(|known| known.name == usual.name) {
            usual.check_recorded().map_err(|why| {
                anyhow!("{why}: change the address in the environment, or name the provider with `--upstream`")
            })?;
            upstreams.push(usual);
        }
    }
    dev::run_with(dev, Some(Recording { upstreams, require_record, replay, command })).await
}

/// Returns the providers that are known without being named, each where its clients would send their calls.
pub(crate) fn usual() -> Vec<Provider> {
    let provider = |(name, variables, url): (&str, &[&str], &str)| {
        let named = variables.iter().find_map(|variable| env::var(variable).ok().and_then(elsewhere));
        let address = named.unwrap_or_else(|| url.to_owned());
        Some(Provider::recorded(name.parse().ok()?, address))
    };
    USUAL.into_iter().filter_map(provider).collect()
}

/// Returns an address of the environment, unless it is that of a recorder on this machine. One without a path ends with a slash, so that no version is
/// added.
fn elsewhere(address: String) -> Option<String> {
    let address = address.trim();
    let (_, place) = address.split_once("://").unwrap_or(("", address));
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let is_here = ["127.", "localhost", "[::1]"].iter().any(|here| host.starts_with(here));
    if address.is_empty() || is_here && path.starts_with("record/") {
        return None;
    }
    Some(if place.contains('/') { address.to_owned() } else { format!("{address}/") })
}

/// Reads `NAME=URL`.
fn upstream(text: &str) -> Result<Provider, String> {
    let (name, address) = text.split_once('=').ok_or("write NAME=URL, such as `openai=https://api.openai.com/v1`")?;
    let name = name.parse().map_err(|error| format!("{error}"))?;
    let provider = Provider::recorded(name, address.to_owned());
    provider.check_recorded()?;
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-3: a key goes where its owner's client would send it, and never back to the recorder.
    #[test]
    fn an_address_in_the_environment_is_the_providers() {
        let check = |address: &str, is: Option<&str>| assert_eq!(elsewhere(address.to_owned()).as_deref(), is);
        check("https://gateway.example.com/v1", Some("https://gateway.example.com/v1"));
        check(" http://127.0.0.1:8000 ", Some("http://127.0.0.1:8000/"));
        check(
            "https://waybill.example.com/record/wb_x/openai/v1",
            Some("https://waybill.example.com/record/wb_x/openai/v1"),
        );
        check("http://127.0.0.1:7070/record/local/openai/v1", None);
        check("", None);
    }
}
