//! The program from its start to its end.

use crate::installation::{Installation, can_run, stderr, stdout};
use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for anything that does not hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns an installation, if a run can start here.
fn installation() -> Option<Installation> {
    can_run().then(Installation::new)
}

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// Starts a command and waits for its first line.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

/// Resets an ignored signal, which a shell could not trap: SIGINT is ignored in background jobs.
fn not_ignoring(command: &mut Command, signal: i32) -> &mut Command {
    let reset = move || {
        // SAFETY: restores a signal's default, in a child without other threads.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: `reset` is one system call.
    unsafe { command.pre_exec(reset) }
}

fn read_stats(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_programs_status_is_ours() {
    let Some(installation) = installation() else { return };
    let table =
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill $$", 143), ("kill -9 $$", 137)];
    for (script, status) in table {
        let output = installation.run(&[], &shell(script)).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{script}: {}", stderr(&output));
    }
}

/// No shell says so: to it, we are the program.
#[test]
fn a_signal_that_ended_the_program_is_named() {
    let Some(installation) = installation() else { return };
    for (script, words) in
        [("kill -SEGV $$", "ended by SIGSEGV (signal 11)"), ("kill -9 $$", "SIGKILL (signal 9)")]
    {
        let said = stderr(&installation.run(&[], &shell(script)).output().unwrap());
        assert_eq!(said.lines().filter(|line| line.contains(words)).count(), 1, "{said}");
    }
    let said = stderr(&installation.run(&[], &shell("exit 139")).output().unwrap());
    assert!(!said.contains("ended by"), "{said}");
}

#[test]
fn signals_reach_the_program_once() {
    let Some(installation) = installation() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (report, touches) = (directory.path().join("report"), directory.path().join("touches"));
    // Threads that watch the run get none of them.
    let watched = ["--report", report.to_str().unwrap(), "--touches", touches.to_str().unwrap()];
    let signals = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2];
    let signals = signals.into_iter().chain([Signal::TERM, Signal::ALARM]);
    for (signal, options) in signals.flat_map(|signal| [(signal, &[][..]), (signal, &watched)]) {
        let number = signal.as_raw();
        let script = format!(
            "n=0; trap 'n=$((n + 1))' {number}; echo ready
             while [ $n = 0 ]; do sleep 0.01; done; sleep 0.1; exit $n"
        );
        let options = [&["--quiet"], options].concat();
        let mut command = installation.run(&options, &shell(&script));
        let (mut child, line) = start(not_ignoring(&mut command, number));
        assert_eq!(line, "ready");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{signal:?}");
    }
}

/// As in `tmux new 'overspill run ...'`, or by `ssh -t`: the kernel tells the session's leader
/// alone.
#[test]
fn a_run_ends_with_its_terminal() {
    let Some(installation) = installation() else { return };
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    // The second child is to outlive the terminal, as it would without us; it says so when it will.
    let script = format!(
        "sleep 100 & echo $$ $! >{0}.new
         sh -c 'trap \"\" HUP; echo $$ >>{0}.new; mv {0}.new {0}; exec sleep 100' >/dev/null 2>&1 &
         wait",
        pids.display()
    );
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = openpt(flags).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let end = File::options().read(true).write(true).open(name).unwrap();
    let mut command = installation.run(&[], &shell(&script));
    let copy = || end.try_clone().unwrap();
    command.stdin(copy()).stdout(copy()).stderr(copy());
    let leads = || {
        setsid()?;
        ioctl_tiocsctty(std::io::stdin())?;
        // SAFETY: restores a signal's default, in a child without other threads.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: only system calls are made.
    let mut child = unsafe { command.pre_exec(leads) }.spawn().unwrap();
    wait_until("it has begun", || pids.exists());
    drop((terminal, end));
    let numbers = std::fs::read_to_string(&pids).unwrap();
    let numbers: Vec<i32> = numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let [shell, ended, outlives] = numbers[..] else { panic!("{numbers:?}") };
    wait_until("its processes have ended", || ![shell, ended].into_iter().any(runs));
    assert!(runs(outlives) && child.try_wait().unwrap().is_none());
    kill_process(Pid::from_raw(outlives).unwrap(), Signal::KILL).unwrap();
    wait_until("the run has ended", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGHUP));
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether there is a process of that number that has not ended.
fn runs(process: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// As the first process of a container, whose session is of the namespace outside. Numbers of
/// that one, which its `/proc` has, are other processes here.
#[test]
fn a_namespace_of_processes_takes_its_own_proc() {
    let Some(installation) = installation() else { return };
    let inside = |mount: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).args(mount);
        command.arg("--").arg(installation.path("overspill"));
        command.args(["run", "--memory", "64M", "--", "true"]).output().unwrap()
    };
    let output = inside(&["--mount-proc"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = inside(&[]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("mount -t proc proc /proc"), "{}", stderr(&output));
}

#[test]
fn the_program_dies_with_its_supervisor() {
    let Some(installation) = installation() else { return };
    let (mut child, line) = start(&mut installation.run(&[], &shell("echo $$; exec sleep 60")));
    let program = line.parse().unwrap();
    assert!(runs(program));
    child.kill().unwrap();
    child.wait().unwrap();
    // The new parent may be slow to reap it.
    wait_until("the program has ended", || !runs(program));
}

/// Parses signal sets from /proc, without the two signals that libc uses itself: it sets them up in
/// any process that has ever had a thread.
fn of_programs(sets: &str) -> Vec<u64> {
    let digits = sets.lines().filter_map(|line| line.split_whitespace().last());
    digits.map(|set| u64::from_str_radix(set, 16).unwrap() & !(0b11 << 31)).collect()
}

#[test]
fn the_program_starts_as_it_would_without_us() {
    let Some(installation) = installation() else { return };
    let program = shell("exec grep -E '^Sig(Blk|Ign)' /proc/self/status");
    let plain = Command::new(program[0]).args(&program[1..]).output().unwrap();
    let ours = installation.run(&[], &program).output().unwrap();
    assert_eq!(of_programs(&stdout(&ours)), of_programs(&stdout(&plain)));

    let script = installation.executable("script", "#!/bin/sh\necho $0 $#\n");
    let text = installation.executable("text", "echo $0 $#\n");
    for path in [script, text] {
        let ours = installation.run(&[], &[path.as_os_str(), "a b".as_ref()]).output().unwrap();
        assert_eq!(stdout(&ours), format!("{} 1\n", path.display()));
    }
}

#[test]
fn the_summary_is_short() {
    let Some(installation) = installation() else { return };
    let text = stderr(&installation.run(&[], &["true"]).output().unwrap());
    for words in
        ["true: memory 64 MiB, most in use ", "0 pages in, 0 out; 0 faults", "devices: ram ("]
    {
        assert!(text.contains(&format!("overspill: {words}")), "`{words}` in {text}");
    }
    assert!(text.lines().count() <= 5, "{text}");
}

#[test]
fn runtimes_are_told_unless_their_user_does() {
    let Some(installation) = installation() else { return };
    let script = shell("echo java $JAVA_TOOL_OPTIONS; echo node $NODE_OPTIONS");
    let told = |options: &[&str], set: &[(&str, &str)]| {
        let mut command = installation.run(options, &script);
        command.env_remove("JAVA_TOOL_OPTIONS").env_remove("NODE_OPTIONS");
        stdout(&command.envs(set.iter().copied()).output().unwrap())
    };
    let usual = told(&[], &[]);
    assert!(
        usual.contains("NeverActAsServerClassMachine") && usual.contains("size=1\n"),
        "{usual}"
    );
    assert_eq!(told(&["--tell-runtimes=no"], &[]), "java\nnode\n");
    let own = told(&[], &[("JAVA_TOOL_OPTIONS", "-Xint"), ("NODE_OPTIONS", "--no-warnings")]);
    assert_eq!(own, "java -Xint\nnode --no-warnings\n");
}

#[test]
fn without_a_limit_a_part_of_what_is_free_is_taken() {
    let Some(installation) = installation() else { return };
    let run = |options: &[&str]| {
        let mut command = installation.overspill();
        command.arg("run").args(options).args(["--swap", "ram:64M", "--stats", "-", "true"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: Value = serde_json::from_str(&stdout(&output)).unwrap();
        (stats["memory_bytes"].as_u64().unwrap(), stderr(&output))
    };
    let (limit, told) = run(&[]);
    // What is free changes from one moment to the next.
    let free = overspill::memory::free_here().0 / 4 * 3;
    assert!((free / 2..free * 2).contains(&limit), "{limit} of {free}");
    let said = format!("no limit is given: {}, three quarters", overspill::Bytes(limit));
    assert!(told.contains(&said), "{said} in {told}");
    assert_eq!(run(&["--quiet"]).1, "");
}

#[test]
fn statistics_are_written_however_the_program_ends() {
    let Some(installation) = installation() else { return };
    let path = installation.path("stats.json");
    let options = ["--stats", path.to_str().unwrap()];
    for (script, status, signal) in [("exit 3", 3, Value::Null), ("kill -9 $$", 137, 9.into())] {
        installation.run(&options, &shell(script)).output().unwrap();
        let stats = read_stats(&path);
        assert_eq!(stats["command"], serde_json::json!(shell(script)));
        assert_eq!(stats["exit_status"], status);
        assert_eq!(stats["signal"], signal);
        assert_eq!(stats["memory_bytes"], 64 << 20);
        assert_eq!(stats["devices"][0]["name"], "ram");
        assert_eq!(stats["summary"]["pages_out"], 0);
        for key in ["wall_seconds", "user_seconds", "system_seconds", "peak_resident_bytes"] {
            assert!(stats[key].as_f64().is_some_and(|value| value >= 0.0), "{key}");
        }
        assert!(stats["devices"][0]["capacity_bytes"].is_u64());
        assert!(stats["devices"][0]["notes"].is_array());
    }
}

#[test]
fn a_percentage_is_of_the_memory_there_is() {
    let Some(installation) = installation() else { return };
    let path = installation.path("stats.json");
    let mut command = installation.overspill();
    command.args(["run", "--memory", "25%", "--swap", "ram:1M", "--stats"]).arg(&path).arg("true");
    assert!(command.output().unwrap().status.success());
    let all = overspill::memory::total();
    assert_eq!(read_stats(&path)["memory_bytes"], all.0 / 4);
}

#[test]
fn an_ignored_sigpipe_stays_ignored() {
    let Some(installation) = installation() else { return };
    let ignores = |ignore: bool| {
        let mut command = installation.run(&[], &shell("grep SigIgn /proc/self/status"));
        let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
        let set = move || {
            // SAFETY: installs no handler, in a child without other threads.
            unsafe { libc::signal(libc::SIGPIPE, action) };
            Ok(())
        };
        // SAFETY: `set` is one system call.
        let output = unsafe { command.pre_exec(set) }.output().unwrap();
        let mask = stdout(&output).split_whitespace().last().unwrap().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() >> (libc::SIGPIPE - 1) & 1 == 1
    };
    assert!(ignores(true) && !ignores(false));
}

#[test]
fn statistics_go_to_stdout_or_to_a_file_that_a_failed_start_leaves_alone() {
    let Some(installation) = installation() else { return };
    let output = installation.run(&["--stats", "-", "--quiet"], &shell("exit 3")).output().unwrap();
    let stats: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(stats["exit_status"], 3);
    assert!(!Path::new("-").exists());

    let (old, new) = (installation.path("old.json"), installation.path("new.json"));
    std::fs::write(&old, "a longer text than statistics? no, but it was here before").unwrap();
    for path in [&old, &new] {
        let options = ["--stats", path.to_str().unwrap(), "--swap", "file:/nowhere"];
        let output = installation.run(&options, &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
    }
    assert!(std::fs::read_to_string(&old).unwrap().starts_with("a longer text"));
    assert!(!new.exists());
    let options = ["--stats", old.to_str().unwrap()];
    installation.run(&options, &["true"]).output().unwrap();
    assert_eq!(read_stats(&old)["exit_status"], 0);
}

#[test]
fn a_prepared_file_that_others_may_read_and_understand_is_noted() {
    let Some(installation) = installation() else { return };
    let path = installation.path("area");
    std::fs::write(&path, "").unwrap();
    let table = [(0o644, ",encrypt=off", true), (0o644, "", false), (0o600, ",encrypt=off", false)];
    for (mode, options, noted) in table {
        let spec = format!("file:{}:1M{options}", path.display());
        crate::installation::chmod(&path, mode);
        let output = installation.run(&["--swap", &spec], &["true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("others may read"), noted, "{}", stderr(&output));
        std::fs::write(&path, "").unwrap();
    }
}

#[test]
fn a_file_that_was_empty_is_empty_again() {
    let Some(installation) = installation() else { return };
    let path = installation.path("area");
    std::fs::write(&path, "").unwrap();
    let spec = format!("file:{}:1M", path.display());
    let output = installation.run(&["--swap", &spec], &["true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn options_that_change_nothing_are_told() {
    let Some(installation) = installation() else { return };
    let area = installation.executable("area", vec![0; 1 << 20]);
    let made = installation.overspill().arg("mkswap").arg(&area).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let area = format!("file:{}:64M", area.display());
    let table: [(&[&str], &str); 2] = [
        (&["--swap-size", "10M"], "--swap-size 10 MiB changes nothing"),
        (&["--swap", &area], "the size given, 64 MiB, changes nothing: it has 1"),
    ];
    for (options, words) in table {
        let output = installation.run(options, &["true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "`{words}` in {}", stderr(&output));
        let quiet =
            installation.run(&[options, &["--quiet"]].concat(), &["true"]).output().unwrap();
        assert!(!stderr(&quiet).contains("changes nothing"), "{}", stderr(&quiet));
    }
}

#[test]
fn defaults_come_from_the_environment_and_from_a_file() {
    let Some(installation) = installation() else { return };
    let file = installation.path("config.toml");
    let stats = installation.path("stats.json");
    std::fs::write(&file, "[run]\nmemory = \"32M\"\nswap = [\"ram:1M\"]\nquiet = true\n").unwrap();
    let table: [(&str, &[&str], u64); 3] =
        [("", &[], 32 << 20), ("16M", &[], 16 << 20), ("16M", &["--memory", "8M"], 8 << 20)];
    for (variable, options, bytes) in table {
        let mut command = installation.overspill();
        command.env("OVERSPILL_CONFIG", &file).env("OVERSPILL_MEMORY", variable);
        command.arg("run").args(options).arg("--stats").arg(&stats).arg("true");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let found = read_stats(&stats);
        assert_eq!(found["memory_bytes"], bytes);
        assert_eq!(found["devices"][0]["name"], "ram");
        assert!(!stderr(&output).contains("most in use"), "{}", stderr(&output));
    }
    std::fs::write(&file, "[run]\nmemroy = \"32M\"\n").unwrap();
    let mut command = installation.run(&[], &["true"]);
    crate::installation::assert_fails(
        command.env("OVERSPILL_CONFIG", &file),
        125,
        &["config.toml:2: unknown field `memroy`", "`memory`"],
    );
}

/// Every name in the JSON has its row.
#[test]
fn the_names_of_statistics_are_documented() {
    let Some(installation) = installation() else { return };
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stats.md"));
    let docs = docs.unwrap();
    let options = ["--quiet", "--stats", "-", "--swap", "compressed:1M"];
    let output = installation.run(&options, &["true"]).output().unwrap();
    let stats: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(stats["schema"], 2);
    let mut names = Vec::new();
    collect_names(&stats, &mut names);
    assert!(names.len() > 60, "{names:?}");
    let running = crate::runs::Running::start(&installation);
    let output = installation.overspill().args(["stats", &running.number()]).output().unwrap();
    collect_names(&serde_json::from_str(&stdout(&output)).unwrap(), &mut names);
    let missing: Vec<_> =
        names.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/stats.md lacks {missing:?}");
}

fn collect_names(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                names.push(name.clone());
                collect_names(value, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

/// As a service manager hands sockets over, and wants to hear of its watchdog (sd_listen_fds(3)).
#[test]
fn what_is_for_this_process_is_for_its_program() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let says = "echo $LISTEN_PID $WATCHDOG_PID $0 \"$@\" $$";
    let inner = installation.run(&["--quiet"], &["sh", "-c", says, "name", "-a", "two words"]);
    let run = |variables: &str| {
        let mut outer = Command::new("sh");
        let script = format!("{variables} exec \"$@\"");
        outer.args(["-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
        let output = outer.env("OVERSPILL_CONFIG", "").output().unwrap();
        let words = stdout(&output).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(output.status.success(), "{output:?}");
        words
    };
    let own = run("LISTEN_PID=$$ WATCHDOG_PID=1");
    assert_eq!((&own[0], &*own[1]), (own.last().unwrap(), "1"), "{own:?}");
    assert_eq!(own[2..6], ["name", "-a", "two", "words"]);
    // Its arguments are nobody else's, and SIGPIPE is ignored if it was.
    let ignored = "trap - PIPE; kill -PIPE $$; printf '%s ' \"$@\"";
    let inner = installation.run(&["--quiet"], &["sh", "-c", ignored, "sh", "--help", "--", "-h"]);
    let mut outer = Command::new("sh");
    outer.args(["-c", "trap '' PIPE; export LISTEN_PID=$$; exec \"$@\"", "sh"]);
    let outer = outer.arg(inner.get_program()).args(inner.get_args()).env("OVERSPILL_CONFIG", "");
    let said = stdout(&outer.output().unwrap());
    assert_eq!(said, "--help -- -h ");
    // What is another's stays another's.
    let other = run("LISTEN_PID=1 WATCHDOG_PID=$$");
    assert_eq!((&*other[0], &other[1]), ("1", other.last().unwrap()), "{other:?}");
}

/// A file of its own that would be too large is an error; the program keeps the signal.
#[test]
fn a_limit_of_files_ends_nothing_but_what_exceeds_it() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let run = |limit: &str, program: &[&str]| {
        let inner = installation.run(&["--quiet"], program);
        let mut outer = Command::new("bash");
        let script = format!("ulimit -c 0; ulimit -f {limit}; exec \"$@\"");
        outer.args(["-c", &script, "bash"]).arg(inner.get_program()).args(inner.get_args());
        outer.env("OVERSPILL_CONFIG", "").current_dir(installation.path("")).output().unwrap()
    };
    let refused = run("1", &["true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(stderr(&refused).contains("raise `ulimit -f`"), "{refused:?}");
    let ended = run("100000", &["sh", "-c", "exec head -c 200000000 /dev/zero >large"]);
    assert_eq!(ended.status.code(), Some(128 + Signal::XFSZ.as_raw()), "{ended:?}");
}
