//! Pages over HTTP, to whoever can connect.
//!
//! Owns: how a page is asked for and sent, and how long that may take.
//! Invariants: whatever the other end does, asking has a deadline, and so has the answer; there are
//! a few talks at a time, of which one looks for its page, and a request has a most of bytes. Who
//! has not asked soon makes room for who comes, the one that came first; who has asked is waited
//! for. One request a connection, and only GET. No page of another site is told anything, nor shows
//! these.
//! Not here: which pages there are.
//! Rejected: `tiny_http`, which waits for a slow end without end, and has a thread for each; hyper
//! and what is built on it, which want an async runtime for a page that is read twice a minute.

use httparse::{EMPTY_HEADER, Status};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long it may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody makes room who comes to ask.
const MOMENT: Duration = Duration::from_millis(100);
/// How many talks there are at a time.
const TALKS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// A page is nothing but what it says it is, and is in no other page.
const SAFETY: &str = "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
                      Content-Security-Policy: frame-ancestors 'none'\r\n";
/// After a connection could not be taken, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// True for a name of this machine itself. What only it can reach may be asked by a page of another
/// site, by a name that this has had point here (DNS rebinding).
fn is_own_name(host: &[u8]) -> bool {
    let host = String::from_utf8_lossy(host);
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => &host,
    };
    let name = name.trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// What is answered.
pub(super) struct Page {
    pub(super) status: &'static str,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

impl Page {
    /// A line of text.
    pub(super) fn line(status: &'static str, line: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{line}\n").into() }
    }
}

/// An address of which nobody else makes use.
pub(super) struct Server(TcpListener);

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// Of the kernel: another process has it, or it is none of this machine's.
    pub(super) fn bind(address: &str) -> io::Result<Self> {
        TcpListener::bind(address).map(Self)
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers as long as the process lives; `page` has what is at a path.
    pub(super) fn serve(&self, page: impl Fn(&str) -> Page + Send) {
        // What they ask for is others' time, too.
        let page = Mutex::new(page);
        let page = |path: &str| page.lock().unwrap_or_else(PoisonError::into_inner)(path);
        let talks = Talks::default();
        thread::scope(|scope| {
            for socket in self.0.incoming() {
                let Ok(socket) = socket else {
                    thread::sleep(PAUSE);
                    continue;
                };
                let talk = talks.begin(socket);
                // Who went away, was too slow, or has no thread, needs no answer.
                let _ = thread::Builder::new().spawn_scoped(scope, || drop(talk.answer(page)));
            }
        });
    }
}

/// The talks that there are: those that began first are first.
#[derive(Default)]
struct Talks {
    open: Mutex<Vec<Open>>,
    one_has_ended: Condvar,
}

struct Open {
    socket: Arc<TcpStream>,
    since: Instant,
    has_asked: bool,
}

impl Open {
    /// True if it has had the time to ask, and has not.
    fn is_silent(&self) -> bool {
        !self.has_asked && self.since.elapsed() > MOMENT
    }
}

impl Talks {
    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, socket: TcpStream) -> Talk<'_> {
        let mut open = self.lock();
        while open.len() >= TALKS_MAX {
            match open.iter().position(Open::is_silent) {
                Some(silent) => {
                    // Its thread is about to see that.
                    let _ = open.remove(silent).socket.shutdown(Shutdown::Both);
                }
                None => {
                    let waited = self.one_has_ended.wait_timeout(open, MOMENT);
                    open = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        let socket = Arc::new(socket);
        open.push(Open { socket: socket.clone(), since: Instant::now(), has_asked: false });
        drop(open);
        Talk::new(socket, self)
    }

    fn has_asked(&self, socket: &Arc<TcpStream>) {
        let mut open = self.lock();
        let talk = open.iter_mut().find(|talk| Arc::ptr_eq(&talk.socket, socket));
        talk.into_iter().for_each(|talk| talk.has_asked = true);
    }
}

/// A connection with a deadline.
struct Talk<'t> {
    socket: Arc<TcpStream>,
    talks: &'t Talks,
    end: Instant,
    is_local: bool,
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        self.talks.lock().retain(|talk| !Arc::ptr_eq(&talk.socket, &self.socket));
        self.talks.one_has_ended.notify_one();
    }
}

impl<'t> Talk<'t> {
    fn new(socket: Arc<TcpStream>, talks: &'t Talks) -> Self {
        // `[::]` takes what is sent to 127.0.0.1, too.
        let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        let is_local = socket.local_addr().is_ok_and(is_loopback);
        Self { socket, talks, end: Instant::now() + PATIENCE, is_local }
    }

    fn answer(mut self, page: impl Fn(&str) -> Page) -> io::Result<()> {
        let asked = self.path()?;
        self.talks.has_asked(&self.socket);
        let page = match asked {
            Ok(path) => page(&path),
            Err(refusal) => refusal,
        };
        self.end = Instant::now() + PATIENCE;
        let Page { status, kind, body } = page;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{SAFETY}\
             Connection: close\r\n\r\n"
        );
        self.write(head.as_bytes())?;
        self.write(&body)?;
        self.socket.shutdown(Shutdown::Write)?;
        // What is left unread when the socket is closed would undo the answer.
        while !self.read()?.is_empty() {}
        Ok(())
    }

    /// The path that is asked for, or what to say instead.
    fn path(&mut self) -> io::Result<Result<String, Page>> {
        let mut said = Vec::new();
        loop {
            if let Some(path) = path_in(&said, self.is_local) {
                return Ok(path);
            }
            let more = self.read()?;
            if more.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            said.extend(more);
        }
    }

    /// What is there, or nothing at the end.
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 1024];
        self.socket.set_read_timeout(Some(self.left()?))?;
        let read = (&*self.socket).read(&mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.socket.set_write_timeout(Some(self.left()?))?;
            match (&*self.socket).write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// The path of a request, or what to say instead; `None` if more of it is to come.
fn path_in(said: &[u8], is_local: bool) -> Option<Result<String, Page>> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match (request.parse(said), request.method) {
        (Ok(Status::Complete(_)), Some("GET")) => {
            let mut hosts =
                request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("host"));
            if is_local && !hosts.all(|host| is_own_name(host.value)) {
                let line = "this is answered to localhost only";
                return Some(Err(Page::line("403 Forbidden", line)));
            }
            let path = request.path.and_then(|path| path.split('?').next());
            Some(Ok(path.unwrap_or_default().to_owned()))
        }
        (Ok(Status::Complete(_)), _) => Some(Err(Page::line("405 Method Not Allowed", "GET only"))),
        (Ok(Status::Partial), _) if said.len() < REQUEST_BYTES_MAX => None,
        _ => Some(Err(Page::line("400 Bad Request", "this is no request for a page"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;
    use std::sync::Arc;

    /// A server for as long as the test program.
    fn server() -> SocketAddr {
        let server = Arc::new(Server::bind("127.0.0.1:0").unwrap());
        let address = server.address().unwrap();
        thread::spawn(move || server.serve(|path| Page::line("200 OK", path)));
        address
    }

    fn answer(address: SocketAddr, said: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        socket.write_all(said).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_sent_and_nonsense_is_refused() {
        let server = server();
        let good = answer(server, b"GET /a?b=c HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\n/a\n"),
            "{good}"
        );
        assert!(good.contains("\r\nContent-Length: 3\r\n"), "{good}");
        assert!(answer(server, b"PUT /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        for header in SAFETY.lines() {
            assert!(good.contains(header), "{good}");
        }
        for host in ["127.0.0.1:9779", "[::1]:9779", "localhost", "LocalHost:1"] {
            let asked = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert!(answer(server, asked.as_bytes()).starts_with("HTTP/1.1 200"), "{host}");
        }
        let rebound = answer(server, b"GET / HTTP/1.1\r\nHost: evil.example:9779\r\n\r\n");
        assert!(rebound.starts_with("HTTP/1.1 403"), "{rebound}");
        assert!(answer(server, b"\x16\x03\x01\x00\xff\r\n\r\n").starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(2 * REQUEST_BYTES_MAX));
        assert!(answer(server, long.as_bytes()).starts_with("HTTP/1.1 400"));
    }

    /// Who looks for a page may take longer than who asks for it.
    #[test]
    fn a_page_may_take_its_time() {
        let server = Arc::new(Server::bind("127.0.0.1:0").unwrap());
        let address = server.address().unwrap();
        let slow = |path: &str| {
            thread::sleep(PATIENCE + Duration::from_millis(500));
            Page::line("200 OK", path)
        };
        thread::spawn(move || server.serve(slow));
        assert!(answer(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    /// More than there may be, that say a little again and again.
    #[test]
    fn nobody_waits_for_the_slow() {
        let server = server();
        let slow = |_| {
            let mut socket = TcpStream::connect(server).unwrap();
            thread::spawn(move || {
                while socket.write_all(b"G").is_ok() {
                    thread::sleep(Duration::from_millis(200));
                }
            });
        };
        (0..4 * TALKS_MAX).for_each(slow);
        let begun = Instant::now();
        assert!(answer(server, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    }

    /// Their answers are about to come.
    #[test]
    fn who_has_asked_makes_room_for_nobody() {
        let server = Arc::new(Server::bind("127.0.0.1:0").unwrap());
        let address = server.address().unwrap();
        let page = |path: &str| {
            thread::sleep(Duration::from_millis(20));
            Page::line("200 OK", path)
        };
        thread::spawn(move || server.serve(page));
        thread::scope(|scope| {
            let ask = |_| scope.spawn(|| answer(address, b"GET / HTTP/1.1\r\n\r\n"));
            let all: Vec<_> = (0..3 * TALKS_MAX).map(ask).collect();
            for one in all {
                assert!(one.join().unwrap().starts_with("HTTP/1.1 200"));
            }
        });
    }

    #[test]
    fn what_is_sent_to_all_addresses_is_known_as_local() {
        let Ok(server) = Server::bind("[::]:0") else {
            return eprintln!("not tested: no IPv6");
        };
        let (server, port) = (Arc::new(server), |server: &Server| server.address().unwrap().port());
        let address = SocketAddr::from(([127, 0, 0, 1], port(&server)));
        thread::spawn(move || server.serve(|path| Page::line("200 OK", path)));
        let rebound = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        assert!(answer(address, rebound).starts_with("HTTP/1.1 403"));
    }

    #[test]
    fn whatever_is_asked_is_a_path_or_refused() {
        let samples = [
            &b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"[..],
            b"POST / HTTP/1.0\r\n\r\n",
        ];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let said = script.apply(&samples);
            // As it is understood at once, it is when it comes in pieces.
            let path = |said: &[u8]| path_in(said, false).map(Result::ok);
            let whole = path(&said);
            let pieces = (0..=said.len()).find_map(|end| path(&said[..end]));
            assert_eq!(pieces.is_some(), whole.is_some());
            if let Some(Some(first)) = pieces {
                assert_eq!(whole, Some(Some(first)));
            }
        });
    }
}
