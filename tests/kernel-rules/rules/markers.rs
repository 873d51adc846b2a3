//! Write-protect markers in absent pages (WP_UNPOPULATED, 6.4).
//!
//! Owns: what sets, keeps and drops them, and what read-write protection (7.3) does instead.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::kernel::since;
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::memory::advice::{
    MADV_DONTNEED, MADV_FREE, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE,
};
use overspill_kernel_rules::pages::Entry;
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Uffd, flag};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

/// A userfaultfd, and absent pages of it that are all marked.
fn marked(pages: usize, features: u64) -> (Uffd, Range) {
    let uffd = Uffd::new(flag::EVENTS | flag::WP_UNPOPULATED | features);
    let range = Range::anonymous(pages);
    uffd.register(range, flag::MISSING | flag::WP).unwrap();
    uffd.protect(range).unwrap();
    assert!((0..pages).all(|page| is_marker(range.page(page))));
    (uffd, range)
}

fn is_marker(page: Range) -> bool {
    let entry = Entry::of(page);
    entry.is_marked() && !entry.is_present()
}

/// The mark is in the page table: ZEROPAGE finds the place taken, COPY does not, and a touch is a
/// fault as of a missing page.
#[test]
fn a_marker_refuses_zeropage_and_takes_copy() {
    alone(|| {
        let (uffd, range) = marked(1, 0);
        let content = Range::filled(1, 9);
        let toucher = call(move || range.byte());
        assert!(uffd.next().is_fault_in(range));
        assert_eq!(uffd.zero(range), Err(Errno::EXIST));
        assert_eq!(uffd.copy(range, content), Ok(()));
        assert_eq!(toucher.join(), 9);
        assert!(!Entry::of(range).is_marked());
    });
}

/// mm/userfaultfd.c, mfill_atomic_pte_poison: any entry is EEXIST, also a mark. Lifting the
/// protection takes the mark away, and wakes who waits.
#[test]
fn poison_refuses_a_marker_until_that_is_taken_away() {
    alone(|| {
        let (uffd, range) = marked(2, flag::POISON);
        assert_eq!(uffd.poison(range.page(0)), Err(Errno::EXIST));
        let touched = range.page(1);
        let toucher = call(move || touched.byte());
        assert!(uffd.next().is_fault_in(touched));
        uffd.unprotect(range).unwrap();
        assert!(Entry::of(range.page(0)).is_empty());
        assert!(uffd.next().is_fault_in(touched), "it touches the page again");
        assert_eq!(uffd.copy(touched, Range::filled(1, 9)), Ok(()));
        assert_eq!(toucher.join(), 9);
        assert_eq!(uffd.poison(range.page(0)), Ok(()));
    });
}

/// For MOVE a marker is EEXIST at the destination and EFAULT at the source. A protected page moves,
/// and arrives without its protection.
#[test]
fn a_move_stops_at_markers_and_drops_protection() {
    alone(|| {
        let (uffd, range) = marked(2, flag::MOVE);
        let (content, to) = (Range::filled(2, 9), Range::anonymous(2));
        uffd.register(to, flag::MISSING | flag::WP).unwrap();
        assert_eq!(uffd.move_pages(range.page(0), content.page(0)), Err(Errno::EXIST));
        assert_eq!(uffd.move_pages(to.page(0), range.page(0)), Err(Errno::FAULT));
        uffd.register(content, flag::MISSING | flag::WP).unwrap();
        uffd.protect(content.page(1)).unwrap();
        assert!(Entry::of(content.page(1)).is_marked() && Entry::of(content.page(1)).is_present());
        assert_eq!(uffd.move_pages(to.page(1), content.page(1)), Ok(()));
        assert!(Entry::of(to.page(1)).is_present() && !Entry::of(to.page(1)).is_marked());
    });
}

/// What is dropped loses its mark; the mark stays where content stays, and goes along with it.
#[test]
fn dontneed_drops_a_marker_and_free_mprotect_and_mremap_keep_it() {
    alone(|| {
        let (uffd, range) = marked(8, 0);
        let caller = call(move || {
            range.page(0).advise(MADV_DONTNEED).unwrap();
            range.page(1).advise(MADV_FREE).unwrap();
            range.page(2).protect(MprotectFlags::READ).unwrap();
        });
        caller.finish(&uffd);
        assert!(Entry::of(range.page(0)).is_empty());
        assert!(is_marker(range.page(1)));
        assert!(is_marker(range.page(2)));
        let (from, to) = (range.part(4, 8), Range::reserved(4));
        let (result, _) = call(move || from.move_to(to)).finish(&uffd);
        assert_eq!(result, Ok(()));
        assert!((0..4).all(|page| is_marker(to.page(page))));
    });
}

/// A guard takes the marker's place, and leaves nothing when it goes.
#[test]
fn a_guard_drops_a_marker() {
    alone(|| {
        since((6, 13), "MADV_GUARD_INSTALL");
        let (uffd, range) = marked(1, 0);
        range.advise(MADV_GUARD_INSTALL).unwrap();
        range.advise(MADV_GUARD_REMOVE).unwrap();
        assert!(Entry::of(range).is_empty());
        assert!(uffd.message().is_none());
        assert_eq!(uffd.zero(range), Ok(()));
    });
}

/// Markers are the registration's: without it, the page is empty.
#[test]
fn markers_go_with_their_userfaultfd() {
    alone(|| {
        let (uffd, range) = marked(1, 0);
        drop(uffd);
        assert!(Entry::of(range).is_empty());
        assert_eq!(range.byte(), 0);
    });
}

/// RWP protects present pages only, and MOVE takes them: they arrive in staging without it.
#[test]
fn a_move_takes_pages_that_are_protected_from_touches() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS | flag::MOVE | flag::RWP);
        let (range, staging) = (Range::filled(2, 7), Range::anonymous(2));
        uffd.register(range, flag::MISSING | flag::REGISTER_RWP).unwrap();
        uffd.watch(staging);
        uffd.protect_from_touches(range).unwrap();
        let toucher = call(move || range.page(1).byte());
        assert!(uffd.next().is_fault_in(range.page(1)), "a touch is a message");
        assert_eq!(uffd.move_pages(staging.page(0), range.page(0)), Ok(()));
        assert_eq!(staging.byte(), 7);
        uffd.unregister(range.page(1)).unwrap();
        assert_eq!(toucher.join(), 7);
    });
}

/// One mapping has one of the two protections.
#[test]
fn both_protections_together_are_einval() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS | flag::RWP);
        let range = Range::anonymous(1);
        let both = flag::MISSING | flag::WP | flag::REGISTER_RWP;
        assert_eq!(uffd.register(range, both), Err(Errno::INVAL));
    });
}
