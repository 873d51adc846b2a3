//! Measurements of the engine itself, and against kernel swap.
//!
//! Invariants: the files of a report are opened before anything is measured, so that a typo in a
//! name costs no measurement.
//! Not here: measuring, and how figures are written, which `overspill-bench` does.

use crate::LAB;
use crate::args::{AblateArgs, CompareArgs, Measure, PolicyArgs, ReplayArgs};
use crate::args::{ProgramsArgs, SlotsArgs, TouchArgs};
use crate::error::Error;
use overspill_bench::{AblateOptions, PolicyOptions, Shape, SlotOptions};
use overspill_bench::{
    CompareOptions, PROGRAMS, Place, ProgramOptions, ReplayOptions, TouchOptions,
};
use overspill_bench::{ablate, footprint, lock_costs, policies, report, slot_rates};
use overspill_bench::{compare, programs, replay_in_group, touch};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Runs the requested measurements, prints the results, and writes the files.
///
/// # Errors
/// [`Error::Bench`], [`Error::Report`], [`Error::Output`], [`Error::NoExecutable`].
pub(crate) fn measure(what: Measure) -> Result<u8, Error> {
    match what {
        Measure::Ablate(args) => run_ablate(args)?,
        Measure::Slots(args) => run_slots(args)?,
        Measure::Policy(args) => run_policies(args)?,
        Measure::Memory(args) => {
            let json = ReportFile::open(args.json)?;
            let found = footprint()?;
            print(&report::footprint_text(&found))?;
            json.write(|| report::json(&found))?;
        }
        Measure::Locks(args) => {
            let json = ReportFile::open(args.json)?;
            let found = lock_costs();
            print(&report::lock_cost_text(&found))?;
            json.write(|| report::json(&found))?;
        }
        Measure::Compare(args) => run_compare(args)?,
        Measure::Programs(args) => run_programs(args)?,
        Measure::Touch(args) => run_touch(*args)?,
        Measure::Replay(args) => run_replay(args)?,
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
    let found = ablate(&options, &|line| LAB.say(line))?;
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
    let found = slot_rates(&options, &|line| LAB.say(line))?;
    print(&report::slots_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::slots_html(&found))
}

fn run_compare(args: CompareArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let place = place()?;
    let options = CompareOptions {
        workloads: args.workloads,
        ways: args.ways,
        devices: args.devices,
        jobs: args.jobs,
        memory: args.memory,
        rounds: args.rounds,
        habits: args.habits.habits(),
        costs: args.costs,
        place,
    };
    let found = compare(&options, &|line| LAB.say(line))?;
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
        place: place()?,
    };
    let found = programs(&options, &|line| LAB.say(line))?;
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
        place: place()?,
    };
    let found = policies(&options, &|line| LAB.say(line))?;
    print(&report::policy_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::policy_html(&found))
}

fn run_replay(args: ReplayArgs) -> Result<(), Error> {
    let ReplayArgs { workload, memory_pages, touches, cgroup } = args;
    let found = replay_in_group(&ReplayOptions { workload, memory_pages, touches, cgroup })?;
    print(&report::json(&found))
}

/// This program, which is run again and measured; `overspill`, which lies beside it or on PATH; and
/// a directory for swap files.
fn place() -> Result<Place, Error> {
    let lab = std::env::current_exe().map_err(Error::NoExecutable)?;
    let beside = lab.with_file_name("overspill");
    let overspill = if beside.is_file() { beside } else { "overspill".into() };
    let directory = std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
    Ok(Place { overspill, lab, directory })
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
