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
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::PAGE_SIZE;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_device::{Completion, IoOp, IoRequest};

/// Smaller runs take single slots: 16 pages, the 64 KiB of mTHP.
const FOLIO_ORDER_MIN: u32 = 4;

/// A locked page in staging memory and the slot it is to be written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageWrite {
    victim: Victim,
    entry: SwapEntry,
}

impl Engine {
    /// Drops or writes pages that are in staging memory, locked. Returns how many left memory or
    /// are about to.
    pub(crate) fn write_out(&self, worker: &mut Worker, mut staged: Vec<Victim>) -> usize {
        let total = staged.len();
        staged.retain(|&victim| !self.drop_if_redundant(worker, victim));
        worker.evicted += total - staged.len();
        let mut writes = std::mem::take(&mut worker.scratch.writes);
        let mut fresh = std::mem::take(&mut worker.scratch.fresh);
        self.sort_by_slots(&staged, &mut writes, &mut fresh);
        let slots = if worker.is_faulters() { 0 } else { self.add_fresh(&fresh, &mut writes) };
        writes.iter().for_each(|&write| self.start_writeback(write));
        let without = &fresh[slots..];
        without.iter().for_each(|&victim| self.bring_back(victim));
        let left = total - without.len();
        self.submit_writes(worker, &writes);
        staged.clear();
        writes.clear();
        fresh.clear();
        worker.scratch.moved = staged;
        worker.scratch.writes = writes;
        worker.scratch.fresh = fresh;
        left
    }

    /// Decides which pages go over their old copies, and which need fresh slots. What was laid out in
    /// order stays so; scattered pages are rather collected in one place, where a device has places.
    fn sort_by_slots(
        &self,
        changed: &[Victim],
        writes: &mut Vec<PageWrite>,
        fresh: &mut Vec<Victim>,
    ) {
        let (mut run, mut before) = (writes.len(), None::<SwapEntry>);
        for &victim in changed {
            let own = self.own_slot(victim);
            if !before.zip(own).is_some_and(|(before, own)| before.precedes(own)) {
                self.end_run(run, writes, fresh);
                run = writes.len();
            }
            match own {
                Some(entry) => writes.push(PageWrite { victim, entry }),
                None => fresh.push(victim),
            }
            before = own;
        }
        self.end_run(run, writes, fresh);
    }

    /// Decides about pages in order, the writes from `run` on: those that may not be written over get
    /// fresh slots.
    fn end_run(&self, run: usize, writes: &mut Vec<PageWrite>, fresh: &mut Vec<Victim>) {
        let pages = writes.len() - run;
        if pages > 0 && !self.may_rewrite(writes[run].entry.area(), pages) {
            fresh.extend(writes.drain(run..).map(|write| write.victim));
        }
    }

    /// Adds writes of pages to fresh slots; returns how many of them got one.
    fn add_fresh(&self, fresh: &[Victim], writes: &mut Vec<PageWrite>) -> usize {
        let mut entries = Vec::with_capacity(fresh.len());
        if !fresh.is_empty() {
            self.alloc_for(fresh, &mut entries);
        }
        let with_slot = fresh.iter().zip(&entries);
        writes.extend(with_slot.map(|(&victim, &entry)| PageWrite { victim, entry }));
        entries.len()
    }

    /// The slot that has an older copy of the page and nobody else's.
    pub(crate) fn own_slot(&self, victim: Victim) -> Option<SwapEntry> {
        let entry = self.frames.entry(victim.frame)?;
        let own = self.areas.get(entry.area()).slot_map().holders(entry.slot()) == Some(1);
        own.then_some(entry)
    }

    fn may_rewrite(&self, area: AreaNo, pages: usize) -> bool {
        let state = self.swaps.get(area);
        !state.is_leaving()
            && self.areas.get(area).is_writable()
            && (state.synchronous
                || pages * self.staging.page_bytes >= PAGE_SIZE << FOLIO_ORDER_MIN)
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
        self.stats.count(Event::swpout_clean);
        self.stay_on(victim, entry);
    }

    /// Makes a locked, resident page that is not in sight one that is on `entry` only.
    pub(crate) fn stay_on(&self, Victim { frame, page }: Victim, entry: SwapEntry) {
        self.set_cache_only(entry, false);
        self.table.replace(page, Pte::Resident(frame), self.swapped(entry));
        self.drop_cached(frame, page);
    }

    fn swapped(&self, entry: SwapEntry) -> Pte {
        Pte::Swapped { entry, shadow: self.workingset.evicted() }
    }

    /// Moves a page's word to the slot it is written to, and gives up another it had.
    fn start_writeback(&self, PageWrite { victim, entry }: PageWrite) {
        let Victim { frame, page } = victim;
        if self.frames.entry(frame) == Some(entry) {
            self.set_cache_only(entry, false);
        } else {
            self.give_up_copy(victim);
            self.cache.insert_new(entry, frame, &self.frames);
            self.note_page(entry, page);
        }
        self.frames.set(frame, flag::WRITEBACK);
        self.writes_in_flight.fetch_add(1, Relaxed);
        self.table.replace(page, Pte::Resident(frame), self.swapped(entry));
    }

    fn give_up_copy(&self, Victim { frame, page }: Victim) {
        let old = self.cache.remove(frame, &self.frames, &self.table, page);
        old.into_iter().for_each(|entry| self.free_entry(entry));
    }

    /// No slot for this page: the program gets it back. Its content is in staging memory only, so there is
    /// no other answer.
    fn bring_back(&self, victim: Victim) {
        let Victim { frame, page } = victim;
        let staged = self.frames.staged(frame).expect("just moved to staging");
        if self.staging.has_homes {
            // Nobody would know any more that the copy is old.
            self.give_up_copy(victim);
        }
        if let Err(why) = self.map_back_in_the_end(page, frame, staged) {
            return self.lose(victim, why);
        }
        self.frames.set(frame, flag::MAPPED);
        self.release_staged(frame);
        self.put_back(victim, LruList::Active);
    }

    /// Submits one request per run of adjacent slots and pages, then lets go of the pages.
    fn submit_writes(&self, worker: &mut Worker, writes: &[PageWrite]) {
        let staged = |write: &PageWrite| {
            self.frames.staged(write.victim.frame).expect("a page under writeback is staged")
        };
        let adjacent =
            |a: &PageWrite, b: &PageWrite| a.entry.precedes(b.entry) && staged(a) + 1 == staged(b);
        for run in writes.chunk_by(adjacent) {
            let mut pages = worker.scratch.take_pages();
            pages.extend(run.iter().map(|write| self.staging.buffer(staged(write))));
            let (area, slot) = (run[0].entry.area(), run[0].entry.slot());
            let request = IoRequest { op: IoOp::Write, slot, pages, tag: u64::from(area.0) };
            worker.submit(area, request);
            if worker.is_faulters() {
                worker.complete(self);
            }
        }
        worker.flush();
        if self.tuning.frees_at_once {
            worker.complete(self);
        }
        worker.evicted += writes.iter().filter(|write| self.end_eviction(write.victim)).count();
    }

    /// Frees the frame of a page whose write is over, and says so. Any other waits for that on the
    /// inactive list.
    fn end_eviction(&self, victim: Victim) -> bool {
        let Victim { frame, page } = victim;
        let over =
            self.tuning.frees_at_once && !self.frames.has(frame, flag::WRITEBACK | flag::DIRTY);
        if over {
            self.drop_cached(frame, page);
        } else {
            self.put_back(victim, LruList::Inactive);
        }
        over
    }

    /// Ends the writeback of a request's pages.
    pub(crate) fn complete_write(&self, worker: &mut Worker, completion: Completion) {
        let Completion { request, failures } = completion;
        let area = AreaNo(request.tag as u8);
        if let Some(failure) = failures.first() {
            self.stats.add(Event::write_errors, failures.len() as u64);
            self.areas.get(area).avoid();
            let line = format!("{}; its pages stay in memory", failure.error);
            self.trouble("a write failed", area, line);
        }
        self.stats.add(Event::pswpout, (request.pages.len() - failures.len()) as u64);
        for n in 0..request.pages.len() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            self.end_writeback(entry, failures.iter().any(|f| f.index == n));
        }
        worker.scratch.keep_pages(request.pages);
    }

    fn end_writeback(&self, entry: SwapEntry, failed: bool) {
        let frame = self.cache.lookup(entry).expect("a page under writeback stays cached");
        if failed {
            self.frames.set(frame, flag::DIRTY);
        }
        let rotates = self.frames.end_writeback(frame, 0).unwrap_or_else(|| {
            // Mapped again while it was written: the mapper left the staging page to us. WRITEBACK
            // keeps the page from being evicted, so it stays mapped until we have let go.
            self.frames.clear(frame, flag::DIRTY);
            self.release_staged(frame);
            let ended = self.frames.end_writeback(frame, flag::MAPPED);
            ended.expect("a page is not unmapped under writeback")
        });
        self.writes_in_flight.fetch_sub(1, Relaxed);
        if rotates {
            self.lru.rotate(frame, &self.frames, &self.stats);
        }
    }
}
