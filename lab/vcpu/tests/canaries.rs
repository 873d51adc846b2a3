//! Deliberate bugs, each of which exploring schedules must find.

use overspill_vcpu::{Costs, Line, Lock, Machine, Schedule, Shape, Waiting};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

const SEEDS: u64 = 200;

fn machine(schedule: Schedule) -> Machine {
    let shape = Shape { cpus: 2, sockets: 1, interrupt_cpu: None };
    Machine::new(shape, &Costs::DEFAULT, schedule)
}

fn schedules() -> impl Iterator<Item = Schedule> {
    (0..SEEDS).map(|seed| match seed % 2 {
        0 => Schedule::Random { seed },
        _ => Schedule::Bounded { seed, preemptions: 2, points: 100 },
    })
}

/// Returns how many schedules make `run` panic.
fn found_by(run: impl Fn(Schedule)) -> usize {
    let fails = |&schedule: &Schedule| catch_unwind(AssertUnwindSafe(|| run(schedule))).is_err();
    schedules().filter(fails).count()
}

/// Two tasks each count to ten in a shared word, with a load and a store.
fn lost_update(schedule: Schedule) {
    let mut machine = machine(schedule);
    let (line, word) = (Rc::new(Line::new()), Rc::new(Cell::new(0)));
    for cpu in 0..2 {
        let (line, word) = (line.clone(), word.clone());
        machine.spawn("counter", cpu, move || {
            for _ in 0..10 {
                line.read();
                let seen = word.get();
                line.write();
                word.set(seen + 1);
            }
        });
    }
    machine.run();
    assert_eq!(word.get(), 20, "an update was lost");
}

/// Two tasks take two locks in opposite orders.
fn crossed_locks(schedule: Schedule) {
    let mut machine = machine(schedule);
    let lock = || Rc::new(Lock::new(0, Waiting::Spins, 0, false));
    let locks = [lock(), lock()];
    for cpu in 0..2 {
        let (first, second) = (locks[cpu].clone(), locks[1 - cpu].clone());
        machine.spawn("crosser", cpu, move || {
            first.acquire();
            second.acquire();
            second.release();
            first.release();
        });
    }
    machine.run();
}

/// The same as `lost_update`, with a lock around it.
fn locked_update(schedule: Schedule) {
    let mut machine = machine(schedule);
    let lock = Rc::new(Lock::new(0, Waiting::Sleeps, 0, false));
    let (line, word) = (Rc::new(Line::new()), Rc::new(Cell::new(0)));
    for cpu in 0..2 {
        let (lock, line, word) = (lock.clone(), line.clone(), word.clone());
        machine.spawn("counter", cpu, move || {
            for _ in 0..10 {
                lock.acquire();
                line.read();
                let seen = word.get();
                line.write();
                word.set(seen + 1);
                lock.release();
            }
        });
    }
    machine.run();
    assert_eq!(word.get(), 20);
}

#[test]
fn a_lost_update_is_found() {
    assert!(found_by(lost_update) > 0);
}

#[test]
fn a_deadlock_is_found() {
    assert!(found_by(crossed_locks) > 0);
}

#[test]
fn what_is_right_passes_in_every_schedule() {
    assert_eq!(found_by(locked_update), 0);
}
