//! A place that a process of its own has open, here a mirror of two on this machine, serves every
//! program of a run.

use crate::compressed::TREE;
use overspill_programs::bench::Bench;
use overspill_programs::job::{MIB, Running, assert_same, descendants};
use std::path::Path;
use std::time::Duration;

const LIMIT: u64 = 16 * MIB;

/// Changes its root, opens thousands of descriptors and closes all that can be; then reads what it
/// wrote before. Prints only then: its output is one of them.
const ELSEWHERE: &str = r#"
import os, resource, tempfile
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
blocks = [bytes("%06d " % n * 600, "ascii") for n in range(24000)]
root = tempfile.mkdtemp()
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(5000)]
os.chroot(root)
out = os.dup2(1, 9000)
os.closerange(0, 9000)
os.closerange(9001, 20000)
for turn in range(2):
    assert all(block.startswith(b"%06d" % n) for n, block in enumerate(blocks))
os.write(out, b"%d of %d\n" % (sum(map(len, blocks)), len(blocks)))
"#;

/// Fills more than the limit, says so, and waits for a file.
const WAITING: &str = "
import os, sys, time
b = bytearray(64 << 20)
for i in range(0, len(b), 4096): b[i] = 1
print('full', file=sys.stderr, flush=True)
while not os.path.exists('go'): time.sleep(0.01)
os.unlink('go')
";

const RAM: &str = "ram:512M,mirror=ram:512M";

/// On a file and in memory.
fn mirrored(bench: &Bench) -> String {
    format!("file:{}:512M,mirror=ram:512M", bench.path("").display())
}

#[test]
fn a_tree_of_processes_asks_for_its_pages() {
    let Some(bench) = Bench::with(&["overspill-server", "/usr/bin/python3"]) else { return };
    let job = bench.job(&["/usr/bin/python3", "-c", TREE]);
    let plain = job.plain().success();
    for swap in [&mirrored(&bench), RAM, "ram:512M,mirror=ram:512M,encrypt=on"] {
        let paged = job.paged(&["--memory", &LIMIT.to_string(), "--swap", swap, "--quiet"]);
        let paged = paged.success();
        assert_same(&plain.output, &paged.output);
        assert!(paged.stat("/summary/pages_in") > 10_000, "{swap}: {paged}");
    }
}

#[test]
fn a_program_elsewhere_with_all_descriptors_closed_is_served() {
    let Some(bench) = Bench::with(&["overspill-server", "/usr/bin/python3"]) else { return };
    works_elsewhere(&bench, &mirrored(&bench));
}

/// Runs a program that could reach no device by itself.
pub(crate) fn works_elsewhere(bench: &Bench, swap: &str) {
    if !is_root() {
        return println!("skipped: changing the root needs root");
    }
    let job = bench.job(&["/usr/bin/python3", "-c", ELSEWHERE]);
    let plain = job.plain().success();
    let limit = LIMIT.to_string();
    let paged = job.paged(&["--memory", &limit, "--swap", swap, "--quiet"]).success();
    assert_same(&plain.output, &paged.output);
    assert!(paged.stat("/summary/pages_in") > 10_000, "{paged}");
}

fn is_root() -> bool {
    // SAFETY: takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Ends at once; its child forks, and looks at its pages for longer than a run waits silently.
const GOES_ON: &str = r#"
import os, time
blocks = [bytes("%06d " % n * 600, "ascii") for n in range(12000)]
if os.fork(): os._exit(0)
until = time.time() + 3
while time.time() < until:
    assert all(block.startswith(b"%06d" % n) for n, block in enumerate(blocks))
grandchild = os.fork()
if grandchild == 0: os._exit(7 if blocks[11999].startswith(b"011999") else 1)
assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
open("report", "w").write("as it was")
"#;

#[test]
fn processes_that_go_on_after_the_program_are_served() {
    let Some(bench) = Bench::with(&["overspill-server", "/usr/bin/python3"]) else { return };
    let job = bench.job(&["/usr/bin/python3", "-c", GOES_ON]);
    let limit = LIMIT.to_string();
    let ended = job.paged(&["--memory", &limit, "--swap", RAM]).success();
    assert!(ended.errors.contains("processes that it started go on"), "{ended}");
    let report = std::fs::read_to_string(bench.path("report"));
    assert_eq!(report.ok().as_deref(), Some("as it was"), "{ended}");
}

/// Those of a run's processes that have `file` open, the supervisor last.
fn holders(running: &Running, file: &Path) -> Vec<i32> {
    let has_it = |pid: &i32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        let mut links = descriptors.flatten().map(|entry| std::fs::read_link(entry.path()));
        links.any(|link| link.is_ok_and(|link| link == file))
    };
    let all = descendants(running.pid()).into_iter().chain([running.pid()]);
    all.filter(has_it).collect()
}

#[test]
fn only_one_process_has_the_device_open() {
    let Some(bench) = Bench::with(&["overspill-server", "/usr/bin/python3"]) else { return };
    let file = bench.path("swap");
    for (options, expected) in [("", 2), (",mirror=ram:128M", 1)] {
        std::fs::write(&file, b"").unwrap();
        let job = bench.job(&["/usr/bin/python3", "-c", WAITING]);
        let swap = format!("file:{}:128M{options}", file.display());
        let mut running = job.paged(&["--memory", "16M", "--swap", &swap, "--quiet"]);
        while !running.errors().contains("full") {
            running.assert_in_time();
            std::thread::sleep(Duration::from_millis(10));
        }
        let holders = holders(&running, &file);
        std::fs::write(bench.path("go"), b"").unwrap();
        running.success();
        assert_eq!(holders.len(), expected, "`{options}`: {holders:?}");
    }
}
