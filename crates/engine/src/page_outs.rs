//! Ranges waiting to be paged out by the reclaim thread.

use crate::event_count::EventCount;
use overspill_base::sync::{LockClass, Mutex};
use std::collections::VecDeque;
use std::ops::Range;

/// The queue of ranges to be paged out.
#[derive(Debug)]
pub(crate) struct PageOuts {
    asked: Mutex<Asked>,
    done: EventCount,
}

#[derive(Debug, Default)]
struct Asked {
    queue: VecDeque<Range<u32>>,
    /// Ranges ever queued, and ever finished, in the same order.
    taken_in: u64,
    dealt_with: u64,
}

impl PageOuts {
    pub(crate) fn new() -> Self {
        let asked = Mutex::new(LockClass::Control, Asked::default());
        Self { asked, done: EventCount::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked.lock().queue.is_empty()
    }

    /// Queues a range; returns its number, in the order in which they are finished.
    pub(crate) fn put(&self, pages: Range<u32>) -> u64 {
        let mut asked = self.asked.lock();
        asked.queue.push_back(pages);
        asked.taken_in += 1;
        asked.taken_in
    }

    pub(crate) fn take(&self) -> Option<Range<u32>> {
        self.asked.lock().queue.pop_front()
    }

    pub(crate) fn finish_one(&self) {
        self.asked.lock().dealt_with += 1;
        self.done.notify();
    }

    pub(crate) fn wait_for(&self, number: u64) {
        loop {
            let seen = self.done.count();
            if self.asked.lock().dealt_with >= number {
                return;
            }
            self.done.wait(seen, None);
        }
    }
}
