//! The beginning of a connection: what a server has, and on what terms.
//!
//! Owns: the negotiation, by blocking reads and writes.
//! Invariants: whatever a server says, this ends with an [`Export`] that can be swapped to, or with
//! one line that says why not; nothing that it announces is allocated without a limit.
//! Not here: transfers ([`super::connection`]).
//! Rejected: the older handshakes. Servers of this century have the fixed one.

use super::Failure;
use super::socket::{Socket, Stream};
use super::tls::Credentials;
use super::wire::{u32_at, u64_at};
use std::io::{ErrorKind, Read, Write};

const MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FIXED: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_LIST: u32 = 3;
const OPTION_TLS: u32 = 5;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED: u32 = 8;

const REPLY_ACK: u32 = 1;
const REPLY_SERVER: u32 = 2;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
const ERROR_TLS_REQUIRED: u32 = REPLY_ERROR | 5;
const ERROR_UNKNOWN: u32 = REPLY_ERROR | 6;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Longest answer to an option: a list of exports has one for each.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Most answers to one option that are looked at.
const REPLIES_MAX: usize = 1024;

/// What a server offers under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) size_bytes: u64,
    flags: u16,
    /// Smallest and largest request, in bytes.
    pub(super) block_bytes_min: u32,
    pub(super) request_bytes_max: u32,
}

impl Export {
    pub(super) fn is_read_only(self) -> bool {
        self.flags & 1 << 1 != 0
    }

    pub(super) fn is_rotational(self) -> bool {
        self.flags & 1 << 4 != 0
    }

    pub(super) fn trims(self) -> bool {
        self.flags & 1 << 5 != 0
    }

    /// True if what was written over one connection is read over another.
    pub(super) fn has_several_connections(self) -> bool {
        self.flags & 1 << 8 != 0
    }
}

/// Negotiates with a server until it has opened `name`.
///
/// # Errors
/// Why there is no such export, in words.
pub(super) fn negotiate(
    mut socket: Socket,
    credentials: Option<&Credentials>,
    name: &str,
) -> Result<(Stream, Export), Failure> {
    greet(&mut socket)?;
    let mut stream = match credentials {
        None => Stream::Plain(socket),
        Some(credentials) => {
            ask_for_tls(&mut socket)?;
            credentials.start(socket)?
        }
    };
    let agreed = agree_on_replies(&mut stream);
    match (agreed, credentials) {
        (Err(Failure::Broken(why)), Some(_)) => Err(Failure::Broken(format!(
            "{why} as soon as TLS is on; it may want a certificate of ours in tls=DIR"
        ))),
        (agreed, _) => agreed,
    }?;
    let export = go(&mut stream, name)?;
    Ok((stream, export))
}

/// If the server has no structured ones, a read that fails half way costs the connection.
fn agree_on_replies(stream: &mut Stream) -> Result<(), Failure> {
    ask(stream, OPTION_STRUCTURED, &[])?;
    last_answer(stream, OPTION_STRUCTURED, |_, _| {}).map(drop)
}

fn greet(socket: &mut Socket) -> Result<(), Failure> {
    let mut greeting = [0; 18];
    let greeted = socket.read_exact(&mut greeting);
    if greeted.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        let why = "the server does not say what it is; name the port of an NBD server";
        return Err(Failure::Broken(why.into()));
    }
    greeted?;
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    if &greeting[..8] != MAGIC || &greeting[8..16] != OPTION_MAGIC || flags & FIXED == 0 {
        return Err(Failure::Refused("this is no NBD server, or one from before 2011".into()));
    }
    Ok(socket.write_all(&u32::from(flags & (FIXED | NO_ZEROES)).to_be_bytes())?)
}

fn ask_for_tls(socket: &mut Socket) -> Result<(), Failure> {
    ask(socket, OPTION_TLS, &[])?;
    match last_answer(socket, OPTION_TLS, |_, _| {})? {
        (REPLY_ACK, _) => Ok(()),
        _ => Err(Failure::Refused(
            "the server has no TLS: leave tls= out, or have it configured".into(),
        )),
    }
}

fn ask(stream: &mut impl Write, option: u32, data: &[u8]) -> Result<(), Failure> {
    let len = data.len() as u32;
    let message = [&OPTION_MAGIC[..], &option.to_be_bytes(), &len.to_be_bytes(), data].concat();
    stream.write_all(&message)?;
    Ok(stream.flush()?)
}

/// Reads one answer: its kind and content.
fn answer(stream: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>), Failure> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let (magic, to, kind, len) =
        (u64_at(&head, 0), u32_at(&head, 8), u32_at(&head, 12), u32_at(&head, 16));
    if magic != REPLY_MAGIC || to != option || len > REPLY_BYTES_MAX {
        return Err(Failure::Refused("the server does not keep to the protocol".into()));
    }
    let mut content = vec![0; len as usize];
    stream.read_exact(&mut content)?;
    Ok((kind, content))
}

/// Reads answers until the last; returns its kind.
fn last_answer(
    stream: &mut impl Read,
    option: u32,
    mut each: impl FnMut(u32, &[u8]),
) -> Result<(u32, Vec<u8>), Failure> {
    for _ in 0..REPLIES_MAX {
        let (kind, content) = answer(stream, option)?;
        if kind == REPLY_ACK || kind & REPLY_ERROR != 0 {
            return Ok((kind, content));
        }
        each(kind, &content);
    }
    Err(Failure::Refused("the server does not come to an end".into()))
}

fn go(stream: &mut (impl Read + Write), name: &str) -> Result<Export, Failure> {
    let len = (name.len() as u32).to_be_bytes();
    let wanted = [1u16.to_be_bytes(), INFO_BLOCK_SIZE.to_be_bytes()].concat();
    ask(stream, OPTION_GO, &[&len[..], name.as_bytes(), &wanted].concat())?;
    // What the protocol says if the server does not.
    let (block_bytes_min, request_bytes_max) = (1, 32 << 20);
    let mut export = Export { size_bytes: 0, flags: 0, block_bytes_min, request_bytes_max };
    let (kind, content) = last_answer(stream, OPTION_GO, |kind, content| {
        if kind == REPLY_INFO {
            export.learn(content);
        }
    })?;
    match kind {
        REPLY_ACK => Ok(export),
        ERROR_UNKNOWN => Err(Failure::Refused(no_such_export(stream, name))),
        ERROR_TLS_REQUIRED => {
            Err(Failure::Refused("the server wants TLS: add ,tls=on or ,tls=DIR".into()))
        }
        _ => {
            let why = String::from_utf8_lossy(&content).into_owned();
            Err(Failure::Refused(format!("the server refuses the export `{name}`: {why}")))
        }
    }
}

impl Export {
    fn learn(&mut self, info: &[u8]) {
        let kind = info.get(..2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        match (kind, info.len()) {
            (Some(INFO_EXPORT), 12) => {
                self.size_bytes = u64_at(info, 2);
                self.flags = u16::from_be_bytes([info[10], info[11]]);
            }
            (Some(INFO_BLOCK_SIZE), 14) => {
                self.block_bytes_min = u32_at(info, 2);
                self.request_bytes_max = u32_at(info, 10);
            }
            _ => {}
        }
    }
}

/// Says which exports there are, if the server tells.
fn no_such_export(stream: &mut (impl Read + Write), name: &str) -> String {
    let mut names = Vec::new();
    let asked = ask(stream, OPTION_LIST, &[]).and_then(|()| {
        last_answer(stream, OPTION_LIST, |kind, content| {
            let name = content.get(4..).filter(|_| kind == REPLY_SERVER);
            names.extend(name.map(|name| format!("`{}`", String::from_utf8_lossy(name))));
        })
    });
    match asked {
        Ok(_) if !names.is_empty() => {
            format!("the server has no export `{name}`, but {}", names.join(", "))
        }
        _ => format!("the server has no export `{name}`: name one as in nbd:HOST/EXPORT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;
    use std::io::{self, Cursor};

    /// A server that says the same whatever it is asked.
    struct Deaf(Cursor<Vec<u8>>);

    impl Read for Deaf {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Deaf {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reply(option: u32, kind: u32, content: &[u8]) -> Vec<u8> {
        let head = [REPLY_MAGIC.to_be_bytes().to_vec(), option.to_be_bytes().to_vec()].concat();
        let len = content.len() as u32;
        [&head[..], &kind.to_be_bytes(), &len.to_be_bytes(), content].concat()
    }

    #[test]
    fn whatever_a_server_says_is_understood_or_refused() {
        let export =
            [&INFO_EXPORT.to_be_bytes()[..], &(1u64 << 30).to_be_bytes(), &[1, 1]].concat();
        let sizes = [&INFO_BLOCK_SIZE.to_be_bytes()[..], &[0; 3], &[1], &[0; 2], &[16, 0], &[1; 4]];
        let open = [
            reply(OPTION_GO, REPLY_INFO, &export),
            reply(OPTION_GO, REPLY_INFO, &sizes.concat()),
            reply(OPTION_GO, REPLY_ACK, &[]),
        ];
        let unknown = [
            reply(OPTION_GO, ERROR_UNKNOWN, b"none"),
            reply(OPTION_LIST, REPLY_SERVER, b"\0\0\0\x03one"),
            reply(OPTION_LIST, REPLY_ACK, &[]),
        ];
        let (open, unknown) = (open.concat(), unknown.concat());
        assert!(go(&mut Deaf(Cursor::new(open.clone())), "x").is_ok());
        bolero::check!().with_type::<Script>().for_each(|script| {
            let said = script.apply(&[&open, &unknown]);
            let _ = go(&mut Deaf(Cursor::new(said)), "x").map_err(|failure| failure.to_string());
        });
    }
}
