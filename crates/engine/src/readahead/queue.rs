//! What will be read before it faults.
//!
//! Owns: the windows that streams will want next, what the program said it will need
//! (`MADV_WILLNEED`), and how much to ask for at a time. Invariants: both queues have bounds; what
//! does not fit is left to faults.
//! Not here: which windows (`streams`), reading them (`thread`).

use crate::event_count::EventCount;
use crate::tuning::{Readahead, Tuning};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU32, LockClass, Mutex};
use std::collections::VecDeque;
use std::ops::Range;

/// Windows waiting to be read; more streams than that do not go on at once.
const QUEUE_MAX: usize = 16;
/// Ranges waiting that the program said it will need.
const NEEDED_MAX: usize = 1024;

/// What was asked for and is not read yet.
#[derive(Debug)]
pub(crate) struct ReadaheadQueue {
    queue: Mutex<Queue>,
    /// Counts what was asked for.
    pub(super) wanted: EventCount,
    /// Pages asked for at a time: doubled when a stream has come to what was asked for, halved when
    /// some of it was reclaimed before. Zero where nothing is read ahead like this.
    pages: AtomicU32,
    pages_max: u32,
    /// The least that is asked for: a chunk.
    pages_min: u32,
}

/// What waits to be read.
#[derive(Debug)]
struct Queue {
    windows: VecDeque<Range<u32>>,
    /// Ranges that the program said it will need.
    needed: VecDeque<Range<u32>>,
}

/// What to read next.
pub(super) enum Wish {
    /// A stream's window, to wait for it.
    Window(Range<u32>),
    /// At most a chunk of what the program will need, to be mapped.
    Needed(Range<u32>),
}

impl Queue {
    /// What to read next, of what is needed `most` pages.
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
    /// For `frames` frames, of which what waits may be a sixteenth, and chunks of `chunk` pages.
    /// Streams ask for nothing unless there is `staging` memory, where it could wait.
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
            pages_max,
            pages_min,
        }
    }

    /// Pages to ask for at a time, of a device as fast as memory or another. Where no latency has
    /// to be hidden, larger windows only make their reader wait longer, for the whole of one.
    pub(super) fn pages_for(&self, synchronous: bool) -> u32 {
        if synchronous { self.pages().min(self.pages_min) } else { self.pages() }
    }

    fn pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    pub(super) fn was_reached(&self) {
        self.pages.store((self.pages() * 2).min(self.pages_max), Relaxed);
    }

    /// Some of what was asked for was reclaimed before anybody came to it.
    pub(crate) fn was_wasted(&self) {
        self.pages.store((self.pages() / 2).max(self.pages_min).min(self.pages()), Relaxed);
    }

    /// A stream will come to `pages`.
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

    /// The program will need `pages` soon.
    pub(crate) fn need(&self, pages: Range<u32>) {
        let mut queue = self.queue.lock();
        if pages.is_empty() || queue.needed.len() == NEEDED_MAX {
            return;
        }
        queue.needed.push_back(pages);
        drop(queue);
        self.wanted.notify();
    }

    /// What the program will need is left to its faults.
    pub(super) fn forget_needed(&self) {
        self.queue.lock().needed.clear();
    }

    /// What to read next.
    pub(super) fn next(&self) -> Option<Wish> {
        self.queue.lock().next(self.pages_min)
    }

    /// Makes whoever waits look again.
    pub(crate) fn wake(&self) {
        self.wanted.notify();
    }
}
