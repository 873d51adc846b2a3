//! What front and keeper say to each other.
//!
//! Owns: the form of a message, and its check where it is read.
//! Invariants: every message is one [`Packet`], of one size; its descriptors come in the order that
//! its kind has. Front and keeper are one program, started together, so a message that cannot be is
//! a mistake or an attack: there is no other version to be kind to.
//! Not here: sockets and waiting (`link`); what follows from a message (`process`).

mod area;
mod guest;
mod wanted;

pub use area::AreaState;
pub use wanted::{Birth, Wanted};

use crate::eye::EyeParts;
use crate::known::GuestParts;
use crate::places::OpenPlace;
use area::{read_area, write_area};
use bytemuck::{Pod, Zeroable};
use guest::{read_guest, write_guest};
use overspill_base::Bytes;
use overspill_engine::EngineStatus;
use overspill_guest::Vpn;
use overspill_guest::userfault::{Abilities, GuestUserfault};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ops::Range;

/// Bytes of text that a message has room for.
pub(crate) const BODY_BYTES: usize = 4096;
const WORDS: usize = 13;
/// Most descriptors of a message: those of a guest.
pub(crate) const DESCRIPTORS_MAX: usize = 11;

/// A message as it is sent.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Packet {
    kind: u32,
    body_bytes: u32,
    words: [u64; WORDS],
    body: [u8; BODY_BYTES],
}

mod kind {
    pub(super) const SWAP: u32 = 1;
    pub(super) const BEGIN: u32 = 2;
    pub(super) const NEEDED: u32 = 3;
    pub(super) const ADD: u32 = 4;
    pub(super) const ENDED: u32 = 5;
    pub(super) const STATUS: u32 = 6;
    pub(super) const FROZEN: u32 = 7;
    pub(super) const SET_MEMORY: u32 = 8;
    pub(super) const PREPARE: u32 = 9;
    pub(super) const STANDS: u32 = 10;
    pub(super) const ADD_SWAP: u32 = 11;
    pub(super) const REMOVE_SWAP: u32 = 12;
    pub(super) const LET_GO: u32 = 13;
    pub(super) const BRING: u32 = 14;
    pub(super) const STAY: u32 = 15;
    pub(super) const FETCHED: u32 = 16;
    pub(super) const DONE: u32 = 33;
    pub(super) const REFUSED: u32 = 34;
    pub(super) const LINE: u32 = 35;
    pub(super) const AREA: u32 = 36;
    pub(super) const STATE: u32 = 37;
    pub(super) const HOLD: u32 = 38;
    pub(super) const RELEASE: u32 = 39;
    pub(super) const ATTACH: u32 = 40;
    pub(super) const FORGET: u32 = 41;
    pub(super) const FREEZE: u32 = 42;
    pub(super) const STILL: u32 = 43;
    pub(super) const BROUGHT: u32 = 44;
    pub(super) const FETCH: u32 = 45;
    pub(super) const WANTS_OUT: u32 = 46;
}

/// Why a message is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WordError {
    /// Nobody knows it.
    #[error("a message of kind {0} is unknown: was the program replaced while it ran?")]
    Kind(u32),
    /// A part is not what it must be.
    #[error("a message of kind {kind} has no valid {part}: was its sender tampered with?")]
    Part {
        /// Of the message.
        kind: u32,
        /// What is wrong.
        part: &'static str,
    },
    /// It does not fit.
    #[error("{bytes} bytes do not fit into a message: give shorter paths to --swap")]
    Long {
        /// Of the text.
        bytes: usize,
    },
}

/// A message that was read, with its descriptors.
pub(crate) type Received = (Packet, Vec<OwnedFd>);
/// A message to be sent, with its descriptors.
pub(crate) type Sent<'f> = (Packet, Vec<BorrowedFd<'f>>);

/// What the front asks for.
#[derive(Debug)]
pub enum Request {
    /// A place to swap to; before `Begin`, which takes it over. No answer.
    Swap(Box<OpenPlace>),
    /// Take the places over and be ready. The answer: the areas, then `Done`.
    Begin {
        /// The limit of all guests.
        memory: Bytes,
        /// The most that it can be set to.
        memory_max: Bytes,
        /// The file of the counters.
        stats: OwnedFd,
        /// The file of the record of pages that come, if there is to be one.
        arrivals: Option<OwnedFd>,
    },
    /// Another place to swap to, from now on. The answer: its area, then `Done`.
    AddSwap(Box<OpenPlace>),
    /// Swap no more to the place with this name, path or number; if several have it, to the one
    /// added last. The answer: its area, then `Done`. It leaves as there is room.
    RemoveSwap(String),
    /// Pages that must stay, of the guest of the next `Add`. No answer.
    Needed(Vec<Vpn>),
    /// Page a guest; its pages that are needed were told before. The answer is `Done`.
    Add {
        /// Not used before, or that of a forked child.
        number: u64,
        /// The guest.
        guest: Box<GuestParts>,
    },
    /// A guest has ended, or executes another program. The answer is `Done`: nothing that is done
    /// for it reaches the process any more.
    Ended {
        /// Its number.
        number: u64,
    },
    /// Bring some pages of a guest back, which goes on meanwhile. The answer is `Brought`, or
    /// `Refused`.
    Bring {
        /// Its number.
        number: u64,
        /// Where to begin.
        from: Vpn,
    },
    /// A guest of which pages were brought back stays: they are paged again. No answer.
    Stay {
        /// Its number.
        number: u64,
    },
    /// Bring all of a guest back, whose threads stand still until it has become a process like
    /// others. The answer, after however long that takes: `Done`, or `Refused`, and it is paged as
    /// before.
    LetGo {
        /// Its number.
        number: u64,
    },
    /// The userfaultfd of a child that a guest has forked, as `Fetch` asked; none if it cannot be
    /// had. No answer.
    Fetched {
        /// The parent's number.
        number: u64,
        /// Which fork.
        fork: u64,
        /// The child's, as it was made.
        userfaultfd: Option<OwnedFd>,
    },
    /// How things are. The answer: the areas, then `State`.
    Status,
    /// Get ready: the first guest will soon come. No answer.
    Prepare,
    /// Another limit. No answer.
    SetMemory(Bytes),
    /// All threads of a guest are told to stop, as `Freeze` asked. No answer.
    Frozen {
        /// Its number.
        number: u64,
    },
    /// All threads of a guest stand still, or will not soon, as `Still` asked. No answer.
    Stands {
        /// Its number.
        number: u64,
        /// Which of both.
        still: bool,
    },
}

/// What the keeper says.
#[derive(Debug)]
pub enum Report {
    /// It is done.
    Done,
    /// It cannot be done, and why.
    Refused(String),
    /// Pages were brought back; from there on there may be more.
    Brought(Option<Vpn>),
    /// A line for the user; at any time.
    Line(String),
    /// A swap area.
    Area(AreaState),
    /// How things are.
    State(KeeperState),
    /// Something is to be done; at any time.
    Wanted(Wanted),
}

/// How things are in a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeeperState {
    /// Of the engine; zeros if it was not needed.
    pub engine: EngineStatus,
    /// Guests that have not ended.
    pub guests: usize,
    /// True if a guest was killed for lack of memory.
    pub out_of_memory: bool,
}

impl Packet {
    fn new(kind: u32, words: &[u64]) -> Self {
        let mut packet = Self { kind, ..Self::zeroed() };
        packet.words[..words.len()].copy_from_slice(words);
        packet
    }

    fn with_body(mut self, body: &[u8]) -> Result<Self, WordError> {
        let room = self.body.get_mut(..body.len());
        room.ok_or(WordError::Long { bytes: body.len() })?.copy_from_slice(body);
        self.body_bytes = body.len() as u32;
        Ok(self)
    }

    /// As [`with_body`](Self::with_body), for a line that may be cut.
    fn with_line(self, line: &str) -> Self {
        let line = &line.as_bytes()[..line.len().min(BODY_BYTES)];
        self.with_body(line).expect("it was cut")
    }

    fn body(&self) -> Result<&[u8], WordError> {
        self.body.get(..self.body_bytes as usize).ok_or(self.bad("length"))
    }

    fn text(&self) -> Result<String, WordError> {
        Ok(String::from_utf8_lossy(self.body()?).into_owned())
    }

    fn flag(&self, word: usize, part: &'static str) -> Result<bool, WordError> {
        match self.words[word] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad(part)),
        }
    }

    fn page(&self, word: usize) -> Result<Vpn, WordError> {
        read_vpn(self.words[word]).ok_or(self.bad("page"))
    }

    fn bad(&self, part: &'static str) -> WordError {
        WordError::Part { kind: self.kind, part }
    }

    /// The descriptors, which must be so many.
    fn exactly<const N: usize>(&self, fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], WordError> {
        fds.try_into().map_err(|_| self.bad("number of descriptors"))
    }
}

impl Request {
    /// Most pages of a `Needed`.
    pub const NEEDED_MAX: usize = BODY_BYTES / size_of::<u64>();

    pub(crate) fn write(&self) -> Result<Sent<'_>, WordError> {
        let bare = |packet| Ok((packet, Vec::new()));
        match self {
            Self::Swap(place) => write_swap(kind::SWAP, place),
            Self::AddSwap(place) => write_swap(kind::ADD_SWAP, place),
            Self::RemoveSwap(name) => {
                bare(Packet::new(kind::REMOVE_SWAP, &[]).with_body(name.as_bytes())?)
            }
            Self::Begin { memory, memory_max, stats, arrivals } => {
                let words = [memory.0, memory_max.0];
                let descriptors = [Some(stats), arrivals.as_ref()];
                let descriptors = descriptors.into_iter().flatten().map(AsFd::as_fd).collect();
                Ok((Packet::new(kind::BEGIN, &words), descriptors))
            }
            Self::Needed(pages) => {
                let numbers: Vec<u64> = pages.iter().map(|page| page.0).collect();
                bare(Packet::new(kind::NEEDED, &[]).with_body(bytemuck::cast_slice(&numbers))?)
            }
            Self::Add { number, guest } => write_guest(*number, guest),
            Self::Ended { number } => bare(Packet::new(kind::ENDED, &[*number])),
            Self::Bring { number, from } => bare(Packet::new(kind::BRING, &[*number, from.0])),
            Self::Stay { number } => bare(Packet::new(kind::STAY, &[*number])),
            Self::LetGo { number } => bare(Packet::new(kind::LET_GO, &[*number])),
            Self::Fetched { number, fork, userfaultfd } => {
                let descriptors = userfaultfd.iter().map(AsFd::as_fd).collect();
                Ok((Packet::new(kind::FETCHED, &[*number, *fork]), descriptors))
            }
            Self::Status => bare(Packet::new(kind::STATUS, &[])),
            Self::Prepare => bare(Packet::new(kind::PREPARE, &[])),
            Self::SetMemory(memory) => bare(Packet::new(kind::SET_MEMORY, &[memory.0])),
            Self::Stands { number, still } => {
                bare(Packet::new(kind::STANDS, &[*number, (*still).into()]))
            }
            Self::Frozen { number } => bare(Packet::new(kind::FROZEN, &[*number])),
        }
    }

    pub(crate) fn read((packet, fds): Received) -> Result<Self, WordError> {
        match packet.kind {
            kind::BEGIN => return read_begin(&packet, fds),
            kind::ADD => return read_guest(&packet, fds),
            kind::SWAP => return read_swap(&packet, fds).map(Self::Swap),
            kind::ADD_SWAP => return read_swap(&packet, fds).map(Self::AddSwap),
            kind::FETCHED => {
                let [number, fork] = [packet.words[0], packet.words[1]];
                let mut fds = fds.into_iter();
                let userfaultfd = fds.next();
                packet.exactly::<0>(fds.collect())?;
                return Ok(Self::Fetched { number, fork, userfaultfd });
            }
            _ => packet.exactly::<0>(fds)?,
        };
        Ok(match packet.kind {
            kind::REMOVE_SWAP => Self::RemoveSwap(packet.text()?),
            kind::NEEDED => Self::Needed(read_pages(&packet)?),
            kind::ENDED => Self::Ended { number: packet.words[0] },
            kind::BRING => Self::Bring { number: packet.words[0], from: packet.page(1)? },
            kind::STAY => Self::Stay { number: packet.words[0] },
            kind::LET_GO => Self::LetGo { number: packet.words[0] },
            kind::STATUS => Self::Status,
            kind::FROZEN => Self::Frozen { number: packet.words[0] },
            kind::STANDS => {
                Self::Stands { number: packet.words[0], still: packet.flag(1, "stillness")? }
            }
            kind::PREPARE => Self::Prepare,
            kind::SET_MEMORY => Self::SetMemory(read_memory(&packet, 0)?),
            other => return Err(WordError::Kind(other)),
        })
    }
}

fn write_swap(kind: u32, place: &OpenPlace) -> Result<Sent<'_>, WordError> {
    let json = serde_json::to_vec(&place.spec).expect("it has only strings and numbers");
    Ok((Packet::new(kind, &[]).with_body(&json)?, place.descriptors()))
}

fn read_swap(packet: &Packet, fds: Vec<OwnedFd>) -> Result<Box<OpenPlace>, WordError> {
    let spec = serde_json::from_slice(packet.body()?).map_err(|_| packet.bad("place"))?;
    OpenPlace::read(spec, fds).map(Box::new).ok_or(packet.bad("open place"))
}

fn read_begin(packet: &Packet, fds: Vec<OwnedFd>) -> Result<Request, WordError> {
    let mut fds = fds.into_iter();
    let (stats, arrivals) = (fds.next(), fds.next());
    let stats = stats.filter(|_| fds.len() == 0).ok_or(packet.bad("number of descriptors"))?;
    let (memory, memory_max) = (read_memory(packet, 0)?, read_memory(packet, 1)?);
    if memory > memory_max {
        return Err(packet.bad("limit"));
    }
    Ok(Request::Begin { memory, memory_max, stats, arrivals })
}

fn read_memory(packet: &Packet, word: usize) -> Result<Bytes, WordError> {
    let memory = Bytes(packet.words[word]);
    if memory.pages_floor() > 0 { Ok(memory) } else { Err(packet.bad("limit")) }
}

fn read_pages(packet: &Packet) -> Result<Vec<Vpn>, WordError> {
    let (numbers, rest) = packet.body()?.as_chunks();
    if !rest.is_empty() {
        return Err(packet.bad("length"));
    }
    let vpn = |bytes: &[u8; 8]| read_vpn(u64::from_ne_bytes(*bytes)).ok_or(packet.bad("page"));
    numbers.iter().map(vpn).collect()
}

/// A page of an address space that there can be.
fn read_vpn(number: u64) -> Option<Vpn> {
    (number < 1 << 52).then_some(Vpn(number))
}

/// After a number: whether there is a userfaultfd, and what it can do.
fn write_eye(eye: &EyeParts) -> [u64; 5] {
    match eye {
        EyeParts::Userfault(userfault) => {
            let Abilities { marks, poison, moves, forks } = userfault.abilities();
            [true, marks, poison, moves, forks].map(u64::from)
        }
        EyeParts::Touches { has_guards, .. } => [0, u64::from(*has_guards), 0, 0, 0],
    }
}

/// With its descriptor, and the page that stays registered.
fn read_eye(packet: &Packet, fd: OwnedFd, anchor: Option<Vpn>) -> Result<EyeParts, WordError> {
    if !packet.flag(1, "eye")? {
        return Ok(EyeParts::Touches { process: fd, has_guards: packet.flag(2, "guards")? });
    }
    let ability = |word| packet.flag(word, "ability");
    let abilities = Abilities {
        marks: ability(2)?,
        poison: ability(3)?,
        moves: ability(4)?,
        forks: ability(5)?,
    };
    Ok(EyeParts::Userfault(GuestUserfault::agreed(fd, abilities, anchor)))
}

fn read_place(packet: &Packet, word: usize) -> Result<Range<Vpn>, WordError> {
    let bound = |word: usize| read_vpn(packet.words[word]);
    match (bound(word), bound(word + 1)) {
        (Some(start), Some(end)) if start < end => Ok(start..end),
        _ => Err(packet.bad("place")),
    }
}

impl Report {
    pub(crate) fn write(&self) -> Sent<'_> {
        let descriptors = match self {
            Self::Wanted(Wanted::Attach(_, eye)) => vec![eye.as_fd()],
            _ => Vec::new(),
        };
        (self.packet(), descriptors)
    }

    fn packet(&self) -> Packet {
        match self {
            Self::Done => Packet::new(kind::DONE, &[]),
            Self::Refused(why) => Packet::new(kind::REFUSED, &[]).with_line(why),
            Self::Brought(rest) => {
                let words = [rest.is_some().into(), rest.map_or(0, |from| from.0)];
                Packet::new(kind::BROUGHT, &words)
            }
            Self::Line(line) => Packet::new(kind::LINE, &[]).with_line(line),
            Self::Area(area) => write_area(area),
            Self::State(KeeperState { engine, guests, out_of_memory }) => {
                let EngineStatus { frames, free_frames, active, inactive, cached } = *engine;
                let counts = [frames, free_frames, active, inactive, cached, *guests];
                let [a, b, c, d, e, f] = counts.map(|count| count as u64);
                Packet::new(kind::STATE, &[a, b, c, d, e, f, (*out_of_memory).into()])
            }
            Self::Wanted(wanted) => wanted.packet(),
        }
    }

    pub(crate) fn read((packet, fds): Received) -> Result<Self, WordError> {
        if packet.kind == kind::ATTACH {
            return Wanted::read_child(&packet, fds).map(Self::Wanted);
        }
        packet.exactly::<0>(fds)?;
        Ok(match packet.kind {
            kind::DONE => Self::Done,
            kind::REFUSED => Self::Refused(packet.text()?),
            kind::BROUGHT => Self::Brought(packet.flag(0, "rest")?.then_some(packet.page(1)?)),
            kind::LINE => Self::Line(packet.text()?),
            kind::AREA => Self::Area(read_area(&packet)?),
            kind::STATE => {
                let count = |word: usize| packet.words[word] as usize;
                let engine = EngineStatus {
                    frames: count(0),
                    free_frames: count(1),
                    active: count(2),
                    inactive: count(3),
                    cached: count(4),
                };
                let out_of_memory = packet.flag(6, "verdict")?;
                Self::State(KeeperState { engine, guests: count(5), out_of_memory })
            }
            _ => Self::Wanted(Wanted::read(&packet)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    /// With descriptors and without.
    #[test]
    fn whatever_comes_is_read_or_refused() {
        let place = OpenPlace::of_tests("ram:1M,pri=3");
        let samples = [
            Request::Swap(Box::new(place)).write().unwrap().0,
            Request::Needed(vec![Vpn(1), Vpn(7)]).write().unwrap().0,
            Request::Bring { number: 3, from: Vpn(9) }.write().unwrap().0,
            Packet::new(kind::ADD, &[1, 2, 3, 4, 5, 6]),
            Packet::new(kind::BEGIN, &[1 << 24, 1 << 25]),
            Report::Line("a line".into()).write().0,
            Report::State(KeeperState::default()).write().0,
        ];
        let samples: Vec<&[u8]> = samples.iter().map(bytemuck::bytes_of).collect();
        bolero::check!().with_type::<(Script, u8)>().for_each(|(script, descriptors)| {
            let mut bytes = script.apply(&samples);
            bytes.resize(size_of::<Packet>(), 0);
            let packet: Packet = bytemuck::pod_read_unaligned(&bytes);
            let null = || std::fs::File::open("/dev/null").unwrap().into();
            let with = || (0..descriptors % 13).map(|_| null()).collect();
            let _ = Request::read((packet, with())).map_err(|error| error.to_string());
            let _ = Report::read((packet, with())).map_err(|error| error.to_string());
        });
    }
}
