//! Writeback: pages in staging memory on their way to slots.
//!
//! Owns: what happens to a page between leaving the program's sight and its write's completion.
//! Invariants: a page that is all zero or unchanged is dropped without a write; any other keeps its
//! frame until a write of it has completed without error. A failed write keeps the page in memory,
//! dirty, and its area is avoided from then on.
//! Changed or not is decided by the device's checksum of the slot. Rejected: installing pages
//! write-protected and noting the first write. It costs every page that is read and then written a
//! second fault, where hashing a page costs a fraction of one and is needed for its checksum anyway.

use crate::engine::Engine;
use crate::lru::LruList;
use crate::reclaim::Victim;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_device::{Completion, IoOp, IoRequest};

/// Smaller runs take single slots: 16 pages, the 64 KiB of mTHP.
const FOLIO_ORDER_MIN: u32 = 4;

impl Engine {
    /// Drops or writes pages that are in staging memory, locked. Returns how many left memory or
    /// are about to.
    pub(crate) fn write_out(&self, worker: &mut Worker, staged: Vec<Victim>) -> usize {
        let total = staged.len();
        let changed: Vec<Victim> =
            staged.into_iter().filter(|&v| !self.drop_if_redundant(worker, v)).collect();
        let mut entries = Vec::with_capacity(changed.len());
        if !changed.is_empty() {
            self.alloc_for(&changed, &mut entries);
        }
        let (with_slot, without) = changed.split_at(entries.len());
        for (&victim, &entry) in with_slot.iter().zip(&entries) {
            self.start_writeback(victim, entry);
        }
        for &victim in without {
            self.bring_back(victim);
        }
        self.submit_writes(worker, with_slot, &entries);
        total - without.len()
    }

    /// Slots for victims, adjacent ones for neighbours where an area has room for that. Stops at the
    /// first page for which there is none.
    fn alloc_for(&self, victims: &[Victim], entries: &mut Vec<SwapEntry>) {
        for run in victims.chunk_by(|a, b| b.page.0 == a.page.0 + 1) {
            let singles = run.len() - self.alloc_folios(run.len(), entries);
            if self.alloc_entries(singles, entries) < singles {
                return;
            }
        }
    }

    /// Appends slots for as many of `pages` neighbours as make folios; returns their number.
    fn alloc_folios(&self, pages: usize, entries: &mut Vec<SwapEntry>) -> usize {
        let orders = FOLIO_ORDER_MIN..=u32::from(self.tuning.folio_order_max);
        let mut done = 0;
        while let Some(order) = (pages - done).checked_ilog2().map(|o| o.min(*orders.end()))
            && orders.contains(&order)
        {
            let Some(first) = self.areas.alloc_folio(self.cpus.current(), order as u8) else {
                self.stats.count(Event::thp_swpout_fallback);
                break;
            };
            self.stats.count(Event::thp_swpout);
            let slots = (0..1 << order).map(|n| first.slot().plus(n));
            entries.extend(slots.map(|slot| SwapEntry::new(first.area(), slot)));
            done += 1 << order;
        }
        done
    }

    /// Frees the frame of a page that need not be written.
    fn drop_if_redundant(&self, worker: &mut Worker, victim: Victim) -> bool {
        let Victim { frame, page } = victim;
        let staged = self.frames.staged(frame).expect("just moved to staging");
        let content = self.staging.content(staged);
        if content.iter().all(|&byte| byte == 0) {
            self.stats.count(Event::swpout_zero);
            self.table.replace(page, Pte::Resident(frame), Pte::Empty);
            self.drop_cached(frame, page);
            return true;
        }
        let Some(entry) = self.frames.entry(frame) else { return false };
        if self.swaps.get(entry.area()).is_leaving() || !worker.holds(entry, content) {
            return false;
        }
        self.leave_to_copy(victim, entry);
        true
    }

    /// Frees the frame of a page that is on `entry` as well.
    pub(crate) fn leave_to_copy(&self, victim: Victim, entry: SwapEntry) {
        let Victim { frame, page } = victim;
        self.stats.count(Event::swpout_clean);
        self.set_cache_only(entry, false);
        self.table.replace(page, Pte::Resident(frame), self.swapped(entry));
        self.drop_cached(frame, page);
    }

    fn swapped(&self, entry: SwapEntry) -> Pte {
        Pte::Swapped { entry, shadow: self.workingset.evicted() }
    }

    /// Moves a page's word to its new slot and gives up the old one.
    fn start_writeback(&self, victim: Victim, entry: SwapEntry) {
        let Victim { frame, page } = victim;
        if let Some(old) = self.cache.remove(frame, &self.frames, &self.table, page) {
            self.free_entry(old);
        }
        self.cache.insert_new(entry, frame, &self.frames);
        self.note_page(entry, page);
        self.frames.set(frame, flag::WRITEBACK);
        self.writes_in_flight.fetch_add(1, Relaxed);
        self.table.replace(page, Pte::Resident(frame), self.swapped(entry));
    }

    /// No slot for this page: the program gets it back.
    fn bring_back(&self, victim: Victim) {
        let Victim { frame, page } = victim;
        let staged = self.frames.staged(frame).expect("just moved to staging");
        if self.map_back(page, frame, staged).is_err() {
            self.table.replace(page, Pte::Resident(frame), Pte::Empty);
            self.drop_cached(frame, page);
            return;
        }
        self.frames.set(frame, flag::MAPPED);
        self.release_staged(frame);
        self.put_back(victim, LruList::Active);
    }

    /// Submits one request per run of adjacent slots, then lets go of the pages.
    fn submit_writes(&self, worker: &mut Worker, victims: &[Victim], entries: &[SwapEntry]) {
        let mut rest = victims;
        for run in entries.chunk_by(|a, b| a.precedes(*b)) {
            let (now, later) = rest.split_at(run.len());
            rest = later;
            let staged = |v: &Victim| self.frames.staged(v.frame).expect("under writeback");
            let pages = now.iter().map(|v| self.staging.buffer(staged(v))).collect();
            let (area, slot) = (run[0].area(), run[0].slot());
            let request = IoRequest { op: IoOp::Write, slot, pages, tag: u64::from(area.0) };
            worker.submit(area, request);
        }
        worker.flush();
        for &victim in victims {
            self.put_back(victim, LruList::Inactive);
        }
    }

    /// Ends the writeback of a request's pages.
    pub(crate) fn complete_write(&self, completion: Completion) {
        let Completion { request, failures } = completion;
        let area = overspill_area::AreaNo(request.tag as u8);
        if let Some(failure) = failures.first() {
            self.stats.add(Event::write_errors, failures.len() as u64);
            self.areas.get(area).avoid();
            self.trouble(format!("{}; its pages stay in memory", failure.error));
        }
        self.stats.add(Event::pswpout, (request.pages.len() - failures.len()) as u64);
        for n in 0..request.pages.len() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            self.end_writeback(entry, failures.iter().any(|f| f.index == n));
        }
    }

    fn end_writeback(&self, entry: SwapEntry, failed: bool) {
        let frame = self.cache.lookup(entry).expect("a page under writeback stays cached");
        if failed {
            self.frames.set(frame, flag::DIRTY);
        }
        if !self.frames.end_writeback(frame, 0) {
            // Mapped again while it was written: the mapper left the staging page to us. WRITEBACK
            // keeps the page from being evicted, so it stays mapped until we have let go.
            self.frames.clear(frame, flag::DIRTY);
            self.release_staged(frame);
            let ended = self.frames.end_writeback(frame, flag::MAPPED);
            debug_assert!(ended, "frame {frame} was unmapped under writeback");
        }
        self.writes_in_flight.fetch_sub(1, Relaxed);
        self.lru.rotate(frame, &self.frames, &self.stats);
    }
}
