//! What a run answers while it goes on.
//!
//! Owns: a socket in one of its user's directories ([`Home`]), named by the number of
//! `overspill run`, and the thread that answers on it.
//! Invariants: only processes of the same user and of root are answered, one at a time, and each
//! question has all of its time, not each part of it. Who has gone away asks for nothing any more:
//! it may have waited for a run that was stopped. A socket that has its name is listened at until
//! its run ends. Who asks believes only a process of the user in whose directory it was found, with
//! the number that it was found by, and waits and reads no more than a limit.
//! Not here: what can be asked, and what is answered.

use crate::homes::{Directory, Home};
use overspill_guest::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};
use rustix::process::{geteuid, getpid};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long who asks may take, to ask and to read.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is tried to reach a run that many want to talk to.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How often a run that begins finds its directory taken away, at most.
const TRIES: u32 = 100;
/// As many may wait to be heard as the system lets.
const BACKLOG: i32 = -1;
/// A question with more bytes gets no answer.
const QUESTION_BYTES_MAX: u64 = 8192;
/// An answer with more bytes is none.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A run that goes on, in this mount namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The number of its `overspill run`.
    pub process: i32,
    /// In whose directory its socket is.
    pub user: u32,
    home: Home,
}

impl Run {
    /// Returns all runs that this user may ask, by their numbers. The sockets of those that ended
    /// without taking them away are removed.
    pub fn all() -> Vec<Self> {
        let mut runs: Vec<_> =
            Home::all().into_iter().flat_map(|(home, user)| of(home, user)).collect();
        runs.sort_unstable();
        runs.dedup_by_key(|run| (run.process, run.user));
        runs
    }

    /// Asks the run. Blocks, while others ask too, until `deadline` at most.
    ///
    /// # Errors
    /// That the run has ended meanwhile, that its socket is somebody else's, or that it does not
    /// answer, or without end.
    pub fn ask(self, question: &str, deadline: Instant) -> io::Result<String> {
        if question.len() as u64 > QUESTION_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut talk = Talk { socket: self.reach(deadline)?, deadline };
        talk.write_all(question.as_bytes())?;
        talk.socket.shutdown(Shutdown::Write)?;
        talk.read_at_most(ANSWER_BYTES_MAX)
    }

    fn reach(self, deadline: Instant) -> io::Result<UnixStream> {
        let directory = self.home.open(self.user)?;
        let socket = connect_until(&directory, self.process, deadline)?;
        match self.is_at(&socket)? {
            true => Ok(socket),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Whether the other end is this run, and no process that has taken its name.
    fn is_at(self, socket: &UnixStream) -> io::Result<bool> {
        let Peer { user, process } = Peer::of(socket)?;
        Ok(user == self.user
            && match process {
                Some(process) => process.as_raw_pid() == self.process,
                // One of another PID namespace has a number that is not known here.
                None => user == geteuid().as_raw(),
            })
    }

    /// Whether its process is stopped, as by Ctrl-Z: then it answers nobody.
    pub fn is_stopped(self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process));
        status.is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tT")))
    }

    /// Whether it goes on.
    pub fn goes_on(self) -> bool {
        self.home.open(self.user).is_ok_and(|directory| self.goes_on_in(&directory))
    }

    /// As [`goes_on`](Self::goes_on); if it has ended, its socket is taken away.
    fn goes_on_in(self, directory: &Directory) -> bool {
        match try_to_connect(directory, self.process) {
            Ok(socket) => self.is_at(&socket).unwrap_or(false),
            Err(Errno::CONNREFUSED) => {
                let _ = std::fs::remove_file(directory.socket(self.process));
                false
            }
            // Many talk to it: whoever it is.
            Err(errno) => errno == Errno::AGAIN && self.user == geteuid().as_raw(),
        }
    }
}

fn of(home: Home, user: u32) -> Vec<Run> {
    let Ok(directory) = home.open(user) else { return Vec::new() };
    let runs = directory.processes().into_iter().map(|process| Run { process, user, home });
    runs.filter(|run| run.goes_on_in(&directory)).collect()
}

fn try_to_connect(directory: &Directory, process: i32) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(directory.socket(process))?)?;
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
    fn read_at_most(&mut self, bytes_max: u64) -> io::Result<String> {
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
            if said.len() as u64 > bytes_max {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// Whether the other side has closed its end, not only said all that it has to say.
    fn is_over(&self) -> bool {
        let mut end = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut end, Some(&Timespec::default()));
        polled.is_ok() && end[0].revents().contains(PollFlags::HUP)
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

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Answers {
    listener: Arc<UnixListener>,
    directory: Directory,
    thread: Option<JoinHandle<()>>,
}

impl Answers {
    /// Answers each question with what `answer` returns for it and who asks, on a thread that
    /// blocks the signals that this one does.
    ///
    /// # Errors
    /// Those of making the socket and the thread.
    pub fn start(answer: impl Fn(&str, Peer) -> String + Send + 'static) -> io::Result<Self> {
        let (directory, listener) = listen()?;
        let listener = Arc::new(listener);
        let heard = listener.clone();
        let body = move || {
            while let Ok((socket, _)) = heard.accept() {
                // Who went away meanwhile needs no answer.
                let _ = reply(socket, &answer);
            }
        };
        let builder = std::thread::Builder::new().name("ovs-answers".into());
        let thread = Some(builder.spawn(body)?);
        Ok(Self { listener, directory, thread })
    }
}

/// A run that ends may take the directory away at the same moment.
fn listen() -> io::Result<(Directory, UnixListener)> {
    let mut tries = 0..TRIES;
    loop {
        let directory = Home::make()?;
        match listen_in(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
            listener => return Ok((directory, listener?)),
        }
    }
}

/// It gets its name when it is listened at: before, it looks like that of a run that has ended, and
/// whoever looks would take it away.
fn listen_in(directory: &Directory) -> io::Result<UnixListener> {
    let bound = bind_in(directory)?;
    hear(bound, directory)
}

fn bind_in(directory: &Directory) -> io::Result<OwnedFd> {
    let path = unheard_in(directory);
    // Of one that had the same number.
    let _ = std::fs::remove_file(&path);
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn hear(bound: OwnedFd, directory: &Directory) -> io::Result<UnixListener> {
    let path = unheard_in(directory);
    let heard = rustix::net::listen(&bound, BACKLOG).map_err(io::Error::from);
    let named =
        heard.and_then(|()| std::fs::rename(&path, directory.socket(getpid().as_raw_pid())));
    named.inspect_err(|_| _ = std::fs::remove_file(&path)).map(|()| bound.into())
}

fn unheard_in(directory: &Directory) -> PathBuf {
    directory.socket(getpid().as_raw_pid()).with_extension("new")
}

impl Drop for Answers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.directory.socket(getpid().as_raw_pid()));
        self.directory.remove_if_empty();
        // The thread accepts nobody any more. A panic was reported when it happened.
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok() {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn reply(socket: UnixStream, answer: impl Fn(&str, Peer) -> String) -> io::Result<()> {
    let asker = Peer::of(&socket)?;
    if asker.user != 0 && asker.user != geteuid().as_raw() {
        return Ok(());
    }
    socket.set_nonblocking(true)?;
    let mut talk = Talk { socket, deadline: Instant::now() + PATIENCE };
    let question = talk.read_at_most(QUESTION_BYTES_MAX)?;
    // That somebody is there is all that they wanted to know.
    if question.is_empty() || talk.is_over() {
        return Ok(());
    }
    let words = answer(&question, asker);
    talk.deadline = Instant::now() + PATIENCE;
    talk.write_all(words.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Each takes the directory away when it has ended.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own() -> Run {
        let me = getpid().as_raw_pid();
        Run::all().into_iter().find(|run| run.process == me).unwrap()
    }

    fn connected() -> UnixStream {
        let directory = own().home.open(geteuid().as_raw()).unwrap();
        UnixStream::connect(directory.socket(own().process)).unwrap()
    }

    fn ask(run: Run, question: &str) -> io::Result<String> {
        run.ask(question, Instant::now() + 5 * PATIENCE)
    }

    #[test]
    fn a_run_is_found_and_tells_until_it_ends() {
        let _alone = alone();
        let answers = Answers::start(|question, _| question.repeat(100_000)).unwrap();
        let own = own();
        assert_eq!(ask(own, "well?").unwrap().len(), 500_000);
        // One that neither asks nor reads keeps the others waiting, but not for ever.
        let _silent = connected();
        assert_eq!(ask(own, "well?").unwrap().len(), 500_000);
        // One that asks without end is not heard.
        let mut endless = connected();
        let _ = endless.write_all(&[b'?'; 2 * QUESTION_BYTES_MAX as usize]);
        assert_eq!(ask(own, "").unwrap(), "");
        // Nor is an answer without end.
        assert!(ask(own, &"x".repeat(100)).is_err());
        drop(answers);
        assert!(ask(own, "").is_err());
        assert!(!Run::all().contains(&own));
    }

    #[test]
    fn whoever_looks_meanwhile_a_run_that_begins_is_found() {
        let _alone = alone();
        let directory = Home::make().unwrap();
        let is_found = || Run::all().iter().any(|run| run.process == getpid().as_raw_pid());
        let bound = bind_in(&directory).unwrap();
        assert!(!is_found(), "it does not hear yet");
        let _listener = hear(bound, &directory).unwrap();
        assert!(is_found());
        std::fs::remove_file(directory.socket(getpid().as_raw_pid())).unwrap();
        directory.remove_if_empty();
    }

    #[test]
    fn who_has_gone_asks_for_nothing() {
        let _alone = alone();
        let (asked, questions) = std::sync::mpsc::channel();
        let answers = Answers::start(move |question, _| {
            asked.send(question.to_owned()).unwrap();
            String::new()
        });
        let _answers = answers.unwrap();
        // It is heard for a second.
        let _silent = connected();
        let mut gone = connected();
        gone.write_all(b"in vain").unwrap();
        drop(gone);
        assert_eq!(ask(own(), "well?").unwrap(), "");
        assert_eq!(questions.try_iter().collect::<Vec<_>>(), ["well?"]);
    }

    /// Of the same user, but not the process of that number.
    #[test]
    fn who_has_the_name_of_another_process_is_no_run() {
        let _alone = alone();
        let directory = Home::make().unwrap();
        let path = directory.socket(1);
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(Run::all().iter().all(|run| run.process != 1));
        std::fs::remove_file(path).unwrap();
        directory.remove_if_empty();
    }
}
