//! What REGISTER and UNREGISTER take.
//!
//! Owns: whose memory, which neighbours, what comes later.

use overspill_kernel_rules::alone::{alone, skip};
use overspill_kernel_rules::kernel::version;
use overspill_kernel_rules::memory::{PAGE, Range};
use overspill_kernel_rules::pages;
use overspill_kernel_rules::uffd::{Uffd, flag};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;

/// A range that was mapped when it was seen may be something else when it is registered:
/// userfaultfd_register takes whatever is there and skips holes, unless nothing is.
#[test]
fn a_register_hits_whatever_is_mapped_there() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let seen = Range::filled(8, 7);
        seen.unmap().unwrap();
        assert_eq!(uffd.register(seen, flag::MISSING), Err(Errno::INVAL), "nothing is there");
        seen.part(2, 4).map_where_nothing_is().unwrap();
        seen.part(5, 6).map_where_nothing_is().unwrap();
        assert_eq!(uffd.register(seen, flag::MISSING), Ok(()), "two mappings and three holes");
        assert_eq!(uffd.probe(seen.part(2, 4)), Errno::INVAL);
        assert_eq!(uffd.probe(seen.page(5)), Errno::INVAL);
        assert_eq!(uffd.probe(seen), Errno::NOENT);
    });
}

/// A mapping has one userfaultfd: EBUSY, also in the middle of a range.
#[test]
fn memory_of_another_userfaultfd_is_busy() {
    alone(|| {
        let (uffd, other) = (Uffd::new(flag::EVENTS), Uffd::new(flag::EVENTS));
        let range = Range::anonymous(8);
        other.watch(range.part(3, 4));
        assert_eq!(uffd.register(range, flag::MISSING), Err(Errno::BUSY));
        assert_eq!(uffd.probe(range.part(0, 3)), Errno::NOENT, "nothing of it is registered");
    });
}

/// Up to 6.16 userfaultfd_unregister did not ask whose registration it ends.
#[test]
fn another_userfaultfd_can_unregister_up_to_6_16() {
    alone(|| {
        let (uffd, other) = (Uffd::new(flag::EVENTS), Uffd::new(flag::EVENTS));
        let range = Range::anonymous(4);
        uffd.watch(range);
        let result = other.unregister(range);
        let expected = if version() < (6, 17) { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(result, expected);
        let left = if result.is_ok() { Errno::NOENT } else { Errno::INVAL };
        assert_eq!(uffd.probe(range), left);
    });
}

/// The same mode again is no change, and modes can be added.
#[test]
fn registering_again_adds_modes() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(4, 7);
        uffd.watch(range);
        assert_eq!(uffd.register(range, flag::MISSING), Ok(()), "the same again");
        assert_eq!(uffd.protect(range), Err(Errno::NOENT));
        assert_eq!(uffd.register(range, flag::MISSING | flag::WP), Ok(()));
        assert_eq!(uffd.protect(range), Ok(()));
    });
}

/// Up to 7.2 fewer modes change nothing and are no error, and another mode replaces the first,
/// whose protections in page tables stay behind. From 7.3 on both are EBUSY.
#[test]
fn registering_again_without_protection_is_busy_from_7_3() {
    alone(|| {
        let may = if version() < (7, 3) { Ok(()) } else { Err(Errno::BUSY) };
        let uffd = Uffd::new(flag::EVENTS);
        let both = Range::filled(4, 7);
        uffd.register(both, flag::MISSING | flag::WP).unwrap();
        assert_eq!(uffd.register(both, flag::MISSING), may);
        assert_eq!(uffd.protect(both), Ok(()), "it has both modes still");
        let one = Range::filled(4, 7);
        uffd.register(one, flag::WP).unwrap();
        assert_eq!(uffd.register(one, flag::MISSING), may);
        let replaced = if may.is_ok() { Err(Errno::NOENT) } else { Ok(()) };
        assert_eq!(uffd.protect(one), replaced);
    });
}

/// Neither of the two protections gives way to the other, or to none.
#[test]
fn registering_again_does_not_exchange_protections() {
    alone(|| {
        for (from, to) in [
            (flag::REGISTER_RWP, flag::WP),
            (flag::WP, flag::REGISTER_RWP),
            (flag::MISSING | flag::REGISTER_RWP, flag::MISSING),
        ] {
            let uffd = Uffd::new(flag::EVENTS | flag::RWP);
            let range = Range::filled(4, 7);
            uffd.register(range, from).unwrap();
            assert_eq!(uffd.register(range, to), Err(Errno::BUSY), "{from:#x} to {to:#x}");
        }
    });
}

/// Mappings merge only with the same userfaultfd (mm/vma.c, is_mergeable_vma): a registered range
/// stays apart from its neighbours, and what is mapped beside it later is not registered.
#[test]
fn a_register_does_not_merge_with_unregistered_neighbours() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(12, 7);
        assert_eq!(pages::mappings(range), 1);
        uffd.watch(range.part(4, 8));
        assert_eq!(pages::mappings(range), 3);
        range.part(8, 12).unmap().unwrap();
        range.part(8, 12).map_where_nothing_is().unwrap();
        assert_eq!(pages::mappings(range), 3);
        assert_eq!(uffd.probe(range.part(8, 12)), Errno::NOENT, "new beside registered");
        uffd.unregister(range.part(4, 8)).unwrap();
        assert_ne!(pages::mappings(range), 3, "unregistered, it merges again");
    });
}

/// Two registered neighbours of one userfaultfd do merge.
#[test]
fn registered_neighbours_merge() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(8, 7);
        uffd.watch(range.part(0, 4));
        uffd.watch(range.part(4, 8));
        assert_eq!(pages::mappings(range), 1);
        assert_eq!(uffd.probe(range), Errno::INVAL);
    });
}

/// mm/mmap.c, do_brk_flags: the heap grows by mappings that are not registered, and says nothing.
#[test]
fn a_heap_that_grows_is_not_registered() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (heap, before) = heap_of(4);
        uffd.watch(heap);
        let (grown, _) = heap_of(4);
        assert_eq!(grown.start(), before);
        assert_eq!(uffd.probe(heap), Errno::INVAL);
        assert_eq!(uffd.probe(grown), Errno::NOENT);
        assert!(uffd.message().is_none());
    });
}

/// Makes the heap so many whole pages longer, by the kernel's call: those pages, and their end.
fn heap_of(pages: usize) -> (Range, usize) {
    let end = brk(0);
    let start = end.next_multiple_of(PAGE);
    let wanted = start + pages * PAGE;
    assert_eq!(brk(wanted), wanted, "a longer heap");
    (Range::at_known_place(start, pages), wanted)
}

/// The kernel's brk, which returns where the heap ends now.
fn brk(end: usize) -> usize {
    // SAFETY: no call here makes the heap shorter, and more takes nothing from anybody.
    unsafe { libc::syscall(libc::SYS_brk, end) as usize }
}

/// `MAP_DROPPABLE` (6.11): content that the kernel may drop without a word.
const DROPPABLE: u32 = 0x08;

/// vma_can_userfault tested the wrong variable up to 6.16.
#[test]
fn droppable_memory_can_be_registered_up_to_6_16() {
    alone(|| {
        let droppable = MapFlags::from_bits_retain(DROPPABLE);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut::<c_void>();
        // SAFETY: the kernel chooses the place, so nothing else is there.
        let mapped = unsafe { rustix::mm::mmap_anonymous(null, 4 * PAGE, protection, droppable) };
        let Ok(start) = mapped else { skip("MAP_DROPPABLE is there from 6.11 on") };
        let range = Range::at_known_place(start as usize, 4);
        let result = Uffd::new(flag::EVENTS).register(range, flag::MISSING);
        let expected = if version() < (6, 17) { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(result, expected);
        assert!(pages::has_flag(range, "dp"), "smaps tells it");
    });
}
