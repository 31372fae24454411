//! Which hosts tools may reach. The project names hosts; the operator may allow fewer, and only the operator may name hosts that are not
//! public. Names are resolved here, and the connection uses exactly those addresses, so that no second lookup can return another address.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use serde::Deserialize;
use waybill_core::{id::Name as SecretName, tool::HostPattern};

use crate::outside;

/// The operator's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Projects may reach only these of the hosts that they name. `None` means all public hosts.
    #[serde(default)]
    pub hosts: Option<BTreeSet<HostPattern>>,
    /// Hosts that may be reached although they are not public.
    #[serde(default)]
    pub private_hosts: BTreeSet<HostPattern>,
    /// Secrets that the tools of every project may send, to any host.
    #[serde(default)]
    pub shared_secrets: BTreeSet<SecretName>,
}

impl Egress {
    /// Checks whether a project that names these hosts may reach an address.
    pub fn allows(&self, url: &Url, hosts: &BTreeSet<HostPattern>) -> Result<(), String> {
        let (host, port, _) = place(url);
        let named = |hosts: &BTreeSet<HostPattern>| is_among(hosts, url);
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let may_be_private = self.is_private_host(host) || address.is_ok_and(|address| !is_public(address));
        let mut missing = Vec::new();
        if !named(hosts) {
            missing.push("add it to `egress_hosts` in the settings of the project");
        }
        // The operator's naming it as a private host is enough: such a host need not be among `hosts` too.
        if !named(&self.private_hosts) {
            if may_be_private {
                missing.push(
                    "it is not a public address, so the operator must add it to `private_hosts` of `egress` in the providers file",
                );
            } else if !self.hosts.as_ref().is_none_or(named) {
                missing.push("the operator must add it to `hosts` of `egress` in the providers file");
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!("tools of this project may not connect to {host}:{port}: {}", missing.join("; ")))
    }

    /// Checks whether the operator named the host as a private one.
    pub(crate) fn is_named_private(&self, url: &Url) -> bool {
        is_among(&self.private_hosts, url)
    }

    /// Ignores the port: a name is resolved without one.
    fn is_private_host(&self, host: &str) -> bool {
        let is_named = |pattern: &HostPattern| {
            let text = pattern.as_str();
            pattern.is_exact() && (text == host || text.strip_prefix(host).is_some_and(|rest| rest.starts_with(':')))
        };
        self.private_hosts.iter().any(is_named)
    }

    /// Returns a client that connects to allowed addresses only and follows no redirects.
    pub fn client(&self) -> Client {
        let client = outside::client().no_proxy().dns_resolver(Arc::new(Resolver(self.clone())));
        client.build().expect("a client without a certificate of its own")
    }
}

#[derive(Debug)]
struct Resolver(Egress);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let may_be_private = self.0.is_private_host(&host);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> =
                found.into_iter().filter(|address| may_be_private || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err(format!("{host} has no public address: the operator must add it to `private_hosts`").into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Returns the host, the port, and the default port of the scheme.
fn place(url: &Url) -> (&str, u16, u16) {
    let usual = if url.scheme() == "https" { 443 } else { 80 };
    (url.host_str().unwrap_or_default(), url.port().unwrap_or(usual), usual)
}

fn is_among(hosts: &BTreeSet<HostPattern>, url: &Url) -> bool {
    let (host, port, usual) = place(url);
    hosts.iter().any(|pattern| pattern.matches(host, port, usual))
}

/// Checks whether an address is public: reachable on the internet, and not private or reserved.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_public_v4(v4),
            None => is_public_v6(v6),
        },
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    !(v4.is_loopback()
        || v4.is_private()
        || v4.is_link_local()
        || v4.is_broadcast()
        || v4.is_multicast()
        || v4.is_documentation()
        || a == 0
        || a >= 240
        // Reserved for carrier-grade NAT, for protocol assignments, and for benchmarks.
        || a == 100 && (64..128).contains(&b)
        || a == 192 && b == 0 && c == 0
        // A public address that only machines at Azure reach: their host's metadata service.
        || v4.octets() == [168, 63, 129, 16]
        || a == 198 && (18..20).contains(&b))
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    let [first, second, ..] = v6.segments();
    // Global unicast is 2000::/3; of that, not documentation, nor what wraps another address (6to4, Teredo).
    (0x2000..0x4000).contains(&first) && first != 0x2002 && !(first == 0x2001 && (second == 0x0db8 || second < 0x0200))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn set(hosts: &[&str]) -> BTreeSet<HostPattern> {
        hosts.iter().map(|host| host.parse().unwrap()).collect()
    }

    /// Both must allow a host, and only the operator may allow one that is not public.
    #[test]
    fn nobody_is_reached_who_was_not_named() {
        let open = Egress::default();
        let url = |text: &str| Url::parse(text).unwrap();
        let may = |egress: &Egress, text: &str, hosts: &[&str]| egress.allows(&url(text), &set(hosts)).is_ok();
        assert!(may(&open, "https://api.example/x", &["api.example"]));
        assert!(!may(&open, "https://api.example/x", &[]), "a project names whom it reaches");
        assert!(!may(&open, "http://api.example:81/x", &["api.example"]));
        for inside in [
            "http://127.0.0.1/",
            "http://10.1.2.3/",
            "http://169.254.169.254/latest",
            "http://[::1]/",
            "http://[fd00::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
            "http://192.168.0.1/",
            "http://168.63.129.16/machine",
        ] {
            let host = url(inside).host_str().unwrap().to_owned();
            assert!(!may(&open, inside, &[&host]), "{inside}");
        }
        let near = Egress { private_hosts: set(&["127.0.0.1:8080", "db.internal:1"]), ..Egress::default() };
        assert!(may(&near, "http://127.0.0.1:8080/", &["127.0.0.1:8080"]));
        assert!(!may(&near, "http://127.0.0.1:5432/", &["127.0.0.1:5432"]), "one port is not all");
        assert!(!may(&near, "http://db.internal:2/", &["db.internal:2"]));
        let named = Egress { hosts: Some(set(&["127.0.0.1:9"])), ..Egress::default() };
        assert!(!may(&named, "http://127.0.0.1:9/", &["127.0.0.1:9"]), "fewer hosts are not nearer ones");
        let narrow =
            Egress { hosts: Some(set(&["*.example"])), private_hosts: set(&["127.0.0.1:8080"]), ..Egress::default() };
        assert!(may(&narrow, "https://api.example/", &["api.example"]));
        assert!(!may(&narrow, "https://other.test/", &["other.test"]));
        assert!(may(&narrow, "http://127.0.0.1:8080/", &["127.0.0.1:8080"]));
        assert!(!may(&narrow, "http://127.0.0.1:9090/", &["127.0.0.1:9090"]));
        assert!(!may(&narrow, "http://127.0.0.1:8080/", &["api.example"]));
    }

    /// The error says what is missing, and nothing else.
    #[test]
    fn the_error_says_what_is_missing() {
        let says = |egress: &Egress, text: &str, hosts: &[&str]| {
            let said = egress.allows(&Url::parse(text).unwrap(), &set(hosts)).unwrap_err();
            let parts = ["`egress_hosts`", "`hosts` of", "`private_hosts`"];
            parts.map(|part| said.contains(part))
        };
        let open = Egress::default();
        assert_eq!(says(&open, "https://api.example/", &[]), [true, false, false]);
        assert_eq!(says(&open, "http://127.0.0.1:8000/", &[]), [true, false, true]);
        assert_eq!(says(&open, "http://127.0.0.1:8000/", &["127.0.0.1:8000"]), [false, false, true]);
        let near = Egress { private_hosts: set(&["127.0.0.1:8000"]), ..Egress::default() };
        assert_eq!(says(&near, "http://127.0.0.1:8000/", &[]), [true, false, false]);
        let narrow = Egress { hosts: Some(set(&["*.example"])), ..Egress::default() };
        assert_eq!(says(&narrow, "https://other.test/", &["other.test"]), [false, true, false]);
        assert_eq!(says(&narrow, "https://other.test/", &[]), [true, true, false]);
    }

    /// A name that resolves to a private address is not connected to.
    #[tokio::test]
    async fn a_name_does_not_lead_inside() {
        let error = Egress::default().client().get("http://localhost:1/").send().await.unwrap_err();
        assert!(format!("{error:?}").contains("no public address"), "{error:?}");
        let named = Egress { private_hosts: set(&["localhost:1"]), ..Egress::default() };
        let error = named.client().get("http://localhost:1/").send().await.unwrap_err();
        assert!(!format!("{error:?}").contains("no public address"), "{error:?}");
    }
}
