//! Names of what a run keeps in a cluster.
//!
//! Owns: the run's own number, and which keys there are.
//! Invariants: no two runs have a key in common. A key is noted before it may exist.

use super::Failure;
use overspill_base::Slot;
use overspill_base::sync::{AtomicBool, Ordering::Relaxed};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::ops::Range;

/// Slots whose pages are under one key: 1 MiB, which a server copies to another in some
/// milliseconds, during which it does nothing else.
pub(super) const KEY_SLOTS: u32 = 256;

/// Number of a key, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyNo(u32);

/// The keys of a run.
pub(super) struct Keys {
    run: u64,
    /// True where a key may exist. Says nothing of what is in it, hence relaxed.
    made: Vec<AtomicBool>,
}

/// Adjacent slots under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) key: KeyNo,
    /// The slots' places under the key.
    pub(super) fields: Range<u32>,
}

impl Keys {
    /// Keys for `slots` slots, none of which exists.
    pub(super) fn for_slots(slots: u32) -> Result<Self, Failure> {
        let mut run = [0; 8];
        // So few bytes come at once or not at all.
        getrandom(&mut run, GetRandomFlags::empty()).map_err(io::Error::from)?;
        let made = (0..slots.div_ceil(KEY_SLOTS)).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { run: u64::from_ne_bytes(run), made })
    }

    /// The name in the cluster, all of which decides on the shard.
    pub(super) fn name(&self, key: KeyNo) -> String {
        format!("overspill:{:016x}:{}", self.run, key.0)
    }

    /// Notes that a key may exist from now on.
    pub(super) fn note(&self, key: KeyNo) {
        self.made[key.0 as usize].store(true, Relaxed);
    }

    /// Notes that a key does not exist.
    pub(super) fn strike(&self, key: KeyNo) {
        self.made[key.0 as usize].store(false, Relaxed);
    }

    /// The keys that may exist.
    pub(super) fn noted(&self) -> impl Iterator<Item = KeyNo> {
        let all = (0..).map(KeyNo).zip(&self.made);
        all.filter(|(_, made)| made.load(Relaxed)).map(|(key, _)| key)
    }
}

/// Splits `slots` slots from `first` on by their keys.
pub(super) fn runs(first: Slot, slots: u32) -> impl Iterator<Item = Run> {
    let end = first.0 + slots;
    let mut at = first.0;
    std::iter::from_fn(move || {
        let (key, start) = (at / KEY_SLOTS, at % KEY_SLOTS);
        let fields = start..KEY_SLOTS.min(start + end - at);
        at += fields.end - fields.start;
        (!fields.is_empty()).then_some(Run { key: KeyNo(key), fields })
    })
}

impl Run {
    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.fields.len()
    }

    /// True if there is nothing else under the key.
    pub(super) fn is_whole(&self) -> bool {
        self.fields == (0..KEY_SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_split_by_their_keys() {
        let split = |first, slots| {
            runs(Slot(first), slots).map(|run| (run.key.0, run.fields)).collect::<Vec<_>>()
        };
        assert_eq!(split(1, 3), [(0, 1..4)]);
        assert_eq!(split(255, 2), [(0, 255..256), (1, 0..1)]);
        assert_eq!(split(256, 256), [(1, 0..256)]);
        assert_eq!(split(200, 400), [(0, 200..256), (1, 0..256), (2, 0..88)]);
        assert_eq!(split(7, 0), []);
    }

    #[test]
    fn only_keys_that_may_exist_are_noted() {
        let keys = Keys::for_slots(600).unwrap();
        assert_eq!(keys.noted().count(), 0);
        keys.note(KeyNo(2));
        keys.note(KeyNo(0));
        keys.strike(KeyNo(2));
        assert_eq!(keys.noted().collect::<Vec<_>>(), [KeyNo(0)]);
    }

    #[test]
    fn runs_have_no_key_in_common() {
        let [one, other] = [1, 1].map(|slots| Keys::for_slots(slots).unwrap().name(KeyNo(0)));
        assert_ne!(one, other);
    }
}
