//! Holding the threads of guests for the keeper.
//!
//! Owns: which guests are held. The thread that traces serves it.
//! Invariant: nobody waits until threads have stopped: those in the kernel stop when they come out.
//! Not here: what a hold is for (`guest::map`, rule 5).

use overspill_guest::{Held, Kernel, Tracer};
use rustix::process::Pid;
use std::collections::HashMap;

/// Guests by their numbers, and what holds them.
pub(crate) struct Holding {
    tracer: &'static Tracer<Kernel>,
    held: HashMap<u64, Held<'static, Kernel>>,
}

impl Holding {
    pub(crate) fn new(tracer: &'static Tracer<Kernel>) -> Self {
        Self { tracer, held: HashMap::new() }
    }

    /// Tells all threads of a guest to stop.
    pub(crate) fn hold(&mut self, number: u64, pid: Pid) {
        // One that has ended does nothing more.
        self.held.extend(self.tracer.hold(pid).ok().map(|held| (number, held)));
    }

    /// Keeps a new guest standing still, until it is released.
    pub(crate) fn keep(&mut self, number: u64, held: Held<'static, Kernel>) {
        self.held.insert(number, held);
    }

    /// Lets a guest go.
    pub(crate) fn release(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// Takes note of threads that have stopped, or are new.
    pub(crate) fn poll(&mut self) {
        for held in self.held.values_mut() {
            // One that has ended is let go when its end is seen.
            let _ = held.poll();
        }
    }
}
