//! A run at a moment, for who watches it.
//!
//! Not here: what is made of it (`progress`, `timeline`).

use overspill::session::{Overview, StallTime};
use overspill::{Bytes, Summary};

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

impl From<&Overview> for Now {
    fn from(overview: &Overview) -> Self {
        let (mut memory, mut processes) = (0, 0);
        for process in overview.processes() {
            memory += process.memory.0;
            processes += 1;
        }
        Self {
            summary: overview.summary(),
            memory: Bytes(memory),
            swap: Bytes(overview.devices().map(|device| device.used.0).sum()),
            processes,
            stalls: overview.stall_time(),
        }
    }
}
