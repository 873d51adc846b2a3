//! What runtimes that collect garbage are told of the limit.
//!
//! Owns: variables that a program is started with, where its user has set none of the kind. Without
//! them a JVM and V8 take what the machine has for theirs, and fill swap with garbage.
//! Invariants: nobody gets less heap than without: what was enough is enough, and a program may
//! need more than its limit, which is what a run is for. What a command line says goes before.
//! Rejected, by measurement (docs/running.md): GOMEMLIMIT, with which Go collects without end what
//! does not fit: five times slower in a quarter of what is alive. Limits of the heap, as
//! `--max-old-space-size`: then a program ends that would go on.
//! Not here: attached programs, which have started.

use overspill::Bytes;

/// As much as makes a machine a server to the JVM.
const JVM_SERVER: Bytes = Bytes(1792 << 20);
/// The collector for small machines, unless another is chosen; a heap that begins small; and the
/// compilers for all machines, whose being named keeps JVMs of 9 to 14 from the limits of a client,
/// a heap of 256 MiB among them. A JVM to come may not know all of them.
const JVM_SMALL: &str = "-XX:+IgnoreUnrecognizedVMOptions -XX:+NeverActAsServerClassMachine \
                         -XX:TieredStopAtLevel=4 -XX:InitialHeapSize=8m";
/// Of the limit, what V8 fills between two collections of its young objects.
const V8_YOUNG_PART: u64 = 64;
/// Its own choice, in MiB.
const V8_YOUNG_MIB: u64 = 16;

/// Returns the variables for a program with such a limit.
pub(super) fn variables(
    limit: Bytes,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    let of_jvm = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"];
    if limit < JVM_SERVER && !of_jvm.into_iter().any(&is_set) {
        told.push(("JAVA_TOOL_OPTIONS", JVM_SMALL.to_owned()));
    }
    let young_mib = ((limit.0 / V8_YOUNG_PART) >> 20).max(1);
    if young_mib < V8_YOUNG_MIB && !is_set("NODE_OPTIONS") {
        told.push(("NODE_OPTIONS", format!("--max-semi-space-size={young_mib}")));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_says_stays() {
        let names = |limit_mib: u64, set: &[&str]| {
            let told = variables(Bytes(limit_mib << 20), |name| set.contains(&name));
            told.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(64, &[]), ["JAVA_TOOL_OPTIONS", "NODE_OPTIONS"]);
        assert_eq!(names(64, &["JDK_JAVA_OPTIONS"]), ["NODE_OPTIONS"]);
        assert_eq!(names(64, &["NODE_OPTIONS"]), ["JAVA_TOOL_OPTIONS"]);
        assert_eq!(names(1024, &[]), ["JAVA_TOOL_OPTIONS"]);
        assert!(names(1792, &[]).is_empty());
    }

    #[test]
    fn the_young_are_a_part_of_the_limit() {
        let node = |mib: u64| variables(Bytes(mib << 20), |_| false).pop().unwrap().1;
        assert_eq!(node(16), "--max-semi-space-size=1");
        assert_eq!(node(512), "--max-semi-space-size=8");
    }
}
