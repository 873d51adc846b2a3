//! A keeper over guests in ordinary memory.

mod episodes;
mod threads;
pub(crate) mod twin;
