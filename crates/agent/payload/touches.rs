//! Pages that go and come where no userfaultfd may be had.
//!
//! Owns: the program's memory, as a file, and how a run is taken out of it and put back.
//! Invariants: every touch of what is out raises SIGSEGV: it has a guard (`MADV_GUARD_INSTALL`,
//! Linux 6.13), or on a kernel without them it stays shut, so that nobody may touch it (PROT_NONE).
//! While a run goes or comes it is shut in any case, or a write between its reading and its guard
//! would be lost, and a read between the guard's end and the content would find zeros. It is read
//! and written as a file meanwhile, which the kernel does for a file of this kind whatever may be
//! done with the memory. What may be done with it is restored, and the mapping is one again.
//! Not here: which runs, and what may be done with them (the keeper says it); how many mappings
//! there may be.
//! Rejected: PROT_READ for a run that goes: a reader between the end of its page and its guard gets
//! a page of zeros.

use crate::calls::{self, Errno, MADV_DONTNEED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE};
use crate::words::{Barrier, PAGE_BYTES, PROTECTED, Run};

/// The program's memory.
pub struct Touched {
    pub memory: i32,
    pub barrier: Barrier,
}

/// Where a run is, and how large.
fn place(run: &Run) -> (usize, usize) {
    (run.address as usize, run.pages as usize * PAGE_BYTES)
}

/// Has the program do with a run what it may do with it.
fn open(run: &Run) -> Result<(), Errno> {
    let (start, bytes) = place(run);
    let protection = match run.protection {
        0 => calls::PROT_READ_WRITE,
        protection => (protection & !PROTECTED) as usize,
    };
    calls::protect(start, bytes, protection).map(drop)
}

fn shut(run: &Run) -> Result<(), Errno> {
    let (start, bytes) = place(run);
    calls::protect(start, bytes, calls::PROT_NONE).map(drop).inspect_err(|_| {
        // Of some of it that may be so now.
        let _ = open(run);
    })
}

fn advise(run: &Run, advice: usize) -> Result<(), Errno> {
    let (start, bytes) = place(run);
    calls::advise(start, bytes, advice).map(drop)
}

impl Touched {
    /// True if the mapping of what is out is open: only its guard keeps touches away.
    fn is_guard(&self) -> bool {
        self.barrier == Barrier::Guard
    }

    /// Takes a run out, to staging. Returns how many pages went, and what stopped it: all or none.
    /// An error of this: the run could not be left as it was.
    pub fn take(&self, run: &Run, staging: usize) -> Result<(u64, Errno), Errno> {
        if run.pages == 0 {
            return Ok((0, 0));
        }
        if let Err(errno) = shut(run) {
            return Ok((0, errno));
        }
        let (start, bytes) = place(run);
        let taken = match calls::read_at(self.memory, staging, bytes, start) {
            Ok(()) => self.empty_or_not(run, staging)?,
            Err(errno) => Err(errno),
        };
        if self.is_guard() || taken.is_err() {
            open(run)?;
        }
        Ok(done(run, taken))
    }

    /// Removes the content of a run that is shut, and has it raise signals.
    fn empty(&self, run: &Run) -> Result<(), Errno> {
        let advice = match self.barrier {
            Barrier::Guard => MADV_GUARD_INSTALL,
            Barrier::NoAccess => MADV_DONTNEED,
        };
        advise(run, advice)
    }

    /// The same; if that fails, its content is as in staging.
    fn empty_or_not(&self, run: &Run, staging: usize) -> Result<Result<(), Errno>, Errno> {
        let emptied = self.empty(run);
        if emptied.is_err() {
            // It may have come to some, of which the content is gone.
            self.write(run, staging)?;
        }
        Ok(emptied)
    }

    /// Puts the content of a run that is shut there.
    fn write(&self, run: &Run, staging: usize) -> Result<(), Errno> {
        if self.is_guard() {
            advise(run, MADV_GUARD_REMOVE)?;
        }
        let (start, bytes) = place(run);
        calls::write_at(self.memory, staging, bytes, start)
    }

    /// Puts a run back, from staging. As [`take`](Self::take).
    pub fn fill(&self, run: &Run, staging: usize) -> Result<(u64, Errno), Errno> {
        if self.is_guard()
            && let Err(errno) = shut(run)
        {
            return Ok((0, errno));
        }
        let filled = self.write(run, staging);
        if filled.is_err() {
            self.empty(run)?;
        }
        if self.is_guard() || filled.is_ok() {
            open(run)?;
        }
        Ok(done(run, filled))
    }

    /// Has a run be empty, which is out or was.
    pub fn clear(&self, run: &Run) -> (u64, Errno) {
        let cleared = match self.barrier {
            Barrier::Guard => advise(run, MADV_GUARD_REMOVE),
            Barrier::NoAccess => open(run),
        };
        done(run, cleared)
    }
}

fn done(run: &Run, result: Result<(), Errno>) -> (u64, Errno) {
    match result {
        Ok(()) => (run.pages.into(), 0),
        Err(errno) => (0, errno),
    }
}
