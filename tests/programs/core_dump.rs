//! What debuggers find: a core dump is no larger than the program, and one that a keeper pages has
//! all of it, dead or alive.

use crate::attach::{anonymous, send};
use crate::keeper::{self, wait_until};
use overspill_programs::bench::Bench;
use overspill_programs::job::{Job, MIB, assert_same, descendants, name_of};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The case maps 64 MiB; a dump has that, in blocks, and libraries.
const DUMP_MAX: u64 = 256 * MIB;
/// What `core_dump.c` has, and how much of that it may.
const TABLE_AND_HEAP: u64 = 64 * MIB;
const LIMIT: u64 = 24 * MIB;

/// False, and said, where the kernel puts cores elsewhere.
fn has_cores_in_directory() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_here = pattern.trim() == "core";
    if !is_here {
        println!("skipped: core dumps do not go to the directory: {}", pattern.trim());
    }
    is_here
}

fn core_in(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let is_core = |path: &PathBuf| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name == "core" || name.starts_with("core.") && !name.ends_with(".c")
        })
    };
    files.into_iter().find(is_core).expect("there is a dump")
}

fn dumping(bench: &Bench, program: &Path, case: &str) -> Job {
    let script = format!("ulimit -c unlimited && exec {} {case}", program.display());
    bench.job(&["sh", "-c", &script]).patience(60)
}

#[test]
fn a_core_dump_has_what_is_mapped_and_no_more() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    if !has_cores_in_directory() {
        return;
    }
    let program = bench.cc("process_calls.c");
    let job = dumping(&bench, &program, "abort_with_memory");
    let started = std::time::Instant::now();
    let ended = job.paged(&["--memory", "32M", "--quiet"]).end();
    assert!(started.elapsed().as_secs() < 10, "a dump of the whole reservation takes longer");
    assert!(!ended.status.success());
    let about = core_in(program.parent().unwrap()).metadata().unwrap();
    assert!(about.len() < DUMP_MAX, "{} bytes", about.len());
    // Pages in memory are part of the dump.
    assert!(about.blocks() * 512 > 16 * MIB, "{} blocks", about.blocks());
}

/// Has gdb write the program's memory to a file, and returns that.
fn memory_by_gdb(bench: &Bench, program: &Path, what: &[&str], name: &str) -> PathBuf {
    let (out, heap) = (bench.path(name), bench.path("heap"));
    let table = format!("dump binary memory {} table (char*)table+sizeof(table)", out.display());
    let more = format!("dump binary memory {} heap heap+16777216", heap.display());
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx"]).arg(program).args(what).args(["-ex", &table, "-ex", &more]);
    let output = gdb.output().unwrap();
    assert!(out.exists() && heap.exists(), "{gdb:?}: {}", String::from_utf8_lossy(&output.stderr));
    let heap = std::fs::read(heap).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&out).unwrap();
    std::io::Write::write_all(&mut file, &heap).unwrap();
    assert_eq!(file.metadata().unwrap().len(), TABLE_AND_HEAP);
    out
}

fn memory_in_core(bench: &Bench, program: &Path, directory: &str) -> PathBuf {
    let core = core_in(&bench.path(directory)).display().to_string();
    memory_by_gdb(bench, program, &[&core], &format!("{directory}-memory"))
}

/// The same as of a plain run, byte for byte, though most of it was out.
fn cores_are_whole(case: &str) {
    let Some(bench) = keeper::bench(&["cc", "sh", "gdb"]) else { return };
    if !has_cores_in_directory() {
        return;
    }
    let program = bench.cc("core_dump.c");
    for directory in ["plain", "kept"] {
        std::fs::create_dir(bench.path(directory)).unwrap();
    }
    let job = dumping(&bench, &program, case);
    let plain = job.clone().directory("plain").plain().end();
    let kept = keeper::kept(&job.directory("kept"), LIMIT);
    let status = plain.status.code().or(plain.status.signal().map(|signal| 128 + signal));
    assert_eq!(kept.status.code(), status, "{kept}");
    assert!(kept.stat("/summary/pages_out") > 0 && !kept.errors.contains("lacks"), "{kept}");
    let [plain, kept] = ["plain", "kept"].map(|name| memory_in_core(&bench, &program, name));
    assert_same(&plain, &kept);
}

#[test]
fn a_core_of_which_most_was_out_is_whole() {
    cores_are_whole("dumps");
}

#[test]
fn a_core_of_a_child_is_whole() {
    cores_are_whole("forks_and_dumps");
}

/// Its agent's number may be another process's by the time that its core is found: who may look at
/// all processes looks at none for who may not.
#[test]
fn a_core_of_another_user_is_left_as_the_kernel_made_it() {
    let Some(bench) = crate::gates::bench(&["cc", "sh", "setpriv"]) else { return };
    if !has_cores_in_directory() {
        return;
    }
    let program = bench.cc("core_dump.c");
    let user = crate::gates::USER.to_string();
    let script = format!(
        "ulimit -c unlimited && exec setpriv --reuid {user} --regid {user} --clear-groups {} dumps",
        program.display()
    );
    let ended = bench.job(&["sh", "-c", &script]).patience(60);
    let ended = ended.paged(&["--memory", &LIMIT.to_string(), "--swap", "ram:256M"]).end();
    assert!(ended.stat("/summary/pages_out") > 0, "{ended}");
    let said = "has dumped core, and what was out is zeros there: it has another user";
    assert!(ended.errors.contains(said), "{ended}");
}

/// And it is paged again when the debugger has gone.
#[test]
fn a_debugger_finds_all_of_a_program() {
    let Some(bench) = keeper::bench(&["cc", "gdb"]) else { return };
    let program = bench.cc("core_dump.c");
    let job = bench.job(&[program.to_str().unwrap(), "rests"]);
    let running = job.paged(&["--memory", &LIMIT.to_string(), "--swap", "ram:256M"]);
    wait_until("the program is ready", || running.errors().contains("ready"));
    let own = descendants(running.pid()).into_iter().find(|pid| name_of(*pid) == "core_dump");
    let pid = own.expect("it waits");
    let is_limited = || anonymous(pid) < LIMIT + 8 * MIB;
    wait_until("it is in its limit", is_limited);
    let process = format!("--pid={pid}");
    let waits = ["-ex", "shell sleep 3"];
    let found =
        memory_by_gdb(&bench, &program, &[&[process.as_str()], &waits[..]].concat(), "alive");
    assert!(running.errors().contains("is traced"), "{}", running.errors());
    wait_until("it is in its limit again", is_limited);
    let expected = bench.path("expected");
    std::fs::write(&expected, expected_memory()).unwrap();
    assert_same(&expected, &found);
    send(pid, libc::SIGKILL);
    drop(running.end());
}

/// What `fill` of common.h writes: a word at the start and at the end of each page.
fn expected_memory() -> Vec<u8> {
    let page = |seed: u64, page: u64| {
        let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(page + 1);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (z ^ (z >> 27)).to_le_bytes();
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&word);
        bytes[4088..].copy_from_slice(&word);
        bytes
    };
    let of = |seed, bytes: u64| (0..bytes / 4096).flat_map(move |n| page(seed, n));
    of(1, 48 * MIB).chain(of(2, 16 * MIB)).collect()
}
