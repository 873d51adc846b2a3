//! Sharing an area between the processes of one run.
//!
//! Owns: cluster ownership and the members' hold bits.
//! Invariants: only a cluster's owner claims slots in it. A slot's count is raised before the
//! holder's bit is set and the bit is cleared before the count is dropped, so a member killed in
//! between leaves at most one slot held, never one freed too early. `release_member` gives back
//! everything a dead member held.
//! Not here: who is alive (the caller knows).
//! Rejected: cluster locks in shared memory. A process killed while it holds one stops all others;
//! robust mutexes repair that at the price of a repair path nobody exercises.

use crate::clusters::{Cluster, ClusterGuard, ListAllocator};
use crate::lists::ClusterLists;
use crate::types::{Finder, Shared, SwapArea, TooManyHolders};
use overspill_base::Slot;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};

/// Processes that can share an area at one time: as many as a slot's word can count.
pub const MEMBERS_MAX: usize = crate::slot_map::HOLDERS_MAX as usize;

/// Empty clusters a member keeps before it lets others have them.
pub(crate) const SPARE_CLUSTERS: usize = 16;

/// A process among those that share an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberNo(pub u32);

impl MemberNo {
    pub(crate) fn owner_word(self) -> u32 {
        self.0 + 1
    }
}

impl SwapArea {
    /// This process's number.
    pub fn member(&self) -> MemberNo {
        self.shared.member()
    }

    /// In a forked child: goes on as `member`, which the parent prepared with
    /// [`share_with`](Self::share_with), and owns no cluster.
    pub fn become_member(&self, member: MemberNo) {
        self.shared.member.store(member.0, Relaxed);
        if let Finder::Lists(lists) = &self.finder {
            lists.known_clusters().for_each(|cluster| *cluster.lock() = Cluster::default());
            *lists.lists.lock() = ClusterLists::default();
        }
    }

    /// Makes `other`, about to be forked off, a holder of every slot this process holds.
    ///
    /// Call after [`drain`](crate::SwapAreas::drain), with nobody allocating or freeing.
    ///
    /// # Errors
    /// [`TooManyHolders`]; then `other` holds nothing.
    pub fn share_with(&self, other: MemberNo) -> Result<(), TooManyHolders> {
        let area = &self.shared;
        let (mine, theirs) = (&area.holds[self.member().0 as usize], &area.holds[other.0 as usize]);
        for (index, word) in mine.iter().enumerate().take(area.used_words()) {
            for bit in bits(word.load(Relaxed)) {
                if let Err(e) = area.slots.hold(Slot((index * 64) as u32 + bit)) {
                    self.release_member(other);
                    return Err(e);
                }
                theirs[index].fetch_or(1 << bit, Relaxed);
            }
        }
        Ok(())
    }

    /// Drops every hold of `gone` and disowns its clusters. `gone` must be dead, or never started.
    pub fn release_member(&self, gone: MemberNo) {
        let area = &self.shared;
        let holds = &area.holds[gone.0 as usize];
        let mut freed = 0;
        for (index, word) in holds.iter().enumerate().take(area.used_words()) {
            let slots = bits(word.swap(0, Relaxed)).map(|bit| Slot((index * 64) as u32 + bit));
            freed += slots.filter(|&slot| area.return_foreign(slot)).count();
        }
        area.sub_used(freed);
        for owner in area.owners.iter() {
            // Release pairs with the Acquire in `adopt`: the next owner sees the slots as they are.
            let _ = owner.compare_exchange(gone.owner_word(), 0, Release, Relaxed);
        }
    }
}

impl Shared {
    pub(crate) fn is_shared(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(crate) fn member(&self) -> MemberNo {
        MemberNo(self.member.load(Relaxed))
    }

    pub(crate) fn note_hold(&self, slot: Slot) {
        if self.is_shared() {
            self.holds[self.member().0 as usize][slot.index() / 64]
                .fetch_or(1 << (slot.0 % 64), Relaxed);
        }
    }

    pub(crate) fn forget_hold(&self, slot: Slot) {
        if self.is_shared() {
            self.holds[self.member().0 as usize][slot.index() / 64]
                .fetch_and(!(1 << (slot.0 % 64)), Relaxed);
        }
    }

    /// Ends this process's hold of a slot in a cluster that some other member owns, or nobody; true
    /// if it is free now.
    pub(crate) fn free_foreign(&self, slot: Slot) -> bool {
        self.forget_hold(slot);
        self.return_foreign(slot)
    }

    fn return_foreign(&self, slot: Slot) -> bool {
        let freed = self.drop_count(slot);
        if freed {
            // Release: the owner that sees this count (Acquire in `recount`) also sees the slot's
            // word at zero.
            self.returned[self.cluster_of(slot) as usize].fetch_add(1, Release);
        }
        freed
    }

    fn used_words(&self) -> usize {
        (self.capacity_slots() as usize).div_ceil(64)
    }
}

impl ListAllocator {
    /// Looks for slots that other members freed in our clusters. True if it found some.
    pub(crate) fn collect_returned(&self, area: &Shared) -> bool {
        let mut found = false;
        if !area.is_shared() {
            return false;
        }
        for (cluster, returned) in area.returned.iter().enumerate() {
            let ours = area.owners[cluster].load(Relaxed) == area.member().owner_word();
            if !ours || returned.load(Relaxed) == 0 {
                continue;
            }
            let mut state = self.cluster(cluster as u32).lock();
            let before = state.used;
            self.recount(area, cluster as u32, &mut state);
            found |= state.used < before;
        }
        found
    }

    /// Counts a cluster's used slots afresh. Others may free meanwhile; they will say so in
    /// `returned`, which is why it is emptied first.
    pub(crate) fn recount(&self, area: &Shared, cluster: u32, state: &mut ClusterGuard<'_>) {
        // Acquire pairs with the Release in `return_foreign`.
        area.returned[cluster as usize].swap(0, Acquire);
        state.used = area.count_used(cluster);
        self.settle(area, cluster, state);
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}
