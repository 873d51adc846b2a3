//! The threads whose CPU affinity the pager has narrowed.
//!
//! Owns: the table of them, with what they had before, and who may restore it.
//! Invariants: what a thread had is restored once, by whoever takes its entry; nobody looks at a
//! thread's affinity meanwhile that asks here first. If somebody else has set it since, that
//! stands.
//! Not here: which threads, and for how long (`placement`).
//!
//! ```text
//! 0 free ──> -number: being narrowed ──> number: narrowed ──> -number: being restored ──> 0
//! ```
//!
//! Orderings: an entry is taken with Acquire, and its number stored with Release: whoever takes it
//! sees the CPUs noted before. Whoever finds it free (Acquire) sees the affinity restored.

use crate::uffd::is_thread_of;
use overspill_base::clock;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity, sched_yield};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, fence};

/// Threads narrowed at a time, and kept from it.
const ENTRIES: usize = 64;
const CPU_WORDS: usize = CpuSet::MAX_CPU / 64;
/// How long a thread that is about to pass its affinity on is left alone: more than it takes to
/// start a program.
const KEPT_MS: u32 = 1000;

/// A thread, where it may run, and where it could before; the number's sign as above.
#[derive(Debug)]
pub(crate) struct Entry {
    number: AtomicI32,
    cpu: AtomicUsize,
    before: [AtomicU64; CPU_WORDS],
}

static NARROWED: [Entry; ENTRIES] = [const { Entry::free() }; ENTRIES];

/// Threads that keep their CPUs for a while, by number: it, and the millisecond until which.
/// Another one in its place only makes that while shorter.
static KEPT: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// Set for good when threads may no longer make the calls that give CPUs back.
static NO_MORE: AtomicBool = AtomicBool::new(false);

/// Gives `thread`, of this process, the CPUs back on which it may run by its own choice. To be
/// called with signals blocked: a handler that asked in the middle of it would wait for ever.
pub fn restore_own_cpus(thread: i32) {
    for entry in &NARROWED {
        while entry.number.load(Acquire).abs() == thread {
            if !entry.restore(thread) {
                sched_yield();
            }
        }
    }
}

/// As [`restore_own_cpus`], for a thread that is about to pass them on, or to choose others: it is
/// not narrowed again at once.
pub fn keep_own_cpus(thread: i32) {
    let word = u64::from(thread as u32) << 32 | u64::from(now_ms().wrapping_add(KEPT_MS));
    KEPT[thread as usize % ENTRIES].store(word, Relaxed);
    // With `narrow`: either it sees the word, or its entry is seen here.
    fence(SeqCst);
    restore_own_cpus(thread);
}

/// Gives all threads of `process` their CPUs back: it may have become another program.
pub fn restore_all_cpus(process: Pid) {
    for entry in &NARROWED {
        let thread = Pid::from_raw(entry.number.load(Relaxed).max(0));
        thread.into_iter().for_each(|thread| entry.restore_for(process, thread));
    }
}

/// Narrows no thread from now on, and gives those of `process` their CPUs back.
pub fn narrow_no_more(process: Pid) {
    NO_MORE.store(true, Relaxed);
    // With `narrow`.
    fence(SeqCst);
    restore_all_cpus(process);
}

/// In a forked child: its only thread has its own CPUs, and another thread of the parent may have
/// been taking its own back just then.
pub fn forget_narrowed() {
    NARROWED.iter().for_each(|entry| entry.number.store(0, Relaxed));
}

/// Narrows a sleeping thread of `process` to `cpu`, if it may run there and elsewhere.
pub(crate) fn narrow(process: Pid, thread: Pid, cpu: usize) -> Option<&'static Entry> {
    let number = thread.as_raw_pid();
    if !is_thread_of(process, thread) {
        return None;
    }
    let before = sched_getaffinity(Some(thread)).ok()?;
    if before.count() == 1 || !before.is_set(cpu) {
        return None;
    }
    let free = |entry: &&Entry| entry.number.compare_exchange(0, -number, Acquire, Relaxed).is_ok();
    let entry = NARROWED.iter().find(free)?;
    entry.note(cpu, &before);
    // With `keep_own_cpus` and `narrow_no_more`.
    fence(SeqCst);
    let may = !NO_MORE.load(Relaxed) && !is_kept(number);
    let narrowed = may && sched_setaffinity(Some(thread), &only(cpu)).is_ok();
    entry.number.store(if narrowed { number } else { 0 }, Release);
    narrowed.then_some(entry)
}

impl Entry {
    const fn free() -> Self {
        let before = [const { AtomicU64::new(0) }; CPU_WORDS];
        Self { number: AtomicI32::new(0), cpu: AtomicUsize::new(0), before }
    }

    /// True if it is still `thread`'s, which is narrowed then.
    pub(crate) fn is_of(&self, thread: Pid) -> bool {
        self.number.load(Relaxed) == thread.as_raw_pid()
    }

    /// As below, if the thread is one of `process` still.
    pub(crate) fn restore_for(&self, process: Pid, thread: Pid) {
        if is_thread_of(process, thread) {
            self.restore(thread.as_raw_pid());
        } else {
            let number = thread.as_raw_pid();
            let _ = self.number.compare_exchange(number, 0, Relaxed, Relaxed);
        }
    }

    /// Restores the affinity of the thread of this number; false if another does, or has.
    fn restore(&self, number: i32) -> bool {
        let Some(thread) = Pid::from_raw(number.max(0)) else { return false };
        if self.number.compare_exchange(number, -number, Acquire, Relaxed).is_err() {
            return false;
        }
        // The thread may have ended meanwhile; and somebody may have set another affinity.
        let narrowed = only(self.cpu.load(Relaxed));
        if sched_getaffinity(Some(thread)).is_ok_and(|now| now == narrowed) {
            let _ = sched_setaffinity(Some(thread), &self.noted());
        }
        self.number.store(0, Release);
        true
    }

    fn note(&self, cpu: usize, before: &CpuSet) {
        self.cpu.store(cpu, Relaxed);
        for (n, word) in self.before.iter().enumerate() {
            let bits = (0..64).filter(|bit| before.is_set(64 * n + bit));
            word.store(bits.fold(0, |word, bit| word | 1 << bit), Relaxed);
        }
    }

    fn noted(&self) -> CpuSet {
        let words = self.before.each_ref().map(|word| word.load(Relaxed));
        let mut cpus = CpuSet::new();
        let noted = (0..CpuSet::MAX_CPU).filter(|cpu| words[cpu / 64] >> (cpu % 64) & 1 != 0);
        noted.for_each(|cpu| cpus.set(cpu));
        cpus
    }
}

fn is_kept(number: i32) -> bool {
    let word = KEPT[number as usize % ENTRIES].load(Relaxed);
    (word >> 32) as u32 == number as u32 && (word as u32).wrapping_sub(now_ms()) <= KEPT_MS
}

fn now_ms() -> u32 {
    (clock::now_ns() / 1_000_000) as u32
}

/// The set of one CPU.
pub(crate) fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found() {
        let entry = Entry::free();
        let mut cpus = CpuSet::new();
        [0, 1, 63, 64, 700, CpuSet::MAX_CPU - 1].iter().for_each(|&cpu| cpus.set(cpu));
        entry.note(0, &cpus);
        assert_eq!(entry.noted(), cpus);
    }

    /// Runs `work` beside a thread that sleeps, with its number, if there are CPUs to narrow to.
    pub(crate) fn with_sleeper(work: impl FnOnce(Pid, &CpuSet)) {
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

    fn one_of(cpus: &CpuSet) -> usize {
        (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap()
    }

    #[test]
    fn who_asks_has_its_cpus_back_and_who_keeps_them_is_left_alone() {
        with_sleeper(|thread, all| {
            let (process, cpu) = (rustix::process::getpid(), one_of(all));
            let entry = narrow(process, thread, cpu).unwrap();
            assert_eq!(sched_getaffinity(Some(thread)).unwrap(), only(cpu));
            assert!(entry.is_of(thread));
            restore_own_cpus(thread.as_raw_pid());
            assert!(!entry.is_of(thread));
            assert_eq!(sched_getaffinity(Some(thread)).unwrap(), *all);
            assert!(narrow(process, thread, cpu).is_some());
            keep_own_cpus(thread.as_raw_pid());
            assert_eq!(sched_getaffinity(Some(thread)).unwrap(), *all);
            assert!(narrow(process, thread, cpu).is_none());
        });
    }

    #[test]
    fn an_affinity_set_by_others_stands() {
        with_sleeper(|thread, all| {
            let entry = narrow(rustix::process::getpid(), thread, one_of(all)).unwrap();
            let mut others = *all;
            others.unset(one_of(all));
            sched_setaffinity(Some(thread), &others).unwrap();
            entry.restore_for(rustix::process::getpid(), thread);
            assert_eq!(sched_getaffinity(Some(thread)).unwrap(), others);
        });
    }

    #[test]
    fn other_processes_threads_are_left_alone() {
        let init = Pid::from_raw(1).unwrap();
        assert!(narrow(rustix::process::getpid(), init, 0).is_none());
    }
}
