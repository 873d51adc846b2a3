//! What a run leaves for people to look at: a page with plots, and the touches it recorded.
//!
//! Owns: the page about a run ([`run_html`]), the plots and the frame that it shares with the
//! laboratory's pages ([`plot`], [`page`]), and the file of `--touches` ([`touches`]).
//! Invariants: a page opens without a network.
//! Not here: what the figures are, and where they come from.

mod environment;
mod map;
pub mod page;
pub mod plot;
mod run;
pub mod touches;

pub use environment::Environment;
pub use map::{Arrival, ArrivalMap};
pub use run::{RunSample, RunTimeline, run_html};
