//! Pieces of the engine's page table, and whose they are.
//!
//! Owns: which guest has which piece.
//! Invariant: a piece that was given back is given out again before one that never was: the table
//! grows with what is used.

use crate::guest::state::Guest;
use overspill_base::PageNo;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_guest::map::{PIECE_PAGES, PieceNo, PieceSource};
use std::ops::Range;

/// All pieces of a page table.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owners: Vec<Option<Arc<Guest>>>,
    free: Vec<PieceNo>,
}

impl Pieces {
    /// Cuts a table with `pages` words into pieces.
    pub(crate) fn new(pages: usize) -> Self {
        let pieces = (pages / PIECE_PAGES as usize) as u32;
        Self { pieces, state: Mutex::new(LockClass::Pieces, State::default()) }
    }

    /// Returns the guest whose page it is.
    pub(crate) fn owner(&self, page: PageNo) -> Option<Arc<Guest>> {
        self.state.lock().owner(page).cloned()
    }

    /// Returns the guest that has the first of `runs`, and how many of the first it has.
    pub(crate) fn owner_of_first(&self, runs: &[Range<PageNo>]) -> Option<(Arc<Guest>, usize)> {
        let state = self.state.lock();
        let guest = state.owner(runs.first()?.start)?;
        let has = |run: &&Range<PageNo>| {
            state.owner(run.start).is_some_and(|owner| Arc::ptr_eq(owner, guest))
        };
        Some((guest.clone(), runs.iter().take_while(has).count()))
    }

    /// Gives out pieces to `guest`.
    pub(crate) fn of<'p>(&'p self, guest: &'p Arc<Guest>) -> impl PieceSource + 'p {
        Of { pieces: self, guest }
    }
}

impl State {
    fn owner(&self, page: PageNo) -> Option<&Arc<Guest>> {
        self.owners.get(PieceNo::of(page).0 as usize)?.as_ref()
    }
}

struct Of<'p> {
    pieces: &'p Pieces,
    guest: &'p Arc<Guest>,
}

impl PieceSource for Of<'_> {
    fn take(&mut self) -> Option<PieceNo> {
        let mut state = self.pieces.state.lock();
        let piece = match state.free.pop() {
            Some(piece) => piece,
            None if state.owners.len() < self.pieces.pieces as usize => {
                state.owners.push(None);
                PieceNo(state.owners.len() as u32 - 1)
            }
            None => return None,
        };
        state.owners[piece.0 as usize] = Some(self.guest.clone());
        Some(piece)
    }

    fn give_back(&mut self, piece: PieceNo) {
        let mut state = self.pieces.state.lock();
        state.owners[piece.0 as usize] = None;
        state.free.push(piece);
    }
}
