//! `--touches`: which pages a program touches, for `overspill-lab policy`.

use overspill_programs::bench::{Bench, lab};
use serde_json::Value;
use std::process::Command;

/// Each of ten children reads the 64 MiB that its parent has filled: its own pages.
#[test]
fn touches_are_recorded_and_replayed() {
    const PAGES: u64 = 64 << 8;
    let Some(bench) = Bench::with(&["cc", "overspill-lab"]) else { return };
    let (program, trace) = (bench.cc("apart.c"), bench.path("locale.trace"));
    let job = bench.job(&[program.as_os_str(), "locale".as_ref()]).patience(400);
    let path = trace.to_str().unwrap();
    job.paged(&["--memory", "8M", "--swap", "ram:1G", "--quiet", "--touches", path]).success();
    let report = bench.path("report.json");
    let policy = ["policy", "--memory-pages", "4096", "--trace", path, "--json"];
    let replay = Command::new(lab()).args(policy).arg(&report).output().unwrap();
    assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let replayed = &report["workloads"][0];
    assert_eq!(replayed["workload"], "locale");
    let set = replayed["set_pages"].as_u64().unwrap();
    assert!((11 * PAGES..13 * PAGES).contains(&set), "{set} pages");
    let rows = replayed["policies"].as_array().unwrap();
    let refaults = |n: usize| rows[n]["refaults"].as_u64().unwrap();
    let best = rows.iter().position(|row| row["policy"] == "MIN").unwrap();
    assert!((0..rows.len()).all(|n| refaults(n) >= refaults(best)), "{rows:?}");
}
