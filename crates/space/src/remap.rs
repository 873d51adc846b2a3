//! Mappings that move or change their size, and foreign mappings that replace them.
//!
//! Owns: `mremap` within the managed range, and placing a foreign mapping in it.
//! Invariant: the old content of the new place is dropped only when nothing can fail any more
//! except for lack of kernel mappings.
//! Not here: checks of addresses and flags, which are the caller's (`preload`).

use crate::memory::{ManagedMemory, MemoryError, Protection};
use crate::ranges::{Kind, PLAIN, Part};
use overspill_base::PageNo;
use overspill_engine::Pattern;
use rustix::io::Errno;

/// Where a mapping is to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// It stays.
    Here,
    /// It stays if it fits there, otherwise moves to any free range.
    Anywhere,
    /// It moves to any free range.
    Elsewhere,
    /// It moves to this address, replacing what is mapped there.
    At(usize),
}

impl ManagedMemory {
    /// Grows or shrinks a mapping, and moves it; returns its address. With `stays`, which is for
    /// another place and the same size, the old place is left mapped and empty.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`]; [`MemoryError::NoSpace`], also when it may not move.
    pub fn remap(
        &self,
        address: usize,
        old_pages: usize,
        new_pages: usize,
        target: Target,
        stays: bool,
    ) -> Result<usize, MemoryError> {
        let first = self.space.page_at(address);
        let (protection, pattern) = self.one_mapping(first, old_pages)?;
        self.allow(new_pages.saturating_sub(old_pages))?;
        if new_pages < old_pages {
            let end = self.space.address_of(first.plus(new_pages));
            self.unmap(end, old_pages - new_pages)?;
        }
        let target = match target {
            Target::Here | Target::Anywhere if new_pages <= old_pages => return Ok(address),
            Target::Here | Target::Anywhere => {
                let (end, more) = (first.plus(old_pages), new_pages - old_pages);
                if protection == PLAIN && self.take_at(end, more) {
                    self.make_managed(end, more, PLAIN, pattern)?;
                    return Ok(address);
                }
                if target == Target::Here {
                    return Err(MemoryError::NoSpace(self.space.size_of(new_pages)));
                }
                self.take(new_pages)?
            }
            Target::Elsewhere => self.take(new_pages)?,
            Target::At(address) => {
                let target = self.space.page_at(address);
                self.empty(target, new_pages)?;
                target
            }
        };
        self.move_to(first, target, old_pages.min(new_pages), protection, stays)?;
        self.make_managed(target, new_pages, protection, pattern)?;
        if !stays {
            self.unmap(address, old_pages.min(new_pages))?;
        }
        Ok(self.space.address_of(target))
    }

    /// The protection and pattern of a range, which must be one mapping, as in the kernel.
    fn one_mapping(
        &self,
        first: PageNo,
        pages: usize,
    ) -> Result<(Protection, Pattern), MemoryError> {
        match self.space.ranges.lock().parts(first, pages)[..] {
            [Part { pages: found, kind: Kind::Managed(protection, pattern), .. }]
                if found == pages =>
            {
                Ok((protection, pattern))
            }
            _ => Err(MemoryError::NotMapped),
        }
    }

    /// Takes the given range, if it is free.
    fn take_at(&self, first: PageNo, pages: usize) -> bool {
        let mut ranges = self.space.ranges.lock();
        let fits = first.index() + pages <= self.space.pages();
        let free = fits && ranges.parts(first, pages).is_empty();
        if free {
            ranges.set(first, pages, Some(Kind::Leaving));
        }
        free
    }

    /// Moves a mapping's content to a range just taken.
    fn move_to(
        &self,
        from: PageNo,
        to: PageNo,
        pages: usize,
        protection: Protection,
        stays: bool,
    ) -> Result<(), MemoryError> {
        let protect =
            |protection| self.space.protect(&self.space.changing(), from, pages, protection);
        if protection != PLAIN {
            protect(PLAIN)?;
        }
        self.engine.transfer(from, to, pages);
        if stays && protection != PLAIN {
            protect(protection)?;
        }
        Ok(())
    }

    /// Replaces everything in a range by a foreign mapping that `put` makes. If `put` fails,
    /// nothing is mapped there.
    ///
    /// # Errors
    /// Errors of `put` and of mprotect.
    pub fn replace(
        &self,
        address: usize,
        pages: usize,
        put: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        self.empty(first, pages)?;
        let done = put();
        self.space.ranges.lock().set(first, pages, Some(Kind::Foreign));
        if done.is_err() {
            self.unmap(address, pages)?;
        }
        Ok(done?)
    }
}
