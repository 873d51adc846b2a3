//! Programs whose calls go through a gate: of who may not see what the kernel touches.

use crate::keeper;
use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, Job, MIB, assert_same};

/// An ordinary user.
pub(crate) const USER: u32 = 65534;

/// The same status and output as plain, and pages went out.
fn compare(job: &Job, limit: u64) -> Ended {
    compare_with(job, &job.clone().by("calls").user(USER), limit)
}

/// As [`compare`], where it is said how it is paged.
pub(crate) fn compare_with(job: &Job, kept: &Job, limit: u64) -> Ended {
    let plain = job.plain().end();
    let options = ["--memory", &limit.to_string(), "--quiet"];
    let kept = kept.paged(&options).end();
    assert_eq!(plain.status.code(), kept.status.code(), "{kept}");
    assert_same(&plain.output, &kept.output);
    assert!(kept.stat("/summary/pages_out") > 0, "no page went out: {kept}");
    kept
}

/// Runs a case of a C program of `tests/programs`.
fn case(source: &str, case: &str, limit: u64) {
    let Some(bench) = bench(&["cc"]) else { return };
    let program = bench.cc(source).display().to_string();
    compare(&bench.job(&[&program, case]).patience(300), limit);
}

/// In a directory where everybody may write.
pub(crate) fn bench(tools: &[&str]) -> Option<Bench> {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: gates are for x86-64");
        return None;
    }
    let bench = keeper::bench(tools)?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(bench.path(""), open).unwrap();
    Some(bench)
}

/// As [`case`], of what there is only with a gate.
fn case_of_gates(name: &str, limit: u64) {
    // In memory a write ends at once, and what was freed stays in the swap cache for long.
    let Some(bench) = bench(&["cc"]) else { return };
    let program = bench.cc("gates.c").display().to_string();
    let options = ["--memory", &limit.to_string(), "--quiet", "--swap", "ram:256M"];
    let kept = bench.job(&[&program, name]).by("calls").user(USER).paged(&options).end();
    assert_eq!((kept.status.code(), kept.text().as_str()), (Some(0), "ok\n"), "{kept}");
}

#[test]
fn who_filters_its_calls_is_let_go() {
    case_of_gates("filters", 96 * MIB);
}

#[test]
fn a_gate_is_opened_when_memory_is_free() {
    case_of_gates("rests", 32 * MIB);
}

macro_rules! cases {
    ($($name:ident: $source:literal $case:literal $mib:literal;)*) => {$(
        #[test]
        fn $name() {
            case($source, $case, $mib * MIB);
        }
    )*};
}

cases! {
    threads_find_what_they_wrote: "keeper.c" "threads" 32;
    the_first_thread_may_end: "keeper.c" "ends_its_first_thread" 32;
    children_have_what_their_parents_had: "keeper.c" "forks" 64;
    children_come_and_go: "keeper.c" "forks_often" 96;
    children_execute_others: "keeper.c" "children_execute" 32;
    others_are_started: "keeper.c" "starts_others" 32;
    code_is_written: "keeper.c" "writes_code" 16;
    and_so_is_a_child: "gates.c" "filters_in_a_child" 96;
    no_read_is_shorter_than_it_was: "gates.c" "sends_and_receives" 64;
    messages_are_taken_once: "gates.c" "takes_messages" 32;
    the_word_of_a_thread_is_cleared: "gates.c" "ends_a_thread" 32;
    files_take_all: "gates.c" "writes_a_file" 32;
    mappings_stay_whole: "gates.c" "moves_and_protects" 64;
    children_change_their_memory: "gates.c" "changes_in_a_child" 64;
    children_lack_what_is_kept_from_them: "gates.c" "left_out_of_children" 64;
    children_have_its_zeros: "gates.c" "zeros_in_children" 48;
    what_was_dropped_is_no_childs: "gates.c" "drops_before_a_fork" 48;
    guards_are_its_own: "gates.c" "guards_of_its_own" 48;
    children_begin_with_zeros: "mapping_calls.c" "wiped_in_children" 32;
    signals_come: "system_calls.c" "signals" 32;
    structures_are_read_and_written: "system_calls.c" "small_structures" 32;
    daemons_are_paged: "system_calls.c" "become_a_daemon" 32;
}

#[test]
fn sorts_by_busybox() {
    let Some(bench) = bench(&["busybox"]) else { return };
    keeper::random_lines(&bench, 300_000);
    compare(&bench.job(&["busybox", "sort", "input"]), 16 * MIB);
}

#[test]
fn pages_a_static_go_program() {
    let Some(bench) = bench(&["go"]) else { return };
    let program = keeper::go_program(&bench);
    compare(&bench.job(&[program]), 32 * MIB);
}
