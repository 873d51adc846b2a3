//! Pools: numbered pages that are asked for.

use crate::error;
use crate::exports::{Shown, fill};
use crate::fork::Own;
use crate::limit::{Size, builder_of};
use ::overspill::{Held, HeldPage, PageNo, PoolBuilder};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Pages of which a limited number is in memory.
#[pyclass(frozen, module = "overspill._native")]
pub(crate) struct Pool {
    own: Own<::overspill::Pool>,
}

#[pymethods]
impl Pool {
    #[new]
    fn new(
        py: Python<'_>,
        memory: Size,
        swaps: Vec<String>,
        page_size: Option<Size>,
        swap_size: Option<Size>,
    ) -> PyResult<Self> {
        let builder = PoolBuilder::from(builder_of(memory, swaps, page_size, swap_size)?);
        let built = py.detach(|| builder.build()).map_err(error)?;
        Ok(Self { own: Own::new(built) })
    }

    fn take(&self, py: Python<'_>, page: u32, to_write: bool) -> PyResult<Page> {
        let held = if to_write { Held::ToWrite } else { Held::ToRead };
        let pool = self.own.get()?;
        let taken = py.detach(|| pool.hold(PageNo(page), held)).map_err(error)?;
        Ok(Page { held: Some(Own::new(taken)), bytes: pool.page_size(), views: 0 })
    }

    fn prefetch(&self, py: Python<'_>, pages: Vec<u32>) -> PyResult<usize> {
        let pool = self.own.get()?;
        py.detach(|| pool.prefetch(pages.into_iter().map(PageNo))).map_err(error)
    }

    fn discard(&self, py: Python<'_>, first: u32, pages: usize) -> PyResult<()> {
        let pool = self.own.get()?;
        py.detach(|| pool.discard(PageNo(first), pages)).map_err(error)
    }

    fn stats_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.own.get()?.summary()).map_err(error)
    }

    fn page_size(&self) -> PyResult<usize> {
        Ok(self.own.get()?.page_size())
    }

    fn pages(&self) -> PyResult<usize> {
        Ok(self.own.get()?.pages())
    }
}

/// A page in use.
#[pyclass(module = "overspill._native")]
pub(crate) struct Page {
    held: Option<Own<HeldPage>>,
    bytes: usize,
    /// Views of it that Python has.
    views: usize,
}

#[pymethods]
impl Page {
    /// Gives the page back. Refused while views of it exist: they would show another page.
    fn release(&mut self) -> PyResult<()> {
        if self.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "{} views of the page exist: delete them, or copy what you need, before it is released",
                self.views
            )));
        }
        self.held = None;
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    /// Shows the bytes, writable if the page was taken to be written.
    ///
    /// # Safety
    /// Called by Python.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let shown = slf.borrow().shown()?;
        // SAFETY: the page is held while views exist, and views keep this object.
        unsafe { fill(slf.as_any(), view, flags, &shown) }?;
        slf.borrow_mut().views += 1;
        Ok(())
    }

    /// # Safety
    /// Called by Python, once for each view.
    unsafe fn __releasebuffer__(&mut self, _view: *mut ffi::Py_buffer) {
        self.views -= 1;
    }
}

impl Page {
    fn shown(&self) -> PyResult<Shown> {
        let Some(own) = &self.held else {
            return Err(error("the page was released: take it again"));
        };
        let held = own.get()?;
        let readonly = held.held() == Held::ToRead;
        Ok(Shown { address: held.as_mut_ptr(), bytes: self.bytes, readonly })
    }
}
