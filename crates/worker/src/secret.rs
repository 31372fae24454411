//! Secrets: known by name in manifests, found by the process that needs them, and never written down (SE-4).

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use secrecy::{ExposeSecret, SecretString};
use waybill_core::{
    id::{Name, ProjectId},
    tool::Header,
};

/// Shorter ones are no secrets, and blotting them out would make holes in ordinary text.
const SHORTEST: usize = 8;
const BLOT: &str = "[secret]";

/// Where secrets are found: a file under the project's id or beside it, else an environment variable.
#[derive(Default)]
pub struct Secrets {
    folder: Option<PathBuf>,
    variables: Vec<(String, SecretString)>,
    /// What was given out, so that it can be blotted out wherever somebody echoes it.
    given: Mutex<BTreeSet<String>>,
}

#[derive(Debug, thiserror::Error)]
#[error("there is no secret `{name}`: set {variable}, or write it to a file of that name in the folder of secrets")]
pub struct NoSecret {
    name: Name,
    variable: String,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the project has no secret `{0}` of its own: whoever runs Waybill writes it into the project's folder of secrets, or lets projects send it (`shared_secrets` of `egress`, `secrets` of a provider)"
)]
pub struct NotOwn(Name);

impl Secrets {
    /// `variables` are the process's own, of which those that begin with `WAYBILL_SECRET_` count.
    pub fn new(folder: Option<PathBuf>, variables: impl IntoIterator<Item = (String, String)>) -> Secrets {
        let ours = variables.into_iter().filter(|(name, _)| name.starts_with("WAYBILL_SECRET_"));
        let variables = ours.map(|(name, value)| (name, SecretString::from(value))).collect();
        Secrets { folder, variables, given: Mutex::default() }
    }

    /// A project's own comes before one that all share.
    pub fn find(&self, project_id: ProjectId, name: &Name) -> Result<SecretString, NoSecret> {
        let variable = format!("WAYBILL_SECRET_{}", name.as_str().to_uppercase().replace('-', "_"));
        let folder = self.folder.iter();
        let files = folder.flat_map(|folder| [folder.join(project_id.to_string()), folder.clone()]);
        let read = files.map(|folder| folder.join(name.as_str())).find_map(|file| std::fs::read_to_string(file).ok());
        let held = || self.variables.iter().find(|(known, _)| *known == variable).map(|(_, value)| value.clone());
        let found = read.map(|text| SecretString::from(text.trim().to_owned())).or_else(held);
        let found = found.ok_or_else(|| NoSecret { name: name.clone(), variable })?;
        if found.expose_secret().len() >= SHORTEST {
            self.given().insert(found.expose_secret().to_owned());
        }
        Ok(found)
    }

    /// For what a project's own manifests send, to hosts that it names itself: its own, and those that all may send. Of the others nobody's
    /// manifest may say where they go.
    pub fn find_own(
        &self,
        project_id: ProjectId,
        name: &Name,
        shared: &BTreeSet<Name>,
    ) -> Result<SecretString, NotOwn> {
        let file = self.folder.as_ref().map(|folder| folder.join(project_id.to_string()).join(name.as_str()));
        if shared.contains(name) || file.is_some_and(|file| file.is_file()) {
            return self.find(project_id, name).map_err(|_| NotOwn(name.clone()));
        }
        Err(NotOwn(name.clone()))
    }

    /// The text without anything that was given out as a secret: as it is, in base64, in hex or percent-encoded. One that is cut in two is not found.
    pub fn blot(&self, text: String) -> String {
        let given = self.given();
        let forms = given.iter().flat_map(|secret| echoes(secret));
        let echoed: Vec<String> = forms.filter(|form| text.contains(form.as_str())).collect();
        echoed.iter().fold(text, |text, form| text.replace(form.as_str(), BLOT))
    }

    fn given(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ways in which a secret may come back. Encodings are without padding, so that they are found with it too.
fn echoes(secret: &str) -> [String; 6] {
    let hex = |digits: &[u8; 16]| -> String {
        let byte = |byte: u8| [digits[usize::from(byte >> 4)] as char, digits[usize::from(byte & 15)] as char];
        secret.bytes().flat_map(byte).collect()
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let percent = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    [
        secret.to_owned(),
        base64(secret, *b"+/"),
        base64(secret, *b"-_"),
        hex(b"0123456789abcdef"),
        hex(b"0123456789ABCDEF"),
        secret.bytes().map(percent).collect(),
    ]
}

fn base64(text: &str, last: [u8; 2]) -> String {
    let letters: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(last).collect();
    let three = |three: &[u8]| {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letter = |n: usize| char::from(letters[(bits >> (18 - 6 * n) & 63) as usize]);
        (0..=three.len()).map(letter).collect::<String>()
    };
    text.as_bytes().chunks(3).map(three).collect()
}

/// What a header, or a variable, says, with the secret that it names as `find` knows it.
pub(crate) fn told<E>(header: &Header, find: impl Fn(&Name) -> Result<SecretString, E>) -> Result<SecretString, E> {
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
        let secret = "ab?>~/p-secret";
        let forms = [
            "YWI/Pn4vcC1zZWNyZXQ",
            "YWI_Pn4vcC1zZWNyZXQ",
            "61623f3e7e2f702d736563726574",
            "61623F3E7E2F702D736563726574",
            "ab%3F%3E~%2Fp-secret",
        ];
        assert_eq!(echoes(secret)[1..], forms);
        let secrets = Secrets::new(None, [("WAYBILL_SECRET_KEY".to_owned(), secret.to_owned())]);
        secrets.find(ProjectId::new(), &"key".parse().unwrap()).unwrap();
        for form in forms {
            assert_eq!(secrets.blot(format!("Basic {form}== and more")), format!("Basic {BLOT}== and more"));
        }
    }

    /// SE-4: found by name, a project's own first, and blotted out once it was given.
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
        assert_eq!(secrets.blot("sk-of-ours".into()), "sk-of-ours", "nobody has it yet");
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
        let missing = found(theirs, "other").unwrap_err().to_string();
        assert!(missing.contains("WAYBILL_SECRET_OTHER"), "{missing}");
        assert_eq!(secrets.blot("bad key sk-of-ours: no".into()), "bad key [secret]: no");
        assert!(!format!("{secrets:?}").contains("sk-"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
