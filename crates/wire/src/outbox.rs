//! Messages of someone who has no time to wait.
//!
//! Invariant: they go in their order. Those for which the other end has no room are kept.
//! Not here: the socket (`link`).

use crate::link::{Link, LinkError};
use crate::message::{Encoded, encode};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Instant;

/// Messages that are to be sent over one link.
#[derive(Debug, Default)]
pub struct Outbox(VecDeque<Encoded>);

impl Outbox {
    /// Sends a message, after those that are kept, or keeps it.
    ///
    /// # Errors
    /// [`LinkError`], but not for want of room.
    pub fn send(&mut self, link: &Link, message: &impl Serialize) -> Result<(), LinkError> {
        self.0.push_back(encode(message)?);
        self.flush(link)
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// [`LinkError`], but not for want of room.
    pub fn flush(&mut self, link: &Link) -> Result<(), LinkError> {
        while let Some(next) = self.0.front() {
            if !link.send_if_room(next)? {
                break;
            }
            self.0.pop_front();
        }
        Ok(())
    }

    /// Sends all; waits for room.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Silent`] if there is none before the deadline.
    pub fn flush_until(&mut self, link: &Link, deadline: Instant) -> Result<(), LinkError> {
        loop {
            self.flush(link)?;
            if self.0.is_empty() {
                return Ok(());
            }
            link.wait_for_room(deadline)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_has_no_room_is_kept_in_its_order() {
        let (link, other) = Link::pair().unwrap();
        let (other, mut outbox) = (Link::from(other), Outbox::default());
        (0..10_000_u32).for_each(|n| outbox.send(&link, &n).unwrap());
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(outbox.flush_until(&link, soon), Err(LinkError::Silent));
        for n in 0..10_000_u32 {
            assert_eq!(other.receive_now(), Ok(n));
            outbox.flush(&link).unwrap();
        }
        assert_eq!(outbox.flush_until(&link, soon), Ok(()));
        drop(other);
        assert_eq!(outbox.send(&link, &1), Err(LinkError::Ended));
    }
}
