//! Which way a run is paged: from outside where that can be, else from inside the program.
//!
//! Owns: what a keeper cannot do yet, and the words for why a run is without one.
//! Not here: what each way needs of the machine (`overspill_run::Ground`, `overspill::ways`).

use crate::args::{RunArgs, RunWay};
use crate::error::Error;
use crate::installed::{self, FORKS};
use overspill::doctor::{self, Finding};
use overspill::ways::Way;
use overspill_run::Ground;

/// The way of a run.
#[derive(Debug)]
pub(super) enum Chosen {
    /// By a keeper.
    Kept(Ground),
    /// By a pager in the program: this way, or the best; and why not by a keeper, unless it was
    /// asked for.
    Inside(Option<Way>, Option<String>),
}

/// Chooses the way that was asked for, or a keeper if there can be one.
///
/// # Errors
/// [`Error::NotKept`], [`Error::Ground`], [`Error::Obstacle`]: there cannot be the keeper that was
/// asked for. [`Error::NotGiven`]: without one there is no --give-back.
pub(super) fn choose(args: &RunArgs) -> Result<Chosen, Error> {
    match args.way {
        Some(RunWay::Inside(_)) if args.give_back => {
            Err(Error::NotGiven("leave --way out, or --give-back".to_owned()))
        }
        Some(RunWay::Inside(way)) => Ok(Chosen::Inside(way, None)),
        Some(RunWay::Keeper) => keeper_for(args).map(Chosen::Kept),
        Some(RunWay::KeeperCalls) => Ok(Chosen::Kept(Ground::find_calls()?)),
        Some(RunWay::KeeperTouches) => Ok(Chosen::Kept(Ground::find_touches()?)),
        Some(RunWay::KeeperShut) => Ok(Chosen::Kept(Ground::find_shut()?)),
        None => match keeper_for(args) {
            Ok(ground) => Ok(Chosen::Kept(ground)),
            Err(why) if args.give_back => Err(Error::NotGiven(why.to_string())),
            Err(why) => Ok(Chosen::Inside(None, Some(why.to_string()))),
        },
    }
}

fn keeper_for(args: &RunArgs) -> Result<Ground, Error> {
    let lacking = not_kept(args);
    if !lacking.is_empty() {
        return Err(Error::NotKept(lacking.join(", ")));
    }
    ground()
}

/// What a keeper needs.
///
/// # Errors
/// [`Error::Ground`], [`Error::Obstacle`], [`Error::Installed`].
pub(super) fn ground() -> Result<Ground, Error> {
    if let Some(Finding { what, detail, .. }) = doctor::obstacle_outside() {
        return Err(Error::Obstacle { what, detail });
    }
    Ok(Ground::find_any(installed::program(FORKS)?)?)
}

/// What was asked for that a keeper cannot do yet.
fn not_kept(args: &RunArgs) -> Vec<String> {
    let options = [
        (args.limit.get().is_some_and(|(_, is_each)| is_each), "--memory-each"),
        (args.no_children, "--no-children"),
        (args.history.is_some(), "--history"),
        (args.touches.is_some(), "--touches"),
    ];
    let options = options.into_iter().filter(|(is_given, _)| *is_given);
    options.map(|(_, name)| name.to_owned()).collect()
}
