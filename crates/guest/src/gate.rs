//! Shutting a process's gate, and opening it.
//!
//! Owns: whether both can be done, and when: while all threads stand still, out of the gate's code.
//! Invariants: every thread's calls are caught or none's. What the program believes of its signals
//! is what the kernel had before, and has again afterwards. A thread that waits with a time that
//! counts on waits on in its stub: a signal, as SIGSYS is one, would end that. One that is in the
//! gate's own code is not disturbed: then it is tried again later.
//! Not here: what the gate does meanwhile (`agent/gate`), who needs it (`run`).
//! Rejected: having the program's threads run code that does this: the calls are few, and each is
//! seen to end.

mod work;

use crate::attach::{Site, filter_options};
use crate::error::{About, AttachError, Result};
use crate::hold::Held;
use crate::inject::{self, Usable};
use crate::places;
use crate::process;
use crate::system::{System, Until, options};
use overspill_agent::gate::{
    GATE_BYTES, LETTERS_AT, RETURNS_AT, SLOT_AT, SLOT_BYTES, SLOTS_AT, STUB_AT, STUBS_AT, Slot,
    THREADS_MAX, letter,
};
use overspill_agent::{Barrier, GATE};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::Pid;
use std::mem::offset_of;
use std::time::Duration;
use work::Work;

/// What a descriptor is called with which the kernel touches memory that no call names.
const AT_WORK_LATER: [(&str, &str); 3] = [
    ("anon_inode:[io_uring]", "it has an io_uring"),
    ("anon_inode:kvm-vm", "it has a virtual machine"),
    ("anon_inode:[vfio-device]", "it has a device of its own"),
];

/// How often, and how long, threads go on that cannot be used where they are.
const NUDGES: usize = 100;
const NUDGE: Duration = Duration::from_micros(50);
/// How long threads may take to stand still.
const STILL_WAIT: Duration = Duration::from_millis(20);

/// Signals that are always the gate's, as `gate/signals.rs` has them.
const OURS: u64 = bit(libc::SIGSYS) | bit(libc::SIGSEGV) | bit(libc::SIGBUS);

/// Signals that an instruction causes, SIGSYS of a call that was caught among them: they come
/// before anything is done with their thread.
const CAUSED: u64 = OURS | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP);

/// Letters that are answered when there is an agent, and those that wait for their turn behind
/// such.
const AWAIT_AN_AGENT: [u32; 4] = [letter::FAULT, letter::REMOVED, letter::CHANGE, letter::FORK];

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// A gate that is shut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// Where its memory starts, of [`GATE_BYTES`].
    pub base: u64,
}

/// What a gate does that is shut.
#[derive(Clone, Copy, Debug)]
pub struct Catch {
    /// What has touches be signals, of which it tells; `None` if they are not.
    pub barrier: Option<Barrier>,
    /// Pages that a call may hold: of one that names more the first are (`agent/gate/holds.rs`).
    pub hold_pages_max: u32,
}

impl Gate {
    /// The one of which letters are at a place.
    pub(crate) fn of(letters: u64) -> Self {
        Self { base: letters.wrapping_sub(LETTERS_AT as u64) }
    }

    /// Where calls pass.
    pub(crate) fn passes_at(self) -> u64 {
        self.base.wrapping_add(STUB_AT as u64)
    }
}

/// Looks whether the gate of a process that is held can be shut, and now. Nothing is changed.
///
/// # Errors
/// Why not.
pub fn can_shut<S: System>(held: &mut Held<'_, S>) -> Result<()> {
    check(held)?;
    ready(held, None).map(drop)
}

/// Shuts the gate of a process that is held: from now on its calls are caught.
///
/// # Errors
/// It cannot be done, or not now. Then its gate is open. [`can_shut`] says why before.
pub fn shut<S: System>(held: &mut Held<'_, S>, catch: Catch) -> Result<Gate> {
    let threads = ready(held, None)?;
    let site = Site::survey(held, GATE_BYTES + SLOT_BYTES)?;
    let base = site.base.next_multiple_of(SLOT_BYTES as u64);
    let work = Work { held, site: &site, gate: Gate { base } };
    work.map(threads.len())?;
    let done = work.shut(&threads, catch);
    if done.is_err() {
        // If that fails, too, the process has ended.
        let _ = work.open(&threads);
    }
    done.map(|()| work.gate)
}

/// Returns the gate of a process that is held, and that was forked when its parent's was shut.
///
/// # Errors
/// Its calls are not caught, or it cannot be looked at now.
pub fn inherited<S: System>(held: &mut Held<'_, S>) -> Result<Gate> {
    let pid = held.pid;
    let none = AttachError::NoGate { pid, why: "its parent's gate was open" };
    let maps = held.tracer.system.read_file(&format!("/proc/{}/maps", pid.as_raw_nonzero()));
    let maps = maps.about(pid, "reading the mappings of")?;
    let gate = places::letters(&maps).map(Gate::of).ok_or(none)?;
    ready(held, Some((gate, &AWAIT_AN_AGENT)))?;
    Ok(gate)
}

/// Has those threads of a process that is held go on that have stopped in the gate's code: the
/// keeper may wait for what they do there. They are told again to stop by the next call.
///
/// # Errors
/// The process has ended.
pub fn let_out<S: System>(held: &mut Held<'_, S>, gate: Gate) -> Result<()> {
    held.let_on(|held, task| is_inside(held, task, gate).is_ok_and(|inside| inside.is_some()))
}

/// Looks whether the gate of a process that is held can be opened, and now: no thread is in it, nor
/// about to be, as one is whose touch was refused and that has not had the signal for it. Nothing
/// is changed.
///
/// # Errors
/// Why not.
pub fn can_open<S: System>(held: &mut Held<'_, S>, gate: Gate) -> Result<()> {
    ready(held, Some((gate, &[]))).map(drop)
}

/// Opens the gate of a process that is held, and takes it away.
///
/// # Errors
/// It cannot be done now, or the process has ended.
pub fn open<S: System>(held: &mut Held<'_, S>, gate: Gate) -> Result<()> {
    let threads = ready(held, Some((gate, &[])))?;
    let site = Site::survey(held, 0)?;
    Work { held, site: &site, gate }.open(&threads)
}

/// Returns all threads, of which each can make calls, is in no code of the gate's, and has no
/// signal before it that an instruction has caused. Those for which that is not so go on until it
/// is: what they do there takes microseconds. With the gate letters may be named that they may
/// wait for there.
fn ready<S: System>(held: &mut Held<'_, S>, gate: Option<(Gate, &[u32])>) -> Result<Vec<Usable>> {
    let pid = held.pid;
    for _ in 0..NUDGES {
        if !held.wait(STILL_WAIT)? {
            return Err(AttachError::Slow { pid, what: "a thread that waits for a child" });
        }
        let stopped: Vec<Pid> = held.stopped().collect();
        for task in stopped {
            if is_busy(held, task, gate)? {
                step_out(held, task, gate)?;
            }
        }
        let memory = held.tracer.system.open(&format!("/proc/{}/mem", pid.as_raw_nonzero()), false);
        let memory = memory.about(pid, "opening the memory of")?;
        let usable = inject::usable(held, memory.as_fd())?;
        let is_used = |task: &Pid| usable.iter().any(|usable| usable.task == *task);
        let others: Vec<Pid> = held.stopped().filter(|task| !is_used(task)).collect();
        if others.is_empty() && held.poll()? == 0 && usable.len() == held.threads.len() {
            return Ok(usable);
        }
        held.nudge(&others, NUDGE)?;
    }
    Err(AttachError::Slow { pid, what: "a thread that is busy" })
}

/// Has a thread go on, from call to call and from signal to signal, until it is out of the gate.
fn step_out<S: System>(
    held: &mut Held<'_, S>,
    task: Pid,
    gate: Option<(Gate, &[u32])>,
) -> Result<()> {
    let (tracer, pid) = (held.tracer, held.pid);
    let system = &tracer.system;
    let set = |options| system.set_options(task, options).about(pid, "setting trace options of");
    set(options::CALLS)?;
    let mut signal = 0;
    while is_busy(held, task, gate)? || signal != 0 {
        system.resume(task, Until::Call, signal).about(pid, "continuing")?;
        let Some(stop) = tracer.stop_within(pid, task, STILL_WAIT)? else {
            // It makes a child that it waits for.
            system.interrupt(task).about(pid, "stopping")?;
            held.is_running(task);
            return Err(AttachError::Slow { pid, what: "a thread that waits for a child" });
        };
        signal = stop.signal();
    }
    set(0)?;
    // So it stands as it would have at first.
    system.interrupt(task).about(pid, "stopping")?;
    system.resume(task, Until::Stop, 0).about(pid, "continuing")?;
    held.is_running(task);
    Ok(())
}

fn is_busy<S: System>(held: &Held<'_, S>, task: Pid, gate: Option<(Gate, &[u32])>) -> Result<bool> {
    let (system, pid) = (&held.tracer.system, held.pid);
    if process::status(system, pid, task)?.signals & CAUSED != 0 {
        return Ok(true);
    }
    let Some((gate, letters)) = gate else { return Ok(false) };
    let Some(stack) = is_inside(held, task, gate)? else { return Ok(false) };
    let asks = asks(held, gate, stack)?;
    Ok(!letters.iter().any(|letter| u64::from(*letter) == asks))
}

/// Where the stack is of a thread that stands in the gate's code; `None` if it does not.
fn is_inside<S: System>(held: &Held<'_, S>, task: Pid, gate: Gate) -> Result<Option<u64>> {
    let registers = held.tracer.system.registers(task);
    let registers = registers.about(held.pid, "reading registers of")?;
    let at = registers.instruction().wrapping_sub(gate.base) as usize;
    let is_inside = at < GATE_BYTES && !(STUBS_AT..RETURNS_AT).contains(&at);
    Ok(is_inside.then(|| registers.stack()))
}

/// What the letter is about that a thread waits for whose handler has this stack; 0 if for none.
fn asks<S: System>(held: &Held<'_, S>, gate: Gate, stack: u64) -> Result<u64> {
    let (system, pid) = (&held.tracer.system, held.pid);
    let slots = gate.base + SLOTS_AT as u64;
    let slot = stack.wrapping_sub(slots) as usize / SLOT_BYTES;
    if slot >= THREADS_MAX {
        return Ok(0);
    }
    let at = slots + (slot * SLOT_BYTES + SLOT_AT + offset_of!(Slot, asks)) as u64;
    let memory = system.open(&format!("/proc/{}/mem", pid.as_raw_nonzero()), false);
    let memory = memory.about(pid, "opening the memory of")?;
    let mut word = [0; size_of::<u64>()];
    let read = system.read_memory(memory.as_fd(), at, &mut word);
    read.about(pid, "reading the gate of")?;
    Ok(u64::from_ne_bytes(word))
}

/// Looks at what decides whether a gate can be shut at all.
fn check<S: System>(held: &Held<'_, S>) -> Result<()> {
    let pid = held.pid;
    let refuse = |why| Err(AttachError::NoGate { pid, why });
    if GATE.is_empty() {
        return refuse("this processor's kernel does not hand its system calls to a program");
    }
    for task in held.stopped() {
        let system = &held.tracer.system;
        match system.catches_calls(task) {
            // Linux before 6.4 does not say.
            Ok(false) | Err(Errno::IO) => {}
            Ok(true) => return refuse("it catches its system calls itself"),
            Err(errno) => return Err(errno).about(pid, "asking for the dispatch of"),
        }
        if process::status(system, pid, task)?.seccomp != 0
            && filter_options(system, pid, task)? != 0
        {
            return refuse("it filters its system calls");
        }
    }
    if held.threads.len() > THREADS_MAX {
        return refuse("it has more than 4096 threads");
    }
    match touched_later(held)? {
        Some(why) => refuse(why),
        None => Ok(()),
    }
}

/// Says what touches memory of a process though none of its calls is under way, if anything does.
fn touched_later<S: System>(held: &Held<'_, S>) -> Result<Option<&'static str>> {
    let (system, pid) = (&held.tracer.system, held.pid);
    let files = system.descriptors(pid).about(pid, "listing the descriptors of")?;
    let known = AT_WORK_LATER.iter().find(|(name, _)| files.iter().any(|file| file == name));
    if let Some((_, why)) = known {
        return Ok(Some(why));
    }
    let maps = system.read_file(&format!("/proc/{}/maps", pid.as_raw_nonzero()));
    let maps = maps.about(pid, "reading the mappings of")?;
    let has_aio = maps.lines().any(|line| line.ends_with(" /[aio] (deleted)"));
    Ok(has_aio.then_some("it has asynchronous input and output (io_setup)"))
}
