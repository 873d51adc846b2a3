//! What a run has answered, read.
//!
//! Invariants: what is not known is skipped, as docs/stats.md asks readers to. Words are plain from
//! here on: another user chose them.

use super::{PATIENCE, Question};
use indicatif::FormattedDuration;
use overspill::Bytes;
use overspill_run::Run;
use overspill_terminal::plain;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A run, as it was a moment ago.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    /// The number of its `overspill run`.
    pub(super) run: u32,
    #[serde(deserialize_with = "all_plain")]
    pub(super) command: Vec<String>,
    pub(super) wall_seconds: f64,
    #[serde(default)]
    pub(super) stall_some_seconds: f64,
    #[serde(default)]
    pub(super) stall_full_seconds: f64,
    pub(super) memory_bytes: u64,
    pub(super) memory_bytes_max: u64,
    pub(super) memory_used_bytes: u64,
    #[serde(default)]
    pub(super) over_limit_bytes: u64,
    #[serde(default)]
    pub(super) lets_go: bool,
    #[serde(default)]
    pub(super) has_let_go: bool,
    pub(super) processes: Vec<SeenProcess>,
    pub(super) devices: Vec<SeenDevice>,
    pub(super) summary: SeenSummary,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenProcess {
    pub(super) process: i32,
    pub(super) memory_bytes: u64,
    pub(super) devices: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenDevice {
    pub(super) area: usize,
    pub(super) leaving: bool,
    #[serde(deserialize_with = "one_plain")]
    pub(super) name: String,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenSummary {
    pub(super) faults: u64,
    pub(super) pages_in: u64,
    pub(super) pages_out: u64,
    pub(super) pages_lost: u64,
    pub(super) fault_latency: SeenLatency,
    pub(super) counters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenLatency {
    pub(super) sum_ns: u64,
    /// Pairs of a time in ns and of how many faults took no longer than that and longer than the
    /// pair before, in order.
    pub(super) histogram: Vec<(u64, u64)>,
}

/// All runs: those that are stopped, and the others.
pub(super) fn stopped_and_others() -> (Vec<Run>, Vec<Run>) {
    Run::all().into_iter().partition(|run| run.is_stopped())
}

fn answer_of(run: Run, deadline: Instant) -> Option<String> {
    let answer = || run.ask(&Question::Look.to_string(), deadline).ok();
    if run.is_stopped() { None } else { answer() }
}

fn one_plain<'de, D: Deserializer<'de>>(words: D) -> Result<String, D::Error> {
    String::deserialize(words).map(|words| plain(&words).into_owned())
}

fn all_plain<'de, D: Deserializer<'de>>(words: D) -> Result<Vec<String>, D::Error> {
    let all = Vec::<String>::deserialize(words)?;
    Ok(all.iter().map(|words| plain(words).into_owned()).collect())
}

impl Seen {
    /// All runs that answer soon, by their numbers.
    pub(super) fn all() -> Vec<Self> {
        Self::all_and_stopped().0
    }

    /// The same, and those that cannot answer.
    pub(super) fn all_and_stopped() -> (Vec<Self>, Vec<Run>) {
        let (stopped, runs) = stopped_and_others();
        (Self::of_all(runs).into_iter().map(|(_, seen)| seen).collect(), stopped)
    }

    /// As [`all`](Self::all), with which run each is.
    pub(super) fn all_with_runs() -> Vec<(Run, Self)> {
        Self::of_all(Run::all())
    }

    /// Those that answer soon.
    pub(super) fn of_all(runs: Vec<Run>) -> Vec<(Run, Self)> {
        let answers = Self::answers(runs).into_iter();
        answers.filter_map(|(run, answer)| Some((run, Self::read(run, &answer)?))).collect()
    }

    /// Their answers, as they are. Each user's are asked in turn, beside others': one who has them
    /// keep silent keeps nobody else's from being seen.
    pub(super) fn answers(mut runs: Vec<Run>) -> Vec<(Run, String)> {
        let deadline = Instant::now() + PATIENCE;
        let of_one = |runs: &[Run]| -> Vec<(Run, String)> {
            runs.iter().filter_map(|&run| Some((run, answer_of(run, deadline)?))).collect()
        };
        runs.sort_by_key(|run| run.user);
        let mut answers: Vec<_> = std::thread::scope(|scope| {
            let users = runs.chunk_by(|one, other| one.user == other.user);
            let start =
                |runs| std::thread::Builder::new().spawn_scoped(scope, move || of_one(runs));
            let threads: Vec<_> = users.filter_map(|runs| start(runs).ok()).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        });
        answers.sort_by_key(|(run, _)| run.process);
        answers
    }

    /// A run, if it goes on.
    pub(super) fn of(run: Run) -> Option<Self> {
        Self::read(run, &answer_of(run, Instant::now() + PATIENCE)?)
    }

    fn read(run: Run, answer: &str) -> Option<Self> {
        let seen: Self = serde_json::from_str(answer).ok()?;
        // Its number is the one that it was found by, whatever it says.
        Some(Self { run: run.process as u32, ..seen })
    }

    /// What it has of all its devices.
    pub(super) fn swap_used_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.used_bytes).fold(0, u64::saturating_add)
    }

    /// How long it has gone on, in words.
    pub(super) fn time(&self) -> String {
        const DAY: u64 = 24 * 60 * 60;
        match self.wall_seconds as u64 {
            long @ DAY.. => format!("{}d {}h", long / DAY, long % DAY / 3600),
            short => FormattedDuration(Duration::from_secs(short)).to_string(),
        }
    }

    /// Its limit, in words.
    pub(super) fn limit(&self) -> String {
        match self.has_let_go {
            true => "let go".into(),
            false => Bytes(self.memory_bytes).to_string(),
        }
    }

    /// Its program and arguments.
    pub(super) fn words(&self) -> String {
        self.command.join(" ")
    }

    /// A counter, 0 if there is none of that name.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.summary.counters.get(name).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn of_a_test() -> Self {
        serde_json::from_value(Self::answer_of_a_test()).unwrap()
    }

    #[cfg(test)]
    pub(super) fn answer_of_a_test() -> serde_json::Value {
        serde_json::json!({
            "schema": 1, "run": 42, "command": ["sort", "x"], "wall_seconds": 2.5, "new": [1, 2],
            "stall_some_seconds": 1.5, "stall_full_seconds": 0.5,
            "memory_bytes": 1 << 26, "memory_bytes_max": 1 << 28, "memory_used_bytes": 1 << 25,
            "processes": [{"process": 43, "memory_bytes": 1 << 25, "devices": 2}],
            "devices": [
                {"area": 0, "leaving": false, "name": "ram", "capacity_bytes": 1 << 20, "used_bytes": 4096, "notes": []},
                {"area": 1, "leaving": false, "name": "/var/tmp", "capacity_bytes": 1 << 30, "used_bytes": 4096, "notes": []},
            ],
            "summary": {
                "faults": 2000, "pages_in": 7, "pages_out": 1234, "pages_lost": 0,
                "fault_latency": {"median_ns": 1, "sum_ns": 200_000, "histogram": [[1024, 10], [4096, 90]]},
                "counters": {"pswpin": 7, "swap_ra": 4, "swap_ra_hit": 3},
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    #[test]
    fn time_is_said_as_clocks_do_and_then_in_days() {
        let time = |wall_seconds| Seen { wall_seconds, ..Seen::of_a_test() }.time();
        assert_eq!([59.9, 3600.0, 90_000.0].map(time), ["00:00:59", "01:00:00", "1d 1h"]);
    }

    /// Another user's run may answer anything, and all of it is shown.
    #[test]
    fn whatever_a_run_says_is_plain() {
        let answer = Seen::answer_of_a_test().to_string().replace("sort", "so\\u001b\\u202ert");
        bolero::check!().with_type::<Script>().for_each(|script| {
            if let Ok(seen) = serde_json::from_str::<Seen>(&script.text(&[&answer])) {
                let words = [seen.words(), seen.limit()].concat();
                assert!(!words.contains(char::is_control), "{words:?}");
                seen.swap_used_bytes();
            }
        });
    }
}
