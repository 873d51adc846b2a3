//! The keeper's process, as the front has it.
//!
//! Owns: its start and its end, asking it, and opening what it swaps to; with the processes that
//! have places open for it.
//! Invariants: it is waited for at the beginning and at the end of a run only, no longer than a
//! keeper needs that works. Who is not understood is ended, and the run with it. Its holder, which
//! outlives it for a moment, is known by its number too.
//! Not here: what it does; the order of questions and answers (`exchange`).

mod error;
mod exchange;

use crate::family::wait_for;
use crate::watch;
use exchange::{Asked, Exchange};
use overspill_base::Bytes;
use overspill_base::stats::Stats;
use overspill_device::file::OpenOptions;
use overspill_device::{DeviceError, SwapSpec};
use overspill_guest::{Vpn, pidfd};
use overspill_keeper::process::{self, new_stats};
use overspill_keeper::{
    AreaState, ArrivalReader, Birth, GuestParts, OpenPlace, Opening, Report, Request,
};
use overspill_wire::{Descriptor, Link, LinkError, Outbox};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper,
};
use std::path::PathBuf;
use std::process::Child;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use error::KeeperError;
pub use exchange::State;
pub(crate) use exchange::{Bring, Event, Purpose};

/// How long it may take to open all places: a disk may have to be searched for what it holds.
const BEGIN_WAIT: Duration = Duration::from_secs(120);
/// How long another answer may take that is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

impl AsFd for KeeperProcess {
    /// Is readable when the keeper says something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
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
    servers: Vec<Child>,
    /// A place that is to be added.
    opening: Option<JoinHandle<Result<OpenPlace, DeviceError>>>,
    exchange: Exchange,
    outbox: Outbox,
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
            servers: Vec::new(),
            opening: None,
            exchange: Exchange::default(),
            outbox: Outbox::default(),
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
            let place = self.open(spec, self.options)?.finish()?;
            self.tell(&Request::Swap(Box::new(place)))?;
        }
        let arrivals = arrivals.map(Descriptor::from);
        self.ask(&Request::Begin { memory, memory_max, stats, arrivals }, Asked::Change);
        self.wait(BEGIN_WAIT)?;
        match self.exchange.take().pop() {
            Some(Event::Changed(areas)) => areas,
            _ => Err(KeeperError::Answer),
        }
    }

    /// Begins to open a place, as the keeper itself cannot.
    fn open(&mut self, spec: SwapSpec, options: OpenOptions) -> Result<Opening, DeviceError> {
        let (opening, server) = Opening::start(spec, options, &self.server)?;
        self.servers.extend(server);
        Ok(opening)
    }

    /// Has a guest paged: [`Event::Added`].
    pub(crate) fn add(&mut self, number: u64, mut guest: GuestParts) {
        let needed: Vec<Vpn> = std::mem::take(&mut guest.needed);
        for pages in needed.chunks(Request::NEEDED_MAX) {
            // If it is not heard, neither is the guest.
            let _ = self.tell(&Request::Needed(pages.to_vec()));
        }
        self.ask(&Request::Add { number, guest: Box::new(guest) }, Asked::Add(number));
    }

    /// Tells it that a guest has ended, or executes another program: [`Event::Ended`].
    pub(crate) fn ended(&mut self, number: u64) {
        self.ask(&Request::Ended { number }, Asked::End(number));
    }

    /// Has some of a guest brought back, which goes on: [`Event::Brought`] says where there may be
    /// more, which is where it began if none can come now.
    pub(crate) fn bring(&mut self, bring: Bring) {
        let Bring { number, from, .. } = bring;
        self.ask(&Request::Bring { number, from }, Asked::Bring(bring));
    }

    /// Has a guest paged on of which some was brought back.
    pub(crate) fn stay(&mut self, number: u64) {
        self.exchange.forget_brought(number);
        // If it has ended, that is noticed soon.
        let _ = self.tell(&Request::Stay { number });
    }

    /// Has all of a guest brought back, whose threads stand still until [`Event::LetGo`] says
    /// whether it is forgotten.
    pub(crate) fn let_go(&mut self, number: u64) {
        self.ask(&Request::LetGo { number }, Asked::LetGo(number));
    }

    /// Gives it the userfaultfd of a child, if that could be had.
    pub(crate) fn fetched(&mut self, birth: Birth, userfaultfd: Option<OwnedFd>) {
        let Birth { parent: number, fork, .. } = birth;
        // If it has ended, that is noticed soon.
        let userfaultfd = userfaultfd.map(Descriptor::from);
        let _ = self.tell(&Request::Fetched { number, fork, userfaultfd });
    }

    /// Has it get ready for the first guest, once.
    pub(crate) fn prepare(&mut self) {
        if !std::mem::replace(&mut self.is_prepared, true) {
            // What it lacks it says when there is a guest.
            let _ = self.tell(&Request::Prepare);
        }
    }

    /// Its holder is there before the first guest.
    pub(crate) fn find_holder(&mut self) {
        self.holder = self.holder.or_else(|| watch::children_of(self.pid).first().copied());
    }

    /// Gives it another limit.
    pub(crate) fn set_memory(&mut self, memory: Bytes) {
        // If it has ended, that is noticed soon.
        let _ = self.tell(&Request::SetMemory(memory));
    }

    /// Adds a place to swap to, when it is open: [`Event::Changed`]. What was forced at the start
    /// were other places.
    pub(crate) fn add_swap(&mut self, spec: SwapSpec) {
        let options = OpenOptions { force: false, ..self.options };
        match self.open(spec, options).map_err(KeeperError::from).and_then(finish_apart) {
            Ok(opening) => self.opening = Some(opening),
            Err(error) => self.exchange.refuse(Asked::Change, error),
        }
    }

    /// Has an area swapped off: [`Event::Changed`].
    pub(crate) fn remove_swap(&mut self, name: String) {
        self.ask(&Request::RemoveSwap(name), Asked::Change);
    }

    /// How things were at this moment or later; `None` until the keeper says so.
    pub(crate) fn state_since(&mut self, moment: Instant) -> Option<State> {
        let state = self.exchange.state_since(moment).cloned();
        if state.is_none() && !self.exchange.awaits_state_since(moment) {
            self.ask(&Request::Status, Asked::State(Instant::now()));
        }
        state
    }

    /// How things were when the keeper said so last.
    pub(crate) fn last_state(&self) -> Option<&State> {
        self.exchange.last_state()
    }

    /// Asks for something that has an answer, in its turn.
    fn ask(&mut self, request: &Request, asked: Asked) {
        match self.tell(request) {
            Ok(()) => self.exchange.ask(asked),
            Err(error) => self.exchange.refuse(asked, error.into()),
        }
    }

    fn tell(&mut self, request: &Request) -> Result<(), LinkError> {
        self.outbox.send(&self.link, request)
    }

    /// Waits until all is answered.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) fn wait(&mut self, at_most: Duration) -> Result<(), LinkError> {
        let deadline = Instant::now() + at_most;
        self.outbox.flush_until(&self.link, deadline)?;
        while self.exchange.is_open() {
            let report = self.link.receive(Some(self.process.as_fd()), Some(deadline))?;
            self.hear(report);
        }
        Ok(())
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Line(line) => (self.say)(&line),
            report => self.exchange.hear(report),
        }
    }

    /// Takes what has come, in its order.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        self.take_opened();
        // If it has ended, that is noticed below.
        let _ = self.outbox.flush(&self.link);
        loop {
            match self.link.receive_now() {
                Ok(report) => self.hear(report),
                Err(LinkError::Silent) => break,
                Err(error) => {
                    self.end_not_understood(&error);
                    self.exchange.end(&error);
                    break;
                }
            }
        }
        // Its holder has its end of the link open, too.
        if self.exchange.is_open() && self.has_ended() {
            self.exchange.end(&LinkError::Ended);
        }
        self.exchange.take()
    }

    /// What comes after that is taken for nothing else.
    fn end_not_understood(&self, error: &LinkError) {
        if *error != LinkError::Ended {
            self.say(&format!("the keeper is ended: {error}"));
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
        }
    }

    /// Adds the place that is open by now.
    fn take_opened(&mut self) {
        let Some(opening) = self.opening.take_if(|opening| opening.is_finished()) else { return };
        match opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(place) => self.ask(&Request::AddSwap(Box::new(place)), Asked::Change),
            Err(error) => self.exchange.refuse(Asked::Change, error.into()),
        }
    }

    /// Says that all threads of a guest are told to stop.
    pub(crate) fn frozen(&mut self, guest: u64) {
        let _ = self.tell(&Request::Frozen { number: guest });
    }

    /// Says whether all threads of a guest stand still.
    pub(crate) fn stands(&mut self, guest: u64, still: bool) {
        let _ = self.tell(&Request::Stands { number: guest, still });
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
        let mut others = self.servers.iter().map(Pid::from_child).chain(self.holder);
        pid == self.pid || others.any(|other| other == pid)
    }

    /// Reaps processes that had places open, and have ended.
    pub(crate) fn reap_servers(&mut self) {
        self.servers.retain_mut(|server| matches!(server.try_wait(), Ok(None)));
    }

    /// Asks how things are, and has it end, when no guest is left. Waits for its end.
    pub(crate) fn end(&mut self) -> Option<State> {
        let moment = Instant::now();
        let _ = self.state_since(moment);
        // If it does not answer, it is not known.
        let _ = self.wait(ANSWER_WAIT);
        if self.is_prepared {
            self.find_holder();
        }
        self.link.close();
        if !pidfd::ends_within(&self.process, ANSWER_WAIT) {
            self.say("the keeper does not end, and is killed");
        }
        self.kill();
        self.exchange.state_since(moment).cloned()
    }

    /// Ends it, and waits for it, for its holder, and for those that have places open, which empty
    /// what was empty.
    pub(crate) fn kill(&mut self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        for pid in [Some(self.pid), self.holder].into_iter().flatten() {
            wait_for(pid);
        }
        self.servers.drain(..).for_each(end_server);
    }
}

/// Opens a place on a thread of its own.
fn finish_apart(
    opening: Opening,
) -> Result<JoinHandle<Result<OpenPlace, DeviceError>>, KeeperError> {
    let builder = std::thread::Builder::new().name("ovs-open".into());
    builder.spawn(|| opening.finish()).map_err(KeeperError::Thread)
}

/// Waits until a process has ended that had a place open, and of which nobody wants anything any
/// more; one that waits for its network is left to do so.
fn end_server(mut server: Child) {
    let process = pidfd_open(Pid::from_child(&server), PidfdFlags::empty());
    if process.is_ok_and(|process| pidfd::ends_within(&process, ANSWER_WAIT)) {
        let _ = server.wait();
    }
}
