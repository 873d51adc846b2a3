//! A core dump of a paged program is no larger than the program.

use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;
use std::os::unix::fs::MetadataExt;

/// The case maps 64 MiB; a dump has that, in blocks, and libraries.
const DUMP_MAX: u64 = 256 * MIB;

#[test]
fn a_core_dump_has_what_is_mapped_and_no_more() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        println!("skipped: core dumps do not go to the directory: {}", pattern.trim());
        return;
    }
    let program = bench.cc("process_calls.c");
    let script = format!("ulimit -c unlimited && exec {} abort_with_memory", program.display());
    let job = bench.job(&["sh", "-c", &script]).patience(30);
    let started = std::time::Instant::now();
    let ended = job.paged(&["--memory", "32M", "--quiet"]).end();
    assert!(started.elapsed().as_secs() < 10, "a dump of the whole reservation takes longer");
    assert!(!ended.status.success());
    let dumps = std::fs::read_dir(program.parent().unwrap()).unwrap().flatten();
    let dump = dumps.map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"))
    });
    let about = dump.expect("there is a dump").metadata().unwrap();
    assert!(about.len() < DUMP_MAX, "{} bytes", about.len());
    // Pages in memory are part of the dump.
    assert!(about.blocks() * 512 > 16 * MIB, "{} blocks", about.blocks());
}
