//! What a keeper needs of its front.
//!
//! Not here: how it is asked (`process`), what it does (`run`).

use crate::parts::{Birth, SourceParts};

/// What a keeper needs of its front: what takes rights over guests, that it does not have.
pub trait Front: Send + Sync + std::fmt::Debug {
    /// Has all threads of a guest told to stop soon. Those in the kernel stop when they come out.
    fn hold(&self, guest: u64);

    /// As [`hold`](Self::hold), and returns when they are told.
    fn freeze(&self, guest: u64);

    /// As [`hold`](Self::hold), and returns when they have stopped; false if they do not soon.
    fn stand_still(&self, guest: u64) -> bool;

    /// Lets them go.
    fn release(&self, guest: u64);

    /// A guest has forked: this tells of its child, which has this number when it is attached to.
    /// If it was fetched, `birth` are its parent's number and the fork's.
    fn forked(&self, child: u64, source: SourceParts, birth: Option<(u64, u64)>);

    /// A guest has made a child: what tells of it is to be fetched.
    fn fetch(&self, birth: Birth);

    /// A guest is about to filter its calls, and waits to be let go for that.
    fn wants_out(&self, guest: u64);

    /// A forked child has ended, or executes another program, before it was attached to.
    fn gone(&self, child: u64);
}
