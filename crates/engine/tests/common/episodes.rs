//! Episodes generated from seeds.

use std::ops::Range;

/// Returns the seeds to run: from the one in `OVERSPILL_SEED` on as many as `OVERSPILL_SEEDS` says,
/// or that one alone; without it the first `OVERSPILL_SEEDS`, by default `usual`.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
    };
    match (number("OVERSPILL_SEED"), number("OVERSPILL_SEEDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(usual),
    }
}

/// Prints how to replay a failure.
pub(crate) struct Replay(pub(crate) u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with OVERSPILL_SEED={}", self.0);
        }
    }
}
