//! What `allocator_calls.c` checks: the malloc family behaves as libc's, in plugins too.

use crate::memory_calls::LIMIT;
use overspill_programs::bench::Bench;

/// Runs a case that allocates little, so it need not page.
fn run(case: &str) {
    let Some(bench) = Bench::with(&["cc"]) else { return };
    let program = bench.cc("allocator_calls.c");
    bench.cc_with("plugin.c", &["-shared", "-fPIC"], "plugin.so");
    let job = bench.job(&[program.as_os_str(), case.as_ref()]).patience(60);
    assert_eq!(job.plain().success().text(), "ok\n");
    let options = ["--memory", &LIMIT.to_string(), "--quiet"];
    assert_eq!(job.paged(&options).success().text(), "ok\n");
}

#[test]
fn alignments() {
    run("alignments");
}

#[test]
fn sizes() {
    run("sizes");
}

#[test]
fn questions() {
    run("questions");
}

#[test]
fn deepbind() {
    run("deepbind");
}
