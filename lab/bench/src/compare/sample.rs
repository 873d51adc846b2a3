//! One run of the measured program, and the summary of several.
//!
//! Owns: where each figure is read, and how rounds become medians.
//! Invariants: a ratio is taken between runs of the same round; the median of these is printed.
//! Not here: the order of the runs.

use super::child::{self, Interrupted};
use super::counters::Counters;
use super::ways::{Run, Way};
use crate::error::BenchError;
use crate::touch::{Buckets, FAULT_NS, Latency, Percentiles, TouchReport};
use overspill_report::plot::Spread;
use serde::Serialize;
use serde_json::{Deserializer, Value};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The results of one way in one row.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Who paged.
    pub way: Way,
    /// Pages touched per second.
    pub rate: Spread,
    /// The rate relative to the kernel's in the same round.
    pub ratio: Option<Spread>,
    /// Touches that found their page missing, in per cent.
    pub missing_percent: Spread,
    /// Latency of those touches.
    pub missing: Tail,
    /// Latency of all touches.
    pub all: Tail,
    /// CPU time of the process per touch, in µs.
    pub cpu_us: Spread,
    /// Peak resident memory, in MiB.
    pub peak_mib: Spread,
    /// Interrupts between CPUs of the whole machine, per page swapped in or out.
    pub interrupts_per_page: Spread,
    /// From one more run, if requested.
    pub costs: Option<Costs>,
    /// Latencies of all rounds: the lower bound of a bucket in ns, and the count.
    pub reads: Buckets,
    /// The same for writes.
    pub writes: Buckets,
    /// Pages touched per second, in each tenth of a second of one round.
    pub rate_over_time: Vec<f64>,
    /// Seconds from the start of one round, and resident MiB.
    pub resident_over_time: Vec<(f64, f64)>,
}

/// Latency percentiles of touches, in µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tail {
    /// Half of them took no longer.
    pub p50_us: Spread,
    /// 99 of 100 took no longer.
    pub p99_us: Spread,
    /// 999 of 1000 took no longer.
    pub p999_us: Spread,
    /// The longest.
    pub max_us: Spread,
    /// `p99_us` relative to the kernel's in the same round.
    pub p99_ratio: Option<Spread>,
    /// `p999_us` relative to the kernel's in the same round.
    pub p999_ratio: Option<Spread>,
}

/// What a way costs besides time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    /// System calls of the whole run, if perf can count them, per page swapped in or out.
    pub syscalls_per_page: Option<f64>,
    /// CPU time of a process that sleeps on its touched pages, in ms per second.
    pub idle_ms_per_s: f64,
}

/// One run.
#[derive(Clone)]
pub(super) struct Sample {
    report: TouchReport,
    missing: Percentiles,
    all: Percentiles,
    pages_swapped: u64,
    interrupts: u64,
}

/// Time besides the timed phase: to start, to fill the memory, to write it to a slow disk.
const PATIENCE_SECONDS: f64 = 120.0;
/// For how long the CPU time of a sleeping process is measured.
const IDLE_SECONDS: f64 = 2.0;

impl Sample {
    /// Runs the measured program. The kernel's swap is on if it is its turn.
    ///
    /// # Errors
    /// [`BenchError::Child`], [`BenchError::Interrupted`].
    pub(super) fn take(
        run: &Run<'_>,
        way: Way,
        group: Option<&Path>,
        interrupted: &Interrupted,
    ) -> Result<Self, BenchError> {
        let command = || run.command(way, group);
        Self::of(command, run, way, interrupted).map(|(sample, _)| sample)
    }

    /// Runs a command, again if it is the kernel's and killed; returns its stderr as well.
    fn of(
        command: impl Fn() -> Command,
        run: &Run<'_>,
        way: Way,
        interrupted: &Interrupted,
    ) -> Result<(Self, String), BenchError> {
        let once = || Self::once(&mut command(), run, way, interrupted);
        match way {
            Way::Kernel => child::again_if_killed(once),
            _ => once(),
        }
    }

    fn once(
        command: &mut Command,
        run: &Run<'_>,
        way: Way,
        interrupted: &Interrupted,
    ) -> Result<(Self, String), BenchError> {
        let habits = &run.options.habits;
        let seconds = PATIENCE_SECONDS + 2.0 * habits.seconds + run.idle_seconds;
        let before = Counters::now();
        let patience = Duration::from_secs_f64(seconds);
        let printed = child::run(command, patience, Some(interrupted))?;
        let counted = Counters::now() - before;
        let report: TouchReport = serde_json::from_str(&printed.output)
            .map_err(|error| strange(way, &format!("its report cannot be read: {error}")))?;
        let pages_swapped = match way {
            Way::Kernel => counted.pages_swapped,
            Way::Run => pages_of_run(&printed.errors)
                .ok_or_else(|| strange(way, "there are no statistics"))?,
            Way::Region | Way::Signal | Way::Pool => report.pages_swapped.unwrap_or(0),
        };
        let mut latency = Latency::default();
        latency.add_all(&report.reads);
        latency.add_all(&report.writes);
        let buckets = latency.buckets();
        let sample = Self {
            report,
            missing: Percentiles::of(&buckets, FAULT_NS),
            all: Percentiles::of(&buckets, 0),
            pages_swapped,
            interrupts: counted.interrupts,
        };
        Ok((sample, printed.errors))
    }

    fn rate(&self) -> f64 {
        self.report.touches as f64 / self.report.seconds
    }

    fn per_page(&self, count: f64) -> f64 {
        count / self.pages_swapped.max(1) as f64
    }
}

impl Costs {
    /// Runs the measured program once more, lets it sleep, and has perf count its system calls.
    ///
    /// # Errors
    /// [`BenchError::Child`], [`BenchError::Interrupted`].
    pub(super) fn take(
        run: &Run<'_>,
        way: Way,
        group: Option<&Path>,
        interrupted: &Interrupted,
    ) -> Result<Self, BenchError> {
        let run = Run { idle_seconds: IDLE_SECONDS, ..*run };
        let counts = perf_counts();
        let command = || {
            let command = run.command(way, group);
            if counts { under_perf(&command) } else { command }
        };
        let (sample, errors) = Sample::of(command, &run, way, interrupted)?;
        Ok(Self {
            syscalls_per_page: syscalls(&errors).map(|calls| sample.per_page(calls)),
            idle_ms_per_s: sample.report.idle_cpu_seconds * 1e3,
        })
    }
}

const PERF: [&str; 6] = ["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "--"];

/// Returns true if perf is installed and may count system calls.
pub(super) fn perf_counts() -> bool {
    let mut command = Command::new("perf");
    let printed = child::run(command.args(PERF).arg("true"), Duration::from_secs(10), None);
    printed.is_ok_and(|printed| syscalls(&printed.errors).is_some())
}

/// Runs its arguments under perf and ends as they did: the shell in perf tells the one around it
/// by descriptor 3. The status of perf stat (6.1) is the exit code of what it ran, which is 0 after
/// a signal, and also 0 if that ends before perf waits for it: its handler of SIGCHLD makes it
/// forget the process.
fn under_perf(command: &Command) -> Command {
    let script = format!(
        r#"{{ status=$(perf {} sh -c '"$@" 3>&-; echo $? >&3' sh "$@" 3>&1 >&4 4>&-); }} 4>&1
        exit "${{status:-1}}""#,
        PERF.join(" ")
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell
}

/// Returns the number in perf's line.
fn syscalls(errors: &str) -> Option<f64> {
    let line = errors.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

/// Returns the statistics that `overspill run` has printed; other lines may follow.
pub(crate) fn statistics_of_run(errors: &str) -> Option<Value> {
    let json = &errors[errors.find('{')?..];
    Deserializer::from_str(json).into_iter().next()?.ok()
}

fn pages_of_run(errors: &str) -> Option<u64> {
    let stats = statistics_of_run(errors)?;
    let count = |name| stats["summary"][name].as_u64();
    Some(count("pages_in")? + count("pages_out")?)
}

fn strange(way: Way, reason: &str) -> BenchError {
    BenchError::Child {
        what: format!("the measured program ({})", way.name()),
        reason: reason.into(),
    }
}

impl Cell {
    /// Summarises rounds, at least one; `kernel` has as many, if it took part.
    pub(super) fn new(way: Way, rounds: &[Sample], kernel: Option<&[Sample]>) -> Self {
        let spread = |figure: &dyn Fn(&Sample) -> f64| Spread::of(rounds.iter().map(figure));
        let merged = |part: fn(&TouchReport) -> &Buckets| {
            let mut all = Latency::default();
            rounds.iter().for_each(|sample| all.add_all(part(&sample.report)));
            all.buckets()
        };
        let shown = &rounds[0].report;
        Self {
            way,
            rate: spread(&Sample::rate),
            ratio: ratio(rounds, kernel, &Sample::rate),
            missing_percent: spread(&|s| 100.0 * s.missing.count as f64 / s.report.touches as f64),
            missing: Tail::new(rounds, kernel, &|sample| sample.missing),
            all: Tail::new(rounds, kernel, &|sample| sample.all),
            cpu_us: spread(&|s| 1e6 * s.report.cpu_seconds / s.report.touches as f64),
            peak_mib: spread(&|s| mib(s.report.peak_resident_bytes)),
            interrupts_per_page: spread(&|s| s.per_page(s.interrupts as f64)),
            costs: None,
            reads: merged(|report| &report.reads),
            writes: merged(|report| &report.writes),
            rate_over_time: whole_tenths(shown).map(|&n| n as f64 * 10.0).collect(),
            resident_over_time: shown.resident.iter().map(|&(at, n)| (at, mib(n))).collect(),
        }
    }
}

impl Tail {
    fn new(
        rounds: &[Sample],
        kernel: Option<&[Sample]>,
        of: &dyn Fn(&Sample) -> Percentiles,
    ) -> Self {
        let spread = |us: fn(Percentiles) -> f64| Spread::of(rounds.iter().map(|s| us(of(s))));
        let ratio = |us: fn(Percentiles) -> f64| ratio(rounds, kernel, &|s| us(of(s)));
        Self {
            p50_us: spread(|tail| tail.p50_us),
            p99_us: spread(|tail| tail.p99_us),
            p999_us: spread(|tail| tail.p999_us),
            max_us: spread(|tail| tail.max_us),
            p99_ratio: ratio(|tail| tail.p99_us),
            p999_ratio: ratio(|tail| tail.p999_us),
        }
    }
}

/// Returns a figure relative to the kernel's, round by round; none if the kernel did not take part,
/// or has no such figure.
fn ratio(
    rounds: &[Sample],
    kernel: Option<&[Sample]>,
    figure: &dyn Fn(&Sample) -> f64,
) -> Option<Spread> {
    let pairs = kernel?.iter().zip(rounds);
    let ratios: Vec<f64> = pairs.map(|(kernel, one)| figure(one) / figure(kernel)).collect();
    ratios.iter().all(|ratio| ratio.is_finite()).then(|| Spread::of(ratios.into_iter()))
}

/// Returns touches per tenth of a second, without an incomplete last tenth.
fn whole_tenths(report: &TouchReport) -> impl Iterator<Item = &u64> {
    report.rate.iter().take((report.seconds * 10.0) as usize)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(touches: u64, p99_us: f64) -> Sample {
        let report = TouchReport {
            touches,
            seconds: 2.0,
            cpu_seconds: 1.0,
            idle_cpu_seconds: 0.0,
            peak_resident_bytes: 3 << 20,
            pages_swapped: None,
            reads: vec![(64, 1), (4096, 2)],
            writes: Vec::new(),
            rate: vec![10, 20],
            resident: vec![(0.0, 1 << 20)],
        };
        let missing = Percentiles { count: 2, p99_us, ..Percentiles::default() };
        let all = Percentiles::default();
        Sample { report, missing, all, pages_swapped: 100, interrupts: 50 }
    }

    #[test]
    fn a_ratio_is_the_median_of_ratios_by_round() {
        let kernel = [sample(100, 4.0), sample(200, 4.0), sample(300, 4.0)];
        let ours = [sample(300, 2.0), sample(200, 4.0), sample(150, 8.0)];
        let cell = Cell::new(Way::Run, &ours, Some(&kernel));
        // 3, 1 and 0.5, although both medians are 200.
        assert_eq!(cell.ratio, Some(Spread { median: 1.0, min: 0.5, max: 3.0 }));
        assert_eq!(cell.missing.p99_ratio.unwrap().max, 2.0);
        assert_eq!(cell.missing.p999_ratio, None, "0 by 0 is no figure");
        assert_eq!((cell.rate.median, cell.interrupts_per_page.median), (100.0, 0.5));
        assert_eq!(cell.reads, [(64, 3), (4096, 6)]);
        assert_eq!(Cell::new(Way::Run, &ours, None).ratio, None);
    }

    #[test]
    fn perf_does_not_hide_how_a_program_ended() {
        if !perf_counts() {
            return eprintln!("skipped: perf is not installed or may not count system calls");
        }
        let ended = |line: &str| {
            let command = under_perf(Command::new("sh").args(["-c", line]));
            child::run(&command, Duration::from_secs(60), None)
        };
        let killed = ended("kill -9 $$");
        assert!(matches!(killed, Err(BenchError::Killed { .. })), "{killed:?}");
        for line in ["kill -11 $$", "exit 3"] {
            let failed = ended(line);
            assert!(matches!(failed, Err(BenchError::Child { .. })), "{failed:?}");
        }
        assert_eq!(ended("echo 'a b'").unwrap().output, "a b\n");
    }

    #[test]
    fn statistics_are_found_among_other_lines() {
        let errors = "overspill: a note\n{\"summary\": {\"pages_in\": 3, \"pages_out\": 4}}\n\
                      29,,raw_syscalls:sys_enter,1008298,100.00,,\n";
        assert_eq!(pages_of_run(errors), Some(7));
        assert_eq!(syscalls(errors), Some(29.0));
        assert_eq!(pages_of_run("nothing"), None);
        assert_eq!(syscalls("<not counted>,,raw_syscalls:sys_enter,0,100.00,,"), None);
    }
}
