//! Tables for people: as wide as what is in them, or as wide as the terminal.
//!
//! In a terminal the widest columns become narrower and their text wraps; if there are too many columns, each row becomes a block of lines.
//! Elsewhere every row is one line with everything in it.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Spaces between two columns.
const GAP: usize = 2;
/// No column is made narrower than this.
const NARROW: usize = 10;

/// Where a table is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sheet {
    /// Columns of the terminal. `None` means that there is no terminal.
    pub(crate) width: Option<usize>,
    pub(crate) colour: bool,
}

/// Returns the table as text, with a line break at its end.
pub(crate) fn render(head: &[&str], rows: &[Vec<String>], sheet: Sheet) -> String {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| clean(cell, sheet)).collect()).collect();
    let all = || std::iter::once(&head).chain(&rows);
    let natural: Vec<usize> = (0..head.len()).map(|n| all().map(|row| longest(&row[n])).max().unwrap_or(0)).collect();
    let widths = match sheet.width {
        None => natural,
        Some(width) => match fit(&natural, width) {
            Some(widths) => widths,
            None => return blocks(&head, &rows, width, sheet.colour),
        },
    };
    let mut table = String::new();
    for (n, row) in all().enumerate() {
        let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, width)| wrap(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        for line in 0..height {
            let mut written = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let part = cell.get(line).map_or("", String::as_str);
                written.push_str(&paint(part, tint(n == 0, &row[column]).filter(|_| sheet.colour)));
                written.push_str(&" ".repeat(widths[column].saturating_sub(part.width()) + GAP));
            }
            table.push_str(written.trim_end());
            table.push('\n');
        }
    }
    table
}

/// Returns a block of lines for each row, for terminals that are too narrow for its columns.
fn blocks(head: &[String], rows: &[Vec<String>], width: usize, colour: bool) -> String {
    let left = head.iter().map(|name| name.width()).max().unwrap_or(0) + GAP;
    let room = width.saturating_sub(left).max(NARROW);
    let mut table = String::new();
    for (n, row) in rows.iter().enumerate() {
        if n > 0 {
            table.push('\n');
        }
        for (name, cell) in head.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
            for (line, part) in wrap(cell, room).iter().enumerate() {
                let name = if line == 0 { name.as_str() } else { "" };
                let pad = " ".repeat(left - name.width());
                let part = paint(part, tint(false, cell).filter(|_| colour));
                table.push_str(&format!("{}{pad}{part}\n", paint(name, tint(true, name).filter(|_| colour))));
            }
        }
    }
    table
}

/// Returns widths that fit, of which only the widest are smaller than they would be. `None` means that there are too many columns.
fn fit(natural: &[usize], width: usize) -> Option<Vec<usize>> {
    let room = width.checked_sub(GAP * natural.len().saturating_sub(1))?;
    let cut = |most: usize| natural.iter().map(|n| (*n).min(most)).collect::<Vec<_>>();
    (NARROW..=room.max(NARROW)).rev().map(cut).find(|widths| widths.iter().sum::<usize>() <= room)
}

/// Breaks a text into lines of at most this width: between words, or within a word that is too long. Lines that fit stay as they are.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        if line.width() <= width {
            lines.push(line.to_owned());
            continue;
        }
        let (mut current, mut used) = (String::new(), 0);
        for word in line.split_inclusive(' ') {
            if used > 0 && used + word.trim_end().width() > width {
                lines.push(std::mem::take(&mut current).trim_end().to_owned());
                used = 0;
            }
            for c in word.chars() {
                let n = c.width().unwrap_or(0);
                if used > 0 && used + n > width && c != ' ' {
                    lines.push(std::mem::take(&mut current).trim_end().to_owned());
                    used = 0;
                }
                current.push(c);
                used += n;
            }
        }
        lines.push(current.trim_end().to_owned());
    }
    lines
}

/// Returns the cell without characters that a terminal would interpret. Without a terminal it is also one line.
fn clean(cell: &str, sheet: Sheet) -> String {
    let keeps = |c: char| c == '\n' && sheet.width.is_some();
    cell.chars()
        .map(|c| match c {
            c if keeps(c) => c,
            '\n' | '\t' | '\r' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

fn longest(cell: &str) -> usize {
    cell.split('\n').map(UnicodeWidthStr::width).max().unwrap_or(0)
}

/// Returns the colour of a cell: of the head, and of words that say how something went.
fn tint(is_head: bool, cell: &str) -> Option<&'static str> {
    match cell {
        _ if is_head => Some("1"),
        "success" | "ok" => Some("32"),
        "failed" | "FAILED" | "timeout" | "canceled" | "rejected" => Some("31"),
        "running" | "waiting" | "dispatched" | "queued" | "open" => Some("33"),
        _ => None,
    }
}

fn paint(text: &str, colour: Option<&str>) -> String {
    match colour {
        Some(colour) if !text.is_empty() => format!("\x1b[{colour}m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: Option<usize>, colour: bool) -> String {
        let rows = [
            ["0c07398f", "success", "the quick brown fox jumps over the lazy dog"],
            ["1a2b3c4d", "failed", "没有\n那个"],
        ];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        render(&["turn", "state", "says"], &rows, Sheet { width, colour })
    }

    /// UI-14: without a terminal nothing is cut, and each row is one line.
    #[test]
    fn without_a_terminal_each_row_is_one_line() {
        let expected = "turn      state    says\n\
                        0c07398f  success  the quick brown fox jumps over the lazy dog\n\
                        1a2b3c4d  failed   没有 那个\n";
        assert_eq!(table(None, false), expected);
    }

    /// UI-14: in a terminal only the widest column wraps, and no line is wider than the terminal.
    #[test]
    fn in_a_terminal_the_widest_column_wraps() {
        let expected = "turn      state    says\n\
                        0c07398f  success  the quick brown fox\n                   jumps over the lazy\n                   dog\n\
                        1a2b3c4d  failed   没有\n                   那个\n";
        assert_eq!(table(Some(40), false), expected);
        assert_eq!(table(Some(200), false).lines().count(), 4);
    }

    #[test]
    fn columns_that_do_not_fit_become_blocks() {
        let shown = table(Some(24), false);
        assert!(
            shown.starts_with("turn   0c07398f\nstate  success\nsays   the quick brown\n       fox jumps over"),
            "{shown}"
        );
        assert!(shown.lines().all(|line| line.width() <= 24), "{shown}");
    }

    /// UI-14: colour only where it is wanted, and nothing that a model wrote is interpreted.
    #[test]
    fn colour_is_for_terminals_that_want_it() {
        assert!(!table(Some(80), false).contains('\x1b'));
        assert!(table(Some(80), true).contains("\x1b[32msuccess\x1b[0m"));
        let evil = vec![vec!["\x1b[2Jgone".to_owned()]];
        assert_eq!(render(&["x"], &evil, Sheet::default()), "x\n\u{fffd}[2Jgone\n");
    }

    #[test]
    fn words_that_are_too_long_are_broken() {
        assert_eq!(wrap("abcdefghij klm", 4), ["abcd", "efgh", "ij", "klm"]);
        assert_eq!(wrap("  x = 1\nall of this", 8), ["  x = 1", "all of", "this"]);
    }
}
