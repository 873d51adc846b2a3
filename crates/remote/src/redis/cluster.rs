//! How a cluster is reached, and what its servers say of themselves.
//!
//! Owns: servers that are known, credentials, and the limits that the servers have.
//! Invariants: a server that was once named by the cluster is asked as well when a connection is
//! made again, so those that the user named may be gone by then.

use super::Failure;
use super::patient::Patient;
use crate::{AUTHORITIES, CERTIFICATE, KEY};
use overspill_base::Bytes;
use overspill_base::sync::{LockClass, Mutex};
use overspill_device::SwapSpec;
use overspill_device::spec::{Endpoint, Tls};
use redis::cluster::{self, ClusterClient};
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{ClientTlsConfig, RedisError, TlsCertificates, TlsMode, Value, cmd};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Longest time that a server may take for an answer, or to be connected to, unless the user's
/// patience is shorter.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the client tries by itself, following a key to where it has moved.
const TRIES: u32 = 3;
/// Memory that a page takes in a server, with a little to spare: 5169 bytes in Redis 7.0 with
/// jemalloc (`used_memory` before and after 100 000 pages), which keeps it in a piece of 5 KiB.
const PAGE_COST_BYTES: u64 = 5400;

type Address = (String, u16);
/// Connections to all servers of a cluster.
pub(super) type Connection = cluster::ClusterConnection<Patient>;

/// A cluster as the user has named it, and what it has said since.
pub(super) struct Cluster {
    named: Vec<Address>,
    learned: Mutex<BTreeSet<Address>>,
    patience: Duration,
    tls: Option<TlsCertificates>,
    user: Option<String>,
    password: Option<String>,
}

/// What has a part of the keys.
struct Shard {
    primary: Address,
    replicas: Vec<Address>,
}

/// What the servers are able to do.
pub(super) struct Facts {
    pub(super) shards: usize,
    /// That every shard has.
    pub(super) replicas: u8,
    /// That their own limits leave for pages; none if one has no limit.
    pub(super) room: Option<Bytes>,
    /// Something else than to refuse, that one of them does when its memory is full.
    pub(super) eviction: Option<String>,
}

impl Cluster {
    pub(super) fn new(nodes: &[Endpoint], spec: &SwapSpec) -> Result<Self, Failure> {
        let password = spec.cluster.password_file.as_deref().map(read_password).transpose()?;
        let named: Vec<_> = nodes.iter().filter_map(address).collect();
        if password.is_some() && spec.tls.is_none() && !named.iter().all(is_of_this_machine) {
            return Err(Failure::Refused(IN_CLEAR.into()));
        }
        Ok(Self {
            named,
            learned: Mutex::new(LockClass::ServedDevice, BTreeSet::new()),
            patience: spec.timeout.map_or(PATIENCE, |timeout| PATIENCE.min(timeout / 2)),
            tls: spec.tls.as_ref().map(certificates).transpose()?,
            user: spec.cluster.user.clone(),
            password,
        })
    }

    /// Connects to all servers of the cluster that can be reached.
    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        let mut nodes = self.named.clone();
        nodes.extend(self.learned.lock().iter().filter(|node| !self.named.contains(node)).cloned());
        let mut builder = ClusterClient::builder(nodes)
            .retries(TRIES)
            .min_retry_wait(10)
            .max_retry_wait(200)
            .connection_timeout(self.patience);
        if let Some(certificates) = &self.tls {
            builder = builder.tls(TlsMode::Secure).certs(certificates.clone());
        }
        builder = self.user.iter().fold(builder, |builder, user| builder.username(user));
        builder = self.password.iter().fold(builder, |builder, word| builder.password(word));
        let client = builder.build().map_err(|error| failure(&error))?;
        let mut connection = client.get_generic_connection().map_err(|error| failure(&error))?;
        // For the next time: without it those that are known must do.
        if let Ok(shards) = self.shards(&mut connection) {
            let all = shards.into_iter().flat_map(|s| s.replicas.into_iter().chain([s.primary]));
            *self.learned.lock() = all.collect();
        }
        Ok(connection)
    }

    /// The shards that have keys.
    fn shards(&self, connection: &mut Connection) -> Result<Vec<Shard>, RedisError> {
        let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let answer = connection.route_command(cmd("CLUSTER").arg("SLOTS"), any)?;
        let Value::Array(ranges) = answer else { return Ok(Vec::new()) };
        // A server that has never met another does not know its address: it is where it was found.
        let host = self.named.first().map_or("", |(host, _)| host);
        let mut shards: Vec<Shard> = ranges.iter().filter_map(|range| shard(range, host)).collect();
        // One with several ranges of keys is named for each.
        shards.sort_by(|one, other| one.primary.cmp(&other.primary));
        shards.dedup_by(|one, other| one.primary == other.primary);
        Ok(shards)
    }

    /// Asks the servers what they are able to do.
    pub(super) fn facts(&self, connection: &mut Connection) -> Result<Facts, Failure> {
        let shards = self.shards(connection).map_err(|error| failure(&error))?;
        let mut facts = Facts::of_none();
        for shard in shards {
            facts.add(&info_of(connection, shard.primary).map_err(|error| failure(&error))?);
        }
        Ok(facts)
    }
}

impl Facts {
    /// What follows for no shard.
    fn of_none() -> Self {
        Self { shards: 0, replicas: u8::MAX, room: Some(Bytes(0)), eviction: None }
    }

    /// Adds what a primary has said of itself. It knows its replicas, of which the cluster says
    /// nothing before they have written anything.
    fn add(&mut self, info: &str) {
        self.shards += 1;
        let number = |name| field(info, name).and_then(|text| text.parse::<u64>().ok());
        let (limit, used) = (number("maxmemory").unwrap_or(0), number("used_memory").unwrap_or(0));
        let pages = limit.saturating_sub(used) / PAGE_COST_BYTES;
        let room = (limit > 0).then(|| Bytes::of_pages(pages));
        self.room = self.room.zip(room).map(|(all, room)| Bytes(all.0.saturating_add(room.0)));
        let replicas = number("connected_slaves").unwrap_or(0);
        self.replicas = self.replicas.min(u8::try_from(replicas).unwrap_or(u8::MAX));
        let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction");
        self.eviction = self.eviction.take().or(policy.map(str::to_owned));
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn info_of(connection: &mut Connection, server: Address) -> Result<String, RedisError> {
    let (host, port) = server;
    let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
    let answer = connection.route_command(&cmd("INFO"), route)?;
    Ok(redis::from_redis_value(answer)?)
}

/// A range of keys: from, to, primary, replicas. Those without an address of their own are at
/// `host`.
fn shard(range: &Value, host: &str) -> Option<Shard> {
    let Value::Array(parts) = range else { return None };
    let mut servers = parts.get(2..)?.iter().filter_map(|part| server(part, host));
    Some(Shard { primary: servers.next()?, replicas: servers.collect() })
}

/// A server: its address, its port, and what else there may be.
fn server(value: &Value, host: &str) -> Option<Address> {
    let Value::Array(parts) = value else { return None };
    let named: Option<String> = redis::from_redis_value(parts.first()?.clone()).ok()?;
    let named = named.filter(|name| !name.is_empty()).unwrap_or_else(|| host.to_owned());
    Some((named, redis::from_redis_value(parts.get(1)?.clone()).ok()?))
}

fn address(node: &Endpoint) -> Option<Address> {
    match node {
        Endpoint::Tcp { host, port } => Some((host.clone(), *port)),
        Endpoint::Unix(_) => None,
    }
}

const IN_CLEAR: &str = "the password would go over the network in clear: add tls=on, or tls=DIR";

fn is_of_this_machine((host, _): &Address) -> bool {
    let is_loopback = |address: IpAddr| address.is_loopback();
    host == "localhost" || host.parse().is_ok_and(is_loopback)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Refused(format!("cannot read {}: {error}", path.display()))
}

fn read_password(path: &Path) -> Result<String, Failure> {
    let mode = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?.mode();
    if mode & 0o077 != 0 {
        let why = format!("others can read {}: chmod 600 it", path.display());
        return Err(Failure::Refused(why));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Whom to trust, and who we are.
fn certificates(tls: &Tls) -> Result<TlsCertificates, Failure> {
    let Tls::Directory(directory) = tls else {
        return Ok(TlsCertificates { client_tls: None, root_cert: None });
    };
    let read = |name| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|error| unreadable(&path, &error))
    };
    let client_tls = if directory.join(CERTIFICATE).exists() {
        Some(ClientTlsConfig { client_cert: read(CERTIFICATE)?, client_key: read(KEY)? })
    } else {
        None
    };
    Ok(TlsCertificates { client_tls, root_cert: Some(read(AUTHORITIES)?) })
}

const RIGHT_USER: &str = "give the right user= and password-file=";

/// What to do about a refusal, by words of it: an error of the client about several servers has
/// nothing else.
const REFUSALS: &[(&str, &str)] = &[
    ("authentication failed", RIGHT_USER),
    ("NOAUTH", RIGHT_USER),
    ("WRONGPASS", RIGHT_USER),
    ("NOPERM", "give a user that may use EVAL, HSET, HMGET, HDEL, PEXPIRE, UNLINK and WAIT"),
    ("certificate", "name with tls=DIR whom to trust"),
    ("No connections found", "no server there is part of a cluster that is complete"),
    ("cluster support disabled", "start it with cluster-enabled yes"),
];

/// What to do where nobody answers.
const ABSENCES: &[(&str, &str)] = &[
    ("Connection refused", "start the servers, or say where they are"),
    ("os error 11", "it does not answer; perhaps only one side wants TLS"),
];

/// What an answer, or none, means.
pub(super) fn failure(error: &RedisError) -> Failure {
    let text = error.to_string();
    let text = text.trim_start_matches("It failed to check startup nodes. - Io: ");
    let advice = |table: &[(&str, &'static str)]| {
        table.iter().find(|(words, _)| text.contains(words)).map(|(_, advice)| *advice)
    };
    match (advice(REFUSALS), advice(ABSENCES)) {
        (Some(advice), _) => Failure::Refused(format!("{advice}: {text}")),
        (None, Some(advice)) => Failure::Broken(format!("{advice}: {text}")),
        (None, None) => Failure::Broken(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    fn facts(infos: &[&str]) -> Facts {
        let mut facts = Facts::of_none();
        infos.iter().for_each(|info| facts.add(info));
        facts
    }

    #[test]
    fn room_is_what_limits_leave() {
        let limited = "used_memory:1000\r\nmaxmemory:55000\r\nmaxmemory_policy:noeviction\r\n";
        let full = "used_memory:9\r\nmaxmemory:5\r\nmaxmemory_policy:allkeys-lru\r\n";
        let unlimited = "used_memory:9\r\nmaxmemory:0\r\n";
        assert_eq!(facts(&[limited, limited]).room, Some(Bytes::of_pages(20)));
        assert_eq!(facts(&[limited, full]).room, Some(Bytes::of_pages(10)));
        assert_eq!(facts(&[limited, unlimited]).room, None);
        assert_eq!(facts(&[limited]).eviction, None);
        assert_eq!(facts(&[limited, full]).eviction.as_deref(), Some("allkeys-lru"));
    }

    #[test]
    fn there_are_as_many_replicas_as_the_shard_has_that_has_least() {
        let [none, two] = ["connected_slaves:0\r\n", "connected_slaves:2\r\n"];
        assert_eq!(facts(&[two, two]).replicas, 2);
        assert_eq!(facts(&[two, none]).replicas, 0);
        assert_eq!(facts(&[two, none]).shards, 2);
    }

    #[test]
    fn a_range_of_keys_has_a_primary_and_replicas() {
        let text = |text: &str| Value::BulkString(text.into());
        let server = |host: &str, port| {
            Value::Array(vec![text(host), Value::Int(port), text("id"), Value::Array(vec![])])
        };
        let parts = vec![Value::Int(0), Value::Int(9), server("a", 1), server("", 2)];
        let shard = shard(&Value::Array(parts), "host").unwrap();
        assert_eq!(shard.primary, ("a".into(), 1));
        assert_eq!(shard.replicas, [("host".into(), 2)]);
    }

    #[test]
    fn whatever_a_server_says_of_the_cluster_is_understood_or_left_out() {
        let samples = [
            &b"*3\r\n:0\r\n:100\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n"[..],
            b"*4\r\n:0\r\n:9\r\n*3\r\n$0\r\n\r\n:1\r\n$2\r\nid\r\n*2\r\n$1\r\na\r\n:70000\r\n",
            b"$30\r\nused_memory:1000\r\nmaxmemory:55\r\n\r\n",
        ];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let said = script.apply(&samples);
            let _ = redis::parse_redis_value(&said).map(|range| shard(&range, "here").is_some());
            let said = String::from_utf8_lossy(&said);
            facts(&[&said, &said]);
        });
    }
}
