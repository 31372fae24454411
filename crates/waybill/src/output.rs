//! How results are printed: a table for people, one JSON document for programs.

use comfy_table::{Table, presets};
use serde::Serialize;
use waybill_core::card::Content;

/// Prints a value as one line of JSON.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Prints rows under a header, without borders.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    println!("{table}");
}

/// Returns the content of a card as text for people.
pub(crate) fn content(content: Option<&Content>) -> String {
    match content {
        Some(Content::Text(text)) => text.clone(),
        Some(other) => serde_json::to_string_pretty(other).unwrap_or_default(),
        None => "the deliverable has expired or was deleted".to_owned(),
    }
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

/// Prints an error and its causes, each once.
pub(crate) fn error(error: &anyhow::Error, as_json: bool) {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    if as_json {
        eprintln!("{}", serde_json::json!({ "error": causes[0], "causes": causes[1..] }));
        return;
    }
    eprintln!("error: {}", causes[0]);
    for cause in &causes[1..] {
        eprintln!("  because: {cause}");
    }
}
