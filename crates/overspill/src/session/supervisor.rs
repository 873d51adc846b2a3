//! The supervisor's side of a run.
//!
//! Owns: the options of a run, its devices, which stay open as long as it lasts, and what a process
//! of it is given.
//! Not here: paging, in which the supervisor takes no part but for devices that it serves.

use super::areas::ADDED_MAX;
use super::arrivals::Arrivals;
use super::channel::{Address, Secret};
use super::limit::{RunLimit, usual_most};
use super::offer::{Offer, Offers, Opened};
use super::overview::Overview;
use super::server::{Descriptors, Server, Terms, Wanted};
use super::stalls::{Stalls, programs_of};
use super::swapon::{Opening, RunSwaps};
use super::touches::Touches;
use super::{Session, Settings, SharedDevice, audit};
use crate::builder::{check_limit, priority, random_seed, swaps_or_default};
use crate::doctor::memory_available;
use crate::error::Error;
use crate::ways::Way;
use overspill_area::MemberNo;
use overspill_base::Bytes;
use overspill_base::history::{Change, History};
use overspill_base::sync::Arc;
use overspill_device::SwapSpec;
use overspill_device::file::OpenOptions;
use overspill_engine::PageTable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The options of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Memory that the run may use.
    pub memory: Bytes,
    /// The most that its limit may be raised to; four times as much, as far as the machine has it,
    /// if none.
    pub memory_max: Option<Bytes>,
    /// True if each process may use as much.
    pub memory_each: bool,
    /// How touches are noticed.
    pub way: Way,
    /// False if programs started by the program are left alone.
    pub children: bool,
    /// Number of changes of page state to keep; none if 0.
    pub history_entries: usize,
    /// True if faults bring in the missing page alone, for [`Supervisor::touches`].
    pub page_by_page: bool,
}

/// The supervisor's side of a run: the session and the devices it keeps open for all processes.
#[derive(Debug)]
pub struct Supervisor {
    session: Arc<Session>,
    offers: Arc<Offers>,
    stalls: Arc<Stalls>,
    swaps: Arc<RunSwaps>,
    server: Server,
}

/// Time in which the pagers of a run usually end after its program.
const PAGERS_END: Duration = Duration::from_secs(1);

impl Drop for Supervisor {
    /// Empties files that were empty, unless a process goes on to swap to them.
    fn drop(&mut self) {
        let deadline = Instant::now() + PAGERS_END;
        while self.swaps.has_files_to_empty() && Instant::now() < deadline {
            if self.session.is_deserted() {
                self.swaps.empty_files();
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Supervisor {
    /// Opens the devices, creates the shared file, and serves it from now on. `server` is the
    /// program of processes that open what no process of the run may have open. `report` takes
    /// lines for the user, from the processes of the run and of what happens to servers.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(
        run: RunOptions,
        swaps: Vec<SwapSpec>,
        options: &OpenOptions,
        server: PathBuf,
        report: fn(&str),
    ) -> Result<Self, Error> {
        check_limit(run.memory)?;
        let specs = swaps_or_default(swaps)?;
        let opening = Opening { server, options: *options, report };
        let open = |spec| opening.open(spec);
        let opened = specs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shared = specs.iter().zip(&opened).enumerate().map(|(n, (spec, opened))| {
            SharedDevice { attachment: opened.attachment().clone(), priority: priority(spec, n) }
        });
        let most = match (run.memory_each, run.memory_max) {
            (true, _) => run.memory,
            (false, Some(most)) => most.max(run.memory),
            (false, None) => usual_most(run.memory, memory_available()),
        };
        check_limit(most)?;
        let settings = Settings {
            memory_bytes: run.memory.0,
            memory_bytes_max: most.0,
            memory_each: run.memory_each,
            way: run.way,
            children: run.children,
            history_entries: run.history_entries,
            page_by_page: run.page_by_page,
            checksum_seed: random_seed()?,
            fork_secret: Secret::random()?.0,
            devices: shared.collect(),
        };
        let session = Arc::new(Session::create(settings)?);
        if !run.memory_each {
            audit::start(session.clone()).map_err(Error::system("start the auditor"))?;
        }
        let watched = session.clone();
        let stalls = Stalls::start(run.way == Way::Touches, move || programs_of(&watched));
        let stalls = stalls.map_err(Error::system("start the thread that looks at stalls"))?;
        let were_empty = opened.iter().map(Opened::kept_if_empty).collect::<Result<Vec<_>, _>>()?;
        let offers = opened.into_iter().map(|opened| Offer::new(opened, &session, report));
        let offers = Arc::new(Offers::new(offers.collect::<Result<_, _>>()?));
        let server = Server::start(Terms {
            secret: Secret::random()?,
            fork_secret: Secret(session.settings.fork_secret),
            descriptors: descriptors(&session, &offers).map_err(Error::session("share"))?,
            report,
        })?;
        let swaps = RunSwaps::new(opening, session.clone(), offers.clone(), specs, were_empty);
        Ok(Self { session, offers, stalls, swaps: Arc::new(swaps), server })
    }

    /// Returns what can be seen of the run from now on.
    pub fn overview(&self) -> Overview {
        Overview::new(self.session.clone(), self.offers.clone(), self.stalls.clone())
    }

    /// Returns its limit, which can be changed.
    pub fn limit(&self) -> RunLimit {
        RunLimit::new(self.session.clone())
    }

    /// Returns its swap, to which more can be added.
    pub fn swaps(&self) -> Arc<RunSwaps> {
        self.swaps.clone()
    }

    /// The value of [`SESSION_VARIABLE`] for processes of the run.
    pub fn address(&self) -> &Address {
        self.server.address()
    }

    /// Waits until the pager of `process`, which has ended, has ended too: usually a moment, and at
    /// most ten seconds, which a busy machine may need.
    pub fn wait_for_pager_of(&self, process: i32) {
        self.server.wait_gone(process, Duration::from_secs(10));
    }

    /// Waits until no process needs a device that is served apart, at most for `patience`;
    /// false if one still does.
    pub fn wait_for_served(&self, patience: Duration) -> bool {
        self.offers.open().all(|(_, offer)| offer.wait_unused(patience))
    }

    /// The last changes of page state in all processes of the run, oldest first: seconds of the
    /// monotonic clock, the process's number in the run, the page's address, its old and its new
    /// state.
    pub fn history(&self) -> Vec<String> {
        let describe = |Change { time_ns, member, address, before, after }| {
            let (before, after) = (PageTable::describe(before), PageTable::describe(after));
            format!("{:.6} {member} {address:#x} {before} -> {after}", time_ns as f64 / 1e9)
        };
        let history = self.session.history(MemberNo(0));
        history.iter().flat_map(History::changes).map(describe).collect()
    }

    /// Returns a reader of the pages that come from now on, if a history is kept.
    pub fn arrivals(&self) -> Option<Arrivals> {
        Arrivals::of(self.session.clone())
    }

    /// Returns a reader of the touches that faulted from now on, if a history is kept.
    pub fn touches(&self) -> Option<Touches> {
        self.session.history(MemberNo(0)).map(Touches::of)
    }
}

/// Makes the descriptors for one process of the run after the other, in the order in which
/// [`Session::open`] takes them.
fn descriptors(session: &Arc<Session>, offers: &Arc<Offers>) -> Result<Descriptors, Errno> {
    let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // If this cannot be opened, every process needs the right to userfaultfd itself.
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let userfault = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()).ok();
    let (session, offers) = (session.clone(), offers.clone());
    let nothing = memfd_create("overspill-nothing", MemfdFlags::CLOEXEC)?;
    let count = session.areas() + ADDED_MAX;
    Ok(Box::new(move |wanted| {
        let copy = |fd| fcntl_dupfd_cloexec(fd, 0);
        // Those to come have their numbers already, and those that are gone have them still.
        let to_come = std::iter::repeat(None);
        let devices = offers.all().into_iter().chain(to_come).take(count);
        let devices = devices.map(|offer| match offer {
            Some(offer) => offer.descriptor(),
            None => copy(nothing.as_fd()),
        });
        if wanted == Wanted::Devices {
            return devices.collect();
        }
        let first = [&session.file, &session.keys.file].map(OwnedFd::as_fd);
        let last = [Some(&proc), userfault.as_ref()].into_iter().flatten().map(AsFd::as_fd);
        first.into_iter().map(copy).chain(devices).chain(last.map(copy)).collect()
    }))
}
