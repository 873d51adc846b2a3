//! How a guest comes in.
//!
//! Not here: attaching to it (`run`), forked children, which are guests before (`forks`).

use super::shared::Shared;
use crate::guest::handles::Attached;
use crate::guest::state::Guest;
use overspill_base::stats::Event;
use overspill_base::sync::Arc;
use overspill_wire::Descriptor;
use rustix::io::Errno;

impl Shared {
    /// Begins to page a process that was attached to: one that is new, or a forked child that has
    /// this number.
    ///
    /// # Errors
    /// Of epoll, and of the letters.
    pub(crate) fn add(
        &self,
        number: u64,
        attached: Attached,
        letters: Option<&[Descriptor; 2]>,
    ) -> Result<(), Errno> {
        let take_letters =
            |guest: &_| letters.map_or(Ok(()), |letters| self.take_letters(guest, letters));
        if let Some(child) = self.guest(number) {
            let Attached { source, handles, mover, needed } = attached;
            source.anchor().into_iter().for_each(|page| child.source.set_anchor(page));
            child.attached(handles, mover, &needed);
            take_letters(&child)?;
        } else {
            let (wakeup, front) = (self.wakeup.clone(), self.front.clone());
            let guest = Arc::new(Guest::new(number, attached, wakeup, front)?);
            take_letters(&guest)?;
            self.engine.stats().count(Event::processes);
            self.readers.listen(&guest)?;
            self.guests.lock().insert(number, guest);
        }
        self.survey.call();
        self.growth.call();
        self.call_care();
        Ok(())
    }
}
