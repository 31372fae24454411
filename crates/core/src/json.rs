//! JSON that means the same to every reader: the boundary, the escape, the canonical form (CB-5).
//!
//! The canonical form is RFC 8785: sorted keys, one way to write a number. It computes with doubles, so a number
//! that a double would round is refused at the boundary, with its place. PostgreSQL cannot hold U+0000 and
//! Rust cannot hold a lone surrogate, so both travel inside Waybill as an escape made of visible characters:
//!
//! | outside | inside |
//! | --- | --- |
//! | U+0000 | `␛0000` |
//! | a lone surrogate, say `\ud800` | `␛D800` |
//! | `␛` (U+241B) itself | `␛␛` |
//!
//! [`parse`] and [`text`] bring things in, [`wire`] brings them out unchanged.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// The largest integer a double can tell from its neighbours: 2^53 − 1.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Deeper values are refused: there must be room to wrap one and still read it back.
pub const MAX_DEPTH: usize = 100;

const ESC: char = '␛';
const ESC_UTF8: [u8; 3] = [0xE2, 0x90, 0x9B];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this is not valid JSON")]
    Syntax(#[from] serde_json::Error),
    #[error(
        "the number {number} at {at} would lose precision: send it as a string, or use a number between −(2^53−1) and 2^53−1 with at most 17 significant digits"
    )]
    Rounded { number: String, at: String },
    #[error(
        "the text at {at} contains U+0000 or an unescaped `␛`, which cannot be stored: remove it, or write `␛` twice"
    )]
    Unescaped { at: String },
    #[error("the value at {at} is nested more than {MAX_DEPTH} levels deep")]
    Deep { at: String },
}

/// Reads JSON from outside: escapes what cannot be stored, refuses what would be rounded.
pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    let admitted = admit_bytes(bytes)?;
    let Strict(value) = serde_json::from_slice(&admitted)?;
    check(&value)?;
    Ok(value)
}

/// Brings plain text from outside in.
pub fn text(outside: &str) -> Cow<'_, str> {
    if !outside.contains(['\0', ESC]) {
        return Cow::Borrowed(outside);
    }
    let mut inside = String::with_capacity(outside.len() + 8);
    for c in outside.chars() {
        match c {
            '\0' => inside.push_str("␛0000"),
            ESC => inside.push_str("␛␛"),
            c => inside.push(c),
        }
    }
    Cow::Owned(inside)
}

/// Turns JSON text of ours into what the outside gave us: the inverse of [`parse`], for any text [`canonical`] made.
pub fn wire(canonical: &str) -> Cow<'_, str> {
    unescape(canonical, |outside, digits| {
        outside.push_str("\\u");
        outside.push_str(digits);
    })
}

/// Turns JSON text of ours into text for a strict reader: what could not be stored, U+0000 and lone surrogates, is shown as U+FFFD.
pub fn legible(canonical: &str) -> Cow<'_, str> {
    unescape(canonical, |shown, _| shown.push(char::REPLACEMENT_CHARACTER))
}

/// `unit` writes what the four digits behind an escape stand for.
fn unescape(canonical: &str, unit: impl Fn(&mut String, &str)) -> Cow<'_, str> {
    if !canonical.contains(ESC) {
        return Cow::Borrowed(canonical);
    }
    let mut outside = String::with_capacity(canonical.len());
    let mut rest = canonical;
    while let Some(at) = rest.find(ESC) {
        outside.push_str(&rest[..at]);
        rest = &rest[at + ESC.len_utf8()..];
        if let Some(after) = rest.strip_prefix(ESC) {
            outside.push(ESC);
            rest = after;
        } else if let Some(digits) = rest.get(..4).filter(|digits| is_escaped_unit(digits)) {
            unit(&mut outside, digits);
            rest = &rest[4..];
        } else {
            outside.push(ESC);
        }
    }
    outside.push_str(rest);
    Cow::Owned(outside)
}

/// Brings text in that may have been inside before: what can be stored as it is stays as it is.
pub fn readmit(text: String) -> String {
    if check_string(&text).is_ok() { text } else { self::text(&text).into_owned() }
}

/// Checks whether a value built inside Waybill may be stored as it is.
pub fn check(value: &Value) -> Result<(), Error> {
    check_at(value, &Place::Root, 0)
}

/// [`check`] for the fields of an object.
pub fn check_fields(fields: &Map<String, Value>) -> Result<(), Error> {
    check_object(fields, &Place::Root, 0)
}

/// Writes a value that passed [`check`] as RFC 8785 text.
pub fn canonical<T: Serialize>(value: &T) -> String {
    serde_json_canonicalizer::to_string(value).expect("values with string keys and finite numbers always serialise")
}

/// Where in a value we are; spelled out as a JSON pointer only for an error.
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl Place<'_> {
    fn pointer(&self) -> String {
        match self {
            Place::Root => "/".to_owned(),
            Place::Key(Place::Root, key) => format!("/{key}"),
            Place::Key(parent, key) => format!("{}/{key}", parent.pointer()),
            Place::Index(Place::Root, index) => format!("/{index}"),
            Place::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }
}

fn check_at(value: &Value, place: &Place<'_>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Deep { at: place.pointer() });
    }
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) if is_exact(number) => Ok(()),
        Value::Number(number) => Err(Error::Rounded { number: number.to_string(), at: place.pointer() }),
        Value::String(text) => check_text(text, place),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| check_at(item, &Place::Index(place, index), depth + 1))
        }
        Value::Object(fields) => check_object(fields, place, depth),
    }
}

fn check_object(fields: &Map<String, Value>, place: &Place<'_>, depth: usize) -> Result<(), Error> {
    fields.iter().try_for_each(|(key, field)| {
        let place = Place::Key(place, key);
        check_text(key, &place)?;
        check_at(field, &place, depth + 1)
    })
}

/// [`check`] for a plain string.
pub fn check_string(text: &str) -> Result<(), Error> {
    check_text(text, &Place::Root)
}

fn check_text(text: &str, place: &Place<'_>) -> Result<(), Error> {
    let well_escaped = !text.contains(ESC) || {
        let mut rest = text;
        loop {
            let Some(at) = rest.find(ESC) else { break true };
            rest = &rest[at + ESC.len_utf8()..];
            if let Some(after) = rest.strip_prefix(ESC) {
                rest = after;
            } else if !rest.get(..4).is_some_and(is_escaped_unit) {
                break false;
            }
        }
    };
    if text.contains('\0') || !well_escaped { Err(Error::Unescaped { at: place.pointer() }) } else { Ok(()) }
}

/// The four digits behind `␛`: U+0000 or a surrogate, as [`parse`] writes them.
fn is_escaped_unit(digits: &str) -> bool {
    digits == "0000"
        || matches!(digits.as_bytes(), [b'D', b'8'..=b'9' | b'A'..=b'F', rest @ ..]
            if rest.iter().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F')))
}

fn is_exact(number: &Number) -> bool {
    if let Some(integer) = number.as_i64() {
        return integer.unsigned_abs() <= MAX_SAFE_INTEGER as u64;
    }
    number.as_f64().is_some_and(|double| !number.is_u64() && stays_itself(double))
}

/// From 2^53 up to 1e21 the canonical form writes a double as an integer that the next reader must refuse.
fn stays_itself(double: f64) -> bool {
    double.is_finite() && (double.abs() <= MAX_SAFE_INTEGER as f64 || double.abs() >= 1e21)
}

/// A value in which no object names a key twice: readers would not agree which one counts.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(field))) = fields.next_entry::<String, Strict>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} appears twice in one object")));
            }
            object.insert(key, field);
        }
        Ok(Value::Object(object))
    }
}

/// One pass over the raw bytes, because a parsed number has already been rounded and a lone surrogate is
/// already an error. Anything malformed is passed on for the parser to report.
fn admit_bytes(bytes: &[u8]) -> Result<Cow<'_, [u8]>, Error> {
    let mut admitted: Vec<u8> = Vec::new();
    let mut copied = 0; // bytes[..copied] are already in `admitted`
    let mut in_string = false;
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if !in_string {
            if byte == b'"' {
                in_string = true;
                at += 1;
            } else if byte == b'-' || byte.is_ascii_digit() {
                let end = bytes[at..]
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
                    .map_or(bytes.len(), |length| at + length);
                check_token(&bytes[at..end], at)?;
                at = end;
            } else {
                at += 1;
            }
            continue;
        }
        let (length, escape) = match byte {
            b'"' => {
                in_string = false;
                (1, None)
            }
            b'\\' => match unit_at(bytes, at) {
                Some(0) => (6, Some("␛0000".to_owned())),
                Some(0x241B) => (6, Some("␛␛".to_owned())),
                Some(0xD800..=0xDBFF) if matches!(unit_at(bytes, at + 6), Some(0xDC00..=0xDFFF)) => (12, None),
                Some(unit @ 0xD800..=0xDFFF) => (6, Some(format!("␛{unit:04X}"))),
                _ => (2, None),
            },
            _ if bytes[at..].starts_with(&ESC_UTF8) => (3, Some("␛␛".to_owned())),
            _ => (1, None),
        };
        if let Some(escape) = escape {
            admitted.extend_from_slice(&bytes[copied..at]);
            admitted.extend_from_slice(escape.as_bytes());
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(bytes));
    }
    admitted.extend_from_slice(&bytes[copied..]);
    Ok(Cow::Owned(admitted))
}

/// The UTF-16 unit that a `\uXXXX` escape at this place stands for.
fn unit_at(bytes: &[u8], at: usize) -> Option<u16> {
    let hex = std::str::from_utf8(bytes.get(at..at + 6)?.strip_prefix(b"\\u")?).ok()?;
    hex.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u16::from_str_radix(hex, 16).ok())?
}

fn check_token(token: &[u8], at: usize) -> Result<(), Error> {
    let plain = token.len() <= 15 && token.iter().all(|b| matches!(b, b'0'..=b'9' | b'-' | b'.'));
    if plain {
        return Ok(()); // up to 15 digits survive a double
    }
    let Ok(token) = std::str::from_utf8(token) else { return Ok(()) };
    let Ok(double) = token.parse::<f64>() else { return Ok(()) };
    if stays_itself(double) && decimal(token) == decimal(&canonical(&double)) {
        return Ok(());
    }
    Err(Error::Rounded { number: token.to_owned(), at: format!("byte {at}") })
}

/// Sign, digits without zeros at either end, and the power of ten of the first digit.
fn decimal(token: &str) -> (bool, String, i64) {
    let (negative, token) = token.strip_prefix('-').map_or((false, token), |rest| (true, rest));
    let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let significant = digits.trim_matches('0').to_owned();
    if significant.is_empty() {
        return (false, significant, 0);
    }
    // Out of range either way, a number that far off is zero or infinite as a double and does not compare equal.
    let exponent: i64 = exponent.parse().unwrap_or(i64::MAX);
    (negative, significant, exponent.saturating_add(whole.len() as i64).saturating_sub(leading as i64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn accepts(outside: &str, inside: &str) {
        let value = parse(outside.as_bytes()).unwrap();
        check(&value).unwrap();
        assert_eq!(canonical(&value), inside);
    }

    #[track_caller]
    fn refuses(outside: &str, complaint: &str) {
        let error = parse(outside.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }

    #[test]
    fn the_canonical_form_is_rfc_8785() {
        accepts(r#"{"b":1.0,"a":[true,null,"x"]}"#, r#"{"a":[true,null,"x"],"b":1}"#);
        accepts("[1e-7,-0,0.30000000000000004,1e21]", "[1e-7,0,0.30000000000000004,1e+21]");
        accepts("9007199254740991", "9007199254740991");
        accepts(r#""\u20ac""#, "\"€\"");
    }

    /// CB-5
    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        refuses("9007199254740993", "9007199254740993 at byte 0");
        refuses(r#"{"n":-9007199254740992}"#, "at byte 5");
        refuses("[1,100000000000000000000]", "would lose precision");
        refuses("1e20", "1e20 at byte 0"); // would be written as an integer that no caller may send back
        refuses("0.001e-9223372036854775808", "would lose precision");
        refuses("1e400", "would lose precision");
        refuses("1e-400", "would lose precision");
        refuses("0.1000000000000000055511151231257827", "would lose precision");
        let inside = serde_json::json!({"a": [0, {"b": 9_007_199_254_740_993_u64}]});
        assert!(check(&inside).unwrap_err().to_string().contains("at /a/1/b"));
        assert!(check(&serde_json::json!(u64::MAX)).is_err());
    }

    /// CB-5
    #[test]
    fn nul_and_lone_surrogates_have_one_escape() {
        accepts(r#""a\u0000b""#, "\"a␛0000b\"");
        accepts(r#""\ud800x""#, "\"␛D800x\"");
        accepts(r#""\ud83d\ude00 \ude00""#, "\"😀 ␛DE00\"");
        accepts(r#""␛ \u241b""#, "\"␛␛ ␛␛\"");
        accepts(r#"{"\u0000":"\\u0000"}"#, r#"{"␛0000":"\\u0000"}"#);
        assert_eq!(text("a\0␛"), "a␛0000␛␛");
        assert_eq!(wire("\"␛D800 ␛␛ ␛0000\""), "\"\\uD800 ␛ \\u0000\"");
        for stray in ["\0", "a␛b", "␛", "␛0041", "␛d800"] {
            assert!(matches!(check(&Value::String(stray.into())), Err(Error::Unescaped { .. })), "{stray:?}");
        }
    }

    #[test]
    fn what_readers_would_not_agree_on_is_refused() {
        let complaint = |bytes: &[u8]| format!("{:?}", parse(bytes).unwrap_err());
        assert!(complaint(br#"{"a":1,"b":{"c":1,"c":2}}"#).contains("appears twice"));
        assert!(complaint(br#""\u+000""#).contains("Syntax"));
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(complaint(nested(MAX_DEPTH + 2).as_bytes()).contains("Deep"));
        assert!(check_fields(&[("\0".to_owned(), Value::Null)].into_iter().collect()).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).prop_map(Value::from),
            any::<f64>().prop_filter("exact", |double| stays_itself(*double)).prop_map(Value::from),
            "[a␛\u{1}é\"\\\\😀]{0,6}".prop_map(|s| Value::from(text(&s).into_owned())),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-c␛]{1,2}", inner, 0..4).prop_map(|fields| {
                    fields.into_iter().map(|(key, field)| (text(&key).into_owned(), field)).collect()
                }),
            ]
        })
    }

    proptest! {
        /// CB-5
        #[test]
        fn what_goes_out_comes_back_as_the_same_bytes(value in any_json()) {
            let stored = canonical(&value);
            let again = parse(wire(&stored).as_bytes()).unwrap();
            prop_assert_eq!(canonical(&again), stored);
        }

        #[test]
        fn the_boundary_never_panics(bytes in "[\\[\\]{}\",:\\\\u0d8c241be+.\\-1-9]{0,40}") {
            let _ = parse(bytes.as_bytes());
        }
    }
}
