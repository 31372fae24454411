//! How results are printed: text for people, one JSON document for programs.
//!
//! A program that reads the output may close it before all is printed, as `head` does. The command then ends without an error.

use std::{
    fmt::{self, Display},
    io::{self, IsTerminal, Write},
    process::exit,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use chrono::{DateTime, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use waybill_core::card::Content;

use crate::table::{self, Sheet};

/// How many of the last digits of an id people see and type. Ids of one time begin alike; their ends are random.
pub(crate) const DIGITS: usize = 8;
/// The width of a terminal that does not say how wide it is.
const WIDTH: usize = 80;

/// Whether the process goes on when its output is closed.
static GOES_ON: AtomicBool = AtomicBool::new(false);
static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());

/// Says that this process does not end when its output is closed, because it serves others.
pub(crate) fn go_on() {
    GOES_ON.store(true, Ordering::Relaxed);
}

/// Writes to standard output. The macros `print!` and `println!` of this program call it.
pub(crate) fn out(said: fmt::Arguments<'_>) {
    if let Err(error) = io::stdout().write_fmt(said)
        && !GOES_ON.load(Ordering::Relaxed)
    {
        unwritten(&error);
    }
}

/// Writes to standard error. The macro `eprintln!` of this program calls it.
pub(crate) fn err(said: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(said);
}

/// Writes bytes to standard output as they are.
pub(crate) fn bytes(bytes: &[u8]) {
    if let Err(error) = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()) {
        unwritten(&error);
    }
}

/// Ends the process, because its output cannot be written.
fn unwritten(error: &io::Error) -> ! {
    if error.kind() == io::ErrorKind::BrokenPipe {
        exit(0);
    }
    err(format_args!("error: cannot write the output: {error}\n"));
    exit(1);
}

/// Prints a value as one line of JSON.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Prints rows under a header, without borders.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    print!("{}", table::render(&head, &rows, sheet()));
}

/// Returns what the output is printed on.
pub(crate) fn sheet() -> Sheet {
    Sheet { width: width(), colour: has_colour(&io::stdout()) }
}

/// Returns the number of columns of the terminal. `None` means that the output is not a terminal.
pub(crate) fn width() -> Option<usize> {
    if !*IS_TERMINAL {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    Some(size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0).unwrap_or(WIDTH))
}

/// Checks whether what is written there may have colour.
pub(crate) fn has_colour(there: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    there.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns an id for a table: its last digits in a terminal, else the whole id. Commands accept both.
pub(crate) fn id(id: &impl Display) -> String {
    let whole = id.to_string();
    match whole.char_indices().nth_back(DIGITS - 1) {
        Some((at, _)) if *IS_TERMINAL => whole[at..].to_owned(),
        _ => whole,
    }
}

/// Returns an id for a table, or nothing.
pub(crate) fn id_or_none<T: Display>(found: Option<T>) -> String {
    found.map(|found| id(&found)).unwrap_or_default()
}

/// Returns a time for a table: whole, but without the year and the seconds in a terminal.
pub(crate) fn time(at: DateTime<Utc>) -> String {
    at.format(if *IS_TERMINAL { "%m-%d %H:%M" } else { "%F %T" }).to_string()
}

/// Returns a text for a table, on one line: at most `most` characters of it in a terminal, else all of it.
pub(crate) fn preview(text: &str, most: usize) -> String {
    short(text, if *IS_TERMINAL { most } else { usize::MAX })
}

/// Prints a text below a title, each line indented, and wrapped if the output is a terminal.
pub(crate) fn indented(text: &str, indent: &str) {
    let text = printable(text);
    let lines = match width() {
        Some(width) => table::wrap(&text, width.saturating_sub(indent.len()).max(20)),
        None => text.split('\n').map(str::to_owned).collect(),
    };
    for line in lines {
        println!("{}", format!("{indent}{line}").trim_end());
    }
}

/// Returns the content of a card as text for people.
pub(crate) fn content(content: Option<&Content>) -> String {
    match content {
        Some(Content::Text(text)) => text.clone(),
        Some(other) => serde_json::to_string_pretty(other).unwrap_or_default(),
        None => "the deliverable has expired or was deleted".to_owned(),
    }
}

/// Prints what a turn delivered: as it is, but without what a terminal would interpret.
pub(crate) fn deliverable(delivered: Option<&Content>) {
    let text = content(delivered);
    println!("{}", if *IS_TERMINAL { printable(&text) } else { text });
}

/// Replaces control characters that a terminal would interpret.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// Returns at most `most` characters of a text, on one line.
pub(crate) fn short(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(most).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

/// Returns the beginning of a text on one line, and says how long the whole text is if that is not all of it.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    let begun = short(text, most);
    if begun.ends_with('…') { format!("{begun} ({} characters)", text.chars().count()) } else { begun }
}

/// Returns a progress bar over bytes.
pub(crate) fn bytes_bar(n_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {eta}");
    ProgressBar::new(n_bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Prints an error and its causes, each once.
pub(crate) fn error(error: &anyhow::Error, as_json: bool) {
    let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    // Some errors end with the text of their cause.
    causes.dedup_by(|cause, error| error.ends_with(cause.as_str()));
    if as_json {
        eprintln!("{}", serde_json::json!({ "error": causes[0], "causes": causes[1..] }));
        return;
    }
    eprintln!("error: {}", causes[0]);
    for cause in &causes[1..] {
        eprintln!("  because: {cause}");
    }
}
