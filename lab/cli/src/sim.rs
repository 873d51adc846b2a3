//! `overspill-lab sim`: the engine on virtual CPUs.
//!
//! Invariants: the files of a report are opened before anything is simulated.
//! Not here: simulating, and how figures are written.

use crate::LAB;
use crate::args::{ExploreArgs, Sim, SimArgs, SimRunArgs, SweepArgs};
use crate::error::Error;
use crate::measure::{ReportFile, print};
use overspill_bench::report;
use overspill_sim::{ExploreOptions, RunOptions, SweepOptions};
use overspill_sim::{calibrate, explore, presets, run, sweep};

/// Status if a mark does not hold.
const MISSED: u8 = 1;

/// Runs the requested simulations, prints the results, and writes the files.
///
/// # Errors
/// [`Error::Sim`], [`Error::Report`], [`Error::Output`].
pub(crate) fn sim(args: SimArgs) -> Result<u8, Error> {
    match args.what {
        Sim::List(_) => {
            let width = presets().iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let lines =
                presets().into_iter().map(|(name, about)| format!("{name:<width$}  {about}\n"));
            print(&lines.collect::<String>())?;
        }
        Sim::Run(args) => return run_presets(args),
        Sim::Sweep(args) => run_sweep(args)?,
        Sim::Calibrate(_) => print(&calibrate())?,
        Sim::Explore(args) => run_explore(&args)?,
    }
    Ok(0)
}

fn run_presets(args: SimRunArgs) -> Result<u8, Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let options = RunOptions { presets: args.presets, seed: args.seed, seconds: args.seconds };
    let found = run(&options, &|line| LAB.say(line))?;
    print(&report::sim_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::sim_html(&found))?;
    Ok(if found.marks_hold() { 0 } else { MISSED })
}

fn run_sweep(args: SweepArgs) -> Result<(), Error> {
    let (json, html) = (ReportFile::open(args.files.json)?, ReportFile::open(args.files.html)?);
    let svg = ReportFile::open(args.svg)?;
    let options = SweepOptions {
        over: args.over,
        values: args.values,
        presets: args.presets,
        seconds: args.seconds,
        seed: args.seed,
    };
    let found = sweep(&options, &|line| LAB.say(line))?;
    print(&report::sweep_text(&found))?;
    json.write(|| report::json(&found))?;
    html.write(|| report::html::sweep_html(&found))?;
    svg.write(|| report::html::sweep_svg(&found))
}

fn run_explore(args: &ExploreArgs) -> Result<(), Error> {
    let options = ExploreOptions { seed: args.seed, runs: args.runs };
    let found = explore(&options, &|line| LAB.say(line))?;
    print(&format!("{found}\n"))
}
