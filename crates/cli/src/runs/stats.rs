//! `overspill stats`.

use super::seen::{Seen, stopped_and_others};
use super::{Question, of_process};
use crate::args::StatsArgs;
use crate::error::Error;
use crate::say;
use overspill::Bytes;
use overspill_run::Run;

/// Prints what the run of a process tells, or all runs, a line each or as JSON.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Output`].
pub(crate) fn stats(args: &StatsArgs) -> Result<u8, Error> {
    let text = match args.process {
        Some(process) => Question::Look.ask(of_process(process)?)?,
        None if args.json => json(),
        None => {
            let (runs, stopped) = Seen::all_and_stopped();
            say_stopped(&stopped);
            if runs.is_empty() && stopped.is_empty() {
                say::line("no run of yours goes on");
            }
            say_excess(&runs);
            table(&runs)
        }
    };
    text.lines().try_for_each(say::result)?;
    Ok(0)
}

fn say_stopped(runs: &[Run]) {
    runs.iter().for_each(|run| say::line(Error::Stopped(run.process)));
}

/// A line for each run that cannot keep its limit.
fn say_excess(runs: &[Seen]) {
    for Seen { run, over_limit_bytes, .. } in runs.iter().filter(|run| run.over_limit_bytes > 0) {
        let excess = Bytes(*over_limit_bytes);
        say::line(format!("run {run} has {excess} above its limit, which cannot leave memory"));
    }
}

/// What all runs tell that answer.
fn json() -> String {
    let (stopped, runs) = stopped_and_others();
    say_stopped(&stopped);
    // As they are: what this version does not know is told too.
    let answers = Seen::answers(runs).into_iter();
    let values = answers.filter_map(|(_, answer)| serde_json::from_str(&answer).ok());
    format!("{:#}", serde_json::Value::Array(values.collect()))
}

const HEADING: [&str; 9] =
    ["RUN", "TIME", "LIMIT", "USED", "SWAP", "WAITS", "IN", "OUT", "COMMAND"];

/// A line for each run, in columns.
fn table(runs: &[Seen]) -> String {
    let rows: Vec<_> =
        std::iter::once(HEADING.map(str::to_owned)).chain(runs.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEADING.len() - 1).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; HEADING.len()]| {
        let columns = row.iter().zip(&widths).map(|(text, width)| format!("{text:>width$}  "));
        columns.collect::<String>() + &row[HEADING.len() - 1] + "\n"
    };
    rows.iter().map(line).collect()
}

/// All of it since the run began.
fn row(seen: &Seen) -> [String; HEADING.len()] {
    let waits = 100.0 * seen.stall_some_seconds / seen.wall_seconds.max(1e-3);
    [
        seen.run.to_string(),
        seen.time(),
        seen.limit(),
        Bytes(seen.memory_used_bytes).to_string(),
        Bytes(seen.swap_used_bytes()).to_string(),
        format!("{:.0}%", waits.min(100.0)),
        Bytes::of_pages(seen.summary.pages_in).to_string(),
        Bytes::of_pages(seen.summary.pages_out).to_string(),
        seen.words(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let text = table(&[Seen::of_a_test()]);
        let expected = "RUN      TIME   LIMIT    USED   SWAP  WAITS      IN      OUT  COMMAND\n \
                        42  00:00:02  64 MiB  32 MiB  8 KiB    60%  28 KiB  4.8 MiB  sort x\n";
        assert_eq!(text, expected);
    }
}
