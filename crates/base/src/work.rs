//! Work that virtual CPUs charge for, named where it is done.
//!
//! Owns: the kinds of work that neither a lock nor an atomic shows, and the paths by which the
//! kernel's profiles name a contended lock.
//! Invariants: natively every function here is empty and inlined.
//! Not here: what anything costs (`overspill-vcpu`).

/// Work on what a lock protects, or on memory that is read without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A scan of adjacent slots in the slot map.
    SlotsScanned(usize),
    /// A look at one slot that another CPU may just have taken.
    SlotSeen,
    /// Frames linked into or unlinked from an LRU list.
    ListMoves(usize),
    /// A search for an entry in a trunk of the swap cache.
    CacheFind,
    /// An insertion into a trunk of the swap cache, or a removal.
    CacheChange,
}

/// The functions of Linux to which a lock's cost is attributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// None of the others.
    Other,
    /// Allocates slots.
    GetSwapPages,
    /// Adds a page to the swap cache.
    AddToSwapCache,
    /// Removes a page from the swap cache.
    RemoveMapping,
    /// Frees a batch of slots.
    SwapcacheFreeEntries,
    /// Takes pages off the inactive list.
    ShrinkInactiveList,
    /// Takes pages off the active list.
    ShrinkActiveList,
    /// Adds a batch of pages to the lists.
    LruAdd,
    /// Rotates pages whose write has ended.
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

/// Marks the path that the calling task is on, until it is dropped.
#[cfg(not(sim))]
#[derive(Debug)]
#[must_use = "the path ends at once"]
pub struct On;

/// Puts the calling task on `path` until the result is dropped; the innermost counts.
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

/// Marks work that Linux does in an interrupt, until it is dropped.
#[cfg(not(sim))]
#[derive(Debug)]
#[must_use = "it ends at once"]
pub struct Interrupt;

/// Marks the calling task's work as done in an interrupt in Linux, while others wait, until the
/// result is dropped.
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
