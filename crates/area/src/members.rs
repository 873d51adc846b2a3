//! Sharing an area between the processes of one run.
//!
//! Owns: a member's coming and going: what a forked child holds, what a dead member gives back.
//! Invariants: `release_member` gives back everything a dead member held, and its clusters.
//! Not here: who is alive (the caller knows); a single hold ([`crate::shared`]).
//! Rejected: cluster locks in shared memory. A process killed while it holds one stops all others;
//! robust mutexes repair that at the price of a repair path nobody exercises.

use crate::area::{SlotAllocator, SwapArea};
use crate::slot_map::TooManyHolders;
use crate::types::MemberNo;
use overspill_base::Slot;
use overspill_base::sync::Ordering::{Relaxed, Release};

impl SwapArea {
    /// This process's number.
    pub fn member(&self) -> MemberNo {
        self.shared.member()
    }

    /// In a forked child: goes on as `member`, which the parent prepared with
    /// [`share_with`](Self::share_with), and owns no cluster.
    pub fn become_member(&self, member: MemberNo) {
        self.shared.member.store(member.0, Relaxed);
        if let SlotAllocator::Lists(lists) = &self.allocator {
            lists.disown_all();
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

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}
