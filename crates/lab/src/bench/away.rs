//! A database that is further away: a proxy that delays what passes through it, by less than a timer of the runtime can.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::Result;

/// Starts a proxy to a port of this machine, which delays each direction. Returns its port. It runs as long as the process.
pub(super) fn start(to: u16, delay: Duration) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = connect(client, to, delay);
        }
    });
    Ok(port)
}

fn connect(client: TcpStream, to: u16, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (asks, answers) = ((client.try_clone()?, server.try_clone()?), (server, client));
    for (from, into) in [asks, answers] {
        thread::spawn(move || pass(from, into, delay));
    }
    Ok(())
}

fn pass(mut from: TcpStream, mut into: TcpStream, delay: Duration) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        thread::sleep(delay);
        if into.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(std::net::Shutdown::Both);
}
