//! The games of `faults.rs`, from bytes that a fuzzer chooses. A short run under `cargo test`;
//! `make fuzz` goes on for as long as one likes.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::chaos::Script;

#[test]
fn no_operations_break_a_promise() {
    bolero::check!().with_max_len(1024).with_arbitrary::<Script>().for_each(Script::play);
}
