//! A guest in ordinary memory: the twin of the three seams of a keeper.
//!
//! Owns: a userfaultfd, a page table with mappings, and an agent, of an address space of a
//! [`World`]. Each call lets threads of the guests run before, so that the keeper is interrupted
//! wherever the kernel could.
//! Not here: what address spaces and their threads do (`world`).

mod attaches;
mod births;
mod calls;
mod front;
mod gate;
mod signals;
mod space;
mod world;

pub(crate) use front::TwinFront;
pub(crate) use world::{Habits, PLACE, Telling, World};

use crate::guest::agent::{AgentError, Leaving, Moved, Mover};
use crate::guest::handles::{Attached, Handles, Process};
use crate::guest::source::FaultSource;
use crate::guest::task::Task;
use crate::parts::SourceParts;
use overspill_agent::Barrier;
use overspill_base::PAGE_SIZE;
use overspill_guest::Vpn;
use overspill_guest::map::Look;
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Filled, Message, Refusal, Userfault};
use overspill_wire::Descriptor;
use rangemap::RangeSet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use signals::{done, parts};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use world::{Content, State, Unread};

/// How often an agent that waits for a page asks for help.
const HELPS: usize = 20;

/// A guest.
#[derive(Clone, Debug)]
pub struct Twin {
    world: Arc<World>,
    space: usize,
    bell: Arc<OwnedFd>,
}

impl Twin {
    fn new(world: Arc<World>, space: usize, bell: Arc<OwnedFd>) -> Self {
        Self { world, space, bell }
    }

    /// What an attach hands over, with all threads held.
    pub(crate) fn attached(&self, name: &str) -> Attached {
        self.world.lock().spaces[self.space].is_held = true;
        let process = overspill_base::sync::Arc::new(self.clone());
        Attached {
            source: SourceParts::Twin(self.clone()),
            handles: Handles { name: name.into(), own: RangeSet::new(), process },
            mover: Box::new(self.clone()),
            needed: Vec::new(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.world.lock().spaces[self.space].has_ended
    }

    /// True if all threads stand where an attach may find them.
    pub(crate) fn may_attach(&self) -> bool {
        self.world.lock().may_attach(self.space)
    }

    /// The files of its letters, which it writes from now on; none if it writes none.
    pub(crate) fn letters(&self) -> Option<[Descriptor; 2]> {
        self.world.lock().join_gate(self.space)
    }

    /// What tells of its child that has this number where letters come from, if that lives.
    pub(crate) fn fetch(&self, child: i32) -> Option<OwnedFd> {
        let (mut state, child) = (self.world.lock(), child as usize - 1);
        if state.spaces[child].has_ended {
            return None;
        }
        state.spaces[self.space].brought.push_back(child);
        Some(self.bell.try_clone().unwrap())
    }

    /// The agent is of no use from now on.
    pub(crate) fn lose_agent(&self) {
        self.world.lock().spaces[self.space].has_agent = false;
    }

    /// It ends.
    pub(crate) fn end(&self) {
        self.world.lock().end(self.space);
    }

    /// It is let go.
    pub(crate) fn detach(&self) {
        self.world.lock().detach(self.space);
    }

    /// True if it is a guest no more, but goes on.
    pub(crate) fn is_free(&self) -> bool {
        self.world.lock().spaces[self.space].is_free
    }

    fn hold(&self, on: bool) {
        self.world.lock().spaces[self.space].is_held = on;
    }

    fn stands(&self) -> bool {
        self.world.lock().stands(self.space)
    }

    /// The address space, if there is one, after others have run.
    fn enter(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.world.enter();
        match state.spaces[self.space].has_ended {
            true => Err(Errno::SRCH),
            false => Ok(state),
        }
    }

    /// The same for a call that waits for messages.
    fn change(&self, place: &Range<Vpn>) -> Result<MutexGuard<'_, State>, Refusal> {
        let state = self.enter().map_err(|_| Refusal::Gone)?;
        let space = &state.spaces[self.space];
        if space.outstanding > 0 {
            return Err(Refusal::Changing);
        }
        if !space.is_covered(place) {
            return Err(Refusal::NoMapping);
        }
        Ok(state)
    }

    fn entry(state: &State, space: usize, at: Vpn) -> Entry {
        let is_marked = state.barrier().is_none() && state.spaces[space].marks.contains(&at);
        match state.spaces[space].pages.contains_key(&at) {
            true => Entry::Present,
            false if is_marked => Entry::Marked,
            false => Entry::Nothing,
        }
    }

    fn list(&self, with_flags: bool) -> Result<String, Errno> {
        let (state, mut text) = (self.enter()?, String::new());
        for (place, registered) in state.spaces[self.space].mappings.iter() {
            for (part, is_shut) in parts(&state, self.space, place) {
                let (start, end) = (part.start.address(), part.end.address());
                let rights = if is_shut { "---p" } else { "rw-p" };
                writeln!(text, "{start:x}-{end:x} {rights} 0 0:0 0").unwrap();
                if with_flags {
                    let can = if is_shut { "" } else { "rd wr " };
                    let flag = if *registered { "um" } else { "" };
                    writeln!(text, "VmFlags: {can}mr mw me ac {flag}").unwrap();
                }
            }
        }
        Ok(text)
    }

    /// What raises signals of its touches, if they do.
    pub(crate) fn barrier(&self) -> Option<Barrier> {
        self.world.barrier()
    }

    /// The child of which what tells of it was fetched.
    fn brought(&self) -> Self {
        let mut state = self.world.lock();
        let child = state.spaces[self.space].brought.pop_front().expect("a message that was read");
        drop(state);
        self.world.twin(child)
    }
}

impl AsFd for Twin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Userfault for Twin {
    fn read(&self) -> Result<Option<Message>, Errno> {
        let Ok(mut state) = self.enter() else { return Ok(None) };
        let unread = state.read(self.space);
        Ok(unread.map(|unread| match unread {
            Unread::Fault(fault) => Message::Fault(fault),
            Unread::Event(event) => Message::Event(event),
            Unread::Fork => Message::Fork(self.bell.try_clone().unwrap()),
        }))
    }

    fn register(&self, place: &Range<Vpn>) -> Result<(), Errno> {
        let mut state = self.enter()?;
        let mappings = &mut state.spaces[self.space].mappings;
        let parts: Vec<_> = mappings.overlapping(place).map(|(part, _)| part.clone()).collect();
        for part in &parts {
            mappings.insert(part.start.max(place.start)..part.end.min(place.end), true);
        }
        if parts.is_empty() { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn copy(&self, at: Vpn, content: &[u8]) -> Filled {
        let pages = content.chunks(PAGE_SIZE);
        let words = pages.map(|page| u64::from_le_bytes(page[..8].try_into().unwrap()));
        let place = at.run(words.len() as u64);
        let mut state = match self.change(&place) {
            Ok(state) => state,
            Err(why) => return Filled { pages: 0, stopped: Some(why) },
        };
        for (n, word) in words.enumerate() {
            if !state.fill(self.space, at.plus(n as u64), word) {
                return Filled { pages: n, stopped: Some(Refusal::Present) };
            }
        }
        Filled { pages: Vpn::pages(&place) as usize, stopped: None }
    }

    /// A mark counts as a page.
    fn zero(&self, place: &Range<Vpn>) -> Filled {
        let mut state = match self.change(place) {
            Ok(state) => state,
            Err(why) => return Filled { pages: 0, stopped: Some(why) },
        };
        for (n, at) in Vpn::each(place).enumerate() {
            if state.spaces[self.space].marks.contains(&at) || !state.fill(self.space, at, 0) {
                return Filled { pages: n, stopped: Some(Refusal::Present) };
            }
        }
        Filled { pages: Vpn::pages(place) as usize, stopped: None }
    }

    fn mark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        let r = self.change(place);
        let mut state = r?;
        let space = &mut state.spaces[self.space];
        for at in Vpn::each(place) {
            assert!(!space.pages.contains_key(&at), "a page at {at:?} is marked, and there");
            space.marks.insert(at);
        }
        Ok(())
    }

    fn unmark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        let mut state = self.change(place)?;
        state.spaces[self.space].marks.retain(|at| !place.contains(at));
        Ok(())
    }

    /// Who touches it is ended.
    fn poison(&self, _: Vpn) -> Result<(), Refusal> {
        self.world.lock().end(self.space);
        Ok(())
    }

    fn look(&self, place: &Range<Vpn>) -> Result<Look, Refusal> {
        match self.change(place).map(drop) {
            Ok(()) => Ok(Look::Registered),
            Err(Refusal::NoMapping) => Ok(Look::NotRegistered),
            Err(Refusal::Changing) => Ok(Look::Changing),
            Err(why) => Err(why),
        }
    }

    fn wake(&self, place: &Range<Vpn>) {
        let mut state = self.world.enter();
        state.wake(self.space, place);
    }
}

impl FaultSource for Twin {
    fn parts(&self) -> Result<SourceParts, Errno> {
        Ok(SourceParts::Twin(self.clone()))
    }

    fn parts_of_fork(&self, _: OwnedFd) -> SourceParts {
        SourceParts::Twin(self.brought())
    }

    fn parts_of_child(&self, fetched: OwnedFd) -> Result<SourceParts, Errno> {
        Ok(self.parts_of_fork(fetched))
    }

    fn may_cover(&self, place: &Range<Vpn>) -> bool {
        self.world.enter().spaces[self.space].is_covered(place)
    }

    fn has_address_space(&self) -> bool {
        !self.has_ended()
    }

    fn wake_all(&self) {
        self.wake(&(Vpn(0)..Vpn(u64::MAX)));
    }
}

impl Task for Twin {
    fn kill(&self) {
        self.end();
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn parts(&self, _: Barrier) -> Result<SourceParts, Errno> {
        Ok(SourceParts::Twin(self.clone()))
    }

    fn parts_of_child(&self, _: OwnedFd, _: Barrier) -> SourceParts {
        SourceParts::Twin(self.brought())
    }
}

impl Process for Twin {
    fn at(&self, at: Vpn) -> Result<Entry, Errno> {
        Ok(Self::entry(&*self.enter()?, self.space, at))
    }

    fn is_shared(&self, at: Vpn) -> Result<bool, Errno> {
        let state = self.enter()?;
        Ok(state.spaces[self.space].pages.get(&at).is_some_and(|page| Arc::strong_count(page) > 1))
    }

    fn runs(
        &self,
        place: &Range<Vpn>,
        each: &mut dyn FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno> {
        let state = self.enter()?;
        Vpn::each(place).for_each(|at| each(at.run(1), Self::entry(&state, self.space, at)));
        Ok(())
    }

    fn present(&self, place: &Range<Vpn>, each: &mut dyn FnMut(Range<Vpn>)) -> Result<(), Errno> {
        let state = self.enter()?;
        let pages = state.spaces[self.space].pages.range(place.clone());
        let pages: RangeSet<Vpn> = pages.map(|(at, _)| at.run(1)).collect();
        pages.into_iter().for_each(each);
        Ok(())
    }

    fn maps(&self) -> Result<String, Errno> {
        self.list(false)
    }

    fn smaps(&self) -> Result<String, Errno> {
        self.list(true)
    }

    fn pages(&self) -> Result<i64, Errno> {
        Ok(self.enter()?.spaces[self.space].pages.len() as i64)
    }

    fn kill(&self) {
        self.end();
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn ends_within(&self, _: Duration) -> bool {
        self.has_ended()
    }
}

impl Twin {
    /// Takes a run out, all or nothing of it: what is missing is read as zeros, and what relatives
    /// share is copied.
    fn shut(&self, state: &mut State, place: &Range<Vpn>) -> Result<(), Errno> {
        self.may_change(state, place)?;
        let space = &mut state.spaces[self.space];
        for at in Vpn::each(place) {
            assert!(space.marks.insert(at), "{at:?} goes out twice");
            space.moved.push(space.pages.remove(&at).unwrap_or_default());
        }
        Ok(())
    }

    /// Whether the agent may do something with a run.
    fn may_change(&self, state: &mut State, place: &Range<Vpn>) -> Result<(), Errno> {
        let is_busy = state.random.u32(0..1000) < state.habits.busy_per_mille;
        match state.spaces[self.space].is_mapped(place) {
            true if is_busy => Err(Errno::AGAIN),
            true => Ok(()),
            false => Err(Errno::NOMEM),
        }
    }

    /// Moves one page out.
    fn take(&self, state: &mut State, at: Vpn) -> Result<(), Errno> {
        let is_busy = state.random.u32(0..1000) < state.habits.busy_per_mille;
        let space = &mut state.spaces[self.space];
        if space.outstanding > 0 || is_busy {
            return Err(Errno::AGAIN);
        }
        let page = space.pages.get(&at).ok_or(Errno::NOENT)?;
        if Arc::strong_count(page) > 1 {
            return Err(Errno::BUSY);
        }
        let page = space.pages.remove(&at).expect("it is there");
        space.moved.push(page);
        Ok(())
    }

    fn ask_agent(&self) -> Result<MutexGuard<'_, State>, AgentError> {
        let state = self.enter().map_err(|_| AgentError::Impossible(1, 0))?;
        match state.spaces[self.space].has_agent {
            true => Ok(state),
            false => Err(AgentError::Impossible(1, 0)),
        }
    }

    /// Makes a page the guest's own, as a write does; false if it is missing.
    fn write_same(&self, at: Vpn) -> Result<bool, AgentError> {
        let mut state = self.ask_agent()?;
        let page = state.spaces[self.space].pages.get_mut(&at);
        Ok(page.map(|page| *page = Arc::new(**page)).is_some())
    }
}

impl Mover for Twin {
    fn move_out(&mut self, runs: &[Leaving]) -> Result<Vec<Moved>, AgentError> {
        let run_out = |run: &Leaving| {
            let mut state = self.ask_agent()?;
            if state.barrier().is_some() {
                return Ok(done(run, self.shut(&mut state, &run.place)));
            }
            let mut pages = Vpn::each(&run.place);
            let stopped = pages.find_map(|at| Some((at, self.take(&mut state, at).err()?)));
            let end = stopped.map_or(run.place.end, |(at, _)| at);
            Ok(Moved { pages: end.0 - run.place.start.0, stopped: stopped.map(|(_, why)| why) })
        };
        runs.iter().map(run_out).collect()
    }

    fn read(&mut self, content: &mut [u8]) -> Result<(), AgentError> {
        let mut state = self.ask_agent()?;
        let moved = std::mem::take(&mut state.spaces[self.space].moved);
        assert_eq!(content.len(), moved.len() * PAGE_SIZE);
        for (page, moved) in content.chunks_mut(PAGE_SIZE).zip(moved) {
            let moved: Content = *moved;
            page.chunks_mut(8).for_each(|word| word.copy_from_slice(&moved.to_le_bytes()));
        }
        Ok(())
    }

    fn make_own(&mut self, runs: &[Range<Vpn>], help: &mut dyn FnMut()) -> Result<(), AgentError> {
        for at in runs.iter().flat_map(Vpn::each) {
            let mut helps = 0;
            while !self.write_same(at)? && helps < HELPS {
                helps += 1;
                help();
            }
        }
        Ok(())
    }

    fn fill(&mut self, run: &Leaving, content: &[u8]) -> Result<Moved, AgentError> {
        let mut state = self.ask_agent()?;
        let may_fill = self.may_change(&mut state, &run.place);
        if may_fill.is_ok() {
            let space = &mut state.spaces[self.space];
            for (at, page) in Vpn::each(&run.place).zip(content.chunks(PAGE_SIZE)) {
                let word = u64::from_le_bytes(page[..8].try_into().unwrap());
                assert!(space.marks.remove(&at), "{at:?} is filled, and not out");
                space.pages.insert(at, Arc::new(word));
            }
        }
        Ok(done(run, may_fill))
    }

    fn clear(&mut self, runs: &[Leaving]) -> Result<(), AgentError> {
        let mut state = self.ask_agent()?;
        let marks = &mut state.spaces[self.space].marks;
        runs.iter().for_each(|run| marks.retain(|at| !run.place.contains(at)));
        Ok(())
    }
}
