//! What a run answers while it goes on.
//!
//! Owns: a socket in one of its user's directories ([`Home`]), named by the number of
//! `overspill run`, and the thread that answers on it.
//! Invariants: only processes of the same user and of root are answered, one after the other. Many
//! may talk at a time: who is silent keeps nobody waiting, and each question has all of its time,
//! not each part of it. Of more than can be heard the one that came first is not. Who has gone away
//! asks for nothing any more: it may have waited for a run that was stopped. A socket that has its
//! name is listened at until its run ends.
//! Not here: what can be asked, and what is answered; who asks (`runs`).

use crate::homes::{Directory, Home};
use crate::runs::QUESTION_BYTES_MAX;
use overspill_guest::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{geteuid, getpid};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long who asks may take to ask, and then to read.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long nobody is heard who comes while there are no descriptors.
const PAUSE: Duration = Duration::from_millis(10);
/// Who is heard at a time.
const TALKS_MAX: usize = 64;
/// How often a run that begins finds its directory taken away, at most.
const TRIES: u32 = 100;
/// As many may wait to be heard as the system lets.
const BACKLOG: i32 = -1;

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
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        let talks = Talks { listener: listener.clone(), open: VecDeque::new() };
        let builder = std::thread::Builder::new().name("ovs-answers".into());
        let thread = Some(builder.spawn(move || talks.serve(&answer))?);
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

/// All that is said at a time.
struct Talks {
    listener: Arc<UnixListener>,
    /// Those that came first are first.
    open: VecDeque<Talk>,
}

impl Talks {
    fn serve(mut self, answer: &dyn Fn(&str, Peer) -> String) {
        while self.wait() == Ok(true) && self.accept_all().is_ok() {
            let begun = Instant::now();
            self.open.retain_mut(|talk| talk.go_on(answer).is_some());
            // An answer may take long, in which nobody is heard.
            let taken = begun.elapsed();
            self.open.iter_mut().for_each(|talk| talk.until += taken);
        }
    }

    /// Waits until something can be done; false when there is no listener any more.
    fn wait(&self) -> Result<bool, Errno> {
        let until = self.open.iter().map(|talk| talk.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let talks = self.open.iter().map(|talk| PollFd::new(&talk.socket, talk.awaits()));
        let listener = PollFd::new(&*self.listener, PollFlags::IN);
        let mut all: Vec<_> = std::iter::once(listener).chain(talks).collect();
        match poll(&mut all, left.as_ref()) {
            Ok(_) => Ok(!all[0].revents().contains(PollFlags::HUP)),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Takes those that have come.
    fn accept_all(&mut self) -> Result<(), Errno> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => self.open.extend(Talk::begin(socket)),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(()),
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        self.open.pop_front();
                        std::thread::sleep(PAUSE);
                        return Ok(());
                    }
                    errno => return Err(errno.unwrap_or(Errno::IO)),
                },
            }
            if self.open.len() > TALKS_MAX {
                self.open.pop_front();
            }
        }
    }
}

/// Somebody who asks, or is told.
struct Talk {
    socket: UnixStream,
    asker: Option<Peer>,
    /// What was asked, or what is to be told.
    words: Vec<u8>,
    told: usize,
    until: Instant,
}

impl Talk {
    /// `None` with somebody who is not answered.
    fn begin(socket: UnixStream) -> Option<Self> {
        let asker = Peer::of(&socket).ok()?;
        if asker.user != 0 && asker.user != geteuid().as_raw() {
            return None;
        }
        socket.set_nonblocking(true).ok()?;
        let until = Instant::now() + PATIENCE;
        Some(Self { socket, asker: Some(asker), words: Vec::new(), told: 0, until })
    }

    fn awaits(&self) -> PollFlags {
        if self.asker.is_some() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Hears and tells what can be now; `None` when it is over.
    fn go_on(&mut self, answer: &dyn Fn(&str, Peer) -> String) -> Option<()> {
        if Instant::now() >= self.until {
            return None;
        }
        if self.asker.is_some() {
            if !self.hear()? {
                return Some(());
            }
            // That somebody is there is all that they wanted to know.
            if self.words.is_empty() || self.is_over() {
                return None;
            }
            let asker = self.asker.take()?;
            self.words = answer(std::str::from_utf8(&self.words).ok()?, asker).into_bytes();
            self.until = Instant::now() + PATIENCE;
        }
        self.tell()
    }

    /// True if all was asked.
    fn hear(&mut self) -> Option<bool> {
        let mut part = [0; 4096];
        while self.words.len() <= QUESTION_BYTES_MAX {
            match self.socket.read(&mut part) {
                Ok(0) => return Some(true),
                Ok(bytes) => self.words.extend_from_slice(&part[..bytes]),
                Err(error) => return is_for_later(&error).then_some(false),
            }
        }
        None
    }

    /// `None` if all was told, or nobody reads it.
    fn tell(&mut self) -> Option<()> {
        while self.told < self.words.len() {
            match self.socket.write(&self.words[self.told..]) {
                Ok(bytes) => self.told += bytes,
                Err(error) => return is_for_later(&error).then_some(()),
            }
        }
        None
    }

    /// Whether the other side has closed its end, not only said all that it has to say.
    fn is_over(&self) -> bool {
        let mut end = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut end, Some(&Timespec::default()));
        polled.is_ok() && end[0].revents().contains(PollFlags::HUP)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;
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
        own().reach(Instant::now() + PATIENCE).unwrap()
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
        // One that asks without end is not heard.
        let mut endless = connected();
        let _ = endless.write_all(&[b'?'; 2 * QUESTION_BYTES_MAX]);
        assert_eq!(ask(own, "").unwrap(), "");
        // Nor is an answer without end.
        assert!(ask(own, &"x".repeat(100)).is_err());
        drop(answers);
        assert!(ask(own, "").is_err());
        assert!(!Run::all().contains(&own));
    }

    #[test]
    fn who_is_silent_keeps_nobody_waiting() {
        let _alone = alone();
        let _answers = Answers::start(|question, _| question.repeat(100_000)).unwrap();
        let own = own();
        let silent: Vec<_> = (0..3 * TALKS_MAX).map(|_| connected()).collect();
        // One asks, and reads nothing of the answer.
        let mut deaf = connected();
        deaf.write_all(b"well?").unwrap();
        deaf.shutdown(std::net::Shutdown::Write).unwrap();
        let begun = Instant::now();
        assert_eq!(ask(own, "well?").unwrap().len(), 500_000);
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        drop(silent);
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
