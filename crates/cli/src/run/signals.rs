//! Passing signals on to the program.
//!
//! Owns: which signals are passed on, and the signal mask that allows waiting for them.
//! Invariants: once the [`Inbox`] is open, no such signal is lost or ends us; the program starts
//! with the mask we were started with, and ignores SIGPIPE if we were started so. A signal that the
//! terminal sends to the whole foreground group reaches the program directly and is not passed on.
//! A terminal that closes tells the leader of its session alone (`drivers/tty/tty_jobctrl.c`:
//! `tty_signal_session_leader`), and the leader's end then tells the group: where we lead, both are
//! ours to pass on.
//! Not here: stopping (SIGTSTP, SIGTTIN, SIGTTOU). Without handling, these stop us together with
//! the program, which is what the shell waits for.
//! Rejected: recognising the terminal's signals by a sender of 0, because in a container every
//! sender outside it has that number.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Signals that users and programs send to tell a program something.
const PASSED_ON: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// True if SIGPIPE was ignored when we were started.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's own start, which ignores SIGPIPE and so hides the earlier state.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only queries; zeros are a valid value of the structure.
    let handler = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), before.as_mut_ptr());
        before.assume_init().sa_sigaction
    };
    SIGPIPE_IGNORED.store(handler == libc::SIG_IGN, Relaxed);
}

/// True if SIGXFSZ ends programs, as it did when we were started.
static SIGXFSZ_ENDS: AtomicBool = AtomicBool::new(false);

/// Has files that would be too large for `ulimit -f` be errors, which say so, and not the end of
/// us, and of the keeper.
pub(super) fn outlive_large_files() {
    // SAFETY: no handler of ours.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    SIGXFSZ_ENDS.store(before == libc::SIG_DFL, Relaxed);
}

/// Restores the SIGXFSZ we were started with, in a child about to execute.
pub(super) fn keep_ending_by_large_files() {
    if SIGXFSZ_ENDS.load(Relaxed) {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}

/// Restores the SIGPIPE we were started with, in a child about to execute: std has set the default.
pub(super) fn keep_ignoring_sigpipe() {
    if SIGPIPE_IGNORED.load(Relaxed) {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
}

/// A signal that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A child changed its state.
    Child,
    /// A signal for the program.
    PassOn(i32),
    /// A signal that the program has received as well, if this process has started it.
    FromTerminal(i32),
    /// The terminal of our session has closed, and nobody but this process was told.
    HungUp,
}

/// The blocked signals of this process, which are waited for.
#[derive(Clone, Copy)]
pub(super) struct Inbox {
    set: libc::sigset_t,
    mask_before: libc::sigset_t,
}

impl Inbox {
    /// Blocks the signals so that they can be waited for.
    ///
    /// # Errors
    /// The error of sigprocmask.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: the default action is no handler of ours. If SIGCHLD was ignored when we were
        // started, the kernel would discard the program's status.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let set = set_of(PASSED_ON.into_iter().chain([libc::SIGCHLD]));
        let mask_before = set_mask(libc::SIG_BLOCK, &set)?;
        Ok(Self { set, mask_before })
    }

    /// Restores, in a child about to execute, the mask we were started with.
    ///
    /// # Errors
    /// The error of sigprocmask.
    pub(super) fn close(&self) -> io::Result<()> {
        set_mask(libc::SIG_SETMASK, &self.mask_before).map(|_| ())
    }

    /// Takes a signal that has arrived.
    ///
    /// # Errors
    /// The error of sigtimedwait.
    pub(super) fn take(&self) -> io::Result<Option<Arrival>> {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `set` is initialised, and `info` has room for a siginfo_t.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, info.as_mut_ptr(), &raw const now) };
        if signal > 0 {
            // SAFETY: sigtimedwait fills it in when it returns a signal.
            let code = unsafe { info.assume_init() }.si_code;
            return Ok(Some(arrival(signal, code, leads_session())));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        }
    }

    /// Makes a descriptor that can be read when a signal has arrived.
    ///
    /// # Errors
    /// The error of signalfd.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is initialised.
        match unsafe { libc::signalfd(-1, &raw const self.set, flags) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel has just made it for us.
            number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        }
    }
}

/// Has a terminal not stop this process.
pub(super) fn never_stop() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Calls `start`, which starts a thread that is to get no signals: they are for the [`Inbox`].
pub(crate) fn blocked<R>(start: impl FnOnce() -> R) -> R {
    let before = set_mask(libc::SIG_BLOCK, &set_of(PASSED_ON.into_iter()));
    let started = start();
    if let Ok(before) = before {
        // It was this thread's mask.
        let _ = set_mask(libc::SIG_SETMASK, &before);
    }
    started
}

/// Has signals end this process, as they do others.
pub(super) fn end_at_signals() {
    // A refusal would leave signals without effect, as they were.
    let _ = set_mask(libc::SIG_UNBLOCK, &set_of(PASSED_ON.into_iter()));
}

/// Whether the terminal tells us alone that it has closed. The leader has no number here where it
/// is of an outer PID namespace, which rustix's `getsid` rules out.
fn leads_session() -> bool {
    // SAFETY: neither touches memory.
    unsafe { libc::getsid(0) == libc::getpid() }
}

fn arrival(signal: i32, code: i32, leads_session: bool) -> Arrival {
    match (signal, code) {
        (libc::SIGCHLD, _) => Arrival::Child,
        (libc::SIGHUP, libc::SI_KERNEL) if leads_session => Arrival::HungUp,
        (_, libc::SI_KERNEL) => Arrival::FromTerminal(signal),
        _ => Arrival::PassOn(signal),
    }
}

fn set_of(signals: impl Iterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` has room for a sigset_t, and sigemptyset initialises it.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: `set` is initialised; invalid signal numbers are rejected.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Changes the mask of this thread and returns the previous one.
fn set_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: `set` is initialised and `before` has room for a sigset_t.
    let result = unsafe { libc::sigprocmask(how, ptr::from_ref(set), before.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigprocmask succeeded, so it has filled it in.
    Ok(unsafe { before.assume_init() })
}

/// Has a command ignore SIGPIPE if this process was started so.
pub(super) fn with_our_sigpipe(command: &mut Command) {
    let keep = || {
        keep_ignoring_sigpipe();
        Ok(())
    };
    // SAFETY: one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(keep) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_terminals_signals_stay_here() {
        for leads in [true, false] {
            let arrival = |signal, code| arrival(signal, code, leads);
            assert_eq!(arrival(libc::SIGINT, libc::SI_KERNEL), Arrival::FromTerminal(libc::SIGINT));
            assert_eq!(arrival(libc::SIGINT, libc::SI_USER), Arrival::PassOn(libc::SIGINT));
            assert_eq!(arrival(libc::SIGHUP, libc::SI_USER), Arrival::PassOn(libc::SIGHUP));
            assert_eq!(arrival(libc::SIGTERM, libc::SI_QUEUE), Arrival::PassOn(libc::SIGTERM));
            assert_eq!(arrival(libc::SIGCHLD, libc::CLD_EXITED), Arrival::Child);
        }
        let closed = |leads| arrival(libc::SIGHUP, libc::SI_KERNEL, leads);
        assert_eq!(closed(true), Arrival::HungUp);
        assert_eq!(closed(false), Arrival::FromTerminal(libc::SIGHUP));
    }
}
