//! Memory that escapes the limit, noted for the summary.
//!
//! Owns: examining the process's memory when it ends.
//! Invariants: nothing is allocated, because `_exit` may be called anywhere, and only the session
//! is changed. A process that is killed, or does not end through libc, notes nothing.
//! Not here: programs that are started ([`crate::starts`]), the words (`overspill::escapes`).
//! Rejected: looking from time to time. It would miss short processes and slow down long ones.

use crate::pager::{is_managed, process};
use crate::real::system_call;
use crate::sandbox;
use libc::c_int;
use overspill::escapes;
use overspill_base::PAGE_SIZE;
use overspill_base::stats::Event;

/// The least memory outside the limit that is noted.
const LEAST_KIB: u64 = 4 << 10;

/// Runs when the program has ended by return or `exit`, after its own handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = note;

/// _exit(2).
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    note();
    loop {
        system_call!(libc::SYS_exit_group, status);
    }
}

/// _Exit(3).
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

extern "C" fn note() {
    let Some(process) = process().filter(|_| !sandbox::is_filtered()) else { return };
    let limit_kib = process.session.settings().memory_bytes >> 10;
    let most_kib = (limit_kib / 10).max(LEAST_KIB);
    let engine = process.pager.engine();
    let managed_kib =
        (engine.leased().saturating_sub(engine.status().free_frames) * PAGE_SIZE) as u64 >> 10;
    let mut resident_kib = 0;
    each_line("/proc/self/status\0", |line| {
        resident_kib += kib_of(line, b"RssAnon:") + kib_of(line, b"RssShmem:");
    });
    if resident_kib.saturating_sub(managed_kib) <= most_kib {
        return;
    }
    let mut found = Found::default();
    each_line("/proc/self/smaps\0", |line| found.take(line));
    let outside_kib: u64 = found.kib.iter().sum();
    if outside_kib > most_kib {
        let large = KINDS.iter().zip(found.kib).filter(|&(_, kib)| kib > outside_kib / 4);
        process.session.add_verdict(large.fold(0, |bits, (kind, _)| bits | kind));
        process.pager.engine().stats().add(Event::outside_kib, outside_kib);
    }
}

/// The kinds of mappings, by their index in [`Found`].
const KINDS: [u32; 6] = [
    escapes::STATIC_DATA,
    escapes::BRK,
    escapes::SHARED,
    escapes::EXECUTABLE,
    escapes::HUGE,
    escapes::STACK,
];

/// What the lines of smaps add up to.
#[derive(Default)]
struct Found {
    kib: [u64; 6],
    /// Kind of the mapping whose lines are being read, and whether its Rss counts.
    now: Option<usize>,
    counts_rss: bool,
    /// Where a mapping of an object ended; its uninitialised variables follow.
    object_end: usize,
}

impl Found {
    fn take(&mut self, line: &[u8]) {
        if let Some(mapping) = Mapping::parse(line) {
            self.now = self.kind(&mapping);
            self.counts_rss = self.now == Some(2);
            return;
        }
        self.kib[4] += kib_of(line, b"Private_Hugetlb:") + kib_of(line, b"Shared_Hugetlb:");
        if let Some(kind) = self.now {
            let name: &[u8] = if self.counts_rss { b"Rss:" } else { b"Anonymous:" };
            self.kib[kind] += kib_of(line, name);
        }
    }

    fn kind(&mut self, mapping: &Mapping<'_>) -> Option<usize> {
        let Mapping { start, end, rights, name } = *mapping;
        let shared = rights[3] == b's';
        if shared {
            let ours = name.starts_with(b"/memfd:overspill");
            let in_memory: [&[u8]; 4] = [b"/memfd:", b"/dev/zero", b"/SYSV", b"/dev/shm/"];
            let counts = !ours && in_memory.iter().any(|start| name.starts_with(start));
            return counts.then_some(2);
        }
        if is_managed(start) {
            return None;
        }
        if name.starts_with(b"/") {
            self.object_end = end;
            return Some(0);
        }
        match name {
            b"[heap]" => Some(1),
            b"[stack]" => Some(5),
            b"" if start == self.object_end => Some(0),
            b"" if rights[2] == b'x' => Some(3),
            _ => None,
        }
    }
}

/// The first line of a mapping.
struct Mapping<'a> {
    start: usize,
    end: usize,
    rights: [u8; 4],
    name: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// None for the other lines, which start with a word and a colon.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let dash = line.iter().position(|&byte| byte == b'-')?;
        let (start, rest) = (number(&line[..dash], 16)?, &line[dash + 1..]);
        let space = rest.iter().position(|&byte| byte == b' ')?;
        let (end, rest) = (number(&rest[..space], 16)?, &rest[space + 1..]);
        let rights = rest.get(..4)?.try_into().ok()?;
        // Rights, offset, device, inode; then blanks, and the name.
        let inode_end = rest.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(3);
        let name = inode_end.map_or(&rest[rest.len()..], |(at, _)| &rest[at..]);
        Some(Self { start, end, rights, name: name.trim_ascii() })
    }
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Returns the KiB of a line that starts with `name`, otherwise 0.
fn kib_of(line: &[u8], name: &[u8]) -> u64 {
    let Some(rest) = line.strip_prefix(name) else { return 0 };
    let digits = rest.trim_ascii().split(|&byte| byte == b' ').next().unwrap_or_default();
    number(digits, 10).unwrap_or(0) as u64
}

/// Calls `take` with each line of a file; `path` ends with a zero byte.
fn each_line(path: &str, mut take: impl FnMut(&[u8])) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = system_call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    if fd < 0 {
        return;
    }
    let mut buffer = [0u8; 4096];
    let mut filled = 0;
    loop {
        let rest = &mut buffer[filled..];
        let n = system_call!(libc::SYS_read, fd, rest.as_mut_ptr(), rest.len());
        if n <= 0 {
            break;
        }
        filled += n as usize;
        let mut from = 0;
        while let Some(len) = buffer[from..filled].iter().position(|&byte| byte == b'\n') {
            take(&buffer[from..from + len]);
            from += len + 1;
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
        // A line longer than the buffer has a long name; it is taken in pieces.
        if filled == buffer.len() {
            take(&buffer);
            filled = 0;
        }
    }
    system_call!(libc::SYS_close, fd);
}
