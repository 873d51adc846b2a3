//! Content of a simulated page: its number and version, in its first bytes.
//!
//! Invariants: a stamp is never all zeros, so a page that holds one is not taken for an untouched
//! one. The rest of the page's bytes are never read: the simulation needs no copies of them.
//! Not here: which stamp is right (`space`).

use overspill_base::shared::PageBuf;

/// Page and version in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// The content of a page that was never written.
    pub(crate) const ZEROS: Self = Self(0);

    /// Returns the stamp of `page` after `version` writes.
    pub(crate) fn new(page: u32, version: u32) -> Self {
        Self(u64::from(page) << 32 | u64::from(version))
    }

    /// Reads the stamp from a page's bytes. A written page is marked, and so differs from zeros.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let word =
            |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) == 0 { Self::ZEROS } else { Self(word(8)) }
    }

    /// Writes the stamp to a page's bytes.
    pub(crate) fn put(self, page: &mut PageBuf) {
        let mark = u64::from(self != Self::ZEROS);
        page[..8].copy_from_slice(&mark.to_ne_bytes());
        page[8..16].copy_from_slice(&self.0.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::shared::PageArena;

    #[test]
    fn stamps_are_read_as_they_were_put() {
        let arena = PageArena::new(1).unwrap();
        // SAFETY: the only handle to the arena's page.
        let mut page = unsafe { arena.page(0) };
        assert_eq!(Stamp::of(&page), Stamp::ZEROS);
        for stamp in [Stamp::new(0, 1), Stamp::new(7, 3), Stamp::ZEROS] {
            stamp.put(&mut page);
            assert_eq!(Stamp::of(&page), stamp);
        }
    }
}
