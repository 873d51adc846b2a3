//! The twin of a front.
//!
//! Owns: which guest has which number, and the children that nobody has attached to yet.

use super::Twin;
use crate::front::Front;
use crate::parts::{Birth, SourceParts};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A front over twins.
#[derive(Debug, Default)]
pub(crate) struct TwinFront {
    guests: Mutex<BTreeMap<u64, Twin>>,
    born: Mutex<Vec<(u64, Twin)>>,
    births: Mutex<Vec<Birth>>,
    wants_out: Mutex<Vec<u64>>,
}

impl TwinFront {
    /// Knows a guest by a number.
    pub(crate) fn know(&self, number: u64, twin: Twin) {
        self.guests.lock().unwrap().insert(number, twin);
    }

    /// The guest of a number.
    pub(crate) fn twin(&self, number: u64) -> Twin {
        self.guests.lock().unwrap()[&number].clone()
    }

    /// A child to attach to, the `n`th of those there are.
    pub(crate) fn take_born(&self, n: usize) -> Option<(u64, Twin)> {
        let mut born = self.born.lock().unwrap();
        if born.is_empty() {
            return None;
        }
        let n = n % born.len();
        Some(born.swap_remove(n))
    }

    /// One that is to be attached to later.
    pub(crate) fn put_back(&self, number: u64, twin: Twin) {
        self.born.lock().unwrap().push((number, twin));
    }

    /// A birth of which it was asked what tells, and that.
    pub(crate) fn take_birth(&self) -> Option<(Birth, Option<OwnedFd>)> {
        let birth = self.births.lock().unwrap().pop()?;
        let parent = self.guests.lock().unwrap().get(&birth.parent).cloned();
        let fetched = parent.and_then(|parent| parent.fetch(birth.child));
        Some((birth, fetched))
    }

    /// Who wants its gate open.
    pub(crate) fn take_wishes(&self) -> Vec<u64> {
        std::mem::take(&mut *self.wants_out.lock().unwrap())
    }

    /// A child that is not attached to has nobody who could stop it.
    fn hold_guest(&self, number: u64, on: bool) -> bool {
        let guest = self.guests.lock().unwrap().get(&number).cloned();
        guest.is_some_and(|guest| {
            guest.hold(on);
            guest.stands()
        })
    }
}

impl Front for TwinFront {
    fn hold(&self, guest: u64) {
        self.hold_guest(guest, true);
    }

    fn freeze(&self, guest: u64) {
        self.hold_guest(guest, true);
    }

    fn stand_still(&self, guest: u64) -> bool {
        self.hold_guest(guest, true)
    }

    fn release(&self, guest: u64) {
        self.hold_guest(guest, false);
    }

    fn forked(&self, child: u64, source: SourceParts, _: Option<(u64, u64)>) {
        let SourceParts::Twin(twin) = source else { panic!("not a twin: {source:?}") };
        self.know(child, twin.clone());
        self.born.lock().unwrap().push((child, twin));
    }

    fn fetch(&self, birth: Birth) {
        self.births.lock().unwrap().push(birth);
    }

    fn wants_out(&self, guest: u64) {
        self.wants_out.lock().unwrap().push(guest);
    }

    fn gone(&self, child: u64) {
        self.born.lock().unwrap().retain(|(number, _)| *number != child);
    }
}
