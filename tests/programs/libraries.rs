//! What `libraries.c` checks: forks of a program that has opened libraries and registered handlers.

use crate::memory_calls::run_case;
use overspill_programs::bench::Bench;

#[test]
fn many_libraries() {
    let Some(bench) = Bench::with(&["cc", "cp"]) else { return };
    bench.cc_with("plugin.c", &["-shared", "-fPIC"], "plugin.so");
    run_case(&bench, "libraries.c", "many_libraries");
}

#[test]
fn many_handlers() {
    let Some(bench) = Bench::with(&["cc"]) else { return };
    run_case(&bench, "libraries.c", "many_handlers");
}
