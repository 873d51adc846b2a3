//! One switch per mechanism, and the presets named after releases of Linux.
//!
//! Owns: the switches of slot allocation; the engine adds its own. Off means what Linux did before
//! the patch that introduced the mechanism.
//! Not here: what depends on the device ([`AreaConfig`](crate::AreaConfig)).

use std::str::FromStr;

/// A release of Linux whose mechanisms a set of switches reproduces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Preset {
    /// Before rotation of reclaimable pages was batched.
    Linux2_6_23,
    /// Before the swap scalability series.
    Linux4_8,
    /// Cluster locks, swap-cache trunks, per-CPU slot caches, batched allocation and freeing.
    Linux4_11,
    /// Adds readahead by address.
    Linux5_7,
    /// Scans on when fragmented, from a scan base per CPU.
    Linux5_8,
    /// Cluster lists instead of scanning (6.12 and on).
    Modern,
}

impl Preset {
    /// Every preset with its name, oldest first.
    pub const ALL: [(Preset, &'static str); 6] = [
        (Preset::Linux2_6_23, "linux-2.6.23"),
        (Preset::Linux4_8, "linux-4.8"),
        (Preset::Linux4_11, "linux-4.11"),
        (Preset::Linux5_7, "linux-5.7"),
        (Preset::Linux5_8, "linux-5.8"),
        (Preset::Modern, "modern"),
    ];

    /// Returns the name used in settings.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(preset, _)| *preset == self).expect("ALL has every preset").1
    }
}

/// Error of parsing a [`Preset`]: there is none of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no preset is called `{0}`; there are linux-2.6.23, linux-4.8, linux-4.11, linux-5.7, linux-5.8 and modern"
)]
pub struct UnknownPreset(String);

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(preset, _)| *preset).ok_or_else(|| UnknownPreset(text.to_owned()))
    }
}

/// How free slots are found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Allocator {
    /// Free clusters first, then a walk along the slot map (up to 6.11).
    Scan,
    /// Lists of clusters by the room they have left, without a search (6.12).
    Lists,
}

/// Where a CPU's walk along the slot map starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanBase {
    /// Where the last walk of any CPU ended.
    Shared,
    /// Where this CPU's last walk ended, or in a random trunk if that left its trunk (5.8).
    PerCpu,
}

/// The switches, and sizes that tests shrink to make rare paths common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AreaTuning {
    /// How free slots are found.
    pub allocator: Allocator,
    /// A lock per cluster for its slots' words (4.11), instead of the area's lock for all.
    pub cluster_locks: bool,
    /// Slots taken in one visit to an area: SWAP_BATCH, 64 (4.11), or 1.
    pub slot_batch: usize,
    /// Freed slots collected per CPU before they are returned: 64 (4.11), or 1.
    pub free_batch: usize,
    /// Whether CPUs cache free slots (4.11).
    pub slot_cache: bool,
    /// Without a free cluster, a visit continues scanning for a whole batch (5.8).
    pub scan_more: bool,
    /// Where scans start.
    pub scan_base: ScanBase,
    /// Slots in a cluster, a power of two: SWAPFILE_CLUSTER, 256; 512 with THP_SWAP.
    pub cluster_slots: u32,
    /// Slots in a trunk, a power of two: 16384, 64 MiB.
    pub trunk_slots: u32,
    /// Slots looked at under one hold of the area's lock: LATENCY_LIMIT, 256.
    pub scan_limit_slots: u32,
}

impl AreaTuning {
    /// Returns the switches of `preset`.
    pub const fn of(preset: Preset) -> Self {
        let old = Self {
            allocator: Allocator::Scan,
            cluster_locks: false,
            slot_batch: 1,
            free_batch: 1,
            slot_cache: false,
            scan_more: false,
            scan_base: ScanBase::Shared,
            cluster_slots: 256,
            trunk_slots: 1 << 14,
            scan_limit_slots: 256,
        };
        let scalable =
            Self { cluster_locks: true, slot_batch: 64, free_batch: 64, slot_cache: true, ..old };
        let spread = Self { scan_more: true, scan_base: ScanBase::PerCpu, ..scalable };
        match preset {
            Preset::Linux2_6_23 | Preset::Linux4_8 => old,
            Preset::Linux4_11 | Preset::Linux5_7 => scalable,
            Preset::Linux5_8 => spread,
            Preset::Modern => Self { allocator: Allocator::Lists, cluster_slots: 512, ..spread },
        }
    }
}

impl Default for AreaTuning {
    fn default() -> Self {
        Self::of(Preset::Modern)
    }
}
