//! Renewing the lease of a process.

use std::{collections::HashSet, sync::Arc, time::Duration};

use sqlx::{FromRow, postgres::PgRow};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Claimable, Order, holding::HeldWork};
use crate::{lease, turn::Error, work::Kernel};

/// Keeps the lease while something is held, and passes on what the database says of it.
pub(super) async fn renew<T: Claimable>(kernel: Kernel, held_work: Arc<HeldWork<T>>, lease: Duration)
where
    (Vec<T::Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    // What the database says we hold and we do not know of, and the other way round.
    let (mut unknown, mut absent): (HashSet<T::Id>, HashSet<T::Id>) = (HashSet::new(), HashSet::new());
    loop {
        let (worker_id, renewed, over) = {
            let mut state = held_work.state();
            let idle = state.held.is_empty() && !state.claiming && unknown.is_empty() && state.n_unknown_claims == 0;
            if idle && state.busy.elapsed() > lease * 3 / 4 {
                // Long enough for a claim that was under way to show. From here on the lease may lapse.
                state.renewed = None;
            }
            (state.worker_id, state.renewed, state.is_over())
        };
        if over {
            if renewed.is_some() {
                // Not heard: it lapses.
                let _ = timeout(lease / 2, lease::end(&kernel, worker_id)).await;
            }
            return;
        }
        let Some(renewed) = renewed else {
            unknown.clear();
            held_work.taken.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(renewed + lease / 4) => {}
            () = held_work.taken.notified() => continue, // also when the intake is gone
        }
        let asked = Instant::now();
        let answer = timeout(lease / 2, lease::renew::<T::Id>(&kernel, worker_id, lease)).await;
        match answer {
            Ok(Ok(held)) => {
                let mut state = held_work.state();
                if state.worker_id != worker_id {
                    continue;
                }
                state.renewed = Some(asked);
                let strange: HashSet<T::Id> =
                    held.iter().map(|(id, _)| *id).filter(|id| !state.held.contains_key(id)).collect();
                state.n_unknown_claims = if state.closed { 0 } else { strange.intersection(&unknown).count() };
                let listed: HashSet<T::Id> = held.iter().map(|(id, _)| *id).collect();
                let missing: HashSet<T::Id> = state.held.keys().filter(|id| !listed.contains(id)).copied().collect();
                for id in missing.intersection(&absent) {
                    // Over, or taken from us: twice in a row is no accident.
                    if let Some(order) = state.let_go(*id) {
                        order.send_replace(Order::Lost);
                    }
                }
                for (id, _) in held.iter().filter(|(_, stop)| *stop) {
                    if let Some(order) = state.held.get(id) {
                        order.send_if_modified(|order| {
                            *order == Order::Go && {
                                *order = Order::Stop;
                                true
                            }
                        });
                    }
                }
                let has_unknown_claims = state.n_unknown_claims > 0;
                let has_lost = missing.intersection(&absent).next().is_some();
                drop(state);
                (unknown, absent) = (strange, missing);
                if has_unknown_claims || has_lost {
                    held_work.freed.notify_one();
                }
            }
            Ok(Err(Error::LeaseLost)) => {
                tracing::warn!(%worker_id, "this process lost its lease: other processes take over its work");
                held_work.lose(worker_id);
                unknown.clear();
            }
            trouble => {
                tracing::debug!(?trouble, "the lease was not renewed");
                // By our own clock, counted from the asking, so never later than the database sees it.
                if renewed.elapsed() > lease {
                    held_work.lose(worker_id);
                    unknown.clear();
                } else {
                    sleep(lease / 16).await;
                }
            }
        }
    }
}
