//! Sharing an area between the processes of one run.
//!
//! Owns: how members join and leave: what a forked child holds, what is released for a dead member.
//! Invariants: `release_member` releases everything a dead member held, and its clusters.
//! Not here: which members are alive (the caller knows); a single hold ([`crate::shared`]).
//! Rejected: cluster locks in shared memory. A process killed while it holds one blocks all others;
//! robust mutexes cure that, with a repair path that is never exercised.

use crate::area::{SlotAllocator, SwapArea};
use crate::slot_map::TooManyHolders;
use crate::types::MemberNo;
use overspill_base::Slot;
use overspill_base::sync::Ordering::{Relaxed, Release};

impl SwapArea {
    /// Returns this process's number.
    pub fn member(&self) -> MemberNo {
        self.shared.member()
    }

    /// Makes a forked child `member`, which the parent prepared with
    /// [`share_with`](Self::share_with). It owns no cluster.
    pub fn become_member(&self, member: MemberNo) {
        self.shared.member.store(member.0, Relaxed);
        if let SlotAllocator::Lists(lists) = &self.allocator {
            lists.disown_all();
        }
    }

    /// Makes `other`, the child about to be forked, a holder of every slot this process holds.
    ///
    /// Call after [`drain`](crate::SwapAreas::drain), while nothing is allocated or freed.
    ///
    /// # Errors
    /// [`TooManyHolders`]; then `other` holds nothing.
    pub fn share_with(&self, other: MemberNo) -> Result<(), TooManyHolders> {
        let area = &self.shared;
        let (mine, theirs) = (&area.holds[self.member().0 as usize], &area.holds[other.0 as usize]);
        for (index, word) in mine.iter().enumerate().take(area.hold_words()) {
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

    /// Counts the slots that this process holds, those in slot caches included; all that are used
    /// if the area has no other members.
    pub fn held_slots(&self) -> u32 {
        let area = &self.shared;
        if !area.is_shared() {
            return area.used_slots();
        }
        let mine = area.holds[self.member().0 as usize].iter().take(area.hold_words());
        mine.map(|word| word.load(Relaxed).count_ones()).sum()
    }

    /// Drops every hold of `gone` and disowns its clusters. `gone` must be dead, or never have
    /// started.
    pub fn release_member(&self, gone: MemberNo) {
        let area = &self.shared;
        let holds = &area.holds[gone.0 as usize];
        let mut freed = 0;
        for (index, word) in holds.iter().enumerate().take(area.hold_words()) {
            let slots = bits(word.swap(0, Relaxed)).map(|bit| Slot((index * 64) as u32 + bit));
            freed += slots.filter(|&slot| area.return_foreign(slot)).count();
        }
        area.sub_used(freed);
        for owner in area.owners.iter() {
            // Release: pairs with the Acquire in `adopt_cluster`; the next owner sees the slots'
            // words.
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
