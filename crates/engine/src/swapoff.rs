//! Swapon and swapoff while the engine runs.
//!
//! Owns: swapon, and reading back all pages of an area at swapoff.
//! Invariants: an area becomes visible to allocation last, when every worker has a queue to it.
//! After a successful swapoff no word, frame, batch or cache names the area, its device closes when
//! all workers have dropped it, and every page is as readable as before. After a failed one the
//! area is as usable as before. A swapoff ends, because each page leaves the area once, none is
//! added, and a round skips only pages that other threads are working on. The area keeps its number
//! and its empty tables for good: a thread may still hold a stale entry, and finds that out there.
//! Not here: the thread that empties an area beside the program ([`Engine::start_swapoff`]).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::page::Staged;
use crate::readahead::past::by_slot::BySlot;
use crate::swap_cache::Inserted;
use crate::swaps::{Swap, SwapState};
use crate::transfer::Purpose;
use crate::tuning::Readahead;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapArea, SwapEntry, TooManyAreas};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo};
use overspill_device::DeviceError;
use std::time::Duration;

/// Rounds of reclaim without progress, each waiting up to 2 ms, after which a swapoff fails for
/// lack of memory. Far fewer than a fault's, so that no fault fails because of a swapoff.
const HOPELESS_ROUNDS: u32 = 20;

/// Why an area could not be added.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SwaponError {
    /// All area numbers are taken.
    #[error(transparent)]
    TooMany(#[from] TooManyAreas),
    /// A queue for a worker could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a swapoff failed. The area is in use as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapoffError {
    /// There is no such area, or its swapoff is under way.
    #[error("swap area {0} is not in use: see which are")]
    NotOn(u8),
    /// Refused at once: the pages fit nowhere.
    #[error(
        "{name} holds {pages} pages, and there is room for {room} in memory and on other swap areas: \
         add an area first"
    )]
    NoRoom {
        /// The device.
        name: String,
        /// Pages on the area.
        pages: usize,
        /// Pages for which there is room.
        room: usize,
    },
    /// Memory ran out meanwhile.
    #[error(
        "memory ended before {name} was empty, {slots} slots are left in use: add an area first"
    )]
    NoMemory {
        /// The device.
        name: String,
        /// Slots still in use.
        slots: u32,
    },
}

/// A swap area in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapStatus {
    /// Its number.
    pub area: AreaNo,
    /// The device's name.
    pub name: String,
    /// Pages it can hold once the device has grown to its full size.
    pub pages: u32,
    /// Slots in use, including those in slot caches.
    pub used: u32,
    /// Higher is used first.
    pub priority: i16,
}

impl Engine {
    fn new_state(&self, swap: &Swap) -> SwapState {
        let info = swap.device.info();
        let reads_ahead = self.tuning.readahead_synchronous() || !info.synchronous;
        let by_slot = self.tuning.readahead() == Readahead::Cluster;
        let by_slot = by_slot.then(|| BySlot::new(swap.area.slot_map().len()));
        SwapState::new(swap.priority, reads_ahead, info, by_slot)
    }

    /// Adds the swap area that `make` returns, which must have the number passed to `make`.
    ///
    /// # Errors
    /// [`SwaponError`]; then nothing has changed.
    pub fn swapon(&self, make: impl FnOnce(AreaNo) -> Swap) -> Result<AreaNo, SwaponError> {
        let _one_at_a_time = self.adding.lock();
        let number = self.areas.next_number()?;
        let swap = make(number);
        assert_eq!(swap.area.number(), number, "an area has the number it was given");
        self.swaps.attach(number, &swap.device, self.new_state(&swap))?;
        self.cache.add_area(number, swap.area.slot_map().len());
        self.areas.add(swap.area, swap.priority);
        Ok(number)
    }

    /// Returns the areas in use, by number.
    pub fn swaps(&self) -> Vec<SwapStatus> {
        let areas = self.areas.iter().filter_map(|area| {
            let number = area.number();
            let device = self.swaps.device(number)?;
            Some(SwapStatus {
                area: number,
                name: device.info().name.clone(),
                pages: area.used_slots() + area.free_slots(),
                used: area.used_slots(),
                priority: self.swaps.get(number).priority,
            })
        });
        areas.collect()
    }

    /// Moves every page of `area` into memory or on to other areas, and drops its device. Pages
    /// that cannot be read are poisoned, as by a fault, and reported. `worker` is the caller's own;
    /// the other workers must keep running, because their I/O in flight is waited for.
    ///
    /// # Errors
    /// [`SwapoffError`].
    pub fn swapoff(&self, worker: &mut Worker, area: AreaNo) -> Result<(), SwapoffError> {
        let device = self.swaps.device(area).ok_or(SwapoffError::NotOn(area.0))?;
        let name = device.info().name.clone();
        self.check_room(area, &name)?;
        let state = self.swaps.get(area);
        if !state.set_leaving(true) {
            return Err(SwapoffError::NotOn(area.0));
        }
        let swap_area = self.areas.get(area);
        let writable = swap_area.is_writable();
        self.areas.dequeue(area);
        if self.empty(worker, swap_area) {
            self.swaps.detach(area);
            worker.poll(self);
            return Ok(());
        }
        state.set_leaving(false);
        if writable {
            swap_area.open();
        }
        self.areas.enqueue(area, state.priority);
        Err(SwapoffError::NoMemory { name, slots: swap_area.used_slots() })
    }

    /// Refuses a swapoff that cannot succeed. The room may still be taken later.
    fn check_room(&self, area: AreaNo, name: &str) -> Result<(), SwapoffError> {
        let pages = self.pages_on(area).count();
        let others = self.areas.iter().filter(|a| a.number() != area && a.is_writable());
        let slots: u64 = others.map(|area| u64::from(area.free_slots())).sum();
        let copies = self.frames.all().filter(|&frame| self.has_copy_elsewhere(frame, area));
        let frames = self.frames.free_count().saturating_sub(self.frames.watermarks().low);
        let room = frames + slots as usize + copies.count();
        if pages > room {
            return Err(SwapoffError::NoRoom { name: name.to_owned(), pages, room });
        }
        Ok(())
    }

    /// True for a mapped page with a copy on another area, whose slot can be reclaimed.
    fn has_copy_elsewhere(&self, frame: FrameNo, area: AreaNo) -> bool {
        let entry = self.frames.entry(frame);
        self.frames.has(frame, flag::MAPPED) && entry.is_some_and(|entry| entry.area() != area)
    }

    fn pages_on(&self, area: AreaNo) -> impl Iterator<Item = (PageNo, SwapEntry)> {
        self.table.populated().flatten().filter_map(move |page| match self.table.load(page) {
            Pte::Swapped { entry, .. } if entry.area() == area => Some((page, entry)),
            _ => None,
        })
    }

    /// Has the reclaim thread empty `area` beside the program, as fast as there is room, until
    /// [`has_left`](Self::has_left). Nothing more is written to it. Does not block.
    pub fn start_swapoff(&self, area: AreaNo) {
        if self.swaps.get(area).set_leaving(true) {
            self.areas.dequeue(area);
            self.swaps.start_emptying(area);
            self.low.notify();
        }
    }

    /// True if `area` was swapped off. Workers release its device when they finish their work.
    pub fn has_left(&self, area: AreaNo) -> bool {
        self.swaps.device(area).is_none()
    }

    /// Goes on emptying areas, unless there is something else to do.
    pub(crate) fn run_swapoffs(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        for area in self.swaps.emptying() {
            let swap_area = self.areas.get(area);
            self.empty_once(worker, swap_area, &wanted);
            if swap_area.used_slots() == 0 {
                self.swaps.detach(area);
                worker.poll(self);
            }
        }
    }

    /// Repeats rounds until no slot of the area is used. False if memory ran out before.
    fn empty(&self, worker: &mut Worker, area: &SwapArea) -> bool {
        loop {
            let before = area.used_slots();
            let room = self.empty_once(worker, area, &|| false);
            let left = area.used_slots();
            if left == 0 || !room {
                return left == 0;
            }
            if left == before {
                // Other threads have pages locked, or slots allocated.
                self.freed.wait(self.freed.count(), Some(Duration::from_millis(2)));
            }
        }
    }

    /// Moves what can be moved off the area, until something else is `wanted`. False if memory ran
    /// out.
    fn empty_once(&self, worker: &mut Worker, area: &SwapArea, wanted: &impl Fn() -> bool) -> bool {
        self.frames.all().for_each(|frame| self.unuse_frame(frame, area.number()));
        let pages = self.pages_on(area.number()).take_while(|_| !wanted());
        let mut room = true;
        for (page, entry) in pages {
            worker.poll(self);
            room = self.swap_in(worker, page, entry);
            if !room {
                break;
            }
        }
        worker.finish(self);
        self.areas.drain();
        room
    }

    /// Ends a cached frame's use of `area`, mapping its page if it is not mapped. Leaves frames
    /// that are locked or under writeback to a later round.
    fn unuse_frame(&self, frame: FrameNo, area: AreaNo) {
        let is_on_it = || self.frames.entry(frame).filter(|entry| entry.area() == area);
        if is_on_it().is_none() {
            return;
        }
        let Ok(locked) = self.frames.try_lock(frame) else { return };
        let Some(entry) = is_on_it() else { return self.unlock(locked) };
        let word = self.table.load(locked.page());
        if self.frames.has(frame, flag::WRITEBACK) {
            self.unlock(locked);
        } else if self.frames.has(frame, flag::MAPPED) {
            self.keep_or_free_copy(&locked);
            self.unlock(locked);
        } else if !self.table.is_on(locked.page(), entry) {
            self.drop_cached(locked);
        } else if let Staged::Mapped(locked) = self.map_staged(locked, word) {
            self.frames.clear(frame, flag::READAHEAD);
            self.unlock(locked);
        }
    }

    /// Starts reading a page, with its window; its completion frees the slot. Leaves a cached page
    /// to [`unuse_frame`](Self::unuse_frame). False if there is no frame.
    fn swap_in(&self, worker: &mut Worker, page: PageNo, entry: SwapEntry) -> bool {
        if self.frame_on(page, entry).is_some() {
            return true;
        }
        let Some(locked) = self.frame_to_come_back_to(worker, page) else { return false };
        match self.cache.insert(entry, &locked, &self.frames, &self.table) {
            Inserted::Yes => {
                self.distances.forget(page);
                self.start_read(worker, locked, entry, Purpose::Swapoff);
            }
            Inserted::Exists | Inserted::Changed => self.free(locked),
        }
        true
    }

    /// Allocates a frame, but never one of the last, so that no fault runs out of memory.
    fn frame_to_come_back_to(&self, worker: &mut Worker, page: PageNo) -> Option<LockedPage> {
        let mut hopeless = 0;
        while hopeless <= HOPELESS_ROUNDS {
            if let Some(locked) = self.frames.alloc_to_spare(page) {
                return Some(locked);
            }
            let seen = self.freed.count();
            let progress = self.shrink(worker, true) + worker.poll(self);
            if worker.in_flight() > 0 {
                worker.wait(self);
            } else if progress == 0 {
                let others_write = self.writes_in_flight.load(Relaxed) > 0;
                hopeless += u32::from(!others_write);
                self.freed.wait(seen, Some(Duration::from_millis(2)));
            }
        }
        None
    }
}
