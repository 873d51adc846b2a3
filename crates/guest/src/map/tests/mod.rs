//! The rules one by one, and all orders of small cases against a model of the kernel.

mod children;
mod histories;
mod kernel;
mod mix;
mod orders;
mod pager;
mod pages;
mod rules;
mod settling;

use super::contents::Contents;
use super::{PieceNo, PieceSource, SpaceMap};
use overspill_base::PageNo;
use std::hash::{Hash, Hasher};

/// Pieces without end.
#[derive(Clone, Debug, Default)]
pub(super) struct Endless(pub(super) u32);

impl PieceSource for Endless {
    fn take(&mut self) -> Option<PieceNo> {
        self.0 += 1;
        Some(PieceNo(self.0 - 1))
    }

    fn give_back(&mut self, _: PieceNo) {}
}

impl SpaceMap {
    /// Hashes all that decides what it does, with `content` for the numbers of pages.
    fn hash(&self, content: &dyn Fn(PageNo) -> Option<u8>, state: &mut impl Hasher) {
        let contents = |contents: &Contents, state: &mut _| {
            for extent in contents.bound.iter() {
                for n in 0..extent.pages as usize {
                    (extent.at, n, content(extent.first.plus(n))).hash(state);
                }
            }
            (&contents.believed, &contents.doubtful).hash(state);
            (&contents.doomed, &contents.unmarked).hash(state);
        };
        contents(&self.live, state);
        for waiting in &self.limbo {
            waiting.target.hash(state);
            contents(&waiting.contents, state);
            waiting.claims.iter().for_each(|claim| contents(claim, state));
        }
        self.aside.len().hash(state);
        self.aside.iter().for_each(|claim| contents(claim, state));
        for unkept in &self.unkept {
            unkept.place.hash(state);
            contents(&unkept.contents, state);
        }
        (&self.ghosts, &self.removing, &self.moves, &self.recent).hash(state);
    }
}
