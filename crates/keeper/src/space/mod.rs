//! The pages of all guests, as one space of the engine's.

mod calls;
mod fill;
pub(crate) mod guest_space;
mod move_out;
pub(crate) mod pieces;
