//! Holds a run to its limit: how much memory overdrawn frames really take, and what a lower limit
//! takes away.
//!
//! Owns: a thread of the supervisor. A forked child's pages in memory are its parent's too, until
//! one of them writes: the kernel then makes a copy and tells nobody. So the kernel is asked, as
//! long as frames are overdrawn and more are leased than the limit has: of pages that several
//! processes share, each has its part (`Pss` of smaps). What is left of the overdraft is *reserved*
//! beside the shares above the limit, and members are asked for what is missing.
//! Invariants: an audit takes a twentieth of a CPU at most. Between two of them the run may exceed
//! its limit by what its processes write to shared pages; an idle run is audited ever more rarely.
//! Not here: leases ([`budget`](super::budget)).
//! Rejected: write protection of all shared pages (UFFDIO_WRITEPROTECT), which would know at once,
//! but makes every first write after a fork a fault of ours, in the parent too.

use super::budget::Book;
use super::{RESERVE, Session};
use overspill_base::PAGE_SIZE;
use overspill_space::with_signals_blocked;
use rustix::event::Timespec;
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Pause after an audit that found a change.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Pause after many that found none.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A pause lasts at least so many times as long as the audit before it worked.
const REST: u32 = 20;

/// Starts the thread; it ends with the process.
///
/// # Errors
/// The error of starting a thread.
pub(super) fn start(session: Arc<Session>) -> std::io::Result<()> {
    let body = move || run(&session, &session.book());
    let builder = std::thread::Builder::new().name("ovs-audit".into());
    // Signals are for the thread that waits for the program.
    with_signals_blocked(|| builder.spawn(body)).map(drop)
}

fn run(session: &Session, book: &Book) {
    let (mut seen, mut before, mut pause) = (0, None, PAUSE_MIN);
    loop {
        let begun = cpu_time();
        let account = Account::of(session, book);
        let settled = account.settle(session, book);
        let changed = !settled || before != Some(account);
        pause = if changed { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        before = Some(account);
        let unsettled = !settled || account.overdrawn > 0;
        // Asked at most so often, whatever happens.
        std::thread::sleep(((cpu_time() - begun) * REST).max(PAUSE_MIN));
        let limit = unsettled.then(|| Timespec::try_from(pause).ok()).flatten();
        seen = book.wait_for_unsettled(seen, limit.as_ref());
    }
}

/// What this thread has used, however busy the machine is.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sums over all members, in frames.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Account {
    leased: usize,
    overdrawn: usize,
    asked: usize,
    /// Overdrawn frames that take no memory, because the pages are others' too.
    shared: usize,
}

impl Account {
    fn of(session: &Session, book: &Book) -> Self {
        let mut all = Self::default();
        for (member, _) in session.pagers() {
            let (leased, overdrawn) = book.leased(member);
            all.leased += leased;
            all.overdrawn += overdrawn;
            all.asked += book.asked(member);
        }
        let in_question = all.overdrawn > 0 && all.leased > book.limit();
        if in_question { all.with_shared(session, book) } else { all }
    }

    /// Looks what the overdrawn frames really take. Who ends meanwhile has nothing.
    fn with_shared(mut self, session: &Session, book: &Book) -> Self {
        self.overdrawn = 0;
        for (member, pager) in session.pagers() {
            let Some(set) = AnonymousSet::of(pager, book.range(member)) else { continue };
            book.set_shared(member, set.shared());
            self.overdrawn += book.leased(member).1;
            self.shared += set.others();
        }
        self
    }

    /// Reserves what is overdrawn and takes memory, beside what is above the limit, and asks
    /// members for what is missing of it. True if nothing is.
    fn settle(&self, session: &Session, book: &Book) -> bool {
        let limit = book.limit();
        let real = self.overdrawn.saturating_sub(self.shared).min(limit);
        let reserved = (book.frames() + real).saturating_sub(limit);
        book.reserve(reserved);
        let mut missing = reserved.saturating_sub(book.free_frames());
        if missing > 0 {
            book.recount();
            missing = reserved.saturating_sub(book.free_frames());
        }
        if missing > self.asked {
            let members: Vec<_> = session.pagers().map(|(member, _)| member).collect();
            book.ask_all(&members, missing - self.asked);
        }
        missing == 0
    }
}

/// What the thread does in a round.
#[cfg(test)]
pub(super) fn settle_once(session: &Session) {
    let book = session.book();
    Account::of(session, &book).settle(session, &book);
}

/// The anonymous memory of a process in its managed range, in pages. The rest is outside the limit.
#[derive(Default, Debug)]
struct AnonymousSet {
    all: usize,
    /// Pages that no other process has.
    own: usize,
    /// All, a page that several have counted in parts.
    part: usize,
}

/// The address at which a mapping begins, if this is the first word of its line.
fn start_of(word: &str) -> Option<usize> {
    word.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok())
}

/// True if the rest of a mapping's line says that it is of no file: protection, offset, device and
/// inode.
fn is_anonymous(rest: &str) -> bool {
    rest.split_whitespace().nth(3) == Some("0")
}

impl AnonymousSet {
    /// Pages that others have too.
    fn shared(&self) -> usize {
        self.all.saturating_sub(self.own)
    }

    /// The part of these that others have.
    fn others(&self) -> usize {
        self.all.saturating_sub(self.part)
    }

    /// Returns `None` if the process has ended. One that may not be looked at pays for all.
    fn of(pager: Pid, start: usize) -> Option<Self> {
        let path = format!("/proc/{}/smaps", pager.as_raw_pid());
        match std::fs::read_to_string(path) {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(Self::parse(&text, start..start.saturating_add(RESERVE.0 as usize))),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Some(Self::default()),
            Err(_) => None,
        }
    }

    /// Sums up the anonymous mappings that begin in `range`.
    fn parse(text: &str, range: Range<usize>) -> Self {
        let (mut sum, mut is_inside) = (Self::default(), false);
        for line in text.lines() {
            let (name, rest) = line.split_once(' ').unwrap_or_default();
            if let Some(start) = start_of(name) {
                is_inside = range.contains(&start) && is_anonymous(rest);
            }
            let kib = || rest.trim().strip_suffix(" kB")?.parse::<usize>().ok();
            let pages = if is_inside { kib().unwrap_or(0) * 1024 / PAGE_SIZE } else { 0 };
            match name {
                "Anonymous:" => sum.all += pages,
                "Private_Dirty:" => sum.own += pages,
                "Pss:" => sum.part += pages,
                _ => {}
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_page_that_three_have_two_thirds_are_others() {
        let mapping = |start: &str, inode: &str| {
            format!(
                "{start}-7fff00000000 rw-p 00000000 00:00 {inode}\nSize: 9000 kB\nPss: 1200 kB\n\
                 Private_Dirty: 300 kB\nAnonymous: 3000 kB\nVmFlags: rd wr\n"
            )
        };
        // Of libc's heap, of a file, beyond the range: not in the limit.
        let text = ["1000", "5000", "5000", "9000"].iter().zip(["0", "0", "77", "0"]);
        let text: String = text.map(|(start, inode)| mapping(start, inode)).collect();
        let set = AnonymousSet::parse(&text, 0x5000..0x9000);
        assert_eq!((set.shared(), set.others()), (675, 450));
    }

    #[test]
    fn a_process_that_has_ended_has_nothing() {
        assert!(AnonymousSet::of(Pid::from_raw(i32::MAX).unwrap(), 0).is_none());
        assert!(AnonymousSet::of(rustix::process::getpid(), 0).is_some());
    }
}
