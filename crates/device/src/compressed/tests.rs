//! The device as a whole: against a naive model, with threads and with damage.

use super::word::Content;
use super::*;
use crate::seal;
use crate::spec::SwapKind;
use crate::testing::{Pages, drain, is_filled, read, sealer, write};
use crate::{Completion, Device, IoOp, IoRequest, PageFailure, any};
use overspill_base::PAGE_SIZE;
use proptest::prelude::*;
use std::os::fd::AsRawFd;

const SLOTS: u32 = 64;
const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

fn device(slots: u32, algorithm: Algorithm) -> CompressedDevice {
    let size = Bytes::of_pages(slots.into());
    let spec = SwapSpec { algorithm: Some(algorithm), ..SwapKind::Compressed { size }.into() };
    CompressedDevice::open(&spec, size).unwrap()
}

/// The same device, as whoever gets its descriptor sees it: words mapped a second time.
fn attached(device: &CompressedDevice) -> CompressedDevice {
    let fd = device.as_fd().try_clone_to_owned().unwrap();
    CompressedDevice::attach(fd, device.algorithm, device.attachment.clone()).unwrap()
}

fn queue(device: &CompressedDevice) -> Box<dyn IoQueue> {
    device.open_queue(1).unwrap()
}

/// A page of which `noise_bytes` cannot be compressed, different for each `seed`.
fn content(page: &mut [u8], seed: u64, noise_bytes: usize) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (n, byte) in page.iter_mut().enumerate() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = if n < noise_bytes { (state >> 56) as u8 } else { seed as u8 };
    }
}

fn put(queue: &mut dyn IoQueue, pages: &Pages, slot: u32, seed: u64, noise_bytes: usize) {
    let mut buffers = pages.filled(0..1, 0);
    content(&mut buffers[0], seed, noise_bytes);
    assert!(write(queue, Slot(slot), buffers).failures.is_empty());
}

fn get(queue: &mut dyn IoQueue, pages: &Pages, slot: u32) -> Completion {
    read(queue, Slot(slot), pages.filled(0..1, 0xee))
}

fn assert_has(queue: &mut dyn IoQueue, pages: &Pages, slot: u32, seed: u64, noise_bytes: usize) {
    let done = get(queue, pages, slot);
    let mut expected = vec![0; PAGE_SIZE];
    content(&mut expected, seed, noise_bytes);
    assert!(done.failures.is_empty() && done.request.pages[0][..] == expected, "slot {slot}");
}

#[derive(Clone, Debug)]
enum Step {
    Write { by: usize, slot: u32, seed: u64, noise_bytes: usize },
    Discard { by: usize, slot: u32, slots: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let noise = prop_oneof![Just(0usize), 0usize..PAGE_SIZE, Just(PAGE_SIZE)];
    prop_oneof![
        4 => (0usize..2, 0..SLOTS, any::<u64>(), noise)
            .prop_map(|(by, slot, seed, noise_bytes)| Step::Write { by, slot, seed, noise_bytes }),
        1 => (0usize..2, 0..SLOTS, 1u32..16)
            .prop_map(|(by, slot, slots)| Step::Discard { by, slot, slots: slots.min(SLOTS - slot) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pages_read_as_they_were_written_last(
        steps in proptest::collection::vec(step(), 1..200),
        zstd: bool,
    ) {
        let mine = device(SLOTS, BOTH[usize::from(zstd)]);
        let devices = [attached(&mine), mine];
        let mut queues = devices.each_ref().map(queue);
        let pages = Pages::new(1);
        let mut model = vec![None; SLOTS as usize];
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { by, slot, seed, noise_bytes } => {
                    put(&mut *queues[by], &pages, slot, seed, noise_bytes);
                    model[slot as usize] = Some((seed, noise_bytes));
                    assert_has(&mut *queues[1 - by], &pages, slot, seed, noise_bytes);
                }
                Step::Discard { by, slot, slots } => {
                    devices[by].discard(Slot(slot), slots).unwrap();
                    model[slot as usize..][..slots as usize].fill(None);
                }
            }
            if n % 16 == 0 {
                devices[0].store.check();
            }
        }
        for (slot, expected) in model.iter().enumerate() {
            match *expected {
                Some((seed, noise)) => assert_has(&mut *queues[0], &pages, slot as u32, seed, noise),
                None => prop_assert!(is_filled(&get(&mut *queues[1], &pages, slot as u32).request.pages[0], 0)),
            }
        }
        devices[1].store.check();
        devices[0].discard(Slot(0), SLOTS).unwrap();
        let usage = devices[1].usage();
        prop_assert_eq!((usage.held_pages, usage.compressed_bytes), (0, 0));
        devices[0].store.check();
    }

    /// If a slot's word is changed to anything, its page is a different one or a read error, and
    /// writing it again repairs it.
    #[test]
    fn damaged_words_are_read_errors_at_worst(words in proptest::collection::vec(any::<(u64, u64)>(), SLOTS as usize)) {
        let device = device(SLOTS, Algorithm::Lz4);
        let mut queue = queue(&device);
        let pages = Pages::new(1);
        for slot in 0..SLOTS {
            put(&mut *queue, &pages, slot, slot.into(), 1000);
        }
        for (slot, (word, keep)) in (0..).map(Slot).zip(words) {
            // Some bits of the old word stay, so that the words are not always completely
            // different.
            device.store.damage(slot, device.store.word(slot) & keep | word & !keep);
        }
        for slot in 0..SLOTS {
            let failures = get(&mut *queue, &pages, slot).failures;
            let damaged = |f: &PageFailure| matches!(f.error, DeviceError::Damaged { .. });
            prop_assert!(failures.iter().all(damaged));
        }
    }
}

#[test]
fn every_length_and_place_a_damaged_word_can_name_is_survived() {
    for algorithm in BOTH {
        let device = device(SLOTS, algorithm);
        let mut queue = queue(&device);
        let pages = Pages::new(1);
        put(&mut *queue, &pages, 0, 1, 1000);
        let word = device.store.word(Slot(0));
        for bit in 0..52 {
            device.store.damage(Slot(0), word ^ 1 << bit);
            let failures = get(&mut *queue, &pages, 0).failures;
            assert!(bit == 51 || failures.len() == 1, "bit {bit} of {word:#x}");
        }
        device.store.damage(Slot(0), word);
        assert_has(&mut *queue, &pages, 0, 1, 1000);
    }
}

#[test]
fn each_kind_of_page_is_kept_its_way() {
    for algorithm in BOTH {
        let device = device(SLOTS, algorithm);
        let mut queue = queue(&device);
        let pages = Pages::new(1);
        put(&mut *queue, &pages, 3, 5, 0);
        put(&mut *queue, &pages, 4, 6, 2000);
        put(&mut *queue, &pages, 5, 7, PAGE_SIZE);
        let usage = device.usage();
        let counts = (usage.held_pages, usage.filled_pages, usage.incompressible_pages);
        assert_eq!(counts, (3, 1, 1));
        assert!((2000..2100).contains(&usage.compressed_bytes), "{usage:?}");
        assert_eq!(usage.memory_bytes_max, 2 * 16384, "a span each of two classes");
    }
}

/// The word this page is filled with would be taken for an object's, so the page is stored as an
/// object.
#[test]
fn a_filling_that_looks_like_an_object_is_compressed() {
    let device = device(SLOTS, Algorithm::Lz4);
    let mut queue = queue(&device);
    let pages = Pages::new(1);
    let mut buffers = pages.filled(0..1, 0);
    let filling = 0x8010_0000_0000_0001_u64.to_ne_bytes().repeat(PAGE_SIZE / 8);
    buffers[0].copy_from_slice(&filling);
    assert!(write(&mut *queue, Slot(9), buffers).failures.is_empty());
    assert_eq!(get(&mut *queue, &pages, 9).request.pages[0][..], filling);
    assert_eq!((device.usage().filled_pages, device.usage().held_pages), (0, 1));
    device.store.check();
}

#[test]
fn memory_goes_back_when_slots_are_forgotten() {
    let device = device(4096, Algorithm::Lz4);
    let mut queue = queue(&device);
    let pages = Pages::new(1);
    for slot in 0..4096 {
        put(&mut *queue, &pages, slot, slot.into(), PAGE_SIZE / 2);
    }
    let full = device.usage().memory_bytes;
    assert!(full > 8 << 20, "half of 16 MiB is noise: {full}");
    device.discard(Slot(0), 4096).unwrap();
    let usage = device.usage();
    assert!(usage.memory_bytes < 128 << 10, "tables only: {usage:?}");
    assert_eq!((usage.held_pages_max, usage.held_pages), (4096, 0));
}

/// The guarantee behind the size: pages written before, and forgotten except for the last page of
/// each span, prevent no write.
#[test]
fn a_store_full_of_holes_still_holds_its_size() {
    let slots = 2048;
    let device = device(slots, Algorithm::Lz4);
    let mut queue = queue(&device);
    let pages = Pages::new(1);
    for (round, noise_bytes) in [100, 500, 900, 1500, 2500, PAGE_SIZE].into_iter().enumerate() {
        for slot in (0..slots).filter(|slot| slot % 32 != 0 || round == 0) {
            put(&mut *queue, &pages, slot, slot.into(), noise_bytes);
        }
        let thin = (0..slots).filter(|slot| slot % 8 != round as u32);
        thin.for_each(|slot| device.discard(Slot(slot), 1).unwrap());
    }
    for slot in 0..slots {
        put(&mut *queue, &pages, slot, slot.into(), PAGE_SIZE);
    }
    for slot in 0..slots {
        assert_has(&mut *queue, &pages, slot, slot.into(), PAGE_SIZE);
    }
    let usage = device.usage();
    assert_eq!(usage.incompressible_pages, u64::from(slots));
    device.store.check();
}

#[test]
fn threads_do_not_mix_their_pages() {
    let device = device(1024, Algorithm::Lz4);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let device = &device;
            threads.spawn(move || {
                let (mut queue, pages) = (queue(device), Pages::new(1));
                let mine = |n: u32| n * 4 + thread;
                for round in 0..40 {
                    let noise = |n: u32| ((n * 37 + round * 911) % 4097) as usize;
                    let seed = |n: u32| u64::from(mine(n) + round * 7919);
                    (0..256).for_each(|n| put(&mut *queue, &pages, mine(n), seed(n), noise(n)));
                    (0..256)
                        .for_each(|n| assert_has(&mut *queue, &pages, mine(n), seed(n), noise(n)));
                    let odd = (0..256).filter(|n| (n + round) % 2 == 1);
                    odd.for_each(|n| device.discard(Slot(mine(n)), 1).unwrap());
                }
            });
        }
    });
    device.store.check();
}

#[test]
fn requests_of_many_pages_fail_page_by_page() {
    let device = device(SLOTS, Algorithm::Lz4);
    let mut queue = queue(&device);
    let pages = Pages::new(8);
    let mut buffers = pages.filled(0..8, 0);
    buffers.iter_mut().zip(0..).for_each(|(page, seed)| content(page, seed, 900));
    queue.submit(IoRequest { op: IoOp::Write, slot: Slot(10), pages: buffers, tag: 5 });
    assert_eq!(queue.in_flight(), 1);
    let written = drain(&mut *queue, 1).pop().unwrap();
    assert_eq!((written.request.tag, written.failures.len()), (5, 0));
    let place_of_nobody = device.store.word(Slot(12)) | 55 << 32;
    device.store.damage(Slot(12), place_of_nobody);
    let done = read(&mut *queue, Slot(10), written.request.pages);
    let failed: Vec<usize> = done.failures.iter().map(|failure| failure.index).collect();
    assert_eq!(failed, [2]);
    let expected = "slot 12 of compressed cannot be decompressed";
    assert!(done.failures[0].error.to_string().starts_with(expected));
}

#[test]
fn another_process_attaches_by_descriptor() {
    let spec: SwapSpec = "compressed:1M,algo=zstd".parse().unwrap();
    let device = Device::open(&spec, &Default::default()).unwrap();
    let path = format!("/proc/self/fd/{}", device.descriptor().unwrap().as_raw_fd());
    let fd = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let attachment = device.attachment().clone();
    let same = any::attach(fd.into(), attachment, None).unwrap();
    assert_eq!(same.info(), device.info());
    assert!(same.info().synchronous);
    let pages = Pages::new(1);
    put(&mut *same.open_queue(1).unwrap(), &pages, 7, 3, 700);
    assert_eq!(device.usage().map(|usage| usage.held_pages), Some(1));
    assert_has(&mut *device.shared(None).open_queue(1).unwrap(), &pages, 7, 3, 700);
}

#[test]
fn what_is_encrypted_is_there_and_cannot_be_read_in_memory() {
    for algorithm in BOTH {
        let device = device(SLOTS, algorithm);
        let device =
            device.sealed_by(Some(sealer(seal::Algorithm::of_this_machine(), SLOTS as usize)));
        let mut queue = queue(&device);
        let pages = Pages::new(1);
        // Of one word, compressed, and as it is.
        let noises = [0, 700, PAGE_SIZE];
        for (slot, noise_bytes) in (0..).zip(noises) {
            put(&mut *queue, &pages, slot, 7, noise_bytes);
            let words = Content::of_word(device.store.word(Slot(slot)));
            assert!(matches!(words, Content::Object { .. }), "slot {slot}: {words:?}");
        }
        for (slot, noise_bytes) in (0..).zip(noises) {
            assert_has(&mut *queue, &pages, slot, 7, noise_bytes);
        }
        let path = format!("/proc/self/fd/{}", device.as_fd().as_raw_fd());
        let stored = std::fs::read(path).unwrap();
        let mut noise = [0; PAGE_SIZE];
        content(&mut noise, 7, PAGE_SIZE);
        assert!(!stored.windows(16).any(|bytes| bytes == &noise[..16] || bytes == [7; 16]));
        // One slot's object instead of another's.
        device.store.damage(Slot(0), device.store.word(Slot(1)));
        assert_eq!(get(&mut *queue, &pages, 0).failures.len(), 1);
        device.store.forget(Slot(2));
        assert_eq!(get(&mut *queue, &pages, 2).failures.len(), 1, "no page of zeros");
    }
}

#[test]
fn sizes_that_make_no_device_are_refused() {
    for (text, words) in [
        ("compressed:0", "compressed has room for less than a page only"),
        ("compressed:64", "compressed has room for less than a page only"),
        ("compressed:36K", "has room for 36 KiB only, a swap area needs 40 KiB"),
    ] {
        let error = Device::open(&text.parse().unwrap(), &Default::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
