//! What `memory_calls.c` checks: every call that hands out, changes and takes away memory.

use crate::keeper;
use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;

/// A quarter of what each case fills.
pub(crate) const LIMIT: u64 = 32 * MIB;

/// Runs one case of a C program, plain and paged. A fault takes 0.1 ms on most disks and 2 ms on
/// some: the patience is only for hangs.
pub(crate) fn run_case(bench: &Bench, source: &str, case: &str) {
    let program = bench.cc(source);
    let job = bench.job(&[program.as_os_str(), case.as_ref()]).patience(400);
    assert_eq!(job.plain().success().text(), "ok\n");
    let kept = keeper::kept(&job, LIMIT);
    assert_eq!(kept.text(), "ok\n", "{kept}");
}

/// A test for each case of a C program, so that one failure does not hide another.
macro_rules! cases {
    ($source:literal: $($case:ident)*) => {$(
        #[test]
        fn $case() {
            let Some(bench) = overspill_programs::bench::Bench::with(&["cc"]) else { return };
            $crate::memory_calls::run_case(&bench, $source, stringify!($case));
        }
    )*};
}
pub(crate) use cases;

cases! { "memory_calls.c":
    dontneed lazily_free moves grow_and_shrink reallocate protect reserve_and_commit map_over
    unmap_the_middle lock advise page_out coroutine
}
