//! `overspill stats`.

use super::seen::Seen;
use super::{Question, of_process};
use crate::args::StatsArgs;
use crate::error::Error;
use crate::say;
use overspill::Bytes;

/// Prints what the run of a process tells, or a line for each run.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Output`].
pub(crate) fn stats(args: &StatsArgs) -> Result<u8, Error> {
    let text = match args.process {
        Some(process) => Question::Look.ask(of_process(process)?)?,
        None => {
            let (runs, stopped) = Seen::all_and_stopped();
            for run in stopped {
                say::line(Error::Stopped(run.process));
            }
            table(&runs)
        }
    };
    text.lines().try_for_each(say::result)?;
    Ok(0)
}

const HEADING: [&str; 7] = ["RUN", "LIMIT", "USED", "SWAP", "IN", "OUT", "COMMAND"];

/// A line for each run, in columns.
fn table(runs: &[Seen]) -> String {
    let rows: Vec<_> =
        std::iter::once(HEADING.map(str::to_owned)).chain(runs.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEADING.len() - 1).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let columns = row.iter().zip(&widths).map(|(text, width)| format!("{text:>width$}  "));
        columns.collect::<String>() + &row[HEADING.len() - 1] + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(seen: &Seen) -> [String; 7] {
    [
        seen.run.to_string(),
        seen.limit(),
        Bytes(seen.memory_used_bytes).to_string(),
        Bytes(seen.swap_used_bytes()).to_string(),
        seen.summary.pages_in.to_string(),
        seen.summary.pages_out.to_string(),
        seen.words(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let text = table(&[Seen::of_a_test()]);
        let expected = "RUN   LIMIT    USED   SWAP  IN   OUT  COMMAND\n \
                        42  64 MiB  32 MiB  8 KiB   7  1234  sort x\n";
        assert_eq!(text, expected);
    }
}
