//! The memory that a worker and the server share.
//!
//! Owns: a file of memory with a ring in each direction and room for pages.
//! Invariants: the file has been sealed by the server, so no client can shrink it under the server,
//! which would end by SIGBUS.
//!
//! ```text
//! page 0    ring of requests
//! page 1    ring of completions
//! page 2..  pages on their way
//! ```

use super::words::{FLIGHTS, SHARED_PAGES};
use overspill_base::PAGE_SIZE;
use overspill_base::ring::{Ring, ring_words};
use overspill_base::shared::{Mapping, PageArena, PageBuf, Table};
use overspill_base::sync::AtomicU64;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const RING_BYTES: usize =
    (ring_words(FLIGHTS) * size_of::<AtomicU64>()).next_multiple_of(PAGE_SIZE);
const LEN_BYTES: usize = 2 * RING_BYTES + SHARED_PAGES * PAGE_SIZE;

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct PairMemory(Arc<Mapping>);

impl PairMemory {
    /// Makes the file; zeros, which are two empty rings.
    pub(super) fn create() -> Result<(OwnedFd, Self), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("overspill-queue", flags)?;
        ftruncate(&file, LEN_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Self::open(&file)?;
        Ok((file, memory))
    }

    pub(super) fn open(file: &OwnedFd) -> Result<Self, Errno> {
        Mapping::shared(file, LEN_BYTES).map(|mapping| Self(Arc::new(mapping)))
    }

    pub(super) fn requests(&self) -> Ring {
        self.ring(0)
    }

    pub(super) fn completions(&self) -> Ring {
        self.ring(RING_BYTES)
    }

    fn ring(&self, offset_bytes: usize) -> Ring {
        Ring::new(Table::within(&self.0, offset_bytes, ring_words(FLIGHTS)))
    }

    /// The pages, for the client, which gives them out.
    pub(super) fn pages(&self) -> PageArena {
        PageArena::within(&self.0, 2 * RING_BYTES, SHARED_PAGES)
    }

    /// Handles to some of the pages, for the server, which keeps this memory until the request with
    /// them has completed.
    pub(super) fn run(&self, pages: Range<usize>) -> Vec<PageBuf> {
        let arena = self.pages();
        // SAFETY: the client gives a page to one request at a time, and looks at it only when that
        // has ended. One that does otherwise can harm its own bytes only: the server's device hands
        // them to the kernel, or copies them, and believes nothing in them.
        pages.map(|page| unsafe { arena.page(page) }).collect()
    }
}
