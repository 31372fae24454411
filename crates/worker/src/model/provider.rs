//! Providers, as the worker's own file describes them. Profiles only name one, so that no tenant decides where a key is sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use waybill_context::wire::Adapter;
use waybill_core::{
    id::Name,
    resource::{LlmConfig, Profile, SecretRef},
    tool::Header,
    turn::Price,
};

use super::demo;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    pub name: Name,
    pub adapter: Adapter,
    /// The address without the last part of the path, such as `http://127.0.0.1:8000/v1`.
    pub base_url: String,
    /// Headers that are sent with every request, in addition to the key that the profile names.
    #[serde(default)]
    pub headers: BTreeMap<String, Header>,
    /// The key to send if the profile names none.
    #[serde(default)]
    pub api_key: Option<SecretRef>,
    /// The operator's secrets that profiles may name for this provider, in addition to the one of the provider's name.
    #[serde(default)]
    pub secrets: BTreeSet<Name>,
    /// The most attempts for one call, the first included.
    #[serde(default = "four")]
    pub max_attempts: u32,
    /// The timeout of one attempt.
    #[serde(default = "half_an_hour")]
    pub timeout_seconds: u64,
    /// The timeout between two pieces of an answer, and before the first.
    #[serde(default = "five_minutes")]
    pub silence_seconds: u64,
    /// The most concurrent requests of this process.
    #[serde(default = "many")]
    pub most_at_once: usize,
    /// The rate limit of this process.
    #[serde(default)]
    pub requests_per_minute: Option<u32>,
    /// Whether the provider is asked to explain prompt cache misses; its explanation is kept with the step. If omitted, only Anthropic's own
    /// API is asked, not other servers that use its format.
    #[serde(default)]
    pub cache_diagnostics: Option<bool>,
    /// Whether requests of agents elsewhere may be sent to it through the recorder, with their own credentials.
    #[serde(default)]
    pub record: bool,
    /// Prices by model.
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
}

fn four() -> u32 {
    4
}

fn half_an_hour() -> u64 {
    1800
}

fn five_minutes() -> u64 {
    300
}

fn many() -> usize {
    64
}

impl Provider {
    fn builtin(name: &str, secret: &str, adapter: Adapter, base_url: &str) -> Provider {
        Provider {
            name: name.parse().expect("a word"),
            adapter,
            base_url: base_url.to_owned(),
            headers: BTreeMap::new(),
            api_key: None,
            secrets: BTreeSet::from([secret.parse().expect("a word")]),
            max_attempts: four(),
            timeout_seconds: half_an_hour(),
            silence_seconds: five_minutes(),
            most_at_once: many(),
            requests_per_minute: None,
            cache_diagnostics: None,
            record: false,
            prices: BTreeMap::new(),
        }
    }

    /// Returns a provider whose calls are recorded and that nothing else is known of.
    pub fn recorded(name: Name, base_url: String) -> Provider {
        let provider = Provider::builtin("recorded", "recorded", Adapter::OpenaiChat, &base_url);
        Provider { name, record: true, secrets: BTreeSet::new(), ..provider }
    }

    /// Checks that credentials of clients can be sent to it: with TLS, or on this machine.
    pub fn check_recorded(&self) -> Result<(), String> {
        let url = reqwest::Url::parse(&self.base_url).ok();
        let is_here = |url: &reqwest::Url| match url.host_str() {
            Some("localhost") => true,
            Some(host) => host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
            None => false,
        };
        match url {
            Some(url) if url.scheme() == "https" && url.has_host() || url.scheme() == "http" && is_here(&url) => Ok(()),
            _ => Err(format!(
                "provider `{}`: its address must begin with https://, or with http:// and a loopback address, because clients send it their keys",
                self.name
            )),
        }
    }

    /// Returns the providers that need no file.
    pub fn builtins() -> Vec<Provider> {
        vec![
            Provider::builtin("openai_chat", "openai", Adapter::OpenaiChat, "https://api.openai.com/v1"),
            Provider::builtin("openai_responses", "openai", Adapter::OpenaiResponses, "https://api.openai.com/v1"),
            Provider::builtin(
                "anthropic_messages",
                "anthropic",
                Adapter::AnthropicMessages,
                "https://api.anthropic.com/v1",
            ),
        ]
    }

    pub(super) fn path(&self) -> &'static str {
        match self.adapter {
            Adapter::OpenaiChat => "chat/completions",
            Adapter::OpenaiResponses => "responses",
            Adapter::AnthropicMessages => "messages",
        }
    }

    /// Returns whether the provider is asked to explain cache misses.
    pub(super) fn explains_cache_misses(&self) -> bool {
        let is_anthropic = self.base_url.contains("://api.anthropic.com");
        self.adapter == Adapter::AnthropicMessages && self.cache_diagnostics.unwrap_or(is_anthropic)
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    pub(super) fn silence(&self) -> Duration {
        Duration::from_secs(self.silence_seconds)
    }
}

/// Returns the models, as `provider/model`, that a profile with a money limit may ask, itself or through its summariser, and that have no
/// price. The limit could never end a turn that asks them.
pub fn without_price(providers: &[Provider], profile: &Profile, summariser: Option<&Profile>) -> Vec<String> {
    if profile.limits.is_none_or(|limits| limits.microdollars.is_none()) {
        return Vec::new();
    }
    let summariser = summariser.filter(|_| profile.memory.compaction.is_some());
    let profiles = std::iter::once(profile).chain(summariser);
    let models = profiles.flat_map(|asked| std::iter::once(&asked.llm_config).chain(&asked.llm_config.fallbacks));
    let has_price = |llm: &LlmConfig| {
        let provider = providers.iter().find(|provider| provider.name == llm.provider);
        llm.provider.as_str() == demo::NAME || provider.is_some_and(|provider| provider.prices.contains_key(&llm.model))
    };
    models.filter(|llm| !has_price(llm)).map(|llm| format!("{}/{}", llm.provider, llm.model)).collect()
}

/// Returns the fields of a request that are not composed: the model, streaming, and the profile's parameters.
pub(super) fn params(adapter: Adapter, model: &str, profile: &Map<String, Value>) -> Map<String, Value> {
    let ours = match adapter {
        Adapter::OpenaiChat => json!({ "stream": true, "stream_options": { "include_usage": true } }),
        Adapter::OpenaiResponses => json!({ "stream": true }),
        // This API requires `max_tokens`.
        Adapter::AnthropicMessages => json!({ "stream": true, "max_tokens": 8192 }),
    };
    let mut params = Map::from_iter([("model".to_owned(), Value::from(model))]);
    params.extend(ours.as_object().cloned().unwrap_or_default());
    params.extend(profile.clone());
    if params.get("stream") == Some(&Value::Bool(false)) {
        // For a worker elsewhere that reads no streams. The API refuses options of a stream then.
        params.remove("stream_options");
    }
    params
}
