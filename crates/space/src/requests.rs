//! Implements the engine's [`AddressSpace`] and [`MovingSpace`] on the reserved range.
//!
//! Owns: the translation of the engine's requests into the kernel's calls. A page is the engine's,
//! a power of two from 4 KiB on, and all calls are on whole pages. The kernel works in units of 4
//! KiB and may stop inside a large page, because a part of it is pinned: then what was moved is
//! moved back before any thread can access it. A thread that touches a part meanwhile waits for the
//! page lock.
//! Invariants: after a move that stopped, the place of each page is looked up
//! ([`crate::whereabouts`]). Eviction is by UFFDIO_MOVE, which refuses pages pinned by a device.
//! Where it cannot be used (kernels before 6.12) the page is write-protected, copied and dropped,
//! and an O_DIRECT read into it that began before would be lost: `doctor` reports this. Not here:
//! moving bytes, and calls that stop midway ([`crate::moving`]).

use crate::kernel::Call;
use crate::moving::Hindrance;
use crate::space::ManagedSpace;
use overspill_base::report::Reports;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, Mapped, MovingSpace, Pattern, Unmapped};
use std::ops::Range;

impl AddressSpace for ManagedSpace {
    fn span(&self, page: PageNo) -> usize {
        self.ranges.lock().span(page)
    }

    fn pattern(&self, page: PageNo) -> Pattern {
        self.ranges.lock().pattern(page)
    }

    fn report_to(&self, stats: &Stats, reports: &Arc<Reports>) {
        let _ = self.reports.set((stats.clone(), reports.clone()));
    }

    fn zap(&self, first: PageNo, pages: usize) {
        self.drop_range(self.address_of(first), pages * self.page_bytes());
    }

    fn wake(&self, page: PageNo) {
        let address = self.address_of(page);
        if let Err(errno) = self.source_of(page).wake(address, self.page_bytes()) {
            self.unexpected(Call::Wake.name(), &errno);
        }
    }

    fn poison(&self, page: PageNo) {
        let address = self.address_of(page);
        let mut rounds = 0;
        while let Err(errno) = self.source_of(page).poison(address, self.page_bytes()) {
            if !self.is_worth_waiting(Call::Poison, errno, &mut rounds) {
                // Before 6.6 there is no poison: SIGSEGV is the closest to SIGBUS.
                self.refuse(page);
                break;
            }
        }
        self.wake(page);
    }
}

impl MovingSpace for ManagedSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        let address = self.address_of(first);
        let progress = self.whole_pages(Call::Copy, content.len(), |done, upto| {
            self.source_of(first).copy(address + done, &content[done..upto])
        });
        if progress.present >= self.page_bytes() {
            self.unexpected(Call::Copy.name(), &"a page is there that should not be");
        }
        self.mapped(Call::Copy, progress)
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        let (address, len) = (self.address_of(first), pages * self.page_bytes());
        let progress = self.whole_pages(Call::Zero, len, |done, upto| {
            self.source_of(first).zero(address + done, upto - done)
        });
        self.mapped(Call::Zero, progress)
    }

    fn find(&self, page: PageNo) -> bool {
        let address = self.address_of(page);
        let found = self.whereabouts.find(address, self.page_bytes());
        if found.there == 0 {
            return false;
        }
        if found.there < self.page_bytes() / PAGE_SIZE {
            // If this fails, the thread faults again and retries.
            self.fill_holes(address);
        }
        if found.write_protected > 0 {
            let _ = self.write_protect(page, false);
        }
        self.wake(page);
        true
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let mut moved = 0;
        let can_move = self.source().features().move_pages;
        while moved < destination.len() {
            let mut hindrance = Some(Hindrance::Unlike);
            if can_move {
                let target = self.staged_at(arena, destination.start + moved).addr();
                let source = self.address_of(first.plus(moved));
                let len = (destination.len() - moved) * self.page_bytes();
                let (bytes, stopped) = self.move_out(target, source, len);
                moved += bytes / self.page_bytes();
                hindrance = stopped;
            }
            let stopped = match hindrance {
                None => continue,
                Some(Hindrance::Unlike) => {
                    let target = self.staged_at(arena, destination.start + moved);
                    match self.copy_out(target, first.plus(moved)) {
                        Ok(()) => {
                            moved += 1;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Some(Hindrance::Error(error)) => error,
            };
            return Unmapped { moved, stopped: Some(stopped) };
        }
        Unmapped { moved, stopped: None }
    }

    fn recycle(&self, arena: &PageArena, pages: Range<usize>) {
        let start = self.staged_at(arena, pages.start).addr();
        self.drop_range(start, pages.len() * self.page_bytes());
    }
}
