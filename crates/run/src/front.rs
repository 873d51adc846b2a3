//! The front: watches the processes of the run, and attaches.
//!
//! Owns: which processes are guests, and what becomes of them when they end.
//! Invariants: no guest without a keeper: if that ends, all processes of the run are killed. What a
//! guest's end leaves, an agent and whoever else has the guest's memory, ends with it. The program
//! is reaped by who started it, all others here.
//! Not here: starting the program; reading `/proc` (`watch`), whom to stop (`looking`), the steps
//! of an attach (`attaching`).

mod joining;
mod leaving;
mod looking;
mod resting;
mod subject;
mod traced;

use crate::births::{self, Child, Children, LetterFiles};
use crate::cores::Cores;
use crate::excess::Excess;
use crate::family::kill;
use crate::giving::{Giving, MemoryPressure};
use crate::ground::Ground;
use crate::guest::{Guest, Leaving};
use crate::holding::Holding;
use crate::keeper::{KeeperError, KeeperProcess};
use crate::refusals::{OutsideProcess, Refusals};
use crate::same::have_same_memory;
use crate::sharing::Sharing;
use crate::stopping::Stopping;
use crate::together::Together;
use crate::watch::{Watched, is_registered, start_of};
use overspill_base::Bytes;
use overspill_device::SwapSpec;
use overspill_guest::{Kernel, MOST_URGENT, Tracer};
use overspill_keeper::{AreaState, Arrived, Birth, GuestMark, KeeperState, SourceParts, Wanted};
use rustix::fd::OwnedFd;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior, setpriority_process};
use rustix::thread::set_current_timer_slack;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

pub use leaving::NoRoom;
use looking::Seen;
use resting::Resting;
pub use subject::Subject;

/// How often processes are looked at if much of what they hold may soon be too much.
const NEAR_INTERVAL: Duration = Duration::from_millis(2);
/// How often if children may soon be attached to.
const CHILD_INTERVAL: Duration = Duration::from_millis(1);
/// How often while some are about to stop.
const STOPPING_INTERVAL: Duration = Duration::from_micros(300);
/// Processes attached to between two looks: each takes 1 to 5 ms.
const ATTACHED_AT_A_TIME: usize = 2;

/// How much memory there is for what is out; `None` if that cannot be found out.
pub type MemoryFree = fn() -> Option<Bytes>;

/// A run that goes on.
pub struct Front {
    memory: Bytes,
    /// What guests may have of that, in pages.
    paged_most: u64,
    tracer: &'static Tracer<Kernel>,
    holding: Holding,
    stopping: Stopping,
    ground: Ground,
    memory_free: MemoryFree,
    keeper: KeeperProcess,
    subject: Subject,
    /// When a process has started that ran already, which with its number tells it from all others.
    subject_start: Option<u64>,
    guests: HashMap<Pid, Guest>,
    /// Children that guests have forked, and that are not attached to.
    forked: Children,
    /// Those of which it is known who they are, and not yet that they have their pages: by their
    /// parent's number and that of the fork.
    fetched: HashMap<(u64, u64), Pid>,
    /// What guests' gates write in.
    letters: LetterFiles,
    cores: Cores,
    /// Processes that there were a turn ago.
    seen: HashMap<Pid, Seen>,
    /// Of the next guest.
    number: u64,
    refusals: Refusals,
    /// When it was looked who is traced.
    traced_looked: Instant,
    held_most_pages: u64,
    /// What is not paged.
    apart_pages: u64,
    sharing: Sharing,
    /// What all processes hold, before any is paged.
    together: Together,
    held_pages: u64,
    excess: Excess,
    /// If others are to have memory when it is short.
    giving: Option<Giving>,
    /// Whether processes are attached to before the limit is in sight.
    is_early: bool,
    /// Whether all guests are to become processes like others.
    is_leaving: bool,
    resting: Resting,
    /// Guests that are to be let go for good, by their numbers.
    departing: Vec<u64>,
    has_failed: bool,
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

/// What is known of a run at its end.
#[derive(Debug, Default)]
pub struct RunEnd {
    /// Its swap areas.
    pub areas: Vec<AreaState>,
    /// How things were in its keeper.
    pub keeper: KeeperState,
    /// The most memory that its processes had together, as far as the limit counts it.
    pub held_most: Bytes,
    /// The most that they held above the limit for longer than a moment.
    pub excess_most: Bytes,
    /// Its processes that were outside the limit.
    pub outside: Vec<OutsideProcess>,
    /// True if it was ended because the keeper had.
    pub has_failed: bool,
}

impl Front {
    /// Begins to watch.
    pub fn new(
        memory: Bytes,
        (ground, memory_free): (Ground, MemoryFree),
        keeper: KeeperProcess,
        subject: Subject,
    ) -> Self {
        let (kernel, subject_start) = match subject {
            Subject::Started { program, .. } => (Kernel::of_parent(program), None),
            Subject::Running(pid) => (Kernel::new(), start_of(pid)),
        };
        // It has its guests' page tables open, and the sockets of their agents.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        // Of this thread, and of what it starts unless that changes it.
        let _ = setpriority_process(None, MOST_URGENT);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        // For the life of the process: what is held refers to it.
        let tracer: &'static _ = Box::leak(Box::new(Tracer::new(kernel)));
        Self {
            memory,
            paged_most: memory.pages_floor(),
            tracer,
            holding: Holding::new(tracer),
            stopping: Stopping::new(tracer),
            ground,
            memory_free,
            keeper,
            subject,
            subject_start,
            guests: HashMap::new(),
            forked: Children::new(),
            fetched: HashMap::new(),
            letters: LetterFiles::default(),
            cores: Cores::default(),
            seen: HashMap::new(),
            number: 0,
            refusals: Refusals::default(),
            traced_looked: Instant::now(),
            held_most_pages: 0,
            apart_pages: 0,
            sharing: Sharing::default(),
            together: Together::default(),
            held_pages: 0,
            excess: Excess::default(),
            giving: None,
            is_early: false,
            is_leaving: false,
            resting: Resting::new(),
            departing: Vec::new(),
            has_failed: false,
        }
    }

    /// The keeper, for its counters.
    pub fn keeper(&self) -> &KeeperProcess {
        &self.keeper
    }

    /// Tells of the pages that came since the last call, and of which process they are, if a record
    /// is kept; returns how many came too fast to be recorded. A process that has ended is 0.
    pub fn take_arrivals(&mut self, mut tell: impl FnMut(i32, Arrived)) -> u64 {
        let marks: HashMap<GuestMark, i32> = self
            .guests
            .iter()
            .map(|(pid, guest)| (guest.number.into(), pid.as_raw_pid()))
            .collect();
        let Some(reader) = self.keeper.arrivals() else { return 0 };
        reader.take(|arrived| tell(marks.get(&arrived.guest).copied().unwrap_or(0), arrived));
        reader.missed()
    }

    /// The limit.
    pub fn memory(&self) -> Bytes {
        self.memory
    }

    /// Changes the limit, or takes processes into it again that were let go. Does not wait until it
    /// is kept to.
    pub fn set_memory(&mut self, memory: Bytes) {
        self.stay();
        self.memory = memory;
        self.limit_guests(self.limit_pages());
    }

    /// Has processes attached to as soon as they are large enough to matter.
    pub fn attach_early(&mut self) {
        self.is_early = true;
    }

    /// Has the run use less than its limit while memory is short.
    pub fn give_back(&mut self, pressure: MemoryPressure) {
        self.giving = Some(Giving::new(pressure));
    }

    /// Adds a place to swap to; returns its area. Waits until it is open.
    ///
    /// # Errors
    /// [`KeeperError`]; nothing was changed.
    pub fn add_swap(&self, spec: SwapSpec) -> Result<AreaState, KeeperError> {
        self.keeper.add_swap(spec)
    }

    /// Has all pages that are on an area go elsewhere, as there is room, after which it is closed;
    /// returns it. `name` is the device's, or its path, or the number. Does not wait.
    ///
    /// # Errors
    /// [`KeeperError`]; nothing was changed.
    pub fn remove_swap(&self, name: &str) -> Result<AreaState, KeeperError> {
        self.keeper.remove_swap(name.to_owned())
    }

    /// Asks how things are; waits for a keeper that is busy.
    pub fn state(&self) -> Option<(Vec<AreaState>, KeeperState)> {
        self.keeper.state().ok()
    }

    /// The processes of the run that were there a turn ago.
    pub fn processes(&self) -> impl Iterator<Item = RunProcess> {
        self.seen.iter().map(|(pid, seen)| RunProcess {
            pid: *pid,
            memory: Bytes::of_pages(seen.last.pages),
            is_paged: self.guests.contains_key(pid),
            held: self
                .guests
                .get(pid)
                .map_or(Duration::ZERO, |guest| self.holding.time(guest.number)),
        })
    }

    /// What they have together of what the limit counts: pages that relatives share once.
    pub fn memory_used(&self) -> Bytes {
        Bytes::of_pages(self.held_pages)
    }

    /// What they hold above the limit, for longer than a moment.
    pub fn excess(&self) -> Bytes {
        self.excess.now()
    }

    /// Does what is to be done now; returns how long to wait before the next turn, if no signal
    /// comes. The program, once it has ended, is to be reaped before the next.
    pub fn turn(&mut self) -> Duration {
        self.do_wanted();
        self.look_at_keeper();
        self.poll_held();
        self.tracer.settle();
        let family = self.family();
        self.end_guests(&family);
        if self.has_failed {
            self.kill_all(family);
            self.stopping.let_killed_go();
            self.holding.let_killed_go();
            return NEAR_INTERVAL;
        }
        let has_young = self.stop_children(&family);
        let interval = match self.is_leaving {
            true => {
                let interval = self.let_guests_go();
                self.rested();
                self.note_held(&family);
                interval
            }
            false => {
                self.let_departing_go();
                self.tend_traced();
                self.look(&family)
            }
        };
        self.attach_stopped();
        let stopping = self.stopping.since();
        self.holding.let_go(stopping);
        match stopping.is_some() || self.holding.is_asked() {
            true => STOPPING_INTERVAL,
            false if has_young => CHILD_INTERVAL,
            false => interval,
        }
    }

    /// Ends the keeper. No process of the run is left.
    pub fn end(mut self) -> RunEnd {
        // Its holder may have ended all guests before that was seen here.
        self.look_at_keeper();
        self.end_guests(&HashMap::new());
        let (areas, keeper) = match self.has_failed {
            true => {
                self.keeper.kill();
                Default::default()
            }
            false => self.keeper.end().unwrap_or_default(),
        };
        let held_most = Bytes::of_pages(self.held_most_pages);
        let outside = self.refusals.outside();
        let (excess_most, has_failed) = (self.excess.most(), self.has_failed);
        RunEnd { areas, keeper, held_most, excess_most, outside, has_failed }
    }

    /// Without a keeper the run ends.
    fn look_at_keeper(&mut self) {
        if self.keeper.has_ended() {
            self.fail(
                "the keeper has ended, so the run is ended: no page that is out can come back",
            );
        }
    }

    /// Does what the keeper wants of guests' threads.
    fn do_wanted(&mut self) {
        for wanted in self.keeper.take_wanted() {
            match wanted {
                Wanted::Hold(number) => self.hold(number),
                Wanted::Freeze(number) => {
                    self.hold(number);
                    self.holding.freeze(number);
                    self.keeper.frozen(number);
                }
                Wanted::Still(number) => {
                    self.hold(number);
                    self.holding.ask(number);
                }
                Wanted::Release(number) => self.holding.release(number),
                Wanted::Attach { child, source, birth } => self.note_fork(child, source, birth),
                Wanted::Forget(child) => drop(self.forked.remove(&child)),
                Wanted::LetGo(number) => self.departing.push(number),
                Wanted::Fetch(birth) => {
                    let fetched = self.fetch(&birth).map(|(fetched, pid)| {
                        self.fetched.insert((birth.parent, birth.fork), pid);
                        fetched
                    });
                    self.keeper.fetched(birth, fetched);
                }
            }
        }
    }

    fn note_fork(&mut self, child: u64, source: SourceParts, birth: Option<(u64, u64)>) {
        let fetched = birth.and_then(|birth| self.fetched.remove(&birth));
        self.forked.insert(child, Child::new(source, fetched));
        self.refusals.note_message();
    }

    /// What tells of a child that a guest has made, and which process that is.
    fn fetch(&self, birth: &Birth) -> Option<(OwnedFd, Pid)> {
        let forked = || self.forked.get(&birth.parent).and_then(Child::process);
        let parent = self.pid_of(birth.parent).or_else(forked)?;
        let mut family = self.family();
        family.retain(|pid, _| !self.is_known(*pid));
        births::fetch(birth, parent, &family)
    }

    /// True if it is known which guest or child of one a process is.
    fn is_known(&self, pid: Pid) -> bool {
        let mut children = self.forked.values().filter_map(Child::process);
        self.guests.contains_key(&pid)
            || children.any(|child| child == pid)
            || self.fetched.values().any(|child| *child == pid)
    }

    fn poll_held(&mut self) {
        self.holding.poll();
        for (number, still) in self.holding.answers() {
            self.keeper.stands(number, still);
        }
    }

    fn hold(&mut self, number: u64) {
        if let Some(pid) = self.pid_of(number) {
            self.holding.hold(number, pid, self.guests[&pid].gate);
        }
    }

    /// Which process the guest of a number is.
    fn pid_of(&self, number: u64) -> Option<Pid> {
        let guest = self.guests.iter().find(|(_, guest)| guest.number == number);
        guest.map(|(pid, _)| *pid)
    }

    /// True if it is a child that a guest has forked.
    fn is_child(&self, pid: Pid) -> bool {
        is_registered(pid) || births::number_of(&self.forked, pid).is_some()
    }

    fn is_guest(&self, pid: Option<Pid>) -> bool {
        pid.is_some_and(|pid| self.guests.contains_key(&pid))
    }

    /// Ends the run, and says why: the first reason.
    fn fail(&mut self, line: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.keeper.say(line);
        }
    }

    /// Lets go the guests that have ended, or execute another program. Those that left cores stay
    /// until these are complete.
    fn end_guests(&mut self, family: &HashMap<Pid, Watched>) {
        self.fetched.retain(|_, pid| family.contains_key(pid));
        let ended: Vec<Pid> = self.guests.keys().copied().collect();
        self.cores.look(&ended);
        for pid in ended {
            let guest = &self.guests[&pid];
            if guest.has_left(pid) {
                let guest = self.guests.remove(&pid).expect("it is there");
                self.holding.forget(guest.number);
                if let Some(guest) = self.cores.begin(pid, guest, |line| self.keeper.say(line)) {
                    self.forget(pid, &guest, family);
                }
            } else if guest.leaving != Leaving::LetGo && guest.lacks_agent() {
                if guest.is_to_be_told() {
                    let line = format!("process {pid} is ended: its agent was killed");
                    self.keeper.say(&line);
                }
                kill(pid);
                self.holding.forget(guest.number);
            }
        }
        for (pid, guest) in self.cores.filled(|line| self.keeper.say(line)) {
            self.forget(pid, &guest, family);
        }
    }

    /// Without its agent and the keeper missing pages would read as zeros: so who else has the
    /// guest's memory ends first.
    fn forget(&mut self, pid: Pid, guest: &Guest, family: &HashMap<Pid, Watched>) {
        let shares = |other: &Pid| have_same_memory(*other, guest.agent.pid) == Some(true);
        family.keys().copied().filter(|&other| other != pid).filter(shares).for_each(kill);
        self.fetched.retain(|(parent, _), _| *parent != guest.number);
        self.keeper.ended(guest.number);
        guest.end_agent();
    }
}
