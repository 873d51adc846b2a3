//! Where runs are found.
//!
//! Owns: the directories with their sockets. A run has its socket in the first of these that can
//! be: `overspill` in `$XDG_RUNTIME_DIR`; `/run/overspill`, if it is root's; `/tmp/overspill-UID`.
//! Invariants: a directory counts only if it is its user's and nobody else may enter it, as far as
//! what was opened says, and not what has the name. So who reaches a socket in it has that user's
//! files, which a process of another container does not, whatever its own number is.
//! Rejected: abstract names, which leave no file behind. They are the network namespace's, which
//! all containers of a pod share, and the user's number says nothing there (CVE-2020-15257).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, mkdir, open, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who has more in a directory has something else in mind.
const NAMES_MAX: usize = 1024;

/// A kind of directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Home {
    /// As `$XDG_RUNTIME_DIR` says.
    Session,
    /// The system's, for root.
    System,
    /// Of a user who has logged in, for who asks without that variable.
    Login,
    /// Of any user.
    Temporary,
}

impl Home {
    const ALL: [Self; 4] = [Self::Session, Self::System, Self::Login, Self::Temporary];

    fn path(self, user: u32) -> Option<PathBuf> {
        match self {
            Self::Session => {
                let named = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
                named.is_absolute().then(|| named.join("overspill"))
            }
            Self::System => (user == 0).then(|| "/run/overspill".into()),
            Self::Login => Some(format!("/run/user/{user}/overspill").into()),
            Self::Temporary => Some(format!("/tmp/overspill-{user}").into()),
        }
    }

    /// Opens that of `user`.
    ///
    /// # Errors
    /// There is none, or it is not the user's alone.
    pub(crate) fn open(self, user: u32) -> io::Result<Directory> {
        Directory::open(&self.path(user).ok_or(Errno::NOENT)?, user)
    }

    /// Makes one of this process's user, the first that can be.
    ///
    /// # Errors
    /// None can be: why not the last.
    pub(crate) fn make() -> io::Result<Directory> {
        let user = geteuid().as_raw();
        // That of a login is the session's, or nobody has made it.
        let homes = [Self::Session, Self::System, Self::Temporary].into_iter();
        let mut paths = homes.filter_map(|home| home.path(user));
        let mut made = Err(Errno::NOENT.into());
        while let (Err(_), Some(path)) = (&made, paths.next()) {
            made = Directory::make(&path, user);
        }
        made
    }

    /// All that there may be of this user; for root, of all users who have a process.
    pub(crate) fn all() -> Vec<(Self, u32)> {
        let me = geteuid().as_raw();
        let others = if me == 0 { users() } else { BTreeSet::new() };
        let others = others.into_iter().filter(|user| *user != me);
        let of_others =
            others.flat_map(|user| [Self::Login, Self::Temporary].map(|home| (home, user)));
        Self::ALL.map(|home| (home, me)).into_iter().chain(of_others).collect()
    }
}

/// Whose processes there are. In `/tmp` anybody may have any number of names.
fn users() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| number_of(entry).is_some());
    processes.filter_map(|entry| Some(entry.metadata().ok()?.uid())).collect()
}

/// A directory that is one user's alone.
#[derive(Debug)]
pub(crate) struct Directory {
    opened: OwnedFd,
    path: PathBuf,
}

impl Directory {
    fn open(path: &Path, user: u32) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory =
            open(path, flags, Mode::empty()).map_err(|errno| about(path, &errno.into()))?;
        let found = fstat(&directory)?;
        if found.st_uid != user || found.st_mode & 0o077 != 0 {
            return Err(about(path, &io::Error::other("it is not its user's alone")));
        }
        Ok(Self { opened: directory, path: path.to_owned() })
    }

    fn make(path: &Path, user: u32) -> io::Result<Self> {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path, user),
            Err(errno) => Err(about(path, &errno.into())),
        }
    }

    /// Finds the socket of a process.
    ///
    /// # Errors
    /// There is none, or something else has its name.
    pub(crate) fn find(&self, process: i32) -> Result<Found, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&self.opened, process.to_string(), flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&found)?.st_mode) {
            FileType::Socket => Ok(Found(found)),
            _ => Err(Errno::NOTSOCK),
        }
    }

    /// The way to a socket in it, which is short whatever the directory is called.
    pub(crate) fn socket(&self, process: i32) -> PathBuf {
        way_to(&self.opened).join(process.to_string())
    }

    /// Nothing is left of the last run in it. One that has begun there meanwhile makes it again.
    pub(crate) fn remove_if_empty(&self) {
        let _ = std::fs::remove_dir(&self.path);
    }

    /// The processes that sockets may be of, by their names.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let names =
            std::fs::read_dir(way_to(&self.opened)).into_iter().flatten().take(NAMES_MAX).flatten();
        names.filter_map(|entry| number_of(&entry)).collect()
    }
}

/// A socket that was found: this one, whatever has its name by now.
#[derive(Debug)]
pub(crate) struct Found(OwnedFd);

impl Found {
    /// Where it can be connected to.
    pub(crate) fn path(&self) -> PathBuf {
        way_to(&self.0)
    }
}

/// The way to what was opened, whatever has its name by now.
fn way_to(opened: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", opened.as_raw_fd()).into()
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The number that a name is, if it is nothing else.
fn number_of(entry: &DirEntry) -> Option<i32> {
    entry.file_name().to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_what_is_ones_own_alone_counts() {
        let me = geteuid().as_raw();
        let all = tempfile::tempdir().unwrap();
        let (own, open, link) =
            (all.path().join("own"), all.path().join("open"), all.path().join("link"));
        for (path, mode) in [(&own, 0o700), (&open, 0o710)] {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        symlink(&own, &link).unwrap();
        std::fs::write(own.join("42"), "").unwrap();
        std::fs::write(own.join("x43"), "").unwrap();
        assert_eq!(Directory::open(&own, me).unwrap().processes(), [42]);
        let own_one = Directory::open(&own, me).unwrap();
        symlink("42", own.join("44")).unwrap();
        let found = |number| own_one.find(number).map(drop);
        assert_eq!(
            [found(42), found(43), found(44)].map(Result::unwrap_err),
            [Errno::NOTSOCK, Errno::NOENT, Errno::NOTSOCK]
        );
        let refused = |path: &Path, user| Directory::open(path, user).unwrap_err().to_string();
        assert!(refused(&own, me + 1).contains("not its user's alone"));
        assert!(refused(&open, me).contains("not its user's alone"));
        assert!(refused(&link, me).contains("link: "));
        assert!(refused(&own.join("42"), me).contains("42: "));
    }

    /// Its owner alone sees less of its runs then.
    #[test]
    fn names_without_end_are_not_read() {
        let all = tempfile::tempdir().unwrap();
        let own = all.path().join("own");
        let directory = Directory::make(&own, geteuid().as_raw()).unwrap();
        (0..3 * NAMES_MAX).for_each(|n| std::fs::write(own.join(n.to_string()), "").unwrap());
        assert_eq!(directory.processes().len(), NAMES_MAX);
        assert!(users().contains(&geteuid().as_raw()));
    }

    #[test]
    fn other_users_have_other_directories() {
        assert_eq!(Home::System.path(1), None);
        assert_eq!(Home::Temporary.path(7), Some("/tmp/overspill-7".into()));
        assert_eq!(Home::Login.path(7), Some("/run/user/7/overspill".into()));
    }
}
