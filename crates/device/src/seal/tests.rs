//! What the encrypting decorator promises, over memory and over devices that fail.

use super::table::Seal;
use super::*;
use crate::faulty::{FaultPlan, Faults, Faulty};
use crate::testing::{Pages, drain, finds_garbage, is_filled, ram, read, sealer, write};
use crate::{Completion, IoOp, IoRequest, MAX_REQUEST_PAGES};
use overspill_base::shared::{PageBuf, Table};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Aegis128L, Algorithm::ChaCha20Poly1305];

fn over(inner: Arc<dyn SwapDevice>) -> Sealed {
    let slots = inner.info().slots_max as usize;
    Sealed::new(inner, sealer(Algorithm::of_this_machine(), slots))
}

fn bad_slots(completion: &Completion) -> Vec<u32> {
    let slot_of = |failure: &crate::PageFailure| match failure.error {
        DeviceError::Seal { slot, .. } => {
            assert!(is_filled(&completion.request.pages[failure.index], 0), "{slot}");
            slot.0
        }
        ref other => panic!("{other}"),
    };
    completion.failures.iter().map(slot_of).collect()
}

/// Moves pages between slots and memory behind the decorator's back.
fn raw(device: &dyn SwapDevice, op: IoOp, slot: Slot, pages: Vec<PageBuf>) -> Vec<PageBuf> {
    let mut queue = device.open_queue(4).unwrap();
    queue.submit(IoRequest { op, slot, pages, tag: 0 });
    let done = drain(&mut *queue, 1).pop().unwrap();
    assert!(done.failures.is_empty());
    done.request.pages
}

#[test]
fn what_was_written_is_read_and_held_and_not_on_the_device() {
    let inner = ram(16);
    let device = over(inner.clone());
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(6);
    let written = write(&mut *queue, Slot(5), pages.filled(0..3, 9));
    assert!(written.failures.is_empty());
    assert_eq!(written.request.tag, 5, "the submitter's tag comes back");
    assert!(written.request.pages.iter().all(|page| is_filled(page, 9)), "pages are not changed");
    assert!(device.holds(Slot(6), &written.request.pages[1]));
    assert!(!device.holds(Slot(9), &written.request.pages[1]), "a slot never written");
    let stored = raw(&*inner, IoOp::Read, Slot(5), pages.views(3..6));
    assert_ne!(stored[0][..], stored[1][..], "equal pages look different");
    for page in &stored {
        let nines = page.windows(4).filter(|bytes| bytes == &[9; 4]).count();
        assert_eq!(nines, 0, "of some 4000 random words none is like that");
    }
    let found = read(&mut *queue, Slot(5), stored);
    assert!(found.failures.is_empty());
    assert!(found.request.pages.iter().all(|page| is_filled(page, 9)));
}

#[test]
fn what_was_never_written_or_was_discarded_cannot_be_read() {
    let device = over(ram(16));
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(3);
    let unwritten = read(&mut *queue, Slot(3), pages.filled(0..2, 1));
    assert_eq!(bad_slots(&unwritten), [3, 4]);
    let written = write(&mut *queue, Slot(4), pages.filled(0..3, 1)).request.pages;
    device.discard(Slot(5), 1).unwrap();
    assert!(!device.holds(Slot(5), &written[1]) && device.holds(Slot(6), &written[2]));
    assert_eq!(bad_slots(&read(&mut *queue, Slot(4), written)), [5]);
}

#[test]
fn nothing_is_known_of_a_slot_without_a_holder() {
    let device = over(ram(16));
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(1);
    let written = write(&mut *queue, Slot(4), pages.filled(0..1, 1)).request.pages;
    assert!(device.holds(Slot(4), &written[0]));
    device.free_notify().unwrap().slot_free(Slot(4));
    assert!(!device.holds(Slot(4), &written[0]));
}

#[test]
fn an_old_page_and_another_slots_page_are_found() {
    let inner = ram(16);
    let device = over(inner.clone());
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(8);
    let buffers = write(&mut *queue, Slot(2), pages.filled(0..2, 1)).request.pages;
    let old = raw(&*inner, IoOp::Read, Slot(2), pages.views(4..6));
    // The same bytes again, as another write.
    let buffers = write(&mut *queue, Slot(2), buffers).request.pages;
    let new = raw(&*inner, IoOp::Read, Slot(2), pages.views(6..8));
    raw(&*inner, IoOp::Write, Slot(2), old);
    let replayed = read(&mut *queue, Slot(2), buffers);
    assert_eq!(bad_slots(&replayed), [2, 3]);
    let mut exchanged = new;
    exchanged.swap(0, 1);
    let mut exchanged = raw(&*inner, IoOp::Write, Slot(2), exchanged);
    assert_eq!(bad_slots(&read(&mut *queue, Slot(2), replayed.request.pages)), [2, 3]);
    exchanged.swap(0, 1);
    raw(&*inner, IoOp::Write, Slot(2), exchanged);
    assert!(read(&mut *queue, Slot(2), pages.views(0..2)).failures.is_empty(), "back in place");
}

#[test]
fn garbage_from_the_device_is_found() {
    finds_garbage(|inner| Arc::new(over(inner)), bad_slots);
}

#[test]
fn a_failed_write_leaves_nothing_known_of_its_slots() {
    let plan = Arc::new(FaultPlan::new(Faults { fail_write: Some(1), ..Faults::default() }));
    let device = over(Arc::new(Faulty::new(ram(16), plan)));
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(1);
    let first = write(&mut *queue, Slot(2), pages.filled(0..1, 1)).request.pages;
    assert!(device.holds(Slot(2), &first[0]));
    let second = write(&mut *queue, Slot(2), first);
    assert_eq!(second.failures.len(), 1);
    assert!(is_filled(&second.request.pages[0], 1), "the page is still there");
    assert!(!device.holds(Slot(2), &second.request.pages[0]));
    assert_eq!(bad_slots(&read(&mut *queue, Slot(2), second.request.pages)), [2]);
}

#[test]
fn more_writes_than_there_is_memory_for_wait_for_each_other() {
    let device = over(ram(4 * MAX_REQUEST_PAGES as u64));
    let mut queue = device.open_queue(8).unwrap();
    let pages = Pages::new(3 * MAX_REQUEST_PAGES);
    for n in 0..3 {
        let places = n * MAX_REQUEST_PAGES..(n + 1) * MAX_REQUEST_PAGES;
        let slot = Slot(places.start as u32);
        let pages = pages.filled(places, n as u8 + 1);
        queue.submit(IoRequest { op: IoOp::Write, slot, pages, tag: n as u64 });
        assert_eq!(queue.in_flight(), n + 1);
    }
    let done = drain(&mut *queue, 3);
    assert_eq!(queue.in_flight(), 0);
    for completion in done {
        let (slot, tag) = (completion.request.slot, completion.request.tag);
        assert_eq!(slot.index(), tag as usize * MAX_REQUEST_PAGES);
        let found = read(&mut *queue, slot, completion.request.pages);
        assert!(found.request.pages.iter().all(|page| is_filled(page, tag as u8 + 1)));
    }
}

#[test]
fn what_each_of_two_keys_seals_the_other_does_not_open() {
    for algorithm in ALGORITHMS {
        let [one, other] = [sealer(algorithm, 1), sealer(algorithm, 1)];
        let mut page = [3; PAGE_SIZE];
        let seal = one.seal(Slot(0), &mut page);
        one.keep(seal);
        other.seals.begin(Slot(0));
        other.keep(seal);
        let mut copy = page;
        assert!(!other.open(Slot(0), &mut copy), "{algorithm:?}");
        assert!(one.open(Slot(0), &mut page) && page == [3; PAGE_SIZE], "{algorithm:?}");
    }
}

/// How often this process's memory has the key, but where it is kept.
fn copies_of_key(sealer: &Sealer) -> usize {
    let key = sealer.cipher.key::<16>();
    let kept = key.as_ptr().addr();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let written_to = maps.lines().filter(|line| line.contains(" rw"));
    let mut page = [0; PAGE_SIZE];
    let mut copies = 0;
    for line in written_to {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|end| usize::from_str_radix(end, 16).unwrap());
        for address in (start..end).step_by(PAGE_SIZE).filter(|&at| at != kept) {
            // What other tests unmap meanwhile has no copies.
            if memory.read_exact_at(&mut page, address as u64).is_ok() {
                copies += page
                    .chunks_exact(4)
                    .enumerate()
                    .filter(|(n, _)| page[n * 4..].starts_with(key))
                    .count();
            }
        }
    }
    copies
}

#[test]
fn a_key_is_in_one_place_also_after_use() {
    for algorithm in ALGORITHMS {
        let sealer = sealer(algorithm, 1);
        let [used, seen] = [AtomicBool::new(false), AtomicBool::new(false)];
        // On a thread that does nothing else, so that what is on its stack stays there.
        let uses = || {
            let mut page = [3; PAGE_SIZE];
            let seal = sealer.seal(Slot(0), &mut page);
            sealer.keep(seal);
            let is_opened = sealer.open(Slot(0), &mut page);
            used.store(is_opened, Release);
            while !seen.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        let copies = std::thread::scope(|scope| {
            scope.spawn(uses);
            while !used.load(Acquire) {
                std::hint::spin_loop();
            }
            let copies = copies_of_key(&sealer);
            seen.store(true, Relaxed);
            copies
        });
        assert_eq!(copies, 0, "{algorithm:?}");
        // A scan that finds nothing proves nothing, unless it finds what there is.
        let copy = std::hint::black_box(*sealer.cipher.key::<16>());
        assert!(copies_of_key(&sealer) > 0, "{copy:?}");
    }
}

/// A page with a byte changed, an old one, one of another slot: 150 000 tries by seed.
#[test]
fn nothing_is_taken_for_what_it_is_not() {
    for algorithm in ALGORITHMS {
        let mut chance = random(42);
        let sealer = sealer(algorithm, 2);
        let mut sealed = [[0; PAGE_SIZE]; 2];
        for try_number in 0..50_000 {
            let old = sealed;
            for (n, page) in sealed.iter_mut().enumerate() {
                page.fill(try_number as u8);
                let seal = sealer.seal(Slot(n as u32), page);
                sealer.keep(seal);
            }
            let mut damaged = sealed[0];
            // Every byte in turn.
            damaged[try_number % PAGE_SIZE] ^= (chance() as u8).max(1);
            for (what, mut page) in [("damaged", damaged), ("old", old[0]), ("other", sealed[1])] {
                assert!(!sealer.open(Slot(0), &mut page), "{what} in try {try_number}");
            }
        }
    }
}

/// SplitMix64.
fn random(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Also if processes that should not write the same slot do.
#[test]
fn two_threads_never_get_one_number() {
    let words = Table::on_heap(Seals::WORDS, || AtomicU64::new(0));
    let begin = || {
        let seals = Seals::new(words.clone());
        (0..20_000).map(|_| seals.begin(Slot(0)).number).collect::<Vec<_>>()
    };
    let mut numbers = std::thread::scope(|scope| {
        let [one, other] = [(); 2].map(|()| scope.spawn(begin));
        [one.join().unwrap(), other.join().unwrap()].concat()
    });
    numbers.sort_unstable();
    assert!(numbers.is_sorted_by(|a, b| a < b));
}

#[test]
fn no_number_is_given_to_two_writes() {
    let words = Table::on_heap(Seals::WORDS, || AtomicU64::new(0));
    let (seals, slot) = (Seals::new(words.clone()), Slot(0));
    let mut numbers = Vec::new();
    for n in 0..6 {
        let write = seals.begin(slot);
        assert_eq!(seals.get(slot), None);
        numbers.push(write.number);
        match n % 3 {
            // A writer that was killed.
            0 => {}
            1 => {
                let seal = Seal { write, tag: [n; 16] };
                seals.keep(seal);
                assert_eq!(seals.get(slot), Some(seal));
            }
            _ => seals.forget(slot),
        }
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(words[0].load(Relaxed) > numbers[5] * 2, "forgetting counts as well");
}
