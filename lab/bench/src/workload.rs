//! The published workload: threads that touch random pages of a working set larger than memory.
//!
//! Owns: the threads, their phases, and what is measured meanwhile.
//! Invariants: each accessing thread is its own virtual CPU and serves its own faults, as in the
//! kernel; one more thread reclaims in the background. Timing is done with locks uncounted;
//! acquisitions and holds are counted in a separate phase after it, because counting costs most
//! where most locks are taken. Every access verifies what it reads.
//! Not here: what the numbers mean ([`crate::sample`]).
//! Source: pmbench as the kernel's results were measured with it (80 % reads, uniform random
//! pages); memory is replayed, so a miss costs the engine's work and a copy, but no kernel fault.

use crate::cpus::become_cpu;
use crate::error::BenchError;
use crate::machine::{Machine, Touched};
use crate::sample::{Phases, Ping, Reading, Sample};
use crate::stamp;
use histogram::Histogram;
use overspill_base::sync::count_locks;
use overspill_base::{PageNo, clock};
use overspill_engine::Worker;
use serde::Serialize;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Which page is accessed next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Any, with equal probability.
    Random,
    /// The next one of the thread's own part, over and over.
    Sequential,
}

/// How the threads behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) threads: usize,
    pub(crate) pattern: Pattern,
    /// Length of the timed phase; the others take a part of it.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
}

/// Writes in 256 accesses: a fifth.
const WRITES: u8 = 51;
/// How often the thread that swapping interrupts has work.
const PING_PERIOD: Duration = Duration::from_millis(1);
/// Values are accurate to 1/64, up to a minute.
const LATENCY_GROUPING: u8 = 6;
const LATENCY_MAX: u8 = 36;

const WARM_UP: u8 = 0;
const TIMED: u8 = 1;
const COUNTED: u8 = 2;
const STOP: u8 = 3;

/// In its own pair of cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Progress(AtomicU64);

struct Run<'a> {
    machine: &'a Machine,
    workload: Workload,
    versions: Vec<AtomicU32>,
    progress: Vec<Progress>,
    phase: AtomicU8,
    populated: Barrier,
}

/// Runs `workload` on a fresh machine.
///
/// # Errors
/// [`BenchError::Engine`] if pages cannot be brought in, [`BenchError::WrongData`].
pub(crate) fn run(machine: &Machine, workload: Workload) -> Result<Sample, BenchError> {
    let run = Run {
        machine,
        workload,
        versions: (0..machine.space.len()).map(|_| AtomicU32::new(0)).collect(),
        progress: (0..workload.threads).map(|_| Progress::default()).collect(),
        phase: AtomicU8::new(WARM_UP),
        populated: Barrier::new(workload.threads + 1),
    };
    run.all_threads()
}

impl Run<'_> {
    fn all_threads(&self) -> Result<Sample, BenchError> {
        std::thread::scope(|s| {
            let threads = 0..self.workload.threads;
            let accessors: Vec<_> =
                threads.map(|cpu| s.spawn(move || self.accessor(cpu))).collect();
            let reclaimer = s.spawn(|| self.reclaimer());
            let pinger = s.spawn(|| self.pinger());
            let phases = self.phases();
            let mut latency = new_histogram();
            for accessor in accessors {
                let theirs = accessor.join().expect(NO_PANIC)?;
                latency.checked_add_assign(&theirs).expect("both have the same buckets");
            }
            reclaimer.join().expect(NO_PANIC)?;
            let ping = Ping::of(&pinger.join().expect(NO_PANIC));
            Ok(Sample::new(self.workload.threads, &phases, &latency, ping))
        })
    }

    /// Leads the threads through the phases, and reads the counters in between.
    fn phases(&self) -> Phases {
        let time = self.workload.time;
        self.populated.wait();
        std::thread::sleep(time / 4);
        let start = self.enter(TIMED);
        std::thread::sleep(time);
        let timed = self.enter(COUNTED);
        count_locks(true);
        let count = self.read();
        std::thread::sleep(time / 4);
        let counted = self.read();
        count_locks(false);
        self.phase.store(STOP, Relaxed);
        self.machine.engine.wake_background();
        Phases { timed: timed - start, counted: counted - count }
    }

    fn enter(&self, phase: u8) -> Reading {
        self.phase.store(phase, Relaxed);
        self.read()
    }

    fn read(&self) -> Reading {
        let accesses = self.progress.iter().map(|progress| progress.0.load(Relaxed)).sum();
        Reading::now(accesses, self.machine.engine.stats())
    }

    fn phase(&self) -> u8 {
        self.phase.load(Relaxed)
    }

    /// Runs one accessing thread. Returns how long pages were missing in the timed phase.
    fn accessor(&self, cpu: usize) -> Result<Histogram, BenchError> {
        become_cpu(cpu);
        let worker = self.machine.worker();
        let populated =
            worker.and_then(|mut worker| self.populate(cpu, &mut worker).map(|()| worker));
        self.populated.wait();
        let mut worker = populated?;
        let mut latency = new_histogram();
        let mut accesses =
            Accesses::new(&self.workload, cpu, self.part(cpu), self.versions.len() as u32);
        while self.phase() != STOP {
            let missing_ns = self.access(&mut worker, accesses.next())?;
            if let Some(ns) = missing_ns.filter(|_| self.phase() == TIMED) {
                latency.increment(ns.min((1 << LATENCY_MAX) - 1)).expect("within its range");
            }
            let done = &self.progress[cpu].0;
            done.store(done.load(Relaxed) + 1, Relaxed);
        }
        worker.finish(&self.machine.engine);
        Ok(latency)
    }

    /// Returns the pages that thread `cpu` populates, and accesses when it goes in order.
    fn part(&self, cpu: usize) -> Range<u32> {
        let (pages, threads) = (self.versions.len(), self.workload.threads);
        (pages * cpu / threads) as u32..(pages * (cpu + 1) / threads) as u32
    }

    fn populate(&self, cpu: usize, worker: &mut Worker) -> Result<(), BenchError> {
        for page in self.part(cpu).map(PageNo) {
            self.machine.touch(worker, page, |content| {
                let version = stamp::begin(content, page);
                self.versions[page.index()].store(version, Relaxed);
            })?;
        }
        Ok(())
    }

    /// Makes one access; returns how long the page was missing, if it was.
    fn access(&self, worker: &mut Worker, access: Access) -> Result<Option<u64>, BenchError> {
        let Access { page, word, writes } = access;
        // Relaxed: written and read with the page's lock held.
        let known = &self.versions[page.index()];
        let Touched { result, missing_ns } = self.machine.touch(worker, page, |content| {
            let version = known.load(Relaxed);
            if writes {
                known.store(stamp::write(content, page, version, word), Relaxed);
                return Ok(());
            }
            stamp::read(content, page, version, word)
        })?;
        result.map(|()| missing_ns).map_err(BenchError::WrongData)
    }

    fn reclaimer(&self) -> Result<(), BenchError> {
        let mut worker = self.machine.worker()?;
        while self.phase() != STOP {
            self.machine.engine.balance(&mut worker, || self.phase() == STOP);
        }
        Ok(())
    }

    /// Takes the LRU lock every millisecond; returns how long each took, in nanoseconds.
    fn pinger(&self) -> Vec<u64> {
        let mut pings = Vec::new();
        while self.phase() != STOP {
            std::thread::sleep(PING_PERIOD);
            let start_ns = clock::now_ns();
            self.machine.engine.list_lens();
            let took_ns = clock::now_ns() - start_ns;
            if self.phase() == TIMED {
                pings.push(took_ns);
            }
        }
        pings
    }
}

const NO_PANIC: &str = "a panic of a measuring thread is a bug, and has been reported by it";

fn new_histogram() -> Histogram {
    Histogram::new(LATENCY_GROUPING, LATENCY_MAX).expect("constants are in range")
}

#[derive(Clone, Copy)]
struct Access {
    page: PageNo,
    word: usize,
    writes: bool,
}

/// What one thread accesses.
struct Accesses {
    pattern: Pattern,
    random: fastrand::Rng,
    part: Range<u32>,
    /// All pages, of every thread's part.
    pages: u32,
    at: u32,
}

impl Accesses {
    fn new(workload: &Workload, cpu: usize, part: Range<u32>, pages: u32) -> Self {
        let random = fastrand::Rng::with_seed(workload.seed ^ cpu as u64);
        Self { pattern: workload.pattern, random, at: part.start, part, pages }
    }

    fn next(&mut self) -> Access {
        Access {
            page: self.next_page(),
            word: self.random.usize(1..stamp::WORDS),
            writes: self.random.u8(..) < WRITES,
        }
    }

    fn next_page(&mut self) -> PageNo {
        if self.pattern == Pattern::Random {
            return PageNo(self.random.u32(..self.pages));
        }
        let page = PageNo(self.at);
        self.at = if self.at + 1 == self.part.end { self.part.start } else { self.at + 1 };
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Shape;
    use crate::slots::DeviceState;
    use overspill_area::Preset;
    use overspill_base::stats::Event;
    use overspill_engine::Tuning;

    /// A quarter of the pages fit; there are enough slots for the caches of all CPUs.
    const SHAPE: Shape = Shape { frames: 256, working_set_pages: 1024, device_slots: 4096 };

    /// Replays accesses on a new machine; returns how many pages were swapped out.
    fn replay(preset: Preset, pattern: Pattern) -> u64 {
        let machine = Machine::new(SHAPE, Tuning::of(preset), 4, DeviceState::Fresh).unwrap();
        let time = Duration::from_millis(40);
        run(&machine, Workload { threads: 4, pattern, time, seed: 7 }).unwrap();
        machine.engine.check().unwrap();
        machine.engine.stats().get(Event::pswpout)
    }

    #[test]
    fn every_preset_brings_every_page_back_as_it_left() {
        for (preset, name) in Preset::ALL {
            for pattern in [Pattern::Random, Pattern::Sequential] {
                assert!(replay(preset, pattern) > 0, "{name}: nothing was swapped");
            }
        }
    }
}
