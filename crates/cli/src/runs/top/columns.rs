//! The columns of the list of runs.
//!
//! Owns: what stands in them, and which of them there is room for.
//! Invariant: a column is whole or not there; the command has what is left.

use super::state::Watched;
use overspill::Bytes;

/// A column of numbers.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) width: u16,
    /// Which leave first where there is little room: those with most.
    rank: u8,
    pub(super) value: fn(&Watched) -> String,
}

/// Between two columns.
const GAP: u16 = 1;
/// Of the command.
const COMMAND_LEAST: u16 = 14;

const COLUMNS: [Column; 10] = [
    Column { name: "RUN", width: 7, rank: 0, value: |run| run.seen.run.to_string() },
    Column { name: "TIME", width: 8, rank: 4, value: |run| run.seen.time() },
    Column { name: "LIMIT", width: 10, rank: 3, value: |run| run.seen.limit() },
    Column { name: "USED", width: 10, rank: 1, value: |run| bytes(run.seen.memory_used_bytes) },
    Column { name: "SWAP", width: 10, rank: 5, value: |run| bytes(run.seen.swap_used_bytes()) },
    Column { name: "WAITS", width: 5, rank: 2, value: |run| percent(run.pressure().some) },
    Column { name: "FAULTS/s", width: 8, rank: 8, value: |run| count(run.rate().faults) },
    Column { name: "IN/s", width: 6, rank: 6, value: |run| count(run.rate().pages_in) },
    Column { name: "OUT/s", width: 6, rank: 7, value: |run| count(run.rate().pages_out) },
    Column {
        name: "AHEAD",
        width: 5,
        rank: 9,
        value: |run| run.ahead_used().map_or("-".into(), percent),
    },
];

/// Those for which there is room.
pub(super) fn fitting(width: u16) -> Vec<&'static Column> {
    let mut shown: Vec<&Column> = COLUMNS.iter().collect();
    let taken = |shown: &[&Column]| shown.iter().map(|column| column.width + GAP).sum::<u16>();
    while shown.len() > 1 && taken(&shown) + COMMAND_LEAST > width {
        let last = shown.iter().map(|column| column.rank).max();
        shown.retain(|column| Some(column.rank) != last);
    }
    shown
}

fn bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// A number in four or five places.
pub(super) fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_leave_one_by_one() {
        let names = |width| fitting(width).iter().map(|column| column.name).collect::<Vec<_>>();
        assert_eq!(names(120).len(), COLUMNS.len());
        assert_eq!(names(80), ["RUN", "TIME", "LIMIT", "USED", "SWAP", "WAITS", "IN/s"]);
        assert_eq!(names(40), ["RUN", "USED", "WAITS"]);
        assert_eq!(names(1), ["RUN"]);
        let counts: Vec<_> = (1..120).map(|width| fitting(width).len()).collect();
        assert!(counts.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] - pair[0] <= 1));
    }
}
