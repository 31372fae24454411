//! Logs: lines on standard error, as text or JSON. What looks like a secret is removed (SE-4).

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::LazyLock,
};

use clap::ValueEnum;
use regex::{Captures, Regex};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What is logged where a person reads along: problems, and that the providers file was read again.
pub(crate) const QUIET: &str = "warn,waybill::reload=info,sqlx=error,async_nats=off";
const USUAL: &str = "warn,waybill=info,sqlx=error,async_nats=off";

/// Starts logging, with the filter in `WAYBILL_LOG`.
pub(crate) fn begin(format: Format, is_quiet: bool) {
    let filter =
        EnvFilter::try_from_env("WAYBILL_LOG").unwrap_or_else(|_| EnvFilter::new(if is_quiet { QUIET } else { USUAL }));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Blotted);
    match format {
        Format::Text => lines.init(),
        Format::Json => lines.json().flatten_event(true).init(),
    }
}

/// Matches our own keys, what follows `Bearer`, the password in a URL, and keys in the formats of providers.
static SECRETS: LazyLock<Regex> = LazyLock::new(|| {
    let looks = r"(?x)
        \b wb_[A-Za-z0-9]+_[A-Za-z0-9_-]{16,}
      | (?P<bearer> (?i:bearer) \s+ ) [A-Za-z0-9._~+/=-]{8,}
      | (?P<user> :// [^\s:/@]* : ) [^\s@/]+ (?P<at> @ )
      | \b (?: sk | pk | ghp | xoxb | AKIA ) [-_A-Za-z0-9]{12,}";
    Regex::new(looks).expect("a pattern")
});

/// Replaces what looks like a secret in a line.
fn blot(line: &str) -> Cow<'_, str> {
    SECRETS.replace_all(line, |found: &Captures<'_>| {
        let part = |name| found.name(name).map_or("", |part| part.as_str());
        format!("{}{}[secret]{}", part("bearer"), part("user"), part("at"))
    })
}

#[derive(Clone, Copy, Debug)]
struct Blotted;

impl<'a> MakeWriter<'a> for Blotted {
    type Writer = Blotted;

    fn make_writer(&'a self) -> Blotted {
        Blotted
    }
}

/// Each call to `write` gets one whole line.
impl Write for Blotted {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(blot(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SE-4: secrets are removed from lines that log them by mistake.
    #[test]
    fn a_line_holds_no_secret() {
        let key = format!("wb_live_{}_{}_abcdef", "0123456789abcdef", "f".repeat(43));
        for (line, shown) in [
            (format!("key {key} was refused"), "key [secret] was refused"),
            ("authorization: Bearer abc.def.ghi-jkl".to_owned(), "authorization: Bearer [secret]"),
            ("cannot reach postgres://u:hunter2@db:5432/w".to_owned(), "cannot reach postgres://u:[secret]@db:5432/w"),
            ("said sk-proj-0123456789abcdef".to_owned(), "said [secret]"),
            (
                "agent_turn_id=019a84f2-6c1e-7cc3-98c4-dc0c0c07398f waits".to_owned(),
                "agent_turn_id=019a84f2-6c1e-7cc3-98c4-dc0c0c07398f waits",
            ),
        ] {
            assert_eq!(blot(&line), shown);
        }
    }
}
