//! What the processes of one `overspill run` share.
//!
//! Owns: a memory file with the settings, the slot maps of all swap areas, the members' hold bits and
//! the counters. The supervisor makes it, every process of the run joins it as a *member*.
//! Invariants: a member is alive as long as it holds the POSIX lock on its byte of the file. The
//! kernel drops that lock when the process ends, however it ends, so no death goes unnoticed. What a
//! dead member held is released by the next one that joins or runs out of slots.
//!
//! ```text
//! state    FREE ──reserve──> STARTING ──lock held──> ALIVE ──lock gone──> REAPING ──> FREE
//!                               └────fork failed, or killed before that──^
//! ```
//!
//! Not here: paging. Rejected: a supervisor that serves slots over a socket. Every refill would be a
//! round trip, and its death the end of the run.

use crate::builder::{check_limit, priority, random_seed, swaps_or_default};
use crate::error::Error;
use crate::pager::{Pager, PagerParts, PagerSwap};
use crate::summary::Summary;
use overspill_area::{AreaConfig, AreaTables, MEMBERS_MAX, MemberNo, SwapAreas};
use overspill_base::shared::{Mapping, Shareable, Table};
use overspill_base::stats::{Stats, stats_len};
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicU32, AtomicU64};
use overspill_base::{Bytes, PAGE_SIZE, clock};
use overspill_device::compressed::Usage;
use overspill_device::file::{Attachment, OpenOptions};
use overspill_device::{Device, DeviceInfo, SwapSpec};
use overspill_space::HandlerOptions;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Environment variable with the path under which processes of a run find their session.
pub const SESSION_VARIABLE: &str = "OVERSPILL_SESSION";

/// Room for the settings at the start of the file.
const SETTINGS_BYTES: usize = 256 << 10;
/// Address space each process reserves for what it maps.
const RESERVE: Bytes = Bytes(1 << 40);

/// Longest time between a place's reservation and its process holding the lock: 16 s.
const START_NS_MAX: u64 = 16 << 30;

const FREE: u32 = 0;
const STARTING: u32 = 1;
const ALIVE: u32 = 2;
const REAPING: u32 = 3;

/// Bits of the verdict cell.
pub mod verdict {
    /// A process of the run joined.
    pub const JOINED: u32 = 1;
    /// Memory ended in a process, which was killed for it.
    pub const OUT_OF_MEMORY: u32 = 2;
}

/// What every process of a run must know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Memory each process may use.
    pub memory_bytes: u64,
    /// False if programs started by the program are left alone.
    pub children: bool,
    checksum_seed: u64,
    supervisor: i32,
    devices: Vec<SharedDevice>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SharedDevice {
    attachment: Attachment,
    /// Descriptor in the supervisor.
    fd: i32,
    priority: i16,
}

/// The shared file, mapped.
#[derive(Debug)]
pub struct Session {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    layout: Layout,
    settings: Settings,
}

/// Where everything is in the file.
#[derive(Debug, Clone)]
struct Layout {
    members: usize,
    reserved_at: usize,
    verdict: usize,
    stats: usize,
    areas: Vec<AreaLayout>,
    len_bytes: usize,
}

#[derive(Debug, Clone)]
struct AreaLayout {
    slots_max: u32,
    slots: usize,
    owners: usize,
    returned: usize,
    counters: usize,
    holds: usize,
}

impl AreaLayout {
    fn clusters(&self) -> usize {
        self.slots_max.div_ceil(AreaConfig::native().tuning.cluster_slots) as usize
    }

    fn slot_words(&self) -> usize {
        self.clusters() * AreaConfig::native().tuning.cluster_slots as usize
    }

    fn hold_words(&self) -> usize {
        self.slot_words().div_ceil(64)
    }
}

impl Layout {
    fn new(slots_max: impl Iterator<Item = u32>) -> Self {
        let mut end = SETTINGS_BYTES;
        let mut place = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(PAGE_SIZE);
            start
        };
        let members = place(MEMBERS_MAX * 4);
        let reserved_at = place(MEMBERS_MAX * 8);
        let verdict = place(4);
        let stats = place(MEMBERS_MAX * stats_len() * 8);
        let areas = slots_max.map(|slots_max| {
            let mut area =
                AreaLayout { slots_max, slots: 0, owners: 0, returned: 0, counters: 0, holds: 0 };
            area.slots = place(area.slot_words() * 8);
            area.owners = place(area.clusters() * 4);
            area.returned = place(area.clusters() * 4);
            area.counters = place(AreaTables::COUNTERS * 4);
            area.holds = place(MEMBERS_MAX * area.hold_words() * 8);
            area
        });
        let areas = areas.collect();
        Self { members, reserved_at, verdict, stats, areas, len_bytes: end }
    }
}

/// The supervisor's side of a run: the session and the devices it keeps open for all.
#[derive(Debug)]
pub struct Supervisor {
    session: Session,
    devices: Vec<Device>,
}

impl Supervisor {
    /// Opens the devices and makes the shared file.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(
        memory: Bytes,
        swaps: Vec<SwapSpec>,
        options: &OpenOptions,
        children: bool,
    ) -> Result<Self, Error> {
        check_limit(memory)?;
        let specs = swaps_or_default(swaps)?;
        let open = |spec: &SwapSpec| Device::open(spec, options).map_err(Error::from);
        let devices = specs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shared =
            specs.iter().zip(&devices).enumerate().map(|(n, (spec, device))| SharedDevice {
                attachment: device.attachment().clone(),
                fd: device.as_fd().as_raw_fd(),
                priority: priority(spec, n),
            });
        let settings = Settings {
            memory_bytes: memory.0,
            children,
            checksum_seed: random_seed()?,
            supervisor: rustix::process::getpid().as_raw_nonzero().get(),
            devices: shared.collect(),
        };
        Ok(Self { session: Session::create(settings)?, devices })
    }

    /// The path to hand to processes in [`SESSION_VARIABLE`].
    pub fn path(&self) -> PathBuf {
        fd_path(self.session.settings.supervisor, self.session.file.as_raw_fd())
    }

    /// The devices' names and notes, and what compressed memory holds now.
    pub fn devices(&self) -> impl Iterator<Item = (&DeviceInfo, Option<Usage>)> {
        self.devices.iter().map(|device| (device.info(), device.usage()))
    }

    /// Everything counted by all processes of the run.
    pub fn summary(&self) -> Summary {
        let stats: Vec<Stats> =
            (0..MEMBERS_MAX).map(|m| self.session.stats(MemberNo(m as u32))).collect();
        Summary::of(Bytes(self.session.settings.memory_bytes), &stats)
    }

    /// The [`verdict`] bits.
    pub fn verdict(&self) -> u32 {
        self.session.verdict().load(Acquire)
    }
}

fn fd_path(pid: i32, fd: i32) -> PathBuf {
    format!("/proc/{pid}/fd/{fd}").into()
}

impl Session {
    fn create(settings: Settings) -> Result<Self, Error> {
        let file = rustix::fs::memfd_create("overspill-session", MemfdFlags::CLOEXEC)
            .map_err(Error::session("create"))?;
        let layout = Layout::new(settings.devices.iter().map(|d| d.attachment.slots_max));
        rustix::fs::ftruncate(&file, layout.len_bytes as u64).map_err(Error::session("size"))?;
        let json = serde_json::to_vec(&settings)
            .map_err(|e| Error::Session { action: "write", reason: e.to_string() })?;
        if json.len() + 8 > SETTINGS_BYTES {
            let reason = format!("the settings take {} bytes, too many bad pages", json.len());
            return Err(Error::Session { action: "write", reason });
        }
        let len = (json.len() as u64).to_ne_bytes();
        write_all(&file, &[&len[..], &json].concat())?;
        let session = Self::map(file, layout, settings)?;
        for n in 0..session.settings.devices.len() {
            session.tables(n).format(&session.reserved_slots(n));
        }
        Ok(session)
    }

    /// The session a supervisor offers at `path`.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(Error::session("open"))?;
        let mut len = [0; 8];
        read_exact(&file, &mut len, 0)?;
        let len = u64::from_ne_bytes(len) as usize;
        let mut json = vec![0; len.min(SETTINGS_BYTES)];
        read_exact(&file, &mut json, 8)?;
        let settings: Settings = serde_json::from_slice(&json)
            .map_err(|e| Error::Session { action: "understand", reason: e.to_string() })?;
        let layout = Layout::new(settings.devices.iter().map(|d| d.attachment.slots_max));
        Self::map(file, layout, settings)
    }

    fn map(file: OwnedFd, layout: Layout, settings: Settings) -> Result<Self, Error> {
        let mapping = Mapping::shared(&file, layout.len_bytes).map_err(Error::session("map"))?;
        Ok(Self { file, mapping: Arc::new(mapping), layout, settings })
    }

    /// What every process of the run must know.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn table<T: Shareable>(&self, offset: usize, len: usize) -> Table<T> {
        Table::within(&self.mapping, offset, len)
    }

    fn members(&self) -> Table<AtomicU32> {
        self.table(self.layout.members, MEMBERS_MAX)
    }

    fn reserved_at(&self) -> Table<AtomicU64> {
        self.table(self.layout.reserved_at, MEMBERS_MAX)
    }

    fn verdict(&self) -> AtomicCell {
        AtomicCell(self.table(self.layout.verdict, 1))
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

    fn reserved_slots(&self, device: usize) -> Vec<overspill_base::Slot> {
        let reserved = &self.settings.devices[device].attachment.reserved;
        reserved.iter().map(|&slot| overspill_base::Slot(slot)).collect()
    }

    /// Starts a pager in this process as a new member.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join(
        self: &Arc<Self>,
        handlers: HandlerOptions,
        report: fn(&str),
    ) -> Result<(Pager, MemberNo), Error> {
        let member = self.reserve_member().ok_or_else(|| Error::Session {
            action: "join",
            reason: format!("{MEMBERS_MAX} processes of this run are alive already"),
        })?;
        self.confirm_member(member)?;
        let mut swaps = Vec::with_capacity(self.settings.devices.len());
        for (n, shared) in self.settings.devices.iter().enumerate() {
            let path = fd_path(self.settings.supervisor, shared.fd);
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let fd = rustix::fs::open(path, flags, Mode::empty())
                .map_err(Error::session("open a device of"))?;
            let device = Device::attach(fd, shared.attachment.clone())?.shared();
            let (tables, priority) = (self.tables(n), shared.priority);
            swaps.push(PagerSwap { device, tables, priority, verifies: false });
        }
        let session = self.clone();
        let pager = Pager::start(PagerParts {
            memory: Bytes(self.settings.memory_bytes),
            page_bytes: PAGE_SIZE,
            reserve: RESERVE,
            swaps,
            member,
            checksum_seed: self.settings.checksum_seed,
            stats: self.stats(member),
            salvage: Box::new(move |areas| session.salvage(areas)),
            report: Box::new(report),
            handlers,
        })?;
        self.salvage(pager.engine().areas());
        self.add_verdict(verdict::JOINED);
        Ok((pager, member))
    }

    /// Takes a free place among the members for a process about to start.
    pub fn reserve_member(&self) -> Option<MemberNo> {
        let members = self.members();
        let free = members
            .iter()
            .position(|m| m.compare_exchange(FREE, STARTING, AcqRel, Relaxed).is_ok())?;
        self.reserved_at()[free].store(clock::now_ns(), Release);
        Some(MemberNo(free as u32))
    }

    /// In the process that takes the place: locks its byte, so that its end will be noticed.
    ///
    /// # Errors
    /// What fcntl says; or that the place was given up because it took too long.
    pub fn confirm_member(&self, member: MemberNo) -> Result<(), Error> {
        self.lock_byte(libc::F_SETLK, member)
            .map_err(|e| Error::Session { action: "lock", reason: e.to_string() })?;
        let state = &self.members()[member.0 as usize];
        match state.compare_exchange(STARTING, ALIVE, AcqRel, Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Session {
                action: "join",
                reason: format!("this process took more than {} s to start", START_NS_MAX >> 30),
            }),
        }
    }

    /// Releases what dead members held; true if there was one.
    fn salvage(&self, areas: &SwapAreas) -> bool {
        let me = areas.iter().next().map(|area| area.member());
        let members = self.members();
        let mut found = false;
        for (n, state) in members.iter().enumerate() {
            let member = MemberNo(n as u32);
            let seen = state.load(Acquire);
            if Some(member) == me || !self.looks_dead(member, seen) {
                continue;
            }
            if state.compare_exchange(seen, REAPING, AcqRel, Relaxed).is_ok() {
                areas.iter().for_each(|area| area.release_member(member));
                state.store(FREE, Release);
                found = true;
            }
        }
        found
    }

    /// Dead: once alive and without its lock, or never come to life.
    fn looks_dead(&self, member: MemberNo, state: u32) -> bool {
        let waited = || {
            let since_ns = self.reserved_at()[member.0 as usize].load(Acquire);
            clock::now_ns().saturating_sub(since_ns) > START_NS_MAX
        };
        match state {
            ALIVE => !self.is_alive(member),
            STARTING => waited() && !self.is_alive(member),
            _ => false,
        }
    }

    fn is_alive(&self, member: MemberNo) -> bool {
        // An answer that is no answer counts as alive: slots may leak, pages may not.
        self.lock_byte(libc::F_GETLK, member).map_or(true, |kind| kind != libc::F_UNLCK as i16)
    }

    fn lock_byte(&self, command: i32, member: MemberNo) -> std::io::Result<i16> {
        // SAFETY: flock is plain data and zeros are a value of it.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = i64::from(member.0);
        lock.l_len = 1;
        // SAFETY: F_SETLK and F_GETLK take a flock.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(lock.l_type) }
    }
}

/// A table of one.
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
