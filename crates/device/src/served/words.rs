//! What the words in the rings mean.
//!
//! Owns: the packing of a request and of its end into one word each. A word comes from another
//! process: whatever it is, it decodes to something or to nothing.
//!
//! ```text
//! request     bits 0..2 what: 1 read, 2 write, 3 close   2..10 flight   10..19 pages
//!             19..30 first page in the memory of the pair   30..62 slot
//! completion  bit 0 always 1   1..9 flight   9..12 outcome   16..32 errno
//! ```

use crate::error::DeviceError;
use crate::{IoOp, MAX_REQUEST_PAGES};
use overspill_base::Slot;
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::ops::Range;

/// Number of requests that a pair of rings has room for.
pub(super) const FLIGHTS: usize = 1 << FLIGHT_BITS;
/// Pages in the memory of a pair: what is under way on a fast network with a round trip of several
/// milliseconds. Those that are never used take no memory.
pub(super) const SHARED_PAGES: usize = 1 << FIRST_BITS;

const WHAT_BITS: u32 = 2;
const FLIGHT_BITS: u32 = 8;
const PAGES_BITS: u32 = 9;
const FIRST_BITS: u32 = 11;
const SLOT_BITS: u32 = 32;

const READ: u64 = 1;
const WRITE: u64 = 2;
const CLOSE: u64 = 3;

/// Packs values below powers of two, the first into the lowest bits.
fn pack(fields: &[(u64, u32)]) -> u64 {
    let packed = fields.iter().fold((0, 0), |(word, at), &(value, bits)| {
        debug_assert!(value < 1 << bits, "{value} in {bits} bits");
        (word | value << at, at + bits)
    });
    packed.0
}

/// Takes the lowest bits off a word.
fn unpack(word: &mut u64, bits: u32) -> u64 {
    let value = *word & ((1 << bits) - 1);
    *word >>= bits;
    value
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Moves pages.
    Transfer {
        /// Its number until it is complete.
        flight: u8,
        op: IoOp,
        /// Pages in the memory of the pair: one to [`MAX_REQUEST_PAGES`] of them.
        pages: Range<usize>,
        /// The first page's slot.
        slot: Slot,
    },
    /// There will be no more, and none is in flight.
    Close,
}

impl Request {
    pub(super) fn word(&self) -> NonZeroU64 {
        let word = match self {
            Self::Close => CLOSE,
            Self::Transfer { flight, op, pages, slot } => pack(&[
                (if *op == IoOp::Read { READ } else { WRITE }, WHAT_BITS),
                (u64::from(*flight), FLIGHT_BITS),
                (pages.len() as u64, PAGES_BITS),
                (pages.start as u64, FIRST_BITS),
                (u64::from(slot.0), SLOT_BITS),
            ]),
        };
        NonZeroU64::new(word).expect("what is asked is not 0")
    }

    /// Understands a word; none if it cannot be a request.
    pub(super) fn of(word: NonZeroU64) -> Option<Self> {
        let mut word = word.get();
        let op = match unpack(&mut word, WHAT_BITS) {
            READ => IoOp::Read,
            WRITE => IoOp::Write,
            CLOSE => return Some(Self::Close),
            _ => return None,
        };
        let flight = unpack(&mut word, FLIGHT_BITS) as u8;
        let pages = unpack(&mut word, PAGES_BITS) as usize;
        let first = unpack(&mut word, FIRST_BITS) as usize;
        let slot = Slot(unpack(&mut word, SLOT_BITS) as u32);
        let fits = (1..=MAX_REQUEST_PAGES).contains(&pages) && first + pages <= SHARED_PAGES;
        fits.then_some(Self::Transfer { flight, op, pages: first..first + pages, slot })
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// There is no more room.
    Full,
    /// The device ended before the request did.
    Short,
    Failed(Errno),
}

impl Outcome {
    pub(super) fn of_error(error: &DeviceError) -> Self {
        match error {
            DeviceError::Full { .. } => Self::Full,
            DeviceError::Short { .. } => Self::Short,
            DeviceError::Io { errno, .. }
            | DeviceError::Open { errno, .. }
            | DeviceError::Discard { errno, .. } => Self::Failed(*errno),
            _ => Self::Failed(Errno::IO),
        }
    }

    pub(super) fn of<T>(result: &Result<T, DeviceError>) -> Self {
        result.as_ref().map_or_else(Self::of_error, |_| Self::Done)
    }

    pub(super) fn errno(self) -> Errno {
        match self {
            Self::Full => Errno::NOSPC,
            Self::Failed(errno) => errno,
            Self::Done | Self::Short => Errno::IO,
        }
    }

    /// A number for it, and one for its errno.
    pub(super) fn numbers(self) -> (u32, u32) {
        match self {
            Self::Done => (0, 0),
            Self::Full => (1, 0),
            Self::Short => (2, 0),
            Self::Failed(errno) => (3, errno.raw_os_error() as u32 & 0xffff),
        }
    }

    /// Whatever the numbers are, this is how it ended.
    pub(super) fn of_numbers(kind: u32, errno: u32) -> Self {
        match kind {
            0 => Self::Done,
            1 => Self::Full,
            2 => Self::Short,
            _ => Self::Failed(errno_of(errno)),
        }
    }
}

/// The errors of the system are numbers from 1 to 4095.
fn errno_of(number: u32) -> Errno {
    match number {
        1..4096 => Errno::from_raw_os_error(number as i32),
        _ => Errno::IO,
    }
}

/// What a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) flight: u8,
    pub(super) outcome: Outcome,
}

const OUTCOME_BITS: u32 = 3;
const ERRNO_SHIFT: u32 = 4;
const ERRNO_BITS: u32 = 16;

impl Ended {
    pub(super) fn word(self) -> NonZeroU64 {
        let (kind, errno) = self.outcome.numbers();
        let word = pack(&[
            (1, 1),
            (u64::from(self.flight), FLIGHT_BITS),
            (u64::from(kind), OUTCOME_BITS),
            (0, ERRNO_SHIFT),
            (u64::from(errno), ERRNO_BITS),
        ]);
        NonZeroU64::new(word).expect("bit 0 is set")
    }

    pub(super) fn of(word: NonZeroU64) -> Self {
        let mut word = word.get() >> 1;
        let flight = unpack(&mut word, FLIGHT_BITS) as u8;
        let kind = unpack(&mut word, OUTCOME_BITS) as u32;
        unpack(&mut word, ERRNO_SHIFT);
        let errno = unpack(&mut word, ERRNO_BITS) as u32;
        Self { flight, outcome: Outcome::of_numbers(kind, errno) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let places = (0..SHARED_PAGES).prop_flat_map(|first| {
            (Just(first), first + 1..=SHARED_PAGES.min(first + MAX_REQUEST_PAGES))
        });
        let op = prop_oneof![Just(IoOp::Read), Just(IoOp::Write)];
        let transfer = (any::<u8>(), op, places, any::<u32>());
        let transfer = transfer.prop_map(|(flight, op, (first, end), slot)| Request::Transfer {
            flight,
            op,
            pages: first..end,
            slot: Slot(slot),
        });
        prop_oneof![8 => transfer, 1 => Just(Request::Close)]
    }

    proptest! {
        #[test]
        fn a_request_is_understood_as_it_was_sent(request in requests()) {
            prop_assert_eq!(Request::of(request.word()), Some(request));
        }

        #[test]
        fn any_word_is_a_request_within_bounds_or_none(word in 1u64..) {
            let word = NonZeroU64::new(word).unwrap();
            if let Some(Request::Transfer { pages, .. }) = Request::of(word) {
                prop_assert!((1..=MAX_REQUEST_PAGES).contains(&pages.len()));
                prop_assert!(pages.end <= SHARED_PAGES);
            }
            let _ = Ended::of(word);
        }
    }

    #[test]
    fn an_end_is_understood_as_it_was_sent() {
        let failed = Outcome::Failed(Errno::TIMEDOUT);
        for outcome in [Outcome::Done, Outcome::Full, Outcome::Short, failed] {
            for flight in [0, 7, 255] {
                let ended = Ended { flight, outcome };
                assert_eq!(Ended::of(ended.word()), ended);
            }
        }
    }
}
