//! Attaching to real programs and letting them go.
//!
//! Owns: that a program cannot tell, and that nothing is left.
//! Not here: attaches that fail (`faults.rs`), pages that move (`pages.rs`).

mod common;

use common::{
    Program, Traits, alone, assert_no_agents, attach_to, compiled, detach_from, hold, is_permitted,
    memory_file, own,
};
use overspill_guest::userfault::{self, GuestUserfault};
use overspill_guest::{AttachError, Kernel, Manner, Tracer, Userfaultfd, Vpn, attach};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::UserfaultfdFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

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

/// Where nobody may raise limits, this is one that cannot be lowered to what agents have.
#[test]
fn a_program_that_may_have_no_core_is_as_before() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let mut shell = Command::new(own("/bin/sh"));
    let mut cat = Program::start(shell.args(["-c", "ulimit -c 0; exec cat"]));
    cat.answers();
    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, cat.pid());
    detach_from(&tracer, &attached);
    cat.answers();
    cat.end();
}

/// Starts a program of `tests/programs`, if it can be compiled and attached to.
fn start(name: &str) -> Option<Program> {
    let program = if is_permitted() { compiled(name)? } else { return None };
    Some(Program::start(&mut Command::new(program)))
}

fn attach_and_detach(pid: Pid, between: impl FnOnce()) {
    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, pid);
    between();
    detach_from(&tracer, &attached);
}

/// The waits are 400 ms long; this is in the middle of them.
fn wait_for_waits() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn calls_that_wait_go_on() {
    let _alone = alone();
    let Some(mut plain) = start("waits") else { return };
    let plain_start = plain.line();
    let expected = plain.end();
    let mut waits = start("waits").unwrap();
    assert_eq!(waits.line(), plain_start);
    wait_for_waits();

    attach_and_detach(waits.pid(), wait_for_waits);

    assert_eq!(waits.end(), expected);
    assert_eq!(expected.lines().filter(|line| line.ends_with("in time")).count(), 9, "{expected}");
}

#[test]
fn a_busy_program_is_attached_to_200_times() {
    let _alone = alone();
    let Some(mut busy) = start("busy") else { return };
    assert_eq!(busy.line(), "busy");

    for _ in 0..200 {
        attach_and_detach(busy.pid(), || ());
    }

    assert_no_agents();
    assert_eq!(busy.end(), "right\n");
}

#[test]
fn a_program_that_counts_itself_counts_no_more() {
    let _alone = alone();
    let Some(mut counts) = start("counts") else { return };
    let mut count = || {
        counts.say("count");
        counts.line()
    };
    // The first look at directories opens what stays.
    count();
    let before = count();
    let pid = counts.pid();

    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, pid);
    counts.say("count");
    let while_attached = counts.line();
    detach_from(&tracer, &attached);
    counts.say("count");

    assert_eq!(while_attached, before);
    assert_eq!(counts.line(), before);
    counts.end();
}

#[test]
fn a_thread_that_waits_for_all_children_sees_its_own() {
    let _alone = alone();
    let Some(mut waiter) = start("waiter") else { return };
    waiter.answers();
    attach_and_detach(waiter.pid(), || waiter.answers());
    assert_eq!(waiter.end(), "the child ended: 7\n");
}

#[test]
fn a_program_with_a_filter_is_attached_to_with_the_filter_suspended() {
    let _alone = alone();
    let Some(mut filtered) = start("filtered") else { return };
    filtered.answers();
    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, filtered.pid());
    assert!(attached.agent.is_traced);
    filtered.answers();
    detach_from(&tracer, &attached);
    filtered.answers();
    assert_no_agents();
    filtered.end();
}

#[test]
fn a_static_program_is_attached_to() {
    let _alone = alone();
    const BUSYBOX: &str = "/bin/busybox";
    if !is_permitted() || !Path::new(BUSYBOX).exists() {
        println!("skipped: {BUSYBOX}, a static program, is not installed");
        return;
    }
    let mut cat = Program::start(Command::new(own(BUSYBOX)).arg("cat"));
    cat.answers();
    let before = Traits::of(cat.pid());
    attach_and_detach(cat.pid(), || cat.answers());
    cat.answers();
    assert_eq!(Traits::of(cat.pid()), before);
    cat.end();
}

#[test]
fn a_go_program_is_attached_to_while_it_collects_garbage() {
    let _alone = alone();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/garbage.go");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("garbage");
    let mut go = Command::new("go");
    go.env("CGO_ENABLED", "0").args(["build", "-o"]).arg(&program).arg(source);
    if !is_permitted() || !go.status().is_ok_and(|status| status.success()) {
        println!("skipped: go is not installed");
        return;
    }
    let mut garbage = Program::start(&mut Command::new(program));
    assert_eq!(garbage.line(), "collecting");
    for _ in 0..50 {
        attach_and_detach(garbage.pid(), || ());
    }
    assert_eq!(garbage.end(), "right\n");
    assert_no_agents();
}

/// Init of the namespace and a child of it: an orphan there would be that init's.
#[test]
fn a_program_in_another_pid_namespace_is_attached_to() {
    let _alone = alone();
    let Some(program) = is_permitted().then(|| compiled("waiter")).flatten() else { return };
    let mut unshare = Command::new("unshare");
    let mut waiter = Program::start(unshare.args(["-pf", "--kill-child"]).arg(program));
    waiter.answers();
    let children = format!("/proc/{0}/task/{0}/children", waiter.child.id());
    let inner = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let inner = Pid::from_raw(inner).unwrap();
    // A thread that is being started has its signals blocked.
    std::thread::sleep(Duration::from_millis(100));
    let before = Traits::of(inner);
    let tracer = Tracer::new(Kernel::new());

    let attached = attach_to(&tracer, inner);
    assert!(attached.agent.is_child);
    waiter.answers();
    detach_from(&tracer, &attached);

    assert_eq!(Traits::of(inner), before);
    assert_no_agents();
    assert_eq!(waiter.end(), "the child ended: 7\n");
}

#[test]
fn a_program_that_is_traced_stays_its_tracers() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let cat = Program::cat();
    let pid = cat.pid();
    let first = Tracer::new(Kernel::new());
    let held = first.hold(pid).unwrap();
    let error = std::thread::spawn(move || {
        let second = Tracer::new(Kernel::new());
        second.hold(pid).map(drop).unwrap_err()
    });
    // ptrace belongs to a thread.
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    assert!(matches!(error.join().unwrap(), AttachError::Traced { by, .. } if by == own));
    drop(held);
    cat.kill();
    assert_eq!(first.hold(pid).map(drop).unwrap_err(), AttachError::Gone { pid });
}

/// What waits for its vfork child does not stop: it is let go when it has.
#[test]
fn a_thread_that_does_not_stop_is_let_go_later() {
    let _alone = alone();
    let Some(mut vforks) = start("vforks") else { return };
    assert_eq!(vforks.line(), "vfork");
    std::thread::sleep(Duration::from_millis(50));
    let tracer = Tracer::new(Kernel::new());
    let mut held = tracer.hold(vforks.pid()).unwrap();
    assert!(!held.wait(Duration::from_millis(100)).unwrap());
    assert_eq!((held.stopped().count(), held.running().count()), (1, 1));
    held.release();
    assert_eq!(tracer.settle(), 1);

    vforks.say("go on");

    let settled = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        tracer.settle() == 0
    });
    assert!(settled);
    assert_eq!(vforks.line(), "back");
    assert!(vforks.end().is_empty());
}

/// A shell that says when its child has ended, and the child.
fn parent_that_waits() -> (Program, Pid) {
    let mut shell = Command::new("/bin/sh");
    let mut shell = Program::start(shell.args(["-c", "sleep 100 & echo $!; wait; echo over"]));
    let child = Pid::from_raw(shell.line().parse().unwrap()).unwrap();
    (shell, child)
}

/// Whoever waits for a process that is killed while it is held learns of its end.
#[test]
fn a_parent_sees_the_end_of_what_was_killed_while_held() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let (mut shell, child) = parent_that_waits();
    let tracer = Tracer::new(Kernel::new());
    let held = hold(&tracer, child);
    kill_process(child, Signal::KILL).unwrap();
    wait_for_state(child, 'Z');
    held.release();
    let settled = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        tracer.settle() == 0
    });
    assert!(settled);
    assert_eq!(shell.line(), "over");
    shell.end();
}

/// Also while it goes on to be held, as by a keeper that was killed before.
#[test]
fn a_parent_sees_the_end_of_what_was_killed_and_is_held() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let (mut shell, child) = parent_that_waits();
    let tracer = Tracer::new(Kernel::new());
    let mut held = hold(&tracer, child);
    kill_process(child, Signal::KILL).unwrap();
    let is_gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        held.poll().is_err()
    });
    assert!(is_gone);
    assert_eq!(shell.line(), "over");
    held.release();
    shell.end();
}

/// Neither the hold nor the agent's calls let a program go on that is stopped by a signal, and
/// neither keeps a signal back.
#[test]
fn a_stopped_program_stays_stopped() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let mut cat = Program::cat();
    kill_process(cat.pid(), Signal::STOP).unwrap();
    wait_for_state(cat.pid(), 'T');
    attach_and_detach(cat.pid(), || wait_for_state(cat.pid(), 'T'));
    wait_for_state(cat.pid(), 'T');
    kill_process(cat.pid(), Signal::CONT).unwrap();
    cat.answers();
    let tracer = Tracer::new(Kernel::new());
    let mut held = tracer.hold(cat.pid()).unwrap();
    assert!(held.wait(Duration::from_secs(5)).unwrap());
    kill_process(cat.pid(), Signal::TERM).unwrap();
    held.release();
    assert_eq!(cat.child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

fn wait_for_state(pid: Pid, wanted: char) {
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let is_there = || stat().contains(&format!(") {wanted} "));
    let came = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        is_there()
    });
    assert!(came, "{}", stat());
}

/// Agrees with the kernel on what a userfaultfd is to do.
fn agreed(fd: &OwnedFd) -> GuestUserfault {
    GuestUserfault::agree(fd.try_clone().unwrap(), Vpn(1), userfault::ask).unwrap()
}

/// By the system call, and one of those that are there already, as after a fork or an agent's
/// crash: the one of this address space.
#[test]
fn the_userfaultfd_can_come_from_elsewhere() {
    let _alone = alone();
    if !is_permitted() {
        return;
    }
    let mut cat = Program::cat();
    let before = Traits::of(cat.pid());
    let (tracer, memory) = (Tracer::new(Kernel::new()), memory_file());
    let attached_by = |userfaultfd| {
        let manner = Manner { memory: memory.as_fd(), userfaultfd, huge_pages: true };
        attach(&hold(&tracer, cat.pid()), &manner).unwrap()
    };
    let called = attached_by(Userfaultfd::Call);
    kill_process(called.agent.pid, Signal::KILL).unwrap();
    // SAFETY: nothing is registered with it.
    let ours = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC) }.unwrap();
    let all = [agreed(&ours), agreed(called.userfaultfd.as_ref().unwrap())];
    let again = attached_by(Userfaultfd::Forked(&[all[0].as_fd(), all[1].as_fd()]));
    assert_eq!(again.forked, 1);
    assert_ne!((again.agent.base, again.agent.staging), (called.agent.base, called.agent.staging));
    detach_from(&tracer, &again);
    // What has crashed is cleared away, too.
    detach_from(&tracer, &called);
    cat.answers();
    assert_eq!(Traits::of(cat.pid()), before);
    assert_no_agents();
    cat.end();
}
