//! The results of `compare` as tables.
//!
//! Owns: which figures are in which table; the HTML page shows the same tables.
//! Invariants: each set of conditions is a row in every table, and each way a column.

use super::text::table;
use super::{Rows, figure, spread};
use crate::compare::{Cell, CompareReport, Row, Way};
use crate::touch::pmbench_text;
use overspill_base::Bytes;
use overspill_report::plot::Spread;

/// A table of one figure.
pub(super) struct Figure {
    pub(super) title: &'static str,
    value: Value,
}

/// The value of a cell.
enum Value {
    /// A figure that is compared, and whether more of it is better.
    Compared(fn(&Cell) -> (Spread, Option<Spread>), Better),
    Plain(fn(&Cell) -> Spread),
    /// A value that is known only if requested.
    Text(fn(&Cell) -> Option<String>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

const fn compared(
    title: &'static str,
    better: Better,
    value: fn(&Cell) -> (Spread, Option<Spread>),
) -> Figure {
    Figure { title, value: Value::Compared(value, better) }
}

const fn plain(title: &'static str, value: fn(&Cell) -> Spread) -> Figure {
    Figure { title, value: Value::Plain(value) }
}

pub(super) const FIGURES: [Figure; 11] = [
    compared("pages touched per second", Better::More, |cell| (cell.rate, cell.ratio)),
    compared("p99 of a touch, µs", Better::Less, |cell| (cell.all.p99_us, cell.all.p99_ratio)),
    compared("p99.9 of a touch, µs", Better::Less, |cell| (cell.all.p999_us, cell.all.p999_ratio)),
    compared("p99 of a touch of a missing page, µs", Better::Less, |cell| {
        (cell.missing.p99_us, cell.missing.p99_ratio)
    }),
    compared("p99.9 of a touch of a missing page, µs", Better::Less, |cell| {
        (cell.missing.p999_us, cell.missing.p999_ratio)
    }),
    plain("median touch of a missing page, µs", |cell| cell.missing.p50_us),
    plain("touches of missing pages, %", |cell| cell.missing_percent),
    plain("CPU time of the process for a touch, µs", |cell| cell.cpu_us),
    plain("peak resident, MiB", |cell| cell.peak_mib),
    plain("interrupts between CPUs for each swapped page", |cell| cell.interrupts_per_page),
    Figure {
        title: "system calls for each swapped page; idle CPU time, ms/s",
        value: Value::Text(|cell| {
            let costs = cell.costs?;
            let calls = costs.syscalls_per_page.map_or_else(|| "?".to_owned(), figure);
            Some(format!("{calls}; {}", figure(costs.idle_ms_per_s)))
        }),
    },
];

impl Figure {
    /// Returns true if there is anything to print.
    pub(super) fn is_known(&self, report: &CompareReport) -> bool {
        report.rows.iter().flat_map(|row| &row.cells).any(|cell| !self.text(cell).is_empty())
    }

    /// Returns how many times as good as the kernel's a cell is, if it is compared and not the
    /// kernel's own.
    pub(super) fn times_better(&self, cell: &Cell) -> Option<f64> {
        let Value::Compared(value, better) = self.value else { return None };
        let ratio = value(cell).1.filter(|_| cell.way != Way::Kernel)?.median;
        Some(if better == Better::More { ratio } else { 1.0 / ratio.max(1e-9) })
    }

    /// Formats the figure of a cell in full.
    pub(super) fn text(&self, cell: &Cell) -> String {
        match self.value {
            Value::Text(text) => text(cell).unwrap_or_default(),
            Value::Plain(value) => spread(&value(cell)),
            Value::Compared(value, _) => {
                let (value, ratio) = value(cell);
                let ratio = ratio.filter(|_| cell.way != Way::Kernel);
                let ratio = ratio.map(|ratio| format!("  ×{:.2}", ratio.median));
                spread(&value) + &ratio.unwrap_or_default()
            }
        }
    }

    fn rows(&self, report: &CompareReport) -> Rows {
        let ways = ways(report);
        let heads = ["device", "workload", "threads"].into_iter();
        let heads = heads.chain(ways.iter().map(|way| way.name()));
        let mut rows = vec![heads.map(str::to_owned).collect()];
        rows.extend(report.rows.iter().map(|row| {
            let texts = ways.iter().map(|way| {
                cell_of(row, *way).map_or_else(|| "-".to_owned(), |cell| self.text(cell))
            });
            conditions_of(row).into_iter().chain(texts).collect()
        }));
        rows
    }
}

/// Returns the ways that took part in any row, in the order requested.
pub(super) fn ways(report: &CompareReport) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for cell in report.rows.iter().flat_map(|row| &row.cells) {
        if !ways.contains(&cell.way) {
            ways.push(cell.way);
        }
    }
    ways
}

pub(super) fn cell_of(row: &Row, way: Way) -> Option<&Cell> {
    row.cells.iter().find(|cell| cell.way == way)
}

pub(super) fn conditions_of(row: &Row) -> [String; 3] {
    [row.device.about().to_owned(), row.workload.clone(), row.jobs.to_string()]
}

/// Describes the run in a sentence.
pub(super) fn conditions(report: &CompareReport) -> String {
    let (set, memory) = (Bytes(report.set_bytes), Bytes(report.memory_bytes));
    let CompareReport { seconds, rounds, reads_percent, content, kernel_settings, .. } = report;
    format!(
        "{set} touched in {memory}, {seconds} s each, medians of {rounds} rounds in turn \
         [smallest..largest], × is the median of ratios to the kernel by round; {reads_percent} % \
         reads, {content} pages; kernel: {kernel_settings}"
    )
}

/// Formats the results of `compare`.
pub fn compare_text(report: &CompareReport) -> String {
    let mut text = format!("{}\n{}\n", report.environment, conditions(report));
    report.skipped.iter().for_each(|line| text += &format!("{line}\n"));
    for figure in FIGURES.iter().filter(|figure| figure.is_known(report)) {
        text += &format!("\n{}\n{}", figure.title, table(&figure.rows(report)));
    }
    text
}

/// Formats the latency histograms of all rows as pmbench does.
pub fn compare_histograms(report: &CompareReport) -> String {
    let cells = report.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
    let part = |(row, cell): (&Row, &Cell)| {
        let head = conditions_of(row).join(", ");
        let (reads, writes) = (pmbench_text(&cell.reads), pmbench_text(&cell.writes));
        format!("\n== {head}, {}\nRead:\n{reads}\nWrite:\n{writes}", cell.way.name())
    };
    cells.map(part).collect()
}
