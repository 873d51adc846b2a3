//! Devices that write to memory while it is being evicted.

use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;

const LIMIT: u64 = 32 * MIB;

fn run(mode: &str) {
    let Some(bench) = Bench::with(&["cc"]) else { return };
    let program = bench.cc("direct_io.c");
    // Where touches raise signals and io_uring is refused it takes two minutes.
    let job = bench.job(&[program.as_os_str(), mode.as_ref()]).patience(300);
    let plain = job.plain().success().text();
    if plain != "ok\n" {
        return println!("skipped: {plain}");
    }
    if mode == "uring" && overspill_programs::job::way().is_some_and(|way| way != "faults") {
        let refused = job.paged(&["--memory", "32M", "--quiet"]).success().text();
        return assert!(refused.contains("not implemented"), "{refused}");
    }
    assert_eq!(job.in_memory(LIMIT).text(), "ok\n");
}

#[test]
fn o_direct_reads_into_memory_under_eviction() {
    run("direct");
}

#[test]
fn io_uring_reads_into_memory_under_eviction() {
    run("uring");
}
