//! Other users beside runs: what they name, say and keep silent about.
//!
//! Needs root, to be another user too; skips, printing the reason, without.

use crate::installation::{Installation, assert_fails, can_run, stderr, stdout};
use crate::runs::{Running, Serving};
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Another user, who has no runs.
const USER: u32 = 1;
/// Long enough for whatever does not wait for a stranger.
const SOON: Duration = Duration::from_secs(12);

fn installation() -> Option<Installation> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root to be another user too");
        return None;
    }
    can_run().then(Installation::new)
}

/// The stranger's directory; one test at a time has it.
struct Stranger(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Stranger {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let made = as_user(|| DirBuilder::new().mode(0o700).create(Self::directory()));
        made.expect("nobody else has the name");
        Self(one)
    }

    fn directory() -> PathBuf {
        Path::new("/tmp").join(format!("overspill-{USER}"))
    }

    /// Listens by the number of a process; each who connects gets what `talk` says.
    fn listen(&self, process: &str, talk: impl Fn(UnixStream) + Send + 'static) {
        let path = Self::directory().join(process);
        let listener = as_user(|| UnixListener::bind(path)).unwrap();
        std::thread::spawn(move || {
            listener.incoming().map_while(Result::ok).for_each(talk);
        });
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        std::fs::remove_dir_all(Self::directory()).unwrap();
    }
}

/// As the stranger, on a thread of its own: the kernel has users of threads.
fn as_user<R: Send>(does: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a plain system call, for this thread alone.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, USER, -1) };
            assert_eq!(result, 0);
            does()
        });
        thread.join().unwrap()
    })
}

fn own_number() -> String {
    std::process::id().to_string()
}

/// Ends with the connection, or says something for ever.
fn repeat(mut socket: UnixStream, words: &[u8], pause: Duration) {
    while socket.write_all(words).is_ok() {
        std::thread::sleep(pause);
    }
}

fn lists_in_time(installation: &Installation, running: &Running) {
    // Of an answer without end no more is kept than of any other.
    let script = "ulimit -v 1000000; exec \"$0\" stats";
    let begun = Instant::now();
    let output =
        Command::new("sh").args(["-c", script]).arg(installation.path("overspill")).output();
    let listed = stdout(&output.unwrap());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(
        listed.lines().any(|line| line.trim_start().starts_with(&running.number())),
        "{listed}"
    );
}

#[test]
fn a_stranger_keeps_nobody_waiting() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let mut exporter = installation.overspill();
    let exporter = Serving::start(exporter.args(["metrics", "--listen", "127.0.0.1:0"]));
    let lists_in_time = || {
        lists_in_time(&installation, &running);
        let begun = Instant::now();
        assert!(exporter.get("/metrics").contains(&running.number()));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    };
    for (words, pause) in [
        // One byte now and then.
        (vec![b'{'], Duration::from_millis(500)),
        // As much as there is room for.
        (vec![b'{'; 1 << 20], Duration::ZERO),
        // Nothing.
        (Vec::new(), Duration::from_secs(1)),
    ] {
        let stranger = Stranger::new();
        stranger.listen(&own_number(), move |socket| repeat(socket, &words, pause));
        lists_in_time();
    }
    // Nobody is answered, and the line is full.
    let stranger = Stranger::new();
    let path = Stranger::directory().join(own_number());
    let listener = as_user(|| UnixListener::bind(&path)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    lists_in_time();
    drop(stranger);
}

#[test]
fn a_stranger_is_taken_for_no_run() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    let number = running.number();
    let stranger = Stranger::new();
    stranger.listen(&number, |mut socket| {
        let mut question = String::new();
        let _ = socket.read_to_string(&mut question);
        assert_eq!(question, "", "it was asked");
    });
    let output = installation.overspill().args(["stats", &number]).output().unwrap();
    assert!(stdout(&output).contains("\"sleep\""), "{output:?}");
    let mut set = installation.overspill();
    let output = set.args(["set", &number, "--memory", "96M"]).output().unwrap();
    assert!(stdout(&output).contains("64 MiB -> 96 MiB"), "{output:?}");
}

/// What a terminal would obey is shown, in tables as in refusals.
#[test]
fn what_a_stranger_says_is_plain() {
    let Some(installation) = installation() else { return };
    let stranger = Stranger::new();
    let words = "\\u001b]0;owned\\u0007\\u202e";
    let answer = format!(
        "{{\"run\": 1, \"command\": [\"{words}\"], \"wall_seconds\": 1, \"memory_bytes\": 1, \
          \"memory_bytes_max\": 1, \"memory_used_bytes\": 1, \"processes\": [], \"devices\": [], \
          \"summary\": {{\"faults\": 1, \"pages_in\": 1, \"pages_out\": 1, \"pages_lost\": 0, \
          \"fault_latency\": {{\"sum_ns\": 1, \"histogram\": []}}, \"counters\": {{}}}}, \
          \"refused\": \"{words}\"}}"
    );
    stranger.listen(&own_number(), move |mut socket| {
        let _ = socket.write_all(answer.as_bytes());
        let _ = socket.write_all(b"\n\x1b[2J");
    });
    let number = own_number();
    for arguments in [&["stats"][..], &["stats", &number], &["set", &number, "--memory", "64M"]] {
        let output = installation.overspill().args(arguments).output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(obeyed), "{arguments:?}: {said:?}");
    }
}

/// A container beside this one, whose root has another file system.
#[test]
fn other_file_systems_have_other_runs() {
    let Some(installation) = installation() else { return };
    let running = Running::start(&installation);
    // The installation itself may be below /tmp.
    let hidden = "mount -t tmpfs none /run && \
                  { ! test -d /tmp/overspill-0 || mount -t tmpfs none /tmp/overspill-0; } && \
                  exec \"$0\" stats \"$1\"";
    let mut command = Command::new("unshare");
    command.env_remove("XDG_RUNTIME_DIR").args(["--mount", "sh", "-c", hidden]);
    command.arg(installation.path("overspill")).arg(running.number());
    assert_fails(&mut command, 125, &["in no run"]);
}

#[test]
fn who_changes_a_run_is_told_to_its_user() {
    let Some(installation) = installation() else { return };
    let mut command = installation.run(&[], &["sleep", "600"]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let number = run.id().to_string();
    let begun = Instant::now();
    let mut set = installation.overspill();
    set.args(["set", &number, "--memory", "96M"]);
    while !set.output().unwrap().status.success() {
        assert!(begun.elapsed() < SOON, "it cannot be changed");
        std::thread::sleep(Duration::from_millis(10));
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(run.id() as i32).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    run.wait().unwrap();
    let line = said.lines().find(|line| line.contains("has set the limit")).unwrap_or(&said);
    assert!(
        line.contains("(overspill) of user 0 has set the limit to 96 MiB, which was 64 MiB"),
        "{said}"
    );
}
