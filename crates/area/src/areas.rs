//! All swap areas of one pager.
//!
//! Owns: the order in which areas are asked, and the slot caches in front of them. Higher priority
//! comes first; areas of equal priority take turns, one visit each (Linux requeues an area behind
//! its equals at every call). Areas can be added at any time. A number is never reused, so an entry
//! always names the same area.
//! Not here: growing, discarding, reclaiming copies ([`SlotReclaim`] asks the engine).

use crate::area::SwapArea;
use crate::slot_cache::SlotCaches;
use crate::tuning::AreaTuning;
use crate::types::{AreaConfig, AreaNo, SlotReclaim, SwapEntry};
use overspill_base::Slot;
use overspill_base::sync::{LockClass, Mutex};
use overspill_base::work::{self, Path};
use std::sync::OnceLock;

/// Slots returned to an area with one call.
const RELEASE_SLOTS: usize = 64;

/// Every area number is in use, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at most {} swap areas can be used by one pager in its life", AreaNo::MAX)]
pub struct TooManyAreas;

/// The areas by number, and their order of use.
#[derive(Debug)]
pub struct SwapAreas {
    areas: Box<[OnceLock<SwapArea>]>,
    order: Mutex<Order>,
    caches: SlotCaches,
    tuning: AreaTuning,
}

#[derive(Debug, Default)]
struct Order {
    /// Areas to allocate from, best first.
    places: Vec<Place>,
    /// How often one was added or taken out.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    priority: i16,
    area: AreaNo,
}

/// The areas in the order in which one visit asks them, and the changes until then.
struct Turn {
    numbers: [AreaNo; AreaNo::MAX],
    areas: usize,
    changes: u64,
}

impl Turn {
    fn areas(&self) -> &[AreaNo] {
        &self.numbers[..self.areas]
    }
}

impl SwapAreas {
    /// Makes an empty set. Takes the CPUs and the switches that concern several areas from
    /// `config`.
    pub fn new(config: AreaConfig) -> Self {
        Self {
            areas: (0..AreaNo::MAX).map(|_| OnceLock::new()).collect(),
            order: Mutex::new(LockClass::AreaOrder, Order::default()),
            caches: SlotCaches::new(config.cpus, config.tuning.slot_batch),
            tuning: config.tuning,
        }
    }

    /// Returns the number the next area must have.
    ///
    /// # Errors
    /// [`TooManyAreas`].
    pub fn next_number(&self) -> Result<AreaNo, TooManyAreas> {
        let unused = self.areas.iter().position(|area| area.get().is_none());
        unused.map(|number| AreaNo(number as u8)).ok_or(TooManyAreas)
    }

    /// Adds an area with `priority`.
    ///
    /// # Panics
    /// If its number is taken: see [`next_number`](Self::next_number).
    pub fn add(&self, area: SwapArea, priority: i16) {
        let number = area.number();
        let fresh = self.areas[number.0 as usize].set(area).is_ok();
        assert!(fresh, "swap area number {} is taken", number.0);
        self.enqueue(number, priority);
    }

    /// Allows allocation from an area, behind the others of its priority.
    pub fn enqueue(&self, area: AreaNo, priority: i16) {
        let mut order = self.order.lock();
        let behind = order.places.partition_point(|place| place.priority >= priority);
        order.places.insert(behind, Place { priority, area });
        order.changes += 1;
    }

    /// Stops allocation from an area and returns its priority, or `None` if it was stopped already.
    /// After the call nothing more is claimed there, cached slots are back in their clusters, and
    /// no CPU has a current cluster there. An allocation that claimed slots earlier may still cache
    /// them: [`drain`](Self::drain) until [`used_slots`](SwapArea::used_slots) shows that all are
    /// back.
    pub fn dequeue(&self, number: AreaNo) -> Option<i16> {
        let priority = {
            let mut order = self.order.lock();
            let at = order.places.iter().position(|place| place.area == number)?;
            order.changes += 1;
            order.places.remove(at).priority
        };
        self.get(number).close();
        self.drain();
        Some(priority)
    }

    /// Returns the area with `number`.
    ///
    /// # Panics
    /// If there never was one.
    pub fn get(&self, number: AreaNo) -> &SwapArea {
        self.areas[number.0 as usize].get().expect("entries name areas that were added")
    }

    /// Iterates over all areas ever added, by number.
    pub fn iter(&self) -> impl Iterator<Item = &SwapArea> {
        self.areas.iter().filter_map(OnceLock::get)
    }

    /// Appends up to `want` entries to `out` and returns their number. Fewer means that no more are
    /// available, even after `reclaim`.
    pub fn alloc(
        &self,
        cpu: usize,
        want: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<SwapEntry>,
    ) -> usize {
        let start = out.len();
        self.adapt_cache();
        loop {
            let missing = want - (out.len() - start);
            if missing == 0 {
                return want;
            }
            let cached =
                if self.caches.is_active() { self.caches.pop(cpu, missing, out) } else { 0 };
            if cached == 0 && !self.visit(cpu, missing, reclaim, out) {
                break;
            }
        }
        // The last free slots may be in other CPUs' caches, or be copies of mapped pages.
        self.drain();
        loop {
            let missing = want - (out.len() - start);
            let more = missing > 0
                && (self.visit(cpu, missing, reclaim, out)
                    || self.reclaim_copies(missing, reclaim));
            if !more {
                return out.len() - start;
            }
        }
    }

    /// Frees slots that are only copies, in any cluster; true if there were any.
    fn reclaim_copies(&self, want: usize, reclaim: &dyn SlotReclaim) -> bool {
        let writable = self.iter().filter(|area| area.is_writable());
        let copies = writable.flat_map(SwapArea::copies);
        copies.filter(|&entry| reclaim.reclaim_slot(entry)).take(want).count() > 0
    }

    /// Allocates up to `want` entries of one area with a priority below `priority`; none if none
    /// has a free slot.
    pub fn alloc_below(
        &self,
        cpu: usize,
        priority: i16,
        want: usize,
        reclaim: &dyn SlotReclaim,
    ) -> Vec<SwapEntry> {
        let places = self.order.lock().places.clone();
        let below = places.iter().filter(|place| place.priority < priority);
        let mut slots = Vec::with_capacity(want);
        let found = below.map(|place| place.area).find(|&area| {
            self.alloc_from(area, cpu, want, reclaim, &mut slots);
            !slots.is_empty()
        });
        let entries = found
            .into_iter()
            .flat_map(|area| slots.iter().map(move |&slot| SwapEntry::new(area, slot)));
        entries.collect()
    }

    /// Takes slots from an area, which grows if it has none.
    fn alloc_from(
        &self,
        number: AreaNo,
        cpu: usize,
        want: usize,
        reclaim: &dyn SlotReclaim,
        slots: &mut Vec<Slot>,
    ) {
        let area = self.get(number);
        while area.alloc(cpu, want, reclaim, slots) == 0 && reclaim.grow(number) {}
    }

    /// Asks the areas in turn until one has slots. True if one had. Starts over if areas have come
    /// or gone meanwhile: all that were asked may have been taken out, and others added.
    fn visit(
        &self,
        cpu: usize,
        missing: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<SwapEntry>,
    ) -> bool {
        loop {
            let turn = self.in_turn();
            let found = self.ask(turn.areas(), cpu, missing, reclaim, out);
            if found || self.order.lock().changes == turn.changes {
                return found;
            }
        }
    }

    /// Asks `areas` one by one until one has slots. True if one had.
    fn ask(
        &self,
        areas: &[AreaNo],
        cpu: usize,
        missing: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<SwapEntry>,
    ) -> bool {
        let batch = self.tuning.slot_batch;
        let goal = if self.caches.is_active() { batch } else { missing.min(batch) };
        let _path = work::on(Path::GetSwapPages);
        let mut slots = Vec::with_capacity(goal);
        for &number in areas {
            self.alloc_from(number, cpu, goal, reclaim, &mut slots);
            if !slots.is_empty() {
                self.hand_out(cpu, number, &slots, missing, out);
                return true;
            }
        }
        false
    }

    /// Gives the caller the `missing` entries and caches the rest.
    fn hand_out(
        &self,
        cpu: usize,
        area: AreaNo,
        slots: &[Slot],
        missing: usize,
        out: &mut Vec<SwapEntry>,
    ) {
        let mut entries = slots.iter().map(|&slot| SwapEntry::new(area, slot));
        out.extend(entries.by_ref().take(missing));
        let mut rest: Vec<SwapEntry> = entries.collect();
        if !rest.is_empty() {
            self.caches.push(cpu, &mut rest);
            self.release(&rest);
        }
    }

    /// Allocates an entry for a folio of `1 << order` pages: the first of that many slots in one
    /// cluster, naturally aligned. `None` if no area finds one at once; allocate single slots then.
    /// Never blocks.
    pub fn alloc_folio(&self, cpu: usize, order: u8) -> Option<SwapEntry> {
        self.in_turn().areas().iter().find_map(|&number| {
            let slot = self.get(number).alloc_folio(cpu, order)?;
            Some(SwapEntry::new(number, slot))
        })
    }

    /// Returns the areas in the order this visit should ask them; moves the first behind its
    /// equals.
    fn in_turn(&self) -> Turn {
        let mut numbers = [AreaNo(0); AreaNo::MAX];
        let Order { places, changes } = &mut *self.order.lock();
        for (number, place) in numbers.iter_mut().zip(places.iter()) {
            *number = place.area;
        }
        let equals = places.iter().take_while(|place| place.priority == places[0].priority).count();
        places[..equals].rotate_left(equals.min(1));
        Turn { numbers, areas: places.len(), changes: *changes }
    }

    /// Frees `entry` with the CPU's next batch.
    ///
    /// # Panics
    /// At the flush, if it was not in use.
    pub fn free(&self, cpu: usize, entry: SwapEntry) {
        let batch = self.tuning.free_batch;
        if batch == 1 || self.tuning.slot_cache && !self.caches.is_active() {
            return self.free_now(entry);
        }
        self.caches.free(cpu, entry, batch, |freed| self.release(freed));
    }

    /// Frees `entry` at once, so that the next allocation can take it.
    pub fn free_now(&self, entry: SwapEntry) {
        self.get(entry.area()).free(&[entry.slot()]);
    }

    /// Returns sorted entries to their areas, in batches per area.
    fn release(&self, entries: &[SwapEntry]) {
        let _path = work::on(Path::SwapcacheFreeEntries);
        // On the stack: a fault served in a signal handler may come here.
        let mut slots = [Slot(0); RELEASE_SLOTS];
        let runs = entries.chunk_by(|a, b| a.area() == b.area());
        for run in runs.flat_map(|run| run.chunks(RELEASE_SLOTS)) {
            for (slot, entry) in slots.iter_mut().zip(run) {
                *slot = entry.slot();
            }
            self.get(run[0].area()).free(&slots[..run.len()]);
        }
    }

    /// Returns every cached and freed slot of a CPU to its cluster, for a CPU that goes offline.
    pub fn drain_cpu(&self, cpu: usize) {
        self.release(&self.caches.drain_cpu(cpu));
    }

    /// As [`drain_cpu`](Self::drain_cpu) for all CPUs, and retires their current clusters. Needed
    /// before a fork, before swapoff, and when an allocation finds nothing.
    pub fn drain(&self) {
        (0..self.caches.cpus()).for_each(|cpu| self.drain_cpu(cpu));
        self.iter().for_each(SwapArea::retire_all);
    }

    /// Returns the number of slots that can still be handed out, once all devices are at full size.
    fn free_slots(&self) -> u64 {
        self.iter().filter(|area| area.is_writable()).map(|area| u64::from(area.free_slots())).sum()
    }

    fn adapt_cache(&self) {
        let fits = self.tuning.slot_cache && !self.iter().any(SwapArea::is_rotational);
        if fits && self.caches.adapt(self.free_slots()) {
            (0..self.caches.cpus()).for_each(|cpu| self.drain_cpu(cpu));
        }
    }
}
