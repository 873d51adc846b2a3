//! Servers of which somebody changes what they say.
//!
//! Owns: a proxy that passes on what a client says, and changes what it hears: bytes, missing,
//! repeated and added ones, silence, the end. And a watch that nobody panics over it.
//! Not here: what clients make of it.

use fastrand::Rng;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Seeds that are tried at a time: most of them wait.
const BESIDE: usize = 16;
/// How long one may take, of which most is the time that servers are given.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody between client and server.
pub(crate) struct Proxy(TcpListener);

impl Proxy {
    pub(crate) fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// Passes on between clients and a server, for as long as the test program.
    pub(crate) fn start(self, server: u16, seed: u64) {
        let mut random = Rng::with_seed(seed);
        thread::spawn(move || {
            for client in self.0.incoming() {
                let connected = TcpStream::connect(("127.0.0.1", server));
                let (Ok(client), Ok(server)) = (client, connected) else { return };
                // They end with the connection, however that ends.
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || drop(pass(from, to, None)));
                let random = random.fork();
                thread::spawn(move || drop(pass(server, client, Some(random))));
            }
        });
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut random: Option<Rng>) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    let ended = loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            break Ok(());
        }
        let mut said = bytes[..read].to_vec();
        if let Some(random) = &mut random {
            match random.u8(..) {
                0..16 => change(&mut said, random),
                16..18 => break Ok(()),
                18..20 => thread::sleep(Duration::from_millis(1500)),
                _ => {}
            }
        }
        to.write_all(&said)?;
    };
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    ended
}

fn change(said: &mut Vec<u8>, random: &mut Rng) {
    let at = random.usize(..said.len());
    let end = (at + random.usize(1..64)).min(said.len());
    match random.u8(..5) {
        0 => said[at] = random.u8(..),
        1 => said[at] ^= 1 << random.u8(..8),
        2 => drop(said.drain(at..end)),
        3 => {
            let part = said[at..end].to_vec();
            said.splice(at..at, part);
        }
        _ => {
            let large = [0xff; 8];
            said.splice(at..at, large);
        }
    }
}

/// So many as HOSTILE_SEEDS says.
fn seeds() -> u64 {
    std::env::var("HOSTILE_SEEDS").map_or(48, |seeds| seeds.parse().expect("a number"))
}

/// Tries each seed: it has to come to an end, and no thread may panic.
pub(crate) fn try_seeds(try_one: impl Fn(u64) + Send + Sync + 'static) {
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.store(true, Relaxed);
        before(panic);
    }));
    let try_one = Arc::new(try_one);
    let seeds: Vec<u64> = (0..seeds()).collect();
    for beside in seeds.chunks(BESIDE) {
        let (ended, ends) = channel();
        for &seed in beside {
            let (try_one, ended) = (try_one.clone(), ended.clone());
            thread::spawn(move || {
                try_one(seed);
                ended.send(seed).unwrap();
            });
        }
        drop(ended);
        let mut left = beside.to_vec();
        while !left.is_empty() {
            let ended = ends.recv_timeout(PATIENCE);
            assert!(!HAS_PANICKED.load(Relaxed), "one of the seeds {left:?}");
            let ended = ended.unwrap_or_else(|_| panic!("seeds {left:?} do not end"));
            left.retain(|seed| *seed != ended);
        }
    }
}
