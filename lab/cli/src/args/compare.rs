//! The arguments of `overspill-lab compare` and `overspill-lab touch`.

use super::measure::ReportFiles;
use clap::Args;
use overspill::{Bytes, SwapSpec, parse_bytes};
use overspill_bench::{Content, Device, FaultKind, Habits, Way, workload_names};
use std::path::PathBuf;

/// Compare with kernel swap: the same workloads, memory limit and kind of device.
///
/// The ways of a row run in turn, each time as a fresh process; printed are medians, and in
/// brackets the smallest and the largest run. The kernel's side takes root: it makes a memory
/// control group and devices, and removes them again, however this ends. What cannot be made is
/// skipped, with the reason. With all defaults it takes about half an hour. docs/compare.md says
/// what the columns mean.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overspill-lab compare --workloads zipf --jobs 1,2,8 --html report.html"
)]
pub(crate) struct CompareArgs {
    /// Workloads; `overspill-lab touch --help` lists them
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "uniform,zipf,read,modify"
    )]
    pub(crate) workloads: Vec<String>,

    /// Who pages: kernel, run, region (by messages), signal (a region), pool
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "kernel,run,region,signal,pool",
        value_parser = |name: &str| named("way", name, &Way::ALL)
    )]
    pub(crate) ways: Vec<Way>,

    /// Where to: zram, ramdisk, file; nbd and redis, servers that are started on this machine
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "zram,ramdisk,file",
        value_parser = |name: &str| named("device", name, &Device::ALL)
    )]
    pub(crate) devices: Vec<Device>,

    /// Numbers of threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2")]
    pub(crate) jobs: Vec<usize>,

    /// The memory limit
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub(crate) memory: Bytes,

    /// Runs of each way in each row
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,

    /// Run each way once more, to count system calls per swapped page (by perf) and the CPU time of
    /// a process that sleeps
    #[arg(long)]
    pub(crate) costs: bool,

    /// Print latency histograms as pmbench does
    #[arg(long)]
    pub(crate) histogram: bool,

    #[command(flatten)]
    pub(crate) habits: HabitArgs,

    #[command(flatten)]
    pub(crate) files: ReportFiles,
}

/// Touch memory and check what it holds: the program that `compare` measures.
///
/// It does not know who pages its memory, unless --memory and --swap make it a region of the
/// library. Prints its report as JSON.
#[derive(Debug, Args)]
#[command(after_help = touch_help())]
pub(crate) struct TouchArgs {
    /// What to do, of the list below
    pub(crate) workload: String,

    /// Threads, each with a part of the memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) jobs: usize,

    /// Where random numbers start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Sleep so many seconds afterwards, and measure the CPU time that takes
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub(crate) idle: f64,

    /// Touch a region of the library, with so much of it in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "swap")]
    pub(crate) memory: Option<Bytes>,

    /// Where the rest of the region is, as for `overspill run`
    #[arg(long, value_name = "SPEC", requires = "memory")]
    pub(crate) swap: Option<SwapSpec>,

    /// How that memory is paged: message or signal for a region, explicit for a pool
    #[arg(
        long,
        value_name = "KIND",
        default_value = "message",
        requires = "memory",
        value_parser = |name: &str| named("kind of fault", name, &FaultKind::ALL)
    )]
    pub(crate) faults: FaultKind,

    /// Enter a control group first
    #[arg(long, value_name = "DIR")]
    pub(crate) cgroup: Option<PathBuf>,

    /// Print latency histograms as pmbench does, and not JSON
    #[arg(long)]
    pub(crate) histogram: bool,

    #[command(flatten)]
    pub(crate) habits: HabitArgs,
}

/// How memory is touched, in pmbench's terms.
#[derive(Debug, Args)]
pub(crate) struct HabitArgs {
    /// Memory that is touched
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    set: Bytes,

    /// How long each run is timed, after it has filled its memory
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    seconds: f64,

    /// Touches that read, in per cent
    #[arg(long, value_name = "N", default_value_t = 80)]
    ratio: u8,

    /// The pattern's parameter, as in pmbench
    #[arg(long, value_name = "X")]
    shape: Option<f64>,

    /// Touch only this word of 8 bytes in each page, 1 to 511 [default: any]
    #[arg(long, value_name = "N")]
    offset: Option<usize>,

    /// What pages hold: zero, compressible, incompressible, mixed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "compressible",
        value_parser = |name: &str| named("content", name, &Content::ALL)
    )]
    content: Content,
}

impl HabitArgs {
    pub(crate) fn habits(&self) -> Habits {
        let Self { set, seconds, ratio, shape, offset, content } = *self;
        Habits { set, seconds, ratio, shape, offset, content }
    }
}

/// Returns the one of `all` that is called `name`.
pub(super) fn named<T: Copy>(
    what: &str,
    name: &str,
    all: &[(&'static str, T)],
) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name);
    let names = || all.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
    found
        .map(|(_, one)| *one)
        .ok_or_else(|| format!("no {what} is called `{name}`; there are {}", names()))
}

fn touch_help() -> String {
    let lines = workload_names().into_iter().map(|(name, about)| format!("  {name:<15} {about}\n"));
    let lines: String = lines.collect();
    let example = "overspill run --memory 64M -- overspill-lab touch uniform --histogram";
    format!("Workloads:\n{lines}\nExample:\n  {example}")
}
