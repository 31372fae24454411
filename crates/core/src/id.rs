//! Ids: one type per thing, UUIDv7, minted by Waybill's own processes (CB-4, L0-18).
//!
//! A v7 id keeps neighbours in time together in an index. It is never an order: order is a sequence column.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, schema::Type};
use uuid::Uuid;

/// The text is not an id of this kind.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a valid {kind} id: expected a UUID such as 019a84f2-6c1e-7cc3-98c4-dc0c0c07398f")]
pub struct Malformed {
    kind: &'static str,
    text: String,
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident $kind:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Mints a new id.
            #[allow(clippy::new_without_default, reason = "a default id would look like a constant")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// Returns when the id was minted, as it says itself; `None` if it is not a v7. For bounds, never for order.
            pub fn minted_at(&self) -> Option<DateTime<Utc>> {
                // Other versions carry a time too, in another place.
                let timestamp = self.0.get_timestamp().filter(|_| self.0.get_version_num() == 7)?;
                let (seconds, nanos) = timestamp.to_unix();
                DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
            }

            /// Returns an id before every id that is minted: where a walk over all of them begins.
            pub const fn nil() -> Self {
                Self(Uuid::nil())
            }

            /// Returns an id after every id that is minted: where a walk back over all of them begins.
            pub const fn max() -> Self {
                Self(Uuid::max())
            }

            /// Returns an id before every id that is minted from this time on, and after all earlier ones. For bounds. Ids have room for times
            /// from 1970 to the year 10889: an earlier time gives the first of all ids, a later one the last.
            pub fn at(time: DateTime<Utc>) -> Self {
                let millis = u128::try_from(time.timestamp_millis()).unwrap_or_default();
                if millis >> 48 == 0 { Self(Uuid::from_u128(millis << 80)) } else { Self(Uuid::max()) }
            }

            /// Makes an id from a hash, for a name that a caller chose.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
            }

            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Returns the id as 32 hex digits.
            pub fn simple(&self) -> String {
                self.0.simple().to_string()
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let uuid = SchemaFormat::KnownFormat(KnownFormat::Uuid);
                ObjectBuilder::new().schema_type(Type::String).format(Some(uuid)).into()
            }
        }

        impl utoipa::ToSchema for $name {}

        impl From<$name> for Uuid {
            fn from(id: $name) -> Uuid {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = Malformed;

            fn from_str(text: &str) -> Result<Self, Malformed> {
                Uuid::from_str(text)
                    .map(Self)
                    .map_err(|_| Malformed { kind: $kind, text: text.to_owned() })
            }
        }
    )*};
}

uuid_ids! {
    /// The tenant. Leads every key.
    ProjectId "project",
    /// One immutable card.
    CardId "card",
    /// One append-only sequence of cards.
    BoxId "box",
    /// One model call or tool round inside a turn.
    StepId "step",
    /// One tool call, minted by the kernel; a provider's own id is only a label.
    ToolCallId "tool call",
    /// An identity on a project's roster.
    AgentId "agent",
    /// One delivery: from one enqueue to one deliverable.
    TurnId "turn",
    /// One fork of many children.
    BatchId "batch",
    /// A conversation that agents may share.
    SessionId "session",
    /// One process that runs turns or answers calls.
    WorkerId "worker",
    /// One event of the outbox.
    EventId "event",
    /// One right to read a box that was granted.
    GrantId "grant",
    /// One right that a caller claimed and did not have.
    RefusalId "refusal",
    /// One key of the API.
    KeyId "key",
    /// One object of the store: what one upload wrote.
    UploadId "upload",
    /// One entry of the audit.
    AuditId "audit",
}

/// The text cannot be a token of a subject.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not a valid {kind}: use 1 to 63 characters (a-z, 0-9, `_` and `-`), beginning with a letter or digit"
)]
pub struct MalformedToken {
    kind: &'static str,
    text: String,
}

macro_rules! tokens {
    ($($(#[$doc:meta])* $name:ident $kind:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[a-z0-9][a-z0-9_-]{0,62}$")).into()
            }
        }

        impl utoipa::ToSchema for $name {}

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = MalformedToken;

            fn try_from(text: String) -> Result<$name, MalformedToken> {
                if is_token(&text) { Ok($name(text)) } else { Err(MalformedToken { kind: $kind, text }) }
            }
        }

        impl FromStr for $name {
            type Err = MalformedToken;

            fn from_str(text: &str) -> Result<$name, MalformedToken> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(token: $name) -> String {
                token.0
            }
        }
    )*};
}

tokens! {
    /// Who is woken and who may claim: a kind of worker, or a handler of calls. It is a token of a NATS subject, so few characters are allowed.
    /// `waybill-…` are Waybill's own.
    Target "target",
    /// Where the events of a turn go: a token of a NATS subject.
    Channel "channel",
    /// The name of a profile, a tool, a plan, a tag or a secret.
    Name "name",
}

impl Default for Channel {
    fn default() -> Channel {
        Channel("public".to_owned())
    }
}

/// A dot or a `*` in one would reroute messages.
fn is_token(text: &str) -> bool {
    let sign = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && sign(text.as_bytes()[0])
        && text.bytes().all(|b| sign(b) || b == b'_' || b == b'-')
}

/// A W3C trace id: 16 bytes, written as 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(transparent)]
pub struct TraceId(#[serde(with = "uuid::serde::simple")] Uuid);

impl TraceId {
    /// Returns the trace that begins with this turn.
    pub fn of(turn_id: TurnId) -> Self {
        Self(turn_id.0)
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl From<TraceId> for Uuid {
    fn from(id: TraceId) -> Uuid {
        id.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_a_wrong_one_says_what_was_expected() {
        let id = CardId::new();
        assert_eq!(id.to_string().parse::<CardId>().unwrap(), id);
        let error = "card-7".parse::<CardId>().unwrap_err().to_string();
        assert!(error.starts_with("\"card-7\" is not a valid card id"), "{error}");
    }

    /// CB-4, L0-18
    #[test]
    fn ids_are_time_ordered_v7() {
        assert_eq!(CardId::new().0.get_version_num(), 7);
        assert!(BoxId::new() < BoxId::new());
        let age = Utc::now() - CardId::new().minted_at().unwrap();
        assert!(age.num_seconds().abs() < 5, "{age}");
        assert_eq!(CardId::nil().minted_at(), None);
    }

    /// L0-9
    #[test]
    fn a_target_is_one_token_of_a_subject() {
        for good in ["llm", "web_search", "a-1", "7"] {
            assert_eq!(good.parse::<Target>().unwrap().as_str(), good);
        }
        for bad in ["", "a.b", "a*", ">", "A", "_a", "a b", &"a".repeat(64)] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_trace_id_is_written_as_w3c_does() {
        let id = TraceId::from_bytes([0xab; 16]);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{}\"", "ab".repeat(16)));
    }
}
