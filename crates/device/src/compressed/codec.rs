//! Compresses and restores pages.
//!
//! Owns: the libraries' working memory, one set per queue, so that moving pages allocates nothing:
//! in the preload object it happens in the middle of a fault.
//! Invariants: anything that is not restored to exactly one page is an error, whatever the bytes
//! were.
//! Measured (4000 pages each, best of three rounds, µs to compress / µs to decompress / size; two
//! virtual CPUs, Linux 6.18):
//!
//! ```text
//!                  lz4 (lz4_flex)      lz4 (C)             zstd, level 1        zstd, level 3
//! text             10.8 / 2.3 / 44 %   10.0 / 1.9 / 43 %   20.6 / 7.6 / 31 %    29.4 / 9.1 / 30 %
//! Python heap       4.7 / 1.9 / 32 %    4.4 / 1.6 / 32 %   17.0 / 4.8 / 18 %    15.7 / 4.6 / 18 %
//! program code     11.6 / 2.2 / 51 %    8.1 / 1.7 / 50 %   22.5 / 7.8 / 36 %    27.4 / 9.3 / 36 %
//! log, repetitive   2.6 / 0.7 / 10 %    1.7 / 0.5 / 10 %    7.5 / 3.0 /  7 %     6.9 / 2.8 /  7 %
//! noise             1.5 / 0.2           1.3 / 0.2            4.0 / 0.2            6.6 / 0.3
//! ```
//!
//! So zstd at level 1: higher levels hardly make pages smaller. And lz4 in Rust: without `unsafe`
//! it is within 10 % of C's. We build its other form, which still checks the bounds of what it
//! decodes: reading in order was 1.08 to 1.3 times as fast, random pages of a pool 1.08 (seven
//! rounds each of `overspill-lab touch`).

use crate::error::DeviceError;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use overspill_base::PAGE_SIZE;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zstd_safe::{CCtx, CParameter, DCtx};

/// How pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// LZ4: fast both ways.
    #[default]
    Lz4,
    /// Zstandard at level 1: smaller, at twice to four times the time.
    Zstd,
}

impl Algorithm {
    /// Its name in a swap specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// The level used for `algo=zstd`.
const ZSTD_LEVEL: i32 = 1;

/// Output buffer size that is enough for either library and any page.
pub(super) const OUTPUT_BYTES: usize = PAGE_SIZE + PAGE_SIZE / 8;

/// A page could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// One queue's compressor and decompressor.
pub(super) enum Codec {
    Lz4(CompressTable),
    Zstd(Box<(CCtx<'static>, DCtx<'static>)>),
}

impl Codec {
    /// Allocates all memory it will ever need; `name` is the device it is for.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] with ENOMEM.
    pub(super) fn new(algorithm: Algorithm, name: &str) -> Result<Self, DeviceError> {
        let none = || DeviceError::Queue { name: name.to_owned(), errno: Errno::NOMEM };
        let mut codec = match algorithm {
            Algorithm::Lz4 => Self::Lz4(CompressTable::small()),
            Algorithm::Zstd => {
                let mut compressor = CCtx::try_create().ok_or_else(none)?;
                for parameter in
                    [CParameter::CompressionLevel(ZSTD_LEVEL), CParameter::ContentSizeFlag(false)]
                {
                    compressor.set_parameter(parameter).map_err(|_| none())?;
                }
                Self::Zstd(Box::new((compressor, DCtx::try_create().ok_or_else(none)?)))
            }
        };
        // zstd makes its tables at the first compression, depending on its size.
        codec.compress(&[0; PAGE_SIZE], &mut [0; OUTPUT_BYTES]).ok_or_else(none)?;
        Ok(codec)
    }

    /// Compresses `page` into `out`, which has [`OUTPUT_BYTES`], and returns the length used.
    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Lz4(table) => compress_into_with_table(page, out, table).ok(),
            Self::Zstd(contexts) => contexts.0.compress2(out, page).ok(),
        }
    }

    /// Restores a page from its compressed bytes.
    ///
    /// # Errors
    /// [`Damaged`]; the page is then undefined.
    pub(super) fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Damaged> {
        let restored = match self {
            Self::Lz4(_) => decompress_into(bytes, page).ok(),
            Self::Zstd(contexts) => contexts.1.decompress(page, bytes).ok(),
        };
        if restored == Some(PAGE_SIZE) { Ok(()) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::block::get_maximum_output_size;

    const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    fn codec(algorithm: Algorithm) -> Codec {
        Codec::new(algorithm, "test").unwrap()
    }

    fn noise() -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..PAGE_SIZE).map(|_| next()).collect()
    }

    #[test]
    fn the_worst_page_fits_into_the_output() {
        assert!(get_maximum_output_size(PAGE_SIZE) <= OUTPUT_BYTES);
        assert!(zstd_safe::compress_bound(PAGE_SIZE) <= OUTPUT_BYTES);
    }

    #[test]
    fn pages_come_back() {
        let text = b"swap in user space, ".repeat(PAGE_SIZE / 20 + 1)[..PAGE_SIZE].to_vec();
        for algorithm in BOTH {
            let mut codec = codec(algorithm);
            for page in [&text, &noise(), &vec![7; PAGE_SIZE]] {
                let (mut out, mut back) = ([0; OUTPUT_BYTES], [0; PAGE_SIZE]);
                let len = codec.compress(page, &mut out).unwrap();
                assert_eq!(codec.decompress(&out[..len], &mut back), Ok(()), "{algorithm:?}");
                assert_eq!(&back[..], &page[..]);
            }
        }
    }

    /// Output shorter or longer than a page is as wrong as bytes that cannot be decompressed.
    #[test]
    fn anything_but_a_page_is_damage() {
        for algorithm in BOTH {
            let mut codec = codec(algorithm);
            for len in [0, PAGE_SIZE / 2, PAGE_SIZE + 64] {
                let mut out = [0; OUTPUT_BYTES];
                let len = codec.compress(&vec![7; len], &mut out).unwrap();
                assert_eq!(codec.decompress(&out[..len], &mut [0; PAGE_SIZE]), Err(Damaged));
            }
            assert_eq!(codec.decompress(&noise(), &mut [0; PAGE_SIZE]), Err(Damaged));
            assert_eq!(codec.decompress(&[], &mut [0; PAGE_SIZE]), Err(Damaged));
        }
    }
}
