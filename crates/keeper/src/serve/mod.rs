//! What a keeper does for its guests, and its threads.

mod arriving;
mod brake;
mod care;
mod fault;
mod forks;
pub(crate) mod leaving;
mod letters;
pub(crate) mod limit;
mod locked;
pub(crate) mod read;
pub(crate) mod readers;
pub(crate) mod shared;
pub(crate) mod shortage;
mod still;
mod survey;
mod unevictable;
