//! Content of a page during a measurement, which lets every byte read be checked.
//!
//! ```text
//! word 0     page number << 32 | version: the last write of all
//! word n     page number << 32 | version of the last write to this word
//! ```
//!
//! Invariants: a page's version is stored outside the page and changes under its lock, so the next
//! access to a page notices if swap returned an older version, or another page's content.
//! Not here: which word is accessed.

use overspill_base::{PAGE_SIZE, PageNo};

/// Words of a page.
pub(crate) const WORDS: usize = PAGE_SIZE / size_of::<u64>();

const FIRST_VERSION: u32 = 1;

fn word(page: PageNo, version: u32) -> u64 {
    u64::from(page.0) << 32 | u64::from(version)
}

fn load(content: &[u8], at: usize) -> u64 {
    let bytes = content[at * 8..][..8].try_into().expect("eight bytes");
    u64::from_ne_bytes(bytes)
}

fn store(content: &mut [u8], at: usize, value: u64) {
    content[at * 8..][..8].copy_from_slice(&value.to_ne_bytes());
}

/// Writes all of a page for the first time; returns its version.
pub(crate) fn begin(content: &mut [u8], page: PageNo) -> u32 {
    (0..WORDS).for_each(|at| store(content, at, word(page, FIRST_VERSION)));
    FIRST_VERSION
}

/// Reads word `at` of a page that should be at `version`.
///
/// # Errors
/// Describes what is wrong with it.
pub(crate) fn read(content: &[u8], page: PageNo, version: u32, at: usize) -> Result<(), String> {
    let (last, read) = (load(content, 0), load(content, at));
    let right = last == word(page, version)
        && read >> 32 == u64::from(page.0)
        && (FIRST_VERSION..=version).contains(&(read as u32));
    if right {
        return Ok(());
    }
    Err(format!("page {page} at version {version} reads as {last:#x}, its word {at} as {read:#x}"))
}

/// Changes word `at`; returns the page's new version.
pub(crate) fn write(content: &mut [u8], page: PageNo, version: u32, at: usize) -> u32 {
    let next = version + 1;
    store(content, at, word(page, next));
    store(content, 0, word(page, next));
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_foreign_page_is_seen() {
        let page = PageNo(3);
        let mut content = [0; PAGE_SIZE];
        let first = begin(&mut content, page);
        assert_eq!(read(&content, page, first, 511), Ok(()));
        let old = content;
        let second = write(&mut content, page, first, 7);
        assert_eq!(read(&content, page, second, 7), Ok(()));
        assert!(read(&old, page, second, 500).is_err(), "older than it left");
        assert!(read(&content, PageNo(4), second, 7).is_err(), "another page");
        store(&mut content, 9, word(page, second + 1));
        assert!(read(&content, page, second, 9).is_err(), "from the future");
    }
}
