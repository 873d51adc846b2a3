//! Which kernel this is, and what this process may do on it.
//!
//! Owns: the version's two numbers, the effective capabilities.
//! Not here: what a version can do; each rule has the versions that it differs by.

use crate::alone::skip;

/// A kernel's version: 6.12 is `(6, 12)`.
pub type Version = (u32, u32);

/// The running kernel's version.
///
/// # Panics
/// Its release does not start with two numbers.
pub fn version() -> Version {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().expect("a release in ASCII");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten().expect("two numbers of a release");
    (next(), next())
}

/// Ends the rule on a kernel older than that which has `what`.
pub fn since(first: Version, what: &str) {
    if version() < first {
        skip(&format!("{what} is there from {}.{} on", first.0, first.1));
    }
}

/// `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN`, as bits of a capability set.
pub const CAP_SYS_PTRACE: u32 = 19;
/// See [`CAP_SYS_PTRACE`].
pub const CAP_SYS_ADMIN: u32 = 21;

/// Ends the rule without a capability.
pub fn needs_capability(number: u32, name: &str) {
    if effective() & (1 << number) == 0 {
        skip(&format!("it takes {name}"));
    }
}

fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("CapEff");
    u64::from_str_radix(line.trim(), 16).expect("capabilities in hexadecimal")
}
