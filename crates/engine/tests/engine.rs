//! The whole engine over an address space in ordinary memory, against an array as its model.
#![cfg(not(loom))]

mod advice;
mod ahead;
#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;
mod demote;
mod faulter;
mod limit;
mod swapoff;

use advice::{Advice, advice};
use common::swapped_out::{read, swapped_out, write};
use common::{Rig, TUNING, Touch};
use overspill_area::{AreaNo, Preset};
use overspill_base::PageNo;
use overspill_base::clock::Cpus;
use overspill_base::stats::Event;
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use proptest::prelude::*;
use std::cell::Cell;

const PAGES: usize = 96;
const FRAMES: usize = 24;

/// Readahead by slot, as before 4.11: pages read ahead wait in the swap cache.
const BY_SLOT: Tuning =
    Tuning { preset: Preset::Linux4_8, readahead_skip_unreferenced: false, ..TUNING };

fn tuning() -> impl Strategy<Value = Tuning> {
    prop::sample::select(vec![TUNING, BY_SLOT])
}

#[derive(Clone, Debug)]
enum Op {
    Write { page: usize, value: u8 },
    Read { page: usize },
    Scan { first: usize, pages: usize, step: usize },
    Discard { first: usize, pages: usize },
    Pin { page: Option<usize> },
    Lock { page: usize, lock: bool },
    Advise { first: usize, pages: usize, advice: Advice },
    Limit { frames: usize },
    Swapon,
    Swapoff { nth: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PAGES;
    prop_oneof![
        8 => (page.clone(), any::<u8>()).prop_map(|(page, value)| Op::Write { page, value }),
        8 => page.clone().prop_map(|page| Op::Read { page }),
        2 => (page.clone(), 1..40usize, prop::sample::select(vec![1, 1, 2, 5]))
            .prop_map(|(first, pages, step)| Op::Scan { first, pages, step }),
        1 => (page.clone(), 1..20usize).prop_map(|(first, pages)| Op::Discard { first, pages }),
        1 => prop::option::of(page.clone()).prop_map(|page| Op::Pin { page }),
        1 => (page.clone(), 1..40usize, advice())
            .prop_map(|(first, pages, advice)| Op::Advise { first, pages, advice }),
        1 => (page, any::<bool>()).prop_map(|(page, lock)| Op::Lock { page, lock }),
        1 => (FRAMES / 2..=FRAMES).prop_map(|frames| Op::Limit { frames }),
        1 => Just(Op::Swapon),
        1 => (0..4usize).prop_map(|nth| Op::Swapoff { nth }),
    ]
}

/// The engine, and every page's expected first byte, or `None` if it was lost.
struct Episode {
    rig: Rig,
    worker: Worker,
    model: Vec<Option<u8>>,
    locked: usize,
    /// An area that stays: with only failing ones memory would run out.
    stays: Option<AreaNo>,
}

impl Episode {
    fn new(rig: Rig) -> Self {
        let worker = Worker::new(&rig.engine).unwrap();
        Self { rig, worker, model: vec![Some(0); PAGES], locked: 0, stays: None }
    }

    /// Reads or writes one page; false if memory ran out.
    fn touch(&mut self, page: usize, write: Option<u8>) -> bool {
        let mut seen = None;
        let touched = self.rig.touch(&mut self.worker, PageNo(page as u32), |content| {
            assert!(content.iter().all(|&byte| byte == content[0]), "page {page} is torn");
            seen = Some(content[0]);
            if let Some(value) = write {
                content.fill(value);
            }
        });
        match touched {
            Touch::OutOfMemory => return false,
            // Faults are planned on reads only where the caller allows pages to be lost.
            Touch::Poisoned => self.model[page] = None,
            Touch::Done => {
                assert_eq!(seen, self.model[page], "page {page}");
                self.model[page] = write.or(seen);
            }
        }
        true
    }

    fn play(&mut self, op: &Op) -> bool {
        match *op {
            Op::Write { page, value } => return self.touch(page, Some(value)),
            Op::Read { page } => return self.touch(page, None),
            Op::Scan { first, pages, step } => {
                let mut scan = (first..(first + pages).min(PAGES)).step_by(step);
                return scan.all(|page| self.touch(page, None));
            }
            Op::Discard { first, pages } => self.discard(first, pages.min(PAGES - first)),
            Op::Pin { page } => self.rig.space.pin(page.map(|page| PageNo(page as u32))),
            Op::Lock { page, lock } => self.lock(page, lock),
            Op::Advise { first, pages, advice } => {
                let pages = pages.min(PAGES - first);
                advice.take(&self.rig, &mut self.worker, PageNo(first as u32), pages);
            }
            Op::Limit { frames } => self.rig.engine.set_limit(frames),
            Op::Swapon => self.swapon(),
            Op::Swapoff { nth } => self.swapoff(nth),
        }
        true
    }

    fn discard(&mut self, first: usize, pages: usize) {
        self.worker.finish(&self.rig.engine);
        self.rig.engine.discard(PageNo(first as u32), pages);
        self.model[first..first + pages].fill(Some(0));
    }

    fn lock(&mut self, page: usize, lock: bool) {
        if lock && self.locked < FRAMES / 4 {
            self.locked += usize::from(self.rig.engine.set_unevictable(PageNo(page as u32), true));
        } else if !lock {
            self.rig.engine.set_unevictable(PageNo(page as u32), false);
        }
    }

    /// Adds an area: at most four at a time, and half of all numbers, so that one is always left.
    fn swapon(&mut self) {
        if self.rig.engine.swaps().len() < 4 && self.rig.engine.areas().iter().count() < 16 {
            self.rig.swapon(64).unwrap();
        }
    }

    /// Removes an area, but keeps one, so that there is room for the pages.
    fn swapoff(&mut self, nth: usize) {
        let swaps = self.rig.engine.swaps();
        let may_go = |area| swaps.len() > 1 && self.stays != Some(area);
        let Some(swap) = swaps.get(nth).filter(|swap| may_go(swap.area)) else { return };
        match self.rig.engine.swapoff(&mut self.worker, swap.area) {
            Ok(()) => assert_eq!(self.rig.engine.areas().get(swap.area).used_slots(), 0),
            Err(_) => assert_eq!(self.rig.engine.swaps().len(), swaps.len()),
        }
    }

    fn quiesce(&mut self) -> Result<(), String> {
        self.worker.finish(&self.rig.engine);
        self.rig.engine.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_page_reads_as_it_was_written(
        tuning in tuning(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut episode = Episode::new(Rig::new(FRAMES, PAGES, &[64, 64], tuning));
        for op in &ops {
            prop_assert!(episode.play(op), "memory ended");
        }
        for page in 0..PAGES {
            prop_assert!(episode.touch(page, None));
        }
        prop_assert_eq!(episode.quiesce(), Ok(()));
    }

    /// One device fails at random, the other is sound: no write is lost, and a failed read loses
    /// only its own page.
    #[test]
    fn device_faults_cost_at_most_the_pages_they_hit(
        seed in any::<u64>(),
        tuning in tuning(),
        ops in prop::collection::vec(op(), 1..120),
        reads in prop::sample::select(vec![0u64, 0, 50]),
        writes in prop::sample::select(vec![0u64, 20, 300]),
    ) {
        let mut episode = Episode::new(Rig::new(FRAMES, PAGES, &[128, 128], tuning));
        episode.stays = Some(AreaNo(1));
        episode.rig.plans[0].set(Faults {
            seed,
            read_failures_per_mille: reads,
            write_failures_per_mille: writes,
            ..Faults::default()
        });
        for op in &ops {
            prop_assert!(episode.play(op), "memory ended");
        }
        episode.rig.plans[0].set(Faults::default());
        for page in 0..PAGES {
            prop_assert!(episode.touch(page, None));
        }
        let lost = episode.model.iter().filter(|page| page.is_none()).count();
        prop_assert!(reads > 0 || lost == 0, "{} pages lost without a failed read", lost);
        prop_assert_eq!(episode.quiesce(), Ok(()));
    }
}

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// With nothing to reclaim, the frames that another CPU has on its own list are used before memory
/// has run out.
#[test]
fn frames_on_anothers_list_are_used_before_memory_runs_out() {
    const FRAMES: u32 = 512;
    let cpus = Cpus { count: 2, current: || CPU.get() };
    let rig = Rig::with(cpus, FRAMES as usize, 2 * FRAMES as usize, &[], TUNING);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..FRAMES);
    CPU.set(1);
    rig.engine.discard(PageNo(0), 2);
    CPU.set(0);
    rig.write(&mut worker, FRAMES..FRAMES + 2);
    let one_more = rig.touch(&mut worker, PageNo(FRAMES + 2), |_| {});
    assert_eq!(one_more, Touch::OutOfMemory);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// With all on the lists pinned, the pages in another CPU's batch are evicted before memory has run
/// out.
#[test]
fn pages_in_anothers_batch_are_evicted_before_memory_runs_out() {
    const FRAMES: u32 = 512;
    let cpus = Cpus { count: 2, current: || CPU.get() };
    let rig = Rig::with(cpus, FRAMES as usize, 2 * FRAMES as usize, &[64], TUNING);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..FRAMES - 1);
    CPU.set(1);
    rig.write(&mut worker, FRAMES - 1..FRAMES);
    CPU.set(0);
    let one_more = rig.space.while_frozen(&(PageNo(0)..PageNo(FRAMES - 1)), || {
        rig.touch(&mut worker, PageNo(FRAMES), |_| {})
    });
    assert_eq!(one_more, Touch::Done);
    worker.finish(&rig.engine);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// A page for which there is no slot is mapped again, however often the space is busy.
#[test]
fn a_page_without_a_slot_is_mapped_again() {
    const FRAMES: u32 = 64;
    let rig = Rig::new(FRAMES as usize, 2 * FRAMES as usize, &[], TUNING);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..FRAMES);
    rig.space.set_busy(500, 1);
    let one_more = rig.touch(&mut worker, PageNo(FRAMES), |_| {});
    assert_eq!(one_more, Touch::OutOfMemory);
    rig.verify(&mut worker, FRAMES);
}

/// Exact numbers, computed by hand. Without batches, windows or fault-around every page is one
/// fault; a region of twice the limit, touched twice in order, finds nothing in memory the second
/// time.
#[test]
fn counters_of_a_region_twice_the_limit_touched_twice() {
    let plain = Tuning {
        reclaim_batch_pages: 1,
        lru_batch_pages: 1,
        rotate_batch_pages: 1,
        readahead_max_pages: 1,
        fault_around_pages: 1,
        ..TUNING
    };
    let rig = Rig::new(64, 128, &[512], plain);
    let mut worker = Worker::new(&rig.engine).unwrap();
    for round in 1..=2u8 {
        for page in 0..128 {
            let touched = rig.touch(&mut worker, PageNo(page), |content| content.fill(round));
            assert_eq!(touched, Touch::Done);
        }
    }
    worker.finish(&rig.engine);
    let count = |event| rig.engine.stats().get(event);
    assert_eq!(count(Event::pgzero), 128);
    assert_eq!(count(Event::pgmajfault), 128);
    assert_eq!(count(Event::pswpin), 128);
    // 256 touches, each with a new frame; 64 pages are still in memory.
    assert_eq!(count(Event::pswpout), 256 - 64);
    assert_eq!(count(Event::pgfault), 256);
    // One eviction takes all 64 neighbours along, so all pages are out when the second round
    // begins, and those of the first half come back with all others out behind them.
    let stats = rig.engine.stats();
    assert!((128..=192).contains(&stats.in_use_pages_max()), "{}", stats.in_use_pages_max());
    let distances = stats.refault_distances();
    let far = distances.iter().filter(|bucket| bucket.count() > 0);
    let far: Vec<_> = far.map(|bucket| (bucket.end(), bucket.count())).collect();
    assert!(far.last().is_some_and(|&(pages, _)| pages == 127), "{far:?}");
    assert_eq!(far.iter().map(|(_, count)| count).sum::<u64>(), 128);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// Returns the increase of each of `events` since `before`.
fn added<const N: usize>(rig: &Rig, events: [Event; N], before: [u64; N]) -> [u64; N] {
    std::array::from_fn(|n| rig.engine.stats().get(events[n]) - before[n])
}

const READAHEAD: [Event; 5] = [
    Event::pgmajfault,
    Event::swap_ra,
    Event::swap_ra_hit,
    Event::swap_ra_wasted,
    Event::swap_cache_hit,
];

#[test]
fn counters_of_readahead_by_address() {
    let (rig, mut worker) = swapped_out(TUNING);
    let before = added(&rig, READAHEAD, [0; 5]);
    (0..64).for_each(|page| read(&rig, &mut worker, page));
    // Faults at 0, 1, 3, 7, then every eighth page up to 63: windows of 1, 2, 4, 8, 8, ... At the
    // last fault all windows before it have been passed, and after it there is nothing to read.
    assert_eq!(added(&rig, READAHEAD, before), [11, 64 - 11, 64 - 11, 0, 0]);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn counters_of_readahead_by_slot() {
    let (rig, mut worker) = swapped_out(BY_SLOT);
    let before = added(&rig, READAHEAD, [0; 5]);
    (0..64).for_each(|page| read(&rig, &mut worker, page));
    // Page n is on slot n. Four initial hits make the first block 0..8; the seven pages that wait
    // are hits, so all blocks have eight slots: a fault and seven hits.
    assert_eq!(added(&rig, READAHEAD, before), [8, 56, 56, 0, 56]);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn frames_are_wasted_on_slots_of_the_dead_unless_they_are_skipped() {
    let skipping = Tuning { readahead_skip_unreferenced: true, ..BY_SLOT };
    for (tuning, wasted) in [(BY_SLOT, 6), (skipping, 0)] {
        let (rig, mut worker) = swapped_out(tuning);
        rig.engine.discard(PageNo(10), 6);
        rig.engine.drain();
        let before = added(&rig, READAHEAD, [0; 5]);
        // Of the block 8..16 two pages are left.
        read(&rig, &mut worker, 9);
        read(&rig, &mut worker, 8);
        assert_eq!(added(&rig, READAHEAD, before), [1, 1, 1, wasted, 1]);
        assert_eq!(rig.engine.check(), Ok(()));
    }
}

/// Without hits the window shrinks.
#[test]
fn pages_read_ahead_in_vain_are_reclaimed_and_read_again() {
    let (rig, mut worker) = swapped_out(BY_SLOT);
    let before = added(&rig, READAHEAD, [0; 5]);
    for page in [20, 50, 3] {
        read(&rig, &mut worker, page);
    }
    // Blocks of 8, 4 and 2 slots.
    assert_eq!(added(&rig, READAHEAD, before), [3, 7 + 3 + 1, 0, 0, 0]);
    for page in 64..64 + 256 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(1));
    }
    worker.finish(&rig.engine);
    let before = added(&rig, READAHEAD, [0; 5]);
    read(&rig, &mut worker, 21);
    assert_eq!(added(&rig, READAHEAD, before)[0], 1, "page 21 is still in memory");
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn a_device_as_fast_as_memory_is_not_read_ahead_where_the_tuning_says_so() {
    let (rig, mut worker) = swapped_out(Tuning { preset: Preset::Linux5_8, ..TUNING });
    (0..64).for_each(|page| read(&rig, &mut worker, page));
    assert_eq!(rig.engine.stats().get(Event::swap_ra), 0);
}

/// The transfer fails as a whole, then each page alone; only the faulting page is lost.
#[test]
fn a_page_that_cannot_be_read_ahead_is_not_lost() {
    for tuning in [TUNING, BY_SLOT] {
        let (rig, mut worker) = swapped_out(tuning);
        (0..4).for_each(|page| read(&rig, &mut worker, page));
        rig.plans[0].set(Faults { read_failures_per_mille: 1000, ..Faults::default() });
        let lost = rig.touch(&mut worker, PageNo(32), |_| {});
        worker.finish(&rig.engine);
        rig.plans[0].set(Faults::default());
        assert_eq!(lost, Touch::Poisoned);
        (0..64).filter(|&page| page != 32).for_each(|page| read(&rig, &mut worker, page));
        assert_eq!(rig.engine.stats().get(Event::pages_poisoned), 1);
        assert_eq!(rig.engine.check(), Ok(()));
    }
}

#[test]
fn an_unchanged_page_is_not_written_twice() {
    let rig = Rig::new(16, 64, &[256], TUNING);
    let mut worker = Worker::new(&rig.engine).unwrap();
    for page in 0..64 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(page as u8 + 1));
    }
    let written = rig.engine.stats().get(Event::pswpout);
    for round in 0..3 {
        for page in 0..64 {
            rig.touch(&mut worker, PageNo((page * 7 + round) % 64), |content| {
                assert_eq!(u32::from(content[0]), (page * 7 + round) % 64 + 1);
            });
        }
    }
    worker.finish(&rig.engine);
    let more = rig.engine.stats().get(Event::pswpout) - written;
    assert!(more <= 16, "{more} pages written though only 16 were still unwritten");
    assert!(rig.engine.stats().get(Event::swpout_clean) > 100);
}

#[test]
fn when_every_device_fails_its_writes_the_pages_stay_until_memory_ends() {
    let rig = Rig::new(16, 64, &[256], TUNING);
    rig.plans[0].set(Faults { fail_writes_from: Some(0), ..Faults::default() });
    let mut worker = Worker::new(&rig.engine).unwrap();
    let fits = (0..64)
        .take_while(|&page| {
            rig.touch(&mut worker, PageNo(page), |content| content.fill(page as u8 + 1))
                == Touch::Done
        })
        .count();
    assert!(fits >= 16, "memory ended after {fits} of 16 frames");
    assert!(rig.engine.last_error().is_some());
    for page in 0..16 {
        let touched = rig.touch(&mut worker, PageNo(page), |content| {
            assert_eq!(u32::from(content[0]), page + 1);
        });
        assert_eq!(touched, Touch::Done);
    }
}

#[test]
fn threads_that_share_pages_see_each_others_writes() {
    const THREADS: u8 = 4;
    let rig = Rig::new(FRAMES, PAGES, &[128, 64], TUNING);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let rig = &rig;
            scope.spawn(move || {
                let mut worker = Worker::new(&rig.engine).unwrap();
                let mut page = u32::from(thread);
                for _ in 0..4000 {
                    page = page.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = PageNo((page >> 8) % PAGES as u32);
                    // Each thread counts in its own byte; no increment may be lost.
                    let touched = rig.touch(&mut worker, at, |content| {
                        let count = &mut content[usize::from(thread)];
                        *count = count.wrapping_add(1);
                    });
                    assert_eq!(touched, Touch::Done);
                }
                worker.finish(&rig.engine);
            });
        }
    });
    assert_eq!(rig.engine.check(), Ok(()));
    let mut worker = Worker::new(&rig.engine).unwrap();
    let mut sums = [0u32; THREADS as usize];
    for page in 0..PAGES as u32 {
        rig.touch(&mut worker, PageNo(page), |content| {
            for (sum, &byte) in sums.iter_mut().zip(content.iter()) {
                *sum += u32::from(byte);
            }
        });
    }
    // 4000 touches over 96 pages stay far below 256 each.
    assert_eq!(sums, [4000; THREADS as usize]);
}
