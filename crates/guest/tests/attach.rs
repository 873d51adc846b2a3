//! Attaching to real programs and letting them go.
//!
//! Owns: that a program cannot tell, and that nothing is left.
//! Not here: attaches that fail (`faults.rs`), pages that move (`pages.rs`).

mod common;

use common::{Program, Traits, alone, assert_no_agents, attach_to, detach_from, is_permitted};
use overspill_guest::{Kernel, Tracer};

#[test]
fn a_program_that_waits_is_as_before() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let mut cat = Program::cat();
    let before = Traits::of(cat.pid());
    let tracer = Tracer::new(Kernel::new());

    let attached = attach_to(&tracer, cat.pid());
    cat.answers();
    detach_from(&tracer, &attached);

    cat.answers();
    assert_eq!(Traits::of(cat.pid()), before);
    assert_no_agents();
    cat.end();
}
