//! A ring of words from one process to another, and whether the other must be woken.
//!
//! Owns: the words. What they mean is their users' business; 0 means an empty place.
//! Invariants: one sender and one receiver. The sender has at most as many words on the way as
//! there are places: a place is its own again when it has been told, over another ring, that the
//! receiver is done with the word. A receiver that sleeps is woken by the next word, and only then.
//! Whatever the other side stores, nothing here goes wrong but the words.
//! Not here: how a process sleeps and is woken.
//! Rejected: indices beside the words. They would be one more cache line to pass to and fro, and
//! the receiver would have to doubt them if it does not trust the sender.
//!
//! ```text
//! words[0]    1: the receiver sleeps, or is about to; the sender that changes it to 0 wakes it
//! words[1..]  the places: 0 ──send──> word ──take──> 0
//! ```
//!
//! Orderings: the receiver takes a word (Acquire) and sees what was stored before it was sent
//! (Release). Each side stores, fences (SeqCst), and loads what the other stores: so either the
//! receiver sees the word, or the sender sees that it sleeps. The swaps of `words[0]` (AcqRel) are
//! each other's partners: a sender that was late to wake does not mistake the next sleep for it.

use crate::shared::Table;
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::fence;
use std::num::NonZeroU64;

/// Words that a ring takes for so many places.
pub const fn ring_words(places: usize) -> usize {
    1 + places
}

/// The memory of a ring, at first zeros.
#[derive(Clone, Debug)]
pub struct Ring(Table<AtomicU64>);

impl Ring {
    /// Makes a ring of [`ring_words`].
    pub fn new(words: Table<AtomicU64>) -> Self {
        assert!(words.len() >= ring_words(1), "a ring has a place");
        Self(words)
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.0[0]
    }

    /// The place of the `n`th word.
    fn place(&self, n: usize) -> &AtomicU64 {
        &self.0[1 + n % (self.0.len() - 1)]
    }
}

/// The sender's end.
#[derive(Debug)]
pub struct Sender {
    ring: Ring,
    sent: usize,
}

impl Sender {
    /// Begins with the ring's first place.
    pub fn new(ring: Ring) -> Self {
        Self { ring, sent: 0 }
    }

    /// Sends a word. The receiver may sleep: see [`must_wake`](Self::must_wake).
    pub fn send(&mut self, word: NonZeroU64) {
        self.ring.place(self.sent).store(word.get(), Release);
        self.sent = self.sent.wrapping_add(1);
    }

    /// True if the receiver sleeps; the caller is the one that wakes it. To be asked after sending.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        fence(SeqCst);
        let asleep = self.ring.asleep();
        asleep.load(Relaxed) != 0 && asleep.swap(0, AcqRel) != 0
    }
}

/// The receiver's end.
#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    taken: usize,
}

impl Receiver {
    /// Begins with the ring's first place.
    pub fn new(ring: Ring) -> Self {
        Self { ring, taken: 0 }
    }

    /// Takes the next word, if one was sent.
    pub fn take(&mut self) -> Option<NonZeroU64> {
        let place = self.ring.place(self.taken);
        let word = NonZeroU64::new(place.load(Acquire))?;
        place.store(0, Relaxed);
        self.taken = self.taken.wrapping_add(1);
        Some(word)
    }

    /// True if nothing was sent that was not taken: from now on the next word wakes this side.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let asleep = self.ring.asleep();
        asleep.swap(1, AcqRel);
        fence(SeqCst);
        let may = self.ring.place(self.taken).load(Relaxed) == 0;
        if !may {
            asleep.store(0, Relaxed);
        }
        may
    }

    /// As [`may_sleep`](Self::may_sleep), for a side that is woken by a bell, which `silence`
    /// silences if it has rung: before the look, because afterwards it may ring for the next word.
    #[must_use]
    pub fn may_sleep_silenced(&self, silence: impl FnOnce()) -> bool {
        silence();
        self.may_sleep()
    }

    /// True if no word will wake this side: it was not about to sleep, or was woken.
    pub fn is_awake(&self) -> bool {
        self.ring.asleep().load(Relaxed) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ring(places: usize) -> (Sender, Receiver) {
        let ring = Ring::new(Table::on_heap(ring_words(places), || AtomicU64::new(0)));
        (Sender::new(ring.clone()), Receiver::new(ring))
    }

    fn word(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).unwrap()
    }

    #[test]
    fn words_come_in_order_round_and_round() {
        let (mut sender, mut receiver) = ring(3);
        for round in 0..10 {
            let words = [1, 2, 3].map(|n| word(10 * round + n));
            words.iter().for_each(|&word| sender.send(word));
            assert_eq!(words.map(|_| receiver.take()), words.map(Some));
            assert_eq!(receiver.take(), None);
        }
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let (mut sender, mut receiver) = ring(3);
        sender.send(word(1));
        assert!(!sender.must_wake(), "it has not slept yet");
        assert!(!receiver.may_sleep(), "there is a word");
        assert!(receiver.is_awake());
        assert_eq!(receiver.take(), Some(word(1)));
        assert!(receiver.may_sleep() && !receiver.is_awake());
        sender.send(word(2));
        assert!(sender.must_wake() && !sender.must_wake());
        assert!(receiver.is_awake());
    }
}

/// Every order of two words and a receiver that sleeps whenever there is none.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Arc;
    use loom::sync::{Condvar, Mutex};

    #[test]
    fn a_sleeper_misses_no_word() {
        loom::model(|| {
            let ring = Ring::new(Table::on_heap(ring_words(2), || AtomicU64::new(0)));
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let (mut sender, rung) = (Sender::new(ring.clone()), bell.clone());
            let sending = loom::thread::spawn(move || {
                for n in 1..=2 {
                    sender.send(NonZeroU64::new(n).unwrap());
                    if sender.must_wake() {
                        *rung.0.lock().unwrap() = true;
                        rung.1.notify_one();
                    }
                }
            });
            let mut receiver = Receiver::new(ring);
            for expected in 1..=2 {
                loop {
                    if let Some(word) = receiver.take() {
                        assert_eq!(word.get(), expected);
                        break;
                    }
                    // A sender that has still to ring is heard later, for nothing.
                    if receiver.may_sleep_silenced(|| *bell.0.lock().unwrap() = false) {
                        let mut rung = bell.0.lock().unwrap();
                        while !*rung {
                            rung = bell.1.wait(rung).unwrap();
                        }
                    }
                }
            }
            sending.join().unwrap();
        });
    }
}
