//! Why a server is of no use, and what the user is told of it.
//!
//! Owns: the kinds of failure by what can be done about them, the lines that say so, and the pauses
//! between attempts.
//! Invariants: a line is said when something changes, not when something is tried again.
//! Not here: which answer is which failure; that is a protocol's.

use std::io;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why a connection is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// There is a server, but not what we need: the user has to do something.
    #[error("{0}")]
    Refused(String),
    /// There is none, or there was one a moment ago. It may come back.
    #[error("{0}")]
    Broken(String),
    /// There is something else in its place: what was written is gone.
    #[error("{0}")]
    Gone(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Refused(error.to_string()),
            io::ErrorKind::UnexpectedEof => Self::Broken("the server has hung up".into()),
            io::ErrorKind::WouldBlock => Self::Broken("the server does not answer".into()),
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// The pause before something is tried again, by the one before.
pub(crate) fn longer(pause: Option<Duration>) -> Duration {
    pause.map_or(FIRST_PAUSE, |pause| LONGEST_PAUSE.min(pause * 2))
}

/// What the user knows of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It answers, or has never been missed.
    Up,
    /// Requests wait.
    Lost,
    /// Requests wait for the user to do something about this.
    Refused(String),
    /// Requests fail until it is back.
    Silent,
    /// Requests fail.
    Gone,
}

/// Tells the user what is new of a server.
pub(crate) struct News {
    name: String,
    say: fn(&str),
    state: State,
}

impl News {
    /// News of what is called `name`, which is up; `say` takes lines for the user.
    pub(crate) fn new(name: &str, say: fn(&str)) -> Self {
        Self { name: name.to_owned(), say, state: State::Up }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Says what the user has to do, and that requests wait for it.
    pub(crate) fn refuse(&mut self, why: String) {
        let line = format!("{why}. Its pages wait until then");
        self.turn(State::Refused(why), &line);
    }

    /// Says `line` if `state` is new.
    pub(crate) fn turn(&mut self, state: State, line: &str) {
        if self.state != state {
            self.state = state;
            (self.say)(&format!("{}: {line}", self.name));
        }
    }
}
