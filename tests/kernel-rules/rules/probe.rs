//! What the answers of ioctls prove: quiet, or an event that is still to be read.
//!
//! Owns: UFFDIO_CONTINUE as a question without effect, and what `mmap_changing` guards.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::kernel::version;
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Uffd, flag};
use overspill_kernel_rules::{pages, until};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

/// mm/userfaultfd.c, mfill_atomic: first EAGAIN while an event is unread, then ENOENT unless one
/// registered mapping covers the range, then EINVAL because it is anonymous.
#[test]
fn continue_tells_registered_from_not_without_an_effect() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let range = Range::filled(16, 7);
        assert_eq!(uffd.probe(range), Errno::NOENT, "not registered");
        uffd.watch(range);
        assert_eq!(uffd.probe(range), Errno::INVAL, "registered");
        uffd.unregister(range.part(4, 8)).unwrap();
        assert_eq!(uffd.probe(range), Errno::NOENT, "with a hole");
        assert_eq!(uffd.probe(range.part(0, 4)), Errno::INVAL, "before the hole");
        assert_eq!(uffd.probe(range.part(8, 16)), Errno::INVAL, "behind it");
        range.page(8).protect(MprotectFlags::READ).unwrap();
        assert_eq!(uffd.probe(range.part(8, 16)), Errno::NOENT, "two registered mappings");
        assert_eq!(range.bytes_of_pages(), [7; 16]);
    });
}

/// The probe knows no owner: the mapping may be of another userfaultfd of the address space.
#[test]
fn continue_does_not_tell_whose_registration_it_is() {
    alone(|| {
        let (uffd, other) = (Uffd::new(flag::EVENTS), Uffd::new(flag::EVENTS));
        let range = Range::anonymous(4);
        other.watch(range);
        assert_eq!(uffd.probe(range), Errno::INVAL);
    });
}

/// fs/userfaultfd.c tests `mmap_changing` before all that fills; REGISTER, UNREGISTER and WAKE it
/// does not ask. The ++ is before the change, the -- after the maker has woken.
#[test]
fn while_an_event_is_unread_nothing_can_be_filled_but_registrations_change() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (range, gone, content) =
            (Range::anonymous(4), Range::anonymous(1), Range::filled(1, 9));
        uffd.watch(range);
        uffd.watch(gone);
        let caller = call(move || gone.unmap());
        caller.until_asleep();
        assert_eq!(uffd.probe(range), Errno::AGAIN);
        assert_eq!(uffd.zero(range.page(0)), Err(Errno::AGAIN));
        assert_eq!(uffd.copy(range.page(0), content), Err(Errno::AGAIN));
        assert_eq!(uffd.wake(range), Ok(()));
        assert_eq!(uffd.unregister(range.part(2, 4)), Ok(()));
        assert_eq!(uffd.register(range.part(2, 4), flag::MISSING), Ok(()));
        assert!(uffd.next().is_unmap_of(gone));
        assert_eq!(caller.join(), Ok(()));
        until("quiet", || uffd.probe(range.part(0, 2)) != Errno::AGAIN);
        assert_eq!(uffd.zero(range.page(0)), Ok(()));
    });
}

/// The guard that MOVE asks is that of the userfaultfd which has the destination: staging of
/// another one moves although the first has something to say (mm/userfaultfd.c, move_pages).
#[test]
fn the_guard_is_that_of_the_destinations_userfaultfd() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS | flag::MOVE);
        let other = Uffd::new(flag::MOVE);
        let range = Range::filled(8, 7);
        let (own, others) = (Range::anonymous(1), Range::anonymous(1));
        uffd.watch(range);
        uffd.watch(own);
        other.watch(others);
        let caller = call(move || range.page(0).unmap());
        caller.until_asleep();
        assert_eq!(uffd.move_pages(own, range.page(1)), Err(Errno::AGAIN));
        assert_eq!(other.move_pages(others, range.page(1)), Ok(()));
        assert_eq!(caller.finish(&uffd).0, Ok(()));
    });
}

/// Readers of the messages are the only way on: a maker can be ended by SIGKILL alone, so while it
/// waits each of many tries is EAGAIN.
#[test]
fn an_unread_event_stops_every_move() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS | flag::MOVE);
        let (range, staging) = (Range::filled(2, 7), Range::anonymous(1));
        uffd.watch(range);
        uffd.watch(staging);
        let caller = call(move || range.page(0).unmap());
        caller.until_asleep();
        for _ in 0..10_000 {
            assert_eq!(uffd.move_pages(staging, range.page(1)), Err(Errno::AGAIN));
        }
        assert_eq!(caller.finish(&uffd).0, Ok(()));
        until("a move", || uffd.move_pages(staging, range.page(1)) == Ok(()));
    });
}

/// Each newer feature has a first version, before which there is none.
#[test]
fn features_come_with_their_versions() {
    alone(|| {
        let (features, version) = (Uffd::features(), version());
        for (name, bit, first) in flag::NEWER {
            assert_eq!(features & bit != 0, version >= first, "{name} in {version:?}");
        }
    });
}

/// PROCMAP_QUERY (6.11): one mapping under its lock, where maps is read in pieces.
#[test]
fn procmap_query_shows_one_mapping_from_6_11() {
    alone(|| {
        let range = Range::anonymous(4);
        let expected =
            if version() < (6, 11) { Err(Errno::NOTTY) } else { Ok((range.start(), range.end())) };
        assert_eq!(pages::mapping_at(range.page(2)), expected);
    });
}
