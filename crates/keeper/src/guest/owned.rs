//! What the holder of a guest does with what is its alone.
//!
//! Not here: what that is, and the guest itself (`state`).

use super::handles::Process;
use super::kept::Kept;
use super::letters::{LetterId, Letters};
use super::source::FaultSource;
use super::state::{Fork, Forked, Owned};
use super::touched::Closed;
use crate::parts::SourceParts;
use overspill_agent::gate::letter;
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use rangemap::RangeSet;
use rustix::io::Errno;
use std::ops::Range;
use std::time::{Duration, Instant};

impl Forked {
    /// Leaves out what the child does not have. The page table of what begins with zeros is empty.
    pub(crate) fn leave_out(&mut self) {
        let Kept { wiped, absent } = &self.kept;
        for place in absent.iter() {
            self.map.leave_out(place);
            self.closed.shut.remove(place.clone());
        }
        absent.iter().chain(wiped.iter()).for_each(|place| self.closed.marks.remove(place.clone()));
    }
}

/// How long the first letter of a child may take that has outlived its parent; steps of episodes
/// are short.
const BIRTH_WAIT: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
/// Forks of a guest at a time that letters ask for: each takes a copy of its map.
const FORKS_MAX: usize = 1024;

impl Owned {
    /// Notes where threads may wait for what is no longer there: also where something has moved to,
    /// which may turn out not to have come.
    pub(crate) fn stir(&mut self, event: &Event) {
        self.stirred.push(event.left());
        if let Event::Remapped { to, pages, .. } = event {
            self.stirred.push(to.run(*pages));
        }
    }

    /// Has those who wait for what is no longer there ask again. Nothing is in doubt.
    pub(crate) fn wake_stirred(&mut self, source: &dyn FaultSource) {
        self.stirred.drain(..).for_each(|place| source.wake(&place));
        if std::mem::take(&mut self.all_stirred) {
            source.wake_all();
        }
    }

    /// Notes that the guest has forked, as its map is now.
    pub(crate) fn note_fork(&mut self, source: SourceParts) {
        self.add_fork(Fork::Told, (Some(source), None), Closed::default());
    }

    /// Other letters come from now on: who waits for its turn writes again, and who has not seen
    /// that its fork has begun.
    pub(crate) fn forget_letters(&mut self, before: &Letters) {
        self.turns.clear();
        self.end_forks(|it| it.letter.is_some_and(|begun| before.is_unseen(begun, letter::FORK)));
    }

    fn end_forks(&mut self, is_over: impl Fn(&Forked) -> bool) {
        let before = self.forked.len();
        self.forked.retain(|forked| !is_over(forked));
        self.forking -= before - self.forked.len();
    }

    fn add_fork(
        &mut self,
        fork: Fork,
        (source, letter): (Option<SourceParts>, Option<LetterId>),
        closed: Closed,
    ) {
        let (map, later, kept) = (self.map.clone(), Vec::new(), self.kept.clone());
        self.forked.push(Forked { fork, source, letter, map, later, kept, closed });
        self.forking += 1;
    }

    /// Has a child begin with zeros there, and its children, too.
    pub(crate) fn wipe(&mut self, wiped: RangeSet<Vpn>) {
        wiped.iter().for_each(|place| self.map.drop_gone(place));
        self.kept.wiped = wiped;
    }

    /// Notes that the guest is about to fork, as a letter says, as its map is now, and what keeps
    /// touches away. Returns the fork's number; `None` if there are too many already.
    pub(crate) fn begin_fork(&mut self, letter: LetterId, closed: Closed) -> Option<u64> {
        if self.forked.len() >= FORKS_MAX {
            return None;
        }
        self.forks += 1;
        self.add_fork(Fork::Asked(self.forks), (None, Some(letter)), closed);
        Some(self.forks)
    }

    /// True if such a fork was begun, and its child has not been taken.
    pub(crate) fn is_asked(&self, fork: u64) -> bool {
        self.forked.iter().any(|forked| forked.fork == Fork::Asked(fork))
    }

    /// Notes what tells of the child of such a fork; false if nobody knows of that.
    pub(crate) fn is_forked(&mut self, fork: u64, source: SourceParts) -> bool {
        let mut forked = self.forked.iter_mut();
        let forked = forked.find(|forked| forked.fork == Fork::Asked(fork));
        let is_known = forked.is_some();
        if let Some(forked) = forked {
            forked.source = Some(source);
        }
        is_known
    }

    /// Notes that no child comes of such a fork, if it has not been taken.
    pub(crate) fn end_fork(&mut self, fork: u64) {
        self.end_forks(|forked| forked.fork == Fork::Asked(fork));
    }

    /// Notes an event of the guest, for children that have no pages yet: it may be from before
    /// their fork.
    pub(crate) fn note_event(&mut self, event: &Event) {
        self.forked.iter_mut().for_each(|forked| forked.later.push(event.clone()));
        self.kept.follow(event);
    }

    /// True if children wait to be taken.
    pub(crate) fn has_children(&self) -> bool {
        self.forked.iter().any(|forked| forked.source.is_some())
    }

    /// Takes a child that is to get its pages; [`Owned::has_forked`] says that it has.
    pub(crate) fn take_forked(&mut self) -> Option<Forked> {
        let ready = self.forked.iter().rposition(|forked| forked.source.is_some())?;
        Some(self.forked.swap_remove(ready))
    }

    /// Notes that a child has its pages.
    pub(crate) fn has_forked(&mut self) {
        self.forking -= 1;
    }

    /// True while a child is about to get its pages: what is out stays as it is.
    pub(crate) fn is_forking(&self) -> bool {
        self.forking > 0
    }

    /// The same of a guest that has ended: it may have while it was about to fork, and then no
    /// child comes.
    pub(crate) fn is_forking_after_end(&mut self) -> bool {
        let ended = *self.ended.get_or_insert_with(Instant::now);
        if ended.elapsed() > BIRTH_WAIT {
            self.end_forks(|forked| forked.source.is_none());
        }
        self.is_forking()
    }

    /// Notes what is in memory in mappings that are believed now.
    ///
    /// # Errors
    /// The address space has ended.
    pub(crate) fn add_new(
        &mut self,
        process: &dyn Process,
        places: &[Range<Vpn>],
    ) -> Result<(), Errno> {
        let Self { new, new_pages, .. } = self;
        places.iter().try_for_each(|place| {
            process.present(place, &mut |run| {
                *new_pages += Vpn::pages(&run);
                new.push(run);
            })
        })
    }

    /// Notes what is in memory in a place that is believed, of which the engine knows nothing, as
    /// `is_new` says of pages.
    ///
    /// # Errors
    /// The address space has ended.
    pub(crate) fn add_new_of(
        &mut self,
        process: &dyn Process,
        place: &Range<Vpn>,
        is_new: impl Fn(&Self, Vpn) -> bool,
    ) -> Result<(), Errno> {
        let mut found = RangeSet::new();
        process.present(place, &mut |run| {
            found.extend(Vpn::each(&run).filter(|at| is_new(self, *at)).map(|at| at.run(1)));
        })?;
        self.new_pages += found.iter().map(Vpn::pages).sum::<u64>();
        self.new.extend(found);
        Ok(())
    }

    /// Notes what was taken, and the engine had no room for; returns how long there has been some.
    pub(crate) fn add_new_again(&mut self, rest: Vec<Range<Vpn>>) -> Duration {
        self.new_pages += rest.iter().map(Vpn::pages).sum::<u64>();
        self.new.extend(rest);
        self.new_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// Takes the runs in memory of which the engine knows nothing yet.
    pub(crate) fn take_new(&mut self) -> Vec<Range<Vpn>> {
        if self.new.is_empty() {
            self.new_since = None;
        }
        self.new_pages = 0;
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_at_either_end_of_a_move_is_woken() {
        let mut owned = Owned::default();
        owned.stir(&Event::Remapped { from: Vpn(5), to: Vpn(50), pages: 3 });
        assert_eq!(owned.stirred, [Vpn(5).run(3), Vpn(50).run(3)]);
    }
}
