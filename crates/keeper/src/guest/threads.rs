//! Whether the threads of a guest are held.
//!
//! Owns: the four reasons: the map must not change ([`overspill_guest::map`], rule 5), more was
//! filled than there is room for, relatives have more than there is room for, or something is done
//! that wants all to stand still.
//! Invariants: the front is asked when there is a first reason, and told when there is none any
//! more; only for the map's sake it is waited for. A brake is let go by who has adopted all that
//! was found, and only if the mappings were looked at since it was put on. The guest need not be
//! held for any of this: who holds it may be busy for long.
//! Not here: when (`serve::survey`, `serve::brake`).

use crate::front::Front;
use overspill_base::sync::{Arc, LockClass, Mutex};

#[derive(Debug)]
pub(crate) struct Threads {
    guest: u64,
    front: Arc<dyn Front>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_frozen: bool,
    is_braked: bool,
    is_held_back: bool,
    is_to_stand: bool,
    /// Whether its mappings were looked at since it was braked.
    is_surveyed: bool,
}

impl State {
    fn is_held(&self) -> bool {
        self.is_frozen || self.is_braked || self.is_held_back || self.is_to_stand
    }
}

impl Threads {
    /// Those of a guest that go on.
    pub(crate) fn new(guest: u64, front: Arc<dyn Front>) -> Self {
        let state = Mutex::new(LockClass::GuestThreads, State::default());
        Self { guest, front, state }
    }

    /// Notes that the front holds them, as after an attach.
    pub(crate) fn are_held(&self) {
        self.state.lock().is_braked = true;
    }

    /// Has them held or not for the map's sake.
    pub(crate) fn freeze(&self, on: bool) {
        self.change(|state| state.is_frozen = on);
    }

    /// Has them stand still; false if they do not soon, and go on. Nothing may be held meanwhile
    /// that they wait for.
    pub(crate) fn stand_still(&self) -> bool {
        self.change(|state| state.is_to_stand = true);
        let stands = self.front.stand_still(self.guest);
        if !stands {
            self.walk_on();
        }
        stands
    }

    /// Ends that.
    pub(crate) fn walk_on(&self) {
        self.change(|state| state.is_to_stand = false);
    }

    /// Has them held until all that they have filled is in the lists.
    pub(crate) fn brake(&self) {
        self.change(|state| (state.is_braked, state.is_surveyed) = (true, false));
    }

    /// Has them held or not while relatives are held back.
    pub(crate) fn hold_back(&self, on: bool) {
        self.change(|state| state.is_held_back = on);
    }

    /// Notes that nothing new was found; true if that was not known.
    pub(crate) fn surveyed(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_surveyed, true)
    }

    /// Ends the brake, if all was found that they have filled.
    pub(crate) fn go_on(&self) {
        self.change(|state| state.is_braked &= !state.is_surveyed);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        let (was_frozen, was_held) = (state.is_frozen, state.is_held());
        change(&mut state);
        if state.is_frozen && !was_frozen {
            self.front.freeze(self.guest);
        }
        match (was_held, state.is_held()) {
            (false, true) if !state.is_frozen => self.front.hold(self.guest),
            (true, false) => self.front.release(self.guest),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Birth;
    use crate::parts::SourceParts;

    /// Notes what it is asked for.
    #[derive(Debug)]
    struct Asked(Mutex<Vec<&'static str>>);

    impl Front for Asked {
        fn hold(&self, _: u64) {
            self.0.lock().push("hold");
        }

        fn freeze(&self, _: u64) {
            self.0.lock().push("freeze");
        }

        fn stand_still(&self, _: u64) -> bool {
            self.0.lock().push("still");
            true
        }

        fn release(&self, _: u64) {
            self.0.lock().push("release");
        }

        fn forked(&self, _: u64, _: SourceParts, _: Option<(u64, u64)>) {}

        fn fetch(&self, _: Birth) {}

        fn wants_out(&self, _: u64) {}

        fn gone(&self, _: u64) {}
    }

    fn threads() -> (Threads, impl Fn() -> Vec<&'static str>) {
        let front = Arc::new(Asked(Mutex::new(LockClass::Control, Vec::new())));
        let asked = front.clone();
        (Threads::new(1, front), move || std::mem::take(&mut asked.0.lock()))
    }

    #[test]
    fn the_last_reason_releases() {
        let (threads, asked) = threads();
        threads.freeze(true);
        threads.brake();
        assert_eq!(asked(), ["freeze"]);
        threads.freeze(false);
        assert!(asked().is_empty());
        threads.surveyed();
        threads.go_on();
        assert_eq!(asked(), ["release"]);
        threads.brake();
        threads.freeze(true);
        assert_eq!(asked(), ["hold", "freeze"]);
    }

    #[test]
    fn who_stands_still_is_held() {
        let (threads, asked) = threads();
        assert!(threads.stand_still());
        threads.brake();
        assert_eq!(asked(), ["hold", "still"]);
        threads.surveyed();
        threads.go_on();
        threads.walk_on();
        assert_eq!(asked(), ["release"]);
    }

    #[test]
    fn a_brake_lasts_until_mappings_were_looked_at() {
        let (threads, asked) = threads();
        assert!(threads.surveyed());
        threads.brake();
        threads.go_on();
        assert_eq!(asked(), ["hold"]);
        assert!(threads.surveyed() && !threads.surveyed());
        threads.go_on();
        assert_eq!(asked(), ["release"]);
        // The front holds a new guest already.
        threads.are_held();
        threads.go_on();
        assert_eq!(asked(), ["release"]);
    }
}
