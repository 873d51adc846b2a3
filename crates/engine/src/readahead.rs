//! Readahead: how many pages to read when one is missing.
//!
//! Owns: the streams of faults seen lately and the window rule. The rule is Linux's
//! (`swapin_nr_pages`): pages = hits + 2, rounded up to a power of two of at least 4; without hits 1, or
//! 2 next to the previous fault; never less than half the previous window. What is read is what lies
//! after the page in the address space, where the program's order is, rather than around its slot.
//! A page mapped ahead of its touch gives no sign when it is touched. But a stream whose next
//! fault comes right after its window has passed over the whole window: all of it were hits.
//! Not here: the reads (`swapin`).

use overspill_base::PageNo;

/// Streams remembered; more than one thread reads in order in most programs.
const STREAMS: usize = 16;
/// Window a stream starts with when it proves to be one.
const FIRST_WINDOW: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The page its next fault should hit, if it goes on.
    next: u32,
    /// The page of its last fault.
    last: u32,
    window: usize,
    used_at: u64,
}

/// What a fault asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Pages to read, the faulting one included.
    pub(crate) pages: usize,
    /// Pages read ahead earlier that this fault proves touched.
    pub(crate) hits: usize,
}

/// The streams of one engine.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    time: u64,
}

impl Streams {
    /// The window for a fault at `page`, of at most `max` pages.
    pub(crate) fn window(&mut self, page: PageNo, max: usize) -> Window {
        self.time += 1;
        let found = self.streams.iter().position(|s| s.used_at > 0 && s.follows(page.0));
        let index = found.unwrap_or_else(|| self.oldest());
        let stream = &mut self.streams[index];
        if found.is_none() {
            *stream = Stream::default();
        }
        let hits = if stream.next == page.0 { stream.window.saturating_sub(1) } else { 0 };
        let adjacent = stream.window > 0 && page.0.abs_diff(stream.last) == 1;
        let pages = next_window(hits, adjacent, stream.window, max);
        *stream =
            Stream { next: page.0 + pages as u32, last: page.0, window: pages, used_at: self.time };
        Window { pages, hits }
    }

    fn oldest(&self) -> usize {
        let by_age = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used_at);
        by_age.map_or(0, |(index, _)| index)
    }
}

impl Stream {
    /// True for a fault at the end of the window, or next to the last one.
    fn follows(&self, page: u32) -> bool {
        page == self.next || page.abs_diff(self.last) == 1
    }
}

fn next_window(hits: usize, adjacent: bool, previous: usize, max: usize) -> usize {
    let wanted = match (hits, adjacent) {
        (0, false) => 1,
        (0, true) => 2,
        _ => (hits + 2).next_power_of_two().max(FIRST_WINDOW),
    };
    wanted.max(previous / 2).min(max)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn windows(pages: &[u32]) -> Vec<usize> {
        let mut streams = Streams::default();
        pages.iter().map(|&p| streams.window(PageNo(p), 64).pages).collect()
    }

    #[test]
    fn a_reader_in_order_doubles_its_window() {
        let mut streams = Streams::default();
        let mut page = 100;
        let mut seen = Vec::new();
        for _ in 0..7 {
            let window = streams.window(PageNo(page), 64);
            seen.push(window.pages);
            page += window.pages as u32;
        }
        // 1, 2 beside it, then hits + 2 rounded up: 1+2 -> 4, 3+2 -> 8, 7+2 -> 16, ...
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn random_faults_read_one_page() {
        assert_eq!(windows(&[5, 900, 33, 7000, 120]), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_broken_stream_halves_its_window() {
        let mut streams = Streams::default();
        for page in [0, 1, 3, 7, 15] {
            streams.window(PageNo(page), 64);
        }
        // Window 16 ended at 31. Going back to the page before the last fault breaks it.
        assert_eq!(streams.window(PageNo(14), 64), Window { pages: 8, hits: 0 });
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        assert_eq!(windows(&[0, 5000, 1, 5001, 3, 5003]), [1, 1, 2, 2, 4, 4]);
    }
}
