//! Real programs to attach to, and looks at what is left of an attach.
//!
//! Owns: starting and compiling programs, and what of a process must not change.
//! Not here: what is done to them.
#![allow(dead_code, unreachable_pub)]

pub mod twin;

use overspill_guest::{
    Attached, Held, Kernel, Manner, System, Tracer, Userfaultfd, attach, detach,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One test at a time: each looks for agents that are left.
static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a hold may take. A machine that is busy takes its time.
pub const HOLD_WAIT: Duration = Duration::from_secs(5);

/// A program that runs.
pub struct Program {
    pub child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// A program that repeats what it is told.
    pub fn cat() -> Self {
        let mut cat = Self::start(&mut Command::new(own("/bin/cat")));
        cat.answers();
        cat
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn answers(&mut self) {
        self.say("still here");
        assert_eq!(self.line(), "still here");
    }

    /// Closes its input, and returns what it still says, when it ends well.
    pub fn end(mut self) -> String {
        drop(self.input);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
        rest
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A copy of a program, that it can be told by from others' (`agents`).
pub fn own(program: &str) -> PathBuf {
    let name = PathBuf::from(program);
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name.file_name().unwrap());
    if !copy.exists() {
        // By another name first: another test may want it, too.
        let other = copy.with_extension(std::process::id().to_string());
        std::fs::copy(program, &other).unwrap();
        std::fs::rename(&other, &copy).unwrap();
    }
    copy
}

/// Compiles a program of `tests/programs`; `None`, with the reason, where there is no compiler.
pub fn compiled(name: &str) -> Option<PathBuf> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", "-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    match compiler.status() {
        Ok(status) => assert!(status.success(), "{name}.c does not compile"),
        Err(error) => {
            println!("skipped: cc, which compiles {name}.c: {error}");
            return None;
        }
    }
    Some(program)
}

/// Returns false, with the reason, where nothing can be attached to.
pub fn is_permitted() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "root, who may trace and use userfaultfd"
    } else if std::fs::metadata("/dev/userfaultfd").is_err() {
        "/dev/userfaultfd"
    } else {
        return true;
    };
    println!("skipped: attaching needs {why}");
    false
}

pub fn memory_file() -> OwnedFd {
    rustix::fs::memfd_create("moved", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

pub fn device() -> OwnedFd {
    Kernel::new().open("/dev/userfaultfd", true).unwrap()
}

pub fn hold<S: System>(tracer: &Tracer<S>, pid: Pid) -> Held<'_, S> {
    let mut held = tracer.hold(pid).unwrap();
    assert!(held.wait(HOLD_WAIT).unwrap(), "{:?} do not stop", held.running().collect::<Vec<_>>());
    held
}

pub fn attach_to<S: System>(tracer: &Tracer<S>, pid: Pid) -> Attached {
    attach_with(tracer, pid, &memory_file())
}

pub fn attach_with<S: System>(tracer: &Tracer<S>, pid: Pid, memory: &OwnedFd) -> Attached {
    let device = device();
    let userfaultfd = Userfaultfd::Device(device.as_fd());
    let manner = Manner { memory: memory.as_fd(), userfaultfd, huge_pages: false };
    attach(&hold(tracer, pid), &manner).unwrap()
}

pub fn detach_from<S: System>(tracer: &Tracer<S>, attached: &Attached) {
    detach(&hold(tracer, attached.pid), &attached.agent).unwrap();
    assert_eq!(tracer.settle(), 0);
}

/// What of a process must be as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traits {
    maps: Vec<String>,
    children: String,
    descriptors: BTreeSet<String>,
    tracers: BTreeSet<String>,
    masks: Vec<String>,
    huge_pages: String,
}

fn task_files(pid: Pid, file: &str) -> Vec<String> {
    let tasks = Kernel::new().tasks(pid).unwrap();
    let path =
        |task: Pid| format!("/proc/{}/task/{}/{file}", pid.as_raw_nonzero(), task.as_raw_nonzero());
    tasks.into_iter().map(|task| std::fs::read_to_string(path(task)).unwrap()).collect()
}

fn status_lines(pid: Pid, key: &str) -> Vec<String> {
    let line =
        |status: String| status.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    task_files(pid, "status").into_iter().map(line).collect()
}

impl Traits {
    pub fn of(pid: Pid) -> Self {
        let own = format!("/proc/{}", pid.as_raw_nonzero());
        let maps = std::fs::read_to_string(format!("{own}/maps")).unwrap();
        let descriptors = std::fs::read_dir(format!("{own}/fd")).unwrap();
        let descriptors = descriptors.map(|entry| format!("{:?}", entry.unwrap().file_name()));
        Self {
            maps: maps.lines().map(str::to_owned).collect(),
            children: task_files(pid, "children").concat(),
            descriptors: descriptors.collect(),
            tracers: status_lines(pid, "TracerPid").into_iter().collect(),
            masks: status_lines(pid, "SigBlk"),
            huge_pages: status_lines(pid, "THP_enabled").remove(0),
        }
    }
}

/// Agents of the programs of these tests. There may be others on this machine.
pub fn agents() -> Vec<i32> {
    let numbers = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok()));
    let is_agent = |number: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{number}/comm"));
        // A zombie, which waits for the init of this machine, has none.
        let program = std::fs::read_link(format!("/proc/{number}/exe"));
        name.is_ok_and(|name| name == "overspill-agent\n")
            && program.is_ok_and(|program| program.starts_with(env!("CARGO_TARGET_TMPDIR")))
    };
    numbers.filter(is_agent).collect()
}

/// Waits until there is no agent.
pub fn assert_no_agents() {
    for _ in 0..100 {
        if agents().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("agents are left: {:?}", agents());
}
