//! The nouns: entry, slot, cluster, area, and how their counters relate.
//!
//! ```text
//! slot     word = 0                      free
//!          count in 1..=HOLDERS_MAX      held by that many processes, or parked in one slot cache
//!          count = RESERVED              header, bad, past the end, or being discarded
//! area     used + reserved + free == capacity, when nobody allocates or frees; a killed process may
//!          leave `used` too high by one batch, never too low
//! ```
//! Cluster lists (per process, for the clusters it owns):
//! ```text
//! cluster  used = slots of it whose word is not 0, once `returned` has been looked at
//!          used == 0             <=>  Free, or Discard, or some CPU's current cluster
//!          used == cluster size  <=>  Full, or some CPU's current cluster
//!          otherwise                  Nonfull, Frag, or some CPU's current cluster
//! ```
//! Scan (one process):
//! ```text
//! cluster  used == 0  <=>  Free, or Discard, or some CPU's current cluster
//! bounds   lowest <= every free slot <= highest; no slot is free  =>  highest == 0
//! ```
//!
//! A *member* is a process that uses the area. A cluster has at most one owner among the members,
//! who alone allocates from it; everybody may free. So no lock is ever shared between processes,
//! and a member killed at any point leaves nothing locked: at worst one slot stays held.

use crate::clusters::ListAllocator;
use crate::scan::ScanAllocator;
use crate::slot_map::{SlotMap, WordLocks};
use crate::tree::MemberNo;
use crate::tuning::{Allocator, AreaTuning, ScanBase};
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed};
use overspill_base::sync::{AtomicBool, AtomicU32, AtomicU64};
use std::fmt::Debug;

/// Which swap area, of at most [`AreaNo::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AreaNo(pub u8);

impl AreaNo {
    /// Areas an entry can name.
    pub const MAX: usize = 32;
}

/// Where a page went: area and slot in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapEntry(u64);

impl SwapEntry {
    /// Bits of a packed entry: 5 of area above 32 of slot.
    pub const BITS: u32 = 37;

    /// The entry for `slot` of `area`.
    #[inline]
    pub fn new(area: AreaNo, slot: Slot) -> Self {
        Self(u64::from(area.0) << 32 | u64::from(slot.0))
    }

    /// The area.
    #[inline]
    pub fn area(self) -> AreaNo {
        AreaNo((self.0 >> 32) as u8)
    }

    /// The slot.
    #[inline]
    pub fn slot(self) -> Slot {
        Slot(self.0 as u32)
    }

    /// Packed into the low [`BITS`](Self::BITS) bits.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Unpacks what [`to_bits`](Self::to_bits) gave.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// True if `next` is the slot right after this one on the same area.
    #[inline]
    pub fn precedes(self, next: SwapEntry) -> bool {
        self.0 + 1 == next.0 && self.area() == next.area()
    }
}

impl std::fmt::Debug for SwapEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.area().0, self.slot())
    }
}

/// What an area's state is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct AreaConfig {
    /// Mechanisms and sizes.
    pub tuning: AreaTuning,
    /// CPUs with state of their own.
    pub cpus: usize,
    /// Seeks cost: slots are handed out in order, one place for all CPUs.
    pub rotational: bool,
    /// Clusters that become empty are discarded before they are used again.
    pub discard: bool,
}

impl AreaConfig {
    /// The default tuning on this machine's CPUs, for a solid-state device without discard.
    pub fn native() -> Self {
        Self {
            tuning: AreaTuning::default(),
            cpus: overspill_base::clock::cpu_count(),
            rotational: false,
            discard: false,
        }
    }
}

/// More processes hold one slot than its count can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a swap slot is shared by more than {} processes", crate::slot_map::HOLDERS_MAX)]
pub struct TooManyHolders;

/// The shared state of one area: everything another process must see.
#[derive(Clone, Debug)]
pub struct AreaTables {
    /// Slots the area may ever have.
    pub slots_max: u32,
    /// A word per slot, see [`SlotMap`].
    pub slots: Table<AtomicU64>,
    /// Per cluster: 0, or its owner's number plus one.
    pub owners: Table<AtomicU32>,
    /// Per cluster: slots freed by members that do not own it, since its owner last looked.
    pub returned: Table<AtomicU32>,
    /// Sums over the area, [`AreaTables::COUNTERS`] of them.
    pub counters: Table<AtomicU32>,
    /// Per member: a bit per slot it holds. Empty when there is one member only.
    pub holds: Vec<Table<AtomicU64>>,
}

/// Index in [`AreaTables::counters`]: slots the device has grown to.
const CAPACITY: usize = 0;
/// Slots handed out, cached ones included.
const USED: usize = 1;
/// Slots that are never handed out.
const RESERVED: usize = 2;

impl AreaTables {
    /// Words of [`counters`](Self::counters).
    pub const COUNTERS: usize = 3;

    /// Tables for one process alone, on the heap (tests, models).
    pub fn on_heap(slots: u32, config: AreaConfig, members: usize) -> Self {
        let cluster_slots = config.tuning.cluster_slots;
        let clusters = slots.div_ceil(cluster_slots) as usize;
        let words = clusters * cluster_slots as usize;
        let bits = move || Table::on_heap(words.div_ceil(64), || AtomicU64::new(0));
        Self {
            slots_max: slots,
            slots: Table::on_heap(words, || AtomicU64::new(0)),
            owners: Table::on_heap(clusters, || AtomicU32::new(0)),
            returned: Table::on_heap(clusters, || AtomicU32::new(0)),
            counters: Table::on_heap(Self::COUNTERS, || AtomicU32::new(0)),
            holds: if members > 1 { (0..members).map(|_| bits()).collect() } else { Vec::new() },
        }
    }

    /// Marks `reserved`, and what lies past `slots_max`, as never to be used. Once, by whoever made
    /// the tables, before any member joins.
    pub fn format(&self, reserved: &[Slot]) {
        let map = SlotMap::new(self.slots.clone(), WordLocks::Atomic);
        let past_end = (self.slots_max..self.slots.len() as u32).map(Slot);
        for slot in reserved.iter().copied().chain(past_end) {
            let fresh = !map.in_use(slot);
            map.reserve(slot);
            self.counters[RESERVED].fetch_add(u32::from(fresh), Relaxed);
        }
    }
}

/// One swap area as one process sees it.
#[derive(Debug)]
pub struct SwapArea {
    pub(crate) number: AreaNo,
    pub(crate) shared: Shared,
    pub(crate) finder: Finder,
}

/// How free slots are found.
#[derive(Debug)]
pub(crate) enum Finder {
    Lists(Box<ListAllocator>),
    Scan(ScanAllocator),
}

/// What every way of finding slots works on, and other processes see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: AreaConfig,
    pub(crate) slots: SlotMap,
    pub(crate) owners: Table<AtomicU32>,
    pub(crate) returned: Table<AtomicU32>,
    counters: Table<AtomicU32>,
    slots_max: u32,
    pub(crate) holds: Vec<Table<AtomicU64>>,
    /// This process; changes once, in a forked child.
    pub(crate) member: AtomicU32,
    /// Cleared after a write error and by swapoff: allocate elsewhere (WRITEOK in Linux).
    writable: AtomicBool,
    forget: Option<Box<dyn Forget>>,
}

/// Whoever wants to know of every slot that becomes free, at once.
pub trait Forget: Send + Sync + Debug {
    /// `slot` is about to be free; until this returns nobody else can have it. Called with locks of
    /// the area held, by whoever drops the last hold, also on behalf of a dead process. Never blocks.
    fn forget(&self, slot: Slot);
}

impl SwapArea {
    /// Joins the area in `tables` as `member`, owning no cluster yet.
    ///
    /// # Panics
    /// When the tuning contradicts itself, or scans an area that processes share.
    pub fn new(number: AreaNo, tables: AreaTables, config: AreaConfig, member: MemberNo) -> Self {
        let AreaTuning { cluster_slots, trunk_slots, slot_batch, free_batch, .. } = config.tuning;
        assert!(cluster_slots.is_power_of_two() && trunk_slots.is_power_of_two());
        assert!(cluster_slots <= trunk_slots && slot_batch > 0 && free_batch > 0);
        let (finder, locks) = match config.tuning.allocator {
            Allocator::Lists => (
                Finder::Lists(Box::new(ListAllocator::new(config, tables.owners.len()))),
                WordLocks::Atomic,
            ),
            Allocator::Scan => {
                assert!(tables.holds.is_empty(), "only cluster lists are shared by processes");
                let scan = ScanAllocator::new(config, u64::from(number.0));
                let locks = scan.word_locks(&config, tables.owners.len());
                (Finder::Scan(scan), locks)
            }
        };
        let shared = Shared {
            config,
            slots: SlotMap::new(tables.slots, locks),
            owners: tables.owners,
            returned: tables.returned,
            counters: tables.counters,
            slots_max: tables.slots_max,
            holds: tables.holds,
            member: AtomicU32::new(member.0),
            writable: AtomicBool::new(true),
            forget: None,
        };
        Self { number, shared, finder }
    }

    /// Tells `device` of every slot that becomes free.
    #[must_use]
    pub fn forgetting(mut self, device: Box<dyn Forget>) -> Self {
        self.shared.forget = Some(device);
        self
    }

    /// Its number among the areas.
    pub fn number(&self) -> AreaNo {
        self.number
    }

    /// The slot words, for whoever keeps tags in them.
    pub fn slot_map(&self) -> SlotMap {
        self.shared.slots.clone()
    }

    /// False after a write error or during swapoff.
    pub fn is_writable(&self) -> bool {
        self.shared.is_writable()
    }

    /// Slots the device has grown to.
    pub fn capacity_slots(&self) -> u32 {
        self.shared.capacity_slots()
    }

    /// Slots handed out, those parked in caches included.
    pub fn used_slots(&self) -> u32 {
        self.shared.used_slots()
    }

    /// Slots that can be handed out once the device has grown to the full.
    pub fn free_slots(&self) -> u32 {
        self.shared.usable_slots().saturating_sub(self.used_slots())
    }

    /// True when more than half of what the area can ever hold is used (`vm_swap_full` in Linux):
    /// then slots that are only copies are given up.
    pub fn is_half_full(&self) -> bool {
        self.shared.is_half_full()
    }

    /// Slots that are only copies of mapped pages.
    pub(crate) fn copies(&self) -> impl Iterator<Item = SwapEntry> + '_ {
        let slots = (0..self.capacity_slots()).map(Slot);
        let copies = slots.filter(|&slot| self.shared.slots.is_cache_only(slot));
        copies.map(|slot| SwapEntry::new(self.number, slot))
    }

    /// True where a seek costs.
    pub fn is_rotational(&self) -> bool {
        self.shared.config.rotational
    }
}

impl Shared {
    pub(crate) fn tuning(&self) -> &AreaTuning {
        &self.config.tuning
    }

    pub(crate) fn cluster_of(&self, slot: Slot) -> u32 {
        slot.0 / self.config.tuning.cluster_slots
    }

    /// Clusters in a trunk; all of them where only order counts.
    pub(crate) fn clusters_per_trunk(&self) -> u32 {
        let AreaTuning { cluster_slots, trunk_slots, .. } = self.config.tuning;
        if self.config.rotational { u32::MAX } else { trunk_slots / cluster_slots }
    }

    pub(crate) fn scan_base(&self) -> ScanBase {
        if self.config.rotational { ScanBase::Shared } else { self.tuning().scan_base }
    }

    /// The slots of a cluster.
    pub(crate) fn slots_of(&self, cluster: u32) -> impl DoubleEndedIterator<Item = Slot> + use<> {
        let size = self.config.tuning.cluster_slots;
        (cluster * size..(cluster + 1) * size).map(Slot)
    }

    /// Slots of a cluster whose word is not 0, counted.
    pub(crate) fn count_used(&self, cluster: u32) -> u32 {
        self.slots_of(cluster).filter(|&slot| self.slots.in_use(slot)).count() as u32
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(Acquire)
    }

    /// Release: an allocator that took a cluster's lock after the clearing thread let go of it sees
    /// the area closed.
    pub(crate) fn set_writable(&self, writable: bool) {
        self.writable.store(writable, overspill_base::sync::Ordering::Release);
    }

    pub(crate) fn capacity_slots(&self) -> u32 {
        self.counters[CAPACITY].load(Acquire)
    }

    /// Raises the capacity to `slots`. A cluster becomes usable when all of it is; what the last one
    /// has past the end is reserved, so it counts as whole. Returns the capacity before and after.
    pub(crate) fn raise_capacity(&self, slots: u32) -> (u32, u32) {
        let whole = if slots >= self.slots_max { self.slots.len() as u32 } else { slots };
        let before = self.counters[CAPACITY].fetch_max(whole, AcqRel);
        (before, before.max(whole))
    }

    fn used_slots(&self) -> u32 {
        self.counters[USED].load(Relaxed)
    }

    pub(crate) fn is_half_full(&self) -> bool {
        u64::from(self.used_slots()) * 2 > u64::from(self.usable_slots())
    }

    fn usable_slots(&self) -> u32 {
        (self.slots.len() as u32).saturating_sub(self.counters[RESERVED].load(Relaxed))
    }

    /// Counts slots as used before they are claimed, so that a process killed in between leaves the
    /// sum too high rather than wrapped around.
    pub(crate) fn add_used(&self, slots: usize) {
        self.counters[USED].fetch_add(slots as u32, Relaxed);
    }

    pub(crate) fn sub_used(&self, slots: usize) {
        if slots > 0 {
            self.counters[USED].fetch_sub(slots as u32, Relaxed);
        }
    }

    /// Takes a free slot for this process. False if it is not free.
    pub(crate) fn claim(&self, slot: Slot) -> bool {
        let claimed = self.slots.claim(slot);
        if claimed {
            self.note_hold(slot);
        }
        claimed
    }

    /// Ends this process's hold; true if the slot is free now.
    pub(crate) fn drop_hold(&self, slot: Slot) -> bool {
        self.forget_hold(slot);
        self.drop_count(slot)
    }

    /// Drops a count of a slot; true if the slot is free now, and forgotten.
    pub(crate) fn drop_count(&self, slot: Slot) -> bool {
        self.slots.drop_hold(slot, |slot| self.forget.iter().for_each(|device| device.forget(slot)))
    }
}
