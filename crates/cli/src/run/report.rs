//! What a run did, for people and for `--stats`.
//!
//! Owns: the wording of the summary and the structure of the JSON.
//! Invariants: field names end in their units; a published name keeps its meaning, and every name
//! is in `docs/stats.md`.
//! Not here: counting.

use super::process::{self, Ended};
use overspill::escapes;
use overspill::session::{DeviceState, Overview, StallTime, verdict};
use overspill::ways::Way;
use overspill::{Bytes, CompressedUsage, FaultLatency, Summary, doctor};
use overspill_run::OutsideProcess;
use serde::Serialize;
use std::fmt;
use std::io;
use std::time::Duration;

/// Memory above its limit that a process may have without being reported, if it did not report it
/// itself: the code of large programs, and what the pager takes.
const UNSAID_BYTES: u64 = 48 << 20;

/// Version of the JSON. It rises when a name goes or changes its meaning, not when one is added.
pub(super) const SCHEMA: u32 = 1;

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
    stalls: Option<Stalls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_seconds: Option<f64>,
    #[serde(flatten)]
    used: Option<Used>,
    memory_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes_max: Option<u64>,
    /// True if memory and swap were full.
    out_of_memory: bool,
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
    /// Only of the ways in which the pager is in the program.
    pub(super) stalls: Option<Stalls>,
    pub(super) out_of_memory: bool,
    pub(super) escaped: Escaped,
    /// The most that all processes had of the limit; only of a keeper, which counts it.
    pub(super) held_most: Option<Bytes>,
    /// How long all threads waited for pages; only of a keeper.
    pub(super) waited: Option<Duration>,
}

impl From<&Overview> for Seen {
    fn from(overview: &Overview) -> Self {
        let (summary, verdict) = (overview.summary(), overview.verdict());
        Self {
            devices: overview.devices().map(Device::new).collect(),
            stalls: Some(Stalls::new(overview.stall_time())),
            out_of_memory: verdict & verdict::OUT_OF_MEMORY != 0,
            escaped: Escaped::inside(&summary, verdict),
            summary,
            held_most: None,
            waited: None,
        }
    }
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
}

/// What was outside the limit; with the pager in the program where it was more than a tenth of it.
#[derive(Debug, Serialize)]
pub(super) struct Escaped {
    /// Total over all processes that were not killed.
    bytes: u64,
    memory: Vec<&'static str>,
    programs: Vec<String>,
}

impl Escaped {
    /// What was outside where the pager is in the program.
    fn inside(summary: &Summary, verdict: u32) -> Self {
        Self {
            bytes: count(summary, "outside_kib") << 10,
            memory: escapes::memory(verdict),
            programs: escapes::programs(verdict).into_iter().map(str::to_owned).collect(),
        }
    }

    /// What a keeper could not attach to.
    pub(super) fn kept(outside: Vec<OutsideProcess>) -> Self {
        let bytes = outside.iter().map(|process| process.memory_max.0).sum();
        let program = |OutsideProcess { pid, name, memory_max }| {
            format!("{name} (process {pid}), up to {memory_max}")
        };
        Self { bytes, memory: Vec::new(), programs: outside.into_iter().map(program).collect() }
    }
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.memory.is_empty() {
            write!(f, "{} of {}", Bytes(self.bytes), self.memory.join(", "))?;
        }
        if !self.programs.is_empty() {
            let and = if self.memory.is_empty() { "" } else { "; " };
            write!(f, "{and}{}", self.programs.join(", "))?;
        }
        Ok(())
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
    pub(super) fn new(state: DeviceState) -> Self {
        let DeviceState { number, leaving, info, used, used_most, compressed } = state;
        Self {
            area: number,
            leaving,
            capacity_bytes: info.capacity().0,
            name: info.name,
            used_bytes: used.0,
            used_bytes_max: used_most.0,
            notes: info.notes,
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
        let Seen { summary, devices, stalls, out_of_memory, escaped, held_most, waited } = seen;
        Self {
            schema: SCHEMA,
            out_of_memory,
            processes: count(&summary, "processes"),
            command,
            exit_status,
            signal: ended.signal(),
            wall_seconds: ended.wall.as_secs_f64(),
            stalls,
            waited_seconds: waited.map(|waited| waited.as_secs_f64()),
            used: ended.used.as_ref().map(Used::from),
            memory_bytes: summary.memory_bytes,
            held_bytes_max: held_most.map(|held| held.0),
            devices,
            escaped,
            summary,
        }
    }

    /// Returns the lines of the summary.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let always = [self.memory_line(), self.paging_line(), self.devices_line()];
        let other = [self.signal_line(), self.escaped_line(), self.lost_line()];
        always.into_iter().chain(other.into_iter().flatten())
    }

    /// Returns a line only if a signal ended the program: to a shell, we are the program.
    fn signal_line(&self) -> Option<String> {
        let signal = self.signal.filter(|_| !self.out_of_memory)?;
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        Some(format!("the program was ended by {name} (signal {signal})"))
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
        let most = match self.held_bytes_max {
            Some(held) => format!("most in use {}", Bytes(held)),
            None => format!("peak resident {}", Bytes(self.peak_resident_bytes())),
        };
        let (memory, wall) = (Bytes(self.memory_bytes), self.wall_seconds);
        format!("memory {memory}, {most}, {wall:.2} s{processes}")
    }

    fn peak_resident_bytes(&self) -> u64 {
        self.used.as_ref().map_or(0, |used| used.peak_resident_bytes)
    }

    /// Returns a line about memory outside the limit.
    fn escaped_line(&self) -> Option<String> {
        let Escaped { memory, programs, .. } = &self.escaped;
        if !memory.is_empty() || !programs.is_empty() {
            return Some(format!("outside the limit: {}", self.escaped));
        }
        if self.held_bytes_max.is_some() {
            // A keeper counts what is in the limit, and says what is not.
            return None;
        }
        let above = self.peak_resident_bytes().saturating_sub(self.memory_bytes);
        (above > self.memory_bytes / 10 + UNSAID_BYTES).then(|| {
            let reasons = "code, stacks, shared memory, what is not got by malloc or mmap";
            format!("outside the limit: {} or more, of {reasons}", Bytes(above))
        })
    }

    fn paging_line(&self) -> String {
        let Summary { pages_in, pages_out, faults, fault_latency, .. } = &self.summary;
        let waited = self.waited_seconds.map(|waited| format!(", waited for {waited:.2} s in all"));
        let waited = waited.unwrap_or_default();
        let line = format!("{pages_in} pages in, {pages_out} out; {faults} faults{waited}");
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

/// Returns a line for each device that could be faster or safer.
pub(super) fn limits_of_devices(overview: &Overview) -> impl Iterator<Item = String> {
    overview.devices().flat_map(|DeviceState { info, .. }| limits_of(&info.name, &info.notes))
}

/// Returns those of a device's notes that are about what could be faster or safer, as lines.
pub(super) fn limits_of(name: &str, notes: &[String]) -> Vec<String> {
    let limits = notes.iter().filter(|note| doctor::is_limit(note));
    limits.map(|note| format!("{name}: {note}")).collect()
}

/// Returns a line about a way that is not the fastest.
pub(super) fn way(way: Way) -> Option<&'static str> {
    match way {
        Way::Faults => None,
        Way::Calls => Some(
            "userfaultfd is permitted for touches by the program only, so its system calls are caught: \
             they are slower (`overspill doctor` says what would help)",
        ),
        Way::Touches => Some(
            "userfaultfd is not permitted, so touches raise signals and system calls are caught: both \
             are slower (`overspill doctor` says what would help)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
