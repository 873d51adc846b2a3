//! What happens to runs that go on for long: programs are stopped, memory runs short, Overspill is
//! installed anew.

use crate::attach::{anonymous, send};
use crate::keeper::{self, wait_until};
use crate::kills::started_by;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Job, MIB, Running, descendants, name_of};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn case(bench: &Bench, name: &str) -> Job {
    let program = bench.cc("long_runs.c").display().to_string();
    bench.job(&[&program, name])
}

#[test]
fn a_program_that_stands_still_goes_out_and_comes_back() {
    let Some(bench) = keeper::bench(&["cc"]) else { return };
    let ended = keeper::kept(&case(&bench, "stops_a_child"), 32 * MIB);
    assert!(ended.status.success() && ended.stat("/summary/pages_out") > 0, "{ended}");
}

fn ready(running: &Running) -> i32 {
    wait_until("the program is ready", || running.errors().contains("ready"));
    let all = descendants(running.pid()).into_iter();
    all.into_iter().find(|pid| name_of(*pid) == "long_runs").expect("it goes on")
}

/// The new one finds the run of the old one, which goes on with what it began.
#[test]
fn overspill_is_installed_anew_while_a_run_goes_on() {
    let Some(bench) = keeper::bench(&["cc"]) else { return };
    let directory = bench.path("installed");
    std::fs::create_dir(&directory).unwrap();
    let install = || {
        for file in ["overspill", "overspill-forks"] {
            let (new, place) = (directory.join("new"), directory.join(file));
            std::fs::copy(overspill().with_file_name(file), &new).unwrap();
            std::fs::rename(new, place).unwrap();
        }
        directory.join("overspill")
    };
    let installed = install().display().to_string();
    let program = bench.cc("long_runs.c").display().to_string();
    let words =
        [&installed, "run", "--memory=64M", "--swap=compressed:256M", "--", &program, "holds"];
    let running = bench.job(&words).plain();
    let process = ready(&running);
    install();
    let ask = |words: &[&str]| {
        let output = Command::new(&installed).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let number = process.to_string();
    assert!(ask(&["stats", &number]).contains("\"memory_bytes\": 67108864"));
    // It becomes a guest now.
    ask(&["set", &number, "--memory", "16M"]);
    wait_until("it is in its limit", || anonymous(process) < 18 * MIB);
    ask(&["detach", &number]);
    wait_until("it was let go", || anonymous(process) > 23 * MIB);
    ask(&["set", &number, "--memory", "16M"]);
    wait_until("it is in its limit again", || anonymous(process) < 18 * MIB);
    send(process, libc::SIGTERM);
    running.success();
}

/// A group of processes that may have so much memory, and what is in it, until it is dropped.
struct Group {
    path: PathBuf,
    tasks: PathBuf,
    members: Vec<Child>,
}

impl Group {
    fn new(name: &str, memory: u64) -> std::io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let (root, limit, tasks) = match root.join("memory").is_dir() {
            true => (root.join("memory"), "memory.limit_in_bytes", "tasks"),
            false => (root.to_owned(), "memory.max", "cgroup.procs"),
        };
        let path = root.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        let group = Self { tasks: path.join(tasks), path, members: Vec::new() };
        std::fs::write(group.path.join(limit), memory.to_string())?;
        Ok(group)
    }

    /// What a shell does to be in it, and then goes on with.
    fn entering(&self, script: &str) -> String {
        format!("echo $$ >{} && {script}", self.tasks.display())
    }

    /// Some write files for which the group has no room, again and again.
    fn thrash(&mut self, bench: &Bench) -> std::io::Result<()> {
        for writer in 0..4 {
            let file = bench.path(&format!("large-{writer}")).display().to_string();
            let writes =
                format!("while :; do dd if=/dev/zero of={file} bs=1M count=64 status=none; done");
            let mut shell = Command::new("sh");
            shell.args(["-c", &self.entering(&writes)]).process_group(0).stderr(Stdio::null());
            self.members.push(shell.spawn()?);
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in &mut self.members {
            // SAFETY: kill touches no memory; the process group is our child's.
            unsafe { libc::kill(-(member.id() as i32), libc::SIGKILL) };
            let _ = member.wait();
        }
        let has_members = || {
            std::fs::read_to_string(self.path.join("tasks")).is_ok_and(|tasks| !tasks.is_empty())
        };
        wait_until("the group is empty", || !has_members());
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// From which part on memory counts as short, and how long that may take here.
const SHORT_PERCENT: f64 = 6.0;
const SHORT_WAIT: Duration = Duration::from_secs(10);

/// The part of time lost for want of memory in the last ten seconds, in percent.
fn pressure() -> f64 {
    let text = std::fs::read_to_string("/proc/pressure/memory").unwrap_or_default();
    let some = text.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="));
    some.and_then(|percent| percent.parse().ok()).unwrap_or(0.0)
}

#[test]
fn memory_is_given_back_while_others_lack_it() {
    let Some(bench) = keeper::bench(&["cc", "sh"]) else { return };
    let job = case(&bench, "holds");
    let options = ["--memory", "64M", "--swap", "compressed:256M", "--give-back"];
    let running = job.paged(&options);
    let process = ready(&running);
    assert!(anonymous(process) > 23 * MIB);
    let mut group = match Group::new("overspill-test-thrashes", 8 * MIB) {
        Ok(group) => group,
        Err(error) => {
            println!("skipped: no group can be made that lacks memory: {error}");
            return;
        }
    };
    group.thrash(&bench).unwrap();
    let begun = Instant::now();
    while pressure() <= SHORT_PERCENT {
        if begun.elapsed() > SHORT_WAIT {
            println!("skipped: memory does not get short here: {} % of the time lost", pressure());
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_until("it gives some back", || anonymous(process) < 16 * MIB);
    drop(group);
    assert!(running.errors().contains("memory is short"), "{}", running.errors());
    send(process, libc::SIGTERM);
    let ended = running.success();
    assert!(ended.stat("/summary/pages_out") > 0, "{ended}");
}

/// What is out is nobody's: the kernel kills the largest process, with its agent, and if that does
/// not help at once `overspill run`. In either case nothing is left of the run. The agent may be
/// seen to end before its program.
#[test]
fn the_oom_killer_ends_the_program() {
    let Some(bench) = keeper::bench(&["cc", "sh"]) else { return };
    let group = match Group::new("overspill-test-oom", 64 * MIB) {
        Ok(group) => group,
        Err(error) => {
            println!("skipped: no group can be made that lacks memory: {error}");
            return;
        }
    };
    let program = bench.cc("long_runs.c").display().to_string();
    let run = format!(
        "exec {} run --quiet --memory 16M --swap ram:1G -- {program} fills",
        overspill().display()
    );
    let own = bench.path("own");
    let job = bench.job(&["sh", "-c", &group.entering(&run)]).env("OVERSPILL_TEST", &own);
    let ended = job.plain().end();
    assert!(matches!((ended.status.code(), ended.status.signal()), (Some(137), _) | (_, Some(9))));
    let is_of_agent = |line: &str| {
        line.contains("is ended: the agent has ended")
            || line.contains("is ended: its agent was killed")
    };
    let (reasons, others): (Vec<_>, Vec<_>) =
        ended.errors.lines().partition(|line| line.contains("for want of memory here"));
    // If the front itself was ended, nobody tells of it.
    assert_eq!(reasons.len(), usize::from(ended.status.code().is_some()), "{ended}");
    let is_of_program = |line: &str| line.contains("the program was ended by SIGKILL");
    assert!(others.into_iter().all(|line| is_of_agent(line) || is_of_program(line)), "{ended}");
    wait_until("nothing is left", || started_by(&own).is_empty());
}
