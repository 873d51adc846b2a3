//! Programs that are paged where no userfaultfd may be had: touches of what is out are signals.

use crate::gates::{USER, bench, compare_with};
use crate::keeper;
use overspill_programs::job::{Job, MIB};
use std::path::Path;
use std::process::Command;

fn compare(job: &Job, limit: u64) {
    compare_with(job, &job.clone().by("touches").user(USER), limit);
}

macro_rules! cases {
    ($($name:ident: $source:literal $case:literal $mib:literal;)*) => {$(
        #[test]
        fn $name() {
            let Some(bench) = bench(&["cc"]) else { return };
            let program = bench.cc($source).display().to_string();
            compare(&bench.job(&[&program, $case]).patience(300), $mib * MIB);
        }
    )*};
}

cases! {
    threads_find_what_they_wrote: "keeper.c" "threads" 32;
    children_have_what_their_parents_had: "keeper.c" "forks" 64;
    children_come_and_go: "keeper.c" "forks_often" 96;
    children_execute_others: "keeper.c" "children_execute" 32;
    code_is_written: "keeper.c" "writes_code" 16;
    children_that_filter_are_let_go: "gates.c" "filters_in_a_child" 96;
    no_read_is_shorter_than_it_was: "gates.c" "sends_and_receives" 64;
    children_lack_what_is_kept_from_them: "gates.c" "left_out_of_children" 64;
    children_have_its_zeros: "gates.c" "zeros_in_children" 48;
    what_was_dropped_is_no_childs: "gates.c" "drops_before_a_fork" 48;
    guards_are_its_own: "gates.c" "guards_of_its_own" 48;
    children_begin_with_zeros: "mapping_calls.c" "wiped_in_children" 32;
    ends_lie_within_pages: "gates.c" "ends_within_pages" 16;
    mappings_stay_whole: "gates.c" "moves_and_protects" 64;
    children_change_their_memory: "gates.c" "changes_in_a_child" 64;
    signals_come: "system_calls.c" "signals" 32;
    daemons_are_paged: "system_calls.c" "become_a_daemon" 32;
}

/// It gives memory back, maps over what it has reserved, and meets addresses that lead nowhere.
#[test]
fn pages_a_static_go_program() {
    let Some(bench) = bench(&["go"]) else { return };
    compare(&bench.job(&[keeper::go_program(&bench)]), 32 * MIB);
}

/// A directory of the tests that has what containers have.
const CONTAINER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/container");

/// Has a run started with Docker's default profile, as an ordinary user; `None`, with the reason,
/// where that cannot be.
fn contained(job: &Job) -> Option<Job> {
    let script = Path::new(CONTAINER).join("docker_seccomp.py");
    let words = ["python3".into(), script.into(), "--uid".into(), USER.to_string().into()];
    let profile = Path::new(CONTAINER).join("default.json").into_os_string();
    let words: Vec<_> = words.into_iter().chain([profile]).collect();
    let tried = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    match tried {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            println!("skipped: Docker's profile cannot be used: {why}");
            return None;
        }
        Err(why) => {
            println!("skipped: python3: {why}");
            return None;
        }
    }
    Some(job.clone().under(&words))
}

/// What is best there is chosen: nothing is said of a way.
#[test]
fn containers_page_as_they_are() {
    let Some(bench) = bench(&["cc", "python3"]) else { return };
    let program = bench.cc("keeper.c").display().to_string();
    keeper::random_lines(&bench, 300_000);
    for (words, mib) in [
        (vec![program.as_str(), "threads"], 40),
        (vec![program.as_str(), "forks"], 64),
        (vec!["sort", "input"], 16),
    ] {
        let job = bench.job(&words).patience(300);
        let Some(kept) = contained(&job) else { return };
        compare_with(&job, &kept, mib * MIB);
    }
}
