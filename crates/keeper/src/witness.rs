//! A guest as its map looks at it.
//!
//! Owns: what the page table says of its addresses, and answering what a map asks of a place whose
//! content is in doubt.
//! Not here: what follows from it (`guest::map`).

use crate::guest::Guest;
use crate::known::Known;
use overspill_guest::Vpn;
use overspill_guest::map::{Look, Pages, Witness};
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
        known: &Known,
        place: &Range<Vpn>,
        mut each: impl FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno> {
        match self.eye.touches() {
            None => known.pagemap.runs(place, each),
            Some(touches) => known.pagemap.runs(place, |run, entry| {
                touches.overlay(run, entry, &mut each);
            }),
        }
    }
}

/// A guest as its map looks at it.
pub(crate) struct MapWitness<'g>(pub(crate) &'g Guest);

impl Witness for MapWitness<'_> {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        let look = self.0.eye.look(place);
        // Of what has ended nothing is settled.
        look.unwrap_or_else(|refusal| {
            self.0.note(refusal);
            Look::Changing
        })
    }

    fn pages(&mut self, place: &Range<Vpn>) -> Pages {
        // What is there is asked again when it is filled.
        let Some(known) = self.0.known() else { return Pages { present: true, marked: false } };
        let mut pages = Pages::default();
        let looked = self.0.entries(known, place, |_, entry| {
            pages.present |= entry == Entry::Present;
            pages.marked |= entry == Entry::Marked;
        });
        if looked.is_err() {
            self.0.ended();
        }
        pages
    }
}
