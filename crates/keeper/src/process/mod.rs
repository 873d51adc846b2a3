//! The keeper's process.
//!
//! Owns: the loop that reads what the front asks for, and what follows.
//! Invariants: it opens no file of the user's, starts no program, and traces nobody: it is given
//! the places to swap to, and what it needs of a guest. It ends when the front has closed its end
//! and no guest is left; the guests of a front that has died are killed. A message that cannot be
//! counts as that death.
//! Not here: who forks it (`run`), what guests need (`serve`).

mod alone;
mod confined;
mod front;
mod swaps;

use crate::arrivals::Arrivals;
use crate::keeper::Keeper;
use crate::parts::GuestParts;
use crate::serve::shared::KeeperParts;
use crate::wire::message::{AreaState, KeeperState, Report, Request};
use crate::wire::places::OpenPlace;
use alone::{become_alone, start_holder};
use confined::confine_keeper;
use front::{LinkedFront, Requests};
use overspill_base::Bytes;
use overspill_base::shared::{Mapping, Table};
use overspill_base::stats::{Stats, stats_len};
use overspill_base::sync::Arc;
use overspill_device::file::reserve_rings;
use overspill_device::served::apart;
use overspill_engine::{Swap, Tuning, Worker};
use overspill_guest::{Vpn, pidfd};
use overspill_wire::{Link, LinkError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal, getrlimit, pidfd_send_signal};
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};
use swaps::Swaps;

/// How long the front may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the end of a run may take: longer than any device that works, and less than the front
/// waits for.
const END_WAIT: Duration = Duration::from_secs(25);
/// How often it is looked whether the last guests have been let go.
const END_INTERVAL: Duration = Duration::from_millis(2);
/// Areas that may be added later, and have rings for their queues then, beside those that leave.
const SPARE_AREAS: usize = 1;
/// Of the descriptors that may be open, rings take this part at most.
const RINGS_PART: usize = 4;
/// How often it is looked whether an area has left.
const LEAVING_INTERVAL: Duration = Duration::from_millis(20);
/// Pages that a guest's threads need, at most: those of more threads than a machine has.
const NEEDED_MAX: usize = 1 << 25;

/// What the process has, from the start on.
struct Process {
    link: Arc<Link>,
    front: Arc<LinkedFront>,
    requests: Requests,
    /// Until it begins.
    places: Vec<OpenPlace>,
    tuning: Tuning,
    swaps: Option<Swaps>,
    /// Until the first guest comes.
    parts: Option<KeeperParts>,
    keeper: Option<Keeper>,
    /// Why there is no keeper.
    lack: String,
    /// Of the next guest.
    needed: Vec<Vpn>,
    guests: HashMap<u64, Tasks>,
    /// Agents of guests that have ended, which the front ends.
    left: Vec<OwnedFd>,
}

/// Of a guest.
struct Tasks {
    process: OwnedFd,
    agent: OwnedFd,
}

/// Forks the keeper of a run, with its end of a [`Link`], and returns its number. It ends when the
/// run has. If `page_by_page` each page comes alone, so that every touch of one that is out is
/// seen.
///
/// # Errors
/// Of fork(2), or this process has another thread.
pub fn fork(socket: OwnedFd, page_by_page: bool) -> io::Result<Pid> {
    let usual = Tuning::default();
    let tuning = if page_by_page { usual.page_by_page() } else { usual };
    alone::fork(|| be(Arc::new(Link::from(socket)), tuning))
}

/// Is the keeper, to the end of the run.
fn be(link: Arc<Link>, tuning: Tuning) {
    end_with_any_thread(&link);
    match become_alone(link.as_fd()) {
        Ok(()) => keep(link, tuning),
        Err(error) => {
            let line = format!("the keeper cannot be set apart from other processes: {error}");
            link.tell(&Report::Line(line));
        }
    }
}

fn keep(link: Arc<Link>, tuning: Tuning) {
    let front = Arc::new(LinkedFront::new(link.clone()));
    let mut process = Process {
        requests: Requests::new(front.clone()),
        front,
        link,
        places: Vec::new(),
        tuning,
        swaps: None,
        parts: None,
        lack: "the keeper has not begun".to_owned(),
        keeper: None,
        needed: Vec::new(),
        guests: HashMap::new(),
        left: Vec::new(),
    };
    process.serve();
    process.end();
}

/// Kills a task; one that has ended already says so.
fn kill(task: &OwnedFd) {
    let _ = pidfd_send_signal(task, Signal::KILL);
}

/// Ends this process if what is to be done at the end of a run takes too long: a thread may never
/// come back. Its holder then sees to what is left, as whenever it dies.
fn end_in_time(link: &Arc<Link>) {
    let link = link.clone();
    let end = move || {
        std::thread::sleep(END_WAIT);
        link.tell(&Report::Line(format!(
            "the keeper could not come to its end within {END_WAIT:?}"
        )));
        alone::leave()
    };
    // Without a thread it takes as long as it does.
    let _ = std::thread::Builder::new().name("ovs-end".into()).spawn(end);
}

/// Takes lines for the user.
fn teller(link: &Arc<Link>) -> apart::Report {
    let link = link.clone();
    Box::new(move |line| link.tell(&Report::Line(line.to_owned())))
}

/// A thread that panics ends the process: guests would wait for it for ever.
fn end_with_any_thread(link: &Arc<Link>) {
    let link = link.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let why = panic.payload_as_str().unwrap_or("it does not say why");
        link.tell(&Report::Line(format!("a mistake of the keeper, please report it: {at}: {why}")));
        std::process::abort();
    }));
}

/// The file of a keeper's counters, and the counters: both processes have them.
///
/// # Errors
/// No memory.
pub fn new_stats() -> Result<(OwnedFd, Stats), Errno> {
    let file = rustix::fs::memfd_create("overspill-stats", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, stats_bytes() as u64)?;
    let stats = open_stats(&file)?;
    Ok((file, stats))
}

fn stats_bytes() -> usize {
    stats_len() * size_of::<u64>()
}

fn open_stats(file: &OwnedFd) -> Result<Stats, Errno> {
    let mapping = Arc::new(Mapping::shared(file, stats_bytes())?);
    Ok(Stats::new(Table::within(&mapping, 0, stats_len())))
}

impl Process {
    fn serve(&mut self) {
        loop {
            let is_leaving = self.close_gone();
            let deadline = is_leaving.then(|| Instant::now() + LEAVING_INTERVAL);
            let followed = match self.requests.next(deadline) {
                Ok(request) => self.follow(request),
                Err(LinkError::Silent) if is_leaving => Ok(()),
                Err(error) => Err(error),
            };
            match followed {
                Ok(()) => {}
                Err(LinkError::Ended) => return,
                Err(error) => {
                    let line = format!("the keeper ends, and its guests: {error}");
                    return self.link.tell(&Report::Line(line));
                }
            }
        }
    }

    fn follow(&mut self, request: Request) -> Result<(), LinkError> {
        match request {
            Request::Swap(place) => self.places.push(*place),
            Request::Begin { memory, memory_max, stats, arrivals } => {
                let arrivals = arrivals.map(OwnedFd::from);
                let files = (&stats, arrivals.as_ref());
                let begun = self.begin((memory, memory_max), files);
                return self.answer_with_areas(begun.map(|()| Report::Done));
            }
            Request::AddSwap(place) => {
                let added = self.add_swap(*place);
                return self.answer_with_area(added);
            }
            Request::RemoveSwap(name) => {
                let removed = self.remove_swap(&name);
                return self.answer_with_area(removed);
            }
            Request::Needed(pages) => {
                self.needed.extend(pages);
                self.needed.truncate(NEEDED_MAX);
            }
            Request::Add { number, guest } => {
                if let Err(why) = self.keeper() {
                    return self.answer(&Report::Unable(why));
                }
                let added = self.add(number, *guest);
                return self.answer(&added.map_or_else(Report::Refused, |()| Report::Done));
            }
            Request::Ended { number } => {
                self.ended(number);
                return self.answer(&Report::Done);
            }
            Request::Bring { number, from } => {
                let brought = self.keeper().and_then(|keeper| keeper.bring(number, from));
                return self.answer(&brought.map_or_else(Report::Refused, Report::Brought));
            }
            Request::Fetched { number, fork, userfaultfd } => {
                if let Some(keeper) = &self.keeper {
                    keeper.fetched(number, fork, userfaultfd.map(OwnedFd::from));
                }
            }
            Request::Stay { number } => self.keeper.iter().for_each(|keeper| keeper.stay(number)),
            Request::LetGo { number } => {
                let gone = self.let_go(number);
                return self.answer(&gone.unwrap_or_else(Report::Refused));
            }
            Request::Status => {
                let state = Report::State(self.state());
                return self.answer_with_areas(Ok(state));
            }
            // If it cannot be, the first guest is refused.
            Request::Prepare => drop(self.keeper().map(drop)),
            Request::SetMemory(memory) => self.set_memory(memory),
            // Nobody has asked.
            Request::Frozen { .. } | Request::Stands { .. } => {}
        }
        Ok(())
    }

    fn answer(&self, report: &Report) -> Result<(), LinkError> {
        self.link.send(report, PATIENCE)
    }

    fn answer_with_areas(&self, report: Result<Report, String>) -> Result<(), LinkError> {
        let report = match report {
            Ok(report) => report,
            Err(why) => return self.answer(&Report::Refused(why)),
        };
        let engine = self.keeper.as_ref().map(|keeper| &**keeper.engine());
        for area in self.swaps.iter().flat_map(|swaps| swaps.states(engine)) {
            self.answer(&Report::Area(area))?;
        }
        self.answer(&report)
    }

    fn answer_with_area(&self, area: Result<AreaState, String>) -> Result<(), LinkError> {
        match area {
            Ok(area) => {
                self.answer(&Report::Area(area))?;
                self.answer(&Report::Done)
            }
            Err(why) => self.answer(&Report::Refused(why)),
        }
    }

    /// Takes over all that a guest will need.
    fn begin(
        &mut self,
        memory: (Bytes, Bytes),
        (stats, arrivals): (&OwnedFd, Option<&OwnedFd>),
    ) -> Result<(), String> {
        let no_room = |errno| format!("no room for counters: {errno}");
        let stats = open_stats(stats).map_err(no_room)?;
        let arrivals = arrivals.map(Arrivals::open).transpose().map_err(no_room)?;
        let places = std::mem::take(&mut self.places);
        let (swaps, engines) = Swaps::new(places).map_err(|e| e.to_string())?;
        self.swaps = Some(swaps);
        self.parts = Some(self.parts_of(memory, engines, (stats, arrivals)));
        Ok(())
    }

    fn parts_of(
        &self,
        (memory, memory_max): (Bytes, Bytes),
        swaps: Vec<Swap>,
        (stats, arrivals): (Stats, Option<Arrivals>),
    ) -> KeeperParts {
        let link = self.link.clone();
        let report = move |line: &str| link.tell(&Report::Line(line.to_owned()));
        KeeperParts {
            memory,
            memory_max,
            swaps,
            stats,
            arrivals,
            tuning: self.tuning,
            front: self.front.clone(),
            report: Box::new(report),
        }
    }

    fn add(&mut self, number: u64, mut guest: GuestParts) -> Result<(), String> {
        guest.needed = std::mem::take(&mut self.needed);
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| error.to_string());
        let tasks = Tasks { process: copy(&guest.process)?, agent: copy(&guest.agent)? };
        let keeper = self.keeper()?;
        keeper.add(number, guest).map_err(|errno| errno.to_string())?;
        self.guests.insert(number, tasks);
        Ok(())
    }

    /// The keeper, which starts when the first guest is near, as the holder does: a run that stays
    /// below its limit needs neither.
    fn keeper(&mut self) -> Result<&Keeper, String> {
        if let Some(parts) = self.parts.take() {
            // Who has it get ready early does not hear why it cannot.
            match self.started(parts) {
                Ok(keeper) => self.keeper = Some(keeper),
                Err(why) => self.lack = why,
            }
        }
        self.keeper.as_ref().ok_or_else(|| self.lack.clone())
    }

    fn started(&mut self, parts: KeeperParts) -> Result<Keeper, String> {
        start_holder().map_err(|error| error.to_string())?;
        let areas = self.swaps.as_ref().map_or(0, Swaps::with_rings) + SPARE_AREAS;
        let wanted = areas * Keeper::workers();
        reserve_rings(wanted.min(descriptors_max() / RINGS_PART), Worker::QUEUE_DEPTH);
        for lack in confine_keeper() {
            let line = format!("the keeper goes on, but is not confined by {lack}");
            self.link.tell(&Report::Line(line));
        }
        self.attend()?;
        let started = self.requests.hear().and_then(|()| Keeper::start(parts));
        started.map_err(|error| {
            let remedy = match Errno::from_io_error(&error) {
                Some(Errno::NOMEM) => "; raise `ulimit -v`, or give less swap",
                Some(Errno::AGAIN) => "; raise `ulimit -u`",
                _ => "",
            };
            format!("the keeper cannot begin: {error}{remedy}")
        })
    }

    /// Attends to who has places open.
    fn attend(&mut self) -> Result<(), String> {
        let link = self.link.clone();
        let swaps = self.swaps.as_mut();
        let attended = swaps.map_or(Ok(()), |swaps| swaps.attend(|| teller(&link)));
        attended.map_err(|error| error.to_string())
    }

    fn add_swap(&mut self, place: OpenPlace) -> Result<AreaState, String> {
        let engine = self.keeper()?.engine().clone();
        let swaps = self.swaps.as_mut().ok_or("the keeper has not begun")?;
        let report = teller(&self.link);
        swaps.add(place, (&engine, report)).map_err(|error| error.to_string())
    }

    fn remove_swap(&mut self, name: &str) -> Result<AreaState, String> {
        let keeper = self.keeper()?;
        let room = (&*keeper.engine().clone(), keeper.limit_pages());
        let swaps = self.swaps.as_mut().ok_or("the keeper has not begun")?;
        swaps.remove(name, room).map_err(|error| error.to_string())
    }

    /// Closes areas that have left; true if some are leaving.
    fn close_gone(&mut self) -> bool {
        let Some(swaps) = self.swaps.as_mut().filter(|swaps| swaps.are_leaving()) else {
            return false;
        };
        self.keeper.iter().for_each(Keeper::release_gone);
        swaps.close_gone();
        swaps.are_leaving()
    }

    fn set_memory(&mut self, memory: Bytes) {
        if let Some(parts) = &mut self.parts {
            parts.memory = memory.min(parts.memory_max);
        }
        if let Some(keeper) = &self.keeper {
            keeper.set_memory(memory);
        }
    }

    fn ended(&mut self, number: u64) {
        self.left.retain(|agent| !pidfd::has_ended(agent));
        self.left.extend(self.guests.remove(&number).map(|tasks| tasks.agent));
        if let Some(keeper) = &self.keeper {
            keeper.ended(number);
        }
    }

    fn let_go(&mut self, number: u64) -> Result<Report, String> {
        if !self.keeper()?.let_go(number)? {
            return Ok(Report::NotNow);
        }
        self.guests.remove(&number);
        Ok(Report::Done)
    }

    fn state(&self) -> KeeperState {
        let keeper = self.keeper.as_ref();
        KeeperState {
            engine: keeper.map(|keeper| keeper.engine().status()).unwrap_or_default(),
            guests: self.guests.len(),
            out_of_memory: keeper.is_some_and(Keeper::has_run_out),
        }
    }

    /// Ends the guests that are left, serving them until they have ended.
    fn end(&mut self) {
        // Only its threads may never come back.
        if self.keeper.is_some() {
            end_in_time(&self.link);
        }
        self.front.close();
        let guests = std::mem::take(&mut self.guests);
        guests.values().for_each(|tasks| kill(&tasks.process));
        for (number, tasks) in guests {
            pidfd::wait_for_end(&tasks.process);
            kill(&tasks.agent);
            self.keeper.iter().for_each(|keeper| keeper.wait_for_end_of_memory(number));
            self.ended(number);
        }
        // One may wait for a page of its guest, which nobody brings any more.
        self.left.iter().for_each(kill);
        while let Some(keeper) = self.keeper.as_ref().filter(|keeper| !keeper.is_deserted()) {
            keeper.end_children();
            std::thread::sleep(END_INTERVAL);
        }
        self.keeper = None;
        self.swaps.iter().for_each(Swaps::empty_files);
    }
}

/// How many this process may have open.
fn descriptors_max() -> usize {
    let max = getrlimit(Resource::Nofile).current;
    max.and_then(|max| max.try_into().ok()).unwrap_or(usize::MAX)
}
