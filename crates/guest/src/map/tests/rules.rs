//! Each rule alone, in the shortest history that needs it.

use super::Endless;
use crate::Vpn;
use crate::map::{AtAddress, Event, Look, Pages, SpaceMap, Whereabouts, Witness};
use overspill_base::PageNo;
use std::ops::Range;

/// Says the same of all places.
pub(super) struct Says(pub(super) Look, pub(super) bool);

impl Witness for Says {
    fn look(&mut self, _: &Range<Vpn>) -> Look {
        self.0
    }

    fn pages(&mut self, _: &Range<Vpn>) -> Pages {
        Pages { present: false, marked: self.1 }
    }
}

pub(super) fn nothing_there() -> Says {
    Says(Look::NotRegistered, false)
}

pub(super) fn kept() -> Says {
    Says(Look::Registered, true)
}

/// 16 pages, believed and bound, at 0x100.
pub(super) const HERE: Vpn = Vpn(0x100);
/// 16 more at 0x200.
pub(super) const THERE: Vpn = Vpn(0x200);
pub(super) const PAGES: u64 = 16;

pub(super) fn map() -> (SpaceMap, Endless) {
    map_with(SpaceMap::new())
}

fn map_with(mut map: SpaceMap) -> (SpaceMap, Endless) {
    let mut source = Endless::default();
    for place in [HERE, THERE] {
        map.believe(place.run(PAGES));
        map.bind(place, &(Vpn(0)..Vpn(u64::MAX)), &mut source).unwrap();
    }
    (map, source)
}

pub(super) fn page(map: &SpaceMap, at: Vpn) -> PageNo {
    match map.at(at) {
        AtAddress::Page(page) => page,
        other => panic!("{at:?} has {other:?}"),
    }
}

pub(super) fn unmapped(at: Vpn) -> Event {
    Event::Unmapped(at.run(PAGES))
}

pub(super) fn remapped(from: Vpn, to: Vpn) -> Event {
    Event::Remapped { from, to, pages: PAGES }
}

#[test]
fn a_page_keeps_its_number_where_it_moves() {
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE.plus(3)), Vpn(0x901));
    map.apply(&remapped(HERE, far));
    assert_eq!(page(&map, far.plus(3)), number);
    assert_eq!(map.find(number), Whereabouts::At(far.plus(3)));
    map.apply(&unmapped(HERE));
    assert_eq!(map.at(HERE), AtAddress::Unknown);
    map.check().unwrap();
}

#[test]
fn a_place_that_was_left_is_a_ghost_until_it_is_unmapped() {
    let (mut map, _) = map();
    let theirs = page(&map, THERE);
    map.apply(&remapped(HERE, Vpn(0x900)));
    // Another thread was given the place already.
    map.apply(&remapped(THERE, HERE));
    assert!(map.must_hold_threads());
    assert_eq!(map.find(theirs), Whereabouts::Later);
    map.apply(&unmapped(HERE));
    assert!(!map.must_hold_threads());
    assert_eq!(page(&map, HERE), theirs);
}

#[test]
fn what_waits_is_not_lost_when_its_old_place_is_unmapped_first() {
    let (mut map, _) = map();
    let theirs = page(&map, THERE);
    map.apply(&remapped(THERE, HERE));
    map.apply(&unmapped(THERE));
    assert!(map.must_hold_threads());
    map.apply(&remapped(HERE, Vpn(0x900)));
    map.apply(&unmapped(HERE));
    assert_eq!(page(&map, HERE), theirs);
    assert!(map.take_forgotten().is_empty());
}

#[test]
fn a_move_onto_what_its_reporter_has_not_yet_left_swaps_nothing() {
    // The history of two threads: one moved away from HERE and is late with its message.
    let (mut map, _) = map();
    let (mine, theirs) = (page(&map, HERE), page(&map, THERE));
    map.apply(&remapped(THERE, HERE));
    map.apply(&unmapped(THERE));
    map.apply(&remapped(HERE, Vpn(0x900)));
    map.apply(&unmapped(HERE));
    assert_eq!(page(&map, Vpn(0x900)), mine);
    assert_eq!(page(&map, HERE), theirs);
}

#[test]
fn a_ghost_that_is_never_unmapped_was_left_mapped_and_empty() {
    let (mut map, _) = map();
    map.apply(&remapped(HERE, Vpn(0x900)));
    map.settle(&mut Says(Look::Changing, false));
    assert_eq!(map.at(HERE), AtAddress::Unknown);
    map.settle(&mut kept());
    assert_eq!(map.at(HERE), AtAddress::Unbound);
    map.check().unwrap();
}

#[test]
fn an_unmapping_is_only_a_claim() {
    let (mut map, _) = map();
    let number = page(&map, HERE);
    map.apply(&unmapped(HERE));
    assert_eq!(map.at(HERE), AtAddress::Later);
    assert_eq!(map.find(number), Whereabouts::Later);
    map.settle(&mut kept());
    assert_eq!(page(&map, HERE), number);
    map.apply(&unmapped(HERE));
    map.settle(&mut nothing_there());
    assert_eq!(map.find(number), Whereabouts::Nowhere);
    assert_eq!(map.take_forgotten().iter().map(|r| r.end.0 - r.start.0).sum::<u32>(), 16);
}

#[test]
fn a_neighbour_that_grew_into_a_place_brings_nothing_back() {
    let (mut map, _) = map();
    map.apply(&unmapped(HERE));
    map.settle(&mut Says(Look::Registered, false));
    assert_eq!(map.at(HERE), AtAddress::Unknown);
    assert_eq!(map.take_forgotten().len(), 1);
}

#[test]
fn what_came_by_a_move_makes_the_claim_true() {
    let (mut map, _) = map();
    let theirs = page(&map, THERE);
    map.apply(&unmapped(HERE));
    map.apply(&remapped(THERE, HERE));
    assert!(map.must_hold_threads());
    map.apply(&unmapped(THERE));
    map.settle(&mut kept());
    assert_eq!(page(&map, HERE), theirs);
    map.check().unwrap();
}

#[test]
fn a_claim_moves_with_what_it_was_about() {
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE), Vpn(0x900));
    // A mapping over it failed; then it was moved.
    map.apply(&unmapped(HERE));
    map.apply(&remapped(HERE, far));
    assert_eq!(map.at(far), AtAddress::Later);
    map.apply(&unmapped(HERE));
    map.settle(&mut kept());
    assert_eq!(page(&map, far), number);
}

#[test]
fn what_is_not_marked_yet_is_removed_wherever_it_waits() {
    let (mut map, _) = map();
    [HERE, THERE].into_iter().for_each(|at| map.leave_unmarked(at.run(4)));
    map.apply(&remapped(THERE, HERE));
    map.apply(&Event::Removed(HERE.run(4)));
    // Of what is at HERE, and of what waits for it.
    assert_eq!(map.take_forgotten().len(), 2);
    map.apply(&unmapped(HERE));
    map.apply(&unmapped(THERE));
    map.settle(&mut kept());
    assert_eq!(map.at(HERE), AtAddress::Unbound);
    assert!(matches!(map.at(HERE.plus(4)), AtAddress::Page(_)));
    map.check().unwrap();
}

#[test]
fn what_is_removed_stays_until_nothing_is_outstanding() {
    let (mut map, _) = map();
    let number = page(&map, HERE);
    map.apply(&Event::Removed(HERE.run(2)));
    assert_eq!((map.at(HERE), map.find(number)), (AtAddress::Later, Whereabouts::Later));
    map.settle(&mut Says(Look::Changing, true));
    assert!(map.is_in_doubt() && map.take_forgotten().is_empty());
    map.settle(&mut kept());
    assert_eq!((map.at(HERE), map.find(number)), (AtAddress::Unbound, Whereabouts::Nowhere));
    assert!(matches!(map.at(HERE.plus(2)), AtAddress::Page(_)));
}

#[test]
fn a_removal_is_not_of_what_left_before_it() {
    // Another mapping grew into the place that was left, and had its content removed.
    let (mut map, _) = map();
    let (number, far) = (page(&map, HERE), Vpn(0x900));
    map.apply(&Event::Removed(HERE.run(PAGES)));
    map.apply(&remapped(HERE, far));
    map.settle(&mut kept());
    assert_eq!(page(&map, far), number);
}

#[test]
fn what_is_neither_present_nor_marked_is_new() {
    let (mut map, _) = map();
    map.doom(HERE.run(1));
    map.drop_gone(&HERE.run(1));
    assert_eq!(map.at(HERE), AtAddress::Unbound);
    assert!(!map.is_doomed(&HERE.run(1)));
}

#[test]
fn what_is_not_marked_is_removed_at_once() {
    let (mut map, _) = map();
    map.leave_unmarked(HERE.run(2));
    map.apply(&Event::Removed(HERE.plus(1).run(4)));
    assert!(matches!(map.at(HERE), AtAddress::Page(_)));
    assert_eq!(map.take_forgotten().len(), 1);
    assert_eq!(map.unmarked(&HERE.run(PAGES)).collect::<Vec<_>>(), [HERE.run(1)]);
}

#[test]
fn a_number_is_another_one_after_a_removal() {
    let (mut map, mut source) = map();
    let number = page(&map, HERE);
    map.drop_gone(&HERE.run(1));
    map.bind(HERE, &(Vpn(0)..Vpn(u64::MAX)), &mut source).unwrap();
    assert_ne!(page(&map, HERE), number);
    assert_eq!(map.find(number), Whereabouts::Nowhere);
    for numbers in map.take_forgotten() {
        map.release(numbers, &mut source);
    }
    map.check().unwrap();
}

#[test]
fn doomed_pages_are_doomed_where_they_move() {
    let (mut map, _) = map();
    let (present, far) = (HERE.plus(2).run(3), Vpn(0x900));
    map.apply(&Event::Removed(HERE.run(8)));
    map.doom(present.clone());
    map.apply(&remapped(HERE, far));
    assert!(map.is_doomed(&far.plus(2).run(1)) && !map.is_doomed(&present));
    map.seen_new(far.plus(2).run(1));
    assert!(!map.is_doomed(&far.run(3)) && map.is_doomed(&far.plus(3).run(1)));
}

#[test]
fn what_is_out_and_not_marked_is_so_where_it_moves() {
    let (mut map, _) = map();
    let far = Vpn(0x900);
    map.leave_unmarked(HERE.run(4));
    map.apply(&remapped(HERE, far));
    assert_eq!(map.unmarked(&far.run(PAGES)).collect::<Vec<_>>(), [far.run(4)]);
    map.marked(far.run(4));
    assert!(map.unmarked(&far.run(PAGES)).next().is_none());
}

#[test]
fn a_move_that_shrinks_reports_its_old_length() {
    // Up to Linux 6.15; four pages moved, onto a place right before others.
    let (mut map, _) = map();
    let (to, theirs) = (THERE.plus(0).0 - 4, page(&map, THERE));
    let kept = page(&map, HERE);
    map.apply(&remapped(HERE, Vpn(to)));
    assert!(map.must_hold_threads());
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    assert!(!map.must_hold_threads());
    map.apply(&Event::Unmapped(HERE.run(4)));
    map.settle(&mut nothing_there());
    assert_eq!(page(&map, Vpn(to)), kept);
    assert_eq!(page(&map, THERE), theirs);
    map.check().unwrap();
}

#[test]
fn what_is_left_mapped_may_lose_its_end_without_the_target_losing_it() {
    let (mut map, _) = map();
    let (last, far) = (page(&map, HERE.plus(15)), Vpn(0x900));
    map.apply(&remapped(HERE, far));
    map.apply(&Event::Unmapped(HERE.plus(4).run(PAGES - 4)));
    map.settle(&mut kept());
    assert_eq!(page(&map, far.plus(15)), last);
}

#[test]
fn nothing_is_registered_where_something_is_in_doubt() {
    let (mut map, _) = map();
    let around = Vpn(0xf0)..Vpn(0x300);
    assert!(map.is_settled(&around));
    map.apply(&unmapped(THERE));
    assert!(!map.is_settled(&around) && map.is_settled(&HERE.run(20)));
    map.settle(&mut nothing_there());
    map.apply(&remapped(HERE, Vpn(0x280)));
    assert!(!map.is_settled(&around));
    map.settle(&mut nothing_there());
    assert!(map.is_settled(&around));
    assert_eq!(map.unknown(&around), [Vpn(0xf0)..Vpn(0x280), Vpn(0x290)..Vpn(0x300)]);
}

#[test]
fn the_end_of_a_guest_gives_everything_up() {
    let (mut map, _) = map();
    map.apply(&remapped(HERE, THERE));
    map.end();
    assert_eq!(map.take_forgotten().iter().map(|r| r.end.0 - r.start.0).sum::<u32>(), 32);
    assert!(!map.must_hold_threads() && map.at(THERE) == AtAddress::Unknown);
}
