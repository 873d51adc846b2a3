//! The memory of letters, which a gate shares with its keeper.
//!
//! Owns: reading what a gate has written, and answering it; the bell that all gates ring.
//! Invariants: the memory is the guest's as well: of a letter each word is read once, and nothing
//! of it is believed but what the guest says of itself. A letter is answered once, and not any more
//! when other letters have taken the place of these.
//! Not here: what letters ask for (`serve`), how a gate writes (`agent/gate`).

use crate::call::Call;
use overspill_agent::PAGE_BYTES;
use overspill_agent::gate::{
    COUNTED_AT, LETTER_PAGES, LETTERS, LETTERS_BYTES, Letter, WISH_AT, letter_state,
};
use overspill_base::shared::{Mapping, Table};
use overspill_base::sync::{Arc, LockClass, Mutex};
use rustix::event::Timespec;
use rustix::fd::AsFd;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::thread::futex;
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How long the bell is listened to at a time: a keeper that is to end rings it.
const LISTEN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// A page of letters, as words.
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u32>();
const LETTER_WORDS: usize = size_of::<Letter>() / size_of::<u32>();

/// The memory that a guest, and its children that are not attached to, write letters in.
#[derive(Debug)]
struct Post {
    /// The same as words of both sizes.
    words: Table<AtomicU32>,
    longs: Table<AtomicU64>,
    /// Which pages are in use.
    used: Mutex<[bool; LETTER_PAGES]>,
}

/// A letter: of which letters that the guest has had, and which of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LetterId {
    of: u32,
    number: usize,
}

#[cfg(test)]
impl LetterId {
    pub(crate) const OF_NOBODY: Self = Self { of: u32::MAX, number: 0 };
}

/// One guest's letters.
#[derive(Debug)]
pub(crate) struct Letters {
    post: Arc<Post>,
    page: usize,
    /// How many letters the guest has had before these.
    of: u32,
    /// Letters that had been counted when they were looked at last.
    counted: u32,
    /// Those that were read, and are not answered.
    is_open: [bool; LETTERS],
    births: HashMap<u64, Awaited>,
}

/// Who waits for a child to have its pages: the letters of parent and child.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    pub(crate) parent: Option<LetterId>,
    pub(crate) child: Option<LetterId>,
    /// The page of the child's letters, or an error.
    pub(crate) came: Option<i64>,
}

/// A letter that was read.
pub(crate) struct Read {
    pub(crate) id: LetterId,
    pub(crate) kind: u32,
    pub(crate) arguments: [u64; 4],
}

impl Letters {
    /// The first page of a file of a guest's.
    ///
    /// # Errors
    /// No memory, or the file is not as large as it must be.
    pub(crate) fn open(file: impl AsFd) -> Result<Self, Errno> {
        let mapping = map_sealed(file, LETTERS_BYTES)?;
        let mut used = [false; LETTER_PAGES];
        used[0] = true;
        let post = Post {
            words: Table::within(&mapping, 0, LETTERS_BYTES / size_of::<u32>()),
            longs: Table::within(&mapping, 0, LETTERS_BYTES / size_of::<u64>()),
            used: Mutex::new(LockClass::Control, used),
        };
        Ok(Self::of(Arc::new(post), 0))
    }

    fn of(post: Arc<Post>, page: usize) -> Self {
        let (is_open, births) = ([false; LETTERS], HashMap::new());
        Self { post, page, of: 0, counted: 0, is_open, births }
    }

    /// A page for a child; `None` if all are in use.
    pub(crate) fn for_child(&self) -> Option<Self> {
        let mut used = self.post.used.lock();
        let page = used.iter().position(|used| !used)?;
        used[page] = true;
        let words = &self.post.words[page * PAGE_WORDS..(page + 1) * PAGE_WORDS];
        words.iter().for_each(|word| word.store(0, Relaxed));
        drop(used);
        Some(Self::of(self.post.clone(), page))
    }

    /// Takes the place of letters that the guest had before.
    pub(crate) fn follow(&mut self, before: &Self) {
        self.of = before.of.wrapping_add(1);
    }

    fn state(&self, number: usize) -> &AtomicU32 {
        &self.post.words[self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS]
    }

    fn kind(&self, number: usize) -> u32 {
        self.post.words[self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS + 1].load(Relaxed)
    }

    fn long(&self, number: usize, at: usize) -> &AtomicU64 {
        let letter = self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS;
        &self.post.longs[(letter * size_of::<u32>() + at) / size_of::<u64>()]
    }

    /// True once if the process wants its gate open.
    pub(crate) fn takes_wish(&self) -> bool {
        let wish = &self.post.words[self.page * PAGE_WORDS + WISH_AT / size_of::<u32>()];
        wish.load(Relaxed) != 0 && wish.swap(0, Relaxed) != 0
    }

    /// Takes what was sent since the last time.
    pub(crate) fn take(&mut self) -> Vec<Read> {
        let counted_at = self.page * PAGE_WORDS + COUNTED_AT / size_of::<u32>();
        let counted = self.post.words[counted_at].load(Acquire);
        if std::mem::replace(&mut self.counted, counted) == counted {
            return Vec::new();
        }
        let mut read = Vec::new();
        for number in 0..LETTERS {
            // Acquire: with the letter.
            let is_sent = self.state(number).load(Acquire) == letter_state::SENT;
            if is_sent && !std::mem::replace(&mut self.is_open[number], true) {
                let argument = |n| offset_of!(Letter, arguments) + n * size_of::<u64>();
                let arguments = [0, 1, 2, 3].map(|n| self.long(number, argument(n)).load(Relaxed));
                let (id, kind) = (LetterId { of: self.of, number }, self.kind(number));
                read.push(Read { id, kind, arguments });
            }
        }
        read
    }

    /// True of a letter of these that was read, and is not answered.
    pub(crate) fn is_open(&self, letter: LetterId) -> bool {
        letter.of == self.of && self.is_open[letter.number]
    }

    /// Answers a letter that is open.
    pub(crate) fn answer(&mut self, letter: LetterId, answer: i64) {
        if !self.is_open(letter) {
            return;
        }
        let number = letter.number;
        self.is_open[number] = false;
        self.long(number, offset_of!(Letter, answer)).store(answer as u64, Relaxed);
        let state = self.state(number);
        // Release: with who waits for it.
        state.store(letter_state::ANSWERED, Release);
        // One that has ended waits no more.
        let _ = futex::wake(state, futex::Flags::empty(), 1);
    }

    /// True if a letter of this kind was answered, and who wrote it has not seen that.
    pub(crate) fn is_unseen(&self, letter: LetterId, kind: u32) -> bool {
        // Acquire: with who has taken it since.
        letter.of == self.of
            && self.state(letter.number).load(Acquire) == letter_state::ANSWERED
            && self.kind(letter.number) == kind
    }

    /// What a child is told: the page of its letters.
    pub(crate) fn page(&self) -> i64 {
        self.page as i64 + 1
    }

    /// True if somebody waits for a fork, or is to be told what came of it.
    pub(crate) fn awaits_birth(&self, fork: u64) -> bool {
        self.births.contains_key(&fork)
    }

    /// Changes who waits for a fork, and tells them what came of it if that is known.
    pub(crate) fn with_birth<R>(&mut self, fork: u64, f: impl FnOnce(&mut Awaited) -> R) -> R {
        let done = f(self.births.entry(fork).or_default());
        self.tell(fork);
        done
    }

    /// Tells parent and child what came of a fork, as far as they wait for it.
    fn tell(&mut self, fork: u64) {
        let Some(awaited) = self.births.get_mut(&fork) else { return };
        let Some(came) = awaited.came else { return };
        let (parent, child) = (awaited.parent.take(), awaited.child.take());
        if let Some(child) = child {
            self.answer(child, came);
        }
        if let Some(parent) = parent {
            self.births.remove(&fork);
            self.answer(parent, came.min(0));
        }
    }
}

impl Drop for Letters {
    fn drop(&mut self) {
        self.post.used.lock()[self.page] = false;
    }
}

/// The bell of all gates.
#[derive(Debug)]
pub(crate) struct Bell {
    rings: OnceLock<Table<AtomicU32>>,
    hung: Call,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self { rings: OnceLock::new(), hung: Call::new() }
    }

    /// Listens to this one from now on, if there was none before.
    pub(crate) fn hang(&self, file: impl AsFd) -> Result<(), Errno> {
        if self.rings.get().is_none() {
            let mapping = map_sealed(file, PAGE_BYTES)?;
            let _ = self.rings.set(Table::within(&mapping, 0, 1));
            self.hung.call();
        }
        Ok(())
    }

    /// Returns how often it has rung; if there is none yet, waits for one and returns `None`.
    pub(crate) fn rung(&self) -> Option<u32> {
        let Some(rings) = self.rings.get() else {
            self.hung.wait(None);
            return None;
        };
        // Acquire: with who rings after writing.
        Some(rings[0].load(Acquire))
    }

    /// Waits until it has rung more often, or for a while.
    pub(crate) fn listen(&self, rung: u32) {
        if let Some(rings) = self.rings.get() {
            let _ = futex::wait(&rings[0], futex::Flags::empty(), rung, Some(&LISTEN));
        }
    }

    /// Has the listener look.
    pub(crate) fn ring(&self) {
        self.hung.call();
        if let Some(rings) = self.rings.get() {
            // Release: with the listener.
            rings[0].fetch_add(1, Release);
            let _ = futex::wake(&rings[0], futex::Flags::empty(), 1);
        }
    }
}

/// Maps a file of this size that others have, too: it must be sealed, or this process would end by
/// SIGBUS when one of them makes it shorter.
fn map_sealed(file: impl AsFd, bytes: usize) -> Result<Arc<Mapping>, Errno> {
    let seals = fcntl_get_seals(&file)?;
    if !seals.contains(SealFlags::SHRINK) || fstat(&file)?.st_size != bytes as i64 {
        return Err(Errno::INVAL);
    }
    Mapping::shared(file, bytes).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    #[test]
    fn what_could_become_shorter_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, LETTERS_BYTES as u64).unwrap();
        assert_eq!(Letters::open(&file).map(drop), Err(Errno::INVAL));
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(Letters::open(&file).is_ok());
        ftruncate(&file, 2 * LETTERS_BYTES as u64).unwrap();
        assert_eq!(Letters::open(&file).map(drop), Err(Errno::INVAL));
    }
}
