//! The keys of a run's swap areas.
//!
//! Owns: a page of random keys in a file that the processes of a run map, one key per area.
//! Invariants: the keys are drawn from the kernel, and are nowhere but in this page and on the
//! stacks of threads that seal or open. The page is locked, as far as `ulimit -l` permits, and no
//! part of a core dump; nor are the stacks of the pager's threads.
//! Not here: making the file (`overspill::keys`).
//! Rejected: the session's file, which can be swapped, and the environment.

use overspill_base::PAGE_SIZE;
use overspill_base::shared::{Mapping, Table};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of a key.
const KEY_WORDS: usize = 4;
/// Size of a key in bytes; a cipher may use less.
pub(super) const KEY_BYTES: usize = KEY_WORDS * 8;

/// A page of keys. Clones share it.
#[derive(Clone)]
pub struct Keys(Table<AtomicU64>);

impl fmt::Debug for Keys {
    /// Nothing of the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// Size of their file in bytes.
    pub const FILE_BYTES: usize = PAGE_SIZE;
    /// Number of keys.
    pub const COUNT: usize = PAGE_SIZE / KEY_BYTES;

    /// Draws new keys into `file`, which nobody else has yet. Blocks until the kernel has gathered
    /// enough randomness, early after its start.
    ///
    /// # Errors
    /// Those of mmap.
    pub fn draw(file: impl AsFd) -> Result<Self, Errno> {
        let keys = Self::open(file)?;
        // Requests of up to 256 bytes are never short.
        let mut random = [0; 256];
        for words in keys.0.chunks(random.len() / 8) {
            getrandom(&mut random, GetRandomFlags::empty())?;
            for (word, random) in words.iter().zip(random.as_chunks().0) {
                // The file's descriptor is handed out later, by a system call.
                word.store(u64::from_ne_bytes(*random), Relaxed);
            }
        }
        Ok(keys)
    }

    /// The keys in `file`, which another process has drawn.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let mapping = Arc::new(Mapping::shared(file, Self::FILE_BYTES)?);
        mapping.lock();
        Ok(Self(Table::within(&mapping, 0, Self::FILE_BYTES / 8)))
    }

    /// The key of area `number`.
    pub(super) fn key(&self, number: usize) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        for (n, bytes) in key.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = self.0[number * KEY_WORDS + n].load(Relaxed).to_ne_bytes();
        }
        key
    }
}
