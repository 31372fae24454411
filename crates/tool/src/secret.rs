//! Secrets: manifests name them, the process that needs one looks it up, and none is ever stored (SE-4).

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use aho_corasick::{AhoCorasick, MatchKind};
use secrecy::{ExposeSecret, SecretString};
use waybill_core::{
    id::{Name, ProjectId},
    tool::Header,
};

/// Shorter values are not treated as secrets: masking them would make holes in ordinary text.
const SHORTEST: usize = 8;
const BLOT: &str = "[secret]";

/// Where secrets are found: a file under the project's id or beside it, else an environment variable.
#[derive(Default)]
pub struct Secrets {
    folder: Option<PathBuf>,
    variables: Vec<(String, SecretString)>,
    /// The secrets that were used, so that they can be masked wherever a server echoes them.
    given: RwLock<Given>,
}

#[derive(Default)]
struct Given {
    secrets: BTreeSet<String>,
    /// Finds all of them, in every form, in one pass over a text. `None` means that no secret was used yet.
    echoes: Option<Arc<AhoCorasick>>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "secret `{name}` is not set: set {variable} in the environment of `waybill dev` or of the worker, and restart it; or write the secret to the file `{name}` in the secrets folder"
)]
pub struct NoSecret {
    name: Name,
    variable: String,
}

/// Why a project's manifest gets no secret.
#[derive(Debug, thiserror::Error)]
pub enum NotOwn {
    /// Says the same whether or not the secret exists: a project must not learn which secrets the operator has.
    #[error(
        "the project may not use the secret `{0}`: the operator must write it to the secrets folder of the project, or let all projects use it (`shared_secrets` of `egress`, or `secrets` of a provider)"
    )]
    NotAllowed(Name),
    /// The project may use it, but it is not set.
    #[error(transparent)]
    NotSet(#[from] NoSecret),
}

impl Secrets {
    /// Makes the store. `variables` are the environment of the process; only those that begin with `WAYBILL_SECRET_` are used.
    pub fn new(folder: Option<PathBuf>, variables: impl IntoIterator<Item = (String, String)>) -> Secrets {
        let ours = variables.into_iter().filter(|(name, _)| name.starts_with("WAYBILL_SECRET_"));
        let variables = ours.map(|(name, value)| (name, SecretString::from(value))).collect();
        Secrets { folder, variables, given: RwLock::default() }
    }

    /// Finds a secret. The project's own comes before one that all projects share.
    pub fn find(&self, project_id: ProjectId, name: &Name) -> Result<SecretString, NoSecret> {
        let variable = format!("WAYBILL_SECRET_{}", name.as_str().to_uppercase().replace('-', "_"));
        let folder = self.folder.iter();
        let files = folder.flat_map(|folder| [folder.join(project_id.to_string()), folder.clone()]);
        let read = files.map(|folder| folder.join(name.as_str())).find_map(|file| std::fs::read_to_string(file).ok());
        let held = || self.variables.iter().find(|(known, _)| *known == variable).map(|(_, value)| value.clone());
        let found = read.map(|text| SecretString::from(text.trim().to_owned())).or_else(held);
        let found = found.ok_or_else(|| NoSecret { name: name.clone(), variable })?;
        self.give(found.expose_secret());
        Ok(found)
    }

    /// Finds a secret that a project's own manifests may send to hosts that the project names: the project's own secrets, and those that all
    /// projects may send. No manifest may decide where the other secrets are sent.
    pub fn find_own(
        &self,
        project_id: ProjectId,
        name: &Name,
        shared: &BTreeSet<Name>,
    ) -> Result<SecretString, NotOwn> {
        let file = self.folder.as_ref().map(|folder| folder.join(project_id.to_string()).join(name.as_str()));
        if shared.contains(name) || file.is_some_and(|file| file.is_file()) {
            return Ok(self.find(project_id, name)?);
        }
        Err(NotOwn::NotAllowed(name.clone()))
    }

    /// Masks every used secret in the text, whether plain, in base64, in hex or percent-encoded. A secret that is cut in two is not found.
    pub fn blot(&self, text: String) -> String {
        let given = self.given.read().unwrap_or_else(PoisonError::into_inner).echoes.clone();
        let Some(echoes) = given.filter(|echoes| text.len() >= SHORTEST && echoes.is_match(&text)) else { return text };
        let mut blotted = String::with_capacity(text.len());
        echoes.replace_all_with(&text, &mut blotted, |_, _, blotted| {
            blotted.push_str(BLOT);
            true
        });
        blotted
    }

    /// Notes that a secret was used.
    fn give(&self, secret: &str) {
        let is_known = |given: &Given| secret.len() < SHORTEST || given.secrets.contains(secret);
        if is_known(&self.given.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        given.secrets.insert(secret.to_owned());
        let forms: BTreeSet<String> = given.secrets.iter().flat_map(|secret| echoes(secret)).collect();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(forms);
        given.echoes =
            finder.inspect_err(|error| tracing::error!(%error, "secrets cannot be masked in text")).ok().map(Arc::new);
    }
}

/// Returns the forms in which a secret may come back: plain, and in other encodings, also inside a longer text.
fn echoes(secret: &str) -> Vec<String> {
    let hex = |digits: &[u8; 16]| -> String {
        let byte = |byte: u8| [digits[usize::from(byte >> 4)] as char, digits[usize::from(byte & 15)] as char];
        secret.bytes().flat_map(byte).collect()
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let percent = |hex: fn(u8) -> String| -> String {
        secret.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { hex(byte) }).collect()
    };
    let mut echoes = vec![
        secret.to_owned(),
        hex(b"0123456789abcdef"),
        hex(b"0123456789ABCDEF"),
        percent(|byte| format!("%{byte:02X}")),
        percent(|byte| format!("%{byte:02x}")),
    ];
    for last in [*b"+/", *b"-_"] {
        echoes.extend((0..3).map(|before| base64(secret, before, last)));
    }
    echoes
}

/// Returns the base64 letters that depend on the text alone, if `before` bytes come before it and anything may follow.
fn base64(text: &str, before: usize, last: [u8; 2]) -> String {
    let letters: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(last).collect();
    let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(text.bytes()).collect();
    let bit = |n: usize| usize::from(bytes[n / 8] >> (7 - n % 8) & 1);
    let whole = (8 * before).div_ceil(6)..8 * bytes.len() / 6;
    let letter = |n: usize| (0..6).fold(0, |letter, at| letter << 1 | bit(6 * n + at));
    whole.map(|n| char::from(letters[letter(n)])).collect()
}

/// Returns the value of a header or a variable. `find` looks up the secret that it names.
pub fn told<E>(header: &Header, find: impl Fn(&Name) -> Result<SecretString, E>) -> Result<SecretString, E> {
    Ok(match header {
        Header::Text(text) => SecretString::from(text.clone()),
        Header::Secret(named) => {
            SecretString::from(format!("{}{}", named.prefix, find(&named.secret)?.expose_secret()))
        }
    })
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} variables)", self.variables.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_echo_in_another_encoding_is_found() {
        let secrets = Secrets::new(None, [("WAYBILL_SECRET_KEY".to_owned(), "ab?>~/p-secret".to_owned())]);
        secrets.find(ProjectId::new(), &"key".parse().unwrap()).unwrap();
        // Alone, before a line feed, after a user name, inside a longer text; hex; percent-encoded.
        for echo in [
            "YWI/Pn4vcC1zZWNyZXQ=",
            "YWI_Pn4vcC1zZWNyZXQK",
            "dTphYj8+fi9wLXNlY3JldA==",
            "YWI6YzphYj8+fi9wLXNlY3JldHg=",
            "61623f3e7e2f702d736563726574",
            "61623F3E7E2F702D736563726574",
            "ab%3F%3E~%2Fp-secret",
            "ab%3f%3e~%2fp-secret",
        ] {
            let blotted = secrets.blot(format!("it said {echo}."));
            assert!(blotted.contains(BLOT) && blotted.len() < 8 + BLOT.len() + 16, "{blotted}");
        }
        assert_eq!(secrets.blot("nothing of that".to_owned()), "nothing of that");
    }

    /// SE-4: a secret is found by name, the project's own first, and masked once it was used.
    #[test]
    fn a_secret_is_found_and_blotted_out() {
        let folder = std::env::temp_dir().join(format!("waybill-secrets-{}", ProjectId::new()));
        let (ours, theirs) = (ProjectId::new(), ProjectId::new());
        std::fs::create_dir_all(folder.join(ours.to_string())).unwrap();
        std::fs::write(folder.join("openai"), "sk-everybody\n").unwrap();
        std::fs::write(folder.join(ours.to_string()).join("openai"), "sk-of-ours").unwrap();
        let variables = [("WAYBILL_SECRET_MY_KEY".to_owned(), "sk-variable".to_owned())];
        let secrets = Secrets::new(Some(folder.clone()), variables);
        let name = |name: &str| name.parse::<Name>().unwrap();
        let found = |project_id, key: &str| {
            secrets.find(project_id, &name(key)).map(|secret| secret.expose_secret().to_owned())
        };
        assert_eq!(secrets.blot("sk-of-ours".into()), "sk-of-ours", "it was not used yet");
        assert_eq!(found(ours, "openai").unwrap(), "sk-of-ours");
        assert_eq!(found(theirs, "openai").unwrap(), "sk-everybody");
        assert_eq!(found(theirs, "my-key").unwrap(), "sk-variable");
        let own = |project_id, key: &str, shared: &[&str]| {
            let shared = shared.iter().map(|key| name(key)).collect();
            secrets.find_own(project_id, &name(key), &shared).map(|secret| secret.expose_secret().to_owned()).ok()
        };
        assert_eq!(own(ours, "openai", &[]).unwrap(), "sk-of-ours");
        assert_eq!(own(theirs, "openai", &[]), None, "what all share is not theirs to send anywhere");
        assert_eq!(own(theirs, "my-key", &[]), None);
        assert_eq!(own(theirs, "my-key", &["my-key"]).unwrap(), "sk-variable");
        let refused = |key: &str, shared: &[&str]| {
            let shared = shared.iter().map(|key| name(key)).collect();
            secrets.find_own(theirs, &name(key), &shared).unwrap_err().to_string()
        };
        let not_set = refused("other", &["other"]);
        assert!(not_set.contains("set WAYBILL_SECRET_OTHER in the environment"), "{not_set}");
        let (exists, does_not) = (refused("my-key", &[]), refused("other", &[]));
        assert!(exists.contains("the project may not use the secret `my-key`"), "{exists}");
        assert_eq!(exists.replace("my-key", "other"), does_not, "what is not allowed is not revealed");
        let missing = found(theirs, "other").unwrap_err().to_string();
        assert!(missing.contains("WAYBILL_SECRET_OTHER"), "{missing}");
        assert_eq!(secrets.blot("bad key sk-of-ours: no".into()), "bad key [secret]: no");
        assert!(!format!("{secrets:?}").contains("sk-"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
