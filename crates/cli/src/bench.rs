//! `overspill bench`: measurements of the engine itself, and against kernel swap.
//!
//! Invariants: the files of a report are opened before anything is measured, so that a typo in a
//! name costs no measurement.
//! Not here: measuring, and how figures are written, which `overspill-bench` does.

use crate::args::{AblateArgs, Bench, BenchArgs, CompareArgs, PolicyArgs, ReplayArgs};
use crate::args::{ProgramsArgs, SlotsArgs, TouchArgs};
use crate::error::Error;
use crate::say;
use overspill_bench::{AblateOptions, PolicyOptions, Shape, SlotOptions};
use overspill_bench::{CompareOptions, PROGRAMS, ProgramOptions, ReplayOptions, TouchOptions};
use overspill_bench::{ablate, footprint, lock_costs, policies, report, slot_rates};
use overspill_bench::{compare, programs, replay_in_group, touch};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Runs the requested measurements, prints the results, and writes the files.
///
/// # Errors
/// [`Error::Bench`], [`Error::Report`], [`Error::Output`], [`Error::System`].
pub(crate) fn bench(args: BenchArgs) -> Result<u8, Error> {
    match args.what {
        Bench::Ablate(args) => run_ablate(args)?,
        Bench::Slots(args) => run_slots(args)?,
        Bench::Policy(args) => run_policies(args)?,
        Bench::Memory(args) => {
            let json = ReportFile::open(args.json)?;
            let found = footprint()?;
            print(&report::footprint_text(&found))?;
            json.write(|| report::json(&found))?;
        }
        Bench::Locks(args) => {
            let json = ReportFile::open(args.json)?;
            let found = lock_costs();
            print(&report::lock_cost_text(&found))?;
            json.write(|| report::json(&found))?;
        }
        Bench::Compare(args) => run_compare(args)?,
        Bench::Programs(args) => run_programs(args)?,
        Bench::Touch(args) => run_touch(*args)?,
        Bench::Replay(args) => run_replay(args)?,
    }
    Ok(0)
}

fn run_ablate(args: AblateArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let options = AblateOptions {
        mechanisms: args.mechanism,
        threads: args.threads,
        seconds: args.seconds,
        rounds: args.rounds,
        shape: Shape::default(),
    };
    let found = ablate(&options, &|line| say::line(line))?;
    print(&report::ablate_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::ablate_html(&found))
}

fn run_slots(args: SlotsArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let options = SlotOptions {
        threads: args.threads,
        seconds: args.seconds,
        rounds: args.rounds,
        area_slots: Shape::default().device_slots,
    };
    let found = slot_rates(&options, &|line| say::line(line))?;
    print(&report::slots_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::slots_html(&found))
}

fn run_compare(args: CompareArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let (program, directory) = (this_program()?, swap_directory());
    let options = CompareOptions {
        workloads: args.workloads,
        ways: args.ways,
        devices: args.devices,
        jobs: args.jobs,
        memory: args.memory,
        rounds: args.rounds,
        habits: args.habits.habits(),
        costs: args.costs,
        program,
        directory,
    };
    let found = compare(&options, &|line| say::line(line))?;
    print(&report::compare_text(&found))?;
    if args.histogram {
        print(&report::compare_histograms(&found))?;
    }
    json.write(|| report::json(&found))?;
    html.write(|| report::html::compare_html(&found))
}

fn run_programs(args: ProgramsArgs) -> Result<(), Error> {
    let json = ReportFile::open(args.json)?;
    let some = !args.programs.is_empty();
    let options = ProgramOptions {
        programs: if some { args.programs } else { PROGRAMS.to_vec() },
        sides: args.sides,
        devices: args.devices,
        rounds: args.rounds,
        patience_seconds: args.patience,
        sqlite: args.sqlite,
        program: this_program()?,
        directory: swap_directory(),
    };
    let found = programs(&options, &|line| say::line(line))?;
    print(&report::programs_text(&found))?;
    json.write(|| report::json(&found))
}

fn run_touch(args: TouchArgs) -> Result<(), Error> {
    let found = touch(&TouchOptions {
        workload: args.workload,
        jobs: args.jobs,
        habits: args.habits.habits(),
        seed: args.seed,
        idle_seconds: args.idle,
        region: args.memory.zip(args.swap),
        faults: args.faults,
        cgroup: args.cgroup,
    })?;
    let text = if args.histogram { found.histogram_text() } else { report::json(&found) };
    print(&text)
}

fn run_policies(args: PolicyArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let options = PolicyOptions {
        workloads: args.workload,
        traces: args.trace,
        memory_pages: args.memory_pages,
        touches: args.touches,
        program: this_program()?,
        directory: swap_directory(),
    };
    let found = policies(&options, &|line| say::line(line))?;
    print(&report::policy_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::policy_html(&found))
}

fn run_replay(args: ReplayArgs) -> Result<(), Error> {
    let ReplayArgs { workload, memory_pages, touches, cgroup } = args;
    let found = replay_in_group(&ReplayOptions { workload, memory_pages, touches, cgroup })?;
    print(&report::json(&found))
}

/// Path of this program, which is run again and measured.
fn this_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(Error::system("find this program"))
}

/// Directory for swap files.
fn swap_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

pub(crate) fn print(text: &str) -> Result<(), Error> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// A file for a report, if one was asked for.
pub(crate) struct ReportFile(Option<(PathBuf, File)>);

impl ReportFile {
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let open = |path: PathBuf| match File::create(&path) {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(Error::Report { path, source }),
        };
        path.map(open).transpose().map(Self)
    }

    pub(crate) fn write(self, text: impl FnOnce() -> String) -> Result<(), Error> {
        let Some((path, mut file)) = self.0 else { return Ok(()) };
        file.write_all(text().as_bytes()).map_err(|source| Error::Report { path, source })
    }
}
