//! Demotion: old pages leave an area that is nearly full for those below it.
//!
//! Owns: which pages, and how they get from one slot to another. So a burst of evictions
//! finds room on the fastest area, and what is there was evicted last. Linux demotes pages between
//! nodes of memory (`pgdemote`), and zswap writes its oldest back to disk.
//! Invariants: it is the reclaim thread's work when nothing else is to be done, in frames and
//! staging memory to spare. A page leaves its slot as at an eviction: it is in staging memory, with
//! its lock held, until its next slot is in its word; and it keeps its frame until it is written. A
//! slot that another page or process holds too is left alone: its page would be on both. Ages are
//! those of refaults, so what was evicted so long ago that the clock has come round looks young.
//! Not here: pools, whose pages have a frame as long as they are in memory; when it is due
//! (`demotion`, `slots`).
//! Rejected: writing to lower areas at once when the upper one is nearly full. Then it is full of
//! old pages for ever, and the new ones, which come back sooner, are on the slow device.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::store::{Moving, Store};
use crate::transfer::{PageWrite, Purpose, ToRead};
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapArea;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most pages chosen at a time. Their choice goes through the whole page table.
const CHOSEN_PAGES: usize = 4096;

/// How it ended to try to demote the oldest pages of an area.
enum Attempt {
    /// Some have left it.
    Useful,
    /// None could.
    Useless,
    /// Before it came so far: frames or staging memory ran short, or there is other work.
    Stopped,
}

impl Engine {
    /// Demotes pages of areas that were found nearly full, until they have room; stops when frames
    /// run low or `wanted` says that the caller has something else to do. A part of
    /// [`balance`](Self::balance). Blocks on the devices.
    pub fn demote(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        let Store::Moving(moving) = &self.store else { return };
        if !self.demotion.is_due() {
            return;
        }
        let goes_on = || self.frames.are_above_low() && !wanted();
        // One that was interrupted goes on, though the area is no longer nearly full.
        for area in self.areas.iter().filter(|area| self.can_demote_from(area)) {
            while goes_on() && self.lacks_slots(area) > 0 {
                match self.demote_oldest(worker, moving, area, &goes_on) {
                    Attempt::Useful => {}
                    Attempt::Useless => {
                        self.demotion.put_off(self.workingset.clock() + CHOSEN_PAGES as u64);
                        break;
                    }
                    Attempt::Stopped => return,
                }
            }
        }
        if goes_on() {
            self.demotion.end();
        }
    }

    /// Demotes the oldest pages of an area.
    fn demote_oldest(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        area: &SwapArea,
        goes_on: &impl Fn() -> bool,
    ) -> Attempt {
        let oldest = self.oldest_on(area, self.lacks_slots(area).min(CHOSEN_PAGES));
        let (mut rest, before) = (&oldest[..], self.stats.get(Event::pgdemote));
        while goes_on() && !rest.is_empty() {
            let next = rest.len().min(moving.staging.chunk);
            let seen = self.demote_chunk(worker, moving, area, &rest[..next]);
            if seen == 0 {
                return Attempt::Stopped;
            }
            rest = &rest[seen..];
        }
        match self.stats.get(Event::pgdemote) > before {
            true => Attempt::Useful,
            false if rest.is_empty() => Attempt::Useless,
            false => Attempt::Stopped,
        }
    }

    /// Returns the `most` pages of an area that were evicted first, in the order of addresses.
    fn oldest_on(&self, area: &SwapArea, most: usize) -> Vec<PageNo> {
        let mut oldest = BinaryHeap::with_capacity(most + 1);
        for page in self.table.populated().flatten() {
            let Pte::Swapped { entry, shadow } = self.table.load(page) else { continue };
            if entry.area() == area.number() {
                oldest.push(Reverse((self.workingset.age(shadow), page)));
            }
            if oldest.len() > most {
                // The youngest.
                oldest.pop();
            }
        }
        let mut pages: Vec<_> = oldest.into_iter().map(|Reverse((_, page))| page).collect();
        pages.sort_unstable();
        pages
    }

    /// Demotes pages, a chunk at most, as far as there are frames and staging memory; returns how
    /// many it has dealt with. Without slots below they stay.
    fn demote_chunk(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        area: &SwapArea,
        pages: &[PageNo],
    ) -> usize {
        let (cpu, priority) = (self.cpus.current(), self.swaps.get(area.number()).priority);
        let slots = self.areas.alloc_below(cpu, priority, pages.len(), self);
        if slots.is_empty() {
            return pages.len();
        }
        let (read, seen) = self.read_to_demote(worker, moving, area, &pages[..slots.len()]);
        let mut slots = slots.into_iter();
        let mut writes = std::mem::take(&mut worker.scratch.writes);
        for (locked, shadow) in read.into_iter().filter_map(|page| self.claim_read(page)) {
            let entry = slots.next().expect("a slot for each page that was read");
            self.start_writeback(&locked, entry, shadow);
            writes.push(PageWrite { locked, entry });
        }
        slots.for_each(|entry| self.free_entry(entry));
        self.stats.add(Event::pgdemote, writes.len() as u64);
        self.submit_writes(worker, &mut writes);
        worker.scratch.writes = writes;
        worker.finish(self);
        seen
    }

    /// Reads pages into a chunk of staging memory, as far as there are frames; returns those that
    /// were read, and how many pages it has dealt with. Waits until they have been read.
    fn read_to_demote(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        area: &SwapArea,
        pages: &[PageNo],
    ) -> (Vec<ToRead>, usize) {
        let Some(chunk) = moving.staging.take_to_wait() else { return (Vec::new(), 0) };
        let (mut wanted, map, mut seen) = (Vec::with_capacity(pages.len()), area.slot_map(), 0);
        for &page in pages {
            if let Pte::Swapped { entry, .. } = self.table.load(page)
                && entry.area() == area.number()
                && map.holders(entry.slot()) == Some(1)
            {
                let Some(locked) = self.frames.alloc_to_spare(page) else { break };
                // Nobody wants it: it does not count as one that comes back.
                self.distances.forget(page);
                wanted.extend(self.cache_ahead(locked, entry));
            }
            seen += 1;
        }
        let reads = self.reads_to_wait(moving, chunk, &wanted);
        self.submit_reads(worker, reads, |_| Purpose::Readahead);
        worker.finish(self);
        (wanted, seen)
    }

    /// Locks a page that was read to be demoted, with its shadow, and takes it from its list,
    /// unless somebody was faster. Its word is Resident then, as that of a page on its way out.
    fn claim_read(&self, ToRead { entry, frame }: ToRead) -> Option<(LockedPage, u32)> {
        let locked = self.frames.try_lock(frame).ok()?;
        let word = self.table.load(locked.page());
        let is_its = self.frames.entry(frame) == Some(entry);
        match word {
            Pte::Swapped { entry: on, shadow }
                if is_its && on == entry && self.frames.has(frame, flag::READAHEAD) =>
            {
                let (locked, ..) = self.claim_staged(locked, word)?;
                self.frames.clear(frame, flag::READAHEAD);
                self.lru.remove(&locked, &self.frames);
                Some((locked, shadow))
            }
            _ => {
                self.unlock(locked);
                None
            }
        }
    }
}
