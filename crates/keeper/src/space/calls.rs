//! What the engine asks of the space of guests.

use super::guest_space::GuestSpace;
use crate::guest::events::Ended;
use overspill_base::report::Reports;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, Mapped, MovingSpace, Unmapped};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::Refusal;
use std::ops::Range;

impl AddressSpace for GuestSpace {
    fn span(&self, page: PageNo) -> usize {
        let span = self.at_page(page, |_, owned, at| owned.map.run_from(at));
        span.ok().flatten().map_or(0, |run| run.pages as usize)
    }

    fn report_to(&self, _: &Stats, reports: &Arc<Reports>) {
        let _ = self.reports.set(reports.clone());
    }

    /// The guest has dropped them itself.
    fn zap(&self, _: PageNo, _: usize) {}

    fn wake(&self, page: PageNo) {
        let _ = self.at_page(page, |guest, _, at| guest.source.wake(&at.run(1)));
    }

    fn poison(&self, page: PageNo) {
        let _ = self.at_page(page, |guest, mut owned, at| {
            for _ in 0..100 {
                match guest.source.poison(at) {
                    Err(Refusal::Changing) => guest.catch_up(&mut owned),
                    // A page is there, or nobody waits any more.
                    Ok(()) | Err(Refusal::Present | Refusal::NoMapping | Refusal::Gone) => {
                        return guest.source.wake(&at.run(1));
                    }
                    Err(Refusal::NoMemory | Refusal::Unexpected(_)) => break,
                }
            }
            self.report("a lost page", format!("{} is ended: it has lost a page", guest.name()));
            guest.kill();
        });
    }
}

impl MovingSpace for GuestSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        self.fill(first, content.len() / PAGE_SIZE, Some(content))
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        self.fill(first, pages, None)
    }

    /// A page that the guest has dropped, or whose number it gave up, is not missing: who waits for
    /// it asks again, and the engine is about to be told.
    fn find(&self, page: PageNo) -> bool {
        let found = self.at_page(page, |guest, mut owned, at| {
            let entry = guest.handles().map(|handles| guest.entry(handles, &owned, at));
            let is_there = match entry.unwrap_or(Ok(Entry::Present)) {
                Ok(Entry::Present | Entry::Guarded) | Err(Ended) => true,
                // It, and what is there now, may have moved.
                Ok(Entry::Nothing | Entry::Marked) if guest.is_changing(&at.run(1)) => true,
                Ok(Entry::Nothing) => guest.drop_gone(&mut owned, &at.run(1)),
                Ok(Entry::Marked) => false,
            };
            if is_there {
                guest.source.wake(&at.run(1));
            }
            is_there
        });
        found.unwrap_or(true)
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let mut ends = Vec::with_capacity(1);
        let run = first..first.plus(destination.len());
        self.unmap_runs(&[run], arena, destination, &mut ends);
        ends[0]
    }

    fn unmap_runs(
        &self,
        runs: &[Range<PageNo>],
        arena: &PageArena,
        destination: Range<usize>,
        ends: &mut Vec<Unmapped>,
    ) -> usize {
        self.move_all(runs, (arena, destination.start), ends)
    }

    fn copies_out(&self) -> bool {
        true
    }

    fn recycle(&self, arena: &PageArena, pages: Range<usize>) {
        arena.drop_pages(pages);
    }
}
