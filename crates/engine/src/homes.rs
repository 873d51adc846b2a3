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
use crate::lru::LruList;
use crate::readahead::PageRead;
use crate::reclaim::Victim;
use crate::space::{Hidden, Mapped};
use crate::swapin::{Purpose, submit_read};
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo};
use overspill_device::{IoRequest, PageFailure};

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
                let Some(frame) = self.frame_to_spare(page) else { break };
                if self.cache_ahead(page, entry, frame) {
                    let into = self.staging.buffer(frame.index());
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
        let want = (self.watermarks.low + pages + 1).min(self.frames.count() / 2);
        // A bound, because pages that others use again and again count as progress.
        for _ in 0..2 * pages {
            if self.frames.free_count() >= want || !self.reclaim_round(worker, true) {
                return;
            }
        }
    }

    /// Reads the page for which `frame` is locked and cached under `entry`.
    pub(crate) fn read_home(
        &self,
        worker: &mut Worker,
        frame: FrameNo,
        entry: SwapEntry,
        start_ns: u64,
    ) {
        let into = self.staging.buffer(frame.index());
        let read = std::iter::once(PageRead { entry, into });
        submit_read(worker, read, Purpose::Fault { start_ns });
        worker.flush();
    }

    /// As `complete_read`, for pages that are where they will be used.
    pub(crate) fn complete_home_read(
        &self,
        area: AreaNo,
        request: &IoRequest,
        failures: &[PageFailure],
    ) {
        for (n, buffer) in request.pages.iter().enumerate() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            if let Some(failure) = failures.iter().find(|failure| failure.index == n) {
                self.read_failed(entry, &failure.error);
                continue;
            }
            let frame = self.staging.frame_at(buffer);
            let page = self.frames.page(frame).expect("a frame that is read into has a page");
            if self.accept_in(frame, page, entry) {
                self.space.reveal(page, frame);
                self.settle_read(frame, page);
            }
        }
        self.stats.add(Event::pswpin, (request.pages.len() - failures.len()) as u64);
    }

    /// Lets the program at untouched pages from `first` on.
    pub(crate) fn reveal_zeros(&self, first: PageNo, run: &[FrameNo]) -> Mapped {
        for (n, &frame) in run.iter().enumerate() {
            self.staging.clear_home(frame);
            self.space.reveal(first.plus(n), frame);
        }
        Mapped::all(run.len())
    }

    /// True if the frame's page is at home and on its way to a slot.
    pub(crate) fn must_stay_still(&self, frame: FrameNo) -> bool {
        self.staging.has_homes && self.frames.has(frame, flag::WRITEBACK)
    }

    /// As `evict`, for victims that stay where they are.
    pub(crate) fn evict_from_homes(&self, worker: &mut Worker, victims: &[Victim]) -> usize {
        let mut progress = 0;
        let mut changed = std::mem::take(&mut worker.scratch.moved);
        for &victim in victims {
            let hidden = self.space.hide(victim.page);
            match hidden {
                Hidden::Pinned => self.stats.count(Event::evict_pinned),
                // The next round may have it: that is progress too.
                Hidden::Recent => progress += 1,
                Hidden::Clean if self.drop_copied(victim) => {
                    progress += 1;
                    worker.evicted += 1;
                }
                Hidden::Clean | Hidden::Changed => changed.push(victim),
            }
            if matches!(hidden, Hidden::Pinned | Hidden::Recent) {
                self.put_back(victim, LruList::Active);
            }
        }
        changed.sort_unstable_by_key(|victim| victim.page);
        changed.iter().for_each(|victim| self.prepare_write(victim.frame));
        progress + self.write_out(worker, changed)
    }

    /// Frees the frame of a hidden, unchanged page, if a copy is on a slot.
    fn drop_copied(&self, victim: Victim) -> bool {
        let Some(entry) = self.frames.entry(victim.frame) else { return false };
        if self.swaps.get(entry.area()).is_leaving() {
            return false;
        }
        self.frames.clear(victim.frame, flag::MAPPED);
        self.leave_to_copy(victim, entry);
        true
    }

    /// Makes a hidden page look as one that was moved to staging memory.
    fn prepare_write(&self, frame: FrameNo) {
        self.frames.clear(frame, flag::MAPPED);
        self.frames.set_staged(frame, Some(frame.index()));
    }
}
