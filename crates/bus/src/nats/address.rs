//! Addresses of NATS, which may contain a login.
//!
//! async-nats accepts a user and a password in an address and then ignores them, and writes addresses into its logs. So the login is
//! taken out of the address here and passed as an option.

use std::io;

use async_nats::{ConnectOptions, ServerAddr};

/// Parses addresses that are separated by commas. The first login is used for all of them.
pub(super) fn parse(urls: &str) -> io::Result<(Vec<ServerAddr>, ConnectOptions)> {
    let mut servers = Vec::new();
    let mut login = None;
    for url in urls.split(',') {
        let mut url = url.trim().parse::<ServerAddr>()?.into_inner();
        if url.host_str().is_none_or(str::is_empty) {
            return Err(malformed("the host is missing"));
        }
        // The client accepts the schemes of web sockets and, built without them, treats them as plain TCP.
        if !matches!(url.scheme(), "nats" | "tls") {
            return Err(malformed("the address must begin with nats:// or tls://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let user = decode(url.username())?;
            let password = url.password().map(decode).transpose()?;
            login.get_or_insert((user, password));
            url.set_username("")
                .and_then(|()| url.set_password(None))
                .map_err(|()| malformed("this form of address cannot contain a user or a password"))?;
        }
        servers.push(ServerAddr::from_url(url)?);
    }
    let options = match login {
        None => ConnectOptions::new(),
        Some((user, Some(password))) => ConnectOptions::with_user_and_password(user, password),
        Some((token, None)) => ConnectOptions::with_token(token),
    };
    Ok((servers, options))
}

/// Decodes percent-encoding, such as `%40`.
fn decode(text: &str) -> io::Result<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' { hex(bytes.next())? * 16 + hex(bytes.next())? } else { byte });
    }
    String::from_utf8(decoded).map_err(|_| malformed("the user or the password is not UTF-8"))
}

fn hex(digit: Option<u8>) -> io::Result<u8> {
    let digit = digit.and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(|| {
        malformed("`%` in the user or the password must be followed by two hex digits: write %25 for a percent sign")
    })?;
    u8::try_from(digit).map_err(io::Error::other)
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_taken_out_of_the_address() {
        let (servers, _) = parse("nats://me:p%40ss@one:4222, two:4223,nats://other@three").unwrap();
        let servers: Vec<_> =
            servers.iter().map(|server| (server.host(), server.port(), server.has_user_pass())).collect();
        assert_eq!(servers, [("one", 4222, false), ("two", 4223, false), ("three", 4222, false)]);
    }

    #[test]
    fn a_login_may_hold_signs_that_an_address_may_not() {
        assert_eq!(decode("p%40ss%2fw%C3%A9").unwrap(), "p@ss/wé");
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_address_of_nats_is_refused() {
        for bad in ["http://localhost", "ws://localhost", "nats://:x", "", "one,,two"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
