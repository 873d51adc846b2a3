//! Holding the threads of guests for the keeper.
//!
//! Owns: the keeper's requests, which the thread that traces serves.
//! Invariant: a request is answered when all threads are told to stop; nobody waits until they have.
//! Not here: what a hold is for (`guest::map`, rule 5).

use overspill_guest::{Held, Kernel, Tracer};
use overspill_keeper::Holder;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the keeper wants.
#[derive(Debug)]
enum Wanted {
    /// To be answered when all threads are told.
    Hold(Pid, Sender<()>),
    Release(Pid),
}

/// The keeper's end.
#[derive(Debug)]
struct Requests {
    wanted: Mutex<Sender<Wanted>>,
    bell: Arc<OwnedFd>,
}

/// The end of the thread that traces.
pub(crate) struct Holding {
    tracer: &'static Tracer<Kernel>,
    wanted: Receiver<Wanted>,
    requests: Arc<Requests>,
    bell: Arc<OwnedFd>,
    held: HashMap<Pid, Held<'static, Kernel>>,
}

impl Requests {
    fn send(&self, wanted: Wanted) {
        let sender = self.wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Without a thread that traces the run is at its end.
        let _ = sender.send(wanted);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

fn pid(guest: u64) -> Option<Pid> {
    Pid::from_raw(i32::try_from(guest).ok()?)
}

impl Holder for Requests {
    fn hold(&self, guest: u64) {
        let Some(pid) = pid(guest) else { return };
        let (told, is_told) = channel();
        self.send(Wanted::Hold(pid, told));
        let _ = is_told.recv();
    }

    fn release(&self, guest: u64) {
        pid(guest).into_iter().for_each(|pid| self.send(Wanted::Release(pid)));
    }
}

impl Holding {
    pub(crate) fn new(tracer: &'static Tracer<Kernel>) -> std::io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, wanted) = channel();
        let requests = Arc::new(Requests { wanted: Mutex::new(sender), bell: bell.clone() });
        Ok(Self { tracer, wanted, requests, bell, held: HashMap::new() })
    }

    /// What the keeper asks.
    pub(crate) fn holder(&self) -> Arc<dyn Holder> {
        self.requests.clone()
    }

    /// Sleeps for `most`, or until the keeper wants something, which it does.
    pub(crate) fn wait(&mut self, most: Duration) {
        let mut fds = [PollFd::new(&*self.bell, PollFlags::IN)];
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&most));
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        self.serve();
    }

    /// Does what the keeper wants.
    pub(crate) fn serve(&mut self) {
        while let Ok(wanted) = self.wanted.try_recv() {
            match wanted {
                Wanted::Hold(pid, told) => {
                    // One that has ended does nothing more.
                    self.held.extend(self.tracer.hold(pid).ok().map(|held| (pid, held)));
                    let _ = told.send(());
                }
                Wanted::Release(pid) => drop(self.held.remove(&pid)),
            }
        }
        for held in self.held.values_mut() {
            let _ = held.poll();
        }
    }
}
