//! Readahead by slot: the aligned block of slots around the faulting one.
//!
//! Owns: the window of each area, and the clipping of its block. All of Linux did this before 4.14
//! (`swapin_readahead`): pages evicted together lie together on the device. Pages read ahead wait
//! in the swap cache, so a fault that finds one there is a hit.
//! Invariants: a block is aligned to its size, contains the faulting slot, and is clipped to the
//! slots below the end. Slot 0, the place of the header, is never read ahead; devices that we make
//! have no header and use it.
//! Not here: which page a slot belongs to (`reverse_map`).

use crate::readahead::next_window;
use overspill_base::Slot;
use std::ops::Range;

/// Initial hits of an area, as in Linux, so that its first window is a full one.
const FIRST_HITS: usize = 4;

/// The window of one area.
#[derive(Debug)]
pub(crate) struct ClusterWindow {
    hits: usize,
    previous: Option<Slot>,
    pages: usize,
}

impl Default for ClusterWindow {
    fn default() -> Self {
        Self { hits: FIRST_HITS, previous: None, pages: 0 }
    }
}

impl ClusterWindow {
    /// Counts a fault that found a page read ahead.
    pub(crate) fn note_hit(&mut self) {
        self.hits += 1;
    }

    /// Returns the slots to read for a fault at `slot`: below `end`, at most `max`.
    pub(crate) fn block(&mut self, slot: Slot, end: u32, max: usize) -> Range<u32> {
        let adjacent = self.previous.is_some_and(|previous| previous.0.abs_diff(slot.0) == 1);
        let hits = std::mem::take(&mut self.hits);
        let largest = 1 << max.ilog2();
        let pages = next_window(hits, adjacent, self.pages, largest);
        *self = Self { hits: 0, previous: Some(slot), pages };
        let start = slot.0 & !(pages as u32 - 1);
        start.max(1).min(slot.0)..start.saturating_add(pages as u32).min(end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(window: &mut ClusterWindow, slot: u32) -> Range<u32> {
        window.block(Slot(slot), 100, 8)
    }

    #[test]
    fn without_hits_the_window_shrinks_to_the_page_itself() {
        let mut window = ClusterWindow::default();
        // Four hits at first: 4 + 2 rounded up; then half of it each time.
        assert_eq!(block(&mut window, 21), 16..24);
        assert_eq!(block(&mut window, 50), 48..52);
        assert_eq!(block(&mut window, 77), 76..78);
        assert_eq!(block(&mut window, 33), 33..34);
        // Beside the previous fault: two.
        assert_eq!(block(&mut window, 34), 34..36);
    }

    #[test]
    fn hits_keep_it_open() {
        let mut window = ClusterWindow::default();
        block(&mut window, 21);
        (0..7).for_each(|_| window.note_hit());
        assert_eq!(block(&mut window, 90), 88..96);
    }

    #[test]
    fn the_header_and_what_lies_past_the_end_are_left_out() {
        let mut window = ClusterWindow::default();
        assert_eq!(block(&mut window, 3), 1..8);
        window.hits = 6;
        assert_eq!(block(&mut window, 99), 96..100);
        window.hits = 6;
        assert_eq!(block(&mut window, 0), 0..8);
    }

    proptest! {
        /// Against a model that tries every aligned block of the size the rule gives.
        #[test]
        fn blocks_are_those_of_a_search(
            faults in prop::collection::vec((1..500u32, 0..9usize), 1..100),
            max in 1..40usize,
        ) {
            let mut window = ClusterWindow::default();
            let (mut before, mut last, mut hits) = (0, 1000, FIRST_HITS);
            for (slot, hits_after) in faults {
                let block = window.block(Slot(slot), 500, max);
                let mut size = [1, 2][usize::from(slot.abs_diff(last) == 1)];
                if hits > 0 {
                    size = (2..).map(|n| 1 << n).find(|&size| size >= hits + 2).unwrap();
                }
                while size > max {
                    size /= 2;
                }
                size = size.max(before / 2);
                let whole = (0..).step_by(size).map(|at| at..at + size as u32);
                let whole = whole.into_iter().find(|block| block.contains(&slot)).unwrap();
                let expected: Vec<u32> = whole.filter(|&n| n > 0 && n < 500).collect();
                prop_assert_eq!(block.collect::<Vec<_>>(), expected);
                (0..hits_after).for_each(|_| window.note_hit());
                (before, last, hits) = (size, slot, hits_after);
            }
        }
    }
}
