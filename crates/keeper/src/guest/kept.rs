//! What a guest keeps from its children.
//!
//! Owns: where a child begins with zeros (MADV_WIPEONFORK), and where it has nothing
//! (MADV_DONTFORK): known from the mappings, and kept up to date by letters.
//! Not here: guests whose forks the kernel tells of; their children have marks where they have
//! pages.

use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::mappings::Mapping;
use rangemap::RangeSet;
use std::ops::Range;

/// Addresses that children do not inherit as they are.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kept {
    pub(crate) wiped: RangeSet<Vpn>,
    pub(crate) absent: RangeSet<Vpn>,
}

impl Kept {
    /// Notes what was seen of a mapping.
    pub(crate) fn see(&mut self, mapping: &Mapping) {
        if mapping.is_wiped_on_fork {
            self.wiped.insert(mapping.place.clone());
        }
        if mapping.is_not_forked {
            self.absent.insert(mapping.place.clone());
        }
    }

    /// Notes advice that was taken (madvise(2)).
    pub(crate) fn advised(&mut self, place: Range<Vpn>, advice: u64) {
        match i32::try_from(advice) {
            _ if place.is_empty() => {}
            Ok(libc::MADV_WIPEONFORK) => self.wiped.insert(place),
            Ok(libc::MADV_KEEPONFORK) => self.wiped.remove(place),
            Ok(libc::MADV_DONTFORK) => self.absent.insert(place),
            Ok(libc::MADV_DOFORK) => self.absent.remove(place),
            _ => {}
        }
    }

    /// Notes what became of mappings.
    pub(crate) fn follow(&mut self, event: &Event) {
        for places in [&mut self.wiped, &mut self.absent] {
            match event {
                Event::Unmapped(place) => places.remove(place.clone()),
                Event::Remapped { from, to, pages } => follow_move(places, from.run(*pages), *to),
                Event::Removed(_) => {}
            }
        }
    }
}

fn follow_move(places: &mut RangeSet<Vpn>, from: Range<Vpn>, to: Vpn) {
    let moved: Vec<_> = places.overlapping(&from).cloned().collect();
    let there = |at: Vpn| to.plus(at.max(from.start).0 - from.start.0);
    places.extend(moved.iter().map(|run| there(run.start)..there(run.end.min(from.end))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, pages: u64) -> Range<Vpn> {
        Vpn(start).run(pages)
    }

    #[test]
    fn advice_is_undone_by_its_opposite_alone() {
        let mut kept = Kept::default();
        kept.advised(run(10, 10), libc::MADV_DONTFORK as u64);
        kept.advised(run(10, 10), libc::MADV_WIPEONFORK as u64);
        kept.advised(run(12, 2), libc::MADV_DOFORK as u64);
        kept.advised(run(14, 0), libc::MADV_DONTFORK as u64);
        assert_eq!(kept.absent.iter().cloned().collect::<Vec<_>>(), [run(10, 2), run(14, 6)]);
        assert_eq!(kept.wiped.iter().cloned().collect::<Vec<_>>(), [run(10, 10)]);
    }

    #[test]
    fn it_goes_where_the_memory_goes() {
        let mut kept = Kept::default();
        kept.advised(run(10, 10), libc::MADV_DONTFORK as u64);
        kept.follow(&Event::Remapped { from: Vpn(15), to: Vpn(100), pages: 20 });
        kept.follow(&Event::Unmapped(run(15, 20)));
        assert_eq!(kept.absent.iter().cloned().collect::<Vec<_>>(), [run(10, 5), run(100, 5)]);
    }
}
