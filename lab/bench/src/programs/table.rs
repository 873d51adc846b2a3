//! The programs.
//!
//! Owns: their names, what they need, their limits.
//! Invariants: a script defines `prepare`, which is not measured, and `work`, which prints the same
//! in every run. Both run in a directory of the program's own. The limit is about a quarter of what
//! the program takes when it has all it wants.
//! Not here: how they are run ([`super::run`]).

use overspill::Bytes;
use std::path::Path;

/// A program to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// On command lines and in tables.
    pub name: &'static str,
    /// What it runs, besides a shell.
    tools: &'static [&'static str],
    /// Its limit under the kernel and under Overspill, in MiB.
    limit_mib: u64,
    script: &'static str,
}

/// Files that scripts read.
const SHARED: [(&str, &str); 2] = [
    ("lines.sh", include_str!("scripts/lines.sh")),
    ("server.sh", include_str!("scripts/server.sh")),
];

/// The file that names SQLite's sources for scripts.
pub(super) const SQLITE: &str = "SQLITE";

macro_rules! program {
    ($name:literal, $limit_mib:literal, $tools:expr) => {
        Program {
            name: $name,
            tools: &$tools,
            limit_mib: $limit_mib,
            script: include_str!(concat!("scripts/", $name, ".sh")),
        }
    };
}

/// All.
pub const PROGRAMS: [Program; 11] = [
    program!("sort-log", 64, ["sort", "awk"]),
    program!("sort-random", 64, ["sort", "awk"]),
    program!("redis-uniform", 64, ["redis-server", "redis-benchmark", "redis-cli"]),
    program!("redis-zipf", 64, ["redis-server", "redis-cli", "python3"]),
    program!("sqlite", 32, ["cc"]),
    program!("numpy-groupby", 96, ["python3"]),
    program!("numpy-matrix", 64, ["python3"]),
    program!("gcc", 64, ["gcc", "objcopy"]),
    program!("postgres", 64, ["psql", "pgbench", "setpriv"]),
    program!("xz", 32, ["xz", "awk"]),
    program!("python", 64, ["python3"]),
];

impl Program {
    /// Returns its limit.
    pub(super) fn limit(&self) -> Bytes {
        Bytes(self.limit_mib << 20)
    }

    /// Says what is missing here to run it.
    pub(super) fn lacks(&self, sqlite: Option<&Path>) -> Option<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_here =
            |tool: &&&str| std::env::split_paths(&path).any(|dir| dir.join(tool).exists());
        if let Some(tool) = self.tools.iter().find(|tool| !is_here(tool)) {
            return Some(format!("there is no `{tool}`"));
        }
        let asks = self.script.contains(SQLITE) && sqlite.is_none();
        asks.then(|| "it takes --sqlite, SQLite's sources".into())
    }

    /// Writes its scripts to `directory`.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(super) fn unpack(&self, directory: &Path) -> std::io::Result<()> {
        SHARED.iter().try_for_each(|(name, text)| std::fs::write(directory.join(name), text))?;
        std::fs::write(directory.join("program.sh"), self.script)
    }
}
