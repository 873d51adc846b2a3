//! The threads that touch.
//!
//! Owns: their phases. All fill their parts and wait for each other; then they warm up for a
//! quarter of the time and are timed for all of it.
//! Invariants: a touch counts if it began and ended in the timed phase. A thread's knowledge of its
//! pages' versions is changed by no other thread.

use super::content::WORDS;
use super::latency::Latency;
use super::memory::Memory;
use super::pattern::Walk;
use super::process;
use super::workloads::{Unit, Workload};
use crate::cpus::cpu_time;
use crate::error::BenchError;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A thread and its part of the pages.
pub(super) struct Toucher<'a> {
    pub(super) memory: Memory<'a>,
    pub(super) workload: Workload,
    /// The first page of its part.
    pub(super) first: usize,
    /// For each page of its part: writes so far.
    pub(super) versions: Vec<u32>,
    pub(super) seed: u64,
}

/// Touches in the timed phase.
#[derive(Default)]
pub(super) struct Track {
    pub(super) reads: Latency,
    pub(super) writes: Latency,
    /// Touches in each [`PERIOD`].
    pub(super) rate: Vec<u64>,
}

/// All results of a run.
pub(super) struct Found {
    pub(super) track: Track,
    /// CPU time of the process in the timed phase.
    pub(super) cpu: Duration,
    pub(super) resident: Vec<(f64, u64)>,
}

/// Interval of rates and of readings of the resident size.
const PERIOD: Duration = Duration::from_millis(100);

const NO_PANIC: &str = "a panic of a touching thread is a bug, and has been reported by it";

/// Lets all threads touch; they are timed for `time`.
///
/// # Errors
/// [`BenchError::WrongData`].
pub(super) fn run(touchers: Vec<Toucher<'_>>, time: Duration) -> Result<Found, BenchError> {
    let (filled, done) = (Barrier::new(touchers.len() + 1), AtomicBool::new(false));
    std::thread::scope(|s| {
        let resident = s.spawn(|| resident_until(&done));
        let filled = &filled;
        let threads =
            touchers.into_iter().map(|toucher| s.spawn(move || toucher.run(filled, time)));
        let threads: Vec<_> = threads.collect();
        filled.wait();
        std::thread::sleep(warm_up(time));
        let before = cpu_time();
        std::thread::sleep(time);
        let cpu = cpu_time() - before;
        let tracks: Vec<_> = threads.into_iter().map(|it| it.join().expect(NO_PANIC)).collect();
        done.store(true, Relaxed);
        let mut track = Track::default();
        for one in tracks {
            track.add_all(&one?);
        }
        Ok(Found { track, cpu, resident: resident.join().expect(NO_PANIC) })
    })
}

fn warm_up(time: Duration) -> Duration {
    time / 4
}

/// Returns seconds from now and resident bytes.
fn resident_until(done: &AtomicBool) -> Vec<(f64, u64)> {
    let (start, mut found) = (Instant::now(), Vec::new());
    while !done.load(Relaxed) {
        found.push((start.elapsed().as_secs_f64(), process::resident_bytes()));
        std::thread::sleep(PERIOD);
    }
    found
}

/// A touch of one word, with everything done to its page.
struct Touched {
    reads: bool,
    from: Instant,
    to: Instant,
    result: Result<(), String>,
}

impl Toucher<'_> {
    fn run(mut self, filled: &Barrier, time: Duration) -> Result<Track, BenchError> {
        let filled_all = self.fill();
        let mut walk = Walk::new(self.workload.pattern, self.versions.len(), self.seed);
        filled.wait();
        filled_all?;
        let start = Instant::now() + warm_up(time);
        let mut track = Track::default();
        loop {
            let Touched { reads, from, to, result } = self.touch(&mut walk)?;
            result.map_err(BenchError::WrongData)?;
            if to >= start + time {
                return Ok(track);
            }
            if from >= start {
                track.add(reads, to - from, to - start);
            }
        }
    }

    fn fill(&self) -> Result<(), BenchError> {
        let mut pages = self.first..self.first + self.versions.len();
        let fill = |page| {
            self.memory.with(page, true, |words| self.workload.stamp.fill(words, page as u64))
        };
        pages.try_for_each(fill)
    }

    fn touch(&mut self, walk: &mut Walk) -> Result<Touched, BenchError> {
        let Workload { unit, reads_percent, stamp, .. } = self.workload;
        let at = walk.next();
        let reads = unit != Unit::Word || walk.any(100) < reads_percent.into();
        let writes = !reads || unit == Unit::ReadModify;
        let word = stamp.offset.unwrap_or_else(|| 1 + walk.any(WORDS - 1));
        let (page, version) = (self.first + at, self.versions[at]);
        self.versions[at] += u32::from(writes);
        let (number, from) = (page as u64, Instant::now());
        self.memory.with(page, writes, |words| {
            if !reads {
                stamp.write(words, number, version);
                return Touched { reads, from, to: Instant::now(), result: Ok(()) };
            }
            black_box(words[word].load(Relaxed));
            let to = Instant::now();
            let result = match unit {
                Unit::Word => stamp.check(words, number, version, word),
                Unit::Page | Unit::ReadModify => stamp.check_all(words, number, version),
            };
            if writes {
                stamp.write(words, number, version);
            }
            Touched { reads, from, to, result }
        })
    }
}

impl Track {
    fn add(&mut self, reads: bool, took: Duration, at: Duration) {
        let latency = if reads { &mut self.reads } else { &mut self.writes };
        latency.add(took.as_nanos() as u64);
        let period = (at.as_nanos() / PERIOD.as_nanos()) as usize;
        if self.rate.len() <= period {
            self.rate.resize(period + 1, 0);
        }
        self.rate[period] += 1;
    }

    fn add_all(&mut self, other: &Self) {
        self.reads.add_all(&other.reads.buckets());
        self.writes.add_all(&other.writes.buckets());
        let periods = self.rate.len().max(other.rate.len());
        self.rate.resize(periods, 0);
        self.rate.iter_mut().zip(&other.rate).for_each(|(all, one)| *all += one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::touch::Habits;
    use crate::touch::tests::HABITS;
    use overspill_base::PAGE_SIZE;

    const PAGES: usize = 64;

    /// Touches pages of which one lost a bit after they were filled; returns what was found.
    fn touch_damaged(workload: &str) -> Option<String> {
        let mut bytes = vec![0u8; (PAGES + 1) * PAGE_SIZE];
        let memory = Memory::new(&mut bytes);
        // A write would repair the word if it came first.
        let habits = Habits { ratio: 100, ..HABITS };
        let workload = Workload::named(workload, &habits, PAGES).unwrap();
        let mut toucher = Toucher { memory, workload, first: 0, versions: vec![0; PAGES], seed: 1 };
        toucher.fill().unwrap();
        memory.with(PAGES / 2, true, |words| words[WORDS / 2].fetch_xor(1, Relaxed)).unwrap();
        let mut walk = Walk::new(workload.pattern, PAGES, 1);
        // Each of the 64 times 511 words is touched many more times than needed.
        (0..2_000_000).find_map(|_| toucher.touch(&mut walk).unwrap().result.err())
    }

    #[test]
    fn a_lost_bit_is_found() {
        for workload in ["uniform", "zipf", "scan", "read", "modify"] {
            let found = touch_damaged(workload).expect(workload);
            assert!(found.starts_with("word 256 of page 32 "), "{workload}: {found}");
        }
    }
}
