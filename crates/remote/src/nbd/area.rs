//! The start of an export: whether it may be overwritten, and how it is known again.
//!
//! Owns: its first page, which is a swap header as `mkswap` makes it, with a mark of this run in
//! the boot blocks.
//! Invariants: no data that was not meant for swap is overwritten unless the user insists. A server
//! that comes back with something else, or with nothing, is noticed before anything is read there.
//! Not here: two runs that use one export at a time. Encryption notices what they destroy.

use super::Failure;
use super::connection::Connection;
use overspill_base::shared::PageArena;
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::header::{HeaderError, ID_LEN, SwapHeader};
use overspill_device::{IoOp, IoRequest};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Pages that are zeros if nobody has anything there: all file systems and partition tables begin
/// within so many.
const LOOKED_AT_PAGES: u32 = 32;
/// At the end of the boot blocks.
const MARK_AT: usize = 1024 - MARK_BYTES;
const MARK_BYTES: usize = 32;

/// What tells a run's export from others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark([u8; MARK_BYTES]);

impl Mark {
    fn random() -> Result<Self, Failure> {
        let mut mark = [0; MARK_BYTES];
        // So few bytes come at once or not at all.
        getrandom(&mut mark, GetRandomFlags::empty()).map_err(io::Error::from)?;
        Ok(Self(mark))
    }
}

/// An export that is ours.
pub(super) struct Area {
    pub(super) mark: Mark,
    /// Slots that must not be used.
    pub(super) bad: Vec<Slot>,
    pub(super) slots: u32,
}

/// A connection that is not used for swapping yet, and a page for looking at what it leads to.
pub(super) struct Probe {
    /// Above the page, which a request of it may have: dropped first.
    connection: Connection,
    arena: PageArena,
}

type Page = [u8; PAGE_SIZE];

impl Probe {
    pub(super) fn new(connection: Connection) -> Result<Self, Failure> {
        let arena = PageArena::new(1).map_err(io::Error::from)?;
        Ok(Self { connection, arena })
    }

    /// The connection, which has nothing to do.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Takes an export of `slots` slots for this run, whatever it holds if `force`.
    pub(super) fn claim(&mut self, slots: u32, force: bool) -> Result<Area, Failure> {
        let mut page = [0; PAGE_SIZE];
        self.read(0, &mut page)?;
        let header = match SwapHeader::parse(&page) {
            Ok(header) if header.slots() <= slots => header,
            _ if force || self.is_blank(slots)? => fresh(slots),
            Ok(_) => return Err(refused("has the swap header of a larger one")),
            Err(HeaderError::NoMagic) => return Err(refused("holds data")),
            Err(error) => return Err(refused(&format!("has a swap header, but {error}"))),
        };
        let mark = Mark::random()?;
        header.write_to(&mut page);
        page[MARK_AT..MARK_AT + MARK_BYTES].copy_from_slice(&mark.0);
        self.transfer(IoOp::Write, Slot(0), &mut page)?;
        Ok(Area { mark, slots: header.slots(), bad: header.bad_pages })
    }

    fn is_blank(&mut self, slots: u32) -> Result<bool, Failure> {
        let mut page = [0; PAGE_SIZE];
        for slot in 0..LOOKED_AT_PAGES.min(slots) {
            self.read(slot, &mut page)?;
            if page.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if the export is the one that was marked so.
    pub(super) fn is_marked(&mut self, mark: Mark) -> Result<bool, Failure> {
        let mut page = [0; PAGE_SIZE];
        self.read(0, &mut page)?;
        Ok(page[MARK_AT..MARK_AT + MARK_BYTES] == mark.0)
    }

    fn read(&mut self, slot: u32, page: &mut Page) -> Result<(), Failure> {
        self.transfer(IoOp::Read, Slot(slot), page)
    }

    fn transfer(&mut self, op: IoOp, slot: Slot, page: &mut Page) -> Result<(), Failure> {
        // SAFETY: the handle of an earlier transfer ended with it, or lies in a connection that has
        // failed and is not read from again. If not, two requests would have one page.
        let mut shared = unsafe { self.arena.page(0) };
        shared.copy_from_slice(page);
        self.connection.push(IoRequest { op, slot, pages: vec![shared], tag: 0 });
        let (request, result) = self.connection.finish()?;
        page.copy_from_slice(&request.pages[0]);
        result.map_err(|errno| Failure::Refused(format!("{op} of its first pages failed: {errno}")))
    }
}

fn refused(what: &str) -> Failure {
    Failure::Refused(format!("the export {what}; name another one, or insist with --force"))
}

fn fresh(slots: u32) -> SwapHeader {
    let (uuid, label) = ([0; ID_LEN], "overspill".to_owned());
    SwapHeader { last_page: slots - 1, bad_pages: Vec::new(), uuid, label }
}
