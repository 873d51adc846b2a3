//! Page, slot and byte numbers as different types, and every conversion between them.
//!
//! Owns: the page size and the arithmetic on it. Mixing up page and slot numbers is this field's
//! classic bug; here it does not compile.
//! Not here: addresses. Only `space` knows the address of a page.

use std::fmt;

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page. Overspill refuses machines whose base page differs (`overspill doctor`).
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The number as an array index.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The number plus `n`.
            #[inline]
            #[must_use]
            pub fn plus(self, n: usize) -> Self {
                Self(self.0 + n as $int)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index_type!(
    /// A page of managed address space, counted from the start of the managed range.
    PageNo(u32)
);
index_type!(
    /// A page-sized place in one swap area.
    Slot(u32)
);
index_type!(
    /// The right to keep one page in memory. There are `limit / page size` of them.
    FrameNo(u32)
);

/// A number of bytes, printed the way people write sizes.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Debug,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Size of `n` pages.
    #[inline]
    pub const fn of_pages(n: u64) -> Self {
        Self(n << PAGE_SHIFT)
    }

    /// Number of whole pages in this many bytes; a remainder is dropped.
    #[inline]
    pub const fn pages_floor(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Number of pages needed to hold this many bytes.
    #[inline]
    pub const fn pages_ceil(self) -> u64 {
        self.0.div_ceil(PAGE_SIZE as u64)
    }
}

/// `64 MiB`; in the alternate form `64MiB`, for what is to be typed.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let space = if f.alternate() { "" } else { " " };
        for (shift, unit) in UNITS {
            if self.0 >> shift == 0 {
                continue;
            }
            return if self.0 & ((1 << shift) - 1) == 0 {
                write!(f, "{}{space}{unit}", self.0 >> shift)
            } else {
                write!(f, "{:.1}{space}{unit}", self.0 as f64 / (1u64 << shift) as f64)
            };
        }
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_to_pages_in_both_directions() {
        assert_eq!(Bytes(4095).pages_floor(), 0);
        assert_eq!(Bytes(4095).pages_ceil(), 1);
        assert_eq!(Bytes(8192).pages_ceil(), 2);
        assert_eq!(Bytes::of_pages(3), Bytes(12288));
    }

    #[test]
    fn bytes_print_in_the_largest_unit_that_fits() {
        assert_eq!(Bytes(0).to_string(), "0 bytes");
        assert_eq!(Bytes(64 << 20).to_string(), "64 MiB");
        assert_eq!(Bytes(1536 << 20).to_string(), "1.5 GiB");
    }
}
