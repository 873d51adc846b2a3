//! A guest as its map looks at it.
//!
//! Owns: what the page table says of its addresses, and answering what a map asks of a place whose
//! content is in doubt.
//! Not here: what follows from it (`guest::map`).

use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use overspill_guest::Vpn;
use overspill_guest::map::{Look, PIECE_PAGES, Pages, Witness};
use overspill_guest::pagemap::Entry;
use rustix::io::Errno;
use std::ops::Range;

impl Guest {
    /// Calls `each` for each run of addresses in `place` that have the same, as the page table says
    /// and what is kept in place of its marks.
    ///
    /// # Errors
    /// Of the kernel; ESRCH if the address space has ended.
    pub(crate) fn entries(
        &self,
        handles: &Handles,
        place: &Range<Vpn>,
        mut each: impl FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno> {
        handles.process.runs(place, &mut |run, entry| self.source.overlay(run, entry, &mut each))
    }

    /// Returns which addresses around one may get pages together with it: those without a mark. A
    /// forked child may have marks of which its map knows nothing.
    pub(crate) fn bindable(&self, owned: &Owned, at: Vpn) -> Range<Vpn> {
        let Some(handles) = self.handles() else { return at.run(1) };
        let block = Vpn(at.0 - at.0 % u64::from(PIECE_PAGES)).run(PIECE_PAGES.into());
        let mut new = block.clone();
        let looked = self.entries(handles, &block, |run, entry| {
            if entry == Entry::Marked && !owned.map.is_doomed(&run) {
                if run.end <= at {
                    new.start = run.end;
                } else if run.start > at {
                    new.end = new.end.min(run.start);
                }
            }
        });
        if looked.is_err() {
            self.ended();
        }
        new
    }
}

/// A guest as its map looks at it.
pub(crate) struct MapWitness<'g>(pub(crate) &'g Guest);

impl Witness for MapWitness<'_> {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        let look = self.0.source.look(place);
        // Of what has ended nothing is settled.
        look.unwrap_or_else(|refusal| {
            self.0.note(refusal);
            Look::Changing
        })
    }

    fn pages(&mut self, place: &Range<Vpn>) -> Pages {
        // What is there is asked again when it is filled.
        let Some(handles) = self.0.handles() else { return Pages { present: true, marked: false } };
        let mut pages = Pages::default();
        let looked = self.0.entries(handles, place, |_, entry| {
            pages.present |= entry == Entry::Present;
            pages.marked |= entry == Entry::Marked;
        });
        if looked.is_err() {
            self.0.ended();
        }
        pages
    }
}
