//! What `late_calls.c` checks: calls that name more memory than the limit, in each way. No program
//! is ended for one.

use crate::gates;
use overspill_programs::job::{Ended, MIB};

/// As root, who may lock what there is.
fn ended(way: &'static str, case: &str) -> Option<Ended> {
    let bench = gates::bench(&["cc"])?;
    let program = bench.cc("late_calls.c");
    let job = bench.job(&[program.as_os_str(), case.as_ref()]).by(way).patience(300);
    assert_eq!(job.plain().success().text(), "ok\n");
    let limit = (32 * MIB).to_string();
    let ended = job.paged(&["--memory", &limit, "--swap", "compressed:1G", "--quiet"]).end();
    assert_eq!((ended.status.code(), ended.text().as_str()), (Some(0), "ok\n"), "{ended}");
    assert!(ended.stat("/summary/pages_out") > 0, "no page went out: {ended}");
    Some(ended)
}

macro_rules! in_each_way {
    ($($case:ident)*) => {
        mod faults { $(#[test] fn $case() { super::ended("faults", stringify!($case)); })* }
        mod calls { $(#[test] fn $case() { super::ended("calls", stringify!($case)); })* }
        mod touches { $(#[test] fn $case() { super::ended("touches", stringify!($case)); })* }
    };
}

in_each_way! { locks_all populates names_much pages_itself }
