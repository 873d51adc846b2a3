//! Each decision that needs a look at the guest, and what may be decided in parts.

use super::rules::{HERE, PAGES, Says, THERE, kept, map, nothing_there, page, remapped, unmapped};
use crate::Vpn;
use crate::map::{AtAddress, Event, Look, Pages, SpaceMap, Whereabouts, Witness};
use std::ops::Range;

/// Says of one place that a mapping covers it, and what it has; of others what is given.
struct SaysOf(Range<Vpn>, Pages, Look);

const MARKS: Pages = Pages { present: false, marked: true };
const NOTHING: Pages = Pages { present: false, marked: false };

impl Witness for SaysOf {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        let is_within = self.0.start <= place.start && place.end <= self.0.end;
        if is_within { Look::Registered } else { self.2 }
    }

    fn pages(&mut self, place: &Range<Vpn>) -> Pages {
        let is_about = self.0.start < place.end && place.start < self.0.end;
        if is_about { self.1 } else { NOTHING }
    }
}

#[test]
fn a_claim_that_is_false_in_part_is_settled_in_parts() {
    // A mapping over it failed; then its start was unmapped.
    let (mut map, _) = map();
    let last = page(&map, HERE.plus(15));
    map.apply(&unmapped(HERE));
    map.apply(&Event::Unmapped(HERE.run(4)));
    map.settle(&mut SaysOf(HERE.plus(4).run(PAGES - 4), MARKS, Look::NotRegistered));
    assert_eq!(page(&map, HERE.plus(15)), last);
    assert_eq!(map.at(HERE), AtAddress::Unknown);
}

/// The mapping at HERE has become two, by `mprotect` of its first three pages.
struct TwoMappings;

impl Witness for TwoMappings {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        let border = HERE.plus(3);
        let is_across = place.start < border && border < place.end;
        if is_across { Look::NotRegistered } else { Look::Registered }
    }

    fn pages(&mut self, _: &Range<Vpn>) -> Pages {
        MARKS
    }
}

#[test]
fn what_has_become_two_mappings_is_still_there() {
    let (mut map, _) = map();
    let first = page(&map, HERE);
    map.apply(&unmapped(HERE));
    map.settle(&mut TwoMappings);
    assert_eq!(page(&map, HERE), first);
}

#[test]
fn what_is_not_registered_is_another_mapping_whatever_it_has() {
    let (mut map, _) = map();
    map.apply(&unmapped(HERE));
    map.settle(&mut Says(Look::NotRegistered, true));
    assert_eq!(map.at(HERE), AtAddress::Unknown);
}

#[test]
fn content_that_could_not_be_marked_has_no_mark_where_it_moves() {
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE), Vpn(0x900));
    map.leave_unmarked(HERE.run(PAGES));
    map.apply(&remapped(HERE, far));
    map.apply(&unmapped(HERE));
    map.settle(&mut SaysOf(far.run(PAGES), NOTHING, Look::NotRegistered));
    assert_eq!(page(&map, far), number);
}

#[test]
fn the_end_of_a_move_that_shrinks_is_not_put_over_what_is_there() {
    // Up to Linux 6.15; four pages moved, onto a place right before others.
    let (mut map, _) = map();
    let theirs = page(&map, THERE);
    map.apply(&remapped(HERE, Vpn(THERE.0 - 4)));
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    map.apply(&Event::Unmapped(HERE.run(4)));
    map.settle(&mut kept());
    assert_eq!(page(&map, THERE), theirs);
    map.check().unwrap();
}

#[test]
fn an_end_that_was_claimed_before_its_move_shrank_is_settled_by_itself() {
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE), Vpn(0x900));
    map.apply(&unmapped(HERE));
    map.apply(&remapped(HERE, far));
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    map.apply(&Event::Unmapped(HERE.run(4)));
    map.settle(&mut SaysOf(far.run(4), MARKS, Look::NotRegistered));
    assert_eq!(page(&map, far), number);
}

#[test]
fn a_doubt_does_not_make_a_claim_true() {
    let (mut map, _) = map();
    let number = page(&map, HERE);
    map.apply(&unmapped(HERE));
    map.doubt(HERE.run(PAGES));
    map.settle(&mut kept());
    assert_eq!(page(&map, HERE), number);
}

#[test]
fn a_hole_mapped_over_is_no_end_and_hides_none() {
    let (mut map, _) = map();
    let (last, far) = (page(&map, HERE.plus(15)), Vpn(0x900));
    map.apply(&remapped(HERE, far));
    // Another thread was given a part of what was left.
    map.apply(&Event::Unmapped(HERE.plus(6).run(4)));
    assert_eq!(page(&map, far.plus(15)), last);
    map.apply(&Event::Unmapped(HERE.plus(12).run(4)));
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    assert_eq!(map.at(far.plus(4)), AtAddress::Later);
    map.settle(&mut nothing_there());
    assert_eq!(map.at(far.plus(4)), AtAddress::Unknown);
    assert!(matches!(map.at(far.plus(3)), AtAddress::Page(_)));
}

#[test]
fn what_was_left_mapped_once_loses_its_end_alone() {
    let (mut map, _) = map();
    let (last, far) = (page(&map, HERE.plus(15)), Vpn(0x900));
    map.apply(&remapped(HERE, far));
    map.settle(&mut kept());
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    assert_eq!(page(&map, far.plus(15)), last);
}

/// Says that all is as it was a number of times; then the guest changes.
struct ChangesAfter(usize);

impl Witness for ChangesAfter {
    fn look(&mut self, _: &Range<Vpn>) -> Look {
        let is_still = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        if is_still { Look::Registered } else { Look::Changing }
    }

    fn pages(&mut self, _: &Range<Vpn>) -> Pages {
        MARKS
    }
}

#[test]
fn what_lands_on_a_ghost_ends_it() {
    let (mut map, _) = map();
    map.apply(&remapped(HERE, Vpn(0x900)));
    map.apply(&remapped(THERE, HERE));
    map.settle(&mut ChangesAfter(1));
    assert!(!map.must_hold_threads());
    map.check().unwrap();
}

#[test]
fn what_a_move_lands_on_is_given_up() {
    let (mut map, _) = map();
    let mine = page(&map, HERE);
    map.apply(&remapped(THERE, HERE));
    map.settle(&mut kept());
    assert_eq!(map.find(mine), Whereabouts::Nowhere);
    assert_eq!(map.take_forgotten().len(), 1);
}

#[test]
fn moves_onto_places_that_overlap_enter_in_the_order_of_their_messages() {
    let (mut map, _) = map();
    let (theirs, place) = (page(&map, THERE), Vpn(0x300));
    map.believe(place.run(8));
    map.apply(&remapped(HERE, place));
    map.apply(&remapped(THERE, place.plus(8)));
    map.settle(&mut kept());
    assert_eq!(page(&map, place.plus(8)), theirs);
}

#[test]
fn what_waits_moves_on_with_its_place() {
    let (mut map, _) = map();
    let (mine, theirs) = (page(&map, HERE), page(&map, THERE));
    map.apply(&remapped(HERE, THERE));
    map.apply(&remapped(THERE, Vpn(0x900)));
    map.apply(&remapped(THERE, Vpn(0xa00)));
    [HERE, THERE, THERE].iter().for_each(|&left| map.apply(&unmapped(left)));
    assert_eq!((page(&map, Vpn(0x900)), page(&map, Vpn(0xa00))), (theirs, mine));
}

#[test]
fn nothing_is_registered_where_something_waits_to_enter() {
    let (mut map, _) = map();
    let target = Vpn(THERE.0 - 8);
    map.apply(&remapped(HERE, target));
    assert!(!map.is_settled(&target.run(PAGES)));
}

#[test]
fn nothing_is_registered_where_a_doubt_is_claimed() {
    let (mut map, _) = map();
    let place = Vpn(0x500).run(4);
    map.doubt(place.clone());
    map.apply(&Event::Unmapped(place.clone()));
    assert!(!map.is_settled(&place));
}

#[test]
fn a_doubt_ends_with_its_mapping() {
    let (mut map, _) = map();
    map.doubt(Vpn(0x500).run(4));
    map.settle(&mut nothing_there());
    map.apply(&remapped(HERE, Vpn(0x500)));
    assert!(!map.must_hold_threads());
}

#[test]
fn what_is_claimed_and_not_marked_is_removed_at_once() {
    let (mut map, _) = map();
    map.leave_unmarked(HERE.run(2));
    map.apply(&unmapped(HERE));
    map.apply(&Event::Removed(HERE.run(PAGES)));
    assert_eq!(map.take_forgotten().len(), 1);
}

#[test]
fn what_was_not_found_is_in_question_until_moves_are_settled() {
    let (mut map, _) = map();
    map.apply(&remapped(HERE, Vpn(0x900)));
    map.apply(&unmapped(HERE));
    map.apply(&unmapped(THERE));
    // It has lost its content; then the guest changes.
    map.settle(&mut SaysOf(THERE.run(PAGES), NOTHING, Look::Changing));
    assert_eq!(map.at(THERE), AtAddress::Later);
}

/// Returns a map from which content was unmapped, as it is said, at HERE and perhaps at THERE, and
/// in which a move of `pages` pages of which nothing was known was to 0x900, where there is `what`.
fn after_a_move(pages: u64, what: Pages, is_one: bool) -> SpaceMap {
    let (mut map, _) = map();
    map.apply(&unmapped(HERE));
    if !is_one {
        map.apply(&unmapped(THERE));
    }
    map.apply(&Event::Remapped { from: Vpn(0x500), to: Vpn(0x900), pages });
    map.apply(&Event::Unmapped(Vpn(0x500).run(pages)));
    map.settle(&mut SaysOf(Vpn(0x900).run(pages), what, Look::NotRegistered));
    map
}

#[test]
fn content_is_where_its_marks_are_if_it_can_be_nothing_elses() {
    assert!(matches!(after_a_move(PAGES, MARKS, true).at(Vpn(0x900)), AtAddress::Page(_)));
    let has_no_page = |map: SpaceMap| !matches!(map.at(Vpn(0x900)), AtAddress::Page(_));
    assert!(has_no_page(after_a_move(PAGES, MARKS, false)));
    let in_memory = Pages { present: true, marked: false };
    assert!(has_no_page(after_a_move(PAGES, in_memory, true)));
    assert!(has_no_page(after_a_move(PAGES / 2, MARKS, true)));
}

#[test]
fn a_place_that_grew_has_none_of_the_content_that_a_message_brought() {
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE), Vpn(0x900));
    map.apply(&remapped(HERE, far));
    map.apply(&unmapped(HERE));
    map.settle(&mut SaysOf(far.run(PAGES), NOTHING, Look::NotRegistered));
    assert_eq!((map.at(far), map.find(number)), (AtAddress::Unbound, Whereabouts::Nowhere));
}

#[test]
fn nothing_is_registered_where_content_could_not_be_marked() {
    // Another mapping may be there already, and its message on its way.
    let (mut map, _) = map();
    map.leave_unmarked(HERE.run(1));
    assert!(!map.is_settled(&HERE.run(PAGES)));
    map.marked(HERE.run(1));
    assert!(map.is_settled(&HERE.run(PAGES)));
}

#[test]
fn content_that_could_not_be_marked_is_kept_where_a_claim_is_false() {
    let (mut map, _) = map();
    let number = page(&map, HERE);
    map.leave_unmarked(HERE.run(PAGES));
    map.apply(&unmapped(HERE));
    map.settle(&mut SaysOf(HERE.run(PAGES), NOTHING, Look::NotRegistered));
    assert_eq!(page(&map, HERE), number);
}
