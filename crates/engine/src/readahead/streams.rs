//! Readahead by address: along the streams of faults that a program makes.
//!
//! Owns: the streams seen lately. A stream that goes on forward or backward has its window moved
//! entirely ahead; a fault elsewhere near it gets what is left of the window around itself. Linux
//! keeps one stream for each mapping (`swap_vma_readahead`); here there are a few for all.
//! A page mapped ahead of its touch gives no sign when it is touched. But a stream whose next
//! fault comes right at the end of its window has passed over all of it: those were hits.
//! A long stream says which pages it leaves behind: those of the window before the one just passed.
//! That one is spared, so a program that looks back a little finds what it looks for.
//! Invariants: pages proven touched are counted once; a window ends where reading it ended, so a
//! stream is not lost when memory is short.
//! Not here: frames and reads.

use super::next_window;
use overspill_base::PageNo;
use std::ops::Range;

/// Window from which on a stream is a long one: it has doubled four times.
const LONG_PAGES: usize = 16;
/// Streams remembered; more than one thread reads in order in most programs.
const STREAMS: usize = 16;

#[derive(Clone, Debug, Default)]
struct Stream {
    /// The page of its last fault.
    last: u32,
    /// The window of that fault.
    window: Range<u32>,
    /// The window before it, if the stream was a long one then.
    before: Range<u32>,
    /// Pages of the window that were read ahead before and after the page.
    read_ahead: [u32; 2],
    /// Pages right beside the window, on the side it moves to, that were asked for ahead of it.
    asked: Range<u32>,
    used_at: u64,
}

/// How a fault lies to the stream it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    Forward,
    Backward,
    Astray,
}

/// What a fault asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The faulting page.
    pub(crate) page: PageNo,
    /// Pages to read, the faulting one among them.
    pub(crate) pages: Range<u32>,
    /// Pages read ahead earlier that this fault proves touched.
    pub(crate) hits: u32,
    /// Pages that a long stream has left behind.
    pub(crate) behind: Range<u32>,
    course: Course,
    stream: usize,
}

/// A stream that has come to pages asked for ahead of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Advance {
    /// The pages it has come to, those that were asked for and more on their way.
    pub(crate) pages: Range<u32>,
    /// See [`Window::hits`].
    pub(crate) hits: u32,
    /// See [`Window::behind`].
    pub(crate) behind: Range<u32>,
    /// Pages to ask for now.
    pub(crate) ask: Range<u32>,
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
        let index = self.find(page.0).unwrap_or_else(|| self.replace_oldest());
        let stream = &mut self.streams[index];
        let course = stream.course(page.0);
        let (passed, hits) = stream.passed(page.0, course);
        let adjacent = !stream.window.is_empty() && page.0.abs_diff(stream.last) == 1;
        let pages = next_window(passed, adjacent, stream.window.len(), max) as u32;
        let window = around(page.0, pages, course);
        let behind = stream.move_to(page.0, window.clone(), passed);
        (stream.asked, stream.used_at) = (0..0, self.time);
        Window { page, pages: window, hits, behind, course, stream: index }
    }

    /// The pages to ask for ahead of a stream whose window was read whole, `ahead` of them twice
    /// over: one lot is read while it goes through the other. None if it does not go on in order.
    pub(crate) fn ask(&mut self, window: &Window, ahead: u32, pages: u32) -> Range<u32> {
        let stream = &mut self.streams[window.stream];
        if stream.last != window.page.0 {
            return 0..0;
        }
        let (start, end) = (stream.window.start, stream.window.end);
        stream.asked = match window.course {
            Course::Forward => end..end.saturating_add(2 * ahead).min(pages),
            Course::Backward => start.saturating_sub(2 * ahead)..start,
            Course::Astray => 0..0,
        };
        stream.asked.clone()
    }

    /// The stream that has come to `page`, which was asked for ahead of it: its window goes from there
    /// as far as was asked, at most `ahead` pages of the `pages` there are.
    pub(crate) fn advance(&mut self, page: PageNo, ahead: u32, pages: u32) -> Advance {
        self.time += 1;
        let page = page.0;
        let mut streams = self.streams.iter_mut();
        let Some(stream) = streams.find(|stream| stream.asked.contains(&page)) else {
            // In a window before it was all there, or of a stream that has been forgotten.
            let end = page.saturating_add(ahead).min(pages);
            return Advance { pages: page..end, ..Advance::default() };
        };
        stream.used_at = self.time;
        let forward = stream.goes_forward();
        let asked = stream.asked.clone();
        let hits = stream.read_ahead[usize::from(forward)];
        let passed = page.abs_diff(stream.last) as usize - 1;
        let (window, next) = if forward {
            let end = asked.end.min(page.saturating_add(ahead));
            (page..end, end..end.saturating_add(2 * ahead).min(pages))
        } else {
            let start = asked.start.max((page + 1).saturating_sub(ahead));
            (start..page + 1, start.saturating_sub(2 * ahead)..start)
        };
        let ask = if forward { asked.end.min(next.end)..next.end } else { next.start..asked.start };
        let read_ahead = window.len() as u32 - 1;
        let behind = stream.move_to(page, window.clone(), passed);
        stream.asked = next;
        stream.read_ahead[usize::from(forward)] = read_ahead;
        Advance { pages: window, hits, behind, ask }
    }

    /// Tells what became of a window: where reading it ended, and how many pages before and after
    /// the faulting one were read.
    pub(crate) fn settle(&mut self, window: &Window, reached: Range<u32>, read_ahead: [u32; 2]) {
        let stream = &mut self.streams[window.stream];
        if stream.last == window.page.0 && stream.window == window.pages {
            stream.window = reached;
            stream.read_ahead = read_ahead;
        }
    }

    /// The stream that goes on with `page`, or else one nearby.
    fn find(&self, page: u32) -> Option<usize> {
        let position = |is: &dyn Fn(&Stream) -> bool| self.streams.iter().position(is);
        position(&|stream| stream.course(page) != Course::Astray)
            .or_else(|| position(&|stream| stream.is_near(page)))
    }

    fn replace_oldest(&mut self) -> usize {
        let by_age = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used_at);
        let oldest = by_age.map_or(0, |(index, _)| index);
        self.streams[oldest] = Stream::default();
        oldest
    }
}

impl Stream {
    /// Which way it goes for which pages were asked for.
    fn goes_forward(&self) -> bool {
        self.asked.start >= self.window.end
    }

    /// Takes its window to a fault at `page`, after it has passed over `passed` pages; returns those
    /// that it leaves behind.
    fn move_to(&mut self, page: u32, window: Range<u32>, passed: usize) -> Range<u32> {
        let was = std::mem::replace(&mut self.window, window);
        let now_before = if passed + 1 >= LONG_PAGES { was } else { 0..0 };
        (self.last, self.read_ahead) = (page, [0; 2]);
        std::mem::replace(&mut self.before, now_before)
    }

    fn course(&self, page: u32) -> Course {
        if self.window.is_empty() {
            Course::Astray
        } else if self.asked.contains(&page) {
            if self.goes_forward() { Course::Forward } else { Course::Backward }
        } else if page == self.window.end || page == self.last + 1 {
            Course::Forward
        } else if page + 1 == self.window.start || page + 1 == self.last {
            Course::Backward
        } else {
            Course::Astray
        }
    }

    /// True within a window's length of the window; windows of one page have no surroundings.
    fn is_near(&self, page: u32) -> bool {
        let reach = self.window.len() as u32;
        let start = self.window.start.saturating_sub(reach);
        reach > 1 && (start..self.window.end + reach).contains(&page)
    }

    /// Pages that the stream has passed over on its way to `page`, and how many of them were read
    /// ahead. The others were in memory before.
    fn passed(&self, page: u32, course: Course) -> (usize, u32) {
        match course {
            Course::Forward if page == self.window.end || self.asked.contains(&page) => {
                ((page - self.last - 1) as usize, self.read_ahead[1])
            }
            Course::Backward if page + 1 == self.window.start || self.asked.contains(&page) => {
                ((self.last - page - 1) as usize, self.read_ahead[0])
            }
            _ => (0, 0),
        }
    }
}

fn around(page: u32, pages: u32, course: Course) -> Range<u32> {
    let start = match course {
        Course::Forward => page,
        Course::Backward => (page + 1).saturating_sub(pages),
        Course::Astray => page.saturating_sub((pages - 1) / 2),
    };
    match course {
        Course::Backward => start..page + 1,
        _ => start..start + pages,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Asks for a window and reports that all of it was read.
    fn read(streams: &mut Streams, page: u32, max: usize) -> Window {
        let window = streams.window(PageNo(page), max);
        let ahead = [page - window.pages.start, window.pages.end - page - 1];
        streams.settle(&window, window.pages.clone(), ahead);
        window
    }

    fn sizes(pages: &[u32]) -> Vec<usize> {
        let mut streams = Streams::default();
        pages.iter().map(|&page| read(&mut streams, page, 64).pages.len()).collect()
    }

    #[test]
    fn a_reader_in_order_doubles_its_window() {
        let mut streams = Streams::default();
        let mut page = 100;
        let mut seen = Vec::new();
        for _ in 0..7 {
            let window = read(&mut streams, page, 64);
            assert_eq!(window.pages.start, page);
            seen.push(window.pages.len());
            page = window.pages.end;
        }
        // 1, 2 beside it, then hits + 2 rounded up: 1+2 -> 4, 3+2 -> 8, 7+2 -> 16, ...
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_reader_in_reverse_order_does_so_too() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let window = read(&mut streams, page, 64);
            assert_eq!(window.pages.end, page + 1);
            seen.push((window.pages.len(), window.hits));
            page = window.pages.start - 1;
        }
        // Each window but its faulting page was passed over.
        assert_eq!(seen, [(1, 0), (2, 0), (4, 1), (8, 3), (16, 7)]);
    }

    #[test]
    fn a_long_stream_leaves_behind_all_but_the_window_just_passed() {
        for backward in [false, true] {
            let mut streams = Streams::default();
            let mut page = 1000;
            let (mut windows, mut behind) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                let window = read(&mut streams, page, 64);
                page = if backward { window.pages.start - 1 } else { window.pages.end };
                windows.push(window.pages);
                behind.push(window.behind);
            }
            // Windows of 1, 2, 4, 8, 16, 32, 64, 64: the fifth is the first long one.
            assert!(behind[..6].iter().all(Range::is_empty), "{behind:?}");
            assert_eq!(behind[6..], windows[4..6]);
        }
    }

    #[test]
    fn a_stream_that_breaks_off_leaves_nothing_behind() {
        let mut streams = Streams::default();
        let mut page = 100;
        for _ in 0..7 {
            page = read(&mut streams, page, 64).pages.end;
        }
        // Back into the window it is in, and on from there.
        let astray = read(&mut streams, page - 20, 64);
        let after = read(&mut streams, astray.pages.end, 64);
        assert_eq!((astray.behind.len(), after.behind.len()), (32, 0));
    }

    #[test]
    fn random_faults_read_one_page() {
        assert_eq!(sizes(&[5, 900, 33, 7000, 120]), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_fault_astray_gets_half_the_window_around_itself() {
        let mut streams = Streams::default();
        for page in [0, 1, 3, 7, 15] {
            read(&mut streams, page, 64);
        }
        // The window is 15..31. A fault in the middle of it proves nothing: half of 16 is left, of
        // which (8 - 1) / 2 lie before the page.
        let window = read(&mut streams, 20, 64);
        assert_eq!((window.pages, window.hits), (17..25, 0));
        // Going on from there in order, four pages were passed over: 4 + 2 rounded up.
        let window = read(&mut streams, 25, 64);
        assert_eq!((window.pages, window.hits), (25..33, 4));
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        assert_eq!(sizes(&[0, 5000, 1, 5001, 3, 5003]), [1, 1, 2, 2, 4, 4]);
    }

    #[test]
    fn a_window_cut_short_is_continued_where_it_ended() {
        let mut streams = Streams::default();
        for page in [0, 1, 3] {
            read(&mut streams, page, 64);
        }
        let window = streams.window(PageNo(7), 64);
        assert_eq!(window.pages, 7..15);
        // Frames ran out after two pages, of which one was in memory already.
        streams.settle(&window, 7..10, [0, 1]);
        let next = streams.window(PageNo(10), 64);
        assert_eq!((next.pages, next.hits), (10..14, 1));
    }

    #[test]
    fn windows_at_the_start_of_the_range_are_clipped() {
        let mut streams = Streams::default();
        for page in [8, 7, 5, 1] {
            read(&mut streams, page, 64);
        }
        // 8, then 7..=6, 5..=2, then 1 and what is left of eight pages.
        assert_eq!(
            streams.streams.iter().map(|s| s.window.clone()).max_by_key(|w| w.len()),
            Some(0..2)
        );
    }

    proptest! {
        /// Whatever is asked: the page is in its window, the window is within the limit and at least
        /// half the previous one of its stream, and no page is a hit twice.
        #[test]
        fn windows_keep_the_rule(pages in prop::collection::vec(100..400u32, 1..200)) {
            let mut streams = Streams::default();
            let (mut ahead, mut hits) = (0, 0);
            for page in pages {
                let before = streams.find(page).map_or(0, |n| streams.streams[n].window.len());
                let window = read(&mut streams, page, 16);
                prop_assert!(window.pages.contains(&page) && window.pages.len() <= 16);
                prop_assert!(window.pages.len() >= before / 2);
                hits += window.hits as usize;
                prop_assert!(hits <= ahead, "{} hits of {} pages read ahead", hits, ahead);
                ahead += window.pages.len() - 1;
            }
        }
    }
}
