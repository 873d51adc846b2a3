//! The machine of a measurement, which is part of every report.

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// What a reader must know to compare.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// CPUs this process may run on.
    pub cpus: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// The processor, as the kernel calls it.
    pub processor: String,
    /// True in a debug build, whose figures mean nothing.
    pub debug_build: bool,
}

impl Environment {
    /// Reads this machine and build.
    pub(crate) fn read() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor =
            model.and_then(|rest| rest.split_once(": ")).map(|(_, name)| name.to_owned());
        Self {
            cpus: overspill_base::clock::cpu_count(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processor: processor.unwrap_or_else(|| "unknown".into()),
            debug_build: cfg!(debug_assertions),
        }
    }
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} CPUs ({}), Linux {}", self.cpus, self.processor, self.kernel)?;
        if self.debug_build { f.write_str(", DEBUG BUILD: figures mean nothing") } else { Ok(()) }
    }
}

/// Returns the CPU time of all threads of this process so far. It does not run while other programs
/// have the CPUs.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
