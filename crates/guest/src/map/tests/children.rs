//! What a forked child has of its parent's map (rule 12).

use super::rules::{HERE, PAGES, Says, THERE, map, page, remapped, unmapped};
use crate::Vpn;
use crate::map::{AtAddress, Covered, Event, Inherited, Look, PieceNo, PieceSource, SpaceMap};
use std::ops::Range;

/// A child that has what is at an address, and may have parts of others.
fn covers(at: Vpn) -> impl Fn(&Range<Vpn>) -> Covered {
    move |place| if place.start == at { Covered::All } else { Covered::Part }
}

fn child_of(parent: &SpaceMap, source: &mut dyn PieceSource) -> (SpaceMap, Vec<Inherited>) {
    parent.fork(&[], &mut |_| Covered::Part, source)
}

#[test]
fn a_child_has_its_parents_addresses_and_numbers_of_its_own() {
    let (parent, mut source) = map();
    let (child, inherited) = child_of(&parent, &mut source);
    for at in [HERE, HERE.plus(PAGES - 1), THERE.plus(5)] {
        let (from, to) = (page(&parent, at), page(&child, at));
        let run = inherited.iter().find(|run| run.from <= from && from < run.from.plus(512));
        let run = run.unwrap();
        assert_ne!(from, to);
        assert_eq!(to.0 - run.to.0, from.0 - run.from.0);
    }
    let pages: u32 = inherited.iter().map(|run| run.pages).sum();
    assert_eq!(u64::from(pages), 2 * PAGES);
    assert_eq!(child.at(HERE.plus(PAGES)), AtAddress::Unknown);
    child.check().unwrap();
}

/// The parent drops its marks, the child does not: they are no content that is lost.
#[test]
fn what_another_thread_was_dropping_is_so_in_a_child() {
    let (mut parent, mut source) = map();
    let place = HERE.run(2);
    parent.apply(&Event::Removed(place.clone()));
    parent.doom(place.clone());
    parent.settle(&mut Says(Look::Registered, true));
    let (child, _) = child_of(&parent, &mut source);
    assert_eq!(child.at(HERE), AtAddress::Unbound);
    assert!(child.is_doomed(&place));
    assert!(matches!(child.at(HERE.plus(2)), AtAddress::Page(_)));
}

#[test]
fn what_a_move_brought_is_the_childs_if_its_memory_moved_too() {
    let (mut parent, mut source) = map();
    parent.apply(&remapped(HERE, Vpn(0x900)));
    parent.apply(&unmapped(HERE));
    let (child, _) = child_of(&parent, &mut source);
    assert!(matches!(child.at(Vpn(0x900)), AtAddress::Page(_)));
    // The source is still there in the child: it was forked before the move.
    let mut has = covers(HERE);
    let (earlier, _) = parent.fork(&[], &mut has, &mut source);
    assert_eq!(earlier.at(Vpn(0x900)), AtAddress::Unbound);
    assert!(matches!(earlier.at(THERE), AtAddress::Page(_)));
    earlier.check().unwrap();
}

#[test]
fn what_moved_before_the_fork_is_the_childs_where_it_is() {
    let (parent, mut source) = map();
    let later = [unmapped(THERE), remapped(HERE, THERE), unmapped(HERE)];
    let (child, inherited) = parent.fork(&later, &mut |_| Covered::Part, &mut source);
    let to = page(&child, THERE.plus(5));
    let run = inherited.iter().find(|run| run.to <= to && to < run.to.plus(512)).unwrap();
    assert_eq!(run.from.plus((to.0 - run.to.0) as usize), page(&parent, HERE.plus(5)));
    assert_eq!(child.at(HERE), AtAddress::Unknown);
    // The child has the source still: it was forked before the move, or the move left it mapped.
    let (child, _) = parent.fork(&later, &mut covers(HERE), &mut source);
    assert!(matches!(child.at(HERE), AtAddress::Page(_)));
    assert_eq!(child.at(THERE), AtAddress::Unbound);
    child.check().unwrap();
    // It has neither: it has unmapped a part of the source since.
    let (child, _) = parent.fork(&later, &mut |_| Covered::Nothing, &mut source);
    assert!(matches!(child.at(HERE), AtAddress::Page(_)));
    assert!(matches!(child.at(THERE), AtAddress::Page(_)));
    child.check().unwrap();
}

#[test]
fn what_was_set_aside_is_not_inherited() {
    let (mut parent, mut source) = map();
    parent.apply(&unmapped(HERE));
    let (child, _) = child_of(&parent, &mut source);
    assert_eq!(child.at(HERE), AtAddress::Unknown);
    assert!(!child.is_in_doubt());
}

#[test]
fn what_is_out_without_a_mark_is_so_in_the_child() {
    let (mut parent, mut source) = map();
    parent.leave_unmarked(HERE.run(2));
    let (child, _) = child_of(&parent, &mut source);
    assert_eq!(child.unmarked(&HERE.run(PAGES)).collect::<Vec<_>>(), [HERE.run(2)]);
}

/// As many pieces as it says.
struct Some(u32);

impl PieceSource for Some {
    fn take(&mut self) -> Option<PieceNo> {
        self.0 = self.0.checked_sub(1)?;
        Option::Some(PieceNo(100 + self.0))
    }

    fn give_back(&mut self, _: PieceNo) {}
}

#[test]
fn without_pieces_a_childs_pages_are_lost_not_new() {
    let (mut parent, _) = map();
    parent.leave_unmarked(THERE.run(2));
    let (child, inherited) = child_of(&parent, &mut Some(0));
    assert!(inherited.is_empty());
    assert_eq!(child.at(HERE), AtAddress::Unbound);
    // It would count as out of a page that there is not.
    assert_eq!(child.unmarked(&THERE.run(PAGES)).count(), 0);
}

#[test]
fn what_is_not_among_a_childs_mappings_is_not_believed() {
    let (parent, mut source) = map();
    let (mut child, _) = child_of(&parent, &mut source);
    let kept = page(&child, HERE);
    child.confirm(&[HERE.run(PAGES / 2), Vpn(0x900).run(1)].into_iter().collect());
    assert_eq!(page(&child, HERE), kept);
    assert_eq!(child.at(HERE.plus(PAGES / 2)), AtAddress::Unknown);
    assert_eq!(child.at(THERE), AtAddress::Unknown);
    assert_eq!(child.at(Vpn(0x900)), AtAddress::Unknown);
    let forgotten: u64 =
        child.take_forgotten().iter().map(|run| u64::from(run.end.0 - run.start.0)).sum();
    assert_eq!(forgotten, PAGES / 2 + PAGES);
    child.check().unwrap();
}

#[test]
fn a_childs_messages_are_its_own() {
    let (mut parent, mut source) = map();
    let (mut child, _) = child_of(&parent, &mut source);
    child.apply(&Event::Removed(HERE.run(PAGES)));
    child.settle(&mut Says(Look::Registered, true));
    assert_eq!(child.at(HERE), AtAddress::Unbound);
    parent.settle(&mut Says(Look::Registered, true));
    assert!(matches!(parent.at(HERE), AtAddress::Page(_)));
}
