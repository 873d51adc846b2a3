//! Measurements of Overspill: against kernel swap, each mechanism off and on, every lock counted.
//!
//! Owns: the workloads, the table of mechanisms with their published figures, the machine they run
//! on, and the reports. [`ablate`] compares engines that differ in one mechanism, [`slot_rates`]
//! allocators without I/O, [`footprint`] measures the engine's own memory, [`lock_costs`] the cost
//! of counting; [`compare`] runs its own program, [`touch`], under kernel swap and under Overspill,
//! [`programs`] those of others.
//! Invariants: sides of a comparison alternate; a figure is a median with its spread, printed with
//! the machine. What depends on the number of real CPUs is separate from what is only counted.
//! Not here: command lines.

mod ablate;
mod compare;
mod cpus;
mod error;
mod footprint;
mod lock_cost;
mod machine;
mod mechanisms;
mod policy;
mod programs;
mod replay;
pub mod report;
mod sample;
mod slot_rate;
mod slots;
mod stamp;
mod touch;
mod workload;

pub use ablate::{AblateOptions, AblateReport, Experiment, SideReport, ablate, mechanism_names};
pub use compare::{
    Cell, CompareOptions, CompareReport, Costs, Device, Place, Row, Tail, Way, compare,
};
pub use error::BenchError;
pub use footprint::{Footprint, FootprintReport, footprint};
pub use lock_cost::{LockCostReport, lock_costs};
pub use machine::Shape;
pub use mechanisms::Published;
pub use policy::{PolicyOptions, PolicyReport, PolicyRow, ReplayOptions, WorkloadReport};
pub use policy::{policies, replay_in_group, trace_names};
pub use programs::{
    Figures, Outcome, PROGRAMS, Program, ProgramCell, ProgramOptions, ProgramReport,
};
pub use programs::{ProgramRow, Side, programs};
pub use sample::{LockSummary, Summary};
pub use slot_rate::{SlotOptions, SlotReport, SlotRow, slot_rates};
pub use slots::{CountedSlots, DeviceState};
pub use touch::{Content, FaultKind, Habits, TouchOptions, TouchReport, touch, workload_names};
pub use workload::Pattern;
