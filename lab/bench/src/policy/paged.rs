//! Memory of this process, paged by the kernel.
//!
//! Owns: the limit of the control group the process is in. The kernel gets as many pages for the
//! trace as the other policies, so the limit is that many plus what else is charged to the group:
//! page tables, per-CPU reserves, metadata of swapped pages. That is measured twice: before the
//! first touch, and when all pages have been filled, when it has its final size.
//! Invariants: the trace and everything else the process needs is allocated before it enters the
//! group, and not charged to it. Each page holds its number; a touch after the fill reads, as
//! everywhere.
//! Not here: huge pages, which are switched off, because the others have none; attributing
//! swap-ins: if the group does not count them, the machine's are used, and no other swap is on.

use super::{Memory, PolicyRow, Progress, chosen, replay, within_limits};
use crate::error::BenchError;
use crate::touch;
use overspill_base::{PAGE_SIZE, PageNo};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// A trace to replay in memory that the kernel pages.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The trace's name.
    pub workload: String,
    /// Pages of it that may be in memory.
    pub memory_pages: usize,
    /// Touches after its pages were filled.
    pub touches: usize,
    /// The control group to enter and to limit.
    pub cgroup: PathBuf,
}

/// Replays a trace in this process, which enters the control group for good.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::UnknownWorkload`], [`BenchError::Group`],
/// [`BenchError::KernelFile`], [`BenchError::WrongData`].
pub fn replay_in_group(options: &ReplayOptions) -> Result<PolicyRow, BenchError> {
    let ReplayOptions { memory_pages, touches, ref cgroup, ref workload } = *options;
    within_limits(memory_pages, touches)?;
    let workload = chosen(std::slice::from_ref(workload))?[0];
    let trace = workload.trace(memory_pages, touches);
    rustix::thread::disable_transparent_huge_pages(true)
        .map_err(|error| BenchError::system("switch huge pages off")(error.into()))?;
    touch::enter_group(cgroup)?;
    // Freshly mapped, so this touches nothing; one page more, to align the start.
    let mut bytes = vec![0; (trace.set_pages + 1) * PAGE_SIZE];
    let set = Set { pages: touch::Memory::new(&mut bytes), count: trace.set_pages };
    replay("kernel", &trace, &mut PagedMemory::new(set, memory_pages, Counters::of(cgroup)?)?)
}

/// The pages of a trace.
struct Set<'a> {
    pages: touch::Memory<'a>,
    count: usize,
}

struct PagedMemory<'a> {
    set: Set<'a>,
    /// Pages filled so far; a trace begins with filling all, in order.
    filled: usize,
    memory_pages: usize,
    pagemap: File,
    /// Number of the first page in the pagemap.
    first: u64,
    counters: Counters,
}

impl<'a> PagedMemory<'a> {
    fn new(set: Set<'a>, memory_pages: usize, counters: Counters) -> Result<Self, BenchError> {
        let path = Path::new("/proc/self/pagemap");
        let pagemap = File::open(path).map_err(unusable(path))?;
        let first = set.pages.with(0, false, |words| words.as_ptr().addr() / PAGE_SIZE)? as u64;
        let memory = Self { set, filled: 0, memory_pages, pagemap, first, counters };
        memory.limit(0)?;
        Ok(memory)
    }

    /// Limits the group to the trace's memory plus what it holds now besides `held` pages of the
    /// trace.
    fn limit(&self, held: usize) -> Result<(), BenchError> {
        let used: u64 = number(&self.counters.usage)?;
        let beside = used.saturating_sub((held * PAGE_SIZE) as u64);
        let limit = beside + (self.memory_pages * PAGE_SIZE) as u64;
        fs::write(&self.counters.limit, limit.to_string()).map_err(unusable(&self.counters.limit))
    }

    /// Fills the next page; after the last one, sets the limit again.
    fn fill(&mut self) -> Result<(), BenchError> {
        let stamp = stamp(self.filled);
        self.set.pages.with(self.filled, true, |words| words[0].store(stamp, Relaxed))?;
        self.filled += 1;
        if self.filled < self.set.count {
            return Ok(());
        }
        let held = (0..self.set.count as u32).filter(|&page| self.holds(PageNo(page))).count();
        self.limit(held)
    }
}

/// Content of a page: not 0, for which the kernel would take no slot.
fn stamp(page: usize) -> u64 {
    page as u64 + 1
}

impl Memory for PagedMemory<'_> {
    fn touch(&mut self, page: PageNo) -> Result<(), BenchError> {
        if page.index() == self.filled {
            return self.fill();
        }
        let found = self.set.pages.with(page.index(), false, |words| words[0].load(Relaxed))?;
        if found == stamp(page.index()) {
            return Ok(());
        }
        Err(BenchError::WrongData(format!("the kernel returned {found} for page {}", page.0)))
    }

    fn holds(&self, page: PageNo) -> bool {
        /// Pagemap bit of a mapped page.
        const PRESENT: u64 = 1 << 63;
        let mut entry = [0; 8];
        let read = self.pagemap.read_exact_at(&mut entry, (self.first + u64::from(page.0)) * 8);
        read.is_ok() && u64::from_ne_bytes(entry) & PRESENT != 0
    }

    fn progress(&self) -> Result<Progress, BenchError> {
        let (soft_faults, waits) = self.counters.faults()?;
        Ok(Progress { refaults: self.counters.swapped_in()?, waits, soft_faults })
    }
}

/// The files with the kernel's counters.
struct Counters {
    limit: PathBuf,
    usage: PathBuf,
    /// The group's `memory.stat`, or the machine's `vmstat` if that has no swap-ins.
    swapped_in: PathBuf,
}

impl Counters {
    fn of(group: &Path) -> Result<Self, BenchError> {
        let (limit, usage) = match group.join("memory.max").exists() {
            true => ("memory.max", "memory.current"),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        let (stat, vmstat) = (group.join("memory.stat"), PathBuf::from("/proc/vmstat"));
        let swapped_in = if swap_ins(&text(&stat)?).is_some() { stat } else { vmstat };
        Ok(Self { limit: group.join(limit), usage: group.join(usage), swapped_in })
    }

    /// Returns the pages read from swap.
    fn swapped_in(&self) -> Result<u64, BenchError> {
        swap_ins(&text(&self.swapped_in)?).ok_or_else(|| strange(&self.swapped_in))
    }

    /// Returns this process's minor faults (page in memory) and major faults (which waited).
    fn faults(&self) -> Result<(u64, u64), BenchError> {
        let path = Path::new("/proc/self/stat");
        faults(&text(path)?).ok_or_else(|| strange(path))
    }
}

fn text(path: &Path) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(unusable(path))
}

fn number(path: &Path) -> Result<u64, BenchError> {
    text(path)?.trim().parse().map_err(|_| strange(path))
}

fn unusable(path: &Path) -> impl FnOnce(std::io::Error) -> BenchError {
    move |error| BenchError::KernelFile { path: path.to_owned(), reason: error.to_string() }
}

fn strange(path: &Path) -> BenchError {
    let reason = "it does not say what it should".into();
    BenchError::KernelFile { path: path.to_owned(), reason }
}

fn swap_ins(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("pswpin "))?.parse().ok()
}

/// Parses minor and major faults, the 10th and the 12th field of `/proc/self/stat`. The second
/// field is in brackets and may contain anything.
fn faults(stat: &str) -> Option<(u64, u64)> {
    let (_, from_third) = stat.rsplit_once(") ")?;
    let field = |n: usize| from_third.split(' ').nth(n - 3)?.parse().ok();
    Some((field(10)?, field(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name_and_by_place() {
        assert_eq!(swap_ins("pswpin_x 5\npswpin 3\npswpout 4\n"), Some(3));
        assert_eq!(swap_ins("rss 7\n"), None);
        assert_eq!(faults("9 (a) b) S 4 5 6 7 8 9 10 11 12 13"), Some((10, 12)));
        assert_eq!(faults("9 (cut) S 4 5"), None);
    }

    #[test]
    fn a_page_is_held_when_it_is_filled() {
        let mut bytes = vec![0; 5 * PAGE_SIZE];
        let set = Set { pages: touch::Memory::new(&mut bytes), count: 4 };
        let directory =
            std::env::temp_dir().join(format!("overspill-paged-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let usage = directory.join("memory.usage_in_bytes");
        fs::write(&usage, format!("{}\n", 100 * PAGE_SIZE)).unwrap();
        fs::write(directory.join("memory.stat"), "pswpin 1\n").unwrap();
        let counters = Counters::of(&directory).unwrap();
        let limit = || number(&directory.join("memory.limit_in_bytes")).unwrap() / 4096;

        let mut memory = PagedMemory::new(set, 1024, counters).unwrap();
        assert_eq!(limit(), 1124, "nothing is held, so all that is used is beside the trace");
        (0..4).for_each(|page| memory.touch(PageNo(page)).unwrap());
        assert!((0..4).all(|page| memory.holds(PageNo(page))));
        assert_eq!(limit(), 1120, "four of the pages used are the trace's");
        assert_eq!(memory.progress().unwrap().refaults, 1);
        fs::remove_dir_all(directory).unwrap();
    }
}
