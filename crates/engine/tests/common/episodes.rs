//! Episodes generated from seeds.

/// Prints how to replay a failure.
pub(crate) struct Replay(pub(crate) u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with OVERSPILL_SEED={}", self.0);
        }
    }
}
