//! What makes the keeper's process, and sets it apart from all others, and the task that outlives
//! it.
//!
//! Owns: its fork, session, signals and descriptors, and the *holder*: a process that shares its
//! table of descriptors and sleeps. If the keeper dies, the table lives on, so that a userfaultfd
//! is never closed while a guest could read zeros where pages are out; the holder then kills the
//! guests and their agents, has forked children that nobody knows yet get SIGBUS where they miss a
//! page, and ends when all have.
//! Invariants: every pidfd in the table is a guest's or its agent's, or the keeper's own; every
//! userfaultfd is of a guest, or of a forked child. All of this is done while the process has one
//! thread.
//! Not here: the agents, which each hold their guest's userfaultfd as well.
//! Rejected: for the keeper, executing a program, even this one again, which takes longer than all
//! that it does for a run that never reaches its limit; for the holder, a thread, which ends with
//! the keeper, and a child that is sent each descriptor, which has not got the last one yet when it
//! is needed.

use super::confined::confine_holder;
use overspill_guest::userfault::{Abilities, GuestUserfault, Message, Userfault};
use overspill_guest::{URGENT, pidfd};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Dir, Mode, OFlags, open, readlinkat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, getpid, pidfd_open};
use rustix::process::{pidfd_send_signal, set_dumpable_behavior, setpriority_process, setsid};
use std::io;
use std::time::Duration;

/// How often it is looked whether a forked child misses a page, or has ended.
const POISON_INTERVAL: Duration = Duration::from_millis(2);
/// What a userfaultfd may be able to do: what it cannot the kernel refuses.
const ALL: Abilities = Abilities { marks: true, poison: true, moves: true, forks: true };

/// Signals of terminals, and of who takes the keeper for the program.
const IGNORED: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Forks this process, which must have one thread: another may hold a lock, which nobody would ever
/// release in the copy. That does `all`, and ends.
///
/// # Errors
/// Of fork(2), or this process has another thread.
pub(crate) fn fork(all: impl FnOnce()) -> io::Result<Pid> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("this process has other threads"));
    }
    // SAFETY: the copy finds no lock held, as there is no other thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            all();
            // SAFETY: what is left to be cleaned up is the first process's.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Pid::from_raw(pid).expect("a number of a process")),
    }
}

/// Leaves the terminal, the group and the descriptors of who forked this process, but for `link`
/// and the standard error.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn become_alone(link: BorrowedFd<'_>) -> io::Result<()> {
    // The first process of a session is one already.
    let _ = setsid();
    ignore_signals();
    close_others(link)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Where that is not permitted, a crowd of programs takes longer to be stopped.
    let _ = setpriority_process(None, URGENT);
    let _ = rustix::thread::set_name(c"ovs-keeper");
    // It keeps no directory of the user's busy.
    rustix::process::chdir("/")?;
    Ok(())
}

/// Ends this process at once, whatever its threads do.
pub(crate) fn leave() -> ! {
    // SAFETY: nothing of this process outlives it but what others have.
    unsafe { libc::_exit(1) }
}

fn ignore_signals() {
    for signal in IGNORED {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Closes what is the front's.
fn close_others(link: BorrowedFd<'_>) -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    drop(null);
    let link = link.as_raw_fd() as libc::c_uint;
    for (first, last) in [(3, link - 1), (link + 1, libc::c_uint::MAX)] {
        // SAFETY: their owners are frames of the front, to which this copy never returns. Where the
        // call is refused, what is left open does no harm but to stay open.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    Ok(())
}

/// Starts the holder, before there are guests, and other threads.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn start_holder() -> io::Result<()> {
    let keeper = pidfd_open(getpid(), PidfdFlags::empty())?;
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: this process has one thread, so that its copy finds no lock held. The copy has
    // memory of its own, and never returns from `hold`.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => hold(&keeper),
        _ => {
            // The copy waits for it.
            std::mem::forget(keeper);
            Ok(())
        }
    }
}

/// Waits for the end of the keeper, then for the ends of its guests, and ends.
fn hold(keeper: &OwnedFd) -> ! {
    let _ = rustix::thread::set_name(c"ovs-holder");
    let table = Descriptors::open();
    // Where that cannot be it is as its keeper, which says so.
    let _ = confine_holder();
    pidfd::wait_for_end(keeper);
    // Without /proc guests end when they miss a page, and their agents with the channel.
    if let Ok(mut table) = table {
        end_guests(&mut table);
    }
    // SAFETY: nothing of this copy is to be cleaned up: it is the keeper's.
    unsafe { libc::_exit(0) }
}

fn end_guests(table: &mut Descriptors) {
    for number in table.numbers() {
        // SAFETY: a descriptor of this table, which nobody changes any more.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        // What is no pidfd says so.
        if pidfd_send_signal(descriptor, Signal::KILL).is_ok() {
            pidfd::wait_for_end(&descriptor);
        }
    }
    let numbers = table.numbers();
    poison_until_all_end(numbers.into_iter().filter_map(|n| table.userfault(n)).collect());
}

/// Answers every touch of a missing page by SIGBUS, as long as there are guests.
fn poison_until_all_end(mut guests: Vec<GuestUserfault>) {
    // The keeper may have read what they ask for, without an answer.
    guests.iter().for_each(GuestUserfault::wake_all);
    while !guests.is_empty() {
        let forked: Vec<GuestUserfault> = guests.iter().flat_map(poison_what_waits).collect();
        guests.extend(forked);
        guests.retain(GuestUserfault::has_address_space);
        std::thread::sleep(POISON_INTERVAL);
    }
}

/// Returns the children that were forked meanwhile.
fn poison_what_waits(guest: &GuestUserfault) -> Vec<GuestUserfault> {
    let mut forked = Vec::new();
    while let Ok(Some(message)) = guest.read() {
        match message {
            Message::Fault(fault) => {
                // If it cannot be yet, it is touched again, and so asked for again.
                let _ = guest.poison(fault.at);
                guest.wake(&fault.at.run(1));
            }
            Message::Fork(fd) => forked.push(GuestUserfault::agreed(fd, guest.abilities(), None)),
            Message::Event(_) => {}
        }
    }
    forked
}

/// The descriptors of this process: what `/proc` has of them, opened while files could be.
struct Descriptors(Dir);

impl Descriptors {
    fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Dir::new(open("/proc/self/fd", flags, Mode::empty())?).map(Self)
    }

    /// The numbers of all that are open.
    fn numbers(&mut self) -> Vec<i32> {
        self.0.rewind();
        let entries = self.0.by_ref().flatten();
        entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
    }

    /// The userfaultfd of this number, if it is one.
    fn userfault(&self, number: i32) -> Option<GuestUserfault> {
        let name = readlinkat(self.0.fd().ok()?, number.to_string(), Vec::new()).ok()?;
        // SAFETY: a descriptor of this table, which is owned by nobody who still runs.
        let fd = || unsafe { OwnedFd::from_raw_fd(number) };
        (name.as_c_str() == c"anon_inode:[userfaultfd]")
            .then(|| GuestUserfault::agreed(fd(), ALL, None))
    }
}
