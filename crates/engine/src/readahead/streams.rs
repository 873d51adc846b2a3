//! Readahead by address, along the streams of a program's faults.
//!
//! Owns: the recent streams. A stream that continues forward or backward has its window entirely
//! ahead; a fault elsewhere near it gets a smaller window around itself. Linux keeps one stream per
//! mapping (`swap_vma_readahead`); here a few serve all.
//! A page mapped before its touch gives no sign when it is touched. But a stream whose next fault
//! is right at the end of its window has passed all of it: those pages were hits.
//! Two adjacent faults begin a stream, unless that has rarely been one so far ([`Trials`]): then it
//! takes three.
//! A long stream leaves pages behind, for drop-behind: those of the window before the one just
//! passed. That one is spared, for programs that look back a little.
//! A stream may step: after two equal steps of 2 to [`STEP_MAX`] pages its windows are of pages at
//! that distance, by the same rule. It is detected from streams with a single fault, so it is found
//! even when it alternates with others. It leaves nothing behind: the pages between its own are not
//! its own.
//! Invariants: pages proven touched are counted once; a window ends where reading it ended, so that
//! a stream is not lost when memory is short.
//! Not here: frames and reads.

use super::next_window;
use crate::space::Pattern;
use overspill_base::PageNo;
use std::ops::Range;

/// Smallest window of a long stream: it has doubled four times.
const LONG_PAGES: usize = 16;
/// Streams kept; in most programs more than one thread reads in order.
const STREAMS: usize = 16;
/// Longest step of a stream, in pages: matrix rows of a quarter of a MiB.
const STEP_MAX: u32 = 64;

#[derive(Clone, Debug)]
struct Stream {
    /// The page of its last fault.
    last: u32,
    /// The window of that fault, from its first page to its last.
    window: Range<u32>,
    /// The distance of its pages, 1 for a reader in order.
    step: u32,
    /// The window before it, if the stream was long then.
    before: Range<u32>,
    /// Pages of the window read ahead before and after the faulting page.
    read_ahead: [u32; 2],
    /// Pages right beside the window, on the side it moves to, that were requested in advance.
    asked: Range<u32>,
    /// Faults in a row that were next to the one before, without a window that was passed.
    adjacent: u32,
    /// True if its window is the first that it has read ahead.
    on_trial: bool,
    used_at: u64,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            last: 0,
            window: 0..0,
            step: 1,
            before: 0..0,
            read_ahead: [0; 2],
            asked: 0..0,
            adjacent: 0,
            on_trial: false,
            used_at: 0,
        }
    }
}

/// How many of the streams that were read ahead for the first time went on. Two faults side by side
/// are a stream in most programs, but not in one whose objects lie in pairs.
#[derive(Clone, Debug, Default)]
struct Trials {
    tried: u32,
    proved: u32,
}

impl Trials {
    /// Trials after which the older ones count half.
    const MOST: u32 = 64;
    /// Of so many trials one must prove a stream, or the next takes one fault more.
    const PART: u32 = 16;

    /// Adjacent faults in a row that make a stream.
    fn needed(&self) -> u32 {
        if self.tried < Self::MOST / 2 || self.proved * Self::PART >= self.tried { 1 } else { 2 }
    }

    fn begin(&mut self) {
        if self.tried == Self::MOST {
            (self.tried, self.proved) = (self.tried / 2, self.proved / 2);
        }
        self.tried += 1;
    }
}

/// The position of a fault relative to its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    Forward,
    Backward,
    Astray,
}

/// The pages a fault reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The faulting page.
    pub(crate) page: PageNo,
    /// Pages to read, `step` apart, including the faulting one.
    pub(crate) pages: Range<u32>,
    /// See [`pages`](Self::pages).
    pub(crate) step: u32,
    /// Pages read ahead earlier that this fault proves touched.
    pub(crate) hits: u32,
    /// Pages that a long stream has left behind.
    pub(crate) behind: Range<u32>,
    course: Course,
    stream: usize,
}

/// The advance of a stream to pages that were requested for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Advance {
    /// The window it has reached: pages requested, and those before them on its course.
    pub(crate) pages: Range<u32>,
    /// See [`Window::hits`].
    pub(crate) hits: u32,
    /// See [`Window::behind`].
    pub(crate) behind: Range<u32>,
    /// Pages to request now.
    pub(crate) ask: Range<u32>,
}

/// The streams under one lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    trials: Trials,
    time: u64,
}

impl Streams {
    /// Returns the window for a fault at `page`, of at most `max` pages. A range to be read in
    /// order (`pattern`) gets the largest at once. Only a page that is `alone`, without mapped
    /// neighbours, can start a stepping stream.
    pub(crate) fn window(
        &mut self,
        page: PageNo,
        max: usize,
        pattern: Pattern,
        alone: bool,
    ) -> Window {
        self.time += 1;
        let index = self.find(page.0, alone).unwrap_or_else(|| self.replace_oldest());
        let stream = &mut self.streams[index];
        let (course, step) = (stream.course(page.0), stream.step);
        let (passed, hits) = stream.passed(page.0, course);
        let (pages, course, long) = match (pattern, course) {
            (Pattern::Sequential, Course::Astray) => (max, Course::Forward, 2),
            (Pattern::Sequential, course) => (max, course, 2),
            _ => (stream.next_pages(page.0, passed, max, &mut self.trials), course, LONG_PAGES),
        };
        let window = around(page.0, pages as u32, step, course);
        let behind = stream.move_to(page.0, window.clone(), passed + 1 >= long);
        (stream.asked, stream.used_at) = (0..0, self.time);
        Window { page, pages: window, step, hits, behind, course, stream: index }
    }

    /// Returns the pages to request for a stream whose window was read whole: twice `ahead`, so
    /// that one half is read while the stream goes through the other. None if the fault is astray
    /// or the stream steps.
    pub(crate) fn ask(&mut self, window: &Window, ahead: u32, pages: u32) -> Range<u32> {
        let stream = &mut self.streams[window.stream];
        if stream.last != window.page.0 || window.step > 1 {
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

    /// Advances the stream that has reached `page`, which was requested for it. Its window goes
    /// from there as far as was requested, at most `ahead` pages; the table has `pages`.
    pub(crate) fn advance(&mut self, page: PageNo, ahead: u32, pages: u32) -> Advance {
        self.time += 1;
        let page = page.0;
        let mut streams = self.streams.iter_mut();
        let Some(stream) = streams.find(|stream| stream.asked.contains(&page)) else {
            // In a window not yet read whole, or of a stream that has been replaced.
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
        let behind = stream.move_to(page, window.clone(), passed + 1 >= LONG_PAGES);
        stream.asked = next;
        stream.read_ahead[usize::from(forward)] = read_ahead;
        Advance { pages: window, hits, behind, ask }
    }

    /// Records how a window was read: where it ended, and how many pages before and after the
    /// faulting one were read.
    pub(crate) fn note_read(&mut self, window: &Window, reached: Range<u32>, read_ahead: [u32; 2]) {
        let stream = &mut self.streams[window.stream];
        if stream.last == window.page.0 && stream.window == window.pages {
            stream.window = reached;
            stream.read_ahead = read_ahead;
        }
    }

    /// Finds the stream that continues at `page`, or steps to it, or else one nearby.
    fn find(&mut self, page: u32, alone: bool) -> Option<usize> {
        self.going_on(page)
            .or_else(|| if alone { self.find_step(page) } else { None })
            .or_else(|| self.streams.iter().position(|stream| stream.is_near(page)))
    }

    fn going_on(&self, page: u32) -> Option<usize> {
        self.streams.iter().position(|stream| stream.course(page) != Course::Astray)
    }

    /// Makes a stepping stream of three faults at equal distances, of which `page` is the third:
    /// the second's stream steps, the first's is freed.
    fn find_step(&mut self, page: u32) -> Option<usize> {
        let in_reach = |(_, stream): &(usize, &Stream)| {
            stream.is_one_fault() && (2..=STEP_MAX).contains(&page.abs_diff(stream.last))
        };
        let mut seconds = self.streams.iter().enumerate().filter(in_reach);
        let (first, second) = seconds.find_map(|(n, second)| {
            let before = second.last.checked_add_signed(second.last.wrapping_sub(page) as i32)?;
            let is_first = |first: &Stream| {
                first.is_one_fault() && first.last == before && first.used_at < second.used_at
            };
            self.streams.iter().position(is_first).map(|first| (first, n))
        })?;
        self.streams[first] = Stream::default();
        self.streams[second].step = page.abs_diff(self.streams[second].last);
        Some(second)
    }

    fn replace_oldest(&mut self) -> usize {
        let by_age = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used_at);
        let oldest = by_age.map_or(0, |(index, _)| index);
        self.streams[oldest] = Stream::default();
        oldest
    }
}

impl Stream {
    /// True if the pages requested are after its window.
    fn goes_forward(&self) -> bool {
        self.asked.start >= self.window.end
    }

    /// Moves its window to a fault at `page`; returns the pages that it leaves behind. The window
    /// just passed is left behind next if the stream is `long`.
    fn move_to(&mut self, page: u32, window: Range<u32>, long: bool) -> Range<u32> {
        let was = std::mem::replace(&mut self.window, window);
        let now_before = if long && self.step == 1 { was } else { 0..0 };
        (self.last, self.read_ahead) = (page, [0; 2]);
        std::mem::replace(&mut self.before, now_before)
    }

    /// True if it has had one fault, which read one page.
    fn is_one_fault(&self) -> bool {
        self.step == 1 && self.window.len() == 1
    }

    /// Returns the pages of its window.
    fn pages(&self) -> usize {
        self.window.len().div_ceil(self.step as usize)
    }

    /// Returns the pages of the window for a fault at `page`, by the rule.
    fn next_pages(&mut self, page: u32, passed: usize, max: usize, trials: &mut Trials) -> usize {
        let adjacent = !self.window.is_empty() && page.abs_diff(self.last) == self.step;
        self.adjacent = if adjacent && passed == 0 { self.adjacent + 1 } else { 0 };
        trials.proved += u32::from(std::mem::take(&mut self.on_trial) && passed > 0);
        let pages = next_window(passed, self.adjacent >= trials.needed(), self.pages(), max);
        self.on_trial = self.pages() == 1 && pages > 1;
        if self.on_trial {
            trials.begin();
        }
        pages
    }

    fn course(&self, page: u32) -> Course {
        let step = self.step;
        if self.window.is_empty() {
            Course::Astray
        } else if self.asked.contains(&page) {
            if self.goes_forward() { Course::Forward } else { Course::Backward }
        } else if page + 1 == self.window.end + step || page == self.last + step {
            Course::Forward
        } else if page + step == self.window.start || page + step == self.last {
            Course::Backward
        } else {
            Course::Astray
        }
    }

    /// True within a window's length of the window; never for a window of one page or a stepping
    /// stream.
    fn is_near(&self, page: u32) -> bool {
        let reach = self.window.len() as u32;
        let start = self.window.start.saturating_sub(reach);
        self.step == 1 && reach > 1 && (start..self.window.end + reach).contains(&page)
    }

    /// Returns the pages that the stream has passed up to `page`, and how many of them were read
    /// ahead. The others were in memory before.
    fn passed(&self, page: u32, course: Course) -> (usize, u32) {
        let step = self.step;
        match course {
            Course::Forward if self.asked.contains(&page) || page + 1 == self.window.end + step => {
                (((page - self.last) / step - 1) as usize, self.read_ahead[1])
            }
            Course::Backward if self.asked.contains(&page) || page + step == self.window.start => {
                (((self.last - page) / step - 1) as usize, self.read_ahead[0])
            }
            _ => (0, 0),
        }
    }
}

/// Returns `pages` pages, `step` apart, of which `page` is the first, the last, or in the middle;
/// fewer at the start of the range.
fn around(page: u32, pages: u32, step: u32, course: Course) -> Range<u32> {
    let others = pages - 1;
    let before = match course {
        Course::Forward => 0,
        Course::Backward => others,
        Course::Astray => others / 2,
    };
    let before = before.min(page / step);
    let after = if course == Course::Backward { 0 } else { others - before };
    page - before * step..page + after * step + 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Asks for a window and reports that all of it was read.
    fn read(streams: &mut Streams, page: u32, max: usize) -> Window {
        read_as(streams, page, max, Pattern::Normal)
    }

    fn read_as(streams: &mut Streams, page: u32, max: usize, pattern: Pattern) -> Window {
        let window = streams.window(PageNo(page), max, pattern, true);
        let (before, after) = (page - window.pages.start, window.pages.end - page - 1);
        let ahead = [before / window.step, after / window.step];
        streams.note_read(&window, window.pages.clone(), ahead);
        window
    }

    /// The pages of a window.
    fn pages(window: &Window) -> Vec<u32> {
        window.pages.clone().step_by(window.step as usize).collect()
    }

    /// A reader of every `step`th page, which faults next after its window.
    struct Stepper {
        at: u32,
        step: u32,
        backward: bool,
        /// Pages of its windows.
        seen: Vec<usize>,
        hits: u32,
    }

    impl Stepper {
        fn new(at: u32, step: u32, backward: bool) -> Self {
            Self { at, step, backward, seen: Vec::new(), hits: 0 }
        }

        fn go_on(&mut self, streams: &mut Streams) {
            let window = read(streams, self.at, 64);
            self.seen.push(pages(&window).len());
            self.hits += window.hits;
            self.at = match self.backward {
                true => window.pages.start - self.step,
                false => window.pages.end - 1 + self.step,
            };
        }
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
        // 1, then 2 for an adjacent fault, then hits + 2 rounded up: 1+2 -> 4, 3+2 -> 8, 7+2 -> 16,
        // ...
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
        // All of each window but its faulting page was passed.
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
        // Back into its window, and on from there.
        let astray = read(&mut streams, page - 20, 64);
        let after = read(&mut streams, astray.pages.end, 64);
        assert_eq!((astray.behind.len(), after.behind.len()), (32, 0));
    }

    #[test]
    fn random_faults_read_one_page() {
        assert_eq!(sizes(&[5, 900, 33, 7000, 120]), [1, 1, 1, 1, 1]);
    }

    /// Objects that lie on two pages each, at random: the second page begins no stream. A reader in
    /// order is found all the same, one fault later, and then as before.
    #[test]
    fn where_pairs_are_common_a_stream_takes_three_faults() {
        let mut streams = Streams::default();
        let random = |n: u32| 10_000 + n * 7919 % 5000 * 100;
        let pairs: Vec<Window> = (0..100)
            .flat_map(|n| [random(n), random(n) + 1])
            .map(|page| read(&mut streams, page, 64))
            .collect();
        let ahead = |pairs: &[Window]| pairs.iter().filter(|window| window.pages.len() > 1).count();
        assert_eq!(ahead(&pairs), Trials::MOST as usize / 2, "until it is known");
        let mut starts = |first: u32| {
            let pages = [0, 1, 2, 4].map(|n| first + n);
            pages.map(|page| read(&mut streams, page, 64).pages.len())
        };
        assert_eq!(starts(1000), [1, 1, 2, 4]);
        for n in 0..10 {
            starts(2000 + 100 * n);
        }
        let pages = [0, 1, 3].map(|n| 9000 + n);
        assert_eq!(pages.map(|page| read(&mut streams, page, 64).pages.len()), [1, 2, 4]);
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
        // Going on from there in order, four pages were passed: 4 + 2 rounded up.
        let window = read(&mut streams, 25, 64);
        assert_eq!((window.pages, window.hits), (25..33, 4));
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        assert_eq!(sizes(&[0, 5000, 1, 5001, 3, 5003]), [1, 1, 2, 2, 4, 4]);
    }

    #[test]
    fn after_two_equal_steps_windows_are_of_pages_a_step_apart() {
        for (step, backward) in [(2, false), (16, true), (64, false), (64, true)] {
            let mut streams = Streams::default();
            let mut stepper = Stepper::new(20_000, step, backward);
            (0..9).for_each(|_| stepper.go_on(&mut streams));
            // Detected at the third fault, then as a reader in order: 2, 1+2 -> 4, 3+2 -> 8, ...
            assert_eq!(stepper.seen, [1, 1, 2, 4, 8, 16, 32, 64, 64], "step {step}");
            assert_eq!(stepper.hits, 1 + 3 + 7 + 15 + 31 + 63);
        }
    }

    #[test]
    fn a_step_is_of_2_to_64_pages_and_taken_twice() {
        // Too long; once only; unequal; not one after the other.
        for faults in [[0, 65, 130], [0, 64, 129], [0, 10, 21], [10, 0, 20]] {
            let faults = faults.map(|page| 1000 + page);
            assert_eq!(sizes(&faults), [1, 1, 1], "{faults:?}");
        }
    }

    #[test]
    fn a_stepping_stream_touches_nothing_else() {
        let mut streams = Streams::default();
        let windows = [100, 110, 120, 140].map(|page| read(&mut streams, page, 64));
        assert_eq!(pages(&windows[2]), [120, 130]);
        assert_eq!(pages(&windows[3]), [140, 150, 160, 170]);
        // The pages between its own are not its own, and nothing is requested for it.
        assert_eq!(pages(&read(&mut streams, 155, 64)), [155]);
        assert_eq!(streams.ask(&windows[3], 64, 1000), 0..0);
        // One step back it has turned, with a window of two, the other page below.
        assert_eq!(pages(&read(&mut streams, 130, 64)), [120, 130]);
    }

    #[test]
    fn a_backward_step_ends_at_the_first_page() {
        let mut streams = Streams::default();
        let windows = [40, 33, 26, 12].map(|page| pages(&read(&mut streams, page, 64)));
        assert_eq!(windows, [vec![40], vec![33], vec![19, 26], vec![5, 12]]);
    }

    #[test]
    fn a_range_to_be_read_in_order_gets_the_longest_window_at_once() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut behind = Vec::new();
        for _ in 0..4 {
            let window = read_as(&mut streams, page, 8, Pattern::Sequential);
            assert_eq!(window.pages, page..page + 8);
            page += 8;
            behind.push(window.behind);
        }
        // Short windows are left behind too, all but the one just passed.
        assert_eq!(behind, [0..0, 0..0, 1000..1008, 1008..1016]);
    }

    #[test]
    fn a_window_cut_short_is_continued_where_it_ended() {
        let mut streams = Streams::default();
        for page in [0, 1, 3] {
            read(&mut streams, page, 64);
        }
        let window = streams.window(PageNo(7), 64, Pattern::Normal, true);
        assert_eq!(window.pages, 7..15);
        // Frames ran out after two pages, one of which was already in memory.
        streams.note_read(&window, 7..10, [0, 1]);
        let next = streams.window(PageNo(10), 64, Pattern::Normal, true);
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
        /// For any faults: the page is in its window, the window is within the limit and at least
        /// half the previous one of its stream, and no page is a hit twice.
        #[test]
        fn windows_keep_the_rule(faults in prop::collection::vec(100..400u32, 1..200)) {
            let mut streams = Streams::default();
            let (mut ahead, mut hits) = (0, 0);
            for page in faults {
                let before = streams.clone().find(page, true).map_or(0, |n| streams.streams[n].pages());
                let window = read(&mut streams, page, 16);
                let pages = pages(&window);
                prop_assert!(pages.contains(&page) && pages.len() <= 16);
                prop_assert!(pages.len() >= before / 2);
                hits += window.hits as usize;
                prop_assert!(hits <= ahead, "{} hits of {} pages read ahead", hits, ahead);
                ahead += pages.len() - 1;
            }
        }

        /// Stepping streams and one in order, interleaved in any way, get the windows they get
        /// alone. They are too far apart to be taken for one.
        #[test]
        fn stepping_streams_take_turns_without_harm(
            steps in prop::collection::vec((2..=STEP_MAX, any::<bool>()), 1..5),
            turns in prop::collection::vec(0..5usize, 1..150),
        ) {
            let mut streams = Streams::default();
            let steps = steps.into_iter().chain([(1, false)]).enumerate();
            let start = |n: usize| 10_000_000 * (n as u32 + 1);
            let mut steppers: Vec<_> =
                steps.map(|(n, (step, backward))| Stepper::new(start(n), step, backward)).collect();
            for turn in turns {
                let among = steppers.len();
                steppers[turn % among].go_on(&mut streams);
            }
            for stepper in steppers {
                let mut alone = Streams::default();
                let mut same = Stepper::new(10_000_000, stepper.step, stepper.backward);
                stepper.seen.iter().for_each(|_| same.go_on(&mut alone));
                prop_assert_eq!(stepper.seen, same.seen);
            }
        }
    }
}
