//! One swap area: its slots and their allocator.
//!
//! Owns: the choice of the allocator, one match per operation, and how far an allocation goes.
//! Invariants: a slot handed out has one holder, and is handed out once.
//! Not here: several areas ([`crate::areas`]).

use crate::clusters::{Effort, ListAllocator};
use crate::past::ScanAllocator;
use crate::slot_map::{SlotMap, TooManyHolders, WordLocks};
use crate::state::AreaState;
use crate::tuning::{Allocator, AreaTuning};
use crate::types::{AreaConfig, AreaNo, SlotFreeNotify, SlotReclaim, SlotTable, SwapEntry};
use overspill_base::Slot;

/// One swap area.
#[derive(Debug)]
pub struct SwapArea {
    pub(crate) number: AreaNo,
    pub(crate) state: AreaState,
    pub(crate) allocator: SlotAllocator,
}

/// How free slots are found.
#[derive(Debug)]
pub(crate) enum SlotAllocator {
    Lists(Box<ListAllocator>),
    Scan(ScanAllocator),
}

impl SwapArea {
    /// Makes an area of the slots of `table`. None is available before
    /// [`set_capacity_slots`](Self::set_capacity_slots).
    ///
    /// # Panics
    /// If the tuning contradicts itself.
    pub fn new(number: AreaNo, table: SlotTable, config: AreaConfig) -> Self {
        let AreaTuning { cluster_slots, trunk_slots, slot_batch, free_batch, .. } = config.tuning;
        assert!(cluster_slots.is_power_of_two() && trunk_slots.is_power_of_two());
        assert!(cluster_slots <= trunk_slots && slot_batch > 0 && free_batch > 0);
        let clusters = table.words.len() / cluster_slots as usize;
        let (allocator, locks) = match config.tuning.allocator {
            Allocator::Lists => {
                let lists = ListAllocator::new(config, clusters);
                (SlotAllocator::Lists(Box::new(lists)), WordLocks::Atomic)
            }
            Allocator::Scan => {
                let scan = ScanAllocator::new(config, u64::from(number.0));
                let locks = scan.word_locks(&config, clusters);
                (SlotAllocator::Scan(scan), locks)
            }
        };
        Self { number, state: AreaState::new(table, config, locks), allocator }
    }

    /// Notifies `device` of every slot that becomes free.
    #[must_use]
    pub fn notifying(mut self, device: Box<dyn SlotFreeNotify>) -> Self {
        self.state.free_notify = Some(device);
        self
    }

    /// Returns its number.
    pub fn number(&self) -> AreaNo {
        self.number
    }

    /// Returns the slot words, for users that keep tags in them.
    pub fn slot_map(&self) -> SlotMap {
        self.state.slots.clone()
    }

    /// False after a write error or during swapoff.
    pub fn is_writable(&self) -> bool {
        self.state.is_writable()
    }

    /// Returns the number of slots the device has grown to.
    pub fn capacity_slots(&self) -> u32 {
        self.state.capacity_slots()
    }

    /// Returns the number of slots handed out, including those in slot caches.
    pub fn used_slots(&self) -> u32 {
        self.state.used_slots()
    }

    /// Returns the most slots that were ever handed out at a time, cached ones included.
    pub fn used_most_slots(&self) -> u32 {
        self.state.used_most_slots()
    }

    /// True if no slot can be handed out.
    pub fn is_full(&self) -> bool {
        // Of its full size some slots may be nobody's: a header, bad blocks.
        let is_used = self.used_slots() >= self.capacity_slots() || self.free_slots() == 0;
        is_used || !self.is_writable()
    }

    /// Returns the number of slots that can be handed out once the device is at full size.
    pub fn free_slots(&self) -> u32 {
        self.state.usable_slots().saturating_sub(self.used_slots())
    }

    /// True if more than half of the area's full size is used (`vm_swap_full` in Linux): then slots
    /// that are only copies are reclaimed.
    pub fn is_half_full(&self) -> bool {
        self.state.is_half_full()
    }

    /// Returns the slots that are only copies of mapped pages.
    pub(crate) fn copies(&self) -> impl Iterator<Item = SwapEntry> + '_ {
        self.copies_among((0..self.capacity_slots()).map(Slot))
    }

    fn copies_among(&self, slots: impl Iterator<Item = Slot>) -> impl Iterator<Item = SwapEntry> {
        let copies = slots.filter(|&slot| self.state.slots.is_cache_only(slot));
        copies.map(|slot| SwapEntry::new(self.number, slot))
    }

    /// True if seeks are expensive.
    pub fn is_rotational(&self) -> bool {
        self.state.config.rotational
    }

    /// Appends up to `want` slots to `out` and returns their number. 0 means that there are none,
    /// even after `reclaim`, unless the area grows.
    pub fn alloc(
        &self,
        cpu: usize,
        want: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<Slot>,
    ) -> usize {
        if !self.is_writable() {
            return 0;
        }
        match &self.allocator {
            SlotAllocator::Lists(lists) => self.alloc_from_lists(lists, cpu, want, reclaim, out),
            SlotAllocator::Scan(scan) => {
                scan.alloc(&self.state, self.number, cpu, want, reclaim, out)
            }
        }
    }

    pub(crate) fn alloc_folio(&self, cpu: usize, order: u8) -> Option<Slot> {
        let fits = 1 << order <= self.state.tuning().cluster_slots;
        match &self.allocator {
            SlotAllocator::Lists(lists) if fits => lists.alloc_folio(&self.state, cpu, order),
            _ => None,
        }
    }

    /// Adds a page to a slot that pages are on; each drops its hold by itself.
    ///
    /// # Errors
    /// [`TooManyHolders`].
    pub fn share(&self, slot: Slot) -> Result<(), TooManyHolders> {
        self.state.slots.hold(slot)
    }

    /// Drops one hold of each of `slots`, which are sorted.
    ///
    /// # Panics
    /// If one was not in use.
    pub fn free(&self, slots: &[Slot]) {
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.free(&self.state, slots),
            SlotAllocator::Scan(scan) => scan.free(&self.state, slots),
        }
    }

    /// Makes the slots below `slots` available. Never shrinks.
    pub fn set_capacity_slots(&self, slots: u32) {
        let (before, after) = self.state.raise_capacity(slots);
        if let SlotAllocator::Scan(scan) = &self.allocator
            && after > before
        {
            scan.grow(&self.state, before, after);
        }
    }

    /// Stops handing out slots, after a failed write. Slots in use stay valid.
    pub fn avoid(&self) {
        self.state.set_writable(false);
    }

    /// Hands out slots again.
    pub fn open(&self) {
        self.state.set_writable(true);
    }

    /// As [`avoid`](Self::avoid), and waits for the allocations under way.
    pub(crate) fn close(&self) {
        self.avoid();
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.known_clusters().for_each(|c| drop(c.lock())),
            SlotAllocator::Scan(scan) => drop(scan.lock()),
        }
    }

    pub(crate) fn retire_all(&self) {
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.retire_all(&self.state),
            SlotAllocator::Scan(scan) => scan.retire_all(&self.state),
        }
    }

    /// Takes a cluster that the device should discard; nothing is allocated from it before
    /// [`discarded`](Self::discarded). Returns its first slot and its size.
    pub fn take_discard(&self) -> Option<(Slot, u32)> {
        let cluster = match &self.allocator {
            SlotAllocator::Lists(lists) => lists.take_discard(),
            SlotAllocator::Scan(scan) => scan.take_discard(),
        };
        let size = self.state.tuning().cluster_slots;
        cluster.map(|cluster| (Slot(cluster * size), size))
    }

    /// Ends the discard of a cluster; `first` is the slot [`take_discard`](Self::take_discard)
    /// returned.
    pub fn discarded(&self, first: Slot) {
        let cluster = self.state.cluster_of(first);
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.discarded(cluster),
            SlotAllocator::Scan(scan) => scan.discarded(&self.state, cluster),
        }
    }

    /// As [`alloc`](Self::alloc): tries where room is likely, then copies in a full cluster, then
    /// anywhere, then what a discard frees.
    fn alloc_from_lists(
        &self,
        lists: &ListAllocator,
        cpu: usize,
        want: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<Slot>,
    ) -> usize {
        let start = out.len();
        let mut attempt = |effort| {
            let missing = want - (out.len() - start);
            missing == 0 || lists.alloc(&self.state, cpu, missing, effort, out) == missing
        };
        let done = attempt(Effort::Likely)
            || self.is_half_full()
                && self.reclaim_full_cluster(lists, reclaim)
                && attempt(Effort::Likely)
            || attempt(Effort::Anywhere)
            || reclaim.discard(self.number) && attempt(Effort::Anywhere);
        if done { want } else { out.len() - start }
    }

    /// Frees the copies in one full cluster; true if there were any.
    fn reclaim_full_cluster(&self, lists: &ListAllocator, reclaim: &dyn SlotReclaim) -> bool {
        let Some(cluster) = lists.next_full() else { return false };
        let copies = self.copies_among(self.state.slots_of(cluster));
        copies.filter(|&entry| reclaim.reclaim_slot(entry)).count() > 0
    }
}
