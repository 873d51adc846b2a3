//! Overspill for Python: the native half of the package `overspill`.
//!
//! Owns: the classes and functions of `overspill._native`, which `python/overspill/__init__.py`
//! gives their Python face.
//! Invariants: a call that can block lets other Python threads run; nothing that a caller passes
//! makes a call panic, which would end the process; a child made by fork neither touches nor ends
//! what its parent made ([`fork`]).
//! Not here: what Python can do by itself (shapes, defaults, texts of help), and the engine.
//! Rejected: numpy's Rust bindings. One function of numpy's table is needed, and its number is part
//! of numpy's binary interface.

mod exports;
mod fork;
mod limit;
mod numpy;
mod pool;
mod region;

use pyo3::prelude::*;

pyo3::create_exception!(
    overspill,
    Error,
    pyo3::exceptions::PyException,
    "What Overspill could not do, and what to do about it."
);

/// Any error, in its own words.
fn error(why: impl std::fmt::Display) -> PyErr {
    Error::new_err(why.to_string())
}

/// The native half of `overspill`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_class::<limit::Limit>()?;
    module.add_class::<region::Region>()?;
    module.add_class::<region::Pin>()?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::Page>()?;
    module.add_function(wrap_pyfunction!(region::advise, module)?)?;
    module.add_function(wrap_pyfunction!(region::pin, module)?)?;
    module.add_function(wrap_pyfunction!(numpy::set_handler, module)?)?;
    module.add_function(wrap_pyfunction!(fork::after_fork_in_child, module)?)
}
