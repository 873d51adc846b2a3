//! Frames with homes: memory that its owner reaches by asking, not by touching.
//!
//! Where every access to a page goes through its owner (a pool), no page has to move. Each frame has a
//! home, a place in one arena, and its page stays there for as long as it has the frame: reads land in
//! the home, writes leave from it, and [`AddressSpace::reveal`] and [`AddressSpace::hide`] take the
//! place of mapping and unmapping. All else is the same engine.
//!
//! Owns: what differs for such frames in reading, prefetching and evicting.
//! Invariants: a home is written by one of three, and they exclude each other: the device, while the
//! frame is locked for a read; the owner's users, from `reveal` to `hide`; and nobody, while its page
//! is written to the device. So a page under writeback is not revealed before its write is over, and
//! no request ever sees a page change. A page that is clean and has a copy on a slot is that copy: the
//! owner knows of every change, so nothing is compared, and the copy of a page found changed is given
//! up at once.
//! Not here: who uses which page (the space).
//! Rejected: homes by page, which would be all of the address space; copying from a buffer, 1 µs a
//! page where a whole miss takes three.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::space::{Hidden, Mapped};
use crate::transfer::{PageRead, Purpose};
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo};

impl Engine {
    /// Where the home of `frame` begins. Its bytes are the caller's to use between
    /// [`reveal`](crate::AddressSpace::reveal) and [`hide`](crate::AddressSpace::hide).
    #[inline]
    pub fn home(&self, frame: FrameNo) -> *mut u8 {
        debug_assert!(self.staging.has_homes);
        self.staging.address(frame.index())
    }

    /// Starts reading those of `pages` that are swapped out, all at once, and does not wait for them.
    /// Stops where frames run short. Returns how many pages it has dealt with.
    pub fn prefetch(&self, worker: &mut Worker, pages: impl Iterator<Item = PageNo>) -> usize {
        let mut reads = Vec::new();
        let mut seen = 0;
        for page in pages {
            if let Pte::Swapped { entry, .. } = self.table.load(page)
                && self.cache.lookup(entry).is_none()
            {
                let Some(locked) = self.frames.alloc_to_spare(page) else { break };
                let into = self.staging.buffer(locked.frame().index());
                if self.cache_ahead(locked, entry) {
                    reads.push(PageRead { entry, into });
                }
            }
            seen += 1;
        }
        self.stats.add(Event::swap_ra, reads.len() as u64);
        reads.sort_unstable_by_key(|read| read.entry);
        self.submit_reads(worker, reads, |_| Purpose::Map);
        seen
    }

    /// Reclaims until so many pages can be prefetched, or half of memory if that is less, or nothing
    /// more is to be had. Blocks on its own writes only.
    pub fn make_room(&self, worker: &mut Worker, pages: usize) {
        let want = (self.frames.watermarks().low + pages + 1).min(self.frames.count() / 2);
        // A bound, because pages that others use again and again count as progress.
        for _ in 0..2 * pages {
            if self.frames.free_count() >= want || !self.reclaim_round(worker, true) {
                return;
            }
        }
    }

    /// Reads the page that is cached under `entry`, into its home.
    pub(crate) fn read_home(
        &self,
        worker: &mut Worker,
        locked: LockedPage,
        entry: SwapEntry,
        start_ns: u64,
    ) {
        let into = self.staging.buffer(locked.frame().index());
        self.frames.lend_to_io(locked);
        let read = std::iter::once(PageRead { entry, into });
        worker.submit_read(read, Purpose::Fault { start_ns });
        worker.flush();
    }

    /// Lets the program at untouched pages.
    pub(crate) fn reveal_zeros(&self, run: &[LockedPage]) -> Mapped {
        for locked in run {
            self.staging.clear_home(locked);
            self.space.reveal(locked.page(), locked.frame());
        }
        Mapped::all(run.len())
    }

    /// True if the frame's page is at home and on its way to a slot.
    pub(crate) fn must_stay_still(&self, frame: FrameNo) -> bool {
        self.staging.has_homes && self.frames.has(frame, flag::WRITEBACK)
    }

    /// As `evict`, for victims that stay where they are.
    pub(crate) fn evict_from_homes(
        &self,
        worker: &mut Worker,
        victims: &mut Vec<LockedPage>,
    ) -> usize {
        let mut progress = 0;
        let mut changed = std::mem::take(&mut worker.scratch.moved);
        for victim in victims.drain(..) {
            match self.space.hide(victim.page()) {
                Hidden::Pinned => {
                    self.stats.count(Event::evict_pinned);
                    self.put_back(victim, LruList::Active);
                }
                // The next round may have it: that is progress too.
                Hidden::Recent => {
                    progress += 1;
                    self.put_back(victim, LruList::Active);
                }
                Hidden::Clean => match self.drop_copied(victim) {
                    None => {
                        progress += 1;
                        worker.evicted += 1;
                    }
                    Some(victim) => changed.push(victim),
                },
                Hidden::Changed => changed.push(victim),
            }
        }
        changed.sort_unstable_by_key(LockedPage::page);
        changed.iter().for_each(|victim| self.prepare_write(victim.frame()));
        progress + self.write_out(worker, changed)
    }

    /// Frees the frame of a hidden, unchanged page if a copy is on a slot; returns any other.
    fn drop_copied(&self, victim: LockedPage) -> Option<LockedPage> {
        let Some(entry) = self.frames.entry(victim.frame()) else { return Some(victim) };
        if self.swaps.get(entry.area()).is_leaving() {
            return Some(victim);
        }
        self.frames.clear(victim.frame(), flag::MAPPED);
        self.leave_to_copy(victim, entry);
        None
    }

    /// Makes a hidden page look as one that was moved to staging memory.
    fn prepare_write(&self, frame: FrameNo) {
        self.frames.clear(frame, flag::MAPPED);
        self.frames.set_staged(frame, Some(frame.index()));
    }
}
