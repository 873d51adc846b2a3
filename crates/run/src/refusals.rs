//! Processes that could not be attached to.
//!
//! Owns: whether one is tried again, and which are outside the limit, and why.
//! Invariants: a process that has memory of ours of which nobody has told yet is the child of one
//! that is paged, and the message of its fork is on its way, or it pages itself. So it is tried
//! again when such a message has come, whosever child it is by now: its parent may have ended.
//! Without one it stands still for another try now and then only, as long as messages take; after
//! that it is said to be outside, and still tried when a message comes.
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
/// And to one of whose fork a message may be on its way: the keeper may be busy with faults.
const MESSAGE_TRIES: u32 = 20;
/// How long such a one is left alone if no message has come.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);
/// From which try on it counts as outside if it ends before that was said.
const NOTABLE_TRIES: u32 = 2;

/// A process that was outside the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideProcess {
    /// Its number.
    pub pid: Pid,
    /// Its name when that was found out, printable.
    pub name: String,
    /// Why it was outside.
    pub why: String,
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
    tries_max: u32,
    /// When it is tried next, or before that with the next message.
    next: Instant,
    messages: u64,
}

impl Refusal {
    fn is_final(&self) -> bool {
        self.tries >= self.tries_max
    }

    fn awaits_message(&self) -> bool {
        self.tries_max == MESSAGE_TRIES
    }
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

    /// Notes that a process is outside the limit for good.
    pub(crate) fn is_outside(&mut self, process: OutsideProcess) {
        let (next, messages) = (Instant::now(), self.messages);
        let refusal = Refusal { tries: TRIES, tries_max: TRIES, next, messages };
        self.refused.insert(process.pid, refusal);
        self.outside.insert(process.pid, process);
    }

    /// Notes that a process is inside the limit by now.
    pub(crate) fn is_inside(&mut self, pid: Pid) {
        self.refused.remove(&pid);
        self.outside.remove(&pid);
    }

    /// All that were outside.
    pub(crate) fn outside(self) -> Vec<OutsideProcess> {
        self.outside.into_values().collect()
    }

    /// True if it may be tried to attach to this one.
    pub(crate) fn may_try(&self, pid: Pid) -> bool {
        self.refused.get(&pid).is_none_or(|refusal| {
            let (has_come, is_time) =
                (refusal.messages < self.messages, refusal.next <= Instant::now());
            match refusal.is_final() {
                true => refusal.awaits_message() && has_come && is_time,
                false => has_come || is_time,
            }
        })
    }

    /// Notes that a process could not be attached to; true if that is to be said, as it is not
    /// tried again without a message.
    pub(crate) fn refuse(&mut self, process: OutsideProcess, error: &AttachingError) -> bool {
        let (pid, now, messages) = (process.pid, Instant::now(), self.messages);
        let awaits_message = awaits_message(error);
        let tries_max = if awaits_message { MESSAGE_TRIES } else { TRIES };
        let wait = if awaits_message { MESSAGE_WAIT } else { Duration::ZERO };
        let first = Refusal { tries: 0, tries_max, next: now, messages };
        let refusal = self.refused.entry(pid).or_insert(first);
        let was_final = refusal.is_final();
        (refusal.tries_max, refusal.messages) = (tries_max, messages);
        // Another's message says nothing of this one.
        if refusal.next <= now {
            refusal.tries += 1;
            refusal.next = now + wait;
        }
        let is_final = refusal.is_final();
        if is_final || awaits_message && refusal.tries >= NOTABLE_TRIES {
            self.outside.insert(pid, process);
        }
        is_final && !was_final
    }
}

/// True of a process that may be the child of a guest, of which no message has come yet.
fn awaits_message(error: &AttachingError) -> bool {
    matches!(error, AttachingError::Attach(AttachError::NoFork { .. }) | AttachingError::Untold(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    fn of_another() -> AttachingError {
        AttachError::NoFork { pid: getpid() }.into()
    }

    fn process(pages: u64) -> OutsideProcess {
        let (name, why) = ("name".into(), "why".into());
        OutsideProcess { pid: getpid(), name, why, memory_max: Bytes::of_pages(pages) }
    }

    fn next_is_now(refusals: &mut Refusals) {
        let refusal = refusals.refused.get_mut(&getpid()).unwrap();
        assert!(refusal.next > Instant::now());
        refusal.next = Instant::now();
    }

    #[test]
    fn who_is_registered_is_tried_again_with_each_message() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        assert!(refusals.may_try(pid));
        for _ in 0..3 * MESSAGE_TRIES {
            assert!(!refusals.refuse(process(1), &of_another()));
            assert!(!refusals.may_try(pid), "stands still for nothing");
            refusals.note_message();
            assert!(refusals.may_try(pid));
        }
        assert_eq!(refusals.outside(), []);
    }

    #[test]
    fn who_pages_itself_is_tried_a_few_times_and_then_with_messages() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        for n in 1..=MESSAGE_TRIES {
            assert!(refusals.may_try(pid));
            let is_last = n == MESSAGE_TRIES;
            assert_eq!(refusals.refuse(process(1), &of_another()), is_last);
            next_is_now(&mut refusals);
        }
        assert!(!refusals.may_try(pid));
        // It was a child whose message came late.
        refusals.note_message();
        assert!(refusals.may_try(pid));
        assert!(!refusals.refuse(process(1), &of_another()), "it was said");
        assert!(!refusals.may_try(pid));
        next_is_now(&mut refusals);
        refusals.note_message();
        assert!(refusals.may_try(pid));
        refusals.is_inside(pid);
        assert_eq!(refusals.outside(), []);
    }

    #[test]
    fn who_ends_before_it_is_said_was_outside() {
        for (tries, is_named) in [(NOTABLE_TRIES - 1, false), (NOTABLE_TRIES, true)] {
            let mut refusals = Refusals::default();
            for _ in 0..tries {
                assert!(!refusals.refuse(process(7), &of_another()));
                next_is_now(&mut refusals);
            }
            refusals.look(&HashMap::new());
            assert_eq!(!refusals.outside().is_empty(), is_named);
        }
    }

    #[test]
    fn who_is_outside_is_known_with_the_most_that_it_had() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        refusals.is_outside(process(3));
        for pages in [2, 5, 4] {
            refusals.look(&HashMap::from([(pid, Watched { pages, parent: None })]));
        }
        refusals.note_message();
        assert!(!refusals.may_try(pid));
        refusals.look(&HashMap::new());
        assert_eq!(refusals.outside(), [process(5)]);
    }

    #[test]
    fn other_refusals_are_tried_again_at_once() {
        let (pid, mut refusals) = (getpid(), Refusals::default());
        for n in 1..=TRIES {
            assert!(refusals.may_try(pid));
            let refused = refusals.refuse(process(1), &AttachError::Gone { pid }.into());
            assert_eq!(refused, n == TRIES);
        }
        refusals.note_message();
        assert!(!refusals.may_try(pid));
    }
}
