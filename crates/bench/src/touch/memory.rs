//! The memory that is touched, as pages of words.
//!
//! Invariants: any thread may read and write any word at any time. A page is reached by
//! [`Memory::with`] only, so that memory whose pages have to be asked for fits in.
//! Not here: who pages it. Ordinary memory is paged by nobody, by the kernel, or by `overspill run`,
//! which the process cannot tell; a region by the library.

use super::content::WORDS;
use overspill_base::PAGE_SIZE;
use std::sync::atomic::AtomicU64;

/// The whole pages in a range of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a>(&'a [AtomicU64]);

impl<'a> Memory<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        let Some(aligned) = bytes.get_mut(start..) else { return Self(&[]) };
        let words = aligned.len() / PAGE_SIZE * WORDS;
        let first = aligned.as_mut_ptr().cast();
        // SAFETY: the words lie inside the slice and are aligned as pages are; any bytes are a
        // number. The slice is borrowed mutably for 'a, so nobody sees these bytes otherwise.
        Self(unsafe { std::slice::from_raw_parts(first, words) })
    }

    /// Does `work` on the words of a page. Blocks while the page is brought.
    pub(crate) fn with<R>(&self, page: usize, work: impl FnOnce(&[AtomicU64]) -> R) -> R {
        work(&self.0[page * WORDS..][..WORDS])
    }
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
        assert_eq!(memory.0.len(), pages * WORDS);
        memory.with(pages - 1, |words| words[WORDS - 1].store(u64::MAX, Relaxed));
        assert_eq!(bytes[start + pages * PAGE_SIZE - 8..][..8], [255; 8]);
        assert_eq!(Memory::new(&mut []).0.len(), 0);
    }
}
