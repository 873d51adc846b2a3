//! Model-checked: pages of a parent and its children, on one slot or on their way to it; and pages
//! that are adopted, or given up.

use super::{OTHER, PAGE, Rig, against_an_eviction, model, rig, rig_of_fast_writes, spawn};
use crate::types::Pte;
use overspill_base::PageNo;
use std::ops::Range;

const THIRD: PageNo = PageNo(2);

impl Rig {
    /// Gives `child` what `parent` has on a slot, or in memory.
    fn fork(&self, parent: PageNo, child: PageNo) {
        let is_present = {
            let mut pages = self.space.pages.lock().unwrap();
            pages[child.index()] = pages[parent.index()];
            pages[child.index()].is_some()
        };
        let mut worker = self.worker();
        let shared = self.engine.share(&mut worker, (parent, child), 1, |_| is_present);
        assert_eq!(shared, Ok(()));
        self.adopt(child);
    }

    fn adopt(&self, page: PageNo) {
        let pages = &self.space.pages;
        let in_memory =
            |asked: Range<PageNo>| u64::from(pages.lock().unwrap()[asked.start.index()].is_some());
        assert_eq!(self.engine.adopt(&mut self.worker(), page, 1, in_memory), 1);
    }

    /// Touches and changes a page, and evicts what can be evicted. False if it was evicted before
    /// it could be changed.
    fn change(&self, page: PageNo, byte: u8) -> bool {
        let mut worker = self.worker();
        self.fault_at(&mut worker, page);
        let changed = self.set_byte(page, byte);
        self.engine.shrink(&mut worker, false);
        worker.finish(&self.engine);
        changed
    }
}

/// Pages that share a slot are changed and evicted at once: neither writes over what the other has
/// there.
#[test]
fn two_pages_of_a_slot_are_changed() {
    model(|| {
        let rig = rig_of_fast_writes();
        rig.evicted(&mut rig.worker(), 7);
        rig.fork(PAGE, OTHER);
        let other = spawn(&rig, |rig| rig.change(OTHER, 5));
        let changed = rig.change(PAGE, 9);
        let other_changed = other.join().unwrap();
        rig.expect_at(OTHER, if other_changed { 5 } else { 7 });
        rig.expect(if changed { 9 } else { 7 });
    });
}

/// A child comes to a slot of which one page leaves while another stays.
#[test]
fn a_child_against_a_change_on_its_slot() {
    model(|| {
        let rig = rig_of_fast_writes();
        rig.evicted(&mut rig.worker(), 7);
        rig.fork(PAGE, OTHER);
        let other = spawn(&rig, |rig| rig.change(OTHER, 5));
        rig.fork(PAGE, THIRD);
        let changed = other.join().unwrap();
        rig.expect_at(THIRD, 7);
        rig.expect_at(OTHER, if changed { 5 } else { 7 });
        rig.expect(7);
    });
}

/// A child gets its parent's page while that leaves memory: from the kernel, or from the slot.
#[test]
fn a_child_against_an_eviction() {
    against_an_eviction(
        |rig| rig.fork(PAGE, OTHER),
        |rig| {
            rig.expect_at(OTHER, 7);
            rig.expect(7);
        },
    );
}

/// A page under writeback is shared when that has ended.
#[test]
fn a_child_against_the_end_of_a_write() {
    model(|| {
        let rig = rig();
        let mut writer = rig.worker();
        rig.written(&mut writer, 7);
        let forker = spawn(&rig, |rig| rig.fork(PAGE, OTHER));
        writer.finish(&rig.engine);
        forker.join().unwrap();
        rig.expect_at(OTHER, 7);
        rig.expect(7);
    });
}

/// Of an adoption and a fault one gives the page its frame, and what it holds stays.
#[test]
fn an_adoption_against_a_fault_and_a_round_of_reclaim() {
    model(|| {
        let rig = rig_of_fast_writes();
        rig.space.pages.lock().unwrap()[PAGE.index()] = Some(7);
        let adopter = spawn(&rig, |rig| rig.adopt(PAGE));
        let reclaimer = spawn(&rig, Rig::reclaim);
        rig.fault(&mut rig.worker());
        adopter.join().unwrap();
        reclaimer.join().unwrap();
        rig.expect(7);
    });
}

/// A page that is given up during its eviction is in memory afterwards, or out: nowhere is it lost.
#[test]
fn a_page_is_given_up_against_an_eviction() {
    against_an_eviction(
        |rig| rig.engine.give_up(PAGE, 1),
        |rig| match rig.engine.table.load(PAGE) {
            Pte::Empty => assert_eq!(rig.byte(), Some(7)),
            _ => rig.expect(7),
        },
    );
}
