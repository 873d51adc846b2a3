//! What the processes of one `overspill run` share.
//!
//! Owns: a memory file with the settings, the slot maps of all swap areas, the members' hold bits
//! and the counters. The supervisor creates it and hands it out with the devices' descriptors
//! ([`channel`], [`server`]); every process of the run joins it as a *member* ([`members`]).
//! Not here: paging.
//! Rejected: a supervisor that serves slots over a socket. Every refill would be a round trip, and
//! if it died, the run would end.

mod allowed;
mod answers;
mod areas;
mod arrivals;
mod audit;
mod bell;
mod budget;
mod channel;
mod layout;
mod leaving;
mod limit;
mod members;
mod offer;
mod overview;
mod peer;
mod pressure;
mod server;
mod stalls;
mod supervisor;
mod swapon;
mod touches;

use crate::error::Error;
use crate::keys::new_keys;
use crate::pager::{Pager, PagerParts};
use crate::ways::Way;
use areas::{ADDED_MAX, RunAreas};
use channel::Secret;
use layout::{Layout, SETTINGS_BYTES};
use overspill_area::{MEMBERS_MAX, MemberNo};
use overspill_base::history::History;
use overspill_base::shared::{Mapping, Shareable, Table};
use overspill_base::stats::{Stats, stats_len};
use overspill_base::sync::Ordering::{AcqRel, Acquire, Release};
use overspill_base::sync::{Arc, AtomicU32};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_device::file::Attachment;
use overspill_device::seal::Keys;
use overspill_engine::Tuning;
use overspill_space::HandlerOptions;
use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use crate::builder::swaps_or_default;
pub use allowed::check_added;
pub use answers::{Answers, Run};
pub use arrivals::{Arrivals, Arrived};
pub use channel::{Address, Channel};
pub use limit::{RunLimit, usual_most};
pub use members::Place;
pub use overview::{DeviceState, Overview, ProcessState};
pub use stalls::{StallTime, Stalling, Stalls};
pub use supervisor::{RunOptions, Supervisor};
pub use swapon::RunSwaps;
pub use touches::Touches;

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
    /// Memory that the run may use at first, or each process of it.
    pub memory_bytes: u64,
    /// The most that its limit may become.
    memory_bytes_max: u64,
    /// True if every process has the limit for itself.
    memory_each: bool,
    /// How touches are noticed.
    pub way: Way,
    /// False if programs started by the program are left alone.
    pub children: bool,
    /// Number of changes of page state that are kept; none if 0.
    history_entries: usize,
    /// True if faults bring in the missing page alone, so that the history has every first touch.
    page_by_page: bool,
    checksum_seed: u64,
    fork_secret: [u8; channel::SECRET_BYTES],
    devices: Vec<SharedDevice>,
}

impl Settings {
    fn frames(&self) -> usize {
        self.memory_bytes as usize / PAGE_SIZE
    }

    fn frames_max(&self) -> usize {
        self.memory_bytes_max as usize / PAGE_SIZE
    }

    fn tuning(&self) -> Tuning {
        let tuning = Tuning::default();
        if self.page_by_page { tuning.page_by_page() } else { tuning }
    }

    #[cfg(test)]
    fn of_a_test() -> Self {
        Self {
            memory_bytes: 1 << 24,
            memory_bytes_max: 1 << 24,
            memory_each: false,
            way: Way::Faults,
            children: true,
            history_entries: 0,
            page_by_page: false,
            checksum_seed: 0,
            fork_secret: [0; channel::SECRET_BYTES],
            devices: Vec::new(),
        }
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
    keys: HeldKeys,
    run_areas: RunAreas,
    /// The member that this process is, once it has joined; unused in the supervisor.
    own: AtomicU32,
    /// Which files the session's and that of the keys are.
    identity: [FileId; 2],
}

/// Device and inode.
type FileId = (u64, u64);

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
    fn create(settings: Settings) -> Result<Self, Error> {
        let file = rustix::fs::memfd_create("overspill-session", MemfdFlags::CLOEXEC)
            .map_err(Error::session("create"))?;
        let layout = Layout::new(&settings);
        rustix::fs::ftruncate(&file, layout.len_bytes as u64).map_err(Error::session("size"))?;
        write_json(&file, 0, &settings)?;
        let session = Self::map(file, layout, settings, HeldKeys::draw()?)?;
        session.format_budget();
        for number in 0..session.areas() {
            session.area(number)?.format();
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
        let settings: Settings = read_json(&file, 0)?;
        let layout = Layout::new(&settings);
        let keys = HeldKeys::open(descriptors.next().ok_or_else(nothing)?)?;
        let session = Self::map(file, layout, settings, keys)?;
        let devices = descriptors.by_ref().take(session.settings.devices.len()).collect();
        session.run_areas.reserve(descriptors.by_ref().take(ADDED_MAX).collect());
        let (proc, userfault) = (descriptors.next(), descriptors.next());
        Ok(Opened { session, devices, proc, userfault })
    }

    fn map(
        file: OwnedFd,
        layout: Layout,
        settings: Settings,
        keys: HeldKeys,
    ) -> Result<Self, Error> {
        let len = Bytes(layout.len_bytes as u64);
        let too_large = |errno| Error::Session {
            action: "map",
            reason: format!(
                "{len} of address space ({errno}): raise `ulimit -v`, or use less swap"
            ),
        };
        let mapping = Mapping::shared(&file, layout.len_bytes).map_err(too_large)?;
        let (mapping, own) = (Arc::new(mapping), AtomicU32::new(0));
        let run_areas = RunAreas::new(&mapping, &layout.areas, &settings.devices);
        let identity = [id_of(&file)?, id_of(&keys.file)?];
        Ok(Self { file, mapping, layout, settings, keys, run_areas, own, identity })
    }

    /// Checks what came again for a forked child: it must be of this session.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn recognise(&self, descriptors: &[OwnedFd]) -> Result<(), Error> {
        let files = descriptors.iter().take(self.identity.len()).map(id_of);
        if files.collect::<Result<Vec<_>, _>>()? == self.identity {
            return Ok(());
        }
        let reason = "they are not this run's".to_owned();
        Err(Error::Session { action: "take descriptors of", reason })
    }

    /// Says which member this process is: after a fork another than its parent.
    pub fn become_member(&self, member: MemberNo) {
        self.own.store(member.0, Release);
        self.note_taken(member, self.areas_taken() as usize);
        self.note_left(member, self.run_areas.left.load(Acquire));
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
        self.become_member(member);
        self.note_taking(member, devices.len());
        let first = devices.into_iter().enumerate();
        let swaps = first.map(|(number, descriptor)| self.attach(number, descriptor));
        let swaps = swaps.collect::<Result<Vec<_>, _>>()?;
        self.note_taken(member, swaps.len());
        let session = self.clone();
        let pager = Pager::start(PagerParts {
            memory: Bytes(self.settings.memory_bytes_max),
            budget: (!self.settings.memory_each).then(|| self.frames_of(member)),
            page_bytes: PAGE_SIZE,
            reserve: RESERVE,
            reach: self.settings.way.reach(),
            swaps,
            member,
            checksum_seed: self.settings.checksum_seed,
            stats: self.stats(member),
            history: self.history(member),
            tuning: self.settings.tuning(),
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

fn id_of(file: &OwnedFd) -> Result<FileId, Error> {
    let stat = rustix::fs::fstat(file).map_err(Error::session("look at"))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Writes a value, its length first, into the [`SETTINGS_BYTES`] from `start` on.
fn write_json(file: &OwnedFd, start: usize, value: &impl Serialize) -> Result<(), Error> {
    let failed = |reason| Error::Session { action: "write", reason };
    let json = serde_json::to_vec(value).map_err(|e| failed(e.to_string()))?;
    if json.len() + 8 > SETTINGS_BYTES {
        let reason = format!("the settings take {} bytes, too many bad pages", json.len());
        return Err(failed(reason));
    }
    let len = (json.len() as u64).to_ne_bytes();
    write_all_at(file, &[&len[..], &json].concat(), start as u64)
}

/// Reads what [`write_json`] has written.
fn read_json<T: DeserializeOwned>(file: &OwnedFd, start: usize) -> Result<T, Error> {
    let mut len = [0; 8];
    read_exact(file, &mut len, start as u64)?;
    let mut json = vec![0; (u64::from_ne_bytes(len) as usize).min(SETTINGS_BYTES)];
    read_exact(file, &mut json, start as u64 + 8)?;
    serde_json::from_slice(&json)
        .map_err(|e| Error::Session { action: "understand", reason: e.to_string() })
}

fn write_all_at(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
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
