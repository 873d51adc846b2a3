//! Runs that go on, and asking them.
//!
//! Owns: finding the sockets of runs, and a talk with one.
//! Invariants: who asks believes only a process of the user in whose directory the socket was
//! found, that goes on, with the number that it was found by; and waits and reads no more than a
//! limit. Of two that were found by one number the one comes first whose number that is here: the
//! other is of another PID namespace.
//! Not here: what can be asked, and what is answered (`cli`); answering (`answers`).

use crate::homes::{Directory, Home};
use overspill_guest::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How often it is tried to reach a run that many want to talk to.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// A question with more bytes gets no answer.
pub(crate) const QUESTION_BYTES_MAX: usize = 8192;
/// An answer with more bytes is none.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A run that goes on, in this mount namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The number of its `overspill run`.
    pub process: i32,
    /// In whose directory its socket is.
    pub user: u32,
    home: Home,
}

/// Whose number a run was found by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Number {
    /// Its own, here.
    Own,
    /// Its own in another PID namespace.
    Elsewhere,
}

impl Run {
    /// Returns all runs that this user may ask, by their numbers. The sockets of those that ended
    /// without taking them away are removed.
    pub fn all() -> Vec<Self> {
        let found = Home::all().into_iter().flat_map(|(home, user)| of(home, user));
        let mut runs: Vec<_> = found.collect();
        runs.sort_unstable_by_key(|(run, number)| (run.process, *number, run.user, run.home));
        runs.dedup_by_key(|(run, _)| (run.process, run.user));
        runs.into_iter().map(|(run, _)| run).collect()
    }

    /// Asks the run. Blocks, while others ask too, until `deadline` at most.
    ///
    /// # Errors
    /// That the run has ended meanwhile, that its socket is somebody else's, or that it does not
    /// answer, or without end.
    pub fn ask(self, question: &str, deadline: Instant) -> io::Result<String> {
        if question.len() > QUESTION_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut talk = Talk { socket: self.reach(deadline)?, deadline };
        talk.write_all(question.as_bytes())?;
        talk.socket.shutdown(Shutdown::Write)?;
        talk.read_all()
    }

    pub(crate) fn reach(self, deadline: Instant) -> io::Result<UnixStream> {
        let directory = self.home.open(self.user)?;
        let socket = connect_until(&directory, self.process, deadline)?;
        match self.number_of(&socket)? {
            Some(_) => Ok(socket),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Whose number that of the other end is; `None` if that is not this run, but a process that
    /// has taken its name, or one that has its number from a process that has ended.
    fn number_of(self, socket: &UnixStream) -> io::Result<Option<Number>> {
        let peer = Peer::of(socket)?;
        let number = match peer.process {
            Some(process) => (process.as_raw_pid() == self.process).then_some(Number::Own),
            None => (peer.user == geteuid().as_raw()).then_some(Number::Elsewhere),
        };
        Ok(number.filter(|_| peer.user == self.user && peer.goes_on()))
    }

    /// Whether its process is stopped, as by Ctrl-Z: then it answers nobody.
    pub fn is_stopped(self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process));
        status.is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tT")))
    }

    /// Whether it goes on.
    pub fn goes_on(self) -> bool {
        self.home.open(self.user).is_ok_and(|directory| self.found_in(&directory).is_some())
    }

    /// Whose its number is; `None` if it has ended, and then its socket is taken away.
    fn found_in(self, directory: &Directory) -> Option<Number> {
        match try_to_connect(directory, self.process) {
            Ok(socket) => self.number_of(&socket).unwrap_or(None),
            Err(Errno::CONNREFUSED) => {
                let _ = std::fs::remove_file(directory.socket(self.process));
                None
            }
            // Many talk to it: whoever it is.
            Err(Errno::AGAIN) => (self.user == geteuid().as_raw()).then_some(Number::Elsewhere),
            Err(_) => None,
        }
    }
}

fn of(home: Home, user: u32) -> Vec<(Run, Number)> {
    let Ok(directory) = home.open(user) else { return Vec::new() };
    let runs = directory.processes().into_iter().map(|process| Run { process, user, home });
    runs.filter_map(|run| Some((run, run.found_in(&directory)?))).collect()
}

fn try_to_connect(directory: &Directory, process: i32) -> Result<UnixStream, Errno> {
    let found = directory.find(process)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(found.path())?)?;
    Ok(socket.into())
}

/// A stranger may have filled the line at a socket of its own.
fn connect_until(directory: &Directory, process: i32, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        match try_to_connect(directory, process) {
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            connected => return connected.map_err(io::Error::from),
        }
    }
}

/// A connection that has an end, whatever the other side does.
struct Talk {
    socket: UnixStream,
    deadline: Instant,
}

impl Talk {
    fn wait(&self, ready: PollFlags) -> io::Result<()> {
        let left = self.deadline.checked_duration_since(Instant::now());
        let left = left.ok_or(io::ErrorKind::TimedOut)?;
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.socket, ready)], Some(&left)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// All that the other side says.
    fn read_all(&mut self) -> io::Result<String> {
        let mut said = Vec::new();
        let mut part = [0; 4096];
        loop {
            match self.socket.read(&mut part) {
                Ok(0) => return String::from_utf8(said).map_err(io::Error::other),
                Ok(bytes) => said.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN)?;
                }
                Err(error) => return Err(error),
            }
            if said.len() > ANSWER_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn write_all(&mut self, words: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < words.len() {
            match self.socket.write(&words[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
