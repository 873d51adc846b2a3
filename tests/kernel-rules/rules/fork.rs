//! Copies of an address space.
//!
//! Owns: EVENT_FORK and what there is without it, what a child inherits, pages that are shared
//! after a fork and how they become movable.

use overspill_kernel_rules::alone::{alone, found};
use overspill_kernel_rules::kernel::{CAP_SYS_ADMIN, CAP_SYS_PTRACE, needs_capability};
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::memory::advice::{MADV_POPULATE_WRITE, MADV_WIPEONFORK};
use overspill_kernel_rules::pages::{Entry, read_by_mem, read_by_pin};
use overspill_kernel_rules::process::{Board, Child, fork};
use overspill_kernel_rules::threads::{Caller, call};
use overspill_kernel_rules::uffd::{Message, Uffd, flag};
use overspill_kernel_rules::until;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// userfaultfd_api asks its caller, once, and nobody later.
#[test]
fn event_fork_takes_cap_sys_ptrace_of_the_caller_of_uffdio_api() {
    alone(|| {
        needs_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE, to lose it");
        Uffd::needed(flag::EVENT_FORK);
        fork(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_PTRACE);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let refused = Uffd::try_new(flag::EVENTS | flag::EVENT_FORK);
            assert_eq!(refused.map(drop), Err(Errno::PERM));
            assert_eq!(Uffd::try_new(flag::EVENTS).map(drop), Ok(()));
        })
        .succeed();
    });
}

/// Forks in a thread, since that waits for its message.
fn forked(body: impl FnOnce() + Send + 'static) -> Caller<Child> {
    call(move || fork(body))
}

fn next_copy(uffd: &Uffd) -> Uffd {
    match uffd.next() {
        Message::Fork(copy) => copy,
        other => panic!("{other:?}"),
    }
}

/// kernel/fork.c, dup_mmap, dup_userfaultfd_complete: the message is read inside copy_mm, long
/// before the child is a task. With it comes a userfaultfd of the copy, at work at once.
#[test]
fn a_child_does_not_run_before_its_message_is_read() {
    alone(|| {
        needs_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE");
        let uffd = Uffd::new(flag::EVENTS | flag::EVENT_FORK);
        let (absent, content) = (Range::anonymous(1), Range::filled(1, 9));
        uffd.watch(absent);
        let board = Board::new();
        let forker = forked(move || {
            board.set(0, 1);
            board.set(1, u64::from(absent.byte()));
        });
        uffd.until_ready();
        assert_eq!(board.get(0), 0);
        let copy = next_copy(&uffd);
        let child = forker.join();
        board.wait(0);
        assert!(copy.next().is_fault_in(absent), "the child is registered");
        assert_eq!(copy.copy(absent, content), Ok(()));
        child.succeed();
        assert_eq!(board.get(1), 9);
        assert!(uffd.message().is_none(), "the parent's userfaultfd has nothing of it");
    });
}

/// dup_userfaultfd without the feature: the copy is not registered, and an absent page is zeros.
#[test]
fn without_event_fork_a_child_reads_zeros() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let absent = Range::anonymous(1);
        uffd.watch(absent);
        fork(|| assert_eq!(absent.byte(), 0)).succeed();
        assert!(uffd.message().is_none());
    });
}

/// The content of memory that is wiped on fork must not be served to the child: its mapping is
/// registered and empty there, and nothing but the mapping's flag (`wf`) tells it.
#[test]
fn wipeonfork_memory_is_registered_and_empty_in_the_child() {
    alone(|| {
        needs_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE");
        let uffd = Uffd::new(flag::EVENTS | flag::EVENT_FORK);
        let range = Range::filled(1, 7);
        uffd.watch(range);
        range.advise(MADV_WIPEONFORK).unwrap();
        assert!(overspill_kernel_rules::pages::has_flag(range, "wf"));
        let forker = forked(move || assert_eq!(range.byte(), 0));
        let copy = next_copy(&uffd);
        let child = forker.join();
        assert!(copy.next().is_fault_in(range));
        assert_eq!(copy.zero(range), Ok(()));
        child.succeed();
        assert_eq!(range.byte(), 7);
    });
}

/// copy_nonpresent_pte, __copy_present_ptes: marks and protections are copied.
#[test]
fn a_child_has_its_parents_markers() {
    alone(|| {
        needs_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE");
        let uffd = Uffd::new(flag::EVENTS | flag::EVENT_FORK | flag::WP_UNPOPULATED);
        let range = Range::anonymous(2);
        range.page(1).fill(7);
        uffd.register(range, flag::MISSING | flag::WP).unwrap();
        uffd.protect(range).unwrap();
        let forker = forked(move || {
            let (absent, present) = (Entry::of(range.page(0)), Entry::of(range.page(1)));
            assert!(absent.is_marked() && !absent.is_present());
            assert!(present.is_marked() && present.is_present());
        });
        let _copy = next_copy(&uffd);
        forker.join().succeed();
    });
}

/// vfork and posix_spawn share the address space, so there is no copy to speak of.
#[test]
fn a_spawned_program_has_no_fork_message() {
    alone(|| {
        needs_capability(CAP_SYS_PTRACE, "CAP_SYS_PTRACE");
        let uffd = Uffd::new(flag::EVENTS | flag::EVENT_FORK);
        uffd.watch(Range::anonymous(1));
        let spawner = call(|| {
            let mut program = std::process::Command::new("/proc/self/exe");
            program.arg("--list").stdout(std::process::Stdio::null()).status().unwrap()
        });
        let (status, messages) = spawner.finish(&uffd);
        assert!(status.success());
        assert!(messages.is_empty(), "{messages:?}");
    });
}

/// Pages that a child shares, and a child that waits. The first page of `staging` is for them.
fn shared_pages(pages: usize) -> (Uffd, Range, Range, Child) {
    let uffd = Uffd::new(flag::MOVE);
    let (range, staging) = (Range::anonymous(pages), Range::anonymous(pages));
    range.advise(libc::MADV_NOHUGEPAGE).unwrap();
    range.fill(6);
    uffd.watch(staging);
    let child = fork(|| {
        let _ = rustix::event::poll(&mut [], None);
    });
    (uffd, range, staging, child)
}

/// PageAnonExclusive in move_pages_pte: shared is EBUSY. A read through a pin
/// (process_vm_readv) gives this process a page of its own (gup_must_unshare); /proc/PID/mem, which
/// takes a plain reference, leaves it shared.
#[test]
fn a_shared_page_is_busy_until_a_pin_unshares_it() {
    alone(|| {
        needs_capability(CAP_SYS_ADMIN, "CAP_SYS_ADMIN, to see frames");
        let (uffd, range, staging, child) = shared_pages(2);
        let frame = |page| Entry::of(range.page(page)).frame();
        let shared = Entry::in_process(&child.name(), range.page(0)).frame();
        assert_eq!(frame(0), shared);
        assert_eq!(uffd.move_pages(staging.page(0), range.page(0)), Err(Errno::BUSY));
        assert_eq!(read_by_pin(range.page(0)), Ok(6));
        assert_ne!(frame(0), shared);
        assert_eq!(uffd.move_pages(staging.page(0), range.page(0)), Ok(()));
        let before = frame(1);
        assert_eq!(read_by_mem("self", range.page(1)), Ok(6));
        assert_eq!(frame(1), before);
        assert_eq!(uffd.move_pages(staging.page(1), range.page(1)), Err(Errno::BUSY));
    });
}

/// A page stays what the fork made it after the child has gone. A write fault or a pin make it
/// movable again, most often without a copy (wp_can_reuse_anon_folio), which is counted.
#[test]
fn a_page_that_was_shared_stays_busy_until_it_is_written_or_pinned() {
    alone(|| {
        needs_capability(CAP_SYS_ADMIN, "CAP_SYS_ADMIN, to see frames");
        const PAGES: usize = 64;
        let (uffd, range, staging, child) = shared_pages(PAGES);
        drop(child);
        let out = |page: usize| uffd.move_pages(staging.page(page), range.page(page));
        assert!((0..PAGES).all(|page| out(page) == Err(Errno::BUSY)));
        let mut kept = [0, 0];
        for page in 0..PAGES {
            let (place, before) = (range.page(page), Entry::of(range.page(page)).frame());
            match page % 2 {
                0 => place.advise(MADV_POPULATE_WRITE).unwrap(),
                _ => drop(read_by_pin(place).unwrap()),
            }
            kept[page % 2] += usize::from(Entry::of(place).frame() == before);
            // A page that was just copied is for a moment in a batch of its CPU.
            until("a page that can be moved", || out(page) == Ok(()));
        }
        assert_eq!(staging.bytes_of_pages(), [6; PAGES]);
        let [written, pinned] = kept;
        found(&format!("of 32 frames each, written kept {written}, pinned kept {pinned}"));
    });
}
