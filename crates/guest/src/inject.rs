//! Calls that are made inside a process, by one of its threads that stands still.
//!
//! Owns: which thread can make them, how it does, and putting back what it was.
//! Invariants: nothing of the thread changes that the program could see: registers, blocked
//! signals and an interrupted call are as before. The calls that are made use no timeout, so the
//! kernel still knows how to go on with the interrupted one. While it is used a thread ends with
//! its tracer: with another's registers it must not run on. A thread inside a restartable sequence
//! is not used: the kernel would think that it has left it.
//! Rejected: putting registers back where the last call was left: there the kernel no longer looks
//! whether a call is to be repeated. The thread is told to stop once more, and gets them there.

use crate::arch::Registers;
use crate::arch::{Blocked, Interrupted};
use crate::error::{About, AttachError, Found, Result};
use crate::hold::Held;
use crate::system::{Stop, System, Until, options};
use crate::tracer::Tracer;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// Where the area for restartable sequences has the sequence that its thread is in.
const RSEQ_CS_AT: u64 = 8;
const ALL_SIGNALS: u64 = u64::MAX;
/// Asks for the address that is cleared at a thread's end.
pub(crate) const PR_GET_TID_ADDRESS: u64 = 40;
/// Signals that an instruction causes, and with which a call inside has failed.
const CAUSED: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// A thread that can make calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usable {
    pub(crate) task: Pid,
    before: Option<Blocked>,
    /// The lower, the more certain that the program will not notice.
    rank: u32,
}

/// Returns the threads that can make calls, the best first.
pub(crate) fn usable<S: System>(held: &Held<'_, S>, memory: BorrowedFd<'_>) -> Result<Vec<Usable>> {
    let mut usable = Vec::new();
    for task in held.stopped() {
        let before = held.threads.get(&task).and_then(|thread| thread.before);
        let rank = rank(held, task, before, memory)?;
        usable.extend(rank.map(|rank| Usable { task, before, rank }));
    }
    usable.sort_by_key(|usable| usable.rank);
    Ok(usable)
}

fn rank<S: System>(
    held: &Held<'_, S>,
    task: Pid,
    before: Option<Blocked>,
    memory: BorrowedFd<'_>,
) -> Result<Option<u32>> {
    let system = &held.tracer.system;
    let registers = match system.registers(task) {
        // It was killed: others may not be yet.
        Err(Errno::SRCH) => return Ok(None),
        registers => registers.about(held.pid, "reading registers of")?,
    };
    Ok(match registers.interrupted(before) {
        Interrupted::Repeats => Some(0),
        Interrupted::Fails(_) => Some(1),
        Interrupted::No => (!is_in_sequence(system, task, memory)).then_some(2),
    })
}

/// Returns true if a thread is inside a restartable sequence, or may be.
fn is_in_sequence<S: System>(system: &S, task: Pid, memory: BorrowedFd<'_>) -> bool {
    let mut sequence = [0; 8];
    match system.rseq(task) {
        Ok(0) => false,
        Ok(area) => {
            let read = system.read_memory(memory, area + RSEQ_CS_AT, &mut sequence);
            read.is_err() || sequence != [0; 8]
        }
        // A kernel without them.
        Err(Errno::IO | Errno::INVAL) => false,
        Err(_) => true,
    }
}

/// A thread that makes calls for us, until this is dropped.
pub(crate) struct Inside<'t, S: System> {
    tracer: &'t Tracer<S>,
    pid: Pid,
    usable: Usable,
    registers: Registers,
    mask: u64,
    gate: u64,
}

impl<'t, S: System> Inside<'t, S> {
    /// Has a thread make calls at `gate`, with these [`options`] for it and for what it makes.
    pub(crate) fn begin(
        held: &Held<'t, S>,
        usable: Usable,
        gate: u64,
        options: u32,
    ) -> Result<Self> {
        let (tracer, pid, task) = (held.tracer, held.pid, usable.task);
        let system = &tracer.system;
        let registers = system.registers(task).about(pid, "reading registers of")?;
        let mask = system.signal_mask(task).about(pid, "reading the signal mask of")?;
        let inside = Self { tracer, pid, usable, registers, mask, gate };
        let options = options | options::CALLS | options::EXIT_KILL;
        match system.set_options(task, options) {
            Err(errno) if options & options::NO_FILTER != 0 && errno != Errno::SRCH => {
                return Err(AttachError::Filtered { pid, errno });
            }
            set => set.about(pid, "setting trace options of")?,
        }
        system.set_signal_mask(task, ALL_SIGNALS).about(pid, "blocking signals of")?;
        Ok(inside)
    }

    /// Makes a call, and returns what it does.
    pub(crate) fn call(
        &self,
        name: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<u64> {
        self.enter(number, arguments)?;
        self.go(Stop::Call)?;
        self.leave(name)
    }

    /// As [`Inside::call`], with a stack that ends elsewhere: some calls look where it is.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn call_on(
        &self,
        stack_end: u64,
        name: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<u64> {
        let registers = self.registers.on_stack(stack_end);
        self.enter_with(&registers.calling(self.gate, number as u64, arguments))?;
        self.go(Stop::Call)?;
        self.leave(name)
    }

    /// Makes a call that undoes something: from wherever the last one has left the thread, and
    /// again if it is not seen to succeed.
    pub(crate) fn surely(
        &self,
        name: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<()> {
        let mut result = Err(AttachError::Gone { pid: self.pid });
        self.tracer.persist(|| {
            self.stop_again().ok_or(Errno::SRCH)?;
            result = self.call(name, number, arguments).map(drop);
            result.as_ref().map(|_| ()).map_err(|_| Errno::IO)
        });
        result
    }

    /// Makes a clone. Returns the new task, which is about to stop where the call was.
    pub(crate) fn clone(&self, arguments: [u64; 6]) -> Result<Pid> {
        self.enter(libc::SYS_clone, arguments)?;
        match self.go_on()? {
            Stop::Clone => {}
            Stop::Call => {
                self.leave("clone")?;
                return Err(self.unexpected("clone", &"no event"));
            }
            stop => return Err(self.unexpected("clone", &format!("{stop:?}"))),
        }
        let new = self.tracer.persist(|| self.tracer.system.event_message(self.usable.task));
        new.and_then(|new| Pid::from_raw(new as i32))
            .ok_or_else(|| self.unexpected("clone", &"no number of what was made"))
    }

    /// Ends the call that [`Inside::clone`] has begun, and returns the new task's number as the
    /// program sees it.
    pub(crate) fn end_clone(&self) -> Result<u64> {
        self.go(Stop::Call)?;
        self.leave("clone")
    }

    /// Goes to the entry of a call.
    fn enter(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<()> {
        self.enter_with(&self.registers.calling(self.gate, number as u64, arguments))
    }

    fn enter_with(&self, registers: &Registers) -> Result<()> {
        let set = self.tracer.system.set_registers(self.usable.task, registers);
        set.about(self.pid, "changing registers of")?;
        self.go(Stop::Call)
    }

    fn leave(&self, name: &'static str) -> Result<u64> {
        let registers = self.tracer.system.registers(self.usable.task);
        let registers = registers.about(self.pid, "reading registers of")?;
        let inside = |errno| AttachError::Inside { pid: self.pid, call: name, errno };
        registers.result().map_err(inside)
    }

    fn go(&self, wanted: Stop) -> Result<()> {
        match self.go_on()? {
            stop if stop == wanted => Ok(()),
            stop => Err(self.unexpected("a call inside it", &format!("{stop:?}"))),
        }
    }

    /// Goes on to the next entry or exit of a call, or to an event.
    fn go_on(&self) -> Result<Stop> {
        let (system, task) = (&self.tracer.system, self.usable.task);
        let mut signal = 0;
        loop {
            system.resume(task, Until::Call, signal).about(self.pid, "continuing")?;
            match self.next_stop()? {
                Stop::Signal(caused) if CAUSED.contains(&caused) => {
                    return Err(self.unexpected("a call inside it", &format!("signal {caused}")));
                }
                // SIGSTOP, which cannot be blocked: delivered, it stops the thread once released.
                stop @ (Stop::Signal(_) | Stop::Told | Stop::Group) => signal = stop.signal(),
                stop => return Ok(stop),
            }
        }
    }

    fn next_stop(&self) -> Result<Stop> {
        self.tracer.next_stop(self.pid, self.usable.task)
    }

    fn unexpected(&self, doing: &'static str, found: &dyn std::fmt::Display) -> AttachError {
        AttachError::Unexpected { pid: self.pid, doing, found: Found(found.to_string()) }
    }

    /// Brings the thread to a stop as the first was, wherever a call has left it.
    fn stop_again(&self) -> Option<()> {
        let (tracer, system, task) = (self.tracer, &self.tracer.system, self.usable.task);
        let at_rest = self.registers.at_rest(self.gate);
        tracer.persist(|| system.interrupt(task))?;
        let mut stands = tracer.persist(|| system.registers(task)).is_some();
        let mut signal = 0;
        loop {
            if stands {
                tracer.persist(|| system.set_registers(task, &at_rest))?;
                tracer.persist(|| system.resume(task, Until::Stop, signal))?;
            }
            match tracer.persist(|| self.next_stop().map_err(|_| Errno::SRCH))? {
                Stop::Told | Stop::Group => return Some(()),
                stop => signal = if CAUSED.contains(&stop.signal()) { 0 } else { stop.signal() },
            }
            tracer.persist(|| system.interrupt(task))?;
            stands = true;
        }
    }
}

impl<S: System> Drop for Inside<'_, S> {
    fn drop(&mut self) {
        // Nothing can be done for a thread that was killed.
        let (tracer, system, task) = (self.tracer, &self.tracer.system, self.usable.task);
        if self.stop_again().is_some() {
            let registers = self.registers.put_back(self.usable.before);
            tracer.persist(|| system.set_registers(task, &registers));
            tracer.persist(|| system.set_signal_mask(task, self.mask));
            tracer.persist(|| system.set_options(task, 0));
        }
    }
}
