//! Running a program, plain and paged, and comparing the two.
//!
//! Invariants: no process outlives its [`Running`]; a wait longer than the job's patience kills it
//! with all its descendants and fails with its stderr. Output goes to files, so nothing blocks on
//! us. Our own memory stays small: what a child had before it executed its program counts towards
//! its peak.

use crate::bench::overspill;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes.
pub const MIB: u64 = 1 << 20;

/// What a paged process may use above its limit, most of it before it is looked at
/// (docs/limits.md): 24 MiB where nobody else runs, and as much again in 20 ms, for which a run may
/// have to wait for a CPU beside those of other tests.
const OVERHEAD: u64 = 48 * MIB;

/// Longest time for anything here that does not hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program and what it is run with.
#[derive(Clone, Debug)]
pub struct Job {
    words: Vec<OsString>,
    directory: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    input: Option<PathBuf>,
    patience: Duration,
    way: Option<OsString>,
    user: Option<u32>,
    launcher: Vec<OsString>,
}

impl Job {
    /// A job in `directory` that runs `words`.
    pub fn new(directory: &Path, words: &[impl AsRef<OsStr>]) -> Self {
        Self {
            words: words.iter().map(|word| word.as_ref().to_owned()).collect(),
            directory: directory.to_owned(),
            environment: vec![("LC_ALL", "C".into())],
            input: None,
            patience: PATIENCE,
            way: None,
            user: None,
            launcher: Vec::new(),
        }
    }

    /// Has touches noticed in this way, if the environment does not name another one.
    pub fn by(mut self, way: &'static str) -> Self {
        self.way = Some(way.into());
        self
    }

    /// Has its run started by something else; without that it is as ever.
    pub fn under(mut self, launcher: &[impl AsRef<OsStr>]) -> Self {
        self.launcher = launcher.iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Runs as another user, as root can.
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Runs in a directory below the bench's.
    pub fn directory(mut self, name: &str) -> Self {
        self.directory.push(name);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Takes standard input from a file; otherwise it is empty.
    pub fn input(mut self, path: impl Into<PathBuf>) -> Self {
        self.input = Some(path.into());
        self
    }

    /// Fails after so many seconds.
    pub fn patience(mut self, seconds: u64) -> Self {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// Starts it without Overspill.
    pub fn plain(&self) -> Running {
        self.start(&self.words, None)
    }

    /// Starts it under `overspill run` with `options`.
    pub fn paged(&self, options: &[impl AsRef<OsStr>]) -> Running {
        let stats = self.fresh("stats");
        let mut words = self.launcher.clone();
        words.extend([overspill().into(), "run".into()]);
        let way = way().or_else(|| self.way.clone());
        words.extend(way.map(|way| ["--way".into(), way]).into_iter().flatten());
        words.extend(options.iter().map(|option| option.as_ref().to_owned()));
        words.extend(["--stats".into(), stats.clone().into(), "--".into()]);
        words.extend(self.words.iter().cloned());
        self.start(&words, Some(stats))
    }

    /// Runs it in `limit` and asserts that it pages and stays inside.
    pub fn in_memory(&self, limit: u64) -> Ended {
        let ended = self.paged(&["--memory", &limit.to_string(), "--quiet"]).success();
        ended.assert_paged(limit, 0);
        ended
    }

    /// Runs it both ways; the limit must be at most a quarter of what the plain run needs, and the
    /// output the same. `unmanaged` is the program's memory that is not managed: its own text.
    pub fn compare(&self, limit: u64, unmanaged: u64) -> Ended {
        let plain = self.plain().success();
        assert!(plain.peak >= 4 * limit, "{}: needs no more than {}", self.name(), plain.peak);
        let paged = self.paged(&["--memory", &limit.to_string(), "--quiet"]).success();
        println!("{}", Row { name: self.name(), plain: &plain, paged: &paged, limit });
        assert_same(&plain.output, &paged.output);
        paged.assert_paged(limit, unmanaged);
        paged
    }

    fn name(&self) -> String {
        Path::new(&self.words[0]).file_name().unwrap_or_default().display().to_string()
    }

    fn fresh(&self, kind: &str) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        self.directory.join(format!("{kind}.{}", NUMBER.fetch_add(1, Relaxed)))
    }

    #[expect(clippy::zombie_processes, reason = "`Running` reaps it by its number")]
    fn start(&self, words: &[OsString], stats: Option<PathBuf>) -> Running {
        let (output, errors) = (self.fresh("output"), self.fresh("errors"));
        let input = self.input.as_deref().unwrap_or(Path::new("/dev/null"));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.directory).process_group(0);
        // Whoever has it set sees other writes than a user does.
        command.env_remove("PYTHONUNBUFFERED");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.stdin(File::open(input).unwrap());
        command.stdout(File::create(&output).unwrap());
        command.stderr(Stdio::from(File::create(&errors).unwrap()));
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        Running {
            pid: child.id() as i32,
            description: format!("{words:?}"),
            started: Instant::now(),
            patience: self.patience,
            files: Files { output, errors, stats },
            reaped: false,
        }
    }
}

/// How touches are to be noticed in these tests, if not in the best way there is: they hold for
/// each.
pub fn way() -> Option<OsString> {
    std::env::var_os("OVERSPILL_TEST_WAY")
}

struct Files {
    output: PathBuf,
    errors: PathBuf,
    stats: Option<PathBuf>,
}

/// A process that has been started.
pub struct Running {
    pid: i32,
    description: String,
    started: Instant,
    patience: Duration,
    files: Files,
    reaped: bool,
}

impl Running {
    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns what it has written to stderr so far.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.files.errors).unwrap()).into_owned()
    }

    /// Fails if it has been running for longer than its job may.
    pub fn assert_in_time(&mut self) {
        let waited = self.started.elapsed();
        if waited > self.patience {
            let tree = describe_tree(self.pid) + &describe_run(self.pid);
            self.kill();
            let (what, errors) = (&self.description, self.errors());
            panic!("{what}: not done after {waited:.0?}\n{tree}stderr:\n{errors}");
        }
    }

    /// Waits for it to end.
    pub fn end(mut self) -> Ended {
        loop {
            if let Some((status, peak)) = self.reap(libc::WNOHANG) {
                let errors = self.errors();
                let stats = self.files.stats.take().and_then(|path| std::fs::read(path).ok());
                let description = std::mem::take(&mut self.description);
                let ended = Ended {
                    status,
                    peak,
                    seconds: self.started.elapsed().as_secs_f64(),
                    output: self.files.output.clone(),
                    errors,
                    stats: stats.and_then(|json| serde_json::from_slice(&json).ok()),
                    description,
                };
                ended.assert_nothing_lost();
                return ended;
            }
            self.assert_in_time();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for it to end, which must be with success.
    pub fn success(self) -> Ended {
        let ended = self.end();
        assert!(ended.status.success(), "{ended}");
        ended
    }

    fn reap(&mut self, flags: i32) -> Option<(ExitStatus, u64)> {
        let mut status = 0;
        // SAFETY: a structure of plain numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to variables of the right type; the child is ours and unreaped.
        let pid = unsafe { libc::wait4(self.pid, &raw mut status, flags, &raw mut usage) };
        assert!(pid >= 0, "{}: somebody else has reaped it", self.description);
        if pid == 0 {
            return None;
        }
        self.reaped = true;
        Some((ExitStatus::from_raw(status), (usage.ru_maxrss as u64) << 10))
    }

    fn kill(&mut self) {
        if self.reaped {
            return;
        }
        for pid in descendants(self.pid).into_iter().chain([-self.pid, self.pid]) {
            // SAFETY: kill touches no memory. The numbers are of our child, not yet reaped, and of
            // its descendants, read a moment ago.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        self.reap(0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// The largest resident size of the process, in bytes.
    peak: u64,
    seconds: f64,
    /// The file with what it wrote to stdout.
    pub output: PathBuf,
    /// What it wrote to stderr.
    pub errors: String,
    /// What `--stats` wrote.
    stats: Option<serde_json::Value>,
    description: String,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { description, status, seconds, errors, output, .. } = self;
        let output = head(output);
        write!(
            f,
            "{description}: {status} after {seconds:.1} s\nstderr:\n{errors}\nstdout:\n{output}"
        )
    }
}

impl Ended {
    /// Returns what it wrote to stdout.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }

    /// Returns a number from the statistics, by its JSON pointer.
    pub fn stat(&self, pointer: &str) -> u64 {
        let value = self.stats.as_ref().and_then(|stats| stats.pointer(pointer)?.as_u64());
        value.unwrap_or_else(|| panic!("no {pointer} in {:?}; {self}", self.stats))
    }

    /// The number of seconds at a pointer into the statistics.
    pub fn seconds(&self, pointer: &str) -> f64 {
        let value = self.stats.as_ref().and_then(|stats| stats.pointer(pointer)?.as_f64());
        value.unwrap_or_else(|| panic!("no {pointer} in {:?}; {self}", self.stats))
    }

    /// Returns what the statistics say of the first device.
    pub fn notes(&self) -> String {
        let notes = self.stats.as_ref().and_then(|stats| stats.pointer("/devices/0/notes"));
        notes.map(ToString::to_string).unwrap_or_default()
    }

    /// Asserts what holds in every test: no page is lost, and the kernel returns no error that is
    /// missing from the tables.
    fn assert_nothing_lost(&self) {
        let Some(stats) = &self.stats else { return };
        for counter in ["pages_lost", "kernel_unexpected"] {
            let count = stats.pointer(&format!("/summary/counters/{counter}"));
            assert_eq!(count.and_then(serde_json::Value::as_u64), Some(0), "{counter}: {self}");
        }
    }

    /// Returns the program's peak, not the supervisor's.
    fn program_peak(&self) -> u64 {
        self.stat("/peak_resident_bytes")
    }

    /// Asserts that pages were swapped out, and that no process was larger than allowed.
    pub fn assert_paged(&self, limit: u64, unmanaged: u64) {
        assert!(self.stat("/summary/pages_out") > 0, "no page went out: {self}");
        let (peak, allowed) = (self.program_peak(), limit + OVERHEAD + unmanaged);
        assert!(peak <= allowed, "peak resident {peak}, allowed {allowed}: {self}");
    }
}

/// A line about a comparison.
struct Row<'a> {
    name: String,
    plain: &'a Ended,
    paged: &'a Ended,
    limit: u64,
}

impl std::fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, plain, paged, limit } = self;
        write!(
            f,
            "{name}: plain {:.1} s, {} MiB; in {} MiB {:.1} s, {} MiB, {} pages in, {} out",
            plain.seconds,
            plain.peak / MIB,
            limit / MIB,
            paged.seconds,
            paged.program_peak() / MIB,
            paged.stat("/summary/pages_in"),
            paged.stat("/summary/pages_out"),
        )
    }
}

/// Asserts that two files are the same, byte for byte.
pub fn assert_same(a: &Path, b: &Path) {
    let open = |path: &Path| BufReader::with_capacity(1 << 20, File::open(path).unwrap()).bytes();
    let len = |path: &Path| path.metadata().unwrap().len();
    let differs = open(a).zip(open(b)).position(|(a, b)| a.unwrap() != b.unwrap());
    assert_eq!(differs, None, "the outputs differ at that byte: {}, {}", head(a), head(b));
    assert_eq!(len(a), len(b), "one output is the other's beginning");
}

fn head(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(2000).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns all descendants of `pid`.
pub fn descendants(pid: i32) -> Vec<i32> {
    let all = processes();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(all.iter().filter(|process| process.1 == parent).map(|process| process.0));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the numbers of all processes, with their parents.
pub fn processes() -> Vec<(i32, i32)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Returns the name that a process has given itself.
pub fn name_of(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().into()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Describes what each thread of `pid` and below waits for, for debugging a hang.
fn describe_tree(pid: i32) -> String {
    let mut text = String::new();
    for pid in std::iter::once(pid).chain(descendants(pid)) {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        for thread in threads.flatten() {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let (name, place, status) = (read("comm"), read("wchan"), read("status"));
            let call = read("syscall");
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let [state, tracer] =
                ["State:\t", "TracerPid:\t"].map(|name| field(name).unwrap_or("?"));
            let (name, call) = (name.trim(), call.trim());
            text += &format!("{pid} {name}: {state}, traced by {tracer}, in {place}, {call}\n");
        }
    }
    text
}

/// What a run says of itself, and again a second later: what goes on changes.
fn describe_run(pid: i32) -> String {
    let said = |_| {
        std::thread::sleep(Duration::from_secs(1));
        let said = Command::new(overspill()).arg("stats").arg(pid.to_string()).output();
        said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
    };
    (0..2).map(said).collect()
}
