//! The ends of turns, written together where several are at hand.
//!
//! An end that comes alone is written at once. What comes while two transactions are being written waits, and is written next as one: so groups
//! are as large as the database is slow, and no end waits for others that may never come. Nothing waits under a lock. If a group cannot be
//! written, each of its ends is written alone, so that one that is refused fails alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use tokio::{sync::oneshot, time::timeout};
use waybill_core::id::{BatchId, ProjectId};
use waybill_kernel::{
    retry::retry,
    turn::{self, Claimed, Ending},
    work::{DbError, Kernel},
};

/// Turns of one project end together. A task of a batch may have to join its batch, so tasks of different batches do not.
type Group = (ProjectId, Option<BatchId>);

#[derive(Debug)]
pub(crate) struct Ends {
    kernel: Kernel,
    /// How many ends may be one transaction.
    most: usize,
    /// The groups that are being written.
    groups: Mutex<HashMap<Group, Queue>>,
}

/// How long an attempt may take: a server that vanished without a word must not hold a writer for ever.
const ATTEMPT: Duration = Duration::from_secs(20);

/// Transactions of one group that are written at a time.
const MOST_WRITERS: usize = 2;

#[derive(Debug, Default)]
struct Queue {
    n_writers: usize,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ending: Ending,
    written: oneshot::Sender<Result<(), turn::Error>>,
}

impl Ends {
    pub(crate) fn new(kernel: Kernel, most: usize) -> Arc<Ends> {
        Arc::new(Ends { kernel, most, groups: Mutex::default() })
    }

    /// Writes the end of a turn, and returns once it is written.
    pub(crate) async fn write(self: &Arc<Self>, claimed: &Claimed, ending: Ending) -> Result<(), turn::Error> {
        let group = (claimed.fence.project_id(), claimed.batch_id);
        if self.most == 1 {
            return self.finish(group, &ending).await;
        }
        let (written, is_written) = oneshot::channel();
        let one = Waiting { ending, written };
        let begins = {
            let mut groups = self.groups();
            let queue = groups.entry(group).or_default();
            queue.waiting.push(one);
            let begins = queue.n_writers < MOST_WRITERS;
            queue.n_writers += usize::from(begins);
            begins
        };
        if begins {
            // In a task of its own: the others must not be lost with this turn.
            tokio::spawn(Writer { ends: self.clone(), group }.write());
        }
        // A writer that failed says nothing: the turn is tried again.
        is_written.await.unwrap_or_else(|_| Err(DbError::no_answer().into()))
    }

    /// Writes one end, and tries again while it is not known whether it is written.
    async fn finish(&self, group: Group, ending: &Ending) -> Result<(), turn::Error> {
        retry(|| Box::pin(self.try_finish(group, std::slice::from_ref(ending)))).await
    }

    /// Tries once to write ends as one transaction.
    async fn try_finish(&self, (project_id, batch_id): Group, endings: &[Ending]) -> Result<(), turn::Error> {
        let attempt = async {
            if batch_id.is_none() {
                turn::finish(&mut self.kernel.alone(project_id).await?, endings).await?;
                return Ok(());
            }
            let mut work = self.kernel.begin(project_id).await?;
            turn::finish(&mut work, endings).await?;
            Ok(work.commit().await?)
        };
        timeout(ATTEMPT, attempt).await.unwrap_or_else(|_| Err(DbError::no_answer().into()))
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<Group, Queue>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what waits of a group, until nothing does.
struct Writer {
    ends: Arc<Ends>,
    group: Group,
}

impl Writer {
    async fn write(self) {
        while let Some(ends) = self.next() {
            self.write_together(ends).await;
        }
    }

    async fn write_together(&self, ends: Vec<Waiting>) {
        let (endings, written): (Vec<Ending>, Vec<_>) = ends.into_iter().map(|one| (one.ending, one.written)).unzip();
        if endings.len() > 1 {
            // Once: one that is locked or too slow must not hold the others up. What was written after all is found by its id.
            match self.ends.try_finish(self.group, &endings).await {
                Ok(()) => return written.into_iter().for_each(|written| drop(written.send(Ok(())))),
                Err(error) => tracing::debug!(%error, n = endings.len(), "ends of turns are written one by one"),
            }
        }
        join_all(endings.iter().zip(written).map(async |(ending, written)| {
            let _ = written.send(self.ends.finish(self.group, ending).await);
        }))
        .await;
    }

    /// Takes what waits. If nothing does, this writer is no longer counted, and the next end begins another.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut groups = self.ends.groups();
        let queue = groups.get_mut(&self.group)?;
        // A turn that was taken from this worker waits no longer.
        queue.waiting.retain(|one| !one.written.is_closed());
        let n = queue.waiting.len().min(self.ends.most);
        if n > 0 {
            return Some(queue.waiting.drain(..n).collect());
        }
        queue.n_writers -= 1;
        if queue.n_writers == 0 {
            groups.remove(&self.group);
        }
        None
    }
}

impl Drop for Writer {
    /// Whatever still waits if the writer fails is dropped with its turn, which another attempt takes up.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ends.groups().remove(&self.group);
        }
    }
}
