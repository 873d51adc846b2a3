//! Attaches that fail, at every call that one makes.
//!
//! Owns: that nothing is left of them, and that the program goes on.
//! Not here: attaches that succeed (`attach.rs`).

mod common;

use common::twin::{Fault, Twin};
use common::{
    HOLD_WAIT, Program, Traits, agents, alone, assert_no_agents, attach_to, detach_from, device,
    is_permitted, memory_file,
};
use overspill_guest::{AttachError, Attached, Kernel, Manner, Tracer, Userfaultfd, attach, detach};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// More calls than an attach makes: each try below comes to an end.
const CALLS_MAX: usize = 400;

fn try_to_attach(tracer: &Tracer<Twin>, pid: Pid) -> Result<Attached, AttachError> {
    let (memory, device) = (memory_file(), device());
    let userfaultfd = Userfaultfd::Device(device.as_fd());
    let manner = Manner { memory: memory.as_fd(), userfaultfd, huge_pages: false };
    let mut held = tracer.hold(pid)?;
    held.wait(HOLD_WAIT)?;
    attach(&held, &manner)
}

/// Waits until no task has to be let go any more.
fn settle(tracer: &Tracer<Twin>) {
    let settled = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        tracer.settle() == 0
    });
    assert!(settled, "tasks are left that were told to stop");
}

/// Has each call fail in turn, and looks at the program after each.
fn fails_everywhere(errno: Errno) {
    let mut cat = Program::cat();
    let before = Traits::of(cat.pid());
    let mut failed = 0;
    for at in 1..CALLS_MAX {
        let tracer = Tracer::new(Twin::new(Fault::Fails(errno), at));
        let attached = try_to_attach(&tracer, cat.pid());
        settle(&tracer);
        let has_failed = tracer.system().has_failed();
        match attached {
            Ok(attached) => detach_from(&Tracer::new(Kernel::new()), &attached),
            Err(_) => failed += 1,
        }
        println!("call {at}, {errno}: {failed} failed");
        cat.answers();
        assert_no_agents();
        assert_eq!(Traits::of(cat.pid()), before, "call {at}");
        if !has_failed {
            // Of some 100 calls half must succeed at once; others are tried again.
            assert!(failed > 40, "{failed} of {at} failed");
            return;
        }
    }
    panic!("an attach makes {CALLS_MAX} calls");
}

#[test]
fn an_attach_that_fails_leaves_nothing() {
    let _alone = alone();
    if is_permitted() {
        fails_everywhere(Errno::IO);
        fails_everywhere(Errno::PERM);
    }
}

/// A detach that fails can be tried again, whatever the first has done.
#[test]
fn a_detach_that_fails_is_tried_again() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let mut cat = Program::cat();
    let before = Traits::of(cat.pid());
    for at in 1..CALLS_MAX {
        let tracer = Tracer::new(Kernel::new());
        let attached = attach_to(&tracer, cat.pid());
        let failing = Tracer::new(Twin::new(Fault::Fails(Errno::IO), at));
        let detached = try_to_detach(&failing, &attached);
        settle(&failing);
        if detached.is_err() {
            detach_from(&tracer, &attached);
        }
        cat.answers();
        assert_no_agents();
        assert_eq!(Traits::of(cat.pid()), before, "call {at}: {detached:?}");
        if !failing.system().has_failed() {
            return;
        }
    }
    panic!("a detach makes {CALLS_MAX} calls");
}

fn try_to_detach(tracer: &Tracer<Twin>, attached: &Attached) -> Result<(), AttachError> {
    let mut held = tracer.hold(attached.pid)?;
    held.wait(HOLD_WAIT)?;
    detach(&held, &attached.agent)
}

#[test]
fn a_program_that_vanishes_leaves_nothing() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    for at in 1..CALLS_MAX {
        let mut cat = Program::cat();
        let tracer = Tracer::new(Twin::new(Fault::Vanishes(cat.pid()), at));
        let attached = try_to_attach(&tracer, cat.pid());
        let has_failed = tracer.system().has_failed();
        settle(&tracer);
        if !has_failed {
            detach_from(&Tracer::new(Kernel::new()), &attached.unwrap());
            cat.answers();
            cat.end();
            return;
        }
        if let Ok(attached) = attached {
            end_agent(attached);
        }
        let _ = cat.child.wait();
        assert_no_agents();
    }
    panic!("an attach makes {CALLS_MAX} calls");
}

/// The program has ended after all was done: its agent is its owner's.
fn end_agent(attached: Attached) {
    assert_eq!(agents(), [attached.agent.pid.as_raw_nonzero().get()]);
    drop(attached);
}
