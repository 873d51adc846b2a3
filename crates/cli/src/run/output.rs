//! Files named by options that are written when the run has ended.
//!
//! Invariants: they are opened before the program starts, without waiting for anybody. A file keeps
//! its content until there is something to write; one that was created but not written is removed.
//! What is created is its user's alone: it tells of the program's arguments. No other user's link
//! is followed, whatever `fs.protected_symlinks` says: it may lead to any file of this user's.

use crate::error::Error;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Who may read and write what is created.
const OWNERS_ALONE: u32 = 0o600;

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
        match open(&path) {
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

/// Opens or creates a file; true if it was created.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.write(true).mode(OWNERS_ALONE).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let made = options.clone().create_new(true).open(path);
    let (file, is_new) = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check_link(path)?;
            (options.open(path).map_err(explained)?, false)
        }
        made => (made?, true),
    };
    fcntl_setfl(&file, OFlags::empty())?;
    Ok((file, is_new))
}

/// # Errors
/// It is a link of another user's, who is not root.
fn check_link(path: &Path) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    if found.is_symlink() && ![0, geteuid().as_raw()].contains(&found.uid()) {
        return Err(io::Error::other(format!("it is a link of user {}", found.uid())));
    }
    Ok(())
}

fn explained(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other("it is a pipe that nobody reads"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, FileType, Mode, Uid, chownat, mknodat};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_created_is_its_users_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stats.json");
        let output = OutputFile::create(path.clone()).unwrap();
        output.write_with(|to| to.write_all(b"--password=x")).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, OWNERS_ALONE);
        // One that is there keeps its rights.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        OutputFile::create(path.clone()).unwrap().write_with(|_| Ok(())).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn nobody_waits_for_who_reads_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let refused = OutputFile::create(path.clone()).unwrap_err().to_string();
        assert!(refused.contains("nobody reads"), "{refused}");
        let _reader = File::options().read(true).write(true).open(&path).unwrap();
        OutputFile::create(path).unwrap().write_with(|to| to.write_all(b"{}")).unwrap();
    }

    #[test]
    fn no_other_users_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|name| directory.path().join(name));
        symlink(&target, &link).unwrap();
        std::fs::write(&target, "").unwrap();
        OutputFile::create(link.clone()).unwrap().write_with(|_| Ok(())).unwrap();
        let other = Uid::from_raw(12_345);
        if chownat(CWD, &link, Some(other), None, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return eprintln!("not tested: only root gives a link away");
        }
        let refused = OutputFile::create(link).unwrap_err().to_string();
        assert!(refused.contains("a link of user 12345"), "{refused}");
    }
}
