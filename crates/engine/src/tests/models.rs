//! Model-checked interleavings of the whole engine, over one page, its relatives and their device.
//!
//! Here and not under `tests/`, because models run single steps: one round of reclaim, one
//! completion. Run with `RUSTFLAGS="--cfg loom"`.

mod relatives;

use crate::types::Pte;
use crate::{
    AddressSpace, Engine, EngineParts, FaultOutcome, Mapped, MovingSpace, PageTable, Space,
    SpaceError, Swap, Tuning, Unmapped, Worker,
};
use overspill_area::{AreaConfig, AreaNo, AreaTuning, Preset, SlotTable, SwapArea};
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, PageBuf, Table};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{PAGE_SIZE, PageNo, Slot};
use overspill_device::{Completion, DeviceError, DeviceInfo, IoOp, IoQueue, IoRequest, SwapDevice};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const PAGE: PageNo = PageNo(0);
/// Takes the frame that the first has left, or is its child's.
const OTHER: PageNo = PageNo(1);
const PAGES: usize = 3;
const SLOTS: u32 = 2;

/// The first byte of each mapped page; `None` where a touch would fault. Its locks are std's: a
/// touch is one step.
#[derive(Default)]
struct ModelSpace {
    pages: Mutex<[Option<u8>; PAGES]>,
    woken: [AtomicUsize; PAGES],
}

impl ModelSpace {
    fn woken(&self, page: PageNo) -> usize {
        self.woken[page.index()].load(Relaxed)
    }
}

impl AddressSpace for ModelSpace {
    fn span(&self, page: PageNo) -> usize {
        PAGES - page.index()
    }

    fn zap(&self, first: PageNo, pages: usize) {
        self.pages.lock().unwrap()[first.index()..][..pages].fill(None);
    }

    fn wake(&self, page: PageNo) {
        self.woken[page.index()].fetch_add(1, Relaxed);
    }

    fn poison(&self, _: PageNo) {
        panic!("nothing fails here");
    }
}

impl MovingSpace for ModelSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        let mut pages = self.pages.lock().unwrap();
        for (n, page) in content.chunks_exact(PAGE_SIZE).enumerate() {
            pages[first.index() + n].get_or_insert(page[0]);
            self.wake(first.plus(n));
        }
        Mapped::all(content.len() / PAGE_SIZE)
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        (0..pages).for_each(|n| {
            self.map(first.plus(n), &[0; PAGE_SIZE]);
        });
        Mapped::all(pages)
    }

    fn find(&self, page: PageNo) -> bool {
        self.wake(page);
        self.pages.lock().unwrap()[page.index()].is_some()
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let mut pages = self.pages.lock().unwrap();
        for (n, index) in destination.clone().enumerate() {
            let Some(byte) = pages[first.index() + n].take() else {
                return Unmapped { moved: n, stopped: Some(SpaceError::Missing) };
            };
            // SAFETY: the engine reserved this destination page for this call.
            unsafe { arena.page(index) }.fill(byte);
        }
        Unmapped { moved: destination.len(), stopped: None }
    }

    fn recycle(&self, _: &PageArena, _: Range<usize>) {}
}

/// The first bytes of the slots; requests complete when they are reaped.
#[derive(Debug)]
struct Device {
    info: DeviceInfo,
    slots: Arc<Mutex<HashMap<u32, u8>>>,
    reads: Arc<AtomicUsize>,
}

impl SwapDevice for Device {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, _: u32) -> Result<u32, DeviceError> {
        Ok(SLOTS)
    }

    fn open_queue(&self, _: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let (slots, reads) = (self.slots.clone(), self.reads.clone());
        Ok(Box::new(Queue { slots, reads, waiting: Vec::new() }))
    }

    fn discard(&self, _: Slot, _: u32) -> Result<(), DeviceError> {
        Ok(())
    }
}

struct Queue {
    slots: Arc<Mutex<HashMap<u32, u8>>>,
    reads: Arc<AtomicUsize>,
    waiting: Vec<IoRequest>,
}

impl Queue {
    fn transfer(&self, op: IoOp, slot: u32, page: &mut PageBuf) {
        let mut slots = self.slots.lock().unwrap();
        match op {
            IoOp::Write => drop(slots.insert(slot, page[0])),
            IoOp::Read => {
                self.reads.fetch_add(1, Relaxed);
                page.fill(slots[&slot]);
            }
        }
    }
}

impl IoQueue for Queue {
    fn submit(&mut self, request: IoRequest) {
        self.waiting.push(request);
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        for mut request in std::mem::take(&mut self.waiting) {
            let (op, first) = (request.op, request.slot.0);
            let pages = request.pages.iter_mut().zip(first..);
            pages.for_each(|(page, slot)| self.transfer(op, slot, page));
            done.push(Completion { request, failures: Vec::new() });
        }
    }

    fn wait(&mut self) {}

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An engine of two frames over one page and two slots, no batches, one CPU.
struct Rig {
    engine: Engine,
    space: Arc<ModelSpace>,
    reads: Arc<AtomicUsize>,
}

/// Makes a rig whose writes stay in flight until they are finished.
fn rig() -> Arc<Rig> {
    rig_with(false)
}

/// Makes a rig whose writes complete at submission, with their frames freed, as on fast devices.
fn rig_of_fast_writes() -> Arc<Rig> {
    rig_with(true)
}

fn rig_with(frees_at_once: bool) -> Arc<Rig> {
    let area = AreaTuning {
        cluster_slots: SLOTS,
        trunk_slots: SLOTS,
        slot_batch: 1,
        free_batch: 1,
        slot_cache: false,
        ..AreaTuning::of(Preset::Modern)
    };
    let config = AreaConfig { tuning: area, cpus: 1, rotational: false, discard: false };
    let (space, reads) = (Arc::new(ModelSpace::default()), Arc::new(AtomicUsize::new(0)));
    let engine = Engine::new(EngineParts {
        frames: 3,
        table: PageTable::new(Table::on_heap(PAGES, || AtomicU64::new(0))),
        space: Space::Moving(space.clone()),
        page_bytes: PAGE_SIZE,
        swaps: vec![Swap {
            device: Arc::new(device(reads.clone())),
            area: SwapArea::new(AreaNo(0), SlotTable::on_heap(SLOTS, config, &[]), config),
            priority: 0,
        }],
        arena: PageArena::new(2 * Tuning::CHUNK_PAGES).unwrap(),
        stats: Stats::on_heap(),
        report: Box::new(|line| panic!("{line}")),
        tuning: Tuning {
            area,
            reclaim_batch_pages: 1,
            lru_batch_pages: 1,
            rotate_batch_pages: 1,
            readahead_max_pages: 1,
            fault_around_pages: 1,
            frees_at_once,
            ..Tuning::of(Preset::Modern)
        },
        cpus: Cpus { count: 1, current: || 0 },
    });
    Arc::new(Rig { engine, space, reads })
}

fn device(reads: Arc<AtomicUsize>) -> Device {
    let info = DeviceInfo { name: "model".into(), slots_max: SLOTS, ..DeviceInfo::default() };
    Device { info, slots: Arc::default(), reads }
}

impl Rig {
    fn worker(&self) -> Worker {
        Worker::new(&self.engine).unwrap()
    }

    fn byte(&self) -> Option<u8> {
        self.space.pages.lock().unwrap()[PAGE.index()]
    }

    fn set_byte(&self, page: PageNo, byte: u8) -> bool {
        let mut pages = self.space.pages.lock().unwrap();
        pages[page.index()].as_mut().map(|seen| *seen = byte).is_some()
    }

    /// Faults, and finishes the read that this starts. True if another thread has to wake us.
    fn fault(&self, worker: &mut Worker) -> bool {
        self.fault_at(worker, PAGE)
    }

    fn fault_at(&self, worker: &mut Worker, page: PageNo) -> bool {
        let woken = self.space.woken(page);
        let outcome = self.engine.fault(worker, page, 1);
        assert!(matches!(outcome, FaultOutcome::Mapped | FaultOutcome::Pending), "{outcome:?}");
        if outcome == FaultOutcome::Mapped {
            return false;
        }
        let reads = worker.in_flight() > 0;
        worker.finish(&self.engine);
        assert!(!reads || self.space.woken(page) > woken, "the reader sleeps on");
        !reads
    }

    /// Touches and changes the page, then starts its eviction; the write is in flight.
    fn written(&self, worker: &mut Worker, byte: u8) {
        self.fault(worker);
        assert!(self.set_byte(PAGE, byte));
        self.engine.shrink(worker, false);
        assert_eq!((self.byte(), self.engine.writes_in_flight()), (None, 1));
    }

    /// As [`written`](Self::written), with the write finished: the page is on its slot only.
    fn evicted(&self, worker: &mut Worker, byte: u8) {
        self.fault(worker);
        assert!(self.set_byte(PAGE, byte));
        self.engine.shrink(worker, false);
        worker.finish(&self.engine);
        self.engine.shrink(worker, false);
        assert!(matches!(self.engine.table.load(PAGE), Pte::Swapped { .. }));
        assert!(self.engine.cache.is_empty());
    }

    fn reclaim(&self) {
        let mut worker = self.worker();
        self.engine.shrink(&mut worker, false);
        worker.finish(&self.engine);
    }

    /// Evicts what can be evicted, and has another page take a frame and change.
    fn reuse_frame(&self) {
        let mut worker = self.worker();
        self.engine.shrink(&mut worker, false);
        self.fault_at(&mut worker, OTHER);
        self.set_byte(OTHER, 5);
        worker.finish(&self.engine);
    }

    /// Checks that the page reads as `byte`, and that nothing has leaked.
    fn expect(&self, byte: u8) {
        self.expect_at(PAGE, byte);
    }

    fn expect_at(&self, page: PageNo, byte: u8) {
        let mut worker = self.worker();
        self.fault_at(&mut worker, page);
        assert_eq!(self.space.pages.lock().unwrap()[page.index()], Some(byte));
        assert_eq!(self.engine.check(), Ok(()));
        assert_eq!(self.engine.writes_in_flight(), 0);
    }
}

fn spawn<R: 'static>(
    rig: &Arc<Rig>,
    act: impl FnOnce(&Rig) -> R + 'static,
) -> loom::thread::JoinHandle<R> {
    let rig = rig.clone();
    loom::thread::spawn(move || act(&rig))
}

/// Does `act` while another page takes the frame of a page with 7 in it, which reads as `left`
/// afterwards.
fn while_the_frame_is_reused(act: fn(&Rig), left: u8) {
    model(move || {
        let rig = rig_of_fast_writes();
        rig.fault(&mut rig.worker());
        assert!(rig.set_byte(PAGE, 7));
        let other = spawn(&rig, Rig::reuse_frame);
        act(&rig);
        other.join().unwrap();
        rig.expect_at(OTHER, 5);
        rig.expect(left);
    });
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    // Two preemptions reach every pair of steps that can race here.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    let explored = std::sync::Arc::new(AtomicUsize::new(0));
    let count = explored.clone();
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        test();
    });
    let explored = explored.load(Relaxed);
    assert!(explored > 1, "only {explored} interleavings: is anything under the model checker?");
    println!("{explored} interleavings");
}

/// E13, E14, E16, E35: of two faults on one page one reads, the other waits and is woken; a
/// concurrent round of reclaim takes no page that is being mapped and frees no slot in use.
#[test]
fn two_faults_and_a_round_of_reclaim() {
    model(|| {
        let rig = rig_of_fast_writes();
        rig.evicted(&mut rig.worker(), 7);
        let faulter = spawn(&rig, |rig| rig.fault(&mut rig.worker()));
        let reclaimer = spawn(&rig, Rig::reclaim);
        let woken = rig.space.woken(PAGE);
        let asleep = [rig.fault(&mut rig.worker()), faulter.join().unwrap()];
        reclaimer.join().unwrap();
        let wakes = rig.space.woken(PAGE) - woken;
        assert!(!asleep.contains(&true) || wakes > 0, "a faulter sleeps and nobody wakes it");
        // A second read only if the page left memory in between.
        let evicted = rig.engine.stats().get(Event::pgsteal_background) - 1;
        let reads = rig.reads.load(Relaxed) as u64;
        assert!((1..=1 + evicted).contains(&reads), "{reads} reads, {evicted} evictions");
        rig.expect(7);
    });
}

/// E21, E24, E37: a page that is mapped again and changed under writeback keeps the change, in any
/// order of completion, fault and the next round of reclaim.
#[test]
fn the_end_of_a_write_a_change_and_a_round_of_reclaim() {
    model(|| {
        let rig = rig();
        let mut writer = rig.worker();
        rig.written(&mut writer, 7);
        let changer = spawn(&rig, |rig| {
            rig.fault(&mut rig.worker());
            rig.set_byte(PAGE, 9)
        });
        let reclaimer = spawn(&rig, Rig::reclaim);
        writer.finish(&rig.engine);
        let changed = changer.join().unwrap();
        reclaimer.join().unwrap();
        rig.expect(if changed { 9 } else { 7 });
    });
}

/// E14, E35: a page that is written, but still in memory, is touched while reclaim frees its frame
/// and another page takes it. The touch finds its own page, and does not sleep forever.
#[test]
fn a_touch_while_the_frame_becomes_another_pages() {
    model(|| {
        let rig = rig();
        let mut writer = rig.worker();
        rig.written(&mut writer, 7);
        writer.finish(&rig.engine);
        let other = spawn(&rig, |rig| {
            rig.reuse_frame();
            rig.reclaim();
        });
        let woken = rig.space.woken(PAGE);
        let asleep = rig.fault(&mut rig.worker());
        other.join().unwrap();
        assert!(!asleep || rig.space.woken(PAGE) > woken, "nobody wakes the toucher");
        rig.expect(7);
    });
}

/// E14: a page that is in memory is touched while reclaim frees its frame and another page takes
/// it. Both pages keep their content.
#[test]
fn a_touch_while_the_frame_is_reused() {
    while_the_frame_is_reused(
        |rig| {
            rig.fault(&mut rig.worker());
        },
        7,
    );
}

/// Plays `act` against the eviction of a page that holds 7; also while it is written.
fn against_an_eviction(act: fn(&Rig), expect: fn(&Rig)) {
    for make in [rig, rig_of_fast_writes] {
        model(move || {
            let rig = make();
            rig.fault(&mut rig.worker());
            assert!(rig.set_byte(PAGE, 7));
            let reclaimer = spawn(&rig, Rig::reclaim);
            act(&rig);
            reclaimer.join().unwrap();
            expect(&rig);
        });
    }
}

/// E17: a page that is dropped during its eviction is dropped wherever it is by then.
#[test]
fn a_discard_against_an_eviction() {
    against_an_eviction(|rig| rig.engine.discard(PAGE, 1), |rig| rig.expect(0));
}

/// E17: a page is dropped while reclaim frees its frame and another page takes it. The other page
/// keeps its content.
#[test]
fn a_discard_while_the_frame_is_reused() {
    while_the_frame_is_reused(|rig| rig.engine.discard(PAGE, 1), 0);
}

/// E2, E35: a page that is dropped while it is being read leaks neither frame nor slot.
#[test]
fn a_fault_against_a_discard() {
    model(|| {
        let rig = rig();
        rig.evicted(&mut rig.worker(), 7);
        let discarder = spawn(&rig, |rig| rig.engine.discard(PAGE, 1));
        rig.fault(&mut rig.worker());
        discarder.join().unwrap();
        // It must not be mapped with what was read before the drop: it is missing, or zeros.
        assert!(rig.byte().is_none_or(|byte| byte == 0), "{:?} came back", rig.byte());
        rig.expect(0);
    });
}
