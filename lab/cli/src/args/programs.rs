//! The arguments of `overspill-lab programs`.

use super::compare::named;
use clap::Args;
use overspill_bench::{Device, PROGRAMS, Program, Side};
use std::path::PathBuf;

/// Run real programs: with all memory they want, under kernel swap, and under `overspill run`.
///
/// Each has a limit of about a quarter of the memory it wants. What it prints must be the same in
/// all of its runs. The columns take turns; printed are medians, and in brackets the smallest and
/// the largest run. The kernel's side takes root: it makes a memory control group and devices, and
/// removes them again, however this ends. What is not installed is skipped. With all defaults it
/// takes some hours.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overspill-lab programs --programs sort-random,xz --devices zram --rounds 3"
)]
pub(crate) struct ProgramsArgs {
    /// Which programs [default: all]
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = |name: &str| named("program", name, &PROGRAMS.map(|it| (it.name, it)))
    )]
    pub(crate) programs: Vec<Program>,

    /// Who pages: plain (nobody), kernel, run
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "plain,kernel,run",
        value_parser = |name: &str| named("side", name, &Side::ALL)
    )]
    pub(crate) sides: Vec<Side>,

    /// Where to: zram, ramdisk, file
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "zram,ramdisk,file",
        value_parser = |name: &str| named("device", name, &Device::ALL[..3])
    )]
    pub(crate) devices: Vec<Device>,

    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,

    /// End a run after so many seconds
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub(crate) patience: u64,

    /// Unpacked sources of SQLite with sqlite3.c, for `sqlite` and `gcc`
    #[arg(long, value_name = "DIR")]
    pub(crate) sqlite: Option<PathBuf>,

    /// Write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
