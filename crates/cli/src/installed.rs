//! The other files of an installation.
//!
//! Owns: finding them.
//! Invariant: they come from beside the running executable, never from a search path: they speak to
//! each other in words of one build.
//! Not here: what they do.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

/// Serves places apart.
pub(crate) const SERVER: &str = "overspill-server";
/// Has a userfaultfd report forks.
pub(crate) const FORKS: &str = "overspill-forks";

#[derive(Debug, thiserror::Error)]
#[error("cannot find out where this program is: {0}")]
pub(crate) struct NoExecutable(#[from] io::Error);

/// The executable's directory, and `../lib/overspill` relative to it.
pub(crate) fn directories() -> Result<[PathBuf; 2], NoExecutable> {
    let executable = env::current_exe()?;
    let beside = executable.parent().unwrap_or(Path::new("/")).to_owned();
    let library = beside.parent().unwrap_or(Path::new("/")).join("lib/overspill");
    Ok([beside, library])
}

/// Where the program of this name is, or would be: few runs need it.
pub(crate) fn program(name: &str) -> Result<PathBuf, NoExecutable> {
    let [beside, library] = directories()?.map(|directory| directory.join(name));
    Ok(if library.is_file() && !beside.is_file() { library } else { beside })
}
