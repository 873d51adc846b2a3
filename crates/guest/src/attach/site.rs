//! What an attach finds, before it changes anything.
//!
//! Owns: the questions whose answers decide whether a process can be attached to, and how.
//! Invariants: nothing of the process changes here.
//! Not here: doing it ([`super::work`]).

use crate::arch::GATE;
use crate::attach::Files;
use crate::error::{About, AttachError, Result};
use crate::gate::Gate;
use crate::hold::Held;
use crate::inject::{self, Usable};
use crate::places;
use crate::process::{self, Namespace};
use crate::system::{Change, System, Until, options};
use crate::tracer::{Patience, Tracer};
use overspill_agent::PAGE_BYTES;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::Duration;

/// Where an agent is put, and by whom.
pub(crate) struct Site {
    pub(crate) process: OwnedFd,
    /// Its memory, to be read and written.
    memory: OwnedFd,
    /// The thread that makes the calls.
    pub(crate) thread: Usable,
    /// Where it makes them: the kernel lets calls pass there.
    pub(crate) gate: u64,
    /// Where it makes them if nothing is caught.
    #[cfg(target_arch = "x86_64")]
    pub(crate) open_gate: u64,
    /// Of [`options`], for it and the agent.
    pub(crate) options: u32,
    /// A free place.
    pub(crate) base: u64,
    pub(crate) namespace: Namespace,
    /// The process's number as it sees it.
    pub(crate) own_number: i32,
}

impl Site {
    /// Looks at a process that is held, and for a place of so many bytes.
    pub(crate) fn survey<S: System>(held: &Held<'_, S>, bytes: usize) -> Result<Self> {
        let (system, pid) = (&held.tracer.system, held.pid);
        check_page_size()?;
        let namespace = process::namespace(system, pid)?;
        let own_number = process::status(system, pid, pid)?.own_number;
        let process = system.open_process(pid).about(pid, "opening")?;
        let memory = system.open(&format!("/proc/{}/mem", pid.as_raw_nonzero()), true);
        let memory = memory.about(pid, "opening the memory of")?;
        let maps = system.read_file(&format!("/proc/{}/maps", pid.as_raw_nonzero()));
        let maps = maps.about(pid, "reading the mappings of")?;
        let read = |address, to: &mut [u8]| system.read_memory(memory.as_fd(), address, to).is_ok();
        let no_place = |what| AttachError::NoPlace { pid, what };
        let open_gate = places::gate(&maps, read);
        let open_gate = open_gate.ok_or(no_place("code that makes system calls"))?;
        let passes = |at: &u64| {
            let mut code = [0; GATE.len()];
            read(*at, &mut code) && code == GATE
        };
        let shut_gate = places::letters(&maps).map(|at| Gate::of(at).passes_at());
        let gate = shut_gate.filter(passes).unwrap_or(open_gate);
        let base = places::free(&maps, bytes as u64).ok_or(no_place("free place"))?;
        let thread = choose(held, memory.as_fd())?;
        let options = filter_options(system, pid, thread.task)?;
        Ok(Self {
            process,
            memory,
            thread,
            gate,
            #[cfg(target_arch = "x86_64")]
            open_gate,
            options,
            base,
            namespace,
            own_number,
        })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn check_page_size() -> Result<()> {
    match rustix::param::page_size() {
        PAGE_BYTES => Ok(()),
        bytes => Err(AttachError::PageSize { bytes }),
    }
}

/// Opens those of an agent.
pub(super) fn open_files<S: System>(system: &S, agent: Pid) -> Files {
    let open = |name| system.open(&format!("/proc/{}/{name}", agent.as_raw_nonzero()), false);
    Files {
        maps: open("maps"),
        smaps: open("smaps"),
        pagemap: open("pagemap"),
        statm: open("statm"),
    }
}

fn choose<S: System>(held: &Held<'_, S>, memory: BorrowedFd<'_>) -> Result<Usable> {
    let threads = held.stopped().count();
    let none = AttachError::NoThread { pid: held.pid, threads };
    inject::usable(held, memory)?.first().copied().ok_or(none)
}

/// Returns how a filter of system calls is dealt with: not at all if there is none, or if we live
/// under it ourselves.
pub(crate) fn filter_options<S: System>(system: &S, pid: Pid, task: Pid) -> Result<u32> {
    let status = process::status(system, pid, task)?;
    let own = rustix::process::getpid();
    if status.seccomp == 0 {
        return Ok(0);
    }
    let ours = process::status(system, own, own)?;
    let alike = (ours.seccomp, ours.filters) == (status.seccomp, status.filters);
    let is_ours = alike && process::descends_from_us(system, pid)?;
    Ok(if is_ours { 0 } else { options::NO_FILTER })
}

/// Waits until a traced task has ended; what stops it meanwhile is passed over.
pub(crate) fn wait_for_end<S: System>(tracer: &Tracer<S>, task: Pid, at_most: Duration) -> bool {
    let mut patience = Patience::new(at_most);
    loop {
        match tracer.system.wait(task) {
            Ok(Some(Change::Ended)) | Err(Errno::CHILD) => return true,
            Ok(Some(Change::Stopped(_))) => {
                tracer.persist(|| tracer.system.resume(task, Until::Stop, 0));
            }
            Ok(None) | Err(_) => {}
        }
        if !patience.pause() {
            return false;
        }
    }
}
