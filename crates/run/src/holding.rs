//! Holding the threads of guests for the keeper.
//!
//! Owns: which guests are held. The thread that traces serves it.
//! Invariants: nobody waits until threads have stopped: those in the kernel stop when they come
//! out. While processes are about to be attached to, none goes on that was held after they were
//! told to stop: of a crowd that starts at once the first would fill memory while the others are
//! attached to, and take the CPU from that. Who asks whether a guest stands still gets an answer:
//! that it does, or that it takes too long. A thread that has stopped in its gate goes on: the
//! keeper may wait for what it does there, or others for what the keeper does then.
//! Not here: what a hold is for (`guest::map`, rule 5).

use overspill_guest::{Gate, Held, Kernel, Tracer, let_out};
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a guest may take to stand still: threads that wait for pages do not stop.
const STILL_WAIT: Duration = Duration::from_millis(50);

/// Guests by their numbers, and what holds them.
pub(crate) struct Holding {
    tracer: &'static Tracer<Kernel>,
    held: HashMap<u64, Entry>,
    /// For how long they were held before.
    before: HashMap<u64, Duration>,
    /// Of which it was asked whether they stand still, and when.
    asked: HashMap<u64, Instant>,
}

struct Entry {
    held: Held<'static, Kernel>,
    gate: Option<Gate>,
    /// Since when it is here, and since when it was told to stop.
    since: Instant,
    told: Instant,
    /// Whether it is to go on as soon as it may.
    is_due: bool,
    is_still: bool,
}

impl Entry {
    /// Takes note of threads that have stopped, or are new; true if all stand still. One that has
    /// ended is let go when its end is seen.
    fn poll(&mut self) -> bool {
        let polled = self.held.poll();
        let let_out = self.gate.map_or(Ok(()), |gate| let_out(&mut self.held, gate));
        polled.is_ok_and(|running| running == 0)
            && let_out.is_ok()
            && self.held.running().next().is_none()
    }
}

impl Holding {
    pub(crate) fn new(tracer: &'static Tracer<Kernel>) -> Self {
        Self { tracer, held: HashMap::new(), before: HashMap::new(), asked: HashMap::new() }
    }

    /// Tells all threads of a guest to stop.
    pub(crate) fn hold(&mut self, number: u64, pid: Pid, gate: Option<Gate>) {
        if let Some(entry) = self.held.get_mut(&number) {
            entry.is_due = false;
        } else if let Ok(held) = self.tracer.hold(pid) {
            self.keep(number, held, gate, Instant::now());
        }
        // One that has ended does nothing more.
    }

    /// Has none of its threads go on for any reason: its mappings must not change.
    pub(crate) fn freeze(&mut self, number: u64) {
        self.held.entry(number).and_modify(|entry| entry.gate = None);
    }

    /// Asks whether a guest that is held stands still: [`answers`](Self::answers) will say.
    pub(crate) fn ask(&mut self, number: u64) {
        self.asked.insert(number, Instant::now());
    }

    /// True if there are answers to come.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes the answers that there are: which guests stand still, and which do not in time.
    pub(crate) fn answers(&mut self) -> Vec<(u64, bool)> {
        let answer = |(number, since): (&u64, &Instant)| match self.is_still(*number) {
            true => Some((*number, true)),
            false if since.elapsed() < STILL_WAIT && self.held.contains_key(number) => None,
            false => Some((*number, false)),
        };
        let answers: Vec<_> = self.asked.iter().filter_map(answer).collect();
        self.asked.retain(|number, _| answers.iter().all(|(answered, _)| answered != number));
        answers
    }

    /// Keeps a new guest standing still until it is released; it was told to stop some time ago.
    pub(crate) fn keep(
        &mut self,
        number: u64,
        held: Held<'static, Kernel>,
        gate: Option<Gate>,
        told: Instant,
    ) {
        let (since, is_due, is_still) = (Instant::now(), false, false);
        self.held.insert(number, Entry { held, gate, since, told, is_due, is_still });
    }

    /// True if all threads of a guest that is held stand still.
    pub(crate) fn is_still(&self, number: u64) -> bool {
        self.held.get(&number).is_some_and(|entry| entry.is_still)
    }

    /// What holds a guest.
    pub(crate) fn held(&mut self, number: u64) -> Option<&mut Held<'static, Kernel>> {
        self.held.get_mut(&number).map(|entry| &mut entry.held)
    }

    /// Lets a guest go as soon as it may: see [`let_go`](Self::let_go).
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(entry) = self.held.get_mut(&number) {
            entry.is_due = true;
        }
    }

    /// Lets those go that may; since `stopping` there are processes that are about to be attached
    /// to.
    pub(crate) fn let_go(&mut self, stopping: Option<Instant>) {
        let must_wait = |since| stopping.is_some_and(|first| first <= since);
        let Self { held, before, .. } = self;
        for (number, entry) in held.extract_if(|_, it| it.is_due && !must_wait(it.since)) {
            *before.entry(number).or_default() += entry.told.elapsed();
        }
    }

    /// For how long a guest has been held so far.
    pub(crate) fn time(&self, number: u64) -> Duration {
        let now = self.held.get(&number).map(|entry| entry.told.elapsed());
        self.before.get(&number).copied().unwrap_or_default() + now.unwrap_or_default()
    }

    /// Lets all go that were killed, so that their ends can be seen.
    pub(crate) fn let_killed_go(&mut self) {
        self.held.clear();
    }

    /// Forgets a guest that has ended.
    pub(crate) fn forget(&mut self, number: u64) {
        self.held.remove(&number);
        self.before.remove(&number);
    }

    /// Takes note of threads that have stopped, or are new.
    pub(crate) fn poll(&mut self) {
        for entry in self.held.values_mut() {
            entry.is_still = entry.poll();
        }
    }
}
