//! The members of a run: which are alive, and how the slots of dead ones are released.
//!
//! Owns: the members' words in the session's file.
//! Invariants: a member is alive as long as its pager holds the POSIX lock on its byte of the file.
//! The kernel drops that lock when the pager ends, however it ends, so every death is noticed. A
//! member that ends regularly releases what it held; what a killed one held is released by the next
//! member that joins, fails to fork or runs out of slots.
//!
//! Who releases what a dead member held has the lock meanwhile: if it is killed too, the next one
//! begins again. A place is free before its lock is, so a new member waits for that.
//!
//! ```text
//! bits 0..2 state; from bit 2 on, while STARTING, the time since when, in ms, and while REAPING,
//! whose pager is at it
//!
//! FREE ──reserve──> STARTING ──lock held──> ALIVE ──────────leave─────────> FREE
//!                    │    └─fork failed──────────────────────────────────────^
//!                    └──no lock, too long──> REAPING <──no lock── ALIVE      │
//!                                                └───────────────────────────┘
//! ```
//!
//! Orderings: the thread that reserves a place (Acquire) sees everything done before it was freed
//! (Release).

use super::Session;
use crate::error::Error;
use overspill_area::{MEMBERS_MAX, MemberNo, SwapAreas};
use overspill_base::clock;
use overspill_base::shared::Table;
use overspill_base::stats::Event;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use rustix::event::Timespec;
use rustix::fd::AsRawFd;
use rustix::process::Pid;
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Longest time between a place's reservation and its process holding the lock.
const START_MS_MAX: u64 = 16_000;

/// Longest time in which it is noticed that a member has ended, on a busy machine. Who needs what
/// it held waits as long before there is no more memory.
const NOTICED: Duration = Duration::from_secs(1);

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const FREE: u64 = 0;
const STARTING: u64 = 1;
const ALIVE: u64 = 2;
const REAPING: u64 = 3;

/// Instead of a member's process ids: it has not started yet.
const UNDECIDED: u64 = 1;
/// Instead of them: it could not start.
const FAILED: u64 = 2;

/// The half of the word that a futex can wait for.
pub(super) fn lower_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the lower half comes first on the little-endian machines supported, and is as aligned
    // as the whole; only the kernel reads it in this size.
    unsafe { &*word.as_ptr().cast() }
}

fn now_ms() -> u64 {
    clock::now_ns() / 1_000_000
}

/// A place among the members that a process is about to take.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number.
    pub member: MemberNo,
    /// Its word, until it is confirmed.
    starting: u64,
}

impl Session {
    fn members(&self) -> Table<AtomicU64> {
        self.table(self.layout.members, MEMBERS_MAX)
    }

    /// For each member the ids of its process and of its pager.
    fn processes(&self) -> Table<AtomicU64> {
        self.table(self.layout.processes, MEMBERS_MAX)
    }

    /// Number of places that were ever taken: the lowest ones.
    pub(super) fn members_used(&self) -> u32 {
        self.processes().iter().take_while(|word| word.load(Relaxed) != 0).count() as u32
    }

    /// Takes a free place among the members for a process about to start.
    pub fn reserve_member(&self) -> Option<Place> {
        let starting = STARTING | now_ms() << STATE_BITS;
        let taken = |m: &AtomicU64| m.compare_exchange(FREE, starting, AcqRel, Relaxed).is_ok();
        let place = self.members().iter().position(taken)?;
        self.processes()[place].store(UNDECIDED, Relaxed);
        self.note_left(MemberNo(place as u32), 0);
        Some(Place { member: MemberNo(place as u32), starting })
    }

    /// As [`reserve_member`](Self::reserve_member); if there is no place, salvages dead members
    /// first.
    pub fn reserve_or_salvage(&self, areas: &SwapAreas) -> Option<Place> {
        self.reserve_member().or_else(|| {
            self.salvage(areas);
            self.reserve_member()
        })
    }

    /// In the pager of the process that takes the place: locks its byte, so that its end will be
    /// noticed. Waits for who still has the lock of a former member.
    ///
    /// # Errors
    /// The error of fcntl; or that the place was freed because the start took too long.
    pub fn confirm_member(&self, place: Place, process: Pid) -> Result<(), Error> {
        self.lock_byte(libc::F_SETLKW, libc::F_WRLCK, place.member)
            .map_err(|e| Error::Session { action: "lock", reason: e.to_string() })?;
        if self.is_now(place.member, place.starting, ALIVE) {
            self.stats(place.member).forget_stalls();
            if self.former_pagers_of(process).is_empty() {
                self.stats(place.member).count(Event::processes);
            }
            self.decide(place.member, process.as_raw_pid() as u64);
            return Ok(());
        }
        let _ = self.lock_byte(libc::F_SETLK, libc::F_UNLCK, place.member);
        let seconds = START_MS_MAX / 1000;
        let reason = format!("this process took more than {seconds} s to start");
        Err(Error::Session { action: "join", reason })
    }

    /// Records that the process that was to take a place could not start, and frees the place, if
    /// nobody else has.
    pub fn fail_member(&self, place: Place, areas: &SwapAreas) {
        let word = &self.members()[place.member.0 as usize];
        if word.load(Acquire) == place.starting {
            areas.iter().for_each(|area| area.release_member(place.member));
            self.release_frames(place.member);
            self.decide(place.member, 0);
            word.store(FREE, Release);
        }
    }

    /// Changes a member's word; false if it is another by now.
    fn is_now(&self, member: MemberNo, from: u64, to: u64) -> bool {
        let word = &self.members()[member.0 as usize];
        word.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Records that `process` has started, or with 0 that it has not, and wakes the parent.
    fn decide(&self, member: MemberNo, process: u64) {
        let pager = rustix::process::getpid().as_raw_pid() as u64;
        let word = if process == 0 { FAILED } else { process << 32 | pager };
        let processes = self.processes();
        let process = &processes[member.0 as usize];
        process.store(word, Release);
        let _ = futex::wake(lower_half(process), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Whether the process that was to take a place has started; `None` if that is still undecided
    /// after `limit` or when a signal arrives.
    pub fn has_started(&self, member: MemberNo, limit: Duration) -> Option<bool> {
        let processes = self.processes();
        let word = &processes[member.0 as usize];
        if word.load(Acquire) == UNDECIDED {
            let (word, limit) = (lower_half(word), Timespec::try_from(limit).ok());
            let _ = futex::wait(word, futex::Flags::empty(), UNDECIDED as u32, limit.as_ref());
        }
        match word.load(Acquire) {
            UNDECIDED => None,
            word => Some(word != FAILED),
        }
    }

    /// The members that are alive, with their pagers.
    pub(super) fn pagers(&self) -> impl Iterator<Item = (MemberNo, Pid)> {
        let (members, processes) = (self.members(), self.processes());
        (0..self.members_used()).filter_map(move |member| {
            let alive = members[member as usize].load(Acquire) & STATE_MASK == ALIVE;
            let pager = processes[member as usize].load(Acquire) as u32 as i32;
            let pager = if alive { Pid::from_raw(pager) } else { None };
            Some((MemberNo(member), pager?))
        })
    }

    /// The process that has, or had, a place.
    pub(super) fn process_of(&self, member: MemberNo) -> i32 {
        (self.processes()[member.0 as usize].load(Acquire) >> 32) as i32
    }

    /// The members that are alive, with the numbers of their processes.
    pub(super) fn programs(&self) -> impl Iterator<Item = (MemberNo, i32)> {
        self.pagers().map(|(member, _)| (member, self.process_of(member)))
    }

    /// The members whose pagers live.
    pub(super) fn living(&self) -> impl Iterator<Item = MemberNo> {
        self.pagers().map(|(member, _)| member).filter(|&member| self.is_alive(member))
    }

    /// True if a process is about to become a member.
    pub(super) fn is_any_starting(&self) -> bool {
        let members = self.members();
        let words = members.iter().take(self.members_used() as usize);
        let mut words = words.map(|word| word.load(Acquire));
        words.any(|word| {
            let waits = now_ms().saturating_sub(word >> STATE_BITS) <= START_MS_MAX;
            word & STATE_MASK == STARTING && waits
        })
    }

    /// True if no process of the run is left.
    pub(super) fn is_deserted(&self) -> bool {
        self.living().next().is_none()
    }

    /// In a pager of `process`: the pagers of its former images, and perhaps of other processes
    /// that had its id: a place keeps its ids until it is taken again, and ids come round. One of
    /// those pagers may have had this one's id.
    pub fn former_pagers_of(&self, process: Pid) -> Vec<Pid> {
        let of = process.as_raw_pid() as u64;
        let own = rustix::process::getpid();
        let words = self.processes();
        let used = self.members_used() as usize;
        let all = words.iter().take(used).map(|word| word.load(Relaxed));
        all.filter(|word| word >> 32 == of)
            .filter_map(|word| Pid::from_raw(word as u32 as i32))
            .filter(|&pager| pager != own)
            .collect()
    }

    /// Releases everything this member holds, and its place. No thread pages any more, and no I/O
    /// is in flight.
    pub fn leave(&self, member: MemberNo, areas: &SwapAreas) {
        areas.iter().for_each(|area| area.release_member(member));
        self.release_frames(member);
        self.is_now(member, ALIVE, FREE);
        let _ = self.lock_byte(libc::F_SETLK, libc::F_UNLCK, member);
    }

    /// Releases what dead members held; true if there was one. Only in a pager's process: its other
    /// threads are told apart by the word, other processes by the lock.
    pub fn salvage(&self, areas: &SwapAreas) -> bool {
        let me = areas.iter().next().map(|area| area.member());
        let own = REAPING | (rustix::process::getpid().as_raw_pid() as u64) << STATE_BITS;
        let deadline = Instant::now() + NOTICED;
        let mut found = false;
        for member in (0..self.members_used()).map(MemberNo) {
            let seen = self.members()[member.0 as usize].load(Acquire);
            if Some(member) == me || seen == own || !self.looks_dead(member, seen, deadline) {
                continue;
            }
            // What it held on an area that this process does not have is for others to release.
            if self.taken_by(member) > areas.iter().count() {
                continue;
            }
            if self.lock_byte(libc::F_SETLK, libc::F_WRLCK, member).is_err() {
                continue;
            }
            if self.is_now(member, seen, own) {
                areas.iter().for_each(|area| area.release_member(member));
                self.release_frames(member);
                self.is_now(member, own, FREE);
                found = true;
            } else if self.members()[member.0 as usize].load(Acquire) == own {
                // Another thread of this process has the lock too.
                continue;
            }
            let _ = self.lock_byte(libc::F_SETLK, libc::F_UNLCK, member);
        }
        found
    }

    /// True if it was alive, or salvaged, and nobody has its lock, or if it did not start in time;
    /// and if none of its writes is yet to come: for who serves it, to notice its end, this waits
    /// until `deadline`.
    fn looks_dead(&self, member: MemberNo, word: u64, deadline: Instant) -> bool {
        let waited = || now_ms().saturating_sub(word >> STATE_BITS) > START_MS_MAX;
        let has_ended = match word & STATE_MASK {
            ALIVE | REAPING => !self.is_alive(member),
            STARTING => waited() && !self.is_alive(member),
            _ => false,
        };
        while has_ended && self.is_under_way(member) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        has_ended && !self.is_under_way(member)
    }

    pub(super) fn is_alive(&self, member: MemberNo) -> bool {
        // If the query fails, it counts as alive: slots may leak, pages may not.
        self.lock_byte(libc::F_GETLK, libc::F_WRLCK, member)
            .map_or(true, |kind| kind != libc::F_UNLCK as i16)
    }

    fn lock_byte(&self, command: i32, kind: i32, member: MemberNo) -> std::io::Result<i16> {
        // SAFETY: flock is plain data, for which zeros are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = i64::from(member.0);
        lock.l_len = 1;
        // SAFETY: F_SETLK and F_GETLK take a flock.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(lock.l_type) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;
    use overspill_area::AreaConfig;
    use overspill_device::served::Clients;

    #[test]
    fn a_member_is_salvaged_by_who_has_its_areas() {
        let session = Session::create(Settings::of_a_test()).unwrap();
        let place = session.reserve_member().unwrap();
        session.confirm_member(place, rustix::process::getpid()).unwrap();
        session.note_taken(place.member, 1);
        let areas = SwapAreas::new(AreaConfig::native());
        assert!(!session.salvage(&areas));
        session.note_taken(place.member, 0);
        assert!(session.salvage(&areas));
    }

    /// To its own process a member looks dead at once: locks are a process's.
    #[test]
    fn a_member_is_salvaged_when_its_last_request_has_ended() {
        let session = Session::create(Settings::of_a_test()).unwrap();
        let areas = SwapAreas::new(AreaConfig::native());
        let place = session.reserve_member().unwrap();
        session.confirm_member(place, rustix::process::getpid()).unwrap();
        let MemberNo(client) = place.member;
        assert!(session.begin(client) && session.begin(client));
        session.end(client);
        assert!(!session.salvage(&areas), "a request may be under way");
        assert_ne!(session.reserve_member().unwrap().member, place.member);
        session.end(client);
        assert!(session.salvage(&areas));
        assert_eq!(session.reserve_member().unwrap().member, place.member);
        assert!(!session.begin(u32::MAX));
        session.end(u32::MAX);
    }
}
