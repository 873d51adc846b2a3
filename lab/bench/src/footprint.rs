//! `memory`: memory of the engine itself, per page, slot and frame.
//!
//! Owns: the engines of different sizes and reading this process's memory use.
//! Invariants: the places of pages, staging memory and devices are touched before an engine is
//! measured, and all engines are kept until the last is measured: no freed memory can be reused
//! unseen. One thread, one CPU; what more CPUs take does not grow with the sizes.
//! Not here: computing it from the sizes of types. Allocators round up, trees have half-full nodes.

use crate::error::BenchError;
use crate::machine::{Machine, Memory, Shape};
use crate::slots::{self, DeviceState};
use crate::stamp;
use overspill_base::PageNo;
use overspill_engine::Tuning;
use overspill_report::Environment;
use serde::Serialize;

/// Measured bytes of the engine's own memory.
#[derive(Debug, Serialize)]
pub struct FootprintReport {
    /// The machine.
    pub environment: Environment,
    /// The engines measured.
    pub engines: Vec<Footprint>,
    /// Per page of managed address space.
    pub bytes_per_page: f64,
    /// Per slot of a device.
    pub bytes_per_slot: f64,
    /// Per frame of memory.
    pub bytes_per_frame: f64,
}

/// One engine, every page of which was touched twice.
#[derive(Debug, Serialize)]
pub struct Footprint {
    /// Its sizes.
    pub shape: Shape,
    /// Bytes it took.
    pub bytes: u64,
}

const BASE: Shape = Shape { frames: 4096, working_set_pages: 1 << 15, device_slots: 1 << 17 };
const SHAPES: [Shape; 4] = [
    BASE,
    Shape { working_set_pages: 2 * BASE.working_set_pages, ..BASE },
    Shape { device_slots: 8 * BASE.device_slots, ..BASE },
    Shape { frames: 4 * BASE.frames, ..BASE },
];

/// Builds engines of four sizes and uses them.
///
/// # Errors
/// The errors of a machine or of `/proc`.
pub fn footprint() -> Result<FootprintReport, BenchError> {
    let mut kept = Vec::new();
    let mut engines = Vec::new();
    for shape in SHAPES {
        let memory = Memory::new(shape, 1)?;
        memory.touch();
        let before = own_memory_bytes()?;
        let machine = Machine::over(memory, shape, Tuning::default(), 1, DeviceState::Fresh)?;
        work(&machine, shape)?;
        let bytes = own_memory_bytes()?.saturating_sub(before);
        engines.push(Footprint { shape, bytes });
        kept.push(machine);
    }
    let grown = |n: usize| engines[n].bytes as f64 - engines[0].bytes as f64;
    Ok(FootprintReport {
        environment: Environment::read(),
        bytes_per_page: grown(1) / BASE.working_set_pages as f64,
        bytes_per_slot: grown(2) / f64::from(7 * BASE.device_slots),
        bytes_per_frame: grown(3) / (3 * BASE.frames) as f64,
        engines,
    })
}

/// Uses every slot, and writes every page twice.
fn work(machine: &Machine, shape: Shape) -> Result<(), BenchError> {
    slots::walk(machine.engine.areas(), shape.device_slots);
    let mut worker = machine.worker()?;
    let pages = (0..machine.space.len() as u32).map(PageNo);
    for page in pages.clone().chain(pages) {
        machine.touch(&mut worker, page, |content| stamp::begin(content, page))?;
    }
    worker.finish(&machine.engine);
    Ok(())
}

/// Returns the resident anonymous memory of this process; a device in RAM is not part of it.
fn own_memory_bytes() -> Result<u64, BenchError> {
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(BenchError::system("read /proc/self/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| {
        let reason = std::io::Error::other("it has no RssAnon");
        BenchError::system("read /proc/self/status")(reason)
    })
}
