//! Advice on ranges, and its effect on the counters.

use super::common::{Rig, TUNING};
use super::{READAHEAD, added, read, swapped_out, write};
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_engine::{Pattern, Tuning, Worker};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A program's advice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Advice {
    Pattern(Pattern),
    WillNeed,
    Cold,
    PageOut,
}

pub(crate) fn advice() -> impl Strategy<Value = Advice> {
    let patterns = [Pattern::Normal, Pattern::Sequential, Pattern::Random].map(Advice::Pattern);
    let others = [Advice::WillNeed, Advice::Cold, Advice::PageOut];
    prop::sample::select([&patterns[..], &others[..]].concat())
}

impl Advice {
    /// Gives the advice, and runs the engine until it has been followed.
    pub(crate) fn take(self, rig: &Rig, worker: &mut Worker, first: PageNo, pages: usize) {
        match self {
            Self::Pattern(pattern) => rig.space.set_pattern(pattern),
            Self::WillNeed => {
                rig.engine.will_need(first, pages);
                rig.engine.read_ahead(worker, || false);
            }
            Self::Cold => rig.engine.make_cold(first, pages),
            Self::PageOut => page_out(rig, worker, first, pages),
        }
    }
}

/// Pages out a range on another thread, and acts as the reclaim thread meanwhile.
fn page_out(rig: &Rig, worker: &mut Worker, first: PageNo, pages: usize) {
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.engine.page_out(first, pages);
            gone.store(true, Ordering::Relaxed);
            rig.engine.wake_background();
        });
        while !gone.load(Ordering::Relaxed) {
            rig.engine.balance(worker, || gone.load(Ordering::Relaxed));
        }
    });
}

#[test]
fn a_random_range_reads_the_page_that_is_missing_and_no_other() {
    let (rig, mut worker) = swapped_out(TUNING);
    rig.space.set_pattern(Pattern::Random);
    let before = added(&rig, READAHEAD, [0; 5]);
    (0..64).for_each(|page| read(&rig, &mut worker, page));
    assert_eq!(added(&rig, READAHEAD, before), [64, 0, 0, 0, 0]);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn a_random_range_is_not_filled_with_zeros_in_advance() {
    for (pattern, faults) in [(Pattern::Normal, 1 + 8), (Pattern::Random, 33)] {
        let rig = Rig::new(256, 64, &[256], TUNING);
        let mut worker = Worker::new(&rig.engine).unwrap();
        rig.space.set_pattern(pattern);
        for page in 0..33 {
            rig.touch(&mut worker, PageNo(page), |_| {});
        }
        assert_eq!(rig.engine.stats().get(Event::pgfault), faults, "{pattern:?}");
    }
}

#[test]
fn a_sequential_range_is_read_by_whole_windows_from_the_start() {
    let (rig, mut worker) = swapped_out(TUNING);
    rig.space.set_pattern(Pattern::Sequential);
    let before = added(&rig, READAHEAD, [0; 5]);
    (0..64).for_each(|page| read(&rig, &mut worker, page));
    // Windows of 8; the last one is not proven to be passed.
    assert_eq!(added(&rig, READAHEAD, before), [8, 56, 49, 0, 0]);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn a_reader_of_every_fourth_page_faults_once_a_window() {
    let (rig, mut worker) = swapped_out(TUNING);
    let before = added(&rig, READAHEAD, [0; 5]);
    (0..64).step_by(4).for_each(|page| read(&rig, &mut worker, page));
    // Faults at 0, 4, 8, 16, 32: windows of 1, 1, 2, 4 and 8 pages, all of them used.
    assert_eq!(added(&rig, READAHEAD, before), [5, 1 + 3 + 7, 1 + 3, 0, 0]);
    assert!((0..64).all(|page| rig.engine.is_resident(PageNo(page)) == (page % 4 == 0)));
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn what_will_be_needed_is_there_when_it_is() {
    let (rig, mut worker) = swapped_out(TUNING);
    rig.engine.will_need(PageNo(8), 32);
    let before = added(&rig, READAHEAD, [0; 5]);
    rig.engine.read_ahead(&mut worker, || false);
    worker.finish(&rig.engine);
    (8..40).for_each(|page| read(&rig, &mut worker, page));
    assert_eq!(added(&rig, READAHEAD, before), [0; 5]);
    assert!(!rig.engine.is_resident(PageNo(7)) && !rig.engine.is_resident(PageNo(40)));
    assert_eq!(rig.engine.check(), Ok(()));
}

/// A quarter of memory is read, in chunks; the rest is read by its faults.
#[test]
fn no_more_is_read_than_does_not_evict_itself() {
    let rig = Rig::on_one_cpu(512, 2048, &[4096], Tuning::default());
    let mut worker = Worker::new(&rig.engine).unwrap();
    (0..2048).for_each(|page| write(&rig, &mut worker, page));
    worker.finish(&rig.engine);
    let before = added(&rig, [Event::pswpin], [0]);
    rig.engine.will_need(PageNo(0), 1024);
    (0..2).for_each(|_| rig.engine.read_ahead(&mut worker, || false));
    worker.finish(&rig.engine);
    assert_eq!(added(&rig, [Event::pswpin], before), [128]);
    assert!((0..128).all(|page| rig.engine.is_resident(PageNo(page))));
    assert_eq!(rig.engine.check(), Ok(()));
}

/// Makes an engine with 128 of 256 frames in use.
fn resident(tuning: Tuning) -> (Rig, Worker) {
    let rig = Rig::on_one_cpu(256, 512, &[1024], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    (0..128).for_each(|page| write(&rig, &mut worker, page));
    (rig, worker)
}

#[test]
fn cold_pages_go_first() {
    let (rig, mut worker) = resident(TUNING);
    // The youngest pages, not adjacent to the ones touched next.
    rig.engine.make_cold(PageNo(96), 32);
    let mut next = 256;
    while (96..128).any(|page| rig.engine.is_resident(PageNo(page))) {
        write(&rig, &mut worker, next);
        worker.finish(&rig.engine);
        next += 1;
    }
    assert!((0..96).chain(256..next).all(|page| rig.engine.is_resident(PageNo(page))));
    (0..128).for_each(|page| read(&rig, &mut worker, page));
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn pages_told_to_go_are_written_and_free_when_the_call_returns() {
    // With writes that free their frames at once, and with frames that wait for rotation.
    for frees_at_once in [true, false] {
        let (rig, worker) = resident(Tuning { frees_at_once, ..TUNING });
        go_and_come(&rig, worker);
    }
}

fn go_and_come(rig: &Rig, mut worker: Worker) {
    let free = rig.engine.status().free_frames;
    page_out(rig, &mut worker, PageNo(10), 100);
    let out = |page| !rig.engine.is_resident(PageNo(page));
    assert!((0..128).all(|page| out(page) == (10..110).contains(&page)));
    assert_eq!(rig.engine.stats().get(Event::pswpout), 100);
    assert_eq!(rig.engine.status().free_frames, free + 100);
    (0..128).for_each(|page| read(rig, &mut worker, page));
    worker.finish(&rig.engine);
    assert_eq!(rig.engine.check(), Ok(()));
}
