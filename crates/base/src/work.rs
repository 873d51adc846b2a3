//! Work that virtual CPUs charge for, named where it is done.
//!
//! Owns: the kinds of work that neither a lock nor an atomic shows, and the paths by which the
//! kernel's profiles name a contended lock. Invariants: natively every function here is empty and
//! inlined.
//! Not here: what anything costs (`overspill-vcpu`).

/// Work on what a lock protects, or on memory that is read without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Slots looked at one after another in a walk along the slot map.
    SlotsScanned(usize),
    /// One slot looked at that somebody else may just have taken.
    SlotSeen,
    /// Frames linked into or unlinked from an LRU list.
    ListMoves(usize),
    /// A trunk of the swap cache searched for an entry.
    CacheFind,
    /// An entry put into a trunk of the swap cache, or taken out.
    CacheChange,
}

/// The functions of Linux in whose name a lock's cost is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// None of the others.
    Other,
    /// Slots are allocated.
    GetSwapPages,
    /// A page gets its place in the swap cache.
    AddToSwapCache,
    /// A page leaves the swap cache.
    RemoveMapping,
    /// A batch of freed slots is returned.
    SwapcacheFreeEntries,
    /// Pages are taken off the inactive list.
    ShrinkInactiveList,
    /// Pages are taken off the active list.
    ShrinkActiveList,
    /// Pages go to the lists with their batch.
    LruAdd,
    /// Pages are rotated because their write has ended.
    Rotate,
}

impl Path {
    /// Every path, by number, with the name of Linux's function.
    pub const ALL: [(Path, &str); 9] = [
        (Path::Other, ""),
        (Path::GetSwapPages, "get_swap_pages"),
        (Path::AddToSwapCache, "add_to_swap_cache"),
        (Path::RemoveMapping, "__remove_mapping"),
        (Path::SwapcacheFreeEntries, "swapcache_free_entries"),
        (Path::ShrinkInactiveList, "shrink_inactive_list"),
        (Path::ShrinkActiveList, "shrink_active_list"),
        (Path::LruAdd, "__lru_cache_add"),
        (Path::Rotate, "rotate_reclaimable_page"),
    ];

    /// The name of Linux's function.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Charges the calling task for `work`.
#[inline(always)]
pub fn charge(work: Work) {
    #[cfg(sim)]
    overspill_vcpu::charge_by(|costs| match work {
        Work::SlotsScanned(slots) => slots as u64 * costs.scan_slot_ns,
        Work::SlotSeen => costs.transfer_ns,
        Work::ListMoves(frames) => frames as u64 * costs.list_move_ns,
        Work::CacheFind => costs.cache_find_ns,
        Work::CacheChange => costs.cache_change_ns,
    });
    let _ = work;
}

#[cfg(sim)]
pub use overspill_vcpu::PathGuard as On;

/// The path the calling task is on, until it is dropped.
#[cfg(not(sim))]
#[derive(Debug)]
#[must_use = "the path ends at once"]
pub struct On;

/// The calling task is on `path` until what this returns is dropped; the innermost counts.
#[inline(always)]
pub fn on(path: Path) -> On {
    #[cfg(sim)]
    return overspill_vcpu::enter_path(path as u8);
    #[cfg(not(sim))]
    {
        let _ = path;
        On
    }
}

#[cfg(sim)]
pub use overspill_vcpu::Interrupt;

/// What Linux does in an interrupt, until it is dropped.
#[cfg(not(sim))]
#[derive(Debug)]
#[must_use = "it ends at once"]
pub struct Interrupt;

/// The calling task does what Linux does in an interrupt, with others waiting, until what this
/// returns is dropped.
#[inline(always)]
pub fn in_interrupt() -> Interrupt {
    #[cfg(sim)]
    return overspill_vcpu::enter_interrupt();
    #[cfg(not(sim))]
    Interrupt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_numbered_as_they_are_listed() {
        for (number, (path, _)) in Path::ALL.iter().enumerate() {
            assert_eq!(*path as usize, number);
        }
    }
}
