//! Pages that go and come where no userfaultfd may be had.
//!
//! Owns: the program's memory, as a file, and how a run is taken out of it and put back.
//! Invariants: what is out has a guard (`MADV_GUARD_INSTALL`, Linux 6.13), so that every touch of
//! it raises SIGSEGV. While a run goes or comes nobody may touch it (PROT_NONE), or a write between
//! its reading and its guard would be lost, and a read between the guard's end and the content
//! would find zeros. It is read and written as a file meanwhile, which the kernel does for a file
//! of this kind whatever may be done with the memory. What may be done with it is restored, and the
//! mapping is one again.
//! Not here: which runs, and what may be done with them (the keeper says it).
//! Rejected: PROT_READ for a run that goes: a reader between the end of its page and its guard gets
//! a page of zeros.

use crate::calls::{self, Errno, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE};
use crate::words::{PAGE_BYTES, PROTECTED, Run};

/// The program's memory.
pub struct Touched {
    pub memory: i32,
}

/// Where a run is, and how large.
fn place(run: &Run) -> (usize, usize) {
    (run.address as usize, run.pages as usize * PAGE_BYTES)
}

fn protection(run: &Run) -> usize {
    match run.protection {
        0 => calls::PROT_READ_WRITE,
        protection => (protection & !PROTECTED) as usize,
    }
}

impl Touched {
    /// Takes a run out, to staging. Returns how many pages went, and what stopped it: all or none.
    /// An error of this: the run could not be left as it was.
    pub fn take(&self, run: &Run, staging: usize) -> Result<(u64, Errno), Errno> {
        if run.pages == 0 {
            return Ok((0, 0));
        }
        while_shut(run, |start, bytes| {
            if let Err(errno) = calls::read_at(self.memory, staging, bytes, start) {
                return Ok(Err(errno));
            }
            let guarded = calls::advise(start, bytes, MADV_GUARD_INSTALL);
            if guarded.is_err() {
                // It may have come to some, of which the content is gone.
                calls::advise(start, bytes, MADV_GUARD_REMOVE)?;
                calls::write_at(self.memory, staging, bytes, start)?;
            }
            Ok(guarded.map(drop))
        })
    }

    /// Puts a run back, from staging. As [`take`](Self::take).
    pub fn fill(&self, run: &Run, staging: usize) -> Result<(u64, Errno), Errno> {
        while_shut(run, |start, bytes| {
            let filled = calls::advise(start, bytes, MADV_GUARD_REMOVE)
                .and_then(|_| calls::write_at(self.memory, staging, bytes, start));
            if filled.is_err() {
                calls::advise(start, bytes, MADV_GUARD_INSTALL)?;
            }
            Ok(filled)
        })
    }

    /// Has a run be empty.
    pub fn clear(run: &Run) -> (u64, Errno) {
        let (start, bytes) = place(run);
        done(run, calls::advise(start, bytes, MADV_GUARD_REMOVE).map(drop))
    }
}

/// Does something with a run that nobody may touch meanwhile: where it starts, and its bytes.
fn while_shut(
    run: &Run,
    f: impl FnOnce(usize, usize) -> Result<Result<(), Errno>, Errno>,
) -> Result<(u64, Errno), Errno> {
    let (start, bytes) = place(run);
    if let Err(errno) = calls::protect(start, bytes, calls::PROT_NONE) {
        return Ok((0, errno));
    }
    let result = f(start, bytes)?;
    calls::protect(start, bytes, protection(run))?;
    Ok(done(run, result))
}

fn done(run: &Run, result: Result<(), Errno>) -> (u64, Errno) {
    match result {
        Ok(()) => (run.pages.into(), 0),
        Err(errno) => (0, errno),
    }
}
