//! Regions, and which of them has an address.
//!
//! Owns: the register of all regions of this process by address, through which advice and pins find
//! the region of an array.
//! Invariants: a region is registered while it can be used; only threads that may run Python code
//! lock the register, so no other thread holds it when a process forks.

use crate::error;
use crate::exports::{Shown, fill};
use crate::fork::Own;
use ::overspill::{Advice, HeldRange};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static REGISTER: Mutex<BTreeMap<usize, Arc<::overspill::Region>>> = Mutex::new(BTreeMap::new());

fn register() -> MutexGuard<'static, BTreeMap<usize, Arc<::overspill::Region>>> {
    REGISTER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn range_of(region: &::overspill::Region) -> Range<usize> {
    let start = region.as_mut_ptr() as usize;
    start..start + region.len()
}

/// Forgets all regions without ending them; returns where they are.
pub(crate) fn leave_to_parent() -> Vec<Range<usize>> {
    let regions = std::mem::take(&mut *register());
    let ranges = regions.values().map(|region| range_of(region)).collect();
    std::mem::forget(regions);
    ranges
}

/// Keeps a region until [`take_out`]; returns its address.
pub(crate) fn put_in(region: ::overspill::Region) -> usize {
    let start = region.as_mut_ptr() as usize;
    register().insert(start, Arc::new(region));
    start
}

/// Ends a region, when its last pin ends; false if none begins at the address.
pub(crate) fn take_out(start: usize) -> bool {
    let region = register().remove(&start);
    region.is_some()
}

/// Number of bytes of the region that begins at the address.
pub(crate) fn bytes_at(start: usize) -> Option<usize> {
    register().get(&start).map(|region| region.len())
}

/// The region of these bytes, and where they are in it.
fn find(bytes: &Range<usize>) -> Option<(Arc<::overspill::Region>, Range<usize>)> {
    let register = register();
    let (_, region) = register.range(..=bytes.start).next_back()?;
    let all = range_of(region);
    let inside = bytes.start < all.end && bytes.end <= all.end;
    inside.then(|| (region.clone(), bytes.start - all.start..bytes.end - all.start))
}

/// The region of an object that shows its memory, and where that is in it.
fn find_of(object: &Bound<'_, PyAny>) -> PyResult<(Arc<::overspill::Region>, Range<usize>)> {
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
        return Err(error("its bytes do not follow one another: pass a contiguous part"));
    }
    let start = buffer.buf_ptr() as usize;
    let found = find(&(start..start + buffer.len_bytes()));
    found.ok_or_else(|| error("it is not in memory of Overspill: make it by `empty`, `zeros`, `full` or `from_file`, or in a block `with overspill.limit(...)`"))
}

/// A piece of limited memory.
#[pyclass(frozen, module = "overspill._native")]
pub(crate) struct Region {
    address: Own<Registered>,
}

/// A region in the register, which it leaves when this is dropped.
struct Registered {
    start: usize,
    bytes: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        take_out(self.start);
    }
}

impl Region {
    pub(crate) fn new(region: ::overspill::Region) -> Self {
        let bytes = region.len();
        Self { address: Own::new(Registered { start: put_in(region), bytes }) }
    }
}

#[pymethods]
impl Region {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.address.get()?.bytes)
    }

    /// Shows the bytes, writable.
    ///
    /// # Safety
    /// Called by Python.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, bytes) = {
            let own = slf.get().address.get()?;
            (own.start, own.bytes)
        };
        let shown = Shown { address: start as *mut u8, bytes, readonly: false };
        // SAFETY: the region is registered while this object lives.
        unsafe { fill(slf.as_any(), view, flags, &shown) }
    }
}

/// Bytes that stay in memory until this is released.
#[pyclass(module = "overspill._native")]
pub(crate) struct Pin {
    held: Option<Own<HeldRange>>,
}

#[pymethods]
impl Pin {
    fn release(&mut self, py: Python<'_>) {
        let held = self.held.take();
        py.detach(|| drop(held));
    }
}

fn advice_of(word: &str) -> PyResult<Option<Advice>> {
    Ok(Some(match word {
        "normal" => Advice::Normal,
        "sequential" => Advice::Sequential,
        "random" => Advice::Random,
        "willneed" => Advice::WillNeed,
        "cold" => Advice::Cold,
        "pageout" => Advice::PageOut,
        "discard" => return Ok(None),
        _ => {
            return Err(error(format!(
                "there is no advice `{word}`: say normal, sequential, random, willneed, cold, pageout or discard"
            )));
        }
    }))
}

/// Says how the memory of `object` will be used.
#[pyfunction]
pub(crate) fn advise(py: Python<'_>, object: &Bound<'_, PyAny>, advice: &str) -> PyResult<()> {
    let advice = advice_of(advice)?;
    let (region, range) = find_of(object)?;
    py.detach(|| match advice {
        Some(advice) => region.advise(range, advice),
        // SAFETY: Rust code has no references to it, and the caller asked for zeros.
        None => unsafe { region.discard_unborrowed(range) },
    });
    Ok(())
}

/// Keeps the memory of `object` in RAM.
#[pyfunction]
pub(crate) fn pin(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Pin> {
    let (region, range) = find_of(object)?;
    let held = py.detach(|| region.hold(range)).map_err(error)?;
    Ok(Pin { held: Some(Own::new(held)) })
}
