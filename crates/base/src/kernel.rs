//! Which kernel this is, for the few things that no probe can tell.

/// The first kernel whose UFFDIO_MOVE moves pages as it should. What is wrong in 6.8 to 6.11 may
/// end the kernel.
pub const MOVES_SINCE: [u32; 2] = [6, 12];

/// True if this kernel is of that version or newer.
pub fn is_at_least(version: [u32; 2]) -> bool {
    version_of(&rustix::system::uname().release().to_string_lossy()) >= version
}

/// The first two numbers: `6.12.117-amd64`.
fn version_of(release: &str) -> [u32; 2] {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (release, version) in [
            ("6.12.117-amd64", [6, 12]),
            ("7.3-rc1", [7, 3]),
            ("6.8.0-31-generic", [6, 8]),
            ("x", [0, 0]),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
        assert!(is_at_least([3, 0]) && !is_at_least([99, 0]));
        assert!([6, 8] < MOVES_SINCE && [7, 0] > MOVES_SINCE);
    }
}
