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

    /// The text without anything that was given out as a secret.
    pub fn blot(&self, text: String) -> String {
        let given = self.given();
        let echoed = given.iter().filter(|secret| text.contains(secret.as_str()));
        echoed.fold(text.clone(), |text, secret| text.replace(secret.as_str(), BLOT))
    }

    fn given(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
