//! ptrace: stopping a thread so that it does not notice, and when it does.
//!
//! Owns: calls that are interrupted, threads that wait for a page, suspended filters.

use overspill_kernel_rules::alone::{alone, skip};
use overspill_kernel_rules::kernel::{CAP_SYS_ADMIN, needs_capability};
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::process::{Board, Child, fork};
use overspill_kernel_rules::threads::state;
use overspill_kernel_rules::trace::{SUSPEND_SECCOMP, Traced, repeat_call, result_in};
use overspill_kernel_rules::uffd::{Uffd, flag};
use overspill_kernel_rules::until;
use std::time::{Duration, Instant};

/// How long the calls wait that are interrupted.
const WAIT: Duration = Duration::from_millis(300);
const MILLISECONDS: i64 = 300;

/// A call that waits for [`WAIT`] unless something comes, and the number it returns then.
type Waiting = (&'static str, fn() -> i64, i64);

fn call_of(number: i64, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: calls that wait; what their arguments point to lives as long as the caller's frame.
    let returned = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if returned < 0 {
        -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        returned
    }
}

const TIME: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: MILLISECONDS * 1_000_000 };

fn nanosleep() -> i64 {
    let time = TIME;
    call_of(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0])
}

fn clock_nanosleep() -> i64 {
    let (clock, time) = (libc::CLOCK_MONOTONIC as usize, TIME);
    call_of(libc::SYS_clock_nanosleep, [clock, 0, &raw const time as usize, 0, 0, 0])
}

fn poll() -> i64 {
    call_of(libc::SYS_poll, [0, 0, MILLISECONDS as usize, 0, 0, 0])
}

fn ppoll() -> i64 {
    let time = TIME;
    call_of(libc::SYS_ppoll, [0, 0, &raw const time as usize, 0, 0, 0])
}

/// The kernel cannot write there what is left of the time, and so cannot go on with that.
fn ppoll_with_constant_time() -> i64 {
    static CONSTANT: libc::timespec = TIME;
    call_of(libc::SYS_ppoll, [0, 0, &raw const CONSTANT as usize, 0, 0, 0])
}

fn futex() -> i64 {
    let word = 1_u32;
    let (word, time) = (&raw const word as usize, TIME);
    let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    call_of(libc::SYS_futex, [word, wait, 1, &raw const time as usize, 0, 0])
}

fn epoll_wait() -> i64 {
    let epoll = call_of(libc::SYS_epoll_create1, [0; 6]);
    let event = [0_u64; 2];
    let milliseconds = MILLISECONDS as usize;
    call_of(libc::SYS_epoll_wait, [epoll as usize, event.as_ptr() as usize, 1, milliseconds, 0, 0])
}

fn sigtimedwait() -> i64 {
    let usr2 = 1_u64 << (libc::SIGUSR2 - 1);
    let (set, time) = (&raw const usr2 as usize, TIME);
    call_of(libc::SYS_rt_sigtimedwait, [set, 0, &raw const time as usize, 8, 0, 0])
}

const RESTARTED: [Waiting; 5] = [
    ("nanosleep", nanosleep, 0),
    ("clock_nanosleep", clock_nanosleep, 0),
    ("poll", poll, 0),
    ("ppoll", ppoll, 0),
    ("futex", futex, -(libc::ETIMEDOUT as i64)),
];
const INTERRUPTED: [Waiting; 3] = [
    ("epoll_wait", epoll_wait, 0),
    ("sigtimedwait", sigtimedwait, -(libc::EAGAIN as i64)),
    ("ppoll", ppoll_with_constant_time, 0),
];

/// A child that makes the call and writes its result and time to its place of the board.
fn waiting_child(board: Board, place: usize, (_, wait, _): Waiting) -> Child {
    let child = fork(|| {
        board.set(place, 1);
        let start = Instant::now();
        let returned = wait();
        board.set(place + 1, returned.cast_unsigned());
        board.set(place + 2, start.elapsed().as_millis() as u64 + 1);
    });
    board.wait(place);
    until("a child that waits", || child.is_asleep());
    child
}

/// Stops each child in its call, and lets it go after a change to its registers: results and
/// milliseconds.
fn stopped_in_calls(calls: &[Waiting], change: fn(&Traced)) -> Vec<(i64, u64)> {
    let board = Board::new();
    let mut results = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let child = waiting_child(board, index * 3, *call);
        let Ok(traced) = Traced::seize(child.pid(), 0) else { skip("SEIZE is not permitted") };
        traced.stop();
        change(&traced);
        traced.detach();
        child.succeed();
        let took_ms = board.get(index * 3 + 2) - 1;
        results.push((board.get(index * 3 + 1).cast_signed(), took_ms));
    }
    results
}

/// arch/x86/kernel/signal.c, arch_do_signal_or_restart: calls that end with a code for restarting
/// go on with what is left of their time.
#[test]
fn restartable_calls_do_not_notice_a_stop() {
    alone(|| {
        let seen = stopped_in_calls(&RESTARTED, |traced| {
            let code = result_in(&traced.registers());
            assert!((-516..=-512).contains(&code), "a code for restarting: {code}");
        });
        for ((name, _, expected), (returned, took_ms)) in RESTARTED.into_iter().zip(seen) {
            assert_eq!(returned, expected, "{name}");
            assert!(u128::from(took_ms) + 1 >= WAIT.as_millis(), "{name}: {took_ms} ms");
        }
    });
}

/// These end with EINTR, and the program sees it; ppoll and select too if their time is in memory
/// that cannot be written (fs/select.c, poll_select_finish).
#[test]
fn epoll_wait_and_sigtimedwait_return_eintr_after_a_stop() {
    alone(|| {
        let eintr = -i64::from(libc::EINTR);
        let seen = stopped_in_calls(&INTERRUPTED, |traced| {
            assert_eq!(result_in(&traced.registers()), -i64::from(libc::EINTR));
        });
        assert_eq!(seen.iter().map(|(returned, _)| *returned).collect::<Vec<_>>(), [eintr; 3]);
    });
}

/// Unless the tracer has the call made again, with its whole time.
#[test]
fn a_tracer_can_repair_eintr() {
    alone(|| {
        let seen = stopped_in_calls(&INTERRUPTED, |traced| {
            let mut registers = traced.registers();
            repeat_call(&mut registers);
            traced.set_registers(&registers);
        });
        for ((name, _, expected), (returned, took_ms)) in INTERRUPTED.into_iter().zip(seen) {
            assert_eq!(returned, expected, "{name}");
            assert!(u128::from(took_ms) + 1 >= WAIT.as_millis(), "{name}: {took_ms} ms");
        }
    });
}

/// A child that touches an absent page, in user mode or by a call; nobody answers.
fn faulting_child(in_a_call: bool) -> Child {
    Uffd::needed(flag::EVENTS);
    let (board, page) = (Board::new(), Range::anonymous(1));
    let child = fork(|| {
        let uffd = Uffd::new(flag::EVENTS);
        uffd.watch(page);
        board.set(0, 1);
        if in_a_call {
            call_of(libc::SYS_getcwd, [page.start(), 100, 0, 0, 0, 0]);
        } else {
            page.byte();
        }
    });
    board.wait(0);
    until("a child that waits", || child.is_asleep());
    child
}

fn seized(child: &Child) -> Traced {
    Traced::seize(child.pid(), 0).unwrap_or_else(|_| skip("SEIZE is not permitted"))
}

/// handle_userfault sleeps interruptibly for a fault of user mode.
#[test]
fn a_thread_that_waits_for_a_page_in_user_mode_stops() {
    alone(|| {
        let child = faulting_child(false);
        seized(&child).stop();
    });
}

/// For a fault in a call it does not stop: it runs, and asks again and again.
#[test]
fn a_thread_that_waits_for_a_page_in_a_call_does_not_stop() {
    alone(|| {
        let child = faulting_child(true);
        let traced = seized(&child);
        traced.interrupt();
        let tid = child.pid().as_raw_pid();
        until("a thread that spins", || state(&child.name(), tid) == 'R');
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            assert!(!traced.has_stopped());
        }
        drop(child);
    });
}

/// PTRACE_O_SUSPEND_SECCOMP: while it is traced, a filter does not see what a thread calls; its end
/// brings the filter back.
#[test]
fn a_tracer_can_suspend_a_filter() {
    alone(|| {
        needs_capability(CAP_SYS_ADMIN, "CAP_SYS_ADMIN");
        let board = Board::new();
        let child = fork(|| {
            refuse_getppid();
            for turn in 1..=3 {
                board.set(turn, 1 + u64::from(call_of(libc::SYS_getppid, [0; 6]) > 0));
                until("the next turn", || board.get(0) >= turn as u64);
            }
        });
        assert_eq!(board.wait(1), 1, "refused");
        let traced = Traced::seize(child.pid(), SUSPEND_SECCOMP);
        let Ok(traced) = traced else { skip("PTRACE_O_SUSPEND_SECCOMP is not there") };
        board.set(0, 1);
        assert_eq!(board.wait(2), 2, "suspended");
        traced.stop();
        traced.detach();
        board.set(0, 2);
        assert_eq!(board.wait(3), 1, "refused again");
        board.set(0, 3);
        child.succeed();
    });
}

/// Installs a filter under which getppid fails.
fn refuse_getppid() {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let is_getppid = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_getppid as u32 };
    // Load the number; compare; return an error, or allow.
    let filter = [
        statement(0x20, 0),
        is_getppid,
        statement(0x06, 0x0005_004d),
        statement(0x06, 0x7fff_0000),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    rustix::thread::set_no_new_privs(true).unwrap();
    // SAFETY: the kernel copies the program.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) };
    assert_eq!(result, 0);
}
