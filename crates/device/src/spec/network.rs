//! Places on other machines.
//!
//! Owns: the grammar of servers and of what concerns connections to them.
//! Invariants: nothing is looked up here.

use super::{number, size_of};
use overspill_base::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The port of a network block device if none is named.
const NBD_PORT: u16 = 10809;
const REDIS_PORT: u16 = 6379;
const CONNECTIONS_MAX: u8 = 16;
const REPLICAS_MAX: u8 = 8;
const LEASE_SECONDS_MIN: u32 = 10;
/// A day.
const SECONDS_MAX: u32 = 86_400;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Endpoint {
    /// On a port of a machine.
    Tcp {
        /// The machine's name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// At a path of this machine.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Whom to trust with a connection, and who we are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tls {
    /// The authorities that the system trusts; we are nobody.
    System,
    /// `ca-cert.pem` in this directory, and `client-cert.pem` with `client-key.pem` if they are
    /// there: names that other programs for network block devices use as well.
    Directory(PathBuf),
}

/// What only a cluster is asked for. None means what suits it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterOptions {
    /// How many bytes of pages it is to hold. None means what its servers' own limits leave.
    pub size: Option<Bytes>,
    /// How many replicas must have a page besides its primary. None means one, if all have one.
    pub replicas: Option<u8>,
    /// How long pages are kept of a run that does not say that it lives.
    pub lease: Option<Duration>,
    /// Whom to be taken for.
    pub user: Option<String>,
    /// Where that user's password is.
    pub password_file: Option<PathBuf>,
}

impl ClusterOptions {
    /// Takes an option; true if it was given before, none if it is none of these.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Option<Result<bool, String>> {
        let replaced = match key {
            "size" => size_of(value).map(|size| self.size.replace(size).is_some()),
            "replicas" => number("replicas", "number", value, 0..=REPLICAS_MAX)
                .map(|replicas| self.replicas.replace(replicas).is_some()),
            "lease" => seconds("lease", value, LEASE_SECONDS_MIN)
                .map(|lease| self.lease.replace(lease).is_some()),
            "user" => Ok(self.user.replace(value.to_owned()).is_some()),
            "password-file" => Ok(self.password_file.replace(value.into()).is_some()),
            _ => return None,
        };
        Some(replaced)
    }

    /// The options, and which of them are there.
    pub(super) fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("size", self.size.is_some()),
            ("replicas", self.replicas.is_some()),
            ("lease", self.lease.is_some()),
            ("user", self.user.is_some()),
            ("password-file", self.password_file.is_some()),
        ]
    }
}

/// `HOST[:PORT][/EXPORT]`, perhaps after two slashes, as other programs write it.
pub(super) fn parse_nbd(text: &str) -> Result<(Endpoint, String), String> {
    let text = text.strip_prefix("//").unwrap_or(text);
    let (server, export) = text.split_once('/').unwrap_or((text, ""));
    let server = parse_server(server, NBD_PORT, "nbd:HOST:PORT/EXPORT")?;
    Ok((server, export.to_owned()))
}

/// `HOST[:PORT]`, once or more.
pub(super) fn parse_nodes(text: &str) -> Result<Vec<Endpoint>, String> {
    let parse = |node| parse_server(node, REDIS_PORT, "redis+cluster:HOST:PORT,HOST:PORT");
    text.split(',').map(parse).collect()
}

/// `HOST[:PORT]`, as in `form`.
fn parse_server(server: &str, usual: u16, form: &str) -> Result<Endpoint, String> {
    let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => server.rsplit_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    let is_bracketed = server.starts_with('[');
    if host.is_empty() || host.contains(['[', ']', '/']) || is_bracketed != host.contains(':') {
        return Err(format!("write {form}, and an address with colons in brackets"));
    }
    let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| bad_port(port)))?;
    Ok(Endpoint::Tcp { host: host.to_owned(), port })
}

fn bad_port(port: &str) -> String {
    format!("port `{port}` is not a number from 0 to 65535")
}

pub(super) fn connections(value: &str) -> Result<u8, String> {
    number("connections", "number", value, 1..=CONNECTIONS_MAX)
}

pub(super) fn timeout(value: &str) -> Result<Duration, String> {
    seconds("timeout", value, 1)
}

fn seconds(name: &str, value: &str, least: u32) -> Result<Duration, String> {
    let seconds = number(name, "number of seconds", value, least..=SECONDS_MAX)?;
    Ok(Duration::from_secs(seconds.into()))
}

pub(super) fn tls(value: &str) -> Result<Tls, String> {
    match value {
        "on" => Ok(Tls::System),
        _ if value.contains('/') => Ok(Tls::Directory(value.into())),
        _ => Err(format!("tls `{value}` is neither on nor a directory, as in tls=./certificates")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_understood() {
        let table = [
            ("host", "host", 10809, ""),
            ("host:1", "host", 1, ""),
            ("host/", "host", 10809, ""),
            ("host:9/a/b c", "host", 9, "a/b c"),
            ("//host:9/a", "host", 9, "a"),
            ("10.0.0.1/x", "10.0.0.1", 10809, "x"),
            ("[::1]", "::1", 10809, ""),
            ("[fe80::1]:7/x:y", "fe80::1", 7, "x:y"),
        ];
        for (text, host, port, export) in table {
            let server = Endpoint::Tcp { host: host.into(), port };
            assert_eq!(parse_nbd(text), Ok((server, export.into())), "{text}");
        }
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for text in
            ["", ":1", "/x", "::1", "a:b:1", "[::1", "[]", "[host]", "host:", "host:99999", "h:x"]
        {
            assert!(parse_nbd(text).is_err(), "{text}");
        }
    }

    #[test]
    fn clusters_are_understood() {
        let node = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
        assert_eq!(parse_nodes("a"), Ok(vec![node("a", 6379)]));
        assert_eq!(parse_nodes("a:1,[::1]:2"), Ok(vec![node("a", 1), node("::1", 2)]));
        for text in ["", "a,", ",a", "a:b", "::1", "a/b", "a:1/0"] {
            assert!(parse_nodes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_endpoint_reads_as_it_is_written() {
        for text in ["host:1", "[::1]:2"] {
            assert_eq!(parse_nbd(text).unwrap().0.to_string(), text);
        }
        assert_eq!(Endpoint::Unix("/run/x".into()).to_string(), "/run/x");
    }
}
