//! What the processes of a run hold.
//!
//! Owns: reading `/proc`, of which every text is the kernel's, but may be gone at any moment.
//! Not here: what follows from it (`front`).

use overspill_guest::mappings;
use rustix::process::{Pid, getpid};
use std::collections::HashMap;
use std::io::BufReader;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

/// A process of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    /// Private anonymous memory that it has, in pages.
    pub(crate) pages: u64,
    pub(crate) parent: Option<Pid>,
}

/// Returns `first`, each with its parent, and all processes that descend from them, with what they
/// hold, without `others`.
pub(crate) fn family(
    first: impl IntoIterator<Item = (Pid, Option<Pid>)>,
    others: &dyn Fn(Pid) -> bool,
) -> HashMap<Pid, Watched> {
    let mut found = HashMap::new();
    let mut open: Vec<_> = first.into_iter().collect();
    while let Some((pid, parent)) = open.pop() {
        if others(pid) || found.contains_key(&pid) {
            continue;
        }
        let Some(pages) = pages_of(pid) else { continue };
        found.insert(pid, Watched { pages, parent });
        open.extend(children_of(pid).into_iter().map(|child| (child, Some(pid))));
    }
    found
}

/// The number of the field before those that are named here, of `/proc/PID/stat`, which begin after
/// the name of the program.
const STAT_BEFORE: usize = 3;
const STAT_STATE: usize = 3;
const STAT_PARENT: usize = 4;
const STAT_FLAGS: usize = 9;
const STAT_START: usize = 22;
const STAT_WORDS: usize = 48;
const STAT_WORDS_END: usize = 51;

/// A process's parent.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(stat_of(pid, STAT_PARENT)?)
}

/// True if a process was forked, and executes no other program yet: it may have pages of others, or
/// all memory of its parent.
pub(crate) fn is_a_copy(pid: Pid) -> bool {
    /// `PF_FORKNOEXEC`, of `linux/sched.h`, which proc(5) tells.
    const FORKED: u32 = 0x40;
    stat_of(pid, STAT_FLAGS).is_some_and(|flags: u32| flags & FORKED != 0)
}

/// When a process has started, which with its number tells it from all others.
pub(crate) fn start_of(pid: Pid) -> Option<u64> {
    stat_of(pid, STAT_START)
}

/// A process's number in its own PID namespace, and as whom it makes files.
pub(crate) fn identity_of(pid: Pid) -> Option<(i32, u32)> {
    Some((last_in_status(pid, "NStgid:")?, last_in_status(pid, "Uid:")?))
}

/// The users that a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Users {
    pub(crate) real: u32,
    pub(crate) effective: u32,
    pub(crate) saved: u32,
}

/// Whose a process is.
pub(crate) fn users_of(pid: Pid) -> Option<Users> {
    let [real, effective, saved, _] = in_status(pid, "Uid:")?;
    Some(Users { real, effective, saved })
}

/// True if a process has the user, the capabilities and the PID namespace of this one, so that it
/// may look at all processes that this one may look at.
pub(crate) fn has_our_rights(pid: Pid) -> bool {
    let own = getpid();
    let capabilities = |pid| {
        let [text]: [String; 1] = in_status(pid, "CapPrm:")?;
        u64::from_str_radix(&text, 16).ok()
    };
    let namespace = |pid: Pid, name| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    let are_ours = |name| namespace(pid, name).is_some_and(|id| namespace(own, name) == Some(id));
    let user = users_of(own).map(|own| own.effective);
    let is_user = users_of(pid).is_some_and(|Users { real, effective, saved }| {
        [real, effective, saved].into_iter().all(|of| Some(of) == user)
    });
    let has_all =
        capabilities(pid).zip(capabilities(own)).is_some_and(|(has, own)| own & !has == 0);
    is_user && has_all && ["pid", "user"].into_iter().all(are_ours)
}

/// Who traces a process.
pub(crate) fn tracer_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(last_in_status(pid, "TracerPid:")?)
}

fn last_in_status<T: FromStr>(pid: Pid, key: &str) -> Option<T> {
    values_in_status(pid, key)?.pop()
}

fn in_status<T: FromStr, const N: usize>(pid: Pid, key: &str) -> Option<[T; N]> {
    values_in_status(pid, key)?.try_into().ok()
}

fn values_in_status<T: FromStr>(pid: Pid, key: &str) -> Option<Vec<T>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let values = status.lines().find_map(|line| line.strip_prefix(key))?;
    values.split_ascii_whitespace().map(|value| value.parse().ok()).collect()
}

/// Where a process has the words that it was started with, and its environment.
pub(crate) fn words_of(pid: Pid) -> Option<Range<u64>> {
    Some(stat_of(pid, STAT_WORDS)?..stat_of(pid, STAT_WORDS_END)?)
}

fn stat_of<T: FromStr>(pid: Pid, field: usize) -> Option<T> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(field - STAT_BEFORE)?.parse().ok()
}

/// Private anonymous pages in memory: what is resident and not of a file.
pub(crate) fn pages_of(pid: Pid) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = statm.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let (_, resident, shared) = (fields.next()??, fields.next()??, fields.next()??);
    Some(resident.saturating_sub(shared))
}

/// How long the first thread of a process has run; `None` if the kernel does not tell.
pub(crate) fn run_time(pid: Pid) -> Option<Duration> {
    let schedstat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    schedstat.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// True if the first thread of a process runs, or is about to: it waits for nothing but a CPU.
pub(crate) fn is_running(pid: Pid) -> bool {
    stat_of(pid, STAT_STATE) == Some('R')
}

/// The name of a process, printable.
pub(crate) fn name_of(pid: Pid) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_ascii_end().escape_ascii().to_string()
}

/// True if some memory of a process is registered with a userfaultfd.
pub(crate) fn is_registered(pid: Pid) -> bool {
    let smaps = std::fs::File::open(format!("/proc/{pid}/smaps"));
    smaps.is_ok_and(|smaps| mappings::has_registered(BufReader::new(smaps)))
}

/// The children of all threads of a process.
pub(crate) fn children_of(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = text.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.collect::<Vec<_>>()
    };
    tasks.flatten().flat_map(of_task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpid, getppid};

    #[test]
    fn a_process_has_a_parent_and_a_start() {
        assert_eq!(parent_of(getpid()), getppid());
        let (own, parent) = (start_of(getpid()).unwrap(), start_of(getppid().unwrap()).unwrap());
        assert!(parent <= own);
        assert_eq!(start_of(Pid::from_raw(i32::MAX).unwrap()), None);
        let words = words_of(getpid()).unwrap();
        assert!(words.start > 0 && words.start < words.end, "{words:x?}");
    }

    #[test]
    fn who_sleeps_does_not_run() {
        let mut sleeper = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid::from_child(&sleeper);
        let begun = std::time::Instant::now();
        while is_running(pid) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_running(pid));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!is_running(pid));
    }

    #[test]
    fn another_user_has_other_rights() {
        use std::os::unix::process::CommandExt;
        assert!(has_our_rights(getpid()));
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: processes with other rights: not root");
        }
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("10").uid(65534).spawn().unwrap();
        assert!(!has_our_rights(Pid::from_child(&other)));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_has_a_number_and_a_user() {
        let user = rustix::process::getuid().as_raw();
        assert_eq!(identity_of(getpid()).map(|(_, found)| found), Some(user));
    }

    #[test]
    fn who_is_no_part_is_left_out_with_all_that_descends_from_it() {
        let family = family([(getpid(), None)], &|pid| pid == getpid());
        assert!(family.is_empty());
    }
}
