//! The terms: page-table word, frame, and the states they have together.
//!
//! A *page* is a place in managed address space. A *frame* is the right to keep one page in memory;
//! there are as many as the limit allows. A frame is not an address: the page's bytes are in the
//! program's own mapping, or in staging memory while they are written out.
//!
//! ```text
//! word       frame                    the page is
//! Empty      -                        zeros, never touched or discarded
//! Resident f MAPPED                   in the program's mapping
//! Swapped e  -                        on slot e only
//! Swapped e  CACHED, LOCKED           being read from e, or about to be mapped from staging
//! Swapped e  CACHED, READAHEAD        in staging and on e: read ahead, not touched yet
//! Swapped e  CACHED, WRITEBACK        in staging, being written to e
//! Swapped e  CACHED                   in staging and on e: freed or mapped again without I/O
//! Swapped e  CACHED, DIRTY            in staging only: its write failed
//! Poisoned   -                        lost: to a read error, or in the address space
//! ```
//!
//! A mapped frame may be CACHED too: slot e holds the page as it was last written or read. If the
//! page is unchanged at its eviction, nothing is written.
//!
//! A page that is in the table at one of these states with e, by its word or by its frame, *is on*
//! slot e and holds it once. After a fork several pages are on one slot ([`crate::Engine::share`]):
//!
//! - Each goes through these states by itself. The swap cache is keyed by entry and page, so each
//!   is read into a frame of its own, and a fault never meets another page's frame.
//! - A slot is written to only while one page is on it. So a page under WRITEBACK, or DIRTY, is
//!   alone on its slot, and a copy kept of a mapped page stays what it was for all the others.
//! - A page joins a slot only by `share`, from a page whose word is Swapped: never one that is
//!   mapped, and about to be written to its own slot.
//! - Of pages mapped from one slot that each keep it as a copy, none can free it alone: when slots
//!   are scarce they do not keep it, and when there are none left they give it up.
//!
//! Counter equations, at quiescence:
//! ```text
//! limit + what is over it = free + frames with a page
//! frames with a page = on active + on inactive + in an add batch
//! Resident words     = MAPPED frames
//! holders of a slot  = pages on it
//! slots held         = slots that pages are on + cached and batched slots
//! swap-cache entries = CACHED frames
//! ```

use overspill_area::SwapEntry;
use overspill_base::FrameNo;
use overspill_base::sync::{AtomicU32, AtomicU64};
use std::fmt;

/// A page-table word, unpacked. See [`crate::PageTable`] for the packing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pte {
    /// Never touched, or discarded: zeros.
    Empty,
    /// In the program's mapping, charged to this frame.
    Resident(FrameNo),
    /// On a slot, evicted when the clock stood at `shadow`.
    Swapped {
        /// The slot.
        entry: SwapEntry,
        /// Value of the eviction clock, see [`crate::workingset`].
        shadow: u32,
    },
    /// Lost.
    Poisoned,
}

impl fmt::Display for Pte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::Resident(frame) => write!(f, "resident, frame {}", frame.0),
            Self::Swapped { entry, .. } => {
                write!(f, "swapped, area {} slot {}", entry.area().0, entry.slot().0)
            }
            Self::Poisoned => f.write_str("poisoned"),
        }
    }
}

/// The state of one frame, 24 bytes; its LRU links are with the lists. Zeros are a free frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct Frame {
    /// See [`flag`].
    pub(crate) flags: AtomicU32,
    /// Page of the staging arena that holds the content, plus one; else 0.
    pub(crate) staged: AtomicU32,
    /// The frame's page plus one, or 0 if it is free.
    pub(crate) page: AtomicU32,
    /// Pins of the page; UNEVICTABLE while there are any. Changes only under the page lock.
    pub(crate) pins: AtomicU32,
    /// Entry plus one while CACHED, else 0. Changes only under the page lock.
    pub(crate) entry: AtomicU64,
}

/// Bits of [`Frame::flags`].
///
/// ```text
/// LOCKED WAITERS
///   0      0      idle
///   1      0      owned by a thread, or by its I/O
///   1      1      owned, and threads sleep in the wait table
///   0      1      free; threads sleep for the end of WRITEBACK, or were about to sleep
///
/// on a list: LRU; ACTIVE says which. ADD_PENDING: in a CPU's add batch.
/// A frame has LRU or ADD_PENDING, or is isolated by a thread that holds its lock.
/// ROTATE_PENDING: in a CPU's rotation batch; whether it is still inactive is checked at the flush.
/// ```
pub mod flag {
    /// The page lock.
    pub const LOCKED: u32 = 1 << 0;
    /// Threads sleep for the page lock, or for the end of a write.
    pub const WAITERS: u32 = 1 << 1;
    /// In the program's mapping.
    pub const MAPPED: u32 = 1 << 2;
    /// In the swap cache, by which its page is on a slot.
    pub const CACHED: u32 = 1 << 3;
    /// A write of the staged content is in flight.
    pub const WRITEBACK: u32 = 1 << 4;
    /// Its write failed: the content is in staging memory only.
    pub const DIRTY: u32 = 1 << 5;
    /// On an LRU list.
    pub const LRU: u32 = 1 << 6;
    /// On the active list, or to be added to it.
    pub const ACTIVE: u32 = 1 << 7;
    /// In an add batch.
    pub const ADD_PENDING: u32 = 1 << 8;
    /// In a rotation batch.
    pub const ROTATE_PENDING: u32 = 1 << 9;
    /// Locked in memory by the program.
    pub const UNEVICTABLE: u32 = 1 << 10;
    /// Read ahead, or about to be, and not touched yet.
    pub const READAHEAD: u32 = 1 << 11;
    /// Read ahead by a stream; no fault has shown a touch since.
    pub const STREAMED: u32 = 1 << 12;
    /// All flags of a page; the lock bits stay when a frame changes pages.
    pub const OF_PAGE: u32 = !(LOCKED | WAITERS);
}

/// A condition on flags, checked whenever a page lock is taken or released.
#[derive(Debug)]
pub(crate) struct Rule {
    /// A frame that has all of these,
    has: u32,
    /// and none of these,
    lacks: u32,
    /// must have all of these,
    needs: u32,
    /// and none of these.
    excludes: u32,
}

/// The legal combinations, flag by flag. WRITEBACK and DIRTY change without the page lock, at the
/// end of a write; so do the flags of the lists.
pub(crate) const RULES: [Rule; 4] = {
    use flag::*;
    [
        // The cache holds the slot, so the write cannot hit another page's.
        Rule { has: WRITEBACK, lacks: 0, needs: CACHED, excludes: 0 },
        // A mapped page may change, so the staged content is stale. While WRITEBACK is set, the
        // completion may be about to clear DIRTY.
        Rule { has: DIRTY, lacks: WRITEBACK, needs: CACHED, excludes: MAPPED },
        // It waits in the cache, unmapped, with the content of its slot.
        Rule { has: READAHEAD, lacks: 0, needs: CACHED, excludes: MAPPED | DIRTY | WRITEBACK },
        Rule { has: LRU, lacks: 0, needs: 0, excludes: ADD_PENDING },
    ]
};

/// Returns the rule that `flags` break, if there is one.
pub(crate) fn broken_rule(flags: u32) -> Option<&'static Rule> {
    let concerns = |rule: &&Rule| flags & rule.has == rule.has && flags & rule.lacks == 0;
    let holds = |rule: &Rule| flags & rule.needs == rule.needs && flags & rule.excludes == 0;
    RULES.iter().filter(concerns).find(|rule| !holds(rule))
}

#[cfg(test)]
mod tests {
    use super::flag::*;
    use super::*;

    #[test]
    fn what_the_table_of_states_says_is_legal() {
        for state in
            [0, MAPPED, MAPPED | CACHED, CACHED | READAHEAD, CACHED | WRITEBACK, CACHED | DIRTY]
        {
            for list in [0, LRU, LRU | ACTIVE, ADD_PENDING | ACTIVE, LRU | ROTATE_PENDING] {
                assert!(broken_rule(state | list | LOCKED).is_none(), "{state:#x} {list:#x}");
            }
        }
        // Mapped again while it is written.
        assert!(broken_rule(MAPPED | CACHED | WRITEBACK).is_none());
    }

    #[test]
    fn what_must_not_be_is_told() {
        let wrong = [
            WRITEBACK,
            DIRTY,
            MAPPED | CACHED | DIRTY,
            READAHEAD,
            MAPPED | CACHED | READAHEAD,
            CACHED | READAHEAD | DIRTY,
            LRU | ADD_PENDING,
        ];
        assert!(wrong.iter().all(|&flags| broken_rule(flags).is_some()));
    }
}
