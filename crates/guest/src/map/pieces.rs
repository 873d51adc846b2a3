//! Page numbers, given out in pieces.
//!
//! Owns: which piece of the engine's page table belongs to which 2 MiB of a guest's addresses, and
//! which of its numbers are taken.
//! Invariants: a number is taken from the moment an address is bound to it until the engine has
//! discarded it ([`Numbers::release`]), so nobody meets another page's content under it. A number
//! is the same distance from its piece's start as its first address from that of its 2 MiB: what
//! lies in order there has numbers in order, which readahead and runs live from.
//! Not here: which address a number has now (`extents`): pages keep their numbers when they move.

use crate::Vpn;
use overspill_base::PageNo;
use std::collections::HashMap;
use std::ops::Range;

/// Pages of a piece: 2 MiB of addresses, 4 KiB of the page table.
pub const PIECE_PAGES: u32 = 512;

/// A piece of the engine's page table: [`PIECE_PAGES`] page numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PieceNo(pub u32);

impl PieceNo {
    /// Returns the piece of a page number.
    pub fn of(page: PageNo) -> Self {
        Self(page.0 / PIECE_PAGES)
    }

    /// Returns its first page number.
    pub fn first(self) -> PageNo {
        PageNo(self.0 * PIECE_PAGES)
    }
}

/// Gives out the pieces of one page table.
pub trait PieceSource {
    /// Takes a piece for a space; `None` if there are no more.
    fn take(&mut self) -> Option<PieceNo>;

    /// Takes one back that [`take`](Self::take) gave.
    fn give_back(&mut self, piece: PieceNo);
}

/// The numbers of one space.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// By the number of the 2 MiB; several, if numbers were taken there again before the engine had
    /// discarded the old ones.
    of_block: HashMap<u64, Vec<PieceNo>>,
    pieces: HashMap<PieceNo, Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    block: u64,
    /// A bit for each number.
    taken: [u64; PIECE_PAGES as usize / 64],
}

impl Piece {
    fn is_taken(&self, index: u32) -> bool {
        self.taken[index as usize / 64] >> (index % 64) & 1 != 0
    }

    fn flip(&mut self, index: u32) {
        self.taken[index as usize / 64] ^= 1 << (index % 64);
    }

    fn is_unused(&self) -> bool {
        self.taken.iter().all(|&word| word == 0)
    }
}

impl Numbers {
    /// Takes numbers for addresses around `at`, as many of `place` as one piece has; returns the
    /// addresses and the first number. `None` if there are no more pieces.
    pub fn take(
        &mut self,
        at: Vpn,
        place: &Range<Vpn>,
        source: &mut dyn PieceSource,
    ) -> Option<(Range<Vpn>, PageNo)> {
        let block = at.0 / u64::from(PIECE_PAGES);
        let start = block * u64::from(PIECE_PAGES);
        let index = |vpn: Vpn| (vpn.0.clamp(start, start + u64::from(PIECE_PAGES)) - start) as u32;
        let piece = self.piece_for(block, index(at), source)?;
        let (low, high) = (index(place.start), index(place.end));
        let state = self.pieces.get_mut(&piece).expect("a piece of this space");
        let first = (low..=index(at)).rev().take_while(|&n| !state.is_taken(n)).last()?;
        let end = (index(at)..high).take_while(|&n| !state.is_taken(n)).last()? + 1;
        (first..end).for_each(|n| state.flip(n));
        let addresses = Vpn(start + u64::from(first))..Vpn(start + u64::from(end));
        Some((addresses, piece.first().plus(first as usize)))
    }

    /// Returns a piece of `block` in which the number at `index` is free.
    fn piece_for(
        &mut self,
        block: u64,
        index: u32,
        source: &mut dyn PieceSource,
    ) -> Option<PieceNo> {
        let of_block = self.of_block.entry(block).or_default();
        let free = of_block.iter().find(|piece| !self.pieces[piece].is_taken(index));
        if let Some(&piece) = free {
            return Some(piece);
        }
        let piece = source.take()?;
        of_block.push(piece);
        self.pieces.insert(piece, Piece { block, taken: Default::default() });
        Some(piece)
    }

    /// Gives back numbers whose pages the engine has discarded, and pieces of which none is taken.
    pub fn release(&mut self, numbers: Range<PageNo>, source: &mut dyn PieceSource) {
        for page in (numbers.start.0..numbers.end.0).map(PageNo) {
            let piece = PieceNo::of(page);
            let state = self.pieces.get_mut(&piece).expect("a number of this space");
            debug_assert!(state.is_taken(page.0 % PIECE_PAGES), "{page} is not taken");
            state.flip(page.0 % PIECE_PAGES);
            if state.is_unused() {
                self.give_back(piece, source);
            }
        }
    }

    fn give_back(&mut self, piece: PieceNo, source: &mut dyn PieceSource) {
        let block = self.pieces.remove(&piece).expect("a piece of this space").block;
        let of_block = self.of_block.get_mut(&block).expect("the piece is its");
        of_block.retain(|&other| other != piece);
        if of_block.is_empty() {
            self.of_block.remove(&block);
        }
        source.give_back(piece);
    }

    /// Returns the number of pieces it has.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counting {
        next: u32,
        back: Vec<PieceNo>,
    }

    impl PieceSource for Counting {
        fn take(&mut self) -> Option<PieceNo> {
            self.next += 1;
            Some(PieceNo(self.next - 1))
        }

        fn give_back(&mut self, piece: PieceNo) {
            self.back.push(piece);
        }
    }

    #[test]
    fn numbers_lie_as_their_addresses_do() {
        let (mut numbers, mut source) = (Numbers::default(), Counting::default());
        // From the last eight pages of one 2 MiB over the next one.
        let place = Vpn(1016)..Vpn(2000);
        let taken = numbers.take(Vpn(1020), &place, &mut source);
        assert_eq!(taken, Some((Vpn(1016)..Vpn(1024), PageNo(504))));
        let taken = numbers.take(Vpn(1024), &place, &mut source);
        assert_eq!(taken, Some((Vpn(1024)..Vpn(1536), PageNo(512))));
    }

    #[test]
    fn a_number_is_not_given_again_before_it_was_released() {
        let (mut numbers, mut source) = (Numbers::default(), Counting::default());
        let place = Vpn(4)..Vpn(8);
        assert_eq!(numbers.take(Vpn(4), &place, &mut source).unwrap().1, PageNo(4));
        assert_eq!(numbers.take(Vpn(4), &place, &mut source).unwrap().1, PageNo(516));
        numbers.release(PageNo(4)..PageNo(8), &mut source);
        assert_eq!(source.back, [PieceNo(0)]);
        assert_eq!(numbers.pieces(), 1);
        numbers.release(PageNo(516)..PageNo(520), &mut source);
        assert_eq!((numbers.pieces(), source.back.len()), (0, 2));
        assert_eq!(numbers.take(Vpn(4), &place, &mut source).unwrap().1, PageNo(2 * 512 + 4));
    }

    #[test]
    fn numbers_that_are_taken_end_a_run_on_both_sides() {
        let (mut numbers, mut source) = (Numbers::default(), Counting::default());
        numbers.take(Vpn(8), &(Vpn(8)..Vpn(12)), &mut source).unwrap();
        let around = Vpn(4)..Vpn(16);
        let mut take = |at| numbers.take(Vpn(at), &around, &mut source).unwrap().0;
        assert_eq!(take(4), Vpn(4)..Vpn(8));
        assert_eq!(take(15), Vpn(12)..Vpn(16));
    }
}
