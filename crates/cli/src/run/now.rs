//! A run at a moment, for who watches it.
//!
//! Not here: what is made of it (`progress`, `timeline`).

use overspill::{Bytes, Summary};
use overspill_run::StallTime;

/// What it does and has.
#[derive(Debug)]
pub(super) struct Now {
    pub(super) summary: Summary,
    /// What all processes have of the limit.
    pub(super) memory: Bytes,
    /// What is in use of all devices.
    pub(super) swap: Bytes,
    /// That are alive.
    pub(super) processes: usize,
    pub(super) stalls: StallTime,
}
