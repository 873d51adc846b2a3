//! What an episode is made of, decoded from bytes.

use super::{CPUS, PAGES};
use arbitrary::{Arbitrary, Result, Unstructured};
use overspill_area::{AreaTuning, Preset, ScanBase};
use overspill_base::Slot;
use overspill_device::faulty::Faults;
use overspill_engine::Tuning;

/// The setup of an episode.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) frames: usize,
    pub(super) tuning: Tuning,
    pub(super) devices: Vec<DeviceSetup>,
    /// The last device fails too.
    pub(super) hopeless: bool,
    /// How often the address space is busy.
    pub(super) busy_per_mille: u32,
    pub(super) busy_seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct DeviceSetup {
    pub(super) slots: u32,
    pub(super) priority: i16,
    pub(super) rotational: bool,
    pub(super) discard: bool,
    pub(super) faults: Faults,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write {
        page: usize,
        value: u8,
    },
    Read {
        page: usize,
    },
    /// A fault whose read is not waited for.
    Begin {
        page: usize,
    },
    Scan {
        first: usize,
        pages: usize,
    },
    Discard {
        first: usize,
        pages: usize,
    },
    Pin {
        page: usize,
    },
    Lock {
        page: usize,
        lock: bool,
    },
    Switch {
        cpu: usize,
    },
    Poll {
        cpu: usize,
    },
    Balance,
    Drain,
    /// Memory that the program had before the engine knew of it.
    Fill {
        first: usize,
        pages: usize,
        value: u8,
    },
    Adopt {
        first: usize,
        pages: usize,
    },
    /// A child with the pages of its parent.
    Fork {
        from: usize,
        to: usize,
        pages: usize,
    },
    Swapoff {
        nth: usize,
    },
}

/// A setup and the operations on it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(super) setup: Setup,
    pub(super) ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Script {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let setup = setup(u)?;
        let mut ops = Vec::new();
        while !u.is_empty() {
            ops.push(op(u)?);
        }
        Ok(Self { setup, ops })
    }
}

fn setup(u: &mut Unstructured<'_>) -> Result<Setup> {
    // The default half of the time; only with that pages are demoted.
    let preset = if u.arbitrary()? { Preset::Modern } else { u.choose(&Preset::ALL)?.0 };
    let area = AreaTuning {
        slot_batch: u.int_in_range(1..=3)?,
        free_batch: u.int_in_range(1..=3)?,
        cluster_slots: *u.choose(&[2, 4, 8])?,
        trunk_slots: *u.choose(&[8, 16, 1 << 14])?,
        scan_limit_slots: *u.choose(&[4, 256])?,
        scan_base: *u.choose(&[ScanBase::Shared, ScanBase::PerCpu])?,
        ..AreaTuning::of(preset)
    };
    let tuning = Tuning {
        area,
        reclaim_batch_pages: u.int_in_range(1..=8)?,
        lru_batch_pages: u.int_in_range(1..=3)?,
        rotate_batch_pages: u.int_in_range(1..=3)?,
        readahead_max_pages: u.int_in_range(1..=8)?,
        fault_around_pages: u.int_in_range(1..=4)?,
        swap_cache_trunk_shift: *u.choose(&[3, 5, Tuning::WHOLE_DEVICE])?,
        ..Tuning::of(preset)
    };
    let hopeless = u.ratio(1, 400)?;
    let mut devices: Vec<DeviceSetup> =
        (0..u.int_in_range(0..=2)?).map(|_| device(u)).collect::<Result<_>>()?;
    devices.iter_mut().skip(1).for_each(|device| keep_reads(&mut device.faults));
    let slots = u.int_in_range(PAGES as u32 + 8..=PAGES as u32 + 40)?;
    let faults = Faults { fail_writes_from: hopeless.then_some(3), ..Faults::default() };
    devices.push(DeviceSetup { slots, faults, ..device(u)? });
    let busy_per_mille = *u.choose(&[0, 0, 20, 200])?;
    let (frames, busy_seed) = (u.int_in_range(8..=24)?, u.arbitrary()?);
    Ok(Setup { frames, tuning, devices, hopeless, busy_per_mille, busy_seed })
}

fn device(u: &mut Unstructured<'_>) -> Result<DeviceSetup> {
    Ok(DeviceSetup {
        // Many become full.
        slots: *u.choose(&[10, 14, 18, 45, 80])?,
        priority: u.int_in_range(0..=1)?,
        rotational: u.ratio(1, 8)?,
        discard: u.ratio(1, 4)?,
        faults: faults(u)?,
    })
}

/// Picks at most one way to fail reads and one to fail writes.
fn faults(u: &mut Unstructured<'_>) -> Result<Faults> {
    let mut faults = Faults { seed: u.arbitrary()?, ..Faults::default() };
    let number = |u: &mut Unstructured<'_>| u.int_in_range(0..=30u64).map(Some);
    match u.int_in_range(0..=8)? {
        0 => faults.fail_read = number(u)?,
        1 => faults.short_read = number(u)?,
        2 => faults.garble_read = number(u)?,
        3 => faults.unreadable = Some(Slot(u.int_in_range(1..=40)?)),
        4 => faults.read_failures_per_mille = 50,
        5 => faults.vanish_from = number(u)?,
        _ => {}
    }
    match u.int_in_range(0..=7)? {
        0 => faults.fail_write = number(u)?,
        1 => faults.short_write = number(u)?,
        2 => faults.fail_writes_from = number(u)?,
        3 => faults.write_failures_per_mille = 100,
        _ => {}
    }
    if u.ratio(1, 8)? {
        (faults.stall, faults.stall_ns) = (number(u)?, 20_000);
    }
    Ok(faults)
}

fn keep_reads(faults: &mut Faults) {
    (faults.fail_read, faults.short_read, faults.garble_read) = (None, None, None);
    (faults.unreadable, faults.vanish_from, faults.read_failures_per_mille) = (None, None, 0);
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    let kind = u.int_in_range(0..=39)?;
    let page = u.int_in_range(0..=PAGES - 1)?;
    Ok(match kind {
        0..=9 => Op::Write { page, value: u.arbitrary()? },
        10..=16 => Op::Read { page },
        17..=19 => Op::Begin { page },
        20..=21 => Op::Scan { first: page, pages: u.int_in_range(8..=32)? },
        22..=23 => Op::Discard { first: page, pages: u.int_in_range(1..=16)? },
        24 => Op::Pin { page },
        25 => Op::Lock { page, lock: u.arbitrary()? },
        26..=28 => Op::Switch { cpu: u.int_in_range(0..=CPUS - 1)? },
        29 => Op::Poll { cpu: u.int_in_range(0..=CPUS - 1)? },
        30 => Op::Balance,
        31 => Op::Drain,
        32..=33 => Op::Fill { first: page, pages: u.int_in_range(1..=8)?, value: u.arbitrary()? },
        34..=35 => Op::Adopt { first: page, pages: u.int_in_range(1..=32)? },
        36..=38 => Op::Fork {
            from: page,
            to: u.int_in_range(0..=PAGES - 1)?,
            pages: u.int_in_range(1..=24)?,
        },
        _ => Op::Swapoff { nth: u.int_in_range(0..=1)? },
    })
}
