//! Mistakes on the command line.

use crate::installation::{Installation, assert_fails, can_run, stderr, stdout};

#[test]
fn a_refusal_says_where_a_directory_is_from() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let mut command = installation.overspill();
    command.args(["run", "--memory", "64M", "--", "true"]).env("TMPDIR", "/nowhere");
    assert_fails(&mut command, 125, &["/nowhere ($TMPDIR)", "its directory must exist"]);
}

#[test]
fn who_writes_nothing_sees_what_there_is() {
    let output = Installation::new().overspill().output().unwrap();
    let help = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{help}");
    assert!(
        help.contains("Usage: overspill") && help.contains("  run ") && help.contains("  top ")
    );
}

#[test]
fn mistakes_are_told_in_one_line() {
    let installation = Installation::new();
    let table: &[(&[&str], &[&str])] = &[
        (&["swim"], &["'swim'", "overspill --help"]),
        (&["run"], &["not provided", "<PROGRAM>", "overspill run --help"]),
        (&["run", "--memory", "64M"], &["<PROGRAM>", "overspill run --help"]),
        (&["run", "--memroy", "1G", "true"], &["'--memroy'", "did you mean `--memory`?"]),
        (&["run", "--memory", "-1", "true"], &["--memory: bad size `-1`"]),
        (&["run", "--memory", "1G", "--swap", "ram:", "true"], &["size is missing", "ram:8G"]),
        (&["stats", "x"], &["[PROCESS]: `x` is no whole number", "stats --help"]),
        (&["run", "--memory", "64Q", "true"], &["--memory", "bad size `64Q`", "512M"]),
        (&["run", "--memory", "", "true"], &["--memory"]),
        (&["run", "--memory=-5M", "true"], &["bad size `-5M`"]),
        (&["run", "--memory", "0%", "true"], &["bad percentage `0%`", "25%"]),
        (&["run", "--memory", "200%", "true"], &["bad percentage `200%`"]),
        (&["run", "--memory", "1G", "--memory", "2G", "true"], &["multiple times"]),
        (&["run", "--memory", "1G", "--swap", "disk:/x", "true"], &["`disk:/x`", "ram:SIZE"]),
        (&["run", "--memory", "1G", "--swap", "ram:1M,pri=x", "true"], &["priority `x`", "32767"]),
        (&["run", "--memory", "1G", "--swap", "ram:1M,prio=1", "true"], &["option `prio`"]),
        (&["run", "--memory", "1G", "--swap-size", "big", "true"], &["bad size `big`"]),
        (&["run", "--memory", "1G", "--fast", "true"], &["--fast"]),
        (&["run", "--memory", "1G", "--swap", "ram:1M,ssd=2", "true"], &["ssd `2`", "on nor off"]),
        (
            &["run", "--memory", "1G", "--swap", "ram:1M,discard", "true"],
            &["bad size `1M,discard`"],
        ),
        (
            &["run", "--memory", "1G", "--swap", "compressed:1G,algo=gzip", "true"],
            &["algo `gzip`", "lz4 nor zstd"],
        ),
        (
            &["run", "--memory", "1G", "--swap", "file:/x,algo=lz4", "true"],
            &["only compressed:SIZE takes algo="],
        ),
        (&["run", "--memory", "1G", "--swap", "compressed:x", "true"], &["bad size `x`"]),
        (
            &["run", "--memory", "1G", "--way", "x", "true"],
            &["possible values: faults, calls, touches"],
        ),
        (&["mkswap"], &["<PATH>"]),
        (&["mkswap", "--uuid", "7", "/x"], &["--uuid `7`: invalid", "overspill mkswap --help"]),
        (&["mkswap", "/nowhere"], &["/nowhere is not there", "fallocate"]),
        (&["mkswap", "--label", "seventeen-byte-lb", "/x"], &["17 bytes", "at most 16"]),
        (&["doctor", "everything"], &["everything"]),
        (&["doctor", "--directory", "/nowhere"], &["/nowhere is no directory", "--directory"]),
    ];
    for (args, words) in table {
        assert_fails(installation.overspill().args(*args), 125, words);
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let installation = Installation::new();
    let table: [(&[&str], &str); 6] = [
        (&["--help"], "run "),
        (&["run", "--help"], "sort -S 4G"),
        (&["run", "-h"], "--memory <M>"),
        (&["doctor", "--help"], "--directory <DIR>"),
        (&["mkswap", "--help"], "--check"),
        (&["--version"], concat!("overspill ", env!("CARGO_PKG_VERSION"))),
    ];
    for (args, words) in table {
        let output = installation.overspill().args(args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
        assert!(stdout(&output).contains(words), "{args:?}: {}", stdout(&output));
    }
}

#[test]
fn what_cannot_be_opened_is_refused_before_the_program_starts() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let marker = installation.path("started");
    let content = installation.executable("content", "not swap\n".repeat(100_000));
    let content = format!("file:{}", content.display());
    let twice = format!("file:{}:1M", installation.path("new").display());
    let table: &[(&[&str], &[&str])] = &[
        (&["--stats", "/nowhere/stats"], &["/nowhere/stats", "No such file", "name another file"]),
        (&["--swap", "file:/nowhere/swap:8M"], &["/nowhere/swap", "directory must exist"]),
        (&["--swap", "file:/nowhere"], &["/nowhere does not exist", "file:/nowhere:8G"]),
        (&["--swap", "/dev/null"], &["/dev/null", "no block device", "file:PATH"]),
        (&["--swap", "ram:4K"], &["ram", "larger size"]),
        (&["--swap", "block:/dev/nope"], &["no device /dev/nope", "file:PATH"]),
        (&["--swap", &twice, "--swap", &twice], &["new was given twice", "leave one out"]),
        (&["--swap", &content], &["content", "--force"]),
    ];
    for (options, words) in table {
        let mut command = installation.run(options, &["touch".as_ref(), marker.as_os_str()]);
        assert_fails(&mut command, 125, words);
        assert!(!marker.exists(), "{options:?}");
    }
}

#[test]
fn a_limit_below_the_minimum_names_the_minimum() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    for memory in ["1M", "0", "0.000001%"] {
        let mut command = installation.overspill();
        command.args(["run", "--memory", memory, "true"]);
        assert_fails(&mut command, 125, &["below the working minimum of 4 MiB"]);
    }
}

#[test]
fn shells_and_man_know_the_options() {
    let installation = Installation::new();
    for (shell, words) in [("bash", "--swap-size"), ("zsh", "--swap-size"), ("fish", "swap-size")] {
        let output = installation.overspill().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && stdout(&output).contains(words), "{shell}");
    }
    let directory = installation.path("man");
    std::fs::create_dir(&directory).unwrap();
    assert!(installation.overspill().arg("man").arg(&directory).status().unwrap().success());
    let page = std::fs::read_to_string(directory.join("overspill-run.1")).unwrap();
    assert!(page.contains(".TH overspill-run 1") && page.contains("swap\\-size"), "{page}");
    let mut nowhere = installation.overspill();
    assert_fails(nowhere.args(["man", "/nowhere"]), 125, &["/nowhere"]);
}

/// The messages of the troubleshooting page are ours, in these words.
#[test]
fn the_messages_to_look_up_are_those_that_are_said() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let find = ["--include=*.rs", "-hr", "", "crates/cli/src", "crates/overspill/src"];
    let more = ["crates/device/src", "crates/engine/src", "crates/keeper/src", "crates/run/src"];
    let mut grep = std::process::Command::new("grep");
    let sources = grep.args(find).args(more).current_dir(&root).output().unwrap();
    let lines = stdout(&sources);
    // As the compiler joins them.
    let joined = lines.replace("\\\n", "\u{0}").replace('\n', " ");
    let sources: Vec<&str> = joined.split('\u{0}').map(str::trim_start).collect();
    let sources = sources.concat();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let messages: Vec<&str> = rows.flat_map(|row| row.split('`').step_by(2)).collect();
    let parts = messages.iter().flat_map(|message| message.split("..."));
    let parts: Vec<&str> = parts.map(str::trim).filter(|part| part.len() > 6).collect();
    assert!(parts.len() > 12, "{parts:?}");
    let missing: Vec<_> = parts.iter().filter(|part| !sources.contains(**part)).collect();
    assert!(missing.is_empty(), "not said: {missing:?}");
}
