//! Pools over devices that fail, fill up and are slow, against an array as the model.

use super::*;
use crate::builder::OpenedSwap;
use overspill_base::Slot;
use overspill_base::stats::Event;
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{DeviceInfo, IoQueue, SwapDevice};
use proptest::prelude::*;

const MEMORY: Bytes = Bytes(4 << 20);
const FRAMES: u32 = 1024;

fn open(spec: &str) -> Arc<dyn SwapDevice> {
    Arc::new(FileDevice::open(&spec.parse().unwrap(), &OpenOptions::default()).unwrap())
}

fn pool_over(device: Arc<dyn SwapDevice>, page: u64) -> Pool {
    let swap = OpenedSwap { device, kind: "ram", priority: 0 };
    let builder = Pool::builder().memory(MEMORY).page_size(Bytes(page));
    builder.build_over(vec![swap], Box::new(|_| {})).unwrap()
}

fn failing(spec: &str, faults: Faults) -> Pool {
    let plan = Arc::new(FaultPlan::new(faults));
    pool_over(Arc::new(Faulty::new(open(spec), plan)), 4096)
}

/// A memory device that reports asynchronous transfers, so that there is a reclaim thread.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn SwapDevice>,
    info: DeviceInfo,
}

impl SwapDevice for Slow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, overspill_device::DeviceError> {
        self.inner.grow(slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, overspill_device::DeviceError> {
        self.inner.open_queue(depth)
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), overspill_device::DeviceError> {
        self.inner.discard(first, slots)
    }
}

fn slow(spec: &str) -> Arc<dyn SwapDevice> {
    let inner = open(spec);
    let info = DeviceInfo { synchronous: false, ..inner.info().clone() };
    Arc::new(Slow { inner, info })
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        page: u32,
        value: u8,
    },
    Read {
        page: u32,
    },
    Look {
        page: u32,
    },
    Prefetch {
        first: u32,
        pages: u32,
    },
    Discard {
        first: u32,
        pages: u32,
    },
    /// Enough pages to evict all others.
    Sweep {
        value: u8,
    },
}

/// Pages the episodes use; a sweep writes as many as fit into memory, after them.
const PAGES: u32 = 300;

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PAGES;
    prop_oneof![
        6 => (page.clone(), any::<u8>()).prop_map(|(page, value)| Op::Write { page, value }),
        6 => page.clone().prop_map(|page| Op::Read { page }),
        3 => page.clone().prop_map(|page| Op::Look { page }),
        2 => (page.clone(), 1..100u32).prop_map(|(first, pages)| Op::Prefetch { first, pages }),
        1 => (page, 1..50u32).prop_map(|(first, pages)| Op::Discard { first, pages }),
        2 => any::<u8>().prop_map(|value| Op::Sweep { value }),
    ]
}

/// A pool, and the byte that fills each page; none for a page that may be lost.
struct Episode {
    pool: Pool,
    model: Vec<u8>,
    /// Reads fail as planned, so pages are lost.
    loses: bool,
    lost: u64,
}

impl Episode {
    fn new(pool: Pool, loses: bool) -> Self {
        Self { pool, model: vec![0; PAGES as usize], loses, lost: 0 }
    }

    fn play(&mut self, op: &Op) {
        match *op {
            Op::Write { page, value } => self.write(page, value),
            Op::Read { page } => self.read(page),
            Op::Look { page } => {
                if let Some([a, b]) = self.pool.read_optimistic::<[u8; 2]>(PageNo(page), 4094) {
                    assert_eq!([a, b], [self.model[page as usize]; 2], "page {page}");
                }
            }
            Op::Prefetch { first, pages } => {
                self.pool.prefetch((first..first + pages).map(PageNo)).unwrap();
            }
            Op::Discard { first, pages } => self.discard(first, pages.min(PAGES - first)),
            Op::Sweep { value } => (PAGES..PAGES + FRAMES).for_each(|page| {
                // A page of a sweep may be lost; then it does not evict others.
                if let Ok(mut guard) = self.pool.write(PageNo(page)) {
                    guard.fill(value);
                }
            }),
        }
    }

    fn write(&mut self, page: u32, value: u8) {
        let pool = self.pool.clone();
        match pool.write(PageNo(page)) {
            Ok(mut guard) => {
                assert!(guard.iter().all(|&byte| byte == self.model[page as usize]), "page {page}");
                guard.fill(value);
                self.model[page as usize] = value;
            }
            Err(error) => self.lose(page, &error),
        }
    }

    fn read(&mut self, page: u32) {
        let pool = self.pool.clone();
        match pool.read(PageNo(page)) {
            Ok(guard) => {
                let expected = self.model[page as usize];
                assert!(guard.iter().all(|&byte| byte == expected), "page {page}");
            }
            Err(error) => self.lose(page, &error),
        }
    }

    /// A lost page returns the error until it is discarded.
    fn lose(&mut self, page: u32, error: &PoolError) {
        assert!(
            self.loses && matches!(error, PoolError::Lost { page: lost, .. } if lost.0 == page),
            "{error}"
        );
        assert!(matches!(self.pool.read(PageNo(page)), Err(PoolError::Lost { .. })));
        self.lost += 1;
        self.discard(page, 1);
    }

    fn discard(&mut self, first: u32, pages: u32) {
        self.pool.discard(PageNo(first), pages as usize).unwrap();
        self.model[first as usize..][..pages as usize].fill(0);
    }

    fn end(&mut self) {
        (0..PAGES).for_each(|page| self.read(page));
        self.pool.prefetch([]).unwrap();
        if self.pool.core.finish() {
            assert_eq!(self.pool.core.engine().check(), Ok(()));
        }
    }
}

fn play(pool: Pool, loses: bool, ops: &[Op]) -> Episode {
    let mut episode = Episode::new(pool, loses);
    ops.iter().for_each(|op| episode.play(op));
    episode.end();
    episode
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_keeps_what_was_written(ops in prop::collection::vec(op(), 1..120)) {
        play(pool_over(open("ram:16M"), 4096), false, &ops);
    }

    #[test]
    fn a_pool_with_a_reclaim_thread_keeps_what_was_written(ops in prop::collection::vec(op(), 1..120)) {
        play(pool_over(slow("ram:16M"), 4096), false, &ops);
    }

    /// A failed read loses its page and no other; a failed write loses nothing.
    #[test]
    fn failing_reads_cost_their_pages_and_failing_writes_nothing(
        seed in any::<u64>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let faults = Faults { seed, read_failures_per_mille: 100, ..Faults::default() };
        play(failing("ram:16M", faults), true, &ops);
    }
}

/// If the device fails all writes, what is in memory stays usable and nothing is read wrong.
#[test]
fn when_nothing_can_be_written_the_error_says_why_and_nothing_is_lost() {
    let pool = failing("ram:16M", Faults { fail_writes_from: Some(0), ..Faults::default() });
    let fits = |page: &u32| match pool.write(PageNo(*page)) {
        Ok(mut guard) => {
            guard.fill(7);
            true
        }
        Err(error) => {
            assert!(matches!(&error, PoolError::OutOfSwap { .. }), "{error}");
            assert!(error.to_string().contains("ram"), "{error}");
            false
        }
    };
    let written = (0..2 * FRAMES).take_while(fits).count() as u32;
    assert!((FRAMES / 2..=FRAMES).contains(&written), "{written} pages fitted");
    for page in 0..written {
        assert!(pool.read(PageNo(page)).unwrap().iter().all(|&byte| byte == 7), "page {page}");
    }
}

#[test]
fn a_page_that_was_lost_is_an_error_and_discarding_it_makes_it_zeros() {
    let pool = failing("ram:16M", Faults { fail_read: Some(0), ..Faults::default() });
    (0..2 * FRAMES).for_each(|page| pool.write(PageNo(page)).unwrap().fill(9));
    let lost = (0..2 * FRAMES).find_map(|page| pool.read(PageNo(page)).err()).unwrap();
    let PoolError::Lost { page, ref why } = lost else { panic!("{lost}") };
    assert!(why.contains("a page is lost: ") && !why.contains("SIGBUS"), "{why}");
    assert!(pool.try_write(page).is_err() && pool.read_optimistic::<u8>(page, 0).is_none());
    pool.discard(page, 1).unwrap();
    assert_eq!(pool.read(page).unwrap()[4095], 0);
}

/// A page that was only read is known to be clean: it is not written again, and no slot is asked
/// what it holds.
#[test]
fn pages_that_were_only_read_are_written_once() {
    let pool = pool_over(open("ram:16M"), 4096);
    (0..2 * FRAMES).for_each(|page| pool.write(PageNo(page)).unwrap().fill(5));
    let written = |pool: &Pool| pool.core.engine().stats().get(Event::pswpout);
    // Twice over everything: by then every changed page has been evicted once.
    (0..4 * FRAMES).for_each(|n| drop(pool.read(PageNo(n % (2 * FRAMES))).unwrap()));
    let before = written(&pool);
    (0..4 * FRAMES).for_each(|n| drop(pool.read(PageNo(n % (2 * FRAMES))).unwrap()));
    assert_eq!(written(&pool), before);
    assert!(pool.summary().pages_in >= 4 * u64::from(FRAMES));
}

#[test]
fn a_page_used_again_outlives_pages_used_once() {
    let pool = pool_over(open("ram:32M"), 4096);
    pool.write(PageNo(0)).unwrap().fill(1);
    for page in 1..6 * FRAMES {
        drop(pool.write(PageNo(page)).unwrap());
        if page % (FRAMES / 4) == 0 {
            assert!(pool.core.engine().is_resident(PageNo(0)), "gone after {page} others");
            drop(pool.read(PageNo(0)).unwrap());
        }
    }
}

/// A page that has a copy on a slot and was changed in memory must not be taken for that copy if
/// there is no slot for the change.
#[test]
fn a_change_that_cannot_be_written_is_kept() {
    let plan = Arc::new(FaultPlan::new(Faults::default()));
    let pool = pool_over(Arc::new(Faulty::new(open("ram:16M"), plan.clone())), 4096);
    (0..2 * FRAMES).for_each(|page| pool.write(PageNo(page)).unwrap().fill(5));
    (0..2 * FRAMES).for_each(|page| drop(pool.read(PageNo(page)).unwrap()));
    plan.set(Faults { fail_writes_from: Some(0), ..Faults::default() });
    let mut model = vec![5; 2 * FRAMES as usize];
    for page in (0..2 * FRAMES).rev().step_by(3) {
        if let Ok(mut guard) = pool.write(PageNo(page)) {
            guard.fill(6);
            model[page as usize] = 6;
        }
    }
    // A page that could not be written is published again; if not used, it is chosen as a victim
    // once more, as clean.
    let unchanged = |page: &u32| model[*page as usize] == 5;
    for page in (0..2 * FRAMES).filter(unchanged).cycle().take(8 * FRAMES as usize) {
        drop(pool.read(PageNo(page)));
    }
    let mut seen = 0;
    for page in 0..2 * FRAMES {
        if let Ok(guard) = pool.read(PageNo(page)) {
            let expected = model[page as usize];
            assert!(guard.iter().all(|&byte| byte == expected), "page {page}");
            seen += 1;
        }
    }
    assert!(seen >= FRAMES && model.contains(&6), "{seen} pages could be read");
}
