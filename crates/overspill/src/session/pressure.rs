//! What a member needs, as the others see it.
//!
//! Owns: the words of it in an account, and what they amount to (`engine::lease` says why).
//! Invariants: a member adds to its own; others read. A sum may be read between two words.

use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use overspill_engine::RefaultCounts;

/// Time in which pressure falls by half.
const PRESSURE_HALF_MS: f32 = 500.0;

/// What a refault weighs that an eighth of all frames more would have saved; an eviction weighs 1.
const NEAR_REFAULT: f32 = 16.0;

/// The words of a member: a [`Sum`] of evictions, then of refaults, from the farthest on.
pub(super) struct MemberPressure<'a>(pub(super) &'a [AtomicU64]);

impl MemberPressure<'_> {
    pub(super) const WORDS: usize = 1 + RefaultCounts::NEARS;

    pub(super) fn at(&self, now_ms: u32) -> f32 {
        let sum = |word: &AtomicU64| Sum::from_word(word.load(Relaxed)).at(now_ms);
        let [evictions, refaults @ ..] = self.0 else { return 0.0 };
        // The next counts refaults that half as many frames would have saved.
        let by_frame = refaults.iter().enumerate().map(|(n, word)| sum(word) * (1 << n) as f32);
        sum(evictions) + NEAR_REFAULT * by_frame.fold(0.0, f32::max)
    }

    pub(super) fn add(&self, more: &RefaultCounts, now_ms: u32) {
        let all = [more.evictions].into_iter().chain(more.within);
        for (word, more) in self.0.iter().zip(all) {
            let sum = Sum::from_word(word.load(Relaxed)).plus(more as f32, now_ms);
            word.store(sum.to_word(), Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }
}

/// What happened now and shortly before: a sum that falls by half in [`PRESSURE_HALF_MS`]. In a
/// word: the value as a float, then the time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    value: f32,
    at_ms: u32,
}

impl Sum {
    fn from_word(word: u64) -> Self {
        Self { value: f32::from_bits((word >> 32) as u32), at_ms: word as u32 }
    }

    fn to_word(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.at_ms)
    }

    fn at(self, now_ms: u32) -> f32 {
        let age_ms = now_ms.wrapping_sub(self.at_ms) as f32;
        self.value * (-age_ms / PRESSURE_HALF_MS).exp2()
    }

    fn plus(self, more: f32, now_ms: u32) -> Self {
        Self { value: self.at(now_ms) + more, at_ms: now_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_falls_by_half() {
        let pressure = Sum::default().plus(8.0, 1000);
        assert_eq!(Sum::from_word(pressure.to_word()), pressure);
        assert_eq!(pressure.at(1500), 4.0);
        assert_eq!(pressure.plus(1.0, 2000).value, 3.0);
    }
}
