//! How the pager notices the end of its program, that other processes ask for frames, and that swap
//! comes or goes.
//!
//! Owns: the thread that waits for both. When a program ends or executes another one, the kernel
//! clears the word that it clears at a thread's end and wakes its waiters: the pager waits on the
//! word of the program's first thread. That thread may also end alone while others go on; then the
//! pager checks ten times a second whether the process still lives in this memory. A program may
//! have the kernel clear another word; so the pager looks every twenty seconds in any case.
//! Invariants: in doubt the pager stays, as long as a thread may fault. When the program is gone,
//! the pager frees what it holds on the devices; if a killed thread holds a lock needed for that,
//! it leaves the work to others. This thread waits for no lock that a killed thread may have, so it
//! allocates nothing: libc's fork has all locks of the heap.

use super::errands::Standing;
use super::{leave, program};
use crate::pager::{Process, any_process};
use overspill_space::restore_all_cpus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::io::Errno;
use rustix::process::PidfdFlags;
use rustix::thread::futex;
use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;

const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Pause in which a program that executes another one has time to release its memory.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Longest time for which nobody looks whether the program is there.
const WHILE: Duration = Duration::from_secs(20);
/// Longest time for freeing what the pager holds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Address of the word that the kernel clears when the program's first thread ends.
static WORD: AtomicUsize = AtomicUsize::new(0);

/// Notes which word it is; called on the program's first thread.
pub(super) fn note_word() {
    let mut word = std::ptr::null_mut::<u32>();
    // SAFETY: PR_GET_TID_ADDRESS writes an address.
    let noted = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut word) } == 0;
    let word = if noted { word.addr() } else { 0 };
    super::threads::note_number(word);
    WORD.store(word, std::sync::atomic::Ordering::Release);
}

/// Opens a handle of the program, which is certainly alive while it waits for its pager.
pub(super) fn handle() -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(program(), PidfdFlags::empty())
}

/// Waits for the end of the program behind `pidfd`, then ends this process.
pub(super) fn until_the_end(pidfd: &OwnedFd) {
    wait_for_first_thread(pidfd);
    let mut glances = 0;
    while is_there(pidfd) {
        glances += 1;
        let rest = if glances < 50 { MOMENT } else { GLANCE };
        let _ = any_process().is_some_and(attend);
        wait_for_end(pidfd, &rest);
    }
    restore_all_cpus(program());
    super::errands::run_last(leave, PATIENCE);
}

/// None if the kernel does not report it.
fn word_of_first_thread() -> Option<&'static AtomicU32> {
    let word = std::ptr::with_exposed_provenance::<AtomicU32>(WORD.load(Acquire));
    // SAFETY: a word of the first thread's block, in memory that is never unmapped: this process
    // has it too.
    unsafe { word.as_ref() }
}

fn wait_for_first_thread(pidfd: &OwnedFd) {
    let Some(word) = word_of_first_thread() else { return };
    loop {
        match word.load(Acquire) {
            0 => return,
            seen => attend_until(word, seen),
        }
        // A program can have another word cleared instead (set_tid_address).
        if !is_there(pidfd) {
            return;
        }
    }
}

/// Has areas taken and left. Not here, because that allocates.
static FOLLOW_AREAS: Standing = Standing::new(&(crate::pager::follow_areas as fn()));
/// Between two looks at areas that are being taken or left.
const AREAS_PAUSE: Duration = Duration::from_millis(5);

/// Forgets, in a forked child, what its parent's thread had posted.
pub(super) fn renew() {
    FOLLOW_AREAS.renew();
}

/// Wakes the reclaim thread if others have asked for frames, and sleeps until they do so again or
/// `word` is no longer `seen`, or for a while.
fn attend_until(word: &AtomicU32, seen: u32) {
    let Some(process) = any_process() else {
        // Not a private wait: the kernel's wake is a shared one.
        let most = Timespec::try_from(WHILE).ok();
        let _ = futex::wait(word, futex::Flags::empty(), seen, most.as_ref());
        return;
    };
    let (session, member) = (&process.session, process.pager.member());
    let rung = session.bell(member);
    let attended = attend(process);
    if session.has_area_changes() {
        FOLLOW_AREAS.post();
        return std::thread::sleep(AREAS_PAUSE);
    }
    if !attended {
        return std::thread::sleep(Duration::from_millis(1));
    }
    session.wait_for_bell(member, rung, (word, seen), GLANCE, WHILE);
}

/// Wakes the reclaim thread if others have asked for frames; false if that is to be tried again.
fn attend(process: &Process) -> bool {
    // Not while the program forks: the child would have the lock that this takes. And without
    // waiting: whoever has a lock may have been killed with the program.
    process.gate.try_read().is_ok_and(|_gate| process.pager.engine().attend())
}

fn wait_for_end(pidfd: &OwnedFd, rest: &Timespec) {
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(rest));
}

/// Returns true if the program is alive and has not executed another one.
fn is_there(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(1) {
        return false;
    }
    match shares_memory(program().as_raw_pid()) {
        Some(true) => true,
        // Also if it has ended.
        Some(false) => other_thread_may_share().unwrap_or(false),
        None => !first_thread_goes_on().unwrap_or(false),
    }
}

/// Returns true if one of the program's threads, as far as they are visible, may have this memory.
fn other_thread_may_share() -> Option<bool> {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let tasks = open_of_program("task", OFlags::DIRECTORY)?;
    let mut entries = RawDir::new(tasks, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let thread = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if thread.is_some_and(|thread| shares_memory(thread) != Some(false)) {
            return Some(true);
        }
    }
    None
}

/// Opens a file below the program's directory in `/proc`.
fn open_of_program(name: &str, flags: OFlags) -> Option<OwnedFd> {
    let mut path = [0; 32];
    write!(&mut path[..], "/proc/{}/{name}", program().as_raw_pid()).ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether a thread has the same memory as this process; none if that may not be known: seccomp
/// profiles of containers refuse kcmp.
fn shares_memory(thread: i32) -> Option<bool> {
    const KCMP_VM: libc::c_int = 1;
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: compares two processes by number.
    match unsafe { libc::syscall(libc::SYS_kcmp, own, thread, KCMP_VM, 0, 0) } {
        0 => Some(true),
        order if order > 0 || has_ended(thread) => Some(false),
        _ => None,
    }
}

/// Returns true if the first thread's word has been cleared though it goes on, and so it has
/// executed a program: the kernel clears it then or at the thread's end.
fn first_thread_goes_on() -> Option<bool> {
    /// Of the seventh field after the name: the thread is about to end.
    const PF_EXITING: u32 = 4;
    if word_of_first_thread()?.load(Acquire) != 0 {
        return None;
    }
    let mut text = [0; 512];
    let stat = open_of_program("stat", OFlags::empty())?;
    let bytes = rustix::io::read(stat, &mut text).ok()?;
    let name_end = text[..bytes].iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&text[name_end..bytes]).ok()?.split(' ').skip(1);
    let (state, flags) = (fields.next()?, fields.nth(5)?.parse::<u32>().ok()?);
    Some(!matches!(state, "Z" | "X") && flags & PF_EXITING == 0)
}

fn has_ended(thread: i32) -> bool {
    // SAFETY: signal 0 is never delivered.
    unsafe {
        libc::syscall(libc::SYS_tkill, thread, 0) < 0 && *libc::__errno_location() == libc::ESRCH
    }
}
