//! What `compare` found, as tables.
//!
//! Owns: which figures stand in which table; the page shows the same tables.
//! Invariants: a row of conditions is a row in every table, and each way has its column.

use super::text::table;
use super::{Rows, figure, spread};
use crate::compare::{Cell, CompareReport, Row, Way};
use crate::sample::Spread;
use crate::touch::pmbench_text;
use overspill_base::Bytes;

/// A table of one figure.
pub(super) struct Figure {
    pub(super) title: &'static str,
    cell: fn(&Cell) -> Option<String>,
    /// In units of the kernel's, if that can be told.
    ratio: fn(&Cell) -> Option<Spread>,
    /// Whether more is better, if either is.
    pub(super) more_is_better: bool,
}

pub(super) const FIGURES: [Figure; 9] = [
    Figure {
        title: "pages touched per second",
        cell: |cell| Some(spread(&cell.rate)),
        ratio: |cell| cell.ratio,
        more_is_better: true,
    },
    Figure {
        title: "p99 of a touch of a missing page, µs",
        cell: |cell| Some(spread(&cell.p99_us)),
        ratio: |cell| cell.p99_ratio,
        more_is_better: false,
    },
    Figure {
        title: "p99.9 of a touch of a missing page, µs",
        cell: |cell| Some(spread(&cell.p999_us)),
        ratio: |cell| cell.p999_ratio,
        more_is_better: false,
    },
    Figure {
        title: "median touch of a missing page, µs",
        cell: |cell| Some(spread(&cell.p50_us)),
        ratio: |_| None,
        more_is_better: false,
    },
    Figure {
        title: "touches of missing pages, %",
        cell: |cell| Some(spread(&cell.missing_percent)),
        ratio: |_| None,
        more_is_better: false,
    },
    Figure {
        title: "CPU time of the process for a touch, µs",
        cell: |cell| Some(spread(&cell.cpu_us)),
        ratio: |_| None,
        more_is_better: false,
    },
    Figure {
        title: "peak resident, MiB",
        cell: |cell| Some(spread(&cell.peak_mib)),
        ratio: |_| None,
        more_is_better: false,
    },
    Figure {
        title: "interrupts between CPUs for each swapped page",
        cell: |cell| Some(spread(&cell.interrupts_per_page)),
        ratio: |_| None,
        more_is_better: false,
    },
    Figure {
        title: "system calls for each swapped page; idle CPU time, ms/s",
        cell: |cell| {
            let costs = cell.costs?;
            let calls = costs.syscalls_per_page.map_or_else(|| "?".to_owned(), figure);
            Some(format!("{calls}; {}", figure(costs.idle_ms_per_s)))
        },
        ratio: |_| None,
        more_is_better: false,
    },
];

impl Figure {
    /// True if there is anything to print.
    pub(super) fn is_known(&self, report: &CompareReport) -> bool {
        report.rows.iter().flat_map(|row| &row.cells).any(|cell| (self.cell)(cell).is_some())
    }

    /// The ratio to the kernel, if it is not the kernel's own.
    pub(super) fn ratio(&self, cell: &Cell) -> Option<Spread> {
        (self.ratio)(cell).filter(|_| cell.way != Way::Kernel)
    }

    /// The figure of a cell in full.
    pub(super) fn text(&self, cell: &Cell) -> String {
        let text = (self.cell)(cell).unwrap_or_default();
        let ratio = self.ratio(cell).map(|ratio| format!("  ×{:.2}", ratio.median));
        text + &ratio.unwrap_or_default()
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

/// The ways that took part in any row, in the order in which they were asked for.
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

/// What was run, in a sentence.
pub(super) fn conditions(report: &CompareReport) -> String {
    let (set, memory) = (Bytes(report.set_bytes), Bytes(report.memory_bytes));
    let CompareReport { seconds, rounds, reads_percent, content, kernel_settings, .. } = report;
    format!(
        "{set} touched in {memory}, {seconds} s each, medians of {rounds} rounds in turn \
         [smallest..largest], × is the median of ratios to the kernel by round; {reads_percent} % \
         reads, {content} pages; kernel: {kernel_settings}"
    )
}

/// What `compare` found.
pub fn compare_text(report: &CompareReport) -> String {
    let mut text = format!("{}\n{}\n", report.environment, conditions(report));
    report.skipped.iter().for_each(|line| text += &format!("{line}\n"));
    for figure in FIGURES.iter().filter(|figure| figure.is_known(report)) {
        text += &format!("\n{}\n{}", figure.title, table(&figure.rows(report)));
    }
    text
}

/// Latency histograms of all rows, in the form in which pmbench prints them.
pub fn compare_histograms(report: &CompareReport) -> String {
    let cells = report.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
    let part = |(row, cell): (&Row, &Cell)| {
        let head = conditions_of(row).join(", ");
        let (reads, writes) = (pmbench_text(&cell.reads), pmbench_text(&cell.writes));
        format!("\n== {head}, {}\nRead:\n{reads}\nWrite:\n{writes}", cell.way.name())
    };
    cells.map(part).collect()
}
