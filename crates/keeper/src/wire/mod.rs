//! What front and keeper say to each other.

pub(crate) mod message;
pub(crate) mod places;
