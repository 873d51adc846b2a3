//! Readahead: which pages to read with a faulting one, and which before they fault.
//!
//! Owns: the window rule, which both forms share. It is Linux's (`swapin_nr_pages`): pages = hits +
//! 2, rounded up to a power of two of at least 4; without hits 1, or 2 next to the previous fault;
//! never less than half the previous window.
//!
//! | form | window | pages read ahead | a hit is |
//! |---|---|---|---|
//! | [`streams`] | addresses around the page | are mapped at once | one that a stream passed |
//! | [`past`] | aligned block around the slot | wait in the swap cache | a fault that finds one |
//!
//! | file | what |
//! |---|---|
//! | [`streams`], [`stream_locks`] | the streams of faults that a program makes |
//! | [`queue`] | the pages requested ahead of them |
//! | [`around`] | what a fault reads and requests |
//! | [`thread`] | reading the pages requested |
//!
//! Invariants: readahead takes only spare frames, reads only swapped pages, and never fails a
//! fault: a page that could not be read ahead stays on its slot and is read again when it is
//! touched.
//! Not here: submitting the reads (`swapin`).
//! Rejected: waiting in the swap cache for both forms. There a touch is seen as a fault, which
//! readahead by slot needs for its hits; but a fault costs more than the read of a page in a
//! window, so the form made for user space maps what it has read.

pub(crate) mod around;
pub(crate) mod past;
pub(crate) mod queue;
pub(crate) mod stream_locks;
pub(crate) mod streams;
pub(crate) mod thread;

/// Smallest window once there are hits.
const HIT_WINDOW_MIN: usize = 4;

/// Returns the pages to read, including the faulting one, after `hits`, or next to the previous
/// fault.
pub(crate) fn next_window(hits: usize, adjacent: bool, previous: usize, max: usize) -> usize {
    let wanted = match (hits, adjacent) {
        (0, false) => 1,
        (0, true) => 2,
        _ => (hits + 2).next_power_of_two().max(HIT_WINDOW_MIN),
    };
    wanted.max(previous / 2).min(max)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Hits, adjacent, previous window, limit, and the resulting window.
    #[test]
    fn the_window_rule() {
        for (hits, adjacent, previous, max, pages) in [
            (0, false, 0, 8, 1),
            (0, true, 0, 8, 2),
            (1, false, 0, 8, 4),
            (2, false, 0, 8, 4),
            (3, true, 0, 8, 8),
            (7, false, 0, 8, 8),
            (7, false, 0, 64, 16),
            (0, false, 8, 8, 4),
            (0, true, 2, 8, 2),
            (0, false, 1, 8, 1),
            (1, false, 64, 64, 32),
        ] {
            assert_eq!(next_window(hits, adjacent, previous, max), pages, "{hits} {previous}");
        }
    }
}
