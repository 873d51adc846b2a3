//! Swap that is added to a program that goes on, or taken away.

use crate::keeper;
use crate::random::Random;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Job, Running, descendants};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
const PATIENCE: Duration = Duration::from_secs(30);

/// Fills most of its swap, and has children come and go, each of which compares what it was left.
/// When there is a file `go`, it takes three times as much as there was swap for at first, and then
/// waits for `end`.
const PROGRAM: &str = r#"
import hashlib, os, random, subprocess, sys, threading, time

def blocks(seed, mib):
    source = random.Random(seed)
    return [source.randbytes(1 << 16) for _ in range(16 * mib)]

def digest(blocks):
    all = hashlib.sha256()
    for block in blocks:
        all.update(block)
    return all.hexdigest()

def child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return pid

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

first = blocks(1, 40)
expected = digest(first)

def grow():
    wait_for("go")
    return digest(blocks(2, 40)) == digest(blocks(2, 40)) and digest(first) == expected

statuses, over = [], threading.Event()

def storm():
    part = first[::40]
    while not over.is_set():
        pid = child(lambda: digest(part) == digest(first[::40]))
        statuses.append(os.waitpid(pid, 0)[1])

old = child(grow)
storming = threading.Thread(target=storm)
storming.start()
open("ready", "w").close()
wait_for("go")
second = blocks(3, 100)
open("filled", "w").close()
waiting = child(lambda: wait_for("end") or digest(second) == digest(blocks(3, 100)))
wait_for("end")
young = child(lambda: digest(second) == digest(blocks(3, 100)) and digest(first) == expected)
statuses += [os.waitpid(pid, 0)[1] for pid in (old, waiting, young)]
started = subprocess.run(["sha256sum"], input=b"".join(second), capture_output=True).stdout
over.set()
storming.join()
same = started[:64].decode() == digest(second) and digest(first) == expected
print(same, sum(statuses), len(statuses) > 10)
"#;

fn wait_for(path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "there is no {}", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `overspill set`; what it says, or its error.
fn set(running: &Running, option: &str, word: &str) -> Result<String, String> {
    let run = running.pid().to_string();
    let output = Command::new(overspill()).args(["set", &run, option, word]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout);
    if output.status.success() { Ok(said) } else { Err(text(&output.stderr)) }
}

/// True if a process of the run has a file open.
fn is_open(running: &Running, path: &Path) -> bool {
    let run = running.pid();
    let processes = descendants(run).into_iter().chain([run]);
    let descriptors = processes.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")));
    let links = descriptors.flatten().flatten().flat_map(|fd| std::fs::read_link(fd.path()));
    links.into_iter().any(|link| link == path)
}

/// Every process of it swaps to all that was added, and leaves what is taken away: those from
/// before, their children, and what is executed later.
fn comes_and_goes(bench: &Bench, by: impl FnOnce(Job) -> Job) {
    let job = by(bench.job(&[PYTHON, "-c", PROGRAM]));
    let (own, directory) = (bench.file("own", |_| {}), bench.path(""));
    // The second is there so that there may be more on disks.
    let little = format!("file:{}:1M", bench.path("little").display());
    let swap = ["--swap", "ram:120M", "--swap", &little];
    let running = job.paged(&[&["--memory", "24M", "--quiet"], &swap[..]].concat());
    wait_for(&bench.path("ready"));
    let own_place = format!("file:{}:400M", own.display());
    let file = format!("file:{}:900M", directory.display());
    for place in [&*own_place, "compressed:100M", "ram:50M,mirror=ram:50M", &*file] {
        let said = set(&running, "--swapon", place).unwrap();
        assert!(said.contains("swaps to"), "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = |option: &str, word: &str, words: &str| {
        let error = set(&running, option, word).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    refused("--swapon", "file:/nowhere/x:1G", "/nowhere/x");
    refused("--swapon", "file:", "file:");
    refused("--swapon", &own_place, "twice");
    refused("--swapon", "nbd:127.0.0.1:9/x", "its server, reached in this way, is none");
    refused("--swapon", &format!("{file},encrypt=off"), "pages would be readable there");
    refused("--swapoff", "nothing", "no swap area is called `nothing`");
    // Six there are.
    let (more, words) = (26, "at most 32 swap areas");
    (0..more).for_each(|_| drop(set(&running, "--swapon", "ram:1M").unwrap()));
    refused("--swapon", "ram:1M", words);
    bench.file("go", |_| {});
    wait_for(&bench.path("filled"));
    assert!(is_open(&running, &own));
    for name in ["ram", "0", own.to_str().unwrap(), "compressed", "4"] {
        let said = set(&running, "--swapoff", name).unwrap();
        assert!(said.contains("swaps no more to"), "{name}: {said} {}", running.errors());
    }
    assert!(!is_open(&running, &own) && own.metadata().unwrap().len() == 0);
    bench.file("end", |_| {});
    let ended = running.success();
    assert_eq!(ended.text(), "True 0 True\n", "{ended}");
    assert!(ended.stat("/devices/0/used_bytes_max") > 0, "{ended}");
}

/// Programs that are executed while areas come and go.
#[test]
fn programs_start_while_swap_comes_and_goes() {
    let Some(bench) = keeper::bench(&["overspill-server", "sh", "sort", "cksum"]) else { return };
    let lines = |out: &mut dyn std::io::Write| {
        (0..30_000).for_each(|n| writeln!(out, "{}", n * 7919 % 100_003).unwrap());
    };
    bench.file("input", lines);
    const SORT: &str = "sort input | cksum";
    let plain = bench.job(&["sh", "-c", SORT]).plain().success();
    let script = format!("n=0; while [ $n -lt 40 ]; do {SORT} || exit; n=$((n+1)); done");
    let job = bench.job(&["sh", "-c", &script]);
    for round in 0..3 {
        let little = format!("file:{}:1M", bench.path("little").display());
        let swap = ["--swap", "compressed:200M", "--swap", &little];
        let running = job.paged(&[&["--memory", "16M", "--quiet"], &swap[..]].concat());
        let (mut random, mut on, mut added) = (Random::new(round), vec![0], 0);
        let places = ["ram:200M", "compressed:200M", "ram:200M,mirror=ram:200M", "file:.:200M"];
        while added < 8 {
            std::thread::sleep(Duration::from_millis(random.below(120)));
            let done = if on.len() < 2 || random.below(2) == 0 {
                let place = places[random.below(4) as usize];
                let place = place.replace('.', bench.path("").to_str().unwrap());
                added += 1;
                on.push(added + 1);
                set(&running, "--swapon", &place)
            } else {
                let area = on.swap_remove(random.below(on.len() as u64) as usize);
                set(&running, "--swapoff", &area.to_string())
            };
            if done.is_err_and(|error| error.contains("in no run")) {
                break;
            }
        }
        let ended = running.success();
        assert_eq!(ended.text(), plain.text().repeat(40), "{ended}");
    }
}

#[test]
fn swap_comes_and_goes_amid_forks() {
    if let Some(bench) = keeper::bench(&["overspill-server", PYTHON, "sha256sum"]) {
        comes_and_goes(&bench, |job| job);
    }
}

#[test]
fn swap_comes_and_goes_if_touches_raise_signals() {
    if let Some(bench) = crate::gates::bench(&["overspill-server", PYTHON, "sha256sum"]) {
        comes_and_goes(&bench, |job| job.by("touches"));
    }
}
