//! Core dumps of guests.
//!
//! Owns: filling in what was out. The kernel's dump has holes there, which read as zeros: it takes
//! what is in memory and asks nobody for the rest (`mm/gup.c`: `get_dump_page`). A guest's address
//! space is there until its agent ends, so its pages can be had afterwards.
//! Invariants: a file is written to only if it is the core of that process, only where a page was
//! out, and not beyond its end: the kernel has cut it off there. The thread that traces neither
//! reads files of others nor waits for pages; a thread that makes no progress is given up, and with
//! it the guest. That thread reads by the agent's number, which may be another process's by the
//! time it is given up: so cores are filled in only for a guest whose user can read all that we can
//! ([`Place::is_as_ours`]).
//! Not here: a program or a socket that the kernel gives dumps to (a core_pattern with `|` or `@`),
//! which has them by then: a line says so.
//! Rejected: bringing everything back before the dump, which takes a tracer for every signal.

mod file;
mod fill;

use crate::guest::Guest;
use crate::watch::{has_our_rights, identity_of};
use file::Pattern;
use fill::{Filled, fill};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_guest::pidfd;
use rustix::process::{Pid, setpriority_process};
use std::collections::HashMap;
use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked where processes are.
const INTERVAL: Duration = Duration::from_millis(300);
/// How long no page may come before a core is given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where a process would leave its core, and what that would be.
#[derive(Clone, Debug)]
struct Place {
    /// As we see it, or the process does.
    directory: PathBuf,
    /// The process's number as it sees it, and whom the file would belong to.
    own_number: i32,
    user: u32,
    /// Whether the process has all rights that this one has over others.
    is_as_ours: bool,
    /// When the process has become a guest.
    since: SystemTime,
}

impl Place {
    fn of(pid: Pid, since: SystemTime) -> Option<Self> {
        let directory = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        let (own_number, user) = identity_of(pid)?;
        let is_as_ours = has_our_rights(pid);
        Some(Self { directory, own_number, user, is_as_ours, since })
    }
}

/// A guest whose core is being filled in.
struct Filling {
    pid: Pid,
    guest: Guest,
    thread: JoinHandle<Filled>,
    /// Pages that were filled in; and as many as were seen, and when that changed.
    pages: Arc<AtomicU64>,
    seen: (u64, Instant),
}

impl Filling {
    /// True if it makes no progress.
    fn is_stuck(&mut self) -> bool {
        // Relaxed: a hint, and nothing else is read by it.
        let pages = self.pages.load(Relaxed);
        if pages != self.seen.0 {
            self.seen = (pages, Instant::now());
        }
        self.seen.1.elapsed() > PATIENCE
    }

    /// What its core lacks; `None` if nothing, or if there is none. One that is stuck ends with the
    /// guest's memory.
    fn end(self) -> (Pid, Guest, Option<String>) {
        let lack = match self.thread.is_finished().then(|| self.thread.join()) {
            Some(Ok(Ok(0))) => None,
            Some(Ok(Ok(lost))) => Some(format!("{lost} pages, which are lost")),
            Some(Ok(Err(error))) => Some(format!("what was out: {error}")),
            Some(Err(_)) => Some("what was out".to_owned()),
            None => Some("what was out: it does not come back".to_owned()),
        };
        (self.pid, self.guest, lack)
    }
}

/// What is known of guests' cores.
#[derive(Default)]
pub(crate) struct Cores {
    places: HashMap<Pid, Place>,
    looked: Option<Instant>,
    fillings: Vec<Filling>,
}

impl Cores {
    /// Notes where a guest is.
    pub(crate) fn note(&mut self, pid: Pid) {
        let since = self.places.get(&pid).map_or_else(SystemTime::now, |place| place.since);
        // One that has just ended is where it was.
        if let Some(place) = Place::of(pid, since) {
            self.places.insert(pid, place);
        }
    }

    /// Notes where guests are, now and then.
    pub(crate) fn look(&mut self, guests: &[Pid]) {
        if self.looked.is_some_and(|looked| looked.elapsed() < INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        guests.iter().for_each(|pid| self.note(*pid));
        self.places.retain(|pid, _| guests.contains(pid));
    }

    /// Begins to fill in the core of a guest that has ended, if it may have left one; otherwise
    /// gives the guest back. `say` takes lines for the user.
    pub(crate) fn begin(&mut self, pid: Pid, guest: Guest, say: impl Fn(&str)) -> Option<Guest> {
        let Some(place) = self.places.remove(&pid).filter(|_| may_have_left_core(&guest)) else {
            return Some(guest);
        };
        let why_not = |pattern: &Pattern| match pattern {
            Pattern::Given(to) => Some(format!(
                "{to} has it, and it is filled in only with a file's name in \
                 /proc/sys/kernel/core_pattern"
            )),
            _ if !place.is_as_ours => Some("it has another user or less rights than we".to_owned()),
            Pattern::Files(..) => None,
        };
        let pattern = Pattern::read();
        if let Some(why) = why_not(&pattern) {
            if has_left_core(&guest) {
                let what = "has dumped core, and what was out is zeros there";
                say(&format!("process {pid} {what}: {why}"));
            }
            return Some(guest);
        }
        let (agent, pages) = (guest.agent.pid, Arc::new(AtomicU64::new(0)));
        let filled = pages.clone();
        let fills = move || {
            // This thread began as urgent as who traces.
            let _ = setpriority_process(None, 0);
            file::find(&pattern, &place, agent).map_or(Ok(0), |core| fill(&core, agent, &filled))
        };
        match Builder::new().name("overspill-core".into()).spawn(fills) {
            Ok(thread) => {
                let seen = (0, Instant::now());
                self.fillings.push(Filling { pid, guest, thread, pages, seen });
                None
            }
            Err(error) => {
                say(&format!("the core of process {pid} lacks what was out: {error}"));
                Some(guest)
            }
        }
    }

    /// Takes those whose cores are as whole as they will be.
    pub(crate) fn filled(&mut self, say: impl Fn(&str)) -> Vec<(Pid, Guest)> {
        let is_over = |filling: &mut Filling| filling.thread.is_finished() || filling.is_stuck();
        let over = self.fillings.extract_if(.., is_over).map(Filling::end);
        let over = over.map(|(pid, guest, lack)| {
            if let Some(lack) = lack {
                say(&format!("the core of process {pid} lacks {lack}"));
            }
            (pid, guest)
        });
        over.collect()
    }

    /// The guests whose cores are being filled in.
    pub(crate) fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.fillings.iter().map(|filling| &filling.guest)
    }

    /// True if there are none.
    pub(crate) fn is_idle(&self) -> bool {
        self.fillings.is_empty()
    }
}

/// False if its end is known to be another one. Which of several threads has dumped, and so the
/// flag, the kernel need not tell.
fn may_have_left_core(guest: &Guest) -> bool {
    let status = pidfd::status(guest.process());
    pidfd::has_ended(guest.process()) && status.is_none_or(|status| libc::WIFSIGNALED(status))
}

/// True if it was ended by a signal that dumps core (signal(7)).
fn has_left_core(guest: &Guest) -> bool {
    const DUMPING: [i32; 10] = [
        libc::SIGQUIT,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGSYS,
    ];
    let status = pidfd::status(guest.process()).filter(|status| libc::WIFSIGNALED(*status));
    status.is_some_and(|status| DUMPING.contains(&libc::WTERMSIG(status)))
}
