//! The kernel's side: a memory control group, and devices to swap to.
//!
//! Owns: creating them.
//! Invariants: swap is on only while a program of the kernel's side runs, so that no page of the
//! other side goes there. Everything that is created is entered into [`Undo`].
//! Not here: what is measured on them; swap areas themselves, which `overspill mkswap` makes.
//! Rejected: a file on a tmpfs as the RAM disk unless the tmpfs is mounted `noswap`: a kernel that
//! swaps the tmpfs's own pages to it hangs.

use super::child;
use super::undo::{Step, Undo};
use super::ways::{Device, Place};
use crate::error::BenchError;
use overspill::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of the tools.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the kernel, or a device, cannot be measured.
pub(crate) type Skipped = String;

/// A memory control group, empty.
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    /// 1 or 2.
    pub(crate) version: u8,
    /// In the order in which they must be dropped.
    _removal: Vec<Step>,
}

/// Where groups are, and the file that limits them.
const HIERARCHIES: [(u8, &str, &str); 3] = [
    (2, "/sys/fs/cgroup", "memory.max"),
    (2, "/sys/fs/cgroup/unified", "memory.max"),
    (1, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
];

impl Group {
    /// Creates a group limited to `memory`.
    pub(crate) fn new(undo: &Undo, memory: Bytes) -> Result<Self, Skipped> {
        let found = HIERARCHIES.iter().find(|(version, root, _)| has_memory(*version, root));
        let (version, root, limit) = found.ok_or("no control group has a memory controller")?;
        let root = Path::new(root);
        let mut removal = if *version == 2 { pass_memory_on(root, undo)? } else { Vec::new() };
        let path = root.join("overspill-compare");
        fs::create_dir(&path)
            .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        // A group whose last process has just ended may be busy for a moment.
        let line =
            format!("for n in 1 2 3 4 5; do rmdir {} && break; sleep 0.2; done", path.display());
        removal.insert(0, undo.push(line));
        write(&path.join(limit), &memory.0.to_string())?;
        Ok(Self { path, version: *version, _removal: removal })
    }

    /// How many of its processes were killed for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        let file = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

/// Enables the memory controller for groups below `root`, if it is not enabled.
fn pass_memory_on(root: &Path, undo: &Undo) -> Result<Vec<Step>, Skipped> {
    let control = root.join("cgroup.subtree_control");
    if names_memory(&control) {
        return Ok(Vec::new());
    }
    write(&control, "+memory")?;
    Ok(vec![undo.push(format!("echo -memory >{}", control.display()))])
}

fn names_memory(controllers: &Path) -> bool {
    let names = fs::read_to_string(controllers).unwrap_or_default();
    names.split_whitespace().any(|name| name == "memory")
}

fn has_memory(version: u8, root: &str) -> bool {
    let root = Path::new(root);
    match version {
        1 => root.join("memory.limit_in_bytes").exists(),
        _ => names_memory(&root.join("cgroup.controllers")),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Skipped> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A device that the kernel swaps to.
pub(crate) struct SwapDevice {
    path: PathBuf,
    undo: Undo,
    /// In the order in which they must be dropped.
    _removal: Vec<Step>,
}

impl SwapDevice {
    /// Makes `device` of `size`, ready to be switched on.
    pub(crate) fn new(
        device: Device,
        size: Bytes,
        place: &Place,
        undo: &Undo,
    ) -> Result<Self, Skipped> {
        let (path, removal) = match device {
            Device::Zram => zram(size, undo)?,
            Device::Ramdisk => ramdisk(size, undo)?,
            Device::File => file(size, &place.directory, undo)?,
            Device::Nbd | Device::Redis => return Err("it is on a server".into()),
        };
        let swap = Self { path, undo: undo.clone(), _removal: removal };
        tool(Command::new(&place.overspill).arg("mkswap").arg("--force").arg(&swap.path))?;
        // Checks that it can be switched on at all.
        swap.on().map_err(|error| error.to_string())?;
        Ok(swap)
    }

    /// Switches it on until the step is dropped.
    ///
    /// # Errors
    /// [`BenchError::Child`].
    pub(crate) fn on(&self) -> Result<Step, BenchError> {
        child::run(Command::new("swapon").arg(&self.path), PATIENCE, None)?;
        Ok(self.undo.push(format!("swapoff {}", quoted(&self.path))))
    }
}

type Made = (PathBuf, Vec<Step>);

/// Makes our own zram device: the kernel creates another one on request.
fn zram(size: Bytes, undo: &Undo) -> Result<Made, Skipped> {
    let control = Path::new("/sys/class/zram-control");
    let number = fs::read_to_string(control.join("hot_add"))
        .map_err(|error| format!("the kernel makes no zram device: {error}; try modprobe zram"))?;
    let number = number.trim();
    let block = PathBuf::from(format!("/sys/block/zram{number}"));
    let (reset, remove) = (block.join("reset"), control.join("hot_remove"));
    let line = format!("echo 1 >{}; echo {number} >{}", reset.display(), remove.display());
    let removal = vec![undo.push(line)];
    write(&block.join("comp_algorithm"), "lz4")?;
    write(&block.join("disksize"), &size.0.to_string())?;
    Ok((PathBuf::from(format!("/dev/zram{number}")), removal))
}

/// Makes a loop device over a file in memory that is never swapped itself.
fn ramdisk(size: Bytes, undo: &Undo) -> Result<Made, Skipped> {
    let mount = undo.directory().join("ram");
    fs::create_dir_all(&mount)
        .map_err(|error| format!("cannot make {}: {error}", mount.display()))?;
    let options = format!("noswap,mode=700,size={}", size.0 + (1 << 20));
    tool(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&mount))
        .map_err(|error| format!("{error} (mount option noswap is from Linux 6.4)"))?;
    let unmount = undo.push(format!("umount {}", mount.display()));
    let file = mount.join("swap");
    allocate(&file, size)?;
    let device = tool(Command::new("losetup").args(["-f", "--show"]).arg(&file))?;
    let device = device.trim().to_owned();
    let detach = undo.push(format!("losetup -d {device}"));
    Ok((PathBuf::from(device), vec![detach, unmount]))
}

/// Makes a file with all its blocks allocated.
fn file(size: Bytes, directory: &Path, undo: &Undo) -> Result<Made, Skipped> {
    let path = directory.join(format!("overspill-compare-{}.swap", std::process::id()));
    let removal = undo.push(format!("rm -f {}", quoted(&path)));
    allocate(&path, size)?;
    Ok((path, vec![removal]))
}

/// Makes a file that only we can read, with blocks and no holes.
fn allocate(path: &Path, size: Bytes) -> Result<(), Skipped> {
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = open(path, flags, Mode::RUSR | Mode::WUSR)
        .and_then(|file| fallocate(file, FallocateFlags::empty(), 0, size.0));
    made.map_err(|error| format!("cannot make {} of {size}: {error}", path.display()))
}

fn tool(command: &mut Command) -> Result<String, Skipped> {
    let printed = child::run(command, PATIENCE, None).map_err(|error| error.to_string())?;
    Ok(printed.output)
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Returns the swap areas that are on, if any.
pub(crate) fn other_swap() -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let areas = areas(&swaps);
    (!areas.is_empty()).then(|| areas.join(", "))
}

fn areas(swaps: &str) -> Vec<&str> {
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_one_word_for_a_shell() {
        assert_eq!(quoted(Path::new("/tmp/a b")), "'/tmp/a b'");
        let output = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(Path::new("/it's $HOME")))])
            .output();
        assert_eq!(output.unwrap().stdout, b"/it's $HOME");
    }

    #[test]
    fn areas_are_the_lines_below_the_head() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(areas(head).is_empty());
        let swaps = format!("{head}/dev/zram0 partition 1 0 -2\n/swap file 1 0 -3\n");
        assert_eq!(areas(&swaps), ["/dev/zram0", "/swap"]);
    }
}
