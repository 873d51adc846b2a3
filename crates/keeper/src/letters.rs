//! Letters of gates.
//!
//! Owns: the memory that a gate shares with its keeper, the thread that hears the bell, and what
//! letters have not been answered yet.
//! Invariants: the memory is the guest's as well: of a letter each word is read once, and nothing
//! of it is believed but what the guest says of itself. A letter is answered once. A fork stands
//! still ([`Owned::is_forking`]) from its first letter until its child has its pages, or is known
//! not to come.
//! Not here: what a child gets (`forks`), how a gate writes (`agent/gate`).

use crate::call::Call;
use crate::eye::EyeParts;
use crate::guest::Guest;
use crate::keeper::Shared;
use crate::owned::Fork;
use crate::touched::protection_of;
use crate::touches::Touches;
use crate::words::Birth;
use overspill_agent::PAGE_BYTES;
use overspill_agent::gate::{
    COUNTED_AT, LETTER_PAGES, LETTERS, LETTERS_BYTES, Letter, WISH_AT, letter, letter_state,
};
use overspill_base::shared::{Mapping, Table};
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::userfault::GuestUserfault;
use rustix::event::Timespec;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::futex;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How long the bell is listened to at a time: a keeper that is to end rings it.
const LISTEN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Where the addresses of a process end, at most.
const ADDRESSES_END: u64 = 1 << 56;
/// A page of letters, as words.
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u32>();
const LETTER_WORDS: usize = size_of::<Letter>() / size_of::<u32>();
/// What a letter is answered with that nobody understands.
const NO_SUCH_LETTER: i64 = -(Errno::NOSYS.raw_os_error() as i64);
/// What a fork fails with that cannot be followed.
pub(crate) const NOT_NOW: i64 = -(Errno::AGAIN.raw_os_error() as i64);

/// The memory that a guest, and its children that are not attached to, write letters in.
#[derive(Debug)]
struct Post {
    /// The same as words of both sizes.
    words: Table<AtomicU32>,
    longs: Table<AtomicU64>,
    /// Which pages are in use.
    used: Mutex<[bool; LETTER_PAGES]>,
}

/// One guest's letters.
#[derive(Debug)]
pub(crate) struct Letters {
    post: Arc<Post>,
    page: usize,
    /// Letters that had been counted when they were looked at last.
    counted: u32,
    /// Those that were read, and are not answered.
    is_open: [bool; LETTERS],
    births: HashMap<u64, Awaited>,
}

/// Who waits for a child to have its pages: the letters of parent and child.
#[derive(Debug, Default)]
struct Awaited {
    parent: Option<usize>,
    child: Option<usize>,
    /// The page of the child's letters, or an error.
    came: Option<i64>,
}

/// A letter that was read.
struct Read {
    number: usize,
    kind: u32,
    arguments: [u64; 4],
}

impl Letters {
    /// The first page of a file of a guest's.
    ///
    /// # Errors
    /// No memory, or the file is not as large as it must be.
    pub(crate) fn open(file: impl AsFd) -> Result<Self, Errno> {
        if rustix::fs::fstat(&file)?.st_size != LETTERS_BYTES as i64 {
            return Err(Errno::INVAL);
        }
        let mapping = Arc::new(Mapping::shared(file, LETTERS_BYTES)?);
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
        Self { post, page, counted: 0, is_open, births }
    }

    /// A page for a child; `None` if all are in use.
    fn for_child(&self) -> Option<Self> {
        let mut used = self.post.used.lock();
        let page = used.iter().position(|used| !used)?;
        used[page] = true;
        let words = &self.post.words[page * PAGE_WORDS..(page + 1) * PAGE_WORDS];
        words.iter().for_each(|word| word.store(0, Relaxed));
        drop(used);
        Some(Self::of(self.post.clone(), page))
    }

    fn state(&self, number: usize) -> &AtomicU32 {
        &self.post.words[self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS]
    }

    fn long(&self, number: usize, at: usize) -> &AtomicU64 {
        let letter = self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS;
        &self.post.longs[(letter * size_of::<u32>() + at) / size_of::<u64>()]
    }

    /// True once if the process wants its gate open.
    fn takes_wish(&self) -> bool {
        let wish = &self.post.words[self.page * PAGE_WORDS + WISH_AT / size_of::<u32>()];
        wish.load(Relaxed) != 0 && wish.swap(0, Relaxed) != 0
    }

    /// Takes what was sent since the last time.
    fn take(&mut self) -> Vec<Read> {
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
                let kind_at = self.page * PAGE_WORDS + (number + 1) * LETTER_WORDS + 1;
                let argument = |n| offset_of!(Letter, arguments) + n * size_of::<u64>();
                let arguments = [0, 1, 2, 3].map(|n| self.long(number, argument(n)).load(Relaxed));
                read.push(Read { number, kind: self.post.words[kind_at].load(Relaxed), arguments });
            }
        }
        read
    }

    pub(crate) fn answer(&mut self, number: usize, answer: i64) {
        self.is_open[number] = false;
        self.long(number, offset_of!(Letter, answer)).store(answer as u64, Relaxed);
        let state = self.state(number);
        // Release: with who waits for it.
        state.store(letter_state::ANSWERED, Release);
        // One that has ended waits no more.
        let _ = futex::wake(state, futex::Flags::empty(), 1);
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
    fn hang(&self, file: impl AsFd) -> Result<(), Errno> {
        if self.rings.get().is_none() {
            let mapping = Arc::new(Mapping::shared(file, PAGE_BYTES)?);
            let _ = self.rings.set(Table::within(&mapping, 0, 1));
            self.hung.call();
        }
        Ok(())
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

impl Shared {
    /// Takes what a gate writes from now on.
    pub(crate) fn take_letters(
        &self,
        guest: &Guest,
        [bell, letters]: &[OwnedFd; 2],
    ) -> Result<(), Errno> {
        self.bell.hang(bell)?;
        *guest.letters.lock() = Some(Letters::open(letters)?);
        guest.eye.touches().iter().for_each(|touches| touches.forget_letters());
        Ok(())
    }

    /// Reads letters until told to stop.
    pub(crate) fn read_letters(&self) {
        while !self.must_stop() {
            let Some(rings) = self.bell.rings.get() else {
                self.bell.hung.wait(None);
                continue;
            };
            // Acquire: with who rings after writing.
            let rung = rings[0].load(Acquire);
            self.all_guests().iter().for_each(|guest| self.read_those_of(guest));
            let _ = futex::wait(&rings[0], futex::Flags::empty(), rung, Some(&LISTEN));
        }
    }

    fn read_those_of(&self, guest: &Arc<Guest>) {
        let (read, wants_out) = match &mut *guest.letters.lock() {
            Some(letters) => (letters.take(), letters.takes_wish()),
            None => return,
        };
        if wants_out {
            self.front.wants_out(guest.number);
        }
        for letter in read {
            self.follow_letter(guest, &letter);
        }
    }

    fn follow_letter(&self, guest: &Arc<Guest>, read: &Read) {
        let [first, second, third, _] = read.arguments;
        match read.kind {
            letter::FORK => {
                let mut owned = guest.hold();
                let fork =
                    owned.begin_fork(guest.eye.touches().map(Touches::closed).unwrap_or_default());
                drop(owned);
                guest.answer_letter(read.number, fork as i64);
            }
            letter::KEPT => {
                guest.hold().kept.advised(pages_of(first, second), third);
                guest.answer_letter(read.number, 0);
            }
            letter::OUT => {
                let place = pages_of(first, second);
                self.take_new_of(guest, &place);
                let extents: Vec<_> = guest.hold().map.bound(place).collect();
                extents.iter().for_each(|extent| {
                    self.engine.page_out(extent.first, extent.pages as usize);
                });
                guest.answer_letter(read.number, 0);
            }
            letter::BORN => self.is_born(guest, read.number, first, (second, third)),
            letter::FORKED => self.has_forked(guest, read.number, first, second as i64),
            kind => match guest.eye.touches() {
                Some(touches) => self.follow_touch((guest, touches), kind, read),
                None => guest.answer_letter(read.number, NO_SUCH_LETTER),
            },
        }
    }

    /// Follows what only gates write that have no userfaultfd beside them.
    fn follow_touch(&self, (guest, touches): (&Arc<Guest>, &Touches), kind: u32, read: &Read) {
        let (number, [first, second, third, _]) = (read.number, read.arguments);
        let event = match kind {
            letter::FAULT => return touches.fault(number, first, second),
            letter::CHANGE => {
                let _owned = guest.hold();
                touches.begin_change();
                return guest.answer_letter(number, 0);
            }
            letter::CHANGED => {
                let _owned = guest.hold();
                return touches.end_change(number, first != 0);
            }
            letter::LOOK => {
                let _owned = guest.hold();
                let (pages, is_shut) = touches.alike(&pages_of(first, second));
                let bytes = pages as i64 * PAGE_BYTES as i64;
                return guest.answer_letter(number, bytes | i64::from(is_shut));
            }
            letter::PROTECTED => {
                let _owned = guest.hold();
                let can = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
                let protection = protection_of(can.map(|right| third & right as u64 != 0));
                touches.protect(&pages_of(first, second), protection);
                return guest.answer_letter(number, 0);
            }
            letter::UNMAPPED => Event::Unmapped(pages_of(first, second)),
            letter::REMOVED => Event::Removed(pages_of(first, second)),
            letter::REMAPPED => {
                let pages = Vpn::pages(&pages_of(first, third));
                let [from, to] = [first, second].map(|at| Vpn::of(at.min(ADDRESSES_END)));
                Event::Remapped { from, to, pages }
            }
            _ => return guest.answer_letter(number, NO_SUCH_LETTER),
        };
        if event.left().is_empty() {
            return guest.answer_letter(number, 0);
        }
        let owned = guest.hold();
        if let Err(why) = touches.has_changed(number, event) {
            drop(owned);
            self.space.end_of_agent(guest, &why);
        }
    }

    /// A child is there.
    fn is_born(&self, guest: &Arc<Guest>, number: usize, fork: u64, (child, fd): (u64, u64)) {
        guest.with_birth(fork, |awaited| awaited.child = Some(number));
        let is_needed = guest.eye.touches().is_none();
        let userfaultfd = i32::try_from(fd as i64).ok().filter(|fd| *fd >= 0 || !is_needed);
        match userfaultfd.zip(i32::try_from(child).ok()) {
            Some((userfaultfd, child)) => {
                self.front.fetch(Birth { parent: guest.number, fork, child, userfaultfd });
            }
            None => self.is_not_coming(guest, fork),
        }
    }

    /// The parent says what became of the call.
    fn has_forked(&self, guest: &Arc<Guest>, number: usize, fork: u64, made: i64) {
        let again = guest.with_birth(fork, |awaited| match awaited.parent {
            None => {
                awaited.parent = Some(number);
                None
            }
            // Another letter says that the child has ended.
            Some(_) => Some(number),
        });
        if let Some(number) = again.flatten() {
            guest.answer_letter(number, 0);
        }
        if made <= 0 {
            self.is_not_coming(guest, fork);
        }
    }

    /// The front has fetched what tells of a child, or could not: its userfaultfd, or if its parent
    /// has none its process.
    pub(crate) fn fetched(&self, number: u64, fork: u64, fetched: Option<OwnedFd>) {
        let Some(guest) = self.guest(number) else { return };
        let abilities = guest.eye.abilities();
        let eye = fetched.and_then(|fd| match guest.eye.touches() {
            Some(touches) => {
                Some(EyeParts::Touches { process: fd, has_guards: touches.has_guards() })
            }
            None => {
                let fd = GuestUserfault::agree_as(fd, abilities).ok()?;
                Some(EyeParts::Userfault(GuestUserfault::agreed(fd, abilities, None)))
            }
        });
        let is_forked = eye.is_some_and(|eye| guest.hold().is_forked(fork, eye));
        match is_forked {
            true => guest.has_child(),
            false => self.is_not_coming(&guest, fork),
        }
    }

    /// There is no child, or none that can be followed.
    fn is_not_coming(&self, guest: &Arc<Guest>, fork: u64) {
        guest.hold().end_fork(fork);
        guest.came(fork, NOT_NOW);
        self.call_care();
    }

    /// A child has its pages: gives it a page for its letters, and lets both go on.
    pub(crate) fn has_come(&self, parent: &Arc<Guest>, child: &Guest, fork: Fork) {
        let Fork::Asked(fork) = fork else { return };
        let page = parent.letters.lock().as_ref().and_then(Letters::for_child);
        let came = page.as_ref().map_or(NOT_NOW, |page| page.page as i64 + 1);
        if page.is_none() {
            child.kill();
        }
        *child.letters.lock() = page;
        parent.came(fork, came);
    }
}

/// The pages of a range that a guest names, as far as it can have them.
fn pages_of(start: u64, bytes: u64) -> Range<Vpn> {
    let end = start.saturating_add(bytes).saturating_add(PAGE_BYTES as u64 - 1);
    Vpn::of(start.min(ADDRESSES_END))..Vpn::of(end.min(ADDRESSES_END))
}

impl Guest {
    fn answer_letter(&self, number: usize, answer: i64) {
        if let Some(letters) = &mut *self.letters.lock() {
            letters.answer(number, answer);
        }
    }

    fn with_birth<R>(&self, fork: u64, f: impl FnOnce(&mut Awaited) -> R) -> Option<R> {
        let mut letters = self.letters.lock();
        let letters = letters.as_mut()?;
        let done = f(letters.births.entry(fork).or_default());
        letters.tell(fork);
        Some(done)
    }

    pub(crate) fn came(&self, fork: u64, came: i64) {
        self.with_birth(fork, |awaited| awaited.came = awaited.came.or(Some(came)));
    }
}
