//! The whole engine over an address space in ordinary memory, against a model that is an array.
#![cfg(not(loom))]

mod common;

use common::{Rig, TUNING, Touch};
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use proptest::prelude::*;

const PAGES: usize = 96;
const FRAMES: usize = 24;

#[derive(Clone, Debug)]
enum Op {
    Write { page: usize, value: u8 },
    Read { page: usize },
    Scan { first: usize, pages: usize },
    Discard { first: usize, pages: usize },
    Move { from: usize, to: usize, pages: usize },
    Pin { page: Option<usize> },
    Lock { page: usize, lock: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PAGES;
    prop_oneof![
        8 => (page.clone(), any::<u8>()).prop_map(|(page, value)| Op::Write { page, value }),
        8 => page.clone().prop_map(|page| Op::Read { page }),
        2 => (page.clone(), 1..40usize).prop_map(|(first, pages)| Op::Scan { first, pages }),
        1 => (page.clone(), 1..20usize).prop_map(|(first, pages)| Op::Discard { first, pages }),
        1 => (page.clone(), page.clone(), 1..8usize)
            .prop_map(|(from, to, pages)| Op::Move { from, to, pages }),
        1 => prop::option::of(page.clone()).prop_map(|page| Op::Pin { page }),
        1 => (page, any::<bool>()).prop_map(|(page, lock)| Op::Lock { page, lock }),
    ]
}

/// The engine and what every page should hold: its first byte, or nothing if it was lost.
struct Game {
    rig: Rig,
    worker: Worker,
    model: Vec<Option<u8>>,
    locked: usize,
}

impl Game {
    fn new(rig: Rig) -> Self {
        let worker = Worker::new(&rig.engine).unwrap();
        Self { rig, worker, model: vec![Some(0); PAGES], locked: 0 }
    }

    /// Reads or writes one page; false when memory has ended.
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
            Op::Scan { first, pages } => {
                return (first..(first + pages).min(PAGES)).all(|page| self.touch(page, None));
            }
            Op::Discard { first, pages } => self.discard(first, pages.min(PAGES - first)),
            Op::Move { from, to, pages } => self.relocate(from, to, pages),
            Op::Pin { page } => self.rig.space.pin(page.map(|page| PageNo(page as u32))),
            Op::Lock { page, lock } => self.lock(page, lock),
        }
        true
    }

    fn discard(&mut self, first: usize, pages: usize) {
        self.worker.finish(&self.rig.engine);
        self.rig.engine.discard(PageNo(first as u32), pages);
        self.model[first..first + pages].fill(Some(0));
    }

    fn relocate(&mut self, from: usize, to: usize, pages: usize) {
        let overlap = from.abs_diff(to) < pages;
        if overlap || from.max(to) + pages > PAGES {
            return;
        }
        self.rig.space.pin(None);
        self.discard(to, pages);
        self.rig.engine.transfer(PageNo(from as u32), PageNo(to as u32), pages);
        for n in 0..pages {
            self.model[to + n] = self.model[from + n].replace(0);
            self.model[from + n] = Some(0);
        }
        // What is poisoned stays so at its new address; the old one is as good as new.
        self.rig.engine.discard(PageNo(from as u32), pages);
    }

    fn lock(&mut self, page: usize, lock: bool) {
        if lock && self.locked < FRAMES / 4 {
            self.locked += usize::from(self.rig.engine.set_unevictable(PageNo(page as u32), true));
        } else if !lock {
            self.rig.engine.set_unevictable(PageNo(page as u32), false);
        }
    }

    fn settle(&mut self) -> Result<(), String> {
        self.worker.finish(&self.rig.engine);
        self.rig.engine.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_page_reads_as_it_was_written(ops in prop::collection::vec(op(), 1..120)) {
        let mut game = Game::new(Rig::new(FRAMES, PAGES, &[64, 64], TUNING));
        for op in &ops {
            prop_assert!(game.play(op), "memory ended");
        }
        for page in 0..PAGES {
            prop_assert!(game.touch(page, None));
        }
        prop_assert_eq!(game.settle(), Ok(()));
    }

    /// One device fails at random, the other is sound: no write is ever lost, and a failed read
    /// loses its own page only.
    #[test]
    fn device_faults_cost_at_most_the_pages_they_hit(
        seed in any::<u64>(),
        ops in prop::collection::vec(op(), 1..120),
        reads in prop::sample::select(vec![0u64, 0, 50]),
        writes in prop::sample::select(vec![0u64, 20, 300]),
    ) {
        let mut game = Game::new(Rig::new(FRAMES, PAGES, &[128, 128], TUNING));
        game.rig.plans[0].set(Faults {
            seed,
            read_failures_per_mille: reads,
            write_failures_per_mille: writes,
            ..Faults::default()
        });
        for op in &ops {
            prop_assert!(game.play(op), "memory ended");
        }
        game.rig.plans[0].set(Faults::default());
        for page in 0..PAGES {
            prop_assert!(game.touch(page, None));
        }
        let lost = game.model.iter().filter(|page| page.is_none()).count();
        prop_assert!(reads > 0 || lost == 0, "{} pages lost without a failed read", lost);
        prop_assert_eq!(game.settle(), Ok(()));
    }
}

/// Exact numbers, worked out by hand. Without batches, windows or zero-around every page is one
/// fault; a region of twice the limit touched twice in order finds nothing in memory the second time.
#[test]
fn counters_of_a_region_twice_the_limit_touched_twice() {
    let plain = Tuning {
        reclaim_batch_pages: 1,
        lru_batch_pages: 1,
        rotate_batch_pages: 1,
        readahead_max_pages: 1,
        zero_around_pages: 1,
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
    // 256 touches, each by a new frame, of which 64 still hold theirs.
    assert_eq!(count(Event::pswpout), 256 - 64);
    assert_eq!(count(Event::pgfault), 256);
    assert_eq!(rig.engine.check(), Ok(()));
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
    assert!(rig.engine.last_trouble().is_some());
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
                    // Each thread counts in its own byte; no increment may get lost.
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
