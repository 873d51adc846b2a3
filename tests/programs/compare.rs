//! `overspill-lab compare`, with small sizes: every way, what it leaves behind, and how it is
//! interrupted. Also `overspill-lab programs` and the kernel's column of `overspill-lab
//! policy`, which use the same setup.
//!
//! The kernel's side needs root, a memory control group and permission to swap. What is not
//! permitted is skipped, with the comparison's reason.

use overspill_programs::bench::{Bench, lab};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What the kernel's side creates outside its own directory.
const GROUP: &str = "/sys/fs/cgroup/memory/overspill-compare";
const STATE: &str = "/run/overspill-compare";

/// Four times the limit, and one round.
const SMALL: [&str; 6] = ["--memory", "8M", "--set", "32M", "--rounds", "1"];
/// The shortest time that gives figures.
const SHORT: [&str; 2] = ["--seconds", "0.2"];

fn command(bench: &Bench, words: &[&str]) -> Command {
    let mut command = Command::new(lab());
    command.args(["compare", "--json"]).arg(bench.path("report.json"));
    command.arg("--html").arg(bench.path("report.html")).args(SMALL).args(words);
    command.env("TMPDIR", bench.path("."));
    command
}

/// Runs a comparison; returns its output, the JSON and the HTML page.
fn compare(bench: &Bench, words: &[&str]) -> (String, Value, String) {
    let output = command(bench, words).args(SHORT).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = std::fs::read(bench.path("report.json")).unwrap();
    let html = std::fs::read_to_string(bench.path("report.html")).unwrap();
    (text(&output), serde_json::from_slice(&json).unwrap(), html)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that the cells of all rows have figures.
fn assert_cells(json: &Value, rows: usize, ways: &[&str]) {
    let found = json["rows"].as_array().unwrap();
    assert_eq!(found.len(), rows);
    for row in found {
        let cells = row["cells"].as_array().unwrap();
        let names: Vec<&str> = cells.iter().map(|cell| cell["way"].as_str().unwrap()).collect();
        assert_eq!(names, ways);
        for cell in cells {
            let figure = |path: &str| cell.pointer(path).unwrap().as_f64().unwrap();
            let median = |name: &str| figure(&format!("/{name}/median"));
            assert!(median("rate") > 0.0 && median("missing/p99_us") >= 1.0, "{cell}");
            // Of 32 MiB at most 8 are in memory; the rest of the process takes at most 24 MiB. What
            // `overspill run` has before it is paged may be all of it, on a busy machine.
            let resident = cell["resident_over_time"].as_array().unwrap();
            let last = resident.last().unwrap()[1].as_f64().unwrap();
            assert!((4.0..32.0).contains(&last) && median("peak_mib") < 56.0, "{cell}");
        }
    }
}

/// Returns why the kernel's side cannot be tried, if known in advance.
fn obstacle() -> Option<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    match Path::new(STATE).exists() {
        _ if swaps.lines().count() > 1 => Some(format!("other swap is on: {swaps}")),
        true => Some(format!("{STATE} is there: another comparison")),
        false => None,
    }
}

fn assert_nothing_left() {
    assert!(!Path::new(STATE).exists() && !Path::new(GROUP).exists());
    assert_eq!(std::fs::read_to_string("/proc/swaps").unwrap().lines().count(), 1);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(STATE), "{mounts}");
}

#[test]
fn overspills_ways_are_compared_everywhere() {
    // The library's regions need what a keeper needs.
    if !crate::keeper::is_possible() {
        return;
    }
    let Some(bench) = Bench::with(&["overspill-lab"]) else { return };
    let words = ["--devices", "ramdisk,file", "--workloads", "uniform,modify", "--jobs", "2"];
    let (text, json, html) = compare(&bench, &[&words[..], &["--ways", "run,region"]].concat());
    assert_cells(&json, 4, &["run", "region"]);
    for word in ["pages touched per second", "p99.9", "loop on tmpfs / ram:", "swap file / file:"] {
        assert!(text.contains(word) && html.contains(word), "{word} in {text}");
    }
    assert_eq!(html.matches("<svg").count(), 4 * 3, "three for each row");
    assert!(!html.contains("src=") && !html.contains("href="), "it opens without a network");
}

#[test]
fn servers_are_started_measured_and_ended() {
    let Some(bench) = Bench::with(&["overspill-lab", "nbdkit", "redis-server"]) else { return };
    let words = ["--devices", "nbd,redis", "--workloads", "modify", "--jobs", "1"];
    let (text, json, _) = compare(&bench, &[&words[..], &["--ways", "run,region"]].concat());
    assert_cells(&json, 2, &["run"]);
    assert!(text.contains("skipped: region on redis: the library uses no servers"), "{text}");
    assert_eq!(left_in(&bench), ["report.html", "report.json"]);
}

#[test]
fn servers_end_with_a_comparison_that_is_killed() {
    let Some(bench) = Bench::with(&["overspill-lab", "nbdkit", "redis-server"]) else { return };
    let words = ["--devices", "redis", "--ways", "run", "--seconds", "60"];
    let mut child = command(&bench, &words).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let wait_until = |what: &dyn Fn() -> bool| {
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", left_in(&bench));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_until(&|| left_in(&bench).len() > 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(&|| left_in(&bench).len() <= 2 && running_in(&bench) == 0);
}

/// Processes that were started with the comparison's directory for their files.
fn running_in(bench: &Bench) -> usize {
    let directory = format!("TMPDIR={}", bench.path(".").display()).into_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|it| std::fs::read(it.path().join("environ")).ok());
    environments.filter(|it| it.split(|&byte| byte == 0).any(|word| word == directory)).count()
}

/// What is in the directory of a comparison.
fn left_in(bench: &Bench) -> Vec<String> {
    let entries = std::fs::read_dir(bench.path(".")).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn kernel_swap_is_made_measured_and_removed() {
    let Some(bench) = Bench::with(&["overspill-lab", "losetup", "swapon"]) else { return };
    if let Some(reason) = obstacle() {
        println!("skipped: {reason}");
        return;
    }
    let words = ["--workloads", "uniform", "--jobs", "1", "--ways", "kernel,run", "--costs"];
    for device in ["zram", "ramdisk", "file"] {
        let (text, json, _) = compare(&bench, &[&words[..], &["--devices", device]].concat());
        assert_nothing_left();
        let skipped = text.lines().find(|line| line.starts_with("skipped: kernel"));
        let Some(line) = skipped else {
            assert_cells(&json, 1, &["kernel", "run"]);
            assert!(json["rows"][0]["cells"][1]["ratio"]["median"].as_f64().unwrap() > 0.0);
            assert!(text.contains('×'), "{text}");
            continue;
        };
        println!("{line}");
        assert_cells(&json, 1, &["run"]);
    }
}

#[test]
fn real_programs_are_run_by_each_pager_and_nothing_is_left() {
    let Some(bench) = Bench::with(&["overspill-lab", "losetup", "swapon", "sort", "awk", "time"])
    else {
        return;
    };
    let sides = match obstacle() {
        Some(reason) => {
            println!("skipped: kernel: {reason}");
            "plain,run"
        }
        None => "plain,kernel,run",
    };
    let json = bench.path("report.json");
    let mut command = Command::new(lab());
    command.args(["programs", "--programs", "sort-log,gcc", "--rounds", "1"]);
    command.args(["--sides", sides, "--devices", "zram", "--json"]).arg(&json);
    let output = command.env("TMPDIR", bench.path(".")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_nothing_left();
    assert_eq!(left_in(&bench), ["report.json"]);
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert!(text(&output).contains("skipped: gcc: it takes --sqlite, SQLite's sources"));
    let done = |side: &str| {
        let cells = rows[0]["cells"].as_array().unwrap();
        let cell = cells.iter().find(|cell| cell["side"] == side).unwrap();
        cell["outcomes"][0]["done"].clone()
    };
    assert_eq!(done("plain")["pages_in"], 0);
    let (run, peak) = (done("run"), done("plain")["peak_bytes"].as_u64().unwrap());
    assert!(run["pages_in"].as_u64().unwrap() > 10_000, "{run}");
    assert!(run["peak_bytes"].as_u64().unwrap() < peak / 3, "{run}, plain {peak}");
}

#[test]
fn the_kernel_replays_a_trace_in_as_much_memory_as_the_others() {
    let Some(bench) = Bench::with(&["overspill-lab", "losetup", "swapon"]) else { return };
    if let Some(reason) = obstacle() {
        println!("skipped: {reason}");
        return;
    }
    let json = bench.path("policy.json");
    let mut command = Command::new(lab());
    command.args(["policy", "--workload", "uniform", "--workload", "hot+scan"]);
    command.args(["--memory-pages", "8192", "--touches", "100000", "--json"]).arg(&json);
    let output = command.env("TMPDIR", bench.path(".")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_nothing_left();
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let kernel = json["kernel"].as_str().unwrap();
    if kernel.starts_with("skipped: ") {
        println!("{kernel}");
        return;
    }
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let row = |workload: usize, policy: usize| &json["workloads"][workload]["policies"][policy];
    let (uniform, scans) = (row(0, 4), row(1, 4));
    assert!(text(&output).contains("MIN  kernel") && uniform["policy"] == "kernel");
    // A quarter of the set fits in memory, whatever is evicted: the rate shows how much memory
    // there was. One standard deviation of 75000 touches is 0.16; 2 % of memory are half a per
    // cent.
    assert!((24.0..25.6).contains(&figure(uniform, "hit_rate_percent")), "{uniform}");
    assert!(figure(uniform, "waits") > 0.0, "{uniform}");
    assert!(figure(scans, "hit_rate_percent") <= figure(row(1, 3), "hit_rate_percent"), "MIN");
    assert!(figure(scans, "survival_percent") > 0.0, "{scans}");
}

#[test]
fn an_interrupted_comparison_removes_what_it_made() {
    let Some(bench) = Bench::with(&["overspill-lab", "swapon"]) else { return };
    if let Some(reason) = obstacle() {
        println!("skipped: {reason}");
        return;
    }
    let words = ["--ways", "kernel", "--devices", "file", "--seconds", "60"];
    let child = command(&bench, &words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.unwrap();
    if !swap_comes_on(&child) {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("skipped: kernel"), "{errors}");
        println!("{errors}");
        return;
    }
    // SAFETY: kill touches no memory; the child has not been reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.trim_end().ends_with("everything made for the comparison was removed"));
    assert_nothing_left();
    let left: Vec<_> = std::fs::read_dir(bench.path(".")).unwrap().flatten().collect();
    assert!(
        left.iter().all(|entry| entry.path().extension().is_none_or(|it| it != "swap")),
        "{left:?}"
    );
}

/// Waits until the kernel's swap is on and in use; returns false if that does not happen.
fn swap_comes_on(child: &Child) -> bool {
    let start = Instant::now();
    let uses_swap = || {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let used = |line: &str| line.split_whitespace().nth(3).is_some_and(|used| used != "0");
        swaps.lines().skip(1).any(used)
    };
    let stat = format!("/proc/{}/stat", child.id());
    let has_ended = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
    while start.elapsed() < Duration::from_secs(60) && !has_ended() {
        if uses_swap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
