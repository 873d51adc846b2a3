//! What tests of real programs are made with: a bench for each test, and jobs that run plain and
//! paged.
//!
//! Not here: the tests.

pub mod bench;
pub mod job;
