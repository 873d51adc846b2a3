//! Placement: the CPU on which a thread resumes after its fault.
//!
//! Owns: whether faulting threads are *stacked* on the handler's CPU, and their affinity while they
//! sleep. When a thread sleeps for a page, its CPU becomes idle and halts. Waking a halted CPU
//! takes longer than serving the fault, above all in a virtual machine, and the scheduler prefers
//! an idle CPU to the one the wake comes from (`select_idle_sibling`). So while faults come in
//! quick succession the handler stays on one CPU and wakes the threads it serves there: it narrows
//! a thread's affinity to that CPU before it maps the page. On two virtual CPUs this raises the
//! rate of random accesses from 16 000 to 86 000 per second with one thread, and from 50 000 to 80
//! 000 with two; it also avoids the interrupts that evictions would send to the other CPU.
//!
//! Narrowing and restoring take four system calls, a quarter of a fault on memory. So where the
//! program's questions about its CPUs are seen, a thread stays narrowed as long as it goes on
//! faulting: 105 000 and 103 000 per second.
//!
//! Threads that compute between their faults are better off on separate CPUs: see
//! [`Pace::wants_stacking`].
//!
//! Invariants: a thread is narrowed only when it sleeps for a page, only if it belongs to this
//! process, and only to a CPU it may run on. No thread stays narrowed while the handler is parked,
//! so a forked child does not inherit it, or when none has faulted for a millisecond.
//! `docs/assumptions.md` lists what others can see of it.
//! Not here: giving a thread its CPUs back when it asks ([`narrowed`]).
//! Rejected: a handler that spins for the next fault (the thread's CPU halts all the same);
//! handlers of class SCHED_IDLE, onto which the scheduler stacks by itself (they starve when there
//! is other work, and cannot leave the class without CAP_SYS_NICE).

use crate::narrowed::{self, Entry, only};
use crate::words::FaultMessage;
use overspill_base::clock;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Cost of waking two halted CPUs for a fault: it takes 62 us of wall time instead of 13.
const WAKES_NS: u64 = 50_000;
/// Mean gap above which the faults of one thread are not stacked.
const ALONE_NS: u64 = 200_000;
/// Cap on a single gap, so that a pause is forgotten after a few faults.
const GAP_MAX_NS: u64 = 1_000_000;
/// Cap on a single fault's work, so that one in many that reclaims a batch does not look like work
/// for every fault.
const WORK_MAX_NS: u64 = 4 * WAKES_NS;
/// The weight of one value in a mean is 1/8.
const MEAN_SHIFT: u32 = 3;
/// How long a thread stays narrowed that does not fault: it shares a CPU with the others.
const STAY_NS: u64 = 1_000_000;
/// Faults count as ended if none has arrived for this long.
const REST_NS: u64 = 20_000_000;
/// Number of recent faults whose threads are remembered.
const RECENT: usize = 8;

/// A thread whose affinity is narrowed, and the page it sleeps for, or slept.
#[derive(Debug)]
struct Narrowed {
    thread: Pid,
    entry: &'static Entry,
    address: usize,
    /// When its fault arrived.
    last_ns: u64,
}

/// The recent pace of faults, as one handler sees it.
#[derive(Debug)]
struct Pace {
    cpus: u64,
    last_ns: u64,
    /// Mean time between faults.
    gap_ns: u64,
    /// Mean time the handler works for a fault.
    work_ns: u64,
    /// Threads of the last faults; 0 in unused entries.
    recent: [i32; RECENT],
    next: usize,
}

impl Pace {
    fn new(cpus: usize) -> Self {
        Self {
            cpus: cpus as u64,
            last_ns: 0,
            gap_ns: GAP_MAX_NS,
            work_ns: 0,
            recent: [0; RECENT],
            next: 0,
        }
    }

    fn note_fault(&mut self, thread: i32, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.last_ns).min(GAP_MAX_NS);
        self.last_ns = now_ns;
        self.gap_ns = mean(self.gap_ns, gap_ns);
        self.recent[self.next] = thread;
        self.next = (self.next + 1) % RECENT;
    }

    fn note_work(&mut self, work_ns: u64) {
        self.work_ns = mean(self.work_ns, work_ns.min(WORK_MAX_NS));
    }

    /// Whether stacking pays. With `w` between two faults of each of `n` threads, `h` for the
    /// handler and WAKES_NS for the wakes, a fault takes `w + h` when stacked, where only one of
    /// them runs at a time, and `(w + h + WAKES_NS) / n` otherwise. In terms of the gap observed in
    /// either state, stacking is faster if the gap is below `WAKES_NS / (n - 1)`. A handler that
    /// works for longer than the wakes take, on whole windows of pages, should run beside the
    /// program. While it does, a wake is part of its work; with one bound for both states a pace
    /// near it went back and forth (pages modified in order in memory: a tenth slower).
    fn wants_stacking(&self, is_stacked: bool) -> bool {
        let gap_max_ns = match self.threads().min(self.cpus) {
            0 | 1 => ALONE_NS,
            n => WAKES_NS / (n - 1),
        };
        let work_max_ns = if is_stacked { WAKES_NS } else { 2 * WAKES_NS };
        self.cpus > 1 && self.work_ns < work_max_ns && self.gap_ns < gap_max_ns
    }

    /// Number of distinct threads among the last faults.
    fn threads(&self) -> u64 {
        let first = |n: usize| !self.recent[..n].contains(&self.recent[n]);
        (0..RECENT).filter(|&n| self.recent[n] != 0 && first(n)).count() as u64
    }
}

fn mean(mean: u64, value: u64) -> u64 {
    mean - (mean >> MEAN_SHIFT) + (value >> MEAN_SHIFT)
}

/// Where the threads served by one handler resume.
#[derive(Debug)]
pub(crate) struct Placement {
    process: Pid,
    pace: Pace,
    /// While stacked: the CPU, and the handler's affinity before.
    stacked: Option<(usize, CpuSet)>,
    narrowed: Vec<Narrowed>,
    /// How long after its fault a thread stays narrowed.
    stay_ns: u64,
}

impl Placement {
    /// A placement for the threads of `process`. If calls are `seen` that ask for a thread's CPUs
    /// or pass them on, threads stay narrowed between faults that come in quick succession.
    pub(crate) fn new(process: Pid, seen: bool) -> Self {
        Self {
            process,
            stay_ns: if seen { STAY_NS } else { 0 },
            pace: Pace::new(clock::cpu_count()),
            stacked: None,
            narrowed: Vec::with_capacity(32),
        }
    }

    /// True while the threads served are woken on the handler's own CPU.
    pub(crate) fn is_stacked(&self) -> bool {
        self.stacked.is_some()
    }

    /// Records faults just read, decides whether to stack, and narrows their threads if so.
    pub(crate) fn arrived(&mut self, messages: &[FaultMessage], now_ns: u64) {
        for message in messages {
            self.pace.note_fault(message.thread, now_ns);
        }
        match (self.pace.wants_stacking(self.is_stacked()), self.is_stacked()) {
            (true, false) => self.stack(),
            (false, true) => self.unstack(),
            _ => {}
        }
        if let Some((cpu, _)) = self.stacked {
            messages.iter().for_each(|message| self.narrow(message, cpu, now_ns));
        }
    }

    /// Records the time it took to serve `faults` faults.
    pub(crate) fn served(&mut self, faults: usize, work_ns: u64) {
        if let Some(each_ns) = work_ns.checked_div(faults as u64) {
            self.pace.note_work(each_ns);
        }
    }

    fn stack(&mut self) {
        let Ok(before) = sched_getaffinity(None) else { return };
        let cpu = sched_getcpu();
        if sched_setaffinity(None, &only(cpu)).is_ok() {
            self.stacked = Some((cpu, before));
        }
    }

    fn unstack(&mut self) {
        self.release_all();
        if let Some((_, before)) = self.stacked.take() {
            // Fails only if a control group has taken all of those CPUs away; its choice stands.
            let _ = sched_setaffinity(None, &before);
        }
    }

    fn narrow(&mut self, message: &FaultMessage, cpu: usize, now_ns: u64) {
        let Some(thread) = Pid::from_raw(message.thread) else { return };
        let address = message.address;
        let known = self.narrowed.iter().position(|narrowed| narrowed.thread == thread);
        if let Some(known) = known {
            if self.narrowed[known].entry.is_of(thread) {
                let narrowed = &mut self.narrowed[known];
                (narrowed.address, narrowed.last_ns) = (address, now_ns);
                return;
            }
            // It took its CPUs back.
            self.narrowed.swap_remove(known);
        }
        if let Some(entry) = narrowed::narrow(self.process, thread, cpu) {
            self.narrowed.push(Narrowed { thread, entry, address, last_ns: now_ns });
        }
    }

    /// Restores the affinity of the threads that have not faulted for a while, except for those
    /// whose fault is still `pending`.
    pub(crate) fn release(&mut self, now_ns: u64, pending: impl Fn(usize) -> bool) {
        let (process, stay_ns) = (self.process, self.stay_ns);
        self.narrowed.retain(|narrowed| {
            let stays = now_ns.saturating_sub(narrowed.last_ns) < stay_ns;
            let keep = stays || pending(narrowed.address);
            if !keep {
                narrowed.entry.restore_for(process, narrowed.thread);
            }
            keep
        });
    }

    /// Restores the affinity of all; false if none was narrowed.
    pub(crate) fn release_all(&mut self) -> bool {
        let some = !self.narrowed.is_empty();
        let narrowed = self.narrowed.drain(..);
        narrowed.for_each(|narrowed| narrowed.entry.restore_for(self.process, narrowed.thread));
        some
    }

    /// How long the handler may sleep before it must release threads, or may take faults for ended.
    pub(crate) fn patience_ns(&self) -> u64 {
        if self.narrowed.is_empty() { REST_NS } else { STAY_NS }
    }

    /// Resets everything: faults have ended, or the handler is about to park.
    pub(crate) fn rest(&mut self) {
        self.unstack();
        self.pace = Pace::new(clock::cpu_count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `threads` that fault in turns, `gap_ns` apart, `work_ns` of work each, are stacked.
    fn paced(cpus: usize, threads: i32, gap_ns: u64, work_ns: u64) -> bool {
        let mut pace = Pace::new(cpus);
        for n in 1..100 {
            pace.note_fault(1 + n % threads, n as u64 * gap_ns);
            pace.note_work(work_ns);
        }
        pace.wants_stacking(true)
    }

    #[test]
    fn a_thread_alone_is_stacked_while_its_faults_come_thick_and_fast() {
        assert!(paced(2, 1, 60_000, 10_000));
        assert!(!paced(2, 1, 400_000, 10_000));
    }

    #[test]
    fn several_are_only_where_waking_their_cpus_costs_more_than_taking_turns() {
        // Two may be 50 us apart, which is what waking takes; with four CPUs of their own, 16 us.
        for (cpus, threads, gap_ns, stacked) in [
            (2, 2, 30_000, true),
            (2, 2, 60_000, false),
            (2, 8, 30_000, true),
            (16, 4, 30_000, false),
            (16, 4, 10_000, true),
        ] {
            assert_eq!(paced(cpus, threads, gap_ns, 10_000), stacked, "{cpus} {threads} {gap_ns}");
        }
    }

    #[test]
    fn a_handler_with_much_to_do_works_beside_the_program() {
        assert!(!paced(2, 1, 100_000, 90_000));
    }

    /// While they are apart, the threads' wakes are the handler's work.
    #[test]
    fn what_was_separated_once_comes_together_again() {
        let mut pace = Pace::new(2);
        let mut now_ns = 0;
        let mut fault = |pace: &mut Pace, work_ns| {
            now_ns += 60_000;
            pace.note_fault(1, now_ns);
            pace.note_work(work_ns);
        };
        (0..100).for_each(|_| fault(&mut pace, 10_000));
        // One fault reclaims a batch.
        fault(&mut pace, 900_000);
        assert!(pace.wants_stacking(true));
        (0..3).for_each(|_| fault(&mut pace, 900_000));
        assert!(!pace.wants_stacking(true));
        (0..100).for_each(|_| fault(&mut pace, 10_000 + WAKES_NS));
        assert!(pace.wants_stacking(false));
    }

    #[test]
    fn on_one_cpu_there_is_nothing_to_decide() {
        assert!(!paced(1, 1, 10_000, 10_000));
    }

    #[test]
    fn a_pause_is_forgotten_after_a_few_faults() {
        let mut pace = Pace::new(2);
        let mut now_ns = 0;
        let mut faults_until_stacked = 0;
        while !pace.wants_stacking(false) {
            now_ns += 20_000;
            faults_until_stacked += 1;
            pace.note_fault(7, now_ns);
        }
        // 1 ms of pause, an eighth less with every fault: below 200 us after 14 of them.
        assert!((10..20).contains(&faults_until_stacked), "{faults_until_stacked}");
    }

    /// A placement that has read 49 faults of a thread that sleeps.
    fn with_sleeper(seen: bool, work: impl FnOnce(&mut Placement, Pid)) {
        narrowed::tests::with_sleeper(|thread, all| {
            let mut placement = Placement::new(rustix::process::getpid(), seen);
            let message = FaultMessage { address: 0, thread: thread.as_raw_pid() };
            (1..50).for_each(|n| placement.arrived(&[message], n * 10_000));
            assert!(placement.is_stacked());
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            assert_eq!(sched_getaffinity(Some(thread)), sched_getaffinity(None));
            work(&mut placement, thread);
            placement.rest();
            assert_eq!(sched_getaffinity(None).unwrap(), *all);
            assert_eq!(sched_getaffinity(Some(thread)).unwrap(), *all);
        });
    }

    fn is_narrowed(thread: Pid) -> bool {
        sched_getaffinity(Some(thread)).unwrap().count() == 1
    }

    #[test]
    fn where_nobody_looks_a_thread_stays_narrowed_between_faults() {
        with_sleeper(true, |placement, thread| {
            placement.release(490_000 + STAY_NS / 2, |_| false);
            assert!(is_narrowed(thread));
            placement.release(490_000 + STAY_NS, |_| true);
            assert!(is_narrowed(thread), "it sleeps for its page");
            placement.release(490_000 + STAY_NS, |_| false);
            assert!(!is_narrowed(thread) && placement.is_stacked());
        });
    }

    #[test]
    fn elsewhere_it_is_released_when_its_page_is_there() {
        with_sleeper(false, |placement, thread| {
            placement.release(490_000, |_| true);
            assert!(is_narrowed(thread));
            placement.release(490_000, |_| false);
            assert!(!is_narrowed(thread));
        });
    }

    #[test]
    fn one_that_took_its_cpus_back_is_narrowed_again_at_its_next_fault() {
        with_sleeper(true, |placement, thread| {
            narrowed::restore_own_cpus(thread.as_raw_pid());
            assert!(!is_narrowed(thread));
            placement.arrived(&[FaultMessage { address: 0, thread: thread.as_raw_pid() }], 500_000);
            assert!(is_narrowed(thread));
            assert_eq!(placement.narrowed.len(), 1);
        });
    }
}
