//! How long a run has waited for pages: its pressure, as in the kernel's PSI.
//!
//! Owns: a thread that looks every so often what the kernel has counted of the program's threads,
//! and adds up what they have lost to faults since the look before ([`crate::lost_time`]): as
//! *some* the part of the time in which the run was active, and as *full* that of it in which
//! none of its threads ran at the look.
//! Invariants: a look takes a fiftieth of a CPU at most; a run without faults is looked at ever
//! more rarely. Threads that have ended between two looks are known by the faults that nobody was
//! seen to have: each counts as the others do ([`Stalls::total`]).
//! Known errors: of several threads the part that each loses is taken for that of the run.
//! Rejected: the kernel's own pressure, which takes no notice of userfaultfd. `/proc/PID/wchan`,
//! which names where a thread sleeps: since Linux 6.12 a thread that sleeps for less than its
//! time slice is not said to (delayed dequeue). Stalls timed by who serves them: what a fault
//! costs before its message is read, and after its answer, is as much again. What threads are
//! seen to do at a look, alone: who has its page and no CPU yet runs then, and a run that did
//! nothing but fault seemed to wait for half of its time.

use crate::lost_time::{Costs, Counted, Parts, Spent, Stretch};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Arc;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
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
    /// Faults of threads that were looked at, and what one cost.
    seen_faults: AtomicU64,
    fault_ns: AtomicU64,
}

/// A process of a run as far as its stalls go: its number, and for how long it was held so far.
pub type Stalling = (i32, Duration);

/// What this thread has used, however busy the machine is.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a look has found.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Found {
    some_ns: f64,
    full_ns: f64,
}

impl Stalls {
    /// Starts the thread for the run of which `programs` returns the processes, and where their
    /// faults are counted; it ends with the process, and blocks the signals that this thread does.
    ///
    /// # Errors
    /// The error of starting a thread.
    pub fn start(
        programs: impl Fn() -> (Vec<Stalling>, Stats) + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let stalls = Arc::new(Self::default());
        let noted = stalls.clone();
        let body = move || noted.watch(programs);
        let builder = std::thread::Builder::new().name("ovs-stalls".into());
        builder.spawn(body)?;
        Ok(stalls)
    }

    /// The time until the last look.
    pub fn get(&self) -> StallTime {
        let time = |ns: &AtomicU64| Duration::from_nanos(ns.load(Relaxed));
        // In this order, so that full is never more.
        let full = time(&self.full_ns);
        StallTime { some: time(&self.some_ns), full }
    }

    /// The time of a run of so long that has ended, with what was not seen of it.
    pub fn total(&self, stats: &Stats, wall: Duration) -> StallTime {
        let StallTime { some, full } = self.get();
        let unseen = stats.get(Event::pgfault).saturating_sub(self.seen_faults.load(Relaxed));
        let fault_ns = match self.fault_ns.load(Relaxed) {
            0 => Costs::new().of_one(answer_ns(stats, (0, 0))) as u64,
            ns => ns,
        };
        let some = (some + Duration::from_nanos(unseen.saturating_mul(fault_ns))).min(wall);
        StallTime { some, full: full.min(some) }
    }

    fn watch(&self, programs: impl Fn() -> (Vec<Stalling>, Stats)) {
        let (mut looks, mut pause) = (Looks::new(), PAUSE_MIN);
        loop {
            let begun = cpu_time();
            let (processes, stats) = programs();
            let was_idle = pause > PAUSE_MIN;
            let is_quiet = looks.is_quiet(&stats);
            self.note(looks.look(&processes, &stats, was_idle));
            self.seen_faults.store(looks.costs.faults(), Relaxed);
            let fault_ns = looks.costs.of_one(looks.answer_ns) * self.part_alone(&looks.costs);
            self.fault_ns.store(fault_ns as u64, Relaxed);
            pause = if is_quiet { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
            std::thread::sleep(((cpu_time() - begun) * REST).max(pause));
        }
    }

    /// What threads have lost counts once for all that lose at a time: this part of it, so far.
    fn part_alone(&self, costs: &Costs) -> f64 {
        let lost_ns = costs.lost_ns();
        if lost_ns > 0.0 { (self.some_ns.load(Relaxed) as f64 / lost_ns).min(1.0) } else { 1.0 }
    }

    fn note(&self, found: Found) {
        self.some_ns.fetch_add(found.some_ns as u64, Relaxed);
        self.full_ns.fetch_add(found.full_ns as u64, Relaxed);
    }
}

/// Looks at the threads of a run, one after the other.
#[derive(Debug)]
struct Looks {
    at: Instant,
    /// What the kernel had counted of each thread, and of which of its time.
    counted: HashMap<i32, (Counted, Parts)>,
    /// For how long each process had been held.
    held: HashMap<i32, Duration>,
    costs: Costs,
    /// Faults of the run, and the time of their answers, then; and what an answer took since.
    faults: (u64, u64),
    answer_ns: f64,
}

/// From a message to its answer, as a rule, since so many faults and so much time of theirs.
fn answer_ns(stats: &Stats, (faults, sum_ns): (u64, u64)) -> f64 {
    let faults = stats.get(Event::pgfault).saturating_sub(faults).max(1);
    stats.fault_latency_sum_ns().saturating_sub(sum_ns) as f64 / faults as f64
}

impl Looks {
    fn new() -> Self {
        let (at, counted, held) = (Instant::now(), HashMap::new(), HashMap::new());
        Self { at, counted, held, costs: Costs::new(), faults: (0, 0), answer_ns: 0.0 }
    }

    /// True if no fault has come since the last look, and none is being served.
    fn is_quiet(&self, stats: &Stats) -> bool {
        stats.get(Event::pgfault) == self.faults.0 && stats.stalls() == 0
    }

    fn look(&mut self, processes: &[Stalling], stats: &Stats, was_idle: bool) -> Found {
        let time = std::mem::replace(&mut self.at, Instant::now()).elapsed();
        let held: HashMap<i32, Duration> = processes.iter().copied().collect();
        let before = std::mem::replace(&mut self.held, held);
        let stopped = |process: i32| {
            self.held[&process].saturating_sub(before.get(&process).copied().unwrap_or_default())
        };
        self.answer_ns = answer_ns(stats, self.faults);
        let faults = stats.get(Event::pgfault);
        let new_faults = faults - self.faults.0.min(faults);
        self.faults = (faults, stats.fault_latency_sum_ns());
        let threads: Vec<Thread> =
            processes.iter().flat_map(|(process, _)| threads_of(*process)).collect();
        let mut counted_before = std::mem::take(&mut self.counted);
        let mut known = Vec::with_capacity(threads.len());
        for thread in &threads {
            let then = counted_before.remove(&thread.number);
            let mut parts = then.map_or_else(Parts::default, |(_, parts)| parts);
            if let Some((then, _)) = then {
                let since = thread.counted.since(then);
                parts.note(&since);
                known.push((thread, since));
            }
            self.counted.insert(thread.number, (thread.counted, parts));
        }
        let known = with_faults(known, new_faults);
        let stretch = |thread: &Thread| Stretch {
            time,
            answer_ns: self.answer_ns,
            stopped: stopped(thread.process),
            was_idle,
        };
        let (mut all, mut whole) = (Spent::default(), time);
        // Who was attached to since was held for that, before it was looked at.
        for process in self.held.keys().filter(|process| !before.contains_key(process)) {
            let held = stopped(*process);
            whole = whole.max(held);
            all.active_ns += held.as_nanos() as f64;
            all.lost_ns += held.as_nanos() as f64;
        }
        for (thread, counted) in &known {
            let (_, parts) = self.counted[&thread.number];
            let spent = self.costs.spent(*counted, parts, stretch(thread));
            all.active_ns += spent.active_ns;
            all.lost_ns += spent.lost_ns;
        }
        let is_running = threads.iter().any(|thread| thread.state == b'R');
        found(all, whole, is_running)
    }
}

/// The part of a stretch that a run has lost whose threads have spent it so.
fn found(all: Spent, time: Duration, is_running: bool) -> Found {
    let active_ns = all.active_ns.min(time.as_nanos() as f64);
    let some_ns = if all.active_ns > 0.0 { active_ns * all.lost_ns / all.active_ns } else { 0.0 };
    Found { some_ns, full_ns: if is_running { 0.0 } else { some_ns } }
}

/// Shares out the faults that were served: the kernel counts others, too, but for those a thread
/// does not sleep. Where faults are signals it counts none, and they are shared out by how often
/// threads were given a CPU.
fn with_faults(mut threads: Vec<(&Thread, Counted)>, served: u64) -> Vec<(&Thread, Counted)> {
    for (_, counted) in &mut threads {
        counted.faults = counted.faults.min(counted.switches);
    }
    let sum = |of: fn(&Counted) -> u64| threads.iter().map(|(_, counted)| of(counted)).sum::<u64>();
    let (faults, switches) = (sum(|counted| counted.faults), sum(|counted| counted.switches));
    let (part, of): (fn(&Counted) -> u64, u64) = match faults * 4 < served {
        true => (|counted| counted.switches, switches),
        false => (|counted| counted.faults, faults),
    };
    if of > served || faults * 4 < served && of > 0 {
        for (_, counted) in &mut threads {
            let share = u128::from(served) * u128::from(part(counted)) / u128::from(of);
            counted.faults = (share as u64).min(counted.switches);
        }
    }
    threads
}

/// A thread, as it was seen.
#[derive(Debug)]
struct Thread {
    number: i32,
    process: i32,
    /// One letter: see proc(5).
    state: u8,
    counted: Counted,
}

/// The threads of a process; none if it has ended.
fn threads_of(process: i32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let thread = |task: fs::DirEntry| {
        let number = task.file_name().to_str()?.parse().ok()?;
        let stat = fs::read(task.path().join("stat")).ok()?;
        // Without it (CONFIG_SCHED_INFO) nobody knows when it sleeps.
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let (state, counted) = parse(&stat, &times)?;
        Some(Thread { number, process, state, counted })
    };
    tasks.into_iter().flatten().flatten().filter_map(thread).collect()
}

/// What `stat` and `schedstat` say of a thread that has not ended.
fn parse(stat: &[u8], times: &str) -> Option<(u8, Counted)> {
    /// Fields after the name, which may be anything: the state is the first.
    const FAULTS: [usize; 2] = [7, 9];
    const USER_TICKS: usize = 11;
    const SYSTEM_TICKS: usize = 12;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().take(SYSTEM_TICKS + 1).collect();
    let number = |n: usize| fields.get(n)?.parse().ok();
    let mut times = times.split_ascii_whitespace().map(|word| word.parse().ok());
    let counted = Counted {
        run_ns: times.next()??,
        delay_ns: times.next()??,
        switches: times.next()??,
        user_ticks: number(USER_TICKS)?,
        system_ticks: number(SYSTEM_TICKS)?,
        // Minor or major depends on the kernel: a fault that is tried again was major once.
        faults: FAULTS.into_iter().map(number).sum::<Option<u64>>()?,
    };
    let state = *fields.first()?.as_bytes().first()?;
    (!matches!(state, b'Z' | b'X')).then_some((state, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_whatever_its_name() {
        let stat = b"42 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        let (state, counted) = parse(stat, "100 200 3\n").unwrap();
        let expected = Counted {
            run_ns: 100,
            delay_ns: 200,
            switches: 3,
            user_ticks: 11,
            system_ticks: 12,
            faults: 7 + 9,
        };
        assert_eq!((state, counted), (b'S', expected));
        assert_eq!(parse(b"42 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13", "1 2 3"), None);
        for (stat, times) in [(&b""[..], "1 2 3"), (&b"42 (x)"[..], "1 2 3"), (&stat[..], "1 2")] {
            assert_eq!(parse(stat, times), None);
        }
        assert!(threads_of(i32::MAX).is_empty());
        let own = threads_of(rustix::process::getpid().as_raw_pid());
        assert!(own.iter().any(|thread| thread.state == b'R'), "{own:?}");
    }

    #[test]
    fn of_a_run_the_part_counts_that_its_threads_lose() {
        let second = Duration::from_secs(1);
        let spent = |active_ns, lost_ns| Spent { active_ns, lost_ns };
        // Two threads, of which both lose nine tenths.
        assert_eq!(found(spent(2e9, 1.8e9), second, true), Found { some_ns: 9e8, full_ns: 0.0 });
        // One that sleeps half of the time for another reason, and loses the rest.
        assert_eq!(found(spent(5e8, 4e8), second, false), Found { some_ns: 4e8, full_ns: 4e8 });
        assert_eq!(found(Spent::default(), second, false), Found::default());
    }

    #[test]
    fn faults_that_the_kernel_does_not_count_are_shared_out() {
        let thread =
            |number| Thread { number, process: 1, state: b'S', counted: Counted::default() };
        let (busy, idle) = (thread(1), thread(2));
        let of = |faults, switches| Counted { faults, switches, ..Counted::default() };
        let faults_of = |threads, faults| -> Vec<u64> {
            with_faults(threads, faults).iter().map(|(_, counted)| counted.faults).collect()
        };
        assert_eq!(faults_of(vec![(&busy, of(90, 100)), (&idle, of(0, 5))], 100), [90, 0]);
        assert_eq!(faults_of(vec![(&busy, of(90, 100)), (&idle, of(30, 500))], 60), [45, 15]);
        assert_eq!(faults_of(vec![(&busy, of(90, 10)), (&idle, of(30, 50))], 0), [0, 0]);
        assert_eq!(faults_of(vec![(&busy, of(0, 300)), (&idle, of(1, 100))], 200), [150, 50]);
        assert_eq!(faults_of(vec![(&busy, of(0, 3))], 200), [3]);
    }

    #[test]
    fn what_was_not_seen_costs_as_much() {
        let (stalls, stats) = (Stalls::default(), Stats::on_heap());
        let second = Duration::from_secs(1);
        assert_eq!(stalls.total(&stats, second), StallTime::default());
        for _ in 0..1000 {
            stats.count(Event::pgfault);
            stats.fault_latency(20_000);
        }
        // Of a run that ended before it was looked at.
        let unseen = stalls.total(&stats, second).some;
        assert!((40..70).contains(&unseen.as_millis()), "{unseen:?}");
        stalls.note(Found { some_ns: 3e8, full_ns: 2e8 });
        stalls.seen_faults.store(600, Relaxed);
        stalls.fault_ns.store(500_000, Relaxed);
        let ms = Duration::from_millis;
        assert_eq!(stalls.total(&stats, second), StallTime { some: ms(500), full: ms(200) });
        assert_eq!(stalls.total(&stats, ms(400)).some, ms(400));
    }
}
