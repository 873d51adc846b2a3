//! `compare`: the same workloads under kernel swap and under Overspill.
//!
//! Owns: the order of the runs, and what a comparison consists of.
//! Invariants: the ways of a row alternate, and each round starts with another one, so that a
//! machine that slows down slows all; every run is a fresh process. Kernel swap is on only while it
//! is measured. Options are checked before anything is created on the machine.
//! Not here: the measured program ([`crate::touch`]), how a report looks ([`crate::report`]).

pub(crate) mod child;
mod counters;
pub(crate) mod kernel;
mod sample;
mod servers;
pub(crate) mod undo;
mod ways;

pub(crate) use counters::cpu_seconds;
pub(crate) use sample::statistics_of_run;
pub use sample::{Cell, Costs, Tail};
pub use ways::{Device, Place, Way};

use crate::error::{BenchError, within};
use crate::touch::{self, Habits, SET_MAX};
use child::Interrupted;
use kernel::{Group, Skipped, SwapDevice};
use overspill::{Bytes, MEMORY_MIN};
use overspill_report::Environment;
use sample::Sample;
use serde::Serialize;
use servers::Server;
use std::path::Path;
use undo::Undo;
use ways::Run;

/// What to compare.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// Who pages.
    pub ways: Vec<Way>,
    /// Where to.
    pub devices: Vec<Device>,
    /// Numbers of threads.
    pub jobs: Vec<usize>,
    /// The limit.
    pub memory: Bytes,
    /// Runs of each way in each row.
    pub rounds: usize,
    /// How memory is touched.
    pub habits: Habits,
    /// Whether each way is run once more to find its [`Costs`].
    pub costs: bool,
    /// What is run, and where.
    pub place: Place,
}

impl CompareOptions {
    /// Size of each device: twice what is touched, so that none runs full.
    fn swap_size(&self) -> Bytes {
        Bytes::of_pages(2 * self.habits.set.pages_ceil())
    }

    fn check(&self) -> Result<(), BenchError> {
        within("--rounds", self.rounds, 1..=1000)?;
        within("--memory", self.memory, MEMORY_MIN..=SET_MAX)?;
        within("--set", self.habits.set, self.memory..=SET_MAX)?;
        for workload in &self.workloads {
            for &jobs in &self.jobs {
                touch::check(workload, jobs, &self.habits)?;
            }
        }
        Ok(())
    }
}

/// All rows, and the machine they ran on.
#[derive(Debug, Serialize)]
pub struct CompareReport {
    /// The machine.
    pub environment: Environment,
    /// Settings that matter for the kernel's side.
    pub kernel_settings: String,
    /// The limit.
    pub memory_bytes: u64,
    /// What was touched.
    pub set_bytes: u64,
    /// Seconds timed in each run.
    pub seconds: f64,
    /// Runs of each way in each row.
    pub rounds: usize,
    /// Touches that read, in per cent, unless the workload sets it.
    pub reads_percent: u8,
    /// What pages held, unless the workload sets it.
    pub content: &'static str,
    /// What could not be measured here, and why.
    pub skipped: Vec<String>,
    /// One for each device, workload and number of threads.
    pub rows: Vec<Row>,
}

/// All ways under the same conditions.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Where pages went.
    pub device: Device,
    /// The workload's name.
    pub workload: String,
    /// Threads.
    pub jobs: usize,
    /// One for each way.
    pub cells: Vec<Cell>,
}

/// Compares; `progress` gets a line about each row at its start.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::Unknown`], [`BenchError::OtherSwap`],
/// [`BenchError::Left`], [`BenchError::Interrupted`], and the errors of a run.
pub fn compare(
    options: &CompareOptions,
    progress: &dyn Fn(&str),
) -> Result<CompareReport, BenchError> {
    options.check()?;
    let interrupted = child::watch_signals()?;
    let mut comparison = Comparison { options, interrupted, progress, skipped: Vec::new() };
    let kernel = comparison.kernel()?;
    let mut rows = Vec::new();
    for &device in &options.devices {
        rows.extend(comparison.rows_on(device, kernel.as_ref())?);
    }
    Ok(CompareReport {
        environment: Environment::read(),
        kernel_settings: kernel_settings(kernel.as_ref()),
        memory_bytes: options.memory.0,
        set_bytes: options.habits.set.0,
        seconds: options.habits.seconds,
        rounds: options.rounds,
        reads_percent: options.habits.ratio,
        content: options.habits.content.name(),
        skipped: comparison.skipped,
        rows,
    })
}

/// What the kernel's side needs. Fields are in the order in which they must be dropped.
struct Kernel {
    group: Group,
    undo: Undo,
}

/// The kernel's side on one device.
#[derive(Clone, Copy)]
struct KernelSide<'a> {
    group: &'a Path,
    swap: &'a SwapDevice,
}

struct Comparison<'a> {
    options: &'a CompareOptions,
    interrupted: Interrupted,
    progress: &'a dyn Fn(&str),
    skipped: Vec<String>,
}

impl Comparison<'_> {
    fn skip(&mut self, what: &str, reason: &str) {
        let line = format!("skipped: {what}: {reason}");
        (self.progress)(&line);
        self.skipped.push(line);
    }

    /// Sets up the kernel's side, if requested and possible.
    fn kernel(&mut self) -> Result<Option<Kernel>, BenchError> {
        if self.options.costs && !sample::perf_counts() {
            self.skip("system calls", "perf is not there or may not count raw_syscalls:sys_enter");
        }
        if !self.options.ways.contains(&Way::Kernel) {
            return Ok(None);
        }
        if let Some(areas) = kernel::other_swap() {
            return Err(BenchError::OtherSwap(areas));
        }
        if !rustix::process::geteuid().is_root() {
            self.skip("kernel", "control groups and swapon take root");
            return Ok(None);
        }
        let undo = Undo::begin()?;
        let made = Group::new(&undo, self.options.memory).map(|group| Kernel { group, undo });
        Ok(made.map_err(|reason| self.skip("kernel", &reason)).ok())
    }

    /// Makes the kernel's device, if the kernel takes part and the device can be made.
    fn swap_device(&mut self, device: Device, kernel: Option<&Kernel>) -> Option<SwapDevice> {
        let size = self.options.swap_size();
        let made: Result<_, Skipped> =
            SwapDevice::new(device, size, &self.options.place, &kernel?.undo);
        made.map_err(|reason| self.skip(&format!("kernel on {}", device.name()), &reason)).ok()
    }

    fn rows_on(&mut self, device: Device, kernel: Option<&Kernel>) -> Result<Vec<Row>, BenchError> {
        let (size, directory) = (self.options.swap_size(), &self.options.place.directory);
        let server = match Server::start(device, size) {
            Ok(server) => server,
            Err(reason) => {
                self.skip(device.name(), &reason);
                return Ok(Vec::new());
            }
        };
        let own = device.counterpart(size, directory);
        let own = own.as_deref().or(server.as_ref().map(Server::swap));
        let own = own.expect("what is not a server's is here");
        let ways = self.ways_on(device);
        let kernel = kernel.filter(|_| ways.contains(&Way::Kernel));
        let swap = self.swap_device(device, kernel);
        let group = kernel.map(|kernel| kernel.group.path.as_path());
        let side = group.zip(swap.as_ref()).map(|(group, swap)| KernelSide { group, swap });
        let mut rows = Vec::new();
        for workload in &self.options.workloads {
            for &jobs in &self.options.jobs {
                let rounds = self.options.rounds;
                let name = device.name();
                (self.progress)(&format!("{name}, {workload}, {jobs} threads: {rounds} rounds"));
                let (options, idle_seconds, swap) = (self.options, 0.0, own);
                let run = Run { options, device, swap, workload, jobs, seed: 0, idle_seconds };
                rows.push(self.row(&run, &ways, side)?);
            }
        }
        Ok(rows)
    }

    /// Returns the ways that can be measured on a device.
    fn ways_on(&mut self, device: Device) -> Vec<Way> {
        let mut ways = self.options.ways.clone();
        ways.retain(|&way| {
            let lack = device.lacks(way);
            lack.iter()
                .for_each(|lack| self.skip(&format!("{} on {}", way.name(), device.name()), lack));
            lack.is_none()
        });
        ways
    }

    fn row(
        &self,
        run: &Run<'_>,
        asked: &[Way],
        side: Option<KernelSide<'_>>,
    ) -> Result<Row, BenchError> {
        let asked = asked.iter().copied();
        let mut ways: Vec<Way> =
            asked.filter(|way| *way != Way::Kernel || side.is_some()).collect();
        let shown = ways.clone();
        let mut samples: Vec<(Way, Vec<Sample>)> = ways.iter().map(|&way| (way, vec![])).collect();
        for round in 0..self.options.rounds {
            for &way in &ways {
                let run = Run { seed: round, ..*run };
                let sample = self.with_swap(way, side, |group| {
                    Sample::take(&run, way, group, &self.interrupted)
                })?;
                let of_way = samples.iter_mut().find(|(known, _)| *known == way);
                of_way.expect("every way has its samples").1.push(sample);
            }
            ways.rotate_left(1);
        }
        let mut cells = cells(&samples);
        if self.options.costs {
            for (cell, way) in cells.iter_mut().zip(shown) {
                cell.costs = Some(self.with_swap(way, side, |group| {
                    Costs::take(run, way, group, &self.interrupted)
                })?);
            }
        }
        Ok(Row { device: run.device, workload: run.workload.to_owned(), jobs: run.jobs, cells })
    }

    /// Runs `work`, with the kernel's swap on if it is the kernel's turn.
    fn with_swap<T>(
        &self,
        way: Way,
        side: Option<KernelSide<'_>>,
        work: impl FnOnce(Option<&Path>) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let Some(KernelSide { group, swap }) = side.filter(|_| way == Way::Kernel) else {
            return work(None);
        };
        let _on = swap.on()?;
        work(Some(group))
    }
}

fn cells(samples: &[(Way, Vec<Sample>)]) -> Vec<Cell> {
    let kernel = samples.iter().find(|(way, _)| *way == Way::Kernel);
    let kernel = kernel.map(|(_, rounds)| rounds.as_slice());
    samples.iter().map(|(way, rounds)| Cell::new(*way, rounds, kernel)).collect()
}

/// Returns the kernel settings that a reader needs to compare.
fn kernel_settings(kernel: Option<&Kernel>) -> String {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|_| "unknown".into());
        text.trim().to_owned()
    };
    let group = kernel.map(|kernel| format!("control group version {}, ", kernel.group.version));
    format!(
        "{}swappiness {}, page-cluster {}, huge pages {}",
        group.unwrap_or_default(),
        read("/proc/sys/vm/swappiness"),
        read("/proc/sys/vm/page-cluster"),
        read("/sys/kernel/mm/transparent_hugepage/enabled")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::touch::tests::HABITS;
    use std::path::PathBuf;

    fn options() -> CompareOptions {
        CompareOptions {
            workloads: vec!["uniform".into()],
            ways: vec![Way::Region],
            devices: vec![Device::Ramdisk],
            jobs: vec![1],
            memory: MEMORY_MIN,
            rounds: 1,
            habits: Habits { set: Bytes(16 << 20), ..HABITS },
            costs: false,
            place: Place {
                overspill: PathBuf::from("/nowhere/overspill"),
                lab: PathBuf::from("/nowhere/overspill-lab"),
                directory: PathBuf::from("/var/tmp"),
            },
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_runs() {
        let small = Habits { set: Bytes(2 << 20), ..HABITS };
        let table = [
            (CompareOptions { rounds: 0, ..options() }, "bad --rounds 0: it must be 1 to 1000"),
            (
                CompareOptions { habits: small, ..options() },
                "bad --set 2 MiB: it must be 4 MiB to 4 TiB",
            ),
            (
                CompareOptions { jobs: vec![1, 300], ..options() },
                "bad --jobs 300: it must be 1 to 256",
            ),
            (
                CompareOptions { workloads: vec!["none".into()], ..options() },
                "no workload is called `none`; there are uniform, ",
            ),
            (options(), "/nowhere/overspill-lab touch uniform "),
        ];
        for (options, line) in table {
            let refusal = compare(&options, &|_| ()).unwrap_err().to_string();
            assert!(refusal.starts_with(line) && !refusal.contains('\n'), "{refusal}");
        }
    }
}
