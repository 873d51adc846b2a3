//! A guest without a userfaultfd: its gate tells of its touches, and its agent fills its pages.
//!
//! Owns: what letters have told that was not read yet, and who waits for a page.
//! Invariants: this behaves as a userfaultfd does with marks, so all else is the same: a memory
//! call under way is a message that is outstanding, and until what it has changed was read nothing
//! is filled and nothing moves. One is under way at a time (`serve::letters`). What letters change
//! is changed with the guest held. Who waits is answered when its page is there, or when the touch
//! is found to be the program's mistake, by its mappings as they are then. New pages come without a
//! touch that anybody hears of: they are looked for (`survey`).
//! The agent is asked with the guest held, also by who moves pages out: else who fills would have
//! to wait for it the wrong way round.
//! Not here: letters ([`super::letters`]), which pages are out and how they are protected
//! ([`super::touched`]), what the agent does (`agent/payload/touches.rs`).
//! Rejected: guards on all that was never touched, so that its first touch is heard of: the page
//! tables of what programs only reserve would be made.

use super::agent::{AgentError, Leaving, Moved, PAGES_MAX, Protection};
use super::handles::Process;
use super::letters::{LetterId, Letters};
use super::source::{AgentCell, FaultSource, Followed, GateRequest, LettersCell, Told};
use super::still::Still;
use super::task::Task;
use super::waiting::{MISTAKE, Waiting, is_allowed};
use crate::guest::touched::{Closed, Touched};
use crate::parts::SourceParts;
use overspill_agent::Barrier;
use overspill_agent::gate::letter;
use overspill_base::PAGE_SIZE;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_guest::Vpn;
use overspill_guest::map::{Event, Look};
use overspill_guest::mappings::{self};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Fault, Filled, Message, Refusal, Userfault};
use rangemap::RangeSet;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a forked child may wait until it is attached to.
const ATTACH_WAIT: Duration = Duration::from_secs(10);

/// What letters have told, in their order, each with the letter to answer.
#[derive(Debug)]
enum Unread {
    Fault(Fault),
    Event(Event, LetterId),
    /// A memory call is over.
    Changed(LetterId),
}

/// What is known of a guest's memory, and of who waits.
#[derive(Debug)]
struct State {
    told: VecDeque<Unread>,
    waiting: Vec<Waiting>,
    /// The first letter of the memory call that is under way.
    changing: Option<LetterId>,
    memory: Touched,
}

/// The source.
#[derive(Debug)]
pub(crate) struct SignalFaults {
    process: Box<dyn Task>,
    /// Once it is attached to.
    attached: OnceLock<Arc<dyn Process>>,
    /// Can be read while something was told.
    ready: OwnedFd,
    agent: AgentCell,
    letters: LettersCell,
    state: Mutex<State>,
}

impl SignalFaults {
    /// Of a guest with this agent and these letters, on a kernel that has guards or not.
    ///
    /// # Errors
    /// Of eventfd.
    pub(crate) fn new(
        (process, barrier): (Box<dyn Task>, Barrier),
        agent: AgentCell,
        letters: LettersCell,
    ) -> Result<Self, Errno> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (told, waiting, memory) = (VecDeque::new(), Vec::new(), Touched::new(barrier));
        let state = State { told, waiting, changing: None, memory };
        let state = Mutex::new(LockClass::Letters, state);
        Ok(Self { process, attached: OnceLock::new(), ready, agent, letters, state })
    }

    /// Its list of mappings, if it can be read.
    fn maps(&self) -> Option<String> {
        self.attached.get()?.maps().ok()
    }

    fn has_process(&self) -> bool {
        !self.process.has_ended()
    }

    /// A memory call has done something. The guest is held. What keeps touches from what was
    /// removed is removed, too. If there is no agent yet that is not answered: the same comes with
    /// other letters.
    ///
    /// # Errors
    /// Of the agent.
    fn has_changed(&self, letter: LetterId, event: Event) -> Result<(), AgentError> {
        if let Event::Removed(place) = &event
            && !self.clear(place)?
        {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.memory.apply(&event);
        self.tell(&mut state, Unread::Event(event, letter));
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
    fn end_change(&self, letter: LetterId, protects: bool) {
        let mut state = self.state.lock();
        if protects {
            state.memory.forget_protections();
        }
        self.tell(&mut state, Unread::Changed(letter));
    }

    fn tell(&self, state: &mut State, told: Unread) {
        state.told.push_back(told);
        // It cannot be full, nor block.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    fn next_told(&self) -> Option<Unread> {
        let mut state = self.state.lock();
        let told = state.told.pop_front();
        if state.told.is_empty() {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
        if let Some(Unread::Changed(_)) = told {
            state.changing = None;
        }
        told
    }

    // Who waits.

    /// Takes those who wait in a place.
    fn take_waiting(&self, place: &Range<Vpn>) -> Vec<Waiting> {
        let mut state = self.state.lock();
        let is_there = |waiting: &mut Waiting| place.contains(&waiting.at);
        state.waiting.extract_if(.., is_there).collect()
    }

    /// Has those who wait for a page know that it is none of ours.
    fn refuse(&self, at: Vpn) {
        let waiting = self.take_waiting(&at.run(1));
        self.answer(waiting.into_iter().map(|waiting| (waiting.letter, MISTAKE)));
    }

    /// True if it may do what it is about to do, as far as is known here: what the mappings say of
    /// what is shut is our doing.
    fn is_fine(&self, waiting: &Waiting) -> bool {
        let state = self.state.lock();
        state.memory.is_shut(waiting.at) || state.memory.allows(waiting.at, waiting.access)
    }

    fn answer(&self, answers: impl IntoIterator<Item = (LetterId, i64)>) {
        if let Some(letters) = &mut *self.letters.lock() {
            answers.into_iter().for_each(|(letter, answer)| letters.answer(letter, answer));
        }
    }

    // What is out.

    /// True while a memory call is under way, and until what it has changed was read.
    fn is_changing(&self) -> bool {
        self.state.lock().changing.is_some()
    }

    /// Opens a page that is shut, and not out.
    ///
    /// # Errors
    /// Of the agent.
    fn open(&self, at: Vpn) -> Result<(), AgentError> {
        let is_shut = self.state.lock().memory.is_shut(at);
        if is_shut { self.clear(&at.run(1)).map(drop) } else { Ok(()) }
    }

    /// How a page is protected, and for how many pages from there on that is so, at most; `None` if
    /// that cannot be found out.
    fn protection_of(&self, at: Vpn) -> Option<(u64, Option<Protection>)> {
        let mut state = self.state.lock();
        if !state.memory.knows_protections() {
            state.memory.set_protections(&self.maps()?);
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
        let (most, protection) = self.protection_of(at).ok_or(Refusal::NoMemory)?;
        let pages = most.min((content.len() / PAGE_SIZE).min(PAGES_MAX) as u64);
        let leaving = Leaving { place: at.run(pages), protection };
        let filled = agent.fill(&leaving, &content[..pages as usize * PAGE_SIZE]);
        filled.map_err(|_| match self.has_process() {
            true => Refusal::Unexpected(Errno::PROTO),
            false => Refusal::Gone,
        })
    }
}

impl AsFd for SignalFaults {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl FaultSource for SignalFaults {
    fn parts(&self) -> Result<SourceParts, Errno> {
        self.process.parts(self.state.lock().memory.barrier())
    }

    fn parts_of_fork(&self, process: OwnedFd) -> SourceParts {
        self.process.parts_of_child(process, self.state.lock().memory.barrier())
    }

    fn parts_of_child(&self, process: OwnedFd) -> Result<SourceParts, Errno> {
        Ok(self.parts_of_fork(process))
    }

    fn needs_descriptors(&self) -> bool {
        false
    }

    fn has_address_space(&self) -> bool {
        self.has_process()
    }

    fn wake_all(&self) {
        self.wake(&(Vpn(0)..Vpn(u64::MAX)));
    }

    fn end(&self) {
        self.process.kill();
    }

    fn attached(&self, process: &Arc<dyn Process>) {
        let _ = self.attached.set(process.clone());
    }

    fn forget_letters(&self, before: &Letters) {
        let mut state = self.state.lock();
        state.waiting.clear();
        state.changing.take_if(|begun| before.is_unseen(*begun, letter::CHANGE));
    }

    fn tells_of_new(&self) -> bool {
        false
    }

    /// Those that write letters have to go on, for what is to be told next.
    fn tells_ahead(&self) -> bool {
        false
    }

    /// True while a memory call is under way, and until what it has changed was read.
    fn is_under_way(&self) -> bool {
        self.is_changing()
    }

    /// Nobody hears of what is new, and what needs nothing may be the program's mistake.
    fn told(
        &self,
        at: Vpn,
        is_in_doubt: bool,
        is_guarded: &dyn Fn() -> bool,
    ) -> Result<Told, AgentError> {
        if self.attached.get().is_none() || self.is_changing() || is_in_doubt {
            return Ok(Told::Later);
        }
        if self.is_out(at) {
            return Ok(Told::Out);
        }
        match is_guarded() {
            true => self.refuse(at),
            false => self.open(at)?,
        }
        Ok(Told::Settled)
    }

    fn has_waited(&self) -> bool {
        let state = self.state.lock();
        state.waiting.iter().any(|waiting| waiting.since.elapsed() > ATTACH_WAIT)
    }

    fn faulted(&self, letter: LetterId, address: u64, access: u64) -> bool {
        let at = Vpn::of(address);
        let mut state = self.state.lock();
        state.waiting.push(Waiting { letter, at, access, since: Instant::now() });
        self.tell(&mut state, Unread::Fault(Fault { at, thread: 0 }));
        true
    }

    fn follow(&self, letter: LetterId, request: GateRequest) -> Result<Followed, AgentError> {
        match request {
            GateRequest::Begin => self.state.lock().changing = Some(letter),
            GateRequest::End { protects } => {
                self.end_change(letter, protects);
                return Ok(Followed::Later);
            }
            GateRequest::Changed(event) => {
                self.has_changed(letter, event)?;
                return Ok(Followed::Later);
            }
            GateRequest::Look(place) => {
                let (pages, is_shut) = self.state.lock().memory.alike(&place);
                let bytes = pages as i64 * PAGE_SIZE as i64;
                return Ok(Followed::Answer(bytes | i64::from(is_shut)));
            }
            GateRequest::Protect(place, protection) => {
                self.state.lock().memory.protect(&place, protection);
            }
        }
        Ok(Followed::Answer(0))
    }

    fn overlay(&self, run: Range<Vpn>, entry: Entry, each: &mut dyn FnMut(Range<Vpn>, Entry)) {
        self.state.lock().memory.overlay(run, entry, each);
    }

    fn is_out(&self, at: Vpn) -> bool {
        self.state.lock().memory.is_out(at)
    }

    /// Each run that is protected is a mapping: the more there are, the more comes at a time.
    fn comes_along(&self, at: Vpn) -> RangeSet<Vpn> {
        let state = self.state.lock();
        match state.memory.barrier() {
            Barrier::Guard => RangeSet::new(),
            Barrier::NoAccess => state.memory.marks_in(&state.memory.window(at)),
        }
    }

    fn closed(&self) -> Closed {
        self.state.lock().memory.closed()
    }

    fn set_closed(&self, closed: &Closed) {
        self.state.lock().memory.set_closed(closed);
    }

    fn open_all(&self) -> Result<(), AgentError> {
        self.clear(&(Vpn(0)..Vpn(u64::MAX))).map(drop)
    }

    fn fills_by_agent(&self) -> bool {
        true
    }

    fn protection(&self, at: Vpn, _: &Still) -> Option<(u64, Option<Protection>)> {
        self.protection_of(at)
    }

    fn may_go_out(&self, place: &Range<Vpn>) -> bool {
        self.state.lock().memory.may_shut(place)
    }

    /// Not where pages that are out are protected.
    fn may_page_growing(&self) -> bool {
        self.state.lock().memory.barrier() == Barrier::Guard
    }
}

impl Userfault for SignalFaults {
    fn read(&self) -> Result<Option<Message>, Errno> {
        loop {
            match self.next_told() {
                None => return Ok(None),
                Some(Unread::Fault(fault)) => return Ok(Some(Message::Fault(fault))),
                Some(Unread::Event(event, letter)) => {
                    self.answer([(letter, 0)]);
                    return Ok(Some(Message::Event(event)));
                }
                Some(Unread::Changed(letter)) => self.answer([(letter, 0)]),
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
            _ if state.changing.is_some() => Ok(Look::Changing),
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
        let maps = self.maps();
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

    fn touches() -> SignalFaults {
        let agent = Arc::new(Mutex::new(LockClass::Filler, None));
        let letters = Arc::new(Mutex::new(LockClass::Letters, None));
        let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let process = (Box::new(process) as Box<dyn Task>, Barrier::Guard);
        let touches = SignalFaults::new(process, agent, letters).unwrap();
        touches.register(&Vpn(10).run(10)).unwrap();
        touches.mark(&Vpn(12).run(3)).unwrap();
        touches
    }

    fn read(touches: &SignalFaults) -> Option<String> {
        touches.read().unwrap().map(|message| format!("{message:?}"))
    }

    #[test]
    fn nothing_is_filled_while_mappings_change() {
        let touches = touches();
        touches.follow(LetterId::OF_NOBODY, GateRequest::Begin).unwrap();
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Changing));
        assert_eq!(touches.copy(Vpn(12), &[0; PAGE_SIZE]).stopped, Some(Refusal::Changing));
        touches.has_changed(LetterId::OF_NOBODY, Event::Unmapped(Vpn(11).run(2))).unwrap();
        assert!(touches.faulted(LetterId::OF_NOBODY, Vpn(14).address(), 0));
        touches.end_change(LetterId::OF_NOBODY, true);
        assert!(read(&touches).unwrap().contains("Unmapped"));
        assert!(read(&touches).unwrap().contains("Fault"));
        // That the call is over is not read yet.
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Changing));
        assert_eq!(read(&touches), None);
        assert_eq!(touches.look(&Vpn(10).run(1)), Ok(Look::Registered));
        assert_eq!(touches.look(&Vpn(10).run(2)), Ok(Look::NotRegistered));
    }
}
