//! The numbers of the NBD protocol, and how requests and replies lie in bytes.
//!
//! Owns: the layout of every message after the handshake, and the meaning of its error numbers.
//! Not here: who sends what when. Source: the protocol's own description, doc/proto.md of
//! NetworkBlockDevice/nbd.
//!
//! ```text
//! request     25609513 flags:16 command:16 cookie:64 offset:64 length:32, then what is written
//! simple      67446698 error:32 cookie:64, then what was read
//! structured  668e33ef flags:16 kind:16 cookie:64 length:32, then so many bytes
//! ```

use overspill_device::IoOp;
use rustix::io::Errno;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const TRIM: u16 = 4;

/// The last chunk of a reply.
const FLAG_DONE: u16 = 1;

const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_ERROR: u16 = 0x8001;
const CHUNK_ERROR_AT: u16 = 0x8002;

/// Size of a request without data, in bytes.
pub(super) const REQUEST_BYTES: usize = 28;
/// Size of a magic number, in bytes.
pub(super) const MAGIC_BYTES: usize = 4;
/// Maximum size of a chunk without data: an error with its message.
pub(super) const SMALL_CHUNK_BYTES_MAX: usize = 4096 + 16;

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Transfer(IoOp),
    Trim,
    Disconnect,
}

impl Command {
    pub(super) fn request(self, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
        let command = match self {
            Self::Transfer(IoOp::Read) => READ,
            Self::Transfer(IoOp::Write) => WRITE,
            Self::Trim => TRIM,
            Self::Disconnect => DISCONNECT,
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..].copy_from_slice(&len.to_be_bytes());
        bytes
    }
}

/// How a reply begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Simple,
    Structured,
}

impl Form {
    pub(super) fn of(magic: [u8; MAGIC_BYTES]) -> Option<Self> {
        match u32::from_be_bytes(magic) {
            SIMPLE_MAGIC => Some(Self::Simple),
            STRUCTURED_MAGIC => Some(Self::Structured),
            _ => None,
        }
    }

    /// Size of the head after its magic, in bytes.
    pub(super) fn head_bytes(self) -> usize {
        match self {
            Self::Simple => 12,
            Self::Structured => 16,
        }
    }
}

/// What a chunk of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All that was read, or nothing: the only chunk of a simple reply.
    Whole,
    None,
    /// An offset, and what was read there.
    Data,
    /// An offset and a length: zeros.
    Hole,
    /// An error, and perhaps where.
    Error,
}

/// The head of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) cookie: u64,
    pub(super) kind: Kind,
    /// Of a simple reply; 0 if there is none.
    pub(super) error: u32,
    /// Bytes that follow; of a simple reply it does not say.
    pub(super) len: u32,
    pub(super) is_last: bool,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Head {
    /// Understands the head of a chunk, without its magic. None for a kind that was not agreed on.
    pub(super) fn of(form: Form, head: &[u8]) -> Option<Self> {
        if form == Form::Simple {
            let (error, cookie) = (u32_at(head, 0), u64_at(head, 4));
            return Some(Self { cookie, kind: Kind::Whole, error, len: 0, is_last: true });
        }
        let kind = match u16_at(head, 2) {
            CHUNK_NONE => Kind::None,
            CHUNK_DATA => Kind::Data,
            CHUNK_HOLE => Kind::Hole,
            CHUNK_ERROR | CHUNK_ERROR_AT => Kind::Error,
            _ => return None,
        };
        let is_last = u16_at(head, 0) & FLAG_DONE != 0;
        Some(Self { cookie: u64_at(head, 4), kind, error: 0, len: u32_at(head, 12), is_last })
    }
}

/// The protocol's errors have the numbers of Linux.
pub(super) fn errno(number: u32) -> Errno {
    match number {
        1..4096 => Errno::from_raw_os_error(number as i32),
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_lies_as_the_protocol_says() {
        let bytes = Command::Transfer(IoOp::Write).request(0x0102, 0x3000, 0x1000);
        let expected = [
            0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0x30, 0,
            0, 0, 0x10, 0,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn heads_are_understood() {
        let simple = [0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 7];
        let head = Head::of(Form::of([0x67, 0x44, 0x66, 0x98]).unwrap(), &simple).unwrap();
        assert_eq!((head.cookie, head.error, head.is_last), (7, 28, true));
        let structured = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 12];
        let head = Head::of(Form::of([0x66, 0x8e, 0x33, 0xef]).unwrap(), &structured).unwrap();
        let expected = Head { cookie: 9, kind: Kind::Hole, error: 0, len: 12, is_last: true };
        assert_eq!(head, expected);
        assert_eq!(Form::of([1, 2, 3, 4]), None);
        assert_eq!(
            Head::of(Form::Structured, &[0, 1, 0, 77, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0]),
            None
        );
    }
}
