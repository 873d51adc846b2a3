//! A memory limit.

use crate::error;
use crate::fork::Own;
use crate::region::Region;
use ::overspill::memory::MemoryLimit;
use ::overspill::{Builder, Bytes, Overspill, SwapSpec};
use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A memory limit, and places to swap to.
#[pyclass(frozen, subclass, module = "overspill._native")]
pub(crate) struct Limit {
    own: Own<Overspill>,
}

impl Limit {
    pub(crate) fn inner(&self) -> PyResult<&Overspill> {
        self.own.get()
    }
}

/// A size: a number of bytes, or words as those of `--memory`.
pub(crate) struct Size(Bytes);

impl Size {
    pub(crate) fn bytes(self) -> Bytes {
        self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.extract() {
            return Ok(Self(Bytes(bytes)));
        }
        if let Ok(words) = object.extract::<String>() {
            return words.parse().map(|size: MemoryLimit| Self(size.bytes())).map_err(error);
        }
        let given = object.repr()?;
        let why =
            format!("a size is a number of bytes, or words as in \"512M\": it cannot be {given}");
        Err(PyTypeError::new_err(why))
    }
}

fn spec_of(words: &str) -> PyResult<SwapSpec> {
    words.parse().map_err(|why| error(format!("{words}: {why}")))
}

/// The settings of a limit or a pool.
pub(crate) fn builder_of(
    memory: Size,
    swaps: Vec<String>,
    page_size: Option<Size>,
    swap_size: Option<Size>,
) -> PyResult<Builder> {
    let mut builder = Overspill::builder().memory(memory.bytes());
    if let Some(size) = page_size {
        builder = builder.page_size(size.bytes());
    }
    if let Some(size) = swap_size {
        builder = builder.swap_size(size.bytes());
    }
    swaps.into_iter().try_fold(builder, |builder, words| Ok(builder.swap(spec_of(&words)?)))
}

#[pymethods]
impl Limit {
    #[new]
    fn new(
        py: Python<'_>,
        memory: Size,
        swaps: Vec<String>,
        page_size: Option<Size>,
        swap_size: Option<Size>,
    ) -> PyResult<Self> {
        let builder = builder_of(memory, swaps, page_size, swap_size)?;
        let built = py.detach(|| builder.build()).map_err(error)?;
        Ok(Self { own: Own::new(built) })
    }

    fn region(&self, size: Size) -> PyResult<Region> {
        let region = self.inner()?.region(size.bytes()).map_err(error)?;
        Ok(Region::new(region))
    }

    fn stats_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner()?.summary()).map_err(error)
    }

    fn last_error(&self) -> PyResult<Option<String>> {
        Ok(self.inner()?.last_error())
    }

    fn needs_pins(&self) -> PyResult<bool> {
        Ok(self.inner()?.needs_pins())
    }

    fn page_size(&self) -> PyResult<usize> {
        Ok(self.inner()?.page_size())
    }

    fn swapon(&self, py: Python<'_>, swap: &str) -> PyResult<()> {
        let (inner, spec) = (self.inner()?, spec_of(swap)?);
        py.detach(|| inner.swapon(&spec)).map_err(error)
    }

    fn swapoff(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let inner = self.inner()?;
        py.detach(|| inner.swapoff(name)).map_err(error)
    }

    fn swaps<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let describe = |swap: ::overspill::SwapInfo| {
            let described = PyDict::new(py);
            described.set_item("name", swap.name)?;
            described.set_item("kind", swap.kind)?;
            described.set_item("size_bytes", swap.size.0)?;
            described.set_item("used_bytes", swap.used.0)?;
            described.set_item("priority", swap.priority)?;
            Ok(described)
        };
        self.inner()?.swaps().into_iter().map(describe).collect()
    }
}
