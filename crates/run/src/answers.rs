//! What a run answers while it goes on.
//!
//! Owns: a socket with a name in the abstract namespace, `overspill-run-UID-PID` with the numbers
//! of `overspill run`, and the thread that answers on it. Such a name is no file that could be left
//! behind, and `/proc/net/unix` lists it.
//! Invariants: only processes of the same user and of root are answered, one at a time; one that
//! does not read its answer for a second gets a part of it. Who asks believes only a socket of the
//! user in its name.
//! Not here: what can be asked, and what is answered.

use crate::peer::Peer;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

const PREFIX: &str = "overspill-run-";
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// A question with more bytes gets no answer.
const QUESTION_BYTES_MAX: u64 = 8192;

/// A run that goes on, in this network namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The number of its `overspill run`.
    pub process: i32,
    user: u32,
}

impl Run {
    fn own() -> Self {
        let process = rustix::process::getpid().as_raw_pid();
        Self { process, user: rustix::process::geteuid().as_raw() }
    }

    fn address(self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("{PREFIX}{}-{}", self.user, self.process))
    }

    /// Reads the name at the end of a line of `/proc/net/unix`.
    fn of_line(line: &str) -> Option<Self> {
        let name = line.rsplit(' ').next()?.strip_prefix('@')?.strip_prefix(PREFIX)?;
        let (user, process) = name.split_once('-')?;
        Some(Self { process: process.parse().ok()?, user: user.parse().ok()? })
    }

    /// Returns all runs that this user may ask, by their numbers.
    ///
    /// # Errors
    /// Those of reading `/proc/net/unix`.
    pub fn all() -> io::Result<Vec<Self>> {
        let sockets = std::fs::read_to_string("/proc/net/unix")?;
        let me = rustix::process::geteuid().as_raw();
        let mut runs: Vec<_> = sockets.lines().filter_map(Self::of_line).collect();
        runs.retain(|run| me == 0 || run.user == me);
        runs.sort_unstable();
        runs.dedup();
        Ok(runs)
    }

    /// Asks the run. Blocks for some seconds at most, if others ask too.
    ///
    /// # Errors
    /// That the run has ended meanwhile, or that its socket is another user's.
    pub fn ask(self, question: &str) -> io::Result<String> {
        if question.len() as u64 > QUESTION_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut socket = UnixStream::connect_addr(&self.address()?)?;
        if Peer::of(&socket)?.user != self.user {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        socket.set_write_timeout(Some(4 * PATIENCE))?;
        socket.write_all(question.as_bytes())?;
        socket.shutdown(Shutdown::Write)?;
        socket.set_read_timeout(Some(4 * PATIENCE))?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Answers {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answers {
    /// Answers each question with what `answer` returns for it, on a thread that blocks the signals
    /// that this one does.
    ///
    /// # Errors
    /// Those of making the socket and the thread.
    pub fn start(answer: impl Fn(&str) -> String + Send + 'static) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&Run::own().address()?)?;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let body = move || {
            while let Ok((socket, _)) = listener.accept() {
                if seen.load(Relaxed) {
                    return;
                }
                // Who went away meanwhile needs no answer.
                let _ = reply(socket, &answer);
            }
        };
        let builder = std::thread::Builder::new().name("ovs-answers".into());
        let thread = builder.spawn(body)?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Wakes the thread.
        let woken = Run::own().address().and_then(|address| UnixStream::connect_addr(&address));
        if woken.is_ok() {
            // A panic was reported when it happened.
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn reply(mut socket: UnixStream, answer: impl Fn(&str) -> String) -> io::Result<()> {
    let asker = Peer::of(&socket)?.user;
    if asker == 0 || asker == rustix::process::geteuid().as_raw() {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut question = String::new();
        (&socket).take(QUESTION_BYTES_MAX + 1).read_to_string(&mut question)?;
        if question.len() as u64 > QUESTION_BYTES_MAX {
            return Ok(());
        }
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(answer(&question).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_and_tells_until_it_ends() {
        let answers = Answers::start(|question| question.repeat(100_000)).unwrap();
        let own = Run::own();
        assert!(Run::all().unwrap().contains(&own));
        assert_eq!(own.ask("well?").unwrap().len(), 500_000);
        // One that neither asks nor reads keeps the others waiting, but not for ever.
        let _silent = UnixStream::connect_addr(&own.address().unwrap()).unwrap();
        assert_eq!(own.ask("well?").unwrap().len(), 500_000);
        // One that asks without end is not heard.
        let mut endless = UnixStream::connect_addr(&own.address().unwrap()).unwrap();
        endless.write_all(&[b'?'; 2 * QUESTION_BYTES_MAX as usize]).unwrap();
        assert_eq!(own.ask("").unwrap(), "");
        drop(answers);
        assert!(own.ask("").is_err());
        assert!(!Run::all().unwrap().contains(&own));
    }

    #[test]
    fn names_of_others_are_no_runs() {
        let line =
            |name: &str| format!("0000000000000000: 00000002 0 00010000 0001 01 5153 {name}");
        let run = Run { process: 42, user: 1000 };
        assert_eq!(Run::of_line(&line("@overspill-run-1000-42")), Some(run));
        for name in ["", "/run/overspill-run-1000-42", "@overspill-run-1000", "@overspill-run-a-b"]
        {
            assert_eq!(Run::of_line(&line(name)), None, "{name}");
        }
    }
}
