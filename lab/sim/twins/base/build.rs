//! Chooses virtual time for these sources, and for this package alone.

fn main() {
    println!("cargo:rustc-cfg=sim");
}
