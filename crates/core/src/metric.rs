//! The metrics of a running system: every name is defined once, for the code that counts, for `/metrics`, the dashboard and the alerts.
//!
//! Labels are words of ours and names that an operator chose (providers, models). Targets are chosen by the authors of profiles: a limited number
//! of them have a label of their own, and the rest share one. A label is never an id: a series lives as long as the system does.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counted into buckets.
    Histogram,
}

/// A metric, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal: $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = $name;)*

        /// All metrics.
        pub const ALL: &[Metric] = &[$(Metric { name: $name, kind: Kind::$kind, help: $help }),*];
    };
}

metrics! {
    UP = Gauge "waybill_up": "1 while the process runs, by its version and what it does.";
    DATABASE_UP = Gauge "waybill_database_up": "Whether the database answered when this was read.";

    TURNS_ENQUEUED = Counter "waybill_turns_enqueued_total": "Turns that were enqueued.";
    TURNS_CLAIMED = Counter "waybill_turns_claimed_total": "Turns that workers took.";
    TURNS_FINISHED = Counter "waybill_turns_finished_total": "Turns that ended, by how: success, failed, canceled, timeout. Counted before the commit.";
    STEPS = Counter "waybill_steps_total": "Steps that were written, by what they came to.";
    CLAIM_SECONDS = Histogram "waybill_claim_seconds": "How long a poll for work takes that finds some.";
    HELD = Gauge "waybill_held": "Turns and calls that this process has claimed and still holds, by kind: turns, calls.";
    REPORTS = Counter "waybill_reports_total": "Answers to calls, by what became of them: applied, duplicate, dropped.";

    SWEEPS = Counter "waybill_sweeps_total": "Ticks of the watchdogs, by what they sweep for and how they went: done, failed.";
    SWEPT = Counter "waybill_swept_total": "What the watchdogs did, by what: turns_reclaimed, calls_timed_out, failures, …";
    REMOVED = Counter "waybill_removed_total": "What retention removed, by what: turns, cards, contents (of cards that stay), bytes (of contents), …";
    EVENTS_PUBLISHED = Counter "waybill_events_published_total": "Events that the relay published.";
    SPANS = Counter "waybill_spans_total": "Spans of traces, by what became of them: sent, dropped.";

    MODEL_CALLS = Counter "waybill_model_calls_total": "Calls of models, by provider, model and outcome.";
    MODEL_SECONDS = Histogram "waybill_model_seconds": "How long a model takes to answer, attempts together.";
    MODEL_TOKENS = Counter "waybill_model_tokens_total": "Tokens, by provider, model and kind: input, cached, output.";
    MODEL_MICRODOLLARS = Counter "waybill_model_microdollars_total": "What models cost, by provider and model.";
    TOOL_CALLS = Counter "waybill_tool_calls_total": "Calls of tools outside of Waybill, by kind and outcome.";
    TOOL_SECONDS = Histogram "waybill_tool_seconds": "How long a tool takes to answer, by kind.";

    REQUESTS = Counter "waybill_requests_total": "HTTP requests, by method, path and status.";
    REQUEST_SECONDS = Histogram "waybill_request_seconds": "How long a request takes until its answer begins, by path.";
    RECORDED = Counter "waybill_recorded_total": "Calls of agents elsewhere that were recorded.";
    NOT_RECORDED = Counter "waybill_not_recorded_total": "Requests that passed through the recorder and are not on record, by why: database, queue_full, unreadable, provider, not_a_model_call, …";
    REFUSED = Counter "waybill_refused_total": "Requests that were refused because of overload, a quota or an invalid key, by why.";

    POOL_CONNECTIONS = Gauge "waybill_pool_connections": "Connections to the database of this process: used, idle, most.";
    POOL_SECONDS = Histogram "waybill_pool_seconds": "How long a task waits for a connection to the database.";

    QUEUE_TURNS = Gauge "waybill_queue_turns": "Open turns by target and where they stand: pending, processing, queued, deferred.";
    QUEUE_OLDEST_SECONDS = Gauge "waybill_queue_oldest_seconds": "How long the oldest turn that is ready waits for a worker, by target.";
    CALLS = Gauge "waybill_calls": "Calls without an answer, by target and where they stand.";
    CALLS_OLDEST_SECONDS = Gauge "waybill_calls_oldest_seconds": "How long the oldest call that is ready waits to be taken, by target.";
    WORKERS = Gauge "waybill_workers": "Processes that hold a lease, by target.";
    BATCHES = Gauge "waybill_batches": "Forks that are not joined yet.";
    OUTBOX_EVENTS = Gauge "waybill_outbox_events": "Events that wait to be published, counted to 100,000.";
    OUTBOX_OLDEST_SECONDS = Gauge "waybill_outbox_oldest_seconds": "How long the oldest event waits to be published.";
    QUARANTINED = Gauge "waybill_quarantined": "Rows that the watchdogs have given up on, and agents whose events the stream refuses.";
    HISTORY_AHEAD_SECONDS = Gauge "waybill_history_ahead_seconds": "For how long from now history has its partitions, by table.";
    UPDATES = Gauge "waybill_updates": "Updates of the busiest tables, by table and status: hot (they left the indexes alone), cold. As the server's books say, which may be reset: look at the rate.";
    DEAD_ROWS = Gauge "waybill_dead_rows": "Row versions that vacuum has yet to remove, by table.";
    TOAST_ROWS = Gauge "waybill_toast_rows": "Rows of long card contents, as of the last vacuum. A table can have 4,294,967,296 long values of one row or more.";
    OLDEST_TRANSACTION_SECONDS = Gauge "waybill_oldest_transaction_seconds": "How long the oldest transaction of the database is open.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        for metric in ALL {
            assert!(metric.name.starts_with("waybill_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            assert_eq!(ALL.iter().filter(|other| other.name == metric.name).count(), 1, "{}", metric.name);
        }
    }
}
