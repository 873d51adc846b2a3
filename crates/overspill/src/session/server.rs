//! The supervisor's end of the channels: a thread that hands out descriptors and passes lines on.
//!
//! Owns: the listening socket and the connections of all processes of the run. A pager keeps its
//! connection open as long as it lives, so that its end is noticed here. And their userfaultfds:
//! if a pager is killed, its program waits for missing pages until it is killed as well.
//! Invariants: a refused process learns nothing. A process that sends an invalid message loses its
//! own connection and affects no other. Lines sent before the end are reported, up to a number.
//! A process for which there are no descriptors left is refused, and not left waiting.
//! Not here: what the descriptors are.

use super::channel::{
    Address, DEVICES_ONLY, MESSAGE_BYTES_MAX, SECRET_BYTES, Secret, WITH_DESCRIPTORS,
    send_descriptors,
};
use super::peer::Peer;
use crate::error::Error;
use overspill_base::sync::{Arc, Condvar, LockClass, Mutex};
use overspill_space::uffd::has_memory;
use overspill_space::with_signals_blocked;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recvmsg, socket_with,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Lines that are still read of each process when the run has ended.
const LAST_LINES_MAX: usize = 64;

/// Serves the processes of a run until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    address: Address,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Keeps the file the socket was bound to alive, without a name.
    _file: Option<OwnedFd>,
}

#[derive(Debug)]
struct Shared {
    /// Processes whose pagers are connected, by the numbers that those report; forked ones are 0.
    connected: Mutex<Vec<i32>>,
    changed: Condvar,
    /// Readable when the thread must end.
    end: OwnedFd,
}

/// What a process asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    All,
    Devices,
}

/// Makes the descriptors for a process.
pub(super) type Descriptors = Box<dyn Fn(Wanted) -> Result<Vec<OwnedFd>, Errno> + Send>;

/// What is served, and to which processes.
pub(super) struct Terms {
    /// What processes started by exec must know.
    pub(super) secret: Secret,
    /// What forked children must know.
    pub(super) fork_secret: Secret,
    /// Makes what is handed out.
    pub(super) descriptors: Descriptors,
    /// Takes lines for the user.
    pub(super) report: fn(&str),
}

/// What came of looking at a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Nothing,
    Message,
    End,
}

struct Connection {
    socket: OwnedFd,
    /// The process that was served.
    process: Option<i32>,
    userfault: Option<OwnedFd>,
    /// Keeps a descriptor free for it until it comes.
    room: Option<OwnedFd>,
}

/// How often it is looked whether programs without a pager have ended.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

impl Server {
    pub(super) fn start(terms: Terms) -> Result<Self, Error> {
        let address = Address {
            name: Secret::random()?,
            secret: terms.secret,
            supervisor: rustix::process::getpid().as_raw_pid(),
            file: -1,
            joined: None,
        };
        let refused = Error::session("offer");
        let listener = listening(&address.socket_address()).map_err(refused)?;
        let (by_file, file) = without_a_name().map_or((None, None), |(l, f)| (Some(l), Some(f)));
        let number = file.as_ref().map_or(-1, rustix::fd::AsRawFd::as_raw_fd);
        let shared = Arc::new(Shared {
            connected: Mutex::new(LockClass::Control, Vec::new()),
            changed: Condvar::new(),
            end: eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::session("offer"))?,
        });
        let listeners = [Some(listener), by_file].into_iter().flatten().collect();
        let service = Service {
            terms,
            listeners,
            connections: Vec::new(),
            left: Vec::new(),
            spare: shared.end.try_clone().ok(),
            shared: shared.clone(),
        };
        let builder = std::thread::Builder::new().name("ovs-session".into());
        // Signals are for the thread that waits for the program.
        let thread = with_signals_blocked(|| builder.spawn(move || service.run()))
            .map_err(Error::system("start the session's thread"))?;
        let address = Address { file: number, ..address };
        Ok(Self { address, shared, thread: Some(thread), _file: file })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Waits until the pager of `process` has ended, at most for `patience`.
    pub(super) fn wait_gone(&self, process: i32, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut connected = self.shared.connected.lock();
        while connected.contains(&process) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            connected = self.shared.changed.wait_for(connected, left);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        // A panic was reported when it happened.
        self.thread.take().map(JoinHandle::join);
    }
}

struct Service {
    terms: Terms,
    listeners: Vec<OwnedFd>,
    connections: Vec<Connection>,
    /// Userfaultfds of pagers that have ended before their programs.
    left: Vec<OwnedFd>,
    /// Keeps a descriptor free for accepting those who are refused.
    spare: Option<OwnedFd>,
    shared: Arc<Shared>,
}

impl Service {
    fn run(mut self) {
        loop {
            let ready = {
                let sockets = self.connections.iter().map(|connection| &connection.socket);
                let all = [&self.shared.end].into_iter().chain(&self.listeners).chain(sockets);
                let mut fds: Vec<_> =
                    all.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
                // After EINTR or any other error: look again.
                let _ = poll(&mut fds, (!self.left.is_empty()).then_some(&GLANCE));
                fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>()
            };
            self.left.retain(|userfault| has_memory(userfault.as_fd()));
            if ready[0] {
                return self.receive_the_rest();
            }
            let listeners = self.listeners.len();
            self.attend(&ready[1 + listeners..]);
            for n in (0..listeners).filter(|n| ready[1 + n]) {
                self.accept(n);
            }
        }
    }

    /// Processes the connections that are ready.
    fn attend(&mut self, ready: &[bool]) {
        let mut connections = std::mem::take(&mut self.connections);
        let mut ready = ready.iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().copied().unwrap_or(false);
            let keep = !is_ready || self.receive(connection) != Received::End;
            if !keep && let Some(gone) = connection.process {
                self.left.extend(connection.userfault.take());
                let mut connected = self.shared.connected.lock();
                let at = connected.iter().position(|&process| process == gone);
                at.map(|at| connected.swap_remove(at));
                self.shared.changed.notify_all();
            }
            keep
        });
        self.connections = connections;
    }

    fn accept(&mut self, listener: usize) {
        let accept = || accept_with(&self.listeners[listener], SocketFlags::CLOEXEC);
        match accept() {
            // Without room it is closed, which is a refusal.
            Ok(socket) => self.connections.extend(self.shared.end.try_clone().ok().map(|room| {
                Connection { socket, process: None, userfault: None, room: Some(room) }
            })),
            Err(Errno::MFILE | Errno::NFILE) => {
                drop(self.spare.take());
                drop(accept());
                self.spare = self.shared.end.try_clone().ok();
            }
            // It is gone.
            Err(_) => {}
        }
    }

    /// Reports what was sent before the end: on a busy machine this thread may run only now.
    fn receive_the_rest(mut self) {
        let served = std::mem::take(&mut self.connections).into_iter();
        for mut connection in served.filter(|connection| connection.process.is_some()) {
            for _ in 0..LAST_LINES_MAX {
                if self.receive(&mut connection) != Received::Message {
                    break;
                }
            }
        }
    }

    fn receive(&self, connection: &mut Connection) -> Received {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        connection.room.take_if(|_| connection.process.is_some());
        let received = retry_on_intr(|| {
            let room = &mut [IoSliceMut::new(&mut message)];
            recvmsg(&connection.socket, room, &mut control, flags)
        });
        let message = match received {
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::End,
            Ok(received) if received.bytes == 0 => return Received::End,
            Ok(received) => &message[..received.bytes],
        };
        let userfault = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if connection.process.is_none() {
            let welcome = self.welcome(connection, message);
            return welcome.map_or(Received::End, |()| Received::Message);
        }
        match message {
            [WITH_DESCRIPTORS] => connection.userfault = userfault,
            line => (self.terms.report)(&String::from_utf8_lossy(line)),
        }
        Received::Message
    }

    /// Serves a new connection, if it is allowed.
    fn welcome(&self, connection: &mut Connection, greeting: &[u8]) -> Option<()> {
        let (secret, process) = greeting.split_at_checked(SECRET_BYTES)?;
        let process = i32::from_ne_bytes(process.try_into().ok()?);
        let peer = Peer::of(&connection.socket).ok()?;
        let own = peer.user == rustix::process::geteuid().as_raw() && secret == self.terms.secret.0;
        if !own && secret != self.terms.fork_secret.0 {
            return None;
        }
        let wanted = if process == DEVICES_ONLY { Wanted::Devices } else { Wanted::All };
        let descriptors = (self.terms.descriptors)(wanted).ok()?;
        let fds: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // Before the answer: a process that has it may end at once.
        self.shared.connected.lock().push(process);
        connection.process = Some(process);
        send_descriptors(&connection.socket, &fds).ok()
    }
}

fn listening(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket bound to a file that has been unlinked, and the file. None if no directory allows that:
/// it is only for processes in other network namespaces.
fn without_a_name() -> Option<(OwnedFd, OwnedFd)> {
    let number = u128::from_ne_bytes(Secret::random().ok()?.0);
    let path = std::env::temp_dir().join(format!("overspill-{number:032x}"));
    let socket = listening(&SocketAddrUnix::new(&path).ok()?).ok()?;
    let file = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let _ = std::fs::remove_file(&path);
    Some((socket, file.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Channel;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static LINES: AtomicUsize = AtomicUsize::new(0);

    fn terms(report: fn(&str)) -> Terms {
        Terms {
            secret: Secret::random().unwrap(),
            fork_secret: Secret::random().unwrap(),
            descriptors: Box::new(|_| Ok(vec![std::fs::File::open("/dev/null").unwrap().into()])),
            report,
        }
    }

    fn join(server: &Server) -> Channel {
        let mut address = server.address().clone();
        let channel = Channel::join(&mut address, rustix::process::getpid()).unwrap();
        drop(channel.descriptors().unwrap());
        channel
    }

    #[test]
    fn what_a_pager_has_entrusted_outlasts_it() {
        let is_closed_elsewhere = |pipe: &OwnedFd, patience: &Timespec| {
            poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(patience)) == Ok(1)
        };
        let server = Server::start(terms(|line| panic!("{line}"))).unwrap();
        let channel = join(&server);
        // As little without memory as a userfaultfd whose program goes on.
        let (ours, entrusted) = rustix::pipe::pipe().unwrap();
        channel.entrust(entrusted.as_fd()).unwrap();
        drop((channel, entrusted));
        let some_glances = Timespec { tv_nsec: 5 * GLANCE.tv_nsec, ..GLANCE };
        assert!(!is_closed_elsewhere(&ours, &some_glances));
        drop(server);
        assert!(is_closed_elsewhere(&ours, &some_glances));
    }

    /// The last words of a program that is killed for lack of memory are such lines.
    #[test]
    fn lines_told_before_the_end_are_reported() {
        const ROUNDS: usize = 100;
        for _ in 0..ROUNDS {
            let server = Server::start(terms(|_| {
                LINES.fetch_add(1, Ordering::Relaxed);
            }));
            let server = server.unwrap();
            let channel = join(&server);
            (0..3).for_each(|_| channel.tell("last words"));
            drop(server);
        }
        assert_eq!(LINES.load(Ordering::Relaxed), 3 * ROUNDS);
    }
}
