//! What is said of options that do less than they seem to.
//!
//! Not here: what is refused.

use overspill::{Bytes, SwapKind, SwapSpec};

/// Returns a line about a limit that memory ends before; `all` is what there is.
pub(super) fn of_memory(limit: Bytes, all: Option<Bytes>) -> Option<String> {
    let all = all.filter(|all| limit > *all)?;
    Some(format!(
        "a limit of {limit} is more than the {all} of memory there are: nothing is swapped before \
         memory has run out; give at most some {}",
        Bytes(all.0 / 4 * 3)
    ))
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

    #[test]
    fn a_limit_above_the_memory_there_is_is_told() {
        let told = of_memory(Bytes(100 << 30), Some(Bytes(32 << 30))).unwrap();
        assert!(told.contains("100 GiB") && told.contains("the 32 GiB"), "{told}");
        assert!(told.ends_with("at most some 24 GiB"), "{told}");
        assert_eq!(of_memory(Bytes(32 << 30), Some(Bytes(32 << 30))), None);
        assert_eq!(of_memory(Bytes(1 << 40), None), None);
    }

    #[test]
    fn a_swap_size_for_no_file_is_told() {
        let swaps = |specs: &[&str]| specs.iter().map(|s| s.parse().unwrap()).collect::<Vec<_>>();
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
