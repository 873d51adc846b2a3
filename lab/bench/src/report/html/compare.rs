//! The HTML page of a comparison with kernel swap.
//!
//! Invariants: a ratio is coloured only if it differs from one by at least a twentieth.
//! Not here: which figures there are ([`crate::report::compare`]).

use crate::compare::{Cell, CompareReport, Row};
use crate::report::compare::{FIGURES, Figure, cell_of, conditions, conditions_of, ways};
use crate::touch::Latency;
use maud::{Markup, PreEscaped, html};
use overspill_report::page::page;
use overspill_report::plot::{Axes, Curve, Scale, curves};

/// Formats the results of `compare`.
pub fn compare_html(report: &CompareReport) -> String {
    let body = html! {
        @if !report.skipped.is_empty() { ul { @for line in &report.skipped { li { (line) } } } }
        @for figure in FIGURES.iter().filter(|figure| figure.is_known(report)) {
            h2 { (figure.title) }
            (figure_table(figure, report))
        }
        h2 { "How long touches take, and how it goes over time" }
        p.note {
            "A curve shows how many touches took longer than so many microseconds; both scales are "
            "logarithmic, so p99 is where it passes 1 % and p99.9 where it passes 0.1 %. All rounds "
            "together. The curves over time are those of the first round; a process fills its memory "
            "before it is timed."
        }
        @for row in &report.rows { (row_section(row)) }
    };
    page("Kernel swap and Overspill", &report.environment, &conditions(report), &body)
}

fn figure_table(figure: &Figure, report: &CompareReport) -> Markup {
    let ways = ways(report);
    html! {
        table {
            tr {
                @for head in ["device", "workload", "threads"] { th { (head) } }
                @for way in &ways { th { (way.name()) } }
            }
            @for row in &report.rows {
                tr {
                    @for condition in conditions_of(row) { td { (condition) } }
                    @for way in &ways {
                        @match cell_of(row, *way) {
                            Some(cell) => td class=(class(figure, cell)) { (figure.text(cell)) },
                            None => td { "-" },
                        }
                    }
                }
            }
        }
    }
}

/// Returns the colour class of a cell, by its ratio to the kernel.
fn class(figure: &Figure, cell: &Cell) -> &'static str {
    match figure.times_better(cell) {
        Some(times) if times >= 1.05 => "better",
        Some(times) if times <= 0.95 => "worse",
        _ => "",
    }
}

fn row_section(row: &Row) -> Markup {
    let [device, workload, jobs] = conditions_of(row);
    html! {
        details {
            summary { (workload) ", " (jobs) " threads, " (device) }
            (PreEscaped(latency_plot(row)))
            div.pair {
                (PreEscaped(rate_plot(row)))
                (PreEscaped(resident_plot(row)))
            }
        }
    }
}

const WIDE: (u32, u32) = (900, 320);
const HALF: (u32, u32) = (450, 260);

fn plot(row: &Row, axes: &Axes, points: impl Fn(&Cell) -> Vec<(f64, f64)>) -> String {
    let curve = |cell: &Cell| Curve { name: cell.way.name(), points: points(cell) };
    curves(axes, &row.cells.iter().map(curve).collect::<Vec<_>>())
}

fn latency_plot(row: &Row) -> String {
    let axes = Axes {
        size: WIDE,
        x: ("µs", Scale::Logarithmic),
        y: ("% of touches take longer", Scale::Logarithmic),
    };
    plot(row, &axes, slower_than)
}

/// Returns microseconds, and the share of touches that took longer, in per cent.
fn slower_than(cell: &Cell) -> Vec<(f64, f64)> {
    let mut all = Latency::default();
    all.add_all(&cell.reads);
    all.add_all(&cell.writes);
    let buckets = all.buckets();
    let count: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut left = count;
    let points = buckets.iter().map(|(ns, n)| {
        let point = ((*ns).max(10) as f64 / 1e3, 100.0 * left as f64 / count as f64);
        left -= n;
        point
    });
    points.collect()
}

fn rate_plot(row: &Row) -> String {
    let axes =
        Axes { size: HALF, x: ("s, timed", Scale::Linear), y: ("1000 pages/s", Scale::Linear) };
    plot(row, &axes, |cell| {
        let rates = cell.rate_over_time.iter().enumerate();
        rates.map(|(n, rate)| ((n as f64 + 0.5) / 10.0, rate / 1e3)).collect()
    })
}

fn resident_plot(row: &Row) -> String {
    let axes = Axes {
        size: HALF,
        x: ("s from the start", Scale::Linear),
        y: ("MiB resident", Scale::Linear),
    };
    plot(row, &axes, |cell| cell.resident_over_time.clone())
}
