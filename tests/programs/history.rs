//! `--history`: the latest page state changes, in all processes of a run; `--touches`: all of those
//! that are touches, for `overspill-lab policy`.

use crate::memory_calls::LIMIT;
use overspill_programs::bench::{Bench, lab};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Parses process, page and change from a line.
fn parse(line: &str) -> (u32, u64, &str) {
    let mut words = line.splitn(4, ' ');
    let seconds: f64 = words.next().unwrap().parse().unwrap();
    assert!(seconds > 0.0);
    let member = words.next().unwrap().parse().unwrap();
    let address = words.next().unwrap().strip_prefix("0x").unwrap();
    (member, u64::from_str_radix(address, 16).unwrap(), words.next().unwrap())
}

#[test]
fn changes_of_pages_are_kept_in_parent_and_child() {
    let Some(bench) = Bench::with(&["cc"]) else { return };
    let (program, file) = (bench.cc("apart.c"), bench.path("history"));
    let job = bench.job(&[program.as_os_str(), "locale".as_ref()]).patience(400);
    let (limit, path) = (LIMIT.to_string(), file.to_str().unwrap());
    job.paged(&["--memory", &limit, "--quiet", "--history", path]).success();
    let text = std::fs::read_to_string(file).unwrap();
    let mut evicted: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for (member, address, change) in text.lines().map(parse) {
        assert!(change.contains(" -> ") && address % 4096 == 0, "{change}");
        if change.starts_with("resident, frame") && change.contains("-> swapped, area 0 slot") {
            evicted.entry(member).or_default().insert(address);
        }
    }
    // The program has 64 MiB; each child reads all of it.
    assert!(evicted.len() >= 2, "{:?}", evicted.keys());
    assert!(evicted.values().all(|pages| pages.len() > 1000), "{:?}", evicted.keys());
}

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
