//! Which pages the processes of a run touch, in order, as far as touches fault.
//!
//! Owns: the numbers of pages in a trace.
//! Invariants: pages are numbered in the order of their first touch. One that was dropped has a new
//! number at its next touch: what it held is gone, and no policy can read it back.
//! Not here: the trace's file.
//! Known error: a page of zeros that is evicted is dropped as one that the program drops, so a drop
//! is noticed only of what was swapped out.

use overspill_base::history::{Change, History, Place};
use overspill_engine::PageTable;
use std::collections::HashMap;

/// Reads touches from the history of a run.
#[derive(Debug)]
pub struct Touches {
    history: History,
    place: Place,
    /// The number of each page, by process and address.
    numbers: HashMap<(u32, u64), u32>,
    pages: u32,
}

impl Touches {
    pub(super) fn of(history: History) -> Self {
        Self { history, place: Place::default(), numbers: HashMap::new(), pages: 0 }
    }

    /// Appends the numbers of the pages touched since the last call. To be called before the
    /// history begins to overwrite itself.
    pub fn take(&mut self, touched: &mut Vec<u32>) {
        for Change { member, address, before, after, .. } in self.history.after(&mut self.place) {
            let page = (member, address);
            if PageTable::brought_in(before, after) {
                let number = self.numbers.entry(page).or_insert_with(|| {
                    self.pages += 1;
                    self.pages - 1
                });
                touched.push(*number);
            } else if PageTable::dropped_from_swap(before, after) {
                self.numbers.remove(&page);
            }
        }
    }

    /// Returns the number of changes that came too fast to be read.
    pub fn missed(&self) -> u64 {
        self.place.missed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::shared::Table;
    use overspill_base::sync::AtomicU64;

    /// Words of the page table as they are recorded.
    const EMPTY: u64 = 0;
    const RESIDENT: u64 = 1;
    const SWAPPED: u64 = 2;

    #[test]
    fn a_dropped_page_is_another_one_at_its_next_touch() {
        let history = || {
            let words = Table::on_heap(History::words(64), || AtomicU64::new(0));
            History::new(words, 0)
        };
        let noted = history();
        for (page, before, after) in [
            (7, EMPTY, RESIDENT),
            (3, EMPTY, RESIDENT),
            (7, RESIDENT, SWAPPED),
            (7, SWAPPED, RESIDENT),
            (3, RESIDENT, SWAPPED),
            (3, SWAPPED, EMPTY),
            (3, EMPTY, RESIDENT),
        ] {
            noted.note(page, before, after);
        }
        let (mut touches, mut touched) = (Touches::of(noted), Vec::new());
        touches.take(&mut touched);
        assert_eq!((touched, touches.missed()), (vec![0, 1, 0, 2], 0));
    }
}
