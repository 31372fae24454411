//! The requests that the server got, and which of them were answered completely.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Asked, Format};

/// A request and its outcome.
#[derive(Clone, Debug)]
pub struct Entry {
    pub n: usize,
    pub key: Option<String>,
    pub model: String,
    pub format: Format,
    pub asked_at: SystemTime,
    /// When the last byte of a complete answer without a fault was written.
    pub answered_at: Option<SystemTime>,
    /// Whether the client closed the connection before that.
    pub hung_up: bool,
    pub n_body: usize,
    /// The tokens that a complete answer cost, input and output. 0 without a complete answer.
    pub n_tokens: u64,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) book: watch::Sender<Book>,
    pub(super) on_asked: Listeners,
    pub(super) on_answered: Listeners,
}

#[derive(Default)]
pub(super) struct Book {
    pub(super) entries: Vec<Entry>,
    /// The idempotency keys that were answered completely.
    answered: HashSet<String>,
    pub(super) n_repeats: usize,
}

impl Book {
    pub(super) fn note_answered(&mut self, n: usize, n_tokens: u64) {
        let entry = &mut self.entries[n];
        entry.answered_at = Some(SystemTime::now());
        entry.n_tokens = n_tokens;
        self.answered.extend(entry.key.clone());
    }
}

impl Ledger {
    /// Notes a request and sets its ordinal.
    pub(super) fn note_asked(&self, asked: &mut Asked, n_body: usize) {
        self.book.send_modify(|book| {
            asked.n = book.entries.len();
            book.n_repeats += usize::from(asked.key.as_ref().is_some_and(|key| book.answered.contains(key)));
            book.entries.push(Entry {
                n: asked.n,
                key: asked.key.clone(),
                model: asked.model.clone(),
                format: asked.format,
                asked_at: SystemTime::now(),
                answered_at: None,
                hung_up: false,
                n_body,
                n_tokens: 0,
            });
        });
    }

    pub(super) fn entry(&self, n: usize) -> Entry {
        self.book.borrow().entries[n].clone()
    }

    pub(super) fn json(&self) -> Value {
        let book = self.book.borrow();
        let entry = |entry: &Entry| {
            json!({
                "n": entry.n, "key": entry.key, "model": entry.model, "format": entry.format,
                "asked_at": DateTime::<Utc>::from(entry.asked_at),
                "answered_at": entry.answered_at.map(DateTime::<Utc>::from),
                "hung_up": entry.hung_up, "n_body": entry.n_body, "n_tokens": entry.n_tokens,
            })
        };
        let entries: Value = book.entries.iter().map(entry).collect();
        json!({"n_asked": book.entries.len(), "repeats": book.n_repeats, "entries": entries})
    }
}

type Listener = Arc<dyn Fn(&Entry) + Send + Sync>;

#[derive(Default)]
pub(super) struct Listeners(Mutex<Vec<Listener>>);

impl Listeners {
    pub(super) fn add(&self, listener: Listener) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub(super) fn call(&self, entry: &Entry) {
        // The lock is released first: a listener may add another listener.
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().for_each(|listener| listener(entry));
    }
}
