//! Memory that several guests have together.
//!
//! Owns: how much of it the engine counts more than once.
//! Invariants: what is believed is not more than there is. What was shared and is written is a copy
//! from then on, which the kernel counts as a minor fault of who writes, so each of those may have
//! been such a one; and nothing is believed after a process has ended, until it is found out anew.
//! That takes the kernel some 20 ns for each page, and is done as seldom as it has to be for that
//! to be little.
//! Not here: what the limit is then (`front/room`).
//! Rejected: counting such pages for each guest: a fork of a program that fills its limit pushes
//! half of it out.

use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Fewer are none: programs that were forked from one have a few in common.
const NOTABLE_PAGES: u64 = 1024;
/// How many times as long as it takes nothing is found out anew, and at least.
const PAUSE_PART: u32 = 50;
const PAUSE_LEAST: Duration = Duration::from_millis(20);
/// And if a guest has come, or a process has ended since.
const CHANGED_PART: u32 = 5;

/// What is shared.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// When it was found out.
    pages: u64,
    /// Minor faults of each process then.
    faults: HashMap<Pid, u64>,
    found: Option<Found>,
    /// Pages that all of them had too many then, and whether that was just now.
    twice_pages: u64,
    is_fresh: bool,
}

/// When something was found out, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: Instant,
    took: Duration,
}

impl Found {
    fn is_old(self, has_changed: bool) -> bool {
        let pause = match has_changed {
            true => self.took * CHANGED_PART,
            false => PAUSE_LEAST.max(self.took * PAUSE_PART),
        };
        self.at.elapsed() > pause
    }
}

impl Sharing {
    /// Returns how many pages `guests` have too many, as each counts all that it has: `others` are
    /// relatives that are not guests yet, and `agents` write for guests.
    pub(crate) fn pages(&mut self, guests: &[Pid], others: &[Pid], agents: &[Pid]) -> u64 {
        if guests.len() + others.len() < 2 {
            *self = Self { is_fresh: true, ..Self::default() };
            return 0;
        }
        self.is_fresh = false;
        let all: HashSet<Pid> = [guests, others, agents].concat().into_iter().collect();
        let has_ended = self.faults.keys().any(|pid| !all.contains(pid));
        if has_ended {
            self.pages = 0;
        }
        let has_changed = has_ended || guests.iter().any(|pid| !self.faults.contains_key(pid));
        if self.found.is_none_or(|found| found.is_old(has_changed)) {
            self.find_out(guests, others, all);
        }
        match self.pages {
            0..NOTABLE_PAGES => 0,
            pages => pages.saturating_sub(self.copied_since()),
        }
    }

    /// Returns how many pages guests and their relatives had too many when that was found out last.
    pub(crate) fn twice_pages(&self) -> u64 {
        self.twice_pages
    }

    /// True if that was just now.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Pages that may have become copies.
    fn copied_since(&self) -> u64 {
        // Of one that has ended, or is another by now, nothing is known.
        let since = |(pid, then): (&Pid, &u64)| {
            minor_faults(*pid).and_then(|now| now.checked_sub(*then)).unwrap_or(u64::MAX)
        };
        self.faults.iter().map(since).fold(0, u64::saturating_add)
    }

    fn find_out(&mut self, guests: &[Pid], others: &[Pid], all: HashSet<Pid>) {
        let at = Instant::now();
        self.faults = all.into_iter().filter_map(|pid| Some((pid, minor_faults(pid)?))).collect();
        let of_all = |pids: &[Pid]| {
            let each = pids.iter().map(|pid| anonymous(*pid).unwrap_or_default());
            each.fold((0, 0), |sum, add| (sum.0 + add.0, sum.1 + add.1))
        };
        let (of_guests, of_others) = (of_all(guests), of_all(others));
        let together = of_guests.1 + of_others.1;
        self.pages = u64::saturating_sub(of_guests.0, together);
        self.twice_pages = u64::saturating_sub(of_guests.0 + of_others.0, together);
        self.is_fresh = true;
        self.found = Some(Found { at, took: at.elapsed() });
    }
}

/// Minor faults of a process so far.
pub(crate) fn minor_faults(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may be anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(7)?.parse().ok()
}

/// Anonymous pages of a process, and its part of those: each counts one over how many have it.
pub(crate) fn anonymous(pid: Pid) -> Option<(u64, u64)> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let pages = |name| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 4)
    };
    Some((pages("Anonymous:")?, pages("Pss_Anon:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn a_process_shares_nothing_with_itself() {
        assert_eq!(Sharing::default().pages(&[getpid()], &[], &[]), 0);
        let before = minor_faults(getpid()).unwrap();
        let touched = vec![1u8; 1 << 20];
        assert!(minor_faults(getpid()).unwrap() >= before);
        let (each, part) = anonymous(getpid()).unwrap();
        assert!(each >= part && part > 200, "{each} {part} {}", touched.len());
    }
}
