//! What `apart.c` checks: programs that close, filter, hide or drop what the pager would need if it
//! were part of their process; and what happens to program and pager when the other ends.

use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{descendants, name_of};
use std::time::{Duration, Instant};

crate::memory_calls::cases! { "apart.c":
    ended_children living_children nothing_to_be_seen every_descriptor_closed user_namespace last_thread
    filtered filtered_in_all_threads handler_reads flush_amid_forks locale rights_given_up root_changed
    children_by_clone killed_sharers killed_starting killed_pagers unseen_child images
}

/// Waits until `found` returns something for the process tree of a run.
fn wait_for<T>(root: i32, found: impl Fn(&[i32]) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(result) = found(&descendants(root)) {
            return result;
        }
        assert!(Instant::now() < deadline, "{:?}", descendants(root));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_program_ends_with_its_pager() {
    let Some(bench) = Bench::with(&["sleep"]) else { return };
    let running =
        bench.job(&["sleep", "60"]).inside().patience(30).paged(&["--memory", "16M", "--quiet"]);
    let pager = wait_for(running.pid(), |tree| {
        let running = tree.iter().any(|&pid| name_of(pid) == "sleep");
        tree.iter().copied().find(|&pid| running && name_of(pid) == "ovs-pager")
    });
    // SAFETY: kill touches no memory; the process is a grandchild that lives until then.
    unsafe { libc::kill(pager, libc::SIGKILL) };
    assert_eq!(running.end().status.code(), Some(128 + libc::SIGKILL));
}

/// A program that executes another one leaves no pager behind, and the new one is not killed.
#[test]
fn a_pager_ends_with_its_program() {
    let Some(bench) = Bench::with(&["sh", "sleep"]) else { return };
    let script = "exec sh -c 'exec sh -c \"exec sleep 60\"'";
    let job = bench.job(&["sh", "-c", script]).inside();
    let running = job.patience(30).paged(&["--memory", "16M", "--quiet"]);
    let program = wait_for(running.pid(), |tree| {
        let found = tree.iter().copied().find(|&pid| name_of(pid) == "sleep");
        found.filter(|_| tree.len() == 2)
    });
    // SAFETY: as above.
    unsafe { libc::kill(program, libc::SIGTERM) };
    assert_eq!(running.end().status.code(), Some(128 + libc::SIGTERM));
}

/// The pager describes an error, for which libc locks its locale: the program must find that lock
/// as it should be.
#[test]
fn errors_of_the_pager_leave_locks_alone() {
    let Some(bench) = Bench::with(&["cc", "/usr/bin/python3"]) else { return };
    let refuses = bench.cc("refuses.c").display().to_string();
    let overspill = overspill().display().to_string();
    let words = [&refuses, &overspill, "run", "--memory", "16M", "--swap", "file:area:64M", "--"];
    let program = ["/usr/bin/python3", "-c", "import locale; locale.setlocale(locale.LC_ALL, '')"];
    let ended = bench.job(&[&words[..], &program].concat()).inside().patience(30).plain().success();
    assert!(ended.errors.contains("io_uring is refused"), "{ended}");
}

/// Process numbers come round: an image may get a pager with the number that a former image of
/// another process with its own number had. Here the children of a shell have the same numbers each
/// time, in a namespace of their own.
#[test]
fn numbers_come_round() {
    let Some(bench) = Bench::with(&["unshare", "sh", "true"]) else { return };
    let apart = ["unshare", "--pid", "--fork", "--mount-proc"];
    let may = bench.job(&[&apart[..], &["sh", "-c", ": > /proc/sys/kernel/ns_last_pid"]].concat());
    let may = may.plain().end();
    if !may.status.success() {
        return println!("skipped: {}", may.errors.trim());
    }
    let script = "for n in 1 2 3 4 5 6; do
            echo 1000 > /proc/sys/kernel/ns_last_pid
            /bin/true
        done";
    let overspill = overspill().display().to_string();
    let run = [&overspill, "run", "--memory", "16M", "--quiet", "--", "sh", "-c", script];
    bench.job(&[&apart[..], &run].concat()).inside().patience(30).plain().success();
}

/// Every child leaves its pager behind. Where nobody reaps orphans, process numbers would run out.
#[test]
fn pagers_of_ended_children_are_reaped() {
    let Some(bench) = Bench::with(&["cc", "sh"]) else { return };
    let adopter = bench.cc("adopter.c");
    // Ends when the supervisor, its parent, has no other child left.
    let script = "for n in 1 2 3 4 5 6 7 8 9 10; do (:); done
        set -- 1 2
        while [ $# -gt 1 ]; do
            read -r children < /proc/$PPID/task/$PPID/children
            set -- $children
        done";
    let words = ["run", "--memory", "16M", "--quiet", "--", "sh", "-c", script];
    let mut all = vec![adopter.into_os_string(), overspill().into()];
    all.extend(words.map(Into::into));
    let ended = bench.job(&all).inside().plain().success();
    let orphans: u32 = ended.text().trim().parse().unwrap();
    assert!(orphans <= 1, "{orphans}, not only the program's own");
}

/// A child that goes on keeps a run from nothing: it ends with its program.
#[test]
fn a_run_does_not_wait_for_children_that_go_on() {
    let Some(bench) = Bench::with(&["sh", "sleep"]) else { return };
    // At most the ten seconds that a run waits for a pager.
    let script = "(n=0
        while kill -0 $PPID 2>/dev/null && [ $n -lt 80 ]; do sleep 0.1; n=$((n + 1)); done
        echo $n > rounds; mv rounds waited) &";
    let job = bench.job(&["sh", "-c", script]).inside().patience(30);
    job.paged(&["--memory", "16M", "--quiet"]).success();
    let (deadline, waited) = (Instant::now() + Duration::from_secs(10), bench.path("waited"));
    while !waited.exists() {
        assert!(Instant::now() < deadline, "the child is gone");
        std::thread::sleep(Duration::from_millis(2));
    }
    let rounds: u32 = std::fs::read_to_string(waited).unwrap().trim().parse().unwrap();
    assert!(rounds < 80, "it waited for the child");
}

/// Runs a case of `apart.c` with few descriptors for the supervisor; returns its output.
fn with_few_descriptors(case: &str) -> Option<String> {
    let bench = Bench::with(&["cc", "sh"])?;
    let program = bench.cc("apart.c").display().to_string();
    let overspill = overspill().display().to_string();
    let limited = ["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"];
    let run = [&overspill, "run", "--memory", "32M", "--quiet", "--", &program];
    let words = [&limited[..], &run, &[case]].concat();
    Some(bench.job(&words).inside().patience(30).plain().success().text())
}

/// Each process of a run takes descriptors of its supervisor. A fork for which there are none left
/// fails; it does not wait for them.
#[test]
fn forks_beyond_the_limit_of_descriptors_are_refused() {
    let Some(text) = with_few_descriptors("children_until_refused") else { return };
    let made: u32 = text.split(' ').next().unwrap().parse().unwrap();
    assert!((5..64).contains(&made), "{made}");
}

/// However they end.
#[test]
fn descriptors_of_ended_processes_are_used_again() {
    let _ = with_few_descriptors("ended_children");
    let _ = with_few_descriptors("killed_pagers");
}
