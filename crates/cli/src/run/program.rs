//! The program to run: found as execvp finds it, and examined before it starts.
//!
//! Owns: the search, following `#!` to the program that is really loaded, and what is refused
//! there.
//! Invariant: a program that is started can be paged. What it executes later is seen then.
//! Not here: file formats ([`super::format`], [`super::elf`]), starting ([`super::process`]).

use super::elf::{self, Refusal};
use super::format::{Format, HEAD_BYTES};
use crate::status::{FAILED, NOT_EXECUTABLE, NOT_FOUND};
use rustix::fs::{Access, AtFlags, CWD, FileType, accessat};
use rustix::io::Errno;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where execvp searches without `$PATH`.
const PATH_DEFAULT: &str = "/bin:/usr/bin";
/// Program by which execvp runs a file of unknown format.
const SHELL: &str = "/bin/sh";
/// Depth of scripts run by scripts that the kernel follows.
const SCRIPTS_MAX: usize = 5;

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{name}: no such program: {hint}")]
    NotFound { name: String, hint: String },
    #[error("{path} cannot be executed: {errno}; it must be a program and you must have the right")]
    NotExecutable { path: String, errno: Errno },
    #[error("{0} is neither an ELF program nor a script: there is nothing to execute")]
    UnknownFormat(String),
    #[error("{path} cannot be read: {source}; overspill must see whether it can be paged")]
    Unreadable { path: String, source: io::Error },
    #[error("{path} {refusal}")]
    Refused { path: String, refusal: Refusal },
    #[error("{path} did not start: {source}")]
    NotStarted { path: String, source: io::Error },
}

impl ProgramError {
    /// Returns the exit status for the error.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => NOT_FOUND,
            Self::NotExecutable { .. } | Self::UnknownFormat(_) | Self::NotStarted { .. } => {
                NOT_EXECUTABLE
            }
            Self::Unreadable { .. } => FAILED,
            Self::Refused { refusal, .. } => refusal.status(),
        }
    }
}

/// What a program is called, of its words.
pub(crate) fn name_of(command: &[String]) -> &str {
    let program = command.first().map_or("", String::as_str);
    Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or(program)
}

/// A program that can be started and paged.
#[derive(Debug)]
pub(super) struct Program {
    /// The file that is executed.
    pub(super) path: PathBuf,
    /// The name that the user wrote, which the program sees as its own.
    pub(super) name: OsString,
    pub(super) args: Vec<OsString>,
}

impl Program {
    /// Returns its name and arguments, as far as they are text.
    pub(super) fn words(&self) -> Vec<String> {
        let words = std::iter::once(&self.name).chain(&self.args);
        words.map(|word| word.display().to_string()).collect()
    }

    /// Finds the program that `command` starts with.
    ///
    /// # Errors
    /// See [`ProgramError`].
    pub(super) fn find(command: Vec<OsString>) -> Result<Self, ProgramError> {
        let mut words = command.into_iter();
        let name = words.next().unwrap_or_default();
        let path = search(&name, env::var_os("PATH"))?;
        inspect(&path)?;
        Ok(Self { path, name, args: words.collect() })
    }
}

/// Returns the file that execvp would execute.
fn search(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, ProgramError> {
    let mut forbidden = None;
    for candidate in candidates(name, path) {
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => forbidden = forbidden.or(Some((candidate, errno))),
        }
    }
    Err(match forbidden {
        None => {
            let name = name.display().to_string();
            let hint = hint(&name);
            ProgramError::NotFound { name, hint }
        }
        Some((path, errno)) => {
            ProgramError::NotExecutable { path: path.display().to_string(), errno }
        }
    })
}

/// What may have been meant by a name that no program has.
fn hint(name: &str) -> String {
    let variable = name.split_once('=').filter(|(variable, _)| !variable.contains('/'));
    match name.split_whitespace().next() {
        Some(first) if first != name && is_there(OsStr::new(first)) => {
            format!("{first} and what follows are words of their own")
        }
        None => "give its name after --".to_owned(),
        _ if variable.is_some() => format!("to set a variable write env {name} before the program"),
        _ if overspill::parse_bytes(name).is_ok() => format!("a limit is --memory {name}"),
        _ => "check its name and $PATH".to_owned(),
    }
}

/// True if `name` is that of a program here.
pub(crate) fn is_there(name: &OsStr) -> bool {
    search(name, env::var_os("PATH")).is_ok()
}

/// Returns the files that `name` may mean, in order. A name with a slash is a path itself.
fn candidates(name: &OsStr, path: Option<OsString>) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_bytes().contains(&b'/') {
        return vec![name.into()];
    }
    let path = path.unwrap_or_else(|| PATH_DEFAULT.into());
    // An empty entry is the current directory; the dot keeps the result from being searched again.
    let directory =
        |entry: PathBuf| if entry.as_os_str().is_empty() { PathBuf::from(".") } else { entry };
    env::split_paths(&path).map(|entry| directory(entry).join(name)).collect()
}

fn executable(path: &Path) -> Result<(), Errno> {
    let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode))?;
    match kind {
        FileType::Directory => Err(Errno::ISDIR),
        FileType::RegularFile => accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS),
        _ => Err(Errno::ACCESS),
    }
}

/// Follows scripts to the program that is loaded, and checks that it can be paged.
fn inspect(path: &Path) -> Result<(), ProgramError> {
    let mut path = path.to_owned();
    let mut name = path.display().to_string();
    for _ in 0..=SCRIPTS_MAX {
        let Some(interpreter) = inspect_file(&path, &name)? else { return Ok(()) };
        name = format!("{} (interpreter of {name})", interpreter.display());
        executable(&interpreter)
            .map_err(|errno| ProgramError::NotExecutable { path: name.clone(), errno })?;
        path = interpreter;
    }
    Err(ProgramError::NotExecutable { path: name, errno: Errno::LOOP })
}

/// Checks one file; if it is a script, returns its interpreter.
fn inspect_file(path: &Path, name: &str) -> Result<Option<PathBuf>, ProgramError> {
    let (file, head) =
        open(path).map_err(|source| ProgramError::Unreadable { path: name.to_owned(), source })?;
    match Format::of(&head) {
        Format::Elf => elf::check(file)
            .map(|()| None)
            .map_err(|refusal| ProgramError::Refused { path: name.to_owned(), refusal }),
        Format::Script(interpreter) => Ok(Some(interpreter)),
        Format::Text => Ok(Some(SHELL.into())),
        Format::Unknown => Err(ProgramError::UnknownFormat(name.to_owned())),
    }
}

fn open(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok((file, head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_said_of_a_name_that_is_none() {
        let table = [
            ("sort", "check its name"),
            ("ls -d /tmp", "ls and what follows are words"),
            ("FOO=1", "env FOO=1"),
            ("512M", "--memory 512M"),
            ("", "after --"),
            ("/a=b", "check its name"),
        ];
        for (name, part) in table {
            assert!(hint(name).contains(part), "{name}: {}", hint(name));
        }
    }

    #[test]
    fn names_are_looked_for_as_execvp_does() {
        let places = |name: &str, path: Option<&str>| {
            let found = candidates(name.as_ref(), path.map(OsString::from));
            found.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(places("ls", Some("/a:/b")), "/a/ls /b/ls");
        assert_eq!(places("ls", Some(":/b")), "./ls /b/ls");
        assert_eq!(places("ls", None), "/bin/ls /usr/bin/ls");
        assert_eq!(places("./ls", Some("/a")), "./ls");
        assert_eq!(places("", Some("/a")), "");
    }

    #[test]
    fn directories_and_missing_places_are_told_apart() {
        let directory = |path: &str| search("proc".as_ref(), Some(path.into())).unwrap_err();
        assert_eq!(directory("/").status(), NOT_EXECUTABLE);
        assert_eq!(directory("/nowhere").status(), NOT_FOUND);
        let found = search("sh".as_ref(), Some("/etc/passwd:/nowhere:/bin".into()));
        assert_eq!(found.unwrap(), Path::new("/bin/sh"));
    }
}
