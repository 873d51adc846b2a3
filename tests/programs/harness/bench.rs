//! The environment of a test: its turn, its directory, its tools.
//!
//! Invariants: there is one bench at a time. Its directory is removed with all files in it.

use crate::job::Job;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

static TURN: Mutex<()> = Mutex::new(());

/// A directory on a disk, for one test.
pub struct Bench {
    directory: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    /// Makes a bench if all `tools` are installed, those of ours are built, and a run can start;
    /// otherwise prints why not.
    pub fn with(tools: &[&str]) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = obstacle(tools) {
            println!("skipped: {reason}");
            return None;
        }
        let prefix = "overspill-test-";
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(disk()).unwrap();
        Some(Self { directory, _turn: turn })
    }

    /// Returns the path of `name` here.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a job that runs `words` here.
    pub fn job(&self, words: &[impl AsRef<OsStr>]) -> Job {
        Job::new(self.directory.path(), words)
    }

    /// Makes a file with what `content` writes.
    pub fn file(&self, name: &str, content: impl FnOnce(&mut dyn Write)) -> PathBuf {
        let path = self.path(name);
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).unwrap());
        content(&mut file);
        file.flush().unwrap();
        path
    }

    /// Compiles a C program of `tests/programs`.
    pub fn cc(&self, source: &str) -> PathBuf {
        self.cc_with(source, &[], source.trim_end_matches(".c"))
    }

    /// As [`cc`](Self::cc), with more flags and another output name.
    pub fn cc_with(&self, source: &str, flags: &[&str], name: &str) -> PathBuf {
        let output = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        cc.args(flags)
            .arg("-o")
            .arg(&output)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
            .arg("-ldl");
        assert!(cc.status().unwrap().success(), "{cc:?}");
        output
    }
}

/// Returns the directory for files too big for memory, where swap goes by default.
pub fn disk() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

/// Returns the program under test.
pub fn overspill() -> PathBuf {
    built("overspill")
}

/// Returns the laboratory's program.
pub fn lab() -> PathBuf {
    built("overspill-lab")
}

/// What was built in the target directory in which this test was: the release, or what
/// `OVERSPILL_TEST_PROFILE` says.
fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let profile = std::env::var("OVERSPILL_TEST_PROFILE").unwrap_or_else(|_| "release".into());
    this.ancestors().nth(3).unwrap().join(profile).join(name)
}

fn obstacle(tools: &[&str]) -> Option<String> {
    let missing = overspill();
    if !missing.exists() {
        return Some(format!("no {}: `make lab`, or `make program`", missing.display()));
    }
    if let Some(finding) = overspill::doctor::obstacle() {
        return Some(format!("{}: {}", finding.what, finding.detail));
    }
    tools.iter().find(|tool| !is_installed(tool)).map(|tool| format!("{tool} is not installed"))
}

fn is_installed(tool: &str) -> bool {
    if tool.starts_with("overspill-") {
        return built(tool).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(tool).is_file())
}
