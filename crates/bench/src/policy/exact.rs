//! The policies that others are measured by: exact LRU, CLOCK and Belady's MIN.
//!
//! Owns: their lists. They see every touch, which nobody who only sees faults does. MIN sees the future
//! as well, so no policy has fewer misses: it is the bound.
//! Invariants: at most as many pages as there are frames are held; a page is brought in when it is
//! missing and at no other time.
//! Not here: reading ahead, batches, writing: these are policies, not systems.

use overspill_base::PageNo;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Which pages are in memory, as one rule decides.
pub(crate) trait Policy {
    /// Touches `page`; true if it was held. From then on it is.
    fn touch(&mut self, page: PageNo) -> bool;

    /// True if `page` is held.
    fn holds(&self, page: PageNo) -> bool;
}

/// The page touched longest ago goes.
pub(crate) struct Lru {
    frames: usize,
    time: u64,
    touched_at: HashMap<PageNo, u64>,
    by_time: BTreeMap<u64, PageNo>,
}

impl Lru {
    pub(crate) fn new(frames: usize) -> Self {
        Self { frames, time: 0, touched_at: HashMap::new(), by_time: BTreeMap::new() }
    }
}

impl Policy for Lru {
    fn touch(&mut self, page: PageNo) -> bool {
        self.time += 1;
        let before = self.touched_at.insert(page, self.time);
        if let Some(time) = before {
            self.by_time.remove(&time);
        } else if self.by_time.len() == self.frames
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.touched_at.remove(&oldest);
        }
        self.by_time.insert(self.time, page);
        before.is_some()
    }

    fn holds(&self, page: PageNo) -> bool {
        self.touched_at.contains_key(&page)
    }
}

/// A hand goes round the frames. A page touched since it last came by is passed over, the first other
/// one goes.
pub(crate) struct Clock {
    frames: Vec<(PageNo, bool)>,
    count: usize,
    hand: usize,
    place: HashMap<PageNo, usize>,
}

impl Clock {
    pub(crate) fn new(frames: usize) -> Self {
        Self { frames: Vec::with_capacity(frames), count: frames, hand: 0, place: HashMap::new() }
    }

    /// The place of the page that goes. The hand stops after it.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.count;
            if !std::mem::take(&mut self.frames[at].1) {
                return at;
            }
        }
    }
}

impl Policy for Clock {
    fn touch(&mut self, page: PageNo) -> bool {
        if let Some(&at) = self.place.get(&page) {
            self.frames[at].1 = true;
            return true;
        }
        let at = if self.frames.len() < self.count {
            self.frames.push((page, false));
            self.frames.len() - 1
        } else {
            let at = self.victim();
            self.place.remove(&self.frames[at].0);
            self.frames[at] = (page, false);
            at
        };
        self.place.insert(page, at);
        false
    }

    fn holds(&self, page: PageNo) -> bool {
        self.place.contains_key(&page)
    }
}

/// The page that is needed again last of all goes.
pub(crate) struct Min {
    frames: usize,
    /// Of each touch to come, when its page is touched next; the largest number is never.
    next_touch: std::vec::IntoIter<usize>,
    held: HashMap<PageNo, usize>,
    by_next: BTreeSet<(usize, PageNo)>,
}

impl Min {
    /// For exactly these touches.
    pub(crate) fn new(frames: usize, touches: &[PageNo]) -> Self {
        let mut next = vec![usize::MAX; touches.len()];
        let mut seen = HashMap::new();
        for (at, page) in touches.iter().enumerate().rev() {
            next[at] = seen.insert(page, at).unwrap_or(usize::MAX);
        }
        let next_touch = next.into_iter();
        Self { frames, next_touch, held: HashMap::new(), by_next: BTreeSet::new() }
    }
}

impl Policy for Min {
    fn touch(&mut self, page: PageNo) -> bool {
        let next = self.next_touch.next().expect("it was made for these touches");
        let before = self.held.insert(page, next);
        if let Some(now) = before {
            self.by_next.remove(&(now, page));
        } else if self.by_next.len() == self.frames
            && let Some((_, last)) = self.by_next.pop_last()
        {
            self.held.remove(&last);
        }
        self.by_next.insert((next, page));
        before.is_some()
    }

    fn holds(&self, page: PageNo) -> bool {
        self.held.contains_key(&page)
    }
}
