//! What is said of options that do less than they seem to.
//!
//! Not here: what is refused.

use overspill::memory::{self, MemoryLimit};
use overspill::{Bytes, SwapKind, SwapSpec};

/// The part of all memory that a limit leaves to Overspill, and to code and files, at least.
const LEFT_PART: u64 = 10;
/// The part of it that is a good limit, of four.
const GOOD_PARTS: u64 = 3;

/// A good limit where there is so much.
fn good_of(all: Bytes) -> Bytes {
    Bytes(all.0 / 4 * GOOD_PARTS)
}

/// The limit of a run for which none is given, and a line about that: a part of what is free, so
/// that the rest of the machine, or of the container, goes on as it did.
pub(super) fn usual_limit() -> (MemoryLimit, Option<String>) {
    let free = memory::free_here();
    let limit = Bytes((good_of(free).0 >> 20) << 20);
    let line = format!(
        "no limit is given: {limit}, three quarters of the {free} that are free here; --memory M \
         gives another"
    );
    (MemoryLimit::Bytes(limit), Some(line))
}

/// Returns a line about a limit, and swap in memory, for which there is not enough of that; `all`
/// is what there is.
pub(super) fn of_memory(limit: Bytes, swaps: &[SwapSpec], all: Bytes) -> Option<String> {
    let good = good_of(all);
    let in_memory = Bytes(swaps.iter().map(in_memory_bytes).fold(0, u64::saturating_add));
    if limit > all {
        return Some(format!(
            "a limit of {limit} is more than the {all} of memory there are: nothing is swapped \
             before memory has run out; give at most some {good}"
        ));
    }
    if limit.0 > all.0 - all.0 / LEFT_PART {
        return Some(format!(
            "a limit of {limit} leaves too little of the {all} of memory there are to Overspill \
             itself, and to code and files: the kernel may end the run; give at most some {good}"
        ));
    }
    (limit.0.saturating_add(in_memory.0) > all.0).then(|| {
        let left = Bytes(good.0.saturating_sub(limit.0));
        format!(
            "a limit of {limit} and {in_memory} of swap in memory, if that is filled with what does \
             not compress, are more than the {all} of memory there are: the kernel may end the \
             run; swap to a file, or give that swap at most some {left}"
        )
    })
}

/// The most memory that a place takes.
fn in_memory_bytes(swap: &SwapSpec) -> u64 {
    match swap.kind {
        SwapKind::Ram { size } | SwapKind::Compressed { size } => size.0,
        _ => 0,
    }
}

/// Returns a line about a `--swap-size` that no place heeds.
pub(super) fn of_swap_size(size: Option<Bytes>, swaps: &[SwapSpec]) -> Option<String> {
    let heeds =
        |kind: &SwapKind| matches!(kind, SwapKind::Default | SwapKind::File { size: None, .. });
    let is_heeded = swaps.is_empty() || swaps.iter().any(|swap| heeds(&swap.kind));
    let size = size.filter(|_| !is_heeded)?;
    Some(format!("--swap-size {size} changes nothing: it is for swap files without a SIZE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swaps(specs: &[&str]) -> Vec<SwapSpec> {
        specs.iter().map(|spec| spec.parse().unwrap()).collect()
    }

    #[test]
    fn a_limit_above_the_memory_there_is_is_told() {
        let told = of_memory(Bytes(100 << 30), &[], Bytes(32 << 30)).unwrap();
        assert!(told.contains("100 GiB") && told.contains("the 32 GiB"), "{told}");
        assert!(told.ends_with("at most some 24 GiB"), "{told}");
        let told = of_memory(Bytes(256 << 20), &[], Bytes(256 << 20)).unwrap();
        assert!(told.contains("too little") && told.ends_with("at most some 192 MiB"), "{told}");
        assert_eq!(of_memory(Bytes(230 << 20), &[], Bytes(256 << 20)), None);
    }

    #[test]
    fn swap_in_memory_takes_memory() {
        let told = |specs: &[&str]| of_memory(Bytes(128 << 20), &swaps(specs), Bytes(256 << 20));
        // More than can be added up.
        let endless = ["ram:9223372036854775807"; 3];
        for many in [&["ram:1G"][..], &["compressed:100M", "ram:30M"], &endless] {
            let told = told(many).unwrap();
            assert!(told.contains("of swap in memory") && told.ends_with("64 MiB"), "{told}");
        }
        assert_eq!(told(&["compressed:128M", "file:/var/tmp:1T"]), None);
    }

    #[test]
    fn a_swap_size_for_no_file_is_told() {
        let size = Some(Bytes(10 << 20));
        for heeded in [&[][..], &["ram:1M", "file:/var/tmp"]] {
            assert_eq!(of_swap_size(size, &swaps(heeded)), None, "{heeded:?}");
        }
        for unheeded in [&["ram:1M"][..], &["file:/var/tmp:1G", "compressed:1M"]] {
            let told = of_swap_size(size, &swaps(unheeded)).unwrap();
            assert!(told.starts_with("--swap-size 10 MiB changes nothing"), "{told}");
        }
        assert_eq!(of_swap_size(None, &swaps(&["ram:1M"])), None);
    }
}
