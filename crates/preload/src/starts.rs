//! Examines the programs that the program starts: some of them will be outside the run.
//!
//! Owns: the exec family as far as it is called from outside libc, and `vfork`.
//! Invariants: nothing is allocated and no argument is changed, because the caller may be a
//! `vfork`ed child; a program that cannot be read is skipped.
//! Not here: refusing. A child may run without a limit; the summary says so. A program started by a
//! system call made without libc is not seen.

use crate::cpus;
use crate::pager::process;
use crate::real::{Next, system_call};
use crate::sandbox;
use libc::{c_char, c_int, c_void};
use overspill::escapes;
use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of a program that are read: its headers and the name of its loader.
const HEAD_BYTES: usize = 2048;
/// Depth of scripts run by scripts.
const SCRIPTS_MAX: usize = 2;

type Words = *const *const c_char;

unsafe extern "C" {
    static environ: Words;
}

/// Notes a program that is about to be started, with the environment `words` if known.
///
/// # Safety
/// `path` is a string or null, and so is the environment.
unsafe fn note(path: *const c_char, searches: bool, words: Option<Words>) {
    cpus::keep_own();
    let Some(process) = process().filter(|process| process.session.settings().children) else {
        return;
    };
    if path.is_null() || sandbox::is_filtered() {
        return;
    }
    // SAFETY: contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut buffer = [0u8; libc::PATH_MAX as usize];
    let Some(found) = find(path, searches, &mut buffer) else { return };
    let mut reasons = examine(found, SCRIPTS_MAX);
    // SAFETY: contract.
    if words.is_some_and(|words| unsafe { !has_both(words) }) {
        reasons |= escapes::CLEARED_ENVIRONMENT;
    }
    if reasons != 0 {
        process.session.add_verdict(reasons);
    }
}

/// Finds the file that would be executed; returns its path, terminated, in `buffer`.
fn find<'a>(path: &[u8], searches: bool, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let is_there = |buffer: &[u8]| {
        system_call!(libc::SYS_faccessat, libc::AT_FDCWD, buffer.as_ptr(), libc::X_OK) == 0
    };
    if !searches || path.contains(&b'/') {
        let len = join(b"", path, buffer)?;
        return is_there(buffer).then(|| CStr::from_bytes_until_nul(&buffer[..len]).ok())?;
    }
    // SAFETY: a string of the environment, or null; execvp reads it too.
    let list = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: as above.
    let list = if list.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(list) } };
    for directory in list.to_bytes().split(|&byte| byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        if let Some(len) = join(directory, path, buffer)
            && is_there(buffer)
        {
            return CStr::from_bytes_until_nul(&buffer[..len]).ok();
        }
    }
    None
}

/// Writes `directory/name` and a zero; returns the length.
fn join(directory: &[u8], name: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    let mut len = 0;
    for part in [directory, slash, name, b"\0"] {
        buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(len)
}

/// Returns true if an environment makes a program part of the run.
unsafe fn has_both(mut words: Words) -> bool {
    let (mut preload, mut session) = (false, false);
    // SAFETY: an environment is strings up to a null.
    unsafe {
        while !words.is_null() && !(*words).is_null() {
            let word = CStr::from_ptr(*words).to_bytes();
            preload |= word.starts_with(b"LD_PRELOAD=") && contains(word, b"liboverspill_preload");
            session |= word.starts_with(b"OVERSPILL_SESSION=");
            words = words.add(1);
        }
    }
    preload && session
}

fn contains(word: &[u8], part: &[u8]) -> bool {
    word.windows(part.len()).any(|window| window == part)
}

/// Returns why the program in a file would be outside the run, as bits of the verdict.
fn examine(path: &CStr, scripts_left: usize) -> u32 {
    let mut head = [0u8; HEAD_BYTES];
    let Some((len, privileged)) = read_head(path, &mut head) else { return 0 };
    let head = &head[..len];
    if privileged {
        return escapes::PRIVILEGED_PROGRAM;
    }
    if head.starts_with(b"\x7fELF") {
        return examine_elf(head, path.to_bytes()).unwrap_or(0);
    }
    let Some(line) = head.strip_prefix(b"#!").filter(|_| scripts_left > 0) else { return 0 };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let name = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let mut buffer = [0u8; 256];
    let interpreter = join(b"", name, &mut buffer);
    let interpreter = interpreter.and_then(|len| CStr::from_bytes_until_nul(&buffer[..len]).ok());
    interpreter.map_or(0, |path| examine(path, scripts_left - 1))
}

/// Reads the start of a file; returns its length, and whether the loader would treat it as a
/// program that gives its user more rights.
fn read_head(path: &CStr, head: &mut [u8]) -> Option<(usize, bool)> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = system_call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) as c_int;
    if fd < 0 {
        return None;
    }
    let n = system_call!(libc::SYS_read, fd, head.as_mut_ptr(), head.len());
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: an open descriptor; zeros are a value of the structure.
    let stat = unsafe {
        libc::fstat(fd, stat.as_mut_ptr());
        stat.assume_init()
    };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let sets_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user;
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    let sets_group = stat.st_mode & setgid == setgid && stat.st_gid != group;
    let name = c"security.capability";
    let capable = user != 0
        && system_call!(libc::SYS_fgetxattr, fd, name.as_ptr(), std::ptr::null::<u8>(), 0) > 0;
    system_call!(libc::SYS_close, fd);
    (n > 0).then_some((n as usize, sets_user || sets_group || capable))
}

/// Examines an ELF head; none if the head does not tell.
fn examine_elf(head: &[u8], path: &[u8]) -> Option<u32> {
    const CLASS_64: u8 = 2;
    const INTERPRETER: u64 = 3;
    if is_glibc_loader(path) {
        return Some(0);
    }
    if *head.get(4)? != CLASS_64 {
        return Some(escapes::FOREIGN_PROGRAM);
    }
    let (table, size, count) = (word(head, 32, 8)?, word(head, 54, 2)?, word(head, 56, 2)?);
    for n in 0..count {
        let at = (table + n * size) as usize;
        if word(head, at, 4)? == INTERPRETER {
            let (start, len) = (word(head, at + 8, 8)? as usize, word(head, at + 32, 8)? as usize);
            let name = head.get(start..start.checked_add(len)?)?;
            let glibc = is_glibc_loader(name);
            return Some(if glibc { 0 } else { escapes::FOREIGN_PROGRAM });
        }
    }
    Some(escapes::STATIC_PROGRAM)
}

fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld.so")
}

/// Returns `len` bytes at `at` as a number.
pub(crate) fn word(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(word))
}

/// execve(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Words, words: Words) -> c_int {
    // SAFETY: passed on.
    unsafe { note(path, false, Some(words)) };
    system_call!(libc::SYS_execve, path, argv, words) as c_int
}

/// execv(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Words) -> c_int {
    // SAFETY: passed on, with the environment that libc would use.
    unsafe { execve(path, argv, environ) }
}

static EXECVPE: Next = Next::new(c"execvpe");
static POSIX_SPAWN: Next = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::new(c"posix_spawnp");

/// execvpe(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(name: *const c_char, argv: Words, words: Words) -> c_int {
    // SAFETY: libc's function of this name and type; passed on.
    unsafe {
        note(name, true, Some(words));
        let next: unsafe extern "C" fn(*const c_char, Words, Words) -> c_int =
            std::mem::transmute(EXECVPE.address());
        next(name, argv, words)
    }
}

/// execvp(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(name: *const c_char, argv: Words) -> c_int {
    // SAFETY: passed on, with the environment that libc would use.
    unsafe { execvpe(name, argv, environ) }
}

type Spawn = unsafe extern "C" fn(
    *mut c_int,
    *const c_char,
    *const c_void,
    *const c_void,
    Words,
    Words,
) -> c_int;

/// A function of this family, which looks for a name in the directories of PATH if `$searches`.
macro_rules! spawns {
    ($name:ident, $next:ident, $searches:literal) => {
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut c_int,
            name: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Words,
            words: Words,
        ) -> c_int {
            // SAFETY: libc's function of this name and type; passed on.
            unsafe {
                note(name, $searches, Some(words));
                let next: Spawn = std::mem::transmute($next.address());
                next(pid, name, actions, attributes, argv, words)
            }
        }
    };
}

spawns!(posix_spawn, POSIX_SPAWN, false);
spawns!(posix_spawnp, POSIX_SPAWNP, true);

/// Addresses of libc's variadic functions, to jump to: Rust cannot pass their arguments on.
static EXECL: AtomicUsize = AtomicUsize::new(0);
static EXECLP: AtomicUsize = AtomicUsize::new(0);
static EXECLE: AtomicUsize = AtomicUsize::new(0);
/// Of one that returns twice.
static VFORK: AtomicUsize = AtomicUsize::new(0);

/// Looks up, before the program begins, what a child of vfork could not.
pub(crate) fn prepare() {
    static NEXT: [Next; 4] =
        [Next::new(c"execl"), Next::new(c"execlp"), Next::new(c"execle"), Next::new(c"vfork")];
    for (next, place) in NEXT.iter().zip([&EXECL, &EXECLP, &EXECLE, &VFORK]) {
        place.store(next.address().addr(), Relaxed);
    }
    [&EXECVPE, &POSIX_SPAWN, &POSIX_SPAWNP].into_iter().for_each(|next| {
        next.address();
    });
}

unsafe extern "C" fn note_execl(path: *const c_char) -> usize {
    // SAFETY: as the caller's.
    unsafe { note(path, false, Some(environ)) };
    EXECL.load(Relaxed)
}

unsafe extern "C" fn note_execlp(name: *const c_char) -> usize {
    // SAFETY: as the caller's.
    unsafe { note(name, true, Some(environ)) };
    EXECLP.load(Relaxed)
}

unsafe extern "C" fn note_execle(path: *const c_char) -> usize {
    // SAFETY: as the caller's; its environment follows arguments whose number is not known here.
    unsafe { note(path, false, None) };
    EXECLE.load(Relaxed)
}

/// Calls `$note` with the first argument and jumps to the address it returns, with all arguments
/// unchanged.
macro_rules! looked_at {
    ($note:ident) => {{
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            "endbr64",
            // Six words and the return address, and one for the alignment.
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "call {note}",
            "mov r11, rax",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp r11",
            note = sym $note,
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            "hint #34",
            "stp x29, x30, [sp, #-80]!",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "bl {note}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            note = sym $note,
        );
    }};
}

/// execl(3), whose other arguments are passed through.
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execl(path: *const c_char) -> c_int {
    looked_at!(note_execl)
}

/// execlp(3), whose other arguments are passed through.
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execlp(name: *const c_char) -> c_int {
    looked_at!(note_execlp)
}

/// execle(3), whose other arguments are passed through.
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execle(path: *const c_char) -> c_int {
    looked_at!(note_execle)
}

extern "C" fn note_vfork() -> usize {
    cpus::keep_own();
    VFORK.load(Relaxed)
}

/// vfork(2).
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> c_int {
    looked_at!(note_vfork)
}
