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

use crate::lists::{ClusterLists, ListKind};
use crate::types::{Cluster, SwapArea, TooManyHolders};
use overspill_base::Slot;
use overspill_base::sync::MutexGuard;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Processes that can share an area at one time.
pub const MEMBERS_MAX: usize = 512;

/// Empty clusters a member keeps before it lets others have them.
const SPARE_CLUSTERS: usize = 16;

/// A process among those that share an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberNo(pub u32);

impl MemberNo {
    pub(crate) fn owner_word(self) -> u32 {
        self.0 + 1
    }
}

impl SwapArea {
    pub(crate) fn is_shared(&self) -> bool {
        !self.holds.is_empty()
    }

    /// This process's number.
    pub fn member(&self) -> MemberNo {
        MemberNo(self.member.load(Relaxed))
    }

    /// In a forked child: goes on as `member`, which the parent prepared with
    /// [`share_with`](Self::share_with), and owns no cluster.
    pub fn become_member(&self, member: MemberNo) {
        self.member.store(member.0, Relaxed);
        for cluster in self.known_clusters() {
            *cluster.lock() = Cluster::default();
        }
        *self.lists.lock() = ClusterLists::default();
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

    /// Makes `other`, about to be forked off, a holder of every slot this process holds.
    ///
    /// Call after [`drain`](Self::drain), with nobody allocating or freeing.
    ///
    /// # Errors
    /// [`TooManyHolders`]; then `other` holds nothing.
    pub fn share_with(&self, other: MemberNo) -> Result<(), TooManyHolders> {
        let (mine, theirs) = (&self.holds[self.member().0 as usize], &self.holds[other.0 as usize]);
        for (index, word) in mine.iter().enumerate().take(self.used_words()) {
            for bit in bits(word.load(Relaxed)) {
                if let Err(e) = self.slots.hold(Slot((index * 64) as u32 + bit)) {
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
        let holds = &self.holds[gone.0 as usize];
        for (index, word) in holds.iter().enumerate().take(self.used_words()) {
            for bit in bits(word.swap(0, Relaxed)) {
                self.release_foreign(Slot((index * 64) as u32 + bit));
            }
        }
        for owner in self.owners.iter() {
            // Release pairs with the Acquire in `adopt`: the next owner sees the slots as they are.
            let _ = owner.compare_exchange(gone.owner_word(), 0, Release, Relaxed);
        }
    }

    fn used_words(&self) -> usize {
        (self.capacity_slots() as usize).div_ceil(64)
    }

    /// Becomes the owner of a cluster nobody owns. False when there is none below the capacity.
    pub(crate) fn adopt(&self) -> bool {
        let clusters = self.capacity_slots() / self.config.tuning.cluster_slots;
        let start = self.lists.lock().adopt_next;
        for step in 0..clusters {
            let cluster = (start + step) % clusters;
            if self.adopt_cluster(cluster) {
                self.lists.lock().adopt_next = cluster + 1;
                return true;
            }
        }
        false
    }

    fn adopt_cluster(&self, cluster: u32) -> bool {
        let owner = &self.owners[cluster as usize];
        if owner.load(Relaxed) != 0 {
            return false;
        }
        let mut state = self.cluster(cluster).lock();
        if owner.compare_exchange(0, self.member().owner_word(), AcqRel, Relaxed).is_err() {
            return false;
        }
        self.recount(cluster, &mut state);
        true
    }

    /// Looks for slots that other members freed in our clusters. True if it found some.
    pub(crate) fn collect_returned(&self) -> bool {
        let mut found = false;
        for (cluster, returned) in self.returned.iter().enumerate() {
            let ours = self.owners[cluster].load(Relaxed) == self.member().owner_word();
            if !ours || returned.load(Relaxed) == 0 {
                continue;
            }
            let mut state = self.cluster(cluster as u32).lock();
            let before = state.used;
            self.recount(cluster as u32, &mut state);
            found |= state.used < before;
        }
        found
    }

    /// Counts a cluster's used slots afresh. Others may free meanwhile; they will say so in
    /// `returned`, which is why it is emptied first.
    pub(crate) fn recount(&self, cluster: u32, state: &mut MutexGuard<'_, Cluster>) {
        // Acquire pairs with the Release in `release_foreign`.
        self.returned[cluster as usize].swap(0, Acquire);
        let first = cluster * self.config.tuning.cluster_slots;
        let slots = (first..first + self.config.tuning.cluster_slots).map(Slot);
        state.used = slots.filter(|&slot| self.slots.in_use(slot)).count() as u32;
        self.settle(cluster, state);
    }

    /// Lets others have an empty cluster when this process has plenty.
    pub(crate) fn give_up_spare(&self, cluster: u32, state: &mut MutexGuard<'_, Cluster>) {
        if self.lists.lock().len(ListKind::Free) > SPARE_CLUSTERS {
            self.relink(cluster, state, ListKind::None);
            self.owners[cluster as usize].store(0, Release);
        }
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}
