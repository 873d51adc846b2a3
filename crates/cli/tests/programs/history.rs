//! `--history`: the latest page state changes, in all processes of a run.

use crate::bench::Bench;
use crate::memory_calls::LIMIT;
use std::collections::{BTreeMap, BTreeSet};

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
