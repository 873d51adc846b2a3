//! Guesses what a file or block device holds from its first bytes.
//!
//! Owns: the signatures of content that users want to keep.
//! Invariants: the answer is for a message only; content that is not recognised is not overwritten
//! either.
//! Not here: the swap header itself ([`crate::header`]).

use rustix::io::{Errno, pread, retry_on_intr};
use std::os::fd::AsFd;

/// Enough for btrfs, whose superblock is the last of those below.
const PROBE_BYTES: usize = 68 << 10;

/// Signatures: offset, bytes, owner. Earlier rows win: a partition table or boot sector may precede
/// a file system, and FAT and NTFS end their boot sector like an MBR.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (4086, b"S1SUSPEND", "a hibernation image"),
    (4086, b"SWAP-SPACE", "a swap area of the oldest kind"),
    (8182, b"SWAPSPACE2", "a swap area of another page size"),
    (16374, b"SWAPSPACE2", "a swap area of another page size"),
    (65526, b"SWAPSPACE2", "a swap area of another page size"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (0, b"LABELONE", "an LVM physical volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (510, b"\x55\xaa", "an MBR partition table or boot sector"),
];

/// Names what the first bytes of `fd` look like.
///
/// # Errors
/// The error of pread.
pub(super) fn describe(fd: impl AsFd) -> Result<&'static str, Errno> {
    Ok(content(fd)?.unwrap_or("zeros at its start"))
}

/// Names what the first bytes of `fd` look like, if they are not zeros.
///
/// # Errors
/// The error of pread.
pub(super) fn content(fd: impl AsFd) -> Result<Option<&'static str>, Errno> {
    Ok(recognise(&read_start(fd, PROBE_BYTES)?))
}

/// Reads up to `len` bytes from the start of `fd`; fewer at its end.
///
/// # Errors
/// The error of pread.
pub(super) fn read_start(fd: impl AsFd, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match retry_on_intr(|| pread(&fd, &mut bytes[filled..], filled as u64))? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn recognise(start: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES
        .iter()
        .find(|(at, bytes, _)| start.get(*at..at + bytes.len()) == Some(*bytes))
        .map(|(_, _, name)| *name);
    let zeros = start.iter().all(|&byte| byte == 0);
    found.or_else(|| (!zeros).then_some("data of unknown kind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_within_reach_and_found() {
        for (at, bytes, name) in SIGNATURES {
            let mut start = vec![0; PROBE_BYTES];
            start[*at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(recognise(&start), Some(*name));
        }
    }

    #[test]
    fn short_and_strange_content_is_described_too() {
        assert_eq!(recognise(b""), None);
        assert_eq!(recognise(&[0; 600]), None);
        assert_eq!(recognise(b"my letters"), Some("data of unknown kind"));
    }

    #[test]
    fn a_boot_sector_of_fat_is_fat() {
        let mut start = vec![0; 4096];
        start[510..512].copy_from_slice(b"\x55\xaa");
        start[82..90].copy_from_slice(b"FAT32   ");
        assert_eq!(recognise(&start), Some("a FAT file system"));
    }
}
