//! `overspill doctor`.

use crate::installation::{Installation, stdout};
use std::process::{Command, Output};

const MARKS: [&str; 3] = ["ok", "limited", "no"];

fn doctor(args: &[&str]) -> Output {
    Installation::new().overspill().arg("doctor").args(args).output().unwrap()
}

#[test]
fn every_finding_is_a_line_in_columns() {
    let output = doctor(&[]);
    let text = stdout(&output);
    for subject in [
        "page size",
        "way: faults",
        "way: calls",
        "way: touches",
        "io_uring",
        "swap file",
        "memory",
        "memory cgroup",
    ] {
        assert!(text.contains(&format!("  {subject}  ")), "`{subject}` in {text}");
    }
    for line in text.lines() {
        let mark = line.split_whitespace().next().unwrap();
        assert!(MARKS.contains(&mark) && line.starts_with(&format!("{mark:<7}  ")), "{line}");
    }
    let broken = text.lines().any(|line| line.starts_with("no "));
    assert_eq!(output.status.code(), Some(broken.into()), "{text}");
}

#[test]
fn a_directory_that_cannot_hold_swap_is_a_no() {
    let output = doctor(&["--directory", "/proc"]);
    let text = stdout(&output);
    let line = text.lines().find(|line| line.contains("swap file")).unwrap();
    assert!(line.starts_with("no ") && line.contains("/proc"), "{line}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_directory_is_the_one_tried() {
    let directory = tempfile::tempdir().unwrap();
    let text = stdout(&doctor(&["--directory", directory.path().to_str().unwrap()]));
    let line = text.lines().find(|line| line.contains("swap file")).unwrap();
    assert!(line.contains(directory.path().to_str().unwrap()), "{line}");
}

/// What the probes do not foresee, the run at the end says in its own words.
#[test]
fn last_comes_a_run() {
    let installation = Installation::new();
    let program = installation.path("overspill").display().to_string();
    let run = |text: &str| text.lines().find(|line| line.contains(" a run ")).unwrap().to_owned();
    let table =
        [("ulimit -n 10; ", "raise `ulimit -n`"), ("ulimit -v 200000; ", "raise `ulimit -v`")];
    for (limit, words) in table {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("{limit}{program} doctor")]);
        let output = limited.output().unwrap();
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(run(&text).contains(words), "{text}");
    }
}
