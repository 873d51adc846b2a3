//! The published experiments: the machines, what was measured on them, and the marks for the
//! simulation.
//!
//! Owns: the table.
//! Invariants: the two sides of an experiment differ only in the mechanism; all experiments share
//! one cost model. A mark is a range that was set before anything was simulated.
//! Sources: the mails of the patches, see each experiment.
//! Not here: running machines (`machine`).

use crate::device::{DISK, DeviceModel, NVME, OPTANE, PMEM};
use crate::error::SimError;
use crate::machine::{Pattern, Plan};
use crate::marks::{Figure, Mark};
use crate::sample::Sample;
use overspill_area::{Preset, ScanBase};
use overspill_base::sync::LockClass;
use overspill_base::work::Path;
use overspill_engine::Tuning;

/// Two engines on one machine.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) source: &'static str,
    pub(crate) plan: Plan,
    pub(crate) before: (&'static str, Tuning),
    pub(crate) after: (&'static str, Tuning),
    /// The compared figures, from the samples before and after.
    pub(crate) figures: fn(&Sample, &Sample) -> Vec<Figure>,
}

/// Returns the names and descriptions of all experiments.
pub fn presets() -> Vec<(&'static str, &'static str)> {
    all().into_iter().map(|experiment| (experiment.name, experiment.about)).collect()
}

/// # Errors
/// [`SimError::Unknown`].
pub(crate) fn find(name: &str) -> Result<Experiment, SimError> {
    let all = all();
    let known: Vec<&str> = all.iter().map(|experiment| experiment.name).collect();
    let known = known.join(", ");
    let found = all.into_iter().find(|experiment| experiment.name == name);
    found.ok_or_else(|| SimError::Unknown { kind: "preset", name: name.to_owned(), known })
}

pub(crate) fn all() -> Vec<Experiment> {
    vec![rotate(), series(), scan_more(), scan_base_v1(), scan_base_v2(), nvme(), optane()]
}

/// 16 processes of pmbench on two sockets of 24 CPUs, a device for each socket.
pub(crate) fn pmbench(device: DeviceModel) -> Plan {
    Plan {
        cpus: 48,
        sockets: 2,
        nodes: 2,
        threads: 16,
        processes: true,
        frames: 8192,
        working_set: 4.0,
        devices: 1,
        device_slots: 1 << 19,
        device,
        network: None,
        foreign: 0.6,
        sparse: false,
        pattern: Pattern::Random,
        interrupt_cpu: None,
        settle_s: 0.02,
        seconds: 1.0,
    }
}

fn linux_5_7() -> Tuning {
    Tuning::of(Preset::Linux5_7)
}

fn with_scan_more() -> Tuning {
    let mut tuning = linux_5_7();
    tuning.area.scan_more = true;
    tuning
}

fn scan_more() -> Experiment {
    Experiment {
        name: "scan-more",
        about: "try to scan a little more when fragmented (5.8)",
        source: "LKML, 27 Apr 2020: pmbench, 16 processes, 80/20, 2 sockets of 24 CPUs, ram disks",
        plan: pmbench(PMEM),
        before: ("linux-5.7", linux_5_7()),
        after: ("linux-5.7 + scan_more", with_scan_more()),
        figures: |before, after| {
            vec![
                score(before, after, "+37.1 %").mark(Mark::Change(25.0, 50.0)),
                swap_in(before, after, 2.02, 2.94).mark(Mark::Near(25.0)),
                swap_out(before, after, 2.04, 2.97).mark(Mark::Near(25.0)),
                share("area lock, get_swap_pages", before, after, &[(LockClass::Area, SLOTS)])
                    .published(Some(21.03), Some(0.0))
                    .mark(Mark::Shares((15.0, 28.0), 1.0)),
                inactive(before, after).published(Some(1.92), Some(4.89)),
                active(before, after).published(Some(1.72), Some(3.85)),
            ]
        },
    }
}

/// The first version: bases continue from where they were, and never jump.
fn v1() -> Tuning {
    let mut tuning = v2();
    // A trunk that no CPU ever leaves.
    tuning.area.trunk_slots = 1 << 31;
    tuning
}

fn v2() -> Tuning {
    let mut tuning = with_scan_more();
    tuning.area.scan_base = ScanBase::PerCpu;
    tuning
}

fn scan_base_v1() -> Experiment {
    Experiment {
        name: "scan-base-v1",
        about: "a scan base per CPU, first form (5.8)",
        source: "LKML, 14 May 2020 (v1): as scan-more, one ram disk per socket",
        plan: pmbench(PMEM),
        before: ("linux-5.7 + scan_more", with_scan_more()),
        after: ("+ a base per CPU", v1()),
        figures: |before, after| {
            vec![
                score(before, after, "+15.9 %").mark(Mark::Change(10.0, 25.0)),
                swap_in(before, after, 2.84, 3.30),
                swap_out(before, after, 2.87, 3.33),
                trunk(before, after).published(Some(14.96), Some(0.53)),
                freeing(before, after).published(Some(2.90), Some(3.00)),
                inactive(before, after).published(Some(1.32), Some(1.47)),
                active(before, after).published(Some(0.87), Some(1.31)),
            ]
        },
    }
}

fn scan_base_v2() -> Experiment {
    Experiment {
        name: "scan-base-v2",
        about: "a scan base per CPU that jumps to random trunks (5.8, as merged)",
        source: "LKML, 20 May 2020 (v2): as scan-more, one ram disk per socket",
        plan: pmbench(PMEM),
        before: ("linux-5.7 + scan_more", with_scan_more()),
        after: ("linux-5.8", v2()),
        figures: |before, after| {
            vec![
                score(before, after, "+18.5 %").mark(Mark::Change(10.0, 25.0)),
                swap_in(before, after, 2.96, 3.51),
                swap_out(before, after, 2.99, 3.54),
                trunk(before, after)
                    .published(Some(15.02), Some(0.0))
                    .mark(Mark::Shares((8.0, 20.0), 1.5)),
                freeing(before, after).published(Some(2.51), Some(3.58)),
                inactive(before, after).published(Some(1.29), Some(2.30)),
                active(before, after).published(Some(0.93), Some(1.80)),
            ]
        },
    }
}

/// Drives take long to reach a steady state: writes wait in their queues.
fn on_drives(device: DeviceModel) -> Plan {
    Plan { settle_s: 1.0, seconds: 1.0, ..pmbench(device) }
}

fn nvme() -> Experiment {
    Experiment {
        name: "scan-base-nvme",
        about: "a scan base per CPU, on flash drives",
        source: "LKML, 20 May 2020, in the discussion of v2: two P3600",
        plan: on_drives(NVME),
        before: ("linux-5.7 + scan_more", with_scan_more()),
        after: ("linux-5.8", v2()),
        figures: |before, after| {
            vec![
                score(before, after, "about +1 %").mark(Mark::Change(-3.0, 3.0)),
                swap_in_of(before, after),
                swap_out_of(before, after),
                trunk(before, after),
            ]
        },
    }
}

fn optane() -> Experiment {
    Experiment {
        name: "scan-base-optane",
        about: "a scan base per CPU, on Optane drives",
        source: "LKML, June 2020, in the discussion of v2 and v3: two Optane drives",
        plan: on_drives(OPTANE),
        before: ("linux-5.7 + scan_more", with_scan_more()),
        after: ("linux-5.8", v2()),
        figures: |before, after| {
            vec![
                score(before, after, "+1.7 %").mark(Mark::Change(-3.0, 3.0)),
                swap_in(before, after, 1.36, 1.39),
                swap_out(before, after, 1.61, 1.63),
                trunk(before, after).published(Some(1.76), Some(0.0)),
            ]
        },
    }
}

fn series() -> Experiment {
    let plan = Plan {
        cpus: 36,
        nodes: 1,
        threads: 8,
        processes: false,
        frames: 16384,
        working_set: 2.0,
        device_slots: 1 << 18,
        foreign: 0.0,
        ..pmbench(PMEM)
    };
    Experiment {
        name: "series-4.11",
        about: "the swap scalability series (4.11)",
        source: "LKML, Sep 2016: 8 threads, random access, twice as much as memory, 2-socket Haswell, pmem",
        plan,
        before: ("linux-4.8", Tuning::of(Preset::Linux4_8)),
        after: ("linux-4.11", Tuning::of(Preset::Linux4_11)),
        figures: |before, after| {
            let median = |sample: &Sample| sample.fault_p50_us;
            vec![
                Figure::new("fault latency, median", "µs", median(before), median(after))
                    .published(Some(15.0), Some(4.0))
                    .claimed("-73 % (\"375 %\")")
                    .mark(Mark::Within((11.0, 19.0), (3.0, 6.0))),
                all_locks(before, after).published(Some(35.0), None).mark(Mark::Before(25.0, 45.0)),
                score(before, after, ""),
                trunk(before, after),
                share("area lock, all paths", before, after, &[(LockClass::Area, None)]),
            ]
        },
    }
}

fn rotate() -> Experiment {
    let plan = Plan {
        cpus: 4,
        sockets: 1,
        nodes: 1,
        threads: 4,
        frames: 16384,
        working_set: 16.0,
        device_slots: 1 << 19,
        foreign: 0.0,
        pattern: Pattern::Fresh,
        interrupt_cpu: Some(0),
        settle_s: 1.0,
        seconds: 1.0,
        ..pmbench(DISK)
    };
    let mut after = Tuning::of(Preset::Linux2_6_23);
    after.rotate_batch_pages = 14;
    Experiment {
        name: "rotate-batch",
        about: "rotation of reclaimable pages in batches (2.6.24), seen by a ping",
        source: "linux-mm, 18 Sep 2007: flood ping during memory pressure, 4 CPUs, 3000 packets",
        plan,
        before: ("linux-2.6.23", Tuning::of(Preset::Linux2_6_23)),
        after: ("linux-2.6.23 + rotate_batch 14", after),
        figures: |before, after| {
            let ping = |sample: &Sample| sample.ping.unwrap_or_default();
            let (b, a) = (ping(before), ping(after));
            let ms = |what, before, after| Figure::new(what, "ms", before, after);
            let rotations = |sample: &Sample| sample.rate(LockClass::Lru, Path::Rotate);
            vec![
                ms("ping min", b.min_ms, a.min_ms).published(Some(0.074), Some(0.072)),
                ms("ping avg", b.avg_ms, a.avg_ms)
                    .published(Some(0.652), Some(0.108))
                    .mark(Mark::TimesLess(3.0)),
                ms("ping max", b.max_ms, a.max_ms)
                    .published(Some(172.228), Some(3.884))
                    .mark(Mark::TimesLess(10.0)),
                ms("ping mdev", b.mdev_ms, a.mdev_ms).published(Some(7.176), Some(0.114)),
                Figure::new("LRU lock taken to rotate", "/s", rotations(before), rotations(after)),
                all_locks(before, after),
            ]
        },
    }
}

const SLOTS: Option<Path> = Some(Path::GetSwapPages);

fn score(before: &Sample, after: &Sample, claimed: &'static str) -> Figure {
    Figure::new("score", "accesses/s", before.score, after.score).claimed(claimed)
}

fn swap_in_of(before: &Sample, after: &Sample) -> Figure {
    Figure::new("swap-in", "GB/s", before.swap_in_gb_per_s, after.swap_in_gb_per_s)
}

fn swap_out_of(before: &Sample, after: &Sample) -> Figure {
    Figure::new("swap-out", "GB/s", before.swap_out_gb_per_s, after.swap_out_gb_per_s)
}

fn swap_in(before: &Sample, after: &Sample, b: f64, a: f64) -> Figure {
    swap_in_of(before, after).published(Some(b), Some(a))
}

fn swap_out(before: &Sample, after: &Sample, b: f64, a: f64) -> Figure {
    swap_out_of(before, after).published(Some(b), Some(a))
}

fn share(
    what: &'static str,
    before: &Sample,
    after: &Sample,
    of: &[(LockClass, Option<Path>)],
) -> Figure {
    let sum = |sample: &Sample| of.iter().map(|&(class, path)| sample.share(class, path)).sum();
    Figure::new(what, "% of CPU time", sum(before), sum(after))
}

/// Linux looks up pages in the swap cache without a lock. The engine's lookups take it, so they are
/// counted too.
fn trunk(before: &Sample, after: &Sample) -> Figure {
    share("swap cache locks, all paths", before, after, &[(LockClass::SwapCache, None)])
}

fn freeing(before: &Sample, after: &Sample) -> Figure {
    let path = Some(Path::SwapcacheFreeEntries);
    let of = [(LockClass::Area, path), (LockClass::Cluster, path)];
    share("area lock, swapcache_free_entries", before, after, &of)
}

fn inactive(before: &Sample, after: &Sample) -> Figure {
    let of = [(LockClass::Lru, Some(Path::ShrinkInactiveList))];
    share("LRU lock, shrink_inactive_list", before, after, &of)
}

fn active(before: &Sample, after: &Sample) -> Figure {
    let of = [(LockClass::Lru, Some(Path::ShrinkActiveList))];
    share("LRU lock, shrink_active_list", before, after, &of)
}

fn all_locks(before: &Sample, after: &Sample) -> Figure {
    Figure::new("all locks", "% of CPU time", before.locks_percent, after.locks_percent)
}
