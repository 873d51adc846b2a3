//! What a run did when, for `--report`.
//!
//! Owns: how often the run is looked at.
//! Invariants: a run of any length has at most [`SAMPLES_MAX`] samples: when there are as many,
//! every second one goes, and the time between two doubles. Pages that come are read in time all
//! the same, before the history overwrites itself.

use super::beside::beside;
use overspill::session::{Arrivals, Arrived, Overview, StallTime, Supervisor};
use overspill_report::{Arrival, ArrivalMap, RunSample};
use std::time::{Duration, Instant};

const SAMPLES_MAX: usize = 1200;
/// Between two samples, at first.
const PERIOD: Duration = Duration::from_millis(50);

struct Timeline {
    samples: Vec<RunSample>,
    period: Duration,
}

impl Timeline {
    fn take(&mut self, sample: RunSample) {
        if self.samples.len() == SAMPLES_MAX {
            let mut n = 0;
            self.samples.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.period *= 2;
        }
        self.samples.push(sample);
    }
}

/// Runs `work`; returns its result, and what the run did meanwhile.
pub(super) fn watch<R>(
    supervisor: &Supervisor,
    work: impl FnOnce() -> R,
) -> (R, Vec<RunSample>, ArrivalMap) {
    let (overview, begun) = (supervisor.overview(), Instant::now());
    let mut timeline = Timeline { samples: Vec::new(), period: PERIOD };
    let (mut arrivals, mut map) = (supervisor.arrivals(), ArrivalMap::default());
    let mut next = begun;
    let look = || {
        arrivals.iter_mut().for_each(|arrivals| note(arrivals, &mut map));
        if Instant::now() >= next {
            timeline.take(sample(&overview, begun));
            next += timeline.period;
        }
        PERIOD
    };
    let result = beside(PERIOD, look, work);
    (result, timeline.samples, map)
}

/// Adds the pages that came since the last call.
fn note(arrivals: &mut Arrivals, map: &mut ArrivalMap) {
    arrivals.take(|Arrived { after, process, address, was_out }| {
        let arrival = if was_out { Arrival::Read } else { Arrival::New };
        map.note(after.as_secs_f64(), process as u32, address, arrival);
        map.call(process as u32, &|| {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
            format!("{} {process}", name.unwrap_or_default().trim())
        });
    });
    map.missed = arrivals.missed();
}

fn sample(overview: &Overview, begun: Instant) -> RunSample {
    let summary = overview.summary();
    let StallTime { some, full } = overview.stall_time();
    let (mut used, mut processes) = (0, 0);
    for process in overview.processes() {
        used += process.memory.0;
        processes += 1;
    }
    RunSample {
        seconds: begun.elapsed().as_secs_f64(),
        memory_limit_bytes: summary.memory_bytes,
        memory_used_bytes: used,
        swap_used_bytes: overview.devices().map(|device| device.used.0).sum(),
        pages_in: summary.pages_in,
        pages_out: summary.pages_out,
        faults: summary.faults,
        fault_ns: summary.fault_latency.sum_ns,
        stall_some_ns: some.as_nanos() as u64,
        stall_full_ns: full.as_nanos() as u64,
        processes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_fewer_samples_a_second_and_all_of_its_time() {
        let mut timeline = Timeline { samples: Vec::new(), period: PERIOD };
        for n in 0..5 * SAMPLES_MAX {
            timeline.take(RunSample { seconds: n as f64, ..RunSample::default() });
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&timeline.samples.len()));
        assert_eq!(timeline.samples[0].seconds, 0.0);
        assert!(timeline.period > 2 * PERIOD);
    }
}
