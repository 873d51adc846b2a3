//! Names the shared library for the loader: the number changes when the interface does.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboverspill.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
