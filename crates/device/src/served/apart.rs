//! A device that a process of its own has open and serves.
//!
//! Owns: the start of that process, what it and its starter say to each other first, and its end.
//!
//! ```text
//! starter: what to open
//! server:  its attachment, or why it cannot be opened
//! ...      from then on, over the same socket: [`super::control`]
//! ```
//!
//! Invariants: the server is in a process group of its own, so no signal from a terminal ends it;
//! it ends when no process has the other end of its socket any more.
//! Not here: how pages move ([`super::server`]); what opens a place, which is the program's.

use super::errno_of;
use super::server::Server;
use crate::Device;
use crate::error::DeviceError;
use crate::file::{Attachment, OpenOptions};
use crate::spec::SwapSpec;
use overspill_base::Bytes;
use overspill_base::sync::{Arc, AtomicBool, Ordering::Relaxed};
use overspill_wire::{Link, LinkError, descriptor};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::ftruncate;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long either may take to take the one message that it is sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first message.
#[derive(Serialize, Deserialize)]
struct Open {
    spec: SwapSpec,
    swap_size: Option<Bytes>,
    force: bool,
}

/// What came of it.
type Opened = Result<Attachment, String>;

/// A place that a process of its own has open, for whoever attends to it. It may be sent to another
/// process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// Where it is asked.
    #[serde(with = "descriptor")]
    pub socket: OwnedFd,
    /// What is to be known of it.
    pub attachment: Attachment,
}

/// A process that is to open a place, and has not yet.
#[derive(Debug)]
pub struct Starting {
    link: Link,
    program: PathBuf,
}

/// Starts `program`, which opens what it is asked to. The process is the caller's to reap.
///
/// # Errors
/// [`DeviceError::NoServer`] if it cannot be started.
pub fn start(program: &Path) -> Result<(Starting, Child), DeviceError> {
    let refused = |errno| DeviceError::NoServer { program: program.to_owned(), errno };
    let (link, theirs) = Link::pair().map_err(refused)?;
    let mut command = Command::new(program);
    command.stdin(theirs).stdout(Stdio::null()).process_group(0);
    let server = command.spawn().map_err(|error| refused(errno_of(&error)))?;
    Ok((Starting { link, program: program.to_owned() }, server))
}

impl Starting {
    /// Has it open the place that `spec` names. Blocks until that is done.
    ///
    /// # Errors
    /// [`DeviceError::Served`] in its words if it cannot open the place, or has ended without a
    /// word; the process ends.
    pub fn open(self, spec: &SwapSpec, options: &OpenOptions) -> Result<Started, DeviceError> {
        let program = self.program.display();
        let silent = |error| match error {
            LinkError::Ended => format!("{program} has ended without a word"),
            error => format!("{program} does not open it: {error}"),
        };
        let opened = ask(&self.link, spec, options).map_err(silent).flatten();
        let attachment = opened.map_err(DeviceError::Served)?;
        Ok(Started { socket: self.link.into(), attachment })
    }
}

fn ask(link: &Link, spec: &SwapSpec, options: &OpenOptions) -> Result<Opened, LinkError> {
    let OpenOptions { swap_size, force } = *options;
    let open = Open { spec: spec.clone(), swap_size, force };
    link.send(&open, PATIENCE)?;
    link.receive(None, None)
}

/// Takes a line for the user.
pub type Report = Box<dyn Fn(&str) + Send>;

/// A device that a process of its own serves, until this is dropped.
#[derive(Debug)]
pub struct Apart {
    socket: OwnedFd,
    attachment: Attachment,
    /// It is no longer needed, so the end of the process is no news.
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl From<Started> for Apart {
    fn from(Started { socket, attachment }: Started) -> Self {
        Self { socket, attachment, is_over: Arc::new(AtomicBool::new(false)), thread: None }
    }
}

impl Apart {
    /// What is to be known of it.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Tells `report` a line if the process ends. A second time changes nothing.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] if there can be no thread.
    pub fn attend(&mut self, report: Report) -> Result<(), DeviceError> {
        if self.thread.is_some() {
            return Ok(());
        }
        let name = self.attachment.info().name;
        let refused = |errno| DeviceError::Queue { name: name.clone(), errno };
        let (socket, is_over) = (self.socket().map_err(refused)?, self.is_over.clone());
        let known_as = name.clone();
        let watch = move || {
            wait_for_end(&socket);
            if !is_over.load(Relaxed) {
                report(&format!(
                    "the process that served {known_as} has ended: pages there are lost"
                ));
            }
        };
        let thread = std::thread::Builder::new().name("ovs-served".into()).spawn(watch);
        self.thread = Some(thread.map_err(|error| refused(errno_of(&error)))?);
        Ok(())
    }

    /// The socket, for the one [`ServedDevice`](super::ServedDevice) that uses it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn socket(&self) -> Result<OwnedFd, Errno> {
        fcntl_dupfd_cloexec(&self.socket, 3)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = shutdown(&self.socket, Shutdown::Both);
        // A panic was reported when it happened.
        self.thread.take().map(JoinHandle::join);
    }
}

/// Sleeps until the other end is closed. Takes nothing of what it sends.
fn wait_for_end(socket: &OwnedFd) {
    let is_closed =
        |fds: &[PollFd<'_>]| fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !is_closed(&fds) => {}
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Opens places in the server's process.
pub type Opener = fn(&SwapSpec, &OpenOptions, fn(&str)) -> Result<Device, DeviceError>;

/// Serves as the process at the other end of `link` wants, until no process has that open any more.
/// What happens to connections is told by `say`.
///
/// # Errors
/// That nothing was asked for. What cannot be opened is told to the other process.
pub fn serve(link: &Link, open: Opener, say: fn(&str)) -> Result<(), LinkError> {
    let Open { spec, swap_size, force } = link.receive(None, None)?;
    let options = OpenOptions { swap_size, force };
    let opened = open(&spec, &options, say).and_then(|device| {
        let refused = |errno| DeviceError::Queue { name: device.info().name.clone(), errno };
        let was_empty = device.kept_if_empty().map_err(refused)?;
        let attachment = Attachment { served: true, ..device.attachment().clone() };
        Ok((Server::new(device.bare())?, attachment, was_empty))
    });
    let (server, was_empty, answer): (_, _, Opened) = match opened {
        Ok((server, attachment, was_empty)) => (Some(server), was_empty, Ok(attachment)),
        Err(error) => (None, None, Err(error.to_string())),
    };
    let told = link.send(&answer, PATIENCE);
    let Some(server) = server.filter(|_| told.is_ok()) else { return Ok(()) };
    server.serve(link).map_err(LinkError::Socket)?;
    was_empty.map_or(Ok(()), |file| ftruncate(file, 0)).map_err(LinkError::Socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::ServedDevice;
    use crate::testing::{Pages, is_filled, read, write};
    use crate::{IoQueue, SwapDevice};
    use overspill_base::Slot;
    use overspill_base::sync::AtomicU32;
    use std::thread;
    use std::time::{Duration, Instant};

    fn wait_until(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A thread in place of the process.
    fn started(spec: &str) -> (Result<Apart, String>, JoinHandle<()>) {
        let (link, theirs) = Link::pair().unwrap();
        let open: Opener = |spec, options, _| Device::open(spec, options);
        let server = thread::spawn(move || serve(&theirs.into(), open, |_| ()).unwrap());
        let opened = ask(&link, &spec.parse().unwrap(), &OpenOptions::default()).unwrap();
        let started = opened.map(|attachment| Started { socket: link.into(), attachment });
        (started.map(Apart::from), server)
    }

    fn named() -> Attachment {
        crate::file::named("ram".into(), Bytes(4 << 20))
    }

    fn moves_pages(queue: &mut dyn IoQueue) {
        let pages = Pages::new(2);
        assert!(write(queue, Slot(3), pages.filled(0..1, 7)).failures.is_empty());
        let completion = read(queue, Slot(3), pages.filled(1..2, 0));
        assert!(is_filled(&completion.request.pages[0], 7));
    }

    #[test]
    fn a_place_is_served_until_it_is_no_longer_needed() {
        let (apart, server) = started("ram:4M");
        let mut apart = apart.unwrap();
        apart.attend(Box::new(|line| panic!("{line}"))).unwrap();
        assert!(apart.attachment().served);
        assert_eq!(apart.attachment().info().name, "ram");
        let device = ServedDevice::new(apart.socket().unwrap(), apart.attachment());
        let mut queue = device.open_queue(4).unwrap();
        moves_pages(&mut *queue);
        assert!(!server.is_finished());
        drop(apart);
        server.join().unwrap();
        assert!(device.open_queue(4).is_err());
    }

    #[test]
    fn a_server_ends_with_its_client() {
        let (apart, server) = started("ram:4M");
        let device = ServedDevice::new(apart.as_ref().unwrap().socket().unwrap(), &named());
        let mut queue = device.open_queue(4).unwrap();
        moves_pages(&mut *queue);
        // As the kernel ends a process: nothing of it runs any more.
        std::mem::forget(queue);
        drop((device, apart));
        server.join().unwrap();
    }

    #[test]
    fn what_cannot_be_opened_is_told_in_the_servers_words() {
        let error = started("file:/nowhere").0.err().unwrap();
        assert!(error.starts_with("/nowhere does not exist"), "{error}");
        let error = start(Path::new("/nowhere/server")).unwrap_err().to_string();
        assert!(error.starts_with("cannot start /nowhere/server"), "{error}");
        let (silent, mut server) = start(Path::new("/bin/true")).unwrap();
        let spec = "nbd:nowhere".parse().unwrap();
        let error = silent.open(&spec, &OpenOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with("/bin/true has ended without a word"), "{error}");
        server.wait().unwrap();
    }

    #[test]
    fn the_end_of_a_server_is_told() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let (link, theirs) = Link::pair().unwrap();
        let attachment = crate::file::named("far".into(), Bytes(1 << 20));
        let mut apart = Apart::from(Started { socket: link.into(), attachment });
        let report = |line: &str| {
            assert_eq!(line, "the process that served far has ended: pages there are lost");
            TOLD.fetch_add(1, Relaxed);
        };
        apart.attend(Box::new(report)).unwrap();
        let theirs = Link::from(theirs);
        theirs.tell(&1);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(TOLD.load(Relaxed), 0, "an answer is no end");
        drop(theirs);
        wait_until(|| TOLD.load(Relaxed) == 1);
    }
}
