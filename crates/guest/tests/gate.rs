//! Gates of real programs, shut and opened while these run.
//!
//! Owns: what a program must not notice. What is paged meanwhile others test (`tests/programs`).
#![cfg(target_arch = "x86_64")]

mod common;

use common::{HOLD_WAIT, Program, compiled};
use overspill_guest::{AttachError, Catch, Gate, Held, Kernel, Tracer, open, shut};
use std::process::Command;
use std::time::{Duration, Instant};

/// How often it is tried: threads wait for children, or are looked at.
const TRIES: usize = 200;

/// Does something with a program that stands still, as soon as it can be done.
fn at_once<T>(
    tracer: &Tracer<Kernel>,
    program: &mut Program,
    what: impl Fn(&mut Held<'_, Kernel>) -> Result<T, AttachError>,
) -> T {
    for _ in 0..TRIES {
        let mut held = match tracer.hold(program.pid()) {
            Ok(held) => held,
            Err(error) => panic!("{error}; it ended: {:?}", program.child.try_wait()),
        };
        match what(&mut held) {
            Ok(done) => return done,
            Err(error @ AttachError::Slow { .. }) => println!("{error}"),
            Err(error) => panic!("{error}"),
        }
        drop(held);
        let end = Instant::now() + HOLD_WAIT;
        while tracer.settle() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not in {TRIES} tries")
}

fn shut_and_open(tracer: &Tracer<Kernel>, program: &mut Program, between: Duration) -> Gate {
    let gate = at_once(tracer, program, |held| {
        shut(held, Catch { barrier: None, hold_pages_max: 1 << 20 })
    });
    std::thread::sleep(between);
    at_once(tracer, program, |held| open(held, gate));
    gate
}

fn start(name: &str, arguments: &[&str]) -> Option<Program> {
    let mut program = Program::start(Command::new(compiled(name)?).args(arguments));
    assert_eq!(program.line(), "busy");
    Some(program)
}

#[test]
fn a_program_does_not_notice_its_gate() {
    let Some(mut program) = start("signals", &[]) else { return };
    let tracer = Tracer::new(Kernel::new());
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..20 {
        shut_and_open(&tracer, &mut program, Duration::from_millis(100));
    }
    assert_eq!(program.end(), "right\n");
}
