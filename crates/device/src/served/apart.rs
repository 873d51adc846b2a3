//! A device that a process of its own has open and serves.
//!
//! Owns: the start of that process, what it and its starter say to each other, and its end.
//!
//! ```text
//! orders    starter: what to open         server: its attachment, or why it cannot be opened
//!           starter: a client's socket    ... any number of them
//! accounts  server: a queue of client N begins   starter: whether it may, before the client hears
//!           server: a queue of client N has ended; a client has left
//! ```
//!
//! Invariants: a client counts as under way at the starter before it can send a request. The
//! server is in a process group of its own, so no signal from a terminal ends it; it ends when its
//! starter has closed the orders, or died, and no client is left.
//! Not here: how pages move ([`super::server`]); what opens a place, which is the program's.

use super::messages::{self, pair};
use super::{Clients, Server, errno_of, wait_unused};
use crate::Device;
use crate::error::DeviceError;
use crate::file::{Attachment, OpenOptions};
use crate::spec::SwapSpec;
use overspill_base::sync::{Condvar, LockClass, Mutex};
use rustix::fs::ftruncate;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest message: an attachment with as many bad slots as a header can name.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The first order; the socket of the accounts comes with it.
#[derive(Serialize, Deserialize)]
struct Open {
    spec: SwapSpec,
    swap_size_bytes: Option<u64>,
    force: bool,
}

/// What came of it.
type Opened = Result<Attachment, String>;

/// A line of the accounts: what happened, and to which client.
type Entry = [u32; 2];

const BEGINS: u32 = 1;
const HAS_ENDED: u32 = 2;
const HAS_LEFT: u32 = 3;

/// What is said for an order that only has a socket.
const WORD: [u8; 1] = [1];

/// A place that a process of its own has open, for whoever attends to it. It may be sent to another
/// process.
#[derive(Debug)]
pub struct Started {
    /// The socket of the orders.
    pub orders: OwnedFd,
    /// The socket of the accounts.
    pub accounts: OwnedFd,
    /// What the clients need to know.
    pub attachment: Attachment,
}

/// Starts `program` and has it open the place that `spec` names. Blocks until that is done. The
/// process is the caller's to reap.
///
/// # Errors
/// [`DeviceError::NoServer`] if the program cannot be started; [`DeviceError::Served`] in its words
/// if it cannot open the place, or has ended without a word.
pub fn start(
    program: &Path,
    spec: &SwapSpec,
    options: &OpenOptions,
) -> Result<(Started, Child), DeviceError> {
    let refused = |errno| DeviceError::NoServer { program: program.to_owned(), errno };
    let (orders, theirs) = pair().map_err(refused)?;
    let (accounts, entries) = pair().map_err(refused)?;
    let mut command = Command::new(program);
    command.stdin(theirs).stdout(Stdio::null()).process_group(0);
    let mut server = command.spawn().map_err(|error| refused(errno_of(&error)))?;
    drop(command);
    let silent = |errno| format!("{} has ended without a word: {errno}", program.display());
    let opened = ask(&orders, spec, options, entries.as_fd()).map_err(silent).flatten();
    match opened {
        Ok(attachment) => Ok((Started { orders, accounts, attachment }, server)),
        Err(why) => {
            drop(orders);
            let _ = server.wait();
            Err(DeviceError::Served(why))
        }
    }
}

fn ask(
    orders: &OwnedFd,
    spec: &SwapSpec,
    options: &OpenOptions,
    entries: BorrowedFd<'_>,
) -> Result<Opened, Errno> {
    let OpenOptions { swap_size, force } = *options;
    let open = Open { spec: spec.clone(), swap_size_bytes: swap_size.map(|size| size.0), force };
    let text = serde_json::to_vec(&open).map_err(|_| Errno::INVAL)?;
    messages::send(orders, &text, &[entries], SendFlags::empty())?;
    let (answer, _) = receive(orders)?;
    serde_json::from_slice(&answer).map_err(|_| Errno::PROTO)
}

/// Takes a line for the user.
pub type Report = Box<dyn Fn(&str) + Send>;

/// A device that a process of its own serves until this is dropped and the last client has left.
/// Clients can send no request before it is attended to.
#[derive(Debug)]
pub struct Apart {
    orders: OwnedFd,
    /// Until it is attended to.
    accounts: Option<OwnedFd>,
    attachment: Attachment,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    count: Mutex<Count>,
    /// A client has left, or the process has ended.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    clients: usize,
    /// This is no longer needed, so the end of the process is no news.
    is_over: bool,
}

impl Shared {
    fn forget_client(&self) {
        let mut count = self.count.lock();
        // Unless the process has ended meanwhile, and all its clients with it.
        count.clients = count.clients.saturating_sub(1);
        self.left.notify_all();
    }
}

impl From<Started> for Apart {
    fn from(Started { orders, accounts, attachment }: Started) -> Self {
        let count = Mutex::new(LockClass::ServedDevice, Count::default());
        let shared = Arc::new(Shared { count, left: Condvar::new() });
        Self { orders, accounts: Some(accounts), attachment, shared, thread: None }
    }
}

impl Apart {
    /// What the clients need to know.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Tells `clients` from now on who may have requests under way, and `report` a line if the
    /// process ends. A second time changes nothing.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] if there can be no thread.
    pub fn attend(&mut self, clients: Arc<dyn Clients>, report: Report) -> Result<(), DeviceError> {
        let Some(accounts) = self.accounts.take() else { return Ok(()) };
        let book = Book { accounts, clients, shared: self.shared.clone(), begun: Vec::new() };
        let name = self.attachment.info().name;
        let refused = |error| DeviceError::Queue { name: name.clone(), errno: errno_of(&error) };
        let builder = std::thread::Builder::new().name("ovs-accounts".into());
        let known_as = name.clone();
        let keep = move || book.keep(&known_as, &*report);
        self.thread = Some(builder.spawn(keep).map_err(refused)?);
        Ok(())
    }

    /// Makes a socket for a new client, which ends when no process has it open any more.
    ///
    /// # Errors
    /// EMFILE and the like; EPIPE if the process has ended.
    pub fn client(&self) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = pair()?;
        self.shared.count.lock().clients += 1;
        let flags = SendFlags::empty();
        let sent = messages::send(&self.orders, &WORD, &[theirs.as_fd()], flags);
        if sent.is_err() {
            self.shared.forget_client();
        }
        sent.map(|()| ours)
    }

    /// Waits until there is no client, at most for `patience`; false if there is one.
    pub fn wait_unused(&self, patience: Duration) -> bool {
        let Shared { count, left } = &*self.shared;
        wait_unused(count, left, |count| count.clients, patience)
    }
}

impl Drop for Apart {
    /// Waits for the requests that the device has, unless clients go on.
    fn drop(&mut self) {
        self.shared.count.lock().is_over = true;
        let _ = shutdown(&self.orders, Shutdown::Both);
        if self.wait_unused(Duration::ZERO) {
            // A panic was reported when it happened.
            self.thread.take().map(JoinHandle::join);
        }
    }
}

/// Keeps the accounts.
struct Book {
    accounts: OwnedFd,
    clients: Arc<dyn Clients>,
    shared: Arc<Shared>,
    /// For each queue that has begun and not ended its client.
    begun: Vec<u32>,
}

impl Book {
    fn keep(mut self, name: &str, report: &dyn Fn(&str)) {
        while let Some(entry) = self.entry() {
            self.enter(entry);
        }
        // What was under way is lost with the process, and nothing is written any more.
        self.begun.drain(..).for_each(|client| self.clients.end(client));
        let mut count = self.shared.count.lock();
        count.clients = 0;
        self.shared.left.notify_all();
        if !count.is_over {
            drop(count);
            report(&format!(
                "the process that served {name} has ended: pages there are lost, and programs that \
                 are started from now on run without a limit"
            ));
        }
    }

    /// The next entry; none if the process has ended, or says what makes no sense.
    fn entry(&self) -> Option<Entry> {
        let mut bytes = [0; size_of::<Entry>()];
        let received = retry_on_intr(|| recv(&self.accounts, &mut bytes, RecvFlags::empty()));
        let (len, _) = received.ok()?;
        let [a, b, c, d, client @ ..] = bytes;
        let entry = [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(client)];
        (len == bytes.len()).then_some(entry)
    }

    fn enter(&mut self, [what, client]: Entry) {
        match what {
            BEGINS => {
                let may = self.clients.begin(client);
                self.begun.extend(may.then_some(client));
                let answer = [u8::from(may)];
                let _ = retry_on_intr(|| send(&self.accounts, &answer, SendFlags::NOSIGNAL));
            }
            HAS_ENDED => {
                if let Some(at) = self.begun.iter().position(|&begun| begun == client) {
                    self.begun.swap_remove(at);
                    self.clients.end(client);
                }
            }
            HAS_LEFT => self.shared.forget_client(),
            _ => {}
        }
    }
}

/// Opens places in the server's process.
pub type Opener = fn(&SwapSpec, &OpenOptions, fn(&str)) -> Result<Device, DeviceError>;

/// Serves as the process at the other end of `orders` wants, until that has ended and no client is
/// left. What happens to connections is told by `say`.
///
/// # Errors
/// That nothing was ordered. What cannot be opened is told to the other process.
pub fn serve(orders: &OwnedFd, open: Opener, say: fn(&str)) -> Result<(), Errno> {
    let (message, entries) = receive(orders)?;
    let order: Open = serde_json::from_slice(&message).map_err(|_| Errno::PROTO)?;
    let accounts =
        Arc::new(Accounts(Mutex::new(LockClass::ServedDevice, entries.ok_or(Errno::PROTO)?)));
    let Open { spec, swap_size_bytes, force } = order;
    let options = OpenOptions { swap_size: swap_size_bytes.map(overspill_base::Bytes), force };
    let opened = open(&spec, &options, say).and_then(|device| {
        let refused = |errno| DeviceError::Queue { name: device.info().name.clone(), errno };
        let (attachment, was_empty) =
            (device.attachment().clone(), device.kept_if_empty().map_err(refused)?);
        Ok((Server::start(device.bare(), accounts.clone())?, attachment, was_empty))
    });
    let (server, was_empty, answer): (_, _, Opened) = match opened {
        Ok((server, attachment, was_empty)) => (Some(server), was_empty, Ok(attachment)),
        Err(error) => (None, None, Err(error.to_string())),
    };
    let text = serde_json::to_vec(&answer).map_err(|_| Errno::INVAL)?;
    let told = retry_on_intr(|| send(orders, &text, SendFlags::NOSIGNAL));
    let Some(server) = server.filter(|_| told.is_ok()) else { return Ok(()) };
    while let Ok((_, client)) = receive(orders) {
        match client {
            Some(client) => server.take(client),
            // There is no room for its descriptor: it has left, and is told so by that.
            None => accounts.leave(),
        }
    }
    while !server.wait_unused(Duration::MAX) {}
    // Ends the last requests, of clients that were killed.
    drop(server);
    was_empty.map_or(Ok(()), |file| ftruncate(file, 0))
}

/// The server's end of the accounts.
#[derive(Debug)]
struct Accounts(Mutex<OwnedFd>);

impl Clients for Accounts {
    /// False too if the starter has ended, and nobody would know.
    fn begin(&self, client: u32) -> bool {
        let socket = self.0.lock();
        let mut answer = [0];
        let entered = enter(&socket, [BEGINS, client])
            .and_then(|()| retry_on_intr(|| recv(&*socket, &mut answer, RecvFlags::empty())));
        entered.is_ok() && answer == [1]
    }

    fn end(&self, client: u32) {
        let _ = enter(&self.0.lock(), [HAS_ENDED, client]);
    }

    fn leave(&self) {
        let _ = enter(&self.0.lock(), [HAS_LEFT, 0]);
    }
}

/// Makes an entry. If the starter has ended, nobody reads it.
fn enter(socket: &OwnedFd, entry: Entry) -> Result<(), Errno> {
    let bytes = entry.map(u32::to_ne_bytes).concat();
    retry_on_intr(|| send(socket, &bytes, SendFlags::NOSIGNAL)).map(drop)
}

/// Receives a message, and the descriptor that comes with it.
///
/// # Errors
/// ECONNRESET if the other end was closed.
fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let (len, descriptors) = messages::receive(socket, &mut message)?;
    message.truncate(len);
    let descriptor = descriptors.into_iter().next();
    if message.is_empty() { Err(Errno::CONNRESET) } else { Ok((message, descriptor)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pages, is_filled, read, write};
    use crate::{IoQueue, SwapDevice, served::ServedDevice};
    use overspill_base::Slot;
    use overspill_base::sync::{AtomicU32, Ordering::Relaxed};
    use std::thread;
    use std::time::Instant;

    const CLIENT: u32 = 7;

    #[derive(Debug, Default)]
    struct UnderWay(AtomicU32);

    impl Clients for UnderWay {
        fn begin(&self, client: u32) -> bool {
            self.0.fetch_add(u32::from(client == CLIENT), Relaxed);
            client == CLIENT
        }

        fn end(&self, client: u32) {
            assert_eq!(client, CLIENT);
            self.0.fetch_sub(1, Relaxed);
        }
    }

    fn wait_until(what: impl Fn() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A thread in place of the process.
    fn ordered(spec: &str, report: fn(&str)) -> (Result<Apart, String>, Arc<UnderWay>) {
        let ((orders, theirs), (accounts, entries)) = (pair().unwrap(), pair().unwrap());
        let open: Opener = |spec, options, _| Device::open(spec, options);
        thread::spawn(move || serve(&theirs, open, |_| ()).unwrap());
        let options = OpenOptions::default();
        let opened = ask(&orders, &spec.parse().unwrap(), &options, entries.as_fd()).unwrap();
        // As when the other process alone has it.
        drop(entries);
        let under_way = Arc::new(UnderWay::default());
        let attend = |attachment| {
            let mut apart = Apart::from(Started { orders, accounts, attachment });
            apart.attend(under_way.clone(), Box::new(report)).unwrap();
            apart
        };
        (opened.map(attend), under_way)
    }

    fn client(apart: &Apart) -> ServedDevice {
        let attachment = crate::file::named("ram".into(), apart.attachment().info().capacity());
        ServedDevice::new(apart.client().unwrap(), &attachment, Arc::new(|| CLIENT))
    }

    fn moves_pages(queue: &mut dyn IoQueue) {
        let pages = Pages::new(2);
        assert!(write(queue, Slot(3), pages.filled(0..1, 7)).failures.is_empty());
        let completion = read(queue, Slot(3), pages.filled(1..2, 0));
        assert!(is_filled(&completion.request.pages[0], 7));
    }

    #[test]
    fn a_client_is_under_way_from_its_queue_to_its_end() {
        let (apart, under_way) = ordered("ram:4M", |line| panic!("{line}"));
        let apart = apart.unwrap();
        assert_eq!(apart.attachment().info().name, "ram");
        assert!(apart.wait_unused(Duration::ZERO));
        let device = client(&apart);
        let mut queue = device.open_queue(4).unwrap();
        assert_eq!(under_way.0.load(Relaxed), 1, "before anything can be sent");
        moves_pages(&mut *queue);
        assert!(!apart.wait_unused(Duration::ZERO));
        drop(queue);
        wait_until(|| under_way.0.load(Relaxed) == 0);
        drop(device);
        assert!(apart.wait_unused(Duration::from_secs(60)));
    }

    #[test]
    fn clients_go_on_when_their_starter_has_ended() {
        let (apart, _) = ordered("ram:4M", |line| panic!("{line}"));
        let apart = apart.unwrap();
        let device = client(&apart);
        let mut queue = device.open_queue(4).unwrap();
        drop(apart);
        moves_pages(&mut *queue);
    }

    /// It harms itself only.
    #[test]
    fn a_client_that_takes_itself_for_nobody_is_refused() {
        let (apart, under_way) = ordered("ram:4M", |line| panic!("{line}"));
        let apart = apart.unwrap();
        let attachment = crate::file::named("ram".into(), apart.attachment().info().capacity());
        let stranger = Arc::new(|| CLIENT + 1);
        let stranger = ServedDevice::new(apart.client().unwrap(), &attachment, stranger);
        assert!(stranger.open_queue(4).is_err());
        assert_eq!(under_way.0.load(Relaxed), 0);
        moves_pages(&mut *client(&apart).open_queue(4).unwrap());
    }

    #[test]
    fn nobody_begins_who_is_in_no_account() {
        let (accounts, entries) = pair().unwrap();
        drop(accounts);
        assert!(!Accounts(Mutex::new(LockClass::ServedDevice, entries)).begin(CLIENT));
    }

    #[test]
    fn what_cannot_be_opened_is_told_in_the_servers_words() {
        let (refused, _) = ordered("file:/nowhere", |line| panic!("{line}"));
        let error = refused.err().unwrap();
        assert!(error.starts_with("/nowhere does not exist"), "{error}");
        let spec = "nbd:nowhere".parse().unwrap();
        let missing = start(Path::new("/nowhere/server"), &spec, &OpenOptions::default());
        let error = missing.unwrap_err().to_string();
        assert!(error.starts_with("cannot start /nowhere/server"), "{error}");
        let silent = start(Path::new("/bin/true"), &spec, &OpenOptions::default());
        let error = silent.unwrap_err().to_string();
        assert!(error.starts_with("/bin/true has ended without a word"), "{error}");
    }

    #[test]
    fn the_end_of_a_server_is_told() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let ((orders, _theirs), (accounts, entries)) = (pair().unwrap(), pair().unwrap());
        let attachment = crate::file::named("far".into(), overspill_base::Bytes(1 << 20));
        let under_way = Arc::new(UnderWay::default());
        let mut apart = Apart::from(Started { orders, accounts, attachment });
        let report = Box::new(|line: &str| {
            assert!(line.contains("served far has ended"), "{line}");
            TOLD.fetch_add(1, Relaxed);
        });
        apart.attend(under_way.clone(), report).unwrap();
        let _client = apart.client().unwrap();
        assert!(Accounts(Mutex::new(LockClass::ServedDevice, entries)).begin(CLIENT));
        wait_until(|| TOLD.load(Relaxed) == 1);
        assert_eq!(under_way.0.load(Relaxed), 0, "nothing is under way any more");
        assert!(apart.wait_unused(Duration::ZERO));
    }
}
