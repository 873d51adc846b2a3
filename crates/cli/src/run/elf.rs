//! Whether an agent can live in an ELF program.
//!
//! Invariants: only the headers and some names are read, whatever the size of the file.

use crate::status::{FAILED, NOT_EXECUTABLE};
use object::elf::{self, FileHeader32, FileHeader64, Machine};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The processor that this program, and so the agent, is built for.
#[cfg(target_arch = "x86_64")]
const MACHINE: Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: Machine = elf::EM_AARCH64;

/// Why an ELF program cannot be paged.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("is damaged: {0}; install it again")]
    Damaged(String),
    #[error("is a 32-bit program: overspill needs a 64-bit build of it")]
    Bits32,
    #[error("is built for another kind of processor: use a build for this machine")]
    OtherMachine,
    #[error("has the loader {}, which does not exist: install it", .0.display())]
    NoLoader(PathBuf),
}

impl Refusal {
    /// Returns the exit status, by whose fault it is.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::Damaged(_) | Self::NoLoader(_) => NOT_EXECUTABLE,
            _ => FAILED,
        }
    }
}

/// Refuses an ELF file that no agent can live in: it has the code of one kind of processor. Neither
/// a loader nor a libc matters.
///
/// # Errors
/// [`Refusal::Damaged`], [`Refusal::Bits32`], [`Refusal::OtherMachine`], [`Refusal::NoLoader`].
pub(super) fn check(file: File) -> Result<(), Refusal> {
    match loader(&ReadCache::new(file))? {
        Some(loader) if !loader.exists() => Err(Refusal::NoLoader(loader)),
        _ => Ok(()),
    }
}

/// Returns the name of the program's loader; none if it is statically linked.
fn loader(data: &ReadCache<File>) -> Result<Option<PathBuf>, Refusal> {
    let header = match FileHeader64::<Endianness>::parse(data) {
        Ok(header) => header,
        Err(_) if FileHeader32::<Endianness>::parse(data).is_ok() => return Err(Refusal::Bits32),
        Err(error) => return Err(damaged(error)),
    };
    let endian = header.endian().map_err(damaged)?;
    if header.e_machine(endian) != MACHINE {
        return Err(Refusal::OtherMachine);
    }
    let segments = header.program_headers(endian, data).map_err(damaged)?;
    let names = segments.iter().map(|segment| segment.interpreter(endian, data));
    let name = names.filter_map(Result::transpose).next().transpose().map_err(damaged)?;
    Ok(name.map(|name| Path::new(OsStr::from_bytes(name)).to_owned()))
}

fn damaged(error: impl Display) -> Refusal {
    Refusal::Damaged(error.to_string())
}
