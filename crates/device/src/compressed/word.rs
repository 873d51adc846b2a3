//! The word of a slot: what the slot holds, or where that is.
//!
//! Invariants: any word is a value of [`Content`]; an invalid one names a place that is not taken
//! or an impossible length, and is detected when it is followed.
//!
//! ```text
//! bits 52..64 not MARK   a page filled with this word; 0 also stands for a slot never written
//! bits 52..64 MARK       an object: bits 0..32 span, 32..38 place in it, 38..51 its length
//! ```
//!
//! Rejected: a second word per slot for the pattern. Pages filled with one word whose upper bits
//! happen to be the mark are extremely rare, and such a page is compressed like any other.

use super::spans::Place;
use overspill_base::PAGE_SIZE;

/// Upper twelve bits of a word that names an object: as a floating-point number it would be too
/// small to occur, and it is not a valid address.
const MARK: u64 = 0x801;
const MARK_SHIFT: u32 = 52;
const INDEX_SHIFT: u32 = 32;
const INDEX_MASK: u64 = (1 << 6) - 1;
const LEN_SHIFT: u32 = 38;
const LEN_MASK: u64 = (1 << 13) - 1;

const _: () = assert!(PAGE_SIZE as u64 <= LEN_MASK);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A page that repeats this word.
    Filled(u64),
    /// An object of so many bytes. A whole page is stored as it is, anything shorter is compressed.
    Object {
        /// Its place.
        place: Place,
        /// Its length in bytes.
        len_bytes: usize,
    },
}

impl Content {
    /// Decodes `word`.
    pub(super) fn of_word(word: u64) -> Self {
        if word >> MARK_SHIFT != MARK {
            return Self::Filled(word);
        }
        let place = Place { span: word as u32, index: (word >> INDEX_SHIFT & INDEX_MASK) as u8 };
        Self::Object { place, len_bytes: (word >> LEN_SHIFT & LEN_MASK) as usize }
    }

    /// Encodes the content. A filling that looks like an object has no word.
    pub(super) fn to_word(self) -> Option<u64> {
        match self {
            Self::Filled(word) => (word >> MARK_SHIFT != MARK).then_some(word),
            Self::Object { place, len_bytes } => Some(
                MARK << MARK_SHIFT
                    | (len_bytes as u64) << LEN_SHIFT
                    | u64::from(place.index) << INDEX_SHIFT
                    | u64::from(place.span),
            ),
        }
    }
}

/// The word that `page` is filled with, if it is.
pub(super) fn filling(page: &[u8]) -> Option<u64> {
    let mut words = page.as_chunks::<8>().0.iter();
    let first = words.next()?;
    words.all(|word| word == first).then_some(u64::from_ne_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_object_is_found_where_it_was_put(span: u32, index in 0u8..56, len in 0usize..=4096) {
            let object = Content::Object { place: Place { span, index }, len_bytes: len };
            prop_assert_eq!(Content::of_word(object.to_word().unwrap()), object);
        }

        #[test]
        fn fillings_are_words_of_their_own(word: u64) {
            let told = Content::Filled(word).to_word();
            prop_assert_eq!(told.is_some(), word >> 52 != 0x801);
            prop_assert!(told.is_none_or(|told| Content::of_word(told) == Content::Filled(word)));
        }
    }

    #[test]
    fn a_page_is_filled_if_all_words_are_the_first() {
        let mut page = 0x1234_5678_u64.to_ne_bytes().repeat(PAGE_SIZE / 8);
        assert_eq!(filling(&page), Some(0x1234_5678));
        page[PAGE_SIZE - 1] ^= 1;
        assert_eq!(filling(&page), None);
    }
}
