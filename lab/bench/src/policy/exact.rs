//! The reference policies: exact LRU, CLOCK and Belady's MIN.
//!
//! Owns: their lists. They see every touch, which a pager that only sees faults does not. MIN also
//! sees the future, so no policy has fewer misses: it is the bound.
//! Invariants: at most as many pages are held as there are frames; a page is brought in only when
//! it is missing.
//! Not here: readahead, batches, writing: these are policies, not systems.

use overspill_base::PageNo;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Decides which pages are in memory.
pub(crate) trait Policy {
    /// Touches `page`; returns true if it was held. From then on it is held.
    fn touch(&mut self, page: PageNo) -> bool;

    /// True if `page` is held.
    fn holds(&self, page: PageNo) -> bool;
}

/// Evicts the least recently used page.
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

/// A hand goes round the frames. It skips pages touched since its last visit, and the first other
/// page is evicted.
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

    /// Returns the place of the page to evict. The hand stops after it.
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

/// Evicts the page whose next use is furthest in the future.
pub(crate) struct Min {
    frames: usize,
    /// For each future touch, when its page is touched next; the largest number means never.
    next_touch: std::vec::IntoIter<usize>,
    held: HashMap<PageNo, usize>,
    by_next: BTreeSet<(usize, PageNo)>,
}

impl Min {
    /// Makes the policy for these touches.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn misses(policy: &mut impl Policy, touches: &[PageNo]) -> usize {
        touches.iter().filter(|&&page| !policy.touch(page)).count()
    }

    /// Returns the missing pages, touch by touch.
    fn missing(policy: &mut impl Policy, touches: &[PageNo]) -> Vec<u32> {
        let missed = touches.iter().filter(|&&page| !policy.touch(page));
        missed.map(|page| page.0).collect()
    }

    /// The textbook's reference string, and the misses of three frames, worked out by hand.
    #[test]
    fn the_textbooks_trace() {
        let touches = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5].map(PageNo);
        let missed_by_both = [1, 2, 3, 4, 1, 2, 5, 3, 4, 5];
        assert_eq!(missing(&mut Lru::new(3), &touches), missed_by_both);
        assert_eq!(missing(&mut Clock::new(3), &touches), missed_by_both);
        assert_eq!(missing(&mut Min::new(3, &touches), &touches), [1, 2, 3, 4, 5, 3, 4]);
    }

    /// When 4 comes, the hand goes all the way round. So it is at 1 when 5 comes, although 2 was
    /// touched before 1.
    #[test]
    fn clock_is_not_lru() {
        let touches = [1, 2, 3, 2, 1, 4, 5, 1].map(PageNo);
        assert_eq!(missing(&mut Lru::new(3), &touches), [1, 2, 3, 4, 5]);
        assert_eq!(missing(&mut Clock::new(3), &touches), [1, 2, 3, 4, 5, 1]);
    }

    /// LRU as a list with linear search, the latest page at the end.
    fn naive_lru(frames: usize, touches: &[PageNo]) -> Vec<u32> {
        let (mut held, mut missed) = (Vec::new(), Vec::new());
        for page in touches {
            match held.iter().position(|known| known == page) {
                Some(at) => drop(held.remove(at)),
                None => missed.push(page.0),
            }
            held.push(*page);
            if held.len() > frames {
                held.remove(0);
            }
        }
        missed
    }

    /// CLOCK as a queue: a touched page goes to the end when its turn comes.
    fn naive_clock(frames: usize, touches: &[PageNo]) -> Vec<u32> {
        let (mut queue, mut missed) = (Vec::<(PageNo, bool)>::new(), Vec::new());
        for &page in touches {
            if let Some(known) = queue.iter_mut().find(|known| known.0 == page) {
                known.1 = true;
                continue;
            }
            missed.push(page.0);
            while queue.len() == frames {
                let (first, touched) = queue.remove(0);
                if touched {
                    queue.push((first, false));
                }
            }
            queue.push((page, false));
        }
        missed
    }

    /// The fewest misses possible, found by trying every choice.
    fn fewest_misses(frames: usize, held: &[PageNo], touches: &[PageNo]) -> usize {
        let Some((page, rest)) = touches.split_first() else { return 0 };
        if held.contains(page) {
            return fewest_misses(frames, held, rest);
        }
        if held.len() < frames {
            return 1 + fewest_misses(frames, &[held, &[*page]].concat(), rest);
        }
        let instead_of = |n: usize| {
            let mut held = held.to_vec();
            held[n] = *page;
            1 + fewest_misses(frames, &held, rest)
        };
        (0..frames).map(instead_of).min().unwrap_or(usize::MAX)
    }

    fn touches(pages: u32, most: usize) -> impl Strategy<Value = Vec<PageNo>> {
        prop::collection::vec((0..pages).prop_map(PageNo), 0..most)
    }

    proptest! {
        #[test]
        fn lru_and_clock_miss_what_naive_ones_miss(
            frames in 1..6usize,
            touches in touches(10, 120),
        ) {
            let lru = missing(&mut Lru::new(frames), &touches);
            prop_assert_eq!(lru, naive_lru(frames, &touches));
            let clock = missing(&mut Clock::new(frames), &touches);
            prop_assert_eq!(clock, naive_clock(frames, &touches));
        }

        #[test]
        fn no_choice_misses_less_than_min(frames in 1..4usize, touches in touches(6, 13)) {
            let min = misses(&mut Min::new(frames, &touches), &touches);
            prop_assert_eq!(min, fewest_misses(frames, &[], &touches));
        }
    }
}
