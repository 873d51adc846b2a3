//! The arguments of `overspill-lab sim`.

use super::measure::ReportFiles;
use clap::{Args, Subcommand};
use overspill_sim::Parameter;
use std::path::PathBuf;

/// Simulate a machine of many CPUs, on which the engine itself runs in virtual time.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Example:\n  overspill-lab sim run scan-more --html report.html"
)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    pub(crate) what: Sim,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    List(ListArgs),
    Run(SimRunArgs),
    Sweep(SweepArgs),
    Calibrate(CalibrateArgs),
    Explore(ExploreArgs),
}

/// List the published experiments that can be simulated.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab sim list")]
pub(crate) struct ListArgs {}

/// Simulate published experiments, and print what was published beside it.
///
/// Exits with 0 if every mark holds, otherwise with 1. The same seed gives the same figures.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab sim run scan-more scan-base-v2")]
pub(crate) struct SimRunArgs {
    /// Names of experiments, as `overspill-lab sim list` has them [default: all]
    #[arg(value_name = "PRESET")]
    pub(crate) presets: Vec<String>,

    /// What is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Virtual seconds that are counted [default: the experiment's]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<f64>,

    #[command(flatten)]
    pub(crate) files: ReportFiles,
}

/// Vary one parameter of the machine, for every preset of the engine: linux-2.6.23, linux-4.8,
/// linux-4.11, linux-5.7, linux-5.8, modern.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overspill-lab sim sweep --over cpus --presets modern,linux-4.8 --seconds 0.01"
)]
pub(crate) struct SweepArgs {
    /// cpus, sockets, devices, size (of the device, in GiB), fragmentation (share of slots in use);
    /// or, of machines that swap to a cluster: clients, servers, deaths (of servers, at once)
    #[arg(long, value_name = "PARAMETER")]
    pub(crate) over: Parameter,

    /// Its values [default: some from the least to the most]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) values: Vec<f64>,

    /// Presets of the engine [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) presets: Vec<String>,

    /// Virtual seconds that are counted in each run
    #[arg(long, value_name = "N", default_value_t = 0.02)]
    pub(crate) seconds: f64,

    /// What is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) files: ReportFiles,

    /// Write the plot alone to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Measure on one CPU what of the cost model can be measured here.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab sim calibrate")]
pub(crate) struct CalibrateArgs {}

/// Run small machines in many orders, and check every counter after each.
///
/// Prints the seed of a run that fails; with it as --seed and --runs 1 it fails again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill-lab sim explore --runs 1000")]
pub(crate) struct ExploreArgs {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Runs, each of the next seed; 0 goes on until it is stopped
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) runs: u64,
}
