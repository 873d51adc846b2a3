//! The `overspill` program from outside: messages and statuses.
//!
//! Owns: what a user sees of the command line, the refusals and the supervision of the program.
//! Not here: paging under `run`.

mod doctor;
mod installation;
mod mkswap;
mod refusals;
mod runs;
mod strangers;
mod supervision;
mod top;
mod usage;
mod web;
