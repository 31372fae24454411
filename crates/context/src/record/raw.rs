//! JSON as it was written: where its values stand in the text. No byte is changed, and no string is decoded without need.
//!
//! serde_json checks the text and finds the values of one level. [`walk`] and [`decode`] only read text that it has accepted.

use std::{borrow::Cow, fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// A list or an object with more values than this is not taken apart.
pub(super) const MOST: usize = 20_000;

/// The keys and values of an object, in the order of the text. Of a key that occurs twice, both values are here.
#[derive(Debug, Default)]
pub(super) struct Object<'a>(pub(super) Vec<(&'a str, &'a str)>);

impl<'a> Object<'a> {
    /// Reads an object. The keys keep their quotes.
    pub(super) fn read(raw: &'a str) -> serde_json::Result<Object<'a>> {
        serde_json::from_str(raw)
    }

    /// Reads a value that may be an object.
    pub(super) fn of(raw: &'a str) -> Option<Object<'a>> {
        // serde_json's error would contain the whole value.
        if raw.starts_with('{') { Object::read(raw).ok() } else { None }
    }

    /// Returns the last value of a key, as providers do. None means that it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| is_key(key, name))?;
        Some(*value).filter(|value| *value != "null")
    }

    /// Returns the text of a key's value, if that is a string.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(text)
    }

    /// Returns the object that is a key's value.
    pub(super) fn object(&self, name: &str) -> Option<Object<'a>> {
        self.get(name).and_then(Object::of)
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    room_for_one_more(entries.len())?;
                    entries.push((key.get(), value.get()));
                }
                Ok(Object(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Returns the elements of a list. None means that it is something else, or has more than [`MOST`].
pub(super) fn elements(raw: &str) -> Option<Vec<&str>> {
    // serde_json's error would contain the whole value.
    let list = Some(raw).filter(|raw| raw.starts_with('['))?;
    serde_json::from_str(list).ok().map(|Elements(elements)| elements)
}

struct Elements<'a>(Vec<&'a str>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Elements<'de>, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element::<&RawValue>()? {
                    room_for_one_more(elements.len())?;
                    elements.push(element.get());
                }
                Ok(Elements(elements))
            }
        }

        deserializer.deserialize_seq(List)
    }
}

/// A short text can have millions of values, and each takes memory.
fn room_for_one_more<E: de::Error>(n: usize) -> Result<(), E> {
    if n < MOST { Ok(()) } else { Err(E::custom("too many values")) }
}

/// Returns where a part of a text is.
pub(super) fn place(whole: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Returns the text of a string with its quotes. None means that it is something else.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    raw.strip_prefix('"')?.strip_suffix('"').map(decode)
}

/// Checks whether a key, with its quotes, means this name.
pub(super) fn is_key(key: &str, name: &str) -> bool {
    let Some(inner) = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')) else { return false };
    // An escape is longer than its character.
    inner == name || inner.len() > name.len() && inner.contains('\\') && decode(inner) == name
}

/// Decodes what stands between the quotes of a string. Half a surrogate pair is shown as U+FFFD.
pub(super) fn decode(inner: &str) -> Cow<'_, str> {
    if inner.contains('\\') { Cow::Owned(unescape(inner, |_, _, _| ())) } else { Cow::Borrowed(inner) }
}

/// Decodes what stands between the quotes of a string. After each escape, `after` gets its character and where decoded and raw text go on.
/// The character is None for half a surrogate pair.
pub(super) fn unescape(inner: &str, mut after: impl FnMut(Option<char>, usize, usize)) -> String {
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let (c, len) = escape(&rest[at..]);
        text.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = rest.get(at + len..).unwrap_or_default();
        after(c, text.len(), inner.len() - rest.len());
    }
    text.push_str(rest);
    text
}

/// Returns the character of the escape at the beginning of a text, and how long the escape is.
fn escape(text: &str) -> (Option<char>, usize) {
    let unit = |text: &str| u32::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let plain = |c| (Some(c), 2);
    match text.as_bytes().get(1).copied().unwrap_or(b'\\') {
        b'b' => plain('\u{8}'),
        b'f' => plain('\u{c}'),
        b'n' => plain('\n'),
        b'r' => plain('\r'),
        b't' => plain('\t'),
        b'u' => match (unit(text), text.get(6..).and_then(unit)) {
            (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
                (char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), 12)
            }
            (one, _) => (one.and_then(char::from_u32), 6),
        },
        itself => plain(char::from(itself)),
    }
}

/// One step of the way to a value. A key has its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// Calls `visit` for each string and each number in a text, with the way there, which begins with `from`. Keys are not visited. It takes linear
/// time and no stack, however deep the text is nested; only the first steps of a very long way are given.
pub(super) fn walk<'a>(text: &'a str, from: Option<Step<'a>>, mut visit: impl FnMut(&[Step<'a>], Range<usize>)) {
    const LONGEST: usize = 32;
    let bytes = text.as_bytes();
    let mut path: Vec<Step<'a>> = from.into_iter().collect();
    // The bracket of each object and list that is open.
    let mut open: Vec<u8> = Vec::new();
    let (mut at, mut is_key_next) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'{' | b'[' => {
                open.push(byte);
                is_key_next = byte == b'{';
                if open.len() <= LONGEST {
                    path.push(if is_key_next { Step::Key("") } else { Step::Index(0) });
                }
            }
            b'}' | b']' => {
                if open.len() <= LONGEST {
                    path.pop();
                }
                open.pop();
                is_key_next = false;
            }
            b',' => {
                is_key_next = open.last() == Some(&b'{');
                if let (true, Some(Step::Index(index))) = (open.len() <= LONGEST, path.last_mut()) {
                    *index += 1;
                }
            }
            b'"' => {
                at = end_of_string(bytes, at);
                match path.last_mut() {
                    Some(step) if is_key_next && open.len() <= LONGEST => *step = Step::Key(&text[start..at]),
                    _ if is_key_next => {}
                    _ => visit(&path, start..at),
                }
                is_key_next = false;
            }
            b'-' | b'0'..=b'9' => {
                let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                at += bytes[at..].iter().take_while(|byte| is_number(byte)).count();
                visit(&path, start..at);
            }
            _ => {}
        }
    }
}

/// Returns where a string ends, behind its quote.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(n) = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        at += n;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at = (at + 2).min(bytes.len());
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_json_keeps_what_it_cannot_decode() {
        let object = Object::read(r#" { "\ud800" : "\udfff" , "n":1e999,"n" :-0.0e-12345678901234567890 } "#).unwrap();
        let entries = [(r#""\ud800""#, r#""\udfff""#), (r#""n""#, "1e999"), (r#""n""#, "-0.0e-12345678901234567890")];
        assert_eq!(object.0, entries);
        assert_eq!(object.get("n"), Some("-0.0e-12345678901234567890"));
        assert!(Object::read("[]").is_err());
    }

    #[test]
    fn a_name_is_found_however_it_is_written() {
        let object = Object::read(r#"{"m\u0065ssages":1,"input":null,"a\"b":"x\ty"}"#).unwrap();
        assert_eq!(object.get("messages"), Some("1"));
        assert_eq!(object.get("input"), None);
        assert_eq!(object.text("a\"b").unwrap(), "x\ty");
        assert_eq!(object.text("messages"), None);
    }

    #[test]
    fn strings_decode_as_serde_json_decodes_them() {
        for raw in [r#""""#, r#""plain é 😀""#, r#""\"\\\/\b\f\n\r\t\u00e9\u0000\ud83d\ude00x""#, r#""\u005cn\\n""#]
        {
            assert_eq!(text(raw).unwrap(), serde_json::from_str::<String>(raw).unwrap());
        }
        assert_eq!(
            text(r#""a\ud800b\udc00\ud800\u0041\ud83d\ud83d\ude00""#).unwrap(),
            "a\u{fffd}b\u{fffd}\u{fffd}A\u{fffd}😀"
        );
        assert_eq!(text("12"), None);
    }

    #[track_caller]
    fn check(text: &str, seen: &str) {
        let mut found = Vec::new();
        walk(text, None, |path, range| {
            let step = |step: &Step<'_>| match step {
                Step::Key(key) => key.trim_matches('"').to_owned(),
                Step::Index(index) => index.to_string(),
            };
            found.push(format!("{}={}", path.iter().map(step).collect::<Vec<_>>().join("."), &text[range]));
        });
        assert_eq!(found.join(" "), seen);
    }

    #[test]
    fn a_walk_sees_every_string_and_number() {
        check(
            r#"{"a":"x","b":["y",true,{"c":-1.5e+3,"d":{}},[]," z"],"e":null,"f":"}"}"#,
            "a=\"x\" b.0=\"y\" b.2.c=-1.5e+3 b.4=\" z\" f=\"}\"",
        );
        check(r#"[[["\"","\\"],3],{"k":[{}, "v"]}]"#, r#"0.0.0="\"" 0.0.1="\\" 0.1=3 1.k.1="v""#);
        check(r#""alone""#, r#"="alone""#);
        check("7", "=7");
        let deep = |inside: &str| format!("{}{inside}{}", "[0,".repeat(40), "]".repeat(40));
        let seen = |inside: &str| {
            let path = |n: usize| vec!["1"; n].join(".");
            let mut seen: Vec<String> = (1..32).map(|n| format!("{}.0=0", path(n))).collect();
            seen.insert(0, "0=0".to_owned());
            seen.extend((32..40).map(|_| format!("{}=0", path(32))));
            seen.extend(inside.split_whitespace().map(|value| format!("{}={value}", path(32))));
            seen.join(" ")
        };
        check(&deep(r#"{"k":"v","l":[{},"w"],"m":3}"#), &seen(r#""v" "w" 3"#));
    }
}
