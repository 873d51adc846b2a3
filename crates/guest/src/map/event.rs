//! What a guest did to its address space, as userfaultfd reports it.

use crate::Vpn;
use std::ops::Range;

/// One event. The kernel changes the address space first and queues the message afterwards, but for
/// [`Removed`](Self::Removed); so messages are not in the order of the changes.
/// (`fs/userfaultfd.c`: `userfaultfd_unmap_complete`, `mremap_userfaultfd_complete`,
/// `userfaultfd_remove`.)
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// `UFFD_EVENT_UNMAP`: these pages are unmapped. It covers the whole range of the call, holes
    /// and others' mappings too. A claim: a `mmap(MAP_FIXED)` that fails sends it as well.
    Unmapped(Range<Vpn>),
    /// `UFFD_EVENT_REMAP`: pages moved. The place they left follows as
    /// [`Unmapped`](Self::Unmapped), unless it was left mapped (`MREMAP_DONTUNMAP`).
    Remapped {
        /// Where they were.
        from: Vpn,
        /// Where they are.
        to: Vpn,
        /// How many.
        pages: u64,
    },
    /// `UFFD_EVENT_REMOVE`: the content of these pages is about to be dropped, by `MADV_DONTNEED`
    /// or, some time, by `MADV_FREE`.
    Removed(Range<Vpn>),
}

impl Event {
    /// Returns the addresses whose pages it takes away.
    pub fn left(&self) -> Range<Vpn> {
        match self {
            Self::Unmapped(place) | Self::Removed(place) => place.clone(),
            Self::Remapped { from, pages, .. } => from.run(*pages),
        }
    }

    /// True if it is about a page of `place`.
    pub fn concerns(&self, place: &Range<Vpn>) -> bool {
        let overlaps = |other: &Range<Vpn>| other.start < place.end && place.start < other.end;
        match self {
            Self::Unmapped(at) | Self::Removed(at) => overlaps(at),
            Self::Remapped { from, to, pages } => {
                overlaps(&from.run(*pages)) || overlaps(&to.run(*pages))
            }
        }
    }
}
