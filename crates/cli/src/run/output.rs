//! Files named by options that are written when the run has ended.
//!
//! Invariants: they are opened before the program starts. A file keeps its content until there is
//! something to write; one that was created but not written is removed.

use crate::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// The file of an option.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    /// None for standard output.
    file: Option<File>,
    goes: bool,
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.goes {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl OutputFile {
    /// Opens or creates the file; `-` is standard output.
    ///
    /// # Errors
    /// [`Error::OutputFile`].
    pub(super) fn create(path: PathBuf) -> Result<Self, Error> {
        if path.as_os_str() == "-" {
            return Ok(Self { path, file: None, goes: false });
        }
        let mut options = File::options();
        let made = options.write(true).create_new(true).open(&path);
        let opened = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options.create_new(false).open(&path).map(|file| (file, false))
            }
            made => made.map(|file| (file, true)),
        };
        match opened {
            Ok((file, goes)) => Ok(Self { path, file: Some(file), goes }),
            Err(source) => Err(Error::OutputFile { path, source }),
        }
    }

    /// Calls `write` to fill the file.
    ///
    /// # Errors
    /// [`Error::OutputFile`].
    pub(super) fn write_with(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        self.goes = false;
        self.fill(write).map_err(|source| Error::OutputFile { path: self.path.clone(), source })
    }

    fn fill(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let Some(file) = &self.file else { return write(&mut io::stdout()) };
        // A device or a pipe has no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        let mut buffered = BufWriter::new(file);
        write(&mut buffered)?;
        buffered.flush()
    }
}
