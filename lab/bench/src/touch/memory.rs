//! The memory that is touched, as pages of words.
//!
//! Invariants: any thread may read and write any word at any time. A page is reached only by
//! [`Memory::with`], so that memory whose pages must be requested fits too.
//! Not here: who pages it. Ordinary memory is not paged, or paged by the kernel or by
//! `overspill run`, which the process cannot tell; a region by the library; a pool's pages are
//! requested.

use super::content::WORDS;
use crate::error::BenchError;
use overspill::{PageNo, Pool};
use overspill_base::PAGE_SIZE;
use std::sync::atomic::AtomicU64;

/// Pages of words.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// Memory that is accessed directly.
    Whole(&'a [AtomicU64]),
    /// Memory whose pages are requested.
    Pool(&'a Pool),
}

impl<'a> Memory<'a> {
    /// Returns the whole pages in a range of bytes.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        let Some(aligned) = bytes.get_mut(start..) else { return Self::Whole(&[]) };
        let words = aligned.len() / PAGE_SIZE * WORDS;
        let first = aligned.as_mut_ptr().cast();
        // SAFETY: the words lie inside the slice and are aligned; any bytes are a valid number. The
        // slice is borrowed mutably for 'a, so these bytes have no other user.
        Self::Whole(unsafe { std::slice::from_raw_parts(first, words) })
    }

    /// Runs `work` on the words of a page, which it may change only if it `writes`. Blocks while
    /// the page is brought in.
    ///
    /// # Errors
    /// The errors of the pool.
    pub(crate) fn with<R>(
        &self,
        page: usize,
        writes: bool,
        work: impl FnOnce(&[AtomicU64]) -> R,
    ) -> Result<R, BenchError> {
        match self {
            Self::Whole(words) => Ok(work(&words[page * WORDS..][..WORDS])),
            Self::Pool(pool) if writes => Ok(work(words_of(&mut pool.write(number(page))?))),
            Self::Pool(pool) => Ok(work(read_words(&pool.read(number(page))?))),
        }
    }
}

fn number(page: usize) -> PageNo {
    PageNo(page as u32)
}

fn words_of(page: &mut [u8]) -> &[AtomicU64] {
    // SAFETY: a page of the pool is aligned; any bytes are a valid number, and the guard is the
    // page's only user.
    unsafe { std::slice::from_raw_parts(page.as_mut_ptr().cast(), WORDS) }
}

fn read_words(page: &[u8]) -> &[AtomicU64] {
    // SAFETY: as above; a reader stores nothing through it.
    unsafe { std::slice::from_raw_parts(page.as_ptr().cast(), WORDS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn pages_are_whole_and_aligned() {
        let mut bytes = vec![0u8; 3 * PAGE_SIZE];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        // Three pages if the allocator happens to align to pages, otherwise two.
        let pages = (bytes.len() - start) / PAGE_SIZE;
        let memory = Memory::new(&mut bytes);
        assert!(matches!(memory, Memory::Whole(words) if words.len() == pages * WORDS));
        let last = |words: &[AtomicU64]| words[WORDS - 1].store(u64::MAX, Relaxed);
        memory.with(pages - 1, true, last).unwrap();
        assert_eq!(bytes[start + pages * PAGE_SIZE - 8..][..8], [255; 8]);
        assert!(matches!(Memory::new(&mut []), Memory::Whole([])));
    }
}
