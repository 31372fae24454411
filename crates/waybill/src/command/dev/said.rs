//! What `waybill dev` says: a line for each step of its start with the time that it took, then what to open and what to try.

use std::{
    fmt,
    io::{self, Write},
    net::SocketAddr,
    path::Path,
    time::Instant,
};

use waybill_worker::model::Provider;

use crate::output;

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
/// Goes to the beginning of the line and clears it.
const AGAIN: &str = "\r\x1b[2K";

/// Prints what happens. In a terminal it is coloured, and a step is shown while it runs; elsewhere each step is one plain line.
pub(super) struct Said {
    has_colour: bool,
}

impl Said {
    pub(super) fn new() -> Said {
        Said { has_colour: output::has_colour(&io::stderr()) }
    }

    /// Runs one step of the start.
    pub(super) async fn step<T, E>(&self, what: &str, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let begun = Instant::now();
        if self.has_colour {
            eprint!("{DIM}…{PLAIN} {what}");
            let _ = io::stderr().flush();
        }
        let outcome = step.await;
        let seconds = begun.elapsed().as_secs_f64();
        match (self.has_colour, outcome.is_ok()) {
            (true, true) => eprintln!("{AGAIN}{GREEN}✓{PLAIN} {what} {DIM}{seconds:.1} s{PLAIN}"),
            (true, false) => eprintln!("{AGAIN}{RED}✗{PLAIN} {what}"),
            (false, true) => eprintln!("{what}: {seconds:.1} s"),
            (false, false) => eprintln!("{what}: failed"),
        }
        outcome
    }

    /// Prints a line between two steps, or in the middle of one.
    pub(super) fn note(&self, line: &str) {
        let again = if self.has_colour { AGAIN } else { "" };
        eprintln!("{again}{line}");
    }
}

/// What a user needs to know once everything is up.
pub(super) struct Greeting<'a> {
    pub(super) api_url: &'a str,
    pub(super) address: SocketAddr,
    /// The admin key, if this process made it.
    pub(super) new_key: Option<&'a str>,
    pub(super) key_file: &'a Path,
    pub(super) data: &'a Path,
    /// The database.
    pub(super) place: &'a str,
    /// The worker processes.
    pub(super) pids: &'a [u32],
    pub(super) project: &'a str,
}

pub(super) fn greet(greeting: &Greeting<'_>) {
    print!("{greeting}");
    let _ = io::stdout().flush();
}

/// Says where the calls of a provider go, without what may be a password in the address.
pub(super) fn upstream(provider: &Provider) -> String {
    let (scheme, rest) = provider.base_url.split_once("://").unwrap_or(("", &provider.base_url));
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{}: {scheme}://{host}{path}", provider.name)
}

/// Says where agents are to send their model calls.
pub(super) fn greet_recorder(greeting: &Greeting<'_>, addresses: &[(String, String)], places: &[String]) {
    let Greeting { api_url, place, .. } = greeting;
    println!("\nWaybill records. Point your agents here, and run them as always:\n");
    for (variable, address) in addresses {
        println!("  export {variable}={address}");
    }
    println!("\nCalls go on to {}.", places.join(" and "));
    println!("Your own API key goes to the provider with each request. It is not stored.");
    println!("see what the models saw: {api_url}/ui/");
    println!("database: {place}");
    println!("\nCtrl-C ends everything. The data stays in the folder.");
    let _ = io::stdout().flush();
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Greeting { api_url, address, key_file, data, place, project, .. } = self;
        writeln!(f, "\nWaybill is up: {api_url}  (OpenAPI: {api_url}/openapi.json)")?;
        writeln!(f, "console, for your browser: {api_url}/ui/")?;
        writeln!(f, "database: {place}")?;
        if address.ip().is_loopback() {
            let key_file = key_file.display();
            writeln!(f, "programs of this machine need no key; an admin key of project `{project}` is in {key_file}")?;
        } else {
            writeln!(f, "it listens on {address}, without encryption: use it only in a network that you trust")?;
            match self.new_key {
                Some(key) => writeln!(f, "an admin key of project `{project}`, which is shown only now: {key}")?,
                None => writeln!(f, "an admin key of project `{project}` is in {}", key_file.display())?,
            }
        }
        for (n, pid) in self.pids.iter().enumerate() {
            writeln!(f, "worker {}: process {pid}", n + 1)?;
        }
        let is_elsewhere = **data != *Path::new(".waybill");
        if is_elsewhere {
            writeln!(f, "\nIn another terminal:\n")?;
            let file = std::path::absolute(data.join("waybill.toml")).unwrap_or_else(|_| data.join("waybill.toml"));
            writeln!(f, "  export WAYBILL_CONFIG='{}'", file.display().to_string().replace('\'', r"'\''"))?;
        } else {
            writeln!(f, "\nIn another terminal, in this folder:\n")?;
        }
        writeln!(
            f,
            "  waybill demo                                       # a team at work, without any model provider"
        )?;
        writeln!(
            f,
            "  waybill run editor \"How is beer made?\" --watch     # your own question, and the tree of turns"
        )?;
        writeln!(f, "  waybill init my-team                               # a team and a tool of your own\n")?;
        writeln!(f, "Ctrl-C ends everything. The data stays in the folder.")
    }
}
