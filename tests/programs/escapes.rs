//! The summary reports what is outside the limit of a pager in the program.

use overspill_programs::bench::Bench;
use std::path::Path;

/// Runs a command in 16 MiB; returns the messages of Overspill.
fn summary(bench: &Bench, words: &[&str]) -> String {
    let job = bench.job(words).inside().patience(30);
    let ended = job.paged(&["--memory", "16M", "--swap", "ram:64M"]).success();
    ended.errors
}

fn outside(summary: &str) -> Option<&str> {
    summary.lines().find_map(|line| line.strip_prefix("overspill: outside the limit: "))
}

fn compile(bench: &Bench, flags: &[&str], name: &str) -> String {
    bench.cc_with("escapes.c", flags, name).display().to_string()
}

#[test]
fn static_variables_and_brk() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    let program = compile(&bench, &[], "escapes");
    for (case, reason) in [("bss", ".bss"), ("data", ".data"), ("brk", "brk"), ("shared", "shared")]
    {
        let summary = summary(&bench, &[&program, case]);
        assert!(outside(&summary).is_some_and(|line| line.contains(reason)), "{case}: {summary}");
        let child = format!("{program} {case}; true");
        let summary = self::summary(&bench, &["sh", "-c", &child]);
        assert!(outside(&summary).is_some_and(|line| line.contains(reason)), "{case}: {summary}");
    }
}

#[test]
fn a_program_within_its_limit_is_not_spoken_of() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    let program = compile(&bench, &[], "escapes");
    assert_eq!(outside(&summary(&bench, &[&program, "managed"])), None);
    assert_eq!(outside(&summary(&bench, &["sh", "-c", "echo $(ls /) | wc"])), None);
}

#[test]
fn programs_that_never_join() {
    let Some(bench) = Bench::with(&["cc", "sh", "env"]) else { return };
    let plain = compile(&bench, &[], "escapes");
    let fixed = compile(&bench, &["-static"], "static");
    let script = bench.file("script", |file| writeln!(file, "#!{fixed} none").unwrap());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let static_child = format!("{fixed} none");
    let cleared = format!("env -i {plain} none");
    let table = [
        (static_child.as_str(), "statically linked"),
        (&script.display().to_string(), "statically linked"),
        (cleared.as_str(), "cleared environment"),
    ];
    for (command, reason) in table {
        let summary = self::summary(&bench, &["sh", "-c", &format!("{command}; true")]);
        assert!(outside(&summary).is_some_and(|line| line.contains(reason)), "{summary}");
    }
    let go = compile(&bench, &["-DLIKE_GO"], "go");
    let summary = summary(&bench, &["sh", "-c", &format!("{go} managed; true")]);
    assert!(outside(&summary).is_some_and(|line| line.contains("a Go program")), "{summary}");
    for how in ["execl", "execlp", "execle", "execv", "execvp", "spawn", "spawnp"] {
        let summary = self::summary(&bench, &[&plain, how, &fixed]);
        let said = outside(&summary).is_some_and(|line| line.contains("statically linked"));
        assert!(said, "{how}: {summary}");
    }
    assert!(Path::new(&fixed).exists());
}

#[test]
fn children_that_are_left_alone_have_not_escaped() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    let fixed = compile(&bench, &["-static"], "static");
    let job = bench.job(&["sh", "-c", &format!("{fixed} none; true")]).inside();
    let ended = job.paged(&["--memory", "16M", "--no-children"]).success();
    assert_eq!(outside(&ended.errors), None);
}
