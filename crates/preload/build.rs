//! Compiles the one thing stable Rust cannot say: a thread-local variable in the initial-exec model.

fn main() {
    println!("cargo::rerun-if-changed=src/pager_thread.c");
    cc::Build::new().file("src/pager_thread.c").opt_level(2).compile("overspill_pager_thread");
}
