//! Which memory and programs of a run were outside its limit, and why.
//!
//! Owns: the reasons, as bits of the session's verdict, and their wording. Processes of the run set
//! them (`preload`); `overspill run` reports them.
//! Not here: the amount, which is counted (`outside_kib`).

/// Initialised and uninitialised static variables.
pub const STATIC_DATA: u32 = 1 << 8;
/// Memory from `brk` or `sbrk`.
pub const BRK: u32 = 1 << 9;
/// Shared memory.
pub const SHARED: u32 = 1 << 10;
/// Executable anonymous memory.
pub const EXECUTABLE: u32 = 1 << 11;
/// Huge pages.
pub const HUGE: u32 = 1 << 12;
/// The main thread's stack.
pub const STACK: u32 = 1 << 13;
/// A statically linked program was started.
pub const STATIC_PROGRAM: u32 = 1 << 16;
/// A program was started that has more rights than its user.
pub const PRIVILEGED_PROGRAM: u32 = 1 << 17;
/// A program for another libc, or a 32-bit one, was started.
pub const FOREIGN_PROGRAM: u32 = 1 << 18;
/// A program was started without the environment variables that make it part of the run.
pub const CLEARED_ENVIRONMENT: u32 = 1 << 19;
/// A Go program was started.
pub const GO_PROGRAM: u32 = 1 << 20;

/// Memory of processes of the run.
const MEMORY: [(u32, &str); 6] = [
    (STATIC_DATA, "static variables (.bss, .data)"),
    (BRK, "memory from brk"),
    (SHARED, "shared memory"),
    (EXECUTABLE, "executable memory"),
    (HUGE, "huge pages"),
    (STACK, "the main stack"),
];

/// Programs that are not part of the run.
const PROGRAMS: [(u32, &str); 5] = [
    (STATIC_PROGRAM, "a statically linked program"),
    (PRIVILEGED_PROGRAM, "a setuid program"),
    (FOREIGN_PROGRAM, "a program for another libc"),
    (CLEARED_ENVIRONMENT, "a program with a cleared environment"),
    (GO_PROGRAM, "a Go program"),
];

fn named(verdict: u32, names: &[(u32, &'static str)]) -> Vec<&'static str> {
    let set = names.iter().filter(|(bit, _)| verdict & bit != 0);
    set.map(|(_, name)| *name).collect()
}

/// The kinds of memory outside the limit that a verdict contains.
pub fn memory(verdict: u32) -> Vec<&'static str> {
    named(verdict, &MEMORY)
}

/// The kinds of programs without a limit that a verdict contains.
pub fn programs(verdict: u32) -> Vec<&'static str> {
    named(verdict, &PROGRAMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_told_apart() {
        assert!(memory(0b11).is_empty() && programs(0b11).is_empty());
        assert_eq!(memory(BRK | STATIC_PROGRAM), ["memory from brk"]);
        assert_eq!(programs(BRK | STATIC_PROGRAM), ["a statically linked program"]);
    }
}
