//! The object that is loaded into the program.
//!
//! Owns: finding it, and passing it to the dynamic loader.
//! Not here: what it does.

use crate::installed::{NoExecutable, directories};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const FILE_NAME: &str = "liboverspill_preload.so";
const VARIABLE: &str = "LD_PRELOAD";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PreloadError {
    #[error(transparent)]
    NoExecutable(#[from] NoExecutable),
    #[error("{FILE_NAME} is neither in {} nor in {}: install it there", .0.display(), .1.display())]
    Missing(PathBuf, PathBuf),
    #[error(
        "{} cannot be preloaded because its path has a space or a colon: install Overspill \
         elsewhere",
        .0.display()
    )]
    Separator(PathBuf),
}

/// The preload object's path, in a form that the loader accepts.
#[derive(Debug)]
pub(super) struct Preload(PathBuf);

impl Preload {
    /// Finds it beside the executable or in `../lib/overspill` relative to it.
    pub(super) fn find() -> Result<Self, PreloadError> {
        let [beside, library] = directories()?;
        let found = [&beside, &library].map(|directory| directory.join(FILE_NAME));
        match found.into_iter().find(|path| path.is_file()) {
            Some(path) => Self::at(path),
            None => Err(PreloadError::Missing(beside, library)),
        }
    }

    fn at(path: PathBuf) -> Result<Self, PreloadError> {
        if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
            return Err(PreloadError::Separator(path));
        }
        Ok(Self(path))
    }

    /// Returns the environment variable that loads it, before all objects preloaded already.
    pub(super) fn variable(&self) -> (&'static str, OsString) {
        (VARIABLE, self.before(env::var_os(VARIABLE).as_deref()))
    }

    fn before(&self, others: Option<&OsStr>) -> OsString {
        let mut value = self.0.clone().into_os_string();
        if let Some(others) = others.filter(|others| !others.is_empty()) {
            value.push(":");
            value.push(others);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_before_other_preloads() {
        let preload = Preload::at("/lib/ours.so".into()).unwrap();
        assert_eq!(preload.before(None), "/lib/ours.so");
        assert_eq!(preload.before(Some("".as_ref())), "/lib/ours.so");
        assert_eq!(preload.before(Some("/a.so /b.so".as_ref())), "/lib/ours.so:/a.so /b.so");
    }

    #[test]
    fn separators_of_the_loader_are_refused() {
        for path in ["/my programs/ours.so", "/a:b/ours.so"] {
            let error = Preload::at(path.into()).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("elsewhere"), "{error}");
        }
    }
}
