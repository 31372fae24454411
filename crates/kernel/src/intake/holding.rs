//! What a process holds, and what its holders are to do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use waybill_core::{id::WorkerId, metric};

use super::Claimable;

/// What the holder of claimed work is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Go,
    /// It was asked to stop: end it.
    Stop,
    /// Another process has it now, or soon will: drop everything.
    Lost,
}

/// Something claimed, held until this is dropped. Drop it when its end is known to be written, or when it is lost.
#[derive(Debug)]
pub struct Holding<T: Claimable> {
    pub claimed: T,
    order: watch::Receiver<Order>,
    held_work: Arc<HeldWork<T>>,
}

impl<T: Claimable> Holding<T> {
    pub fn order(&self) -> Order {
        *self.order.borrow()
    }

    /// Waits until it is to stop, or is lost.
    pub async fn called_off(&self) -> Order {
        let mut order = self.order.clone();
        // The sender is kept with the held work as long as this is held.
        order.wait_for(|order| *order != Order::Go).await.map_or(Order::Lost, |order| *order)
    }

    /// Waits until it is lost, whether or not it is to stop.
    pub async fn lost(&self) {
        let mut order = self.order.clone();
        let _ = order.wait_for(|order| *order == Order::Lost).await;
    }
}

impl<T: Claimable> Drop for Holding<T> {
    fn drop(&mut self) {
        let mut state = self.held_work.state();
        // What was lost may be held again by now.
        if self.order() != Order::Lost {
            state.let_go(self.claimed.id());
        }
        state.busy = Instant::now();
        let last = state.is_over();
        drop(state);
        self.held_work.freed.notify_one();
        if last {
            self.held_work.taken.notify_one();
        }
    }
}

/// What one process holds, shared between the poller, the renewals and the holders.
#[derive(Debug)]
pub(super) struct HeldWork<T: Claimable> {
    state: Mutex<State<T>>,
    /// For the renewals: something was taken, or may have been; or the intake is closed.
    pub(super) taken: Notify,
    /// For the poller: something was given back, or is to be taken up; or the intake is closed.
    pub(super) freed: Notify,
}

#[derive(Debug)]
pub(super) struct State<T: Claimable> {
    pub(super) worker_id: WorkerId,
    /// When the lease was last known to hold, counted from the request. `None` means that there is no lease.
    pub(super) renewed: Option<Instant>,
    /// When something was last held, or may have been.
    pub(super) busy: Instant,
    /// No more is claimed: when nothing is held any more, the lease is given up.
    pub(super) closed: bool,
    /// A claim is under way.
    pub(super) claiming: bool,
    pub(super) held: HashMap<T::Id, watch::Sender<Order>>,
    /// How many more the database says are ours, without our knowing of them.
    pub(super) n_unknown_claims: usize,
}

impl<T: Claimable> State<T> {
    pub(super) fn hold(&mut self, claimed: T, held_work: &Arc<HeldWork<T>>) -> Holding<T> {
        let (sender, order) = watch::channel(Order::Go);
        match self.held.insert(claimed.id(), sender) {
            // Claimed again: the holder of the old claim has lost it.
            Some(before) => drop(before.send_replace(Order::Lost)),
            None => metrics::gauge!(metric::HELD, "kind" => T::KIND).increment(1.0),
        }
        Holding { claimed, order, held_work: held_work.clone() }
    }

    pub(super) fn let_go(&mut self, id: T::Id) -> Option<watch::Sender<Order>> {
        let gone = self.held.remove(&id);
        if gone.is_some() {
            metrics::gauge!(metric::HELD, "kind" => T::KIND).decrement(1.0);
        }
        gone
    }

    /// Checks whether it is closed, nothing is held, and no claim under way can change that.
    pub(super) fn is_over(&self) -> bool {
        self.closed && !self.claiming && self.held.is_empty()
    }
}

impl<T: Claimable> HeldWork<T> {
    /// Starts with nothing held, and without a lease.
    pub(super) fn new(worker_id: WorkerId) -> HeldWork<T> {
        let state = State {
            worker_id,
            renewed: None,
            busy: Instant::now(),
            closed: false,
            claiming: false,
            held: HashMap::new(),
            n_unknown_claims: 0,
        };
        HeldWork { state: Mutex::new(state), taken: Notify::new(), freed: Notify::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks everything held as lost; the process goes on under another name.
    pub(super) fn lose(&self, worker_id: WorkerId) {
        let mut state = self.state();
        if state.worker_id == worker_id {
            state.worker_id = WorkerId::new();
            state.renewed = None;
            state.n_unknown_claims = 0;
            let held: Vec<T::Id> = state.held.keys().copied().collect();
            for order in held.into_iter().filter_map(|id| state.let_go(id)) {
                order.send_replace(Order::Lost);
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.taken.notify_one();
        self.freed.notify_one();
    }
}
