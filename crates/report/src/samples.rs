//! A run at many moments.
//!
//! Invariant: a run of any length has at most [`SAMPLES_MAX`] samples: when there are as many,
//! every second one goes, and the time between two doubles.

use std::time::Duration;

const SAMPLES_MAX: usize = 1200;

/// A run at one moment. What is counted is counted from its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSample {
    /// Since the program was started.
    pub seconds: f64,
    /// The limit.
    pub memory_limit_bytes: u64,
    /// What all processes have of it.
    pub memory_used_bytes: u64,
    /// What is in use of all devices.
    pub swap_used_bytes: u64,
    /// Pages read from swap.
    pub pages_in: u64,
    /// Pages written to swap.
    pub pages_out: u64,
    /// Faults served.
    pub faults: u64,
    /// Time of all of them together.
    pub fault_ns: u64,
    /// Time in which a thread waited for a page.
    pub stall_some_ns: u64,
    /// Time in which a thread waited, and none could run.
    pub stall_full_ns: u64,
    /// Processes that are alive.
    pub processes: usize,
}

/// The samples of a run.
#[derive(Clone, Debug)]
pub struct Samples {
    all: Vec<RunSample>,
    period: Duration,
}

impl Samples {
    /// None yet; `period` is the time between two.
    pub fn new(period: Duration) -> Self {
        Self { all: Vec::new(), period }
    }

    /// Takes one.
    pub fn push(&mut self, sample: RunSample) {
        if self.all.len() == SAMPLES_MAX {
            let mut n = 0;
            self.all.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.period *= 2;
        }
        self.all.push(sample);
    }

    /// The time between two.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Of the whole run so far, in order.
    pub fn all(&self) -> &[RunSample] {
        &self.all
    }

    /// The same.
    pub fn into_all(self) -> Vec<RunSample> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_fewer_samples_a_second_and_all_of_its_time() {
        let period = Duration::from_secs(1);
        let mut samples = Samples::new(period);
        for n in 0..5 * SAMPLES_MAX {
            samples.push(RunSample { seconds: n as f64, ..RunSample::default() });
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&samples.all().len()));
        assert_eq!(samples.all()[0].seconds, 0.0);
        assert!(samples.period() > 2 * period);
    }
}
