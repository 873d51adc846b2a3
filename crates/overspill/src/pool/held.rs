//! A page in use by an owner that the borrow checker does not know, such as another language's.
//!
//! Owns: the release of what a page's word has granted.
//! Invariants: as for guards (`guard`): a page held to be read has one of its pins, a page held to
//! be written has its only writer; either is released when dropped, and the pool lives until then.
//! Not here: references to the bytes. Whoever follows the pointer keeps to what it asked for.

use super::core::Core;
use overspill_base::sync::Arc;
use overspill_base::{FrameNo, PageNo};

/// What a page is held for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// To be read, beside other readers.
    ToRead,
    /// To be read and written, alone.
    ToWrite,
}

/// A page that stays where it is until this is dropped; see [`Pool::hold`](super::Pool::hold).
#[derive(Debug)]
pub struct HeldPage {
    core: Arc<Core>,
    page: PageNo,
    frame: FrameNo,
    held: Held,
}

impl HeldPage {
    /// For a page that was just granted, in `frame`.
    pub(super) fn new(core: Arc<Core>, page: PageNo, frame: FrameNo, held: Held) -> Self {
        Self { core, page, frame, held }
    }

    /// Where its bytes are, [`Pool::page_size`](super::Pool::page_size) of them.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.core.engine().place(self.frame)
    }

    /// What it was asked for.
    pub fn held(&self) -> Held {
        self.held
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        match self.held {
            Held::ToRead => self.core.words().end_read(self.page),
            Held::ToWrite => self.core.words().end_write(self.page),
        }
    }
}
