//! A directory with the program, and what tests build.
//!
//! Invariants: no executable is ever open for writing in this process. A child forked by another
//! test thread would inherit the descriptor for a moment, and executing the file would fail
//! (ETXTBSY).

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The shortest program.
const MAIN_C: &str = "int main(void) { return 0; }\n";

pub(crate) struct Installation(TempDir);

impl Installation {
    /// Installs the program alone.
    pub(crate) fn new() -> Self {
        // On the program's file system, so that it can be hard-linked.
        let parent = env!("CARGO_TARGET_TMPDIR");
        let directory = tempfile::Builder::new().prefix("overspill-").tempdir_in(parent).unwrap();
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

/// Returns false, and prints the reason, if no run can start here.
pub(crate) fn can_run() -> bool {
    let output = Installation::new().run(&[], &["true"]).output().unwrap();
    if !output.status.success() {
        println!("skipped: {}", stderr(&output));
    }
    output.status.success()
}
