//! One connection after its handshake: requests out, replies in, neither ever waited for.
//!
//! Owns: the socket, what is still to be sent, where in a reply the next byte belongs, and the
//! requests that the server has.
//! Invariants: a request's pages are touched by its own reply only, within their bounds, until it
//! ends. Whatever the server sends, the connection ends rather than a byte lands elsewhere.
//! Not here: what happens to the requests of a connection that has ended ([`super::queue`]).

use super::Failure;
use super::socket::{PATIENCE, Stream};
use super::wire::{
    Command, Form, Head, Kind, MAGIC_BYTES, REQUEST_BYTES, SMALL_CHUNK_BYTES_MAX, errno, u32_at,
    u64_at,
};
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::{IoOp, IoRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// How a request ended.
pub(super) type Ended = (IoRequest, Result<(), Errno>);

pub(super) struct Connection {
    stream: Stream,
    /// Requests by their cookies, oldest first.
    flights: BTreeMap<u64, Flight>,
    next_cookie: u64,
    /// Cookies of requests that are not sent yet, or not all of the first.
    sending: VecDeque<u64>,
    /// Bytes of the first that have been sent.
    sent_bytes: usize,
    receiving: Receiving,
}

struct Flight {
    request: IoRequest,
    header: [u8; REQUEST_BYTES],
    /// Bytes read so far.
    read_bytes: usize,
    error: Option<Errno>,
}

/// Where in a reply the next byte belongs.
enum Receiving {
    Magic(Piece),
    Head(Form, Piece),
    /// What comes before data, or instead of it.
    Small(Head, Piece),
    /// Into the pages of a request, from byte `at` to byte `end` of them.
    Data {
        head: Head,
        at: usize,
        end: usize,
    },
}

/// Bytes that are collected until there are enough.
struct Piece {
    bytes: Vec<u8>,
    filled: usize,
}

impl Piece {
    fn of(len: usize) -> Self {
        Self { bytes: vec![0; len], filled: 0 }
    }

    /// True when it is full; false if there is nothing to be read now.
    fn fill(&mut self, stream: &mut Stream) -> Result<bool, Failure> {
        while self.filled < self.bytes.len() {
            match read_some(stream, &mut self.bytes[self.filled..])? {
                None => return Ok(false),
                Some(n) => self.filled += n,
            }
        }
        Ok(true)
    }
}

/// Reads what there is; none if there is nothing now.
fn read_some(stream: &mut Stream, into: &mut [u8]) -> Result<Option<usize>, Failure> {
    loop {
        match stream.read(into) {
            Ok(0) => return Err(Failure::Broken("the server has closed the connection".into())),
            Ok(n) => return Ok(Some(n)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn confused(what: &str) -> Failure {
    Failure::Broken(format!("the server does not keep to the protocol: {what}"))
}

impl Connection {
    /// Uses a stream that does not block, after the handshake.
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            flights: BTreeMap::new(),
            next_cookie: 1,
            sending: VecDeque::new(),
            sent_bytes: 0,
            receiving: Receiving::Magic(Piece::of(MAGIC_BYTES)),
        }
    }

    /// Number of requests that are not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// True if there is something that the socket has not taken.
    pub(super) fn is_sending(&self) -> bool {
        !self.sending.is_empty() || self.stream.is_sending()
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.is_sending() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Takes a transfer; sends nothing yet.
    pub(super) fn push(&mut self, request: IoRequest) {
        let (command, len_bytes) = (Command::Transfer(request.op), bytes_of(&request));
        self.begin(command, len_bytes as u32, request);
    }

    /// Takes the wish to forget the content of `slots` slots; sends nothing yet.
    pub(super) fn push_trim(&mut self, slot: Slot, slots: u32) {
        let request = IoRequest { op: IoOp::Write, slot, pages: Vec::new(), tag: 0 };
        self.begin(Command::Trim, slots * PAGE_SIZE as u32, request);
    }

    fn begin(&mut self, command: Command, len_bytes: u32, request: IoRequest) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let header = command.request(cookie, offset_of(request.slot), len_bytes);
        self.flights.insert(cookie, Flight { request, header, read_bytes: 0, error: None });
        self.sending.push_back(cookie);
    }

    /// Waits for the only request that there is.
    ///
    /// # Errors
    /// The connection has failed, or the server takes too long.
    pub(super) fn finish(&mut self) -> Result<Ended, Failure> {
        let (mut ended, begun) = (Vec::new(), Instant::now());
        loop {
            self.send()?;
            self.receive(&mut ended)?;
            if let Some(end) = ended.pop() {
                return Ok(end);
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Failure::Broken("the server does not answer".into()));
            }
            let left = Timespec::try_from(left).expect("some seconds");
            // After EINTR or any other error: look again.
            let _ =
                poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), self.interest())], Some(&left));
        }
    }

    /// Sends what the socket takes.
    pub(super) fn send(&mut self) -> Result<(), Failure> {
        while let Some(cookie) = self.sending.front() {
            let flight = &self.flights[cookie];
            let rest = flight.rest(self.sent_bytes);
            if rest.is_empty() {
                self.sending.pop_front();
                self.sent_bytes = 0;
                continue;
            }
            match self.stream.write_vectored(&rest) {
                Ok(0) => return Err(Failure::Broken("the connection takes nothing".into())),
                Ok(n) => self.sent_bytes += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.stream.push()?)
    }

    /// Tells the server that there will be nothing more. It need not hear it.
    pub(super) fn take_leave(mut self) {
        if self.flights.is_empty() {
            let _ = self.stream.write(&Command::Disconnect.request(0, 0, 0));
        }
    }

    /// Takes what has arrived, and appends requests that have ended.
    pub(super) fn receive(&mut self, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        loop {
            let receiving = match &mut self.receiving {
                Receiving::Magic(piece)
                | Receiving::Head(_, piece)
                | Receiving::Small(_, piece) => piece.fill(&mut self.stream)?,
                Receiving::Data { .. } => self.receive_data()?,
            };
            if !receiving {
                self.stream.acknowledge();
                return Ok(());
            }
            self.advance(ended)?;
        }
    }

    /// Reads into pages; true when the chunk is complete.
    fn receive_data(&mut self) -> Result<bool, Failure> {
        let Receiving::Data { head, at, end } = &mut self.receiving else { return Ok(true) };
        let flight = self.flights.get_mut(&head.cookie).expect("it was looked up");
        while at < end {
            let page = &mut flight.request.pages[*at / PAGE_SIZE];
            let start = *at % PAGE_SIZE;
            let stop = PAGE_SIZE.min(start + *end - *at);
            match read_some(&mut self.stream, &mut page[start..stop])? {
                None => return Ok(false),
                Some(n) => {
                    *at += n;
                    flight.read_bytes += n;
                }
            }
        }
        Ok(true)
    }

    /// Goes on when a part of a reply is complete.
    fn advance(&mut self, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        let done = std::mem::replace(&mut self.receiving, Receiving::Magic(Piece::of(MAGIC_BYTES)));
        match done {
            Receiving::Magic(piece) => {
                let magic = piece.bytes.try_into().expect("a magic number's bytes");
                let form = Form::of(magic).ok_or_else(|| confused("no reply"))?;
                self.receiving = Receiving::Head(form, Piece::of(form.head_bytes()));
            }
            Receiving::Head(form, piece) => {
                let head =
                    Head::of(form, &piece.bytes).ok_or_else(|| confused("a strange chunk"))?;
                self.begin_chunk(head, ended)?;
            }
            Receiving::Small(head, piece) => self.take_small(head, &piece.bytes, ended)?,
            Receiving::Data { head, .. } => self.end_chunk(head, ended)?,
        }
        Ok(())
    }

    fn begin_chunk(&mut self, head: Head, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        let flight = self.flights.get_mut(&head.cookie);
        let flight = flight.ok_or_else(|| confused("a reply to nothing"))?;
        let reads = flight.request.op == IoOp::Read;
        match head.kind {
            Kind::Whole => {
                flight.error = (head.error != 0).then(|| errno(head.error));
                if reads && flight.error.is_none() {
                    let end = bytes_of(&flight.request);
                    self.receiving = Receiving::Data { head, at: 0, end };
                    return Ok(());
                }
                self.end_chunk(head, ended)
            }
            Kind::None if head.len == 0 => self.end_chunk(head, ended),
            Kind::Data if reads && head.len >= 8 => self.small(head, 8),
            Kind::Hole if reads && head.len == 12 => self.small(head, 12),
            Kind::Error if head.len >= 6 && head.len as usize <= SMALL_CHUNK_BYTES_MAX => {
                self.small(head, head.len as usize)
            }
            _ => Err(confused("a chunk of a strange length")),
        }
    }

    fn small(&mut self, head: Head, len: usize) -> Result<(), Failure> {
        self.receiving = Receiving::Small(head, Piece::of(len));
        Ok(())
    }

    fn take_small(
        &mut self,
        head: Head,
        content: &[u8],
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        let flight = self.flights.get_mut(&head.cookie).expect("it was looked up");
        match head.kind {
            Kind::Error => {
                flight.error = Some(errno(u32_at(content, 0)));
                self.end_chunk(head, ended)
            }
            Kind::Hole => {
                let (at, end) = flight.range(u64_at(content, 0), u32_at(content, 8))?;
                flight.clear(at, end);
                self.end_chunk(head, ended)
            }
            _ => {
                let (at, end) = flight.range(u64_at(content, 0), head.len - 8)?;
                self.receiving = Receiving::Data { head, at, end };
                Ok(())
            }
        }
    }

    fn end_chunk(&mut self, head: Head, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        if !head.is_last {
            return Ok(());
        }
        if self.sending.contains(&head.cookie) {
            return Err(confused("an answer before the end of the question"));
        }
        let Flight { request, read_bytes, error, .. } =
            self.flights.remove(&head.cookie).expect("it was looked up");
        let missing =
            request.op == IoOp::Read && error.is_none() && read_bytes < bytes_of(&request);
        if missing {
            return Err(confused("less than was asked for"));
        }
        ended.push((request, error.map_or(Ok(()), Err)));
        Ok(())
    }

    /// The requests that the server has not answered, oldest first.
    pub(super) fn into_requests(self) -> impl DoubleEndedIterator<Item = IoRequest> {
        self.flights.into_values().map(|flight| flight.request)
    }
}

impl Flight {
    /// What is to be sent from byte `sent` on.
    fn rest(&self, sent: usize) -> Vec<IoSlice<'_>> {
        let pages: &[_] = if self.request.op == IoOp::Write { &self.request.pages } else { &[] };
        let all = [&self.header[..]].into_iter().chain(pages.iter().map(|page| &page[..]));
        let mut skip = sent;
        let mut rest = Vec::with_capacity(1 + pages.len());
        for piece in all {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped < piece.len() {
                rest.push(IoSlice::new(&piece[skipped..]));
            }
        }
        rest
    }

    /// The bytes of this request that a chunk at `offset` of the export is.
    fn range(&self, offset: u64, len: u32) -> Result<(usize, usize), Failure> {
        let at = offset.checked_sub(offset_of(self.request.slot)).map(|at| at as usize);
        let end = at.and_then(|at| at.checked_add(len as usize));
        match (at, end) {
            (Some(at), Some(end)) if end <= bytes_of(&self.request) => Ok((at, end)),
            _ => Err(confused("something that was not asked for")),
        }
    }

    fn clear(&mut self, at: usize, end: usize) {
        for page in at / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
            let from = at.max(page * PAGE_SIZE) - page * PAGE_SIZE;
            let to = end.min((page + 1) * PAGE_SIZE) - page * PAGE_SIZE;
            self.request.pages[page][from..to].fill(0);
        }
        self.read_bytes += end - at;
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Where a slot is in the export.
fn offset_of(slot: Slot) -> u64 {
    u64::from(slot.0) * PAGE_SIZE as u64
}

fn bytes_of(request: &IoRequest) -> usize {
    request.pages.len() * PAGE_SIZE
}
