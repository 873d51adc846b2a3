//! Whether the dynamic loader will load the preload object into an ELF program.
//!
//! Invariants: only the headers and some names are read, whatever the size of the file.
//! Programs with a sanitizer are refused too: its runtime ends the program if another object is
//! loaded first.
//! Rejected: leaving this to the loader. It ignores what it cannot preload, and the program would
//! run without a limit.

use crate::error::{FAILED, NOT_EXECUTABLE};
use object::elf::{self, FileHeader32, FileHeader64, Machine};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use rustix::fs::{fgetxattr_query, fstat};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The processor that this program, and so the preload object, is built for.
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
    #[error("is statically linked, nothing can be preloaded into it: use a build with shared libc")]
    Static,
    #[error(
        "is a Go program, whose runtime makes its system calls itself: overspill would lose its pages"
    )]
    Go,
    #[error("has the loader {}, which does not exist: install it", .0.display())]
    NoLoader(PathBuf),
    #[error("has the loader {}: overspill needs glibc, use a build for it", .0.display())]
    NotGlibc(PathBuf),
    #[error("is setuid or setgid, so nothing is preloaded into it: run a copy without that bit")]
    Setuid,
    #[error(
        "is built with a sanitizer ({0}), which must be the only allocator: use a build without"
    )]
    Sanitizer(&'static str),
    #[error("has file capabilities, so nothing is preloaded into it: run a copy without them")]
    Capabilities,
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

/// Refuses an ELF file that would run without the preload object.
///
/// # Errors
/// See [`Refusal`].
pub(super) fn check(file: File) -> Result<(), Refusal> {
    check_privileges(&file)?;
    let data = &ReadCache::new(file);
    if is_go(data) {
        return Err(Refusal::Go);
    }
    let loader = loader(data)?.ok_or(Refusal::Static)?;
    let glibc = loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
    if !glibc {
        return Err(Refusal::NotGlibc(loader));
    }
    if !loader.exists() {
        return Err(Refusal::NoLoader(loader));
    }
    match sanitizer(data) {
        Some(name) => Err(Refusal::Sanitizer(name)),
        None => Ok(()),
    }
}

/// Refuses an ELF file that no agent can live in: it has the code of one kind of processor. Neither
/// a loader nor a libc matters.
///
/// # Errors
/// [`Refusal::Damaged`], [`Refusal::Bits32`], [`Refusal::OtherMachine`], [`Refusal::NoLoader`].
pub(super) fn check_machine(file: File) -> Result<(), Refusal> {
    match loader(&ReadCache::new(file))? {
        Some(loader) if !loader.exists() => Err(Refusal::NoLoader(loader)),
        _ => Ok(()),
    }
}

/// Refuses setuid and setgid programs, into which the loader preloads nothing by path; also if the
/// user gains no rights by it, so that the same command works for all or for none.
fn check_privileges(file: &File) -> Result<(), Refusal> {
    let mode = fstat(file).map_err(damaged)?.st_mode;
    // Without execute permission for the group, the bit has another meaning.
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    if mode & libc::S_ISUID != 0 || mode & setgid == setgid {
        return Err(Refusal::Setuid);
    }
    match fgetxattr_query(file, c"security.capability") {
        Ok(_) => Err(Refusal::Capabilities),
        Err(_) => Ok(()),
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

/// True if the program has the section in which Go writes its version.
fn is_go(data: &ReadCache<File>) -> bool {
    let named = || {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        sections.section_by_name(endian, b".go.buildinfo")
    };
    named().is_some()
}

/// Returns the sanitizer whose runtime the program starts, from its dynamic symbols.
fn sanitizer(data: &ReadCache<File>) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 5] = [
        (b"__asan_init", "AddressSanitizer"),
        (b"__hwasan_init", "HWAddressSanitizer"),
        (b"__lsan_init", "LeakSanitizer"),
        (b"__msan_init", "MemorySanitizer"),
        (b"__tsan_init", "ThreadSanitizer"),
    ];
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let symbols =
        header.sections(endian, data).ok()?.symbols(endian, data, elf::SHT_DYNSYM).ok()?;
    let mut names = symbols.iter().filter_map(|symbol| symbols.symbol_name(endian, symbol).ok());
    names.find_map(|name| STARTS.iter().find(|(start, _)| *start == name)).map(|(_, what)| *what)
}

fn damaged(error: impl Display) -> Refusal {
    Refusal::Damaged(error.to_string())
}
