//! A keeper over guests in ordinary memory.

mod episode;
mod episodes;
mod letters;
mod pairs;
mod pausing;
mod readers;
mod threads;
pub(crate) mod twin;

pub(crate) use pausing::has_paused;
