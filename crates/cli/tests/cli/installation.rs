//! A directory with the program, a stand-in for the preload object, and what tests build.
//!
//! Invariants: no executable is ever open for writing in this process. A child forked by another
//! test thread would inherit the descriptor for a moment, and executing the file would fail
//! (ETXTBSY).

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Programs to run: the shortest possible, and an inert shared object.
const MAIN_C: &str = "int main(void) { return 0; }\n";

pub(crate) struct Installation(TempDir);

impl Installation {
    /// Installs the program alone.
    pub(crate) fn bare() -> Self {
        Self::in_directory("overspill-")
    }

    /// Installs the program beside a preload object that does nothing.
    pub(crate) fn complete() -> Self {
        let installation = Self::bare();
        installation.cc(&["-shared", "-fPIC"], "liboverspill_preload.so");
        installation
    }

    /// As [`Self::bare`], with a directory name that begins with `prefix`.
    pub(crate) fn in_directory(prefix: &str) -> Self {
        // On the program's file system, so that it can be hard-linked.
        let parent = env!("CARGO_TARGET_TMPDIR");
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent).unwrap();
        let program = directory.path().join("overspill");
        std::fs::hard_link(env!("CARGO_BIN_EXE_overspill"), program).unwrap();
        std::fs::write(directory.path().join("main.c"), MAIN_C).unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles the C program with `flags`.
    pub(crate) fn cc(&self, flags: &[&str], name: &str) -> PathBuf {
        let output = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(flags).arg("-o").arg(&output).arg(self.path("main.c"));
        assert!(cc.status().unwrap().success(), "{cc:?}");
        output
    }

    /// Makes an executable file with `content`.
    pub(crate) fn executable(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        let mut install = Command::new("install");
        install.args(["-m", "755", "/dev/stdin"]).arg(&path);
        let mut install = install.stdin(Stdio::piped()).spawn().unwrap();
        install.stdin.take().unwrap().write_all(content.as_ref()).unwrap();
        assert!(install.wait().unwrap().success());
        path
    }

    pub(crate) fn overspill(&self) -> Command {
        let mut command = Command::new(self.path("overspill"));
        // None of the machine's.
        command.env("OVERSPILL_CONFIG", "");
        command
    }

    /// Returns a command that runs `program` in 64 MiB.
    pub(crate) fn run(&self, options: &[&str], program: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.overspill();
        command.args(["run", "--memory", "64M", "--swap", "ram:1M"]).args(options);
        command.arg("--").args(program);
        command
    }
}

impl Installation {
    /// As [`run`](Self::run), with a pager in the program.
    pub(crate) fn run_inside(&self, options: &[&str], program: &[impl AsRef<OsStr>]) -> Command {
        self.run(&[&["--way", "preload"], options].concat(), program)
    }
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Asserts that a command fails with `status` and one line that contains all `words`.
pub(crate) fn assert_fails(command: &mut Command, status: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {text}");
    assert!(text.starts_with("overspill: ") && text.trim_end().lines().count() == 1, "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` in {text}");
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns false, and prints the reason, if no program can be paged from outside here.
pub(crate) fn can_be_kept() -> bool {
    let output = Installation::bare().run(&["--way", "keeper"], &["true"]).output().unwrap();
    if !output.status.success() {
        println!("skipped: {}", stderr(&output));
    }
    output.status.success()
}

/// Returns false, and prints the reason, if no run can start here.
pub(crate) fn can_run() -> bool {
    let obstacle = overspill::doctor::obstacle();
    if let Some(finding) = &obstacle {
        println!("skipped: {}: {}", finding.what, finding.detail);
    }
    obstacle.is_none()
}
