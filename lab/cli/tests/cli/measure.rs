//! Measurements, with small sizes.

use crate::{lab, stdout};
use serde_json::Value;

/// Runs the lab with `words`; returns its output, the JSON and the HTML page.
fn measure(words: &[&str]) -> (String, Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let [json, html] = ["report.json", "report.html"].map(|name| directory.path().join(name));
    let mut command = lab();
    command.args(words).arg("--json").arg(&json).arg("--html").arg(&html);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    (stdout(&output), json, std::fs::read_to_string(html).unwrap())
}

#[test]
fn an_ablation_compares_both_sides_of_a_mechanism() {
    let words = ["ablate", "--mechanism", "scan_base", "--mechanism", "rotate_batch"];
    let short = ["--threads", "2", "--seconds", "0.1", "--rounds", "2"];
    let (text, json, html) = measure(&[&words[..], &short].concat());
    let experiments = json["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), 2);
    for experiment in experiments {
        for side in ["before", "after"] {
            let side = &experiment[side];
            let score = side["metrics"].as_array().unwrap().iter().find(|m| m["name"] == "score");
            assert!(score.unwrap()["median"].as_f64().unwrap() > 0.0, "{side}");
            let locks = side["locks"].as_array().unwrap();
            assert!(locks.iter().any(|lock| lock["class"] == "Lru"), "{side}");
        }
        let name = experiment["mechanism"].as_str().unwrap();
        assert!(text.contains(&format!("== {name}")) && html.contains(name), "{name}");
    }
    for published in ["172.228", "+18.5 %", "+18.7 %"] {
        assert!(text.contains(published) && html.contains(published), "{published}");
    }
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    // One plot for all mechanisms, one for the locks of each.
    assert_eq!(html.matches("<svg").count(), 3);
    assert!(!html.contains("http://www.w3.org/1999/xlink") && !html.contains("src="), "offline");
}

#[test]
fn slot_rates_cover_every_preset() {
    let words = ["slots", "--threads", "1,2", "--seconds", "0.01", "--rounds", "1"];
    let (text, json, html) = measure(&words);
    // 6 presets, 2 devices, 2 numbers of threads.
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    assert!(rows.iter().all(|row| row["mega_slots_per_s"]["median"].as_f64().unwrap() > 0.0));
    assert!(text.contains("linux-2.6.23") && text.contains("modern"));
    assert_eq!(html.matches("<svg").count(), 2);

    let counted = |preset: &str, state: &str, figure: &str| {
        let is =
            |row: &&Value| row["preset"] == preset && row["state"] == state && row["threads"] == 2;
        rows.iter().find(is).unwrap()["counted"][figure].as_f64().unwrap()
    };
    // The published mechanisms, in counts that do not depend on machine or load.
    assert_eq!(counted("linux-4.8", "fresh", "slots_per_lock"), 1.0);
    assert_eq!(counted("linux-4.11", "fresh", "slots_per_lock"), 64.0);
    assert_eq!(counted("linux-4.8", "fresh", "frees_per_lock"), 1.0);
    assert_eq!(counted("linux-4.11", "fresh", "frees_per_lock"), 64.0);
    let fragmented = "ninety_percent_full";
    assert!(counted("linux-5.7", fragmented, "slots_per_lock") <= 1.0);
    assert!(counted("linux-5.8", fragmented, "slots_per_lock") > 5.0);
    assert!(counted("linux-5.7", fragmented, "same_trunk") > 0.8);
    assert!(counted("linux-5.8", fragmented, "same_trunk") < 0.3);
}

#[test]
fn the_engines_own_memory_grows_with_pages_slots_and_frames() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("memory.json");
    let output = lab().args(["memory", "--json"]).arg(&json).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    // A page has a word of eight bytes, and so has a slot; a frame has 24 bytes and its list's
    // links.
    for (what, least) in
        [("bytes_per_page", 7.0), ("bytes_per_slot", 7.0), ("bytes_per_frame", 24.0)]
    {
        let bytes = report[what].as_f64().unwrap();
        assert!((least..500.0).contains(&bytes), "{what}: {bytes}");
    }
}

#[test]
fn lock_costs_are_three_figures() {
    let output = lab().args(["locks"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("std::sync::Mutex") && text.contains("counting on"), "{text}");
}

#[test]
fn policies_are_compared_over_the_same_traces() {
    let (text, json, html) = measure(&["policy", "--memory-pages", "1024", "--touches", "4000"]);
    let workloads = json["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 8);
    for workload in workloads {
        let name = workload["workload"].as_str().unwrap();
        assert!(text.contains(&format!("== {name}")) && html.contains(name), "{name}");
        let policies = workload["policies"].as_array().unwrap();
        let names: Vec<&str> = policies.iter().map(|p| p["policy"].as_str().unwrap()).collect();
        // The kernel may follow, which `programs` tests.
        assert_eq!(names[..4], ["overspill", "LRU", "CLOCK", "MIN"]);
        let rate = |n: usize| policies[n]["hit_rate_percent"].as_f64().unwrap();
        assert!(rate(3) >= rate(1) && rate(3) >= rate(2), "{name}: nothing beats MIN");
    }
    assert_eq!(html.matches("<svg").count(), 1);
}

#[test]
fn an_unknown_workload_is_refused_with_those_there_are() {
    let output = lab().args(["policy", "--workload", "zip"]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no workload is called `zip`") && error.contains("zipf"), "{error}");
}
