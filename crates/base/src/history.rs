//! The last changes of page state, in a ring, to find out how a page was lost.
//!
//! Owns: the ring's entries. They are in memory that another process may read, and stay when the
//! writer ends.
//! Invariants: an entry that is being written, or was overwritten while it was read, is left out;
//! no thread waits for another.
//! Not here: what a page's state is.
//! Rejected: a log to a file, which would be a system call for each change.
//!
//! ```text
//! number of the entry plus one, 0 while it is written · ns
//! whose page it is, and which of its address space · before · after
//! ```
//!
//! Orderings: an entry's number is stored last (Release), and read first (Acquire) and again at the
//! end.

use crate::PAGE_SIZE;
use crate::clock;
use crate::shared::Table;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

const WORDS: usize = 5;
/// Bits of a page number; its owner is above them.
const PAGE_BITS: u32 = 48;

/// A ring.
#[derive(Debug)]
pub struct History(Table<AtomicU64>);

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the monotonic clock.
    pub time_ns: u64,
    /// Whose page it is, below 65 536.
    pub owner: u32,
    /// The page's address there.
    pub address: u64,
    /// Its state before.
    pub before: u64,
    /// Its state after.
    pub after: u64,
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    next: u64,
    missed: u64,
}

impl Place {
    /// Returns the number of changes that were overwritten before they were read.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl History {
    /// Size of a ring of `entries` entries, in words.
    pub const fn words(entries: usize) -> usize {
        1 + WORDS * entries
    }

    /// Makes a ring in `words`, which start as zeros.
    pub fn new(words: Table<AtomicU64>) -> Self {
        Self(words)
    }

    fn entries(&self) -> u64 {
        ((self.0.len() - 1) / WORDS) as u64
    }

    fn entry(&self, number: u64) -> &[AtomicU64] {
        &self.0[1 + (number % self.entries()) as usize * WORDS..][..WORDS]
    }

    /// Records a change of the page with a number in `owner`'s address space: its state before and
    /// after.
    pub fn note(&self, owner: u32, page: u64, (before, after): (u64, u64)) {
        let number = self.0[0].fetch_add(1, Relaxed);
        let entry = self.entry(number);
        entry[0].store(0, Relaxed);
        // A reader that sees a word of the new entry sees that the old number is gone.
        fence(Release);
        entry[1].store(clock::now_ns(), Relaxed);
        entry[2].store(u64::from(owner) << PAGE_BITS | page, Relaxed);
        entry[3].store(before, Relaxed);
        entry[4].store(after, Relaxed);
        entry[0].store(number + 1, Release);
    }

    /// Returns the changes in the ring, oldest first.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.after(&mut Place::default())
    }

    /// Returns the changes after `place`, oldest first, and moves it after them.
    pub fn after<'a>(&'a self, place: &mut Place) -> impl Iterator<Item = Change> + use<'a> {
        let next = self.0[0].load(Relaxed);
        let first = place.next.max(next.saturating_sub(self.entries()));
        place.missed += first - place.next;
        place.next = next;
        (first..next).filter_map(|number| self.read(number))
    }

    fn read(&self, number: u64) -> Option<Change> {
        let entry = self.entry(number);
        if entry[0].load(Acquire) != number + 1 {
            return None;
        }
        let [time_ns, place, before, after] = [1, 2, 3, 4].map(|word| entry[word].load(Relaxed));
        // Pairs with the writer's: a word of a newer entry implies a newer number.
        fence(SeqCst);
        (entry[0].load(Relaxed) == number + 1).then_some(Change {
            time_ns,
            owner: (place >> PAGE_BITS) as u32,
            address: (place & ((1 << PAGE_BITS) - 1)) * PAGE_SIZE as u64,
            before,
            after,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(entries: usize) -> History {
        History::new(Table::on_heap(History::words(entries), || AtomicU64::new(0)))
    }

    #[test]
    fn the_last_changes_are_kept_in_their_order() {
        let history = ring(4);
        assert_eq!(history.changes().count(), 0);
        (0..6).for_each(|n| history.note(3, 0x7_0000_0000 + n, (n, n + 1)));
        let seen: Vec<u64> = history.changes().map(|change| change.before).collect();
        assert_eq!(seen, [2, 3, 4, 5]);
        let last = history.changes().last().unwrap();
        assert_eq!((last.owner, last.address, last.after), (3, 0x7000_0000_5000, 6));
    }

    #[test]
    fn a_reader_goes_on_where_it_stopped_and_knows_what_it_missed() {
        let (history, mut place) = (ring(4), Place::default());
        let mut read = |noted: std::ops::Range<u64>| {
            noted.for_each(|n| history.note(3, n, (n, 0)));
            let seen: Vec<u64> = history.after(&mut place).map(|change| change.before).collect();
            (seen, place.missed())
        };
        assert_eq!(read(0..3), (vec![0, 1, 2], 0));
        assert_eq!(read(3..5), (vec![3, 4], 0));
        assert_eq!(read(5..11), (vec![7, 8, 9, 10], 2));
        assert_eq!(read(0..0), (vec![], 2));
    }

    #[test]
    fn an_entry_being_written_is_left_out() {
        let history = ring(4);
        history.note(3, 1, (0, 1));
        history.note(3, 2, (0, 1));
        history.entry(1)[0].store(0, Relaxed);
        assert_eq!(history.changes().count(), 1);
    }
}
