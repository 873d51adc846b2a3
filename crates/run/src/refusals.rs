//! Processes that could not be attached to.
//!
//! Owns: whether one is tried again, and which are outside the limit for good.
//! Invariants: a process that is registered with a userfaultfd of which nobody has told yet is the
//! child of one that is paged, and the message of its fork is on its way, or it pages itself. So it
//! is tried again when such a message has come, whosever child it is by now: its parent may have
//! ended. Without one it stands still for another try now and then only, as long as messages take.
//! Not here: attaching (`attaching`), and what is said (`front`).

use crate::attaching::AttachingError;
use crate::watch::Watched;
use overspill_base::Bytes;
use overspill_guest::AttachError;
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Tries to attach to a process.
const TRIES: u32 = 5;
/// How long it is left alone if no message of its fork has come.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// A process that was outside the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideProcess {
    /// Its number.
    pub pid: Pid,
    /// Its name when that was found out, printable.
    pub name: String,
    /// The most that it had of what the limit counts.
    pub memory_max: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    refused: HashMap<Pid, Refusal>,
    outside: HashMap<Pid, OutsideProcess>,
    /// Messages of forks that have come.
    messages: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    tries: u32,
    /// When it is tried next, or before that with the next message.
    next: Instant,
    messages: u64,
}

impl Refusals {
    /// Notes the message of a fork.
    pub(crate) fn note_message(&mut self) {
        self.messages += 1;
    }

    /// Forgets those that have ended, and notes what the others have.
    pub(crate) fn look(&mut self, family: &HashMap<Pid, Watched>) {
        self.refused.retain(|pid, _| family.contains_key(pid));
        for (pid, outside) in &mut self.outside {
            let memory = family.get(pid).map_or(Bytes(0), |now| Bytes::of_pages(now.pages));
            outside.memory_max = outside.memory_max.max(memory);
        }
    }

    /// Notes that a process, which is not tried again, is outside the limit.
    pub(crate) fn is_outside(&mut self, process: OutsideProcess) {
        let (now, messages) = (Instant::now(), self.messages);
        self.refused.insert(process.pid, Refusal { tries: TRIES, next: now, messages });
        self.outside.insert(process.pid, process);
    }

    /// All that were outside.
    pub(crate) fn outside(self) -> Vec<OutsideProcess> {
        self.outside.into_values().collect()
    }

    /// True if it may be tried to attach to this one.
    pub(crate) fn may_try(&self, pid: Pid) -> bool {
        self.refused.get(&pid).is_none_or(|refusal| {
            refusal.tries < TRIES
                && (refusal.messages < self.messages || refusal.next <= Instant::now())
        })
    }

    /// Notes that a process could not be attached to; true if it is not tried again.
    pub(crate) fn refuse(&mut self, pid: Pid, error: &AttachingError) -> bool {
        let now = Instant::now();
        let awaits_message = matches!(error, AttachingError::Attach(AttachError::NoFork { .. }));
        let wait = if awaits_message { MESSAGE_WAIT } else { Duration::ZERO };
        let messages = self.messages;
        let refusal = self.refused.entry(pid).or_insert(Refusal { tries: 0, next: now, messages });
        // Another's message says nothing of this one.
        if refusal.next <= now {
            refusal.tries += 1;
            refusal.next = now + wait;
        }
        refusal.messages = messages;
        refusal.tries == TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    fn of_another() -> AttachingError {
        AttachError::NoFork { pid: getpid() }.into()
    }

    #[test]
    fn who_is_registered_is_tried_again_with_each_message() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        assert!(refusals.may_try(pid));
        for _ in 0..3 * TRIES {
            assert!(!refusals.refuse(pid, &of_another()));
            assert!(!refusals.may_try(pid), "stands still for nothing");
            refusals.note_message();
            assert!(refusals.may_try(pid));
        }
    }

    #[test]
    fn who_pages_itself_is_tried_a_few_times() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        for n in 1..=TRIES {
            assert!(refusals.may_try(pid));
            assert_eq!(refusals.refuse(pid, &of_another()), n == TRIES);
            let refusal = refusals.refused.get_mut(&pid).unwrap();
            assert!(refusal.next > Instant::now());
            refusal.next = Instant::now();
        }
        refusals.note_message();
        assert!(!refusals.may_try(pid));
        refusals.look(&HashMap::new());
        assert!(refusals.may_try(pid));
    }

    #[test]
    fn who_is_outside_is_known_with_the_most_that_it_had() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        let outside =
            |pages| OutsideProcess { pid, name: "name".into(), memory_max: Bytes::of_pages(pages) };
        refusals.is_outside(outside(3));
        for pages in [2, 5, 4] {
            refusals.look(&HashMap::from([(pid, Watched { pages, parent: None })]));
        }
        refusals.look(&HashMap::new());
        assert_eq!(refusals.outside(), [outside(5)]);
    }

    #[test]
    fn other_refusals_are_tried_again_at_once() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        for n in 1..=TRIES {
            assert!(refusals.may_try(pid));
            let refused = refusals.refuse(pid, &AttachError::Gone { pid }.into());
            assert_eq!(refused, n == TRIES);
        }
        assert!(!refusals.may_try(pid));
    }
}
