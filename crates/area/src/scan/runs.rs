//! Runs: how a rotational device is written, in order for as long as that goes.
//!
//! Not here: solid-state devices, whose CPUs have clusters of their own.

use super::Visit;

impl Visit<'_> {
    /// A rotational device is written in runs of a cluster's length, as long as there are any.
    pub(super) fn continue_run(&mut self) {
        let size = self.area.tuning().cluster_slots;
        if self.scan().run_left > 0 {
            self.scan().run_left -= 1;
            return;
        }
        self.scan().run_left = size - 1;
        if self.scan().free < size {
            return;
        }
        let (lowest, highest) = (self.scan().lowest, self.scan().highest);
        if let Some(start) = self.unlocked(|visit| visit.find_run(lowest, highest, size)) {
            self.scan().base = start;
        }
    }

    fn find_run(&self, lowest: u32, highest: u32, size: u32) -> Option<u32> {
        let mut run = 0;
        for slot in lowest..=highest {
            run = if self.is_free(slot) { run + 1 } else { 0 };
            if run == size {
                return Some(slot + 1 - size);
            }
        }
        None
    }
}
