//! What guests hold that counts and cannot leave.
//!
//! Owns: how much that is: what they hold, less the frames that the engine has for it. It is what
//! programs have written of private mappings of files (their data and relocations), what they lock,
//! and our agents' memory.
//! Invariants: what is about to be the engine's, as of a guest just attached to, is none of it:
//! the least counts that there was for a while. It is deducted from the limit ([`Limit`]), so
//! that many guests with little each stay within it.
//! Not here: guests that are not attached to: what they hold is their relatives', as a rule.
//! Rejected: paging such mappings: the kernel's userfaultfd takes anonymous memory and shmem alone,
//! and to put anonymous memory in their place shows in `/proc/PID/maps`, by which debuggers and
//! profilers go, and changes what MADV_DONTNEED brings back.
//!
//! [`Limit`]: crate::serve::limit::Limit

use crate::serve::shared::Shared;
use std::time::{Duration, Instant};

/// How long something has to last at least, and at most twice that.
const WINDOW: Duration = Duration::from_millis(250);
/// A change by a smaller part of the limit is none.
const STEPS: u64 = 256;

/// The least that there was in the last window and in this one.
#[derive(Debug)]
pub(crate) struct Unevictable {
    begun: Instant,
    before_pages: u64,
    least_pages: u64,
    /// What was deducted last.
    noted_pages: u64,
}

impl Unevictable {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), before_pages: 0, least_pages: u64::MAX, noted_pages: 0 }
    }

    /// Takes note of what there is now; returns what counts.
    fn note(&mut self, pages: u64) -> u64 {
        if self.begun.elapsed() >= WINDOW {
            self.begun = Instant::now();
            self.before_pages = std::mem::replace(&mut self.least_pages, u64::MAX);
        }
        self.least_pages = self.least_pages.min(pages);
        self.before_pages.min(self.least_pages)
    }
}

impl Shared {
    /// Deducts what cannot leave from the limit; `held_pages` is what all guests hold.
    pub(crate) fn deduct_unevictable(&self, unevictable: &mut Unevictable, held_pages: i64) {
        let frames = self.engine.used_frames() as i64;
        let pages = unevictable.note((held_pages - frames).max(0) as u64);
        let noted_pages = unevictable.noted_pages;
        let is_change = pages.abs_diff(noted_pages) * STEPS >= self.limit.pages() as u64;
        if pages == noted_pages || pages > 0 && !is_change {
            return;
        }
        unevictable.noted_pages = pages;
        self.engine.stats().are_unevictable(pages);
        self.limit.set_unevictable(pages as usize, &self.engine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_just_come_does_not_count() {
        let mut unevictable = Unevictable::new();
        let next_window = |unevictable: &mut Unevictable, pages| {
            unevictable.begun = Instant::now() - WINDOW;
            unevictable.note(pages)
        };
        assert_eq!(unevictable.note(500), 0);
        assert_eq!(next_window(&mut unevictable, 90), 90, "the least of both");
        // A guest is attached to, of which the engine has nothing yet.
        assert_eq!(unevictable.note(900), 90);
        assert_eq!(next_window(&mut unevictable, 130), 90);
        assert_eq!(next_window(&mut unevictable, 131), 130);
        assert_eq!(unevictable.note(20), 20, "what goes is gone at once");
    }
}
