//! `overspill-lab sim`, with small sizes.

use crate::{lab, stdout};
use serde_json::Value;

fn sim(words: &[&str]) -> std::process::Output {
    lab().arg("sim").args(words).output().unwrap()
}

#[test]
fn a_run_prints_and_writes_what_was_published_beside_what_was_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let [json, html] = ["report.json", "report.html"].map(|name| directory.path().join(name));
    let mut command = lab();
    command.args(["sim", "run", "series-4.11", "--seconds", "0.05", "--json"]).arg(&json);
    let output = command.arg("--html").arg(&html).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let figure = &json["experiments"][0]["figures"][0];
    assert_eq!(figure["published_before"], 15.0);
    assert!(figure["before"].as_f64().unwrap() > figure["after"].as_f64().unwrap());
    let (text, html) = (stdout(&output), std::fs::read_to_string(html).unwrap());
    for word in ["fault latency, median", "11 to 19", "linux-4.11", "get_swap_pages"] {
        assert!(text.contains(word) && html.contains(word), "{word}");
    }
    // One plot for all experiments, one for the locks of this one.
    assert_eq!(html.matches("<svg").count(), 2);
}

#[test]
fn the_same_seed_prints_the_same() {
    let words = ["run", "scan-more", "--seconds", "0.005", "--seed", "5"];
    assert_eq!(sim(&words).stdout, sim(&words).stdout);
}

#[test]
fn a_sweep_has_a_row_for_each_preset() {
    let words = ["sweep", "--over", "cpus", "--values", "1,2", "--seconds", "0.001"];
    let text = stdout(&sim(&words));
    for preset in ["linux-2.6.23", "linux-4.8", "linux-4.11", "linux-5.7", "linux-5.8", "modern"] {
        assert!(text.contains(preset), "{preset} in {text}");
    }
}

#[test]
fn schedules_are_explored() {
    let text = stdout(&sim(&["explore", "--runs", "20"]));
    assert!(text.contains("20 schedules from seed 1 on"), "{text}");
}

#[test]
fn presets_are_listed() {
    let text = stdout(&sim(&["list"]));
    assert_eq!(text.lines().count(), 7, "{text}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line_that_names_it() {
    for (words, says) in [
        (&["run", "nothing"][..], "no preset is called `nothing`; there are rotate-batch"),
        (&["run", "--seconds", "0"], "--seconds cannot be 0: it is from 0.001 to 3600 here"),
        (&["sweep", "--over", "cpus", "--values", "0"], "cpus cannot be 0: it is from 1 to 1024"),
        (&["sweep", "--over", "sockets", "--values", "65"], "sockets cannot be 65"),
        (&["sweep", "--over", "size", "--values", "1e9"], "size (GiB) cannot be 1000000000"),
        (&["sweep", "--over", "size", "--values", "0"], "it is from 0.0625 to 16384"),
        (&["sweep", "--over", "weight"], "no parameter is called `weight`"),
        (&["sweep", "--over", "cpus", "--presets", "linux-1.0"], "is called `linux-1.0`"),
    ] {
        let output = sim(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{words:?}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(says), "{text}");
    }
}
