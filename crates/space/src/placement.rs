//! Placement: the CPU on which a thread resumes after its fault.
//!
//! Owns: whether faulting threads are *stacked* on the handler's CPU, and their affinity while they
//! sleep. When a thread sleeps for a page, its CPU becomes idle and halts. Waking a halted CPU
//! takes longer than serving the fault, above all in a virtual machine, and the scheduler prefers
//! an idle CPU to the one the wake comes from (`select_idle_sibling`). So while faults come in
//! quick succession the handler stays on one CPU and wakes the threads it serves there: it narrows
//! a thread's affinity to that CPU before it maps the page, and restores it right after. On two
//! virtual CPUs this raises the rate of random accesses from 16 000 to 86 000 per second with one
//! thread, and from 50 000 to 80 000 with two; it also avoids the interrupts that evictions would
//! send to the other CPU.
//!
//! Threads that compute between their faults are better off on separate CPUs: see
//! [`Pace::wants_stacking`].
//!
//! Invariants: a thread is narrowed only while it sleeps for a page, only if it belongs to this
//! process, and only to a CPU it may run on. No thread stays narrowed while the handler is parked
//! or sleeps for anything but I/O; so a forked child does not inherit it. A thread that was woken
//! may run before the handler does, still narrowed: what then asks for its CPUs, or passes them on,
//! waits ([`await_own_cpus`]). `docs/assumptions.md` lists what other threads of the program can
//! see of it.
//! Rejected: a handler that spins for the next fault (the thread's CPU halts all the same);
//! narrowing threads for longer than a fault (they could see it, and their children would inherit
//! it); handlers of class SCHED_IDLE, onto which the scheduler stacks by itself (they starve when
//! there is other work, and cannot leave the class without CAP_SYS_NICE).

use crate::uffd::is_thread_of;
use crate::words::FaultMessage;
use overspill_base::clock;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

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
/// Number of recent faults whose threads are remembered.
const RECENT: usize = 8;

/// The threads of this process that are narrowed, by number; 0 in unused places.
static NARROWED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Waits until `thread`, of this process, has the CPU affinity that it has by its own choice. For
/// a thread that runs this takes microseconds, or the time of a read.
pub fn await_own_cpus(thread: i32) {
    // Acquire: with `release`, the affinity has been restored.
    while NARROWED.iter().any(|place| place.load(Acquire) == thread) {
        rustix::thread::sched_yield();
    }
}

/// Notes that `thread` is about to be narrowed; none if too many are.
fn place_for(thread: Pid) -> Option<&'static AtomicI32> {
    let number = thread.as_raw_pid();
    let free = |place: &&AtomicI32| place.compare_exchange(0, number, Relaxed, Relaxed).is_ok();
    NARROWED.iter().find(free)
}

/// A thread whose affinity is narrowed, and the page it sleeps for.
#[derive(Debug)]
struct Narrowed {
    thread: Pid,
    place: &'static AtomicI32,
    address: usize,
    before: CpuSet,
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
}

impl Placement {
    /// A placement for the threads of `process`.
    pub(crate) fn new(process: Pid) -> Self {
        Self {
            process,
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
            messages.iter().for_each(|message| self.narrow(message, cpu));
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
        if let Some((_, before)) = self.stacked.take() {
            // Fails only if a control group has taken all of those CPUs away; its choice stands.
            let _ = sched_setaffinity(None, &before);
        }
    }

    /// Narrows a thread that is ours and may run on `cpu` and elsewhere.
    fn narrow(&mut self, message: &FaultMessage, cpu: usize) {
        let Some(thread) = Pid::from_raw(message.thread) else { return };
        if !is_thread_of(self.process, thread) {
            return;
        }
        let Ok(before) = sched_getaffinity(Some(thread)) else { return };
        if before.count() == 1 || !before.is_set(cpu) {
            return;
        }
        let Some(place) = place_for(thread) else { return };
        if sched_setaffinity(Some(thread), &only(cpu)).is_ok() {
            self.narrowed.push(Narrowed { thread, place, address: message.address, before });
        } else {
            place.store(0, Relaxed);
        }
    }

    /// Restores the threads' affinity, except for those whose fault is still `pending`.
    pub(crate) fn release(&mut self, pending: impl Fn(usize) -> bool) {
        self.narrowed.retain(|narrowed| {
            let keep = pending(narrowed.address);
            if !keep {
                // The thread may have ended meanwhile.
                let _ = sched_setaffinity(Some(narrowed.thread), &narrowed.before);
                // Release: with `await_own_cpus`.
                narrowed.place.store(0, Release);
            }
            keep
        });
    }

    /// Resets everything: faults have ended, or the handler is about to park.
    pub(crate) fn rest(&mut self) {
        self.release(|_| false);
        self.unstack();
        self.pace = Pace::new(clock::cpu_count());
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
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

    #[test]
    fn a_thread_is_narrowed_and_released_and_other_processes_threads_are_left_alone() {
        let mut placement = Placement::new(rustix::process::getpid());
        let all = sched_getaffinity(None).unwrap();
        if all.count() < 2 {
            println!("skipped: there is one CPU");
            return;
        }
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            ended.recv()
        });
        let (sleeping, init) = (told.recv().unwrap(), Pid::from_raw(1).unwrap());
        let message = |thread: Pid| FaultMessage { address: 0, thread: thread.as_raw_pid() };
        (1..50).for_each(|n| placement.arrived(&[message(sleeping), message(init)], n * 10_000));
        assert!(placement.is_stacked());
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert_eq!(sched_getaffinity(Some(sleeping)), sched_getaffinity(None));
        assert!(placement.narrowed.iter().all(|narrowed| narrowed.thread == sleeping));
        let number = sleeping.as_raw_pid();
        let waiter = std::thread::spawn(move || await_own_cpus(number));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        placement.rest();
        waiter.join().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), all);
        assert_eq!(sched_getaffinity(Some(sleeping)).unwrap(), all);
        drop(end);
        assert!(sleeper.join().unwrap().is_err());
    }
}
