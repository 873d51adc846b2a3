//! The command line as shells and `man` read it, made from its definition.

use crate::args::{CompletionsArgs, ManArgs, definition};
use crate::error::Error;
use std::io::{Write, stdout};

/// Prints a shell's completions.
///
/// # Errors
/// [`Error::Output`].
pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Error> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "overspill", &mut text);
    stdout().write_all(&text)?;
    Ok(0)
}

/// Writes a manual page for each command.
///
/// # Errors
/// [`Error::Report`].
pub(crate) fn man(args: &ManArgs) -> Result<u8, Error> {
    let path = &args.directory;
    clap_mangen::generate_to(definition(), path)
        .map_err(|source| Error::Report { path: path.clone(), source })?;
    Ok(0)
}
