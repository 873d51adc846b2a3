//! Swap specifications: the argument of `--swap`.
//!
//! Owns: the grammar of sizes and of swap specifications.
//! Invariants: parsing a specification touches no file; what is at a path is found out when it is
//! opened ([`crate::file`]).
//! Not here: the choice if there is no specification ([`SwapKind::Default`] only marks it).
//!
//! ```text
//! SPEC   := PLACE { "," OPTION }         each option once, in any order
//! PLACE  := "file:" PATH [ ":" SIZE ]    a file, or a directory to put one in
//!         | "block:" PATH | "/" PATH     a block device
//!         | "ram:" SIZE                  memory
//!         | "compressed:" SIZE           memory for so many bytes of pages, which takes less
//!         | "nbd:" HOST [ ":" PORT ] [ "/" EXPORT ]  a network block device
//!         | "nbd+unix:" PATH             the same, behind a socket of this machine
//!         | "redis+cluster:" NODE { "," NODE }  a cluster of Redis or Valkey servers
//! NODE   := HOST [ ":" PORT ]            any of them that may be asked for the others
//! OPTION := "pri=" 0..32767              higher is filled first
//!         | "ssd=" ( "on" | "off" )      whether seeks are free, whatever the system says
//!         | "discard=" ( "once" | "pages" | "both" )
//!         | "algo=" ( "lz4" | "zstd" )   how compressed memory is compressed
//!         | "encrypt=" ( "on" | "off" )  on, but for this machine's memory
//!         | "connections=" 1..16         to a server
//!         | "timeout=" SECONDS           after which a server that says nothing has failed
//!         | "export=" NAME               what a server has it under
//!         | "tls=" ( "on" | DIRECTORY )  whom to trust: the system's authorities, or those there
//!         | "mirror=" PLACE              another place that gets the same pages; no cluster
//!         | "size=" SIZE                 how much a cluster is to hold
//!         | "replicas=" 0..8             that must have a page besides its primary
//!         | "lease=" SECONDS             after which a cluster forgets a run that has died
//!         | "user=" NAME                 whom a cluster is to take us for
//!         | "password-file=" PATH        where that user's password is
//! ```

mod network;

pub use network::{ClusterOptions, Endpoint, Tls};

use crate::compressed::Algorithm;
use crate::error::DeviceError;
use overspill_base::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// One `--swap` option.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapSpec {
    /// Where to swap.
    pub kind: SwapKind,
    /// Higher is filled first, equal ones in turns; 0..=32767. None means the order given.
    pub priority: Option<i16>,
    /// True if seeks are free, false if not. None means what the system reports.
    pub ssd: Option<bool>,
    /// Which unneeded content the device is told to discard. None means nothing.
    pub discard: Option<Discard>,
    /// How pages in compressed memory are compressed. None is the default, LZ4.
    pub algorithm: Option<Algorithm>,
    /// True if pages are encrypted. None means what [`SwapSpec::is_encrypted`] says.
    pub encrypt: Option<bool>,
    /// Number of connections to a server. None means what suits it.
    pub connections: Option<u8>,
    /// How long a server may say nothing before what was asked of it has failed. None means that it
    /// is waited for.
    pub timeout: Option<Duration>,
    /// What a server has the place under, if its address does not say.
    pub export: Option<String>,
    /// How a server is authenticated. None means not at all.
    pub tls: Option<Tls>,
    /// Another place that gets the same pages, with the same options.
    pub mirror: Option<SwapKind>,
    /// What only clusters are asked for.
    pub cluster: ClusterOptions,
}

/// How long a server that has a mirror may say nothing, if the user does not say.
const MIRRORED_TIMEOUT: Duration = Duration::from_secs(10);

impl SwapSpec {
    /// True if pages are encrypted: unless the user says otherwise, wherever they leave this
    /// machine's memory.
    pub fn is_encrypted(&self) -> bool {
        self.encrypt.unwrap_or(!self.places().all(SwapKind::is_in_memory))
    }

    /// The place, and its mirror if there is one.
    pub fn places(&self) -> impl Iterator<Item = &SwapKind> {
        std::iter::once(&self.kind).chain(&self.mirror)
    }

    /// True if the place, or its mirror, is behind a connection.
    pub fn is_remote(&self) -> bool {
        self.places().any(SwapKind::is_remote)
    }

    /// True if a process of its own has it open, which a run asks for pages.
    pub fn is_served(&self) -> bool {
        self.is_remote() || self.mirror.is_some()
    }

    /// The two places of a mirror, each by itself. None if there is no mirror.
    pub fn mirrored(&self) -> Option<(Self, Self)> {
        let mirror = self.mirror.clone()?;
        let of = |kind: SwapKind| {
            let timeout = self.timeout.or(Some(MIRRORED_TIMEOUT)).filter(|_| kind.is_remote());
            Self { kind, timeout, mirror: None, ..self.clone() }
        };
        Some((of(self.kind.clone()), of(mirror)))
    }
}

/// When unneeded content is discarded, as with swapon's option of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Discard {
    /// The whole area once, when it is opened.
    Once,
    /// Freed slots, before they are used again.
    Pages,
    /// Both.
    Both,
}

impl Discard {
    /// True if the whole area is discarded when it is opened.
    pub fn at_open(self) -> bool {
        self != Self::Pages
    }

    /// True if freed slots are discarded.
    pub fn of_freed(self) -> bool {
        self != Self::Once
    }
}

impl From<SwapKind> for SwapSpec {
    /// A place without options.
    fn from(kind: SwapKind) -> Self {
        Self { kind, ..Self::default() }
    }
}

/// A place to swap to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwapKind {
    /// None was named: an unnamed file in `$TMPDIR` or `/var/tmp`.
    #[default]
    Default,
    /// A file, or a directory for an unnamed file.
    File {
        /// The file or directory.
        path: PathBuf,
        /// The maximum size it may grow to.
        size: Option<Bytes>,
    },
    /// A block device.
    Block {
        /// The device node.
        path: PathBuf,
    },
    /// Memory outside the managed ranges.
    Ram {
        /// Its size.
        size: Bytes,
    },
    /// Memory outside the managed ranges, with compressed pages.
    Compressed {
        /// How much it holds, before compression.
        size: Bytes,
    },
    /// A network block device.
    Nbd {
        /// Where it is.
        server: Endpoint,
        /// Its name there; the server's default if empty.
        export: String,
    },
    /// A cluster of Redis or Valkey servers.
    RedisCluster {
        /// Some of its servers, at least one.
        nodes: Vec<Endpoint>,
    },
}

impl SwapKind {
    /// True if pages stay in this machine's memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Ram { .. } | Self::Compressed { .. })
    }

    /// True if it is behind a connection.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Nbd { .. } | Self::RedisCluster { .. })
    }
}

impl fmt::Display for SwapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File { path, .. } | Self::Block { path } => path.display().fmt(f),
            Self::Ram { .. } => f.write_str("ram"),
            Self::Compressed { .. } => f.write_str("compressed"),
            Self::Nbd { server: server @ Endpoint::Unix(_), export } => {
                write!(f, "nbd+unix:{server}")?;
                if export.is_empty() { Ok(()) } else { write!(f, ",export={export}") }
            }
            Self::Nbd { server, export } => write!(f, "nbd:{server}/{export}"),
            Self::RedisCluster { nodes } => {
                let nodes: Vec<_> = nodes.iter().map(Endpoint::to_string).collect();
                write!(f, "redis+cluster:{}", nodes.join(","))
            }
        }
    }
}

/// Parses a number of bytes: `4096`, `512M`, `1.5GiB`. K is 1024, with or without `iB`.
///
/// # Errors
/// [`DeviceError::BadSize`], [`DeviceError::HugeSize`].
pub fn parse_bytes(text: &str) -> Result<Bytes, DeviceError> {
    let (bad, huge) = (
        || DeviceError::BadSize { text: text.to_owned() },
        || DeviceError::HugeSize { text: text.to_owned() },
    );
    // More overflow in `parse_size` 1.1, which rounds what it has up without a check.
    if text.bytes().filter(u8::is_ascii_digit).count() > DIGITS_MAX {
        return Err(if text.starts_with(|first: char| first.is_ascii_digit()) {
            huge()
        } else {
            bad()
        });
    }
    match parse_size::Config::new().with_binary().parse_size(text) {
        Ok(size) => Ok(Bytes(size)),
        Err(parse_size::Error::PosOverflow) => Err(huge()),
        Err(_) => Err(bad()),
    }
}

/// Digits of a number of bytes, at most.
const DIGITS_MAX: usize = u64::MAX.ilog10() as usize;

impl FromStr for SwapSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let bad = |reason| DeviceError::BadSpec { text: text.to_owned(), reason };
        let mut spec = Self::default();
        let mut place = text;
        while let Some((rest, key, value)) = last_option(place) {
            spec.set(key, value).map_err(bad)?;
            place = rest;
        }
        spec.kind = parse_place(place).map_err(bad)?;
        spec.name_export();
        spec.check_options().map_err(bad)?;
        Ok(spec)
    }
}

/// Splits `,KEY=VALUE` off the end. With a slash in it, it is part of a path.
fn last_option(text: &str) -> Option<(&str, &str, &str)> {
    let (rest, option) = text.rsplit_once(',')?;
    let (key, value) = option.split_once('=')?;
    let is_option = matches!(key, "tls" | "password-file" | "mirror") || !option.contains('/');
    is_option.then_some((rest, key, value))
}

const OPTIONS: &str = "pri=N, ssd=on|off, discard=once|pages|both, algo=lz4|zstd, \
                       encrypt=on|off, connections=N, timeout=SECONDS, \
                       export=NAME, tls=on|DIR, mirror=PLACE, size=SIZE, replicas=N, lease=SECONDS, user=NAME \
                       and password-file=PATH";

impl SwapSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let twice = match key {
            "pri" => self.priority.replace(priority(value)?).is_some(),
            "ssd" => self.ssd.replace(on_or_off(key, value)?).is_some(),
            "discard" => self.discard.replace(discard(value)?).is_some(),
            "algo" => self.algorithm.replace(algorithm(value)?).is_some(),
            "encrypt" => self.encrypt.replace(on_or_off(key, value)?).is_some(),
            "connections" => self.connections.replace(network::connections(value)?).is_some(),
            "timeout" => self.timeout.replace(network::timeout(value)?).is_some(),
            "export" => self.export.replace(value.to_owned()).is_some(),
            "tls" => self.tls.replace(network::tls(value)?).is_some(),
            "mirror" => self.mirror.replace(parse_place(value)?).is_some(),
            _ => match self.cluster.set(key, value) {
                Some(set) => set?,
                None => return Err(format!("unknown option `{key}`; there are {OPTIONS}")),
            },
        };
        if twice { Err(format!("option `{key}` is given twice; leave one out")) } else { Ok(()) }
    }
}

impl SwapSpec {
    /// What `export=` says counts where the place does not.
    fn name_export(&mut self) {
        if let SwapKind::Nbd { export, .. } = &mut self.kind
            && export.is_empty()
            && let Some(named) = self.export.take()
        {
            *export = named;
        }
    }

    /// Refuses options that mean nothing for the place.
    fn check_options(&self) -> Result<(), String> {
        let is_compressed = matches!(self.kind, SwapKind::Compressed { .. });
        let is_nbd = matches!(self.kind, SwapKind::Nbd { .. });
        let is_remote = self.is_remote();
        let servers = "what is on another machine";
        let mut table = vec![
            ("algo", self.algorithm.is_some(), is_compressed, "compressed:SIZE"),
            ("connections", self.connections.is_some(), is_remote, servers),
            ("timeout", self.timeout.is_some(), is_remote, servers),
            ("tls", self.tls.is_some(), is_remote, servers),
            ("export", self.export.is_some(), is_nbd, "nbd:"),
        ];
        let is_cluster = matches!(self.kind, SwapKind::RedisCluster { .. });
        let of_clusters = self.cluster.given();
        table.extend(of_clusters.map(|(name, given)| (name, given, is_cluster, "redis+cluster:")));
        if let Some((name, .., places)) = table.iter().find(|(_, given, meant, _)| *given && !meant)
        {
            return Err(format!("only {places} takes {name}=; leave it out"));
        }
        let is_unserved =
            |kind: &SwapKind| matches!(kind, SwapKind::Compressed { .. } | SwapKind::Default);
        if self.mirror.is_some() && self.places().any(is_unserved) {
            return Err("compressed:SIZE cannot be mirrored; name a file or a server".into());
        }
        if self.export.is_some() {
            return Err("the export is named twice; leave export= out".into());
        }
        Ok(())
    }
}

fn priority(value: &str) -> Result<i16, String> {
    number("priority", "number", value, 0..=i16::MAX)
}

/// Reads `name`, a `kind` of number within a range.
fn number<T: FromStr + PartialOrd + fmt::Display>(
    name: &str,
    kind: &str,
    value: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("{name} `{value}` is not a {kind} from {least} to {most}"))
}

fn on_or_off(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{key} `{value}` is neither on nor off")),
    }
}

fn discard(value: &str) -> Result<Discard, String> {
    match value {
        "once" => Ok(Discard::Once),
        "pages" => Ok(Discard::Pages),
        "both" => Ok(Discard::Both),
        _ => Err(format!("discard `{value}` is none of once, pages and both")),
    }
}

fn algorithm(value: &str) -> Result<Algorithm, String> {
    let known = [Algorithm::Lz4, Algorithm::Zstd];
    let named = known.into_iter().find(|algorithm| algorithm.name() == value);
    named.ok_or_else(|| format!("algo `{value}` is neither lz4 nor zstd"))
}

fn parse_place(place: &str) -> Result<SwapKind, String> {
    if place.starts_with('/') {
        return Ok(SwapKind::Block { path: place.into() });
    }
    match place.split_once(':') {
        Some(("file", rest)) => parse_file(rest),
        Some(("block", path)) => Ok(SwapKind::Block { path: non_empty(path)? }),
        Some(("ram", size)) => Ok(SwapKind::Ram { size: needed_size("ram", size)? }),
        Some(("compressed", size)) => {
            Ok(SwapKind::Compressed { size: needed_size("compressed", size)? })
        }
        Some(("nbd", rest)) => {
            network::parse_nbd(rest).map(|(server, export)| SwapKind::Nbd { server, export })
        }
        Some(("nbd+unix", path)) => {
            let server = Endpoint::Unix(non_empty(path)?);
            Ok(SwapKind::Nbd { server, export: String::new() })
        }
        Some(("redis+cluster", nodes)) => {
            network::parse_nodes(nodes).map(|nodes| SwapKind::RedisCluster { nodes })
        }
        _ => {
            let places = "file:PATH[:SIZE], block:PATH, ram:SIZE, compressed:SIZE, \
                          nbd:HOST:PORT/EXPORT, nbd+unix:PATH or redis+cluster:HOST:PORT,...";
            let meant = meant(place).map(|meant| format!("did you mean {meant}? else "));
            Err(format!("{}write {places}, then options as ,pri=N", meant.unwrap_or_default()))
        }
    }
}

/// What may have been meant by a place without its kind.
fn meant(text: &str) -> Option<String> {
    if let "ram" | "compressed" = text {
        return Some(format!("{text}:SIZE"));
    }
    let of_size = size_of(text).ok().map(|_| format!("--swap-size {text}"));
    let is_path = text.contains('/') || (!text.is_empty() && !text.contains(':'));
    let path = text.strip_prefix("file=").or_else(|| is_path.then_some(text));
    of_size.or_else(|| path.map(|path| format!("file:{path}")))
}

/// The text after the last colon is a size, unless a slash shows that it belongs to the path.
fn parse_file(rest: &str) -> Result<SwapKind, String> {
    let (path, size) = match rest.rsplit_once(':') {
        Some((path, size)) if !size.contains('/') => (path, Some(size_of(size)?)),
        _ => (rest, None),
    };
    Ok(SwapKind::File { path: non_empty(path)?, size })
}

fn non_empty(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() { Err("the path is missing".into()) } else { Ok(path.into()) }
}

fn needed_size(place: &str, text: &str) -> Result<Bytes, String> {
    match text {
        "" => Err(format!("the size is missing: write {place}:SIZE, as in {place}:8G")),
        text => size_of(text),
    }
}

fn size_of(text: &str) -> Result<Bytes, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    fn file(path: &str, size: Option<u64>) -> SwapKind {
        SwapKind::File { path: path.into(), size: size.map(Bytes) }
    }

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    fn nbd(host: &str, port: u16, export: &str) -> SwapKind {
        SwapKind::Nbd { server: tcp(host, port), export: export.into() }
    }

    fn unix(path: &str) -> Endpoint {
        Endpoint::Unix(path.into())
    }

    #[test]
    fn servers_have_options() {
        let text = "nbd+unix:/run/x,tls=/etc/pki/nbd,export=disk,connections=3,timeout=30";
        let spec: SwapSpec = text.parse().unwrap();
        let expected = SwapSpec {
            kind: SwapKind::Nbd { server: unix("/run/x"), export: "disk".into() },
            connections: Some(3),
            timeout: Some(Duration::from_secs(30)),
            tls: Some(Tls::Directory("/etc/pki/nbd".into())),
            ..SwapSpec::default()
        };
        assert_eq!(spec, expected);
        assert!(spec.is_remote() && spec.is_encrypted());
        let spec: SwapSpec = "nbd:there,tls=on".parse().unwrap();
        assert_eq!(spec.tls, Some(Tls::System));
    }

    #[test]
    fn a_mirror_has_the_same_options_and_a_silent_server_has_failed() {
        let spec: SwapSpec = "file:/a/b:1G,pri=3,mirror=nbd:there:7/disk,tls=on".parse().unwrap();
        assert!(spec.is_remote() && spec.is_encrypted());
        let (first, second) = spec.mirrored().unwrap();
        assert_eq!((first.kind, first.timeout), (file("/a/b", Some(1 << 30)), None));
        assert_eq!(
            (second.kind, second.timeout),
            (nbd("there", 7, "disk"), Some(MIRRORED_TIMEOUT))
        );
        assert_eq!(second.priority, Some(3));
        assert!(spec.is_served());
        let spec: SwapSpec = "nbd:a,mirror=nbd:b,timeout=3".parse().unwrap();
        assert_eq!(spec.mirrored().unwrap().0.timeout, Some(Duration::from_secs(3)));
    }

    #[test]
    fn clusters_have_options() {
        let text = "redis+cluster:a:1,b:2,size=8G,replicas=0,lease=60,user=me,password-file=/etc/p";
        let spec: SwapSpec = text.parse().unwrap();
        let cluster = ClusterOptions {
            size: Some(Bytes(8 << 30)),
            replicas: Some(0),
            lease: Some(Duration::from_secs(60)),
            user: Some("me".into()),
            password_file: Some("/etc/p".into()),
        };
        let kind = SwapKind::RedisCluster { nodes: vec![tcp("a", 1), tcp("b", 2)] };
        assert_eq!(spec, SwapSpec { kind, cluster, ..SwapSpec::default() });
        assert_eq!(spec.kind.to_string(), "redis+cluster:a:1,b:2");
    }

    #[test]
    fn places() {
        let block = |path: &str| SwapKind::Block { path: path.into() };
        let table = [
            ("file:/var/swap", file("/var/swap", None)),
            ("file:swap:64M", file("swap", Some(64 << 20))),
            ("file:/odd:name/swap", file("/odd:name/swap", None)),
            ("file:/odd:name:1G", file("/odd:name", Some(1 << 30))),
            ("file:/with,comma:8K", file("/with,comma", Some(8192))),
            ("/dev/loop0", block("/dev/loop0")),
            ("block:loop0", block("loop0")),
            ("ram:1.5GiB", SwapKind::Ram { size: Bytes(3 << 29) }),
            ("compressed:2M", SwapKind::Compressed { size: Bytes(2 << 20) }),
            ("nbd:there:7/disk", nbd("there", 7, "disk")),
            ("nbd+unix:/run/x", SwapKind::Nbd { server: unix("/run/x"), export: String::new() }),
            (
                "redis+cluster:a,b:7",
                SwapKind::RedisCluster { nodes: vec![tcp("a", 6379), tcp("b", 7)] },
            ),
        ];
        for (text, kind) in table {
            let spec: SwapSpec = text.parse().unwrap();
            assert_eq!(spec, SwapSpec::from(kind.clone()));
            let spec: SwapSpec = format!("{text},pri=7").parse().unwrap();
            assert_eq!(spec, SwapSpec { kind, priority: Some(7), ..SwapSpec::default() });
        }
    }

    #[test]
    fn options_come_in_any_order() {
        let table = [
            (",ssd=on", None, Some(true), None),
            (",ssd=off,pri=3", Some(3), Some(false), None),
            (",pri=3,ssd=off", Some(3), Some(false), None),
            (",discard=once", None, None, Some(Discard::Once)),
            (",discard=pages,pri=0", Some(0), None, Some(Discard::Pages)),
            (",ssd=on,pri=9,discard=both", Some(9), Some(true), Some(Discard::Both)),
        ];
        for (options, priority, ssd, discard) in table {
            let kind = file("/a,b=c/d", Some(8192));
            let spec: SwapSpec = format!("file:/a,b=c/d:8K{options}").parse().unwrap();
            let expected = SwapSpec { kind, priority, ssd, discard, ..SwapSpec::default() };
            assert_eq!(spec, expected, "{options}");
        }
    }

    #[test]
    fn compressed_memory_has_an_algorithm() {
        let table = [
            ("", None),
            (",algo=lz4", Some(Algorithm::Lz4)),
            (",pri=1,algo=zstd", Some(Algorithm::Zstd)),
        ];
        for (options, algorithm) in table {
            let spec: SwapSpec = format!("compressed:1G{options}").parse().unwrap();
            assert_eq!(spec.algorithm, algorithm, "{options}");
        }
    }

    #[test]
    fn what_leaves_memory_is_encrypted_unless_said() {
        let table = [
            ("file:/x", true),
            ("/dev/loop0", true),
            ("ram:1M", false),
            ("compressed:1M", false),
            ("file:/x,encrypt=off", false),
            ("compressed:1M,algo=zstd,encrypt=on", true),
            ("ram:1M,mirror=ram:1M", false),
            ("ram:1M,mirror=nbd:there", true),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<SwapSpec>().unwrap().is_encrypted(), expected, "{text}");
        }
        assert!(SwapSpec::default().is_encrypted(), "the default is a file");
    }

    #[test]
    fn both_is_once_and_pages() {
        let table = [
            (Discard::Once, true, false),
            (Discard::Pages, false, true),
            (Discard::Both, true, true),
        ];
        for (discard, at_open, of_freed) in table {
            assert_eq!((discard.at_open(), discard.of_freed()), (at_open, of_freed));
        }
    }

    #[test]
    fn priorities_have_fifteen_bits() {
        let priority = |text: &str| text.parse::<SwapSpec>().map(|spec| spec.priority);
        assert_eq!(priority("ram:1M,pri=0"), Ok(Some(0)));
        assert_eq!(priority("ram:1M,pri=32767"), Ok(Some(32767)));
        for text in ["ram:1M,pri=32768", "ram:1M,pri=-1", "ram:1M,pri=", "ram:1M,prio=1"] {
            assert!(priority(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let table = [
            ("", "write file:"),
            ("swap", "write file:"),
            ("disk:/x", "write file:"),
            ("file:", "path is missing"),
            ("file::1G", "path is missing"),
            ("file:/x:10Q", "bad size `10Q`"),
            ("file:/x:", "bad size ``"),
            ("ram:lots", "bad size `lots`"),
            ("file:/x,trim=1", "unknown option `trim`; there are pri=N, ssd=on|off, discard="),
            ("ram:", "the size is missing: write ram:SIZE"),
            ("compressed:", "the size is missing: write compressed:SIZE, as in compressed:8G"),
            (
                "compressed:99999999999999999999",
                "the size `99999999999999999999` is more than can be counted",
            ),
            ("compressed:1G,algo=gzip", "algo `gzip` is neither lz4 nor zstd"),
            ("compressed:1G,algo=", "algo `` is neither"),
            ("compressed:1G,algo=lz4,algo=lz4", "option `algo` is given twice"),
            ("ram:1M,algo=lz4", "only compressed:SIZE takes algo="),
            ("/dev/sdb1,algo=zstd", "only compressed:SIZE takes algo="),
            ("file:/x,discard=1", "discard `1` is none of once, pages and both"),
            ("ram:1M,discard=", "discard `` is none of"),
            ("ram:1M,ssd=yes", "ssd `yes` is neither on nor off"),
            ("ram:1M,encrypt=1", "encrypt `1` is neither on nor off"),
            ("file:/x,serve=apart", "unknown option `serve`"),
            ("ram:1M,pri=1,ssd=on,pri=2", "option `pri` is given twice"),
            ("nbd:", "write nbd:HOST:PORT/EXPORT"),
            ("nbd:there:x", "port `x` is not a number"),
            ("nbd:there,connections=0", "connections `0` is not a number from 1 to 16"),
            ("nbd:there,timeout=0", "timeout `0` is not a number of seconds from 1 to 86400"),
            ("nbd:there,tls=yes", "tls `yes` is neither on nor a directory"),
            ("nbd:there/a,export=b", "the export is named twice"),
            ("nbd+unix:", "path is missing"),
            ("file:/x,tls=/y", "only what is on another machine takes tls="),
            ("redis+cluster:a,export=x", "only nbd: takes export="),
            ("compressed:1M,mirror=ram:1M", "compressed:SIZE cannot be mirrored"),
            ("ram:1M,mirror=compressed:1M", "compressed:SIZE cannot be mirrored"),
            ("ram:1M,mirror=1M", "write file:PATH"),
            ("8G", "did you mean --swap-size 8G?"),
            ("./swapfile", "did you mean file:./swapfile?"),
            ("swapfile", "did you mean file:swapfile?"),
            ("ram", "did you mean ram:SIZE?"),
            ("file=/var/tmp", "did you mean file:/var/tmp?"),
            ("nbd:a,lease=60", "only redis+cluster: takes lease="),
            ("redis+cluster:a,lease=1", "lease `1` is not a number of seconds from 10"),
        ];
        for (text, part) in table {
            let error = text.parse::<SwapSpec>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1K", 1024), ("1kB", 1024), ("2 MiB", 2 << 20)]
        {
            assert_eq!(parse_bytes(text), Ok(Bytes(bytes)), "{text}");
        }
        assert!(parse_bytes("-1").is_err());
        assert!(parse_bytes("99999999999999999999").is_err());
    }

    #[test]
    fn whatever_is_written_is_read_or_refused() {
        let samples = [
            "file:/var/tmp:8G,pri=3,encrypt=off,discard=pages,ssd=yes",
            "redis+cluster:a:1,b:2,size=8G,replicas=0,lease=60,user=me,password-file=/etc/p",
            "nbd:[::1]:10809/export,tls=on,timeout=5,mirror=file:/b:1G",
            "compressed:2M,algorithm=zstd",
            "block:/dev/sdb",
            "ram:1.5GiB",
        ];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let text = script.text(&samples);
            let _ = text.parse::<SwapSpec>().map_err(|error| error.to_string());
            let _ = parse_bytes(&text).map_err(|error| error.to_string());
        });
    }
}
