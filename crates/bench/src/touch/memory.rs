//! The memory that is touched, as pages of words.
//!
//! Invariants: any thread may read and write any word at any time. A page is reached by
//! [`Memory::with`] only, so that memory whose pages have to be asked for fits in.
//! Not here: who pages it. Ordinary memory is paged by nobody, by the kernel, or by `overspill
//! run`, which the process cannot tell; a region by the library; a pool's pages are asked for.

use super::content::WORDS;
use crate::error::BenchError;
use overspill::{PageNo, Pool};
use overspill_base::PAGE_SIZE;
use std::sync::atomic::AtomicU64;

/// Pages of words.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// At addresses, touched as they are.
    Whole(&'a [AtomicU64]),
    /// Asked for.
    Pool(&'a Pool),
}

impl<'a> Memory<'a> {
    /// The whole pages in a range of bytes.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        let Some(aligned) = bytes.get_mut(start..) else { return Self::Whole(&[]) };
        let words = aligned.len() / PAGE_SIZE * WORDS;
        let first = aligned.as_mut_ptr().cast();
        // SAFETY: the words lie inside the slice and are aligned as pages are; any bytes are a
        // number. The slice is borrowed mutably for 'a, so nobody sees these bytes otherwise.
        Self::Whole(unsafe { std::slice::from_raw_parts(first, words) })
    }

    /// Does `work` on the words of a page, which it changes only if it `writes`. Blocks while the
    /// page is brought.
    ///
    /// # Errors
    /// What the pool says.
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
    // SAFETY: a page of the pool is as aligned as pages are; any bytes are a number, and the guard
    // is the page's only user.
    unsafe { std::slice::from_raw_parts(page.as_mut_ptr().cast(), WORDS) }
}

fn read_words(page: &[u8]) -> &[AtomicU64] {
    // SAFETY: as above; who only reads stores nothing through it.
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
        // Three if the allocator happens to align as pages are, or two.
        let pages = (bytes.len() - start) / PAGE_SIZE;
        let memory = Memory::new(&mut bytes);
        assert!(matches!(memory, Memory::Whole(words) if words.len() == pages * WORDS));
        let last = |words: &[AtomicU64]| words[WORDS - 1].store(u64::MAX, Relaxed);
        memory.with(pages - 1, true, last).unwrap();
        assert_eq!(bytes[start + pages * PAGE_SIZE - 8..][..8], [255; 8]);
        assert!(matches!(Memory::new(&mut []), Memory::Whole([])));
    }
}
