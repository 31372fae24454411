//! One model call over HTTP: its rate limits, headers, attempts and stream.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use futures::StreamExt;
use reqwest::{
    Client, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};
use waybill_context::wire::{Adapter, Params};
use waybill_core::{
    error::innermost,
    id::{Name, ProjectId},
    metric,
    resource::{Embedding, LlmConfig, SecretRef},
    turn::{Price, Usage},
};
use waybill_kernel::intake::jittered;
use waybill_tool::{
    outside,
    secret::{Secrets, told},
};

use super::{
    Answer, Answered, Error, ModelToolCall, Reasoning, demo, provider, provider::Provider, reader, sse::Lines,
};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One model call.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    pub project_id: ProjectId,
    pub llm: &'a LlmConfig,
    /// The request, byte for byte.
    pub request: &'a [u8],
    /// The idempotency key: the same for every attempt at this call, on every worker.
    pub key: &'a str,
    /// The input tokens as Waybill counts them, used if the provider reports none.
    pub n_tokens: u32,
    /// How many answers the model gave in this turn before.
    pub n_before: usize,
    /// The provider's id of the previous answer, so that the provider can explain a prompt cache miss between the two.
    pub previous: Option<&'a str>,
}

/// A provider's answer to a request for embeddings.
#[derive(Deserialize)]
struct Vectors {
    data: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    index: usize,
    embedding: Vec<f32>,
}

/// All model providers. Cheap to clone: all clones know the same providers.
#[derive(Clone, Debug)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: Client,
    secrets: Arc<Secrets>,
    providers: RwLock<BTreeMap<Name, Gated>>,
}

type Gated = Arc<(Provider, Gate)>;

/// Limits how many calls run at once, and how many start per minute.
#[derive(Debug)]
struct Gate {
    room: Semaphore,
    every: Duration,
    next: Mutex<Instant>,
}

impl Gate {
    fn new(provider: &Provider) -> Gate {
        let every = provider.requests_per_minute.map_or(Duration::ZERO, |n| Duration::from_secs(60) / n.max(1));
        Gate { room: Semaphore::new(provider.most_at_once.max(1)), every, next: Mutex::new(Instant::now()) }
    }

    /// Waits until the rate limit allows the next request.
    async fn pass(&self) {
        if self.every.is_zero() {
            return;
        }
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + self.every;
            turn
        };
        sleep_until(turn).await;
    }
}

impl Models {
    /// Takes the providers of the file and the built-in ones. A provider in the file replaces a built-in one of the same name.
    pub fn new(providers: Vec<Provider>, secrets: impl Into<Arc<Secrets>>) -> Models {
        let secrets = secrets.into();
        let http = outside::client().build().expect("a client without a certificate of its own");
        let providers = RwLock::new(gated(providers, &BTreeMap::new()));
        Models(Arc::new(Inner { http, secrets, providers }))
    }

    /// Takes these providers of the file in place of the earlier ones, for every call that begins from now on.
    pub fn replace(&self, providers: Vec<Provider>) {
        let mut known = self.0.providers.write().unwrap_or_else(PoisonError::into_inner);
        *known = gated(providers, &known);
    }

    fn find(&self, name: &Name) -> Option<Gated> {
        self.0.providers.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn provider(&self, llm: &LlmConfig) -> Result<Option<Gated>, Error> {
        match self.find(&llm.provider) {
            Some(found) => Ok(Some(found)),
            None if llm.provider.as_str() == demo::NAME => Ok(None),
            None => Err(Error::NoProvider(llm.provider.clone())),
        }
    }

    /// Returns the price of a model, if the file has one.
    pub fn price(&self, provider: &str, model: &str) -> Option<Price> {
        self.find(&provider.parse().ok()?)?.0.prices.get(model).copied()
    }

    /// Returns the address of a provider, if requests of agents elsewhere may be sent to it.
    pub fn upstream(&self, name: &Name) -> Option<String> {
        self.find(name).filter(|found| found.0.record).map(|found| found.0.base_url.clone())
    }

    /// Lists the providers that requests of agents elsewhere may be sent to.
    pub fn upstreams(&self) -> Vec<Name> {
        let known = self.0.providers.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(_, found)| found.0.record).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the adapter and the parameters of a request for this model.
    pub fn config(&self, llm: &LlmConfig) -> Result<(Adapter, Params), Error> {
        let (adapter, params) = match self.provider(llm)? {
            Some(found) => (found.0.adapter, provider::params(found.0.adapter, &llm.model, &llm.params)),
            // The demo's script is not sent.
            None => {
                (Adapter::OpenaiChat, [("model".to_owned(), Value::from(llm.model.as_str()))].into_iter().collect())
            }
        };
        Ok((adapter, Params::try_from(params).map_err(|error| Error::Refused(error.to_string()))?))
    }

    /// Checks whether the model's price is known. The demo is free. For an unknown provider this returns true: the call itself will fail.
    pub fn has_price(&self, llm: &LlmConfig) -> bool {
        self.find(&llm.provider).is_none_or(|found| found.0.prices.contains_key(&llm.model))
    }

    /// Masks every used secret in the text.
    pub fn blot(&self, text: String) -> String {
        self.0.secrets.blot(text)
    }

    /// Asks the model, with retries. `on_text` gets each piece of text as it arrives, and the number of the attempt.
    pub async fn ask(
        &self,
        asking: &ModelRequest<'_>,
        on_text: &(dyn Fn(u16, &str) + Sync),
    ) -> Result<Answered, Error> {
        let begun = Instant::now();
        let answered = self.ask_until_answered(asking, on_text).await;
        self.count(asking.llm, &answered, begun.elapsed());
        answered
    }

    async fn ask_until_answered(
        &self,
        asking: &ModelRequest<'_>,
        on_text: &(dyn Fn(u16, &str) + Sync),
    ) -> Result<Answered, Error> {
        let begun = Instant::now();
        let mut n_asked: u16 = 0;
        let answer = match self.provider(asking.llm)? {
            None => {
                n_asked = 1;
                let answer = demo::ask(asking).await?;
                on_text(1, &answer.text);
                answer
            }
            Some(found) => {
                let (provider, gate) = &*found;
                let headers = self.headers(provider, asking)?;
                let _room = gate.room.acquire().await.map_err(|_| Error::unavailable("the worker is shutting down"))?;
                loop {
                    n_asked += 1;
                    gate.pass().await;
                    let told = |text: &str| on_text(n_asked, text);
                    let attempt = self.attempt(provider, asking, headers.clone(), &told);
                    let attempt = timeout(provider.timeout(), attempt).await;
                    let error = match attempt.unwrap_or_else(|_| Err(took_too_long(provider.timeout()))) {
                        Ok(answer) => break answer,
                        Err(error) => error,
                    };
                    let pause = error
                        .retry_after()
                        .unwrap_or_else(|| jittered(FIRST_PAUSE * 2_u32.pow(u32::from(n_asked.min(7)) - 1)));
                    if !error.may_pass() || u32::from(n_asked) >= provider.max_attempts || pause > LONGEST_PAUSE {
                        return Err(error);
                    }
                    tracing::debug!(provider = %provider.name, %error, ?pause, "asked again");
                    sleep(pause).await;
                }
            }
        };
        let mut answered = self.charged(asking.llm, answer, asking.n_tokens);
        answered.usage.took_ms = u32::try_from(begun.elapsed().as_millis()).unwrap_or(u32::MAX);
        answered.usage.n_asked = n_asked;
        Ok(answered)
    }

    /// Masks every used secret in an answer, and prices what it used. `n_tokens` are the input tokens as Waybill counts them, used if the provider
    /// reports none.
    pub(crate) fn charged(&self, llm: &LlmConfig, answer: Answer, n_tokens: u32) -> Answered {
        let mut answer = self.clean(answer);
        if answer.read.input == 0 {
            answer.read.input = n_tokens;
        }
        let mut usage = Usage {
            provider: llm.provider.to_string(),
            model: llm.model.clone(),
            input_tokens: answer.read.input,
            cached_tokens: answer.read.cached,
            output_tokens: answer.read.output,
            microdollars: 0,
            took_ms: 0,
            n_asked: 1,
            asked_again: false,
            cache_miss: answer.cache_miss.take(),
            reported: false,
        };
        let price = self.price(llm.provider.as_str(), &llm.model);
        usage.microdollars = price.map_or(0, |price| price.of(&usage));
        Answered { answer, usage }
    }

    /// Counts metrics under names that the operator chose: a model without a price counts as `other`.
    fn count(&self, llm: &LlmConfig, answered: &Result<Answered, Error>, took: Duration) {
        let known = self.find(&llm.provider);
        let provider = known.as_ref().map_or("none", |found| found.0.name.as_str()).to_owned();
        let priced = known.is_some_and(|found| found.0.prices.contains_key(&llm.model));
        let model = if priced { llm.model.clone() } else { "other".to_owned() };
        let labels = [("provider", provider), ("model", model)];
        let outcome = match answered {
            Ok(_) => "answered",
            Err(Error::Unavailable(..)) => "unavailable",
            Err(Error::Garbled(_)) => "garbled",
            Err(_) => "refused",
        };
        let with = |key: &'static str, value: &'static str| {
            let more = labels.iter().cloned().chain([(key, value.to_owned())]);
            more.map(|(key, value)| metrics::Label::new(key, value)).collect::<Vec<_>>()
        };
        metrics::counter!(metric::MODEL_CALLS, with("outcome", outcome)).increment(1);
        metrics::histogram!(metric::MODEL_SECONDS, &labels).record(took);
        let Ok(Answered { usage, .. }) = answered else { return };
        for (kind, n) in
            [("input", usage.input_tokens), ("cached", usage.cached_tokens), ("output", usage.output_tokens)]
        {
            metrics::counter!(metric::MODEL_TOKENS, with("kind", kind)).increment(n.into());
        }
        metrics::counter!(metric::MODEL_MICRODOLLARS, &labels).increment(usage.microdollars);
    }

    /// Masks every used secret in an answer.
    fn clean(&self, answer: Answer) -> Answer {
        let call = |call: ModelToolCall| ModelToolCall { arguments: self.blot(call.arguments), ..call };
        let reasoning = |reasoning: Reasoning| Reasoning {
            text: self.blot(reasoning.text),
            verbatim: reasoning.verbatim.map(|verbatim| self.blot(verbatim)),
        };
        Answer {
            text: self.blot(answer.text),
            calls: answer.calls.into_iter().map(call).collect(),
            reasoning: answer.reasoning.map(reasoning),
            ..answer
        }
    }

    /// Returns the vectors of texts, in the same order. It uses OpenAI's format, which other providers support too.
    pub async fn embed(
        &self,
        project_id: ProjectId,
        embedding: &Embedding,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let found = self.find(&embedding.provider).ok_or_else(|| Error::NoProvider(embedding.provider.clone()))?;
        let (provider, gate) = &*found;
        if provider.adapter == Adapter::AnthropicMessages {
            return Err(Error::Refused(format!(
                "provider `{}` does not offer embeddings: use another provider for `embedding`",
                provider.name
            )));
        }
        let body = json!({ "model": embedding.model, "input": texts, "encoding_format": "float" }).to_string();
        let key = format!("waybill-vectors-{}", blake3::hash(body.as_bytes()).to_hex());
        let headers = self.headers_for(provider, project_id, embedding.api_key.as_ref(), &key)?;
        let _room = gate.room.acquire().await.map_err(|_| Error::unavailable("the worker is shutting down"))?;
        let mut n_asked = 0;
        let said = loop {
            n_asked += 1;
            gate.pass().await;
            let attempt = async {
                let url = format!("{}/embeddings", provider.base_url.trim_end_matches('/'));
                let request = self.0.http.post(url).headers(headers.clone()).header(CONTENT_TYPE, "application/json");
                let response = request.body(body.clone()).send().await.map_err(|error| self.lost(provider, error))?;
                if response.status() != StatusCode::OK {
                    return Err(self.refusal(provider, response).await);
                }
                let bytes = response.bytes().await.map_err(|error| self.lost(provider, error))?;
                serde_json::from_slice::<Vectors>(&bytes).map_err(|error| Error::Garbled(error.to_string()))
            };
            match timeout(provider.silence(), attempt).await.unwrap_or_else(|_| Err(took_too_long(provider.silence())))
            {
                Ok(said) => break said,
                Err(error) if error.may_pass() && n_asked < provider.max_attempts => {
                    sleep(error.retry_after().unwrap_or(FIRST_PAUSE).min(LONGEST_PAUSE)).await;
                }
                Err(error) => return Err(error),
            }
        };
        let mut vectors = said.data;
        vectors.sort_by_key(|vector| vector.index);
        if vectors.len() != texts.len() || vectors.iter().any(|vector| vector.embedding.is_empty()) {
            return Err(Error::Garbled(format!(
                "{} texts were sent, but {} vectors came back",
                texts.len(),
                vectors.len()
            )));
        }
        Ok(vectors.into_iter().map(|vector| vector.embedding).collect())
    }

    fn headers(&self, provider: &Provider, asking: &ModelRequest<'_>) -> Result<HeaderMap, Error> {
        self.headers_for(provider, asking.project_id, asking.llm.api_key.as_ref(), asking.key)
    }

    fn headers_for(
        &self,
        provider: &Provider,
        project_id: ProjectId,
        api_key: Option<&SecretRef>,
        key: &str,
    ) -> Result<HeaderMap, Error> {
        let find =
            |name: &Name| self.0.secrets.find(project_id, name).map_err(|error| Error::Secret(error.to_string()));
        let mut headers: HashMap<String, SecretString> = HashMap::new();
        for (name, value) in &provider.headers {
            headers.insert(name.to_lowercase(), told(value, find)?);
        }
        // A profile or the project's settings may name the project's own secrets, and those that the operator allows for this provider.
        let own = |reference: &SecretRef| {
            let given = provider.secrets.iter().chain([&provider.name]).cloned().collect();
            let found = self.0.secrets.find_own(project_id, &reference.secret, &given);
            found.map_err(|error| Error::Secret(error.to_string()))
        };
        let sent = match (api_key, &provider.api_key) {
            (Some(reference), _) => Some(own(reference)?),
            (None, Some(reference)) => Some(find(&reference.secret)?),
            (None, None) => None,
        };
        if let Some(key) = sent {
            match provider.adapter {
                Adapter::AnthropicMessages => headers.insert("x-api-key".to_owned(), key),
                Adapter::OpenaiChat | Adapter::OpenaiResponses => {
                    let bearer = format!("Bearer {}", key.expose_secret());
                    headers.insert(AUTHORIZATION.as_str().to_owned(), SecretString::from(bearer))
                }
            };
        }
        if provider.adapter == Adapter::AnthropicMessages {
            headers.entry("anthropic-version".to_owned()).or_insert_with(|| SecretString::from("2023-06-01"));
        }
        headers.entry("idempotency-key".to_owned()).or_insert_with(|| SecretString::from(key));
        let header = |(name, value): (String, SecretString)| {
            let wrong = || {
                Error::Refused(format!(
                    "provider `{}`: the name or the value of header `{name}` contains characters that a header must not have",
                    provider.name
                ))
            };
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            Ok((known, value))
        };
        headers.into_iter().map(header).collect()
    }

    async fn attempt(
        &self,
        provider: &Provider,
        asking: &ModelRequest<'_>,
        headers: HeaderMap,
        on_text: &(dyn Fn(&str) + Sync),
    ) -> Result<Answer, Error> {
        let url = format!("{}/{}", provider.base_url.trim_end_matches('/'), provider.path());
        let request = self.0.http.post(url).headers(headers).header(CONTENT_TYPE, "application/json");
        let sent = request.body(body(provider, asking)).send();
        let silent =
            || Error::unavailable(format!("provider `{}` sent nothing for {:?}", provider.name, provider.silence()));
        let sent = timeout(provider.silence(), sent).await.map_err(|_| silent())?;
        // Without the address, which may carry a key.
        let response = sent.map_err(|error| self.lost(provider, error))?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(provider, response).await);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Error::Garbled(format!("provider `{}` sent {kind:?}, not an event stream", provider.name)));
        }
        let mut reader = reader(provider.adapter);
        let (mut lines, mut pieces) = (Lines::default(), response.bytes_stream());
        while let Some(piece) = timeout(provider.silence(), pieces.next()).await.map_err(|_| silent())? {
            for event in lines.feed(&piece.map_err(|error| self.lost(provider, error))?)? {
                if let Some(text) = reader.read(&event).map_err(|error| self.blotted(error))? {
                    on_text(&text);
                }
            }
        }
        reader.answer()
    }

    fn lost(&self, provider: &Provider, error: reqwest::Error) -> Error {
        let why = innermost(&error).unwrap_or_else(|| error.without_url().to_string());
        Error::unavailable(self.blot(format!("provider `{}` cannot be reached: {why}", provider.name)))
    }

    fn blotted(&self, error: Error) -> Error {
        match error {
            Error::Unavailable(why, after) => Error::Unavailable(self.blot(why), after),
            Error::Garbled(why) => Error::Garbled(self.blot(why)),
            Error::Refused(why) => Error::Refused(self.blot(why)),
            other => other,
        }
    }

    /// Reads an error response, and returns whether a retry may help.
    async fn refusal(&self, provider: &Provider, response: Response) -> Error {
        let (status, name) = (response.status(), &provider.name);
        let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let body = timeout(Duration::from_secs(10), response.text()).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let said = serde_json::from_str::<Value>(&body).ok();
        let said = said.and_then(|said| said["error"]["message"].as_str().map(str::to_owned)).unwrap_or(body);
        let why: String = self.blot(said).chars().take(500).collect();
        let why = format!("provider `{name}` responded with {}: {why}", status.as_u16());
        let is_long = ["context_length", "context length", "too long", "too many tokens", "context window"];
        match status.as_u16() {
            408 | 409 | 425 | 429 | 500.. => Error::Unavailable(why, after.map(Duration::from_secs)),
            400 | 413 | 422 if is_long.iter().any(|mark| why.contains(mark)) => Error::TooLong(why),
            _ => Error::Refused(why),
        }
    }
}

/// Returns the built-in providers and those of the file. One that has not changed keeps its limits and the calls that count against them.
fn gated(providers: Vec<Provider>, known: &BTreeMap<Name, Gated>) -> BTreeMap<Name, Gated> {
    let gate = |provider: Provider| {
        let same = known.get(&provider.name).filter(|known| known.0 == provider).cloned();
        let name = provider.name.clone();
        let made = same.unwrap_or_else(|| {
            let gate = Gate::new(&provider);
            Arc::new((provider, gate))
        });
        (name, made)
    };
    Provider::builtins().into_iter().chain(providers).map(gate).collect()
}

/// Returns the request as it was composed. A field is added that asks the provider to explain cache misses; the model does not see it.
fn body(provider: &Provider, asking: &ModelRequest<'_>) -> Vec<u8> {
    let request = asking.request;
    match request.strip_suffix(b"}") {
        Some(open) if provider.explains_cache_misses() => {
            let diagnostics = json!({ "previous_message_id": asking.previous });
            [open, format!(",\"diagnostics\":{diagnostics}}}").as_bytes()].concat()
        }
        _ => request.to_vec(),
    }
}

fn took_too_long(limit: Duration) -> Error {
    Error::unavailable(format!("the provider did not respond within {limit:?}"))
}
