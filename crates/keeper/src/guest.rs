//! One guest: its map, kept in step with its messages.
//!
//! Owns: the map, under one lock, the agent, under another that is taken first, and what is known
//! of the process. Of a forked child that is not attached to that is nothing but its map and its
//! userfaultfd, which are enough to serve it.
//! Invariants: see [`overspill_guest::map`], of which this is the owner. Messages are read with
//! the lock held, one at a time; the agent moves pages with it held, so that no message is read
//! meanwhile. From the reading of a fork on, until the child has its pages (`forks`), nothing is
//! filled and nothing moves out.
//! Not here: what a fault needs (`serve`), looking for new mappings (`survey`).

use crate::agent::Agent;
use crate::eye::{Eye, EyeParts};
use crate::front::Front;
use crate::known::{GuestParts, Known};
use crate::letters::Letters;
use crate::owned::Owned;
use crate::threads::Threads;
use crate::touches::Touches;
use crate::wakeup::Wakeup;
use crate::witness::MapWitness;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, LockClass, Mutex, MutexGuard};
use overspill_guest::map::{Event, Look, SpaceMap};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Fault, GuestUserfault, Message, Refusal};
use overspill_guest::{Vpn, pidfd};
use rangemap::RangeSet;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

/// How long a process may take to end that was killed with its agent.
const END_WAIT: Duration = Duration::from_millis(50);

/// A process that is paged.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) number: u64,
    /// What it is called until it is attached to.
    origin: String,
    known: OnceLock<Known>,
    pub(crate) eye: Eye,
    owned: Mutex<Owned>,
    agent: Arc<Mutex<Option<Agent>>>,
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
    pub(crate) letters: Arc<Mutex<Option<Letters>>>,
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
        parts: GuestParts,
        wakeup: Arc<Wakeup>,
        front: Arc<dyn Front>,
    ) -> Result<Self, Errno> {
        let (eye, known, agent) = parts.apart();
        let guest = Self::unknown(number, eye, wakeup, front)?;
        guest.hold().is_confirmed = true;
        guest.attached(known, agent);
        Ok(guest)
    }

    /// Makes a guest of a child that this one has forked, and that is not attached to.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn child(&self, number: u64, eye: EyeParts) -> Result<Self, Errno> {
        let mut child = Self::unknown(number, eye, self.wakeup.clone(), self.front.clone())?;
        child.has_relatives = AtomicBool::new(true);
        child.origin = format!("a child of {}", self.name());
        Ok(child)
    }

    fn unknown(
        number: u64,
        eye: EyeParts,
        wakeup: Arc<Wakeup>,
        front: Arc<dyn Front>,
    ) -> Result<Self, Errno> {
        let class = match &eye {
            EyeParts::Userfault(_) => LockClass::Agent,
            EyeParts::Touches { .. } => LockClass::Filler,
        };
        let agent = Arc::new(Mutex::new(class, None));
        let letters = Arc::new(Mutex::new(LockClass::Letters, None));
        let eye = match eye {
            EyeParts::Userfault(userfault) => Eye::Userfault(userfault),
            EyeParts::Touches { process, has_guards } => {
                let process = (process, has_guards);
                Eye::Touches(Box::new(Touches::new(process, agent.clone(), letters.clone())?))
            }
        };
        let owned = Owned::new(SpaceMap::new(eye.abilities().marks));
        Ok(Self {
            number,
            origin: String::new(),
            known: OnceLock::new(),
            eye,
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
    pub(crate) fn attached(&self, known: Known, agent: (Agent, Vec<Vpn>)) {
        let (agent, needed) = agent;
        let mut owned = self.hold();
        if let Some((touches, maps)) = self.eye.touches().zip(known.maps.try_clone().ok()) {
            touches.set_maps(maps);
        }
        if self.known.set(known).is_ok() {
            self.threads.are_held();
            owned.needed = needed.iter().map(|page| page.run(1)).collect();
            drop(owned);
            // Until then nothing of it moves.
            *self.agent() = Some(agent);
        } else {
            drop(owned);
        }
        if self.is_lost() {
            self.kill();
        }
    }

    /// What it is called in lines for the user.
    pub(crate) fn name(&self) -> &str {
        self.known().map_or(&self.origin, |known| &known.name)
    }

    /// What is known of it; nothing of a forked child that is not attached to.
    pub(crate) fn known(&self) -> Option<&Known> {
        self.known.get()
    }

    /// Takes the agent, if there is one, to ask it. While it moves pages the guest is to be held:
    /// afterwards, or before if it has no userfaultfd.
    pub(crate) fn agent(&self) -> MutexGuard<'_, Option<Agent>> {
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
        match self.known() {
            Some(known) => {
                let _ = rustix::process::pidfd_send_signal(&known.process, Signal::KILL);
                self.ended();
            }
            // What it has asked for by now may never be answered.
            None => self.eye.end(),
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
        self.known()?.pages().ok()
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
        match self.known() {
            Some(known) => pidfd::has_ended(&known.process),
            None => !self.eye.has_address_space(),
        }
    }

    /// The same of one that may have been killed together with its agent, as the kernel does for
    /// want of memory.
    pub(crate) fn is_over_soon(&self) -> bool {
        match self.known() {
            Some(known) => pidfd::ends_within(&known.process, END_WAIT),
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

    /// Reads and applies messages until there is none, then settles what is in doubt. Faults wait.
    pub(crate) fn catch_up(&self, owned: &mut Owned) {
        while let Some(message) = self.next(owned) {
            match message {
                Message::Fault(fault) => self.put_off(owned, fault),
                Message::Event(_) | Message::Fork(_) => {}
            }
        }
        self.settle(owned);
    }

    /// Reads one message and applies it.
    pub(crate) fn next(&self, owned: &mut Owned) -> Option<Message> {
        let message = match self.eye.read() {
            Ok(message) => message?,
            Err(_) => {
                self.has_no_messages();
                return None;
            }
        };
        match message {
            Message::Event(event) => {
                owned.map.apply(&event);
                owned.note_event(&event);
                owned.stirred.push(event.left());
                if let (Event::Removed(place), None) = (&event, self.eye.touches()) {
                    self.doom(owned, place);
                }
                self.freeze(owned);
                Some(Message::Event(event))
            }
            Message::Fork(fd) => {
                let userfault = GuestUserfault::agreed(fd, self.eye.abilities(), None);
                owned.note_fork(EyeParts::Userfault(userfault));
                self.has_relatives.store(true, Relaxed);
                self.call_reader();
                self.next(owned)
            }
            fault @ Message::Fault(_) => Some(fault),
        }
    }

    /// What becomes of it without its messages, of which one may bring no descriptor for a child,
    /// is not known.
    fn has_no_messages(&self) {
        if self.eye.has_address_space() {
            self.kill();
        }
        self.ended();
    }

    /// Notes which pages there are while their content is being removed.
    fn doom(&self, owned: &mut Owned, place: &Range<Vpn>) {
        owned.still.dooms();
        let map = &mut owned.map;
        let Some(known) = self.known() else { return map.doom(place.clone()) };
        let looked = self.entries(known, place, |run, entry| {
            if matches!(entry, Entry::Present | Entry::Marked) {
                map.doom(run);
            }
        });
        if looked.is_err() {
            self.ended();
        }
    }

    /// Ends the removal of content that is not under way any more: what is there stays, and what
    /// was out is new.
    pub(crate) fn spare(&self, owned: &mut Owned, doomed: Range<Vpn>) {
        if self.eye.unmark(&doomed).is_ok() {
            owned.map.seen_new(doomed);
        }
    }

    /// Settles what is in doubt, and marks what could not be marked before.
    pub(crate) fn settle(&self, owned: &mut Owned) {
        if owned.map.is_in_doubt() {
            owned.map.settle(&mut MapWitness(self));
        }
        self.freeze(owned);
        self.mark_rest(owned);
        if owned.map.is_in_doubt() {
            // Nothing may come that makes anybody look again.
            self.look_again();
        } else {
            owned.wake_stirred(&self.eye);
        }
    }

    /// Holds all threads while the map must not change. Those that write letters have to go on,
    /// for what is to be told next; what they touch waits for that.
    fn freeze(&self, owned: &Owned) {
        self.threads.freeze(owned.map.must_hold_threads() && self.eye.touches().is_none());
    }

    /// Drops what the map has for pages that were seen neither present nor marked, unless they may
    /// have moved away: then a message is outstanding, and false is returned. Who waits for one
    /// asks again.
    pub(crate) fn drop_gone(&self, owned: &mut Owned, place: &Range<Vpn>) -> bool {
        if self.is_changing(place) {
            return false;
        }
        owned.map.drop_gone(place);
        self.eye.wake(place);
        true
    }

    /// True if a message is outstanding: what the page table said before is then not to be believed
    /// of what is not there.
    pub(crate) fn is_changing(&self, place: &Range<Vpn>) -> bool {
        self.eye.look(place) == Ok(Look::Changing)
    }

    /// True if a message is outstanding anywhere.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.is_changing(&self.eye.anchor().run(1))
    }

    /// True if what the kernel says now of all of it is the truth: nothing is in doubt,
    /// outstanding, or about to be a child's.
    pub(crate) fn is_quiescent(&self, owned: &Owned) -> bool {
        !(owned.map.is_in_doubt() || owned.is_forking() || self.has_outstanding())
    }

    fn mark_rest(&self, owned: &mut Owned) {
        let all = Vpn(0)..Vpn(u64::MAX);
        for place in owned.map.unmarked(&all).collect::<Vec<_>>() {
            if self.eye.mark(&place).is_ok() {
                owned.map.marked(place);
            }
        }
    }

    /// Marks pages that have just been moved out, or notes that they are to be marked.
    pub(crate) fn mark(&self, owned: &mut Owned, place: Range<Vpn>) {
        if self.eye.abilities().marks && self.eye.mark(&place).is_err() {
            owned.map.leave_unmarked(place);
        }
    }

    /// Returns what is at an address, and whether its content is out though nothing says so.
    pub(crate) fn entry(&self, known: &Known, owned: &Owned, at: Vpn) -> Result<Entry, Ended> {
        match known.pagemap.at(at) {
            _ if self.eye.touches().is_some_and(|touches| touches.is_out(at)) => Ok(Entry::Marked),
            Ok(Entry::Nothing) if owned.map.unmarked(&at.run(1)).next().is_some() => {
                Ok(Entry::Marked)
            }
            Ok(entry) => Ok(entry),
            Err(_) => {
                self.ended();
                Err(Ended)
            }
        }
    }

    /// True if `place` may be registered now. Without marks a message that is outstanding could be
    /// about another mapping there.
    pub(crate) fn may_register(&self, place: &Range<Vpn>) -> bool {
        self.eye.abilities().marks || !self.is_changing(place)
    }

    /// Returns how many pages from the start of `place` on have their content out, as far as the
    /// page table tells: a page that is there counts too.
    pub(crate) fn out_pages(&self, known: &Known, owned: &Owned, place: &Range<Vpn>) -> usize {
        if !self.eye.abilities().marks {
            return Vpn::pages(place) as usize;
        }
        let mut out: RangeSet<Vpn> = owned.map.unmarked(place).collect();
        let looked = self.entries(known, place, |run, entry| {
            if entry != Entry::Nothing {
                out.insert(run);
            }
        });
        if looked.is_err() {
            self.ended();
        }
        out.get(&place.start).map_or(0, |run| (run.end.min(place.end).0 - place.start.0) as usize)
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
        self.eye.as_fd()
    }
}

/// Lets a guest go on with what it is in the middle of. To yield would give away whole time slices
/// where a crowd runs.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// The address space has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended;
