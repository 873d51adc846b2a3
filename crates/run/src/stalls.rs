//! How long a run has waited for pages: its pressure, as in the kernel's PSI.
//!
//! Owns: a thread that looks every so often what the program's threads do, and
//! counts the time since the look before as *some* if one of them waits for a page, and as *full*
//! if none of the others runs.
//! Invariants: a look takes a fiftieth of a CPU at most; a run without faults is looked at ever
//! more rarely, and what such a long pause ends in counts as a short one.
//! Known errors: a thread that has its page and no CPU yet counts as running. In a process of which
//! some threads run and some sleep while faults are served, one is taken to sleep for its page.
//! Not here: how many threads wait ([`FaultLatency::sum_ns`](crate::FaultLatency) says that
//! exactly).
//! Rejected: the kernel's own pressure, which takes no notice of userfaultfd. `/proc/PID/wchan`,
//! which names where a thread sleeps: since Linux 6.12 a thread that sleeps for less than its time
//! slice is not said to (delayed dequeue). Stalls timed by who serves them: that needs a clock in
//! every fault, and cannot see who else runs.

use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Arc;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::{Duration, Instant};

/// Between two looks at a run with faults.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Between two looks at one that has had none for long.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A pause lasts at least so many times as long as the look before it worked.
const REST: u32 = 50;

/// Time in which a run waited for pages, since its start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StallTime {
    /// In which a thread waited.
    pub some: Duration,
    /// In which a thread waited, and none could run.
    pub full: Duration,
}

/// The time so far.
#[derive(Debug, Default)]
pub struct Stalls {
    some_ns: AtomicU64,
    full_ns: AtomicU64,
}

/// A process of a run as far as its stalls go: its number, and where its faults are counted, alone
/// or with those of others.
pub type Stalling = (i32, Stats);

/// What this thread has used, however busy the machine is.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a look saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    None,
    Some,
    Full,
}

impl Stalls {
    /// Starts the thread for the programs that `programs` returns; it ends with the process, and
    /// blocks the signals that this thread does.
    ///
    /// # Errors
    /// The error of starting a thread.
    pub fn start(
        programs: impl Fn() -> Vec<Stalling> + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let stalls = Arc::new(Self::default());
        let noted = stalls.clone();
        let body = move || noted.watch(programs);
        let builder = std::thread::Builder::new().name("ovs-stalls".into());
        builder.spawn(body)?;
        Ok(stalls)
    }

    /// The time until now.
    pub fn get(&self) -> StallTime {
        let time = |ns: &AtomicU64| Duration::from_nanos(ns.load(Relaxed));
        // In this order, so that full is never more.
        let full = time(&self.full_ns);
        StallTime { some: time(&self.some_ns), full }
    }

    fn watch(&self, programs: impl Fn() -> Vec<Stalling>) {
        let (mut faults_before, mut pause, mut last) = (0, PAUSE_MIN, Instant::now());
        loop {
            let begun = cpu_time();
            let programs = programs();
            let faults = programs.iter().map(|(_, stats)| stats.get(Event::pgfault)).sum();
            let has_stalls = programs.iter().any(|(_, stats)| stats.stalls() > 0);
            let is_quiet = faults == faults_before && !has_stalls;
            let seen = if is_quiet { Seen::None } else { look(&programs) };
            let since = std::mem::replace(&mut last, Instant::now()).elapsed();
            self.note(seen, if pause > PAUSE_MIN { PAUSE_MIN } else { since });
            pause = if is_quiet { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
            faults_before = faults;
            std::thread::sleep(((cpu_time() - begun) * REST).max(pause));
        }
    }

    fn note(&self, seen: Seen, time: Duration) {
        let ns = time.as_nanos() as u64;
        if seen != Seen::None {
            self.some_ns.fetch_add(ns, Relaxed);
        }
        if seen == Seen::Full {
            self.full_ns.fetch_add(ns, Relaxed);
        }
    }
}

/// Looks who waits and who runs, at this moment.
fn look(programs: &[Stalling]) -> Seen {
    let (mut waits, mut runs) = (false, false);
    for (process, stats) in programs {
        let moment = || (stats.stalls(), stats.get(Event::pgfault));
        let before = moment();
        let threads = Threads::of(*process);
        let is_faulting = before.0 > 0 || before != moment();
        waits |= threads.wait(before.0 > 0, is_faulting);
        runs |= threads.running > 0;
    }
    match (waits, runs) {
        (false, _) => Seen::None,
        (true, true) => Seen::Some,
        (true, false) => Seen::Full,
    }
}

/// The threads of a process; none if it has ended.
#[derive(Default, Debug)]
struct Threads {
    /// That run or could.
    running: usize,
    sleeping: usize,
}

impl Threads {
    fn of(process: i32) -> Self {
        let mut threads = Self::default();
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let stat = fs::read(task.path().join("stat"));
            match stat.ok().and_then(|stat| state_of(&stat)) {
                Some(b'R') => threads.running += 1,
                Some(b'Z' | b'X') | None => {}
                Some(_) => threads.sleeping += 1,
            }
        }
        threads
    }

    /// Whether one of them waits for a page. A fault is shorter than it takes to look, so it may be
    /// another one that was seen in a `stall` before: this is about the moment in which the threads
    /// were looked at.
    fn wait(&self, stall: bool, is_faulting: bool) -> bool {
        let reason = if self.running == 0 { is_faulting } else { stall };
        self.sleeping > 0 && reason
    }
}

/// The state after the name, which may be anything.
fn state_of(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_if_it_sleeps_while_its_process_faults() {
        let threads = |running, sleeping| Threads { running, sleeping };
        // The only thread runs: the stall seen before has ended.
        assert!(!threads(1, 0).wait(true, true));
        assert!(threads(0, 1).wait(false, true));
        assert!(!threads(0, 1).wait(false, false), "it sleeps for another reason");
        assert!(threads(1, 1).wait(true, true));
        assert!(!threads(0, 0).wait(true, true), "it was killed in the middle of a stall");
    }

    #[test]
    fn a_thread_named_like_a_state_has_its_own() {
        assert_eq!(state_of(b"42 (a) R (b) S 1 2 3"), Some(b'S'));
        assert_eq!(state_of(b""), None);
        assert_eq!(state_of(b"42 (x)"), None);
        assert_eq!(Threads::of(i32::MAX).sleeping, 0);
        assert!(Threads::of(rustix::process::getpid().as_raw_pid()).running > 0);
    }

    #[test]
    fn what_is_seen_counts_for_the_time_since_the_look_before() {
        let stalls = Stalls::default();
        let ms = Duration::from_millis;
        for (seen, time) in [(Seen::None, 1), (Seen::Some, 20), (Seen::Full, 300)] {
            stalls.note(seen, ms(time));
        }
        assert_eq!(stalls.get(), StallTime { some: ms(320), full: ms(300) });
    }
}
