//! The kernel's own touches of absent memory.
//!
//! Owns: which of its calls wait for a page and which fail at once, signals meanwhile, the end of a
//! thread.

use overspill_kernel_rules::alone::{alone, skip};
use overspill_kernel_rules::kernel::version;
use overspill_kernel_rules::memory::{PAGE, Range, last_error};
use overspill_kernel_rules::pages::{read_by_mem, read_by_pin};
use overspill_kernel_rules::process::{Board, fork};
use overspill_kernel_rules::ring::Ring;
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Uffd, flag};
use overspill_kernel_rules::until;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// A call that touches an absent page sends one message, waits, and is right when it is answered.
fn waits_for_its_page<T: Send + 'static>(touch: impl FnOnce(Range) -> T + Send + 'static) -> T {
    let uffd = Uffd::new(flag::EVENTS);
    let page = Range::anonymous(1);
    uffd.watch(page);
    let caller = call(move || touch(page));
    assert!(uffd.next().is_fault_in(page));
    caller.until_asleep();
    assert!(!caller.is_finished());
    assert_eq!(uffd.zero(page), Ok(()));
    caller.join()
}

/// A call's result as such.
fn result(returned: i64) -> Result<usize, Errno> {
    if returned < 0 { Err(last_error()) } else { Ok(returned as usize) }
}

/// get_user_page_vma_remote may not drop the lock: the fault fails inside, and nobody is asked.
#[test]
fn proc_mem_fails_at_once_without_a_message() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let page = Range::anonymous(1);
        uffd.watch(page);
        assert_eq!(read_by_mem("self", page), Err(Errno::IO));
        assert!(uffd.message().is_none());
    });
}

/// Another process's debugger is in the same place: PTRACE_PEEKDATA says EIO.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_debugger_cannot_read_an_absent_page() {
    alone(|| {
        use overspill_kernel_rules::trace::Traced;
        Uffd::needed(flag::EVENTS);
        let (board, page, resident) = (Board::new(), Range::anonymous(1), Range::filled(1, 7));
        let child = fork(|| {
            let uffd = Uffd::new(flag::EVENTS);
            uffd.watch(page);
            board.set(0, 1);
            let _ = rustix::event::poll(&mut [], None);
        });
        board.wait(0);
        let Ok(traced) = Traced::seize(child.pid(), 0) else { skip("SEIZE is not permitted") };
        traced.stop();
        assert_eq!(traced.peek(resident), Ok(()));
        assert_eq!(traced.peek(page), Err(Errno::IO));
        assert_eq!(read_by_mem(&child.name(), page), Err(Errno::IO));
    });
}

/// UFFDIO_POISON (6.6): a page that is lost for good is a SIGBUS for whoever touches it, and no
/// message; ZEROPAGE and COPY find it occupied.
#[test]
fn a_poisoned_page_is_sigbus_without_a_message() {
    alone(|| {
        Uffd::needed(flag::EVENTS | flag::POISON);
        let (board, page) = (Board::new(), Range::anonymous(1));
        let toucher = fork(|| {
            let uffd = Uffd::new(flag::EVENTS | flag::POISON);
            uffd.watch(page);
            assert_eq!(uffd.poison(page), Ok(()));
            assert_eq!(uffd.zero(page), Err(Errno::EXIST));
            board.set(0, 1);
            page.byte();
        });
        assert_eq!(toucher.end().terminating_signal(), Some(libc::SIGBUS));
        assert_eq!(board.get(0), 1);
    });
}

/// faultin_page with FOLL_UNLOCKABLE: the reader waits, so a pager never reads so what it pages.
#[test]
fn process_vm_readv_waits() {
    alone(|| assert_eq!(waits_for_its_page(read_by_pin), Ok(0)));
}

#[test]
fn mlock_waits() {
    alone(|| assert_eq!(waits_for_its_page(Range::lock), Ok(())));
}

#[test]
fn write_from_an_absent_page_waits() {
    alone(|| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let wrote = waits_for_its_page(move |page| write_from(&writer, page));
        assert_eq!(wrote, Ok(10));
        let mut bytes = [1; 10];
        assert_eq!(rustix::io::read(reader, &mut bytes), Ok(10));
        assert_eq!(bytes, [0; 10]);
    });
}

fn write_from(to: &OwnedFd, page: Range) -> Result<usize, Errno> {
    // SAFETY: ten bytes of memory for experiments.
    result(unsafe { libc::write(to.as_raw_fd(), page.pointer(), 10) } as i64)
}

#[test]
fn vmsplice_of_an_absent_page_waits() {
    alone(|| {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let spliced = waits_for_its_page(move |page| {
            let vector = libc::iovec { iov_base: page.pointer(), iov_len: 10 };
            // SAFETY: ten bytes of memory for experiments.
            result(unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const vector, 1, 0) } as i64)
        });
        assert_eq!(spliced, Ok(10));
    });
}

/// The atomic look fails, then the page is faulted in, and the look is made again.
#[test]
fn a_futex_in_an_absent_page_waits() {
    alone(|| {
        let waited = waits_for_its_page(|page| {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            // SAFETY: a futex of this process in memory for experiments, and a time.
            result(unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    page.pointer(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    0,
                    &raw const time,
                )
            })
        });
        assert_eq!(waited, Err(Errno::TIMEDOUT));
    });
}

#[test]
fn a_direct_read_into_an_absent_page_waits() {
    alone(|| {
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open("/proc/self/exe");
        let Ok(file) = file else { skip("the file system here has no direct I/O") };
        let read = waits_for_its_page(move |page| {
            // SAFETY: a page of memory for experiments.
            result(unsafe { libc::read(file.as_raw_fd(), page.pointer(), PAGE) } as i64)
        });
        assert_eq!(read, Ok(PAGE));
    });
}

/// io_uring/rsrc.c: in 6.1 the pages are pinned under the lock, so the fault fails.
#[test]
fn registering_an_io_uring_buffer_waits_except_in_6_1() {
    alone(|| {
        let ring = Ring::new();
        if version() == (6, 1) {
            let uffd = Uffd::new(flag::EVENTS);
            let page = Range::anonymous(1);
            uffd.watch(page);
            assert_eq!(ring.register(page), Err(Errno::FAULT));
            assert!(uffd.message().is_none());
        } else {
            let registered = waits_for_its_page(move |page| ring.register(page));
            assert_eq!(registered, Ok(()));
        }
    });
}

/// arch/x86/mm/fault.c, fault_signal_pending: a signal that has a handler does not end a fault of
/// the kernel's, and keeps it from sleeping; each turn sends the message again. Once answered, the
/// call returns as if nothing had been.
#[test]
fn a_signal_makes_a_fault_in_a_call_spin() {
    alone(|| {
        const MANY: usize = 50;
        handle_usr1();
        let uffd = Uffd::new(flag::EVENTS);
        let page = Range::anonymous(1);
        uffd.watch(page);
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"hello").unwrap();
        let caller = call(move || read_into(reader, page));
        assert!(uffd.next().is_fault_in(page));
        caller.until_asleep();
        assert!(uffd.message().is_none(), "one message while no signal is pending");
        signal_thread(caller.tid());
        let mut messages = 0;
        until("many messages", || {
            while uffd.message().is_some() && messages < MANY {
                messages += 1;
            }
            messages >= MANY
        });
        assert_eq!(uffd.zero(page), Ok(()));
        assert_eq!(caller.join(), Ok(5));
    });
}

fn read_into(mut from: std::io::PipeReader, page: Range) -> Result<usize, Errno> {
    let memory = page.pointer().cast::<u8>();
    // SAFETY: a page of memory for experiments, which nobody else uses meanwhile.
    let buffer = unsafe { std::slice::from_raw_parts_mut(memory, 100) };
    from.read(buffer).map_err(|error| Errno::from_io_error(&error).unwrap())
}

fn handle_usr1() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
}

fn signal_thread(tid: i32) {
    // SAFETY: the signal has a handler.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
    assert_eq!(result, 0);
}

/// handle_userfault refuses a thread that ends (PF_EXITING): exit_robust_list finds nothing there,
/// asks nobody, and a lock on its list keeps its dead owner.
#[test]
fn the_end_of_a_thread_does_not_wait_for_its_robust_list() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let (absent, head) = (Range::anonymous(1), Range::filled(1, 0));
        uffd.watch(absent);
        call(move || {
            // SAFETY: a list's head of three words, the first of which is where the list goes on.
            unsafe { head.pointer().cast::<usize>().write_volatile(absent.start()) };
            // SAFETY: the thread takes no robust lock, so its own list is not missed.
            let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head.pointer(), 24) };
            assert_eq!(set, 0);
        })
        .join();
        assert!(uffd.message().is_none());
    });
}

/// The same for the word that says that a thread has ended (`clear_child_tid`): it is not cleared.
#[test]
fn the_end_of_a_thread_does_not_wait_for_its_word_either() {
    alone(|| {
        let uffd = Uffd::new(flag::EVENTS);
        let absent = Range::anonymous(1);
        uffd.watch(absent);
        let stack = Range::anonymous(16);
        let tid = ending_thread(stack, absent);
        until("the thread's end", || {
            !std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
        });
        assert!(uffd.message().is_none());
    });
}

/// Starts a thread, by the kernel's call alone, which ends at once and has its word in a page.
fn ending_thread(stack: Range, word: Range) -> i32 {
    extern "C" fn end(_: *mut std::ffi::c_void) -> libc::c_int {
        0
    }
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_CHILD_CLEARTID;
    let (top, none) = (stack.end() as *mut std::ffi::c_void, std::ptr::null_mut::<i32>());
    // SAFETY: the thread has a stack of its own, and returns at once without touching anything.
    let tid =
        unsafe { libc::clone(end, top, flags, std::ptr::null_mut(), none, none, word.pointer()) };
    assert!(tid > 0, "a thread: {}", last_error());
    tid
}
