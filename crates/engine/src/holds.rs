//! The table of ranges that stay in memory for as long as a thread is in a system call.
//!
//! Owns: some words for every thread that may hold ranges. Where the kernel cannot wait for a page
//! that it misses in a system call (`UFFD_USER_MODE_ONLY`), the thread holds its buffers: it
//! publishes the ranges, then looks whether the pages are there, and touches those that are not. A
//! pin of each page would do as well, but takes its lock twice, and stays if the thread leaves the
//! call by a jump.
//! Invariant: a page that was found in memory after its range was published is not evicted before
//! the hold ends. Of hold and eviction at least one sees the other (Dekker): the thread publishes,
//! then reads the page's lock; reclaim locks the page, then reads the holds. Both have a
//! sequentially consistent fence in between. What reclaim reads of a hold that is changing
//! meanwhile is part of one that has ended, or of one whose holder has yet to look.
//! Not here: which calls need it (`preload`); what holders ask of the engine (`pins`).
//!
//! ```text
//! a word: bits 0 to 31 the first page · from bit 32 on how many; 0 is the end of a holder's words
//! ```

use overspill_base::PageNo;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use overspill_base::sync::{AtomicU32, AtomicU64, AtomicUsize, fence};
use std::ops::Range;

/// Threads that can hold ranges at a time.
const HOLDERS_MAX: usize = if cfg!(loom) { 1 } else { 8192 };

/// Ranges that a thread can hold at a time.
pub const RANGES_MAX: usize = if cfg!(loom) { 1 } else { 8 };

/// What one thread holds: ranges, up to the first that is empty.
pub type Held = [u64; RANGES_MAX];

/// The words.
#[derive(Debug)]
pub(crate) struct Holds {
    /// 1 for those that are somebody's.
    taken: Box<[AtomicU32]>,
    words: Box<[AtomicU64]>,
    /// The holders from here on were never taken.
    used: AtomicUsize,
}

/// The right to hold [`RANGES_MAX`] ranges at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(usize);

fn word(range: &Range<PageNo>) -> u64 {
    u64::from(range.end.0 - range.start.0) << 32 | u64::from(range.start.0)
}

/// The pages of a word.
fn range_of(word: u64) -> Range<u32> {
    let first = word as u32;
    first..first + (word >> 32) as u32
}

impl Holds {
    pub(crate) fn new() -> Self {
        Self {
            taken: overspill_base::zeroed::slice(HOLDERS_MAX),
            words: overspill_base::zeroed::slice(HOLDERS_MAX * RANGES_MAX),
            used: AtomicUsize::new(0),
        }
    }

    pub(crate) fn take(&self) -> Option<Holder> {
        let free = |taken: &AtomicU32| taken.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let index = self.taken.iter().position(free)?;
        self.used.fetch_max(index + 1, Relaxed);
        Some(Holder(index))
    }

    pub(crate) fn words_of(&self, holder: Holder) -> &[AtomicU64] {
        &self.words[holder.0 * RANGES_MAX..][..RANGES_MAX]
    }

    /// Holds these ranges, of which the last may be left out by ending the list with an empty one.
    pub(crate) fn publish(&self, holder: Holder, held: &Held) {
        self.words_of(holder).iter().zip(held).for_each(|(word, &held)| word.store(held, Relaxed));
        // Also orders `used`, raised by `take`.
        fence(SeqCst);
    }

    /// Returns what is held now. Call with the locks of the pages that are to be evicted.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> + Clone + '_ {
        fence(SeqCst);
        let holders = self.words.chunks_exact(RANGES_MAX).take(self.used.load(Relaxed));
        // Acquire: a thread that has ended its hold is done with the pages.
        let range = |word: &AtomicU64| range_of(word.load(Acquire));
        holders.flat_map(move |words| words.iter().map(range).take_while(|range| !range.is_empty()))
    }

    /// Ends a hold; the words stay the thread's.
    pub(crate) fn let_go(&self, holder: Holder) {
        self.words_of(holder)[0].store(0, Release);
    }

    /// Gives the words back.
    pub(crate) fn give_back(&self, holder: Holder) {
        self.let_go(holder);
        self.taken[holder.0].store(0, Release);
    }
}

/// Packs ranges; `None` if there are more than [`RANGES_MAX`].
pub(crate) fn pack(ranges: &[Range<PageNo>]) -> Option<Held> {
    let mut held = Held::default();
    let places = held.get_mut(..ranges.len())?;
    places.iter_mut().zip(ranges).for_each(|(place, range)| *place = word(range));
    Some(held)
}

/// The ranges of a hold.
pub(crate) fn ranges_of(held: Held) -> impl Iterator<Item = Range<PageNo>> {
    let ranges = held.into_iter().map(range_of).take_while(|range| !range.is_empty());
    ranges.map(|range| PageNo(range.start)..PageNo(range.end))
}
