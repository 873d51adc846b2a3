//! What `one_limit.c` checks: processes that share the memory of a run. Meanwhile it is measured,
//! each page counted once, however many processes have it.

use crate::keeper;
use crate::memory_calls::LIMIT;
use overspill_programs::job::{Ended, MIB, descendants, name_of};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Memory of a process that is not paged: tables, threads, staging.
const BESIDE: u64 = 2 * MIB;

/// A look at all processes of a run.
struct Look {
    /// Proportional set sizes without files: how much of a library is mapped around a fault depends
    /// on what the page cache has of it.
    bytes: u64,
    processes: u64,
    /// If it is too much: what lies where.
    mappings: String,
}

impl Look {
    /// Looks at one process after the other, and again in reverse. Of each the smaller size counts:
    /// what one gave and another took in between, for which a busy machine has time, would be
    /// counted twice.
    fn at(root: i32) -> Self {
        // An agent's memory is its program's. The keeper is not counted.
        let is_program = |pid: &i32| {
            let name = name_of(*pid);
            !name.starts_with("ovs-") && !name.starts_with("overspill-agent")
        };
        let programs = descendants(root).into_iter().filter(is_program);
        let size = |pid| Some((pid, proportional_bytes(pid)?));
        let first: Vec<(i32, u64)> = programs.filter_map(size).collect();
        let again = first.iter().rev();
        let smaller = again.filter_map(|&(pid, bytes)| Some(proportional_bytes(pid)?.min(bytes)));
        let sizes: Vec<u64> = smaller.collect();
        let (bytes, processes) = (sizes.iter().sum(), sizes.len() as u64);
        let mut look = Self { bytes, processes, mappings: String::new() };
        if look.excess() > 0 {
            look.mappings = first.iter().map(|&(pid, _)| mappings(pid)).collect();
        }
        look
    }

    fn excess(&self) -> u64 {
        self.bytes.saturating_sub(LIMIT + BESIDE * self.processes)
    }
}

fn proportional_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kib("Pss_Anon:")? + kib("Pss_Shmem:")?) << 10)
}

/// Lists the mappings with a page in memory, each with its proportional size.
fn mappings(pid: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut listed = format!("{pid}:\n");
    let mut mapping = "";
    for line in text.lines() {
        match line.strip_prefix("Pss:").map(str::trim) {
            None if line.split(' ').next().is_some_and(|word| word.contains('-')) => mapping = line,
            None | Some("0 kB") => {}
            Some(size) => listed += &format!("{size:>10} {mapping}\n"),
        }
    }
    listed
}

/// Runs a case in the limit; returns it with what was seen of it.
fn watched(case: &str) -> Option<(Ended, Vec<Look>)> {
    let bench = keeper::bench(&["cc"])?;
    let program = bench.cc("one_limit.c");
    let job = bench.job(&[program.as_os_str(), case.as_ref()]).patience(400);
    let running = job.paged(&["--memory", &LIMIT.to_string(), "--quiet"]);
    let (root, over) = (running.pid(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut looks = Vec::new();
            while !over.load(Relaxed) {
                looks.push(Look::at(root));
                std::thread::sleep(Duration::from_millis(30));
            }
            looks
        });
        let ended = running.end();
        over.store(true, Relaxed);
        let looks = watcher.join().unwrap();
        assert_eq!(ended.text(), "ok\n", "{ended}");
        let most = looks.iter().max_by_key(|look| look.bytes).unwrap();
        let (bytes, processes) = (most.bytes / 1024, most.processes);
        println!("{case}: at most {bytes} KiB in {processes} processes, {ended}");
        Some((ended, looks))
    })
}

/// Looks in half a second.
const LOOKS_IN_A_MOMENT: usize = 16;

/// What is filled before anything is attached to is above the limit for a moment: a longer one
/// where other programs have the processors. One of many that come and go is so again and again,
/// but not most of the time.
#[test]
fn a_keeper_holds_the_limit_of_several() {
    for case in ["together", "killed", "many", "idle"] {
        let Some((_, looks)) = watched(case) else { return };
        let above: Vec<bool> = looks.iter().map(|look| look.excess() > 8 * MIB).collect();
        let moments = above.chunk_by(|a, b| a == b).filter(|looks| looks[0]);
        let longest = moments.map(<[_]>::len).max().unwrap_or(0);
        assert!(longest < LOOKS_IN_A_MOMENT, "{case}: {longest} looks of {}", looks.len());
        let above = above.iter().filter(|above| **above).count();
        assert!(above * 2 < looks.len(), "{case}: {above} of {} looks", looks.len());
    }
}

/// Children that were forked before anything was attached to, and share their parent's memory.
#[test]
fn a_keeper_pages_what_relatives_share() {
    for case in ["read_by_all", "written_by_all"] {
        let Some((ended, looks)) = watched(case) else { return };
        assert_eq!(ended.stat("/summary/pages_lost"), 0, "{ended}");
        let above = looks.iter().filter(|look| look.excess() > 8 * MIB).count();
        assert!(above * 10 < looks.len(), "{case}: {above} of {} looks", looks.len());
    }
}
