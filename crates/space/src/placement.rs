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
//! Threads that compute between their faults are better off on separate CPUs: see
//! [`Pace::wants_stacking`].
//!
//! Invariants: a thread is narrowed only when it sleeps for a page, only if it belongs to this
//! process, and only to a CPU it may run on, and has its CPUs back when its page is there.
//! `docs/assumptions.md` lists what others can see of it.
//! Rejected: a handler that spins for the next fault (the thread's CPU halts all the same);
//! handlers of class SCHED_IDLE, onto which the scheduler stacks by itself (they starve when there
//! is other work, and cannot leave the class without CAP_SYS_NICE).

use crate::uffd::is_thread_of;
use crate::words::FaultMessage;
use overspill_base::clock;
use rustix::process::getpid;
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
/// How long a handler waits that has narrowed threads, before it gives their CPUs back.
const PATIENCE_NS: u64 = 1_000_000;
/// Faults count as ended if none has arrived for this long.
const REST_NS: u64 = 20_000_000;
/// Number of recent faults whose threads are remembered.
const RECENT: usize = 8;

/// A thread whose affinity is narrowed, what it had before, and the page it sleeps for.
#[derive(Debug)]
struct Narrowed {
    thread: Pid,
    cpu: usize,
    before: CpuSet,
    address: usize,
}

impl Narrowed {
    /// Narrows a sleeping thread to `cpu`, if it may run there and elsewhere.
    fn new(thread: Pid, cpu: usize, address: usize) -> Option<Self> {
        if !is_thread_of(getpid(), thread) {
            return None;
        }
        let before = sched_getaffinity(Some(thread)).ok()?;
        if before.count() == 1 || !before.is_set(cpu) {
            return None;
        }
        sched_setaffinity(Some(thread), &only(cpu)).ok()?;
        Some(Self { thread, cpu, before, address })
    }

    /// Gives the CPUs back, unless somebody has set others meanwhile.
    fn restore(&self) {
        let thread = Some(self.thread);
        let is_narrow = sched_getaffinity(thread).is_ok_and(|now| now == only(self.cpu));
        if is_thread_of(getpid(), self.thread) && is_narrow {
            // It fails if the thread has ended.
            let _ = sched_setaffinity(thread, &self.before);
        }
    }
}

/// The set of one CPU.
fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
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
    pace: Pace,
    /// While stacked: the CPU, and the handler's affinity before.
    stacked: Option<(usize, CpuSet)>,
    narrowed: Vec<Narrowed>,
}

impl Placement {
    pub(crate) fn new() -> Self {
        Self {
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
        self.release_all();
        if let Some((_, before)) = self.stacked.take() {
            // Fails only if a control group has taken all of those CPUs away; its choice stands.
            let _ = sched_setaffinity(None, &before);
        }
    }

    fn narrow(&mut self, message: &FaultMessage, cpu: usize) {
        let Some(thread) = Pid::from_raw(message.thread) else { return };
        match self.narrowed.iter_mut().find(|narrowed| narrowed.thread == thread) {
            Some(narrowed) => narrowed.address = message.address,
            None => self.narrowed.extend(Narrowed::new(thread, cpu, message.address)),
        }
    }

    /// Gives the threads their CPUs back, except for those whose fault is still `pending`.
    pub(crate) fn release(&mut self, pending: impl Fn(usize) -> bool) {
        self.narrowed.retain(|narrowed| {
            let is_pending = pending(narrowed.address);
            if !is_pending {
                narrowed.restore();
            }
            is_pending
        });
    }

    /// As [`release`](Self::release) for all; false if none was narrowed.
    pub(crate) fn release_all(&mut self) -> bool {
        let some = !self.narrowed.is_empty();
        self.narrowed.drain(..).for_each(|narrowed| narrowed.restore());
        some
    }

    /// How long the handler may sleep before it must release threads, or may take faults for ended.
    pub(crate) fn patience_ns(&self) -> u64 {
        if self.narrowed.is_empty() { REST_NS } else { PATIENCE_NS }
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

    /// Runs `work` beside a thread that sleeps, with its number, if there are CPUs to narrow to.
    fn with_sleeper(work: impl FnOnce(Pid, &CpuSet)) {
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
        work(told.recv().unwrap(), &all);
        drop(end);
        assert!(sleeper.join().unwrap().is_err());
    }

    fn cpus_of(thread: Pid) -> CpuSet {
        sched_getaffinity(Some(thread)).unwrap()
    }

    #[test]
    fn a_thread_is_narrowed_until_its_page_is_there() {
        with_sleeper(|thread, all| {
            let mut placement = Placement::new();
            let message = FaultMessage { address: 0, thread: thread.as_raw_pid() };
            (1..50).for_each(|n| placement.arrived(&[message], n * 10_000));
            assert!(placement.is_stacked());
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            placement.release(|_| true);
            assert_eq!(cpus_of(thread), sched_getaffinity(None).unwrap());
            placement.release(|_| false);
            assert_eq!(cpus_of(thread), *all);
            placement.rest();
            assert_eq!(sched_getaffinity(None).unwrap(), *all);
        });
    }

    #[test]
    fn an_affinity_set_by_others_stands() {
        with_sleeper(|thread, all| {
            let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
            let narrowed = Narrowed::new(thread, cpu, 0).unwrap();
            let mut others = *all;
            others.unset(cpu);
            sched_setaffinity(Some(thread), &others).unwrap();
            narrowed.restore();
            assert_eq!(cpus_of(thread), others);
        });
    }

    #[test]
    fn other_processes_threads_are_left_alone() {
        assert!(Narrowed::new(Pid::from_raw(1).unwrap(), 0, 0).is_none());
    }
}
