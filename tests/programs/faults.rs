//! Swap that fails or fills up during a run: one line names cause and remedy, the status is our
//! own, and the program goes on as long as there is memory.

use crate::small_disk::SmallDisk;
use overspill_programs::bench::Bench;
use overspill_programs::job::Ended;

const PYTHON: &str = "/usr/bin/python3";

/// Allocates more than there is.
const TOO_MUCH: &str = "b = bytearray(256 << 20)
for i in range(0, len(b), 4096): b[i] = 1
print('done')";

/// Fills swap completely, frees most, and goes on with what it needs.
const FREES: &str = "
blocks = [bytes([i]) * (1 << 20) for i in range(54)]
del blocks[8:]
again = [bytes([i + 1]) * (1 << 20) for i in range(20)]
assert all(block == bytes([i]) * (1 << 20) for i, block in enumerate(blocks))
assert all(block == bytes([i + 1]) * (1 << 20) for i, block in enumerate(again))
print('done')";

fn run(bench: &Bench, options: &[&str], program: &str) -> Ended {
    bench.job(&[PYTHON, "-c", program]).patience(60).paged(options).end()
}

/// Asserts that memory ran out, and that one line says so with all `words`. A line before it may
/// say that a device is full, printed while there was still memory.
fn assert_out_of_memory(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    let lines: Vec<&str> = ended.errors.lines().collect();
    assert!(lines.len() <= 2 && lines.iter().all(|l| l.starts_with("overspill: ")), "{ended}");
    let line = lines.last().unwrap();
    for word in words {
        assert!(line.contains(word), "`{word}` in {line}");
    }
}

#[test]
fn swap_that_is_too_small_is_named_with_its_flag() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    let options = ["--memory", "32M", "--swap-size", "64M", "--quiet"];
    let ended = run(&bench, &options, TOO_MUCH);
    assert_out_of_memory(&ended, &["out of memory", "swap file", "64 MiB", "--swap-size"]);
    let options = ["--memory", "32M", "--swap", "ram:48M", "--quiet"];
    let ended = run(&bench, &options, TOO_MUCH);
    assert_out_of_memory(&ended, &["out of memory", "ram", "48 MiB", "--swap"]);
}

#[test]
fn a_program_that_frees_in_time_goes_on() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    let ended = run(&bench, &["--memory", "32M", "--swap", "ram:40M", "--quiet"], FREES);
    assert!(ended.status.success() && ended.text() == "done\n", "{ended}");
}

/// Other data takes the rest of the disk while the program runs.
#[test]
fn a_disk_that_fills_up() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    let disk = match SmallDisk::mount(bench.path("disk"), 256) {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: no small disk: {why}"),
    };
    let swap = format!("file:{}", disk.path().display());
    let options = ["--memory", "32M", "--swap", &swap, "--quiet"];
    let waits = format!(
        "import os, time\nopen('started', 'w')\nwhile not os.path.exists('go'): \
                         time.sleep(0.01)\n{TOO_MUCH}"
    );
    let ended = start_then_fill(&bench, &disk, &options, &waits);
    assert_out_of_memory(&ended, &["out of memory", disk.path().to_str().unwrap(), "--swap"]);

    let waits = waits.replace(TOO_MUCH, &FREES.replace("range(54)", "range(30)"));
    let ended = start_then_fill(&bench, &disk, &options, &waits);
    assert!(ended.status.success() && ended.text() == "done\n", "{ended}");
}

/// Starts a program that waits, fills the disk except for 24 MiB, and lets the program go on.
fn start_then_fill(bench: &Bench, disk: &SmallDisk, options: &[&str], program: &str) -> Ended {
    for file in [bench.path("started"), bench.path("go"), disk.path().join("ballast")] {
        let _ = std::fs::remove_file(file);
    }
    let job = bench.job(&[PYTHON, "-c", program]).patience(60);
    let mut running = job.paged(options);
    while !bench.path("started").exists() {
        running.assert_in_time();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    disk.fill_but(24);
    std::fs::write(bench.path("go"), "").unwrap();
    running.end()
}
