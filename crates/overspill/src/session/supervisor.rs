//! The supervisor's side of a run.
//!
//! Owns: the options of a run, its devices, which stay open as long as it lasts, and what a process
//! of it is given.
//! Not here: paging, in which the supervisor takes no part but for devices that it serves.

use super::channel::{Address, Secret};
use super::limit::{RunLimit, usual_most};
use super::offer::Offer;
use super::overview::Overview;
use super::server::{Descriptors, Server, Terms};
use super::stalls::Stalls;
use super::touches::Touches;
use super::{HeldKeys, Session, Settings, SharedDevice, audit};
use crate::builder::{check_limit, priority, random_seed, swaps_or_default};
use crate::doctor::memory_available;
use crate::error::Error;
use crate::ways::Way;
use overspill_area::MemberNo;
use overspill_base::Bytes;
use overspill_base::history::{Change, History};
use overspill_base::sync::Arc;
use overspill_device::file::OpenOptions;
use overspill_device::{Device, DeviceError, SwapSpec};
use overspill_engine::PageTable;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ftruncate};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
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

/// Opens a place, of this machine or another one; what happens to it later is told by lines.
pub type Opener = fn(&SwapSpec, &OpenOptions, fn(&str)) -> Result<Device, DeviceError>;

/// The supervisor's side of a run: the session and the devices it keeps open for all processes.
#[derive(Debug)]
pub struct Supervisor {
    session: Arc<Session>,
    offers: Arc<[Offer]>,
    stalls: Arc<Stalls>,
    server: Server,
    /// Files of the user's that were empty.
    were_empty: Vec<OwnedFd>,
}

/// Time in which the pagers of a run usually end after its program.
const PAGERS_END: Duration = Duration::from_secs(1);

impl Drop for Supervisor {
    /// Empties files that were empty, unless a process goes on to swap to them.
    fn drop(&mut self) {
        let deadline = Instant::now() + PAGERS_END;
        while !self.were_empty.is_empty() && Instant::now() < deadline {
            if self.session.is_deserted() {
                let left = std::mem::take(&mut self.were_empty);
                left.iter().for_each(|file| {
                    let _ = ftruncate(file, 0);
                });
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Supervisor {
    /// Opens the devices by `open`, creates the shared file, and serves it from now on. `report`
    /// takes lines for the user, from the processes of the run and of what happens to connections.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(
        run: RunOptions,
        swaps: Vec<SwapSpec>,
        options: &OpenOptions,
        open: Opener,
        report: fn(&str),
    ) -> Result<Self, Error> {
        check_limit(run.memory)?;
        let specs = swaps_or_default(swaps)?;
        let open = |spec| open(spec, options, report).map_err(Error::from);
        let devices = specs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shared = specs.iter().zip(&devices).enumerate().map(|(n, (spec, device))| {
            SharedDevice { attachment: device.attachment().clone(), priority: priority(spec, n) }
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
        let keys = if settings.is_encrypted() { Some(HeldKeys::draw()?) } else { None };
        let session = Arc::new(Session::create(settings, keys)?);
        if !run.memory_each {
            audit::start(session.clone()).map_err(Error::system("start the auditor"))?;
        }
        let stalls = Stalls::start(session.clone());
        let stalls = stalls.map_err(Error::system("start the thread that looks at stalls"))?;
        let were_empty = devices.iter().filter(|device| device.attachment().was_empty);
        let duplicate = |device: &Device| device.descriptor().map(|fd| fcntl_dupfd_cloexec(fd, 0));
        let were_empty = were_empty.filter_map(duplicate).collect::<Result<_, _>>();
        let were_empty = were_empty.map_err(Error::session("share"))?;
        let offers = devices.into_iter().map(|device| Offer::new(device, &session));
        let offers: Arc<[Offer]> = offers.collect::<Result<_, _>>()?;
        let server = Server::start(Terms {
            secret: Secret::random()?,
            fork_secret: Secret(session.settings.fork_secret),
            descriptors: descriptors(&session, &offers).map_err(Error::session("share"))?,
            report,
        })?;
        Ok(Self { session, offers, stalls, server, were_empty })
    }

    /// Returns what can be seen of the run from now on.
    pub fn overview(&self) -> Overview {
        Overview::new(self.session.clone(), self.offers.clone(), self.stalls.clone())
    }

    /// Returns its limit, which can be changed.
    pub fn limit(&self) -> RunLimit {
        RunLimit::new(self.session.clone())
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

    /// Waits until no process needs a device that only this one has open, at most for `patience`;
    /// false if one still does.
    pub fn wait_for_served(&self, patience: Duration) -> bool {
        self.offers.iter().all(|offer| offer.wait_unused(patience))
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

    /// Returns a reader of the touches that faulted from now on, if a history is kept.
    pub fn touches(&self) -> Option<Touches> {
        self.session.history(MemberNo(0)).map(Touches::of)
    }
}

/// Makes the descriptors for one process of the run after the other, in the order in which
/// [`Session::open`] takes them.
fn descriptors(session: &Arc<Session>, offers: &Arc<[Offer]>) -> Result<Descriptors, Errno> {
    let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // If this cannot be opened, every process needs the right to userfaultfd itself.
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let userfault = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()).ok();
    let (session, offers) = (session.clone(), offers.clone());
    Ok(Box::new(move || {
        let keys = session.keys.iter().map(|keys| keys.file.as_fd());
        let first = [session.file.as_fd()].into_iter().chain(keys);
        let last = [Some(&proc), userfault.as_ref()].into_iter().flatten().map(AsFd::as_fd);
        let copy = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 0);
        let devices = offers.iter().map(Offer::descriptor);
        first.map(copy).chain(devices).chain(last.map(copy)).collect()
    }))
}
