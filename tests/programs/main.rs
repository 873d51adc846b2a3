//! Real programs under `overspill run`.
//!
//! Owns: the proof that unmodified programs work in a quarter of the memory they need, that every
//! call that touches memory keeps its meaning, and that nothing is left behind.
//! Invariants: programs run one at a time, whatever the number of test threads, and each has a
//! time-out after which it and all its descendants are killed. A skipped test prints the reason.
//! Not here: messages and statuses (`crates/cli/tests`).
//!
//! Needs the release build, which `make lab` makes; with `OVERSPILL_TEST_PROFILE=quick` the one of
//! `make program`.

mod apart;
mod attach;
mod children;
mod cluster;
mod compare;
mod compile;
mod compressed;
mod confined;
mod core_dump;
mod cpus;
mod direct_io;
mod encryption;
mod faults;
mod gates;
mod guide;
mod hostile;
mod keeper;
mod kills;
mod late_calls;
mod libraries;
mod limits;
mod long_runs;
mod mapping_calls;
mod memory_calls;
mod network;
mod one_limit;
mod pressure;
mod process_calls;
mod python;
mod random;
mod recorded;
mod redis;
mod resp;
mod rights;
mod served;
mod shell;
mod small_disk;
mod sort;
mod sqlite;
mod stress;
mod swapon;
mod system_calls;
mod thread_ends;
mod touches;
mod ways;
