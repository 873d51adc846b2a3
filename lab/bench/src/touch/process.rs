//! This process, as the kernel sees it.

use crate::error::BenchError;
use overspill_base::PAGE_SIZE;
use std::fs;
use std::path::Path;

/// Moves this process to a control group, which is charged for what it touches from now on.
///
/// # Errors
/// [`BenchError::Group`].
pub(crate) fn enter_group(group: &Path) -> Result<(), BenchError> {
    let file = group.join("cgroup.procs");
    fs::write(&file, "0").map_err(|source| BenchError::Group { path: file, source })
}

/// Returns the resident bytes of this process.
pub(super) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * PAGE_SIZE as u64
}

/// Returns the peak of the resident bytes.
pub(super) fn peak_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_at_least_what_is_resident() {
        let resident = resident_bytes();
        // Any process has some pages; the kernel's count may lag by a few dozen per thread.
        assert!(resident > 0 && peak_resident_bytes() + (1 << 20) >= resident);
    }
}
