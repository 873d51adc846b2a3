//! How long a queue waits for a server that says nothing.
//!
//! Owns: a timer, and since when there is nothing new.
//! Invariants: the timer runs while something is waited for, and not much longer: a queue without
//! requests wakes nobody. While whoever has the queue is elsewhere nothing is sent, which is no
//! silence of the server's: after that it gets all its time, once, unless it says something.

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Whoever hears the timer so much later was elsewhere.
const LATE: Duration = Duration::from_millis(50);

/// A limit to waiting.
pub(super) struct Patience {
    limit: Duration,
    /// The last time that anything was heard, or that nothing was waited for.
    since: Instant,
    timer: OwnedFd,
    /// When it rings, or has rung.
    due: Instant,
    /// Whether it was heard late since then, for which the server had all its time again.
    was_late: bool,
    is_running: bool,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let now = Instant::now();
        Ok(Self { limit, since: now, timer, due: now, was_late: false, is_running: false })
    }

    /// There is something to wait for, or one thing more.
    pub(super) fn begin(&mut self, is_first: bool) {
        if is_first {
            self.renew();
        }
        if !self.is_running {
            self.run(self.limit);
        }
    }

    /// The server has said something.
    pub(super) fn renew(&mut self) {
        (self.since, self.was_late) = (Instant::now(), false);
    }

    /// After the timer has rung: true if it was waited long enough for what is still waited for.
    pub(super) fn is_over(&mut self, is_waiting: bool) -> bool {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        self.is_running = false;
        if self.due.elapsed() >= LATE && !self.was_late {
            (self.since, self.was_late) = (Instant::now(), true);
        }
        let left = self.limit.saturating_sub(self.since.elapsed());
        if is_waiting && !left.is_zero() {
            self.run(left);
        }
        is_waiting && left.is_zero()
    }

    fn run(&mut self, time: Duration) {
        let it_value = Timespec::try_from(time).expect("a day at most");
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval, it_value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
        set.expect("a time that is not zero");
        self.due = Instant::now() + time;
        self.is_running = true;
    }
}

impl AsFd for Patience {
    /// Readable when the timer has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
