//! How touches of what is out are noticed.
//!
//! Owns: the choice, and what this machine lacks for it.
//! Not here: trying it (`overspill_run::Ground`).

use crate::args::RunWay;
use crate::error::Error;
use crate::installed::{self, FORKS};
use overspill::doctor::{self, Finding};
use overspill_run::Ground;

/// Finds what the way needs that was asked for, or the first that can be had.
///
/// # Errors
/// [`Error::Ground`], [`Error::Way`], [`Error::Obstacle`], [`Error::Installed`].
pub(super) fn choose(way: Option<RunWay>) -> Result<Ground, Error> {
    if let Some(Finding { what, detail, .. }) = doctor::obstacle() {
        return Err(Error::Obstacle { what, detail });
    }
    let forks = installed::program(FORKS)?;
    match way {
        None => Ok(Ground::find_any(forks)?),
        Some(RunWay(way)) => Ground::find(way, forks).map_err(Error::Way),
    }
}
