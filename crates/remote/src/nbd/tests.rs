//! The client against servers that are played here, and that do not always keep to the protocol.

use super::wire::{REQUEST_BYTES, u32_at, u64_at};
use crate::hostile::{Proxy, try_seeds};
use overspill_base::shared::{PageArena, PageBuf};
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::file::OpenOptions;
use overspill_device::{Completion, DeviceError, IoOp, IoQueue, IoRequest, SwapDevice, SwapSpec};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const SLOTS: usize = 512;
const READ: u16 = 0;
const WRITE: u16 = 1;
const LEAVE: u16 = 2;

/// A request as the server sees it.
struct Asked {
    /// Counts the requests of all connections.
    number: usize,
    command: u16,
    cookie: [u8; 8],
    offset: usize,
    len: usize,
    data: Vec<u8>,
}

/// Answers a request: the bytes, or nothing and the end of the connection.
type Answer = dyn Fn(&Asked, &mut [u8]) -> Option<Vec<u8>> + Send + Sync;

struct Server {
    port: u16,
    store: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    /// Goes on for as long as the test program.
    fn start(
        answer: impl Fn(&Asked, &mut [u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let store = Arc::new(Mutex::new(vec![0; SLOTS * PAGE_SIZE]));
        let (served, answer, count) =
            (store.clone(), Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (served, answer, count) = (served.clone(), answer.clone(), count.clone());
                // It ends with the connection, however that ends.
                thread::spawn(move || drop(serve(stream.unwrap(), &served, &*answer, &count)));
            }
        });
        Self { port, store }
    }

    fn open(&self, options: &str) -> Result<Arc<dyn SwapDevice>, DeviceError> {
        let spec: SwapSpec = format!("nbd:127.0.0.1:{}/disk{options}", self.port).parse().unwrap();
        crate::open(&spec, &OpenOptions::default(), |_| {}).map(|device| device.bare())
    }
}

/// The server's side of a handshake, and then of everything.
fn serve(
    mut stream: TcpStream,
    store: &Mutex<Vec<u8>>,
    answer: &Answer,
    count: &AtomicUsize,
) -> io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    stream.read_exact(&mut [0; 4])?;
    while negotiate(&mut stream)? {}
    loop {
        let mut head = [0; REQUEST_BYTES];
        stream.read_exact(&mut head)?;
        let command = u16::from_be_bytes([head[6], head[7]]);
        let len = u32_at(&head, 24) as usize;
        let mut data = vec![0; if command == WRITE { len } else { 0 }];
        stream.read_exact(&mut data)?;
        if command == LEAVE {
            return Ok(());
        }
        let (number, cookie) = (count.fetch_add(1, Relaxed), head[8..16].try_into().unwrap());
        let offset = u64_at(&head, 16) as usize;
        let asked = Asked { number, command, cookie, offset, len, data };
        let Some(reply) = answer(&asked, &mut store.lock().unwrap()) else { return Ok(()) };
        stream.write_all(&reply)?;
    }
}

/// Answers an option; false after the last.
fn negotiate(stream: &mut TcpStream) -> io::Result<bool> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let mut data = vec![0; u32_at(&head, 12) as usize];
    stream.read_exact(&mut data)?;
    let option = u32_at(&head, 8);
    let mut reply = |kind: u32, data: &[u8]| {
        let len = data.len() as u32;
        let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
        let message =
            [&magic[..], &head[8..12], &kind.to_be_bytes(), &len.to_be_bytes(), data].concat();
        stream.write_all(&message)
    };
    if option == 7 {
        let size = ((SLOTS * PAGE_SIZE) as u64).to_be_bytes();
        // There are flags, and several connections see the same.
        reply(3, &[&[0, 0][..], &size, &0x0101_u16.to_be_bytes()].concat())?;
    }
    reply(1, &[])?;
    Ok(option != 7)
}

/// Does what is asked; what was read lies in the store.
fn perform(asked: &Asked, store: &mut [u8]) {
    if asked.command == WRITE {
        store[asked.offset..][..asked.len].copy_from_slice(&asked.data);
    }
}

fn simple(asked: &Asked, store: &mut [u8]) -> Option<Vec<u8>> {
    perform(asked, store);
    let read = if asked.command == READ { &store[asked.offset..][..asked.len] } else { &[] };
    Some([&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &asked.cookie, read].concat())
}

fn chunk(asked: &Asked, flags: u16, kind: u16, content: &[u8]) -> Vec<u8> {
    let (magic, len) = (0x668e_33ef_u32.to_be_bytes(), (content.len() as u32).to_be_bytes());
    let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
    [&magic[..], &flags, &kind, &asked.cookie, &len, content].concat()
}

/// In pieces of a page and a half, the last first; zeros are a hole.
fn structured(asked: &Asked, store: &mut [u8]) -> Option<Vec<u8>> {
    perform(asked, store);
    let mut reply = Vec::new();
    if asked.command == READ {
        let pieces: Vec<usize> = (0..asked.len).step_by(PAGE_SIZE * 3 / 2).collect();
        for &start in pieces.iter().rev() {
            let len = (asked.len - start).min(PAGE_SIZE * 3 / 2);
            let (at, data) = (asked.offset + start, &store[asked.offset + start..][..len]);
            let place = (at as u64).to_be_bytes();
            reply.extend(if data.iter().all(|&byte| byte == 0) {
                chunk(asked, 0, 2, &[&place[..], &(len as u32).to_be_bytes()].concat())
            } else {
                chunk(asked, 0, 1, &[&place[..], data].concat())
            });
        }
    }
    reply.extend(chunk(asked, 1, 0, &[]));
    Some(reply)
}

/// Memory for requests.
struct Pages(PageArena);

impl Pages {
    fn new() -> Self {
        Self(PageArena::new(SLOTS).unwrap())
    }

    /// Pages for a transfer of `slots` from `first` on. Each is for one slot.
    fn of(&self, first: usize, slots: usize) -> Vec<PageBuf> {
        // SAFETY: a slot is in one request at a time, and the arena outlives the queue.
        (first..first + slots).map(|page| unsafe { self.0.page(page) }).collect()
    }
}

/// What a slot holds after so many writes of it.
fn byte_of(slot: usize, turn: usize) -> u8 {
    // Some are zeros: holes.
    if slot.is_multiple_of(5) { 0 } else { (slot * 7 + turn * 31) as u8 }
}

/// Writes and reads every slot in requests of all sizes; panics if a page is wrong.
fn exercise(queue: &mut dyn IoQueue, pages: &Pages, turn: usize) {
    for op in [IoOp::Write, IoOp::Read] {
        let mut first = 1;
        let mut done = Vec::new();
        while first < SLOTS {
            let slots = (1 + first % 40).min(SLOTS - first);
            let mut request = pages.of(first, slots);
            for (index, page) in request.iter_mut().enumerate() {
                page.fill(if op == IoOp::Write { byte_of(first + index, turn) } else { 0xee });
            }
            queue.submit(IoRequest { op, slot: Slot(first as u32), pages: request, tag: 0 });
            first += slots;
        }
        while queue.in_flight() > 0 {
            queue.wait();
            queue.reap(&mut done);
        }
        for Completion { request, failures } in done {
            assert!(failures.is_empty(), "{:?}", failures[0]);
            let first = request.slot.0 as usize;
            let is_right = |(index, page): (usize, &PageBuf)| {
                page.iter().all(|&byte| byte == byte_of(first + index, turn))
            };
            assert!(request.pages.iter().enumerate().all(is_right), "slots from {first}");
        }
    }
}

#[test]
fn pages_come_back() {
    for answer in [simple, structured] {
        let server = Server::start(answer);
        let device = server.open(",connections=3").unwrap();
        assert_eq!(device.info().slots_max as usize, SLOTS);
        let (pages, mut queue) = (Pages::new(), device.open_queue(16).unwrap());
        for turn in 0..3 {
            exercise(&mut *queue, &pages, turn);
        }
        let found = server.store.lock().unwrap()[7 * PAGE_SIZE];
        assert_eq!(found, byte_of(7, 2));
    }
}

#[test]
fn requests_of_a_lost_connection_are_repeated() {
    let answer = |asked: &Asked, store: &mut [u8]| {
        // After the looks at the export's start. Sometimes it is done, sometimes not.
        let place = if asked.number > 40 { asked.number % 7 } else { 0 };
        let reply = (place != 3).then(|| structured(asked, store))?;
        (place != 5).then_some(reply)?
    };
    let server = Server::start(answer);
    let device = server.open(",connections=2").unwrap();
    let (pages, mut queue) = (Pages::new(), device.open_queue(8).unwrap());
    exercise(&mut *queue, &pages, 1);
}

/// What a server may say that it must not.
type Lie = fn(&Asked, &mut [u8]) -> Vec<u8>;

const LIES: [Lie; 9] = [
    |_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    |asked, store| {
        let mut other = simple(asked, store).unwrap();
        other[8] ^= 0x80;
        other
    },
    |asked, _| chunk(asked, 1, 77, &[]),
    |asked, _| chunk(asked, 1, 0, &[0; 4]),
    |asked, _| chunk(asked, 1, 0x8001, &[0; 2]),
    // Data from before, beyond, and in too small a chunk.
    |asked, _| {
        chunk(asked, 1, 1, &[&(asked.offset as u64 - 1).to_be_bytes()[..], &[9; 64]].concat())
    },
    |asked, _| {
        let end = (asked.offset + asked.len) as u64;
        chunk(asked, 1, 1, &[&end.to_be_bytes()[..], &[9; 1]].concat())
    },
    |asked, _| chunk(asked, 1, 1, &[0; 4]),
    // Less than was asked for.
    |asked, _| chunk(asked, 1, 1, &[&(asked.offset as u64).to_be_bytes()[..], &[9; 64]].concat()),
];

#[test]
fn a_server_that_lies_is_left_and_asked_again() {
    for lie in LIES {
        let answer = move |asked: &Asked, store: &mut [u8]| {
            // After the look at the export's start.
            if asked.number > 40 && asked.number % 9 == 4 && asked.offset > 0 {
                return Some(lie(asked, store));
            }
            structured(asked, store)
        };
        let server = Server::start(answer);
        let device = server.open(",connections=2").unwrap();
        let (pages, mut queue) = (Pages::new(), device.open_queue(8).unwrap());
        for turn in 0..2 {
            exercise(&mut *queue, &pages, turn);
        }
    }
}

/// One transfer of one page; its failure, if it failed.
fn transfer(queue: &mut dyn IoQueue, pages: &Pages, op: IoOp, slot: usize) -> Option<DeviceError> {
    queue.submit(IoRequest { op, slot: Slot(slot as u32), pages: pages.of(slot, 1), tag: 0 });
    let mut done = Vec::new();
    queue.wait();
    queue.reap(&mut done);
    done[0].failures.first().map(|failure| failure.error.clone())
}

#[test]
fn errors_of_the_server_are_errors_of_the_request() {
    for (number, is_full) in [(5_u32, false), (28, true), (4096, false)] {
        let answer = move |asked: &Asked, store: &mut [u8]| match asked.offset / PAGE_SIZE {
            77 => Some(chunk(asked, 1, 0x8001, &[&number.to_be_bytes()[..], &[0; 2]].concat())),
            78 => {
                let head = [0x6744_6698, number].map(u32::to_be_bytes).concat();
                Some([&head[..], &asked.cookie].concat())
            }
            _ => simple(asked, store),
        };
        let server = Server::start(answer);
        let device = server.open("").unwrap();
        let (pages, mut queue) = (Pages::new(), device.open_queue(4).unwrap());
        for (op, slot) in [(IoOp::Read, 77), (IoOp::Write, 77), (IoOp::Read, 78), (IoOp::Write, 78)]
        {
            let error = transfer(&mut *queue, &pages, op, slot).unwrap();
            assert_eq!(matches!(error, DeviceError::Full { .. }), is_full, "{error}");
        }
        assert_eq!(transfer(&mut *queue, &pages, IoOp::Write, 79), None);
    }
}

#[test]
fn a_server_that_comes_back_empty_has_lost_what_was_there() {
    let answer = |asked: &Asked, store: &mut [u8]| {
        if asked.offset / PAGE_SIZE == 99 {
            store.fill(0);
            return None;
        }
        simple(asked, store)
    };
    let server = Server::start(answer);
    let device = server.open(",connections=1").unwrap();
    let (pages, mut queue) = (Pages::new(), device.open_queue(4).unwrap());
    assert_eq!(transfer(&mut *queue, &pages, IoOp::Write, 98), None);
    let error = transfer(&mut *queue, &pages, IoOp::Read, 99);
    assert!(matches!(error, Some(DeviceError::Io { errno: Errno::STALE, .. })), "{error:?}");
}

#[test]
fn a_silent_server_has_failed_after_a_time_until_it_is_back() {
    let (silent, answered) = (Duration::from_secs(6), AtomicUsize::new(0));
    let answer = move |asked: &Asked, store: &mut [u8]| {
        if asked.offset / PAGE_SIZE == 99 && answered.fetch_add(1, Relaxed) == 0 {
            // Whoever else asks waits for the store.
            thread::sleep(silent);
        }
        simple(asked, store)
    };
    let server = Server::start(answer);
    let device = server.open(",connections=2,timeout=2").unwrap();
    let (pages, mut queue) = (Pages::new(), device.open_queue(4).unwrap());
    assert_eq!(transfer(&mut *queue, &pages, IoOp::Write, 98), None);
    // Without anything to wait for nothing is late.
    thread::sleep(Duration::from_millis(1800));
    let begun = Instant::now();
    let mut read = |slot| transfer(&mut *queue, &pages, IoOp::Read, slot);
    let error = read(99);
    assert!(matches!(error, Some(DeviceError::Io { errno: Errno::TIMEDOUT, .. })), "{error:?}");
    let waited = begun.elapsed();
    assert!((Duration::from_secs(2)..silent).contains(&waited), "after {waited:?}");
    while let Some(error) = read(98) {
        assert!(matches!(error, DeviceError::Io { errno: Errno::TIMEDOUT, .. }), "{error}");
        assert!(begun.elapsed() < 5 * silent, "it never comes back");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(begun.elapsed() >= silent);
}

/// A thread that swaps to several places may wait for another one of them.
#[test]
fn a_server_that_was_not_listened_to_was_not_silent() {
    let server = Server::start(|asked: &Asked, store: &mut [u8]| {
        if asked.command == READ && asked.offset / PAGE_SIZE == 98 {
            thread::sleep(Duration::from_millis(200));
        }
        simple(asked, store)
    });
    let device = server.open(",timeout=2").unwrap();
    let (pages, mut queue) = (Pages::new(), device.open_queue(4).unwrap());
    assert_eq!(transfer(&mut *queue, &pages, IoOp::Write, 98), None);
    let read = IoRequest { op: IoOp::Read, slot: Slot(98), pages: pages.of(98, 1), tag: 0 };
    queue.submit(read);
    thread::sleep(Duration::from_millis(2200));
    let mut done = Vec::new();
    queue.wait();
    queue.reap(&mut done);
    assert!(done[0].failures.is_empty(), "{:?}", done[0].failures[0]);
}

#[test]
fn data_are_not_overwritten() {
    let server = Server::start(simple);
    server.store.lock().unwrap()[70_000] = 1;
    let error = server.open("").unwrap_err().to_string();
    assert!(error.contains("holds data; name another one, or insist with --force"), "{error}");
    server.store.lock().unwrap()[70_000] = 0;
    drop(server.open("").unwrap());
    // It is a swap area now.
    drop(server.open("").unwrap());
}

/// What it says is changed on the way: all requests come to an end.
#[test]
fn whatever_a_server_says_requests_end() {
    try_seeds(|seed| {
        let (server, proxy) = (Server::start(structured), Proxy::new());
        let spec = format!("nbd:127.0.0.1:{}/disk,connections=2,timeout=1", proxy.port());
        proxy.start(server.port, seed);
        let opened = crate::open(&spec.parse().unwrap(), &OpenOptions::default(), |_| {});
        let Ok(device) = opened else { return };
        let device = device.bare();
        let (pages, Ok(mut queue)) = (Pages::new(), device.open_queue(8)) else { return };
        for slot in [1, 100, 101, 102, 1] {
            transfer(&mut *queue, &pages, IoOp::Write, slot);
            transfer(&mut *queue, &pages, IoOp::Read, slot);
        }
    });
}
