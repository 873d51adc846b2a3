//! `overspill doctor`.

use crate::installation::{Installation, stdout};
use std::process::Output;

const MARKS: [&str; 3] = ["ok", "limited", "no"];

fn doctor(args: &[&str]) -> Output {
    Installation::bare().overspill().arg("doctor").args(args).output().unwrap()
}

#[test]
fn every_finding_is_a_line_in_columns() {
    let output = doctor(&[]);
    let text = stdout(&output);
    for subject in ["page size", "way: faults", "io_uring", "swap file", "memory", "memory cgroup"]
    {
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
