//! `overspill stats`: runs that go on.
//!
//! Not here: what a run tells (`run::live`).

use crate::args::StatsArgs;
use crate::error::Error;
use overspill::Bytes;
use overspill::session::Run;
use serde_json::Value;
use std::io::{Write, stdout};

/// Prints what the run of a process tells, or a line for each run.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Runs`], [`Error::Output`].
pub(crate) fn stats(args: &StatsArgs) -> Result<u8, Error> {
    let runs = Run::all().map_err(Error::Runs)?;
    let text = match args.process {
        Some(process) => {
            let run = run_of(process, &runs).ok_or(Error::NoRun(process))?;
            run.ask().map_err(|_| Error::NoRun(process))?
        }
        // One that ends meanwhile is left out.
        None => table(&runs.iter().filter_map(|run| run.ask().ok()).collect::<Vec<_>>()),
    };
    stdout().write_all(text.as_bytes())?;
    Ok(0)
}

/// The run of `process`, which is its `overspill run` or came from it.
fn run_of(process: i32, runs: &[Run]) -> Option<Run> {
    let line = std::iter::successors(Some(process), |&process| parent_of(process));
    line.into_iter().find_map(|process| runs.iter().find(|run| run.process == process).copied())
}

fn parent_of(process: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent > 0).then_some(parent)
}

const HEADING: [&str; 7] = ["RUN", "LIMIT", "USED", "SWAP", "IN", "OUT", "COMMAND"];

/// A line for each answer that can be read, in columns.
fn table(answers: &[String]) -> String {
    let rows = answers.iter().filter_map(|answer| row(&serde_json::from_str(answer).ok()?));
    let rows: Vec<_> = std::iter::once(HEADING.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEADING.len() - 1).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let columns = row.iter().zip(&widths).map(|(text, width)| format!("{text:>width$}  "));
        columns.collect::<String>() + &row[HEADING.len() - 1] + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(live: &Value) -> Option<[String; 7]> {
    let number = |value: &Value| value.as_u64();
    let bytes = |value: &Value| number(value).map(|bytes| Bytes(bytes).to_string());
    let swap: u64 =
        live["devices"].as_array()?.iter().filter_map(|d| number(&d["used_bytes"])).sum();
    let words = live["command"].as_array()?.iter().filter_map(Value::as_str);
    Some([
        number(&live["run"])?.to_string(),
        bytes(&live["memory_bytes"])?,
        bytes(&live["memory_used_bytes"])?,
        Bytes(swap).to_string(),
        number(&live["summary"]["pages_in"])?.to_string(),
        number(&live["summary"]["pages_out"])?.to_string(),
        words.collect::<Vec<_>>().join(" "),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_what_cannot_be_read_is_left_out() {
        let live = serde_json::json!({
            "run": 42, "command": ["sort", "x"], "memory_bytes": 1 << 26, "memory_used_bytes": 1 << 25,
            "devices": [{"used_bytes": 4096}, {"used_bytes": 4096}],
            "summary": {"pages_in": 7, "pages_out": 1234},
        });
        let text = table(&[live.to_string(), String::new(), "{}".into()]);
        let expected = "RUN   LIMIT    USED   SWAP  IN   OUT  COMMAND\n \
                        42  64 MiB  32 MiB  8 KiB   7  1234  sort x\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_process_is_in_the_run_that_it_came_from() {
        let me = std::process::id() as i32;
        assert!(
            parent_of(me)
                .is_some_and(|parent| parent == std::os::unix::process::parent_id() as i32)
        );
        assert_eq!(run_of(me, &[]), None);
    }
}
