//! The `overspill` program from outside: messages and statuses.
//!
//! Owns: what a user sees of the command line, the refusals and the supervision of the program. An
//! inert shared object replaces the preload object, so programs run without being paged.
//! Not here: paging under `run`.

mod doctor;
mod installation;
mod mkswap;
mod refusals;
mod runs;
mod supervision;
mod usage;
