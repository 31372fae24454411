//! How a tool outside of Waybill is reached, and what must hold before it is: addresses, headers, pins, approvals.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

use crate::{id::Name, json::canonical};

/// The target of tools that Waybill itself calls, if the manifest does not name another.
pub const TOOLS: &str = "tools";

/// A request over HTTP. Arguments that the address names go into it; of the rest, `query` names those that go into the query, and what is
/// left is the body. Without a body all of the rest is the query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpTool {
    #[serde(default)]
    pub method: Method,
    /// Such as `https://tickets.example/queues/{queue}`: an argument stands for a whole part of the path.
    pub url: UrlTemplate,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Header>,
}

/// A tool of an MCP server: one that the operator of Waybill has named, or one at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct McpTool {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Header>,
    /// The server's name for the tool. If omitted, the same name as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The hash of the server's description of the tool when it was added: see [`schema_hash`]. A tool with another hash is another tool.
    pub schema_hash: String,
}

/// Hashes an MCP server's description of a tool, in 64 characters.
pub fn schema_hash(name: &str, description: Option<&str>, input: &Value, output: Option<&Value>) -> String {
    let said = json!({ "name": name, "description": description, "inputSchema": input, "outputSchema": output });
    blake3::hash(canonical(&said).as_bytes()).to_hex().to_string()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(as = HttpMethod)]
pub enum Method {
    Get,
    #[default]
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    pub const fn has_body(self) -> bool {
        matches!(self, Method::Post | Method::Put | Method::Patch)
    }
}

/// The value of a header: a text, or a secret by its name, with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = ToolHeader)]
pub enum Header {
    Text(String),
    Secret(SecretHeader),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretHeader {
    pub secret: Name,
    /// Such as `Bearer `.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

/// When a person must approve a call before it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    #[default]
    Never,
    /// If the turn has seen content from outside.
    External,
    Always,
}

impl Approval {
    pub fn is_never(&self) -> bool {
        *self == Approval::Never
    }
}

/// An address with arguments in its path, and nowhere else: only the manifest decides which host it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate {
    text: String,
    /// Scheme and authority.
    origin: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("{said:?} is not a valid address of a tool: {why}")]
pub struct BadUrl {
    said: String,
    why: &'static str,
}

/// An argument that cannot be part of a path.
#[derive(Debug, thiserror::Error)]
pub enum BadArgument {
    #[error("argument `{0}` is part of the address of the tool: it must be a string, a number or a boolean")]
    Missing(String),
    #[error("argument `{0}` is part of the address of the tool: it must not be empty, `.` or `..`")]
    Dots(String),
}

impl UrlTemplate {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// `scheme://host[:port]`
    pub fn origin(&self) -> &str {
        &self.text[..self.origin]
    }

    /// Returns the arguments that it names.
    pub fn names(&self) -> Vec<&str> {
        let path = self.text[self.origin..].split('{').skip(1);
        path.filter_map(|part| part.split_once('}')).map(|(name, _)| name).collect()
    }

    /// Fills in the arguments, each as one part of the path.
    pub fn fill(&self, arguments: &serde_json::Map<String, Value>) -> Result<String, BadArgument> {
        let mut parts = self.text[self.origin..].split('{');
        let mut url = self.origin().to_owned() + parts.next().unwrap_or_default();
        for part in parts {
            let Some((name, after)) = part.split_once('}') else { continue };
            let value = match arguments.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                _ => return Err(BadArgument::Missing(name.to_owned())),
            };
            // Without such a part it would be another address.
            if matches!(value.as_str(), "" | "." | "..") {
                return Err(BadArgument::Dots(name.to_owned()));
            }
            for byte in value.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => url.push(char::from(byte)),
                    other => url += &format!("%{other:02X}"),
                }
            }
            url += after;
        }
        Ok(url)
    }
}

impl FromStr for UrlTemplate {
    type Err = BadUrl;

    fn from_str(said: &str) -> Result<UrlTemplate, BadUrl> {
        let bad = |why| BadUrl { said: said.chars().take(200).collect(), why };
        let rest = said.strip_prefix("https://").or_else(|| said.strip_prefix("http://"));
        let rest = rest.ok_or_else(|| bad("it must begin with https:// or http://"))?;
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        if authority.is_empty() || authority.contains(['{', '}', '@', '%']) || !authority.is_ascii() {
            return Err(bad("its host must be a plain host name, without `{arguments}`, `user@` or percent-encoding"));
        }
        if said.contains(['#', '\\']) || said.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("it must not contain spaces, backslashes or `#`"));
        }
        let origin = said.len() - rest.len() + authority.len();
        let (path, query) = said[origin..].split_once('?').unwrap_or((&said[origin..], ""));
        if query.contains(['{', '}']) {
            return Err(bad("`{arguments}` are allowed only in the path: list query parameters in `query` instead"));
        }
        for part in path.split('/') {
            let is_argument = part.starts_with('{') && part.ends_with('}') && part.len() > 2;
            let inner = if is_argument { &part[1..part.len() - 1] } else { part };
            if inner.contains(['{', '}']) {
                return Err(bad("an `{argument}` must be a whole part of the path, as in /queues/{queue}"));
            }
        }
        Ok(UrlTemplate { text: said.to_owned(), origin })
    }
}

impl fmt::Display for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl utoipa::PartialSchema for UrlTemplate {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).into()
    }
}

impl utoipa::ToSchema for UrlTemplate {}

impl Serialize for UrlTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for UrlTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UrlTemplate, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A host that a tool may reach: `api.example`, `*.example`, `127.0.0.1:8080`. Without a port, the default port of the scheme.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPattern {
    text: String,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a host such as `api.example`, `*.example` or `127.0.0.1:8080`")]
pub struct BadHost(String);

impl HostPattern {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn parts(&self) -> (&str, Option<u16>) {
        // The colons of `[::1]` are not followed by a port.
        let colon = self.text.rfind(':').filter(|colon| self.text.rfind(']').is_none_or(|bracket| bracket < *colon));
        match colon {
            Some(colon) => (&self.text[..colon], self.text[colon + 1..].parse().ok()),
            None => (&self.text, None),
        }
    }

    /// Checks whether a host and port match. `usual` is the default port of the scheme.
    pub fn matches(&self, host: &str, port: u16, usual: u16) -> bool {
        let (pattern, said) = self.parts();
        let host = host.to_ascii_lowercase();
        let is_host = match pattern.strip_prefix("*.") {
            Some(parent) => host.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            None => host == pattern,
        };
        is_host && port == said.unwrap_or(usual)
    }

    /// Returns whether it names exactly one host, which then need not be public.
    pub fn is_exact(&self) -> bool {
        !self.text.starts_with("*.")
    }
}

impl FromStr for HostPattern {
    type Err = BadHost;

    fn from_str(said: &str) -> Result<HostPattern, BadHost> {
        let pattern = HostPattern { text: said.to_ascii_lowercase() };
        let (host, port) = pattern.parts();
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
        let has_port = host.len() < pattern.text.len();
        let ends_well = !name.starts_with(['.', ':']) && !name.ends_with(['.', ':']);
        if name.is_empty() || !ends_well || !name.chars().all(is_name) || has_port && port.is_none() {
            return Err(BadHost(said.chars().take(200).collect()));
        }
        Ok(pattern)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl utoipa::PartialSchema for HostPattern {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).into()
    }
}

impl utoipa::ToSchema for HostPattern {}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HostPattern, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The author of the manifest decides which host an address reaches, whatever the arguments are.
    #[test]
    fn arguments_stay_in_their_part_of_the_path() {
        let url: UrlTemplate = "https://a.example/q/{queue}/t/{id}?v=1".parse().unwrap();
        assert_eq!(url.names(), ["queue", "id"]);
        assert_eq!(url.origin(), "https://a.example");
        let fill = |queue: Value, id: Value| {
            url.fill(json!({ "queue": queue, "id": id }).as_object().unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(fill(json!("billing"), json!(7)).unwrap(), "https://a.example/q/billing/t/7?v=1");
        let odd = fill(json!("../../admin?x=1#é"), json!("@evil/")).unwrap();
        assert_eq!(odd, "https://a.example/q/%2E%2E%2F%2E%2E%2Fadmin%3Fx%3D1%23%C3%A9/t/%40evil%2F?v=1");
        for dots in ["", ".", ".."] {
            assert!(fill(json!(dots), json!(1)).unwrap_err().contains("`queue`"));
        }
        assert!(fill(json!(null), json!(1)).is_err());
        for wrong in [
            "ftp://a/x",
            "https://{host}/x",
            "https://u@a/x",
            "https://a/x{y}",
            "https://a/x?q={y}",
            "https://a/x y",
            "https:///x",
            "https://a\\@b/",
            "https://a/#x",
        ] {
            assert!(wrong.parse::<UrlTemplate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_are_those_that_were_named() {
        let matches =
            |pattern: &str, host: &str, port: u16| pattern.parse::<HostPattern>().unwrap().matches(host, port, 443);
        assert!(matches("api.example", "API.example", 443) && !matches("api.example", "api.example", 8443));
        assert!(!matches("api.example", "xapi.example", 443) && !matches("api.example", "api.example.evil", 443));
        assert!(matches("*.example", "a.b.example", 443) && !matches("*.example", "example", 443));
        assert!(!matches("*.example", "badexample", 443));
        assert!(matches("127.0.0.1:8080", "127.0.0.1", 8080) && !matches("127.0.0.1:8080", "127.0.0.1", 443));
        assert!(matches("[::1]:9", "[::1]", 9));
        for wrong in ["", "*", "*.", "a b", "a/b", "a:b", "https://a", ".a", "a."] {
            assert!(wrong.parse::<HostPattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_changed_tool_has_another_hash() {
        let input = json!({ "type": "object" });
        let hash = schema_hash("t", Some("d"), &input, None);
        assert_eq!(hash.len(), 64);
        assert_ne!(hash, schema_hash("t", Some("e"), &input, None));
        assert_ne!(hash, schema_hash("t", Some("d"), &json!({}), None));
        assert_ne!(hash, schema_hash("t", Some("d"), &input, Some(&input)));
    }
}
