//! The swap header that mkswap writes into the first page of an area.
//!
//! Owns: the layout of `SWAPSPACE2`, read in either byte order, written in this machine's.
//! Invariants: a [`SwapHeader`] that was read has at least one usable page, and its bad pages are
//! distinct, none of them the header, all within the area.
//! Not here: whether the device is as long as the header says, and who may use it
//! ([`crate::file`]).
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1024 | boot blocks, left alone |
//! | 1024 | 4 | version, 1 |
//! | 1028 | 4 | last page: the highest usable page number |
//! | 1032 | 4 | number of bad pages |
//! | 1036 | 16 | UUID |
//! | 1052 | 16 | label |
//! | 1536 | 4 each | bad pages |
//! | 4086 | 10 | `SWAPSPACE2` |

use overspill_base::{PAGE_SIZE, Slot};

/// Maximum number of bad pages in a header.
pub const MAX_BAD_PAGES: usize = (MAGIC_AT - BAD_PAGES_AT) / 4;

const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const BAD_COUNT_AT: usize = 1032;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const BAD_PAGES_AT: usize = 1536;
const MAGIC_AT: usize = PAGE_SIZE - MAGIC.len();
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const VERSION: u32 = 1;
/// Size of a UUID, and maximum size of a label, in bytes.
pub const ID_LEN: usize = 16;

/// The content of a swap header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapHeader {
    /// The highest usable page of the area; the header is page 0.
    pub last_page: u32,
    /// Pages that must not be used.
    pub bad_pages: Vec<Slot>,
    /// The area's UUID, zeros if it has none.
    pub uuid: [u8; ID_LEN],
    /// The volume label; bytes that are not UTF-8 are replaced.
    pub label: String,
}

/// Why a page is not a swap header, or not a valid one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a swap header at all.
    #[error("it does not end in SWAPSPACE2")]
    NoMagic,
    /// An unsupported version.
    #[error("its version is {0}, not 1")]
    Version(u32),
    /// There are no pages besides the header.
    #[error("it describes an empty area")]
    Empty,
    /// More bad pages than the header has room for.
    #[error("it lists {0} bad pages, at most {MAX_BAD_PAGES} are possible")]
    TooManyBad(u32),
    /// A bad page that is the header or outside the area.
    #[error("it lists page {page} as bad, outside of 1..={last_page}")]
    BadPageOutside {
        /// The page listed.
        page: u32,
        /// The last page of the area.
        last_page: u32,
    },
    /// A bad page listed twice.
    #[error("it lists page {0} as bad twice")]
    BadPageTwice(u32),
    /// No usable pages are left.
    #[error("it lists every page as bad")]
    AllBad,
    /// The device is shorter than the area.
    #[error("it describes pages up to {last_page}, and the device has {pages} pages")]
    PastEnd {
        /// The last page of the area.
        last_page: u32,
        /// Number of pages of the device.
        pages: u64,
    },
    /// Only bare disks can have bad pages.
    #[error("it lists bad pages, which a regular file cannot have")]
    BadPagesInFile,
}

impl SwapHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`HeaderError::NoMagic`] for a page that is not a header, the others for an invalid one.
    pub fn parse(page: &[u8; PAGE_SIZE]) -> Result<Self, HeaderError> {
        if page[MAGIC_AT..] != MAGIC[..] {
            return Err(HeaderError::NoMagic);
        }
        let read = byte_order(page)?;
        let last_page = read(page, LAST_PAGE_AT);
        if last_page == 0 {
            return Err(HeaderError::Empty);
        }
        Ok(Self {
            last_page,
            bad_pages: bad_pages(page, read, last_page)?,
            uuid: id_at(page, UUID_AT),
            label: label(&id_at(page, LABEL_AT)),
        })
    }

    /// Number of slots of the area, including the header's. One that 32 bits cannot count is left
    /// out.
    pub fn slots(&self) -> u32 {
        self.last_page.saturating_add(1)
    }

    /// Writes the header into `page`, leaving the boot blocks alone, in this machine's byte order.
    ///
    /// # Panics
    /// If the label is longer than 16 bytes or there are more than [`MAX_BAD_PAGES`].
    pub fn write_to(&self, page: &mut [u8; PAGE_SIZE]) {
        assert!(self.label.len() <= ID_LEN, "label of {} bytes", self.label.len());
        assert!(self.bad_pages.len() <= MAX_BAD_PAGES, "{} bad pages", self.bad_pages.len());
        page[VERSION_AT..].fill(0);
        let mut put = |at: usize, value: u32| {
            page[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(VERSION_AT, VERSION);
        put(LAST_PAGE_AT, self.last_page);
        put(BAD_COUNT_AT, self.bad_pages.len() as u32);
        for (index, bad) in self.bad_pages.iter().enumerate() {
            put(BAD_PAGES_AT + index * 4, bad.0);
        }
        page[UUID_AT..UUID_AT + ID_LEN].copy_from_slice(&self.uuid);
        page[LABEL_AT..LABEL_AT + self.label.len()].copy_from_slice(self.label.as_bytes());
        page[MAGIC_AT..].copy_from_slice(MAGIC);
    }
}

type ReadU32 = fn(&[u8; PAGE_SIZE], usize) -> u32;

/// The version is 1 in exactly one byte order, which is the header's.
fn byte_order(page: &[u8; PAGE_SIZE]) -> Result<ReadU32, HeaderError> {
    let orders: [ReadU32; 2] = [
        |page, at| u32::from_ne_bytes(page[at..at + 4].try_into().expect("four bytes")),
        |page, at| {
            u32::from_ne_bytes(page[at..at + 4].try_into().expect("four bytes")).swap_bytes()
        },
    ];
    orders
        .into_iter()
        .find(|read| read(page, VERSION_AT) == VERSION)
        .ok_or_else(|| HeaderError::Version(orders[0](page, VERSION_AT)))
}

fn bad_pages(
    page: &[u8; PAGE_SIZE],
    read: ReadU32,
    last_page: u32,
) -> Result<Vec<Slot>, HeaderError> {
    let count = read(page, BAD_COUNT_AT);
    if count as usize > MAX_BAD_PAGES {
        return Err(HeaderError::TooManyBad(count));
    }
    let mut bad: Vec<u32> =
        (0..count as usize).map(|index| read(page, BAD_PAGES_AT + index * 4)).collect();
    if let Some(&page) = bad.iter().find(|&&page| page == 0 || page > last_page) {
        return Err(HeaderError::BadPageOutside { page, last_page });
    }
    bad.sort_unstable();
    if let Some(pair) = bad.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(HeaderError::BadPageTwice(pair[0]));
    }
    if count == last_page {
        return Err(HeaderError::AllBad);
    }
    Ok(bad.into_iter().map(Slot).collect())
}

fn id_at(page: &[u8; PAGE_SIZE], at: usize) -> [u8; ID_LEN] {
    page[at..at + ID_LEN].try_into().expect("sixteen bytes")
}

fn label(bytes: &[u8; ID_LEN]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;
    use proptest::prelude::*;
    use std::process::Command;

    fn sample() -> SwapHeader {
        SwapHeader {
            last_page: 99,
            bad_pages: vec![Slot(7), Slot(50)],
            uuid: *b"0123456789abcdef",
            label: "spill".into(),
        }
    }

    fn page_of(header: &SwapHeader) -> [u8; PAGE_SIZE] {
        let mut page = [0xaa; PAGE_SIZE];
        header.write_to(&mut page);
        page
    }

    /// The same page with every 32-bit field in the other byte order.
    fn swapped(mut page: [u8; PAGE_SIZE]) -> [u8; PAGE_SIZE] {
        let ends = [VERSION_AT..UUID_AT, BAD_PAGES_AT..BAD_PAGES_AT + MAX_BAD_PAGES * 4];
        for field in ends.into_iter().flat_map(|range| range.step_by(4)) {
            page[field..field + 4].reverse();
        }
        page
    }

    #[test]
    fn both_byte_orders_read_the_same() {
        let page = page_of(&sample());
        assert_eq!(SwapHeader::parse(&page), Ok(sample()));
        assert_eq!(SwapHeader::parse(&swapped(page)), Ok(sample()));
        assert!(page[..VERSION_AT].iter().all(|&byte| byte == 0xaa), "boot blocks untouched");
    }

    #[test]
    fn the_table_of_bad_pages_ends_at_the_magic() {
        assert_eq!(MAX_BAD_PAGES, 637);
        let bad_pages = (1..=637).map(Slot).collect();
        let header = SwapHeader { last_page: 638, bad_pages, ..sample() };
        assert_eq!(SwapHeader::parse(&page_of(&header)), Ok(header));
    }

    #[test]
    fn wrong_headers_are_told_apart() {
        let bad = |pages: &[u32]| pages.iter().copied().map(Slot).collect();
        let with = |last_page, pages: &[u32]| {
            page_of(&SwapHeader { last_page, bad_pages: bad(pages), ..sample() })
        };
        let patched = |at: usize, value: u32| {
            let mut page = page_of(&sample());
            page[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            page
        };
        let outside = |page| HeaderError::BadPageOutside { page, last_page: 9 };
        let table = [
            ([0; PAGE_SIZE], HeaderError::NoMagic),
            (patched(VERSION_AT, 2), HeaderError::Version(2)),
            (with(0, &[]), HeaderError::Empty),
            (patched(BAD_COUNT_AT, 638), HeaderError::TooManyBad(638)),
            (with(9, &[0]), outside(0)),
            (with(9, &[10]), outside(10)),
            (with(9, &[3, 4, 3]), HeaderError::BadPageTwice(3)),
            (with(2, &[2, 1]), HeaderError::AllBad),
        ];
        for (page, error) in table {
            assert_eq!(SwapHeader::parse(&page), Err(error));
        }
    }

    #[test]
    fn mkswap_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("area");
        std::fs::write(&path, vec![0; 100 * PAGE_SIZE]).unwrap();
        for order in [&[][..], &["-e", "little"], &["-e", "big"]] {
            let run = Command::new("mkswap")
                .args(["-f", "-p", "4096", "-L", "spill"])
                .args(["-U", "00112233-4455-6677-8899-aabbccddeeff"])
                .args(order)
                .arg(&path)
                .output();
            match run {
                Ok(output) if output.status.success() => {}
                other => return println!("skipped: mkswap with {order:?}: {other:?}"),
            }
            let page = std::fs::read(&path).unwrap()[..PAGE_SIZE].try_into().unwrap();
            let header = SwapHeader::parse(&page).unwrap();
            assert_eq!((header.last_page, header.label.as_str()), (99, "spill"));
            assert_eq!(header.uuid[..4], [0x00, 0x11, 0x22, 0x33]);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            last_page in 638u32..,
            bad in proptest::collection::btree_set(1u32..638, 0..600),
            uuid: [u8; ID_LEN],
            label in "[a-z]{0,16}",
        ) {
            let bad_pages = bad.into_iter().map(Slot).collect();
            let header = SwapHeader { last_page, bad_pages, uuid, label };
            prop_assert_eq!(SwapHeader::parse(&page_of(&header)), Ok(header));
        }

        #[test]
        fn garbage_never_panics(
            noise in proptest::collection::vec(any::<u8>(), PAGE_SIZE),
            version in 0u32..3,
            count in 0u32..1000,
        ) {
            let mut page: [u8; PAGE_SIZE] = noise.try_into().unwrap();
            let _ = SwapHeader::parse(&page);
            page[MAGIC_AT..].copy_from_slice(MAGIC);
            page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&version.to_ne_bytes());
            page[BAD_COUNT_AT..BAD_COUNT_AT + 4].copy_from_slice(&count.to_ne_bytes());
            if let Ok(header) = SwapHeader::parse(&page) {
                prop_assert!((header.bad_pages.len() as u32) < header.last_page);
            }
        }
    }

    /// What is accepted says nothing that its page has no room for.
    #[test]
    fn whatever_is_on_a_device_is_read_or_refused() {
        let mut page = [0; PAGE_SIZE];
        let header = SwapHeader {
            last_page: 1 << 20,
            bad_pages: vec![Slot(5), Slot(900)],
            uuid: [7; ID_LEN],
            label: "a label".into(),
        };
        header.write_to(&mut page);
        bolero::check!().with_type::<Script>().for_each(|script| {
            let mut bytes = script.apply(&[&page]);
            bytes.resize(PAGE_SIZE, 0);
            let found = bytes.try_into().expect("it is a page");
            if let Ok(header) = SwapHeader::parse(&found) {
                assert!(
                    header.bad_pages.iter().all(|page| page.0 <= header.last_page),
                    "{header:?}"
                );
            }
        });
    }
}
