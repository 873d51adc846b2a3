//! An address space in virtual time.
//!
//! Owns: which pages are present, the content of each, and which CPUs a process runs on.
//! Invariants: a page's content is a stamp with the number of writes; every touch compares it with
//! the last write, so a lost, mixed-up or outdated page is found. Reading into a page and mapping
//! it are one step here, as in Linux: the device charges once for what the engine moves through
//! bounce memory.
//! Not here: faults (`workload`).

use crate::shootdown::Shootdown;
use crate::stamp::Stamp;
use overspill_base::shared::PageArena;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, Mapped, MovingSpace, SpaceError, Unmapped};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

const MISSING: u8 = 0;
const PRESENT: u8 = 1;
const POISONED: u8 = 2;

struct Page {
    seen: AtomicU8,
    holds: AtomicU64,
    /// Writes by the program so far.
    written: AtomicU32,
}

/// The pages of the processes of one engine, one process after another.
pub(crate) struct SimSpace {
    pages: Vec<Page>,
    process_pages: usize,
    /// For each process, the CPUs it runs on.
    cpus: Vec<Vec<usize>>,
    shootdown: Arc<Shootdown>,
}

/// How a touch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    Done,
    Missing,
    Poisoned,
}

impl SimSpace {
    /// Makes processes of `process_pages` pages each, running on these CPUs.
    pub(crate) fn new(
        process_pages: usize,
        cpus: Vec<Vec<usize>>,
        shootdown: Arc<Shootdown>,
    ) -> Self {
        let page = || Page {
            seen: AtomicU8::new(MISSING),
            holds: AtomicU64::new(0),
            written: AtomicU32::new(0),
        };
        let pages = std::iter::repeat_with(page).take(process_pages * cpus.len()).collect();
        Self { pages, process_pages, cpus, shootdown }
    }

    /// Reads or writes a page as a program does.
    ///
    /// # Panics
    /// If the page does not hold what was last written to it: data was lost.
    pub(crate) fn touch(&self, number: PageNo, writes: bool) -> Touch {
        let page = &self.pages[number.index()];
        match page.seen.load(Relaxed) {
            PRESENT => {}
            POISONED => return Touch::Poisoned,
            _ => return Touch::Missing,
        }
        let version = page.written.load(Relaxed);
        let right = if version == 0 { Stamp::ZEROS } else { Stamp::new(number.0, version) };
        let holds = Stamp(page.holds.load(Relaxed));
        assert_eq!(holds, right, "page {number} does not hold what was written last");
        if writes {
            page.written.store(version + 1, Relaxed);
            page.holds.store(Stamp::new(number.0, version + 1).0, Relaxed);
        }
        Touch::Done
    }

    fn fill(&self, number: PageNo, stamp: Stamp) {
        let page = &self.pages[number.index()];
        if page.seen.load(Relaxed) != PRESENT {
            page.seen.store(PRESENT, Relaxed);
            page.holds.store(stamp.0, Relaxed);
        }
    }

    fn take(&self, number: PageNo) -> Result<Stamp, SpaceError> {
        let page = &self.pages[number.index()];
        if page.seen.load(Relaxed) != PRESENT {
            return Err(SpaceError::Missing);
        }
        page.seen.store(MISSING, Relaxed);
        Ok(Stamp(page.holds.load(Relaxed)))
    }
}

impl AddressSpace for SimSpace {
    fn span(&self, page: PageNo) -> usize {
        self.process_pages - page.index() % self.process_pages
    }

    fn zap(&self, first: PageNo, pages: usize) {
        for n in 0..pages {
            let _ = self.take(first.plus(n));
        }
    }

    fn wake(&self, _: PageNo) {}

    fn poison(&self, page: PageNo) {
        self.pages[page.index()].seen.store(POISONED, Relaxed);
    }
}

impl MovingSpace for SimSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        for (n, page) in content.chunks_exact(PAGE_SIZE).enumerate() {
            overspill_vcpu::charge_by(|costs| costs.map_ns);
            self.fill(first.plus(n), Stamp::of(page));
        }
        Mapped::all(content.len() / PAGE_SIZE)
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        for n in 0..pages {
            overspill_vcpu::charge_by(|costs| costs.map_ns + costs.copy_page_ns / 2);
            self.fill(first.plus(n), Stamp::ZEROS);
        }
        Mapped::all(pages)
    }

    fn find(&self, page: PageNo) -> bool {
        self.pages[page.index()].seen.load(Relaxed) == PRESENT
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let pages = destination.len();
        for (n, index) in destination.enumerate() {
            let page = first.plus(n);
            overspill_vcpu::charge_by(|costs| costs.evict_page_ns);
            match self.take(page) {
                // SAFETY: the engine reserved this destination page for this call.
                Ok(stamp) => stamp.put(&mut unsafe { arena.page(index) }),
                Err(error) => return Unmapped { moved: n, stopped: Some(error) },
            }
            self.shootdown.add(&self.cpus[page.index() / self.process_pages]);
        }
        Unmapped { moved: pages, stopped: None }
    }

    fn recycle(&self, _: &PageArena, _: Range<usize>) {}
}
