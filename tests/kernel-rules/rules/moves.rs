//! UFFDIO_MOVE and mremap as ways to take pages out.
//!
//! Owns: what each error means, whose pages are taken, pins; mremap over several mappings.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::kernel::version;
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::pages::{Entry, PAGE_IS_PRESENT, mappings, present_pages, scan};
use overspill_kernel_rules::process::fork;
use overspill_kernel_rules::ring::Ring;
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use overspill_kernel_rules::until;
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn moving() -> Uffd {
    Uffd::new(flag::EVENTS | flag::MOVE)
}

/// mm/userfaultfd.c, validate_move_areas and move_pages_pte.
#[test]
fn each_error_of_a_move_has_its_meaning() {
    alone(|| {
        let uffd = moving();
        let (from, to) = (Range::filled(4, 7), Range::anonymous(4));
        uffd.watch(to);
        assert_eq!(uffd.move_pages(to.page(0), from.page(0)), Ok(()));
        assert_eq!((to.byte(), Entry::of(from.page(0)).is_empty()), (7, true));
        assert_eq!(uffd.move_pages(to.page(1), from.page(0)), Err(Errno::NOENT), "a hole");
        assert_eq!(uffd.move_pages(to.page(0), from.page(1)), Err(Errno::EXIST), "occupied");
        assert_eq!(uffd.move_pages(from.page(0), from.page(1)), Err(Errno::INVAL), "unregistered");
        from.page(2).protect(MprotectFlags::READ).unwrap();
        assert_eq!(uffd.move_pages(to.page(2), from.page(2)), Err(Errno::INVAL), "read-only");
        let executable = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
        from.page(3).protect(executable).unwrap();
        assert_eq!(uffd.move_pages(to.page(3), from.page(3)), Err(Errno::INVAL), "executable");
        assert_eq!(from.part(1, 4).bytes_of_pages(), [7; 3]);
    });
}

/// The source need not be registered: content of a mapping that nobody knows is taken as well.
#[test]
fn a_move_does_not_ask_whether_its_source_is_registered() {
    alone(|| {
        let uffd = moving();
        let (from, to) = (Range::filled(1, 7), Range::anonymous(1));
        uffd.watch(to);
        assert_eq!(uffd.move_pages(to, from), Ok(()));
        assert_eq!(from.byte(), 0, "an unregistered page that went comes back as zeros");
    });
}

/// A range of either side lies in one mapping; registered pieces of a heap are several.
#[test]
fn a_move_across_two_mappings_is_einval() {
    alone(|| {
        let uffd = moving();
        let (from, to) = (Range::filled(4, 7), Range::anonymous(4));
        uffd.watch(to);
        uffd.watch(from.part(0, 2));
        assert_eq!(mappings(from), 2);
        assert_eq!(uffd.move_pages(to, from), Err(Errno::INVAL));
        assert_eq!(uffd.move_pages(to.part(0, 2), from.part(0, 2)), Ok(()));
        assert_eq!(uffd.move_pages(to.part(2, 4), from.part(2, 4)), Ok(()));
    });
}

/// userfaultfd_move wants the caller's address space to be the descriptor's.
#[test]
fn only_a_task_of_the_same_address_space_can_move() {
    alone(|| {
        let uffd = moving();
        let (from, to) = (Range::filled(1, 7), Range::anonymous(1));
        uffd.watch(to);
        fork(|| assert_eq!(uffd.move_pages(to, from), Err(Errno::INVAL))).succeed();
        // A write, so that the fork has left no page that is not this process's own.
        from.fill(7);
        assert_eq!(uffd.move_pages(to, from), Ok(()));
    });
}

/// COPY and ZEROPAGE act on the descriptor's address space, whoever calls: that is how a process
/// outside serves.
#[test]
fn another_process_can_fill() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (range, content) = (Range::anonymous(2), Range::filled(1, 9));
        uffd.watch(range);
        fork(|| {
            assert_eq!(uffd.copy(range.page(0), content), Ok(()));
            assert_eq!(uffd.zero(range.page(1)), Ok(()));
        })
        .succeed();
        assert_eq!(range.bytes_of_pages(), [9, 0]);
    });
}

/// The rule of no reading while a batch is in flight: the message once read, the same batch takes
/// pages of a mapping that was made at the same place afterwards, and that nobody has registered.
#[test]
fn a_move_after_the_message_takes_pages_of_a_new_mapping() {
    alone(|| {
        let uffd = moving();
        let (range, staging) = (Range::filled(1, 7), Range::anonymous(1));
        uffd.watch(range);
        uffd.watch(staging);
        let program = call(move || {
            range.unmap().unwrap();
            range.map_where_nothing_is().unwrap();
            range.fill(9);
        });
        program.until_asleep();
        assert_eq!(uffd.move_pages(staging, range), Err(Errno::AGAIN), "guarded");
        assert!(uffd.next().is_unmap_of(range));
        program.join();
        assert_eq!(uffd.move_pages(staging, range), Ok(()), "and no longer");
        assert_eq!((staging.byte(), range.byte()), (9, 0));
    });
}

/// The same race with a reader that reads between batches only: nothing is taken from a mapping
/// that is not registered, in any of many rounds.
#[test]
fn moves_between_which_messages_are_read_never_hit_a_new_mapping() {
    alone(|| {
        const ROUNDS: usize = 200;
        let uffd = moving();
        let (range, staging) = (Range::anonymous(1), Range::anonymous(1));
        uffd.watch(staging);
        let wants = Arc::new(AtomicBool::new(false));
        let fresh = Arc::new(AtomicUsize::new(0));
        let (asks, lost) = (Arc::clone(&wants), Arc::clone(&fresh));
        let program = call(move || {
            for _ in 0..ROUNDS {
                range.fill(7);
                asks.store(true, Ordering::Release);
                until("a registration", || !asks.load(Ordering::Acquire));
                range.unmap().unwrap();
                range.map_where_nothing_is().unwrap();
                range.fill(9);
                std::hint::black_box((0..20_000).sum::<usize>());
                lost.fetch_add(usize::from(range.byte() != 9), Ordering::Relaxed);
            }
        });
        let mut is_registered = false;
        while !program.is_finished() {
            if wants.load(Ordering::Acquire) {
                uffd.watch(range);
                is_registered = true;
                wants.store(false, Ordering::Release);
            }
            for _ in 0..if is_registered { 1000 } else { 0 } {
                take(&uffd, staging, range);
            }
            while let Some(message) = uffd.message() {
                match message {
                    Message::Fault(_) => drop(uffd.zero(range)),
                    unmap => is_registered &= !unmap.is_unmap_of(range),
                }
            }
        }
        program.join();
        assert_eq!(fresh.load(Ordering::Relaxed), 0, "mappings of {ROUNDS} that lost a page");
    });
}

fn take(uffd: &Uffd, staging: Range, range: Range) {
    if uffd.move_pages(staging, range) == Ok(()) {
        uffd.unregister(staging).unwrap();
        staging.advise(libc::MADV_DONTNEED).unwrap();
        uffd.watch(staging);
    }
}

/// MOVE refuses what is pinned (folio_maybe_dma_pinned): io_uring's registered buffers stay.
#[test]
fn a_pinned_page_is_busy() {
    alone(|| {
        let uffd = moving();
        let (buffer, to) = (Range::filled(1, 7), Range::anonymous(1));
        uffd.watch(to);
        let ring = Ring::new();
        ring.register(buffer).unwrap();
        assert_eq!(uffd.move_pages(to, buffer), Err(Errno::BUSY));
        drop(ring);
        until("the end of the pin", || uffd.move_pages(to, buffer) == Ok(()));
        assert_eq!(to.byte(), 7);
    });
}

/// The way out for kernels without MOVE: mremap with DONTUNMAP from the middle of a mapping takes
/// the pages and leaves one mapping, registered, empty there; one REMAP says so.
#[test]
fn mremap_takes_pages_out_and_leaves_one_registered_mapping() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (range, staging) = (Range::filled(8, 7), Range::reserved(2));
        uffd.watch(range);
        assert_eq!(mappings(range), 1);
        let taken = range.part(2, 4);
        let (result, messages) = call(move || taken.move_out_to(staging)).finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!(matches!(&messages[..], [remap] if remap.is_remap(taken, staging)));
        assert_eq!((mappings(range), uffd.probe(range)), (1, Errno::INVAL));
        assert_eq!((present_pages(taken), staging.bytes_of_pages()), (0, vec![7, 7]));
    });
}

/// mm/mremap.c from 6.17 on, remap_move and vma_multi_allowed: several mappings may move at once,
/// unless one is registered. Then the call fails; what came before that one has moved.
#[test]
fn mremap_over_two_mappings_fails_half_way_if_the_second_is_registered_from_6_17() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let several = version() >= (6, 17);
        let plain = two_mappings_moved(None, &uffd);
        assert_eq!(plain.0, if several { Ok(()) } else { Err(Errno::FAULT) });
        let first = two_mappings_moved(Some(0), &uffd);
        assert_eq!(first, (Err(Errno::FAULT), 0), "the first is registered");
        let second = two_mappings_moved(Some(1), &uffd);
        assert_eq!(second, (Err(Errno::FAULT), if several { 4 } else { 0 }), "the second is");
    });
}

/// Moves eight pages of two mappings, one of which may be registered: the result, and how many
/// pages are at the target.
fn two_mappings_moved(registered: Option<usize>, uffd: &Uffd) -> (Result<(), Errno>, usize) {
    let (range, target) = (Range::filled(8, 7), Range::reserved(8));
    let parts = [range.part(0, 4), range.part(4, 8)];
    match registered {
        Some(which) => uffd.watch(parts[which]),
        None => parts[0].protect(MprotectFlags::READ).unwrap(),
    }
    let (result, _) = call(move || range.move_to(target)).finish(uffd);
    (result, present_pages(target))
}

/// fs/proc/task_mmu.c, do_pagemap_scan (6.7): runs of pages by category, without a touch.
#[test]
fn pagemap_scan_finds_present_runs_from_6_7() {
    alone(|| {
        let range = Range::anonymous(16);
        range.part(2, 5).fill(7);
        range.part(9, 10).fill(7);
        match scan(range, PAGE_IS_PRESENT) {
            Ok(runs) => {
                assert_eq!(runs, [(2, 5), (9, 10)]);
                assert!(version() >= (6, 7));
            }
            Err(error) => assert!(version() < (6, 7) && error == Errno::NOTTY, "{error}"),
        }
        assert_eq!(present_pages(range), 4, "looking has touched none");
    });
}
