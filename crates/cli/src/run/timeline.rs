//! What a run did when, for `--report`.
//!
//! Owns: how often the run is looked at.
//! Invariant: pages that come are read in time, however seldom samples are taken, before the
//! history overwrites itself.

use super::now::Now;
use overspill_report::{Arrival, ArrivalMap, RunSample, Samples};
use std::time::{Duration, Instant};

/// Between two samples, at first.
pub(super) const PERIOD: Duration = Duration::from_millis(50);

/// What a run did when.
pub(super) type Watched = (Vec<RunSample>, ArrivalMap);

/// The same while it goes on.
#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    samples: Samples,
    next: Instant,
    pub(super) arrivals: ArrivalMap,
}

impl Timeline {
    /// Begins now.
    pub(super) fn new() -> Self {
        let begun = Instant::now();
        let (samples, arrivals) = (Samples::new(PERIOD), ArrivalMap::default());
        Self { begun, samples, next: begun, arrivals }
    }

    /// When a sample was due by now, if one is.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        (now >= self.next).then_some(self.next)
    }

    /// Takes a sample.
    pub(super) fn push(&mut self, now: &Now) {
        self.samples.push(sample(now, self.begun));
        self.next += self.samples.period();
    }

    /// What the run did.
    pub(super) fn end(self) -> Watched {
        (self.samples.into_all(), self.arrivals)
    }
}

/// Notes a page of a process that came.
pub(super) fn note(
    map: &mut ArrivalMap,
    process: i32,
    (after, address, was_out): (Duration, u64, bool),
) {
    let arrival = if was_out { Arrival::Read } else { Arrival::New };
    map.note(after.as_secs_f64(), process as u32, address, arrival);
    map.call(process as u32, &|| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        format!("{} {process}", name.unwrap_or_default().trim())
    });
}

fn sample(now: &Now, begun: Instant) -> RunSample {
    let Now { summary, memory, swap, processes, stalls } = now;
    RunSample {
        seconds: begun.elapsed().as_secs_f64(),
        memory_limit_bytes: summary.memory_bytes,
        memory_used_bytes: memory.0,
        swap_used_bytes: swap.0,
        pages_in: summary.pages_in,
        pages_out: summary.pages_out,
        faults: summary.faults,
        fault_ns: summary.fault_latency.sum_ns,
        stall_some_ns: stalls.some.as_nanos() as u64,
        stall_full_ns: stalls.full.as_nanos() as u64,
        processes: *processes,
    }
}
