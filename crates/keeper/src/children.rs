//! Children that guests fork.
//!
//! Owns: their userfaultfds, which the kernel gives to the keeper before they run.
//! Invariants: a forked child's missing pages never read as zeros: its userfaultfd is held until
//! its memory is no more. Its messages are read, because a child that changes its memory waits for
//! that as one that misses a page does. A child that touches a page that is out is ended by SIGBUS.
//! Not here: bringing pages to children: they are not paged yet. Most execute another program
//! before they miss one.
//! Rejected: killing it: a message has no number of a process but in that process's own namespace.

use crate::guest::Guest;
use crate::keeper::Shared;
use overspill_base::sync::{LockClass, Mutex};
use overspill_guest::Vpn;
use overspill_guest::userfault::{GuestUserfault, Message, Refusal, Userfault};

/// Most messages of a child that are read at a time, so that one alone is not all that is done.
const MESSAGES_MAX: usize = 64;

/// Of a child it is only asked whether its memory is there.
const NO_ANCHOR: Vpn = Vpn(0);

/// Forked children.
#[derive(Debug)]
pub(crate) struct Children(Mutex<Vec<Child>>);

#[derive(Debug)]
struct Child {
    /// Of the guest that forked.
    parent: String,
    userfault: GuestUserfault,
}

impl Default for Children {
    fn default() -> Self {
        Self(Mutex::new(LockClass::Control, Vec::new()))
    }
}

impl Children {
    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Shared {
    /// Takes over what `guest` has forked.
    pub(crate) fn take_children(&self, guest: &Guest) {
        let new = std::mem::take(&mut guest.hold().children);
        let abilities = guest.userfault.abilities();
        let child = |fd| Child {
            parent: guest.name.clone(),
            userfault: GuestUserfault::agreed(fd, abilities, NO_ANCHOR),
        };
        self.children.0.lock().extend(new.into_iter().map(child));
    }

    /// Reads what children say, and forgets those whose memory is no more.
    pub(crate) fn care_for_children(&self) {
        let mut children = std::mem::take(&mut *self.children.0.lock());
        let grandchildren: Vec<Child> =
            children.iter().flat_map(|child| self.read_child(child)).collect();
        children.retain(|child| child.userfault.look(&Vpn(0).run(1)) != Err(Refusal::Gone));
        self.children.0.lock().extend(children.into_iter().chain(grandchildren));
    }

    fn read_child(&self, child: &Child) -> Vec<Child> {
        let (mut forked, abilities) = (Vec::new(), child.userfault.abilities());
        for _ in 0..MESSAGES_MAX {
            match child.userfault.read() {
                Ok(Some(Message::Fault(fault))) => self.end_child(child, fault.at),
                Ok(Some(Message::Fork(fd))) => {
                    let userfault = GuestUserfault::agreed(fd, abilities, NO_ANCHOR);
                    forked.push(Child { parent: child.parent.clone(), userfault });
                }
                Ok(Some(Message::Event(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        forked
    }

    fn end_child(&self, child: &Child, at: Vpn) {
        let line = format!(
            "a child of {} is ended: it misses a page, and children are not paged with --way \
             keeper yet",
            child.parent
        );
        self.space.report("a child", line);
        // If it cannot be yet, the child touches it again, and so asks again.
        let _ = child.userfault.poison(at);
        child.userfault.wake(&at.run(1));
    }
}
