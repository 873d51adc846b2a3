//! Where a guest's faults come from, and what fills its pages.
//!
//! Owns: the seam between a keeper and what tells it of faults. There are two sources: the kernel,
//! by the guest's userfaultfd, and the guest's gate, by signals. What differs between them is a
//! method here, and asked nowhere else.
//! Invariant: the defaults are those of a userfaultfd.
//! Not here: what is done about a fault (`serve`).

use super::agent::{AgentError, Mover, Protection};
use super::handles::Process;
use super::letters::{LetterId, Letters};
use super::still::Still;
use super::touched::{Closed, Protected};
use crate::parts::SourceParts;
use overspill_base::sync::{Arc, Mutex};
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{GuestUserfault, Userfault};
use rangemap::RangeSet;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::ops::Range;

/// What a fault is, as far as its source knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// The page table says what is there.
    LookThere,
    /// The content of the page is out.
    Out,
    /// To be asked again later.
    Later,
    /// Nothing is to be done: it was the program's mistake, or is settled now.
    Settled,
}

/// What a guest's gate asks for that only a source without a userfaultfd follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum GateRequest {
    /// A memory call begins.
    Begin,
    /// A memory call has done something.
    Changed(Event),
    /// A memory call is over, which may have changed protections.
    End { protects: bool },
    /// How many bytes from a place's start on are alike, with a bit for whether they are protected.
    Look(Range<Vpn>),
    /// The program protects a place in another way.
    Protect(Range<Vpn>, Protected),
}

/// What came of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Followed {
    /// This is the answer.
    Answer(i64),
    /// It is answered when its turn has come.
    Later,
    /// Nobody here understands it.
    Unknown,
}

/// Where a guest's faults come from.
pub(crate) trait FaultSource: Userfault + AsFd {
    /// The same source, for somebody else.
    ///
    /// # Errors
    /// No descriptor.
    fn parts(&self) -> Result<SourceParts, Errno>;

    /// What tells of a child, of which the kernel's message of a fork has brought this.
    fn parts_of_fork(&self, brought: OwnedFd) -> SourceParts;

    /// What tells of a child, of which the front has fetched this.
    ///
    /// # Errors
    /// It is not what it should be.
    fn parts_of_child(&self, fetched: OwnedFd) -> Result<SourceParts, Errno>;

    /// True if a child's own descriptor is needed to serve it.
    fn needs_descriptors(&self) -> bool {
        true
    }

    /// Takes a page that another one has found to stay registered.
    fn set_anchor(&self, _: Vpn) {}

    /// A page that stays registered.
    fn anchor(&self) -> Vpn {
        Vpn(0)
    }

    /// True if a mapping that it is told of may cover all of a place.
    fn may_cover(&self, _: &Range<Vpn>) -> bool {
        true
    }

    /// True while there is an address space.
    fn has_address_space(&self) -> bool;

    /// Has all who wait for a page touch it again.
    fn wake_all(&self);

    /// Has a guest that is lost end: by the next page that it misses, or now if its process is
    /// known.
    fn end(&self) {
        self.wake_all();
    }

    /// The guest is attached to.
    fn attached(&self, _: &Arc<dyn Process>) {}

    /// Other letters come from now on: who waits writes again, also who has not seen an answer to
    /// these.
    fn forget_letters(&self, _: &Letters) {}

    // What it tells.

    /// True if the first touch of new memory is told; else that is looked for.
    fn tells_of_new(&self) -> bool {
        true
    }

    /// True if events come before what they tell of is done, and threads may be stopped meanwhile.
    fn tells_ahead(&self) -> bool {
        true
    }

    /// True while something is under way that is told step by step.
    fn is_under_way(&self) -> bool {
        false
    }

    /// What a fault is, of an address of which it `is_in_doubt` what is there; `is_guarded` says
    /// whether the program guards the page itself. The guest is held.
    ///
    /// # Errors
    /// Of the agent.
    fn told(
        &self,
        _: Vpn,
        _is_in_doubt: bool,
        _is_guarded: &dyn Fn() -> bool,
    ) -> Result<Told, AgentError> {
        Ok(Told::LookThere)
    }

    /// True if a child has waited for longer than an attach takes.
    fn has_waited(&self) -> bool {
        false
    }

    /// A thread waits for a page, says its gate; false if nobody understands that.
    fn faulted(&self, _letter: LetterId, _address: u64, _access: u64) -> bool {
        false
    }

    /// Follows what a gate asks for. The guest is held.
    ///
    /// # Errors
    /// Of the agent.
    fn follow(&self, _letter: LetterId, _: GateRequest) -> Result<Followed, AgentError> {
        Ok(Followed::Unknown)
    }

    // What it has in place of marks.

    /// Calls `each` with what a run that is `entry` in the page table is.
    fn overlay(&self, run: Range<Vpn>, entry: Entry, each: &mut dyn FnMut(Range<Vpn>, Entry)) {
        each(run, entry);
    }

    /// True if the content of a page is out, whatever the page table says.
    fn is_out(&self, _: Vpn) -> bool {
        false
    }

    /// What is out and has to come with a page.
    fn comes_along(&self, _: Vpn) -> RangeSet<Vpn> {
        RangeSet::new()
    }

    /// What keeps touches away, for a child.
    fn closed(&self) -> Closed {
        Closed::default()
    }

    /// Takes what kept touches away of the parent.
    fn set_closed(&self, _: &Closed) {}

    /// Has nothing keep touches away any more: nothing is out.
    ///
    /// # Errors
    /// Of the agent.
    fn open_all(&self) -> Result<(), AgentError> {
        Ok(())
    }

    // How pages move out.

    /// True if its agent fills pages: who moves them out holds the guest first.
    fn fills_by_agent(&self) -> bool {
        false
    }

    /// How a page is protected, and for how many pages from there on that is so, at most; `None` if
    /// that cannot be found out.
    fn protection(&self, at: Vpn, still: &Still) -> Option<(u64, Option<Protection>)> {
        Some(still.protection(at))
    }

    /// True if a run may go out.
    fn may_go_out(&self, _: &Range<Vpn>) -> bool {
        true
    }

    /// True if a mapping that grows by itself may be paged: its new pages have the rights of its
    /// first one.
    fn may_page_growing(&self) -> bool {
        true
    }
}

impl FaultSource for GuestUserfault {
    fn parts(&self) -> Result<SourceParts, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(self, 0)?;
        Ok(SourceParts::Userfault(Self::agreed(fd, self.abilities(), None)))
    }

    fn parts_of_fork(&self, brought: OwnedFd) -> SourceParts {
        SourceParts::Userfault(Self::agreed(brought, self.abilities(), None))
    }

    fn parts_of_child(&self, fetched: OwnedFd) -> Result<SourceParts, Errno> {
        let fd = Self::agree_as(fetched, self.abilities())?;
        Ok(SourceParts::Userfault(Self::agreed(fd, self.abilities(), None)))
    }

    fn set_anchor(&self, page: Vpn) {
        self.set_anchor(page);
    }

    fn anchor(&self) -> Vpn {
        self.anchor()
    }

    fn may_cover(&self, place: &Range<Vpn>) -> bool {
        self.may_cover(place)
    }

    fn has_address_space(&self) -> bool {
        self.has_address_space()
    }

    fn wake_all(&self) {
        self.wake_all();
    }
}

/// The agent of a guest, as soon as there is one.
pub(crate) type AgentCell = Arc<Mutex<Option<Box<dyn Mover>>>>;
/// The memory of its gate's letters, if it has a gate.
pub(crate) type LettersCell = Arc<Mutex<Option<Letters>>>;
