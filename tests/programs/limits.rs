//! A limit that is changed while a program goes on, and one for many processes.

use crate::keeper;
use crate::random::Random;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Ended, MIB, assert_same};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const LINES: u64 = 900_000;
/// Longest that a run takes to keep to a lower limit, on a machine that does other things too.
const SECONDS_MAX: f64 = 5.0;

/// Sets a limit; the seconds that the run took to keep to it, if it goes on.
fn set(run: i32, limit: u64) -> Option<f64> {
    let words = ["set", &run.to_string(), "--memory", &limit.to_string()].map(str::to_owned);
    let output = Command::new(overspill()).args(words).output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    let error = String::from_utf8_lossy(error);
    if !output.status.success() {
        assert!(error.contains("in no run"), "{error}");
        return None;
    }
    let seconds = said.trim_end().strip_suffix(" s").and_then(|said| said.rsplit(' ').next());
    Some(seconds.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{said}{error}")))
}

/// Runs `work`, and changes limits at random until it has ended; the seconds of each change.
fn change_meanwhile(run: i32, work: impl FnOnce() -> Ended) -> (Ended, Vec<f64>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let (mut random, mut taken) = (Random::new(1), Vec::new());
            while !over.load(Relaxed) {
                // Half of them are enough for all of it: so it comes to an end.
                let limit = [8, 16, 40, 64, 150, 256, 256, 256][random.below(8) as usize];
                taken.extend(set(run, limit * MIB));
                std::thread::sleep(Duration::from_millis(random.below(60)));
            }
            taken
        });
        let ended = work();
        over.store(true, Relaxed);
        (ended, changes.join().unwrap())
    })
}

#[test]
fn a_limit_that_goes_up_and_down_costs_no_byte() {
    let Some(bench) = Bench::with(&["sort"]) else { return };
    bench.file("input", |out| {
        let mut random = Random::new(1);
        (0..LINES).for_each(|n| writeln!(out, "{:016x} line {n:09}", random.next()).unwrap());
    });
    let job = bench.job(&["sort", "-S", "400M", "--parallel=2", "-T", ".", "input"]);
    let plain = job.plain().success();
    let running = job.paged(&["--memory", "64M", "--swap", "compressed:600M", "--quiet"]);
    let (ended, taken) = change_meanwhile(running.pid(), || running.success());
    assert_same(&plain.output, &ended.output);
    let longest = taken.iter().copied().fold(0.0, f64::max);
    assert!(taken.len() > 10 && longest < SECONDS_MAX, "{taken:?}");
}

const PYTHON: &str = "/usr/bin/python3";

/// Runs so many processes in a limit, each of which has so much and sleeps then. Their lines do not
/// mix: `print` makes two writes with PYTHONUNBUFFERED.
fn many(processes: usize, mib: usize, limit: u64) -> Option<Ended> {
    let bench = keeper::bench(&[PYTHON, "sh"])?;
    let fills = format!(
        "import sys, time; b = bytearray({mib} << 20); b[::4096] = b[::4096]; time.sleep(8); \
         sys.stdout.write(str(sum(b)) + chr(10))"
    );
    let script = format!("for i in $(seq {processes}); do {PYTHON} -c '{fills}' & done; wait");
    let options = ["--memory", &limit.to_string(), "--swap", "compressed:1G"];
    let ended = bench.job(&["sh", "-c", &script]).paged(&options).success();
    assert_eq!(ended.text(), "0\n".repeat(processes), "{ended}");
    println!("{ended}");
    Some(ended)
}

/// Each has a MiB and more of what it has written of its libraries, which stays.
#[test]
fn many_processes_keep_to_a_limit() {
    let Some(ended) = many(24, 6, 80 * MIB) else { return };
    assert_eq!(ended.stat("/over_limit_bytes_max"), 0, "{ended}");
    assert!(!ended.errors.contains("above the limit"), "{ended}");
}

#[test]
fn a_limit_that_cannot_be_kept_is_said_to_be_exceeded() {
    let Some(ended) = many(32, 2, 24 * MIB) else { return };
    assert!(ended.stat("/over_limit_bytes_max") > MIB, "{ended}");
    assert!(ended.errors.contains("it cannot leave memory"), "at once: {ended}");
    assert!(ended.errors.contains("above the limit stayed in memory"), "at the end: {ended}");
}

/// Nobody is outside a limit for what it calls its memory.
#[test]
fn who_has_memory_called_as_ours_is_paged() {
    let Some(bench) = keeper::bench(&[PYTHON]) else { return };
    let program = "import os, mmap, time\n\
        fd = os.memfd_create('overspill-letters'); os.ftruncate(fd, 1 << 20)\n\
        m = mmap.mmap(fd, 1 << 20); b = bytearray(os.urandom(1 << 20) * 96); time.sleep(1)\n\
        print([line.split()[1] for line in open('/proc/self/status') if 'RssAnon' in line][0])";
    let ended = bench.job(&[PYTHON, "-c", program]).paged(&["--memory", "16M"]).success();
    let kib: u64 = ended.text().trim().parse().unwrap();
    assert!(kib << 10 < 20 * MIB, "{kib} KiB: {ended}");
}

/// What relatives share counts once: 80 MiB that seven processes have fit into 160.
#[test]
fn a_family_that_fits_is_left_alone() {
    let Some(bench) = keeper::bench(&[PYTHON]) else { return };
    let program = "import os\nb = bytearray(80 << 20)\n\
        for i in range(0, len(b), 4096): b[i:i + 4096] = b'1' * 4096\n\
        for n in range(6):\n if not os.fork():\n  \
        n = sum(sum(b[i::4096]) > 0 for i in range(0, 4096, 512) for _ in range(3))\n  \
        os.write(1, b'%d\\n' % n); os._exit(0)\n\
        for n in range(6): os.wait()";
    let job = bench.job(&[PYTHON, "-c", program]);
    let ended = job.paged(&["--memory", "160M", "--swap", "compressed:1G"]).success();
    assert_eq!(ended.text(), "24\n".repeat(6), "{ended}");
    assert_eq!(ended.stat("/summary/pages_out"), 0, "{ended}");
    let held = ended.stat("/in_use_bytes_max");
    assert!((80 * MIB..120 * MIB).contains(&held), "{held}: {ended}");
}

/// As a program that has its own userfaultfd from the start.
#[test]
fn who_is_outside_is_named_with_the_reason() {
    let Some(bench) = keeper::bench(&["cc"]) else { return };
    let program = bench.cc("late_calls.c");
    let job = bench.job(&[program.as_os_str(), "pages_itself_first".as_ref()]);
    let ended = job.paged(&["--memory", "16M", "--swap", "ram:256M"]).success();
    assert!(ended.errors.contains("outside the limit: late_calls"), "{ended}");
    assert_eq!(
        ended.errors.matches("by a userfaultfd").count(),
        2,
        "at once, and at the end: {ended}"
    );
}
