//! The errors of a pool.

use crate::error::FORKED;
use overspill_base::PageNo;

/// Why a page of a pool is not available. Other pages are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Its content could not be read back from swap, or did not verify.
    #[error("page {page} is lost: {why}; discard it to use its number again")]
    Lost {
        /// The page.
        page: PageNo,
        /// The device's error.
        why: String,
    },
    /// Guards hold every page that fits into memory.
    #[error(
        "every one of the {pages} pages that fit into memory is pinned: drop guards, or allow more memory"
    )]
    AllPinned {
        /// Their number.
        pages: usize,
    },
    /// Memory is full, and swap is full or failing.
    #[error("memory is full and nothing can be swapped out: {why}")]
    OutOfSwap {
        /// The last error.
        why: String,
    },
    /// The pool has no page of this number.
    #[error("the pool has no page {page}: its pages are numbered from 0 to {last}")]
    NoSuchPage {
        /// The requested number.
        page: PageNo,
        /// The last page of the pool.
        last: PageNo,
    },
    /// Vectors have used up all their pages.
    #[error("the pool has no {pages} pages left for vectors: drop some, or use larger pages")]
    NoPages {
        /// The number requested.
        pages: usize,
    },
    /// This process was forked by the one that made the pool, which writes to the same slots.
    #[error("{FORKED}")]
    Forked,
    /// The system refused the thread a queue for reading.
    #[error("cannot read a page: the system refuses a queue to the swap device: {why}")]
    Queue {
        /// The system's error.
        why: String,
    },
}
