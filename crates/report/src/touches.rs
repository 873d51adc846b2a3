//! The file of `overspill run --touches`: which pages a program touched, in order.
//!
//! Owns: the file: one zstd frame with a heading and, for each touch, the difference between its
//! page's number and the one before, zigzag in LEB128.
//! Invariants: pages are numbered in the order of their first touch; a file in which they are not
//! is refused.
//! Not here: touches that the recording did not see, of pages that were in its memory.

use overspill_base::PageNo;
use zstd_safe::{CONTENTSIZE_UNKNOWN, get_frame_content_size};

const HEADING: &[u8] = b"overspill touches 1\n";
/// Small files matter more than a second.
const LEVEL: i32 = 12;
/// A trace of the length that the figures allow takes less.
const BYTES_MAX: u64 = 4 << 30;

/// Returns the content of a file with touches of the pages with these numbers.
pub fn bytes_of(touched: &[u32]) -> Vec<u8> {
    let mut plain = HEADING.to_vec();
    let mut before = 0;
    for &page in touched {
        push(&mut plain, i64::from(page) - before);
        before = i64::from(page);
    }
    let mut bytes = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    zstd_safe::compress(&mut bytes, &plain, LEVEL).expect("the bound suffices");
    bytes
}

fn push(plain: &mut Vec<u8>, difference: i64) {
    let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
    while rest >= 0x80 {
        plain.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    plain.push(rest as u8);
}

/// Returns the pages touched, in order; none if these are no such bytes.
pub fn parse(bytes: &[u8]) -> Option<Vec<PageNo>> {
    let size = get_frame_content_size(bytes).ok()??;
    if size == CONTENTSIZE_UNKNOWN || size > BYTES_MAX {
        return None;
    }
    let mut plain = Vec::with_capacity(size as usize);
    zstd_safe::decompress(&mut plain, bytes).ok()?;
    let (mut rest, mut page, mut pages) = (plain.strip_prefix(HEADING)?, 0i64, 0i64);
    let mut touches = Vec::new();
    while !rest.is_empty() {
        page += pull(&mut rest)?;
        if !(0..=pages).contains(&page) {
            return None;
        }
        pages = pages.max(page + 1);
        touches.push(PageNo(u32::try_from(page).ok()?));
    }
    (!touches.is_empty()).then_some(touches)
}

fn pull(rest: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..35).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(touches: Option<Vec<PageNo>>) -> Option<Vec<u32>> {
        touches.map(|touches| touches.into_iter().map(|page| page.0).collect())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(draws in prop::collection::vec(any::<u32>(), 1..200)) {
            let mut pages = 0;
            let touched: Vec<u32> = draws.iter().map(|draw| {
                let page = draw % (pages + 1);
                pages = pages.max(page + 1);
                page
            }).collect();
            let bytes = bytes_of(&touched);
            prop_assert_eq!(numbers(parse(&bytes)), Some(touched));
            prop_assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(parse(&bytes), None);
        }
    }

    #[test]
    fn pages_must_be_numbered_as_they_come() {
        assert_eq!(parse(&bytes_of(&[0, 2])), None);
        assert_eq!(parse(&bytes_of(&[])), None);
    }
}
