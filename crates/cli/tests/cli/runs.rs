//! Runs that go on: looked at, watched, changed.

use crate::installation::{Installation, assert_fails, can_run, stderr, stdout};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for anything that does not hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns an installation, if a run can start here.
fn installation() -> Option<Installation> {
    can_run().then(Installation::new)
}

/// A run that goes on until it is dropped, and can be looked at.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(installation: &Installation) -> Self {
        let mut command = installation.run(&["--quiet"], &["sleep", "600"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Self(command.spawn().unwrap());
        let mut stats = installation.overspill();
        stats.args(["stats", &running.number()]);
        let deadline = Instant::now() + PATIENCE;
        while !stats.output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "it cannot be looked at");
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    pub(crate) fn number(&self) -> String {
        self.0.id().to_string()
    }

    /// Whether it has ended, or does so soon if it should.
    pub(crate) fn has_ended(&mut self, should: bool) -> bool {
        let deadline = Instant::now() + if should { PATIENCE } else { Duration::ZERO };
        while self.0.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_run_is_looked_at_while_it_goes_on() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let number = running.number();
    let output = installation.overspill().args(["stats", &number]).output().unwrap();
    let live: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(live["run"].to_string(), number);
    assert_eq!(live["command"], serde_json::json!(["sleep", "600"]));
    assert_eq!(live["memory_bytes"], 64 << 20);
    assert_eq!(live["devices"][0]["name"], "ram");
    let list = stdout(&installation.overspill().arg("stats").output().unwrap());
    let line = list.lines().find(|line| line.trim_start().starts_with(&number)).unwrap();
    assert!(line.contains("64 MiB") && line.ends_with("sleep 600"), "{list}");
    drop(running);
    let mut gone = installation.overspill();
    assert_fails(gone.args(["stats", &number]), 125, &["in no run"]);
}

/// What `overspill set` refuses is refused in the run's words, and changes nothing.
#[test]
fn a_limit_is_changed_and_refused_while_a_run_goes_on() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let number = running.number();
    let set = |memory: &str| {
        let mut command = installation.overspill();
        command.args(["set", &number, "--memory", memory]);
        command
    };
    let output = set("128M").output().unwrap();
    assert!(stdout(&output).contains("64 MiB -> 128 MiB"), "{output:?}");
    let fails = |memory: &str, words: &[&str]| {
        assert_fails(&mut set(memory), 125, words);
    };
    fails("1M", &["below the working minimum"]);
    fails("1T", &["--memory-max 1TiB"]);
    fails("lots", &["--memory"]);
    let output = installation.overspill().args(["stats", &number]).output().unwrap();
    let live: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(live["memory_bytes"], 128 << 20);
}

#[test]
fn runs_are_told_to_prometheus() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let line = format!(
        "overspill_memory_limit_bytes{{program=\"sleep\",run=\"{}\"}} {}",
        running.number(),
        64 << 20
    );
    let printed = stdout(&installation.overspill().arg("metrics").output().unwrap());
    assert!(printed.lines().any(|found| found == line), "{printed}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("overspill.prom");
    let mut command = installation.overspill();
    assert!(command.args(["metrics", "--textfile"]).arg(&file).status().unwrap().success());
    assert!(std::fs::read_to_string(&file).unwrap().contains(&line));

    let mut command = installation.overspill();
    let server = Serving::start(command.args(["metrics", "--listen", "127.0.0.1:0"]));
    let [metrics, page, other] = ["/metrics", "/", "/x"].map(|path| server.get(path));
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains(&line), "{metrics}");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<h1>Runs</h1>"), "{page}");
    assert!(other.starts_with("HTTP/1.1 404"), "{other}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mut command = installation.overspill();
    let command = command.args(["metrics", "--listen", &taken]);
    assert_fails(command, 125, &["cannot serve metrics at", "name a free port"]);
    let run = &mut installation.run(&["--metrics", &taken], &["true"]);
    assert_fails(run, 125, &["cannot serve metrics at", "name a free port"]);
}

/// A process that serves metrics, as long as this exists.
pub(crate) struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    /// Starts it, and waits until it says where they are.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address =
            |line: String| Some(line.split("http://").nth(1)?.split('/').next()?.to_owned());
        let address = said.filter_map(address).next().expect("it says where");
        Self { process, address }
    }

    /// What is answered there.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut socket = std::net::TcpStream::connect(&self.address).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_stopped_run_is_told_of_and_not_waited_for() {
    let Some(installation) = installation() else { return };
    let (running, other) = (Running::start(&installation), Running::start(&installation));
    let number = running.number();
    let stopped = format!("run {number} is stopped");
    let signal = |signal| rustix::process::kill_process(Pid::from_child(&running.0), signal);
    signal(Signal::STOP).unwrap();
    let status = format!("/proc/{number}/status");
    while !std::fs::read_to_string(&status).unwrap().contains("State:\tT") {}
    let begun = Instant::now();
    let list = installation.overspill().arg("stats").output().unwrap();
    assert!(
        stdout(&list).contains(&other.number()) && stderr(&list).contains(&stopped),
        "{list:?}"
    );
    let mut set = installation.overspill();
    assert_fails(set.args(["set", &number, "--memory", "32M"]), 125, &[&stopped, "kill -CONT"]);
    assert!(begun.elapsed() < PATIENCE / 10, "{:?}", begun.elapsed());
    signal(Signal::CONT).unwrap();
    let output = installation.overspill().args(["stats", &number]).output().unwrap();
    let live: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(live["memory_bytes"], 64 << 20);
}

#[test]
fn all_runs_are_told_as_json() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let output = installation.overspill().args(["stats", "--json"]).output().unwrap();
    let all: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let number: u64 = running.number().parse().unwrap();
    let is_it = |run: &&Value| run["run"] == number;
    let run = all.as_array().unwrap().iter().find(is_it).expect("it is among them");
    assert_eq!(run["command"], serde_json::json!(["sleep", "600"]));
}

/// Those of other runs are not among them.
#[test]
fn a_run_tells_of_itself() {
    let Some(installation) = installation() else { return };
    let other = Running::start(&installation);
    let mut command = installation.run(&["--metrics", "127.0.0.1:0"], &["sleep", "600"]);
    let run = Serving::start(command.stdout(Stdio::null()));
    let (metrics, number) = (run.get("/metrics"), run.process.id());
    assert!(metrics.contains(&format!("run=\"{number}\"")), "{metrics}");
    assert!(!metrics.contains(&other.number()), "{metrics}");
}

/// What each alert says of which samples stands in a file for promtool.
#[test]
fn alerts_are_raised_when_they_should() {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/alerts.test.yml");
    match Command::new("promtool").args(["test", "rules", tests]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => println!("skipped: promtool, of Debian's prometheus: {error}"),
    }
}

#[test]
fn a_log_gets_a_line_of_progress_now_and_then() {
    let Some(installation) = installation() else { return };
    let mut command = installation.run(&["--progress", "--quiet"], &["sleep", "3.5"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.matches("waits 0%; in 0 bytes/s").count(), 2, "{told}");
}

#[test]
fn top_needs_a_terminal() {
    let Some(installation) = installation() else { return };
    let mut command = installation.overspill();
    let command = command.arg("top").stdin(Stdio::null());
    assert_fails(command, 125, &["no terminal", "overspill stats"]);
}

#[test]
fn a_page_says_what_a_run_did_when() {
    let Some(installation) = installation() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.html");
    let options = ["--quiet", "--report", path.to_str().unwrap()];
    let mut command = installation.run(&options, &["sh", "-c", "sleep 0.3 # <slow>"]);
    assert!(command.status().unwrap().success());
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.contains("sleep 0.3 # &lt;slow&gt;") && page.contains("memory 64 MiB"), "{page}");
    assert_eq!(page.matches("<svg").count(), 7);
}

/// Whoever can connect can use up what a process has: the run goes on.
#[test]
fn a_run_outlives_its_metrics() {
    let Some(installation) = installation() else { return };
    let inner = installation.run(&["--metrics", "127.0.0.1:0"], &["sleep", "2"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(inner.get_program());
    command.args(inner.get_args()).env("OVERSPILL_CONFIG", "");
    let mut run = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = said.find(|line| line.contains("serving http://")).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let half = |_| {
        let mut socket = std::net::TcpStream::connect(address).ok()?;
        socket.write_all(b"GET /met").ok()?;
        Some(socket)
    };
    let sockets: Vec<_> = (0..100).map(half).collect();
    let rest: Vec<_> = said.collect();
    assert!(run.wait().unwrap().success(), "{rest:?}");
    assert!(sockets.iter().flatten().count() > 20);
}
