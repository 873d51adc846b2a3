//! MADV_DONTNEED, MADV_FREE, guards: content that goes.
//!
//! Owns: what is said before it goes, and what without a word.

use overspill_kernel_rules::alone::{alone, found};
use overspill_kernel_rules::kernel::{since, version};
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::memory::advice::{
    MADV_DONTNEED, MADV_FREE, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE,
};
use overspill_kernel_rules::pages::{Entry, present_pages};
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// mm/madvise.c, madvise_dontneed_free: the message is read first, then the lock is taken again and
/// what the range then is loses its pages. MADV_FREE says the same.
#[test]
fn remove_is_said_before_the_pages_go() {
    alone(|| {
        for advice in [MADV_DONTNEED, MADV_FREE] {
            let uffd = Uffd::new(flag::EVENTS);
            let range = Range::filled(4, 7);
            uffd.watch(range);
            let caller = call(move || range.advise(advice));
            caller.until_asleep();
            assert_eq!(present_pages(range), 4);
            let (result, messages) = caller.finish(&uffd);
            assert_eq!(result, Ok(()));
            assert!(matches!(&messages[..], [one] if one.is_remove_of(range)), "{messages:?}");
            assert_eq!(present_pages(range), if advice == MADV_DONTNEED { 0 } else { 4 });
        }
    });
}

/// One REMOVE a mapping, in the order of addresses.
#[test]
fn a_remove_over_two_mappings_is_two_messages() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(4, 7);
        uffd.watch(range);
        range.part(2, 4).protect(MprotectFlags::READ).unwrap();
        let (result, messages) = call(move || range.advise(MADV_DONTNEED)).finish(&uffd);
        assert_eq!(result, Ok(()));
        let [first, second] = &messages[..] else { panic!("{messages:?}") };
        assert!(first.is_remove_of(range.part(0, 2)), "{messages:?}");
        assert!(second.is_remove_of(range.part(2, 4)), "{messages:?}");
    });
}

/// The rule of doomed pages: between the reading of REMOVE and the zap a page can still be moved
/// out with its old content. Whoever wins, it is one or the other: the page moves, or it is gone.
#[test]
fn a_page_whose_removal_was_read_may_still_be_moved() {
    alone(|| {
        let taken = removals_against_moves(500, None);
        found(&format!("in {taken} of 500 removals the old content was moved after the message"));
    });
}

/// The same while another thread often holds the lock of the address space, which makes the time
/// between message and zap longer.
#[test]
fn a_page_whose_removal_was_read_may_still_be_moved_beside_changing_mappings() {
    alone(|| {
        let over = Arc::new(AtomicBool::new(false));
        let busy = Arc::clone(&over);
        let other = Range::filled(4096, 1);
        let changer = call(move || {
            while !busy.load(Ordering::Relaxed) {
                other.protect(MprotectFlags::READ).unwrap();
                other.protect(MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            }
        });
        let taken = removals_against_moves(500, Some(Duration::from_secs(4)));
        over.store(true, Ordering::Relaxed);
        changer.join();
        found(&format!("beside another thread's mprotect: {taken} of up to 500"));
    });
}

/// Removes a page again and again, and tries to move it out as soon as the message is read: how
/// often that succeeds. The remover sees zeros after each of its calls, whoever was first.
fn removals_against_moves(rounds: usize, time: Option<Duration>) -> usize {
    let uffd = Uffd::new(flag::EVENTS | flag::MOVE);
    let (page, staging) = (Range::filled(1, 1), Range::anonymous(1));
    uffd.watch(page);
    uffd.watch(staging);
    let start = Instant::now();
    let remover = call(move || {
        for round in 0..rounds {
            page.fill((round % 100) as u8 + 1);
            page.advise(MADV_DONTNEED).unwrap();
            assert_eq!(page.byte(), 0, "content that was dropped");
            if time.is_some_and(|time| start.elapsed() > time) {
                break;
            }
        }
    });
    let mut taken = 0;
    while !remover.is_finished() {
        match uffd.message() {
            Some(Message::Fault(_)) => zero_when_quiet(&uffd, page),
            Some(remove) if remove.is_remove_of(page) => {
                taken += usize::from(moves_when_quiet(&uffd, staging, page));
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    remover.join();
    taken
}

fn zero_when_quiet(uffd: &Uffd, page: Range) {
    while uffd.zero(page) == Err(Errno::AGAIN) {}
}

/// Moves a page out if it is there, and empties staging again.
fn moves_when_quiet(uffd: &Uffd, staging: Range, page: Range) -> bool {
    let result = loop {
        match uffd.move_pages(staging, page) {
            Err(Errno::AGAIN) => {}
            other => break other,
        }
    };
    if result == Ok(()) {
        empty_outside_the_registration(uffd, staging);
    } else {
        assert_eq!(result, Err(Errno::NOENT), "the page is there, or it is not");
    }
    result.is_ok()
}

fn empty_outside_the_registration(uffd: &Uffd, staging: Range) {
    uffd.unregister(staging).unwrap();
    staging.advise(MADV_DONTNEED).unwrap();
    uffd.watch(staging);
}

/// MADV_DONTNEED of memory that is not registered is not said.
#[test]
fn staging_can_be_emptied_outside_the_registration_without_a_message() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let staging = Range::filled(8, 7);
        uffd.watch(staging);
        empty_outside_the_registration(&uffd, staging);
        assert_eq!((present_pages(staging), uffd.probe(staging)), (0, Errno::INVAL));
        assert!(uffd.message().is_none());
    });
}

/// The other way, without the lock of the address space (6.13).
#[test]
fn guards_that_come_and_go_empty_staging_without_a_message() {
    alone(|| {
        since((6, 13), "MADV_GUARD_INSTALL");
        let uffd = Uffd::new(flag::EVENTS);
        let staging = Range::filled(8, 7);
        uffd.watch(staging);
        staging.advise(MADV_GUARD_INSTALL).unwrap();
        staging.advise(MADV_GUARD_REMOVE).unwrap();
        assert_eq!((present_pages(staging), uffd.probe(staging)), (0, Errno::INVAL));
        assert!(uffd.message().is_none());
        assert_eq!(uffd.zero(staging.page(0)), Ok(()), "registered and empty");
    });
}

/// mm/madvise.c, madvise_guard_install (6.13): present pages become guards, and nothing is said.
/// ZEROPAGE leaves a guard alone; COPY overwrites it in 6.13 to 6.18.
#[test]
fn a_guard_comes_without_a_message_and_copy_overwrites_it_up_to_6_18() {
    alone(|| {
        since((6, 13), "MADV_GUARD_INSTALL");
        let uffd = Uffd::new(flag::EVENTS);
        let (range, content) = (Range::filled(4, 7), Range::filled(1, 9));
        uffd.watch(range);
        let (result, messages) = call(move || range.advise(MADV_GUARD_INSTALL)).finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!(messages.is_empty(), "{messages:?}");
        assert_eq!(present_pages(range), 0);
        assert_eq!(uffd.zero(range.page(0)), Err(Errno::EXIST));
        let copied = uffd.copy(range.page(0), content);
        let expected = if version() < (6, 19) { Ok(()) } else { Err(Errno::EXIST) };
        assert_eq!(copied, expected);
        assert_eq!(Entry::of(range.page(0)).is_present(), copied.is_ok());
    });
}
