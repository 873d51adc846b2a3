//! Pages of several programs in one engine: adopted, given to children, dropped.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::resident::resident_bytes;
use common::{Rig, TUNING, Touch};
use overspill_area::AreaNo;
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{PAGE_SIZE, PageNo, Slot};
use overspill_device::faulty::Faults;
use overspill_engine::{Engine, EngineParts, PageTable, Space, Tuning, Worker};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Without batches, windows or fault-around, so that pages leave in order, one by one.
const PLAIN: Tuning = Tuning {
    reclaim_batch_pages: 1,
    lru_batch_pages: 1,
    rotate_batch_pages: 1,
    readahead_max_pages: 1,
    fault_around_pages: 1,
    ..TUNING
};

fn value(page: u32) -> u8 {
    page as u8 | 1
}

/// Puts pages into memory without the engine.
fn fill(rig: &Rig, pages: Range<u32>) {
    for page in pages {
        rig.space.fill(PageNo(page), &[value(page); PAGE_SIZE]);
    }
}

fn adopt(rig: &Rig, worker: &mut Worker, pages: Range<u32>) -> usize {
    let in_memory = |asked| rig.space.present(asked);
    rig.engine.adopt(worker, PageNo(pages.start), pages.len(), in_memory)
}

/// Makes a child of `pages` pages at `to`, and adopts what it has in memory.
fn fork(rig: &Rig, worker: &mut Worker, from: u32, to: u32, pages: u32) {
    let parent = PageNo(from)..PageNo(from + pages);
    rig.space.while_frozen(&parent, || {
        (0..pages).for_each(|n| rig.space.fork(PageNo(from + n), PageNo(to + n)));
        let is_present = |page| rig.space.is_present(page);
        let ends = (PageNo(from), PageNo(to));
        assert_eq!(rig.engine.share(worker, ends, pages as usize, is_present), Ok(()));
    });
    assert_eq!(adopt(rig, worker, to..to + pages), pages as usize);
}

/// Checks that the pages from `to` on hold what belongs to those from `from` on.
fn expect(rig: &Rig, worker: &mut Worker, from: u32, to: u32, pages: u32) {
    for n in 0..pages {
        let right = |content: &mut [u8]| {
            assert!(content.iter().all(|&byte| byte == content[0]), "page {} is torn", to + n);
            assert_eq!(content[0], value(from + n), "page {}", to + n);
        };
        assert_eq!(rig.touch(worker, PageNo(to + n), right), Touch::Done, "page {}", to + n);
    }
}

/// Evicts everything that is not locked, by pages of nobody else.
fn push_out(rig: &Rig, worker: &mut Worker, scratch: Range<u32>) {
    for page in scratch.clone() {
        let written = rig.touch(worker, PageNo(page), |content| content.fill(7));
        assert_eq!(written, Touch::Done);
    }
    worker.finish(&rig.engine);
    rig.engine.discard(PageNo(scratch.start), scratch.len());
    rig.engine.drain();
}

/// Pages of a parent, of its child, and to push others out with.
const PAGES: u32 = 64;
const CHILD: u32 = 64;
const SCRATCH: Range<u32> = 128..128 + 320;

/// Makes a parent of [`PAGES`] pages that are out, each on its slot.
fn parent(slots: u32) -> (Rig, Worker) {
    let rig = Rig::on_one_cpu(256, SCRATCH.end as usize + 64, &[slots], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..PAGES);
    push_out(&rig, &mut worker, SCRATCH);
    assert!((0..PAGES).all(|page| !rig.engine.is_resident(PageNo(page))));
    (rig, worker)
}

fn count(rig: &Rig, event: Event) -> u64 {
    rig.engine.stats().get(event)
}

#[test]
fn adopted_pages_are_evicted_in_the_order_given() {
    let rig = Rig::on_one_cpu(32, 128, &[256], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    fill(&rig, 0..100);
    assert_eq!(adopt(&rig, &mut worker, 50..100), 50);
    assert_eq!(adopt(&rig, &mut worker, 0..50), 50);
    worker.finish(&rig.engine);
    let order = (50..100).chain(0..50);
    let states: Vec<bool> = order.map(|page| rig.engine.is_resident(PageNo(page))).collect();
    let out = states.iter().filter(|&&resident| !resident).count();
    assert!((100 - 32..100).contains(&out), "{out} are out");
    assert!(states[..out].iter().all(|&resident| !resident), "{states:?}");
    expect(&rig, &mut worker, 0, 0, 100);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// They are zeros, so that each frame is free at once, without a write; and not adjacent, so that
/// they do not leave together.
#[test]
fn of_pages_adopted_together_the_first_goes_first() {
    let rig = Rig::on_one_cpu(32, 128, &[256], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    let adopted: Vec<PageNo> = (0..24).map(|n| PageNo(2 * n)).collect();
    adopted.iter().for_each(|&page| rig.space.fill(page, &[0; PAGE_SIZE]));
    assert_eq!(adopt(&rig, &mut worker, 0..48), 48);
    rig.write(&mut worker, 100..116);
    let states: Vec<bool> = adopted.iter().map(|&page| rig.engine.is_resident(page)).collect();
    let out = states.iter().filter(|&&resident| !resident).count();
    assert!((1..24).contains(&out), "{out} are out");
    assert!(states[..out].iter().all(|&resident| !resident), "{states:?}");
}

#[test]
fn without_anything_to_evict_adoption_says_how_far_it_came() {
    let rig = Rig::on_one_cpu(32, 64, &[], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    fill(&rig, 0..64);
    assert_eq!(adopt(&rig, &mut worker, 0..64), 32);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// Pages that are missing, known, or missing by the time they are asked about stay as they are.
#[test]
fn only_what_is_in_memory_is_adopted() {
    let rig = Rig::on_one_cpu(32, 64, &[256], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..4);
    fill(&rig, 4..8);
    assert_eq!(adopt(&rig, &mut worker, 0..64), 64);
    assert_eq!(count(&rig, Event::pgadopt), 4);
    assert!(!rig.engine.is_resident(PageNo(8)));
    expect(&rig, &mut worker, 0, 0, 8);
    let zeros = |content: &mut [u8]| assert_eq!(content[0], 0);
    assert_eq!(rig.touch(&mut worker, PageNo(8), zeros), Touch::Done);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// The child costs no slot and no write, until it or its parent changes a page.
#[test]
fn a_child_is_on_its_parents_slots_until_one_of_them_changes() {
    let (rig, mut worker) = parent(1024);
    let (written, used) = (count(&rig, Event::pswpout), rig.used_slots(AreaNo(0)));
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    assert_eq!(rig.used_slots(AreaNo(0)), used);
    assert_eq!(rig.engine.areas().get(AreaNo(0)).slot_map().holders(Slot(3)), Some(2));
    assert_eq!(rig.engine.check(), Ok(()));
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    let change = |content: &mut [u8]| content.fill(0x77);
    assert_eq!(rig.touch(&mut worker, PageNo(CHILD + 5), change), Touch::Done);
    let before = count(&rig, Event::swpout_clean);
    push_out(&rig, &mut worker, SCRATCH);
    let clean = count(&rig, Event::swpout_clean) - before;
    assert_eq!(clean, u64::from(2 * PAGES - 1), "all but one were as on their slots");
    assert_eq!(rig.engine.check(), Ok(()));
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, 5);
    let changed = |content: &mut [u8]| assert_eq!(content[0], 0x77);
    assert_eq!(rig.touch(&mut worker, PageNo(CHILD + 5), changed), Touch::Done);
    assert!(count(&rig, Event::pswpout) > written);
}

#[test]
fn the_pages_of_a_slot_give_it_up_one_by_one() {
    let (rig, mut worker) = parent(1024);
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    let used = rig.used_slots(AreaNo(0));
    // The child's first page is in memory, and a copy on the slot.
    expect(&rig, &mut worker, 0, CHILD, 1);
    rig.engine.discard(PageNo(0), PAGES as usize);
    rig.engine.drain();
    assert_eq!(rig.used_slots(AreaNo(0)), used, "all slots are the child's");
    assert_eq!(rig.engine.check(), Ok(()));
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    rig.engine.discard(PageNo(CHILD), PAGES as usize);
    rig.engine.drain();
    assert_eq!(rig.used_slots(AreaNo(0)), used - PAGES);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// What a dropped page left in the swap cache does not count for the page that comes there next.
#[test]
fn a_page_comes_back_to_a_slot_that_it_was_on_before() {
    let by_slot = Tuning { preset: overspill_area::Preset::Linux4_8, ..TUNING };
    let rig = Rig::on_one_cpu(256, SCRATCH.end as usize, &[1024], by_slot);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..PAGES);
    push_out(&rig, &mut worker, SCRATCH);
    // Reads the pages around it ahead, which wait in the swap cache.
    expect(&rig, &mut worker, 8, 8, 1);
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    assert!(rig.engine.status().cached > 4);
    rig.engine.discard(PageNo(0), PAGES as usize);
    fork(&rig, &mut worker, CHILD, 0, PAGES);
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    worker.finish(&rig.engine);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// It is in staging memory only, and stays there.
#[test]
fn a_page_whose_write_failed_is_in_the_child_too() {
    let rig = Rig::on_one_cpu(64, 256, &[128], PLAIN);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..60);
    rig.swapon_below(128, -1);
    rig.plans[0].set(Faults { fail_writes_from: Some(0), ..Faults::default() });
    rig.write(&mut worker, 200..208);
    assert!(count(&rig, Event::write_errors) > 0);
    let staged = (0..60).find(|&page| !rig.space.is_present(PageNo(page))).unwrap();
    fork(&rig, &mut worker, staged, 100, 1);
    assert_eq!(count(&rig, Event::pgshare), 0, "there was no slot to share");
    expect(&rig, &mut worker, staged, 100, 1);
    expect(&rig, &mut worker, 0, 0, 60);
    worker.finish(&rig.engine);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn a_page_that_is_lost_is_lost_in_the_child() {
    let (rig, mut worker) = parent(1024);
    rig.plans[0].set(Faults { read_failures_per_mille: 1000, ..Faults::default() });
    assert_eq!(rig.touch(&mut worker, PageNo(3), |_| ()), Touch::Poisoned);
    rig.plans[0].set(Faults::default());
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    assert_eq!(rig.touch(&mut worker, PageNo(CHILD + 3), |_| ()), Touch::Poisoned);
    expect(&rig, &mut worker, 0, CHILD, 3);
}

/// Never zeros: the page's content at the fork is not known any more.
#[test]
fn a_page_that_came_back_before_the_child_got_it_is_lost_in_the_child() {
    let (rig, mut worker) = parent(1024);
    expect(&rig, &mut worker, 0, 0, 1);
    let ends = (PageNo(0), PageNo(CHILD));
    assert_eq!(rig.engine.share(&mut worker, ends, 2, |_| false), Ok(()));
    assert_eq!(rig.touch(&mut worker, PageNo(CHILD), |_| ()), Touch::Poisoned);
    expect(&rig, &mut worker, 1, CHILD + 1, 1);
    assert_eq!(count(&rig, Event::pages_lost), 1);
}

#[test]
fn an_area_with_shared_slots_is_swapped_off() {
    let (rig, mut worker) = parent(1024);
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    expect(&rig, &mut worker, 0, CHILD, 3);
    rig.swapon(1024).unwrap();
    assert_eq!(rig.engine.swapoff(&mut worker, AreaNo(0)), Ok(()));
    assert_eq!(rig.used_slots(AreaNo(0)), 0);
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// Parent and child, locked in memory, are copies of 64 slots; the other pages need all but 16.
#[test]
fn copies_of_several_pages_are_given_up_when_slots_run_out() {
    let slots = 3 * PAGES;
    let (rig, mut worker) = parent(slots);
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    rig.engine.drain();
    assert_eq!(rig.used_slots(AreaNo(0)), PAGES);
    (0..2 * PAGES).for_each(|page| assert!(rig.engine.set_unevictable(PageNo(page), true)));
    let others = SCRATCH.start..SCRATCH.start + 256 - 2 * PAGES + slots - 16;
    rig.write(&mut worker, others);
    assert_eq!(rig.engine.check(), Ok(()));
    expect(&rig, &mut worker, 0, CHILD, PAGES);
}

/// A mapped page's copy is found when slots run out, also if another page was on the slot that has
/// left memory and gone.
#[test]
fn a_copy_is_found_when_the_other_page_of_its_slot_has_gone() {
    let slots = 3 * PAGES;
    let (rig, mut worker) = parent(slots);
    fork(&rig, &mut worker, 0, CHILD, PAGES);
    expect(&rig, &mut worker, 0, 0, PAGES);
    expect(&rig, &mut worker, 0, CHILD, PAGES);
    (0..PAGES).for_each(|page| assert!(rig.engine.set_unevictable(PageNo(page), true)));
    push_out(&rig, &mut worker, SCRATCH.start..SCRATCH.start + 256);
    assert!((CHILD..2 * CHILD).all(|page| !rig.engine.is_resident(PageNo(page))));
    rig.engine.discard(PageNo(CHILD), PAGES as usize);
    let others = SCRATCH.start..SCRATCH.start + 256 - PAGES + slots - 16;
    rig.write(&mut worker, others);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// 16 pages that are not adjacent leave with one call, not 16, and one that is refused among them
/// does not disturb the others.
#[test]
fn a_batch_leaves_with_one_call() {
    let tuning = Tuning { reclaim_batch_pages: 16, ..PLAIN };
    let rig = Rig::on_one_cpu(64, 256, &[256], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.space.pin(Some(PageNo(20)));
    let even = || (0..128).filter(|page| page % 2 == 0);
    for page in even() {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(value(page)));
    }
    rig.write(&mut worker, 200..216);
    let (calls, out) = (rig.space.unmaps.load(Relaxed) as u64, count(&rig, Event::pswpout));
    assert!(out >= 16 && calls * 8 <= out, "{calls} calls for {out} pages");
    assert!(rig.engine.is_resident(PageNo(20)) && !rig.engine.is_resident(PageNo(22)));
    even().for_each(|page| expect(&rig, &mut worker, page, page, 1));
}

/// A page in the middle of a run that is refused stays, those around it leave.
#[test]
fn a_refused_page_keeps_only_itself() {
    let tuning = Tuning { reclaim_batch_pages: 16, ..PLAIN };
    let rig = Rig::on_one_cpu(64, 256, &[256], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.space.pin(Some(PageNo(5)));
    rig.write(&mut worker, 0..100);
    assert!(rig.engine.is_resident(PageNo(5)));
    assert!(!rig.engine.is_resident(PageNo(4)) && !rig.engine.is_resident(PageNo(6)));
    rig.verify(&mut worker, 100);
}

/// What a call leaves of a run without a reason leaves with another one.
#[test]
fn a_run_that_moves_in_parts_leaves_all_the_same() {
    let tuning = Tuning { reclaim_batch_pages: 16, ..PLAIN };
    let rig = Rig::on_one_cpu(64, 256, &[256], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.space.most_at_once.store(3, Relaxed);
    rig.write(&mut worker, 0..100);
    assert!(count(&rig, Event::pswpout) >= 36);
    rig.verify(&mut worker, 100);
}

/// 4 TiB of page numbers, of which 4096 are used: neither pages nor walks touch the rest.
#[test]
fn pages_that_were_never_touched_cost_nothing() {
    const NUMBERS: usize = 1 << 30;
    let words = Table::private(NUMBERS).unwrap();
    let space = common::SimSpace::new(4096);
    let engine = Arc::new(Engine::new(EngineParts {
        frames: 256,
        table: PageTable::new(words.clone()),
        space: Space::Moving(space.clone()),
        page_bytes: PAGE_SIZE,
        swaps: vec![],
        arena: PageArena::new(Engine::staging_pages(256)).unwrap(),
        stats: Stats::on_heap(),
        report: Box::new(|_| {}),
        tuning: PLAIN,
        cpus: Cpus { count: 1, current: || 0 },
    }));
    let rig = Rig { engine, space, plans: vec![] };
    let mut worker = Worker::new(&rig.engine).unwrap();
    assert_eq!(resident_bytes(&words), 0);
    rig.swapon(8192).unwrap();
    rig.write(&mut worker, 0..4096);
    rig.swapon(8192).unwrap();
    assert_eq!(rig.engine.swapoff(&mut worker, AreaNo(0)), Ok(()));
    assert_eq!(rig.engine.check(), Ok(()));
    rig.engine.discard(PageNo(1 << 29), 4096);
    assert_eq!(resident_bytes(&words), 4096 * size_of::<AtomicU64>());
}

/// A guest that reads on to its end gets zeros in advance, and the next one none of them: those
/// would be there before what a child gets of its parent.
#[test]
fn zeros_end_with_their_guest() {
    let rig = Rig::on_one_cpu(64, 64, &[64], TUNING);
    rig.space.guest_pages.store(16, Relaxed);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 32..48);
    let before = count(&rig, Event::pgzero);
    rig.write(&mut worker, 0..14);
    assert_eq!(count(&rig, Event::pgzero) - before, 16);
    fork(&rig, &mut worker, 32, 16, 16);
    expect(&rig, &mut worker, 32, 16, 16);
    assert_eq!(rig.engine.check(), Ok(()));
}

/// Each thread has a parent and a child, and knows what is on their pages.
struct Family<'a> {
    rig: &'a Rig,
    first: u32,
    model: [u8; 2 * GUEST as usize],
    random: fastrand::Rng,
    worker: Worker,
}

/// Pages of a guest. Two have more than there are frames, so that pages leave memory even if the
/// families run one after the other.
const GUEST: u32 = 24;

impl Family<'_> {
    fn touch(&mut self) {
        let n = self.random.u32(0..2 * GUEST);
        let (right, write) = (self.model[n as usize], self.random.bool());
        let next = if write { self.random.u8(..) } else { right };
        let mut seen = None;
        let touched = self.rig.touch(&mut self.worker, PageNo(self.first + n), |content| {
            let is_torn = content.iter().any(|&byte| byte != content[0]);
            seen = (!is_torn).then_some(content[0]);
            content.fill(next);
        });
        assert_eq!((touched, seen), (Touch::Done, Some(right)), "page {n}");
        self.model[n as usize] = next;
    }

    /// Ends the child and makes another, or makes the child the parent.
    fn fork(&mut self) {
        let (old, new) = if self.random.bool() { (0, GUEST) } else { (GUEST, 0) };
        self.worker.finish(&self.rig.engine);
        self.rig.engine.discard(PageNo(self.first + new), GUEST as usize);
        fork(self.rig, &mut self.worker, self.first + old, self.first + new, GUEST);
        self.model.copy_within(old as usize..(old + GUEST) as usize, new as usize);
    }
}

/// Also of a thread that has failed: the others would wait for ever for what it was reading, and
/// nobody would learn why.
impl Drop for Family<'_> {
    fn drop(&mut self) {
        self.worker.finish(&self.rig.engine);
    }
}

#[test]
fn families_of_several_threads_do_not_disturb_each_other() {
    const THREADS: u32 = 3;
    const TUNINGS: [Tuning; 2] =
        [TUNING, Tuning { preset: overspill_area::Preset::Linux4_8, ..TUNING }];
    for tuning in TUNINGS {
        let rig = Rig::on_one_cpu(40, (THREADS * 2 * GUEST) as usize, &[200], tuning);
        rig.space.guest_pages.store(GUEST as usize, Relaxed);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (rig, stop) = (&rig, &stop);
            let families = [0, 1, 2].map(|thread| {
                scope.spawn(move || {
                    let mut family = Family {
                        rig,
                        first: thread * 2 * GUEST,
                        model: [0; 2 * GUEST as usize],
                        random: fastrand::Rng::with_seed(u64::from(thread)),
                        worker: Worker::new(&rig.engine).unwrap(),
                    };
                    for _ in 0..100 {
                        (0..20).for_each(|_| family.touch());
                        family.fork();
                    }
                })
            });
            let changer = scope.spawn(move || {
                let mut worker = Worker::new(&rig.engine).unwrap();
                while !stop.load(Relaxed) && rig.swapon(200).is_ok() {
                    let oldest = rig.engine.swaps()[0].area;
                    let _ = rig.engine.swapoff(&mut worker, oldest);
                    worker.finish(&rig.engine);
                }
            });
            families.into_iter().for_each(|family| family.join().unwrap());
            stop.store(true, Relaxed);
            changer.join().unwrap();
        });
        assert!(count(&rig, Event::pgshare) > 1000);
        assert_eq!(count(&rig, Event::pages_lost), 0);
        assert_eq!(rig.engine.check(), Ok(()));
    }
}
