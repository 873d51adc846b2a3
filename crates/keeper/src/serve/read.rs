//! The threads that wait for guests' messages.
//!
//! Owns: how they wait, and which of them do.
//! Invariants: a reader is pinned to each CPU: all that wait are woken by a fault, and the one on
//! the toucher's CPU gets there first, without an interrupt to another CPU. One that comes too late
//! again and again *rests*: to be woken costs both CPUs some 10 us. At least one waits. Those who
//! serve faults call one that rests now and then, in turn: if threads touch memory on its CPU by
//! now, it comes first from then on. When nobody touches anything, nobody is woken. One with I/O in
//! flight does not rest: it has to end it. Nor does one while faults wait: it may have taken the
//! wake-up that another one would have had, and what wakes comes before what is to be looked at.
//! Not here: what a message needs (`fault`).
//! Rejected: one reader (23 000 faults a second of one thread, 45 000 of two, where a reader on
//! each CPU serves 80 000 and 190 000); following the toucher by its CPU, which both then chase;
//! EPOLLEXCLUSIVE, which wakes any.

use super::readers::{Readers, WAKEUP};
use crate::guest::state::Guest;
use crate::serve::shared::Shared;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_engine::Worker;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;

/// How long a reader sleeps at most while something is in doubt, or waits for its turn.
const DOUBT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How often a reader may come too late before it rests.
const LATE_MAX: u32 = 4;
/// After how many messages one that rests is called: at first, and while that is in vain.
const CALL_MIN: u32 = 64;
const CALL_MAX: u32 = 1024;
/// Guests that a reader hears of at a time.
const EVENTS_MAX: usize = 16;

/// What one reader knows of itself.
#[derive(Debug)]
pub(crate) struct Record {
    /// How often in turn it came too late.
    late: u32,
    /// Messages since it has called another one, and after how many it will.
    messages: u32,
    call_after: u32,
    /// Whether it serves, or waits for I/O: guests wait.
    stalls: bool,
}

impl Record {
    fn new() -> Self {
        Self { late: 0, messages: 0, call_after: CALL_MIN, stalls: false }
    }

    /// One that rests as soon as it may.
    #[cfg(test)]
    pub(crate) fn tired() -> Self {
        Self { late: LATE_MAX + 1, ..Self::new() }
    }

    /// Notes how many messages it got of a guest that had some.
    fn note(&mut self, messages: u32, readers: &Readers) {
        if messages == 0 {
            return self.late += 1;
        }
        self.late = 0;
        self.messages += messages;
        if self.messages >= self.call_after {
            self.messages = 0;
            self.call_after = CALL_MAX.min(2 * self.call_after);
            readers.call();
        }
    }

    fn note_stall(&mut self, stalls: bool, stats: &Stats) {
        match (std::mem::replace(&mut self.stalls, stalls), stalls) {
            (false, true) => stats.stall_begins(),
            (true, false) => stats.stall_ends(),
            _ => {}
        }
    }

    /// Rests, if it comes too late.
    fn rest(&mut self, (readers, stats): (&Readers, &Stats)) {
        if self.late > LATE_MAX {
            // While it rests nobody waits for it.
            self.note_stall(false, stats);
            readers.rest();
            *self = Self::new();
        }
    }
}

impl Shared {
    /// Serves all guests until told to stop, as the reader of a CPU.
    pub(crate) fn read(&self, worker: &mut Worker, cpu: usize) {
        let (ready, mut record) = (&self.readers.ready[cpu], Record::new());
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.must_stop() {
            self.wait(worker, ready, &mut events);
            self.follow(worker, &mut record, &mut events);
        }
        worker.finish(&self.engine);
    }

    /// Does what has come, and then rests if it may.
    pub(crate) fn follow(
        &self,
        worker: &mut Worker,
        record: &mut Record,
        events: &mut Vec<epoll::Event>,
    ) {
        let stats = self.engine.stats();
        record.note_stall(!events.is_empty() || record.stalls, stats);
        for event in events.drain(..) {
            match event.data.u64() {
                WAKEUP => {
                    self.wakeup.take();
                    worker.poll(&self.engine);
                }
                number => record.note(self.serve_number(worker, number), &self.readers),
            }
        }
        if self.wakeup.has_doubts() {
            self.serve_doubtful(worker);
        }
        if worker.in_flight() > 0 {
            worker.poll(&self.engine);
        }
        record.note_stall(worker.in_flight() > 0, stats);
        if worker.in_flight() == 0 && !self.wakeup.has_doubts() {
            record.rest((&self.readers, stats));
        }
    }

    /// Waits until a guest has a message, or this worker's I/O has ended.
    fn wait(&self, worker: &Worker, ready: &OwnedFd, events: &mut Vec<epoll::Event>) {
        let mut at_most = self.wakeup.has_doubts().then_some(DOUBT);
        if worker.in_flight() > 0 {
            let mut fds = vec![PollFd::new(ready, PollFlags::IN)];
            fds.extend(worker.poll_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            // After EINTR or any other error: look again.
            let _ = poll(&mut fds, at_most.as_ref());
            at_most = Some(NOW);
        }
        let room = rustix::buffer::spare_capacity(events);
        let _ = epoll::wait(ready, room, at_most.as_ref());
    }

    fn serve_number(&self, worker: &mut Worker, number: u64) -> u32 {
        let guest = self.guests.lock().get(&number).cloned();
        guest.map_or(0, |guest| self.serve(worker, &guest))
    }

    /// Serves the guests of which something is in doubt, or faults wait.
    fn serve_doubtful(&self, worker: &mut Worker) {
        self.wakeup.take_doubts();
        let guests = self.guests.lock();
        let doubtful: Vec<Arc<Guest>> =
            guests.values().filter(|guest| guest.has_waiting()).cloned().collect();
        drop(guests);
        doubtful.iter().for_each(|guest| self.settle(worker, guest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakeup::Wakeup;
    use std::time::Duration;

    /// Else a run whose program sleeps would seem to wait for its pages.
    #[test]
    fn a_reader_that_rests_has_nobody_wait() {
        let readers = Readers::new(2, &Wakeup::new().unwrap()).unwrap();
        let stats = Stats::on_heap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut record = Record::new();
                record.note_stall(true, &stats);
                (0..=LATE_MAX).for_each(|_| record.note(0, &readers));
                record.rest((&readers, &stats));
            });
            while readers.resting_count() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let stalls = stats.stalls();
            readers.call_all();
            assert_eq!(stalls, 0);
        });
    }
}
