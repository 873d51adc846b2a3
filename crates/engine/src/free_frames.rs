//! The free frames: a list for all CPUs, and a short one of each.
//!
//! Owns: which frames are free, the limit, how many of the free ones may be used, and the
//! watermarks.
//! Invariants: the limit and what is over it are, together, the usable frames of the common list,
//! those on the CPUs' lists, and those with a page. A limit that is lowered takes usable frames at
//! once, but for those that faults need meanwhile, and each frame that becomes free beyond them.
//! Frames move between the lists with the CPU's lock held, which comes before the common one: who
//! has it sees none on the way. All CPUs' lists together are no longer than what is free at the low
//! watermark, and are empty where that is less than a frame for each.
//! Not here: who uses a frame (`frames`).
//! Source: Linux's per-CPU pages (`mm/page_alloc.c`): moved in batches, limited by the low
//! watermark (5.14), not counted in what watermarks are compared with, taken back from all CPUs
//! when reclaim alone does not help.

use overspill_base::FrameNo;
use overspill_base::clock::Cpus;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicUsize, LockClass, Mutex};
use std::ops::Range;

/// Numbers of free frames that control reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it readahead and other opportunistic allocations stop.
    pub min: usize,
    /// Below it the reclaim thread starts.
    pub low: usize,
    /// At it the reclaim thread stops.
    pub high: usize,
}

impl Watermarks {
    /// Returns the watermarks for `frames` frames: background reclaim starts at 1/64 free and stops
    /// at 1/32, within bounds that keep a batch in flight on the smallest limits.
    pub fn of(frames: usize) -> Self {
        let low = (frames / 64).clamp(1, 1024);
        Self { min: low.div_ceil(4), low, high: (low * 2).min(frames) }
    }
}

/// The free frames that are on no CPU's list.
#[derive(Debug)]
struct Common {
    limit: usize,
    /// Those of them that may be used.
    usable: usize,
    /// Frames still to be freed to keep the limit.
    over: usize,
    /// Those that had a page; the last is taken first.
    used: Vec<FrameNo>,
    /// From here on none ever had one, so that their memory is untouched.
    fresh: Range<u32>,
}

impl Common {
    fn pop(&mut self) -> Option<FrameNo> {
        self.usable = self.usable.checked_sub(1)?;
        self.used.pop().or_else(|| self.fresh.next().map(FrameNo))
    }

    fn push(&mut self, frame: FrameNo) {
        self.used.push(frame);
        self.usable += 1;
        self.settle();
    }

    /// Gives up usable frames for those that are over the limit, but leaves some to faults.
    fn settle(&mut self) {
        if self.over > 0 {
            let keep = Watermarks::of(self.limit).high;
            let given = self.usable.saturating_sub(keep).min(self.over);
            self.usable -= given;
            self.over -= given;
        }
    }

    /// What was over a lower limit is within a higher one, as far as that goes.
    fn set_limit(&mut self, limit: usize) {
        let more = limit.saturating_sub(self.limit);
        let forgiven = more.min(self.over);
        self.usable += more - forgiven;
        self.over += self.limit.saturating_sub(limit);
        self.over -= forgiven;
        self.limit = limit;
        self.settle();
    }
}

/// The free frames of an engine.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    common: Mutex<Common>,
    /// `Common::usable`, readable without the lock, as the next two.
    usable: AtomicUsize,
    limit: AtomicUsize,
    over: AtomicUsize,
    /// By CPU.
    own: Vec<Mutex<Vec<FrameNo>>>,
    cpus: Cpus,
    /// Most frames that are moved between lists at a time; with 0 no CPU has a list.
    batch_most: usize,
}

impl FreeFrames {
    /// Makes `count` free frames, which is the limit, too, moved `batch_most` at a time.
    pub(crate) fn new(count: usize, batch_most: usize, cpus: Cpus) -> Self {
        // Room for all: no memory is allocated when one is freed.
        let used = Vec::with_capacity(count);
        let common = Common { limit: count, usable: count, over: 0, used, fresh: 0..count as u32 };
        let own = || Mutex::new(LockClass::OwnFrames, Vec::with_capacity(2 * batch_most));
        Self {
            common: Mutex::new(LockClass::FreeFrames, common),
            usable: AtomicUsize::new(count),
            limit: AtomicUsize::new(count),
            over: AtomicUsize::new(0),
            own: std::iter::repeat_with(own).take(cpus.count).collect(),
            cpus,
            batch_most,
        }
    }

    /// Frames moved at a time: two batches of each CPU are what is free at the low watermark.
    fn batch(&self, watermarks: Watermarks) -> usize {
        (watermarks.low / (2 * self.own.len())).min(self.batch_most)
    }

    /// Returns the number of usable ones on the common list.
    #[inline]
    pub(crate) fn common_count(&self) -> usize {
        self.usable.load(Relaxed)
    }

    /// Returns how many frames may be in use.
    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Returns how many are still to be freed to keep the limit.
    #[inline]
    pub(crate) fn over_limit(&self) -> usize {
        self.over.load(Relaxed)
    }

    /// Changes the limit.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.gather();
        self.in_common(|common| common.set_limit(limit));
    }

    /// Returns the number of all usable ones.
    pub(crate) fn count(&self) -> usize {
        let own: usize = self.own.iter().map(|own| own.lock().len()).sum();
        own + self.common_count()
    }

    /// Takes one from the CPU's list, filled with a batch if it is empty. `None` if there are none
    /// but perhaps on other CPUs' lists.
    pub(crate) fn take(&self, watermarks: Watermarks) -> Option<FrameNo> {
        let batch = self.batch(watermarks);
        if batch == 0 {
            return self.in_common(Common::pop);
        }
        let mut own = self.own[self.cpus.current()].lock();
        if own.is_empty() {
            self.in_common(|common| own.extend(std::iter::from_fn(|| common.pop()).take(batch)));
            // The one freed last is taken first.
            own.reverse();
        }
        own.pop()
    }

    /// Puts one on the CPU's list, from which the batch that is there longest leaves if it becomes
    /// too long.
    pub(crate) fn put(&self, frame: FrameNo, watermarks: Watermarks) {
        let batch = self.batch(watermarks);
        if batch == 0 {
            return self.in_common(|common| common.push(frame));
        }
        let mut own = self.own[self.cpus.current()].lock();
        if own.len() >= 2 * batch {
            let surplus = own.len() - batch;
            self.in_common(|common| own.drain(..surplus).for_each(|frame| common.push(frame)));
        }
        own.push(frame);
    }

    /// Puts those of all CPUs on the common list; returns how many they were.
    pub(crate) fn gather(&self) -> usize {
        let gathered = self.own.iter().map(|own| {
            let mut own = own.lock();
            let len = own.len();
            if len > 0 {
                self.in_common(|common| own.drain(..).for_each(|frame| common.push(frame)));
            }
            len
        });
        gathered.sum()
    }

    fn in_common<R>(&self, change: impl FnOnce(&mut Common) -> R) -> R {
        let mut common = self.common.lock();
        let (limit, over) = (common.limit, common.over);
        let result = change(&mut common);
        self.usable.store(common.usable, Relaxed);
        // Faults read these, and they rarely change.
        if (common.limit, common.over) != (limit, over) {
            self.limit.store(common.limit, Relaxed);
            self.over.store(common.over, Relaxed);
        }
        result
    }
}
