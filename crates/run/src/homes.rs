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
use rustix::fs::{Mode, OFlags, fstat, mkdir, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::io;
use std::path::{Path, PathBuf};

/// Who has more has something else in mind.
const SOCKETS_MAX: usize = 1024;
const LOGINS: &str = "/run/user";
const TEMPORARY: &str = "/tmp";
const PREFIX: &str = "overspill-";

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
            Self::Login => Some(format!("{LOGINS}/{user}/overspill").into()),
            Self::Temporary => Some(format!("{TEMPORARY}/{PREFIX}{user}").into()),
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

    /// All that there are of this user; of all users, for root.
    pub(crate) fn all() -> Vec<(Self, u32)> {
        let me = geteuid().as_raw();
        let mut homes: Vec<_> = Self::ALL.map(|home| (home, me)).into();
        if me == 0 {
            let users = |of: &str, prefix| numbers_in(Path::new(of), prefix).into_iter();
            homes.extend(users(LOGINS, "").map(|user| (Self::Login, user)));
            homes.extend(users(TEMPORARY, PREFIX).map(|user| (Self::Temporary, user)));
        }
        homes
    }
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

    /// The way to a socket in it, which is short whatever the directory is called.
    pub(crate) fn socket(&self, process: i32) -> PathBuf {
        format!("/proc/self/fd/{}/{process}", self.opened.as_raw_fd()).into()
    }

    /// Nothing is left of the last run in it. One that has begun there meanwhile makes it again.
    pub(crate) fn remove_if_empty(&self) {
        let _ = std::fs::remove_dir(&self.path);
    }

    /// The processes of which there are sockets.
    pub(crate) fn processes(&self) -> Vec<i32> {
        numbers_in(Path::new(&format!("/proc/self/fd/{}", self.opened.as_raw_fd())), "")
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The numbers in names that are nothing else, after a prefix.
fn numbers_in<N: std::str::FromStr>(directory: &Path, prefix: &str) -> Vec<N> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number =
        |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
    entries.filter_map(number).take(SOCKETS_MAX).collect()
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
        let refused = |path: &Path, user| Directory::open(path, user).unwrap_err().to_string();
        assert!(refused(&own, me + 1).contains("not its user's alone"));
        assert!(refused(&open, me).contains("not its user's alone"));
        assert!(refused(&link, me).contains("link: "));
        assert!(refused(&own.join("42"), me).contains("42: "));
    }

    #[test]
    fn other_users_have_other_directories() {
        assert_eq!(Home::System.path(1), None);
        assert_eq!(Home::Temporary.path(7), Some("/tmp/overspill-7".into()));
        assert_eq!(Home::Login.path(7), Some("/run/user/7/overspill".into()));
    }
}
