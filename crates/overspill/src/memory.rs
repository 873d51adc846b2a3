//! How much memory there is for this process, and whether it was too little.
//!
//! Owns: limits as they are given; what the kernel tells of the machine's memory, and of that of
//! the control groups that the process is in (`memory.max`, `memory.events`; in the first version
//! `memory.limit_in_bytes`, `memory.oom_control`).
//! Invariants: a group counts with those around it, as far as they can be seen from here: in a
//! container the first version's own path is that of the machine, and only the root is there.
//! Not here: what a run may have of it.

use overspill_base::Bytes;
use overspill_device::spec::parse_bytes;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What there is for this process: the limit of its control groups, or the machine's memory.
pub fn total() -> Bytes {
    let info = rustix::system::sysinfo();
    let machine = Bytes((info.totalram as u64).saturating_mul(u64::from(info.mem_unit)));
    MemoryGroups::of_this_process().limit().map_or(machine, |limit| limit.min(machine))
}

/// A limit as it is given: a size, or a part of what there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    /// So much.
    Bytes(Bytes),
    /// Of the control group's memory or the machine's; above 0, at most 100.
    Percent(f64),
}

impl MemoryLimit {
    /// What it is here and now.
    pub fn bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => Bytes((total().0 as f64 * percent / 100.0) as u64),
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_suffix('%') else {
            return parse_bytes(text).map(Self::Bytes).map_err(|error| error.to_string());
        };
        match number.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self::Percent(percent)),
            _ => Err(format!("bad percentage `{text}`: write 1% to 100%, as in 25%")),
        }
    }
}

/// What programs could take now without swapping, as the kernel estimates it.
pub fn free() -> Option<Bytes> {
    of_machine("MemAvailable:")
}

/// As [`free`], but no more than what the limits of control groups leave, where what only caches
/// files is free, too.
pub fn free_here() -> Bytes {
    let machine = free().unwrap_or_else(total);
    MemoryGroups::of_this_process().left().map_or(machine, |left| left.min(machine))
}

/// A field of `/proc/meminfo`.
pub(crate) fn of_machine(field: &str) -> Option<Bytes> {
    let info = read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib << 10))
}

/// How often the kernel has ended a process of this one's group for want of memory, or where there
/// is no group of the machine. It only grows.
pub fn oom_kills() -> u64 {
    let of_machine = || count(Path::new("/proc/vmstat"));
    MemoryGroups::of_this_process().oom_kills().or_else(of_machine).unwrap_or(0)
}

fn count(path: &Path) -> Option<u64> {
    let text = read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.parse().ok()
}

/// The control groups of a process that limit its memory: its own, and those around it.
#[derive(Debug)]
pub struct MemoryGroups(Vec<Group>);

#[derive(Debug)]
struct Group {
    directory: PathBuf,
    files: &'static Files,
}

/// What a version calls its files.
#[derive(Debug)]
struct Files {
    roots: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` about files that nobody has used lately.
    cached: &'static str,
    events: &'static str,
}

const FIRST: Files = Files {
    roots: &["/sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
    events: "memory.oom_control",
};
const SECOND: Files = Files {
    roots: &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    limit: "memory.max",
    used: "memory.current",
    cached: "inactive_file ",
    events: "memory.events",
};

impl Group {
    fn limit(&self) -> Option<Bytes> {
        // The first version has a number near 2^63 for no limit.
        self.number(self.files.limit).filter(|bytes| *bytes < 1 << 60).map(Bytes)
    }

    /// Without files that nobody has used lately.
    fn used(&self) -> Bytes {
        let stat = read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.files.cached));
        let cached: u64 = cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        Bytes(self.number(self.files.used).unwrap_or(0).saturating_sub(cached))
    }

    fn number(&self, file: &str) -> Option<u64> {
        read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }
}

impl MemoryGroups {
    /// Those of this process; none if they cannot be read.
    pub fn of_this_process() -> Self {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self(groups.lines().flat_map(|line| Self::of_line(line, Path::new("/"))).collect())
    }

    /// Those that a line of `/proc/PID/cgroup` names, below a root.
    fn of_line(line: &str, root: &Path) -> Vec<Group> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            return Vec::new();
        };
        let files = match controllers {
            "" => &SECOND,
            some if some.split(',').any(|name| name == "memory") => &FIRST,
            _ => return Vec::new(),
        };
        let mounts = files.roots.iter().map(|mount| root.join(mount.trim_start_matches('/')));
        let around = Path::new(path.trim_start_matches('/')).ancestors();
        let around: Vec<&Path> = around.collect();
        let all = mounts.flat_map(|mount| {
            let within = around.iter().map(move |path| mount.join(path));
            within.map(|directory| Group { directory, files }).collect::<Vec<_>>()
        });
        all.filter(|group| group.directory.join(files.events).exists()).collect()
    }

    /// The least limit of them; `None` if there is none.
    pub fn limit(&self) -> Option<Bytes> {
        self.0.iter().filter_map(Group::limit).min()
    }

    /// The least that a limit of them leaves; `None` if there is none.
    fn left(&self) -> Option<Bytes> {
        let left = |group: &Group| Some(Bytes(group.limit()?.0.saturating_sub(group.used().0)));
        self.0.iter().filter_map(left).min()
    }

    /// As [`oom_kills`], of the innermost that tells.
    fn oom_kills(&self) -> Option<u64> {
        self.0.iter().find_map(|group| count(&group.directory.join(group.files.events)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// Groups as a version has them, with limits, below a root that is kept.
    fn groups(line: &str, limits: &[(&str, &str, &str)]) -> (tempfile::TempDir, MemoryGroups) {
        let root = tempfile::tempdir().unwrap();
        for (directory, limit, events) in limits {
            let directory = root.path().join(directory);
            create_dir_all(&directory).unwrap();
            let files = if line.starts_with('0') { &SECOND } else { &FIRST };
            write(directory.join(files.limit), limit).unwrap();
            write(directory.join(files.events), events).unwrap();
        }
        let groups = MemoryGroups(MemoryGroups::of_line(line, root.path()));
        (root, groups)
    }

    #[test]
    fn the_least_limit_around_counts() {
        let inner = ("sys/fs/cgroup/a/b", "max\n", "low 0\noom 3\noom_kill 2\n");
        let outer = ("sys/fs/cgroup/a", "1048576\n", "oom_kill 7\n");
        let (_root, groups) = groups("0::/a/b", &[inner, outer]);
        assert_eq!(groups.limit(), Some(Bytes(1 << 20)));
        assert_eq!(groups.oom_kills(), Some(2));
    }

    #[test]
    fn what_only_caches_files_is_free() {
        let group = ("sys/fs/cgroup/a", "1000000\n", "oom_kill 0\n");
        let (root, groups) = groups("0::/a", &[group]);
        let directory = root.path().join("sys/fs/cgroup/a");
        write(directory.join("memory.current"), "700000\n").unwrap();
        write(directory.join("memory.stat"), "anon 400000\ninactive_file 200000\n").unwrap();
        assert_eq!(groups.left(), Some(Bytes(500_000)));
    }

    /// As in a container: the path is the machine's.
    #[test]
    fn of_the_first_version_the_root_may_be_all_that_is_there() {
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";
        let root = ("sys/fs/cgroup/memory", "268435456\n", control);
        let (_root, groups) = groups("4:memory:/docker/0123", &[root]);
        assert_eq!(groups.limit(), Some(Bytes(256 << 20)));
        assert_eq!(groups.oom_kills(), Some(5));
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let root = ("sys/fs/cgroup/memory", "9223372036854771712\n", "oom_kill 0\n");
        let (_root, groups) = groups("4:cpu,memory:/", &[root]);
        assert_eq!(groups.limit(), None);
        assert!(MemoryGroups::of_line("3:cpuset:/", Path::new("/")).is_empty());
        assert!(MemoryGroups::of_line("nonsense", Path::new("/")).is_empty());
    }

    #[test]
    fn memory_is_bytes_or_a_share() {
        let table = [
            ("64M", MemoryLimit::Bytes(Bytes(64 << 20))),
            ("1.5GiB", MemoryLimit::Bytes(Bytes(3 << 29))),
            ("25%", MemoryLimit::Percent(25.0)),
            ("0.5%", MemoryLimit::Percent(0.5)),
            ("100%", MemoryLimit::Percent(100.0)),
        ];
        for (text, limit) in table {
            assert_eq!(text.parse(), Ok(limit), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_memory() {
        for text in ["", "%", "0%", "101%", "-1%", "nan%", "inf%", "64Q", "-5M", "M"] {
            let error = text.parse::<MemoryLimit>().unwrap_err();
            assert!(error.starts_with("bad ") && error.contains(text), "{text}: {error}");
        }
    }
}
