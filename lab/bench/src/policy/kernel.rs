//! The kernel's column: its setup on the machine, and one process for each trace.
//!
//! Owns: a control group, and the first swap device that can be made here: zram, or the RAM disk,
//! or a file. zram is first because the kernel does no readahead on it, so that the count shows
//! which pages it keeps.
//! Invariants: kernel swap is on only while a process replays a trace. No kernel setting is
//! changed. [`Undo`] removes everything, as for `compare`. There is a row for each trace or none at
//! all: with as little memory as 1024 pages the kernel may kill the process.
//! Not here: the process that is paged ([`super::paged`]).
//! Rejected: replaying in this process. A group would charge its other memory too.

use super::{PolicyOptions, PolicyRow, Workload};
use crate::Device;
use crate::compare::Place;
use crate::compare::child::{self, Interrupted};
use crate::compare::kernel::{Group, Skipped, SwapDevice, other_swap};
use crate::compare::undo::Undo;
use crate::error::BenchError;
use crate::touch::SET_MAX;
use overspill::Bytes;
use std::process::Command;
use std::time::Duration;

/// Returns a row for each trace, or none, and a description of how they were made or why not.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub(super) fn column(
    options: &PolicyOptions,
    workloads: &[Workload],
    progress: &dyn Fn(&str),
) -> Result<(String, Vec<PolicyRow>), BenchError> {
    let set_pages = workloads.iter().map(|workload| workload.set_pages(options.memory_pages)).max();
    let made = Kernel::new(options, set_pages.unwrap_or(0)).and_then(|kernel| {
        progress(&kernel.about());
        let rows = workloads.iter().map(|workload| kernel.replay(workload, options));
        match rows.collect() {
            Err(BenchError::Interrupted) => Ok(Err(BenchError::Interrupted)),
            Err(error) => Err(error.to_string()),
            Ok(rows) => Ok(Ok((kernel.about(), rows))),
        }
    });
    made.unwrap_or_else(|reason| {
        let line = format!("skipped: kernel: {reason}");
        progress(&line);
        Ok((line, Vec::new()))
    })
}

/// The kernel's side. Fields are dropped in this order.
struct Kernel {
    swap: SwapDevice,
    device: Device,
    group: Group,
    place: Place,
    interrupted: Interrupted,
}

/// Time for a process to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for each touch: a read from a slow disk.
const PATIENCE_OF_TOUCH: Duration = Duration::from_millis(1);

impl Kernel {
    /// Creates what is needed to replay traces of at most `set_pages` pages.
    ///
    /// # Errors
    /// Why there is no kernel column here.
    fn new(options: &PolicyOptions, set_pages: usize) -> Result<Self, Skipped> {
        if let Some(areas) = other_swap() {
            return Err(format!("other swap is on ({areas}) and would be used; swapoff it"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("control groups and swapon take root".into());
        }
        let undo = Undo::begin().map_err(|error| error.to_string())?;
        // The process limits itself when it knows its memory besides the pages.
        let group = Group::new(&undo, SET_MAX)?;
        let place = options.place.clone();
        // Twice the set, as for the engine.
        let (device, swap) = swap_device(Bytes::of_pages(2 * set_pages as u64), &place, &undo)?;
        let interrupted = child::watch_signals().map_err(|error| error.to_string())?;
        Ok(Self { swap, device, group, place, interrupted })
    }

    /// Describes the setup for the reader.
    fn about(&self) -> String {
        let read = |path: &str, otherwise: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_else(|_| otherwise.into());
            text.trim().to_owned()
        };
        format!(
            "kernel: swap on {}, control group version {}, page-cluster {}, multi-generational LRU {}",
            self.device.name(),
            self.group.version,
            read("/proc/sys/vm/page-cluster", "unknown"),
            read("/sys/kernel/mm/lru_gen/enabled", "not there")
        )
    }

    /// Replays a trace in its own process.
    ///
    /// # Errors
    /// [`BenchError::Child`], [`BenchError::Interrupted`].
    fn replay(
        &self,
        workload: &Workload,
        options: &PolicyOptions,
    ) -> Result<PolicyRow, BenchError> {
        let PolicyOptions { memory_pages, touches, .. } = *options;
        let mut command = Command::new(&self.place.lab);
        command.args(["replay", workload.name, "--cgroup"]).arg(&self.group.path);
        command.args(["--memory-pages", &memory_pages.to_string()]);
        command.args(["--touches", &touches.to_string()]);
        let all_touches = (workload.set_pages(memory_pages) + touches) as u32;
        let patience = PATIENCE + PATIENCE_OF_TOUCH * all_touches;
        let _on = self.swap.on()?;
        let printed =
            child::again_if_killed(|| child::run(&command, patience, Some(&self.interrupted)))?;
        serde_json::from_str(&printed.output).map_err(|error| BenchError::Child {
            what: format!("bench replay {}", workload.name),
            reason: format!("its report cannot be read: {error}"),
        })
    }
}

/// Returns the first device that can be made, or why none can.
fn swap_device(size: Bytes, place: &Place, undo: &Undo) -> Result<(Device, SwapDevice), Skipped> {
    let mut reasons = Vec::new();
    for (name, device) in Device::ALL {
        match SwapDevice::new(device, size, place, undo) {
            Ok(swap) => return Ok((device, swap)),
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    Err(reasons.join("; "))
}
