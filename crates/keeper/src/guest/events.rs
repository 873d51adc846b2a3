//! A guest's messages, applied to its map in their order.
//!
//! Owns: reading them, and settling what they leave in doubt.
//! Invariants: see [`overspill_guest::map`]. Messages are read with the guest held, one at a time.
//! Not here: what a fault needs (`serve`), looking for new mappings (`serve`).

use super::handles::Handles;
use super::state::Guest;
use super::state::Owned;
use super::witness::MapWitness;
use overspill_base::sync::Ordering::Relaxed;
use overspill_guest::Vpn;
use overspill_guest::map::{Event, Look};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::Message;
use rangemap::RangeSet;
use std::ops::Range;
use std::time::Duration;

impl Guest {
    /// Reads and applies messages until there is none, then settles what is in doubt. Faults wait.
    pub(crate) fn catch_up(&self, owned: &mut Owned) {
        while let Some(message) = self.next(owned) {
            match message {
                Message::Fault(fault) => self.put_off(owned, fault),
                Message::Event(_) | Message::Fork(_) => {}
            }
        }
        self.settle(owned);
        if !owned.turns.is_empty() && self.may_begin(owned) {
            self.call_reader();
        }
    }

    /// True if what waits for its turn may begin: nothing else is under way, where letters tell of
    /// that.
    pub(crate) fn may_begin(&self, owned: &Owned) -> bool {
        self.source.tells_ahead() || !(owned.is_forking() || self.source.is_under_way())
    }

    /// Reads one message and applies it.
    pub(crate) fn next(&self, owned: &mut Owned) -> Option<Message> {
        let message = match self.source.read() {
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
                owned.stir(&event);
                if let Event::Removed(place) = &event
                    && self.source.tells_ahead()
                {
                    self.doom(owned, place);
                }
                self.freeze(owned);
                Some(Message::Event(event))
            }
            Message::Fork(fd) => {
                owned.note_fork(self.source.parts_of_fork(fd));
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
        if self.source.has_address_space() {
            self.kill();
        }
        self.ended();
    }

    /// Notes which pages there are while their content is being removed.
    fn doom(&self, owned: &mut Owned, place: &Range<Vpn>) {
        owned.still.dooms();
        let map = &mut owned.map;
        let Some(handles) = self.handles() else { return map.doom(place.clone()) };
        let looked = self.entries(handles, place, |run, entry| {
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
        if self.source.unmark(&doomed).is_ok() {
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
            owned.wake_stirred(&*self.source);
        }
    }

    /// Holds all threads while the map must not change. Those that write letters have to go on,
    /// for what is to be told next; what they touch waits for that.
    fn freeze(&self, owned: &Owned) {
        self.threads.freeze(owned.map.must_hold_threads() && self.source.tells_ahead());
    }

    /// Drops what the map has for pages that were seen neither present nor marked, unless they may
    /// have moved away: then a message is outstanding, and false is returned. Who waits for one
    /// asks again.
    pub(crate) fn drop_gone(&self, owned: &mut Owned, place: &Range<Vpn>) -> bool {
        if self.is_changing(place) {
            return false;
        }
        owned.map.drop_gone(place);
        self.source.wake(place);
        true
    }

    /// True if a message is outstanding: what the page table said before is then not to be believed
    /// of what is not there.
    pub(crate) fn is_changing(&self, place: &Range<Vpn>) -> bool {
        self.source.look(place) == Ok(Look::Changing)
    }

    /// True if a message is outstanding anywhere.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.is_changing(&self.source.anchor().run(1))
    }

    /// True if what the kernel says now of all of it is the truth: nothing is in doubt,
    /// outstanding, or about to be a child's.
    pub(crate) fn is_quiescent(&self, owned: &Owned) -> bool {
        !(owned.map.is_in_doubt() || owned.is_forking() || self.has_outstanding())
    }

    fn mark_rest(&self, owned: &mut Owned) {
        let all = Vpn(0)..Vpn(u64::MAX);
        for place in owned.map.unmarked(&all).collect::<Vec<_>>() {
            if self.source.mark(&place).is_ok() {
                owned.map.marked(place);
            }
        }
    }

    /// Marks pages that have just been moved out, or notes that they are to be marked.
    pub(crate) fn mark(&self, owned: &mut Owned, place: Range<Vpn>) {
        if self.source.mark(&place).is_err() {
            owned.map.leave_unmarked(place);
        }
    }

    /// Returns what is at an address, and whether its content is out though nothing says so.
    pub(crate) fn entry(&self, handles: &Handles, owned: &Owned, at: Vpn) -> Result<Entry, Ended> {
        match handles.process.at(at) {
            _ if self.source.is_out(at) => Ok(Entry::Marked),
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

    /// Returns how many pages from the start of `place` on have their content out, as far as the
    /// page table tells: a page that is there counts too.
    pub(crate) fn out_pages(&self, handles: &Handles, owned: &Owned, place: &Range<Vpn>) -> usize {
        let mut out: RangeSet<Vpn> = owned.map.unmarked(place).collect();
        let looked = self.entries(handles, place, |run, entry| {
            if entry != Entry::Nothing {
                out.insert(run);
            }
        });
        if looked.is_err() {
            self.ended();
        }
        out.get(&place.start).map_or(0, |run| (run.end.min(place.end).0 - place.start.0) as usize)
    }
}

/// Lets a guest go on with what it is in the middle of. To yield would give away whole time slices
/// where a crowd runs.
pub(crate) fn pause() {
    #[cfg(test)]
    if crate::tests::has_paused() {
        return;
    }
    std::thread::sleep(Duration::from_micros(20));
}

/// The address space has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended;
