//! What the user writes after `--swap`.
//!
//! Owns: the grammar of sizes and of swap specifications.
//! Invariants: reading a specification touches no file; what is at a path is found out when it is
//! opened ([`crate::file`]).
//! Not here: what is chosen when nothing is written ([`SwapKind::Default`] only says so).
//!
//! ```text
//! SPEC  := PLACE [ ",pri=" 0..32767 ]
//! PLACE := "file:" PATH [ ":" SIZE ]   a file, or a directory to put one in
//!        | "block:" PATH | "/" PATH    a block device
//!        | "ram:" SIZE                 memory
//! ```

use crate::error::DeviceError;
use overspill_base::Bytes;
use std::path::PathBuf;
use std::str::FromStr;

/// One `--swap` option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapSpec {
    /// Where to swap.
    pub kind: SwapKind,
    /// Higher is filled first, equal ones in turns; 0..=32767. None leaves it to the order given.
    pub priority: Option<i16>,
}

/// A place to swap to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SwapKind {
    /// None was named: a file without a name in `$TMPDIR` or `/var/tmp`.
    #[default]
    Default,
    /// A file, or a directory for a file without a name.
    File {
        /// The file or directory.
        path: PathBuf,
        /// The most it may grow to.
        size: Option<Bytes>,
    },
    /// A block device.
    Block {
        /// The device node.
        path: PathBuf,
    },
    /// Memory outside the managed ranges.
    Ram {
        /// How much.
        size: Bytes,
    },
}

/// Reads a number of bytes: `4096`, `512M`, `1.5GiB`. K is 1024, with or without `iB`.
///
/// # Errors
/// [`DeviceError::BadSize`].
pub fn parse_bytes(text: &str) -> Result<Bytes, DeviceError> {
    parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map(Bytes)
        .map_err(|_| DeviceError::BadSize { text: text.to_owned() })
}

impl FromStr for SwapSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let bad = |reason| DeviceError::BadSpec { text: text.to_owned(), reason };
        let (place, priority) = split_priority(text).map_err(bad)?;
        Ok(Self { kind: parse_place(place).map_err(bad)?, priority })
    }
}

/// Takes `,pri=N` off the end. Any other `,WORD=...` there is a mistake, not part of a path.
fn split_priority(text: &str) -> Result<(&str, Option<i16>), String> {
    let option = text.rsplit_once(',').and_then(|(place, option)| {
        let (key, value) = option.split_once('=').filter(|_| !option.contains('/'))?;
        Some((place, key, value))
    });
    match option {
        None => Ok((text, None)),
        Some((place, "pri", value)) => match value.parse::<i16>() {
            Ok(priority) if priority >= 0 => Ok((place, Some(priority))),
            _ => Err(format!("priority `{value}` is not a number from 0 to 32767")),
        },
        Some((_, key, _)) => Err(format!("unknown option `{key}`; there is only pri=N")),
    }
}

fn parse_place(place: &str) -> Result<SwapKind, String> {
    if place.starts_with('/') {
        return Ok(SwapKind::Block { path: place.into() });
    }
    match place.split_once(':') {
        Some(("file", rest)) => parse_file(rest),
        Some(("block", path)) => Ok(SwapKind::Block { path: non_empty(path)? }),
        Some(("ram", size)) => Ok(SwapKind::Ram { size: size_of(size)? }),
        _ => Err("write file:PATH[:SIZE], block:PATH or ram:SIZE, then ,pri=N if wanted".into()),
    }
}

/// What follows the last colon is a size, unless a slash shows that it belongs to the path.
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

fn size_of(text: &str) -> Result<Bytes, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: Option<u64>) -> SwapKind {
        SwapKind::File { path: path.into(), size: size.map(Bytes) }
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
        ];
        for (text, kind) in table {
            let spec: SwapSpec = text.parse().unwrap();
            assert_eq!(spec, SwapSpec { kind: kind.clone(), priority: None });
            let spec: SwapSpec = format!("{text},pri=7").parse().unwrap();
            assert_eq!(spec, SwapSpec { kind, priority: Some(7) });
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
            ("file:/x,discard=1", "unknown option `discard`"),
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
}
