//! A machine of many CPUs in virtual time, which runs the real engine and areas.
//!
//! Owns: the machine around them: processes, address spaces, devices; the published experiments,
//! and other uses of it. The sources of `area` and `engine` are the product's own, built a second
//! time for virtual CPUs (`twins/`).
//! Invariants: the same plan and seed give the same figures, bit for bit. Every page read is
//! compared with what was written; every run ends with the engines' own check.
//! Not here: time and its costs (`overspill-vcpu`); how reports are written (`overspill-bench`).

mod calibrate;
mod device;
mod error;
mod experiments;
mod explore;
mod machine;
mod marks;
mod network;
mod node;
mod run;
mod sample;
mod shootdown;
mod space;
mod stamp;
mod sweep;
mod workload;

pub use calibrate::calibrate;
pub use device::{DISK, DeviceModel, NVME, OPTANE, PMEM, REDIS};
pub use error::SimError;
pub use experiments::presets;
pub use explore::{ExploreOptions, explore};
pub use machine::{MACHINE_CPUS, Pattern, Plan};
pub use marks::Figure;
pub use network::{Network, NetworkModel, REDIS_NETWORK, Service};
pub use run::{ExperimentReport, RunOptions, RunReport, run};
pub use sample::{LockShare, Ping, Sample};
pub use sweep::{Parameter, SweepOptions, SweepPoint, SweepReport, sweep};
