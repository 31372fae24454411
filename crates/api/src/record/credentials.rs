//! The credentials of a request, so that none of them is stored with its answer: a server may repeat what it was sent.

use std::{collections::HashMap, fmt};

use axum::http::{HeaderMap, header};
use waybill_context::record::withhold;

/// A shorter text is no credential: it could be a word of any answer. Cookies keep much else than credentials.
const LEAST: usize = 8;
const LEAST_OF_COOKIE: usize = 12;
/// How a credential may be sent.
const SCHEMES: [&str; 4] = ["bearer", "basic", "token", "apikey"];
/// What is stored in place of a credential.
const INSTEAD: &str = "withheld";

/// In memory only.
#[derive(Default)]
pub(super) struct Credentials(Vec<String>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.0.len())
    }
}

impl Credentials {
    /// Finds those in the headers and the query that are sent to a provider.
    pub(super) fn of(headers: &HeaderMap, query: Option<&str>) -> Credentials {
        let mut found = Vec::new();
        for (name, value) in headers {
            let Ok(value) = value.to_str() else { continue };
            if *name == header::COOKIE {
                let values = value.split(';').filter_map(|cookie| Some(cookie.split_once('=')?.1.trim()));
                found.extend(values.filter(|value| value.len() >= LEAST_OF_COOKIE));
            } else if name.as_str().contains("auth") || withhold::is_credential(name.as_str()) {
                found.push(value);
            }
        }
        let parameters = query.unwrap_or_default().split('&').filter_map(|parameter| parameter.split_once('='));
        found.extend(parameters.filter(|(name, _)| withhold::is_credential(name)).map(|(_, value)| value));
        let mut credentials = Credentials::default();
        credentials.add(found.into_iter().map(str::to_owned).collect());
        credentials
    }

    pub(super) fn add(&mut self, more: Vec<String>) {
        for text in more {
            // Without its scheme too.
            let sent =
                text.split_once(' ').filter(|(scheme, _)| SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()));
            self.0.extend(sent.map(|(_, text)| text.trim().to_owned()));
            self.0.push(text);
        }
    }

    /// Replaces each of them in the body of an answer. Returns how many places that were.
    pub(super) fn withheld_from(&self, body: String) -> (String, usize) {
        let long = self.0.iter().filter(|text| text.len() >= LEAST);
        let mut forms: Vec<String> = long.flat_map(|text| forms(text)).collect();
        // The longest first: one may begin with another.
        forms.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        forms.dedup();
        let mut by_start = HashMap::<&[u8], Vec<&str>>::new();
        for form in &forms {
            by_start.entry(&form.as_bytes()[..LEAST]).or_default().push(form);
        }
        let mut is_first = [false; 256];
        by_start.keys().for_each(|start| is_first[usize::from(start[0])] = true);
        let (bytes, mut kept) = (body.as_bytes(), String::new());
        let (mut from, mut at, mut n) = (0, 0, 0);
        while let Some(start) = bytes.get(at..at + LEAST) {
            let forms = if is_first[usize::from(start[0])] { by_start.get(start) } else { None };
            match forms.and_then(|forms| forms.iter().find(|form| bytes[at..].starts_with(form.as_bytes()))) {
                Some(form) => {
                    kept.push_str(&body[from..at]);
                    kept.push_str(INSTEAD);
                    at += form.len();
                    (from, n) = (at, n + 1);
                }
                None => at += 1,
            }
        }
        if n == 0 {
            return (body, 0);
        }
        kept.push_str(&body[from..]);
        (kept, n)
    }
}

/// Returns how a text can stand in a body: as it is, and in the ways that JSON writes it.
fn forms(text: &str) -> Vec<String> {
    let quoted = serde_json::to_string(text).expect("a text is JSON");
    let escaped = quoted[1..quoted.len() - 1].to_owned();
    let mut ascii = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        match c.is_ascii() {
            true => ascii.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    let mut forms = vec![text.to_owned(), escaped.replace('/', "\\/"), ascii, escaped];
    forms.sort();
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn credentials(headers: &[(&'static str, &'static str)], query: &str) -> Credentials {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(*name, HeaderValue::from_static(value));
        }
        Credentials::of(&all, Some(query))
    }

    /// RC-3: whatever a server repeats, no credential is stored.
    #[test]
    fn what_a_server_repeats_is_withheld() {
        let mut all = credentials(
            &[
                ("authorization", "Bearer sk-authorization"),
                ("x-api-key", "sk-key-of-x"),
                ("cookie", "a=cookie-one-session; b=cookie-two-session; theme=darkmode"),
                ("user-agent", "some-agent/1.0"),
            ],
            "key=sk-of-the-query&beta=true-enough",
        );
        all.add(vec!["a/b+c=\"d\"é".to_owned(), "short".to_owned(), "sk-key-of-x-and-more".to_owned()]);
        let check = |body: &str, stored: &str, n: usize| {
            assert_eq!(all.withheld_from(body.to_owned()), (stored.to_owned(), n), "{body}");
        };
        check("no sk-authorization here", "no withheld here", 1);
        check("Bearer sk-authorization", "withheld", 1);
        check("sk-key-of-x-and-more, sk-key-of-x.", "withheld, withheld.", 2);
        check("cookie-one-session cookie-two-session sk-of-the-query é", "withheld withheld withheld é", 3);
        check("darkmode", "darkmode", 0);
        check("some-agent/1.0 true-enough short", "some-agent/1.0 true-enough short", 0);
        check(r#"éa/b+c="d"é"#, "éwithheld", 1);
        check(r#"{"k":"a/b+c=\"d\"é"}"#, r#"{"k":"withheld"}"#, 1);
        check(r#"{"k":"a\/b+c=\"d\"é"}"#, r#"{"k":"withheld"}"#, 1);
        check(r#"{"k":"a/b+c=\"d\"\u00e9"}"#, r#"{"k":"withheld"}"#, 1);
        check("", "", 0);
        assert_eq!(format!("{all:?}"), "Credentials(9)");
    }
}
