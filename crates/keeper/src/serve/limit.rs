//! The limit of a run, which can be changed while it goes on.
//!
//! Owns: how many frames the engine may use: what all guests may hold, less what they hold that
//! cannot leave, down to a part of it.
//! Not here: reclaiming what is over it (`engine`), how much cannot leave (`unevictable`).

use overspill_base::sync::{LockClass, Mutex};
use overspill_engine::Engine;

/// This part of a limit is left to what can leave, at least: below that a run would only swap.
pub const LEFT_PART: u64 = 4;

/// Changes of either are told to the engine with the lock held, so that the last one counts.
#[derive(Debug)]
pub(crate) struct Limit(Mutex<Pages>);

#[derive(Clone, Copy, Debug)]
struct Pages {
    /// What all guests may hold.
    limit: usize,
    /// What of that cannot leave.
    unevictable: usize,
}

impl Pages {
    fn frames(self) -> usize {
        self.limit.saturating_sub(self.unevictable).max(self.limit / LEFT_PART as usize)
    }
}

impl Limit {
    /// Begins with `pages`.
    pub(crate) fn new(pages: usize, engine: &Engine) -> Self {
        engine.set_limit(pages);
        Self(Mutex::new(LockClass::Limit, Pages { limit: pages, unevictable: 0 }))
    }

    pub(crate) fn set(&self, pages: usize, engine: &Engine) {
        self.change(engine, |now| now.limit = pages);
    }

    /// Notes how much cannot leave.
    pub(crate) fn set_unevictable(&self, pages: usize, engine: &Engine) {
        self.change(engine, |now| now.unevictable = pages);
    }

    fn change(&self, engine: &Engine, change: impl FnOnce(&mut Pages)) {
        let mut pages = self.0.lock();
        change(&mut pages);
        engine.set_limit(pages.frames());
    }

    /// What all guests may hold.
    pub(crate) fn pages(&self) -> usize {
        self.0.lock().limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_leave_is_deducted_down_to_a_part() {
        for (unevictable, frames) in [(10, 90), (30, 70), (75, 25), (500, 25), (0, 100)] {
            assert_eq!(Pages { limit: 100, unevictable }.frames(), frames);
        }
    }
}
