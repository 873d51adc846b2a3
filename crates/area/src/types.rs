//! The nouns: entry, slot, cluster, area, and how their counters relate.
//!
//! ```text
//! slot     word = 0                      free
//!          count in 1..=HOLDERS_MAX      held by that many processes, or parked in one slot cache
//!          count = RESERVED              header, bad, or past the end; never handed out
//! cluster  used  = slots of it whose word is not 0, once `returned` has been looked at
//!          used == 0            <=>  on the free list, or some CPU's current cluster
//!          used == cluster size <=>  on no list (full)
//!          otherwise                 on the nonfull list, or some CPU's current cluster
//! area     slots held + parked + reserved + free == clusters * cluster size
//! ```
//!
//! A *member* is a process that uses the area. A cluster has at most one owner among the members,
//! who alone allocates from it; everybody may free. So no lock is ever shared between processes,
//! and a member killed at any point leaves nothing locked: at worst one slot stays held.

use crate::lists::{ClusterLists, ListKind};
use crate::slot_map::SlotMap;
use crate::tree::MemberNo;
use crate::tuning::AreaTuning;
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::{AtomicBool, AtomicU32, AtomicU64, LockClass, Mutex};
use std::sync::OnceLock;

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
    /// One word: slots the device has grown to.
    pub capacity: Table<AtomicU32>,
    /// Per member: a bit per slot it holds. Empty when there is one member only.
    pub holds: Vec<Table<AtomicU64>>,
}

/// One swap area as one process sees it.
#[derive(Debug)]
pub struct SwapArea {
    pub(crate) number: AreaNo,
    pub(crate) config: AreaConfig,
    pub(crate) slots_max: u32,
    /// Shared by all members.
    pub(crate) slots: SlotMap,
    pub(crate) owners: Table<AtomicU32>,
    pub(crate) returned: Table<AtomicU32>,
    pub(crate) capacity: Table<AtomicU32>,
    pub(crate) holds: Vec<Table<AtomicU64>>,
    /// This process; changes once, in a forked child.
    pub(crate) member: AtomicU32,
    /// In groups made when first needed: an area may grow far beyond what it ever holds.
    clusters: Vec<OnceLock<Box<[Mutex<Cluster>]>>>,
    pub(crate) lists: Mutex<ClusterLists>,
    pub(crate) cpus: Vec<CpuSlots>,
    /// Cleared after a write error: allocate elsewhere (WRITEOK in Linux).
    pub(crate) writable: AtomicBool,
}

/// What this process knows of a cluster. Meaningful while it owns the cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// Slots not free.
    pub(crate) used: u32,
    /// Which list it is on; the links are in [`ClusterLists`].
    pub(crate) list: ListKind,
}

/// A CPU's slots on their way in and out.
#[derive(Debug)]
pub(crate) struct CpuSlots {
    pub(crate) cache: Mutex<SlotCache>,
    /// Freed slots, not handed out again before the flush, so that clusters can become empty.
    pub(crate) freed: Mutex<Vec<Slot>>,
}

/// Slots allocated ahead of need, and where the next ones come from.
#[derive(Debug, Default)]
pub(crate) struct SlotCache {
    /// Ready to hand out, last first; each counts one holder, this process.
    pub(crate) ready: Vec<Slot>,
    /// The cluster this CPU allocates from, and the offset in it to look at next.
    pub(crate) current: Option<(u32, u32)>,
}

impl AreaTables {
    /// Tables for one process alone, on the heap (tests, models).
    pub fn on_heap(slots: u32, config: AreaConfig, members: usize) -> Self {
        let clusters = slots.div_ceil(config.tuning.cluster_slots) as usize;
        let words = clusters * config.tuning.cluster_slots as usize;
        let bits = move || Table::on_heap(words.div_ceil(64), || AtomicU64::new(0));
        Self {
            slots_max: slots,
            slots: Table::on_heap(words, || AtomicU64::new(0)),
            owners: Table::on_heap(clusters, || AtomicU32::new(0)),
            returned: Table::on_heap(clusters, || AtomicU32::new(0)),
            capacity: Table::on_heap(1, || AtomicU32::new(0)),
            holds: if members > 1 { (0..members).map(|_| bits()).collect() } else { Vec::new() },
        }
    }

    /// Marks `reserved`, and what lies past `slots_max`, as never to be used. Once, by whoever made
    /// the tables, before any member joins.
    pub fn format(&self, reserved: &[Slot]) {
        let map = SlotMap::new(self.slots.clone());
        for &slot in reserved {
            map.reserve(slot);
        }
        for slot in self.slots_max as usize..self.slots.len() {
            map.reserve(Slot(slot as u32));
        }
    }
}

impl SwapArea {
    /// Joins the area in `tables` as `member`, owning no cluster yet.
    pub fn new(number: AreaNo, tables: AreaTables, config: AreaConfig, member: MemberNo) -> Self {
        assert!(config.tuning.cluster_slots.is_power_of_two() && config.tuning.slot_batch > 0);
        let clusters = tables.owners.len();
        Self {
            number,
            config,
            slots_max: tables.slots_max,
            slots: SlotMap::new(tables.slots),
            owners: tables.owners,
            returned: tables.returned,
            capacity: tables.capacity,
            holds: tables.holds,
            member: AtomicU32::new(member.0),
            clusters: (0..clusters.div_ceil(GROUP)).map(|_| OnceLock::new()).collect(),
            lists: Mutex::new(LockClass::ClusterLists, ClusterLists::default()),
            cpus: (0..config.cpus).map(|_| CpuSlots::new(config.tuning.free_batch)).collect(),
            writable: AtomicBool::new(true),
        }
    }

    pub(crate) fn cluster(&self, cluster: u32) -> &Mutex<Cluster> {
        let (group, within) = (cluster as usize / GROUP, cluster as usize % GROUP);
        let fresh = || Mutex::new(LockClass::Cluster, Cluster::default());
        &self.clusters[group].get_or_init(|| (0..GROUP).map(|_| fresh()).collect())[within]
    }

    /// The clusters this process has ever looked at.
    pub(crate) fn known_clusters(&self) -> impl Iterator<Item = &Mutex<Cluster>> {
        self.clusters.iter().filter_map(OnceLock::get).flatten()
    }
}

/// Clusters whose bookkeeping is made together.
const GROUP: usize = 64;

impl CpuSlots {
    fn new(batch_slots: usize) -> Self {
        Self {
            cache: Mutex::new(LockClass::SlotCache, SlotCache::default()),
            freed: Mutex::new(LockClass::SlotCache, Vec::with_capacity(batch_slots)),
        }
    }
}
