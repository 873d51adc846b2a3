//! Size classes: where in the store's memory an object is, and which places are free.
//!
//! Owns: a word per *span* of 16 KiB. A span is divided into equal places for objects of one class;
//! the word has its class, and which places are taken.
//! Invariants: everything about a span is in its one word, so every change is one compare-exchange.
//! There is no lock and no owner: any thread may take a place in any span.
//!
//! ```text
//! bits 0..56   a bit per place that is taken
//! bits 56..64  0 free · class + 1 · 255 closing: empty, its memory is being given back
//!
//! free --take--> class, 1 place --take--> n --release--> n-1 ... 1 --release--> closing --> free
//! ```
//!
//! Not here: what an object is ([`super::word`]), reading and writing it ([`super::store`]).
//! Rejected: spans owned by the CPU that fills them, like clusters of slots: it saves only a
//! compare-exchange, 1 % of the compression before it. A list of spans per class: several words
//! that change together need a lock; scanning the words is fast enough, eight are in a cache line.

use overspill_base::shared::Table;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Size of a span: four pages, so that quarters are whole pages.
pub(super) const SPAN_BYTES: usize = 16 << 10;

/// Number of places of a span by class: sizes in steps of a tenth to a quarter, from a page down to
/// 292 bytes, the smallest that one word has bits for.
const PLACES: [u8; CLASSES] =
    [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56];

/// Number of classes.
pub(super) const CLASSES: usize = 22;

const TAKEN_BITS: u32 = 56;
const CLOSING: u64 = 0xff << TAKEN_BITS;

/// Number of words that a search scans before it takes a free span: half a microsecond. The next
/// search continues where it stopped, so in the end every span is seen.
const SEARCH_SPANS: u32 = 512;

/// A class of places of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u8);

impl Class {
    /// The class with the smallest places that hold `len_bytes`.
    ///
    /// # Panics
    /// If that is more than a page.
    pub(super) fn of(len_bytes: usize) -> Self {
        let smallest = PLACES.iter().rposition(|&n| SPAN_BYTES / usize::from(n) >= len_bytes);
        Self(smallest.expect("an object is a page at most") as u8)
    }

    fn places(self) -> u32 {
        u32::from(PLACES[usize::from(self.0)])
    }

    /// Size of a place.
    pub(super) fn place_bytes(self) -> usize {
        SPAN_BYTES / self.places() as usize
    }

    /// Its number, below [`CLASSES`].
    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    fn word(self) -> u64 {
        (u64::from(self.0) + 1) << TAKEN_BITS
    }

    /// The class of a span's word; none if the span is free or closing, or its word is damaged.
    fn of_word(word: u64) -> Option<Self> {
        let number = (word >> TAKEN_BITS).checked_sub(1)?;
        (number < CLASSES as u64).then_some(Self(number as u8))
    }
}

fn taken(word: u64) -> u64 {
    word & ((1 << TAKEN_BITS) - 1)
}

/// The location of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Number of its span.
    pub(super) span: u32,
    /// Number of the place in it.
    pub(super) index: u8,
}

impl Place {
    /// Its offset in the memory of all spans, if the span is of `class`.
    pub(super) fn offset_bytes(self, class: Class) -> u64 {
        let start = self.span as usize * SPAN_BYTES;
        (start + usize::from(self.index) * class.place_bytes()) as u64
    }
}

/// Sums over a store, for people and for heuristics: a change comes before its count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sum {
    /// Number of spans not free.
    Spans,
    /// The most there have ever been.
    SpansMax,
    /// Number of slots with content.
    Pages,
    /// The most there have ever been.
    PagesMax,
    /// No span below this one was free at the last search.
    FreeFrom,
    /// No span from this one on was ever used.
    End,
}

/// Number of [`Sum`]s.
pub(super) const SUMS: usize = 6;

/// Where the searches of one queue continue, by class.
pub(super) type Cursors = [u32; CLASSES];

/// All spans of a store.
#[derive(Debug)]
pub(super) struct Spans {
    words: Table<AtomicU64>,
    sums: Table<AtomicU64>,
    /// Number of spans that may be in use before all of them are searched.
    budget: u64,
}

impl Spans {
    /// Makes spans with their words and sums in these tables, which start as zeros.
    pub(super) fn new(words: Table<AtomicU64>, sums: Table<AtomicU64>, budget: u64) -> Self {
        Self { words, sums, budget }
    }

    /// Returns a [`Sum`].
    pub(super) fn sum(&self, sum: Sum) -> u64 {
        self.sums[sum as usize].load(Relaxed)
    }

    /// Adds one to `sum`, and raises `max` to it if it is larger.
    pub(super) fn count_up(&self, sum: Sum, max: Sum) {
        let now = self.sums[sum as usize].fetch_add(1, Relaxed) + 1;
        self.sums[max as usize].fetch_max(now, Relaxed);
    }

    /// Subtracts one from `sum`.
    pub(super) fn count_down(&self, sum: Sum) {
        self.sums[sum as usize].fetch_sub(1, Relaxed);
    }

    /// Takes a place for an object of `len_bytes`, and returns it with its span's class. Within the
    /// budget a free span is preferred to a long search; beyond it any place that is large enough
    /// is preferred to a free span. None if every span is in use and none has room.
    pub(super) fn take(&self, len_bytes: usize, cursors: &mut Cursors) -> Option<(Place, Class)> {
        let class = Class::of(len_bytes);
        let cursor = &mut cursors[class.index()];
        let found = self
            .find(class..=class, cursor, SEARCH_SPANS)
            .or_else(|| (self.sum(Sum::Spans) < self.budget).then(|| self.open(class, cursor))?)
            .or_else(|| self.find(Class(0)..=class, &mut 0, u32::MAX));
        found.or_else(|| self.open(class, cursor))
    }

    /// Takes a place of one of `classes`, looking at no more than `spans_max` spans from `cursor`
    /// on.
    fn find(
        &self,
        classes: std::ops::RangeInclusive<Class>,
        cursor: &mut u32,
        spans_max: u32,
    ) -> Option<(Place, Class)> {
        let end = self.sum(Sum::End) as u32;
        for _ in 0..spans_max.min(end) {
            if *cursor >= end {
                *cursor = 0;
            }
            if let Some(found) = self.take_in(*cursor, &classes) {
                return Some(found);
            }
            *cursor += 1;
        }
        None
    }

    fn take_in(
        &self,
        span: u32,
        classes: &std::ops::RangeInclusive<Class>,
    ) -> Option<(Place, Class)> {
        let shared = &self.words[span as usize];
        let mut word = shared.load(Relaxed);
        loop {
            let class = Class::of_word(word).filter(|class| classes.contains(class))?;
            let index = taken(word).trailing_ones();
            if index >= class.places() {
                return None;
            }
            // Acquire pairs with the Release in `release`: the place's previous user has read it.
            match shared.compare_exchange_weak(word, word | 1 << index, AcqRel, Relaxed) {
                Ok(_) => return Some((Place { span, index: index as u8 }, class)),
                Err(now) => word = now,
            }
        }
    }

    /// Opens the lowest free span for `class`, and takes its first place.
    fn open(&self, class: Class, cursor: &mut u32) -> Option<(Place, Class)> {
        let from = self.sum(Sum::FreeFrom) as usize;
        let spans = self.words.len();
        // A span below the hint may have become free while another thread raised the hint.
        let order = (from.min(spans)..spans).chain(0..from.min(spans));
        for span in order {
            let free = self.words[span].load(Relaxed) == 0;
            // Acquire pairs with the Release in `close`: the span's old memory is gone.
            let take =
                || self.words[span].compare_exchange(0, class.word() | 1, Acquire, Relaxed).is_ok();
            if free && take() {
                self.sums[Sum::FreeFrom as usize].store(span as u64 + 1, Relaxed);
                self.sums[Sum::End as usize].fetch_max(span as u64 + 1, Relaxed);
                self.count_up(Sum::Spans, Sum::SpansMax);
                *cursor = span as u32;
                return Some((Place { span: span as u32, index: 0 }, class));
            }
        }
        None
    }

    /// The class of the span of a taken place; none if the place is not taken, which means that the
    /// word naming it is wrong.
    pub(super) fn class_of(&self, place: Place) -> Option<Class> {
        let word = self.words.get(place.span as usize)?.load(Acquire);
        let class = Class::of_word(word)?;
        (taken(word) >> place.index & 1 == 1).then_some(class)
    }

    /// Releases a place, and with the last one the span, whose memory `give_back` returns to the
    /// system. A place that is not taken is left alone: a damaged word named it.
    pub(super) fn release(&self, place: Place, give_back: impl FnOnce(u32)) {
        let Some(shared) = self.words.get(place.span as usize) else { return };
        let mut word = shared.load(Relaxed);
        loop {
            if Class::of_word(word).is_none() || taken(word) >> place.index & 1 == 0 {
                return;
            }
            let left = word & !(1 << place.index);
            let left = if taken(left) == 0 { CLOSING } else { left };
            match shared.compare_exchange_weak(word, left, AcqRel, Relaxed) {
                Ok(_) if left == CLOSING => return self.close(place.span, give_back),
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    fn close(&self, span: u32, give_back: impl FnOnce(u32)) {
        give_back(span);
        self.words[span as usize].store(0, Release);
        self.sums[Sum::FreeFrom as usize].fetch_min(span.into(), Relaxed);
        self.count_down(Sum::Spans);
    }
}

const _: () = assert!(PLACES[CLASSES - 1] as u32 == TAKEN_BITS && CLASSES < 0xfe);

#[cfg(test)]
mod tests {
    use super::*;

    impl Spans {
        /// Number of taken places of every span that is not free.
        pub(in crate::compressed) fn in_use(&self) -> impl Iterator<Item = u32> {
            let words = self.words.iter().map(|word| word.load(Acquire));
            words.filter(|&word| word != 0).map(|word| taken(word).count_ones())
        }
    }

    const NO_ONE: fn(u32) = |span| panic!("span {span} has become empty");

    fn spans(count: usize, budget: u64) -> Spans {
        let table = |len| Table::on_heap(len, || AtomicU64::new(0));
        Spans::new(table(count), table(SUMS), budget)
    }

    #[test]
    fn a_class_is_the_tightest() {
        for len in 1..=4096 {
            let class = Class::of(len);
            assert!(class.place_bytes() >= len);
            let tighter = Class(class.0 + 1);
            assert!(tighter.index() == CLASSES || tighter.place_bytes() < len, "{len}");
            assert_eq!(Class::of_word(class.word() | 1), Some(class));
        }
        assert_eq!((Class::of(4096), Class::of(0).place_bytes()), (Class(0), 292));
    }

    #[test]
    fn a_span_fills_up_and_closes_with_its_last_place() {
        let spans = spans(2, 2);
        let mut cursors = [0; CLASSES];
        let places: Vec<Place> =
            (0..4).map(|_| spans.take(4096, &mut cursors).unwrap().0).collect();
        assert!(places.iter().zip(0..).all(|(p, n)| *p == Place { span: 0, index: n }));
        assert_eq!(spans.take(4000, &mut cursors).unwrap().0, Place { span: 1, index: 0 });
        assert_eq!(spans.sum(Sum::Spans), 2);
        for &place in &places[1..] {
            spans.release(place, NO_ONE);
        }
        let mut closed = None;
        spans.release(places[0], |span| closed = Some(span));
        assert_eq!((closed, spans.sum(Sum::Spans), spans.sum(Sum::SpansMax)), (Some(0), 1, 2));
        assert_eq!(spans.class_of(places[0]), None);
        assert_eq!(spans.take(100, &mut cursors).unwrap().0, Place { span: 0, index: 0 });
    }

    /// The budget is two spans, with one small object in each; a third is opened only for what fits
    /// into neither.
    #[test]
    fn beyond_the_budget_larger_places_come_before_free_spans() {
        let spans = spans(3, 2);
        let mut cursors = [0; CLASSES];
        let medium = spans.take(2000, &mut cursors).unwrap();
        let small = spans.take(300, &mut cursors).unwrap();
        assert_eq!((medium.0.span, small.0.span), (0, 1));
        let (place, class) = spans.take(1000, &mut cursors).unwrap();
        assert_eq!((place.span, class), (0, medium.1), "the tightest class has no span of its own");
        assert_eq!(spans.take(4096, &mut cursors).unwrap().0.span, 2);
        assert!((0..3).all(|_| spans.take(4096, &mut cursors).is_some()));
        assert_eq!(spans.take(4096, &mut cursors), None);
    }

    #[test]
    fn what_a_damaged_word_names_is_left_alone() {
        let spans = spans(1, 1);
        spans.take(4096, &mut [0; CLASSES]).unwrap();
        for place in [Place { span: 7, index: 0 }, Place { span: 0, index: 1 }] {
            assert_eq!(spans.class_of(place), None);
            spans.release(place, NO_ONE);
        }
        for word in [CLOSING, 0x40 << TAKEN_BITS | 1, 1] {
            spans.words[0].store(word, Relaxed);
            spans.release(Place { span: 0, index: 0 }, NO_ONE);
            assert_eq!(spans.words[0].load(Relaxed), word);
        }
    }
}
