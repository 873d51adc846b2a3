//! One guest: its state, its messages, and what it is asked through.

pub(crate) mod agent;
pub(crate) mod events;
pub(crate) mod handles;
pub(crate) mod kept;
pub(crate) mod letters;
pub(crate) mod locked;
pub(crate) mod owned;
pub(crate) mod signal_faults;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod still;
pub(crate) mod task;
pub(crate) mod threads;
pub(crate) mod touched;
mod waiting;
pub(crate) mod witness;
