//! Memory that the engine did not bring, children that have their parents' pages, and areas that
//! go.

use super::{Episode, PAGES};
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, ShareError};

impl Episode<'_> {
    /// Fills pages without the engine.
    pub(super) fn fill(&mut self, first: usize, pages: usize, value: u8) {
        self.discard(first, pages);
        for page in first..first + pages {
            self.rig.space.fill(PageNo(page as u32), &[value; PAGE_SIZE]);
            self.model[page] = Some(value);
            self.strange.push(page);
        }
    }

    /// Drops pages that the engine does not know: to drop them is the kernel's work alone.
    pub(super) fn forget_strangers(&mut self, first: usize, pages: usize) {
        let space = &self.rig.space;
        self.strange.retain(|page| {
            let goes = (first..first + pages).contains(page);
            if goes {
                space.zap(PageNo(*page as u32), 1);
            }
            !goes
        });
    }

    /// Has the engine adopt what is in memory of a range, known to it or not; false if memory ran
    /// out.
    pub(super) fn adopt(&mut self, first: usize, pages: usize) -> bool {
        self.finish();
        let worker = &mut self.workers[super::CPU.get()];
        let in_memory = |asked| self.rig.space.present(asked);
        let adopted = self.rig.engine.adopt(worker, PageNo(first as u32), pages, in_memory);
        self.strange.retain(|page| !(first..first + adopted).contains(page));
        adopted == pages
    }

    /// False if memory ran out.
    pub(super) fn fork(&mut self, from: usize, to: usize, pages: usize) -> bool {
        let pages = pages.min(PAGES - from.max(to));
        if from.abs_diff(to) < pages {
            return true;
        }
        self.discard(to, pages);
        // What was lost is lost once.
        for page in from..from + pages {
            self.look(page, None);
        }
        let pairs = || (0..pages as u32).map(|n| (PageNo(from as u32 + n), PageNo(to as u32 + n)));
        pairs().for_each(|(from, to)| self.rig.space.fork(from, to));
        let worker = &mut self.workers[super::CPU.get()];
        let ends = (PageNo(from as u32), PageNo(to as u32));
        let present: Vec<_> =
            pairs().map(|(_, to)| to).filter(|&to| self.rig.space.is_present(to)).collect();
        let shared = self.rig.engine.share(worker, ends, pages, |page| present.contains(&page));
        self.strange.extend(present.iter().map(|page| page.index()));
        self.model.copy_within(from..from + pages, to);
        assert!(matches!(shared, Ok(()) | Err(ShareError::NoFrame)), "{shared:?}");
        shared.is_ok()
    }

    /// Swaps an area off, but not the last one.
    pub(super) fn swapoff(&mut self, nth: usize) {
        self.finish();
        let swaps = self.rig.engine.swaps();
        let may_go = |area: &usize| *area + 1 < self.setup.devices.len();
        let Some(swap) = swaps.get(nth).filter(|swap| may_go(&usize::from(swap.area.0))) else {
            return;
        };
        let worker = &mut self.workers[super::CPU.get()];
        let left = self.rig.engine.swapoff(worker, swap.area).is_ok();
        self.finish();
        assert_eq!(left, self.rig.engine.has_left(swap.area));
    }
}
