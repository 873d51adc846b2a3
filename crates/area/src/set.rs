//! All swap areas of one pager: priorities, and round robin among equals.
//!
//! Owns: the order in which areas are asked. Higher priority first; areas of equal priority take
//! turns, one batch each (Linux requeues an area behind its equals at every call).
//! Not here: growing an area (the engine asks its device).

use crate::types::{AreaNo, SwapArea, SwapEntry};
use overspill_base::Slot;
use overspill_base::sync::AtomicUsize;
use overspill_base::sync::Ordering::Relaxed;

/// The areas by number, and their order of use.
#[derive(Debug)]
pub struct SwapAreas {
    areas: Vec<SwapArea>,
    /// Groups of equal priority, highest first.
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    members: Vec<usize>,
    turn: AtomicUsize,
}

impl SwapAreas {
    /// Areas with their priorities; area `n` must be numbered `n`.
    pub fn new(areas: Vec<(SwapArea, i16)>) -> Self {
        assert!(areas.len() <= AreaNo::MAX, "an entry names at most {} areas", AreaNo::MAX);
        assert!(areas.iter().enumerate().all(|(n, (area, _))| area.number.0 as usize == n));
        let mut order: Vec<usize> = (0..areas.len()).collect();
        order.sort_by_key(|&n| std::cmp::Reverse(areas[n].1));
        let groups = order
            .chunk_by(|&a, &b| areas[a].1 == areas[b].1)
            .map(|equals| Group { members: equals.to_vec(), turn: AtomicUsize::new(0) })
            .collect();
        Self { areas: areas.into_iter().map(|(area, _)| area).collect(), groups }
    }

    /// The area called `number`.
    pub fn get(&self, number: AreaNo) -> &SwapArea {
        &self.areas[number.0 as usize]
    }

    /// Every area, by number.
    pub fn iter(&self) -> impl Iterator<Item = &SwapArea> {
        self.areas.iter()
    }

    /// Appends up to `want` entries to `out`, from the best area that has room; returns how many.
    /// An area without room is offered to `grow`, and asked again if that returns true.
    pub fn alloc(
        &self,
        cpu: usize,
        want: usize,
        out: &mut Vec<SwapEntry>,
        mut grow: impl FnMut(&SwapArea) -> bool,
    ) -> usize {
        let mut slots = Vec::with_capacity(want);
        for area in self.in_turn().filter(|area| area.is_writable()) {
            let start = slots.len();
            area.alloc(cpu, want - start, &mut slots);
            while slots.len() < want && grow(area) {
                area.alloc(cpu, want - slots.len(), &mut slots);
            }
            out.extend(slots[start..].iter().map(|&slot| SwapEntry::new(area.number, slot)));
            if slots.len() == want {
                break;
            }
        }
        slots.len()
    }

    /// Frees `entry` with the next batch of its area.
    pub fn free(&self, cpu: usize, entry: SwapEntry) {
        self.get(entry.area()).free(cpu, entry.slot());
    }

    /// The areas in the order the next allocation should ask them.
    fn in_turn(&self) -> impl Iterator<Item = &SwapArea> {
        self.groups.iter().flat_map(move |group| {
            let turn = group.turn.fetch_add(1, Relaxed);
            let n = group.members.len();
            (0..n).map(move |i| &self.areas[group.members[(turn + i) % n]])
        })
    }
}

impl SwapArea {
    /// Its number among the areas.
    pub fn number(&self) -> AreaNo {
        self.number
    }

    /// The slot words, for whoever keeps tags in them.
    pub fn slot_map(&self) -> crate::SlotMap {
        self.slots.clone()
    }

    /// Slots in use below the capacity: held, cached or reserved. Counts them one by one.
    pub fn count_used_slots(&self) -> usize {
        let end = (self.capacity_slots() as usize).min(self.slots.len());
        (0..end).filter(|&slot| self.slots.in_use(Slot(slot as u32))).count()
    }
}
