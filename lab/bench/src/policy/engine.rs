//! The engine as shipped, under a trace.
//!
//! Invariants: a single thread does everything, so the figures are the same each time: it touches,
//! serves its own faults, and after each fault reclaims in the background as far as the reclaim
//! thread would, given the time. As with userfaultfd, the engine does not see touches of resident
//! pages.
//! Not here: speed; the content of pages, except that it must be what was written.

use super::{Memory, Progress};
use crate::error::BenchError;
use crate::machine::{Machine, Shape};
use crate::slots::DeviceState;
use crate::stamp;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_engine::frames::Watermarks;
use overspill_engine::{Tuning, Worker};

/// An engine, and the version of each page's content; 0 before it is filled.
pub(super) struct EngineMemory {
    machine: Machine,
    worker: Worker,
    low: usize,
    versions: Vec<u32>,
}

impl EngineMemory {
    /// Makes an engine of `frames` frames for `set_pages` pages.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub(super) fn new(frames: usize, set_pages: usize) -> Result<Self, BenchError> {
        // Twice the set: a page may keep its slot while it is resident.
        let device_slots = (2 * set_pages.max(frames)) as u32;
        let shape = Shape { frames, working_set_pages: set_pages, device_slots };
        let machine = Machine::new(shape, Tuning::default(), 1, DeviceState::Fresh)?;
        let worker = machine.worker()?;
        let low = Watermarks::of(frames).low;
        Ok(Self { machine, worker, low, versions: vec![0; set_pages] })
    }

    fn reclaim(&mut self) {
        let engine = &self.machine.engine;
        if engine.status().free_frames <= self.low {
            engine.balance(&mut self.worker, || false);
        }
    }
}

impl Memory for EngineMemory {
    fn touch(&mut self, page: PageNo) -> Result<(), BenchError> {
        let version = &mut self.versions[page.index()];
        let touched = self.machine.touch(&mut self.worker, page, |content| {
            if *version == 0 {
                *version = stamp::begin(content, page);
            }
            stamp::read(content, page, *version, stamp::WORDS - 1)
        })?;
        if touched.missing_ns.is_some() {
            self.reclaim();
        }
        touched.result.map_err(BenchError::WrongData)
    }

    fn holds(&self, page: PageNo) -> bool {
        self.machine.engine.is_resident(page)
    }

    fn progress(&self) -> Result<Progress, BenchError> {
        let events = |event| self.machine.engine.stats().get(event);
        Ok(Progress {
            waits: events(Event::pgmajfault),
            refaults: events(Event::pswpin),
            soft_faults: events(Event::swap_cache_hit),
        })
    }
}
