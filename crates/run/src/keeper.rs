//! The keeper's process, as the front has it.
//!
//! Owns: its start and its end, asking it, and opening what it swaps to; with the processes that
//! have places open for it.
//! Invariants: an answer is waited for no longer than a keeper needs that works. Lines that come
//! meanwhile are said. Its holder, which outlives it for a moment, is known by its number too.
//! Not here: what it does.

use crate::family::wait_for;
use crate::watch;
use overspill_base::Bytes;
use overspill_base::stats::Stats;
use overspill_device::file::OpenOptions;
use overspill_device::{DeviceError, SwapSpec};
use overspill_guest::{Vpn, pidfd};
use overspill_keeper::process::{self, new_stats};
use overspill_keeper::{
    AreaState, ArrivalReader, Birth, GuestParts, KeeperState, OpenPlace, Report, Request, Wanted,
};
use overspill_wire::{Descriptor, Link, LinkError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, set_child_subreaper};
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// How long it may take to open all places: a disk may have to be searched for what it holds.
const BEGIN_WAIT: Duration = Duration::from_secs(120);
/// How long another answer may take: that to the first guest makes all tables.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// It refuses this.
    #[error("{0}")]
    Refused(String),
    /// Of a guest that is to be let go.
    #[error("no page of it has come back for {0:?}: the limit is full, or its swap is slow")]
    NoRoom(Duration),
    /// It can page nobody.
    #[error("{0}")]
    Unable(String),
    /// A place cannot be opened.
    #[error(transparent)]
    Place(#[from] DeviceError),
    /// There are more places than there can be.
    #[error("--swap is given {0} times; {max} are the most", max = OpenPlace::MAX)]
    TooMany(usize),
    /// It was not understood, or has ended.
    #[error("the keeper: {0}")]
    Link(#[from] LinkError),
    /// Its answer is to something else.
    #[error("the keeper answers what it was not asked: was the program replaced while it ran?")]
    Answer,
    /// It does not start.
    #[error("the keeper does not start: {0}")]
    Start(std::io::Error),
}

impl AsFd for KeeperProcess {
    /// Is readable when the keeper says something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl From<Errno> for KeeperError {
    fn from(errno: Errno) -> Self {
        Self::Start(errno.into())
    }
}

/// What a keeper is for.
#[derive(Debug)]
pub struct KeeperOptions {
    /// Memory that all guests may take.
    pub memory: Bytes,
    /// The most that this can be set to.
    pub memory_max: Bytes,
    /// Where to swap.
    pub swaps: Vec<SwapSpec>,
    /// How places are opened.
    pub options: OpenOptions,
    /// The program that opens places on other machines.
    pub server: PathBuf,
    /// Whether each page comes alone, so that every touch of one that is out is seen.
    pub page_by_page: bool,
    /// Whether it is recorded which pages come.
    pub records_arrivals: bool,
}

/// A keeper.
pub struct KeeperProcess {
    link: Link,
    pid: Pid,
    process: OwnedFd,
    is_prepared: bool,
    holder: Option<Pid>,
    stats: Stats,
    arrivals: Option<ArrivalReader>,
    options: OpenOptions,
    server: PathBuf,
    /// Processes that have places open.
    servers: RefCell<Vec<Child>>,
    /// What came while an answer was waited for.
    wanted: RefCell<Vec<Wanted>>,
    say: Box<dyn Fn(&str)>,
}

impl KeeperProcess {
    /// Forks it, which needs this process to have one thread, and waits until it has opened all
    /// places; returns them, too. `say` takes lines for the user.
    ///
    /// # Errors
    /// [`KeeperError`].
    pub fn start(
        options: KeeperOptions,
        say: Box<dyn Fn(&str)>,
    ) -> Result<(Self, Vec<AreaState>), KeeperError> {
        // Its holder, agents, and daemons of the program become children of this process.
        set_child_subreaper(Some(getpid()))?;
        let (link, socket) = Link::pair()?;
        let (file, stats) = new_stats()?;
        let arrivals = options.records_arrivals.then(ArrivalReader::new).transpose()?;
        let (arrivals, record) = arrivals.unzip();
        let pid = process::fork(socket, options.page_by_page).map_err(KeeperError::Start)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let mut keeper = Self {
            link,
            pid,
            process,
            is_prepared: false,
            holder: None,
            stats,
            arrivals,
            options: options.options,
            server: options.server,
            servers: RefCell::default(),
            wanted: RefCell::default(),
            say,
        };
        let memory = (options.memory, options.memory_max);
        match keeper.begin(memory, options.swaps, (file, record)) {
            Ok(areas) => Ok((keeper, areas)),
            Err(error) => {
                keeper.kill();
                Err(error)
            }
        }
    }

    fn begin(
        &mut self,
        (memory, memory_max): (Bytes, Bytes),
        swaps: Vec<SwapSpec>,
        (stats, arrivals): (OwnedFd, Option<OwnedFd>),
    ) -> Result<Vec<AreaState>, KeeperError> {
        if swaps.len() > OpenPlace::MAX {
            return Err(KeeperError::TooMany(swaps.len()));
        }
        for spec in swaps {
            let place = self.open(spec, &self.options)?;
            self.ask(&Request::Swap(place))?;
        }
        let arrivals = arrivals.map(Descriptor::from);
        let begin = Request::Begin { memory, memory_max, stats, arrivals };
        self.ask(&begin)?;
        let (areas, report) = self.answer(BEGIN_WAIT)?;
        done(&report).map(|()| areas)
    }

    /// Opens a place, as the keeper itself cannot.
    fn open(&self, spec: SwapSpec, options: &OpenOptions) -> Result<Box<OpenPlace>, KeeperError> {
        let (place, server) = OpenPlace::open(spec, options, &self.server)?;
        self.servers.borrow_mut().extend(server);
        Ok(Box::new(place))
    }

    /// Has a guest paged.
    ///
    /// # Errors
    /// [`KeeperError`]. The guest is lost: without a keeper its agent ends it.
    pub(crate) fn add(&mut self, number: u64, mut guest: GuestParts) -> Result<(), KeeperError> {
        let needed: Vec<Vpn> = std::mem::take(&mut guest.needed);
        for pages in needed.chunks(Request::NEEDED_MAX) {
            self.ask(&Request::Needed(pages.to_vec()))?;
        }
        self.ask(&Request::Add { number, guest: Box::new(guest) })?;
        done(&self.answer(ANSWER_WAIT)?.1)?;
        self.find_holder();
        Ok(())
    }

    /// Tells it that a guest has ended, or executes another program, and waits until it knows: it
    /// ends a process whose agent is gone.
    pub(crate) fn ended(&self, number: u64) {
        // If it has ended itself, that is noticed soon.
        if self.ask(&Request::Ended { number }).is_ok() {
            let _ = self.answer(ANSWER_WAIT);
        }
    }

    /// Has some of a guest brought back, which goes on, from an address on; returns where there may
    /// be more, the same address if none can come now.
    ///
    /// # Errors
    /// [`KeeperError`].
    pub(crate) fn bring(&self, number: u64, from: Vpn) -> Result<Option<Vpn>, KeeperError> {
        self.ask(&Request::Bring { number, from })?;
        match self.answer(None)?.1 {
            Report::Brought(rest) => Ok(rest),
            other => done(&other).and(Err(KeeperError::Answer)),
        }
    }

    /// Has a guest paged on of which some was brought back.
    pub(crate) fn stay(&self, number: u64) {
        // If it has ended, that is noticed soon.
        let _ = self.ask(&Request::Stay { number });
    }

    /// Has all of a guest brought back, whose threads stand still, and the guest forgotten. Waits
    /// for that. False if other things are to be done first: the guest is paged as before.
    ///
    /// # Errors
    /// [`KeeperError`]; the guest is paged as before.
    pub(crate) fn let_go(&self, number: u64) -> Result<bool, KeeperError> {
        self.ask(&Request::LetGo { number })?;
        match self.answer(None)?.1 {
            Report::NotNow => Ok(false),
            other => done(&other).map(|()| true),
        }
    }

    /// Gives it the userfaultfd of a child, if that could be had.
    pub(crate) fn fetched(&self, birth: Birth, userfaultfd: Option<OwnedFd>) {
        let Birth { parent: number, fork, .. } = birth;
        // If it has ended, that is noticed soon.
        let userfaultfd = userfaultfd.map(Descriptor::from);
        let _ = self.ask(&Request::Fetched { number, fork, userfaultfd });
    }

    /// Has it get ready for the first guest, once.
    pub(crate) fn prepare(&mut self) {
        if !std::mem::replace(&mut self.is_prepared, true) {
            // What it lacks it says when there is a guest.
            let _ = self.ask(&Request::Prepare);
        }
    }

    /// Its holder is there before the first guest.
    fn find_holder(&mut self) {
        self.holder = self.holder.or_else(|| watch::children_of(self.pid).first().copied());
    }

    /// Gives it another limit.
    pub(crate) fn set_memory(&self, memory: Bytes) {
        // If it has ended, that is noticed soon.
        let _ = self.ask(&Request::SetMemory(memory));
    }

    /// Adds a place to swap to; returns its area. What was forced at the start were other places.
    pub(crate) fn add_swap(&self, spec: SwapSpec) -> Result<AreaState, KeeperError> {
        let options = OpenOptions { force: false, ..self.options };
        self.change(&Request::AddSwap(self.open(spec, &options)?))
    }

    /// Has an area swapped off; returns it.
    pub(crate) fn remove_swap(&self, name: String) -> Result<AreaState, KeeperError> {
        self.change(&Request::RemoveSwap(name))
    }

    fn change(&self, request: &Request) -> Result<AreaState, KeeperError> {
        self.ask(request)?;
        let (mut areas, report) = self.answer(BEGIN_WAIT)?;
        done(&report)?;
        areas.pop().ok_or(KeeperError::Answer)
    }

    /// Asks how things are.
    pub(crate) fn state(&self) -> Result<(Vec<AreaState>, KeeperState), KeeperError> {
        self.ask(&Request::Status)?;
        match self.answer(ANSWER_WAIT)? {
            (areas, Report::State(state)) => Ok((areas, state)),
            _ => Err(KeeperError::Answer),
        }
    }

    /// Asks for something. The answer, if there is one, is to be taken before the next request.
    fn ask(&self, request: &Request) -> Result<(), LinkError> {
        self.link.send(request, ANSWER_WAIT)
    }

    /// Takes all areas that are told of, and the answer after them; waits for it if no time is
    /// given.
    fn answer(
        &self,
        at_most: impl Into<Option<Duration>>,
    ) -> Result<(Vec<AreaState>, Report), KeeperError> {
        let deadline = at_most.into().map(|at_most| Instant::now() + at_most);
        let mut areas = Vec::new();
        loop {
            match self.link.receive(Some(self.process.as_fd()), deadline)? {
                Report::Area(area) => areas.push(area),
                Report::Line(line) => (self.say)(&line),
                Report::Wanted(wanted) => self.wanted.borrow_mut().push(wanted),
                answer => return Ok((areas, answer)),
            }
        }
    }

    /// Says the lines that have come; returns what is wanted by now, in its order.
    pub(crate) fn take_wanted(&self) -> Vec<Wanted> {
        loop {
            match self.link.receive_now() {
                Ok(Report::Wanted(wanted)) => self.wanted.borrow_mut().push(wanted),
                Ok(Report::Line(line)) => (self.say)(&line),
                // Nothing has come, or what nobody asked for: an end is seen elsewhere.
                Ok(_) | Err(_) => return self.wanted.take(),
            }
        }
    }

    /// True if something is wanted by now that was not taken.
    pub(crate) fn wants_something(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }

    /// Says that all threads of a guest are told to stop.
    pub(crate) fn frozen(&self, guest: u64) {
        let _ = self.ask(&Request::Frozen { number: guest });
    }

    /// Says whether all threads of a guest stand still.
    pub(crate) fn stands(&self, guest: u64, still: bool) {
        let _ = self.ask(&Request::Stands { number: guest, still });
    }

    /// Says a line itself.
    pub(crate) fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// True if it has ended, which it must not while there is a front.
    pub(crate) fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.process)
    }

    /// The counters, which both have.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The record of pages that come, if there is one.
    pub fn arrivals(&mut self) -> Option<&mut ArrivalReader> {
        self.arrivals.as_mut()
    }

    /// True if `pid` is it, its holder, or a process that has a place open for it.
    pub(crate) fn is(&self, pid: Pid) -> bool {
        let servers = self.servers.borrow();
        let mut others = servers.iter().map(Pid::from_child).chain(self.holder);
        pid == self.pid || others.any(|other| other == pid)
    }

    /// Reaps processes that had places open, and have ended.
    pub(crate) fn reap_servers(&self) {
        self.servers.borrow_mut().retain_mut(|server| matches!(server.try_wait(), Ok(None)));
    }

    /// Asks how things are, and has it end, when no guest is left. Waits for its end.
    pub(crate) fn end(&mut self) -> Option<(Vec<AreaState>, KeeperState)> {
        let state = self.state().ok();
        if self.is_prepared {
            self.find_holder();
        }
        self.link.close();
        if !pidfd::ends_within(&self.process, ANSWER_WAIT) {
            self.say("the keeper does not end, and is killed");
        }
        self.kill();
        state
    }

    /// Ends it, and waits for it, for its holder, and for those that have places open, which empty
    /// what was empty.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        for pid in [Some(self.pid), self.holder].into_iter().flatten() {
            wait_for(pid);
        }
        self.servers.borrow_mut().drain(..).for_each(end_server);
    }
}

/// Waits until a process has ended that had a place open, and of which nobody wants anything any
/// more; one that waits for its network is left to do so.
fn end_server(mut server: Child) {
    let process = pidfd_open(Pid::from_child(&server), PidfdFlags::empty());
    if process.is_ok_and(|process| pidfd::ends_within(&process, ANSWER_WAIT)) {
        let _ = server.wait();
    }
}

fn done(report: &Report) -> Result<(), KeeperError> {
    match report {
        Report::Done => Ok(()),
        Report::Refused(why) => Err(KeeperError::Refused(why.clone())),
        Report::Unable(why) => Err(KeeperError::Unable(why.clone())),
        _ => Err(KeeperError::Answer),
    }
}
