//! Why a page of a pool cannot be had.

use overspill_base::PageNo;

/// Why a page of a pool cannot be had. Nothing else is affected by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Its content could not be read back from swap, or was not what had been written.
    #[error("page {page} is lost: {why}; discard it to use its number again")]
    Lost {
        /// The page.
        page: PageNo,
        /// The device's words.
        why: String,
    },
    /// Guards hold every page that fits into memory.
    #[error(
        "every one of the {pages} pages that fit into memory is pinned: drop guards, or allow more memory"
    )]
    AllPinned {
        /// How many those are.
        pages: usize,
    },
    /// Memory is full, and so is swap, or it fails.
    #[error("memory is full and nothing can be swapped out: {why}")]
    OutOfSwap {
        /// What went wrong last.
        why: String,
    },
    /// The pool has no page of this number.
    #[error("the pool has no page {page}: its pages are numbered from 0 to {last}")]
    NoSuchPage {
        /// The number.
        page: PageNo,
        /// The last there is.
        last: PageNo,
    },
    /// Vectors have taken all the pages they may.
    #[error("the pool has no {pages} pages left for vectors: drop some, or use larger pages")]
    NoPages {
        /// How many were wanted.
        pages: usize,
    },
    /// The system refused a thread what it needs for reading.
    #[error("cannot read a page: the system refuses a queue to the swap device: {why}")]
    Queue {
        /// The system's words.
        why: String,
    },
}
