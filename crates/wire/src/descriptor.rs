//! Descriptors as parts of messages.
//!
//! Owns: how a value's descriptors get beside its bytes, and back: in the order of its fields.
//! Invariant: what is passed is a thread's own, between the begin and the end of one message. The
//! bytes have nothing of a descriptor, so no byte can name one.
//! Not here: sending them ([`Link`](crate::Link)).

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::RefCell;
use std::collections::VecDeque;

thread_local! {
    /// Of the message that is being written or read.
    static PASSED: RefCell<VecDeque<OwnedFd>> = const { RefCell::new(VecDeque::new()) };
}

/// Replaces what is passed; returns what was.
pub(crate) fn pass(descriptors: VecDeque<OwnedFd>) -> VecDeque<OwnedFd> {
    PASSED.replace(descriptors)
}

/// Writes a descriptor, for `#[serde(with = "descriptor")]`.
///
/// # Errors
/// There is no room for a copy.
pub fn serialize<S: Serializer>(descriptor: &impl AsFd, to: S) -> Result<S::Ok, S::Error> {
    let copy = fcntl_dupfd_cloexec(descriptor, 3).map_err(S::Error::custom)?;
    PASSED.with_borrow_mut(|passed| passed.push_back(copy));
    to.serialize_unit()
}

/// Reads a descriptor, for `#[serde(with = "descriptor")]`.
///
/// # Errors
/// None is left.
pub fn deserialize<'d, T: From<OwnedFd>, D: Deserializer<'d>>(from: D) -> Result<T, D::Error> {
    <()>::deserialize(from)?;
    let next = PASSED.with_borrow_mut(VecDeque::pop_front);
    next.map(T::from).ok_or_else(|| D::Error::custom("a descriptor is missing"))
}

/// A descriptor where there may be none, or several.
#[derive(Debug, Serialize, Deserialize)]
pub struct Descriptor(#[serde(with = "self")] OwnedFd);

impl From<OwnedFd> for Descriptor {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<Descriptor> for OwnedFd {
    fn from(Descriptor(descriptor): Descriptor) -> Self {
        descriptor
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
