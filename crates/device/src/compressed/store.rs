//! The memory of compressed pages.
//!
//! Owns: a memory file: a word per slot ([`super::word`]), a word per span ([`super::spans`]), the
//! sums, and behind them the spans themselves.
//! Invariants: an object is written before its slot's word names it, and its place is released
//! after no word names it any more. There are more spans than slots, so a write never fails because
//! the file is full, wherever the places are; only spans in use take memory. Slots are written,
//! read and forgotten by one thread at a time, which the page's lock is for.
//! Not here: compression ([`super::codec`]).
//!
//! Only words are mapped. Objects are copied by system calls, because mapped objects would count as
//! the program's memory and break its limit, could be overwritten by its stray pointers, and could
//! change under a decompressor that reads twice.

use super::Usage;
use super::spans::{Cursors, Place, SPAN_BYTES, SUMS, Spans, Sum};
use super::word::Content;
use crate::FreeNotify;
use overspill_base::shared::{Mapping, Table};
use overspill_base::{PAGE_SIZE, Slot};
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom};
use rustix::fs::{fallocate, fstat, ftruncate, memfd_create, seek};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Spans beyond one per slot: each write that is under way has a place, and the slot its old one.
const SPARE_SPANS: usize = 4096;

/// The layout of the file.
#[derive(Clone, Copy, Debug)]
struct Layout {
    slots: usize,
    spans: usize,
    spans_at: usize,
    sums_at: usize,
    data_at: usize,
}

impl Layout {
    fn new(slots: u32) -> Self {
        let slots = slots as usize;
        let spans = slots + SPARE_SPANS;
        let spans_at = (slots * 8).next_multiple_of(PAGE_SIZE);
        let sums_at = spans_at + (spans * 8).next_multiple_of(PAGE_SIZE);
        let data_at = sums_at + (SUMS * 8).next_multiple_of(PAGE_SIZE);
        Self { slots, spans, spans_at, sums_at, data_at }
    }

    fn len_bytes(&self) -> u64 {
        (self.data_at + self.spans * SPAN_BYTES) as u64
    }
}

/// The result of reading a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The slot's word says what the page repeats, and the page is there.
    Filled,
    /// The page is there.
    Page,
    /// This many bytes of the buffer are the page, compressed.
    Compressed(usize),
    /// The slot's word is not valid.
    Damage,
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    file: OwnedFd,
    slots: Table<AtomicU64>,
    spans: Spans,
    data_at: u64,
}

impl Store {
    /// Creates an empty store for `slots` slots.
    ///
    /// # Errors
    /// The error of creating a memory file, or of mapping its words.
    pub(super) fn create(slots: u32) -> Result<Self, Errno> {
        let file = memfd_create("overspill-compressed", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, Layout::new(slots).len_bytes())?;
        Self::attach(file, slots)
    }

    /// Attaches to the store that another process created in `file`.
    ///
    /// # Errors
    /// The error of mmap.
    pub(super) fn attach(file: OwnedFd, slots: u32) -> Result<Self, Errno> {
        let layout = Layout::new(slots);
        let words = Arc::new(Mapping::shared(&file, layout.data_at)?);
        let table = |at, len| Table::within(&words, at, len);
        // As many as hold all slots' pages uncompressed: beyond that the store would not save
        // memory.
        let budget = layout.slots as u64 * PAGE_SIZE as u64 / SPAN_BYTES as u64;
        let (of_spans, sums) = (table(layout.spans_at, layout.spans), table(layout.sums_at, SUMS));
        Ok(Self {
            slots: table(0, layout.slots),
            spans: Spans::new(of_spans, sums, budget),
            data_at: layout.data_at as u64,
            file,
        })
    }

    /// Makes `slot` a page filled with `word`. False if that has no representation as a slot's
    /// word.
    pub(super) fn fill(&self, slot: Slot, word: u64) -> bool {
        let told = Content::Filled(word).to_word();
        told.into_iter().for_each(|word| self.replace(slot, word));
        told.is_some()
    }

    /// Stores `bytes`, a page or its compressed form, as the content of `slot`.
    ///
    /// # Errors
    /// ENOSPC if every span is in use, ENOMEM if the system has no memory. The slot then holds what
    /// it held before.
    pub(super) fn put(&self, slot: Slot, bytes: &[u8], cursors: &mut Cursors) -> Result<(), Errno> {
        let (place, class) = self.spans.take(bytes.len(), cursors).ok_or(Errno::NOSPC)?;
        if let Err(errno) = self.write_all(bytes, self.data_at + place.offset_bytes(class)) {
            self.release(place);
            return Err(errno);
        }
        let object = Content::Object { place, len_bytes: bytes.len() };
        self.replace(slot, object.to_word().expect("objects have words"));
        Ok(())
    }

    /// Reads `slot` into `page`, or its compressed form into `buffer`, which has a page too.
    ///
    /// # Errors
    /// The error of pread.
    pub(super) fn get(
        &self,
        slot: Slot,
        page: &mut [u8],
        buffer: &mut [u8],
    ) -> Result<Found, Errno> {
        // Acquire pairs with the AcqRel in `replace`: the object is whole.
        let (place, len) = match Content::of_word(self.slots[slot.index()].load(Acquire)) {
            Content::Filled(word) => {
                page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
                return Ok(Found::Filled);
            }
            Content::Object { place, len_bytes } => (place, len_bytes),
        };
        let Some(class) = self.spans.class_of(place).filter(|class| len <= class.place_bytes())
        else {
            return Ok(Found::Damage);
        };
        let offset = self.data_at + place.offset_bytes(class);
        if len == PAGE_SIZE {
            return self.read_exact(page, offset).map(|()| Found::Page);
        }
        self.read_exact(&mut buffer[..len], offset).map(|()| Found::Compressed(len))
    }

    /// Forgets what is in `slot`: it reads as zeros.
    pub(super) fn forget(&self, slot: Slot) {
        self.replace(slot, 0);
    }

    fn replace(&self, slot: Slot, word: u64) {
        let old = self.slots[slot.index()].swap(word, AcqRel);
        match (old != 0, word != 0) {
            (false, true) => self.spans.count_up(Sum::Pages, Sum::PagesMax),
            (true, false) => self.spans.count_down(Sum::Pages),
            _ => {}
        }
        if let Content::Object { place, .. } = Content::of_word(old) {
            self.release(place);
        }
    }

    /// If the memory cannot be given back, the span can still be used again.
    fn release(&self, place: Place) {
        self.spans.release(place, |span| {
            let start = self.data_at + u64::from(span) * SPAN_BYTES as u64;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = retry_on_intr(|| fallocate(&self.file, how, start, SPAN_BYTES as u64));
        });
    }

    fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let written = retry_on_intr(|| pwrite(&self.file, bytes, offset))?;
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    fn read_exact(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match retry_on_intr(|| pread(&self.file, &mut *bytes, offset))? {
                0 => return Err(Errno::IO),
                read => {
                    bytes = &mut bytes[read..];
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }

    /// The words of slots, but for those in parts of the file that nobody has written to yet: a
    /// look at these would make memory of them.
    fn words_in_use(&self) -> impl Iterator<Item = u64> {
        let words = |bytes: u64| bytes as usize / size_of::<u64>();
        let parts = parts_with_data(&self.file, size_of_val(&self.slots[..]) as u64);
        let slots = parts.into_iter().map(move |part| words(part.start)..words(part.end));
        slots.flat_map(|slots| &self.slots[slots]).map(|word| word.load(Acquire))
    }

    /// Returns the current usage. Reads every word that was ever used.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage {
            memory_bytes: fstat(&self.file).map_or(0, |stat| stat.st_blocks as u64 * 512),
            memory_bytes_max: self.spans.sum(Sum::SpansMax) * SPAN_BYTES as u64,
            held_pages_max: self.spans.sum(Sum::PagesMax),
            ..Usage::default()
        };
        for word in self.words_in_use().filter(|&word| word != 0) {
            usage.held_pages += 1;
            match Content::of_word(word) {
                Content::Filled(_) => usage.filled_pages += 1,
                Content::Object { len_bytes: PAGE_SIZE, .. } => usage.incompressible_pages += 1,
                Content::Object { len_bytes, .. } => usage.compressed_bytes += len_bytes as u64,
            }
        }
        usage
    }
}

/// The parts of the first `bytes` bytes of a file that have memory.
fn parts_with_data(file: &OwnedFd, bytes: u64) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < bytes
        // Nothing but holes: ENXIO.
        && let Ok(start) = seek(file, SeekFrom::Data(at))
        && start < bytes
    {
        at = seek(file, SeekFrom::Hole(start)).unwrap_or(bytes).min(bytes);
        parts.push(start..at);
    }
    parts
}

impl FreeNotify for Store {
    fn slot_free(&self, slot: Slot) {
        self.forget(slot);
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::atomic::Ordering::Release;

    /// Damage for tests, and checks that must hold when no thread is active.
    impl Store {
        /// Puts `word` into a slot, as a stray write would.
        pub(in crate::compressed) fn damage(&self, slot: Slot, word: u64) {
            self.slots[slot.index()].store(word, Release);
        }

        /// The word of a slot.
        pub(in crate::compressed) fn word(&self, slot: Slot) -> u64 {
            self.slots[slot.index()].load(Acquire)
        }

        /// Verifies every sum: objects and taken places, bytes and memory.
        pub(in crate::compressed) fn check(&self) {
            let mut named = HashMap::new();
            for (slot, word) in self.slots.iter().map(|word| word.load(Acquire)).enumerate() {
                let Content::Object { place, len_bytes } = Content::of_word(word) else { continue };
                let class = self.spans.class_of(place).expect("a named place is taken");
                assert!(len_bytes <= class.place_bytes(), "slot {slot}");
                assert_eq!(named.insert(place, slot), None, "{place:?} is named twice");
            }
            let places: u32 = self.spans.in_use().sum();
            assert_eq!(places as usize, named.len(), "places that are taken and named by nobody");
            let usage = self.usage();
            let spans = self.spans.in_use().count() as u64;
            assert_eq!(self.spans.sum(Sum::Spans), spans);
            assert_eq!(self.spans.sum(Sum::Pages), usage.held_pages);
            let tables = self.data_at;
            assert!(usage.memory_bytes <= tables + spans * SPAN_BYTES as u64, "{usage:?}");
        }
    }

    #[test]
    fn a_look_costs_nothing() {
        let store = Store::create(1 << 24).unwrap();
        let blocks = || fstat(&store.file).unwrap().st_blocks;
        // The page of sums.
        assert_eq!(store.usage().held_pages, 0);
        assert_eq!(blocks(), 8);
        for slot in [0, 1 << 20, (1 << 24) - 1] {
            assert!(store.fill(Slot(slot), 7));
        }
        let before = blocks();
        assert_eq!(store.usage().filled_pages, 3);
        assert_eq!(blocks(), before);
    }
}
