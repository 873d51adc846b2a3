//! What a member needs, as the others see it.

/// Time in which pressure falls by half.
const PRESSURE_HALF_MS: f32 = 500.0;
/// How much a member suffers from having too few frames, now and shortly before: a sum that falls
/// by half in [`PRESSURE_HALF_MS`]. In a word: the value as a float, then the time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pressure {
    value: f32,
    at_ms: u32,
}

impl Pressure {
    pub(super) fn from_word(word: u64) -> Self {
        Self { value: f32::from_bits((word >> 32) as u32), at_ms: word as u32 }
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.at_ms)
    }

    pub(super) fn at(self, now_ms: u32) -> f32 {
        let age_ms = now_ms.wrapping_sub(self.at_ms) as f32;
        self.value * (-age_ms / PRESSURE_HALF_MS).exp2()
    }

    pub(super) fn plus(self, more: f32, now_ms: u32) -> Self {
        Self { value: self.at(now_ms) + more, at_ms: now_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_falls_by_half() {
        let pressure = Pressure::default().plus(8.0, 1000);
        assert_eq!(Pressure::from_word(pressure.to_word()), pressure);
        assert_eq!(pressure.at(1500), 4.0);
        assert_eq!(pressure.plus(1.0, 2000).value, 3.0);
    }
}
