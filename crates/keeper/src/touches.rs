//! A guest without a userfaultfd: its gate tells of its touches, and its agent fills its pages.
//!
//! Owns: what letters have told that was not read yet, who waits for a page, which pages are out
//! (their guards are the marks), and how memory is protected.
//! Invariants: this behaves as a userfaultfd does with marks, so all else is the same: a memory
//! call under way is a message that is outstanding, and until what it has changed was read nothing
//! is filled and nothing moves. What letters change is changed with the guest held. Who waits is
//! answered when its page is there, or when the touch is found to be the program's mistake, by its
//! mappings as they are then. New pages come without a touch that anybody hears of: they are
//! looked for (`survey`).
//! The agent is asked with the guest held, also by who moves pages out: else who fills would have
//! to wait for it the wrong way round.
//! Not here: letters ([`crate::letters`]), what the agent does (`agent/payload/touches.rs`).
//! Rejected: guards on all that was never touched, so that its first touch is heard of: the page
//! tables of what programs only reserve would be made.

use crate::agent::{Agent, AgentError, Leaving, Moved, Protection};
use crate::letters::Letters;
use crate::survey::text;
use overspill_agent::gate::access;
use overspill_base::PAGE_SIZE;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_guest::map::{Event, Look};
use overspill_guest::mappings::{self, Mapping};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Abilities, Fault, Filled, Message, Refusal, Userfault};
use overspill_guest::{Vpn, pidfd};
use rangemap::{RangeMap, RangeSet};
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
    /// What a userfaultfd would be registered for.
    registered: RangeSet<Vpn>,
    /// What is out.
    marks: RangeSet<Vpn>,
    /// What can not only be read and written; `None` if that may not be so any more.
    protections: Option<RangeMap<Vpn, Protection>>,
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

    /// Of a guest with this agent and these letters.
    ///
    /// # Errors
    /// Of eventfd.
    pub(crate) fn new(
        process: OwnedFd,
        agent: Arc<Mutex<Option<Agent>>>,
        letters: Arc<Mutex<Option<Letters>>>,
    ) -> Result<Self, Errno> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(LockClass::Letters, State::default());
        Ok(Self { process, maps: OnceLock::new(), ready, agent, letters, state })
    }

    /// Its list of mappings can be read here. A second time changes nothing.
    pub(crate) fn set_maps(&self, maps: OwnedFd) {
        let _ = self.maps.set(maps);
    }

    /// A pidfd of its process.
    ///
    /// # Errors
    /// No descriptor.
    pub(crate) fn process(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.process, 0)
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

    /// A memory call has done something. The guest is held. Guards outlive what they were for, and
    /// are removed.
    ///
    /// # Errors
    /// Of the agent.
    pub(crate) fn has_changed(&self, letter: usize, event: Event) -> Result<(), AgentError> {
        let left = event.left();
        let removed = self.marks_in(&left);
        if let (Event::Removed(_), Some(agent)) = (&event, &mut *self.agent.lock()) {
            agent.clear(&removed)?;
        }
        let mut state = self.state.lock();
        state.marks.remove(left.clone());
        match &event {
            Event::Removed(_) => {}
            Event::Unmapped(_) => state.registered.remove(left),
            Event::Remapped { from, to, pages } => {
                let there = |at: Vpn| to.plus(at.0 - from.0);
                state.marks.extend(removed.iter().map(|run| there(run.start)..there(run.end)));
                state.registered.insert(to.run(*pages));
            }
        }
        self.tell(&mut state, Told::Event(event, letter));
        Ok(())
    }

    /// A memory call is over. The guest is held.
    pub(crate) fn end_change(&self, letter: usize, protects: bool) {
        let mut state = self.state.lock();
        if protects {
            state.protections = None;
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

    /// Calls `each` for the parts of a run that the page table has `entry` for, as the marks
    /// change it.
    pub(crate) fn overlay(
        &self,
        run: Range<Vpn>,
        entry: Entry,
        mut each: impl FnMut(Range<Vpn>, Entry),
    ) {
        let mut at = run.start;
        for marked in self.marks_in(&run).iter() {
            if at < marked.start {
                each(at..marked.start, entry);
            }
            each(marked.clone(), Entry::Marked);
            at = marked.end;
        }
        if at < run.end {
            each(at..run.end, entry);
        }
    }

    /// True if the content of a page is out.
    pub(crate) fn is_out(&self, at: Vpn) -> bool {
        self.state.lock().marks.contains(&at)
    }

    fn marks_in(&self, place: &Range<Vpn>) -> RangeSet<Vpn> {
        let state = self.state.lock();
        let within = |run: &Range<Vpn>| run.start.max(place.start)..run.end.min(place.end);
        state.marks.overlapping(place).map(within).collect()
    }

    /// How a page is protected, and for how many pages from there on that is so, at most; `None` if
    /// that cannot be found out.
    pub(crate) fn protection(&self, at: Vpn) -> Option<(u64, Option<Protection>)> {
        let mut state = self.state.lock();
        if state.protections.is_none() {
            let maps = text(self.maps.get()?).ok()?;
            let special = |mapping: Mapping| Some((mapping.place.clone(), special(&mapping)?));
            let found = mappings::parse_list(&maps).into_iter().filter_map(special);
            state.protections = Some(found.collect());
        }
        let found = state.protections.as_ref()?.overlapping(at..Vpn(u64::MAX)).next();
        Some(match found {
            Some((place, protection)) if place.contains(&at) => {
                (place.end.0 - at.0, Some(*protection))
            }
            Some((place, _)) => (place.start.0 - at.0, None),
            None => (u64::MAX, None),
        })
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

/// How memory is protected that can not only be read and written.
fn special(mapping: &Mapping) -> Option<Protection> {
    match (mapping.is_readable, mapping.is_writable, mapping.is_executable) {
        (true, true, false) => None,
        (false, false, false) => Some(Protection::Nothing),
        (true, false, false) => Some(Protection::Read),
        (false, true, false) => Some(Protection::Write),
        (false, false, true) => Some(Protection::Execute),
        (true, false, true) => Some(Protection::ReadExecute),
        (false, true, true) => Some(Protection::WriteExecute),
        (true, true, true) => Some(Protection::All),
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
        state.protections = None;
        state.registered.insert(place.clone());
        Ok(())
    }

    fn copy(&self, at: Vpn, content: &[u8]) -> Filled {
        let Moved { pages, stopped } = match self.fill(at, content) {
            Ok(moved) => moved,
            Err(refusal) => return Filled { pages: 0, stopped: Some(refusal) },
        };
        let place = at.run(pages);
        if pages > 0 {
            self.state.lock().marks.remove(place.clone());
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
        self.state.lock().marks.insert(place.clone());
        Ok(())
    }

    fn unmark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        let marked = self.marks_in(place);
        if marked.is_empty() {
            return Ok(());
        }
        let mut agent = self.agent.lock();
        let agent = agent.as_mut().ok_or(Refusal::NoMemory)?;
        agent.clear(&marked).map_err(|_| Refusal::Unexpected(Errno::PROTO))?;
        self.state.lock().marks.remove(place.clone());
        Ok(())
    }

    /// A signal says nothing of what is lost: who misses it is ended.
    fn poison(&self, _: Vpn) -> Result<(), Refusal> {
        Err(Refusal::Unexpected(Errno::OPNOTSUPP))
    }

    fn look(&self, place: &Range<Vpn>) -> Result<Look, Refusal> {
        let state = self.state.lock();
        match state.registered.gaps(place).next() {
            _ if !self.has_process() => Err(Refusal::Gone),
            _ if state.changing > 0 => Ok(Look::Changing),
            None => Ok(Look::Registered),
            Some(_) => Ok(Look::NotRegistered),
        }
    }

    /// A touch that the mappings do not allow is the program's mistake.
    fn wake(&self, place: &Range<Vpn>) {
        let waiting = self.take_waiting(place);
        if waiting.is_empty() {
            return;
        }
        let maps = self.maps.get().and_then(|maps| text(maps).ok());
        let mappings = maps.map(|maps| mappings::parse_list(&maps));
        self.answer(waiting.into_iter().map(|waiting| match &mappings {
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
        let touches = Touches::new(process, agent, letters).unwrap();
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
    fn marks_go_where_their_pages_go() {
        let touches = touches();
        let out = |first: u64| (first..first + 3).filter(|at| touches.is_out(Vpn(*at))).count();
        let event = Event::Remapped { from: Vpn(11), to: Vpn(51), pages: 5 };
        touches.has_changed(0, event).unwrap();
        assert_eq!((out(12), out(52)), (0, 3));
        touches.has_changed(0, Event::Removed(Vpn(53).run(1))).unwrap();
        assert_eq!(out(52), 2);
        let mut seen = Vec::new();
        touches.overlay(Vpn(51).run(5), Entry::Present, |run, entry| seen.push((run, entry)));
        let [present, out] = [Entry::Present, Entry::Marked];
        let pages = |first: u64, pages| Vpn(first).run(pages);
        let all = [(51, present), (52, out), (53, present), (54, out), (55, present)]
            .map(|(at, entry)| (pages(at, 1), entry));
        assert_eq!(seen, all);
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
