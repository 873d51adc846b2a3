//! The pager as a process of its own in the program's address space.
//!
//! Owns: its start, its descriptors, and its end. It shares the program's memory and nothing else,
//! so it goes on when the program closes every descriptor, changes its root, its user or its
//! limits, blocks or handles every signal, filters its system calls, or ends thread by thread. A
//! userfaultfd belongs to an address space, so it can be served from this process.
//!
//! ```text
//! program's thread                    pager's first thread
//! ── clone(CLONE_VM | SIGKILL) ─────> has no descriptors, gets its own from the supervisor
//!    waits                            opens the userfaultfd, starts handlers, reports success
//!    goes on                          runs errands
//!    ...
//!    ends, or executes a program ───> frees its slots, ends
//! ```
//!
//! Invariants: it outlives the program only briefly, and the program never outlives it: however it
//! dies, its death sends SIGKILL to the program. A kernel that is short of memory kills both. Its
//! descriptors have the same numbers in a forked child's pager: 0 to 2 lead nowhere, 3 is the
//! channel to the supervisor, and the received ones start at 4.
//! Not here: paging.
//! Rejected: threads of the program's own process. They keep it from ending, delay signals, expose
//! their descriptors, and die of its filters. A pager that is a child of the supervisor, which a
//! program that lists its children would not see: the kernel sends a process's exit signal to its
//! parent only, so the program would wait for its pager until somebody else killed it.

mod errands;
mod threads;
mod watch;

pub(crate) use threads::libc_clone;

use crate::futex;
use crate::signals;
use overspill::session::{Channel, Session};
use overspill_base::PAGE_SIZE;
use overspill_base::shared::Table;
use overspill_space::ManagedSpace;
use rustix::fd::{AsRawFd, RawFd};
use rustix::process::Pid;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Mutex, OnceLock};

/// The program's process.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// 0 while the pager starts, then [`READY`] or [`FAILED`].
static STARTED: AtomicU32 = AtomicU32::new(0);
const READY: u32 = 1;
const FAILED: u32 = 2;

/// Why the start failed.
static REASON: Mutex<String> = Mutex::new(String::new());

/// True while a pager can run errands.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// The channel to the supervisor: descriptor 3 of every pager.
static CHANNEL: OnceLock<Channel> = OnceLock::new();
const CHANNEL_FD: RawFd = 3;

/// The process whose threads are served.
pub(crate) fn program() -> Pid {
    Pid::from_raw(PROGRAM.load(Relaxed)).expect("the pager starts with a program")
}

/// Starts a thread of the pager's process, from one of its threads.
pub(crate) fn spawn(
    name: &'static str,
    body: Box<dyn FnOnce() + Send>,
) -> io::Result<Option<std::thread::JoinHandle<()>>> {
    let named = move || {
        set_name(name);
        body();
    };
    threads::start(threads::Kind::Thread, Box::new(named)).map(|_| None)
}

/// What the pager's first thread does before it serves errands.
type Opening = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Starts the pager's process for the calling process and waits until `opening` has run there.
/// `channel` is a descriptor of the calling process that the pager takes over.
pub(crate) fn start(channel: Option<RawFd>, opening: Opening) -> Result<(), String> {
    PROGRAM.store(rustix::process::getpid().as_raw_pid(), Relaxed);
    mark_as_served().map_err(|error| format!("cannot map a page: {error}"))?;
    STARTED.store(0, Relaxed);
    watch::note_word();
    let first = move || {
        set_name("ovs-pager");
        let opened = own_descriptors(channel).map_err(|e| format!("cannot set up its table: {e}"));
        let outcome = match opened.and_then(|()| opening()).and_then(|()| begin()) {
            Ok(()) => READY,
            Err(reason) => {
                *REASON.lock().unwrap_or_else(|e| e.into_inner()) = reason;
                FAILED
            }
        };
        STARTED.store(outcome, Release);
        futex::wake(&STARTED);
        match outcome {
            READY => errands::serve(),
            _ => outwait_program(),
        }
    };
    signals::blocked(|| {
        threads::start_apart(channel, Box::new(first))
            .map_err(|error| format!("cannot start the pager: {error}"))?;
        futex::wait_while(&STARTED, |state| state == 0);
        match STARTED.load(Acquire) {
            READY => Ok(()),
            _ => Err(std::mem::take(&mut *REASON.lock().unwrap_or_else(|e| e.into_inner()))),
        }
    })
}

/// Ends after the program, which is about to exit for lack of a pager: it must not look as if it
/// had been killed.
fn outwait_program() {
    while rustix::process::getppid() == Some(program()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    end();
}

fn begin() -> Result<(), String> {
    overspill_base::errand::set_runner(errands::run);
    let pidfd = watch::handle().map_err(|e| format!("cannot watch the program: {e}"))?;
    let watching = move || watch::until_the_end(&pidfd);
    spawn("ovs-watch", Box::new(watching)).map_err(|e| e.to_string())?;
    RUNNING.store(true, Release);
    Ok(())
}

/// Runs `f` in the pager's process. It may hold the pager's locks, so it and its result are kept
/// outside managed memory.
pub(crate) fn run_there<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let mut errand = Box::new((Some(f), None));
    errands::run(&mut || errand.1 = errand.0.take().map(|f| f()));
    errand.1.expect("an errand is run once")
}

/// A word that is 1 in the memory that the pager serves, and 0 in a copy that no pager serves: a
/// child that was made without our knowledge.
static SERVED: OnceLock<Table<AtomicU32>> = OnceLock::new();

/// Sets [`SERVED`]; makes it the first time.
fn mark_as_served() -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    if SERVED.get().is_none() {
        let word = Table::<AtomicU32>::private(1)?;
        let page = word.as_ptr().cast_mut().cast();
        // SAFETY: the table's own page, whose content only this module uses.
        unsafe { madvise(page, PAGE_SIZE, Advice::LinuxWipeOnFork)? };
        let _ = SERVED.set(word);
    }
    SERVED.get().into_iter().for_each(|word| word[0].store(1, Relaxed));
    Ok(())
}

/// True on a thread of another process that shares this memory (vfork, CLONE_VM). It may be killed
/// alone, with any lock it holds, and may have its thread-local storage in common with a thread of
/// the program's.
pub(crate) fn is_foreign() -> bool {
    rustix::process::getpid() != program() && is_served()
}

/// True if a pager serves the memory of this process.
pub(crate) fn is_served() -> bool {
    SERVED.get().is_some_and(|word| word[0].load(Relaxed) == 1)
}

/// As [`run_there`], for a foreign process. `f` must own what it needs.
pub(crate) fn run_there_kept<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    errands::run_kept(f)
}

/// Forgets the parent's pager, in a forked child that has none yet.
pub(crate) fn forget() {
    RUNNING.store(false, Relaxed);
    errands::renew();
    watch::renew();
    threads::forget_all();
}

/// Keeps `channel` for [`tell`], in the pager's first process.
pub(crate) fn keep(channel: Channel) {
    debug_assert_eq!(channel.as_raw_fd(), CHANNEL_FD);
    let _ = CHANNEL.set(channel);
}

/// Sends a line for the user to the supervisor; returns false if there is no channel.
pub(crate) fn tell(line: &str) -> bool {
    let channel = CHANNEL.get().filter(|_| RUNNING.load(Acquire));
    if let Some(channel) = channel {
        overspill_base::errand::run(|| channel.tell(line));
    }
    channel.is_some()
}

/// True if the supervisor goes on: its name is free for others otherwise.
pub(crate) fn has_supervisor() -> bool {
    let channel = CHANNEL.get().filter(|_| RUNNING.load(Acquire));
    channel.is_some_and(|channel| overspill_base::errand::run(|| channel.is_open()))
}

/// Has the supervisor keep the userfaultfd of this pager, which may be killed before its program.
pub(crate) fn entrust_faults(space: &ManagedSpace) -> Result<(), String> {
    let channel = CHANNEL.get().ok_or("there was no channel")?;
    let entrusted = space.with_userfault(|userfault| channel.entrust(userfault));
    entrusted.unwrap_or(Ok(())).map_err(|error| error.to_string())
}

/// Receives the descriptors that the supervisor sent to the pager of a forked child. They get the
/// numbers they had in the parent, so everything that refers to them stays valid.
pub(crate) fn receive_again(session: &Session) -> Result<(), String> {
    let channel = CHANNEL.get().ok_or("there was no channel")?;
    let fds = channel.descriptors().map_err(|e| e.to_string())?;
    session.recognise(&fds).map_err(|e| e.to_string())?;
    let numbers = (CHANNEL_FD + 1..).zip(&fds);
    if numbers.into_iter().any(|(number, fd)| fd.as_raw_fd() != number) {
        return Err("its descriptors have other numbers than its parent's".into());
    }
    // Their owners were copied from the parent.
    fds.into_iter().for_each(std::mem::forget);
    Ok(())
}

/// Closes the descriptor of a device, of which the number stays taken: something may believe that
/// it has it, in memory that a fork has copied.
pub(crate) fn close_device(number: usize) {
    // The session's file and the keys come first.
    let descriptor = CHANNEL_FD + 3 + number as RawFd;
    // SAFETY: descriptor 0 leads nowhere; nothing reads or writes the device any more.
    unsafe { libc::syscall(libc::SYS_dup3, 0, descriptor, libc::O_CLOEXEC) };
}

/// Gives the descriptors of this process, of which there is at most `channel`, their numbers, and
/// makes 0 to 2 lead nowhere.
fn own_descriptors(channel: Option<RawFd>) -> io::Result<()> {
    raise_limits();
    if let Some(fd) = channel.filter(|&fd| fd != CHANNEL_FD) {
        // SAFETY: this process has just begun; it owns `channel`, and 3 is unused.
        unsafe {
            if libc::syscall(libc::SYS_dup3, fd, CHANNEL_FD, libc::O_CLOEXEC) < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::syscall(libc::SYS_close, fd);
        }
    }
    // Writes to the read end of a pipe fail, and reads from it find the end of the file.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    debug_assert_eq!((read.as_raw_fd(), write.as_raw_fd()), (0, 1));
    drop(write);
    for _ in 1..=2 {
        std::mem::forget(rustix::io::fcntl_dupfd_cloexec(&read, 0)?);
    }
    std::mem::forget(read);
    Ok(())
}

/// Raises limits as far as allowed: the program's are not the pager's, which has descriptors and
/// writes to swap.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const ENOUGH: u64 = 4096;
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: Some(ENOUGH), maximum: limit.maximum.map(|max| max.max(ENOUGH)) };
    if setrlimit(Resource::Nofile, more).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    let size = getrlimit(Resource::Fsize);
    let _ = setrlimit(Resource::Fsize, Rlimit { current: size.maximum, ..size });
}

fn set_name(name: &'static str) {
    let name: Vec<u8> = name.bytes().chain([0]).collect();
    // SAFETY: a terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Frees what this process holds, and ends it: the program is gone.
fn leave() {
    if let Some(process) = crate::pager::any_process() {
        process.pager.before_fork();
        process.session.leave(process.pager.member(), process.pager.engine().areas());
    }
    end();
}

fn end() -> ! {
    loop {
        // SAFETY: ends this process.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}
