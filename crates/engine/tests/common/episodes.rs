//! Episodes that are played by seeds.

use std::ops::Range;

/// The seeds that the environment asks for: one with `OVERSPILL_SEED`, the first with
/// `OVERSPILL_SEEDS`, of which there are `usual` otherwise.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
    };
    match (number("OVERSPILL_SEED"), number("OVERSPILL_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(usual),
    }
}

/// Says how to see a failure again.
pub(crate) struct Replay(pub(crate) u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with OVERSPILL_SEED={}", self.0);
        }
    }
}
