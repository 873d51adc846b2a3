//! Regions whose faults are signals, and pins, against the real kernel.
//!
//! Skips, printing the reason, if userfaultfd is not permitted.

mod ends;
mod fork;
#[path = "../common/reach.rs"]
mod reach;

use overspill::{Advice, Bytes, Error, Faults, Overspill, Region};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

const PAGE: usize = 4096;
const LIMIT: Bytes = Bytes(8 << 20);
const SIZE: Bytes = Bytes(32 << 20);

/// Counts what threads allocate and free while they only touch memory.
struct Counting;

thread_local! {
    static TOUCHING: Cell<bool> = const { Cell::new(false) };
}
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if TOUCHING.get() {
        CALLS.fetch_add(1, Relaxed);
    }
}

// SAFETY: the system's allocator, called as we are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn overspill(swap: &str) -> Option<Overspill> {
    overspill_of(PAGE, swap)
}

/// Makes one with the least memory for pages of this size.
fn overspill_of(page: usize, swap: &str) -> Option<Overspill> {
    let builder = Overspill::builder().memory(LIMIT.max(Bytes(16 * page as u64)));
    reach::build(builder.page_size(Bytes(page as u64)).swap(swap.parse().unwrap()))
}

#[test]
fn all_of_this_in_each_reach() {
    reach::run_in_each_other(&[]);
}

fn by_signal(overspill: &Overspill) -> Region {
    overspill.region_options().faults(Faults::Signal).build(SIZE).unwrap()
}

fn next(random: &mut u64) -> usize {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

fn word(page: usize, version: u64) -> u64 {
    (page as u64) << 32 ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn write(memory: &mut [u8], page: usize, version: u64) {
    for bytes in memory[page * PAGE..][..PAGE].chunks_exact_mut(8) {
        bytes.copy_from_slice(&word(page, version).to_ne_bytes());
    }
}

fn is(memory: &[u8], page: usize, version: u64) -> bool {
    let expected = word(page, version).to_ne_bytes();
    memory[page * PAGE..][..PAGE].chunks_exact(8).all(|bytes| bytes == expected)
}

fn fill(memory: &mut [u8]) {
    (0..memory.len() / PAGE).for_each(|page| write(memory, page, 0));
}

/// Writes and reads pages at random, checking what each should hold.
fn exercise(memory: &mut [u8], seed: u64, steps: usize) {
    fill(memory);
    let mut versions = vec![0u64; memory.len() / PAGE];
    let mut random = seed;
    for _ in 0..steps {
        let page = next(&mut random) % versions.len();
        assert!(is(memory, page, versions[page]), "page {page}");
        if next(&mut random).is_multiple_of(2) {
            versions[page] += 1;
            write(memory, page, versions[page]);
        }
    }
    let all = versions.iter().enumerate();
    all.for_each(|(page, &version)| assert!(is(memory, page, version), "{page} in the end"));
}

fn exercise_on(memory: &mut [u8], threads: usize, steps: usize) {
    let part = memory.len() / threads / PAGE * PAGE;
    std::thread::scope(|scope| {
        for (n, part) in memory.chunks_mut(part).enumerate() {
            scope.spawn(move || exercise(part, n as u64, steps));
        }
    });
}

#[test]
fn every_byte_is_kept_in_memory_and_on_a_file_for_one_to_eight_threads() {
    let directory = tempfile::tempdir().unwrap();
    for swap in ["ram:64M".into(), format!("file:{}:64M", directory.path().display())] {
        let Some(overspill) = overspill(&swap) else { return };
        for threads in [1, 2, 8] {
            exercise_on(&mut by_signal(&overspill), threads, 4_000);
        }
        let summary = overspill.summary();
        assert!(summary.pages_out > 0 && summary.pages_in > 0);
        assert_eq!(overspill.last_error(), None);
    }
}

#[test]
fn regions_by_message_and_by_signal_share_one_limit() {
    let Some(overspill) = overspill("ram:96M") else { return };
    let (mut signal, mut message) = (by_signal(&overspill), overspill.region(SIZE).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| exercise_on(&mut signal, 2, 3_000));
        scope.spawn(|| exercise_on(&mut message, 2, 3_000));
    });
    let resident = [&signal, &message].map(|region| resident_pages(region)).iter().sum::<usize>();
    assert!((1..=2048).contains(&resident), "{resident} pages of 8 MiB are in memory");
    assert_eq!(overspill.last_error(), None);
}

#[test]
fn more_threads_than_workers_come_and_go() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let mut region = by_signal(&overspill);
    fill(&mut region);
    // 64 workers; each thread touches its own pages and all others.
    std::thread::scope(|scope| {
        for seed in 0..150 {
            let region = &region;
            scope.spawn(move || {
                let mut random = seed;
                for _ in 0..200 {
                    let page = next(&mut random) % (region.len() / PAGE);
                    assert!(is(region, page, 0), "page {page}");
                }
            });
        }
    });
}

#[test]
fn a_fault_allocates_nothing() {
    for swap in ["ram:160M", "compressed:160M", "ram:160M,encrypt=on"] {
        for (page, touches) in [(PAGE, 10_000), (64 << 10, 2_000), (2 << 20, 200)] {
            let Some(overspill) = overspill_of(page, swap) else { return };
            allocates_nothing(&overspill, touches);
        }
    }
}

fn allocates_nothing(overspill: &Overspill, touches: usize) {
    let size = Bytes(SIZE.0.max(48 * overspill.page_size() as u64));
    let mut region = overspill.region_options().faults(Faults::Signal).build(size).unwrap();
    let mut versions = vec![0; region.len() / PAGE];
    TOUCHING.set(true);
    // First touches, evictions, reads and changes at random, and reads in order with their windows.
    fill(&mut region);
    let mut random = 1;
    let mut good = true;
    for n in 0..touches {
        let page = next(&mut random) % versions.len();
        good &= is(&region, page, versions[page]);
        if n % 3 == 0 {
            versions[page] += 1;
            write(&mut region, page, versions[page]);
        }
    }
    good &= (0..versions.len()).all(|page| is(&region, page, versions[page]));
    TOUCHING.set(false);
    assert!(good);
    assert!(overspill.summary().pages_in > touches as u64 / 2, "there were faults");
    assert_eq!(CALLS.load(Relaxed), 0, "allocator calls, pages of {}", overspill.page_size());
}

/// Reads a file into `buffer` by a system call.
fn read_into(file: &mut std::fs::File, buffer: &mut [u8]) -> std::io::Result<()> {
    file.rewind().unwrap();
    file.read_exact(buffer)
}

#[test]
fn a_system_call_needs_a_pin() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let mut region = by_signal(&overspill);
    fill(&mut region);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0xab; 64 * PAGE]).unwrap();
    // The first pages were written first, so they are swapped out.
    let refused = read_into(&mut file, &mut region[..64 * PAGE]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    read_into(&mut file, &mut region.pin_mut(100..100 + 64 * PAGE).unwrap()).unwrap();
    assert!(region[100..100 + 64 * PAGE].iter().all(|&byte| byte == 0xab));
    assert!(is(&region, 65, 0) && is(&region, region.len() / PAGE - 1, 0));
}

#[test]
fn pins_overlap_and_stay_until_the_last_one_ends() {
    let Some(overspill) = overspill("ram:96M") else { return };
    for mut region in [by_signal(&overspill), overspill.region(SIZE).unwrap()] {
        fill(&mut region);
        let pages = region.len() / PAGE;
        let (first, second) =
            (region.pin(0..8 * PAGE).unwrap(), region.pin(PAGE..PAGE + 1).unwrap());
        drop(first);
        // Meanwhile all other pages pass through memory.
        assert!((8..pages).all(|page| is(&region, page, 0)));
        assert!(in_memory(&second), "a page pinned once more");
        drop(second);
        assert!((8..pages).all(|page| is(&region, page, 0)));
        // The lists decide when it would be evicted otherwise.
        region.advise(0..8 * PAGE, Advice::PageOut);
        assert!(!in_memory(&region[PAGE..]), "no pin keeps it any more");
        // Half of 8 MiB; what was pinned before no longer counts.
        assert!(region.pin(0..4 << 20).is_ok());
        let refused = region.pin(0..(4 << 20) + 1).unwrap_err();
        assert!(matches!(refused, Error::Memory(_)), "{refused}");
        assert!(refused.to_string().contains("at most half of the memory limit"), "{refused}");
    }
}

fn resident_pages(memory: &[u8]) -> usize {
    memory.chunks_exact(PAGE).filter(|page| in_memory(page)).count()
}

/// True if the first page of `bytes` is in memory.
fn in_memory(bytes: &[u8]) -> bool {
    let mut there = 0u8;
    let page = (bytes.as_ptr().addr() / PAGE * PAGE) as *mut c_void;
    // SAFETY: asks about one page and writes one byte.
    assert_eq!(unsafe { libc::mincore(page, PAGE, &raw mut there) }, 0);
    there & 1 == 1
}

#[test]
fn devices_come_and_go_under_a_region_by_signal() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let mut region = by_signal(&overspill);
    let first = overspill.swaps()[0].name.clone();
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| exercise(&mut region, 7, 20_000));
        while overspill.swaps()[0].used < Bytes(8 << 20) {
            std::thread::yield_now();
        }
        let spec = format!("file:{}:64M", directory.path().display());
        overspill.swapon(&spec.parse().unwrap()).unwrap();
        overspill.swapoff(&first).unwrap();
        worker.join().unwrap();
    });
    assert_eq!(overspill.swaps().len(), 1);
    assert_eq!(overspill.last_error(), None);
}

/// What the handler of SIGUSR1 touches: a region's first byte, and its length.
static TOUCHED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static TOUCHED_LEN: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_usr1(_: c_int) {
    let n = HANDLED.fetch_add(1, Relaxed);
    let pages = TOUCHED_LEN.load(Relaxed) / PAGE;
    let at = (n * 7919 % pages) * PAGE;
    // SAFETY: inside the region, which outlives the signals; reads a byte that other threads only
    // read.
    let byte = unsafe { TOUCHED.load(Relaxed).add(at).read_volatile() };
    assert_eq!(byte, word(at / PAGE, 0).to_ne_bytes()[0]);
}

fn on_signal(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: a whole sigaction with a function of the right kind.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn handlers_of_the_program_touch_regions_wherever_they_interrupt() {
    let Some(overspill) = overspill("ram:128M") else { return };
    let (mut region, mut other) = (by_signal(&overspill), by_signal(&overspill));
    fill(&mut region);
    TOUCHED_LEN.store(region.len(), Relaxed);
    TOUCHED.store(region.as_mut_ptr(), Relaxed);
    on_signal(libc::SIGUSR1, on_usr1, libc::SA_RESTART | libc::SA_ONSTACK);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let overspill = &overspill;
        let interrupted = scope.spawn(move || {
            // Rust's own alternate stack has 8 KiB. Ours has the size a careful program would
            // choose.
            let stack = AlternateStack::new(64 << 10);
            // SAFETY: this thread's own id, which is valid until it is joined.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            exercise(&mut other, 5, 3_000);
            for round in 0..200 {
                // The calls of the library are interrupted as well, and so is the allocator.
                let mut small = overspill.region(Bytes(64 << 10)).unwrap();
                small[round % 16 * PAGE] = 1;
                small.discard(0..32 << 10);
                drop((overspill.summary(), vec![0u8; round * 100]));
            }
            let used = stack.used();
            println!("a fault in a handler took {used} bytes of its stack, the handler's included");
            // As `Faults::Signal` promises.
            assert!((1..16 << 10).contains(&used), "{used}");
        });
        let thread = receiver.recv().unwrap();
        while !interrupted.is_finished() {
            // SAFETY: the thread is joined at the end of the scope, so its id is valid till then.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    assert!(HANDLED.load(Relaxed) > 100);
}

/// The calling thread's alternate stack, painted to measure how much of it was used.
struct AlternateStack {
    memory: Vec<u8>,
    before: libc::stack_t,
}

impl AlternateStack {
    const PAINT: u8 = 0xc5;

    fn new(size: usize) -> Self {
        let mut memory = vec![Self::PAINT; size];
        let ss_sp = memory.as_mut_ptr().cast();
        let stack = libc::stack_t { ss_sp, ss_flags: 0, ss_size: size };
        // SAFETY: memory that lives until `drop` puts the old stack back.
        let before = unsafe {
            let mut before = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
            before
        };
        Self { memory, before }
    }

    fn used(&self) -> usize {
        self.memory.len() - self.memory.iter().take_while(|&&byte| byte == Self::PAINT).count()
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: plain calls on a local set; restores the previous stack of this thread. Pending
        // signals would not fit on that one, so this thread blocks them.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            libc::sigaltstack(&raw const self.before, std::ptr::null_mut());
        }
    }
}
