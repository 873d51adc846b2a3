//! The arguments of measurements.

use super::compare::{CompareArgs, TouchArgs};
use super::programs::ProgramsArgs;
use clap::{Args, Subcommand};
use overspill_bench::{mechanism_names, trace_names};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Measure {
    Ablate(AblateArgs),
    Slots(SlotsArgs),
    Memory(MemoryArgs),
    Locks(LocksArgs),
    Policy(PolicyArgs),
    Compare(CompareArgs),
    Programs(ProgramsArgs),
    Touch(Box<TouchArgs>),
    Replay(ReplayArgs),
}

/// Compare engines that differ in one mechanism.
///
/// Threads touch random pages of a working set four times as large as memory, 80 % of them reading.
/// Both sides run in turn; printed are medians, and in brackets the smallest and the largest run.
#[derive(Debug, Args)]
#[command(after_help = ablate_help())]
pub(crate) struct AblateArgs {
    /// The mechanism to switch; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) mechanism: Vec<String>,

    /// Threads, each a CPU of its own to the engine
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) threads: usize,

    /// How long each run is timed; it takes half as long again
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub(crate) seconds: f64,

    /// Runs of each side
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,

    #[command(flatten)]
    pub(crate) files: ReportFiles,
}

/// Measure how fast slots are allocated and freed, without I/O, with every preset.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab slots --threads 1,2 --html slots.html")]
pub(crate) struct SlotsArgs {
    /// Numbers of threads, each a CPU of its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,16")]
    pub(crate) threads: Vec<usize>,

    /// How long each run takes
    #[arg(long, value_name = "N", default_value_t = 0.5)]
    pub(crate) seconds: f64,

    /// Runs of each preset
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,

    #[command(flatten)]
    pub(crate) files: ReportFiles,
}

/// Count which pages are in memory when they are touched, against exact LRU, CLOCK, the optimum and
/// the kernel.
///
/// The same traces are replayed over each policy. A hit rate is the share of touches that cost no
/// page read from swap. All figures are counts: they are the same on every machine, except the
/// kernel's. Its column takes root: it makes a memory control group and a swap device, and removes
/// them again.
#[derive(Debug, Args)]
#[command(after_help = policy_help())]
pub(crate) struct PolicyArgs {
    /// The trace to replay; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<String>,

    /// A trace recorded by `overspill run --touches FILE`, to replay instead; may be given several
    /// times
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "touches"])]
    pub(crate) trace: Vec<PathBuf>,

    /// Pages of 4 KiB that may be in memory
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub(crate) memory_pages: usize,

    /// Touches of each trace, after all of its pages were filled
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) touches: usize,

    #[command(flatten)]
    pub(crate) files: ReportFiles,
}

/// Replay one trace in memory that the kernel pages: what `policy` runs for the kernel's column.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ReplayArgs {
    /// The trace
    pub(crate) workload: String,

    /// Pages of 4 KiB of it that may be in memory
    #[arg(long, value_name = "N")]
    pub(crate) memory_pages: usize,

    /// Touches, after all of its pages were filled
    #[arg(long, value_name = "N")]
    pub(crate) touches: usize,

    /// The control group to enter and to limit
    #[arg(long, value_name = "DIR")]
    pub(crate) cgroup: PathBuf,
}

/// Measure the memory that the engine itself takes, per page, slot and frame.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab memory --json memory.json")]
pub(crate) struct MemoryArgs {
    /// Write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Measure what counting the uses of a lock costs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab locks --json locks.json")]
pub(crate) struct LocksArgs {
    /// Write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Where a report goes beside the standard output.
#[derive(Debug, Args)]
pub(crate) struct ReportFiles {
    /// Write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a page with plots to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

fn ablate_help() -> String {
    let names = mechanism_names().join(", ");
    format!(
        "Mechanisms: {names}.\n\nExample:\n  overspill-lab ablate --mechanism scan_more --html page.html"
    )
}

fn policy_help() -> String {
    let names = trace_names().join(", ");
    format!("Traces: {names}.\n\nExample:\n  overspill-lab policy --workload zipf --touches 200000")
}
