//! One guest: all that a keeper keeps of a process.
//!
//! ```text
//!              Guest                       who changes it
//!   source     its faults and messages     nobody; read with the guest held
//!   handles    page table, mappings        once, by who attaches
//!   agent      moves its pages       lock  the engine's threads; taken before the guest
//!   owned      see below             lock  whoever *holds* the guest
//!   threads    held, and why         lock  anybody, for a moment
//!   letters    its gate's memory     lock  the thread that reads letters
//!   numbers    pages, growth, ended        anybody, atomically
//!
//!              Owned
//!   map        which page of the engine each address has (`overspill_guest::map`)
//!   forked     children that are to get their pages, each with the map of that moment
//!   kept       what its children do not have
//!   waiting    faults whose turn has not come       stirred   places to be touched again
//!   new        memory that the engine has to take   needed    pages that stay
//!   still      what waits for it to stand still     locked    what it has locked
//!   turns      forks and changes of which letters tell, one at a time
//! ```
//!
//! Owns: the map, under one lock, the agent, under another that is taken first, and what is known
//! of the process. Of a forked child that is not attached to that is nothing but its map and its
//! source, which are enough to serve it.
//! Invariants: see [`overspill_guest::map`], of which this is the owner. Messages are read with
//! the lock held, one at a time; the agent moves pages with it held, so that no message is read
//! meanwhile. From the reading of a fork on, until the child has its pages (`forks`), nothing is
//! filled, moves out, or is discarded: what is out of the parent is what the child gets.
//! Not here: what the holder does with what is its alone (`owned`), messages (`events`), what a
//! fault needs and looking for new mappings (`serve`).

use crate::front::Front;
use crate::guest::agent::Mover;
use crate::guest::handles::{Attached, Handles};
use crate::guest::kept::Kept;
use crate::guest::letters::LetterId;
use crate::guest::locked::Locked;
use crate::guest::signal_faults::SignalFaults;
use crate::guest::source::{AgentCell, FaultSource, LettersCell};
use crate::guest::still::Still;
use crate::guest::task::Task;
use crate::guest::threads::Threads;
use crate::guest::touched::Closed;
use crate::parts::SourceParts;
use crate::wakeup::Wakeup;
use overspill_agent::Barrier;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, LockClass, Mutex, MutexGuard};
use overspill_guest::Vpn;
use overspill_guest::map::{Event, SpaceMap};
use overspill_guest::userfault::{Fault, Refusal};
use rangemap::RangeSet;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a process may take to end that was killed with its agent.
const END_WAIT: Duration = Duration::from_millis(50);

/// How a fork became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fork {
    /// By a message, which has brought the child's userfaultfd.
    Told,
    /// By letters, under this number.
    Asked(u64),
}

/// What changes the memory of a guest, or copies it, with the letter that asks for it. Where only
/// letters tell of that, it is done one at a time: they would tell of it in another order than it
/// was done in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Fork(LetterId),
    Change(LetterId),
}

/// A child of which the fork was read, the map that its parent had then, and what was read since.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) fork: Fork,
    /// `None` while there is no child yet.
    pub(crate) source: Option<SourceParts>,
    /// That asks for it, if one does.
    pub(super) letter: Option<LetterId>,
    pub(crate) map: SpaceMap,
    pub(crate) later: Vec<Event>,
    /// What its parent kept from it, if that is not the kernel's message's to tell.
    pub(crate) kept: Kept,
    /// What kept touches of its parent away, and of it.
    pub(crate) closed: Closed,
}

/// What only the holder of a guest uses.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    pub(crate) map: SpaceMap,
    /// Whether the map was compared with the mappings of a forked child.
    pub(crate) is_confirmed: bool,
    /// Whether it is about to be let go: nothing new becomes the engine's, and nothing goes out.
    pub(crate) is_leaving: bool,
    /// Pages that did not move, perhaps because relatives have them, too.
    pub(crate) shared: RangeSet<Vpn>,
    /// Children whose fork was read, and those of them that have not got their pages yet.
    pub(super) forked: Vec<Forked>,
    pub(super) forking: usize,
    /// Forks that letters have asked for so far.
    pub(super) forks: u64,
    /// When it was seen to have ended.
    pub(super) ended: Option<Instant>,
    /// What waits for its turn.
    pub(crate) turns: VecDeque<Turn>,
    /// What its children do not have.
    pub(crate) kept: Kept,
    /// Faults that were read and not served.
    pub(crate) waiting: Vec<Fault>,
    /// What was in memory in mappings when they were believed, and the engine was not told of.
    pub(super) new: Vec<Range<Vpn>>,
    /// Pages of those, and since when there has been no room for some.
    pub(crate) new_pages: u64,
    pub(super) new_since: Option<Instant>,
    /// Where threads may wait for a page that is no longer there, or anywhere for one that could
    /// not be found.
    pub(crate) stirred: Vec<Range<Vpn>>,
    pub(crate) all_stirred: bool,
    /// Pages that stay in memory.
    pub(crate) needed: RangeSet<Vpn>,
    /// What waits for the guest to stand still.
    pub(crate) still: Still,
    /// What it has locked.
    pub(crate) locked: Locked,
}

/// A process that is paged.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) number: u64,
    /// What it is called until it is attached to.
    origin: String,
    handles: OnceLock<Handles>,
    pub(crate) source: Box<dyn FaultSource>,
    owned: Mutex<Owned>,
    agent: AgentCell,
    /// Pages that were filled, less those that were moved out, as a signed number.
    paged: AtomicU64,
    has_ended: AtomicBool,
    /// Whether relatives may have the same frames. Relaxed: of those that were forked since the
    /// attach it is set before they get their pages, with the lock held.
    pub(crate) has_relatives: AtomicBool,
    has_waiting: AtomicBool,
    /// Its pages are lost, so that all that are missing raise SIGBUS.
    is_lost: AtomicBool,
    /// Of the threads that serve faults.
    wakeup: Arc<Wakeup>,
    front: Arc<dyn Front>,
    pub(crate) threads: Threads,
    /// What its gate writes, if it has one.
    pub(crate) letters: LettersCell,
    /// What it had without our doing when its mappings were looked at last, as a signed number.
    surveyed_pages: AtomicU64,
}

impl Guest {
    /// Makes a guest of which nothing is believed yet; `wakeup` is of those who serve faults.
    ///
    /// # Errors
    /// No descriptor.
    pub(crate) fn new(
        number: u64,
        attached: Attached,
        wakeup: Arc<Wakeup>,
        front: Arc<dyn Front>,
    ) -> Result<Self, Errno> {
        let Attached { source, handles, mover, needed } = attached;
        let guest = Self::unknown(number, source, wakeup, front)?;
        guest.hold().is_confirmed = true;
        guest.attached(handles, mover, &needed);
        Ok(guest)
    }

    /// Makes a guest of a child that this one has forked, and that is not attached to.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn child(&self, number: u64, source: SourceParts) -> Result<Self, Errno> {
        let mut child = Self::unknown(number, source, self.wakeup.clone(), self.front.clone())?;
        child.has_relatives = AtomicBool::new(true);
        child.origin = format!("a child of {}", self.name());
        Ok(child)
    }

    fn unknown(
        number: u64,
        source: SourceParts,
        wakeup: Arc<Wakeup>,
        front: Arc<dyn Front>,
    ) -> Result<Self, Errno> {
        let (source, agent, letters) = made_of(source)?;
        let owned = Owned::default();
        Ok(Self {
            number,
            origin: String::new(),
            handles: OnceLock::new(),
            source,
            owned: Mutex::new(LockClass::Guest, owned),
            agent,
            paged: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            has_relatives: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            wakeup,
            threads: Threads::new(number, front.clone()),
            letters,
            front,
            surveyed_pages: AtomicU64::new(0),
        })
    }

    /// Takes what an attach has made of it: its threads are held by the front. A second time is a
    /// mistake of that, and ignored.
    pub(crate) fn attached(&self, handles: Handles, mover: Box<dyn Mover>, needed: &[Vpn]) {
        let mut owned = self.hold();
        self.source.attached(&handles.process);
        if self.handles.set(handles).is_ok() {
            self.threads.are_held();
            owned.needed = needed.iter().map(|page| page.run(1)).collect();
            drop(owned);
            // Until then nothing of it moves.
            *self.agent() = Some(mover);
        } else {
            drop(owned);
        }
        if self.is_lost() {
            self.kill();
        }
    }

    /// What it is called in lines for the user.
    pub(crate) fn name(&self) -> &str {
        self.handles().map_or(&self.origin, |handles| &handles.name)
    }

    /// What is known of it; nothing of a forked child that is not attached to.
    pub(crate) fn handles(&self) -> Option<&Handles> {
        self.handles.get()
    }

    /// Takes the agent, if there is one, to ask it. While it moves pages the guest is to be held:
    /// afterwards, or before if it has no userfaultfd.
    pub(crate) fn agent(&self) -> MutexGuard<'_, Option<Box<dyn Mover>>> {
        self.agent.lock()
    }

    /// Becomes the owner.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock()
    }

    /// True if its address space is no more, or is about to be.
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire: with `ended`.
        self.has_ended.load(Acquire)
    }

    /// Notes that its address space is no more.
    pub(crate) fn ended(&self) {
        // Release: what was learnt before is seen by who sees this.
        self.has_ended.store(true, Release);
    }

    /// Ends it: what it would read next may be wrong. While its process is not known, by its next
    /// touch of a page that is missing. One that has ended may be another program by now.
    pub(crate) fn kill(&self) {
        if self.has_ended() {
            return;
        }
        // Relaxed: its faults are served again until this is seen.
        self.is_lost.store(true, Relaxed);
        match self.handles() {
            Some(handles) => {
                handles.process.kill();
                self.ended();
            }
            // What it has asked for by now may never be answered.
            None => self.source.end(),
        }
    }

    /// True if all its pages that are missing are lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    /// Notes pages that were filled, or moved out if there are fewer than none.
    pub(crate) fn count_paged(&self, pages: i64) {
        // Relaxed, as its reading: about as many will do.
        self.paged.fetch_add(pages as u64, Relaxed);
    }

    /// How many pages it has; `None` if that is not known, or it has ended.
    pub(crate) fn pages(&self) -> Option<i64> {
        self.handles()?.process.pages().ok()
    }

    /// How many of so many pages it has without our doing. Relaxed: only numbers.
    fn own_pages(&self, pages: i64) -> i64 {
        pages - self.paged.load(Relaxed) as i64
    }

    /// Returns how many of so many pages are more of those than when its mappings were looked at
    /// last.
    pub(crate) fn growth_pages(&self, pages: i64) -> i64 {
        self.own_pages(pages) - self.surveyed_pages.load(Relaxed) as i64
    }

    /// Notes that its mappings are about to be looked at.
    pub(crate) fn note_survey(&self) {
        let own_pages = self.pages().map_or(0, |pages| self.own_pages(pages));
        self.surveyed_pages.store(own_pages as u64, Relaxed);
    }

    /// True if the process has ended.
    pub(crate) fn is_over(&self) -> bool {
        match self.handles() {
            Some(handles) => handles.process.has_ended(),
            None => !self.source.has_address_space(),
        }
    }

    /// The same of one that may have been killed together with its agent, as the kernel does for
    /// want of memory.
    pub(crate) fn is_over_soon(&self) -> bool {
        match self.handles() {
            Some(handles) => handles.process.ends_within(END_WAIT),
            None => self.is_over(),
        }
    }

    /// True if it is to be looked at again soon: faults wait, or something is in doubt. A hint.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Relaxed)
    }

    /// Puts a fault off.
    pub(crate) fn put_off(&self, owned: &mut Owned, fault: Fault) {
        owned.waiting.push(fault);
        self.call_reader();
    }

    /// A child can get its pages.
    pub(crate) fn has_child(&self) {
        self.has_relatives.store(true, Relaxed);
        self.call_reader();
    }

    pub(crate) fn call_reader(&self) {
        self.look_again();
        self.wakeup.wake();
    }

    /// Has it looked at again soon.
    pub(crate) fn look_again(&self) {
        self.has_waiting.store(true, Relaxed);
        self.wakeup.doubt();
    }

    /// Takes the faults that were put off.
    pub(crate) fn take_waiting(&self, owned: &mut Owned) -> Vec<Fault> {
        self.has_waiting.store(false, Relaxed);
        if owned.map.is_in_doubt() {
            self.look_again();
        }
        std::mem::take(&mut owned.waiting)
    }

    /// Notes an answer of the kernel that ends the guest.
    pub(crate) fn note(&self, refusal: Refusal) {
        if refusal == Refusal::Gone {
            self.ended();
        }
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// A source, and the cells that it shares with its guest.
type Source = (Box<dyn FaultSource>, AgentCell, LettersCell);

/// Makes a source of its parts.
///
/// # Errors
/// No descriptor.
fn made_of(parts: SourceParts) -> Result<Source, Errno> {
    let letters = Arc::new(Mutex::new(LockClass::Letters, None));
    Ok(match parts {
        SourceParts::Userfault(userfault) => {
            (Box::new(userfault), Arc::new(Mutex::new(LockClass::Agent, None)), letters)
        }
        SourceParts::Signals { process, barrier } => {
            of_signals((Box::new(process), barrier), letters)?
        }
        #[cfg(test)]
        SourceParts::Twin(twin) => match twin.barrier() {
            None => (Box::new(twin), Arc::new(Mutex::new(LockClass::Agent, None)), letters),
            Some(barrier) => of_signals((Box::new(twin), barrier), letters)?,
        },
    })
}

fn of_signals(process: (Box<dyn Task>, Barrier), letters: LettersCell) -> Result<Source, Errno> {
    let agent = Arc::new(Mutex::new(LockClass::Filler, None));
    let faults = SignalFaults::new(process, agent.clone(), letters.clone())?;
    Ok((Box::new(faults), agent, letters))
}
