//! Which processes the limit covers.

use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, MIB};

const LIMIT: u64 = 32 * MIB;

/// A child that prints its peak size, in KiB.
const SCRIPT: &str = "/usr/bin/python3 -c '
b = bytearray(160 << 20)
for i in range(0, len(b), 4096): b[i] = 1
print(*[line.split()[1] for line in open(\"/proc/self/status\") if line.startswith(\"VmHWM\")])
'; echo $LD_PRELOAD $OVERSPILL_SESSION";

fn peak_of_child(ended: &Ended) -> u64 {
    let text = ended.text();
    text.lines().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn children_are_held_to_the_limit_themselves() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let ended = bench.job(&["sh", "-c", SCRIPT]).in_memory(LIMIT);
    assert!(peak_of_child(&ended) <= LIMIT + 24 * MIB, "{ended}");
}

#[test]
fn children_can_be_left_alone() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let options = ["--memory", &LIMIT.to_string(), "--no-children", "--quiet"];
    let ended = bench.job(&["sh", "-c", SCRIPT]).paged(&options).success();
    assert!(peak_of_child(&ended) > 160 * MIB, "{ended}");
    assert_eq!(ended.text().lines().nth(1), Some(""), "the environment is as it was: {ended}");
    assert_eq!(ended.stat("/summary/pages_out"), 0);
}
