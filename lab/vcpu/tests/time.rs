//! How long each operation takes.

use overspill_vcpu::{Costs, Line, Lock, Machine, Queue, Schedule, Shape, Waiting};
use overspill_vcpu::{charge, enter_path, interrupt, now_ns, sleep_until, tally, usage};
use std::cell::RefCell;
use std::rc::Rc;

const COSTS: Costs = Costs::DEFAULT;
const FOUR: Shape = Shape { cpus: 4, sockets: 2, interrupt_cpu: None };

type Log = Rc<RefCell<Vec<(usize, u64)>>>;

/// Runs a task on each of the CPUs; returns what they logged.
fn run(cpus: &[usize], body: impl Fn(usize, &Log) + Clone + 'static) -> Vec<(usize, u64)> {
    let mut machine = Machine::new(FOUR, &COSTS, Schedule::Clocks);
    let log = Log::default();
    for (n, &cpu) in cpus.iter().enumerate() {
        let (log, body) = (log.clone(), body.clone());
        machine.spawn(format!("task {n}"), cpu, move || body(n, &log));
    }
    machine.run();
    Rc::try_unwrap(log).unwrap().into_inner()
}

fn note(log: &Log, n: usize) {
    log.borrow_mut().push((n, now_ns()));
}

#[test]
fn a_line_costs_what_its_way_is_long() {
    let line = Rc::new(Line::new());
    let log = run(&[0, 1, 2], move |n, log| {
        sleep_until(n as u64 * 10_000);
        let start = now_ns();
        line.update();
        let first = now_ns() - start;
        line.update();
        log.borrow_mut().push((n, first));
    });
    let update = COSTS.update_ns;
    assert_eq!(log[0], (0, COSTS.memory_ns + update));
    assert_eq!(log[1], (1, COSTS.transfer_ns + update));
    assert_eq!(log[2], (2, COSTS.transfer_far_ns + update));
}

#[test]
fn a_lock_is_handed_on_in_the_order_of_arrival() {
    let lock = Rc::new(Lock::new(3, Waiting::Spins, 0, false));
    let log = run(&[0, 1, 2, 3], move |n, log| {
        // The first holds it long; the others arrive in reverse order.
        sleep_until(if n == 0 { 1 } else { 1_000 * (5 - n as u64) });
        let _path = enter_path(1);
        lock.acquire();
        note(log, n);
        charge(10_000);
        lock.release();
    });
    let order: Vec<usize> = log.iter().map(|&(n, _)| n).collect();
    assert_eq!(order, [0, 3, 2, 1]);
    assert!(log.windows(2).all(|pair| pair[0].1 + 10_000 <= pair[1].1), "one at a time: {log:?}");
    let cost = tally(3, 1);
    assert_eq!((cost.acquisitions, cost.contended), (4, 3));
    assert!(cost.wait_ns > 3 * 8_000 && cost.hold_ns >= 40_000, "{cost:?}");
}

#[test]
fn who_sleeps_leaves_the_cpu_to_others_and_who_spins_does_not() {
    for (waiting, from_ns) in [(Waiting::Sleeps, 0), (Waiting::Spins, 100_000)] {
        let lock = Rc::new(Lock::new(0, waiting, 0, false));
        // The third shares the second's CPU.
        let log = run(&[0, 1, 1], move |n, log| match n {
            0 | 1 => {
                charge(n as u64 * 100);
                lock.acquire();
                charge(50_000);
                lock.release();
            }
            _ => note(log, n),
        });
        let third_ns = log[0].1;
        assert!((from_ns..from_ns + 49_000).contains(&third_ns), "{waiting:?}: {third_ns}");
    }
}

#[test]
fn a_wait_ends_by_notice_or_by_its_time() {
    let (lock, queue) = (Rc::new(Lock::new(0, Waiting::Sleeps, 0, false)), Rc::new(Queue::new()));
    let log = run(&[0, 1, 2], move |n, log| match n {
        0 => {
            lock.acquire();
            queue.wait(&lock, None);
            note(log, n);
        }
        1 => {
            lock.acquire();
            queue.wait(&lock, Some(5_000));
            note(log, n);
        }
        _ => {
            sleep_until(100_000);
            queue.notify_all();
        }
    });
    assert_eq!(log[0].0, 1);
    assert!((5_000..10_000).contains(&log[0].1), "{log:?}");
    assert!(log[1].0 == 0 && log[1].1 >= 100_000, "{log:?}");
}

#[test]
fn interrupts_take_time_from_whom_they_interrupt() {
    let log = run(&[0, 1], |n, log| {
        if n == 0 {
            charge(100);
            interrupt(1, 7_000);
            return;
        }
        charge(1_000);
        sleep_until(2_000);
        note(log, n);
    });
    assert!(log[0].1 >= 7_000, "{log:?}");
}

#[test]
fn sleep_is_no_use_of_a_cpu() {
    run(&[0], |_, _| {
        charge(300);
        sleep_until(1_000_000);
        charge(200);
        assert_eq!(usage().busy_ns, 500);
    });
}

#[test]
#[should_panic(expected = "no task can go on: task 0 is Asleep")]
fn waiting_for_ever_is_told() {
    let queue = Rc::new(Queue::new());
    run(&[0], move |_, _| {
        let lock = Lock::new(0, Waiting::Sleeps, 0, false);
        lock.acquire();
        queue.wait(&lock, None);
    });
}
