//! Compiles the one thing stable Rust cannot say: thread-local variables in the initial-exec model.
//!
//! And has the dynamic linker initialise the object before all others (`-z initfirst`):
//! constructors of other libraries allocate, and register handlers around fork that must run while
//! the pager still does.

fn main() {
    println!("cargo::rerun-if-changed=src/pager_thread.c");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    cc::Build::new().file("src/pager_thread.c").opt_level(2).compile("overspill_pager_thread");
}
