//! What a run leaves for people to look at: a page with plots, and the touches it recorded.
//!
//! Owns: the page about a run that has ended ([`run_html`]), those about runs that go on
//! ([`live_html`]), the plots and the frame that it shares with the
//! laboratory's pages ([`plot`], [`page`]), and the file of `--touches` ([`touches`]).
//! Invariants: a page opens without a network.
//! Not here: what the figures are, and where they come from.

mod environment;
mod live;
mod map;
mod memory_map;
pub mod page;
mod picture;
pub mod plot;
mod run;
mod samples;
pub mod touches;

pub use environment::Environment;
pub use live::{LiveRun, live_html, runs_html};
pub use map::{Arrival, ArrivalMap};
pub use memory_map::MemoryMap;
pub use run::{RunTimeline, run_html};
pub use samples::{RunSample, Samples};
