//! The buffer protocol over memory whose address is known.
//!
//! Owns: the description of a buffer that Python gets.
//! Invariants: a view holds a reference to the object whose memory it shows, so the memory is there
//! as long as the view.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Memory to be shown.
pub(crate) struct Shown {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) readonly: bool,
}

/// Fills `view` with `shown`, kept alive by `owner`.
///
/// # Safety
/// `view` is what Python passed to `__getbuffer__`; the memory lives as long as `owner`.
pub(crate) unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    shown: &Shown,
) -> PyResult<()> {
    let Ok(bytes) = isize::try_from(shown.bytes) else {
        return Err(PyBufferError::new_err("more bytes than a buffer can have"));
    };
    let (address, readonly) = (shown.address.cast(), c_int::from(shown.readonly));
    // SAFETY: the caller's promise; on success the view has a reference of its own to the owner.
    match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, bytes, readonly, flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}
