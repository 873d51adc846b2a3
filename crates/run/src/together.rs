//! What the processes of a run hold together before any of them is paged.
//!
//! Owns: the exact sum, in which a page that relatives share counts once (`Pss_Anon`).
//! Invariants: only forked processes that execute no other program share pages, so others are
//! simply added up. The exact sum is read where a decision hangs on it: where what may be shared
//! makes the difference between less and more than a mark. That takes the kernel some 20 ns for
//! each page, so until it was rested from that five times as long, the sum is the last one and what
//! may have been added since: growth, and a page for each minor fault, by which what is shared
//! becomes a copy. Without a decision it is read ever so often that it takes a hundredth of a CPU.
//! Not here: guests, of which each has pages of its own for the engine (`sharing`).

use crate::same::has_memory_of_its_own;
use crate::sharing::{anonymous, minor_faults};
use crate::watch::{Watched, is_a_copy};
use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How many times as long as it takes the sum is not read again: if something hangs on it, and if
/// nothing does.
const PAUSE_PART: u32 = 5;
const USUAL_PAUSE_PART: u32 = 100;
const USUAL_PAUSE_LEAST: Duration = Duration::from_millis(250);
/// Fewer pages that may be shared are none.
const NOTABLE_PAGES: u64 = 1024;

/// The sum.
#[derive(Debug, Default)]
pub(crate) struct Together {
    /// Whether a process is a forked one without a program of its own; asked once for each number
    /// of pages, so that what has executed is seen.
    copies: HashMap<Pid, Copied>,
    read: Option<Read>,
}

/// What a forked process may have of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    /// It executes a program of its own.
    No,
    /// Pages.
    Pages,
    /// All: it has its parent's memory (vfork).
    All,
}

/// The exact sum, when it was read last.
#[derive(Debug)]
struct Read {
    at: Instant,
    took: Duration,
    pages: u64,
    /// What each process had then, and its minor faults.
    each: HashMap<Pid, (u64, u64)>,
}

impl Read {
    fn now(family: &HashMap<Pid, Watched>) -> Self {
        let at = Instant::now();
        let faults = |pid| minor_faults(pid).unwrap_or_default();
        let each = family.iter().map(|(pid, watched)| (*pid, (watched.pages, faults(*pid))));
        let each = each.collect();
        let parts = family.keys().filter_map(|pid| anonymous(*pid)).map(|(_, part)| part);
        let pages = parts.sum();
        Self { at, took: at.elapsed(), pages, each }
    }

    /// The most that there can be by now. A process that has come since was forked by one of these,
    /// and has had their pages then: `first` is what it had when it was seen first.
    fn most(&self, family: &HashMap<Pid, Watched>, first: impl Fn(Pid) -> u64) -> u64 {
        let added = family.iter().map(|(pid, watched)| {
            let (pages, faults) = self.each.get(pid).copied().unwrap_or((first(*pid), 0));
            let grown = watched.pages.saturating_sub(pages);
            let since = minor_faults(*pid).unwrap_or_default().saturating_sub(faults);
            grown.max(since.min(watched.pages))
        });
        self.pages + added.sum::<u64>()
    }
}

impl Together {
    /// Returns how many pages all processes hold. Below and above `mark` that is exact as far as
    /// which of both it is; `first` is what a process had when it was seen first.
    pub(crate) fn pages(
        &mut self,
        family: &HashMap<Pid, Watched>,
        mark: u64,
        first: impl Fn(Pid) -> u64,
    ) -> u64 {
        let all: u64 = family.values().map(|watched| watched.pages).sum();
        self.find_copies(family);
        let copied = |copied: Copied| {
            let of = family.iter().filter(|(pid, _)| self.copies.get(pid) == Some(&copied));
            of.map(|(_, watched)| watched.pages).sum::<u64>()
        };
        let (shared, doubled) = (copied(Copied::Pages), copied(Copied::All));
        let all = all - doubled;
        if shared < NOTABLE_PAGES {
            self.read = None;
            return all;
        }
        let hangs_on_it = all >= mark && all - shared < mark;
        let own: HashMap<Pid, Watched> = family
            .iter()
            .filter(|(pid, _)| self.copies.get(pid) != Some(&Copied::All))
            .map(|(pid, watched)| (*pid, *watched))
            .collect();
        let most = self.read.as_ref().map(|read| read.most(&own, first).min(all));
        let is_old = |part: u32, least: Duration| {
            let rested = |read: &Read| read.at.elapsed() > least.max(read.took * part);
            self.read.as_ref().is_none_or(rested)
        };
        let is_due = match most {
            None => true,
            Some(most) if hangs_on_it && most >= mark => is_old(PAUSE_PART, Duration::ZERO),
            Some(_) => is_old(USUAL_PAUSE_PART, USUAL_PAUSE_LEAST),
        };
        match most {
            Some(most) if !is_due => most,
            _ => self.read.insert(Read::now(&own)).pages.min(all),
        }
    }

    /// Finds out which processes are forked ones: of each once, and of those that were until they
    /// are not.
    fn find_copies(&mut self, family: &HashMap<Pid, Watched>) {
        let alive: HashSet<Pid> = family.keys().copied().collect();
        self.copies.retain(|pid, _| alive.contains(pid));
        for (&pid, watched) in family {
            let known = self.copies.get(&pid);
            if known != Some(&Copied::No) && watched.parent.is_some() {
                self.copies.insert(pid, copied(pid, watched.parent));
            }
        }
    }
}

fn copied(pid: Pid, parent: Option<Pid>) -> Copied {
    match parent {
        Some(_) if !is_a_copy(pid) => Copied::No,
        Some(parent) if !has_memory_of_its_own(pid, parent) => Copied::All,
        _ => Copied::Pages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::process::{Child, Command, Stdio};

    /// A parent with 40 MiB, and two children that have only read them.
    fn family() -> Option<(Child, HashMap<Pid, Watched>)> {
        let script = "import os, time\nb = bytearray(b'x') * (40 << 20)\n\
            [os.fork() or time.sleep(100) for _ in range(2)]\nprint('x', flush=True)\ntime.sleep(100)";
        let mut python = Command::new("python3");
        let python = python.args(["-c", script]).stdout(Stdio::piped());
        let Ok(mut child) = python.spawn() else {
            println!("skipped: there is no python3");
            return None;
        };
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let first = Pid::from_child(&child);
        Some((child, crate::watch::family([(first, Some(getpid()))], &|_| false)))
    }

    fn kill_all(mut child: Child, family: &HashMap<Pid, Watched>) {
        family.keys().for_each(|pid| crate::family::kill(*pid));
        child.wait().unwrap();
    }

    const MIB: u64 = 256;

    #[test]
    fn what_relatives_share_counts_once_where_something_hangs_on_it() {
        let Some((child, family)) = family() else { return };
        assert_eq!(family.len(), 3);
        let all: u64 = family.values().map(|watched| watched.pages).sum();
        assert!(all > 120 * MIB, "{all}");
        let first = |pid| family[&pid].pages;
        let mut together = Together::default();
        let exact = together.pages(&family, 100 * MIB, first);
        assert!((40 * MIB..80 * MIB).contains(&exact), "{exact} of {all}");
        // It was read a moment ago. What they have had since is added, and all are beginning.
        let at = together.read.as_ref().unwrap().at;
        let again = together.pages(&family, 100 * MIB, first);
        assert!((exact..exact + 4 * MIB).contains(&again), "{again} after {exact}");
        assert_eq!(together.read.as_ref().unwrap().at, at);
        // So is what one has more, until it is read again.
        let mut grown = family.clone();
        grown.values_mut().next().unwrap().pages += 10 * MIB;
        let more = together.pages(&grown, 100 * MIB, first);
        assert!((exact + 10 * MIB..exact + 14 * MIB).contains(&more), "{more} after {exact}");
        kill_all(child, &family);
    }

    #[test]
    fn who_executes_a_program_of_its_own_shares_nothing() {
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid::from_child(&child);
        while is_a_copy(pid) {
            std::thread::yield_now();
        }
        let family = crate::watch::family([(pid, Some(getpid()))], &|_| false);
        let mut together = Together::default();
        assert_eq!(together.pages(&family, 0, |_| 0), family[&pid].pages);
        assert!(together.read.is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
