//! Cache lines and who has them.
//!
//! Owns: per line, which CPU wrote it last and which CPUs have it since. Invariants: kept beside
//! the value and not by its address, so that what it costs does not depend on where memory lies.
//! All zeros is a line nobody has.
//! Not here: which values share a line. Every value has one of its own; what is dense in memory and
//! read in order is charged as work instead.
//!
//! ```text
//! bits 0..16    CPU that wrote it last, plus one; 0 nobody
//! bits 16..64   CPUs that have it, modulo 48
//! ```

use crate::core;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HOLDERS: u32 = 48;
const WRITER_BITS: u32 = 16;

/// Where one cache line is.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Line(AtomicU64);

impl Line {
    /// A line nobody has.
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

    /// The CPU that wrote it last.
    pub(crate) fn writer(&self) -> Option<u32> {
        writer(self.0.load(Relaxed))
    }

    /// It is `cpu`'s now, whatever that cost.
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
