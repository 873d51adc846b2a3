//! Places on other machines.
//!
//! Owns: the grammar of servers and of what concerns connections to them.
//! Invariants: nothing is looked up here.

use super::number;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The port of a network block device if none is named.
const NBD_PORT: u16 = 10809;
const CONNECTIONS_MAX: u8 = 16;
/// A day.
const TIMEOUT_SECONDS_MAX: u32 = 86_400;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The authorities that the system trusts; we are nobody.
    System,
    /// `ca-cert.pem` in this directory, and `client-cert.pem` with `client-key.pem` if they are
    /// there: names that other programs for network block devices use as well.
    Directory(PathBuf),
}

/// `HOST[:PORT][/EXPORT]`, perhaps after two slashes, as other programs write it.
pub(super) fn parse_nbd(text: &str) -> Result<(Endpoint, String), String> {
    let text = text.strip_prefix("//").unwrap_or(text);
    let (server, export) = text.split_once('/').unwrap_or((text, ""));
    let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => server.rsplit_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(['[', ']']) || server.starts_with('[') != host.contains(':')
    {
        return Err("write nbd:HOST:PORT/EXPORT, and an address with colons in brackets".into());
    }
    let port = port.map_or(Ok(NBD_PORT), |port| port.parse().map_err(|_| bad_port(port)))?;
    Ok((Endpoint::Tcp { host: host.to_owned(), port }, export.to_owned()))
}

fn bad_port(port: &str) -> String {
    format!("port `{port}` is not a number from 0 to 65535")
}

pub(super) fn connections(value: &str) -> Result<u8, String> {
    number("connections", "number", value, 1..=CONNECTIONS_MAX)
}

pub(super) fn timeout(value: &str) -> Result<Duration, String> {
    let seconds = number("timeout", "number of seconds", value, 1..=TIMEOUT_SECONDS_MAX)?;
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
    fn an_endpoint_reads_as_it_is_written() {
        for text in ["host:1", "[::1]:2"] {
            assert_eq!(parse_nbd(text).unwrap().0.to_string(), text);
        }
        assert_eq!(Endpoint::Unix("/run/x".into()).to_string(), "/run/x");
    }
}
