//! The ways to have more memory than there is, and the devices they use.
//!
//! Owns: the names, which devices of the two sides correspond, and the command line of each way.
//! Invariants: every way runs the same program with the same options about what it touches.
//! Not here: making devices ([`super::kernel`]).

use super::CompareOptions;
use crate::touch::Habits;
use overspill::Bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The kernel, for a process in a memory control group.
    Kernel,
    /// `overspill run`, for an unmodified program.
    Run,
    /// The library, for a region whose faults come as messages.
    Region,
    /// The library, for a region whose faults come as signals.
    Signal,
    /// The library, for a pool whose pages are requested explicitly.
    Pool,
}

impl Way {
    /// All, with their names on command lines.
    pub const ALL: [(&'static str, Self); 5] = [
        ("kernel", Self::Kernel),
        ("run", Self::Run),
        ("region", Self::Region),
        ("signal", Self::Signal),
        ("pool", Self::Pool),
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        name_of(&Self::ALL, self)
    }
}

/// Where pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Memory compressed by lz4: zram, and `compressed:`.
    Zram,
    /// Memory: a loop device over a file in it, and `ram:`.
    Ramdisk,
    /// A file on a disk.
    File,
    /// Memory of an NBD server.
    Nbd,
    /// Memory of a Redis cluster.
    Redis,
}

impl Device {
    /// All, with their names on command lines.
    pub const ALL: [(&'static str, Self); 5] = [
        ("zram", Self::Zram),
        ("ramdisk", Self::Ramdisk),
        ("file", Self::File),
        ("nbd", Self::Nbd),
        ("redis", Self::Redis),
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        name_of(&Self::ALL, self)
    }

    /// Returns what Overspill swaps to when the kernel swaps to this; none if that is a server's.
    pub(crate) fn counterpart(self, size: Bytes, directory: &Path) -> Option<String> {
        match self {
            Self::Zram => Some(format!("compressed:{}", size.0)),
            Self::Ramdisk => Some(format!("ram:{}", size.0)),
            Self::File => Some(format!("file:{}:{}", directory.display(), size.0)),
            Self::Nbd | Self::Redis => None,
        }
    }

    /// Returns why there is nothing to measure of a way on this device.
    pub(super) fn lacks(self, way: Way) -> Option<&'static str> {
        match (self, way) {
            (Self::Zram | Self::Ramdisk | Self::File, _) | (_, Way::Run) => None,
            (_, Way::Kernel) => Some("its own client of such a server is not set up here"),
            (_, Way::Region | Way::Signal | Way::Pool) => Some("the library uses no servers"),
        }
    }

    /// Describes both sides, for reports.
    pub fn about(self) -> &'static str {
        match self {
            Self::Zram => "zram (lz4) / compressed:",
            Self::Ramdisk => "loop on tmpfs / ram:",
            Self::File => "swap file / file:",
            Self::Nbd => "- / nbd: of nbdkit in memory, here",
            Self::Redis => "- / redis+cluster: of one server, here",
        }
    }
}

fn name_of<T: PartialEq + Copy>(all: &[(&'static str, T)], one: T) -> &'static str {
    all.iter().find(|(_, known)| *known == one).expect("the table has all").0
}

/// What a comparison runs, and where.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program of `overspill run`.
    pub overspill: PathBuf,
    /// This program, which has the measured one as a subcommand.
    pub lab: PathBuf,
    /// For swap files of both sides.
    pub directory: PathBuf,
}

/// One run of the measured program, except for the way.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) options: &'a CompareOptions,
    pub(super) device: Device,
    /// What Overspill swaps to.
    pub(super) swap: &'a str,
    pub(super) workload: &'a str,
    pub(super) jobs: usize,
    pub(super) seed: usize,
    pub(super) idle_seconds: f64,
}

impl Run<'_> {
    /// Returns its command line; `group` is given if the kernel takes part.
    pub(super) fn command(&self, way: Way, group: Option<&Path>) -> Command {
        let memory = self.options.memory.0.to_string();
        let limit = ["--memory", &memory, "--swap", self.swap];
        let mut command = Command::new(&self.options.place.lab);
        match way {
            Way::Kernel => {
                command.args(self.touch()).arg("--cgroup").args(group);
            }
            Way::Run => {
                command = Command::new(&self.options.place.overspill);
                command.args(["run", "--quiet", "--stats", "/dev/stderr"]).args(limit);
                command.arg("--").arg(&self.options.place.lab).args(self.touch());
            }
            Way::Region => {
                command.args(self.touch()).args(limit);
            }
            Way::Signal => {
                command.args(self.touch()).args(limit).args(["--faults", "signal"]);
            }
            Way::Pool => {
                command.args(self.touch()).args(limit).args(["--faults", "explicit"]);
            }
        }
        command
    }

    /// Returns the words of `overspill-lab touch`.
    fn touch(&self) -> Vec<String> {
        let Habits { set, seconds, ratio, shape, offset, content } = self.options.habits;
        let mut words = vec!["touch".to_owned(), self.workload.into()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--jobs", self.jobs.to_string());
        option("--set", set.0.to_string());
        option("--seconds", seconds.to_string());
        option("--ratio", ratio.to_string());
        option("--content", content.name().to_owned());
        option("--seed", self.seed.to_string());
        option("--idle", self.idle_seconds.to_string());
        shape.into_iter().for_each(|shape| option("--shape", shape.to_string()));
        offset.into_iter().for_each(|offset| option("--offset", offset.to_string()));
        words
    }
}
