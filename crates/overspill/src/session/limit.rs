//! The limit of a run, which can be changed while it goes on.
//!
//! Owns: which limits can be set.
//! Invariants: a limit that is refused changes nothing; one that is set is kept to from the next
//! frame that a process leases, and what is in memory above it leaves within some rounds of the
//! auditor ([`audit`](super::audit)).
//! Not here: who gives frames back ([`budget`](super::budget)).

use super::Session;
use crate::builder::check_limit;
use crate::error::Error;
use overspill_base::Bytes;
use overspill_base::sync::Arc;

/// Times its limit that a run can be given later, if it was not said how much.
const TIMES: u64 = 4;

/// The highest limit that a run is prepared for, on a machine with so much memory, if none was
/// named. What it is prepared for costs address space, and four bytes for at least 16 pages.
pub fn usual_most(memory: Bytes, machine: Option<Bytes>) -> Bytes {
    let machine = machine.unwrap_or(memory).max(memory);
    Bytes(memory.0.saturating_mul(TIMES).min(machine.0))
}

/// The limit of a run.
#[derive(Clone, Debug)]
pub struct RunLimit {
    session: Arc<Session>,
}

impl RunLimit {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// What all processes together may have now, or each process for itself.
    pub fn get(&self) -> Bytes {
        let settings = &self.session.settings;
        let now = self.session.book().limit();
        // What it was at first need not be whole pages.
        match settings.memory_each || now == settings.frames() {
            true => Bytes(settings.memory_bytes),
            false => Bytes::of_pages(now as u64),
        }
    }

    /// The most that it can become.
    pub fn most(&self) -> Bytes {
        Bytes(self.session.settings.memory_bytes_max)
    }

    /// Changes it. Does not wait until the processes keep to it.
    ///
    /// # Errors
    /// [`Error::LimitTooSmall`], [`Error::LimitAboveMost`], [`Error::LimitOfEach`].
    pub fn set(&self, memory: Bytes) -> Result<(), Error> {
        check_limit(memory)?;
        if self.session.settings.memory_each {
            return Err(Error::LimitOfEach);
        }
        if memory > self.most() {
            return Err(Error::LimitAboveMost(memory, self.most()));
        }
        self.session.book().set_limit(memory.pages_floor() as usize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;

    const MIB: u64 = 1 << 20;

    fn limit_of(settings: Settings) -> RunLimit {
        RunLimit::new(Arc::new(Session::create(settings).unwrap()))
    }

    #[test]
    fn a_run_is_prepared_for_four_times_its_limit_but_not_for_more_than_there_is() {
        let most = |memory, machine: Option<u64>| {
            usual_most(Bytes(memory * MIB), machine.map(|m| Bytes(m * MIB))).0 / MIB
        };
        assert_eq!(most(64, Some(1000)), 256);
        assert_eq!(most(600, Some(1000)), 1000);
        assert_eq!(most(2000, Some(1000)), 2000);
        assert_eq!(most(64, None), 64);
    }

    #[test]
    fn limits_that_cannot_be_are_refused_and_change_nothing() {
        let settings = Settings { memory_bytes_max: 64 * MIB, ..Settings::of_a_test() };
        let limit = limit_of(settings.clone());
        assert_eq!(limit.get(), Bytes(16 * MIB));
        assert!(matches!(limit.set(Bytes(MIB)), Err(Error::LimitTooSmall(..))));
        assert!(matches!(limit.set(Bytes(65 * MIB)), Err(Error::LimitAboveMost(..))));
        assert_eq!(limit.get(), Bytes(16 * MIB));
        limit.set(Bytes(64 * MIB)).unwrap();
        assert_eq!(limit.get(), Bytes(64 * MIB));
        let each = limit_of(Settings { memory_each: true, ..settings });
        assert!(matches!(each.set(Bytes(16 * MIB)), Err(Error::LimitOfEach)));
        assert_eq!(each.get(), Bytes(16 * MIB));
    }

    /// What a lower limit leaves no room for cannot be leased, and can again under a higher one.
    #[test]
    fn frames_above_the_limit_are_not_leased() {
        let settings = Settings { memory_bytes_max: 64 * MIB, ..Settings::of_a_test() };
        let limit = limit_of(settings);
        let session = limit.session.clone();
        let frames = session.frames_of(overspill_area::MemberNo(0));
        let all = |frames: &dyn overspill_engine::FrameBudget| {
            std::iter::repeat_with(|| frames.lease(1 << 20, 1 << 20)).take(100).sum::<usize>()
        };
        assert_eq!(all(&*frames), 4096);
        limit.set(Bytes(32 * MIB)).unwrap();
        assert_eq!(all(&*frames), 0, "what is reserved is changed by the auditor");
        crate::session::audit::settle_once(&session);
        assert_eq!(all(&*frames), 4096);
        limit.set(Bytes(8 * MIB)).unwrap();
        crate::session::audit::settle_once(&session);
        assert_eq!(frames.give_back(8192), 8192 - 64, "it keeps its floor");
        assert_eq!(all(&*frames), 2048 - 64);
    }
}
