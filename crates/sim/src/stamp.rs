//! What a page holds: enough of it to tell whose page it is and how old, at its first bytes.
//!
//! Invariants: a stamp is never zeros, so a page that holds one is not taken for an untouched one.
//! The rest of the page's bytes are never looked at: simulating needs no copies of them.
//! Not here: which stamp is right (`space`).

use overspill_base::shared::PageBuf;

/// Page and version in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// What is on a page nobody has written.
    pub(crate) const ZEROS: Self = Self(0);

    /// The content of `page` after so many writes.
    pub(crate) fn new(page: u32, version: u32) -> Self {
        Self(u64::from(page) << 32 | u64::from(version))
    }

    /// That of a page's bytes. A page never written is marked apart from zeros.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let word =
            |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) == 0 { Self::ZEROS } else { Self(word(8)) }
    }

    /// Leaves it in a page's bytes.
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
