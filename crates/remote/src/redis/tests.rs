//! The client against a server that is played here, and that does not always do what it should.

use crate::hostile::{Proxy, try_seeds};
use overspill_base::shared::{PageArena, PageBuf};
use overspill_base::sync::{AtomicUsize, Ordering::Relaxed};
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::file::OpenOptions;
use overspill_device::{DeviceError, IoOp, IoQueue, IoRequest, PageFailure, SwapDevice};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Of a request, over a border of keys.
const PAGES: usize = 3;

type Words = Vec<Vec<u8>>;
/// Answers a command instead of the server, or leaves it to the server.
type Deviation = dyn Fn(&Words, usize) -> Option<Vec<u8>> + Send + Sync;

/// A cluster of one server, with one replica by its own account.
struct Server {
    port: u16,
    hashes: Arc<Mutex<HashMap<Words, Vec<u8>>>>,
}

impl Server {
    /// Goes on for as long as the test program. `deviate` is told how many commands of that name
    /// there were before.
    fn start(deviate: impl Fn(&Words, usize) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::start_behind(None, deviate)
    }

    /// The same for clients that are to come by another port.
    fn start_behind(
        proxy: Option<u16>,
        deviate: impl Fn(&Words, usize) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let said = proxy.unwrap_or(port);
        let hashes = Arc::new(Mutex::new(HashMap::new()));
        let (served, deviate, counts) =
            (hashes.clone(), Arc::new(deviate), Arc::new(Mutex::new(HashMap::new())));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (served, deviate, counts) = (served.clone(), deviate.clone(), counts.clone());
                // It ends with the connection, however that ends.
                thread::spawn(move || serve(stream.unwrap(), said, &served, &*deviate, &counts));
            }
        });
        Self { port, hashes }
    }

    fn open(&self, options: &str) -> Result<Arc<dyn SwapDevice>, DeviceError> {
        let spec = format!("redis+cluster:127.0.0.1:{},size=8M{options}", self.port);
        crate::open(&spec.parse().unwrap(), &OpenOptions::default(), |_| {})
            .map(|device| device.bare())
    }

    fn fields(&self) -> usize {
        self.hashes.lock().unwrap().len()
    }
}

/// Answers commands until one cannot be read or the answer cannot be sent.
fn serve(
    stream: TcpStream,
    port: u16,
    hashes: &Mutex<HashMap<Words, Vec<u8>>>,
    deviate: &Deviation,
    counts: &Mutex<HashMap<Vec<u8>, usize>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let words = read_command(&mut reader)?;
        let count = {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(words[0].clone()).or_default();
            *count += 1;
            *count - 1
        };
        let answer = deviate(&words, count);
        let answer = answer.unwrap_or_else(|| perform(&words, port, &mut hashes.lock().unwrap()));
        stream.write_all(&answer).ok()?;
    }
}

fn read_command(reader: &mut impl BufRead) -> Option<Words> {
    let mut number = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse::<usize>().ok()
    };
    let count = number()?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut word = vec![0; line.get(1..)?.trim().parse::<usize>().ok()? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn perform(words: &Words, port: u16, hashes: &mut HashMap<Words, Vec<u8>>) -> Vec<u8> {
    match &*String::from_utf8_lossy(&words[0]) {
        "PING" => b"+PONG\r\n".to_vec(),
        "CLUSTER" => {
            let server = format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n");
            format!("*1\r\n*3\r\n:0\r\n:16383\r\n{server}").into_bytes()
        }
        "INFO" => bulk(b"connected_slaves:1\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"),
        "EVAL" => {
            for pair in words[5..].chunks(2) {
                hashes.insert(vec![words[3].clone(), pair[0].clone()], pair[1].clone());
            }
            b":1\r\n".to_vec()
        }
        "HMGET" => {
            let found = words[2..].iter().map(|field| {
                let value = hashes.get(&vec![words[1].clone(), field.clone()]);
                value.map_or(b"$-1\r\n".to_vec(), |value| bulk(value))
            });
            let found: Vec<u8> = found.flatten().collect();
            [format!("*{}\r\n", words.len() - 2).as_bytes(), &found].concat()
        }
        "UNLINK" => {
            hashes.retain(|name, _| name[0] != words[1]);
            b":1\r\n".to_vec()
        }
        "HDEL" => {
            hashes.retain(|name, _| name[0] != words[1] || !words[2..].contains(&name[1]));
            b":1\r\n".to_vec()
        }
        "WAIT" => b":1\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// Pages for one request at a time.
struct Pages(PageArena);

impl Pages {
    fn all(&self, content: u8) -> Vec<PageBuf> {
        // SAFETY: the views of an earlier request ended with it. If not, two requests would have
        // one page.
        let pages = (0..PAGES).map(|index| unsafe { self.0.page(index) });
        let mut pages: Vec<_> = pages.collect();
        pages.iter_mut().for_each(|page| page.fill(content));
        pages
    }
}

/// Transfers all pages; returns them and the failures.
fn transfer(
    queue: &mut dyn IoQueue,
    op: IoOp,
    slot: u32,
    pages: Vec<PageBuf>,
) -> (Vec<PageBuf>, Vec<PageFailure>) {
    queue.submit(IoRequest { op, slot: Slot(slot), pages, tag: 0 });
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait();
        queue.reap(&mut done);
    }
    let completion = done.pop().unwrap();
    (completion.request.pages, completion.failures)
}

/// Writes three pages over a border of keys to a server, and reads them again; returns what failed.
fn round_trip(server: &Server, options: &str) -> (Vec<PageFailure>, Vec<PageFailure>) {
    let device = server.open(options).unwrap();
    let mut queue = device.open_queue(8).unwrap();
    let pages = Pages(PageArena::new(PAGES).unwrap());
    let (_, unwritten) = transfer(&mut *queue, IoOp::Write, 254, pages.all(7));
    let (read, unread) = transfer(&mut *queue, IoOp::Read, 254, pages.all(9));
    let is_right = |page: &PageBuf| page[..] == [7; PAGE_SIZE];
    let failed = |index: &usize| unread.iter().any(|failure| failure.index == *index);
    let right = (0..PAGES).filter(|index| !failed(index)).all(|index| is_right(&read[index]));
    assert!(right || !unwritten.is_empty());
    (unwritten, unread)
}

#[test]
fn pages_are_written_read_and_removed() {
    let server = Server::start(|_, _| None);
    let (unwritten, unread) = round_trip(&server, "");
    assert!(unwritten.is_empty() && unread.is_empty());
    assert_eq!(server.fields(), 0, "the device has ended");
}

#[test]
fn a_write_has_not_ended_before_its_replicas_have_it() {
    let waits = Arc::new(AtomicUsize::new(0));
    let seen = waits.clone();
    let server = Server::start(move |words, count| {
        (words[0] == b"WAIT").then(|| {
            seen.store(count + 1, Relaxed);
            if count < 3 { b":0\r\n".to_vec() } else { b":1\r\n".to_vec() }
        })
    });
    let (unwritten, unread) = round_trip(&server, "");
    assert!(unwritten.is_empty() && unread.is_empty());
    // Two keys: the first was written four times.
    assert_eq!(waits.load(Relaxed), 5);
}

#[test]
fn a_server_that_is_full_is_a_full_device() {
    let server = Server::start(|words, _| {
        (words[0] == b"EVAL").then(|| b"-OOM command not allowed\r\n".to_vec())
    });
    let (unwritten, _) = round_trip(&server, "");
    assert_eq!(unwritten.len(), PAGES);
    assert!(matches!(unwritten[0].error, DeviceError::Full { .. }), "{:?}", unwritten[0]);
}

#[test]
fn pages_that_are_not_there_fail_and_no_others() {
    let server = Server::start(|words, _| {
        // The second field of the first key.
        let is_first_key = words[0] == b"HMGET" && words.len() == 4;
        let page = || bulk(&[7; PAGE_SIZE]);
        is_first_key.then(|| [b"*2\r\n".to_vec(), page(), b"$-1\r\n".to_vec()].concat())
    });
    let (unwritten, unread) = round_trip(&server, "");
    assert!(unwritten.is_empty());
    assert_eq!(unread.iter().map(|failure| failure.index).collect::<Vec<_>>(), [1]);
}

/// Answers of the wrong size, of the wrong kind and of the wrong number are no pages: the request
/// is made again.
#[test]
fn a_server_that_lies_is_asked_again() {
    let lies = [
        bulk(&[1; PAGE_SIZE]),
        [b"*2\r\n".to_vec(), bulk(&[1; 7]), bulk(&[1; PAGE_SIZE + 1])].concat(),
        b"*2\r\n:1\r\n:2\r\n".to_vec(),
        b"-ERR what?\r\n".to_vec(),
        // The last, so that the next key is answered.
        b"*0\r\n".to_vec(),
    ];
    let server = Server::start(move |words, count| {
        let lie = lies.get(count).cloned();
        lie.filter(|_| words[0] == b"HMGET")
    });
    let (unwritten, unread) = round_trip(&server, "");
    assert!(unwritten.is_empty() && unread.is_empty());
}

#[test]
fn a_server_that_only_refuses_has_failed_after_the_time_given() {
    let server =
        Server::start(|words, _| (words[0] == b"EVAL").then(|| b"-LOADING wait\r\n".to_vec()));
    let (unwritten, _) = round_trip(&server, ",timeout=1");
    assert_eq!(unwritten.len(), PAGES);
    assert!(matches!(unwritten[0].error, DeviceError::Io { .. }), "{:?}", unwritten[0]);
}

/// A late answer would be taken for the next one's.
#[test]
fn what_was_not_answered_in_time_is_not_asked_again_there() {
    let asked = Arc::new(AtomicUsize::new(0));
    let late = {
        let asked = asked.clone();
        move |words: &Words, count: usize| {
            if words[0] == b"HMGET" {
                asked.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_secs(if count == 0 { 4 } else { 0 }));
            }
            None
        }
    };
    let server = Server::start(late);
    let (unwritten, unread) = round_trip(&server, ",timeout=2");
    assert!(unwritten.is_empty() && unread.is_empty());
    // When it has heard what was said to it meanwhile, if anything was: one for each key.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(asked.load(Relaxed), 3);
}

/// What it says is changed on the way: all requests come to an end.
#[test]
fn whatever_a_server_says_requests_end() {
    try_seeds(|seed| {
        let proxy = Proxy::new();
        let server = Server::start_behind(Some(proxy.port()), |_, _| None);
        let spec = format!("redis+cluster:127.0.0.1:{},size=8M,timeout=1", proxy.port());
        proxy.start(server.port, seed);
        let opened = crate::open(&spec.parse().unwrap(), &OpenOptions::default(), |_| {});
        let Ok(device) = opened else { return };
        let device = device.bare();
        let Ok(mut queue) = device.open_queue(8) else { return };
        let pages = Pages(PageArena::new(PAGES).unwrap());
        for slot in [254, 0, 254] {
            transfer(&mut *queue, IoOp::Write, slot, pages.all(7));
            transfer(&mut *queue, IoOp::Read, slot, pages.all(9));
        }
    });
}
