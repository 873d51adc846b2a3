//! Reports as text tables.

use super::{
    Rows, ablate_conditions, experiment_title, figure, hit_rate_rows, lock_rows, metric_rows,
    policy_conditions, policy_rows, published_rows, row, slot_conditions, slot_rows, spread,
};
use crate::{AblateReport, Experiment, FootprintReport, LockCostReport, PolicyReport, SlotReport};

/// Formats the results of `ablate`.
pub fn ablate_text(report: &AblateReport) -> String {
    let head = format!("{}\n{}\n", report.environment, ablate_conditions(report));
    let experiments = report.experiments.iter().map(experiment_text);
    std::iter::once(head).chain(experiments).collect()
}

fn experiment_text(experiment: &Experiment) -> String {
    let mut text = format!("\n== {}\n{}\n\n", experiment.mechanism, experiment_title(experiment));
    text += &table(&metric_rows(experiment));
    for (name, side) in [("before", &experiment.before), ("after", &experiment.after)] {
        text += &format!("\n{name}\n{}", table(&lock_rows(side)));
    }
    if !experiment.published.is_empty() {
        text += &format!("\n{}", table(&published_rows(experiment)));
        text += &format!("from {}\n", experiment.source);
    }
    text
}

/// Formats the results of `slots`.
pub fn slots_text(report: &SlotReport) -> String {
    format!("{}\n{}\n\n{}", report.environment, slot_conditions(report), table(&slot_rows(report)))
}

/// Formats the results of `policy`.
pub fn policy_text(report: &PolicyReport) -> String {
    let conditions = policy_conditions(report);
    let head = format!("{}\n{conditions}\n\n{}", report.environment, table(&hit_rate_rows(report)));
    let workloads = report.workloads.iter().map(|workload| {
        let (name, about, pages) = (&workload.workload, &workload.about, workload.set_pages);
        format!("\n== {name}\n{about}: {pages} pages\n\n{}", table(&policy_rows(workload)))
    });
    std::iter::once(head).chain(workloads).collect()
}

/// Formats the results of `memory`.
pub fn footprint_text(report: &FootprintReport) -> String {
    let mut rows = vec![row(["pages", "slots", "frames", "engine's own bytes"])];
    rows.extend(report.engines.iter().map(|engine| {
        let shape = engine.shape;
        let sizes = [shape.working_set_pages, shape.device_slots as usize, shape.frames];
        sizes.iter().map(ToString::to_string).chain([engine.bytes.to_string()]).collect()
    }));
    format!(
        "{}\n\n{}\n{} bytes per page, {} per slot, {} per frame\n",
        report.environment,
        table(&rows),
        figure(report.bytes_per_page),
        figure(report.bytes_per_slot),
        figure(report.bytes_per_frame)
    )
}

/// Formats the results of `locks`.
pub fn lock_cost_text(report: &LockCostReport) -> String {
    let rows = [
        ("std::sync::Mutex", &report.std_ns),
        ("base::sync::Mutex, counting off", &report.uncounted_ns),
        ("base::sync::Mutex, counting on", &report.counted_ns),
    ];
    let mut table_rows = vec![row(["uncontended lock and unlock", "ns"])];
    table_rows.extend(rows.map(|(name, ns)| vec![name.to_owned(), spread(ns)]));
    let (n, rounds) = (report.repetitions, report.rounds);
    let conditions = format!("{rounds} rounds in turn of {n} each");
    format!("{}\n{conditions}\n\n{}", report.environment, table(&table_rows))
}

/// Aligns columns: the first to the left, the others to the right.
pub(super) fn table(rows: &Rows) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => line += &format!("{cell:<width$}"),
            _ => line += &format!("  {cell:>width$}"),
        }
    }
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![row(["", "µs"]), row(["fault", "12"]), row(["max", ""])];
        assert_eq!(table(&rows), "       µs\nfault  12\nmax\n");
    }
}
