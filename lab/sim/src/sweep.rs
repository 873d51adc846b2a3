//! `sweep`: varies one parameter of the machine, for every preset of the engine.
//!
//! Owns: the values of a parameter, and what else changes with it.
//! Invariants: one parameter varies, otherwise the machine is that of the published experiments;
//! when CPUs vary, the work per CPU stays the same, so that the score of a system that scales grows
//! with them.
//! Not here: running a machine (`machine`).

use crate::device::{PMEM, REDIS};
use crate::error::SimError;
use crate::experiments::pmbench;
use crate::machine::{MACHINE_CPUS, Plan};
use crate::network::{Network, REDIS_NETWORK};
use crate::sample::Sample;
use overspill_area::Preset;
use overspill_engine::Tuning;
use overspill_vcpu::Costs;
use serde::Serialize;
use std::str::FromStr;

/// The parameter that varies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Parameter {
    /// CPUs, all of them in processes of one engine, 32 to a socket and at most 16 sockets.
    Cpus,
    /// Sockets among which 64 CPUs are divided.
    Sockets,
    /// Devices of an engine that 32 CPUs use.
    Devices,
    /// Slots of a device.
    Size,
    /// Share of the slots that others use.
    Fragmentation,
    /// Machines that use 64 servers.
    Clients,
    /// Servers that 256 machines use.
    Servers,
    /// Deaths among 64 servers that 64 machines use, all at once.
    Deaths,
}

impl Parameter {
    const ALL: [(Parameter, &'static str); 8] = [
        (Parameter::Cpus, "cpus"),
        (Parameter::Sockets, "sockets"),
        (Parameter::Devices, "devices"),
        (Parameter::Size, "size"),
        (Parameter::Fragmentation, "fragmentation"),
        (Parameter::Clients, "clients"),
        (Parameter::Servers, "servers"),
        (Parameter::Deaths, "deaths"),
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).expect("ALL has every parameter").1
    }

    /// Returns the values of a sweep if none are given.
    pub fn values(self) -> Vec<f64> {
        match self {
            Self::Cpus => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
            Self::Sockets => vec![1.0, 2.0, 4.0, 8.0, 16.0],
            Self::Devices => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
            Self::Size => vec![1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0],
            Self::Fragmentation => vec![0.0, 0.3, 0.5, 0.7, 0.8, 0.9],
            Self::Clients => vec![1.0, 4.0, 16.0, 64.0, 256.0, 1024.0],
            Self::Servers => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
            Self::Deaths => vec![0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        }
    }

    /// Returns the machine for one value.
    ///
    /// # Errors
    /// [`SimError::OutOfRange`].
    fn plan(self, value: f64, seconds: f64) -> Result<Plan, SimError> {
        let whole = value as usize;
        let base = Plan { nodes: 1, settle_s: 0.005, seconds, ..pmbench(PMEM) };
        let with_cpus = |cpus: usize, sockets| Plan {
            cpus,
            sockets,
            threads: cpus.saturating_sub(1).max(1),
            // The same for each CPU.
            frames: (512 * cpus).max(4096),
            device_slots: (cpus as u32 * 8192).max(1 << 17),
            ..base.clone()
        };
        let plan = match self {
            Self::Cpus => with_cpus(whole, whole.div_ceil(32).clamp(1, 16)),
            Self::Sockets => with_cpus(64, whole),
            Self::Devices => Plan { devices: whole, device_slots: 1 << 17, ..with_cpus(32, 2) },
            Self::Size => {
                crate::error::within("size (GiB)", value, 0.0625..=16383.0 + 1.0)?;
                let slots = ((value * f64::from(1 << 18)) as u64).min((1 << 32) - (1 << 14));
                Plan { device_slots: slots as u32, sparse: true, foreign: 0.0, ..with_cpus(32, 2) }
            }
            Self::Fragmentation => {
                Plan { foreign: value, device_slots: 1 << 20, ..with_cpus(32, 2) }
            }
            Self::Clients => on_network(whole, 64, 0, seconds),
            Self::Servers => on_network(256, whole, 0, seconds),
            Self::Deaths => on_network(64, 64, whole, seconds),
        };
        plan.check()?;
        Ok(plan)
    }
}

/// Machines with a small memory each, whose swap is on servers. With deaths the time that it takes
/// to replace a server is counted as well.
fn on_network(machines: usize, servers: usize, deaths: usize, seconds: f64) -> Plan {
    let model = REDIS_NETWORK;
    let replacing_s = if deaths > 0 { model.failover_ns as f64 / 1e9 } else { 0.0 };
    Plan {
        cpus: machines * MACHINE_CPUS,
        sockets: machines,
        nodes: machines,
        threads: machines,
        frames: 512,
        device_slots: 1 << 13,
        device: REDIS,
        network: Some(Network { model, servers, deaths }),
        foreign: 0.0,
        settle_s: 0.005,
        seconds: seconds + replacing_s,
        ..pmbench(REDIS)
    }
}

impl FromStr for Parameter {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(parameter, _)| *parameter).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
            let (name, known) = (text.to_owned(), known.join(", "));
            SimError::Unknown { kind: "parameter", name, known }
        })
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// The parameter.
    pub over: Parameter,
    /// Its values; if empty, those of [`Parameter::values`].
    pub values: Vec<f64>,
    /// Names of the engine's presets; if empty, all.
    pub presets: Vec<String>,
    /// Virtual seconds counted in each run.
    pub seconds: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The results of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// The parameter.
    pub over: Parameter,
    /// Virtual seconds counted in each run.
    pub seconds: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// One for each preset and value.
    pub points: Vec<SweepPoint>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPoint {
    /// The engine's preset.
    pub preset: &'static str,
    /// The value of the parameter.
    pub value: f64,
    /// The machine.
    pub plan: Plan,
    /// Bytes per slot for slot words, their owners and the swap cache's heads.
    pub metadata_bytes_per_slot: f64,
    /// What was measured.
    pub sample: Sample,
}

impl SweepPoint {
    /// Returns the most expensive lock, with its share of CPU time in per cent.
    pub fn worst_lock(&self) -> Option<(String, f64)> {
        let lock = self.sample.locks.first()?;
        let path = if lock.path.is_empty() { String::new() } else { format!(", {}", lock.path) };
        Some((format!("{}{path}", lock.class), lock.share_percent))
    }
}

/// Runs every preset with every value; `progress` gets a line about each.
///
/// # Errors
/// [`SimError`].
pub fn sweep(options: &SweepOptions, progress: &dyn Fn(&str)) -> Result<SweepReport, SimError> {
    crate::error::within("--seconds", options.seconds, 0.001..=60.0)?;
    let values =
        if options.values.is_empty() { options.over.values() } else { options.values.clone() };
    let presets = chosen(&options.presets)?;
    let plans = values.iter().map(|&value| options.over.plan(value, options.seconds));
    let plans = plans.collect::<Result<Vec<Plan>, SimError>>()?;
    let mut points = Vec::new();
    for &preset in &presets {
        for (&value, plan) in values.iter().zip(&plans) {
            let tuning = Tuning::of(preset);
            let sample = plan.run(tuning, &Costs::DEFAULT, options.seed)?;
            progress(&format!(
                "{}, {} {value}: {:.0} accesses/s",
                preset.name(),
                options.over.name(),
                sample.score
            ));
            points.push(SweepPoint {
                preset: preset.name(),
                value,
                plan: plan.clone(),
                metadata_bytes_per_slot: metadata_bytes(plan.device_slots, &tuning),
                sample,
            });
        }
    }
    let SweepOptions { over, seconds, seed, .. } = *options;
    Ok(SweepReport { over, seconds, seed, points })
}

fn chosen(names: &[String]) -> Result<Vec<Preset>, SimError> {
    if names.is_empty() {
        return Ok(Preset::ALL.iter().map(|(preset, _)| *preset).collect());
    }
    let known = Preset::ALL.map(|(_, name)| name).join(", ");
    let find = |name: &String| {
        name.parse().map_err(|_| SimError::Unknown {
            kind: "preset of the engine",
            name: name.clone(),
            known: known.clone(),
        })
    };
    names.iter().map(find).collect()
}

/// Returns what the engine stores for a slot, used or not, natively: its word (8 bytes); one head
/// of a swap cache chain per 16 slots (4); per cluster two words (8), with scanning its count, list
/// and links (20), and with cluster locks one lock (8).
fn metadata_bytes(slots: u32, tuning: &Tuning) -> f64 {
    let area = tuning.area;
    let trunk_slots = u64::from(slots).min(1 << tuning.swap_cache_trunk_shift.min(32));
    let trunks = u64::from(slots).div_ceil(trunk_slots);
    let heads = (trunk_slots.div_ceil(16).next_power_of_two() * 4 + 32) * trunks;
    let scanned = area.allocator == overspill_area::Allocator::Scan;
    let cluster =
        8.0 + if scanned { 20.0 } else { 0.0 } + if area.cluster_locks { 8.0 } else { 0.0 };
    8.0 + heads as f64 / f64::from(slots) + cluster / f64::from(area.cluster_slots)
}
