//! Writeback: writing pages from staging memory to slots.
//!
//! Owns: a page between its unmapping and the completion of its write.
//! Invariants: a page that is all zero or unchanged is dropped without a write; any other keeps its
//! frame until a write of it has completed without error. A failed write keeps the page in memory,
//! dirty, and its area is not written to again. Whether a page has changed is decided by the slot's
//! checksum, or by its tag if it is encrypted.
//! Rejected: mapping pages write-protected to catch the first write. It costs a second fault for
//! every page that is read and then written; to hash or encrypt a page costs a fraction of a fault.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::store::Store;
use crate::transfer::PageWrite;
use crate::types::flag;
use crate::worker::{Worker, WorkerKind};
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::PAGE_SIZE;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_device::{IoOp, IoRequest};

/// Smallest folio: 16 pages, the 64 KiB of mTHP. Smaller runs take single slots.
const FOLIO_ORDER_MIN: u32 = 4;

impl Engine {
    /// Drops or writes pages that are in staging memory. Returns how many left memory or are about
    /// to.
    pub(crate) fn write_out(&self, worker: &mut Worker, mut staged: Vec<LockedPage>) -> usize {
        let total = staged.len();
        let mut changed = std::mem::take(&mut worker.scratch.changed);
        let dropped = staged.drain(..).map(|page| self.drop_if_redundant(worker, page));
        changed.extend(dropped.flatten());
        worker.scratch.moved = staged;
        worker.evicted += total - changed.len();
        let mut writes = std::mem::take(&mut worker.scratch.writes);
        let mut fresh = std::mem::take(&mut worker.scratch.fresh);
        self.sort_by_slots(&mut changed, &mut writes, &mut fresh);
        match worker.kind() {
            WorkerKind::Pager => self.add_fresh(&mut fresh, &mut writes),
            // Allocating slots allocates memory.
            WorkerKind::InPlace => {}
        }
        let left = total - fresh.len();
        for PageWrite { locked, entry } in &writes {
            self.start_writeback(locked, *entry, self.workingset.evicted());
        }
        fresh.drain(..).for_each(|page| self.map_again(page));
        self.submit_writes(worker, &mut writes);
        worker.scratch.changed = changed;
        worker.scratch.writes = writes;
        worker.scratch.fresh = fresh;
        left
    }

    /// Decides which pages overwrite their old copies and which need fresh slots. Runs in order
    /// keep their slots; scattered pages are collected in fresh ones on devices where seeks cost.
    fn sort_by_slots(
        &self,
        changed: &mut Vec<LockedPage>,
        writes: &mut Vec<PageWrite>,
        fresh: &mut Vec<LockedPage>,
    ) {
        let (mut run, mut before) = (writes.len(), None::<SwapEntry>);
        for locked in changed.drain(..) {
            let own = self.own_slot(&locked);
            if !before.zip(own).is_some_and(|(before, own)| before.precedes(own)) {
                self.end_run(run, writes, fresh);
                run = writes.len();
            }
            match own {
                Some(entry) => writes.push(PageWrite { locked, entry }),
                None => fresh.push(locked),
            }
            before = own;
        }
        self.end_run(run, writes, fresh);
    }

    /// Ends a run of pages in order, the writes from `run` on: moves it to `fresh` if it may not
    /// overwrite its slots.
    fn end_run(&self, run: usize, writes: &mut Vec<PageWrite>, fresh: &mut Vec<LockedPage>) {
        let pages = writes.len() - run;
        if pages > 0 && !self.may_rewrite(writes[run].entry.area(), pages) {
            fresh.extend(writes.drain(run..).map(|write| write.locked));
        }
    }

    /// Turns pages into writes to fresh slots, as far as there are slots.
    fn add_fresh(&self, fresh: &mut Vec<LockedPage>, writes: &mut Vec<PageWrite>) {
        let mut entries = Vec::with_capacity(fresh.len());
        if !fresh.is_empty() {
            self.alloc_for(fresh, &mut entries);
            self.note_slots_taken();
        }
        let with_slot = fresh.drain(..entries.len()).zip(&entries);
        writes.extend(with_slot.map(|(locked, &entry)| PageWrite { locked, entry }));
    }

    /// Returns the slot with an older copy of the page, if no other process holds it.
    pub(crate) fn own_slot(&self, locked: &LockedPage) -> Option<SwapEntry> {
        let entry = self.frames.entry(locked.frame())?;
        let own = self.areas.get(entry.area()).slot_map().holders(entry.slot()) == Some(1);
        own.then_some(entry)
    }

    fn may_rewrite(&self, area: AreaNo, pages: usize) -> bool {
        let state = self.swaps.get(area);
        !state.is_leaving()
            && self.areas.get(area).is_writable()
            && (state.synchronous || pages * self.memory.page_bytes >= PAGE_SIZE << FOLIO_ORDER_MIN)
    }

    /// Allocates slots for pages, adjacent ones for neighbours if an area has room. Stops when
    /// there are no more slots.
    fn alloc_for(&self, pages: &[LockedPage], entries: &mut Vec<SwapEntry>) {
        for run in pages.chunk_by(|a, b| b.page() == a.page().plus(1)) {
            let singles = run.len() - self.alloc_folios(run.len(), entries);
            if self.alloc_entries(singles, entries) < singles {
                return;
            }
        }
    }

    /// Appends slots for as many of `pages` neighbours as fit folios; returns their number.
    fn alloc_folios(&self, pages: usize, entries: &mut Vec<SwapEntry>) -> usize {
        let orders = FOLIO_ORDER_MIN..=u32::from(self.tuning.folio_order_max());
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

    /// Frees the frame of a page that need not be written; returns any other.
    fn drop_if_redundant(&self, worker: &mut Worker, locked: LockedPage) -> Option<LockedPage> {
        let staged = self.frames.staged(locked.frame()).expect("just moved to staging");
        let content = self.memory.content(staged);
        if content.iter().all(|&byte| byte == 0) {
            self.stats.count(Event::swpout_zero);
            self.went_out(locked.page());
            self.forget(locked);
            return None;
        }
        let Some(entry) = self.frames.entry(locked.frame()) else { return Some(locked) };
        if self.swaps.get(entry.area()).is_leaving() || !worker.holds(entry, content) {
            return Some(locked);
        }
        self.leave_to_copy(locked, entry);
        None
    }

    /// Frees the frame of a page that is also on `entry`.
    pub(crate) fn leave_to_copy(&self, locked: LockedPage, entry: SwapEntry) {
        self.stats.count(Event::swpout_clean);
        self.stay_on(locked, entry);
    }

    /// Maps a page again for which there is no slot; its content is in staging memory only.
    fn map_again(&self, locked: LockedPage) {
        let staged = self.frames.staged(locked.frame()).expect("just moved to staging");
        match &self.store {
            Store::Moving(_) => {}
            // It would be published as unchanged, but its copy is old.
            Store::Pool(_) => self.uncache(&locked),
        }
        if let Err(why) = self.show_in_the_end(&locked, staged) {
            return self.lose(locked, why);
        }
        self.frames.set(locked.frame(), flag::MAPPED);
        self.release_staged(locked.frame());
        self.put_back(locked, LruList::Active);
    }

    /// Submits one request per run of adjacent slots and pages, several if a device takes fewer at
    /// a time, then releases the pages.
    pub(crate) fn submit_writes(&self, worker: &mut Worker, writes: &mut Vec<PageWrite>) {
        let staged = |write: &PageWrite| {
            self.frames.staged(write.locked.frame()).expect("a page under writeback is staged")
        };
        let adjacent =
            |a: &PageWrite, b: &PageWrite| a.entry.precedes(b.entry) && staged(a) + 1 == staged(b);
        let most = |run: &[PageWrite]| self.swaps.get(run[0].entry.area()).write_pages_max;
        for run in writes.chunk_by(adjacent).flat_map(|run| run.chunks(most(run))) {
            let mut pages = worker.scratch.take_pages();
            pages.extend(run.iter().map(|write| self.memory.buffer(staged(write))));
            let (area, slot) = (run[0].entry.area(), run[0].entry.slot());
            let request = IoRequest { op: IoOp::Write, slot, pages, tag: u64::from(area.0) };
            worker.submit(area, request);
            worker.complete_in_place(self);
        }
        worker.flush();
        if self.tuning.frees_at_once {
            worker.complete(self);
        }
        for write in writes.drain(..) {
            worker.evicted += usize::from(self.end_eviction(write.locked));
        }
    }

    /// Frees the frame of a page whose write has completed; true if so. Any other waits for that on
    /// the inactive list.
    fn end_eviction(&self, locked: LockedPage) -> bool {
        let pending = self.frames.has(locked.frame(), flag::WRITEBACK | flag::DIRTY);
        if pending || !self.tuning.frees_at_once {
            self.put_back(locked, LruList::Inactive);
            return false;
        }
        self.drop_cached(locked);
        true
    }

    /// Returns the number of pages whose writes are in flight.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight.load(Relaxed)
    }
}
