//! Which memory of its caller a system call touches.
//!
//! Owns: a table of all system calls with the kind of each argument, from the kernel's headers
//! (`include/linux/syscalls.h`, `include/uapi`, Linux 6.18), and the walk from the arguments of a
//! call to the ranges that they lead to.
//! Invariants: a range may be longer than what the kernel touches, never shorter. The walk reads
//! the caller's memory as the kernel will: vectors, message headers, strings.
//! Not here: bringing pages in and holding them; how calls are caught.

#![forbid(unsafe_code)]

mod table;
mod types;
mod walk;

pub use table::{CALLS, call};
pub use types::{ARGS_MAX, Arg, Call};
pub use walk::{Memory, Span, walk};
