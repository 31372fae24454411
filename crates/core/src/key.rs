//! API keys: `wb_<env>_<key id>_<256 bits>_<checksum>`. A key is shown once; only its hash is stored (SE-1). And the secrets of browsers (SE-11).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    artifact::ArtifactPath,
    bus::PMO,
    id::{KeyId, Name, Target},
};

/// What a key may do in its project. `admin`: everything. `operator`: start and stop turns, and read. `worker`: run turns, answer calls, and read.
/// `tool`: answer calls. `reader`: read. `approver`: see requests to people, and decide them. `auditor`: see who did what and when, but no content.
/// `developer`: apply profiles and tools of its targets, and read. `recorder`: send requests to model providers through the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Everything.
    Admin,
    /// Start and stop turns, and read.
    Operator,
    /// Run turns, answer calls, and read.
    Worker,
    /// Answer calls.
    Tool,
    /// Read.
    Reader,
    /// See requests to people, and decide them.
    Approver,
    /// Read the record: who did what, and when. Not the content.
    Auditor,
    /// Apply profiles, register tools of its own targets, and read.
    Developer,
    /// Send requests to model providers, which are recorded. Nothing else: it cannot read what was recorded, unless the operator allows replays.
    Recorder,
}

impl Scope {
    pub const ALL: [Scope; 9] = [
        Scope::Admin,
        Scope::Operator,
        Scope::Worker,
        Scope::Tool,
        Scope::Reader,
        Scope::Approver,
        Scope::Auditor,
        Scope::Developer,
        Scope::Recorder,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::Operator => "operator",
            Scope::Worker => "worker",
            Scope::Tool => "tool",
            Scope::Reader => "reader",
            Scope::Approver => "approver",
            Scope::Auditor => "auditor",
            Scope::Developer => "developer",
            Scope::Recorder => "recorder",
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a scope: use admin, operator, worker, tool, reader, approver, auditor, developer or recorder")]
pub struct MalformedScope(String);

impl FromStr for Scope {
    type Err = MalformedScope;

    fn from_str(text: &str) -> Result<Scope, MalformedScope> {
        let found = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| MalformedScope(text.to_owned()))
    }
}

/// Limits what a key may do within its scope. An empty list sets no limit, with two exceptions: a key of scope `worker`, `tool` or `developer` may
/// use only the `targets` that are listed, and a key of scope `tool` may use only the artifacts below its `paths`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Targets from which the key may claim turns (the `worker_target` of profiles) and calls (the `target` of tools). A key of scope `developer` may
    /// apply only profiles and tools with these targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub targets: Vec<Target>,
    /// Paths of artifacts that the key may read and write. All paths below them are included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub paths: Vec<ArtifactPath>,
    /// Profiles whose turns the key may start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub profiles: Vec<Name>,
    /// Whether everything that the key starts or stores counts as external content. Use it for keys that pass on emails or web forms.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
}

/// A key that could do nothing, or could do what no key may do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("a key of scope `{}` needs at least one entry in `targets`: it can claim work of these targets only", .0.as_str())]
    NoTargets(Scope),
    #[error("`{PMO}` is reserved for Waybill's own orchestrator: remove it from `targets`")]
    Orchestrator,
    #[error("a key can have at most 100 targets, 100 paths and 100 profiles")]
    TooMany,
}

impl Bounds {
    /// Checks whether a key of this scope can have these bounds.
    pub fn check(&self, scope: Scope) -> Result<(), Unfit> {
        if matches!(scope, Scope::Worker | Scope::Tool | Scope::Developer) && self.targets.is_empty() {
            return Err(Unfit::NoTargets(scope));
        }
        if self.targets.iter().any(|target| target.as_str() == PMO) {
            return Err(Unfit::Orchestrator);
        }
        if self.targets.len().max(self.paths.len()).max(self.profiles.len()) > 100 {
            return Err(Unfit::TooMany);
        }
        Ok(())
    }
}

/// The text is not a key: mistyped, cut off, or something else. The error does not repeat the text.
#[derive(Debug, thiserror::Error)]
#[error("this is not a complete API key: copy all of it, from `wb_` to the last character")]
pub struct MalformedKey;

/// A key as its holder has it. Cannot be printed by accident.
#[derive(Clone)]
pub struct ApiKey {
    key_id: KeyId,
    text: String,
}

impl ApiKey {
    /// Makes a new key. `env` is for people: it tells a key for production from one for tests.
    pub fn mint(env: &str) -> ApiKey {
        let (key_id, mut secret) = (KeyId::new(), [0; 32]);
        getrandom::fill(&mut secret).expect("the system has random numbers");
        let body = format!("wb_{env}_{}_{}", key_id.simple(), hex(&secret));
        let text = format!("{body}_{}", checksum(&body));
        ApiKey { key_id, text }
    }

    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the hash that is stored.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.text.as_bytes()).as_bytes()
    }

    /// Returns the text of the key, to be shown once.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({})", self.key_id)
    }
}

impl FromStr for ApiKey {
    type Err = MalformedKey;

    fn from_str(text: &str) -> Result<ApiKey, MalformedKey> {
        let (body, sum) = text.rsplit_once('_').ok_or(MalformedKey)?;
        let parts: Vec<&str> = body.split('_').collect();
        let ["wb", _, key_id, secret] = parts[..] else { return Err(MalformedKey) };
        if secret.len() != 64 || sum != checksum(body) {
            return Err(MalformedKey);
        }
        Ok(ApiKey { key_id: key_id.parse().map_err(|_| MalformedKey)?, text: text.to_owned() })
    }
}

/// A secret of 256 bits that a browser keeps in a cookie: of its session, or of a login that is under way. Cannot be printed by accident.
#[derive(Clone)]
pub struct BrowserSecret(String);

impl BrowserSecret {
    pub fn mint() -> BrowserSecret {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the system has random numbers");
        BrowserSecret(hex(&secret))
    }

    /// Returns the hash that is stored.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }

    /// Returns another secret, which does not reveal this one.
    pub fn derive(&self, purpose: &str) -> String {
        hex(blake3::hash(format!("{purpose} of {}", self.0).as_bytes()).as_bytes())
    }

    /// Returns the text, for the cookie.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BrowserSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserSecret")
    }
}

impl FromStr for BrowserSecret {
    type Err = MalformedSecret;

    fn from_str(text: &str) -> Result<BrowserSecret, MalformedSecret> {
        let is_one = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| BrowserSecret(text.to_owned())).ok_or(MalformedSecret)
    }
}

/// The text is not the secret of a browser. The error does not repeat the text.
#[derive(Debug, thiserror::Error)]
#[error("this is not the secret of a browser")]
pub struct MalformedSecret;

/// Tells a typing error from a wrong key without a lookup.
pub fn checksum(body: &str) -> String {
    hex(&blake3::hash(body.as_bytes()).as_bytes()[..4])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SE-1
    #[test]
    fn a_key_reads_back_and_a_mistyped_one_is_noticed() {
        let key = ApiKey::mint("test");
        let read: ApiKey = key.expose().parse().unwrap();
        assert_eq!(read.key_id(), key.key_id());
        assert_eq!(read.hash(), key.hash());
        assert_ne!(ApiKey::mint("test").hash(), key.hash());
        for n in 0..key.expose().len() {
            let mut wrong = key.expose().as_bytes().to_vec();
            wrong[n] = if wrong[n] == b'x' { b'y' } else { b'x' };
            assert!(String::from_utf8(wrong).unwrap().parse::<ApiKey>().is_err(), "{n}");
        }
        assert!(!format!("{key:?}").contains(key.expose().split('_').nth(3).unwrap()));
    }

    /// SE-4, SE-11
    #[test]
    fn a_browsers_secret_is_shown_to_the_browser_only() {
        let secret = BrowserSecret::mint();
        let read: BrowserSecret = secret.expose().parse().unwrap();
        assert_eq!(read.hash(), secret.hash());
        assert_ne!(BrowserSecret::mint().hash(), secret.hash());
        assert!(!format!("{secret:?}").contains(secret.expose()));
        let derived = [secret.derive("state"), secret.derive("nonce"), secret.expose().to_owned()];
        assert!(derived[0] != derived[1] && derived[1] != derived[2] && derived.iter().all(|one| one.len() == 64));
        for wrong in ["", "a", &secret.expose()[1..], format!("{};", &secret.expose()[1..]).as_str()] {
            assert!(wrong.parse::<BrowserSecret>().is_err(), "{wrong:?}");
        }
    }
}
