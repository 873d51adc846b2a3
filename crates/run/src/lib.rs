//! A run: its program is watched from outside, and paged when memory runs short.
//!
//! Owns: the front ([`Front`]), which starts the program untouched, watches what its processes
//! hold, and attaches to them when the limit comes into sight.
//! Invariants: one thread traces, the front's. Until the limit comes into sight nothing is done to
//! any process of the run.
//! Not here: paging (`keeper`), how a process is attached to (`guest`).

mod attaching;
mod front;
mod holding;
mod watch;

pub use attaching::AttachingError;
pub use front::{Front, RunError, RunParts};
