//! Readahead: which pages to read when one is missing.
//!
//! Owns: the window rule, which both forms share, and the way from a window to locked frames in the
//! swap cache. The rule is Linux's (`swapin_nr_pages`): pages = hits + 2, rounded up to a power of two
//! of at least 4; without hits 1, or 2 next to the previous fault; never less than half the previous
//! window.
//!
//! | form | window | pages read ahead | a hit is |
//! |---|---|---|---|
//! | [`cluster`] | aligned block of slots around the slot | wait in the swap cache | a fault that finds one |
//! | [`streams`] | along the addresses around the page | are mapped at once | one that a stream passed over |
//!
//! Invariants: readahead takes only frames to spare, only pages that are swapped, and never fails a
//! fault: a page that could not be read ahead stays on its slot and is read again when it is touched.
//! Not here: the reads (`swapin`).
//! Rejected: one way of waiting for both forms. Pages in the swap cache tell of their touch by a
//! fault, which is what cluster readahead goes by; a fault costs more than the read of a page in a
//! window, so the form made for user space maps what it has read.

pub(crate) mod ahead;
pub(crate) mod cluster;
pub(crate) mod streams;
pub(crate) mod trunks;

use crate::engine::Engine;
use crate::space::Pattern;
use crate::swap_cache::Inserted;
use crate::tuning::Readahead;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapEntry;
use overspill_base::shared::PageBuf;
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo, Slot};
use std::ops::Range;

/// Least window once there are hits.
const HIT_WINDOW_MIN: usize = 4;

/// A page to be read: its frame is locked and cached under the entry.
#[derive(Debug)]
pub(crate) struct PageRead {
    pub(crate) entry: SwapEntry,
    pub(crate) into: PageBuf,
}

impl Engine {
    /// The read of `page`, which the caller has cached under `entry` in a locked frame, with its
    /// window, in an order in which adjacent slots are neighbours.
    pub(crate) fn reads_around(
        &self,
        worker: &mut Worker,
        page: PageNo,
        entry: SwapEntry,
    ) -> Vec<PageRead> {
        let pattern = self.space.pattern(page);
        let alone = pattern == Pattern::Random || !self.swaps.get(entry.area()).reads_ahead;
        let reads = match self.tuning.readahead {
            _ if alone => self.read_and_map(worker, &[entry]),
            Readahead::Cluster => self.reads_in_block(worker, page, entry),
            Readahead::AddressSpace => self.reads_in_stream(worker, page, entry, pattern),
        };
        self.stats.add(Event::swap_ra, reads.len() as u64 - 1);
        reads
    }

    /// Reads to be mapped, by a copy, when they are done.
    pub(crate) fn read_and_map(&self, worker: &mut Worker, entries: &[SwapEntry]) -> Vec<PageRead> {
        let first = self.take_bounce(worker, entries.len());
        let mut reads = std::mem::take(&mut worker.scratch.reads);
        let into = (first..).map(|page| worker.bounce.buffer(page));
        reads.extend(entries.iter().zip(into).map(|(&entry, into)| PageRead { entry, into }));
        reads
    }

    /// Bounce memory for `pages` pages; waits for this worker's own reads when it is all in use.
    fn take_bounce(&self, worker: &mut Worker, pages: usize) -> usize {
        loop {
            match worker.bounce.take(pages) {
                Some(first) => return first,
                None => worker.wait(self),
            }
        }
    }

    /// The pages of the stream's window, in the order of their addresses.
    fn reads_in_stream(
        &self,
        worker: &mut Worker,
        page: PageNo,
        entry: SwapEntry,
        pattern: Pattern,
    ) -> Vec<PageRead> {
        let max = self.tuning.readahead_max_pages;
        let alone = !self.has_neighbour(page);
        let window = self.streams.around(page).window(page, max, pattern, alone);
        self.stats.add(Event::swap_ra_hit, u64::from(window.hits));
        self.leave_behind(window.behind.clone());
        let (pages, step) = (window.pages.clone(), window.step);
        let mut entries = std::mem::take(&mut worker.scratch.entries);
        let before = (pages.start..page.0).step_by(step as usize).rev();
        let before = self.take_swapped(before, &mut entries);
        entries.reverse();
        let read_before = entries.len() as u32;
        entries.push(entry);
        let after = (page.0..pages.end).step_by(step as usize).skip(1);
        let after = self.take_swapped(after, &mut entries);
        let read_after = entries.len() as u32 - read_before - 1;
        let reached = page.0 - before * step..page.0 + after * step + 1;
        let whole = reached == pages && reached.len() > 1;
        let reached = if whole { self.past_resident(reached, step) } else { reached };
        self.streams.around(page).settle(&window, reached, [read_before, read_after]);
        if whole && pages.len() >= max {
            self.ask_ahead(&window, entry.area());
        }
        let reads = self.read_and_map(worker, &entries);
        entries.clear();
        worker.scratch.entries = entries;
        reads
    }

    /// True if a page beside `page` is in memory: who comes here in order passes over it without a
    /// fault, and does not step.
    fn has_neighbour(&self, page: PageNo) -> bool {
        let end = self.table.len() as u32;
        let beside = [page.0.checked_sub(1), Some(page.0 + 1).filter(|&next| next < end)];
        beside.into_iter().flatten().any(|page| self.resident_frame(PageNo(page)).is_some())
    }

    /// Makes what a long stream has read and passed the first to be evicted.
    pub(crate) fn leave_behind(&self, pages: Range<u32>) {
        if pages.is_empty() || !self.tuning.leave_behind {
            return;
        }
        let frames = pages.filter_map(|page| self.resident_frame(PageNo(page)));
        // They were mapped a moment ago: some wait in a batch.
        self.lru.drain(&self.frames, &self.stats);
        self.lru.leave_behind(frames, &self.frames);
    }

    /// A window with the pages in memory that follow it on either side at its step, a window's worth
    /// at most: the stream's next fault comes after them.
    fn past_resident(&self, window: Range<u32>, step: u32) -> Range<u32> {
        let reach = window.len() as u32;
        let resident = |&page: &u32| self.resident_frame(PageNo(page)).is_some();
        let before = (window.start.saturating_sub(reach)..window.start).rev();
        let before = before.skip(step as usize - 1).step_by(step as usize).take_while(resident);
        let after = (window.end - 1..window.end + reach).step_by(step as usize).skip(1);
        let (before, after) = (before.count() as u32, after.take_while(resident).count() as u32);
        window.start - before * step..window.end + after * step
    }

    /// Takes a frame for each swapped one of `pages`, until frames run short; returns how many pages
    /// it has dealt with.
    pub(crate) fn take_swapped(
        &self,
        pages: impl Iterator<Item = u32>,
        entries: &mut Vec<SwapEntry>,
    ) -> u32 {
        let mut seen = 0;
        for page in pages.map(PageNo) {
            if let Pte::Swapped { entry, .. } = self.table.load(page) {
                let Some(frame) = self.frame_to_spare(page) else { break };
                if self.cache_ahead(page, entry, frame) {
                    entries.push(entry);
                }
            }
            seen += 1;
        }
        seen
    }

    /// A locked frame for `page`, unless frames run short.
    pub(crate) fn frame_to_spare(&self, page: PageNo) -> Option<FrameNo> {
        if self.may_take_frames() { self.frames.alloc(page) } else { None }
    }

    /// Caches the entry of a page to be read ahead in a locked frame; frees it if that cannot be.
    pub(crate) fn cache_ahead(&self, page: PageNo, entry: SwapEntry, frame: FrameNo) -> bool {
        match self.cache.insert(entry, frame, &self.frames, &self.table, page) {
            Inserted::Yes => {
                self.frames.set(frame, flag::READAHEAD);
                true
            }
            Inserted::Exists | Inserted::Changed => {
                self.free_page(frame, page);
                false
            }
        }
    }

    /// The pages of the aligned block around the slot, in the order of their slots.
    fn reads_in_block(&self, worker: &mut Worker, page: PageNo, entry: SwapEntry) -> Vec<PageRead> {
        let (area, state) = (self.areas.get(entry.area()), self.swaps.get(entry.area()));
        let (end, max) = (area.capacity_slots(), self.tuning.readahead_max_pages);
        let block = state.window.lock().block(entry.slot(), end, max);
        let slots = area.slot_map();
        let mut reads = Vec::with_capacity(block.len());
        for slot in block.map(Slot) {
            if slot == entry.slot() {
                reads.extend(self.read_and_map(worker, &[entry]));
            } else if slots.holders(slot) == Some(0) {
                self.waste_frame(page);
            } else {
                reads.extend(self.read_slot_ahead(SwapEntry::new(entry.area(), slot)));
            }
        }
        reads
    }

    /// What readahead did with a slot nobody refers to, before it learned to look first.
    fn waste_frame(&self, page: PageNo) {
        if self.tuning.readahead_skip_unreferenced {
            return;
        }
        if let Some(frame) = self.frame_to_spare(page) {
            self.frames.free(frame);
            self.stats.count(Event::swap_ra_wasted);
        }
    }

    /// A read into staging memory, where the page waits for its touch. None for a slot that is
    /// reserved, kept ready in a slot cache or another process's, or whose page is cached already.
    fn read_slot_ahead(&self, entry: SwapEntry) -> Option<PageRead> {
        let page = self.swaps.get(entry.area()).pages.as_ref()?.page(entry.slot())?;
        if !self.table.is_on(page, entry) || self.cache.lookup(entry).is_some() {
            return None;
        }
        let frame = self.frame_to_spare(page)?;
        let Some(staged) = self.staging.take_single() else {
            self.free_page(frame, page);
            return None;
        };
        if !self.cache_ahead(page, entry, frame) {
            self.staging.release(staged..staged + 1, &*self.space);
            return None;
        }
        self.frames.set_staged(frame, Some(staged));
        Some(PageRead { entry, into: self.staging.buffer(staged) })
    }

    /// Notes that `slot` belongs to `page` now, for [`read_slot_ahead`](Self::read_slot_ahead).
    pub(crate) fn note_page(&self, entry: SwapEntry, page: PageNo) {
        if let Some(pages) = &self.swaps.get(entry.area()).pages {
            pages.note(entry.slot(), page);
        }
    }

    /// Counts the touch of a locked frame that waited in the swap cache, if it was read ahead; true
    /// if so.
    pub(crate) fn take_readahead_hit(&self, frame: FrameNo, entry: SwapEntry) -> bool {
        let ahead = self.frames.clear(frame, flag::READAHEAD) & flag::READAHEAD != 0;
        if ahead {
            self.stats.count(Event::swap_ra_hit);
            self.swaps.get(entry.area()).window.lock().note_hit();
        }
        ahead
    }
}

/// Pages to read, the faulting one included, after `hits`, or next to the previous fault.
fn next_window(hits: usize, adjacent: bool, previous: usize, max: usize) -> usize {
    let wanted = match (hits, adjacent) {
        (0, false) => 1,
        (0, true) => 2,
        _ => (hits + 2).next_power_of_two().max(HIT_WINDOW_MIN),
    };
    wanted.max(previous / 2).min(max)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Hits, adjacent, previous window, limit, and what the rule makes of them.
    #[test]
    fn the_window_rule() {
        for (hits, adjacent, previous, max, pages) in [
            (0, false, 0, 8, 1),
            (0, true, 0, 8, 2),
            (1, false, 0, 8, 4),
            (2, false, 0, 8, 4),
            (3, true, 0, 8, 8),
            (7, false, 0, 8, 8),
            (7, false, 0, 64, 16),
            (0, false, 8, 8, 4),
            (0, true, 2, 8, 2),
            (0, false, 1, 8, 1),
            (1, false, 64, 64, 32),
        ] {
            assert_eq!(next_window(hits, adjacent, previous, max), pages, "{hits} {previous}");
        }
    }
}
