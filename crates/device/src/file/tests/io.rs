//! Pages are written and read back, with every way to drive the device.

use super::*;
use crate::testing::{Pages, drain, is_filled, read, scattered, write};
use crate::{IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, SwapDevice};
use overspill_base::Slot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::os::fd::{AsFd, AsRawFd};

fn queue(device: &FileDevice, depth: u32) -> Box<dyn IoQueue> {
    device.grow(SLOTS).unwrap();
    device.open_queue(depth).unwrap()
}

#[test]
fn one_page_or_many_come_back_as_they_were() {
    for (way, device) in every_way() {
        let mut queue = queue(&device, 8);
        let pages = Pages::new(2 * MAX_REQUEST_PAGES);
        for (n, count) in [1, 2, 3, 17, 64, 255, 256].into_iter().enumerate() {
            let slot = Slot(300 * n as u32);
            let mut buffers = pages.filled(scattered(0..count), 0);
            buffers.iter_mut().enumerate().for_each(|(i, page)| page.fill((n + i) as u8));
            assert!(write(&mut *queue, slot, buffers).failures.is_empty(), "{way}: {count}");

            let others = pages.filled(scattered(256..256 + count), 0xee);
            let back = read(&mut *queue, slot, others);
            assert!(back.failures.is_empty(), "{way}: {count}");
            for (i, page) in back.request.pages.iter().enumerate() {
                assert!(is_filled(page, (n + i) as u8), "{way}: page {i} of {count}");
            }
        }
    }
}

#[test]
fn more_requests_than_the_queue_is_deep_complete_once_each() {
    for (way, device) in every_way() {
        let mut queue = queue(&device, 4);
        let pages = Pages::new(64);
        for n in 0..32 {
            let pages = pages.filled([2 * n, 2 * n + 1], n as u8);
            let slot = Slot(2 * n as u32);
            queue.submit(IoRequest { op: IoOp::Write, slot, pages, tag: n as u64 });
        }
        assert_eq!(queue.in_flight(), 32, "{way}");
        let mut tags: Vec<_> = drain(&mut *queue, 32).iter().map(|done| done.request.tag).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..32), "{way}");
        assert_eq!(queue.in_flight(), 0, "{way}");
    }
}

#[test]
fn threads_with_queues_of_their_own_do_not_disturb_each_other() {
    const PER_THREAD: usize = 128;
    for (way, device) in every_way() {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let (mut queue, pages) = (queue(device, 8), Pages::new(PER_THREAD));
                    let slot = |n: usize| Slot((thread * PER_THREAD + n) as u32);
                    for op in [IoOp::Write, IoOp::Read, IoOp::Write] {
                        for n in 0..PER_THREAD {
                            let fill = if op == IoOp::Write { thread * 50 + n % 50 } else { 255 };
                            let pages = pages.filled([n], fill as u8);
                            queue.submit(IoRequest { op, slot: slot(n), pages, tag: n as u64 });
                        }
                        for done in drain(&mut *queue, PER_THREAD) {
                            let byte = (thread * 50 + done.request.tag as usize % 50) as u8;
                            assert!(done.failures.is_empty(), "{way}");
                            assert!(is_filled(&done.request.pages[0], byte), "{way}");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn requests_without_pages_complete_too() {
    for (way, device) in every_way() {
        let mut queue = queue(&device, 2);
        assert!(write(&mut *queue, Slot(1), Vec::new()).failures.is_empty(), "{way}");
        assert!(read(&mut *queue, Slot(1), Vec::new()).failures.is_empty(), "{way}");
    }
}

#[test]
fn waiting_for_nothing_returns() {
    for (_, device) in every_way() {
        queue(&device, 2).wait();
    }
}

#[test]
fn reading_past_the_end_fails_for_every_page() {
    for (way, device) in every_way() {
        let mut queue = queue(&device, 2);
        let pages = Pages::new(4);
        write(&mut *queue, Slot(SLOTS - 2), pages.filled(0..2, 1));
        let done = read(&mut *queue, Slot(SLOTS - 2), pages.filled(0..4, 0));
        assert_eq!(done.failures.len(), 4, "{way}");
        let error = &done.failures[0].error;
        assert!(matches!(error, DeviceError::Short { op: IoOp::Read, .. }), "{way}: {error}");
    }
}

#[test]
fn errors_of_the_device_come_back_with_the_pages() {
    for (way, device) in every_way() {
        let path = format!("/proc/self/fd/{}", device.as_fd().as_raw_fd());
        let fd = openat(CWD, path, OFlags::RDONLY, Mode::empty()).unwrap();
        let readable = FileDevice::new(fd, device.attachment().clone(), Features::ALL);
        let mut queue = readable.open_queue(2).unwrap();
        let pages = Pages::new(2);
        let done = write(&mut *queue, Slot(0), pages.filled(0..2, 1));
        assert_eq!(done.request.pages.len(), 2, "{way}");
        assert_eq!(done.failures.len(), 2, "{way}");
        let text = done.failures[1].error.to_string();
        assert!(text.starts_with("write at slot 0 of "), "{way}: {text}");
    }
}

#[test]
fn dropping_a_queue_waits_for_what_is_in_flight() {
    for (way, device) in every_way() {
        let pages = Pages::new(256);
        let mut first = queue(&device, 4);
        for n in 0..4 {
            let pages = pages.filled(64 * n..64 * (n + 1), n as u8 + 1);
            let slot = Slot(64 * n as u32);
            first.submit(IoRequest { op: IoOp::Write, slot, pages, tag: 0 });
        }
        drop(first);
        let mut second = queue(&device, 4);
        let back = read(&mut *second, Slot(0), pages.filled(0..256, 0)).request.pages;
        for (i, page) in back.iter().enumerate() {
            assert!(is_filled(page, (i / 64) as u8 + 1), "{way}: page {i}");
        }
    }
}

#[test]
fn a_finished_request_makes_the_queue_readable() {
    let device = open(&file(std::env::temp_dir())).unwrap();
    let mut queue = queue(&device, 4);
    if queue.poll_fd().is_none() {
        return println!("skipped: no io_uring here: {:?}", device.info().notes);
    }
    let pages = Pages::new(1);
    let request =
        IoRequest { op: IoOp::Write, slot: Slot(0), pages: pages.filled(0..1, 1), tag: 0 };
    queue.submit(request);
    queue.flush();
    let mut fds = [PollFd::from_borrowed_fd(queue.poll_fd().unwrap(), PollFlags::IN)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1));
    let mut done = Vec::new();
    queue.reap(&mut done);
    assert_eq!(done.len(), 1);
}

#[test]
fn another_process_attaches_by_descriptor() {
    for (way, device) in every_way() {
        let pages = Pages::new(1);
        write(&mut *queue(&device, 1), Slot(77), pages.filled(0..1, 7));
        let path = format!("/proc/self/fd/{}", device.as_fd().as_raw_fd());
        let fd = openat(CWD, path, OFlags::RDWR, Mode::empty()).unwrap();
        let same = FileDevice::attach(fd, device.attachment().clone()).unwrap();
        let storage = |device: &FileDevice| crate::DeviceInfo {
            notes: device.attachment().notes.clone(),
            ..device.info().clone()
        };
        assert_eq!(storage(&same), storage(&device), "{way}");
        assert_eq!(same.grow(SLOTS), Ok(SLOTS), "{way}");
        let back = read(&mut *queue(&same, 1), Slot(77), pages.filled(0..1, 0));
        assert!(is_filled(&back.request.pages[0], 7), "{way}");
    }
}

#[test]
fn attaching_needs_a_descriptor_that_reads_and_writes() {
    let device = open(&file(std::env::temp_dir())).unwrap();
    let fd = openat(CWD, "/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
    let error = FileDevice::attach(fd, device.attachment().clone()).unwrap_err();
    assert!(matches!(error, DeviceError::Open { action: "attach to", .. }), "{error}");
}

#[test]
fn a_forked_child_that_drops_its_copy_leaves_the_parents_requests_alone() {
    for (way, device) in every_way() {
        let mut queue = queue(&device, 4);
        let pages = Pages::new(4);
        for n in 0..4 {
            let pages = pages.filled([n], n as u8 + 1);
            let slot = Slot(n as u32);
            queue.submit(IoRequest { op: IoOp::Write, slot, pages, tag: 0 });
        }
        // SAFETY: the child calls nothing but destructors and _exit; if it continued in the test
        // harness, it would report results twice.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(queue);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let child = rustix::process::Pid::from_raw(child);
        let (_, status) = rustix::process::waitpid(child, rustix::process::WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.exit_status(), Some(0), "{way}");
        let done = drain(&mut *queue, 4);
        assert!(done.iter().all(|done| done.failures.is_empty()), "{way}");
    }
}
