//! Content of pages while they are touched, which lets every byte read be checked.
//!
//! ```text
//! word 0        page number << 32 | version, the number of writes so far
//! words 1..511  noise or a constant of the page, plus how often the word was written
//! ```
//!
//! Invariants: the first write of a page goes to word 1, the next to word 2 and so on, round and
//! round. So a page's number and version determine each of its words, and a page is caught if swap
//! returned an older version, in part or in whole, or another page's content. Pages of zeros stay
//! zeros when they are written.
//! Not here: where the version is kept ([`super::toucher`]); which page is touched.
//! Rejected: writing at random places, because then only the last word written could be checked.

use overspill_base::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of a page.
pub(crate) const WORDS: usize = PAGE_SIZE / size_of::<u64>();
/// Words that are written in turn.
const WRITTEN: u32 = WORDS as u32 - 1;

/// Multiples of this step do not repeat within 2^64, and no two words of a page share their bytes.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What kind of bytes pages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Only zeros.
    Zero,
    /// The first half noise, the second a constant: it compresses to about a half.
    Compressible,
    /// All noise.
    Incompressible,
    /// Of four pages one zeros, two compressible, one incompressible.
    Mixed,
}

impl Content {
    /// All, with their names on command lines.
    pub const ALL: [(&'static str, Self); 4] = [
        ("zero", Self::Zero),
        ("compressible", Self::Compressible),
        ("incompressible", Self::Incompressible),
        ("mixed", Self::Mixed),
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, content)| *content == self).expect("the table has all").0
    }

    /// Returns how many words at the start are noise; none if the page is all zeros.
    fn noise_words(self, page: u64) -> Option<usize> {
        match self {
            Self::Zero => None,
            Self::Compressible => Some(WORDS / 2),
            Self::Incompressible => Some(WORDS),
            Self::Mixed => match page % 4 {
                0 => Self::Zero.noise_words(page),
                1 | 2 => Self::Compressible.noise_words(page),
                _ => Self::Incompressible.noise_words(page),
            },
        }
    }
}

/// What pages should hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) content: Content,
    /// The single word of all writes, if they do not go round.
    pub(crate) offset: Option<usize>,
}

/// One page at one version.
struct Expected {
    stamp: u64,
    noise: u64,
    /// None if the page is all zeros.
    noise_words: Option<usize>,
    /// Times that each word was written, and how many more for those in the range.
    times: u64,
    more: u64,
    range: RangeInclusive<usize>,
}

impl Expected {
    fn word(&self, n: usize) -> u64 {
        let Some(noise_words) = self.noise_words else { return 0 };
        if n == 0 {
            return self.stamp;
        }
        let base = if n < noise_words {
            self.noise.wrapping_add(STEP.wrapping_mul(n as u64))
        } else {
            self.stamp >> 32
        };
        let more = if self.range.contains(&n) { self.more } else { 0 };
        base.wrapping_add(self.times + more)
    }
}

impl Stamp {
    fn expected(&self, page: u64, version: u32) -> Expected {
        let (times, more, range) = match self.offset {
            None => (version / WRITTEN, 1, 1..=(version % WRITTEN) as usize),
            Some(word) => (0, version, word..=word),
        };
        Expected {
            stamp: page << 32 | u64::from(version),
            // Two rounds of a mixer, so that neighbours share nothing.
            noise: mixed(mixed(page)),
            noise_words: self.content.noise_words(page),
            times: times.into(),
            more: more.into(),
            range,
        }
    }

    /// Writes all of a page at version 0.
    pub(crate) fn fill(&self, words: &[AtomicU64], page: u64) {
        let expected = self.expected(page, 0);
        words.iter().enumerate().for_each(|(n, word)| word.store(expected.word(n), Relaxed));
    }

    /// Makes the next version of a page at `version`.
    pub(crate) fn write(&self, words: &[AtomicU64], page: u64, version: u32) {
        let next = self.expected(page, version + 1);
        let at = self.offset.unwrap_or(1 + (version % WRITTEN) as usize);
        words[at].store(next.word(at), Relaxed);
        words[0].store(next.word(0), Relaxed);
    }

    /// Reads word `n` of a page and its stamp.
    ///
    /// # Errors
    /// Describes what is wrong with it.
    pub(crate) fn check(
        &self,
        words: &[AtomicU64],
        page: u64,
        version: u32,
        n: usize,
    ) -> Result<(), String> {
        let expected = self.expected(page, version);
        let wrong = [n, 0].into_iter().find(|&n| words[n].load(Relaxed) != expected.word(n));
        wrong.map_or(Ok(()), |n| Err(differs(words, &expected, page, version, n)))
    }

    /// Reads every byte of a page.
    ///
    /// # Errors
    /// Describes what is wrong with it.
    pub(crate) fn check_all(
        &self,
        words: &[AtomicU64],
        page: u64,
        version: u32,
    ) -> Result<(), String> {
        let expected = self.expected(page, version);
        let difference = |(n, word): (usize, &AtomicU64)| word.load(Relaxed) ^ expected.word(n);
        // Without a branch per word; otherwise the check would cost more than bringing in the page.
        if words.iter().enumerate().map(difference).fold(0, |all, one| all | one) == 0 {
            return Ok(());
        }
        let wrong = (0..WORDS).find(|&n| words[n].load(Relaxed) != expected.word(n));
        Err(differs(words, &expected, page, version, wrong.unwrap_or(0)))
    }
}

fn differs(words: &[AtomicU64], expected: &Expected, page: u64, version: u32, n: usize) -> String {
    let (read, right) = (words[n].load(Relaxed), expected.word(n));
    format!("word {n} of page {page} at version {version} is {read:#x}, not {right:#x}")
}

fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_add(STEP).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn stamps() -> impl Iterator<Item = Stamp> {
        let offsets = [None, Some(1), Some(WORDS - 1)];
        let all = Content::ALL.into_iter();
        all.flat_map(move |(_, content)| offsets.map(|offset| Stamp { content, offset }))
    }

    #[test]
    fn a_page_is_as_its_version_says_for_more_than_two_rounds() {
        for stamp in stamps() {
            let words = page();
            stamp.fill(&words, 7);
            for version in 0..1100 {
                assert_eq!(stamp.check_all(&words, 7, version), Ok(()), "{stamp:?}");
                stamp.write(&words, 7, version);
            }
        }
    }

    #[test]
    fn one_wrong_bit_anywhere_is_found() {
        for stamp in stamps() {
            let words = page();
            stamp.fill(&words, 5);
            stamp.write(&words, 5, 0);
            for n in 0..WORDS {
                words[n].fetch_xor(1 << 63, Relaxed);
                assert!(stamp.check_all(&words, 5, 1).unwrap_err().contains(&format!("word {n} ")));
                assert!(stamp.check(&words, 5, 1, n).is_err(), "{n}");
                words[n].fetch_xor(1 << 63, Relaxed);
            }
            assert_eq!(stamp.check_all(&words, 5, 1), Ok(()));
        }
    }

    #[test]
    fn an_old_or_foreign_page_is_found() {
        for content in [Content::Compressible, Content::Incompressible] {
            let (stamp, words) = (Stamp { content, offset: None }, page());
            stamp.fill(&words, 3);
            assert!(stamp.check(&words, 3, 1, 400).is_err(), "older than it left");
            assert!(stamp.check(&words, 4, 0, 400).is_err(), "another page");
            stamp.write(&words, 3, 0);
            words[1].fetch_sub(1, Relaxed);
            assert!(stamp.check_all(&words, 3, 1).is_err(), "a part of it older than it left");
        }
    }

    #[test]
    fn noise_does_not_repeat() {
        let stamp = Stamp { content: Content::Incompressible, offset: None };
        let mut halves = std::collections::BTreeSet::new();
        for number in 0..8 {
            let words = page();
            stamp.fill(&words, number);
            halves.extend(words[1..].iter().map(|word| word.load(Relaxed) as u32));
        }
        // Of 4088 random halves about 0.002 pairs are alike.
        assert!(halves.len() >= 8 * (WORDS - 1) - 1, "{}", halves.len());
    }
}
