//! Filling in the holes of a core.
//!
//! Owns: the core's layout: an ELF file with a segment for each mapping, and notes before them.
//! Invariants: what is marked as out is read from the address space, by which it comes back as
//! for a thread of the program: within the limit, and others leave for it. So is what is there
//! and zeros in the core: it may have come since, as what is read ahead does. Nothing is written
//! beyond a segment, beyond the file's end, or once another core is being written there.

use object::elf::{ET_CORE, FileHeader64, NT_PRPSINFO, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::{Endianness, ReadCache};
use overspill_base::PAGE_SIZE;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use overspill_guest::pagemap::{Entry, Pagemap};
use overspill_guest::{Vpn, read_as_a_thread};
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Pages lost, or why the rest could not be filled in.
pub(super) type Filled = io::Result<u64>;

type Header = FileHeader64<Endianness>;

/// Where a process has its number in what a core says of it (`linux/elfcore.h`).
const PRPSINFO_PID: Range<usize> = 24..28;
/// Of the notes so much is read: that of the process is the second one.
const NOTES_BYTES: u64 = 4096;
const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
/// Addresses from here on are the kernel's: a core has one of its pages, too.
const KERNEL: u64 = 1 << 63;

/// A mapping in a core.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    bytes: u64,
    offset: u64,
}

impl Segment {
    fn offset_of(&self, at: Vpn) -> u64 {
        self.offset + (at.address() - self.address)
    }
}

/// A core.
#[derive(Debug)]
pub(super) struct Core {
    file: File,
    length: u64,
    endian: Endianness,
    /// Where the notes are, and what they begin with.
    notes_at: u64,
    notes: Vec<u8>,
    segments: Vec<Segment>,
}

impl Core {
    /// Reads what a file says of itself; `None` if it is no core.
    pub(super) fn of(file: File) -> Option<Self> {
        let length = file.metadata().ok()?.len();
        let cache = ReadCache::new(&file);
        let header = Header::parse(&cache).ok()?;
        let endian = header.endian().ok()?;
        if header.e_type(endian) != ET_CORE {
            return None;
        }
        let all = header.program_headers(endian, &cache).ok()?;
        let segment = |segment: &_| Segment {
            address: ProgramHeader::p_vaddr(segment, endian),
            bytes: ProgramHeader::p_filesz(segment, endian),
            offset: ProgramHeader::p_offset(segment, endian),
        };
        let of_kind = |kind| all.iter().filter(move |of| of.p_type(endian) == kind).map(segment);
        let notes_at = of_kind(PT_NOTE).next()?;
        let loads = of_kind(PT_LOAD).filter(|segment| segment.address < KERNEL).collect();
        let mut notes = vec![0; notes_at.bytes.min(NOTES_BYTES) as usize];
        let notes_at = notes_at.offset;
        file.read_exact_at(&mut notes, notes_at).ok()?;
        drop(cache);
        Some(Self { file, length, endian, notes_at, notes, segments: loads })
    }

    /// The number of the process that it is of, as that saw it.
    pub(super) fn number(&self) -> Option<i32> {
        let mut notes = NoteIterator::<Header>::new(self.endian, 4, &self.notes).ok()?;
        while let Some(note) = notes.next().ok()? {
            if note.n_type(self.endian) == NT_PRPSINFO {
                let number = note.desc().get(PRPSINFO_PID)?.try_into().ok()?;
                return Some(i32::from_ne_bytes(number));
            }
        }
        None
    }

    /// False if another core is being written there by now: the kernel takes the same file again.
    fn is_still(&self) -> bool {
        let mut notes = vec![0; self.notes.len()];
        self.file.read_exact_at(&mut notes, self.notes_at).is_ok() && notes == self.notes
    }

    /// True if it has nothing but zeros there.
    fn lacks(&self, segment: &Segment, at: Vpn) -> io::Result<bool> {
        let mut page = [0; PAGE_SIZE];
        let offset = segment.offset_of(at);
        if offset + PAGE_SIZE as u64 <= self.length {
            self.file.read_exact_at(&mut page, offset)?;
        }
        Ok(page == ZEROS)
    }

    fn write(&self, page: &[u8; PAGE_SIZE], offset: u64) -> io::Result<()> {
        if offset + PAGE_SIZE as u64 > self.length {
            return Ok(());
        }
        self.file.write_all_at(page, offset)
    }
}

/// Fills in what is out of the address space that `agent` has, and counts that. Waits for all of
/// it.
pub(super) fn fill(core: &Core, agent: Pid, filled: &AtomicU64) -> Filled {
    let pagemap = Pagemap::new(File::open(format!("/proc/{agent}/pagemap"))?.into());
    let mut lost = 0;
    for segment in &core.segments {
        for (run, entry) in runs_of(segment, &pagemap)? {
            if !core.is_still() {
                return Err(io::Error::other("another process dumps core to the same file"));
            }
            for at in (run.start.0..run.end.0).map(Vpn) {
                if entry == Entry::Marked || core.lacks(segment, at)? {
                    lost += u64::from(!fill_page(core, segment, (agent, at))?);
                }
                // Relaxed: a hint for who waits.
                filled.fetch_add(1, Relaxed);
            }
        }
    }
    Ok(lost)
}

/// What there is of a segment, in memory or out.
fn runs_of(segment: &Segment, pagemap: &Pagemap) -> Result<Vec<(Range<Vpn>, Entry)>, Errno> {
    let mut runs = Vec::new();
    let whole = Vpn::of(segment.address)..Vpn::of(segment.address.saturating_add(segment.bytes));
    pagemap.runs(&whole, |run, entry| {
        if matches!(entry, Entry::Marked | Entry::Present) {
            runs.push((run, entry));
        }
    })?;
    Ok(runs)
}

/// False if the page is lost.
fn fill_page(core: &Core, segment: &Segment, (agent, at): (Pid, Vpn)) -> io::Result<bool> {
    let mut page = [0; PAGE_SIZE];
    match read_as_a_thread(agent, at.address(), &mut page) {
        Ok(()) => {}
        Err(Errno::FAULT) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    if page != ZEROS {
        core.write(&page, segment.offset_of(at))?;
    }
    Ok(true)
}
