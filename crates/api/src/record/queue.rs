//! What passed and is to be recorded: a bounded queue, and a few writers.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes};
use futures::{FutureExt, StreamExt};
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    mpsc::{self, Receiver, Sender as Into},
};
use waybill_context::{record::Unreadable, wire::Adapter};
use waybill_core::{id::ProjectId, metric};

use super::{count, credentials::Credentials, lock, sender::Sender, write};
use crate::{Api, problem::Problem};

/// Calls of one conversation are written one after the other: the same writer has all of them.
const WRITERS: usize = 4;
/// How much may be under way or wait to be written: calls for one writer, and bytes for all.
const MOST_CALLS: usize = 1_000;
const MOST_KILOBYTES: usize = 256 << 10;
/// The largest body that is recorded. Larger ones pass, and are counted.
const MOST_BYTES: usize = 64 << 20;
/// How long writing a call is tried, and how long one attempt may take.
const TRIED: Duration = Duration::from_secs(60);
const ATTEMPT: Duration = Duration::from_secs(20);
/// How long a request waits until it is known that it can be recorded.
const READY: Duration = Duration::from_secs(2);

/// A call that passed.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) room: Room,
    pub(super) sender: Sender,
    pub(super) provider: String,
    pub(super) adapter: Adapter,
    /// The compression of the request.
    pub(super) encoding: Option<String>,
    pub(super) session: Option<String>,
    pub(super) agent: Option<String>,
    /// The name of the agent that asked this one, if the client says so.
    pub(super) parent: Option<String>,
    pub(super) traceparent: Option<String>,
    /// The path and the query, without the credentials in it.
    pub(super) address: String,
    pub(super) request: Bytes,
    pub(super) credentials: Credentials,
    /// Zero until the provider answers.
    pub(super) status: u16,
    pub(super) answer_type: Option<String>,
    pub(super) answer_encoding: Option<String>,
    /// Pieces of the answer, and when each of them came.
    pub(super) answer: Vec<(Duration, Bytes)>,
    pub(super) n_bytes: usize,
    /// Whether the answer came to its end.
    pub(super) is_whole: bool,
    pub(super) begun: Instant,
    pub(super) took: Duration,
}

impl Call {
    /// Keeps a piece of the answer. False: there is no room for it.
    pub(super) fn keep(&mut self, piece: &Bytes) -> bool {
        self.n_bytes += piece.len();
        if self.n_bytes > MOST_BYTES || !self.room.take(piece) {
            return false;
        }
        self.answer.push((self.begun.elapsed(), piece.clone()));
        true
    }

    /// Returns the writer of its conversation: a conversation has one sender and one session.
    fn writer(&self) -> usize {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.sender.actor.as_bytes());
        hasher.update(self.session.as_deref().unwrap_or_default().as_bytes());
        usize::from(hasher.finalize().as_bytes()[0]) % WRITERS
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    writers: Vec<Into<Call>>,
    receivers: Mutex<Vec<Receiver<Call>>>,
    /// Kilobytes that may still be taken.
    room: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        let (writers, receivers) = (0..WRITERS).map(|_| mpsc::channel(MOST_CALLS)).unzip();
        Queue { writers, receivers: Mutex::new(receivers), room: Arc::new(Semaphore::new(MOST_KILOBYTES)) }
    }

    /// Takes a call, if there is room.
    pub(super) fn put(&self, call: Call) {
        if self.writers[call.writer()].try_send(call).is_err() {
            count("queue_full");
        }
    }

    /// Reads the body of a request. If it is too large, or there is no room for a copy, it is sent on as it comes, and is not returned.
    pub(super) async fn read(&self, body: Body) -> Result<(Option<(Bytes, Room)>, reqwest::Body), Problem> {
        let mut stream = body.into_data_stream();
        let (mut pieces, mut n_bytes) = (Vec::new(), 0);
        let mut room = Room::new(&self.room);
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|_| Problem::invalid("the body of the request was cut off"))?;
            n_bytes += piece.len();
            room = room.and_then(|mut room| (n_bytes <= MOST_BYTES && room.take(&piece)).then_some(room));
            pieces.push(piece);
            if room.is_none() {
                break;
            }
        }
        let Some(room) = room else {
            let read = futures::stream::iter(pieces.into_iter().map(Ok::<_, axum::Error>));
            return Ok((None, reqwest::Body::wrap_stream(read.chain(stream))));
        };
        let whole = if pieces.len() == 1 { pieces.remove(0) } else { Bytes::from(pieces.concat()) };
        Ok((Some((whole.clone(), room)), reqwest::Body::from(whole)))
    }

    /// Checks that a call which begins now can be recorded.
    pub(super) async fn ready(&self, api: &Api, project_id: ProjectId) -> Result<(), Problem> {
        let is_up = async { api.kernel.begin(project_id).await.is_ok() };
        let is_up = tokio::time::timeout(READY, is_up).await.unwrap_or(false);
        let has_room = self.room.available_permits() > MOST_KILOBYTES / 2
            && self.writers.iter().all(|to| to.capacity() > MOST_CALLS / 2);
        if is_up && has_room {
            return Ok(());
        }
        Err(Problem::busy(
            "cannot_record",
            "this call cannot be recorded now, and the recorder was told to refuse such calls: retry in a few seconds",
            2,
        ))
    }

    /// Returns once everything that was taken is written.
    pub(super) async fn emptied(&self) {
        let _ = self.room.acquire_many(u32::try_from(MOST_KILOBYTES).unwrap_or(u32::MAX)).await;
    }
}

/// The room that a call takes until it is written.
#[derive(Debug)]
pub(super) struct Room {
    kilobytes: OwnedSemaphorePermit,
    n_bytes: usize,
}

impl Room {
    fn new(all: &Arc<Semaphore>) -> Option<Room> {
        Some(Room { kilobytes: all.clone().try_acquire_owned().ok()?, n_bytes: 0 })
    }

    /// Takes room for a piece of a body. False: there is none.
    fn take(&mut self, piece: &Bytes) -> bool {
        // Many small pieces take room for themselves too.
        let n_bytes = self.n_bytes + piece.len() + size_of::<(Duration, Bytes)>();
        let missing = (n_bytes / 1024 + 1).saturating_sub(self.kilobytes.num_permits());
        if missing > 0 {
            let Ok(missing) = u32::try_from(missing) else { return false };
            let all = self.kilobytes.semaphore().clone();
            let Ok(more) = all.try_acquire_many_owned(missing) else { return false };
            self.kilobytes.merge(more);
        }
        self.n_bytes = n_bytes;
        true
    }
}

/// Starts the writers of a server.
pub(super) fn start(api: &Arc<Api>) {
    for receiver in lock(&api.recorder.queue.receivers).drain(..) {
        tokio::spawn(write_all(api.clone(), receiver));
    }
}

async fn write_all(api: Arc<Api>, mut receiver: Receiver<Call>) {
    while let Some(call) = receiver.recv().await {
        // A call that nobody can read must not end the writing of all others.
        if AssertUnwindSafe(write_one(&api, call)).catch_unwind().await.is_err() {
            count("panic");
        }
    }
}

/// Writes a call. While the database cannot be reached, it is tried again for a while.
async fn write_one(api: &Arc<Api>, call: Call) {
    let prepared = match write::Prepared::new(call).await {
        Ok(prepared) => prepared,
        Err(why) => return count(why),
    };
    let mut pause = Duration::from_millis(100);
    loop {
        let attempt = tokio::time::timeout(ATTEMPT, prepared.write(write::Desk::of(api))).await;
        match attempt {
            Ok(Ok(_)) => return metrics::counter!(metric::RECORDED).increment(1),
            Ok(Err(write::Error::Unreadable(Unreadable::TooMany))) => return count("too_large"),
            Ok(Err(write::Error::Unreadable(_))) => return count("unreadable"),
            Ok(Err(error)) if !error.may_pass() => {
                tracing::error!(error = %waybill_core::error::causes(&error), "a call could not be recorded");
                return count("error");
            }
            Ok(Err(_)) | Err(_) if prepared.age() > TRIED => return count("database"),
            Ok(Err(_)) | Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-2: a stream of many small pieces takes the room of its bytes, not a kilobyte for each piece.
    #[test]
    fn small_pieces_take_little_room() {
        let all = Arc::new(Semaphore::new(100));
        let mut room = Room::new(&all).unwrap();
        for _ in 0..500 {
            assert!(room.take(&Bytes::from_static(&[0; 100])));
        }
        assert_eq!(all.available_permits(), 100 - (500 * 148 / 1024 + 1));
        assert!(!room.take(&Bytes::from(vec![0; 100 << 10])), "there is no such room");
        assert!(room.take(&Bytes::from_static(&[0; 100])), "but there is for less");
        drop(room);
        assert_eq!(all.available_permits(), 100);
        let _all = all.clone().try_acquire_many_owned(100).unwrap();
        assert!(Room::new(&all).is_none());
    }
}
