//! The word of a pool's page: where it is, and which threads use it.
//!
//! Owns: the packing, the transitions, and the threads that sleep for a page.
//!
//! ```text
//! bits  0..28  frame             bit 29  WRITER: one thread may change it
//! bit  28      PRESENT           bit 30  WAITERS: threads sleep until it is released
//! bits 33..44  pins: readers     bit 31  REFERENCED: used again since it was published
//! bits 44..64  version           bit 32  CHANGED: has had a writer since it was published
//!
//! PRESENT WRITER pins
//!    0      0      0    absent: only the engine, which holds its page lock, changes the word
//!    1      0      0    idle: may be unpublished
//!    1      0      n    n readers
//!    1      1      0    one writer
//!
//! absent ──publish, version + 1──> idle ──read──> readers ──last release──> idle
//!    ^                             │ └──write──> writer ──release, version + 1──┘
//!    └───────────unpublish──────────────┘
//! ```
//!
//! Invariants: WRITER excludes pins. WAITERS is set by a thread before it sleeps, while the page is
//! in use, and cleared by the last holder, which wakes the sleepers; while it is set, new threads
//! sleep too, so that a writer gets its turn. A word with WAITERS is not unpublished. A look
//! without a pin ([`Words::peek`]) is valid if frame, version and bits of the word are the same
//! afterwards: before a writer or a device writes a page's bytes, WRITER is set or PRESENT cleared,
//! and afterwards the version is incremented. The version wraps after a million changes; a look
//! during which the page changes a multiple of that often is not detected, as with any sequence
//! counter.
//! Not here: bringing in an absent page (`engine`), the page's bytes.
//! Rejected: a lock beside the word, because a hit would touch two cache lines; versions in a
//! separate table, for the same reason.

use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{AtomicU64, Condvar, LockClass, Mutex, fence};
use overspill_base::{FrameNo, PageNo};
use overspill_engine::Unpublished;

const FRAME_BITS: u32 = 28;
const FRAME: u64 = (1 << FRAME_BITS) - 1;
const PRESENT: u64 = 1 << 28;
const WRITER: u64 = 1 << 29;
const WAITERS: u64 = 1 << 30;
const REFERENCED: u64 = 1 << 31;
const CHANGED: u64 = 1 << 32;
const PIN: u64 = 1 << 33;
const VERSION: u64 = 1 << 44;
const PINS: u64 = VERSION - PIN;
const VERSIONS: u64 = !(VERSION - 1);
/// In use, or waited for.
const BUSY: u64 = WRITER | WAITERS | PINS;
/// The bits that a look compares.
const LOOK: u64 = VERSIONS | WRITER | PRESENT | FRAME;

/// Maximum number of frames of a pool.
pub const FRAMES_MAX: usize = 1 << FRAME_BITS;

/// Queues of sleepers, shared by all pages.
const WAIT_QUEUES: usize = if cfg!(loom) { 1 } else { 64 };

/// The result of requesting a page without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// The page is the caller's, in this frame, until released.
    Granted(FrameNo),
    /// It is in use in a way that excludes the caller.
    Busy,
    /// It is not in memory.
    Absent,
}

/// A look at a page that another thread may be changing.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    word: u64,
}

impl Look {
    /// Where the page was.
    pub fn frame(self) -> FrameNo {
        FrameNo((self.word & FRAME) as u32)
    }
}

/// The words of all pages of a pool.
#[derive(Debug)]
pub struct Words {
    words: Table<AtomicU64>,
    waits: Vec<(Mutex<()>, Condvar)>,
}

impl Words {
    /// Uses the words in `words`, which are zeros: every page is absent.
    pub fn new(words: Table<AtomicU64>) -> Self {
        let queue = || (Mutex::new(LockClass::Wait, ()), Condvar::new());
        Self { words, waits: std::iter::repeat_with(queue).take(WAIT_QUEUES).collect() }
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    #[inline]
    fn word(&self, page: PageNo) -> &AtomicU64 {
        &self.words[page.index()]
    }

    /// Pins `page` for a reader, if possible at once. `again` if the page was present before this
    /// use, so that the use is a reason to keep the page.
    #[inline]
    pub fn try_read(&self, page: PageNo, again: bool) -> Asked {
        let mark = if again { REFERENCED } else { 0 };
        self.ask(page, |word| {
            let free = word & (WRITER | WAITERS) == 0 || word & (WRITER | PINS) == 0;
            (free && word & PINS != PINS).then_some((word | mark) + PIN)
        })
    }

    /// As [`try_read`](Self::try_read), for a writer, which is exclusive.
    #[inline]
    pub fn try_write(&self, page: PageNo, again: bool) -> Asked {
        let mark = if again { REFERENCED | CHANGED } else { CHANGED };
        let asked =
            self.ask(page, |word| (word & (WRITER | PINS) == 0).then_some(word | mark | WRITER));
        // Before the writer's stores: a look that sees one of them sees WRITER afterwards.
        fence(Release);
        asked
    }

    /// Replaces the word of a present page by the result of `next`, if any.
    ///
    /// Acquire: the bytes are seen as the last writer, or the thread that published them, left
    /// them.
    #[inline]
    fn ask(&self, page: PageNo, next: impl Fn(u64) -> Option<u64>) -> Asked {
        let word = self.word(page);
        let mut seen = word.load(Relaxed);
        loop {
            if seen & PRESENT == 0 {
                return Asked::Absent;
            }
            let Some(new) = next(seen) else { return Asked::Busy };
            match word.compare_exchange_weak(seen, new, Acquire, Relaxed) {
                Ok(_) => return Asked::Granted(FrameNo((seen & FRAME) as u32)),
                Err(now) => seen = now,
            }
        }
    }

    /// Sleeps until `page` is released; may return early.
    pub fn wait(&self, page: PageNo) {
        let (mutex, condvar) = self.wait_queue(page);
        let guard = mutex.lock();
        let sleep = |word: u64| (word & (WRITER | PINS) != 0).then_some(word | WAITERS);
        if self.word(page).fetch_update(Relaxed, Relaxed, sleep).is_ok() {
            drop(condvar.wait(guard));
        }
    }

    /// Releases a reader's pin.
    ///
    /// Release: pairs with the acquisition by the next writer, and by
    /// [`unpublish`](Self::unpublish).
    #[inline]
    pub fn end_read(&self, page: PageNo) {
        let before = self.word(page).fetch_sub(PIN, Release);
        debug_assert_ne!(before & PINS, 0, "page {page} was not pinned");
        if before & (PINS | WAITERS) == PIN | WAITERS {
            self.wake(page);
        }
    }

    /// Releases a writer's page, which has a new version now.
    #[inline]
    pub fn end_write(&self, page: PageNo) {
        // One step: clears WRITER, and increments the version, which wraps in the top bits.
        let before = self.word(page).fetch_add(VERSION.wrapping_sub(WRITER), Release);
        debug_assert_ne!(before & WRITER, 0, "page {page} had no writer");
        if before & WAITERS != 0 {
            self.wake(page);
        }
    }

    #[cold]
    fn wake(&self, page: PageNo) {
        let (mutex, condvar) = self.wait_queue(page);
        let guard = mutex.lock();
        self.word(page).fetch_and(!WAITERS, Relaxed);
        drop(guard);
        condvar.notify_all();
    }

    fn wait_queue(&self, page: PageNo) -> &(Mutex<()>, Condvar) {
        &self.waits[page.index() % self.waits.len()]
    }

    /// Begins a look at a page that is present and has no writer, and marks it as used.
    #[inline]
    pub fn peek(&self, page: PageNo) -> Option<Look> {
        let word = self.word(page).load(Acquire);
        if word & (PRESENT | WRITER) != PRESENT {
            return None;
        }
        if word & REFERENCED == 0 {
            self.mark_referenced(page, word);
        }
        Some(Look { word })
    }

    /// Marks only the page that was seen: after it is unpublished, only the engine changes its
    /// word.
    #[cold]
    fn mark_referenced(&self, page: PageNo, seen: u64) {
        let mark = |word: u64| ((word ^ seen) & LOOK == 0).then_some(word | REFERENCED);
        let _ = self.word(page).fetch_update(Relaxed, Relaxed, mark);
    }

    /// Ends a look: true if what was read since [`peek`](Self::peek) is the page as it was then.
    #[inline]
    pub fn is_unchanged(&self, page: PageNo, look: Look) -> bool {
        // After the reads: one that saw a later store sees what came before that store.
        fence(Acquire);
        (self.word(page).load(Relaxed) ^ look.word) & LOOK == 0
    }

    /// Makes `page`, which is absent, present in `frame`. The caller has its page lock.
    pub fn publish(&self, page: PageNo, frame: FrameNo) {
        let word = self.word(page);
        let version = word.load(Relaxed).wrapping_add(VERSION) & VERSIONS;
        word.store(version | PRESENT | u64::from(frame.0), Release);
    }

    /// Makes `page` absent if it is neither in use nor recently used. The caller has its page lock.
    pub fn unpublish(&self, page: PageNo) -> Unpublished {
        let word = self.word(page);
        let mut seen = word.load(Relaxed);
        loop {
            if seen & BUSY != 0 || seen & PRESENT == 0 {
                return Unpublished::Pinned;
            }
            let (new, unpublished) = match seen & (REFERENCED | CHANGED) {
                0 => (seen & VERSIONS, Unpublished::Clean),
                CHANGED => (seen & VERSIONS, Unpublished::Changed),
                _ => (seen & !REFERENCED, Unpublished::Recent),
            };
            match word.compare_exchange_weak(seen, new, Acquire, Relaxed) {
                Ok(_) => {
                    // Before the device's stores into the frame, as in `try_write`.
                    fence(Release);
                    return unpublished;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Sleeps until `page` is not in use, then makes it absent. The caller has its page lock.
    pub fn take_away(&self, page: PageNo) {
        loop {
            match self.try_write(page, false) {
                Asked::Absent => return,
                Asked::Busy => self.wait(page),
                Asked::Granted(_) => break,
            }
        }
        let before = self.word(page).fetch_and(VERSIONS, Release);
        if before & WAITERS != 0 {
            self.wake(page);
        }
    }

    /// Counts the pages of `pages` that are in use now.
    pub fn count_in_use(&self, pages: impl Iterator<Item = PageNo>) -> usize {
        pages.filter(|&page| self.word(page).load(Relaxed) & (WRITER | PINS) != 0).count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE: PageNo = PageNo(0);

    fn words() -> Words {
        let words = Words::new(Table::on_heap(1, || AtomicU64::new(0)));
        words.publish(PAGE, FrameNo(FRAME as u32));
        words
    }

    #[test]
    fn readers_share_and_a_writer_excludes() {
        let words = words();
        let granted = Asked::Granted(FrameNo(FRAME as u32));
        assert_eq!([words.try_read(PAGE, true), words.try_read(PAGE, true)], [granted; 2]);
        assert_eq!(words.try_write(PAGE, true), Asked::Busy);
        words.end_read(PAGE);
        assert_eq!(words.unpublish(PAGE), Unpublished::Pinned);
        words.end_read(PAGE);
        assert_eq!(words.try_write(PAGE, true), granted);
        assert_eq!(words.try_read(PAGE, true), Asked::Busy);
        assert!(words.peek(PAGE).is_none());
        words.end_write(PAGE);
        assert_eq!(words.try_read(PAGE, true), granted);
    }

    #[test]
    fn a_page_used_again_has_a_second_chance_and_one_only() {
        let words = words();
        words.try_read(PAGE, true);
        words.end_read(PAGE);
        assert_eq!(words.unpublish(PAGE), Unpublished::Recent);
        assert_eq!(words.unpublish(PAGE), Unpublished::Clean);
        assert_eq!(words.try_read(PAGE, true), Asked::Absent);
        words.publish(PAGE, FrameNo(3));
        words.try_write(PAGE, false);
        words.end_write(PAGE);
        assert_eq!(words.unpublish(PAGE), Unpublished::Changed);
    }

    /// More pins than there are bits for must wait, and no bit spills over.
    #[test]
    fn pins_have_an_end() {
        let words = words();
        let pins = (0..).take_while(|_| words.try_read(PAGE, true) != Asked::Busy).count();
        assert_eq!(pins as u64, PINS / PIN);
        (0..pins).for_each(|_| words.end_read(PAGE));
        assert_eq!(words.try_write(PAGE, true), Asked::Granted(FrameNo(FRAME as u32)));
    }

    #[test]
    fn a_look_is_void_after_a_change_or_an_eviction_and_not_after_a_reader() {
        let words = words();
        let look = words.peek(PAGE).unwrap();
        words.try_read(PAGE, false);
        words.end_read(PAGE);
        assert!(words.is_unchanged(PAGE, look));
        // The version wraps from its last value to zero without touching its neighbours.
        for _ in 0..1 << 20 {
            words.try_write(PAGE, false);
            words.end_write(PAGE);
        }
        let again = words.peek(PAGE).unwrap();
        assert_eq!(again.word, look.word | CHANGED | REFERENCED);
        words.try_write(PAGE, false);
        words.end_write(PAGE);
        assert!(!words.is_unchanged(PAGE, again));
        let look = words.peek(PAGE).unwrap();
        assert_eq!(words.unpublish(PAGE), Unpublished::Recent);
        assert_eq!(words.unpublish(PAGE), Unpublished::Changed);
        words.publish(PAGE, look.frame());
        assert!(!words.is_unchanged(PAGE, look), "gone and back");
    }
}
