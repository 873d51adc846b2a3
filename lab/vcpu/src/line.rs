//! Cache lines and the CPUs that have them.
//!
//! Owns: for each line, which CPU wrote it last and which CPUs have had it since.
//! Invariants: the state is stored beside the value, not by address, so that costs do not depend on
//! memory layout. All zeros is a line in no cache.
//! Not here: which values share a line. Every value has its own; what is dense in memory and read
//! in order is charged as work instead.
//!
//! ```text
//! bits 0..16    CPU that wrote it last, plus one; 0 none
//! bits 16..64   CPUs that have it, modulo 48
//! ```

use crate::core;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HOLDERS: u32 = 48;
const WRITER_BITS: u32 = 16;

/// The state of one cache line.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Line(AtomicU64);

impl Line {
    /// Makes a line that is in no cache.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Charges the running task for a load.
    #[inline]
    pub fn read(&self) {
        core::with_task(|core| {
            let (state, mine) = (self.0.load(Relaxed), holder(core.cpu()));
            if state & mine != 0 {
                return core.charge(core.costs().load_ns);
            }
            core.point();
            let state = self.0.load(Relaxed);
            core.charge(core.transfer_ns(writer(state)));
            self.0.store(state | mine, Relaxed);
        });
    }

    /// Charges the running task for a read-modify-write.
    #[inline]
    pub fn update(&self) {
        core::with_task(|core| self.take(core, core.costs().update_ns));
    }

    /// Charges the running task for a store.
    #[inline]
    pub fn write(&self) {
        core::with_task(|core| self.take(core, core.costs().load_ns));
    }

    #[inline]
    fn take(&self, core: &core::Core, hit_ns: u64) {
        let owned = owned_by(core.cpu());
        if self.0.load(Relaxed) == owned {
            core.explore_point();
            return core.charge(hit_ns);
        }
        core.point();
        let before = writer(self.0.load(Relaxed));
        core.charge(core.transfer_ns(before) + hit_ns);
        self.0.store(owned, Relaxed);
    }

    /// Returns the CPU that wrote it last.
    pub(crate) fn writer(&self) -> Option<u32> {
        writer(self.0.load(Relaxed))
    }

    /// Gives the line to `cpu` without charging for it.
    pub(crate) fn give(&self, cpu: u32) {
        self.0.store(owned_by(cpu), Relaxed);
    }
}

fn holder(cpu: u32) -> u64 {
    1 << (WRITER_BITS + cpu % HOLDERS)
}

fn owned_by(cpu: u32) -> u64 {
    u64::from(cpu + 1) | holder(cpu)
}

fn writer(state: u64) -> Option<u32> {
    (state as u32 & ((1 << WRITER_BITS) - 1)).checked_sub(1)
}
