//! The queue of asynchronous readahead.
//!
//! Owns: the windows that streams will reach next, the ranges that the program will need
//! (`MADV_WILLNEED`), and how many pages are requested at a time.
//! Invariants: both queues are bounded; what does not fit is left to faults.
//! Not here: which windows (`streams`), reading them (`thread`).

use crate::event_count::EventCount;
use crate::tuning::{Readahead, Tuning};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicBool, AtomicU32, LockClass, Mutex};
use std::collections::VecDeque;
use std::ops::Range;

/// Most windows waiting to be read; more streams rarely advance at once.
const QUEUE_MAX: usize = 16;
/// Most ranges waiting that the program will need.
const NEEDED_MAX: usize = 1024;

/// What was requested and is not read yet.
#[derive(Debug)]
pub(crate) struct ReadaheadQueue {
    queue: Mutex<Queue>,
    /// Notified of every request.
    pub(super) wanted: EventCount,
    /// Pages requested at a time: doubled when a stream reaches them, halved when some are
    /// reclaimed before. 0 if asynchronous readahead is off.
    pages: AtomicU32,
    was_halved: AtomicBool,
    pages_max: u32,
    /// Fewest pages requested at a time: a chunk.
    pages_min: u32,
}

/// The two queues of requests.
#[derive(Debug)]
struct Queue {
    windows: VecDeque<Range<u32>>,
    /// Ranges that the program said it will need.
    needed: VecDeque<Range<u32>>,
}

/// The next request to read.
pub(super) enum Wish {
    /// A stream's window, to wait for the stream.
    Window(Range<u32>),
    /// At most a chunk of a range that the program will need, to be mapped.
    Needed(Range<u32>),
}

impl Queue {
    /// Returns what to read next; of a needed range at most `most` pages.
    fn next(&mut self, most: u32) -> Option<Wish> {
        if let Some(window) = self.windows.pop_front() {
            return Some(Wish::Window(window));
        }
        let first = self.needed.front_mut()?;
        let start = first.start;
        first.start = first.end.min(start + most);
        let chunk = start..first.start;
        if first.start == first.end {
            self.needed.pop_front();
        }
        Some(Wish::Needed(chunk))
    }
}

impl ReadaheadQueue {
    /// Makes a queue for `frames` frames, of which a sixteenth may wait, and chunks of `chunk`
    /// pages. Streams request nothing without `staging` memory to wait in.
    pub(crate) fn new(frames: usize, tuning: &Tuning, chunk: usize, staging: bool) -> Self {
        let pages_min = chunk as u32;
        let pages_max = (frames / 32).min(tuning.readahead_async_pages) as u32;
        let by_address = tuning.readahead() == Readahead::AddressSpace;
        let on = staging && by_address && pages_max >= pages_min;
        Self {
            queue: Mutex::new(
                LockClass::Readahead,
                Queue { windows: VecDeque::with_capacity(QUEUE_MAX), needed: VecDeque::new() },
            ),
            wanted: EventCount::new(),
            pages: AtomicU32::new(if on { pages_min } else { 0 }),
            was_halved: AtomicBool::new(false),
            pages_max,
            pages_min,
        }
    }

    /// Returns the pages to request at a time of a device that is kept busy by `enough`: at least a
    /// chunk, and not many more than that. Without a latency to hide, larger windows only make the
    /// reader wait longer.
    pub(super) fn pages_for(&self, enough: usize) -> u32 {
        self.pages().min((enough as u32).max(self.pages_min))
    }

    fn pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    pub(super) fn was_reached(&self) {
        self.pages.store((self.pages() * 2).min(self.pages_max), Relaxed);
        self.was_halved.store(false, Relaxed);
    }

    /// Halves the request size, once until a stream reaches its pages again: a page was reclaimed
    /// before.
    pub(crate) fn was_wasted(&self) {
        if !self.was_halved.swap(true, Relaxed) {
            self.pages.store((self.pages() / 2).max(self.pages_min).min(self.pages()), Relaxed);
        }
    }

    /// Queues `pages`, which a stream will reach; drops the oldest window if the queue is full.
    pub(crate) fn ask(&self, pages: Range<u32>) {
        if pages.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.windows.len() == QUEUE_MAX {
            queue.windows.pop_front();
        }
        queue.windows.push_back(pages);
        drop(queue);
        self.wanted.notify();
    }

    /// Queues `pages`, which the program will need soon, unless the queue is full.
    pub(crate) fn need(&self, pages: Range<u32>) {
        let mut queue = self.queue.lock();
        if pages.is_empty() || queue.needed.len() == NEEDED_MAX {
            return;
        }
        queue.needed.push_back(pages);
        drop(queue);
        self.wanted.notify();
    }

    /// Drops all ranges that the program will need: they are left to faults.
    pub(super) fn forget_needed(&self) {
        self.queue.lock().needed.clear();
    }

    /// Takes the next request to read.
    pub(super) fn next(&self) -> Option<Wish> {
        self.queue.lock().next(self.pages_min)
    }

    /// Wakes the thread that waits for requests.
    pub(crate) fn wake(&self) {
        self.wanted.notify();
    }
}
