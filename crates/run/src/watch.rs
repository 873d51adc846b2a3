//! What the processes of a run hold.
//!
//! Owns: reading `/proc`, of which every text is the kernel's, but may be gone at any moment.
//! Not here: what follows from it (`front`).

use overspill_guest::mappings;
use rustix::process::Pid;
use std::collections::HashMap;
use std::io::BufReader;
use std::time::Duration;

/// A process of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    /// Private anonymous memory that it has, in pages.
    pub(crate) pages: u64,
    pub(crate) parent: Option<Pid>,
}

/// Returns all processes that descend from `first`, with what they hold, without `others`.
pub(crate) fn family(first: Pid, others: &dyn Fn(Pid) -> bool) -> HashMap<Pid, Watched> {
    let mut found = HashMap::new();
    let mut open = vec![(first, None)];
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
