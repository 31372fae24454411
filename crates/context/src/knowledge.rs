//! The text of a project's knowledge: how it is cut into chunks, its words, and how results are shown. All functions are pure.
//!
//! Words are split here and not by the database, which cannot split Chinese: a document and a question are split in the same way, so words
//! that occur in both are found.

use std::{
    collections::{BTreeSet, HashSet},
    hash::Hash,
    sync::LazyLock,
};

use jieba_rs::Jieba;
use unicode_normalization::UnicodeNormalization;
use waybill_core::tokens;

/// The approximate size limit of a chunk, in tokens.
pub const CHUNK: i32 = 320;
/// The longest word. No search looks for a longer one.
const LONGEST: usize = 64;
/// How many words of a question are used.
const MOST_WORDS: usize = 64;

static SEGMENTER: LazyLock<Jieba> = LazyLock::new(Jieba::new);

/// A piece of a document, which is found and shown as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first and the last line, from 1.
    pub lines: (usize, usize),
    /// The headings above it, outermost first.
    pub heading: String,
    pub content: String,
    pub n_tokens: i32,
    /// Each once, in order.
    pub words: Vec<String>,
}

/// Cuts a text into pieces: at headings, then between paragraphs, then between sentences.
pub fn cut(title: &str, text: &str) -> Vec<Piece> {
    let mut cutter = Cutter { title, pieces: Vec::new(), headings: Vec::new(), open: None };
    let mut fenced = false;
    for (n, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line)) {
        fenced ^= line.trim_start().starts_with("```");
        match heading(line).filter(|_| !fenced) {
            Some((depth, words)) => {
                cutter.close();
                cutter.headings.retain(|(known, _)| *known < depth);
                cutter.headings.push((depth, words.to_owned()));
            }
            None => sentences(line).into_iter().for_each(|part| cutter.add(n, part)),
        }
    }
    cutter.close();
    cutter.pieces
}

struct Cutter<'a> {
    title: &'a str,
    pieces: Vec<Piece>,
    headings: Vec<(usize, String)>,
    open: Option<Open>,
}

struct Open {
    from: usize,
    to: usize,
    text: String,
    n_tokens: i32,
}

impl Cutter<'_> {
    fn add(&mut self, line: usize, part: &str) {
        let n_tokens = tokens::count(part).get() + 1;
        let is_blank = part.trim().is_empty();
        if let Some(open) = &self.open {
            let is_full = open.n_tokens + n_tokens > CHUNK;
            // The end of a paragraph is a good place to stop if the piece is almost full.
            if is_full || is_blank && open.n_tokens * 4 > CHUNK * 3 {
                self.close();
            }
        }
        match &mut self.open {
            None if is_blank => {}
            None => self.open = Some(Open { from: line, to: line, text: part.to_owned(), n_tokens }),
            Some(open) if is_blank => open.text.push('\n'),
            Some(open) => {
                if open.to < line {
                    open.text.push('\n');
                }
                open.text.push_str(part);
                (open.to, open.n_tokens) = (line, open.n_tokens + n_tokens);
            }
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let content = open.text.trim_end().to_owned();
        if content.is_empty() {
            return;
        }
        let heading = self.headings.iter().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join(" › ");
        let words = words(&format!("{} {heading} {content}", self.title));
        let n_tokens = tokens::count(&content).get();
        self.pieces.push(Piece { lines: (open.from, open.to), heading, content, n_tokens, words });
    }
}

/// `## Words`
fn heading(line: &str) -> Option<(usize, &str)> {
    let depth = line.bytes().take_while(|byte| *byte == b'#').count();
    let words = line[depth..].strip_prefix(' ')?.trim();
    ((1..=6).contains(&depth) && !words.is_empty()).then_some((depth, words))
}

/// Returns a line as it is; a line that is too long is split into sentences, and a sentence that is too long into parts.
fn sentences(line: &str) -> Vec<&str> {
    const LONG: usize = 600;
    if line.len() <= LONG {
        return vec![line];
    }
    let mut parts = Vec::new();
    let (mut from, mut last) = (0, '\0');
    for (at, c) in line.char_indices() {
        let is_end = matches!(last, '。' | '！' | '？' | '；') || matches!(last, '.' | '!' | '?' | ';') && c == ' ';
        if at > from && (is_end || at - from >= LONG) {
            parts.push(&line[from..at]);
            from = at;
        }
        last = c;
    }
    parts.push(&line[from..]);
    parts
}

/// Returns the words of a text: case-folded, each once, in order.
pub fn words(text: &str) -> Vec<String> {
    let folded: String = text.nfkc().flat_map(char::to_lowercase).collect();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    // Compounds that people write as one word: `zephyr-42`, `v1.2.3`, `a_b`.
    for run in folded.split(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '/' | ':'))) {
        let run = run.trim_matches(|c: char| !c.is_alphanumeric());
        let is_joined = run.contains(|c: char| !c.is_alphanumeric());
        if is_joined && run.is_ascii() {
            found.insert(run);
        }
    }
    for run in folded.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        if run.is_ascii() {
            found.insert(run);
        } else {
            found.extend(SEGMENTER.cut_for_search(run, false).into_iter().map(|token| token.word));
        }
    }
    let is_word = |word: &&str| word.len() <= LONGEST && word.chars().any(char::is_alphanumeric);
    found.into_iter().filter(is_word).map(str::to_owned).collect()
}

/// Returns the words of a question.
pub fn question(text: &str) -> Vec<String> {
    let mut words = words(text);
    // The longest words are the most specific.
    words.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
    words.truncate(MOST_WORDS);
    words
}

/// Merges several rankings into one, by taking from each in turn, each entry once. So the best entry of any ranking stays near the top.
pub fn fuse<K: Clone + Eq + Hash>(lists: &[Vec<K>], most: usize) -> Vec<K> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or_default();
    let by_turns = (0..longest).flat_map(|place| lists.iter().filter_map(move |list| list.get(place)));
    let mut seen = HashSet::new();
    by_turns.filter(|key| seen.insert(*key)).take(most).cloned().collect()
}

/// Where a piece that is shown came from. The receipt keeps it with the block.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Provenance {
    /// Path of the document.
    pub path: String,
    pub version: i32,
    /// The hash of the document's content.
    pub hash: String,
    /// Which piece of the document.
    pub seq: i32,
}

/// A piece as it is shown.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    pub path: &'a str,
    pub version: i32,
    pub lines: (i32, i32),
    pub title: &'a str,
    pub heading: &'a str,
    pub content: &'a str,
}

/// Renders pieces in their order, each with its place.
pub fn render(pieces: &[Shown<'_>]) -> String {
    let one = |(n, piece): (usize, &Shown<'_>)| {
        let under =
            [piece.title, piece.heading].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" › ");
        let under = if under.is_empty() { under } else { format!(": {under}") };
        let (path, version, (from, to)) = (piece.path, piece.version, piece.lines);
        format!("[{}] {path} v{version}, lines {from}–{to}{under}\n{}", n + 1, piece.content)
    };
    pieces.iter().enumerate().map(one).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_people_look_for() {
        let has = |text: &str, word: &str| words(text).iter().any(|known| known == word);
        let text = "The Zephyr-42 gateway keeps logs for 90 days. 青鸾网关的日志保留九十天，ＡＢＣ。";
        for word in ["zephyr-42", "zephyr", "42", "gateway", "日志", "保留", "网关", "abc"] {
            assert!(has(text, word), "{word}: {:?}", words(text));
        }
        assert!(!has(text, "，") && !has(text, "."));
        assert_eq!(words(""), Vec::<String>::new());
    }

    #[test]
    fn a_text_is_cut_where_it_has_joints() {
        let long = "A sentence of some words. ".repeat(200);
        let text = format!("# One\n\nFirst paragraph.\n\n## Two\nBelow two.\n```\n# no heading\n```\n# Three\n{long}");
        let pieces = cut("T", &text);
        assert_eq!((pieces[0].heading.as_str(), pieces[0].content.as_str()), ("One", "First paragraph."));
        assert_eq!(pieces[0].lines, (3, 3));
        assert_eq!(pieces[1].heading, "One › Two");
        assert!(pieces[1].content.contains("# no heading"));
        assert!(pieces[2..].iter().all(|piece| piece.heading == "Three" && piece.n_tokens <= CHUNK));
        assert!(pieces.len() > 4);
        let whole: String = pieces[2..].iter().map(|piece| piece.content.trim_end().to_owned() + " ").collect();
        assert_eq!(whole.split_whitespace().count(), long.split_whitespace().count(), "nothing is lost");
        assert!(cut("", "").is_empty() && cut("", "\n\n").is_empty());
        let chinese = "春天到了。".repeat(400);
        assert!(cut("", &chinese).iter().all(|piece| piece.n_tokens <= CHUNK));
    }

    #[test]
    fn what_stands_high_anywhere_stands_high() {
        assert_eq!(fuse(&[vec!["a", "b", "c"], vec!["c", "d"]], 4), ["a", "c", "b", "d"]);
        assert_eq!(fuse(&[vec!["a", "b"], vec![]], 9), ["a", "b"]);
        assert_eq!(fuse::<u8>(&[], 9), Vec::<u8>::new());
    }
}
