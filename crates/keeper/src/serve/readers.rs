//! Which readers wait, and how they hear of messages.
//!
//! Not here: what they do (`read`), and why some rest.

use crate::guest::state::Guest;
use crate::wakeup::Wakeup;
use overspill_base::sync::{Condvar, LockClass, Mutex};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// No guest's number: how the wake-up is named in events.
pub(crate) const WAKEUP: u64 = 0;

/// Which readers wait.
#[derive(Debug)]
pub(crate) struct Readers {
    /// How they hear of messages, one for each CPU.
    pub(crate) ready: Vec<OwnedFd>,
    resting: Mutex<Resting>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Resting {
    /// How many rest.
    count: usize,
    /// How many of those are called.
    called: usize,
}

impl Readers {
    /// For so many CPUs; `wakeup` wakes one that waits.
    pub(crate) fn new(cpus: usize, wakeup: &Wakeup) -> Result<Self, Errno> {
        let made = (0..cpus).map(|_| {
            let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&ready, wakeup, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN)?;
            Ok(ready)
        });
        Ok(Self {
            ready: made.collect::<Result<_, Errno>>()?,
            resting: Mutex::new(LockClass::Control, Resting::default()),
            called: Condvar::new(),
        })
    }

    /// Has all hear of messages of a guest.
    pub(crate) fn listen(&self, guest: &Guest) -> Result<(), Errno> {
        self.ready.iter().try_for_each(|ready| {
            let data = epoll::EventData::new_u64(guest.number);
            epoll::add(ready, guest, data, epoll::EventFlags::IN)
        })
    }

    /// Ends that.
    pub(crate) fn ignore(&self, guest: &Guest) {
        for ready in &self.ready {
            let _ = epoll::delete(ready, guest);
        }
    }

    /// Rests until called, unless nobody else would wait.
    pub(crate) fn rest(&self) {
        let mut resting = self.resting.lock();
        if resting.count + 1 >= self.ready.len() {
            return;
        }
        resting.count += 1;
        while resting.called == 0 {
            resting = self.called.wait(resting);
        }
        resting.called -= 1;
        resting.count -= 1;
    }

    #[cfg(test)]
    pub(crate) fn resting_count(&self) -> usize {
        self.resting.lock().count
    }

    /// Calls one that rests.
    pub(crate) fn call(&self) {
        let mut resting = self.resting.lock();
        if resting.called < resting.count {
            resting.called += 1;
            self.called.notify_one();
        }
    }

    /// Calls all: this thread will be busy, or is to end.
    pub(crate) fn call_all(&self) {
        let mut resting = self.resting.lock();
        resting.called = resting.count;
        self.called.notify_all();
    }
}
