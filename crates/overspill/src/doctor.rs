//! Probes: whether Overspill can work here, and what to do if not.
//!
//! Each probe tries the real thing. `overspill run` refuses with the same words.

use crate::memory::{self, MemoryGroups};
use overspill_base::PAGE_SIZE;
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{SwapDevice, SwapKind};
use overspill_space::probe::{MovesProbed, best_reach, probe_moves};
use overspill_space::shut_pages_max;
use overspill_space::uffd::{Delivery, Uffd};
use overspill_space::words::Reach;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Works as it should.
    Good,
    /// Works, but slower or with fewer features.
    Limited,
    /// `overspill run` cannot work.
    Broken,
}

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was probed.
    pub what: &'static str,
    /// The result.
    pub health: Health,
    /// What was found, and what to do unless it is good.
    pub detail: String,
}

fn finding(what: &'static str, health: Health, detail: impl Into<String>) -> Finding {
    Finding { what, health, detail: detail.into() }
}

/// Runs every probe; files are tested in `directory`, or where the default swap file would be.
pub fn examine(directory: Option<&Path>) -> Vec<Finding> {
    let mut findings = vec![page_size()];
    findings.push(overcommit());
    findings.push(processes());
    findings.push(regions());
    findings.extend(userfaultfd_features());
    findings.extend(userfaultfd_moves());
    findings.push(uring());
    findings.push(swap_file(directory));
    findings.push(memory());
    findings.push(cgroup());
    findings
}

/// The first finding that makes `overspill run` impossible, whatever rights there are.
pub fn obstacle() -> Option<Finding> {
    [page_size(), overcommit(), processes()]
        .into_iter()
        .find(|finding| finding.health == Health::Broken)
}

fn page_size() -> Finding {
    match rustix::param::page_size() {
        PAGE_SIZE => finding("page size", Health::Good, "4096 bytes"),
        size => finding(
            "page size",
            Health::Broken,
            format!("{size} bytes: Overspill needs a kernel with pages of 4096 bytes"),
        ),
    }
}

/// With strict accounting, memory that is only reserved counts too, and no process could get more.
fn overcommit() -> Finding {
    overcommit_of(&std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default())
}

fn overcommit_of(mode: &str) -> Finding {
    match mode.trim() {
        "2" => finding(
            "overcommit",
            Health::Broken,
            "vm.overcommit_memory is 2, which charges the 1 TiB of addresses that is reserved: set it \
             to 0 or 1",
        ),
        _ => finding("overcommit", Health::Good, "reserved memory is not charged"),
    }
}

/// A run looks at its processes in `/proc`, by their numbers.
fn processes() -> Finding {
    processes_of(std::fs::read_link("/proc/self"))
}

/// Told where the `/proc` that is mounted says that this process is.
fn processes_of(this: io::Result<PathBuf>) -> Finding {
    const MOUNT: &str = "mount it: mount -t proc proc /proc; unshare has --mount-proc";
    let broken = |detail| finding("processes", Health::Broken, detail);
    match this {
        Ok(number) if number.as_os_str() == std::process::id().to_string().as_str() => {
            finding("processes", Health::Good, "/proc has them")
        }
        // Of a namespace in which this process has no number, `self` leads nowhere.
        Ok(_) => broken(format!("/proc is of another PID namespace: {MOUNT}")),
        Err(error) => broken(format!("/proc/self cannot be read: {error}; {MOUNT}")),
    }
}

/// How the library notices touches of its regions.
fn regions() -> Finding {
    let (health, detail) = match best_reach() {
        Ok(Reach::All) => (Health::Good, "all touches are served".into()),
        Ok(Reach::Program) => (Health::Limited, ONLY_OWN_TOUCHES.into()),
        Ok(Reach::Guards) => {
            (Health::Limited, format!("{ONLY_OWN_TOUCHES}; touches raise SIGSEGV"))
        }
        Ok(Reach::Shut) => (
            Health::Limited,
            format!(
                "{ONLY_OWN_TOUCHES}; touches raise SIGSEGV, and at most {} pages can be in memory",
                shut_pages_max()
            ),
        ),
        Err(lack) => (Health::Limited, format!("the library has none: {lack}")),
    };
    finding("regions of the library", health, detail)
}

const ONLY_OWN_TOUCHES: &str = "only the program's own touches are served: memory that goes to a \
                                system call must be pinned; access to /dev/userfaultfd would help";

/// A userfaultfd of the best kind that is permitted.
fn userfaultfd() -> Option<Uffd> {
    let open = |reach| Uffd::open(Delivery::Messages, reach).ok();
    [Reach::All, Reach::Program].into_iter().find_map(open)
}

fn userfaultfd_features() -> Vec<Finding> {
    let Some(uffd) = userfaultfd() else { return Vec::new() };
    let features = uffd.features();
    let judge = |what, has, without: &str| {
        if has {
            finding(what, Health::Good, "there")
        } else {
            finding(what, Health::Limited, without)
        }
    };
    vec![
        judge(
            "userfaultfd: move",
            features.move_pages,
            "not to be used (Linux 6.12 has it): O_DIRECT reads into memory that is being paged may be \
             lost; use buffered I/O or a newer kernel",
        ),
        judge(
            "userfaultfd: poison",
            features.poison,
            "missing (Linux 6.6 has it): a page lost to a device error raises SIGSEGV, not SIGBUS",
        ),
        judge(
            "userfaultfd: write protection",
            features.write_protect,
            "missing (Linux 5.7 has it): pages that cannot be moved stay in memory",
        ),
    ]
}

/// Long enough, on two CPUs, for a kernel that misreports moves to do it once.
const MOVES_PROBED: Duration = Duration::from_millis(300);

/// Whether the kernel reports moves correctly. Linux 6.18 does not always.
fn userfaultfd_moves() -> Option<Finding> {
    let uffd = userfaultfd().filter(|uffd| uffd.features().move_pages)?;
    let probed = probe_moves(MOVES_PROBED, uffd.reach()).ok()?;
    Some(match probed {
        MovesProbed { lost: 1.., .. } => finding(
            WHAT_MOVES,
            Health::Limited,
            format!("{} of {} pages were lost: please report this", probed.lost, probed.moves / 2),
        ),
        // What some kernels misreport is looked up, and nothing for a user to do.
        MovesProbed { moves, .. } => {
            finding(WHAT_MOVES, Health::Good, format!("none of {moves} lost a page"))
        }
    })
}

const WHAT_MOVES: &str = "userfaultfd: reports of moves";

fn uring() -> Finding {
    match io_uring::IoUring::new(4) {
        Ok(_) => finding("io_uring", Health::Good, "there"),
        Err(error) => finding(
            "io_uring",
            Health::Limited,
            format!(
                "refused ({error}): plain reads and writes are used; check kernel.io_uring_disabled, \
                 the seccomp profile and `ulimit -l`"
            ),
        ),
    }
}

fn swap_file(directory: Option<&Path>) -> Finding {
    let kind = match directory {
        None => SwapKind::Default,
        Some(path) => SwapKind::File { path: PathBuf::from(path), size: None },
    };
    match FileDevice::open(&kind.into(), &OpenOptions::default()) {
        Ok(device) => {
            let info = device.info();
            let limited = info.notes.iter().any(|note| is_limit(note));
            let health = if limited { Health::Limited } else { Health::Good };
            let notes = info.notes.join("; ");
            let detail = format!("{}, room for {}: {notes}", info.name, info.capacity());
            finding("swap file", health, detail)
        }
        Err(error) => finding("swap file", Health::Broken, error.to_string()),
    }
}

/// True if a device's note is about something that would be faster or safer elsewhere.
pub fn is_limit(note: &str) -> bool {
    ["its file system", "the size given"].iter().any(|limit| note.starts_with(limit))
        || note.contains("may read what is swapped")
        || note.contains("refuse")
}

fn memory() -> Finding {
    match (memory::of_machine("MemTotal:"), memory::free()) {
        (Some(total), Some(free)) => {
            finding("memory", Health::Good, format!("{total}, of which {free} available"))
        }
        _ => finding("memory", Health::Limited, "/proc/meminfo cannot be read"),
    }
}

fn cgroup() -> Finding {
    match MemoryGroups::of_this_process().limit() {
        Some(limit) => finding("memory cgroup", Health::Good, format!("limited to {limit}")),
        None => finding("memory cgroup", Health::Good, "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_another_namespace_are_an_obstacle_with_a_remedy() {
        assert_eq!(processes().health, Health::Good);
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        for this in [Ok("4194304".into()), Err(absent())] {
            let found = processes_of(this);
            assert_eq!(found.health, Health::Broken);
            assert!(found.detail.contains("mount -t proc proc /proc"), "{found:?}");
        }
    }

    #[test]
    fn strict_accounting_is_an_obstacle_with_a_remedy() {
        let strict = overcommit_of("2\n");
        assert_eq!(strict.health, Health::Broken);
        assert!(strict.detail.contains("vm.overcommit_memory") && strict.detail.contains("0 or 1"));
        for mode in ["0\n", "1\n", ""] {
            assert_eq!(overcommit_of(mode).health, Health::Good);
        }
    }
}
