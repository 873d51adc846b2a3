//! stress-ng: patterns written and verified by many methods.

use crate::keeper;
use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, MIB};

const LIMIT: u64 = 32 * MIB;

/// Each visits its memory in its own order; all verify it.
const METHODS: [&str; 6] = ["flip", "galpat-0", "inc-nybble", "rand-set", "write64", "zero-one"];

#[test]
fn verifies_what_it_wrote_by_several_methods() {
    let Some(bench) = Bench::with(&["stress-ng"]) else { return };
    for method in METHODS {
        let words = ["stress-ng", "--vm", "1", "--vm-bytes", "128M", "--vm-method", method];
        let bounds = ["--verify", "--timeout", "4", "--no-rand-seed"];
        verify(&bench, &[&words[..], &bounds].concat());
    }
    let words = ["stress-ng", "--vm", "2", "--vm-bytes", "256M", "--vm-method", "modulo-x"];
    verify(&bench, &[&words[..], &["--verify", "--vm-keep", "--timeout", "6"]].concat());
}

fn verify(bench: &Bench, words: &[&str]) {
    let job = bench.job(words).patience(60);
    assert_verified(words, &keeper::kept(&job, LIMIT));
}

fn assert_verified(words: &[&str], ended: &Ended) {
    println!("{words:?}: {} pages out", ended.stat("/summary/pages_out"));
    let log = format!("{}{}", ended.errors, ended.text());
    assert!(log.contains("successful run completed"), "{log}");
    assert!(!log.contains("fail:"), "{log}");
    assert_eq!(ended.stat("/summary/pages_lost"), 0, "{ended}");
}
