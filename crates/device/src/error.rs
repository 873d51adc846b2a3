//! What can go wrong with a swap device.
//!
//! Owns: one enum for the layer, and its messages to the user.
//! Invariants: a message is one line with what failed, the value, and what to do. Every error can
//! be cloned, because one failed transfer is the failure of each of its pages.
//! Not here: what a failure means for a page (`engine`).

use crate::IoOp;
use crate::header::HeaderError;
use overspill_base::{Bytes, Slot};
use rustix::io::Errno;
use std::path::PathBuf;

/// Why a device cannot be used, or a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A size that cannot be parsed.
    #[error("bad size `{text}`: write a number and K, M, G or T (binary multiples), as in 512M")]
    BadSize {
        /// The text given.
        text: String,
    },

    /// A size that nothing has.
    #[error("the size `{text}` is more than can be counted: write a smaller one, as in 512M")]
    HugeSize {
        /// The text given.
        text: String,
    },

    /// A swap specification that cannot be parsed.
    #[error("bad swap specification `{text}`: {reason}")]
    BadSpec {
        /// The text given.
        text: String,
        /// What is wrong with it and the correct form.
        reason: String,
    },

    /// The system refused a step of opening a device.
    #[error("cannot {action} {name}: {errno}; {}", open_remedy(*.errno))]
    Open {
        /// The device.
        name: String,
        /// The step, as a verb.
        action: &'static str,
        /// The system's error.
        errno: Errno,
    },

    /// Nothing is at a block device's path.
    #[error("there is no device {name}: check the path, or name a file or directory as file:PATH")]
    NoDevice {
        /// The path.
        name: String,
    },

    /// Nothing is at the path, and there is no size to create a file with.
    #[error(
        "{name} does not exist: name a directory that does, or give a size to have a file made, as in \
         file:{name}:8G"
    )]
    Missing {
        /// The path.
        name: String,
    },

    /// The path is something that cannot be swapped to this way.
    #[error("{name} is {what}")]
    Unsupported {
        /// The path.
        name: String,
        /// What it is, and what to name instead.
        what: &'static str,
    },

    /// The device is in use.
    #[error("{name} is busy: {user}")]
    Busy {
        /// The device.
        name: String,
        /// What uses it, and what to do about that.
        user: &'static str,
    },

    /// A file with content, which swapping would destroy.
    #[error(
        "{name} holds {found} and swapping to it would destroy that; name another path, make it \
         a swap area with `overspill mkswap --force {name}`, or insist with --force"
    )]
    HoldsData {
        /// The file.
        name: String,
        /// What its first bytes look like.
        found: &'static str,
    },

    /// A block device without a swap header.
    #[error(
        "{name} is no swap area but holds {found}; if that may be destroyed, make it one with \
         `overspill mkswap --force {name}` or insist with --force"
    )]
    NotASwapArea {
        /// The device.
        name: String,
        /// What its first bytes look like.
        found: &'static str,
    },

    /// There is content where a swap area is to be made.
    #[error(
        "{name} holds {found}, which making it a swap area would destroy; name another path, or \
         insist with --force"
    )]
    WouldDestroy {
        /// The file or block device.
        name: String,
        /// What its first bytes look like.
        found: String,
    },

    /// Too many pages of a new swap area cannot be read.
    #[error("{pages} pages of {name} cannot be read, {why}; name another place")]
    Unreadable {
        /// The file or block device.
        name: String,
        /// Number of such pages found.
        pages: usize,
        /// Why they cannot just be listed as bad.
        why: &'static str,
    },

    /// A label that is too long.
    #[error("label `{label}` has {} bytes; at most {most} fit into a swap header", label.len())]
    LongLabel {
        /// The label.
        label: String,
        /// The maximum size in bytes.
        most: usize,
    },

    /// A swap header that cannot be used.
    #[error(
        "{name} has a swap header, but {reason}; make a new one with `overspill mkswap --force {name}`"
    )]
    BadHeader {
        /// The device.
        name: String,
        /// What is wrong with the header.
        reason: HeaderError,
    },

    /// Too small for swapping.
    #[error(
        "{name} has room for {} only, a swap area needs {least}; give it a larger size or name another \
         place", in_pages(*.size)
    )]
    TooSmall {
        /// The device.
        name: String,
        /// Its size.
        size: Bytes,
        /// The minimum size.
        least: Bytes,
    },

    /// A server that cannot be used.
    #[error("cannot swap to {name}: {why}")]
    Remote {
        /// The device.
        name: String,
        /// What it is that cannot be, and what to do.
        why: String,
    },

    /// There is no process that could serve a place.
    #[error(
        "cannot start {}, which serves places apart: {errno}; {}", .program.display(),
        start_remedy(*.errno)
    )]
    NoServer {
        /// The program.
        program: PathBuf,
        /// Why not.
        errno: Errno,
    },

    /// Why a place cannot be opened, in the words of the process that would serve it.
    #[error("{0}")]
    Served(String),

    /// A place in memory, of a size that memory does not have.
    #[error("{name}:{size} is more than this machine's memory can hold: give {most} or less")]
    MoreThanMemory {
        /// The kind of place.
        name: String,
        /// The size asked for.
        size: Bytes,
        /// The most that could be.
        most: Bytes,
    },

    /// A place on another machine, outside of a run.
    #[error(
        "{name} is not on this machine: only `overspill run` swaps there, use it or a local place"
    )]
    OnlyInRuns {
        /// The device.
        name: String,
    },

    /// The system refused a thread a queue.
    #[error("cannot set up an I/O queue for {name}: {errno}; raise `ulimit -n` or use fewer CPUs")]
    Queue {
        /// The device.
        name: String,
        /// The system's error.
        errno: Errno,
    },

    /// No space left in the file system under it: others use it too, or it was never enough.
    #[error(
        "{name} may grow to {size}, and there is no room left under it (its file system or volume, a \
         quota, `ulimit -f`): make room there, or add swap elsewhere with --swap file:PATH:SIZE"
    )]
    DiskFull {
        /// The device.
        name: String,
        /// Its maximum size.
        size: Bytes,
    },

    /// No space left in the device.
    #[error(
        "{name} is full (at most {size}): raise --swap-size or size=, make room where it lies, or \
         add swap elsewhere with --swap file:PATH:SIZE"
    )]
    Full {
        /// The device.
        name: String,
        /// Its maximum size.
        size: Bytes,
    },

    /// The device reported an error.
    #[error("{op} at slot {slot} of {name} failed: {errno}; look for the device in the kernel log")]
    Io {
        /// The device.
        name: String,
        /// The direction of the transfer.
        op: IoOp,
        /// The request's first slot.
        slot: Slot,
        /// The system's error.
        errno: Errno,
    },

    /// The device ended before the request did.
    #[error(
        "{op} at slot {slot} of {name} ended early: something has truncated it; leave it alone"
    )]
    Short {
        /// The device.
        name: String,
        /// The direction of the transfer.
        op: IoOp,
        /// The request's first slot.
        slot: Slot,
    },

    /// The device refused a discard.
    #[error(
        "discard at slot {first} of {name} failed: {errno}; that loses nothing, and without \
         discard= it is not tried"
    )]
    Discard {
        /// The device.
        name: String,
        /// The first slot.
        first: Slot,
        /// The system's error; EOPNOTSUPP if the device cannot discard.
        errno: Errno,
    },

    /// What a slot holds cannot be decompressed.
    #[error(
        "slot {slot} of {name} cannot be decompressed: something has written over its memory; \
         test this machine's memory, or swap to a file"
    )]
    Damaged {
        /// The device.
        name: String,
        /// The slot.
        slot: Slot,
    },

    /// A slot does not hold what was written to it.
    #[error(
        "slot {slot} of {name} does not hold what was written there: the device lost or changed \
         it; test the device before swapping to it again"
    )]
    Checksum {
        /// The device.
        name: String,
        /// The slot.
        slot: Slot,
    },

    /// An encrypted slot does not hold what was written to it.
    #[error(
        "slot {slot} of {name} does not hold what was written there: the device lost it, or \
         something has changed it; find out what else writes to the device"
    )]
    Seal {
        /// The device.
        name: String,
        /// The slot.
        slot: Slot,
    },
}

impl DeviceError {
    /// True if a page was transferred and is not what was written; other pages of the request have
    /// nothing to do with it.
    pub fn is_of_one_page(&self) -> bool {
        matches!(self, Self::Checksum { .. } | Self::Seal { .. } | Self::Damaged { .. })
    }
}

/// Sizes are of whole pages.
fn in_pages(size: Bytes) -> String {
    if size == Bytes(0) { "less than a page".into() } else { size.to_string() }
}

/// What to do about a program that does not start.
fn start_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "install it beside overspill or in ../lib/overspill",
        Errno::MFILE | Errno::NFILE => "raise `ulimit -n`",
        _ => "look at the limits of this session (`ulimit -a`)",
    }
}

fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT | Errno::NOTDIR => "check the path; its directory must exist",
        Errno::ACCESS | Errno::PERM => "you need the right to read and write it",
        Errno::ROFS => "name a place that is mounted for writing",
        Errno::MFILE | Errno::NFILE => "raise `ulimit -n`",
        Errno::FBIG => "give a SIZE that its file system can hold",
        _ => "name another place with --swap file:PATH:SIZE",
    }
}

/// True if `errno` means that there is no space left.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_names_itself_its_size_and_the_flags() {
        let error = DeviceError::Full { name: "/swap".into(), size: Bytes(64 << 20) };
        let text = error.to_string();
        for part in ["/swap", "64 MiB", "--swap-size", "file:PATH:SIZE"] {
            assert!(text.contains(part), "`{part}` in {text}");
        }
    }

    #[test]
    fn an_error_of_the_system_keeps_its_words_and_gets_advice() {
        let error = DeviceError::Open { name: "/nix".into(), action: "open", errno: Errno::NOENT };
        let text = error.to_string();
        assert!(text.starts_with("cannot open /nix: No such file"), "{text}");
        assert!(text.ends_with("must exist"), "{text}");
    }
}
