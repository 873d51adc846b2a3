//! Which file is the core of a process.
//!
//! Owns: what core_pattern says (`fs/coredump.c`: `format_corename`), and the proof that a file is
//! what is looked for.
//! Invariants: a file is taken for a process's core by what it has inside; its name only says where
//! to look. As for the kernel it is a plain file without other names, of that process's user, and
//! nobody else's to read or write. Nothing else is opened.

use super::Place;
use super::fill::Core;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Files' times may be so much behind.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// Who may do what with a core: its owner alone, who may have had less.
const OTHERS: u32 = 0o077;

/// Where the kernel puts cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// Into files of such a name, in a directory as it is written; or the process's, without one.
    Files(Option<PathBuf>, Vec<u8>),
    /// To this program or socket.
    Given(String),
}

impl Pattern {
    /// Asks the kernel.
    pub(super) fn read() -> Self {
        Self::parse(std::fs::read_to_string(PATTERN).unwrap_or_default().trim_end())
    }

    fn parse(pattern: &str) -> Self {
        if pattern.starts_with(['|', '@']) {
            let to = pattern[1..].trim_start_matches('@').split(' ').next();
            return Self::Given(to.unwrap_or_default().to_owned());
        }
        match pattern.rsplit_once('/') {
            Some((directory, name)) => {
                let directory = if directory.is_empty() { "/" } else { directory };
                Self::Files(Some(directory.into()), name.into())
            }
            None => Self::Files(None, pattern.into()),
        }
    }
}

/// Finds the core that a process has left, which has ended; `None` if there is none. Waits for the
/// file system that it is in.
pub(super) fn find(pattern: &Pattern, place: &Place, agent: Pid) -> Option<Core> {
    let Pattern::Files(directory, name) = pattern else { return None };
    let directory = place.directory.join(directory.as_deref().unwrap_or(Path::new("")));
    // As the process sees it, or as we do: the kernel tells where a process is in our terms, unless
    // it has mounts of its own.
    let root = PathBuf::from(format!("/proc/{agent}/root"));
    let inside = root.join(directory.strip_prefix("/").unwrap_or(&directory));
    [inside, directory].iter().find_map(|directory| find_in(directory, name, place))
}

/// The newest that is one.
fn find_in(directory: &Path, name: &[u8], place: &Place) -> Option<Core> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty()).ok()?;
    let entries = std::fs::read_dir(path_of(&opened)).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let named = names.filter(|found| may_be(found.as_bytes(), name));
    let cores = named.filter_map(|name| open_core(&opened, &name, place));
    cores.max_by_key(|(_, time)| *time).map(|(core, _)| core)
}

fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn open_core(directory: impl AsFd, name: &OsStr, place: &Place) -> Option<(Core, SystemTime)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let looked = openat(directory, name, flags, Mode::empty()).ok()?;
    let about = std::fs::metadata(path_of(&looked)).ok()?;
    if !is_as_the_kernel_makes_it(&about, place) {
        return None;
    }
    let file = File::options().read(true).write(true).open(path_of(&looked)).ok()?;
    let core = Core::of(file)?;
    (core.number() == Some(place.own_number)).then_some((core, about.modified().ok()?))
}

fn is_as_the_kernel_makes_it(about: &Metadata, place: &Place) -> bool {
    let oldest = place.since.checked_sub(CLOCK_STEP).unwrap_or(place.since);
    about.is_file()
        && about.nlink() == 1
        && about.uid() == place.user
        && about.mode() & OTHERS == 0
        && about.modified().is_ok_and(|time| time >= oldest)
}

/// True if the pattern may have become this name, whatever its specifiers stand for. A number may
/// come after it (`kernel.core_uses_pid`).
fn may_be(name: &[u8], pattern: &[u8]) -> bool {
    let stem = match name.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if name[dot + 1..].iter().all(u8::is_ascii_digit) => &name[..dot],
        _ => name,
    };
    let parts = parts_of(pattern);
    is_made_of(name, &parts) || is_made_of(stem, &parts)
}

/// What a pattern has literally, between specifiers.
fn parts_of(pattern: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], pattern.iter());
    while let Some(byte) = bytes.next() {
        match (byte, if *byte == b'%' { bytes.next() } else { None }) {
            (b'%', Some(b'%')) => parts.last_mut().expect("there is one").push(b'%'),
            (b'%', Some(_)) => parts.push(Vec::new()),
            // One at the end stands for nothing.
            (b'%', None) => {}
            (byte, _) => parts.last_mut().expect("there is one").push(*byte),
        }
    }
    parts
}

/// True if it begins with the first part, ends with the last, and has the others in between. Each
/// is taken where it is found first: then what can be found is.
fn is_made_of(name: &[u8], parts: &[Vec<u8>]) -> bool {
    let [first, between @ .., last] = parts else { return parts.len() == 1 && name == parts[0] };
    let Some(mut rest) = name.strip_prefix(&**first) else { return false };
    for part in between {
        match find_part(rest, part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn find_part(bytes: &[u8], part: &[u8]) -> Option<usize> {
    (0..=bytes.len().checked_sub(part.len())?).find(|at| bytes[*at..].starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_patterns_may_become() {
        let table = [
            ("core", "core", true),
            ("core", "core.4711", true),
            ("core", "core.c", false),
            ("core", "cores", false),
            ("core.%e.%p", "core.sort.4711", true),
            ("core.%e.%p", "core.sort", false),
            ("%e%t%p-%%", "sort17000-%", true),
            ("%e%t%p-%%", "sort17000-", false),
            ("%p%%%e", "1%x", true),
            ("a%", "a", true),
            ("aba%eba", "aba", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(may_be(name.as_bytes(), pattern.as_bytes()), expected, "{pattern} {name}");
        }
        // A name that has the most to be tried is decided at once.
        let name = [b"core-".as_slice(), &[b'-'; 240], b"x"].concat();
        assert!(!may_be(&name, b"core-%e-%s-%u-%g-%p-%ty"));
    }

    #[test]
    fn patterns_say_where_cores_go() {
        let files = |directory: Option<&str>, name: &str| {
            Pattern::Files(directory.map(PathBuf::from), name.into())
        };
        assert_eq!(Pattern::parse("core"), files(None, "core"));
        assert_eq!(Pattern::parse("/core"), files(Some("/"), "core"));
        assert_eq!(Pattern::parse("/var/%e/core"), files(Some("/var/%e"), "core"));
        assert_eq!(Pattern::parse("dumps/core"), files(Some("dumps"), "core"));
        assert_eq!(Pattern::parse("|/usr/bin/x %p"), Pattern::Given("/usr/bin/x".into()));
        assert_eq!(Pattern::parse("@@/run/x"), Pattern::Given("/run/x".into()));
    }

    #[test]
    fn what_the_kernel_would_not_make_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("core");
        let place = |user, since| Place {
            is_as_ours: true,
            directory: directory.path().to_owned(),
            own_number: 1,
            user,
            since,
        };
        let own = rustix::process::getuid().as_raw();
        let is_one = |place: Place| is_as_the_kernel_makes_it(&path.metadata().unwrap(), &place);
        let set_mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        };
        File::create(&path).unwrap();
        set_mode(0o600).unwrap();
        assert!(is_one(place(own, SystemTime::now())));
        assert!(!is_one(place(own + 1, SystemTime::now())));
        assert!(!is_one(place(own, SystemTime::now() + Duration::from_secs(60))));
        assert!(is_one(place(own, SystemTime::UNIX_EPOCH)));
        set_mode(0o640).unwrap();
        assert!(!is_one(place(own, SystemTime::now())));
        set_mode(0o600).unwrap();
        std::fs::hard_link(&path, directory.path().join("other")).unwrap();
        assert!(!is_one(place(own, SystemTime::now())));
    }
}
