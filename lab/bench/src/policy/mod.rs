//! `policy`: which pages are in memory when they are touched, under each policy.
//!
//! Owns: what is counted, and the replay of one trace over each policy.
//! What is counted, after the warm-up:
//!
//! * a *refault* is a page read back from swap, whether on demand or ahead;
//! * the *hit rate* is the share of touches that cost no refault: 100 % - refaults / touches. So a
//!   page read ahead is not a hit of the policy, and one read ahead in vain costs one;
//! * a *wait* is a touch that had to wait for a read, and a *soft fault* one that found its page
//!   being swapped out or read ahead, and waited for no read. Without readahead, waits and refaults
//!   are the same;
//! * the *hot set's survival* is the share of its pages that are in memory right after a scan.
//!
//! Invariants: every figure is a count, and the same each time, except for the kernel's, which
//! depend on the timing of its reclaim. The kernel takes part if permitted ([`kernel`]).
//! Not here: time (`ablate`).

mod engine;
mod exact;
mod kernel;
mod paged;
mod trace;

pub use paged::{ReplayOptions, replay_in_group};

use crate::compare::Place;
use crate::error::{BenchError, within};
use engine::EngineMemory;
use exact::{Clock, Lru, Min, Policy};
use overspill_base::PageNo;
use overspill_report::{Environment, touches};
use serde::{Deserialize, Serialize};
use std::ops::Sub;
use std::path::{Path, PathBuf};
use trace::{Trace, WORKLOADS, Workload};

/// What to replay.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    /// Names of workloads; if empty, all.
    pub workloads: Vec<String>,
    /// Files with recorded traces, which are replayed instead if there are any.
    pub traces: Vec<PathBuf>,
    /// Pages that may be in memory.
    pub memory_pages: usize,
    /// Touches of each trace after its pages were filled; recorded ones have their own length.
    pub touches: usize,
    /// What is run to be paged by the kernel, and where its swap file is.
    pub place: Place,
}

/// Every workload under every policy.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    /// The machine; only the kernel's figures depend on it.
    pub environment: Environment,
    /// How the kernel took part, or why not.
    pub kernel: String,
    /// Pages that may be in memory.
    pub memory_pages: usize,
    /// Touches of each trace after its pages were filled.
    pub touches: usize,
    /// One per trace.
    pub workloads: Vec<WorkloadReport>,
}

/// One trace.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    /// Its name.
    pub workload: String,
    /// What it is.
    pub about: String,
    /// Pages it touches.
    pub set_pages: usize,
    /// Its results under each policy.
    pub policies: Vec<PolicyRow>,
}

/// One trace under one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyRow {
    /// The policy.
    pub policy: String,
    /// Touches that counted.
    pub touches: u64,
    /// Pages read back.
    pub refaults: u64,
    /// Touches that waited for a read.
    pub waits: u64,
    /// Touches that found their page being swapped out, or read ahead.
    pub soft_faults: u64,
    /// Share of touches that cost no refault; negative if more is read than touched.
    pub hit_rate_percent: f64,
    /// Share of the hot set in memory right after a scan, if there are scans.
    pub survival_percent: Option<f64>,
}

/// Smallest memory, of which reclaim's batches are a part.
const MEMORY_PAGES_MIN: usize = 1024;
const MEMORY_PAGES_MAX: usize = 1 << 20;
const TOUCHES_MAX: usize = 1 << 30;

/// Replays the traces; `progress` gets a line about each at its start.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::UnknownWorkload`], [`BenchError::Interrupted`], and
/// the errors of an engine.
pub fn policies(
    options: &PolicyOptions,
    progress: &dyn Fn(&str),
) -> Result<PolicyReport, BenchError> {
    let PolicyOptions { memory_pages, touches, .. } = *options;
    within_limits(memory_pages, touches)?;
    let (kernel, workloads) = match options.traces.is_empty() {
        true => made_up(options, progress)?,
        false => (NOT_RECORDED.into(), recorded(options, progress)?),
    };
    Ok(PolicyReport { environment: Environment::read(), kernel, memory_pages, touches, workloads })
}

/// Why the kernel has no column beside recorded traces.
const NOT_RECORDED: &str = "skipped: kernel: it replays no recorded traces";

/// Replays the traces that are made up.
fn made_up(
    options: &PolicyOptions,
    progress: &dyn Fn(&str),
) -> Result<(String, Vec<WorkloadReport>), BenchError> {
    let chosen = chosen(&options.workloads)?;
    let mut workloads = Vec::new();
    for workload in &chosen {
        progress(&format!("{}: {}", workload.name, workload.about));
        let trace = workload.trace(options.memory_pages, options.touches);
        workloads.push(all_policies(workload.name, workload.about, &trace, options.memory_pages)?);
    }
    let (kernel, rows) = kernel::column(options, &chosen, progress)?;
    for (workload, row) in workloads.iter_mut().zip(rows) {
        workload.policies.push(row);
    }
    Ok((kernel, workloads))
}

/// Reads a trace that was recorded. Everything counts, from the first touch on: there is no part
/// that only fills memory.
fn read(path: &Path) -> Result<Trace, BenchError> {
    let bad = |reason: String| BenchError::Trace { path: path.to_owned(), reason };
    let bytes = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    let touches =
        touches::parse(&bytes).ok_or_else(|| bad("it is not what --touches writes".into()))?;
    let set_pages = touches.iter().max().map_or(0, |last| last.index() + 1);
    Ok(Trace { set_pages, touches, counted_from: 0, hot: 0..0, scan_ends: Vec::new() })
}

/// Replays traces that were recorded.
fn recorded(
    options: &PolicyOptions,
    progress: &dyn Fn(&str),
) -> Result<Vec<WorkloadReport>, BenchError> {
    let replay = |path: &PathBuf| {
        let trace = read(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let about = format!("recorded, {} touches", trace.touches.len());
        progress(&format!("{name}: {about} of {} pages", trace.set_pages));
        all_policies(&name, &about, &trace, options.memory_pages)
    };
    options.traces.iter().map(replay).collect()
}

fn within_limits(memory_pages: usize, touches: usize) -> Result<(), BenchError> {
    within("--memory-pages", memory_pages, MEMORY_PAGES_MIN..=MEMORY_PAGES_MAX)?;
    within("--touches", touches, 1..=TOUCHES_MAX)
}

/// Returns the names of all workloads, in the order they are replayed.
pub fn trace_names() -> Vec<&'static str> {
    WORKLOADS.iter().map(|workload| workload.name).collect()
}

fn chosen(names: &[String]) -> Result<Vec<Workload>, BenchError> {
    let known = |name: &&String| WORKLOADS.iter().any(|workload| workload.name == **name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let all = trace_names().join(", ");
        return Err(BenchError::UnknownWorkload { name: name.clone(), all });
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    Ok(WORKLOADS.into_iter().filter(|workload| wanted(workload.name)).collect())
}

fn all_policies(
    name: &str,
    about: &str,
    trace: &Trace,
    frames: usize,
) -> Result<WorkloadReport, BenchError> {
    let mut engine = EngineMemory::new(frames, trace.set_pages)?;
    let policies = vec![
        replay("overspill", trace, &mut engine)?,
        replay("LRU", trace, &mut Exact::new(trace, Lru::new(frames)))?,
        replay("CLOCK", trace, &mut Exact::new(trace, Clock::new(frames)))?,
        replay("MIN", trace, &mut Exact::new(trace, Min::new(frames, &trace.touches)))?,
    ];
    let (workload, about) = (name.to_owned(), about.to_owned());
    Ok(WorkloadReport { workload, about, set_pages: trace.set_pages, policies })
}

/// Counts so far, or between two moments.
#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    refaults: u64,
    waits: u64,
    soft_faults: u64,
}

impl Sub for Progress {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            refaults: self.refaults - earlier.refaults,
            waits: self.waits - earlier.waits,
            soft_faults: self.soft_faults - earlier.soft_faults,
        }
    }
}

/// Memory under a policy.
trait Memory {
    fn touch(&mut self, page: PageNo) -> Result<(), BenchError>;

    /// Returns true if a touch of `page` would cost nothing.
    fn holds(&self, page: PageNo) -> bool;

    fn progress(&self) -> Result<Progress, BenchError>;
}

/// Memory under an exact policy.
struct Exact<P> {
    policy: P,
    /// Pages that have been touched: the first touch of a page reads nothing.
    known: Vec<bool>,
    misses: u64,
}

impl<P: Policy> Exact<P> {
    fn new(trace: &Trace, policy: P) -> Self {
        Self { policy, known: vec![false; trace.set_pages], misses: 0 }
    }
}

impl<P: Policy> Memory for Exact<P> {
    fn touch(&mut self, page: PageNo) -> Result<(), BenchError> {
        let known = std::mem::replace(&mut self.known[page.index()], true);
        self.misses += u64::from(!self.policy.touch(page) && known);
        Ok(())
    }

    fn holds(&self, page: PageNo) -> bool {
        self.policy.holds(page)
    }

    fn progress(&self) -> Result<Progress, BenchError> {
        Ok(Progress { refaults: self.misses, waits: self.misses, soft_faults: 0 })
    }
}

fn replay(policy: &str, trace: &Trace, memory: &mut impl Memory) -> Result<PolicyRow, BenchError> {
    let mut start = Progress::default();
    let (mut scan_ends, mut survivals) = (trace.scan_ends.iter().peekable(), Vec::new());
    for (before, &page) in trace.touches.iter().enumerate() {
        if before == trace.counted_from {
            start = memory.progress()?;
        }
        memory.touch(page)?;
        if scan_ends.next_if_eq(&&(before + 1)).is_some() && before >= trace.counted_from {
            let alive = trace.hot.clone().filter(|&page| memory.holds(PageNo(page))).count();
            survivals.push(100.0 * alive as f64 / trace.hot.len() as f64);
        }
    }
    let counted = memory.progress()? - start;
    let touches = (trace.touches.len() - trace.counted_from) as u64;
    let mean = survivals.iter().sum::<f64>() / survivals.len() as f64;
    Ok(PolicyRow {
        policy: policy.to_owned(),
        touches,
        refaults: counted.refaults,
        waits: counted.waits,
        soft_faults: counted.soft_faults,
        hit_rate_percent: 100.0 * (1.0 - counted.refaults as f64 / touches as f64),
        survival_percent: (!survivals.is_empty()).then_some(mean),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough memory that a batch of reclaim is a small part of it.
    const MEMORY_PAGES: usize = 4096;

    fn rows(workload: &str) -> [PolicyRow; 4] {
        let workload = chosen(&[workload.to_owned()]).unwrap()[0];
        let trace = workload.trace(MEMORY_PAGES, 100_000);
        let report = all_policies(workload.name, workload.about, &trace, MEMORY_PAGES).unwrap();
        report.policies.try_into().unwrap()
    }

    #[test]
    fn a_scan_does_not_flush_the_hot_set() {
        let [ours, lru, ..] = rows("hot,scan");
        assert!(ours.survival_percent > Some(90.0), "{ours:?}");
        assert_eq!(lru.survival_percent, Some(0.0), "the scan is longer than memory");
        let [ours, lru, ..] = rows("hot+scan");
        assert!(ours.survival_percent > Some(95.0), "{ours:?}");
        assert!(ours.hit_rate_percent > lru.hit_rate_percent + 10.0, "{ours:?}");
    }

    #[test]
    fn a_loop_longer_than_memory_keeps_a_part_of_itself() {
        let [ours, lru, _, min] = rows("loop-1.1");
        assert_eq!(lru.hit_rate_percent, 0.0);
        assert!(ours.hit_rate_percent > min.hit_rate_percent - 10.0, "{ours:?}");
    }

    #[test]
    fn without_accessed_bits_zipf_is_as_good_as_lru() {
        let [ours, lru, _, min] = rows("zipf");
        assert!(ours.hit_rate_percent > lru.hit_rate_percent - 1.0, "{ours:?}");
        assert!(ours.hit_rate_percent < min.hit_rate_percent, "{ours:?}");
    }

    #[test]
    fn a_replay_is_the_same_each_time() {
        let [first, ..] = rows("array");
        let [again, ..] = rows("array");
        assert_eq!((first.refaults, first.waits), (again.refaults, again.waits));
    }
}
