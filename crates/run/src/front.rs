//! The front: watches the processes of the run, and attaches.
//!
//! Owns: the turns, in which all is done that a run needs. What it knows has four owners: which
//! processes there are ([`Family`]), which of them are guests ([`Guests`]), whose threads were told
//! to stop ([`Stops`]), and what they may hold ([`Room`]). What takes several of them is a step of
//! a turn, in a file of its own: what the keeper says (`events`), ends (`ending`), looking at what
//! is held (`looking`), attaching (`joining`), letting go (`leaving`, `resting`), and who is traced
//! (`traced`).
//! Invariants: the program is reaped by who started it, all others here. A turn waits for no answer
//! of the keeper.
//! Not here: starting the program; reading `/proc` (`watch`), the steps of an attach (`attaching`).

mod ending;
mod events;
mod family;
mod guests;
mod joining;
mod leaving;
mod looking;
mod resting;
mod room;
mod traced;

use crate::attaching::AttachingError;
use crate::giving::MemoryPressure;
use crate::ground::Ground;
use crate::holding::Holding;
use crate::keeper::{KeeperError, KeeperProcess, State};
use crate::stopping::Stopping;
use family::{All, Family};
use guests::Guests;
use overspill_base::Bytes;
use overspill_device::SwapSpec;
use overspill_guest::{Kernel, MOST_URGENT, Tracer};
use overspill_keeper::{AreaState, Arrived};
use resting::Resting;
use room::Room;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior, setpriority_process};
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

pub use ending::RunEnd;
pub use family::Subject;
pub use leaving::NoRoom;

/// How often processes are looked at if much of what they hold may soon be too much.
const NEAR_INTERVAL: Duration = Duration::from_millis(2);
/// How often if children may soon be attached to.
const CHILD_INTERVAL: Duration = Duration::from_millis(1);
/// How often while some are about to stop.
const STOPPING_INTERVAL: Duration = Duration::from_micros(300);

/// How much memory there is for what is out; `None` if that cannot be found out.
pub type MemoryFree = fn() -> Option<Bytes>;

/// A run that goes on.
pub struct Front {
    ground: Ground,
    memory_free: MemoryFree,
    keeper: KeeperProcess,
    family: Family,
    guests: Guests,
    stops: Stops,
    room: Room,
    /// Whether all guests are to become processes like others.
    detaching: Detaching,
    resting: Resting,
    /// Guests that are to be let go for good whatever the others do, by their numbers.
    departing: Vec<u64>,
    /// When it was looked who is traced.
    traced_looked: Instant,
    /// Areas that were added, or are leaving, as was asked.
    changed: Option<Result<Vec<AreaState>, KeeperError>>,
    has_failed: bool,
}

/// Whose threads were told to stop.
struct Stops {
    tracer: &'static Tracer<Kernel>,
    /// Those of guests.
    holding: Holding,
    /// Those of processes that are to be attached to, and what they wait for.
    stopping: Stopping,
}

/// Whether all guests are let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detaching {
    No,
    /// Until the limit comes into sight again.
    ToRest,
    /// Until the limit is set again.
    ForGood,
}

/// A process of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunProcess {
    /// Its number.
    pub pid: Pid,
    /// What it has of what the limit counts.
    pub memory: Bytes,
    /// Whether it is paged by now.
    pub is_paged: bool,
    /// For how long it was held for that so far.
    pub held: Duration,
}

impl Front {
    /// Begins to watch.
    pub fn new(
        memory: Bytes,
        (ground, memory_free): (Ground, MemoryFree),
        keeper: KeeperProcess,
        subject: Subject,
    ) -> Self {
        let kernel = match subject {
            Subject::Started { program, .. } => Kernel::of_parent(program),
            Subject::Running(_) => Kernel::new(),
        };
        // It has its guests' page tables open, and the sockets of their agents.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        // Of this thread, and of what it starts unless that changes it.
        let _ = setpriority_process(None, MOST_URGENT);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Self {
            ground,
            memory_free,
            keeper,
            family: Family::new(subject),
            guests: Guests::default(),
            stops: Stops::new(kernel),
            room: Room::new(memory),
            detaching: Detaching::No,
            resting: Resting::new(),
            departing: Vec::new(),
            traced_looked: Instant::now(),
            changed: None,
            has_failed: false,
        }
    }

    /// Tries to hold the process that runs already, and lets it go on.
    ///
    /// # Errors
    /// It has ended, or may not be traced.
    pub fn check_subject(&self) -> Result<(), AttachingError> {
        if let Some(pid) = self.family.running() {
            drop(self.stops.tracer.hold(pid)?);
        }
        Ok(())
    }

    /// The keeper, for its counters.
    pub fn keeper(&self) -> &KeeperProcess {
        &self.keeper
    }

    /// Tells of the pages that came since the last call, and of which process they are, if a record
    /// is kept; returns how many came too fast to be recorded. A process that has ended is 0.
    pub fn take_arrivals(&mut self, mut tell: impl FnMut(i32, Arrived)) -> u64 {
        let marks = self.guests.marks();
        let Some(reader) = self.keeper.arrivals() else { return 0 };
        reader.take(|arrived| tell(marks.get(&arrived.guest).copied().unwrap_or(0), arrived));
        reader.missed()
    }

    /// The limit.
    pub fn memory(&self) -> Bytes {
        self.room.memory()
    }

    /// Changes the limit, or takes processes into it again that were let go. Does not wait until it
    /// is kept to.
    pub fn set_memory(&mut self, memory: Bytes) {
        self.stay();
        if let Some(left) = self.room.set_memory(memory) {
            self.keeper.set_memory(left);
        }
    }

    /// Has processes attached to as soon as they are large enough to matter.
    pub fn attach_early(&mut self) {
        self.room.attach_early();
    }

    /// Has the run use less than its limit while memory is short.
    pub fn give_back(&mut self, pressure: MemoryPressure) {
        self.room.give_back(pressure);
    }

    /// Begins to add a place to swap to: [`take_changed`](Self::take_changed) returns its area.
    pub fn add_swap(&mut self, spec: SwapSpec) {
        self.keeper.add_swap(spec);
    }

    /// Begins to have all pages that are on an area go elsewhere, as there is room, after which it
    /// is closed; [`take_changed`](Self::take_changed) returns it. `name` is the device's, or its
    /// path, or the number.
    pub fn remove_swap(&mut self, name: &str) {
        self.keeper.remove_swap(name.to_owned());
    }

    /// What came of the change of areas that was begun, when it is known. Of an error nothing was
    /// changed.
    pub fn take_changed(&mut self) -> Option<Result<AreaState, KeeperError>> {
        let areas = self.changed.take()?;
        Some(areas.and_then(|mut areas| areas.pop().ok_or(KeeperError::Answer)))
    }

    /// How things were at this moment or later; `None` until the keeper says so, in a turn after
    /// this one.
    pub fn state_since(&mut self, moment: Instant) -> Option<State> {
        self.keeper.state_since(moment)
    }

    /// How things were when the keeper said so last.
    pub fn last_state(&self) -> State {
        self.keeper.last_state().cloned().unwrap_or_default()
    }

    /// The processes of the run that were there a turn ago.
    pub fn processes(&self) -> impl Iterator<Item = RunProcess> {
        self.family.seen().map(|(pid, seen)| {
            let guest = self.guests.get(pid);
            let held = guest.map(|guest| self.stops.holding.time(guest.number));
            RunProcess {
                pid,
                memory: Bytes::of_pages(seen.last.pages),
                is_paged: guest.is_some(),
                held: held.unwrap_or_default(),
            }
        })
    }

    /// What they have together of what the limit counts: pages that relatives share once.
    pub fn memory_used(&self) -> Bytes {
        self.room.held()
    }

    /// What they hold above the limit, for longer than a moment.
    pub fn excess(&self) -> Bytes {
        self.room.excess().now()
    }

    /// True if no process of the run is left.
    pub fn is_deserted(&self) -> bool {
        self.guests.are_over() && self.all().is_empty()
    }

    /// Reaps children that have ended, but the program: orphans of the run.
    pub fn reap_orphans(&mut self) {
        self.keeper.reap_servers();
        self.family.reap_orphans(&self.guests, &self.keeper);
    }

    /// All processes of the run by now.
    fn all(&self) -> All {
        self.family.all(&self.guests, &self.keeper)
    }

    /// Does what is to be done now; returns how long to wait before the next turn, if no signal
    /// comes. The program, once it has ended, is to be reaped before the next.
    pub fn turn(&mut self) -> Duration {
        self.follow_keeper();
        self.look_at_keeper();
        self.poll_held();
        self.stops.tracer.settle();
        let all = self.all();
        self.end_guests(&all);
        if self.has_failed {
            self.family.kill(all, &self.guests);
            self.stops.let_killed_go();
            return NEAR_INTERVAL;
        }
        let has_young = self.stop_children(&all);
        let interval = match self.detaching {
            Detaching::No => {
                self.let_departing_go();
                self.tend_traced();
                self.look(&all)
            }
            Detaching::ToRest | Detaching::ForGood => {
                let interval = self.let_guests_go();
                self.rested();
                let sum = self.room.sum(&all, &self.family, &self.guests);
                self.room.note_held(sum);
                interval
            }
        };
        self.attach_stopped();
        match self.stops.let_go() {
            true => STOPPING_INTERVAL,
            false if has_young => CHILD_INTERVAL,
            false => interval,
        }
    }
}

impl Stops {
    fn new(kernel: Kernel) -> Self {
        // For the life of the process: what is held refers to it.
        let tracer: &'static _ = Box::leak(Box::new(Tracer::new(kernel)));
        Self { tracer, holding: Holding::new(tracer), stopping: Stopping::new(tracer) }
    }

    /// Lets those go that may; true if others are about to stop.
    fn let_go(&mut self) -> bool {
        let stopping = self.stopping.since();
        self.holding.let_go(stopping);
        stopping.is_some() || self.holding.is_asked()
    }

    fn let_killed_go(&mut self) {
        self.stopping.let_killed_go();
        self.holding.let_killed_go();
    }
}
