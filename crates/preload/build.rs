//! Compiles what stable Rust cannot express: thread-local variables in the initial-exec model.
//!
//! Also makes the dynamic linker initialise the object before all others (`-z initfirst`):
//! constructors of other libraries allocate, and register fork handlers that must run while the
//! pager still runs.

fn main() {
    println!("cargo::rerun-if-changed=src/pager_thread.c");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    cc::Build::new().file("src/pager_thread.c").opt_level(2).compile("overspill_pager_thread");
}
