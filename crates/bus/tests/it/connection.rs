//! Servers that start late, stop, are too old or need a login (L0-16).

use std::{
    error::Error as _,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use waybill_bus::nats::{Error, Nats};
use waybill_core::bus::Bus;
use waybill_services::nats::Private;

use crate::{
    a_bell, own_door,
    server::{Pretender, free_port, is_knocked_at, running, running_with},
    soon, until_down, until_up,
};

/// L0-16
#[tokio::test]
async fn connecting_does_not_need_the_server() {
    let mut server = Private::new().unwrap();
    let begun = Instant::now();
    let nats = Nats::connect(&server.url()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(!nats.is_up());

    let door = own_door();
    let mut listener = nats.hear(&door);

    server.start().unwrap();
    until_up(&nats).await;
    nats.ring(a_bell(&door));
    assert_eq!(soon(listener.next()).await, Some(()));
}

/// L0-16
#[tokio::test]
async fn a_bell_is_heard_again_after_the_server_was_killed() {
    let mut server = running();
    let nats = Nats::connect(&server.url()).await.unwrap();
    let door = own_door();
    let mut listener = nats.hear(&door);
    nats.ring(a_bell(&door));
    assert_eq!(soon(listener.next()).await, Some(()));

    for _ in 0..2 {
        server.kill();
        until_down(&nats).await;
        server.start().unwrap();
        until_up(&nats).await;
        nats.ring(a_bell(&door));
        assert_eq!(soon(listener.next()).await, Some(()));
    }
}

#[tokio::test]
async fn bells_rung_while_the_server_is_away_are_dropped() {
    let mut server = running();
    let nats = Nats::connect(&server.url()).await.unwrap();
    let (dropped, later) = (own_door(), own_door());
    let (mut at_dropped, mut at_later) = (nats.hear(&dropped), nats.hear(&later));
    server.kill();
    until_down(&nats).await;
    nats.ring(a_bell(&dropped));
    nats.flush().await;

    server.start().unwrap();
    until_up(&nats).await;
    nats.ring(a_bell(&later));
    assert_eq!(soon(at_later.next()).await, Some(()));
    assert_eq!(at_dropped.next().now_or_never(), None);
}

/// A bell between processes: the listener and the sender each have their own connection.
#[tokio::test]
async fn a_stream_outlives_the_bus_it_came_from() {
    let mut server = running();
    let (here, there) = (Nats::connect(&server.url()).await.unwrap(), Nats::connect(&server.url()).await.unwrap());
    let door = own_door();
    let mut listener = here.hear(&door);
    drop(here);

    server.kill();
    until_down(&there).await;
    server.start().unwrap();
    until_up(&there).await;
    soon(async {
        // The other connection may come back later than ours, so ring until it has.
        loop {
            there.ring(a_bell(&door));
            if tokio::time::timeout(Duration::from_millis(50), listener.next()).await.is_ok() {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    let old = Pretender::at(0, "2.9.10").await;
    let error = soon(Nats::connect(&old.url)).await.unwrap_err();
    assert!(matches!(&error, Error::TooOld(version) if version == "2.9.10"), "{error:?}");
    assert!(error.to_string().starts_with("NATS 2.9.10 is too old: 2.10 or newer is needed"), "{error}");

    let new = Pretender::at(0, "2.10.0").await;
    assert!(soon(Nats::connect(&new.url)).await.unwrap().is_up());
}

#[tokio::test]
async fn a_server_that_comes_late_and_is_too_old_is_not_used() {
    let port = free_port();
    let nats = Nats::connect(&format!("127.0.0.1:{port}")).await.unwrap();
    let mut old = Pretender::at(port, "2.9.10").await;
    old.has_greeted().await;
    // Nothing signals that the server is not used, so look for a while.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!nats.is_up());
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let begun = Instant::now();
    let nats = Nats::connect(&silent.local_addr().unwrap().to_string()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(!nats.is_up());
}

#[tokio::test]
async fn a_login_in_the_address_is_used() {
    let server = running_with(&["--user", "me", "--pass", "p@ss"]);
    let connect = async |login: &str| Nats::connect(&format!("nats://{login}127.0.0.1:{}", server.port())).await;
    assert!(connect("me:p%40ss@").await.unwrap().is_up());
    for wrong in ["me:wrong@", "token@", ""] {
        let error = connect(wrong).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        let why = error.source().unwrap().to_string();
        assert!(why.contains("authorization violation"), "{why}");
    }

    let server = running_with(&["--auth", "secret"]);
    assert!(Nats::connect(&format!("nats://secret@127.0.0.1:{}", server.port())).await.unwrap().is_up());
}

#[tokio::test]
async fn an_address_that_is_none_is_refused() {
    let error = Nats::connect("http://127.0.0.1").await.unwrap_err();
    assert!(matches!(error, Error::Address(_)), "{error:?}");
}

#[tokio::test]
async fn the_connection_ends_with_the_last_who_holds_it() {
    let mut server = Pretender::at(0, "2.15.1").await;
    let nats = Nats::connect(&server.url).await.unwrap();
    let listener = nats.hear(&own_door());
    drop(nats.clone());
    drop(nats);
    drop(listener);
    server.was_left().await;
}

#[tokio::test]
async fn nobody_knocks_for_a_bus_that_was_dropped() {
    let mut server = running();
    let nats = Nats::connect(&server.url()).await.unwrap();
    server.kill();
    until_down(&nats).await;
    assert!(is_knocked_at(server.port(), Duration::from_secs(5)).await);
    drop(nats);
    // One attempt may have been in progress. Attempts are at most a second apart, so after this silence no more will come.
    let mut n_knocks = 0;
    while is_knocked_at(server.port(), Duration::from_millis(1500)).await {
        n_knocks += 1;
        assert!(n_knocks <= 1, "it goes on");
    }
}
