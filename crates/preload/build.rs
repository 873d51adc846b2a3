//! Compiles what stable Rust cannot express: thread-local variables in the initial-exec model.
//!
//! Also makes the dynamic linker initialise the object before all others (`-z initfirst`):
//! constructors of other libraries allocate, and register fork handlers that must run while the
//! pager still runs.

fn main() {
    println!("cargo::rerun-if-changed=src/pager_thread.c");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo::rerun-if-changed=src/transfers.c");
    let mut cc = cc::Build::new();
    // Cancellation unwinds through the second.
    cc.files(["src/pager_thread.c", "src/transfers.c"]).flag("-fexceptions").opt_level(2);
    cc.compile("overspill_pager_thread");
}
