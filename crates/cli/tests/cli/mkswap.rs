//! `overspill mkswap`.

use crate::installation::{Installation, assert_fails, can_run, chmod, stderr, stdout};

const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[test]
fn an_area_is_made_and_told_in_one_line() {
    let installation = Installation::new();
    let path = installation.path("area");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    chmod(&path, 0o600);
    let mut mkswap = installation.overspill();
    mkswap.args(["mkswap", "--check", "--label", "spill", "--uuid", UUID]).arg(&path);
    let output = mkswap.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    let start = "Setting up swapspace version 1, size = 1020 KiB (1044480 bytes)";
    assert_eq!(stdout(&output), format!("{start}, LABEL=spill, UUID={UUID}\n"));

    let path = path.to_str().unwrap();
    assert_fails(&mut mkswap, 125, &["a swap area labelled `spill`", "--force"]);
    let again = || installation.overspill().args(["mkswap", "--force", path]).output().unwrap();
    let lines = [again(), again()].map(|output| stdout(&output));
    assert!(lines[0].contains("no label, UUID="), "{}", lines[0]);
    assert_ne!(lines[0], lines[1], "another UUID each time");
}

#[test]
fn warnings_are_lines_and_no_failures() {
    let installation = Installation::new();
    let path = installation.path("area");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    chmod(&path, 0o604);
    let output = installation.overspill().arg("mkswap").arg(&path).output().unwrap();
    assert!(output.status.success() && stdout(&output).lines().count() == 1);
    let text = stderr(&output);
    assert!(text.contains("mode 0604") && text.contains("has holes"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("overspill: ")), "{text}");
}

#[test]
fn a_run_swaps_to_what_was_made() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let path = installation.path("area");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let spec = format!("file:{},discard=both,ssd=on,pri=3", path.display());
    assert_fails(&mut installation.run(&["--swap", &spec], &["true"]), 125, &["--force"]);
    let made = installation.overspill().arg("mkswap").arg(&path).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let output = installation.run(&["--swap", &spec], &["true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
