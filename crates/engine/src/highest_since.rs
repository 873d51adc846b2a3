//! Values by position, and the highest that each has ever been.
//!
//! Owns: a value for each position, zero at first. What is added is added to all before some
//! position; a new position is the last that is used, so its value has always been zero.
//! Invariants: what was added to all below a node of the tree is kept there, until a change below
//! it needs its order in time: what is above is always newer. A change and a question take as many
//! steps as the tree has levels, and no memory.
//! Rejected: a Fenwick tree, which knows what a value is and not what it was.

use overspill_base::zeroed;

/// What was added to all positions below a node, and the most that it was at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct Added {
    now: i32,
    most: i32,
}

impl Added {
    fn then(self, later: Self) -> Self {
        Self { now: self.now + later.now, most: self.most.max(self.now + later.most) }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct HighestSince {
    /// A heap: the children of `n` are `2n` and `2n + 1`, the positions the last half.
    nodes: Box<[Added]>,
}

impl HighestSince {
    /// Makes `positions` of them, a power of two.
    pub(crate) fn new(positions: usize) -> Self {
        assert!(positions.is_power_of_two());
        Self { nodes: zeroed::slice(2 * positions) }
    }

    /// Returns the number of positions.
    pub(crate) fn positions(&self) -> usize {
        self.nodes.len() / 2
    }

    /// Adds one to all before `end`, or takes one away.
    pub(crate) fn change_before(&mut self, end: usize, is_more: bool) {
        let change = Added { now: if is_more { 1 } else { -1 }, most: i32::from(is_more) };
        let mut node = 1;
        for level in (0..self.positions().ilog2()).rev() {
            self.pass_on(node);
            node = 2 * node + (end >> level & 1);
            if node % 2 == 1 {
                self.nodes[node - 1] = self.nodes[node - 1].then(change);
            }
        }
    }

    /// Returns the highest that the value at `position` has been.
    pub(crate) fn highest(&self, position: usize) -> usize {
        let leaf = self.positions() + position;
        let above = (0..=self.positions().ilog2()).map(|level| self.nodes[leaf >> level]);
        above.fold(Added::default(), Added::then).most as usize
    }

    /// Keeps the positions that `keep` returns true for, in their order, as the first ones; the
    /// others are new again. Tells `keep` where each would go. With `is_half` they are half of what
    /// they were.
    pub(crate) fn keep(
        &mut self,
        is_half: bool,
        mut keep: impl FnMut(usize, usize) -> bool,
    ) -> usize {
        (1..self.positions()).for_each(|node| self.pass_on(node));
        let leaves = &mut self.nodes[..];
        let first = leaves.len() / 2;
        let mut kept = 0;
        for position in 0..first {
            let mut leaf = std::mem::take(&mut leaves[first + position]);
            if keep(position, kept) {
                leaf.most >>= u32::from(is_half);
                leaves[first + kept] = leaf;
                kept += 1;
            }
        }
        // What is behind a position now may be less than half.
        for (after, leaf) in leaves[first..first + kept].iter_mut().rev().enumerate() {
            *leaf = Added { now: after as i32, most: leaf.most.max(after as i32) };
        }
        kept
    }

    fn pass_on(&mut self, node: usize) {
        let added = std::mem::take(&mut self.nodes[node]);
        for child in [2 * node, 2 * node + 1] {
            self.nodes[child] = self.nodes[child].then(added);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Enter,
        Leave(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![2 => Just(Op::Enter), 1 => any::<usize>().prop_map(Op::Leave)]
    }

    proptest! {
        /// Against one value for each that has entered and not left.
        #[test]
        fn each_knows_the_most_that_were_behind_it(ops in prop::collection::vec(op(), 1..300)) {
            let mut tree = HighestSince::new(32);
            // Position, number behind it now, the most.
            let mut inside: Vec<(usize, usize, usize)> = Vec::new();
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Enter if inside.len() < 20 => {
                        if next == tree.positions() {
                            let at = |position| inside.iter().position(|one| one.0 == position);
                            next = tree.keep(false, |position, _| at(position).is_some());
                            inside.iter_mut().enumerate().for_each(|(n, one)| one.0 = n);
                        }
                        tree.change_before(next, true);
                        for (_, now, most) in &mut inside {
                            *now += 1;
                            *most = (*most).max(*now);
                        }
                        inside.push((next, 0, 0));
                        next += 1;
                    }
                    Op::Leave(nth) if !inside.is_empty() => {
                        let (position, _, most) = inside.remove(nth % inside.len());
                        prop_assert_eq!(tree.highest(position), most);
                        tree.change_before(position, false);
                        let before = inside.iter_mut().filter(|one| one.0 < position);
                        before.for_each(|one| one.1 -= 1);
                    }
                    _ => {}
                }
            }
        }
    }
}
