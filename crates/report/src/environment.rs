//! The machine of a measurement, which is part of every report.

use serde::Serialize;

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
    pub fn read() -> Self {
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
