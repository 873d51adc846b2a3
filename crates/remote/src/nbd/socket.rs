//! What a connection's bytes go through: a socket, with TLS on it or not.
//!
//! Owns: how a server is reached, and how long that may take.
//! Invariants: until [`Stream::stop_blocking`] every read and write waits at most [`PATIENCE`];
//! after it none waits. Reading goes on when nothing can be written and the other way round: a
//! server that waits for us to read before it takes more must not make us wait for it.
//! Not here: what the bytes mean.

use super::Failure;
use overspill_device::spec::Endpoint;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_nodelay, set_tcp_quickack, set_tcp_user_timeout,
};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use rustls::ClientConnection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest time that a server may take for each step of a handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A peer that has acknowledged nothing for so long is gone. It need not have answered: a server
/// whose disk is slow still has a kernel that acknowledges.
const SILENCE: Duration = Duration::from_secs(10);

/// A connected socket.
pub(super) struct Socket {
    fd: OwnedFd,
    is_tcp: bool,
}

impl Socket {
    /// Connects to a server.
    pub(super) fn connect(server: &Endpoint) -> Result<Self, Failure> {
        let fd: OwnedFd = match server {
            Endpoint::Unix(path) => UnixStream::connect(path).map_err(|e| unreachable(&e))?.into(),
            Endpoint::Tcp { host, port } => connect_tcp(host, *port)?.into(),
        };
        let is_tcp = matches!(server, Endpoint::Tcp { .. });
        if is_tcp {
            notice_death(&fd).map_err(io::Error::from)?;
        }
        for side in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&fd, side, Some(PATIENCE)).map_err(io::Error::from)?;
        }
        Ok(Self { fd, is_tcp })
    }

    /// Has the kernel acknowledge at once what was read. A server that lacks `TCP_NODELAY`
    /// (qemu-nbd) holds the end of a reply back until then, for 40 ms.
    fn acknowledge(&self) {
        if self.is_tcp {
            // Failing costs time only.
            let _ = set_tcp_quickack(&self.fd, true);
        }
    }
}

/// Tries every address of a host.
fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, Failure> {
    let unknown = |why: &str| Failure::Broken(format!("`{host}` has no address: {why}"));
    let addresses = (host, port).to_socket_addrs().map_err(|error| unknown(&error.to_string()))?;
    let mut last = unknown("there is none");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = unreachable(&error),
        }
    }
    Err(last)
}

fn unreachable(error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
            "start the server, or say where it is"
        }
        ErrorKind::PermissionDenied => "use a socket that you may use",
        _ => "look whether the machine can be reached",
    };
    Failure::Broken(format!("cannot connect: {error}; {hint}"))
}

/// Has the kernel tell when the other side is gone, also when nothing is sent.
fn notice_death(fd: &OwnedFd) -> Result<(), Errno> {
    set_tcp_nodelay(fd, true)?;
    set_socket_keepalive(fd, true)?;
    set_tcp_keepidle(fd, SILENCE / 2)?;
    set_tcp_keepintvl(fd, SILENCE / 10)?;
    set_tcp_keepcnt(fd, 5)?;
    set_tcp_user_timeout(fd, SILENCE.as_millis() as u32)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = retry_on_intr(|| recv(&self.fd, &mut *into, RecvFlags::empty()));
        Ok(received.map(|(n, _)| n)?)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        let send = || sendmsg(&self.fd, pieces, &mut control, SendFlags::NOSIGNAL);
        Ok(retry_on_intr(send)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection to a server.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Socket, Box<ClientConnection>),
}

impl Stream {
    /// From now on reads and writes do not wait.
    pub(super) fn stop_blocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(self, true)?)
    }

    /// Has the kernel acknowledge at once what was read.
    pub(super) fn acknowledge(&self) {
        match self {
            Self::Plain(socket) | Self::Tls(socket, _) => socket.acknowledge(),
        }
    }

    /// True if there is something that was taken by `write` and not by the socket.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self, Self::Tls(_, tls) if tls.wants_write())
    }

    /// Sends what was taken by `write` and is not on its way yet, as far as the socket takes it.
    pub(super) fn push(&mut self) -> io::Result<()> {
        let Self::Tls(socket, tls) = self else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                sent => sent?,
            };
        }
        Ok(())
    }
}

/// Takes what has arrived through TLS; 0 at its end.
fn read_tls(tls: &mut ClientConnection, socket: &mut Socket, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        if tls.read_tls(socket)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        // What the protocol itself has to say, as after a change of keys.
        while tls.wants_write() && tls.write_tls(socket).is_ok() {}
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(socket, tls) => read_tls(tls, socket, into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Self::Plain(socket) = self {
            return socket.write_vectored(pieces);
        }
        self.push()?;
        let Self::Tls(_, tls) = self else { return Ok(0) };
        let taken = tls.writer().write_vectored(pieces)?;
        self.push()?;
        if taken == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) | Self::Tls(socket, _) => socket.as_fd(),
        }
    }
}
