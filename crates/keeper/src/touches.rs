//! A guest without a userfaultfd: its gate tells of its touches, and its agent fills its pages.
//!
//! Owns: what letters have told that was not read yet, and who waits for a page.
//! Invariants: this behaves as a userfaultfd does with marks, so all else is the same: a memory
//! call under way is a message that is outstanding, and until what it has changed was read nothing
//! is filled and nothing moves. What letters change is changed with the guest held. Who waits is
//! answered when its page is there, or when the touch is found to be the program's mistake, by its
//! mappings as they are then. New pages come without a touch that anybody hears of: they are
//! looked for (`survey`).
//! The agent is asked with the guest held, also by who moves pages out: else who fills would have
//! to wait for it the wrong way round.
//! Not here: letters ([`crate::letters`]), which pages are out and how they are protected
//! ([`crate::touched`]), what the agent does (`agent/payload/touches.rs`).
//! Rejected: guards on all that was never touched, so that its first touch is heard of: the page
//! tables of what programs only reserve would be made.

use crate::agent::{Agent, AgentError, Leaving, Moved, Protection};
use crate::eye::EyeParts;
use crate::letters::Letters;
use crate::survey::text;
use crate::touched::{Closed, Touched};
use overspill_agent::gate::access;
use overspill_base::PAGE_SIZE;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_guest::map::{Event, Look};
use overspill_guest::mappings::{self, Mapping};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Abilities, Fault, Filled, Message, Refusal, Userfault};
use overspill_guest::{Vpn, pidfd};
use rangemap::RangeSet;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a touch is answered with that is the program's mistake.
const MISTAKE: i64 = -(Errno::FAULT.raw_os_error() as i64);

/// How long a forked child may wait until it is attached to.
const ATTACH_WAIT: Duration = Duration::from_secs(10);

/// What letters have told, in their order, each with the letter to answer.
#[derive(Debug)]
enum Told {
    Fault(Fault),
    Event(Event, usize),
    /// A memory call is over.
    Changed(usize),
}

/// A thread that waits for a page: its letter, and what it was about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    letter: usize,
    at: Vpn,
    access: u64,
    since: Instant,
}

/// What is known of a guest's memory, and of who waits.
#[derive(Debug, Default)]
struct State {
    told: VecDeque<Told>,
    waiting: Vec<Waiting>,
    /// Memory calls under way.
    changing: usize,
    memory: Touched,
}

/// The eye.
#[derive(Debug)]
pub(crate) struct Touches {
    process: OwnedFd,
    /// `/proc/PID/maps`, once it is attached to.
    maps: OnceLock<OwnedFd>,
    /// Can be read while something was told.
    ready: OwnedFd,
    agent: Arc<Mutex<Option<Agent>>>,
    letters: Arc<Mutex<Option<Letters>>>,
    state: Mutex<State>,
}

impl Touches {
    pub(crate) const ABILITIES: Abilities =
        Abilities { marks: true, poison: false, moves: true, forks: false };

    /// Of a guest with this agent and these letters, on a kernel that has guards or not.
    ///
    /// # Errors
    /// Of eventfd.
    pub(crate) fn new(
        (process, has_guards): (OwnedFd, bool),
        agent: Arc<Mutex<Option<Agent>>>,
        letters: Arc<Mutex<Option<Letters>>>,
    ) -> Result<Self, Errno> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { memory: Touched::new(has_guards), ..State::default() };
        let state = Mutex::new(LockClass::Letters, state);
        Ok(Self { process, maps: OnceLock::new(), ready, agent, letters, state })
    }

    /// Its list of mappings can be read here. A second time changes nothing.
    pub(crate) fn set_maps(&self, maps: OwnedFd) {
        let _ = self.maps.set(maps);
    }

    /// What it is made of: a pidfd of its process, and whether the kernel has guards.
    ///
    /// # Errors
    /// No descriptor.
    pub(crate) fn parts(&self) -> Result<EyeParts, Errno> {
        let process = rustix::io::fcntl_dupfd_cloexec(&self.process, 0)?;
        Ok(EyeParts::Touches { process, has_guards: self.has_guards() })
    }

    pub(crate) fn has_guards(&self) -> bool {
        self.state.lock().memory.has_guards()
    }

    pub(crate) fn has_process(&self) -> bool {
        !pidfd::has_ended(&self.process)
    }

    /// Ends it.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    // What letters tell.

    /// A thread waits for a page.
    pub(crate) fn fault(&self, letter: usize, address: u64, access: u64) {
        let at = Vpn::of(address);
        let mut state = self.state.lock();
        state.waiting.push(Waiting { letter, at, access, since: Instant::now() });
        self.tell(&mut state, Told::Fault(Fault { at, thread: 0 }));
    }

    /// A memory call begins. The guest is held.
    pub(crate) fn begin_change(&self) {
        self.state.lock().changing += 1;
    }

    /// A memory call has done something. The guest is held. What keeps touches from what was
    /// removed is removed, too. If there is no agent yet that is not answered: the same comes with
    /// other letters.
    ///
    /// # Errors
    /// Of the agent.
    pub(crate) fn has_changed(&self, letter: usize, event: Event) -> Result<(), AgentError> {
        if let Event::Removed(place) = &event
            && !self.clear(place)?
        {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.memory.apply(&event);
        self.tell(&mut state, Told::Event(event, letter));
        Ok(())
    }

    /// Has a place be empty, and open; false if there is no agent yet to do that.
    fn clear(&self, place: &Range<Vpn>) -> Result<bool, AgentError> {
        let runs = self.state.lock().memory.to_clear(place);
        if runs.is_empty() {
            return Ok(true);
        }
        let mut agent = self.agent.lock();
        let Some(agent) = &mut *agent else { return Ok(false) };
        agent.clear(&runs)?;
        self.state.lock().memory.open(place.clone());
        Ok(true)
    }

    /// A memory call is over. The guest is held.
    pub(crate) fn end_change(&self, letter: usize, protects: bool) {
        let mut state = self.state.lock();
        if protects {
            state.memory.forget_protections();
        }
        self.tell(&mut state, Told::Changed(letter));
    }

    fn tell(&self, state: &mut State, told: Told) {
        state.told.push_back(told);
        // It cannot be full, nor block.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    fn next_told(&self) -> Option<Told> {
        let mut state = self.state.lock();
        let told = state.told.pop_front();
        if state.told.is_empty() {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
        if let Some(Told::Changed(_)) = told {
            state.changing = state.changing.saturating_sub(1);
        }
        told
    }

    /// Other letters come from now on: who waits writes again.
    pub(crate) fn forget_letters(&self) {
        self.state.lock().waiting.clear();
    }

    // Who waits.

    /// Takes those who wait in a place.
    fn take_waiting(&self, place: &Range<Vpn>) -> Vec<Waiting> {
        let mut state = self.state.lock();
        let is_there = |waiting: &mut Waiting| place.contains(&waiting.at);
        state.waiting.extract_if(.., is_there).collect()
    }

    /// Has those who wait for a page know that it is none of ours.
    pub(crate) fn refuse(&self, at: Vpn) {
        let waiting = self.take_waiting(&at.run(1));
        self.answer(waiting.into_iter().map(|waiting| (waiting.letter, MISTAKE)));
    }

    /// True if it may do what it is about to do, as far as is known here: what the mappings say of
    /// what is shut is our doing.
    fn is_fine(&self, waiting: &Waiting) -> bool {
        let state = self.state.lock();
        state.memory.is_shut(waiting.at) || state.memory.allows(waiting.at, waiting.access)
    }

    fn answer(&self, answers: impl IntoIterator<Item = (usize, i64)>) {
        if let Some(letters) = &mut *self.letters.lock() {
            answers.into_iter().for_each(|(letter, answer)| letters.answer(letter, answer));
        }
    }

    // What is out.

    /// True if somebody has waited for longer than an attach takes.
    pub(crate) fn has_waited(&self) -> bool {
        let state = self.state.lock();
        state.waiting.iter().any(|waiting| waiting.since.elapsed() > ATTACH_WAIT)
    }

    /// True while a memory call is under way, and until what it has changed was read.
    pub(crate) fn is_changing(&self) -> bool {
        self.state.lock().changing > 0
    }

    /// See [`Touched::overlay`].
    pub(crate) fn overlay(
        &self,
        run: Range<Vpn>,
        entry: Entry,
        each: impl FnMut(Range<Vpn>, Entry),
    ) {
        self.state.lock().memory.overlay(run, entry, each);
    }

    /// True if the content of a page is out.
    pub(crate) fn is_out(&self, at: Vpn) -> bool {
        self.state.lock().memory.is_out(at)
    }

    /// What is out where that comes with a page.
    pub(crate) fn out_around(&self, at: Vpn) -> RangeSet<Vpn> {
        let state = self.state.lock();
        state.memory.marks_in(&state.memory.window(at))
    }

    /// Opens a page that is shut, and not out.
    ///
    /// # Errors
    /// Of the agent.
    pub(crate) fn open(&self, at: Vpn) -> Result<(), AgentError> {
        let is_shut = self.state.lock().memory.is_shut(at);
        if is_shut { self.clear(&at.run(1)).map(drop) } else { Ok(()) }
    }

    /// Opens all that is shut, of which nothing is out.
    ///
    /// # Errors
    /// Of the agent.
    pub(crate) fn open_all(&self) -> Result<(), AgentError> {
        self.clear(&(Vpn(0)..Vpn(u64::MAX))).map(drop)
    }

    /// What keeps touches away.
    pub(crate) fn closed(&self) -> Closed {
        self.state.lock().memory.closed()
    }

    /// See [`Touched::set_closed`].
    pub(crate) fn set_closed(&self, closed: &Closed) {
        self.state.lock().memory.set_closed(closed);
    }

    /// True if a run may go out.
    pub(crate) fn may_shut(&self, place: &Range<Vpn>) -> bool {
        self.state.lock().memory.may_shut(place)
    }

    /// See [`Touched::alike`].
    pub(crate) fn alike(&self, place: &Range<Vpn>) -> (u64, bool) {
        self.state.lock().memory.alike(place)
    }

    /// See [`Touched::protect`]. The guest is held.
    pub(crate) fn protect(&self, place: &Range<Vpn>, protection: Option<Protection>) {
        self.state.lock().memory.protect(place, protection);
    }

    /// How a page is protected, and for how many pages from there on that is so, at most; `None` if
    /// that cannot be found out.
    pub(crate) fn protection(&self, at: Vpn) -> Option<(u64, Option<Protection>)> {
        let mut state = self.state.lock();
        if !state.memory.knows_protections() {
            state.memory.set_protections(&text(self.maps.get()?).ok()?);
        }
        state.memory.protection(at)
    }

    /// Puts content back, as far as the protection is the same.
    fn fill(&self, at: Vpn, content: &[u8]) -> Result<Moved, Refusal> {
        if self.is_changing() {
            return Err(Refusal::Changing);
        }
        let mut agent = self.agent.lock();
        // It is not attached to yet.
        let agent = agent.as_mut().ok_or(Refusal::NoMemory)?;
        let (most, protection) = self.protection(at).ok_or(Refusal::NoMemory)?;
        let pages = most.min((content.len() / PAGE_SIZE).min(Agent::PAGES_MAX) as u64);
        let leaving = Leaving { place: at.run(pages), protection };
        let filled = agent.fill(&leaving, &content[..pages as usize * PAGE_SIZE]);
        filled.map_err(|_| match self.has_process() {
            true => Refusal::Unexpected(Errno::PROTO),
            false => Refusal::Gone,
        })
    }
}

/// True if some mapping allows a touch.
fn is_allowed(mappings: &[Mapping], waiting: &Waiting) -> bool {
    let there = mappings.iter().find(|mapping| mapping.place.contains(&waiting.at));
    there.is_some_and(|mapping| match waiting.access {
        access if access & access::WRITE != 0 => mapping.is_writable,
        access if access & access::EXECUTE != 0 => mapping.is_executable,
        // What can be written or executed can be read, too, on x86-64.
        _ => mapping.is_readable || mapping.is_writable || mapping.is_executable,
    })
}

impl AsFd for Touches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Userfault for Touches {
    fn read(&self) -> Result<Option<Message>, Errno> {
        loop {
            match self.next_told() {
                None => return Ok(None),
                Some(Told::Fault(fault)) => return Ok(Some(Message::Fault(fault))),
                Some(Told::Event(event, letter)) => {
                    self.answer([(letter, 0)]);
                    return Ok(Some(Message::Event(event)));
                }
                Some(Told::Changed(letter)) => self.answer([(letter, 0)]),
            }
        }
    }

    /// What is new there is looked for.
    fn register(&self, place: &Range<Vpn>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.memory.forget_protections();
        state.memory.registered.insert(place.clone());
        Ok(())
    }

    fn copy(&self, at: Vpn, content: &[u8]) -> Filled {
        let Moved { pages, stopped } = match self.fill(at, content) {
            Ok(moved) => moved,
            Err(refusal) => return Filled { pages: 0, stopped: Some(refusal) },
        };
        let place = at.run(pages);
        if pages > 0 {
            self.state.lock().memory.open(place.clone());
            let waiting = self.take_waiting(&place);
            self.answer(waiting.into_iter().map(|waiting| (waiting.letter, 0)));
        }
        let stopped = stopped.map(|errno| match errno {
            Errno::NOMEM | Errno::AGAIN => Refusal::NoMemory,
            errno => Refusal::Unexpected(errno),
        });
        Filled { pages: pages as usize, stopped }
    }

    /// What is missing and not out gets its zeros from the kernel; what is out is to be copied.
    fn zero(&self, place: &Range<Vpn>) -> Filled {
        let stopped = if self.is_out(place.start) { Refusal::Present } else { Refusal::NoMemory };
        Filled { pages: 0, stopped: Some(stopped) }
    }

    fn mark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        self.state.lock().memory.mark(place.clone());
        Ok(())
    }

    fn unmark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        match self.clear(place) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::NoMemory),
            Err(_) => Err(Refusal::Unexpected(Errno::PROTO)),
        }
    }

    /// A signal says nothing of what is lost: who misses it is ended.
    fn poison(&self, _: Vpn) -> Result<(), Refusal> {
        Err(Refusal::Unexpected(Errno::OPNOTSUPP))
    }

    fn look(&self, place: &Range<Vpn>) -> Result<Look, Refusal> {
        let state = self.state.lock();
        match state.memory.registered.gaps(place).next() {
            _ if !self.has_process() => Err(Refusal::Gone),
            _ if state.changing > 0 => Ok(Look::Changing),
            None => Ok(Look::Registered),
            Some(_) => Ok(Look::NotRegistered),
        }
    }

    /// A touch that the mappings do not allow is the program's mistake.
    fn wake(&self, place: &Range<Vpn>) {
        let waiting = self.take_waiting(place);
        let (fine, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| self.is_fine(waiting));
        self.answer(fine.into_iter().map(|waiting| (waiting.letter, 0)));
        if others.is_empty() {
            return;
        }
        let maps = self.maps.get().and_then(|maps| text(maps).ok());
        let mappings = maps.map(|maps| mappings::parse_list(&maps));
        self.answer(others.into_iter().map(|waiting| match &mappings {
            Some(mappings) if !is_allowed(mappings, &waiting) => (waiting.letter, MISTAKE),
            _ => (waiting.letter, 0),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    fn touches() -> Touches {
        let agent = Arc::new(Mutex::new(LockClass::Filler, None));
        let letters = Arc::new(Mutex::new(LockClass::Letters, None));
        let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let touches = Touches::new((process, true), agent, letters).unwrap();
        touches.register(&Vpn(10).run(10)).unwrap();
        touches.mark(&Vpn(12).run(3)).unwrap();
        touches
    }

    fn read(touches: &Touches) -> Option<String> {
        touches.read().unwrap().map(|message| format!("{message:?}"))
    }

    #[test]
    fn nothing_is_filled_while_mappings_change() {
        let touches = touches();
        touches.begin_change();
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Changing));
        assert_eq!(touches.copy(Vpn(12), &[0; PAGE_SIZE]).stopped, Some(Refusal::Changing));
        touches.has_changed(0, Event::Unmapped(Vpn(11).run(2))).unwrap();
        touches.fault(1, Vpn(14).address(), 0);
        touches.end_change(0, true);
        assert!(read(&touches).unwrap().contains("Unmapped"));
        assert!(read(&touches).unwrap().contains("Fault"));
        // That the call is over is not read yet.
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Changing));
        assert_eq!(read(&touches), None);
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Registered));
        assert_eq!(touches.look(&Vpn(10).run(2)), Ok(Look::NotRegistered));
    }

    #[test]
    fn who_may_touch_memory_its_mapping_says() {
        let maps = "1000-3000 r--p 0 0:0 0\n3000-4000 rw-p 0 0:0 0\n5000-6000 ---p 0 0:0 0\n";
        let mappings = mappings::parse_list(maps);
        let since = Instant::now();
        let may = |page, access| {
            is_allowed(&mappings, &Waiting { letter: 0, at: Vpn(page), access, since })
        };
        assert!(may(1, 0) && may(3, 0) && may(3, access::WRITE));
        assert!(!may(2, access::WRITE) && !may(3, access::EXECUTE) && !may(4, 0) && !may(5, 0));
    }
}
