//! A small file system, to be filled up.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small ext4 in a file, mounted over a loop device until dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes and mounts one of `mib` MiB at `path`, or returns why it cannot.
    pub(crate) fn mount(path: PathBuf, mib: u64) -> Result<Self, String> {
        let image = path.with_extension("image");
        std::fs::create_dir(&path).map_err(|error| error.to_string())?;
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(mib << 20).map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-O", "^has_journal"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Fills it until `mib` MiB are free.
    pub(crate) fn fill_but(&self, mib: u64) {
        let free = || {
            let status = rustix::fs::statvfs(&self.0).unwrap();
            status.f_bavail * status.f_frsize
        };
        let file = std::fs::File::create(self.0.join("ballast")).unwrap();
        let bytes = free().saturating_sub(mib << 20);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(why) = run(Command::new("umount").arg(&self.0)) {
            eprintln!("{why}");
            let _ = run(Command::new("umount").arg("-l").arg(&self.0));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("{command:?}: {errors}"))
}
