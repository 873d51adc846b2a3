//! The measured program: touches memory and checks what it reads.
//!
//! Owns: the threads that touch, their phases, and what is measured meanwhile.
//! Invariants: the code is the same whatever pages the memory, and in ordinary memory it cannot
//! tell. Each thread has its own part of the pages, so it knows the version of each page; pmbench's
//! threads share all pages and check none. The latency is of one word's touch; checking a whole
//! page is part of the rate, not of the latency.
//! Not here: running it in a memory limit, and comparing ([`crate::compare`]).

mod content;
mod latency;
mod memory;
mod pattern;
mod process;
mod toucher;
mod workloads;

pub use content::Content;
pub(crate) use latency::{Buckets, FAULT_NS, Latency, Percentiles, pmbench_text};
pub(crate) use memory::Memory;
pub(crate) use process::enter_group;
pub use workloads::workload_names;

use crate::cpus::cpu_time;
use crate::error::{BenchError, within};
use overspill::{Bytes, Faults, Overspill, Pool, SwapSpec};
use overspill_base::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use toucher::Toucher;
use workloads::Workload;

/// How memory is touched, in any workload.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Memory that is touched.
    pub set: Bytes,
    /// Seconds timed, after all was written once and a warm-up of a quarter of that time.
    pub seconds: f64,
    /// Touches that read, in per cent; the rest write.
    pub ratio: u8,
    /// Parameter of the pattern.
    pub shape: Option<f64>,
    /// The word that is touched in each page; if none, one after another.
    pub offset: Option<usize>,
    /// What pages hold.
    pub content: Content,
}

/// How the library brings in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// To a region, by a thread that receives a message.
    Message,
    /// To a region, by the thread that touched it, in a signal handler.
    Signal,
    /// To a pool, on request.
    Explicit,
}

impl FaultKind {
    /// All, with their names on command lines.
    pub const ALL: [(&'static str, Self); 3] =
        [("message", Self::Message), ("signal", Self::Signal), ("explicit", Self::Explicit)];
}

/// One run of the measured program.
#[derive(Clone, Debug)]
pub struct TouchOptions {
    /// One of [`workload_names`].
    pub workload: String,
    /// Threads.
    pub jobs: usize,
    /// How they touch.
    pub habits: Habits,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Sleep after all touches, during which the process's CPU time is measured.
    pub idle_seconds: f64,
    /// For a region: its memory, and where the rest goes; otherwise the memory is ordinary.
    pub region: Option<(Bytes, SwapSpec)>,
    /// How faults in that region are served.
    pub faults: FaultKind,
    /// A control group to enter first.
    pub cgroup: Option<PathBuf>,
}

/// The measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TouchReport {
    /// Pages touched in the timed phase.
    pub touches: u64,
    /// The length of that phase.
    pub seconds: f64,
    /// CPU time of the process in that phase, its pager's threads included.
    pub cpu_seconds: f64,
    /// CPU time of the process per second of the sleep, if there was one.
    pub idle_cpu_seconds: f64,
    /// Peak resident memory.
    pub peak_resident_bytes: u64,
    /// Pages written and read by the pager in this process, if there is one.
    pub pages_swapped: Option<u64>,
    /// Latencies of reads.
    pub(crate) reads: Buckets,
    /// Latencies of writes.
    pub(crate) writes: Buckets,
    /// Touches in each tenth of a second of the timed phase.
    pub(crate) rate: Vec<u64>,
    /// Seconds from the start, and resident bytes.
    pub(crate) resident: Vec<(f64, u64)>,
}

impl TouchReport {
    /// Formats the latency histograms as pmbench does.
    pub fn histogram_text(&self) -> String {
        let part = |name: &str, buckets: &Buckets| match buckets.is_empty() {
            true => String::new(),
            false => format!("{name}:\n{}", pmbench_text(buckets)),
        };
        let (reads, writes) = (part("Read", &self.reads), part("Write", &self.writes));
        format!("# Access latency histogram\n{reads}\n{writes}")
    }
}

/// Most memory: a little less than page numbers can address.
pub(crate) const SET_MAX: Bytes = Bytes(1 << 42);
/// Most threads.
const JOBS_MAX: usize = 256;
/// Least pages of one thread, so that each pattern has some.
const PAGES_MIN: usize = 64;

/// Refuses what cannot be run, before anything is touched.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::Unknown`].
pub(crate) fn check(workload: &str, jobs: usize, habits: &Habits) -> Result<(), BenchError> {
    resolved(workload, jobs, habits).map(|_| ())
}

fn resolved(name: &str, jobs: usize, habits: &Habits) -> Result<Workload, BenchError> {
    within("--jobs", jobs, 1..=JOBS_MAX)?;
    within("--seconds", habits.seconds, 0.05..=3600.0)?;
    let least = Bytes::of_pages((PAGES_MIN * jobs) as u64);
    within("--set", habits.set, least..=SET_MAX)?;
    Workload::named(name, habits, habits.set.pages_floor() as usize / jobs)
}

/// Touches memory as `options` say.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::Unknown`], [`BenchError::WrongData`], and the errors
/// of the library.
pub fn touch(options: &TouchOptions) -> Result<TouchReport, BenchError> {
    let workload = resolved(&options.workload, options.jobs, &options.habits)?;
    within("--idle", options.idle_seconds, 0.0..=3600.0)?;
    if let Some(group) = &options.cgroup {
        process::enter_group(group)?;
    }
    let set = options.habits.set;
    let Some((memory, swap)) = options.region.clone() else {
        // Freshly mapped, so this touches nothing; one page more, to align the start.
        let mut heap = vec![0; set.0 as usize + PAGE_SIZE];
        return run(Memory::new(&mut heap), workload, options);
    };
    let (mut report, summary) = match options.faults {
        FaultKind::Explicit => {
            let pool = Pool::builder().memory(memory).swap(swap).build()?;
            (run(Memory::Pool(&pool), workload, options)?, pool.summary())
        }
        FaultKind::Message | FaultKind::Signal => {
            let overspill = Overspill::builder().memory(memory).swap(swap).build()?;
            let signal = options.faults == FaultKind::Signal;
            let faults = if signal { Faults::Signal } else { Faults::Message };
            let mut region = overspill.region_options().faults(faults).build(set)?;
            (run(Memory::new(&mut region), workload, options)?, overspill.summary())
        }
    };
    report.pages_swapped = Some(summary.pages_in + summary.pages_out);
    Ok(report)
}

fn run(
    memory: Memory<'_>,
    workload: Workload,
    options: &TouchOptions,
) -> Result<TouchReport, BenchError> {
    let pages = options.habits.set.pages_floor() as usize / options.jobs;
    let toucher = |job: usize| {
        let seed = options.seed << 8 ^ job as u64;
        Toucher { memory, workload, first: job * pages, versions: vec![0; pages], seed }
    };
    let touchers = (0..options.jobs).map(toucher).collect();
    let found = toucher::run(touchers, Duration::from_secs_f64(options.habits.seconds))?;
    Ok(TouchReport {
        touches: found.track.rate.iter().sum(),
        seconds: options.habits.seconds,
        cpu_seconds: found.cpu.as_secs_f64(),
        idle_cpu_seconds: idle(options.idle_seconds),
        peak_resident_bytes: process::peak_resident_bytes(),
        pages_swapped: None,
        reads: found.track.reads.buckets(),
        writes: found.track.writes.buckets(),
        rate: found.track.rate,
        resident: found.resident,
    })
}

/// Returns the CPU time of this process per second of a sleep.
fn idle(seconds: f64) -> f64 {
    if seconds == 0.0 {
        return 0.0;
    }
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    (cpu_time() - before).as_secs_f64() / seconds
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const HABITS: Habits = Habits {
        set: Bytes(2 << 20),
        seconds: 0.1,
        ratio: 80,
        shape: None,
        offset: None,
        content: Content::Compressible,
    };

    fn options(workload: &str) -> TouchOptions {
        TouchOptions {
            workload: workload.into(),
            jobs: 2,
            habits: HABITS,
            seed: 1,
            idle_seconds: 0.0,
            region: None,
            faults: FaultKind::Message,
            cgroup: None,
        }
    }

    #[test]
    fn every_workload_runs_and_is_counted() {
        for (name, _) in workload_names() {
            let report = touch(&options(name)).unwrap();
            let timed = |buckets: &Buckets| buckets.iter().map(|(_, n)| n).sum::<u64>();
            assert!(report.touches > 0, "{name}");
            assert_eq!(timed(&report.reads) + timed(&report.writes), report.touches, "{name}");
            assert!(!report.resident.is_empty() && report.cpu_seconds > 0.0, "{name}");
        }
    }

    #[test]
    fn the_ratio_is_that_of_reads() {
        let habits = |ratio| Habits { ratio, ..HABITS };
        let reads = touch(&TouchOptions { habits: habits(100), ..options("uniform") }).unwrap();
        assert!(reads.writes.is_empty() && reads.histogram_text().contains("Read:"));
        let writes = touch(&TouchOptions { habits: habits(0), ..options("uniform") }).unwrap();
        assert!(writes.reads.is_empty() && !writes.histogram_text().contains("Read:"));
    }

    #[test]
    fn too_much_and_too_little_is_refused() {
        let table = [
            (TouchOptions { jobs: 0, ..options("read") }, "bad --jobs 0: it must be 1 to 256"),
            (TouchOptions { jobs: 9, ..options("read") }, "bad --set 2 MiB: it must be 2.2 MiB to"),
            (TouchOptions { idle_seconds: -1.0, ..options("read") }, "bad --idle -1: it must be 0"),
        ];
        for (options, line) in table {
            let refusal = touch(&options).unwrap_err().to_string();
            assert!(refusal.starts_with(line), "{refusal}");
        }
    }

    #[test]
    fn a_report_survives_its_json() {
        let report = touch(&options("uniform")).unwrap();
        let json = serde_json::to_string(&report).unwrap();
        let read: TouchReport = serde_json::from_str(&json).unwrap();
        assert_eq!((read.touches, read.reads), (report.touches, report.reads));
    }
}
