//! The bus and the feed against real servers.

#![allow(clippy::unwrap_used)]

mod bells;
mod chunks;
mod connection;
mod events;
mod server;

use std::time::Duration;

use waybill_bus::nats::Nats;
use waybill_core::{
    bus::{Bell, Bus, Door},
    id::ProjectId,
};
use waybill_services::Shared;

/// Connects to the server that all tests of this checkout share. Each test must use its own doors and projects.
async fn shared_nats() -> Nats {
    Nats::connect(&Shared::get().await.unwrap().nats_url).await.unwrap()
}

/// Returns a door that no other test uses.
fn own_door() -> Door {
    Door::Agent(ProjectId::new().to_string().parse().unwrap())
}

fn a_bell(door: &Door) -> Bell {
    Bell { project_id: ProjectId::new(), door: door.clone() }
}

/// Waits for something that must happen, with a timeout.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it did not come")
}

async fn until(mut is_so: impl FnMut() -> bool) {
    soon(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn until_up(bus: &dyn Bus) {
    until(|| bus.is_up()).await;
}

async fn until_down(bus: &dyn Bus) {
    until(|| !bus.is_up()).await;
}
