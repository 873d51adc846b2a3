//! What letters of gates ask for.
//!
//! Owns: the thread that hears the bell.
//! Invariant: a fork stands still ([`Owned::is_forking`]) from its first letter until its child has
//! its pages, or is known not to come.
//! Not here: the memory of letters (`guest::letters`), what a child gets (`forks`).
//!
//! [`Owned::is_forking`]: crate::guest::state::Owned::is_forking

use super::shared::Shared;
use crate::guest::events::pause;
use crate::guest::letters::{Awaited, LetterId, Letters, Read};
use crate::guest::source::{Followed, GateRequest};
use crate::guest::state::{Fork, Guest, Owned, Turn};
use crate::guest::touched::protection_of;
use crate::parts::Birth;
use crate::space::guest_space::TRIES;
use overspill_agent::PAGE_BYTES;
use overspill_agent::gate::letter;
use overspill_base::sync::{Arc, MutexGuard};
use overspill_guest::Vpn;
use overspill_guest::map::{Event, Extent};
use overspill_guest::pagemap::Entry;
use overspill_wire::Descriptor;
use rangemap::RangeSet;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ops::Range;

/// Where the addresses of a process end, at most.
const ADDRESSES_END: u64 = 1 << 56;
/// What a letter is answered with that nobody understands.
const NO_SUCH_LETTER: i64 = -(Errno::NOSYS.raw_os_error() as i64);
/// What a fork fails with that cannot be followed.
pub(crate) const NOT_NOW: i64 = -(Errno::AGAIN.raw_os_error() as i64);

impl Shared {
    /// Takes what a gate writes from now on.
    pub(crate) fn take_letters(
        &self,
        guest: &Guest,
        [bell, letters]: &[Descriptor; 2],
    ) -> Result<(), Errno> {
        self.bell.hang(bell)?;
        let mut letters = Letters::open(letters)?;
        let mut owned = guest.hold();
        let mut current = guest.letters.lock();
        current.iter().for_each(|before| letters.follow(before));
        let before = current.replace(letters);
        drop(current);
        if let Some(before) = before {
            guest.source.forget_letters(&before);
            owned.forget_letters(&before);
        }
        drop(owned);
        // Some may have been written before anybody read them.
        self.bell.ring();
        Ok(())
    }

    /// Reads letters until told to stop.
    pub(crate) fn read_letters(&self) {
        while !self.must_stop() {
            let Some(rung) = self.bell.rung() else { continue };
            self.read_all_letters();
            self.bell.listen(rung);
        }
    }

    /// Reads those that there are.
    pub(crate) fn read_all_letters(&self) {
        self.all_guests().iter().for_each(|guest| self.read_those_of(guest));
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

    /// Does what a letter asks for that was read.
    pub(crate) fn follow_letter(&self, guest: &Arc<Guest>, read: &Read) {
        let (id, [first, second, third, _]) = (read.id, read.arguments);
        match read.kind {
            letter::FORK => self.take_turn(guest, Turn::Fork(id)),
            letter::CHANGE => self.take_turn(guest, Turn::Change(id)),
            letter::KEPT => {
                guest.hold().kept.advised(pages_of(first, second), third);
                guest.answer_letter(id, 0);
            }
            letter::OUT => {
                let place = pages_of(first, second);
                self.take_new_of(guest, &place);
                let extents: Vec<_> = guest.hold().map.bound(place).collect();
                extents.iter().for_each(|extent| {
                    self.engine.page_out(extent.first, extent.pages as usize);
                });
                guest.answer_letter(id, 0);
            }
            letter::BORN => self.is_born(guest, id, first, (second, third)),
            letter::FORKED => self.has_forked(guest, id, first, second as i64),
            letter::FAULT => {
                if !guest.source.faulted(id, first, second) {
                    guest.answer_letter(id, NO_SUCH_LETTER);
                }
            }
            kind => {
                let request = request_of(kind, read.arguments);
                self.follow_request(guest, guest.hold(), (id, request));
            }
        }
    }

    /// Others may have taken the place of the letters, and then it is written again.
    fn take_turn(&self, guest: &Arc<Guest>, turn: Turn) {
        let (Turn::Fork(letter) | Turn::Change(letter)) = turn;
        let mut owned = guest.hold();
        if !guest.awaits(letter) {
            return;
        }
        owned.turns.push_back(turn);
        drop(owned);
        self.begin_turns(guest);
    }

    /// Begins what has its turn.
    pub(crate) fn begin_turns(&self, guest: &Arc<Guest>) {
        loop {
            let mut owned = guest.hold();
            if !guest.may_begin(&owned) {
                return;
            }
            match owned.turns.pop_front() {
                None => return,
                Some(Turn::Fork(letter)) => self.begin_fork(guest, owned, letter),
                Some(Turn::Change(letter)) => {
                    self.follow_request(guest, owned, (letter, Some(GateRequest::Begin)));
                }
            }
        }
    }

    fn begin_fork<'g>(&self, guest: &'g Guest, mut owned: MutexGuard<'g, Owned>, letter: LetterId) {
        if guest.source.tells_ahead() {
            owned = guest.settled(owned);
            if !guest.awaits(letter) {
                return;
            }
            self.forget_gone(guest, &mut owned);
        } else {
            // What keeps touches away is the child's as well, and tells.
            guest.catch_up(&mut owned);
        }
        let fork = owned.begin_fork(letter, guest.source.closed());
        drop(owned);
        guest.answer_letter(letter, fork.map_or(NOT_NOW, |fork| fork as i64));
    }

    /// Forgets what a guest that is about to fork has dropped. Its own marks tell that
    /// (`guest::map`, rule 9), but its child has none. Of one that is not attached to that cannot
    /// be read.
    fn forget_gone(&self, guest: &Guest, owned: &mut Owned) {
        let Some(handles) = guest.handles() else { return };
        let extents: Vec<Extent> = owned.map.bound(Vpn(0)..Vpn(u64::MAX)).collect();
        let mut gone: RangeSet<Vpn> = RangeSet::new();
        for Extent { at, first, pages } in extents {
            let has_content =
                |it: &Vpn| !self.engine.is_untouched(first.plus((it.0 - at.0) as usize));
            let looked = guest.entries(handles, &at.run(pages.into()), |run, entry| {
                if entry == Entry::Nothing {
                    gone.extend(Vpn::each(&run).filter(has_content).map(|it| it.run(1)));
                }
            });
            if looked.is_err() {
                return guest.ended();
            }
        }
        // What could not be marked yet counts as marked.
        let unmarked: Vec<_> = owned.map.unmarked(&(Vpn(0)..Vpn(u64::MAX))).collect();
        unmarked.into_iter().for_each(|place| gone.remove(place));
        if !guest.has_outstanding() {
            for place in gone.iter() {
                owned.map.drop_gone(place);
                // Who waits for its content asks again.
                guest.source.wake(place);
            }
        }
    }

    /// Follows what only gates write that have no userfaultfd beside them.
    fn follow_request(
        &self,
        guest: &Guest,
        owned: MutexGuard<'_, Owned>,
        (letter, request): (LetterId, Option<GateRequest>),
    ) {
        let followed = match request {
            // Nothing has changed.
            Some(GateRequest::Changed(event)) if event.left().is_empty() => Ok(Followed::Answer(0)),
            Some(request) => guest.source.follow(letter, request),
            None => Ok(Followed::Unknown),
        };
        drop(owned);
        match followed {
            Ok(Followed::Answer(answer)) => guest.answer_letter(letter, answer),
            Ok(Followed::Later) => {}
            Ok(Followed::Unknown) => guest.answer_letter(letter, NO_SUCH_LETTER),
            Err(why) => self.space.end_of_agent(guest, &why),
        }
    }

    /// A child is there.
    fn is_born(&self, guest: &Arc<Guest>, letter: LetterId, fork: u64, (child, fd): (u64, u64)) {
        if !guest.knows_fork(fork) {
            return guest.answer_letter(letter, NOT_NOW);
        }
        guest.with_birth(fork, |awaited| awaited.child = Some(letter));
        let is_needed = guest.source.needs_descriptors();
        let userfaultfd = i32::try_from(fd as i64).ok().filter(|fd| *fd >= 0 || !is_needed);
        match userfaultfd.zip(i32::try_from(child).ok()) {
            Some((userfaultfd, child)) => {
                self.front.fetch(Birth { parent: guest.number, fork, child, userfaultfd });
            }
            None => self.is_not_coming(guest, fork),
        }
    }

    /// The parent says what became of the call.
    fn has_forked(&self, guest: &Arc<Guest>, letter: LetterId, fork: u64, made: i64) {
        if !guest.knows_fork(fork) {
            return guest.answer_letter(letter, NOT_NOW);
        }
        let again = guest.with_birth(fork, |awaited| match awaited.parent {
            None => {
                awaited.parent = Some(letter);
                None
            }
            // Another letter says that the child has ended.
            Some(_) => Some(letter),
        });
        if let Some(letter) = again.flatten() {
            guest.answer_letter(letter, 0);
        }
        if made <= 0 {
            self.is_not_coming(guest, fork);
        }
    }

    /// The front has fetched what tells of a child, or could not: its userfaultfd, or if its parent
    /// has none its process.
    pub(crate) fn fetched(&self, number: u64, fork: u64, fetched: Option<OwnedFd>) {
        let Some(guest) = self.guest(number) else { return };
        let source = fetched.and_then(|fetched| guest.source.parts_of_child(fetched).ok());
        let is_forked = source.is_some_and(|source| guest.hold().is_forked(fork, source));
        match is_forked {
            true => guest.has_child(),
            false => self.is_not_coming(&guest, fork),
        }
    }

    /// There is no child, or none that can be followed.
    fn is_not_coming(&self, guest: &Arc<Guest>, fork: u64) {
        guest.hold().end_fork(fork);
        guest.came(fork, NOT_NOW);
        self.begin_turns(guest);
        self.call_care();
    }

    /// A child has its pages: gives it a page for its letters, and lets both go on.
    pub(crate) fn has_come(&self, parent: &Arc<Guest>, child: &Guest, fork: Fork) {
        let Fork::Asked(fork) = fork else { return };
        let page = parent.letters.lock().as_ref().and_then(Letters::for_child);
        let came = page.as_ref().map_or(NOT_NOW, Letters::page);
        if page.is_none() {
            child.kill();
        }
        *child.letters.lock() = page;
        parent.came(fork, came);
    }
}

/// Understands what a gate asks for; `None` if nobody does.
fn request_of(kind: u32, [first, second, third, _]: [u64; 4]) -> Option<GateRequest> {
    Some(match kind {
        letter::CHANGED => GateRequest::End { protects: first != 0 },
        letter::LOOK => GateRequest::Look(pages_of(first, second)),
        letter::PROTECTED => {
            let can = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
            let protection = protection_of(can.map(|right| third & right as u64 != 0));
            GateRequest::Protect(pages_of(first, second), protection)
        }
        letter::UNMAPPED => GateRequest::Changed(Event::Unmapped(pages_of(first, second))),
        letter::REMOVED => GateRequest::Changed(Event::Removed(pages_of(first, second))),
        letter::REMAPPED => {
            let pages = Vpn::pages(&pages_of(first, third));
            let [from, to] = [first, second].map(|at| Vpn::of(at.min(ADDRESSES_END)));
            GateRequest::Changed(Event::Remapped { from, to, pages })
        }
        _ => return None,
    })
}

/// The pages of a range that a guest names, as far as it can have them.
fn pages_of(start: u64, bytes: u64) -> Range<Vpn> {
    let end = start.saturating_add(bytes).saturating_add(PAGE_BYTES as u64 - 1);
    Vpn::of(start.min(ADDRESSES_END))..Vpn::of(end.min(ADDRESSES_END))
}

impl Guest {
    /// Goes on being the owner at a moment at which nothing is in doubt, nor outstanding, if there
    /// is one soon: then it can be told what was dropped before.
    fn settled<'g>(&'g self, mut owned: MutexGuard<'g, Owned>) -> MutexGuard<'g, Owned> {
        for _ in 0..TRIES {
            self.catch_up(&mut owned);
            if !owned.map.is_in_doubt() && !self.has_outstanding() {
                break;
            }
            drop(owned);
            pause();
            owned = self.hold();
        }
        owned
    }

    fn answer_letter(&self, letter: LetterId, answer: i64) {
        if let Some(letters) = &mut *self.letters.lock() {
            letters.answer(letter, answer);
        }
    }

    /// True if somebody waits for the answer to a letter.
    fn awaits(&self, letter: LetterId) -> bool {
        self.letters.lock().as_ref().is_some_and(|letters| letters.is_open(letter))
    }

    /// True if it was asked for, and not all is told that came of it.
    fn knows_fork(&self, fork: u64) -> bool {
        let is_awaited = |letters: &Letters| letters.awaits_birth(fork);
        self.hold().is_asked(fork) || self.letters.lock().as_ref().is_some_and(is_awaited)
    }

    fn with_birth<R>(&self, fork: u64, f: impl FnOnce(&mut Awaited) -> R) -> Option<R> {
        let mut letters = self.letters.lock();
        Some(letters.as_mut()?.with_birth(fork, f))
    }

    /// Tells those who wait for a fork what came of it, if there are any.
    pub(crate) fn came(&self, fork: u64, came: i64) {
        let mut letters = self.letters.lock();
        if let Some(letters) = letters.as_mut().filter(|letters| letters.awaits_birth(fork)) {
            letters.with_birth(fork, |awaited| awaited.came = awaited.came.or(Some(came)));
        }
    }
}
