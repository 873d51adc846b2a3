//! Which messages a call sends, and when.
//!
//! Owns: munmap, mmap over, mremap, growth; faults against events.
//! Not here: MADV_DONTNEED and its kin ([`crate::removal`]), the order between threads
//! ([`crate::order`]).

use overspill_kernel_rules::alone::{alone, skip};
use overspill_kernel_rules::kernel::version;
use overspill_kernel_rules::memory::{PAGE, Range};
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use overspill_kernel_rules::{pages, until};
use rustix::io::Errno;
use rustix::mm::MremapFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// An event's maker waits until it is read, and the change is made before: fs/userfaultfd.c,
/// userfaultfd_unmap_complete, userfaultfd_event_wait_completion.
#[test]
fn munmap_has_happened_but_does_not_return_before_its_message_is_read() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(4, 7);
        uffd.watch(range);
        let caller = call(move || range.unmap());
        caller.until_asleep();
        assert_eq!(pages::mappings(range), 0);
        let (result, messages) = caller.finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!(matches!(&messages[..], [unmap] if unmap.is_unmap_of(range)), "{messages:?}");
    });
}

/// One message a call with the call's whole range, holes and neighbours included:
/// userfaultfd_unmap_prep, has_unmap_ctx.
#[test]
fn an_unmap_is_one_message_for_the_whole_range_of_the_call() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let all = Range::filled(12, 7);
        uffd.watch(all.part(2, 4));
        uffd.watch(all.part(8, 10));
        let (_, none) = call(move || all.part(5, 6).unmap()).finish(&uffd);
        assert!(none.is_empty(), "an unregistered page has no message: {none:?}");
        let (_, messages) = call(move || all.unmap()).finish(&uffd);
        assert!(matches!(&messages[..], [unmap] if unmap.is_unmap_of(all)), "{messages:?}");
    });
}

/// The new mapping is there before the old one's message: mm/mmap.c, mmap_region; mm/util.c,
/// vm_mmap_pgoff.
#[test]
fn mmap_over_memory_sends_unmap_after_the_new_memory_can_be_used() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(4, 7);
        uffd.watch(range);
        let caller = call(move || range.map_over());
        caller.until_asleep();
        range.fill(9);
        let (result, messages) = caller.finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!(matches!(&messages[..], [unmap] if unmap.is_unmap_of(range)), "{messages:?}");
        assert_eq!(range.bytes_of_pages(), [9; 4]);
        assert_eq!(uffd.probe(range), Errno::NOENT, "the new memory is not registered");
    });
}

/// The rule "UNMAP is a claim, not a fact": since mm/vma.c collects what is to be unmapped before
/// it checks limits (6.12), vms_abort_munmap_vmas puts it back and leaves the messages. Before, the
/// limit was checked first (mm/mmap.c, mmap_region).
#[test]
fn a_failing_mmap_fixed_reports_an_unmap() {
    alone(|| {
        let reports = match version() {
            (6, 1) => false,
            later if later >= (6, 12) => true,
            _ => skip("what kernels between 6.1 and 6.12 do is not known"),
        };
        let uffd = Uffd::new(flag::EVENTS);
        let room = Range::reserved(4096);
        let range = room.part(0, 16);
        range.protect(rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE).unwrap();
        range.fill(7);
        uffd.watch(range);
        let (result, messages) = call(move || map_over_with_too_little_room(room)).finish(&uffd);
        assert_eq!(result, Err(Errno::NOMEM));
        match reports {
            true => assert!(matches!(&messages[..], [Message::Unmap(..)]), "{messages:?}"),
            false => assert!(messages.is_empty(), "{messages:?}"),
        }
        assert_eq!(uffd.probe(range), Errno::INVAL, "it is still there and registered");
        assert_eq!(range.bytes_of_pages(), [7; 16]);
    });
}

/// The rest of the room goes first, so that the mapping needs more than the limit then allows.
fn map_over_with_too_little_room(room: Range) -> Result<(), Errno> {
    room.part(16, 4096).unmap().unwrap();
    let old = getrlimit(Resource::As);
    let used_pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used_pages: usize = used_pages.split(' ').next().unwrap().parse().unwrap();
    let little = Some(((used_pages + 64) * PAGE) as u64);
    setrlimit(Resource::As, Rlimit { current: little, maximum: old.maximum }).unwrap();
    let result = room.map_over();
    setrlimit(Resource::As, old).unwrap();
    result
}

/// mm/mremap.c queues three messages for one call, each of which is waited for.
#[test]
fn a_move_onto_memory_is_unmap_remap_unmap() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (from, to) = (Range::filled(4, 7), Range::filled(4, 9));
        uffd.watch(from);
        uffd.watch(to);
        let (result, messages) = call(move || from.move_to(to)).finish(&uffd);
        assert_eq!(result, Ok(()));
        let [target, moved, source] = &messages[..] else { panic!("{messages:?}") };
        assert!(target.is_unmap_of(to) && source.is_unmap_of(from), "{messages:?}");
        assert!(moved.is_remap(from, to), "{messages:?}");
        assert_eq!(to.bytes_of_pages(), [7; 4]);
        assert_eq!(uffd.probe(to), Errno::INVAL, "the registration has moved along");
    });
}

/// Up to 6.15 mm/mremap.c, mremap_to, shortens only its own copy of the old length; the UNMAP of
/// the tail says what was cut off.
#[test]
fn a_shrinking_move_says_its_old_length_up_to_6_15() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (from, to) = (Range::filled(8, 7), Range::anonymous(3));
        uffd.watch(from);
        let (result, messages) = call(move || from.move_to(to)).finish(&uffd);
        assert_eq!(result, Ok(()));
        let said_pages = if version() < (6, 16) { 8 } else { 3 };
        let remaps: Vec<usize> = messages.iter().filter_map(length_of_remap).collect();
        assert_eq!(remaps, [said_pages * PAGE], "{messages:?}");
        let tail = messages.iter().any(|message| message.is_unmap_of(from.part(3, 8)));
        let source = messages.iter().any(|message| message.is_unmap_of(from.part(0, 3)));
        assert!(tail && source, "{messages:?}");
    });
}

fn length_of_remap(message: &Message) -> Option<usize> {
    match message {
        Message::Remap(_, _, bytes) => Some(*bytes),
        _ => None,
    }
}

/// mm/vma.c (before 6.10 mm/mmap.c), vma_merge_extend: the mapping is made longer, nothing is said.
#[test]
fn growth_in_place_is_registered_and_has_no_message() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let room = Range::anonymous(12);
        let range = room.part(0, 8);
        uffd.watch(range);
        let caller = call(move || {
            room.part(8, 12).unmap().unwrap();
            range.resize(12, MremapFlags::empty())
        });
        let (result, messages) = caller.finish(&uffd);
        assert_eq!(result, Ok(room));
        assert!(messages.is_empty(), "{messages:?}");
        assert_eq!(uffd.probe(room), Errno::INVAL, "one registered mapping");
        assert_eq!(uffd.zero(room.page(11)), Ok(()), "the new part is empty");
    });
}

/// expand_stack: a fault below a stack makes the mapping longer downwards; the fault is then a
/// registered one, at a place of which nobody has spoken.
#[test]
fn a_stack_grows_down_without_a_message() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let room = Range::reserved(600);
        let (below, stack) = (room.page(595), room.part(596, 600));
        stack.map_as_stack().unwrap();
        uffd.watch(stack);
        let toucher = call(move || {
            room.part(0, 596).unmap().unwrap();
            below.byte()
        });
        assert!(uffd.next().is_fault_in(below));
        assert_eq!(uffd.zero(below), Ok(()));
        assert_eq!(toucher.finish(&uffd).0, 0);
        assert_eq!(uffd.probe(room.part(595, 600)), Errno::INVAL, "one registered mapping");
    });
}

/// The REMAP of a move that grows has the old length; the new part is registered all the same.
#[test]
fn a_growing_move_says_its_old_length() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(8, 7);
        uffd.watch(range);
        let caller = call(move || range.resize(12, MremapFlags::MAYMOVE));
        let (moved, messages) = caller.finish(&uffd);
        let moved = moved.unwrap();
        assert_ne!(moved.start(), range.start());
        assert_eq!(messages.iter().filter_map(length_of_remap).collect::<Vec<_>>(), [8 * PAGE]);
        assert_eq!(uffd.probe(moved), Errno::INVAL, "all of it is registered");
        assert_eq!(uffd.zero(moved.page(11)), Ok(()));
    });
}

/// mm/mremap.c, dontunmap_complete: the old mapping stays, registered and empty, without UNMAP.
#[test]
fn a_move_that_leaves_its_mapping_says_remap_only() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (from, to) = (Range::filled(8, 7), Range::reserved(8));
        uffd.watch(from);
        let (result, messages) = call(move || from.move_out_to(to)).finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!(matches!(&messages[..], [remap] if remap.is_remap(from, to)), "{messages:?}");
        assert_eq!((uffd.probe(from), uffd.probe(to)), (Errno::INVAL, Errno::INVAL));
        assert_eq!(pages::present_pages(from), 0);
        assert_eq!(to.bytes_of_pages(), [7; 8]);
    });
}

/// userfaultfd_ctx_read looks for faults first, in all versions.
#[test]
fn faults_are_read_before_older_events() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (gone, touched) = (Range::anonymous(1), Range::anonymous(1));
        uffd.watch(gone);
        uffd.watch(touched);
        let first = call(move || gone.unmap());
        first.until_asleep();
        let second = call(move || touched.byte());
        second.until_asleep();
        let messages = [uffd.next(), uffd.next()];
        assert!(messages[0].is_fault_in(touched), "{messages:?}");
        assert!(messages[1].is_unmap_of(gone), "{messages:?}");
        assert_eq!(first.join(), Ok(()));
        until("an answer that counts", || uffd.zero(touched) != Err(Errno::AGAIN));
        assert_eq!(second.join(), 0);
    });
}

/// A thread whose fault is answered for another address is not woken; one message does for one
/// sleep. Answering twice is EEXIST, and waking without content brings a new message
/// (handle_userfault: the fault is tried again).
#[test]
fn a_wake_without_content_is_a_new_message_and_a_second_answer_eexist() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let page = Range::anonymous(1);
        uffd.watch(page);
        let toucher = call(move || page.byte());
        assert!(uffd.next().is_fault_in(page));
        uffd.wake(page).unwrap();
        assert!(uffd.next().is_fault_in(page));
        assert_eq!(uffd.zero(page), Ok(()));
        assert_eq!(toucher.join(), 0);
        assert_eq!(uffd.zero(page), Err(Errno::EXIST));
        assert_eq!(uffd.copy(page, Range::filled(1, 9)), Err(Errno::EXIST));
    });
}
