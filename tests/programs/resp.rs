//! The part of the redis protocol that the tests need.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest time for an answer, even a digest of everything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects; returns none if the server does not listen yet.
    pub(crate) fn connect(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Some(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and returns its answer, errors included, as bytes.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(words);
        self.answer()
    }

    /// As [`Self::ask`], for text commands that must succeed.
    pub(crate) fn text(&mut self, command: &str) -> String {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.ask(&words)).unwrap()
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).expect("the server takes no request");
    }

    /// Reads the next answer: a status, an integer or a string.
    pub(crate) fn answer(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server does not answer");
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("the server is gone");
        match kind {
            "+" | ":" => rest.as_bytes().to_vec(),
            "$" => self.bulk(rest.parse().unwrap()),
            _ => panic!("the server says {line}"),
        }
    }

    fn bulk(&mut self, len: i64) -> Vec<u8> {
        let Ok(len) = usize::try_from(len) else { return Vec::new() };
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes).expect("half an answer");
        bytes.truncate(len);
        bytes
    }
}
