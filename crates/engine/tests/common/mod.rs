//! A program's address space in ordinary memory, and small engines over it.

#[cfg(not(loom))]
pub(crate) mod chaos;
#[cfg(not(loom))]
pub(crate) mod episodes;
pub(crate) mod guards;
#[cfg(not(loom))]
pub(crate) mod resident;
#[cfg(not(loom))]
pub(crate) mod swapped_out;

use overspill_area::{AreaConfig, AreaNo, AreaTuning, Preset, SlotTable, SwapArea};
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicU64, assert_no_lock_held};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{SwapDevice, SwapKind};
use overspill_engine::{
    AddressSpace, Engine, EngineParts, MovingSpace, PageTable, Space, SpaceError, Swap, Tuning,
};
use overspill_engine::{FaultOutcome, Mapped, Pattern, SwaponError, Unmapped, Worker};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};

/// Small, so that batches, chunks and windows are often full.
pub(crate) const TUNING: Tuning = Tuning {
    reclaim_batch_pages: 8,
    lru_batch_pages: 2,
    readahead_max_pages: 8,
    fault_around_pages: 4,
    swap_cache_trunk_shift: 4,
    rotate_batch_pages: 2,
    ..Tuning::of(Preset::Modern)
};
const AREA: AreaConfig = AreaConfig {
    tuning: AreaTuning {
        cluster_slots: 4,
        slot_batch: 2,
        free_batch: 2,
        ..AreaTuning::of(Preset::Modern)
    },
    cpus: 2,
    rotational: false,
    discard: false,
};

/// The state of a page as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Missing,
    Present(Box<[u8]>),
    Poisoned,
}

/// Pages with a lock each, so that moving one is atomic with respect to touching it.
pub(crate) struct SimSpace {
    pages: Vec<Mutex<Seen>>,
    pinned: Mutex<Option<PageNo>>,
    /// How often it is busy, and the generator that decides.
    busy: Mutex<(u32, fastrand::Rng)>,
    pattern: Mutex<Pattern>,
    /// Ranges whose memory is being copied for a child: nothing goes in or out.
    frozen: RwLock<Vec<Range<PageNo>>>,
    /// Calls that moved pages out.
    pub(crate) unmaps: AtomicUsize,
    /// Most pages of a run that one call moves.
    pub(crate) most_at_once: AtomicUsize,
    /// Pages of each program: what is mapped for one ends with it.
    pub(crate) guest_pages: AtomicUsize,
}

impl SimSpace {
    pub(crate) fn new(pages: usize) -> Arc<Self> {
        let pages: Vec<_> = (0..pages).map(|_| Mutex::new(Seen::Missing)).collect();
        let pattern = Mutex::new(Pattern::Normal);
        let busy = Mutex::new((0, fastrand::Rng::with_seed(0)));
        let (pinned, frozen) = (Mutex::new(None), RwLock::default());
        let (unmaps, most_at_once) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let guest_pages = AtomicUsize::new(pages.len());
        Arc::new(Self { pages, pinned, busy, pattern, frozen, unmaps, most_at_once, guest_pages })
    }

    /// Makes it busy from now on, `per_mille` of the time, by `seed`.
    pub(crate) fn set_busy(&self, per_mille: u32, seed: u64) {
        *self.busy.lock().unwrap() = (per_mille, fastrand::Rng::with_seed(seed));
    }

    fn is_busy(&self) -> bool {
        let (per_mille, random) = &mut *self.busy.lock().unwrap();
        random.u32(0..1000) < *per_mille
    }

    /// Pins `page` from now on, instead of the previous one.
    pub(crate) fn pin(&self, page: Option<PageNo>) {
        *self.pinned.lock().unwrap() = page;
    }

    /// Sets the pattern declared for all pages.
    pub(crate) fn set_pattern(&self, pattern: Pattern) {
        *self.pattern.lock().unwrap() = pattern;
    }

    /// True if the program has the page in memory.
    pub(crate) fn is_present(&self, page: PageNo) -> bool {
        matches!(*self.pages[page.index()].lock().unwrap(), Seen::Present(_))
    }

    /// Which pages of a range the program has in memory, a bit for each.
    pub(crate) fn present(&self, pages: Range<PageNo>) -> u64 {
        let bits = (pages.start.0..pages.end.0).enumerate();
        bits.map(|(n, page)| u64::from(self.is_present(PageNo(page))) << n).sum()
    }

    /// Calls `act` while nothing of a range goes in or out.
    pub(crate) fn while_frozen<R>(&self, range: &Range<PageNo>, act: impl FnOnce() -> R) -> R {
        self.frozen.write().unwrap().push(range.clone());
        let result = act();
        self.frozen.write().unwrap().retain(|frozen| frozen != range);
        result
    }

    /// Calls `act` on a page, unless its range is frozen: then the caller has to come again.
    fn unless_frozen<R>(
        &self,
        page: PageNo,
        act: impl FnOnce() -> Result<R, SpaceError>,
    ) -> Result<R, SpaceError> {
        let frozen = self.frozen.read().unwrap();
        if frozen.iter().any(|range| range.contains(&page)) {
            return Err(SpaceError::Busy);
        }
        act()
    }

    /// Puts `content` where nothing is, unless it is busy.
    fn bring(&self, page: PageNo, content: &[u8]) -> Result<(), SpaceError> {
        if self.is_busy() {
            return Err(SpaceError::Busy);
        }
        self.unless_frozen(page, || {
            self.fill(page, content);
            Ok(())
        })
    }

    /// Gives a child, at `to`, what its parent, at `from`, has in memory.
    pub(crate) fn fork(&self, from: PageNo, to: PageNo) {
        let seen = self.pages[from.index()].lock().unwrap().clone();
        if let Seen::Present(content) = seen {
            self.fill(to, &content);
        }
    }

    /// Puts `content` where nothing is.
    pub(crate) fn fill(&self, page: PageNo, content: &[u8]) {
        let mut seen = self.pages[page.index()].lock().unwrap();
        if *seen == Seen::Missing {
            *seen = Seen::Present(content.into());
        }
    }

    fn take(&self, page: PageNo) -> Result<Box<[u8]>, SpaceError> {
        if *self.pinned.lock().unwrap() == Some(page) {
            return Err(SpaceError::Pinned);
        }
        if self.is_busy() {
            return Err(SpaceError::Busy);
        }
        let mut seen = self.pages[page.index()].lock().unwrap();
        match std::mem::replace(&mut *seen, Seen::Missing) {
            Seen::Present(content) => Ok(content),
            other => {
                *seen = other;
                Err(SpaceError::Missing)
            }
        }
    }
}

impl AddressSpace for SimSpace {
    fn span(&self, page: PageNo) -> usize {
        let guest = self.guest_pages.load(Relaxed);
        guest - page.index() % guest
    }

    fn pattern(&self, _: PageNo) -> Pattern {
        *self.pattern.lock().unwrap()
    }

    fn zap(&self, first: PageNo, pages: usize) {
        assert_no_lock_held("a call of the address space");
        for n in 0..pages {
            *self.pages[first.plus(n).index()].lock().unwrap() = Seen::Missing;
        }
    }

    fn wake(&self, _: PageNo) {
        assert_no_lock_held("a call of the address space");
    }

    fn poison(&self, page: PageNo) {
        *self.pages[page.index()].lock().unwrap() = Seen::Poisoned;
    }
}

impl MovingSpace for SimSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        assert_no_lock_held("a call of the address space");
        let pages = content.chunks_exact(PAGE_SIZE);
        for (n, page) in pages.enumerate() {
            if let Err(why) = self.bring(first.plus(n), page) {
                return Mapped { pages: n, stopped: Some(why) };
            }
        }
        Mapped::all(content.len() / PAGE_SIZE)
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        assert_no_lock_held("a call of the address space");
        for n in 0..pages {
            if let Err(why) = self.bring(first.plus(n), &[0; PAGE_SIZE]) {
                return Mapped { pages: n, stopped: Some(why) };
            }
        }
        Mapped::all(pages)
    }

    fn find(&self, page: PageNo) -> bool {
        assert_no_lock_held("a call of the address space");
        *self.pages[page.index()].lock().unwrap() != Seen::Missing
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        assert_no_lock_held("a call of the address space");
        let pages = destination.len();
        for (n, index) in destination.enumerate() {
            match self.unless_frozen(first.plus(n), || self.take(first.plus(n))) {
                // SAFETY: the engine reserved this destination page for this call.
                Ok(content) => unsafe { arena.page(index).copy_from_slice(&content) },
                Err(error) => return Unmapped { moved: n, stopped: Some(error) },
            }
        }
        Unmapped { moved: pages, stopped: None }
    }

    fn unmap_runs(
        &self,
        runs: &[Range<PageNo>],
        arena: &PageArena,
        destination: Range<usize>,
        ends: &mut Vec<Unmapped>,
    ) -> usize {
        self.unmaps.fetch_add(1, Relaxed);
        let mut at = destination.start;
        for run in runs {
            let pages = run.end.index() - run.start.index();
            let pages = pages.min(self.most_at_once.load(Relaxed));
            let end = self.unmap(run.start, arena, at..at + pages);
            at += end.moved;
            ends.push(end);
        }
        1
    }

    fn recycle(&self, arena: &PageArena, pages: Range<usize>) {
        assert_no_lock_held("a call of the address space");
        for index in pages {
            // SAFETY: the engine no longer uses the chunk.
            unsafe { arena.page(index).fill(0xee) };
        }
    }
}

/// An engine with its space, and devices with planned failures.
pub(crate) struct Rig {
    pub(crate) engine: Arc<Engine>,
    pub(crate) space: Arc<SimSpace>,
    pub(crate) plans: Vec<Arc<FaultPlan>>,
}

/// The outcome of a touch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Done,
    Poisoned,
    OutOfMemory,
}

impl Rig {
    /// Makes an engine of `frames` frames for `pages` pages, with one device per entry of `slots`.
    pub(crate) fn new(frames: usize, pages: usize, slots: &[u32], tuning: Tuning) -> Self {
        Self::with(Cpus::native(), frames, pages, slots, tuning)
    }

    /// As [`new`](Self::new), with the per-CPU state of one CPU, so that slots are allocated in
    /// order.
    pub(crate) fn on_one_cpu(frames: usize, pages: usize, slots: &[u32], tuning: Tuning) -> Self {
        Self::with(Cpus { count: 1, current: || 0 }, frames, pages, slots, tuning)
    }

    pub(crate) fn with(
        cpus: Cpus,
        frames: usize,
        pages: usize,
        slots: &[u32],
        tuning: Tuning,
    ) -> Self {
        let space = SimSpace::new(pages);
        let plans: Vec<_> =
            slots.iter().map(|_| Arc::new(FaultPlan::new(Faults::default()))).collect();
        let swaps = slots
            .iter()
            .zip(&plans)
            .enumerate()
            .map(|(n, (&slots, plan))| swap(n as u8, slots, plan.clone()))
            .collect();
        let engine = Engine::new(EngineParts {
            frames,
            table: PageTable::new(Table::on_heap(pages, || AtomicU64::new(0))),
            space: Space::Moving(space.clone()),
            page_bytes: PAGE_SIZE,
            swaps,
            arena: PageArena::new(Engine::staging_pages(frames)).unwrap(),
            stats: Stats::on_heap(),
            report: Box::new(|_| {}),
            tuning,
            cpus,
        });
        Self { engine: Arc::new(engine), space, plans }
    }

    /// Adds a sound device of `slots` slots.
    pub(crate) fn swapon(&self, slots: u32) -> Result<AreaNo, SwaponError> {
        self.swapon_with(slots, Faults::default())
    }

    /// Adds a device of `slots` slots that fails as planned.
    pub(crate) fn swapon_with(&self, slots: u32, faults: Faults) -> Result<AreaNo, SwaponError> {
        let plan = Arc::new(FaultPlan::new(faults));
        self.engine.swapon(|number| swap(number.0, slots, plan))
    }

    /// Adds a sound device of `slots` slots, which are used when the others are full.
    pub(crate) fn swapon_below(&self, slots: u32, priority: i16) -> AreaNo {
        let plan = Arc::new(FaultPlan::new(Faults::default()));
        let make = |number: AreaNo| Swap { priority, ..swap(number.0, slots, plan) };
        self.engine.swapon(make).unwrap()
    }

    /// Writes pages in order.
    pub(crate) fn write(&self, worker: &mut Worker, pages: Range<u32>) {
        for page in pages {
            let touched = self.touch(worker, PageNo(page), |content| content.fill(page as u8 | 1));
            assert_eq!(touched, Touch::Done);
        }
        worker.finish(&self.engine);
    }

    /// Checks that the first pages hold what [`write`](Self::write) wrote, and all counters.
    pub(crate) fn verify(&self, worker: &mut Worker, pages: u32) {
        for page in 0..pages {
            let touched =
                self.touch(worker, PageNo(page), |content| assert_eq!(content[0], page as u8 | 1));
            assert_eq!(touched, Touch::Done, "page {page}");
        }
        worker.finish(&self.engine);
        assert_eq!(self.engine.check(), Ok(()));
    }

    pub(crate) fn used_slots(&self, area: AreaNo) -> u32 {
        self.engine.areas().get(area).used_slots()
    }

    /// Touches `page` as a program would: faults until it is mapped, then runs `f` on it.
    pub(crate) fn touch(
        &self,
        worker: &mut Worker,
        page: PageNo,
        f: impl FnOnce(&mut [u8]),
    ) -> Touch {
        loop {
            match &mut *self.space.pages[page.index()].lock().unwrap() {
                Seen::Present(content) => {
                    f(content);
                    return Touch::Done;
                }
                Seen::Poisoned => return Touch::Poisoned,
                Seen::Missing => {}
            }
            match self.engine.fault(worker, page, 1) {
                FaultOutcome::OutOfMemory => return Touch::OutOfMemory,
                FaultOutcome::Stray => panic!("{page} is mapped"),
                _ => {
                    worker.poll(&self.engine);
                    std::thread::yield_now();
                }
            }
        }
    }
}

fn swap(number: u8, slots: u32, plan: Arc<FaultPlan>) -> Swap {
    let kind = SwapKind::Ram { size: Bytes::of_pages(u64::from(slots)) };
    let ram = FileDevice::open(&kind.into(), &OpenOptions::default()).unwrap();
    let slots = ram.info().slots_max;
    let slots = SlotTable::on_heap(slots, AREA, &ram.info().reserved);
    let faulty = Arc::new(Faulty::new(Arc::new(ram), plan));
    Swap {
        device: guards::checksummed(faulty),
        area: SwapArea::new(AreaNo(number), slots, AREA),
        priority: 0,
    }
}
