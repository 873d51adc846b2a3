//! Regions: memory of which only a part is in RAM.

use crate::fail::{choice, end, handle, status};
use crate::limit::overspill;
use ::overspill::{Advice, Bytes, Faults, HeldRange, Region};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

/// Zeroed memory of which only a part is in RAM at any time. A process that forks keeps it; its
/// children do not have it and end with SIGSEGV if they touch it.
pub struct overspill_region {
    inner: Arc<Region>,
}

/// Bytes that stay in RAM.
pub struct overspill_pin {
    _held: HeldRange,
}

/// Which thread brings in a page that is touched.
///
/// Functions take a number, because C may pass any, and an enum of Rust must be one of its values.
#[repr(C)]
pub enum overspill_faults {
    /// A thread of Overspill. Works wherever memory works.
    OVERSPILL_BY_MESSAGE,
    /// The thread that touches it, in a handler for SIGBUS: faster on fast devices. A system call
    /// on memory that is out fails with EFAULT: pin it first. The handler takes up to 16 KiB of the
    /// thread's stack.
    OVERSPILL_BY_SIGNAL,
}

/// How memory will be used.
#[repr(C)]
pub enum overspill_advice {
    /// As usual.
    OVERSPILL_NORMAL,
    /// In order.
    OVERSPILL_SEQUENTIAL,
    /// In no order.
    OVERSPILL_RANDOM,
    /// Soon: it is read ahead. Does not block.
    OVERSPILL_WILL_NEED,
    /// Not soon: it is evicted first.
    OVERSPILL_COLD,
    /// Not soon: it is evicted now. Blocks until it is written.
    OVERSPILL_PAGE_OUT,
    /// Not at all: whole pages read as zeros from now on and cost nothing.
    OVERSPILL_DISCARD,
}

/// By the numbers of [`overspill_faults`].
const FAULTS: [Faults; 2] = [Faults::Message, Faults::Signal];

/// By the numbers of [`overspill_advice`]; none for what discards.
const ADVICE: [Option<Advice>; 7] = [
    Some(Advice::Normal),
    Some(Advice::Sequential),
    Some(Advice::Random),
    Some(Advice::WillNeed),
    Some(Advice::Cold),
    Some(Advice::PageOut),
    None,
];
const _: () = assert!(ADVICE[overspill_advice::OVERSPILL_DISCARD as usize].is_none());

/// The bytes from `offset`, if the region has them.
fn range(region: &Region, offset: usize, bytes: usize) -> Result<Range<usize>, String> {
    let end = offset.checked_add(bytes).filter(|&end| end <= region.len());
    let past = || {
        let len = region.len();
        format!("{bytes} bytes from {offset} on are past the region, which has {len} bytes")
    };
    end.map(|end| offset..end).ok_or_else(past)
}

/// Makes zeroed memory of `bytes`, rounded up to pages; `faults` is an `overspill_faults`. NULL if
/// that fails.
///
/// # Safety
/// `limit` is from `overspill_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_new(
    limit: *const overspill,
    bytes: usize,
    faults: c_int,
) -> *mut overspill_region {
    // SAFETY: the caller's promise.
    let options = unsafe { &*limit }.inner.region_options();
    let faults = choice("overspill_faults", &FAULTS, faults);
    let made = faults.and_then(|faults| {
        options.faults(faults).build(Bytes(bytes as u64)).map_err(|why| why.to_string())
    });
    handle(made.map(|region| overspill_region { inner: Arc::new(region) }))
}

/// Unmaps the region when its last pin ends. NULL is allowed.
///
/// # Safety
/// `region` is from `overspill_region_new`; neither it nor its memory is used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_free(region: *mut overspill_region) {
    // SAFETY: the caller's promise.
    unsafe { end(region) };
}

/// Where its bytes are; any thread may use them.
///
/// # Safety
/// `region` is from `overspill_region_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_data(region: *const overspill_region) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { &*region }.inner.as_mut_ptr().cast()
}

/// Number of its bytes.
///
/// # Safety
/// `region` is from `overspill_region_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_bytes(region: *const overspill_region) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*region }.inner.len()
}

/// Says how the whole pages among `bytes` bytes from `offset` on will be used: `advice` is an
/// `overspill_advice`. 0, or -1.
///
/// # Safety
/// `region` is from `overspill_region_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_advise(
    region: *const overspill_region,
    offset: usize,
    bytes: usize,
    advice: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let region = &unsafe { &*region }.inner;
    let advice = choice("overspill_advice", &ADVICE, advice);
    let asked = advice.and_then(|advice| Ok((range(region, offset, bytes)?, advice)));
    status(asked.map(|(range, advice)| match advice {
        Some(advice) => region.advise(range, advice),
        // SAFETY: nobody here has references to the bytes, and C has none.
        None => unsafe { region.discard_unborrowed(range) },
    }))
}

/// Brings `bytes` bytes from `offset` on into RAM and keeps them there. Pins may overlap; at most
/// half of the limit can be pinned. Blocks for the reads. NULL if that fails.
///
/// # Safety
/// `region` is from `overspill_region_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pin_new(
    region: *const overspill_region,
    offset: usize,
    bytes: usize,
) -> *mut overspill_pin {
    // SAFETY: the caller's promise.
    let region = &unsafe { &*region }.inner;
    let held = range(region, offset, bytes)
        .and_then(|range| region.hold(range).map_err(|why| why.to_string()));
    handle(held.map(|held| overspill_pin { _held: held }))
}

/// Ends a pin. NULL is allowed.
///
/// # Safety
/// `pin` is from `overspill_pin_new` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pin_free(pin: *mut overspill_pin) {
    // SAFETY: the caller's promise.
    unsafe { end(pin) };
}
