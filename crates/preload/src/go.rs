//! Whether this is a Go program. Its runtime makes its system calls itself, so what it unmaps and
//! maps again is not seen here, and pages would be lost.
//!
//! Invariants: a program that cannot be read is none.
//! Not here: what comes of it (`pager`); objects with Go in them that another program loads.

use crate::starts::word;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The section in which every Go program since Go 1.13 has its version, stripped or not.
const SECTION: &[u8] = b"\0.go.buildinfo\0";
/// Names of sections have no more bytes in any program.
const NAMES_BYTES_MAX: u64 = 64 << 10;

/// True if this process's program is one. `proc` is that of the supervisor: there may be none here.
pub(crate) fn is_program(proc: Option<&OwnedFd>) -> bool {
    let names = proc.and_then(open).and_then(|program| section_names(&program));
    names.is_some_and(|names| names.windows(SECTION.len()).any(|window| window == SECTION))
}

fn open(proc: &OwnedFd) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(proc, "self/exe", flags, Mode::empty()).ok().map(File::from)
}

/// Returns the names of a program's sections, with a zero before and after each.
fn section_names(program: &File) -> Option<Vec<u8>> {
    let header = read(program, 0, 64)?;
    let (table, size, index) =
        (word(&header, 40, 8)?, word(&header, 58, 2)?, word(&header, 62, 2)?);
    let names = read(program, table.checked_add(size * index)?, 64)?;
    let (start, len) = (word(&names, 24, 8)?, word(&names, 32, 8)?);
    read(program, start, len.min(NAMES_BYTES_MAX))
}

fn read(program: &File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    program.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
}
