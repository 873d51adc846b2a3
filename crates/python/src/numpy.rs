//! numpy's allocator interface (NEP 49): arrays in limited memory.
//!
//! Owns: a handler for numpy, whose functions numpy calls for the memory of arrays.
//! Invariants: numpy keeps the handler's capsule with each array that it made, and frees each by
//! the handler it came from; so the limit lives as long as its last array. What is smaller than
//! [`REGION_BYTES_MIN`] comes from malloc: a region has whole pages.
//! Not here: which handler numpy uses when (`__init__.py`).

use crate::error;
use crate::fork::{Own, is_inherited};
use crate::limit::Limit;
use crate::region::{bytes_at, put_in, take_out};
use ::overspill::{Bytes, Overspill};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// Arrays from 16 pages on are in limited memory.
const REGION_BYTES_MIN: usize = 64 << 10;

/// The number of `PyDataMem_SetHandler` in numpy's table, since 1.22.
const SET_HANDLER: usize = 304;

const HANDLER_NAME: &CStr = c"mem_handler";

/// `PyDataMemAllocator` of numpy's ndarraytypes.h, version 1.
#[repr(C)]
struct Allocator {
    ctx: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// Makes numpy take memory from `limit`, or from `handler`, which an earlier call returned. Returns
/// the handler that was in use. `table` is numpy's `_ARRAY_API`.
#[pyfunction]
pub(crate) fn set_handler<'py>(
    py: Python<'py>,
    table: &Bound<'py, PyAny>,
    limit: Option<&Limit>,
    handler: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let handler = match (limit, handler) {
        (Some(limit), _) => new_handler(py, limit.inner()?.clone())?,
        (None, Some(handler)) if handler.is_instance_of::<PyCapsule>() => handler,
        (None, _) => return Err(error("neither a limit nor a handler")),
    };
    // SAFETY: numpy's table is a capsule without a name that holds an array of functions, of which
    // this one has this type since 1.22; the package checks the version.
    unsafe {
        let functions = ffi::PyCapsule_GetPointer(table.as_ptr(), std::ptr::null());
        if functions.is_null() {
            return Err(PyErr::fetch(py));
        }
        let set: SetHandler =
            std::mem::transmute(functions.cast::<*mut c_void>().add(SET_HANDLER).read());
        Bound::from_owned_ptr_or_err(py, set(handler.as_ptr()))
    }
}

fn new_handler(py: Python<'_>, limit: Overspill) -> PyResult<Bound<'_, PyAny>> {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"overspill") {
        *to = *from as c_char;
    }
    let ctx = Box::into_raw(Box::new(Own::new(limit))).cast();
    let allocator = Allocator { ctx, malloc, calloc, realloc, free };
    let handler = Box::into_raw(Box::new(Handler { name, version: 1, allocator }));
    // SAFETY: the pointer and its destructor fit; the name is static.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler.cast(), HANDLER_NAME.as_ptr(), Some(end_handler));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Ends a handler with its last array.
unsafe extern "C" fn end_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is one of `new_handler`, and Python ends it once.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, HANDLER_NAME.as_ptr()).cast::<Handler>();
        let handler = Box::from_raw(handler);
        drop(Box::from_raw(handler.allocator.ctx.cast::<Own<Overspill>>()));
    }
}

/// Zeroed memory of `bytes`; null if there is none, and numpy raises MemoryError.
///
/// # Safety
/// `ctx` is of a handler.
unsafe fn zeroed(ctx: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the context lives as long as its handler.
    let limit = unsafe { &*ctx.cast::<Own<Overspill>>() }.get();
    match limit {
        Ok(limit) if bytes >= REGION_BYTES_MIN => match limit.region(Bytes(bytes as u64)) {
            Ok(region) => with_exposed_provenance_mut(put_in(region)),
            Err(_) => null_mut(),
        },
        // Small, or in a child made by fork, which has no threads that serve regions.
        // SAFETY: any size will do.
        _ => unsafe { libc::calloc(1, bytes.max(1)) },
    }
}

unsafe extern "C" fn malloc(ctx: *mut c_void, bytes: usize) -> *mut c_void {
    if bytes < REGION_BYTES_MIN {
        // SAFETY: any size will do.
        return unsafe { libc::malloc(bytes.max(1)) };
    }
    // SAFETY: numpy passes the handler's own context, which lives as long as its handler.
    let limit = unsafe { &*ctx.cast::<Own<Overspill>>() }.get();
    // It will be filled, so it must fit; zeros need not be.
    if limit.is_ok_and(|limit| bytes as u64 > limit.room().0) {
        return null_mut();
    }
    // SAFETY: as above.
    unsafe { zeroed(ctx, bytes) }
}

unsafe extern "C" fn calloc(ctx: *mut c_void, count: usize, each: usize) -> *mut c_void {
    // SAFETY: numpy passes the handler's own context.
    count.checked_mul(each).map_or(null_mut(), |bytes| unsafe { zeroed(ctx, bytes) })
}

unsafe extern "C" fn realloc(ctx: *mut c_void, old: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(old_bytes) = bytes_at(old.expose_provenance()) else {
        // SAFETY: what is no region is malloc's, or null. It stays there: its size is not known.
        return unsafe { libc::realloc(old, bytes.max(1)) };
    };
    // SAFETY: two pieces of memory, each at least as long as what is copied.
    unsafe {
        let new = malloc(ctx, bytes);
        if !new.is_null() {
            new.cast::<u8>().copy_from_nonoverlapping(old.cast(), bytes.min(old_bytes));
            free(ctx, old, old_bytes);
        }
        new
    }
}

unsafe extern "C" fn free(_: *mut c_void, memory: *mut c_void, _: usize) {
    let start = memory.expose_provenance();
    if take_out(start) || is_inherited(start) {
        return;
    }
    // SAFETY: what is no region is malloc's, or null.
    unsafe { libc::free(memory) };
}
