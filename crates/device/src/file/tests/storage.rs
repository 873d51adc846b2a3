//! Storage that tests make and that is gone when they end, however they end. A test is skipped, and
//! prints it, if the system does not allow it any.

use crate::spec::SwapKind;
use overspill_base::PAGE_SIZE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command; returns its output, or why there is none.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mounted file system, unmounted when dropped.
pub(super) struct Mount(pub(super) tempfile::TempDir);

impl Mount {
    pub(super) fn new(args: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        run("mount", &[args, &[text(dir.path())]].concat())?;
        Ok(Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[text(self.0.path())]).unwrap();
    }
}

/// A loop device over a file of `pages` pages, detached when dropped.
pub(super) struct Loop {
    pub(super) node: PathBuf,
    dir: tempfile::TempDir,
}

impl Loop {
    /// Runs `format` on the file to prepare the device's content.
    pub(super) fn new(pages: usize, format: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("disk");
        fs::write(&path, vec![0; pages * PAGE_SIZE]).map_err(|error| error.to_string())?;
        if let [program, args @ ..] = format {
            run(program, &[args, &[text(&path)]].concat())?;
        }
        let node = run("losetup", &["-f", "--show", text(&path)])?.into();
        Ok(Self { node, dir })
    }

    /// The file under the device.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(super) fn kind(&self) -> SwapKind {
        SwapKind::Block { path: self.node.clone() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", text(&self.node)]).unwrap();
    }
}

macro_rules! or_skip {
    ($attempt:expr) => {
        match $attempt {
            Ok(value) => value,
            Err(reason) => return println!("skipped: {reason}"),
        }
    };
}
pub(super) use or_skip;

/// A compressed RAM disk of 8 MiB, removed when dropped.
pub(super) struct Zram(pub(super) String);

impl Zram {
    pub(super) fn new() -> Result<Self, String> {
        let told = |path: String| move |error| format!("{path}: {error}");
        let control = "/sys/class/zram-control/hot_add".to_owned();
        let number = fs::read_to_string(&control).map_err(told(control))?;
        let zram = Self(number.trim().to_owned());
        let size = format!("/sys/block/zram{}/disksize", zram.0);
        fs::write(&size, "8M").map_err(told(size))?;
        run("mkswap", &["-q", &zram.node()])?;
        Ok(zram)
    }

    pub(super) fn node(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        fs::write(format!("/sys/block/zram{}/reset", self.0), "1").unwrap();
        fs::write("/sys/class/zram-control/hot_remove", &self.0).unwrap();
    }
}
