//! What front and keeper say to each other.
//!
//! Owns: the types of that.
//! Invariant: what a value cannot be is not read.
//! Not here: how it is sent (`overspill_wire`); what is done about it (`process`, `run`).

use super::places::OpenPlace;
use crate::parts::{Birth, GuestParts, SourceParts};
use overspill_base::Bytes;
use overspill_device::compressed::Usage;
use overspill_engine::EngineStatus;
use overspill_guest::Vpn;
use overspill_wire::{Descriptor, descriptor};
use rustix::fd::OwnedFd;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Of a line for the user, which is cut if it is longer.
const LINE_BYTES_MAX: usize = 4096;

/// What the front asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// A place to swap to; before `Begin`, which takes it over. No answer.
    Swap(Box<OpenPlace>),
    /// Take the places over and be ready. The answer: the areas, then `Done`.
    Begin {
        /// The limit of all guests.
        #[serde(deserialize_with = "limit")]
        memory: Bytes,
        /// The most that it can be set to.
        memory_max: Bytes,
        /// The file of the counters.
        #[serde(with = "descriptor")]
        stats: OwnedFd,
        /// The file of the record of pages that come, if there is to be one.
        arrivals: Option<Descriptor>,
    },
    /// Another place to swap to, from now on. The answer: its area, then `Done`.
    AddSwap(Box<OpenPlace>),
    /// Swap no more to the place with this name, path or number; if several have it, to the one
    /// added last. The answer: its area, then `Done`. It leaves as there is room.
    RemoveSwap(String),
    /// Pages that must stay, of the guest of the next `Add`. No answer.
    Needed(Vec<Vpn>),
    /// Page a guest; its pages that are needed were told before. The answer is `Done`, `Refused`,
    /// or `Unable`.
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
    /// others. The answer, after however long that takes: `Done`, or `NotNow` or `Refused`, and it
    /// is paged as before.
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
        userfaultfd: Option<Descriptor>,
    },
    /// How things are. The answer: the areas, then `State`.
    Status,
    /// Get ready: the first guest will soon come. No answer.
    Prepare,
    /// Another limit. No answer.
    SetMemory(#[serde(deserialize_with = "limit")] Bytes),
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
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// It is done.
    Done,
    /// It cannot be done before the front has gone on with other things.
    NotNow,
    /// It cannot be done, and why.
    Refused(#[serde(serialize_with = "cut")] String),
    /// No guest can be paged, and why.
    Unable(#[serde(serialize_with = "cut")] String),
    /// Pages were brought back; from there on there may be more.
    Brought(Option<Vpn>),
    /// A line for the user; at any time.
    Line(#[serde(serialize_with = "cut")] String),
    /// A swap area.
    Area(AreaState),
    /// How things are.
    State(KeeperState),
    /// Something is to be done; at any time.
    Wanted(Wanted),
}

/// How things are in a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct KeeperState {
    /// Of the engine; zeros if it was not needed.
    pub engine: EngineStatus,
    /// Guests that have not ended.
    pub guests: usize,
    /// True if a guest was killed for lack of memory.
    pub out_of_memory: bool,
}

/// What a keeper wants of its front. Guests are named by their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Wanted {
    /// That all threads of a guest are told to stop.
    Hold(u64),
    /// As `Hold`, and that `Frozen` is said then.
    Freeze(u64),
    /// As `Hold`, and that `Stands` is said when they have stopped.
    Still(u64),
    /// That they go on.
    Release(u64),
    /// A guest has forked: its child is to be attached to as another one.
    Attach {
        /// The child's number from now on.
        child: u64,
        /// What tells of it.
        source: SourceParts,
        /// The numbers of its parent and of the fork, if it was to be fetched.
        birth: Option<(u64, u64)>,
    },
    /// There is no such child any more.
    Forget(u64),
    /// That a guest is let go for good: it waits for that, to filter its calls.
    LetGo(u64),
    /// A guest has made a child: what tells of it is to be fetched.
    Fetch(Birth),
}

/// A swap area.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AreaState {
    /// Its number.
    pub number: usize,
    /// True while it is being swapped off.
    pub leaving: bool,
    /// Its name.
    #[serde(serialize_with = "cut")]
    pub name: String,
    /// What the user should know about it, one line each.
    pub notes: Vec<String>,
    /// Its size when fully grown.
    pub capacity: Bytes,
    /// What is in use.
    pub used: Bytes,
    /// The most that ever was.
    pub used_most: Bytes,
    /// What compressed memory holds.
    pub compressed: Option<Usage>,
}

impl Request {
    /// Most pages of a `Needed`.
    pub const NEEDED_MAX: usize = 1024;
}

/// A limit, which is a page at least.
fn limit<'d, D: Deserializer<'d>>(from: D) -> Result<Bytes, D::Error> {
    let limit = Bytes::deserialize(from)?;
    match limit.pages_floor() {
        0 => Err(D::Error::custom("it is no limit")),
        _ => Ok(limit),
    }
}

fn cut<S: Serializer>(line: &str, to: S) -> Result<S::Ok, S::Error> {
    line[..line.floor_char_boundary(LINE_BYTES_MAX)].serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_agent::Barrier;
    use overspill_guest::Channel;
    use overspill_guest::userfault::{Abilities, GuestUserfault};
    use overspill_mutate::Script;
    use overspill_wire::{Encoded, MESSAGE_BYTES_MAX, decode, encode};
    use rustix::fd::{AsFd, BorrowedFd};
    use serde::de::DeserializeOwned;

    /// What is read where something was sent.
    fn read<T: Serialize + DeserializeOwned>(sent: &T) -> T {
        let Encoded { bytes, descriptors } = encode(sent).unwrap();
        decode(&bytes, descriptors).unwrap()
    }

    /// A file that is known by its size.
    fn file(bytes: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        file
    }

    fn begin(memory: Bytes) -> Request {
        let arrivals = Some(file(2).into());
        Request::Begin { memory, memory_max: Bytes(1 << 22), stats: file(1), arrivals }
    }

    #[test]
    fn requests_arrive_as_they_were_sent() {
        let requests = [
            Request::Swap(Box::new(OpenPlace::of_tests("ram:1M,pri=3"))),
            begin(Bytes(1 << 20)),
            Request::SetMemory(Bytes(1 << 21)),
            Request::AddSwap(Box::new(OpenPlace::of_tests("compressed:1M"))),
            Request::RemoveSwap("/var/tmp".into()),
            Request::Needed(vec![Vpn(1), Vpn((1 << 52) - 1)]),
            Request::Needed(vec![Vpn((1 << 52) - 1); Request::NEEDED_MAX]),
            Request::Ended { number: u64::MAX },
            Request::Status,
            Request::Prepare,
        ];
        for request in requests {
            let without_number = |request: &Request| {
                let text = format!("{request:?}");
                text.split("fd:").next().unwrap().to_owned()
            };
            assert_eq!(without_number(&read(&request)), without_number(&request));
        }
    }

    #[test]
    fn a_guest_arrives_with_each_descriptor_in_its_place() {
        let abilities = Abilities { marks: true, poison: false, moves: true, forks: false };
        let own = [Vpn(1)..Vpn(3), Vpn(7)..Vpn(9), Vpn(20)..Vpn(30)];
        let userfault = GuestUserfault::agreed(file(3), abilities, Some(own[1].start));
        let guest = GuestParts {
            name: "process 5".into(),
            process: file(1),
            agent: file(2),
            source: SourceParts::Userfault(userfault),
            pagemap: file(4),
            maps: file(5),
            smaps: file(6),
            statm: file(7),
            channel: Channel::from(file(8)),
            memory: file(9),
            own: own.clone(),
            letters: Some([file(10), file(11)].map(Descriptor::from)),
            needed: Vec::new(),
        };
        let Request::Add { number: 5, guest } =
            read(&Request::Add { number: 5, guest: Box::new(guest) })
        else {
            panic!("something else was read")
        };
        let size = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).unwrap().st_size;
        let GuestParts { process, agent, source, pagemap, maps, smaps, statm, .. } = &*guest;
        let GuestParts { channel, memory, .. } = &*guest;
        let fd = descriptor_of(source);
        let [bell, letters] = guest.letters.as_ref().unwrap();
        let all: [&dyn AsFd; 11] =
            [process, agent, &fd, pagemap, maps, smaps, statm, channel, memory, bell, letters];
        assert_eq!(all.map(size), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!((guest.name.as_str(), &guest.own), ("process 5", &own));
        assert_eq!((abilities_of(source), source.anchor()), (Some(abilities), Some(Vpn(7))));
    }

    fn descriptor_of(source: &SourceParts) -> BorrowedFd<'_> {
        match source {
            SourceParts::Userfault(userfault) => userfault.as_fd(),
            SourceParts::Signals { process, .. } => process.as_fd(),
            SourceParts::Twin(twin) => twin.as_fd(),
        }
    }

    fn abilities_of(source: &SourceParts) -> Option<Abilities> {
        match source {
            SourceParts::Userfault(userfault) => Some(userfault.abilities()),
            SourceParts::Signals { .. } | SourceParts::Twin(_) => None,
        }
    }

    #[test]
    fn a_fork_arrives_with_what_tells_of_it() {
        let abilities = Abilities { marks: true, poison: true, moves: false, forks: true };
        let userfault = GuestUserfault::agreed(file(9), abilities, None);
        for (source, abilities) in [
            (SourceParts::Userfault(userfault), Some(abilities)),
            (SourceParts::Signals { process: file(9), barrier: Barrier::Guard }, None),
        ] {
            let birth = abilities.map(|_| (7, 9));
            let told = Report::Wanted(Wanted::Attach { child: 1 << 63, source, birth });
            let Report::Wanted(Wanted::Attach { child, source, birth: of }) = read(&told) else {
                panic!("something else was read")
            };
            assert_eq!((child, of), (1 << 63, birth));
            assert_eq!(rustix::fs::fstat(descriptor_of(&source)).unwrap().st_size, 9);
            assert_eq!(abilities_of(&source), abilities);
        }
    }

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let area = AreaState {
            number: 3,
            leaving: true,
            name: "/var/tmp".into(),
            notes: vec!["written directly".into(), "encrypted".into()],
            capacity: Bytes(1 << 30),
            used: Bytes(1),
            used_most: Bytes(2),
            compressed: Some(Usage { memory_bytes_max: 9, ..Usage::default() }),
        };
        let state = KeeperState { guests: 3, out_of_memory: true, ..KeeperState::default() };
        let reports = [
            Report::Done,
            Report::NotNow,
            Report::Refused("no".into()),
            Report::Unable("no".into()),
            Report::Area(area),
            Report::State(state),
        ];
        for report in reports {
            assert_eq!(format!("{:?}", read(&report)), format!("{report:?}"));
        }
        let long = "\u{fc}".repeat(MESSAGE_BYTES_MAX);
        let Report::Line(line) = read(&Report::Line(format!("x{long}"))) else {
            panic!("something else was read")
        };
        assert_eq!(line.len(), LINE_BYTES_MAX - 1);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |request: &Request| {
            let Encoded { bytes, descriptors } = encode(request).unwrap();
            decode::<Request>(&bytes, descriptors).is_err()
        };
        assert!(refused(&begin(Bytes(1))) && !refused(&begin(Bytes(4096))));
        assert!(refused(&Request::SetMemory(Bytes(4095))));
        assert!(refused(&Request::Bring { number: 1, from: Vpn(1 << 52) }));
        assert!(refused(&Request::Needed(vec![Vpn(u64::MAX)])));
    }

    /// With descriptors and without.
    #[test]
    fn whatever_comes_is_read_or_refused() {
        let place = OpenPlace::of_tests("ram:1M,pri=3");
        let samples = [
            encode(&Request::Swap(Box::new(place))),
            encode(&Request::Needed(vec![Vpn(1), Vpn(7)])),
            encode(&Request::Bring { number: 3, from: Vpn(9) }),
            encode(&begin(Bytes(1 << 20))),
            encode(&Report::Line("a line".into())),
            encode(&Report::State(KeeperState::default())),
        ];
        let samples: Vec<Vec<u8>> =
            samples.into_iter().map(|encoded| encoded.unwrap().bytes).collect();
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        bolero::check!().with_type::<(Script, u8)>().for_each(|(script, descriptors)| {
            let bytes = script.apply(&samples);
            let null = || std::fs::File::open("/dev/null").unwrap().into();
            let with = || (0..descriptors % 13).map(|_| null()).collect();
            let _ = decode::<Request>(&bytes, with()).map_err(|error| error.to_string());
            let _ = decode::<Report>(&bytes, with()).map_err(|error| error.to_string());
        });
    }
}
