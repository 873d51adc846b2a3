//! Pages of a guest's addresses.
//!
//! Owns: the type, and the conversion from addresses and back.

use overspill_base::{PAGE_SHIFT, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A virtual page number: the number of a page of a guest's addresses. It is not the engine's
/// number of a page, which stays the same when the guest moves the page to other addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Vpn(pub u64);

/// No page has this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no page has the number {0:#x}")]
pub struct NoPage(u64);

impl TryFrom<u64> for Vpn {
    type Error = NoPage;

    fn try_from(number: u64) -> Result<Self, NoPage> {
        if number < 1 << (u64::BITS - PAGE_SHIFT) { Ok(Self(number)) } else { Err(NoPage(number)) }
    }
}

impl From<Vpn> for u64 {
    fn from(page: Vpn) -> Self {
        page.0
    }
}

impl Vpn {
    /// Returns the page that `address` is in.
    pub fn of(address: u64) -> Self {
        Self(address >> PAGE_SHIFT)
    }

    /// Returns the pages that have a byte in a range of addresses.
    pub fn range(addresses: &Range<u64>) -> Range<Self> {
        Self::of(addresses.start)..Self(addresses.end.div_ceil(PAGE_SIZE as u64))
    }

    /// Returns how many pages a range has.
    pub fn pages(range: &Range<Self>) -> u64 {
        range.end.0 - range.start.0
    }

    /// Returns the pages of a range, one by one.
    pub fn each(range: &Range<Self>) -> impl Iterator<Item = Self> + use<> {
        (range.start.0..range.end.0).map(Self)
    }

    /// Returns a range, which may have any size, in parts of so many pages.
    pub fn parts(range: Range<Self>, pages: u64) -> impl Iterator<Item = Range<Self>> {
        let starts = (range.start.0..range.end.0).step_by(pages as usize).map(Self);
        starts.map(move |start| start..range.end.min(start.plus(pages)))
    }

    /// Returns the page's first address.
    pub fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Returns the page `n` pages on.
    #[must_use]
    pub fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }

    /// Returns the `pages` pages from here on.
    pub fn run(self, pages: u64) -> Range<Self> {
        self..self.plus(pages)
    }
}

impl fmt::Debug for Vpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}000", self.0)
    }
}
