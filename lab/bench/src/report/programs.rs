//! The results of `programs` as tables.
//!
//! Owns: which figures are in which table.
//! Invariants: each program is a row in every table, and each condition a column; a run that was
//! killed or ended by us is said to be so, and has no figures.

use super::text::table;
use super::{Rows, spread};
use crate::programs::{Figures, Outcome, ProgramCell, ProgramReport, ProgramRow, Side};
use overspill_base::Bytes;
use overspill_report::plot::Spread;

/// A table of one figure.
struct Figure {
    title: &'static str,
    value: fn(&Figures) -> Option<f64>,
    /// Whether it is compared with the kernel's.
    compared: bool,
}

const FIGURES: [Figure; 4] = [
    Figure { title: "time, s", value: |run| Some(run.seconds), compared: true },
    Figure {
        title: "CPU time of the machine, s",
        value: |run| Some(run.cpu_seconds),
        compared: true,
    },
    Figure {
        title: "pages read, thousands",
        value: |run| Some(run.pages_in as f64 / 1e3),
        compared: true,
    },
    Figure {
        title: "peak resident, MiB; plain: of the largest process",
        value: |run| Some(run.peak_bytes? as f64 / f64::from(1 << 20)),
        compared: false,
    },
];

impl Figure {
    fn rows(&self, report: &ProgramReport) -> Rows {
        let columns = columns(report);
        let heads = ["program".to_owned(), "limit".to_owned()].into_iter();
        let mut rows = vec![heads.chain(columns.iter().map(|column| head(*column))).collect()];
        rows.extend(report.rows.iter().map(|row| {
            let text = |column: &Column| cell_of(row, *column).map(|cell| self.text(row, cell));
            let texts = columns.iter().map(|column| text(column).unwrap_or_else(|| "-".into()));
            [row.program.to_owned(), Bytes(row.memory_bytes).to_string()]
                .into_iter()
                .chain(texts)
                .collect()
        }));
        rows
    }

    /// Formats the figure of all runs, and how those ended that have none.
    fn text(&self, row: &ProgramRow, cell: &ProgramCell) -> String {
        let spread_of = self.spread(cell).map(|found| spread(&found));
        let ratio = self.ratio(row, cell).map(|ratio| format!("×{ratio:.2}"));
        let words = [spread_of, ratio, failures(cell)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        if words.is_empty() { "-".into() } else { words.join("  ") }
    }

    fn spread(&self, cell: &ProgramCell) -> Option<Spread> {
        let done = cell.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Done(figures) => (self.value)(figures),
            Outcome::Killed | Outcome::Late(_) => None,
        });
        let values: Vec<f64> = done.collect();
        (!values.is_empty()).then(|| Spread::of(values.into_iter()))
    }

    /// Returns the median of ours relative to the kernel's on the same device, round by round.
    fn ratio(&self, row: &ProgramRow, cell: &ProgramCell) -> Option<f64> {
        if !self.compared || cell.side != Side::Run {
            return None;
        }
        let kernel = cell_of(row, (Side::Kernel, cell.device))?;
        let pairs = kernel.outcomes.iter().zip(&cell.outcomes);
        let ratios = pairs.filter_map(|pair| match pair {
            (Outcome::Done(kernel), Outcome::Done(ours)) => {
                Some((self.value)(ours)? / (self.value)(kernel)?)
            }
            _ => None,
        });
        let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios.into_iter()).median)
    }
}

/// Says how many runs were killed, and how many were ended by us.
fn failures(cell: &ProgramCell) -> Option<String> {
    let runs = cell.outcomes.len();
    let killed = cell.outcomes.iter().filter(|it| matches!(it, Outcome::Killed)).count();
    let late = cell.outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Late(seconds) => Some(*seconds),
        Outcome::Done(_) | Outcome::Killed => None,
    });
    let killed = (killed > 0).then(|| format!("killed {killed} of {runs}"));
    let late = late.map(|seconds| format!("above {seconds}"));
    let words: Vec<String> = killed.into_iter().chain(late).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

type Column = (Side, Option<crate::Device>);

/// Returns the conditions under which any program ran, in the order requested.
fn columns(report: &ProgramReport) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for cell in report.rows.iter().flat_map(|row| &row.cells) {
        if !columns.contains(&(cell.side, cell.device)) {
            columns.push((cell.side, cell.device));
        }
    }
    columns
}

fn head((side, device): Column) -> String {
    device
        .map_or_else(|| side.name().into(), |device| format!("{}, {}", side.name(), device.name()))
}

fn cell_of(row: &ProgramRow, (side, device): Column) -> Option<&ProgramCell> {
    row.cells.iter().find(|cell| (cell.side, cell.device) == (side, device))
}

/// Formats the results of `programs`.
pub fn programs_text(report: &ProgramReport) -> String {
    let mut text = format!(
        "{}\nmedians of {} rounds in turn [smallest..largest], × is the median of ratios to the \
         kernel by round\n",
        report.environment, report.rounds
    );
    report.skipped.iter().for_each(|line| text += &format!("{line}\n"));
    for figure in &FIGURES {
        text += &format!("\n{}\n{}", figure.title, table(&figure.rows(report)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn done(seconds: f64) -> Outcome {
        Outcome::Done(Figures { seconds, cpu_seconds: 1.0, pages_in: 2000, peak_bytes: None })
    }

    #[test]
    fn what_was_killed_is_said_and_not_compared() {
        let device = Some(Device::Zram);
        let cell = |side, outcomes| ProgramCell { side, device, outcomes };
        let kernel = cell(Side::Kernel, vec![done(4.0), Outcome::Killed, done(2.0)]);
        let run = cell(Side::Run, vec![done(2.0), done(9.0), Outcome::Late(60)]);
        let row = ProgramRow { program: "sort", memory_bytes: 1 << 26, cells: vec![kernel, run] };
        let [kernel, run] = [&row.cells[0], &row.cells[1]].map(|it| FIGURES[0].text(&row, it));
        assert_eq!(kernel, "3.00 [2.00..4.00]  killed 1 of 3");
        assert_eq!(run, "5.50 [2.00..9.00]  ×0.50  above 60");
        assert_eq!(FIGURES[3].text(&row, &row.cells[1]), "above 60");
        let late = cell(Side::Run, vec![Outcome::Late(60)]);
        assert_eq!(FIGURES[0].text(&row, &late), "above 60");
    }
}
