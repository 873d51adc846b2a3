//! In which order messages of several threads are read.
//!
//! Owns: the counterexample against a reader that trusts the order.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::memory::{PAGE, Range};
use overspill_kernel_rules::threads::{Caller, call};
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use overspill_kernel_rules::until;
use rustix::io::Errno;
use rustix::mm::MremapFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events are in the order in which they are queued, not in that of the changes: mm/mremap.c fills
/// a locked mapping's new part between the change and its message. Meanwhile another thread gets
/// the old place, moves memory there and on. The three REMAPs are then read as if the late one had
/// been the last, and nothing in them tells which content went where.
#[test]
fn remaps_are_read_in_another_order_than_they_were_made() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (place, z, end) = (Range::filled(8, 1), Range::filled(8, 2), Range::reserved(8));
        place.lock().unwrap();
        uffd.watch(place);
        uffd.watch(z);
        // It starts before the place is free: a new thread's memory could land there.
        let (is_free, frees) = {
            let flag = Arc::new(AtomicBool::new(false));
            (Arc::clone(&flag), flag)
        };
        let other = call(move || {
            until("a place that is free", || is_free.load(Ordering::Acquire));
            z.move_to(place).and_then(|()| place.move_to(end))
        });
        let late = call(move || place.resize(64, MremapFlags::MAYMOVE));
        let fault = uffd.next();
        let Message::Fault(in_new_part) = fault else { panic!("{fault:?}") };
        frees.store(true, Ordering::Release);
        let (result, early) = other.finish(&uffd);
        assert_eq!(result, Ok(()));
        let (moved, last) = released(&uffd, in_new_part, late);
        let remaps: Vec<&Message> = early.iter().chain(&last).filter(|m| is_remap(m)).collect();
        let [first, second, third] = remaps[..] else { panic!("{early:?}, {last:?}") };
        assert!(first.is_remap(z, place) && second.is_remap(place, end), "{early:?}");
        assert!(third.is_remap(place, moved), "made first, read last: {last:?}");
        assert_eq!((moved.byte(), end.byte()), (1, 2), "what the order read would exchange");
    });
}

fn is_remap(message: &Message) -> bool {
    matches!(message, Message::Remap(..))
}

/// Lets a thread go on that fills a moved mapping from its page 8 on: nothing but the end of the
/// registration does.
fn released(
    uffd: &Uffd,
    in_new_part: usize,
    late: Caller<Result<Range, Errno>>,
) -> (Range, Vec<Message>) {
    let moved_to = in_new_part / PAGE * PAGE - 8 * PAGE;
    let new_part = Range::at_known_place(moved_to, 64).part(8, 64);
    uffd.unregister(new_part).unwrap();
    let (result, messages) = late.finish(uffd);
    let moved = result.unwrap();
    assert_eq!(moved.start(), moved_to);
    (moved, messages)
}
