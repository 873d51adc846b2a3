//! Locked mappings, which the kernel fills by itself.
//!
//! Owns: why they are not registered.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use rustix::io::Errno;
use rustix::mm::MremapFlags;
use std::time::{Duration, Instant};

/// mm/mremap.c fills the new part (mm_populate) before its REMAP is queued; the fault cannot be
/// answered while the REMAP is unread, and that cannot be read. Only the end of the registration,
/// which is not guarded, lets the thread go on.
#[test]
fn a_locked_mapping_that_moves_and_grows_waits_for_an_answer_that_cannot_be_given() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(8, 7);
        range.lock().unwrap();
        uffd.watch(range);
        let caller = call(move || range.resize(16, MremapFlags::MAYMOVE));
        let Message::Fault(at) = uffd.next() else { panic!("a fault comes first") };
        let page = Range::at_known_place(at, 1);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            assert_eq!(uffd.zero(page), Err(Errno::AGAIN));
            let message = uffd.message();
            assert!(matches!(message, None | Some(Message::Fault(_))), "{message:?}");
        }
        assert!(!caller.is_finished());
        uffd.unregister(Range::at_known_place(at, 8)).unwrap();
        let (result, messages) = caller.finish(&uffd);
        let moved = result.unwrap();
        assert_eq!(moved.start() + range.bytes(), at, "it was the first new page");
        let remaps = messages.iter().filter(|message| message.is_remap(range, moved));
        assert_eq!(remaps.count(), 1, "{messages:?}");
    });
}

/// In place nothing is queued, so the same faults can be answered: one by one.
#[test]
fn a_locked_mapping_that_grows_in_place_asks_for_each_page() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let room = Range::filled(8, 7);
        let range = room.part(0, 4);
        range.lock().unwrap();
        uffd.watch(range);
        let caller = call(move || {
            room.part(4, 8).unmap().unwrap();
            range.resize(8, MremapFlags::empty())
        });
        for page in 4..8 {
            assert!(uffd.next().is_fault_in(room.page(page)), "page {page}");
            assert_eq!(uffd.zero(room.page(page)), Ok(()));
        }
        assert_eq!(caller.join(), Ok(room));
    });
}

/// validate_move_areas wants the same VM_LOCKED on both sides; MADV_DONTNEED refuses locked memory.
#[test]
fn a_locked_page_is_neither_moved_nor_dropped() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS | flag::MOVE);
        let (locked, to) = (Range::filled(1, 7), Range::anonymous(1));
        locked.lock().unwrap();
        uffd.watch(locked);
        uffd.watch(to);
        assert_eq!(uffd.move_pages(to, locked), Err(Errno::INVAL));
        assert_eq!(locked.advise(libc::MADV_DONTNEED), Err(Errno::INVAL));
        assert!(uffd.message().is_none(), "a refused madvise says nothing");
        assert_eq!(locked.byte(), 7);
    });
}
