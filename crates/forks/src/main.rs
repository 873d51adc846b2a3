//! `overspill-forks FEATURES <USERFAULTFD`: sets a userfaultfd up so that it reports forks.
//!
//! Owns: the one call for which an ordinary user's run needs a right, UFFDIO_API with
//! UFFD_FEATURE_EVENT_FORK (`fs/userfaultfd.c`: `userfaultfd_api`). A package installs it with
//! CAP_SYS_PTRACE as a capability of the file, for one group. FEATURES is the call's word, in hex.
//! The exit status is 0, or the kernel's errno; EINVAL is also the answer to what it does not do.
//! Invariants: what is not a userfaultfd gets no call; of features there are those of the list. It
//! opens, reads and writes nothing, whatever its arguments, its environment and its descriptors.
//! Not here: making the userfaultfd, which the agent does in its own memory with its own rights.
//! Rejected: to let it make one, which would be one for memory of its own; a daemon, which would
//! have to find out who asks.

use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::env::args_os;
use std::process::ExitCode;

const API: Opcode =
    opcode::read_write::<raw::uffdio_api>(raw::UFFDIO as u8, raw::_UFFDIO_API as u8);

/// What may be asked for: what a keeper uses.
const FEATURES: u32 = raw::UFFD_FEATURE_EVENT_FORK
    | raw::UFFD_FEATURE_EVENT_REMAP
    | raw::UFFD_FEATURE_EVENT_REMOVE
    | raw::UFFD_FEATURE_EVENT_UNMAP
    | raw::UFFD_FEATURE_THREAD_ID
    | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | raw::UFFD_FEATURE_WP_UNPOPULATED
    | raw::UFFD_FEATURE_POISON
    | raw::UFFD_FEATURE_MOVE;

fn main() -> ExitCode {
    match set_up() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => ExitCode::from(u8::try_from(errno.raw_os_error()).unwrap_or(u8::MAX)),
    }
}

fn set_up() -> Result<(), Errno> {
    let features = features().ok_or(Errno::INVAL)?;
    let target = rustix::fs::readlink("/proc/self/fd/0", Vec::new())?;
    if target.as_bytes() != b"anon_inode:[userfaultfd]" {
        return Err(Errno::INVAL);
    }
    let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features, ioctls: 0 };
    // SAFETY: API was made from uffdio_api, which is ours.
    unsafe { ioctl(rustix::stdio::stdin(), Updater::<API, _>::new(&mut api)) }
}

/// The only argument; `None` if there is another, or it is not of the list.
fn features() -> Option<u64> {
    let mut arguments = args_os().skip(1);
    let features = u64::from_str_radix(arguments.next()?.to_str()?, 16).ok()?;
    (arguments.next().is_none() && features & !u64::from(FEATURES) == 0).then_some(features)
}
