//! Reports errors to the user, without a flood of lines.
//!
//! Owns: one line per cause. A cause is reported when it first occurs, and then at every power of
//! ten, with the number of times so far: a device that loses a million pages takes seven lines.
//! Invariants: the last error is kept, whether its line was reported or not.
//! Not here: counting ([`crate::stats`]), and where lines go.

use crate::sync::{LockClass, Mutex};

/// Takes one line for the user.
pub type Report = Box<dyn Fn(&str) + Send + Sync>;

/// The kind of error, and what it happened to: a device's number, or 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    /// The error in a few words, always the same.
    pub what: &'static str,
    /// The number of what it happened to.
    pub whom: u32,
}

impl Cause {
    /// A cause that does not distinguish what it happened to.
    pub const fn of(what: &'static str) -> Self {
        Self { what, whom: 0 }
    }
}

/// The causes reported so far.
pub struct Reports {
    report: Report,
    told: Mutex<Told>,
}

struct Told {
    times: Vec<(Cause, u64)>,
    last: Option<String>,
}

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reports")
    }
}

impl Reports {
    /// Makes an empty one that sends lines to `report`.
    pub fn new(report: Report) -> Self {
        let told = Told { times: Vec::new(), last: None };
        Self { report, told: Mutex::new(LockClass::Control, told) }
    }

    /// Reports a line to the user, unless this cause is between two powers of ten.
    pub fn tell(&self, cause: Cause, line: String) {
        let mut told = self.told.lock();
        let known = told.times.iter().position(|(known, _)| *known == cause);
        let at = known.unwrap_or_else(|| {
            told.times.push((cause, 0));
            told.times.len() - 1
        });
        told.times[at].1 += 1;
        match told.times[at].1 {
            1 => (self.report)(&line),
            times if is_power_of_ten(times) => {
                (self.report)(&format!("{line} ({times} times by now)"));
            }
            _ => {}
        }
        told.last = Some(line);
    }

    /// Keeps a line as the last error without reporting it.
    pub fn note(&self, line: String) {
        self.told.lock().last = Some(line);
    }

    /// The last line reported or kept.
    pub fn last(&self) -> Option<String> {
        self.told.lock().last.clone()
    }
}

fn is_power_of_ten(n: u64) -> bool {
    n.checked_ilog10().is_some_and(|power| 10u64.pow(power) == n)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn collecting() -> (Reports, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        (Reports::new(Box::new(move |line| sink.lock().unwrap().push(line.to_owned()))), lines)
    }

    #[test]
    fn a_cause_is_said_at_powers_of_ten() {
        let (reports, lines) = collecting();
        for n in 1..=1000 {
            reports.tell(Cause::of("lost"), format!("page {n}"));
        }
        let said = lines.lock().unwrap().clone();
        let expected = [
            "page 1",
            "page 10 (10 times by now)",
            "page 100 (100 times by now)",
            "page 1000 (1000 times by now)",
        ];
        assert_eq!(said, expected);
        assert_eq!(reports.last().as_deref(), Some("page 1000"));
    }

    #[test]
    fn one_cause_hides_no_other() {
        let (reports, lines) = collecting();
        for whom in [0, 1, 0, 1] {
            reports.tell(Cause { what: "lost", whom }, format!("a page of {whom}"));
        }
        assert_eq!(*lines.lock().unwrap(), ["a page of 0", "a page of 1"]);
    }
}
