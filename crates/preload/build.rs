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
    cc.file("src/pager_thread.c").opt_level(2);
    // Where system calls can be caught.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        // Cancellation unwinds through it.
        cc.file("src/transfers.c").flag("-fexceptions");
    }
    cc.compile("overspill_pager_thread");
}
