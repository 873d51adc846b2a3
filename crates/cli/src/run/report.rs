//! What a run did, for people and for `--stats`.
//!
//! Owns: the wording of the summary and the structure of the JSON.
//! Invariants: field names end in their units; a published name keeps its meaning, and every name
//! is in `docs/stats.md`.
//! Not here: counting.

use super::enough::Enough;
use super::other_limits::{self, Cost};
use super::process::{self, Ended};
use super::program::name_of;
use overspill::{Bytes, CompressedUsage, FaultLatency, Summary, doctor};
use overspill_run::{AreaState, OutsideProcess, StallTime};
use serde::Serialize;
use std::fmt;
use std::io;
use std::time::Duration;

/// Version of the JSON. It rises when a name goes or changes its meaning, not when one is added.
pub(super) const SCHEMA: u32 = 2;

/// Too short a run to be seen with all that it had.
const SHORT_RUN: Duration = Duration::from_secs(1);

/// Everything known about a run that has ended.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: u32,
    /// The program's name and its arguments.
    command: Vec<String>,
    /// What `overspill run` returns: the program's status, or ours if memory has run out.
    exit_status: u8,
    /// The signal that ended the program.
    signal: Option<i32>,
    wall_seconds: f64,
    #[serde(flatten)]
    stalls: Stalls,
    waited_seconds: f64,
    /// For the summary.
    #[serde(skip)]
    waiting: Duration,
    #[serde(flatten)]
    used: Option<Used>,
    memory_bytes: u64,
    held_bytes_max: u64,
    over_limit_bytes_max: u64,
    in_use_bytes_max: u64,
    /// Not if the limit has changed.
    #[serde(flatten)]
    enough: Option<Enough>,
    /// True if memory and swap were full.
    out_of_memory: bool,
    /// Processes of our control group that the kernel has ended for want of memory meanwhile.
    oom_kills: u64,
    processes: u64,
    summary: Summary,
    devices: Vec<Device>,
    escaped: Escaped,
}

/// What a program has used.
#[derive(Debug, Serialize)]
struct Used {
    user_seconds: f64,
    system_seconds: f64,
    peak_resident_bytes: u64,
}

impl From<&process::Used> for Used {
    fn from(used: &process::Used) -> Self {
        Self {
            user_seconds: used.user.as_secs_f64(),
            system_seconds: used.system.as_secs_f64(),
            peak_resident_bytes: used.peak_resident.0,
        }
    }
}

/// What was seen of a run that has ended.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) summary: Summary,
    pub(super) devices: Vec<Device>,
    pub(super) stalls: Stalls,
    pub(super) out_of_memory: bool,
    pub(super) oom_kills: u64,
    pub(super) escaped: Escaped,
    /// The most that all processes had of the limit, and above it for longer than a moment.
    pub(super) held_most: Bytes,
    pub(super) excess_most: Bytes,
    /// Whether the limit has changed.
    pub(super) is_other_limit: bool,
    /// How long all threads waited for pages.
    pub(super) waited: Duration,
}

/// How long the program waited for pages.
#[derive(Debug, Serialize)]
pub(super) struct Stalls {
    stall_some_seconds: f64,
    stall_full_seconds: f64,
}

impl Stalls {
    pub(super) fn new(StallTime { some, full }: StallTime) -> Self {
        Self { stall_some_seconds: some.as_secs_f64(), stall_full_seconds: full.as_secs_f64() }
    }

    /// How long some thread of a run waited.
    fn some(&self, wall: Duration) -> Duration {
        Duration::from_secs_f64(self.stall_some_seconds).min(wall)
    }
}

/// What was outside the limit.
#[derive(Debug, Serialize)]
pub(super) struct Escaped {
    bytes: u64,
    programs: Vec<String>,
}

impl Escaped {
    /// What could not be attached to.
    pub(super) fn of(outside: Vec<OutsideProcess>) -> Self {
        let bytes = outside.iter().map(|process| process.memory_max.0).sum();
        let program = |OutsideProcess { pid, name, why, memory_max }| {
            format!("{name} (process {pid}), up to {memory_max}: {why}")
        };
        Self { bytes, programs: outside.into_iter().map(program).collect() }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Device {
    /// The number of its area.
    pub(super) area: usize,
    pub(super) name: String,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) used_bytes_max: u64,
    /// True while it is being swapped off.
    pub(super) leaving: bool,
    pub(super) notes: Vec<String>,
    /// What compressed memory holds at the end of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compressed: Option<CompressedUsage>,
}

impl Device {
    pub(super) fn of(area: AreaState) -> Self {
        let AreaState { number, leaving, name, notes, capacity, used, used_most, compressed } =
            area;
        let [capacity_bytes, used_bytes, used_bytes_max] =
            [capacity, used, used_most].map(|Bytes(bytes)| bytes);
        Self {
            area: number,
            leaving,
            name,
            notes,
            capacity_bytes,
            used_bytes,
            used_bytes_max,
            compressed,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, capacity) = (Bytes(self.used_bytes_max), Bytes(self.capacity_bytes));
        write!(f, "{} (used {used} of {capacity}", self.name)?;
        if let Some(usage) = self.compressed {
            write!(f, ", in {} of memory", Bytes(usage.memory_bytes_max))?;
        }
        f.write_str(")")
    }
}

fn count(summary: &Summary, name: &str) -> u64 {
    summary.counters.get(name).copied().unwrap_or(0)
}

impl Report {
    pub(super) fn new(command: Vec<String>, ended: &Ended, exit_status: u8, seen: Seen) -> Self {
        let Seen { summary, devices, stalls, escaped, held_most, waited, .. } = seen;
        let seen_most = held_most.max(Bytes(summary.in_use_bytes_max));
        let used = ended.used.as_ref().map(Used::from);
        // What a short run had at most was hardly seen; files are in this, too.
        let peak = used.as_ref().filter(|_| ended.wall < SHORT_RUN && summary.pages_out == 0);
        let in_use = seen_most.max(Bytes(peak.map_or(0, |used| used.peak_resident_bytes)));
        let waiting = stalls.some(ended.wall);
        let part = waiting.as_secs_f64() / ended.wall.as_secs_f64();
        let enough = (!seen.is_other_limit).then(|| Enough::of(&summary, in_use, part));
        Self {
            in_use_bytes_max: in_use.0,
            enough,
            waiting,
            schema: SCHEMA,
            out_of_memory: seen.out_of_memory,
            oom_kills: seen.oom_kills,
            processes: count(&summary, "processes"),
            command,
            exit_status,
            signal: ended.signal(),
            wall_seconds: ended.wall.as_secs_f64(),
            stalls,
            waited_seconds: waited.as_secs_f64(),
            used,
            memory_bytes: summary.memory_bytes,
            held_bytes_max: held_most.0,
            over_limit_bytes_max: seen.excess_most.0,
            devices,
            escaped,
            summary,
        }
    }

    /// Returns the lines of the summary.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.limit_lines().chain(self.details()).chain(self.end_lines())
    }

    /// Returns what it took, how it ended, and which limits would do.
    pub(super) fn verdict(&self) -> Vec<String> {
        self.limit_lines().chain(self.end_lines()).collect()
    }

    fn limit_lines(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.memory_line()).chain(self.excess_line()).chain(self.enough_line())
    }

    /// Returns a line only if the limit could not be kept.
    fn excess_line(&self) -> Option<String> {
        let excess = Bytes(self.over_limit_bytes_max);
        (excess.0 > 0).then(|| {
            format!(
                "{excess} above the limit stayed in memory: what programs have written of their \
                 files' data, or lock, cannot leave it"
            )
        })
    }

    fn end_lines(&self) -> impl Iterator<Item = String> {
        [self.signal_line(), self.oom_line(), self.lost_line()].into_iter().flatten()
    }

    /// Returns the other lines of the summary.
    pub(super) fn details(&self) -> Vec<String> {
        let always = [self.paging_line(), self.devices_line()];
        always.into_iter().chain(self.escaped_line()).collect()
    }

    /// Returns what other limits would cost, or that it is not known.
    pub(super) fn other_limits(&self) -> Vec<String> {
        let cost = |enough: Enough| Cost {
            summary: &self.summary,
            wall: Duration::from_secs_f64(self.wall_seconds),
            waiting: self.waiting,
            enough: Bytes(enough.enough_bytes),
        };
        let unknown = "what other limits would cost is not known: the limit was not that of all, all \
                       the time, or the program did not come to its end";
        let known = self.known_enough().map(|enough| other_limits::lines(&cost(enough)));
        known.unwrap_or_else(|| vec![unknown.to_owned()])
    }

    fn known_enough(&self) -> Option<Enough> {
        self.enough.filter(|_| !self.out_of_memory && self.signal.is_none())
    }

    /// Returns those of it that are said to who wants no summary.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> + use<> {
        let died = self.signal_line().filter(|_| self.signal.is_some_and(is_failure));
        [died, self.oom_line(), self.lost_line()].into_iter().flatten()
    }

    /// Returns a line only if a signal ended the program: to a shell, we are the program.
    fn signal_line(&self) -> Option<String> {
        let signal = self.signal.filter(|_| !self.out_of_memory)?;
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        Some(format!("the program was ended by {name} (signal {signal})"))
    }

    /// Returns a line only if the run failed and the kernel had ended some process for want of
    /// memory: its own log says which.
    fn oom_line(&self) -> Option<String> {
        let processes = match self.oom_kills {
            0 => return None,
            1 => "a process".to_owned(),
            many => format!("{many} processes"),
        };
        (self.exit_status != 0).then(|| {
            format!(
                "the kernel ended {processes} for want of memory here: give less --memory, or a \
                 place to swap to that is not in memory"
            )
        })
    }

    /// Returns a line only if pages were lost.
    fn lost_line(&self) -> Option<String> {
        let lost = self.summary.pages_lost;
        (lost > 0).then(|| format!("{lost} pages LOST: touching one raised SIGBUS"))
    }

    fn memory_line(&self) -> String {
        let processes = match self.processes {
            0 | 1 => String::new(),
            many => format!(", {many} processes"),
        };
        let [memory, most] = [self.memory_bytes, self.in_use_bytes_max].map(Bytes);
        let (wall, waiting) = (self.wall_seconds, self.waiting.as_secs_f64());
        let waiting = match (100.0 * waiting / wall).round() {
            percent if percent >= 1.0 => {
                format!(", {waiting:.2} s of it waiting for swap ({percent} %)")
            }
            _ => String::new(),
        };
        let name = name_of(&self.command);
        format!("{name}: memory {memory}, most in use {most}, {wall:.2} s{waiting}{processes}")
    }

    /// True if anything was written, or was zeros and could be dropped instead.
    fn was_swapped(&self) -> bool {
        self.summary.pages_out > 0 || count(&self.summary, "swpout_zero") > 0
    }

    /// Returns which limits would do, a line unless the limit has changed or the program did not
    /// come to its end.
    fn enough_line(&self) -> Option<String> {
        let Enough { enough_bytes, half_wait_bytes } = self.known_enough()?;
        let enough = Bytes(enough_bytes);
        if !self.was_swapped() {
            let would_do = enough_bytes < self.memory_bytes;
            let less = if would_do { format!(": {enough} would do") } else { String::new() };
            return Some(format!("nothing was swapped{less}"));
        }
        let half = half_wait_bytes.map_or_else(String::new, |half| {
            format!(", with {} it would wait half as long", Bytes(half))
        });
        Some(format!("with {enough} nothing would be swapped{half}"))
    }

    /// Returns a line only if something was outside the limit.
    fn escaped_line(&self) -> Option<String> {
        let programs = self.escaped.programs.join("; ");
        (!programs.is_empty()).then(|| format!("outside the limit: {programs}"))
    }

    fn paging_line(&self) -> String {
        let Summary { pages_in, pages_out, faults, fault_latency, .. } = &self.summary;
        let line = format!("{pages_in} pages in, {pages_out} out; {faults} faults");
        if *faults == 0 {
            return line;
        }
        let FaultLatency { median_ns, p99_ns, max_ns, .. } = fault_latency;
        let [median, p99, max] = [median_ns, p99_ns, max_ns].map(|&ns| time(ns));
        format!("{line}: median {median}, p99 {p99}, max {max}")
    }

    fn devices_line(&self) -> String {
        let devices: Vec<String> = self.devices.iter().map(Device::to_string).collect();
        format!("devices: {}", devices.join(", "))
    }
}

/// True for a signal that a shell tells of though nobody has asked it to.
fn is_failure(signal: i32) -> bool {
    let asked = [libc::SIGHUP, libc::SIGINT, libc::SIGPIPE, libc::SIGTERM, libc::SIGQUIT];
    !asked.contains(&signal)
}

/// Formats a time as three digits and a unit.
fn time(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    let Some((unit_ns, unit)) = UNITS.into_iter().find(|&(unit_ns, _)| ns >= unit_ns) else {
        return format!("{ns} ns");
    };
    let value = ns as f64 / unit_ns as f64;
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

impl Report {
    /// Writes the JSON of `--stats`.
    pub(super) fn write_json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        out.write_all(b"\n")
    }
}

/// Returns those of a device's notes that are about what could be faster or safer, as lines.
pub(super) fn limits_of(name: &str, notes: &[String]) -> Vec<String> {
    let limits = notes.iter().filter(|note| doctor::is_limit(note));
    limits.map(|note| format!("{name}: {note}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first two lines about a run of two seconds in 64 MiB.
    fn first_lines(change: impl FnOnce(&mut Seen)) -> [String; 2] {
        let summary = Summary {
            memory_bytes: 64 << 20,
            in_use_bytes_max: 160 << 20,
            pages_out: 7,
            refaults_left: vec![(0, 90), (32 << 20, 45), (96 << 20, 0)],
            ..Summary::default()
        };
        let stalls = StallTime { some: Duration::from_millis(500), full: Duration::ZERO };
        let mut seen = Seen {
            summary,
            devices: Vec::new(),
            stalls: Stalls::new(stalls),
            out_of_memory: false,
            oom_kills: 0,
            escaped: Escaped::of(Vec::new()),
            held_most: Bytes(63 << 20),
            excess_most: Bytes(0),
            is_other_limit: false,
            waited: Duration::from_secs(1),
        };
        change(&mut seen);
        let ended = Ended::let_go(Duration::from_secs(2));
        let report = Report::new(vec!["/bin/sort".into()], &ended, 0, seen);
        let mut lines = report.lines();
        std::array::from_fn(|_| lines.next().unwrap())
    }

    #[test]
    fn the_summary_says_which_limits_would_do() {
        let swapped = first_lines(|_| {});
        let first =
            "sort: memory 64 MiB, most in use 160 MiB, 2.00 s, 0.50 s of it waiting for swap";
        assert_eq!(swapped[0], format!("{first} (25 %)"));
        let limits =
            "with 170 MiB nothing would be swapped, with 96 MiB it would wait half as long";
        assert_eq!(swapped[1], limits);
        let unswapped = first_lines(|seen| {
            seen.summary = Summary { memory_bytes: 64 << 20, ..Summary::default() };
            (seen.held_most, seen.stalls.stall_some_seconds) = (Bytes(32 << 20), 0.0);
        });
        assert_eq!(unswapped[0], "sort: memory 64 MiB, most in use 32 MiB, 2.00 s");
        assert_eq!(unswapped[1], "nothing was swapped: 34 MiB would do");
        let above = first_lines(|seen| seen.excess_most = Bytes(40 << 20));
        assert!(above[1].starts_with("40 MiB above the limit stayed in memory"), "{above:?}");
    }

    /// What is dropped as zeros is swapped too, and few pages may be missed by the samples.
    #[test]
    fn nothing_is_said_of_limits_that_is_not_known() {
        let few = first_lines(|seen| seen.summary.in_use_bytes_max = 0);
        assert!(few[1].starts_with("with 67 MiB nothing"), "{few:?}");
        for change in [
            |seen: &mut Seen| seen.is_other_limit = true,
            |seen: &mut Seen| seen.out_of_memory = true,
        ] {
            let other = first_lines(change);
            assert!(other[1].starts_with("0 pages in, 7 out"), "{other:?}");
        }
    }

    #[test]
    fn times_have_three_digits() {
        let table = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (13_400, "13.4 µs"),
            (9_996, "10.0 µs"),
            (134_000, "134 µs"),
            (2_150_000, "2.15 ms"),
            (61_000_000_000, "61.0 s"),
        ];
        for (ns, text) in table {
            assert_eq!(time(ns), text);
        }
    }
}
