//! The episodes of `faults.rs`, from bytes that a fuzzer chooses. A short run under `cargo test`;
//! `make fuzz` runs for any time.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use arbitrary::{Arbitrary, Unstructured};
use common::chaos::Script;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn no_operations_break_a_promise() {
    static PLAYED: AtomicUsize = AtomicUsize::new(0);
    bolero::check!().with_max_len(1024).for_each(|bytes: &[u8]| {
        let Ok(script) = Script::arbitrary(&mut Unstructured::new(bytes)) else { return };
        script.play();
        PLAYED.fetch_add(1, Relaxed);
    });
    let played = PLAYED.load(Relaxed);
    assert!(played > 5, "only {played} episodes were played");
    println!("{played} episodes");
}
