//! The socket between front and keeper.
//!
//! Owns: sending and receiving of messages, with a deadline for each.
//! Invariants: a message comes whole or not at all, and one of another size is an error. The end of
//! the keeper is known by its pidfd, not by its socket, which another process keeps open for it.
//! Not here: what messages say (`words`).

use crate::words::{DESCRIPTORS_MAX, Packet, Received, Report, Request, Sent, WordError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Why nothing was sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is no more.
    #[error("the other end has ended")]
    Ended,
    /// It says or takes nothing.
    #[error("the other end does not answer: is it stopped, or its disk very slow?")]
    Silent,
    /// What came is no message.
    #[error(transparent)]
    Word(#[from] WordError),
    /// A message of another size.
    #[error("a message has {0} bytes: was the program replaced while it ran?")]
    Size(usize),
    /// The socket.
    #[error("the socket between front and keeper failed: {0}")]
    Socket(Errno),
}

/// One end.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
}

impl From<OwnedFd> for Link {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl Link {
    /// Makes two ends; the second is for another process.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from(own), other))
    }

    /// Asks the keeper for something. The answer, if there is one, is to be taken before the next
    /// request.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn ask(&self, request: &Request, at_most: Duration) -> Result<(), LinkError> {
        self.send(&request.write()?, Some(Instant::now() + at_most))
    }

    /// Takes what the keeper says next; `keeper` is its pidfd.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn report(
        &self,
        keeper: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<Report, LinkError> {
        Ok(Report::read(self.receive(Some(keeper), deadline)?)?)
    }

    /// Takes what the front asks for next; waits for that, at most until a deadline if there is
    /// one.
    pub(crate) fn request(&self, deadline: Option<Instant>) -> Result<Request, LinkError> {
        Ok(Request::read(self.receive(None, deadline)?)?)
    }

    /// Answers the front.
    pub(crate) fn answer(&self, report: &Report, at_most: Duration) -> Result<(), LinkError> {
        self.send(&report.write(), Some(Instant::now() + at_most))
    }

    /// Says something that the front did not ask for. Who does so may have no time to wait: it is
    /// lost if the front takes nothing.
    pub(crate) fn tell(&self, report: &Report) {
        let _ = self.send_now(&report.write());
    }

    /// Has the other end see the end of this one.
    pub fn close(&self) {
        // It is the end already if that cannot be.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn send(&self, message: &Sent<'_>, deadline: Option<Instant>) -> Result<(), LinkError> {
        loop {
            match self.send_now(message) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, None, deadline)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Ended),
                sent => return sent.map_err(LinkError::Socket),
            }
        }
    }

    fn send_now(&self, (packet, descriptors): &Sent<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = SendAncillaryMessage::ScmRights(descriptors);
        if !descriptors.is_empty() && !control.push(rights) {
            return Err(Errno::NOBUFS);
        }
        let bytes = [IoSlice::new(bytemuck::bytes_of(packet))];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::io::retry_on_intr(|| sendmsg(&self.socket, &bytes, &mut control, flags)).map(drop)
    }

    fn receive(
        &self,
        peer: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<Received, LinkError> {
        loop {
            match self.receive_now() {
                Err(LinkError::Socket(Errno::AGAIN)) => {
                    self.wait(PollFlags::IN, peer, deadline)?;
                }
                received => return received,
            }
        }
    }

    fn receive_now(&self) -> Result<Received, LinkError> {
        let mut packet: Packet = bytemuck::Zeroable::zeroed();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            let mut bytes = [IoSliceMut::new(bytemuck::bytes_of_mut(&mut packet))];
            recvmsg(&self.socket, &mut bytes, &mut control, flags)
        });
        let received = received.map_err(LinkError::Socket)?;
        // Descriptors that came are closed if the message is not taken.
        let descriptors = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        match received.bytes {
            0 => Err(LinkError::Ended),
            bytes
                if bytes == size_of::<Packet>() && !received.flags.contains(ReturnFlags::TRUNC) =>
            {
                Ok((packet, descriptors))
            }
            bytes => Err(LinkError::Size(bytes)),
        }
    }

    /// Waits until the socket is ready. When `peer` has ended, what it said before is still read.
    fn wait(
        &self,
        ready: PollFlags,
        peer: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(LinkError::Silent);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::new(&self.socket, ready)];
        fds.extend(peer.map(|peer| PollFd::from_borrowed_fd(peer, PollFlags::IN)));
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(LinkError::Socket(errno)),
            Ok(0) => Err(LinkError::Silent),
            Ok(_) if fds[0].revents().is_empty() => Err(LinkError::Ended),
            Ok(_) => Ok(()),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eye::EyeParts;
    use crate::known::GuestParts;
    use crate::places::OpenPlace;
    use crate::words::{AreaState, BODY_BYTES, KeeperState, Wanted};
    use overspill_base::Bytes;
    use overspill_guest::userfault::{Abilities, GuestUserfault};
    use overspill_guest::{Channel, Vpn};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    const SOON: Duration = Duration::from_secs(5);

    fn pair() -> (Link, Link) {
        let (front, keeper) = Link::pair().unwrap();
        (front, Link::from(keeper))
    }

    fn own_process() -> OwnedFd {
        pidfd_open(getpid(), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn requests_arrive_as_they_were_sent() {
        let (front, keeper) = pair();
        let stats = rustix::fs::memfd_create("stats", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let requests = [
            Request::Swap(Box::new(OpenPlace::of_tests("ram:1M,pri=3"))),
            Request::Begin {
                memory: Bytes(1 << 20),
                memory_max: Bytes(1 << 22),
                stats,
                arrivals: None,
            },
            Request::SetMemory(Bytes(1 << 21)),
            Request::AddSwap(Box::new(OpenPlace::of_tests("compressed:1M"))),
            Request::RemoveSwap("/var/tmp".into()),
            Request::Needed(vec![Vpn(1), Vpn((1 << 52) - 1)]),
            Request::Ended { number: u64::MAX },
            Request::Status,
            Request::Prepare,
        ];
        for request in requests {
            front.ask(&request, SOON).unwrap();
            let read = keeper.request(None).unwrap();
            let without_number = |request: &Request| {
                let text = format!("{request:?}");
                text.split("fd:").next().unwrap().to_owned()
            };
            assert_eq!(without_number(&read), without_number(&request));
        }
    }

    /// A file that is known by its size.
    fn file(bytes: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_guest_arrives_with_each_descriptor_in_its_place() {
        let (front, keeper) = pair();
        let abilities = Abilities { marks: true, poison: false, moves: true, forks: false };
        let own = [Vpn(1)..Vpn(3), Vpn(7)..Vpn(9), Vpn(20)..Vpn(30)];
        let guest = GuestParts {
            name: "process 5".into(),
            process: file(1),
            agent: file(2),
            eye: EyeParts::Userfault(GuestUserfault::agreed(
                file(3),
                abilities,
                Some(own[1].start),
            )),
            pagemap: file(4),
            maps: file(5),
            smaps: file(6),
            statm: file(7),
            channel: Channel::from(file(8)),
            memory: file(9),
            own: own.clone(),
            letters: Some([file(10), file(11)]),
            needed: Vec::new(),
        };
        front.ask(&Request::Add { number: 5, guest: Box::new(guest) }, SOON).unwrap();
        let Request::Add { number: 5, guest } = keeper.request(None).unwrap() else { panic!() };
        let size = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).unwrap().st_size;
        let GuestParts { process, agent, eye, pagemap, maps, smaps, statm, .. } = &*guest;
        let GuestParts { channel, memory, .. } = &*guest;
        let [bell, letters] = guest.letters.as_ref().unwrap();
        let all: [&dyn AsFd; 11] =
            [process, agent, eye, pagemap, maps, smaps, statm, channel, memory, bell, letters];
        assert_eq!(all.map(size), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!((guest.name.as_str(), &guest.own), ("process 5", &own));
        assert_eq!(abilities_of(eye), Some(abilities));
    }

    fn abilities_of(eye: &EyeParts) -> Option<Abilities> {
        match eye {
            EyeParts::Userfault(userfault) => Some(userfault.abilities()),
            EyeParts::Touches { .. } => None,
        }
    }

    #[test]
    fn a_fork_arrives_with_its_userfaultfd() {
        let (front, keeper) = pair();
        let abilities = Abilities { marks: true, poison: true, moves: false, forks: true };
        let userfault = GuestUserfault::agreed(file(9), abilities, None);
        for (eye, abilities) in [
            (EyeParts::Userfault(userfault), Some(abilities)),
            (EyeParts::Touches { process: file(9), has_guards: true }, None),
        ] {
            keeper.answer(&Report::Wanted(Wanted::Attach(1 << 63, eye)), SOON).unwrap();
            let report = front.report(own_process().as_fd(), None).unwrap();
            let Report::Wanted(Wanted::Attach(number, eye)) = report else { panic!() };
            assert_eq!(number, 1 << 63);
            assert_eq!(rustix::fs::fstat(&eye).unwrap().st_size, 9);
            assert_eq!(abilities_of(&eye), abilities);
        }
    }

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let (front, keeper) = pair();
        let area = AreaState {
            number: 3,
            leaving: true,
            name: "/var/tmp".into(),
            notes: vec!["written directly".into(), "encrypted".into()],
            capacity: Bytes(1 << 30),
            used: Bytes(1),
            used_most: Bytes(2),
            compressed: Some(overspill_device::compressed::Usage {
                memory_bytes_max: 9,
                ..Default::default()
            }),
        };
        let state = KeeperState { guests: 3, out_of_memory: true, ..Default::default() };
        let reports =
            [Report::Done, Report::Refused("no".into()), Report::Area(area), Report::State(state)];
        let own = own_process();
        for report in reports {
            keeper.answer(&report, SOON).unwrap();
            let read = front.report(own.as_fd(), None).unwrap();
            assert_eq!(format!("{read:?}"), format!("{report:?}"));
        }
        keeper.tell(&Report::Line("x".repeat(2 * BODY_BYTES)));
        let Report::Line(line) = front.report(own.as_fd(), None).unwrap() else { panic!() };
        assert_eq!(line.len(), BODY_BYTES);
    }

    /// Every byte that decides what a message means, with a value that it cannot have.
    #[test]
    fn what_cannot_be_is_refused() {
        let (front, keeper) = pair();
        let mut good: Vec<u8> = vec![0; size_of::<Packet>()];
        let mut refused = |at: usize, bytes: &[u8]| {
            good.fill(0);
            good[at..at + bytes.len()].copy_from_slice(bytes);
            rustix::net::send(&front, &good, SendFlags::empty()).unwrap();
            keeper.request(None).unwrap_err()
        };
        assert_eq!(refused(0, &[99]), LinkError::Word(WordError::Kind(99)));
        let part = |error| match error {
            LinkError::Word(WordError::Part { part, .. }) => part,
            other => panic!("{other}"),
        };
        assert_eq!(part(refused(0, &[1, 0, 0, 0, 255, 255])), "length");
        assert_eq!(part(refused(0, &[1])), "place");
        assert_eq!(part(refused(0, &[2])), "number of descriptors");
        assert_eq!(part(refused(0, &[3, 0, 0, 0, 7])), "length");
        assert_eq!(part(refused(0, &[4])), "number of descriptors");
        rustix::net::send(&front, b"short", SendFlags::empty()).unwrap();
        assert_eq!(keeper.request(None).unwrap_err(), LinkError::Size(5));
    }

    #[test]
    fn silence_and_ends_are_told_apart() {
        let (front, keeper) = pair();
        let own = own_process();
        let soon = Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(front.report(own.as_fd(), soon).unwrap_err(), LinkError::Silent);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty());
        // Its socket stays open, as a holder keeps it.
        assert_eq!(front.report(process.unwrap().as_fd(), None).unwrap_err(), LinkError::Ended);
        child.wait().unwrap();
        drop(front);
        assert_eq!(keeper.request(None).unwrap_err(), LinkError::Ended);
    }
}
