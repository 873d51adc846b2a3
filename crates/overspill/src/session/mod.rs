//! What the processes of one `overspill run` share.
//!
//! Owns: a memory file with the settings, the slot maps of all swap areas, the members' hold bits
//! and the counters. The supervisor creates it and hands it out with the devices' descriptors
//! ([`channel`], [`server`]); every process of the run joins it as a *member* ([`members`]).
//! Not here: paging.
//! Rejected: a supervisor that serves slots over a socket. Every refill would be a round trip, and
//! if it died, the run would end.

mod audit;
mod bell;
mod budget;
mod channel;
mod layout;
mod members;
mod pressure;
mod server;

use crate::builder::{check_limit, priority, random_seed, swaps_or_default};
use crate::error::Error;
use crate::keys::new_keys;
use crate::pager::{Pager, PagerParts, PagerSwap};
use crate::summary::Summary;
use crate::ways::Way;
use channel::Secret;
use layout::{Layout, SETTINGS_BYTES};
use overspill_area::{AreaTables, MEMBERS_MAX, MemberNo};
use overspill_base::history::{Change, History};
use overspill_base::shared::{Mapping, Shareable, Table};
use overspill_base::stats::{Stats, stats_len};
use overspill_base::sync::Ordering::{AcqRel, Acquire};
use overspill_base::sync::{Arc, AtomicU32};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_device::compressed::Usage;
use overspill_device::file::{Attachment, OpenOptions};
use overspill_device::seal::{Algorithm, Keys, Sealer, Seals};
use overspill_device::{Device, DeviceInfo, SwapSpec};
use overspill_engine::PageTable;
use overspill_space::HandlerOptions;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use server::{Server, Terms};
use std::time::Duration;

pub use channel::{Address, Channel};
pub use members::Place;

/// Environment variable with the [`Address`] at which processes of a run reach their supervisor.
pub const SESSION_VARIABLE: &str = "OVERSPILL_SESSION";

/// Address space that each process reserves, if the system grants it.
pub const RESERVE: Bytes = Bytes(1 << 40);

/// Bits of the verdict cell.
pub mod verdict {
    /// A process of the run joined.
    pub const JOINED: u32 = 1;
    /// A process ran out of memory and was killed.
    pub const OUT_OF_MEMORY: u32 = 2;
}

/// The settings that every process of a run needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Memory that the run may use, or each process of it.
    pub memory_bytes: u64,
    /// True if every process has the limit for itself.
    memory_each: bool,
    /// How touches are noticed.
    pub way: Way,
    /// False if programs started by the program are left alone.
    pub children: bool,
    /// Number of changes of page state that are kept; none if 0.
    history_entries: usize,
    checksum_seed: u64,
    fork_secret: [u8; channel::SECRET_BYTES],
    devices: Vec<SharedDevice>,
}

impl Settings {
    fn frames(&self) -> usize {
        self.memory_bytes as usize / PAGE_SIZE
    }

    fn is_encrypted(&self) -> bool {
        self.devices.iter().any(|device| device.attachment.encrypted)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SharedDevice {
    attachment: Attachment,
    priority: i16,
}

/// The shared file, mapped.
#[derive(Debug)]
pub struct Session {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    layout: Layout,
    settings: Settings,
    keys: Option<HeldKeys>,
}

/// The keys of encrypted areas, and their file.
#[derive(Debug)]
struct HeldKeys {
    file: OwnedFd,
    keys: Keys,
}

impl HeldKeys {
    fn draw() -> Result<Self, Error> {
        let (file, keys) = new_keys()?;
        Ok(Self { file, keys })
    }

    fn open(file: OwnedFd) -> Result<Self, Error> {
        let keys = Keys::open(&file).map_err(Error::session("read the keys of"))?;
        Ok(Self { file, keys })
    }
}

/// The options of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Memory that the run may use.
    pub memory: Bytes,
    /// True if each process may use as much.
    pub memory_each: bool,
    /// How touches are noticed.
    pub way: Way,
    /// False if programs started by the program are left alone.
    pub children: bool,
    /// Number of changes of page state to keep; none if 0.
    pub history_entries: usize,
}

/// The supervisor's side of a run: the session and the devices it keeps open for all processes.
#[derive(Debug)]
pub struct Supervisor {
    session: Arc<Session>,
    devices: Vec<Device>,
    server: Server,
}

impl Supervisor {
    /// Opens the devices, creates the shared file, and serves it from now on. `report` takes lines
    /// for the user from the processes of the run.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(
        run: RunOptions,
        swaps: Vec<SwapSpec>,
        options: &OpenOptions,
        report: fn(&str),
    ) -> Result<Self, Error> {
        check_limit(run.memory)?;
        let specs = swaps_or_default(swaps)?;
        let open = |spec: &SwapSpec| Device::open(spec, options).map_err(Error::from);
        let devices = specs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shared = specs.iter().zip(&devices).enumerate().map(|(n, (spec, device))| {
            SharedDevice { attachment: device.attachment().clone(), priority: priority(spec, n) }
        });
        let settings = Settings {
            memory_bytes: run.memory.0,
            memory_each: run.memory_each,
            way: run.way,
            children: run.children,
            history_entries: run.history_entries,
            checksum_seed: random_seed()?,
            fork_secret: Secret::random()?.0,
            devices: shared.collect(),
        };
        let keys = if settings.is_encrypted() { Some(HeldKeys::draw()?) } else { None };
        let session = Arc::new(Session::create(settings, keys)?);
        if !run.memory_each {
            audit::start(session.clone()).map_err(Error::system("start the auditor"))?;
        }
        let server = Server::start(Terms {
            secret: Secret::random()?,
            fork_secret: Secret(session.settings.fork_secret),
            descriptors: descriptors(&session, &devices).map_err(Error::session("share"))?,
            report,
        })?;
        Ok(Self { session, devices, server })
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

    /// The devices' names and notes, and the current usage of compressed memory.
    pub fn devices(&self) -> impl Iterator<Item = (&DeviceInfo, Option<Usage>)> {
        self.devices.iter().map(|device| (device.info(), device.usage()))
    }

    /// Everything counted by all processes of the run.
    pub fn summary(&self) -> Summary {
        let used = self.session.members_used();
        let stats: Vec<Stats> = (0..used).map(|m| self.session.stats(MemberNo(m))).collect();
        Summary::of(Bytes(self.session.settings.memory_bytes), &stats)
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

    /// The [`verdict`] bits.
    pub fn verdict(&self) -> u32 {
        self.session.verdict().load(Acquire)
    }
}

/// The descriptors handed to a process of the run, in the order in which [`Session::open`] takes
/// them.
fn descriptors(session: &Session, devices: &[Device]) -> Result<Vec<OwnedFd>, rustix::io::Errno> {
    let devices = devices.iter().map(AsFd::as_fd);
    let keys = session.keys.iter().map(|keys| keys.file.as_fd());
    let mut all = [session.file.as_fd()]
        .into_iter()
        .chain(keys)
        .chain(devices)
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0))
        .collect::<Result<Vec<_>, _>>()?;
    all.push(rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    // If this cannot be opened, every process needs the right to userfaultfd itself.
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    all.extend(rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()));
    Ok(all)
}

/// A session and the other descriptors handed to a process of the run.
#[derive(Debug)]
pub struct Opened {
    /// The shared file.
    pub session: Session,
    /// Descriptors of the devices.
    pub devices: Vec<OwnedFd>,
    /// `/proc`.
    pub proc: Option<OwnedFd>,
    /// `/dev/userfaultfd`, if the supervisor could open it.
    pub userfault: Option<OwnedFd>,
}

impl Session {
    fn create(settings: Settings, keys: Option<HeldKeys>) -> Result<Self, Error> {
        let file = rustix::fs::memfd_create("overspill-session", MemfdFlags::CLOEXEC)
            .map_err(Error::session("create"))?;
        let layout = Layout::new(&settings);
        rustix::fs::ftruncate(&file, layout.len_bytes as u64).map_err(Error::session("size"))?;
        let json = serde_json::to_vec(&settings)
            .map_err(|e| Error::Session { action: "write", reason: e.to_string() })?;
        if json.len() + 8 > SETTINGS_BYTES {
            let reason = format!("the settings take {} bytes, too many bad pages", json.len());
            return Err(Error::Session { action: "write", reason });
        }
        let len = (json.len() as u64).to_ne_bytes();
        write_all(&file, &[&len[..], &json].concat())?;
        let session = Self::map(file, layout, settings, keys)?;
        session.format_budget();
        for n in 0..session.settings.devices.len() {
            session.tables(n).format(&session.reserved_slots(n));
        }
        Ok(session)
    }

    /// Opens the session whose supervisor handed out `descriptors`.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn open(descriptors: Vec<OwnedFd>) -> Result<Opened, Error> {
        let mut descriptors = descriptors.into_iter();
        let nothing = || Error::Session { action: "receive", reason: "no descriptor came".into() };
        let file = descriptors.next().ok_or_else(nothing)?;
        let mut len = [0; 8];
        read_exact(&file, &mut len, 0)?;
        let len = u64::from_ne_bytes(len) as usize;
        let mut json = vec![0; len.min(SETTINGS_BYTES)];
        read_exact(&file, &mut json, 8)?;
        let settings: Settings = serde_json::from_slice(&json)
            .map_err(|e| Error::Session { action: "understand", reason: e.to_string() })?;
        let layout = Layout::new(&settings);
        let keys = match settings.is_encrypted() {
            true => Some(HeldKeys::open(descriptors.next().ok_or_else(nothing)?)?),
            false => None,
        };
        let session = Self::map(file, layout, settings, keys)?;
        let devices = descriptors.by_ref().take(session.settings.devices.len()).collect();
        let (proc, userfault) = (descriptors.next(), descriptors.next());
        Ok(Opened { session, devices, proc, userfault })
    }

    fn map(
        file: OwnedFd,
        layout: Layout,
        settings: Settings,
        keys: Option<HeldKeys>,
    ) -> Result<Self, Error> {
        let len = Bytes(layout.len_bytes as u64);
        let too_large = |errno| Error::Session {
            action: "map",
            reason: format!(
                "{len} of address space ({errno}): raise `ulimit -v`, or use less swap"
            ),
        };
        let mapping = Mapping::shared(&file, layout.len_bytes).map_err(too_large)?;
        Ok(Self { file, mapping: Arc::new(mapping), layout, settings, keys })
    }

    /// The settings that every process of the run needs.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn table<T: Shareable>(&self, offset: usize, len: usize) -> Table<T> {
        Table::within(&self.mapping, offset, len)
    }

    fn verdict(&self) -> AtomicCell {
        AtomicCell(self.table(self.layout.verdict, 1))
    }

    /// Makes a channel for a child about to be forked, in the descriptor table of the parent.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn channel_for_child(&self, address: &Address) -> Result<Channel, Error> {
        Channel::for_child(address, Secret(self.settings.fork_secret))
    }

    /// Sets bits of the [`verdict`].
    pub fn add_verdict(&self, bits: u32) {
        self.verdict().fetch_or(bits, AcqRel);
    }

    /// True once a process of the run has joined.
    pub fn has_joined(&self) -> bool {
        self.verdict().load(Acquire) & verdict::JOINED != 0
    }

    fn stats(&self, member: MemberNo) -> Stats {
        let cells = stats_len();
        let offset = self.layout.stats + member.0 as usize * cells * 8;
        Stats::new(self.table(offset, cells))
    }

    /// The ring of changes, for writes by `member`; none unless requested.
    fn history(&self, member: MemberNo) -> Option<History> {
        let entries = self.settings.history_entries;
        let words = || self.table(self.layout.history, History::words(entries));
        (entries > 0).then(|| History::new(words(), member.0))
    }

    fn tables(&self, device: usize) -> AreaTables {
        let area = &self.layout.areas[device];
        let holds = |member: usize| {
            self.table(area.holds + member * area.hold_words() * 8, area.hold_words())
        };
        AreaTables {
            slots_max: area.slots_max,
            slots: self.table(area.slots, area.slot_words()),
            owners: self.table(area.owners, area.clusters()),
            returned: self.table(area.returned, area.clusters()),
            counters: self.table(area.counters, AreaTables::COUNTERS),
            holds: (0..MEMBERS_MAX).map(holds).collect(),
        }
    }

    /// What encrypts the pages of a device, if they are.
    fn sealer(&self, device: usize) -> Option<Sealer> {
        let area = &self.layout.areas[device];
        let held = self.keys.as_ref().filter(|_| area.seal_words > 0)?;
        let seals = Seals::new(self.table(area.seals, area.seal_words));
        Some(Sealer::new(Algorithm::of_this_machine(), held.keys.clone(), device, seals))
    }

    fn reserved_slots(&self, device: usize) -> Vec<overspill_base::Slot> {
        let reserved = &self.settings.devices[device].attachment.reserved;
        reserved.iter().map(|&slot| overspill_base::Slot(slot)).collect()
    }

    /// Starts a pager in this process, for the threads of `process`, as a new member.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join(
        self: &Arc<Self>,
        devices: Vec<OwnedFd>,
        process: rustix::process::Pid,
        handlers: HandlerOptions,
        report: fn(&str),
    ) -> Result<(Pager, MemberNo), Error> {
        let place = self.reserve_member().ok_or_else(|| Error::Session {
            action: "join",
            reason: format!("{MEMBERS_MAX} processes of this run are alive already"),
        })?;
        self.confirm_member(place, process)?;
        let member = place.member;
        let mut swaps = Vec::with_capacity(devices.len());
        let shared = self.settings.devices.iter().zip(devices);
        for (n, (shared, fd)) in shared.enumerate() {
            let device = Device::attach(fd, shared.attachment.clone())?.shared(self.sealer(n));
            swaps.push(PagerSwap { device, tables: self.tables(n), priority: shared.priority });
        }
        let session = self.clone();
        let pager = Pager::start(PagerParts {
            memory: Bytes(self.settings.memory_bytes),
            budget: (!self.settings.memory_each).then(|| self.frames_of(member)),
            page_bytes: PAGE_SIZE,
            reserve: RESERVE,
            reach: self.settings.way.reach(),
            swaps,
            member,
            checksum_seed: self.settings.checksum_seed,
            stats: self.stats(member),
            history: self.history(member),
            salvage: Box::new(move |areas| session.salvage(areas)),
            report: Box::new(report),
            handlers,
        })?;
        let start = pager.memory().space().address_of(overspill_base::PageNo(0));
        self.book().set_range(member, start);
        self.salvage(pager.engine().areas());
        self.add_verdict(verdict::JOINED);
        Ok((pager, member))
    }
}

/// A table with one entry.
struct AtomicCell(Table<AtomicU32>);

impl std::ops::Deref for AtomicCell {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.0[0]
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Error> {
    let mut offset = 0;
    while !bytes.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))
            .map_err(Error::session("write"))?;
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}

fn read_exact(file: &OwnedFd, mut bytes: &mut [u8], mut offset: u64) -> Result<(), Error> {
    while !bytes.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *bytes, offset))
            .map_err(Error::session("read"))?;
        if n == 0 {
            return Err(Error::Session { action: "read", reason: "it is too short".into() });
        }
        bytes = &mut bytes[n..];
        offset += n as u64;
    }
    Ok(())
}
