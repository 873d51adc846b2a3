//! The counter equations of [`crate::types`], checked.

use crate::engine::Engine;
use crate::lru::LruList;
use crate::store::{Moving, Store};
use crate::types::{Pte, flag};
use overspill_area::SwapEntry;
use overspill_base::{FrameNo, PageNo};
use std::collections::{HashMap, HashSet};

/// The pages on each slot in use, by their words or by their frames in the swap cache.
type SlotPages = HashMap<SwapEntry, HashSet<PageNo>>;

impl Engine {
    /// Verifies all counters. Call without a fault, reclaim or I/O under way: it drains all
    /// batches.
    ///
    /// # Errors
    /// The first equation that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        self.drain();
        let lists = self.check_lists()?;
        let words = self.check_words(&lists)?;
        self.check_slots(&words)?;
        self.check_staging(&lists)?;
        self.areas.iter().try_for_each(|area| area.check())
    }

    /// Checks that every frame is free or on exactly one list.
    fn check_lists(&self) -> Result<HashSet<FrameNo>, String> {
        let mut seen = HashSet::new();
        for list in [LruList::Active, LruList::Inactive] {
            for frame in self.lru.members(list) {
                ensure(seen.insert(frame), || format!("{frame} is on a list twice"))?;
                let active = self.frames.has(frame, flag::ACTIVE);
                ensure(active == (list == LruList::Active), || {
                    format!("{frame}: ACTIVE is wrong")
                })?;
                ensure(!self.frames.has(frame, flag::LOCKED), || format!("{frame} is locked"))?;
            }
        }
        let (free, all) =
            (self.frames.free_count(), self.frames.limit() + self.frames.over_limit());
        ensure(free + seen.len() == all, || {
            format!("{free} free + {} listed != {all}", seen.len())
        })?;
        Ok(seen)
    }

    /// Checks that words and frames agree. Returns the slots in use.
    fn check_words(&self, lists: &HashSet<FrameNo>) -> Result<SlotPages, String> {
        let mut slots = SlotPages::new();
        let mut mapped = 0;
        for page in self.table.populated().flatten() {
            match self.table.load(page) {
                Pte::Resident(frame) => {
                    mapped += 1;
                    ensure(lists.contains(&frame), || format!("{page}: {frame} is on no list"))?;
                    let right = self.frames.page(frame) == Some(page)
                        && self.frames.has(frame, flag::MAPPED);
                    ensure(right, || format!("{page}: {frame} does not know it"))?;
                }
                Pte::Swapped { entry, .. } => {
                    slots.entry(entry).or_default().insert(page);
                }
                Pte::Empty | Pte::Poisoned => {}
            }
        }
        let has = |bit| lists.iter().filter(|&&f| self.frames.has(f, bit)).count();
        ensure(has(flag::MAPPED) == mapped, || format!("{mapped} Resident words, frames differ"))?;
        ensure(has(flag::CACHED) == self.cache.len(), || "cache and CACHED frames differ".into())?;
        for &frame in lists {
            if let (Some(entry), Some(page)) = (self.frames.entry(frame), self.frames.page(frame)) {
                let cached = self.frame_on(page, entry) == Some(frame);
                ensure(cached, || format!("{frame} is not cached under {entry:?}"))?;
                slots.entry(entry).or_default().insert(page);
            }
        }
        Ok(slots)
    }

    /// Checks that every slot has as many holders as pages, and that no others are held.
    fn check_slots(&self, slots: &SlotPages) -> Result<(), String> {
        for (entry, pages) in slots {
            let area = self.areas.get(entry.area());
            let holders = area.slot_map().holders(entry.slot()).unwrap_or(0);
            let right = pages.len() as u64 == holders;
            ensure(right, || format!("{entry:?}: {holders} holders, on it are {pages:?}"))?;
        }
        for area in self.areas.iter() {
            let map = area.slot_map();
            let held = (0..map.len() as u32)
                .filter(|&slot| map.holders(overspill_base::Slot(slot)).is_some_and(|n| n > 0))
                .count();
            let known = slots.keys().filter(|entry| entry.area() == area.number()).count();
            ensure(held == known, || format!("{held} slots held, {known} known"))?;
        }
        Ok(())
    }

    /// Checks that exactly the chunks with staged frames are in use.
    fn check_staging(&self, lists: &HashSet<FrameNo>) -> Result<(), String> {
        let Store::Moving(Moving { staging, .. }) = &self.store else { return Ok(()) };
        let staged = lists.iter().filter_map(|&frame| self.frames.staged(frame));
        let chunks: HashSet<usize> = staged.map(|page| page / staging.chunk).collect();
        let (all, free) = (staging.chunks(), staging.free_chunks());
        ensure(free + chunks.len() == all, || format!("{free} + {} != {all} chunks", chunks.len()))
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
