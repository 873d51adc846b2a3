//! redis-server: holds four times its limit, and saves it while clients write.
//!
//! Compared by `DEBUG DIGEST`, a checksum of all keys and values. A server answers BGSAVE after it
//! has forked, so later writes are not in the file: the file must load to the digest taken just
//! before, and the server must have the digest of a plain server with the same writes. The writes
//! go to the keys being saved, so that parent and child differ in shared pages.

use crate::random::Random;
use crate::resp::Client;
use overspill_programs::bench::Bench;
use overspill_programs::job::{Job, MIB, Running};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: u64 = 48 * MIB;
const VALUES: u64 = 24_576;
const VALUE_BYTES: usize = 8192;
/// Requests in flight.
const PIPELINE: u64 = 64;

struct Server {
    running: Running,
    socket: PathBuf,
}

impl Server {
    /// Starts a server called `name`; it loads the file of that name if there is one.
    fn start(bench: &Bench, name: &str, start: impl FnOnce(&Job) -> Running) -> Self {
        let socket = bench.path(&format!("{name}.sock"));
        let file = format!("{name}.rdb");
        let mut words = vec!["redis-server", "--port", "0", "--unixsocket"];
        words.push(socket.to_str().unwrap());
        words.extend(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        words.extend(["--enable-debug-command", "local", "--dbfilename", &file]);
        let running = start(&bench.job(&words).patience(150));
        Self { running, socket }
    }

    /// Returns a client, as soon as the server has loaded what it saved.
    fn client(&mut self) -> Client {
        loop {
            if let Some(mut client) = Client::connect(&self.socket)
                && client.text("INFO persistence").contains("\r\nloading:0\r\n")
            {
                return client;
            }
            self.running.assert_in_time();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(key << 8 | version);
    (0..VALUE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Sets all `keys` to their values in `version`.
fn write(client: &mut Client, keys: impl Iterator<Item = u64>, version: u64) {
    let mut waiting = 0;
    for key in keys {
        client.send(&[b"SET", format!("key:{key}").as_bytes(), &value(key, version)]);
        waiting += 1;
        if waiting == PIPELINE {
            (0..waiting).for_each(|_| assert_eq!(client.answer(), b"OK"));
            waiting = 0;
        }
    }
    (0..waiting).for_each(|_| assert_eq!(client.answer(), b"OK"));
}

fn is_saving(client: &mut Client) -> bool {
    let info = client.text("INFO persistence");
    let saving = info.contains("rdb_bgsave_in_progress:1");
    assert!(saving || info.contains("rdb_last_bgsave_status:ok"), "{info}");
    saving
}

/// Overwrites keys, a stride apart, until the file is written; returns how many.
fn write_while_saving(client: &mut Client) -> u64 {
    let mut written = 0;
    while is_saving(client) {
        let keys = (written..written + PIPELINE).map(scattered);
        write(client, keys, 1);
        written += PIPELINE;
    }
    written
}

fn scattered(number: u64) -> u64 {
    number * 7919 % VALUES
}

#[test]
fn holds_saves_and_loads_four_times_its_limit() {
    let Some(bench) = Bench::with(&["redis-server"]) else { return };
    let options = ["--memory", &LIMIT.to_string(), "--quiet"];
    let mut server = Server::start(&bench, "paged", |job| job.paged(&options));
    let mut plain = Server::start(&bench, "plain", Job::plain);
    let (mut client, mut plain_client) = (server.client(), plain.client());
    for client in [&mut client, &mut plain_client] {
        write(client, 0..VALUES, 0);
    }
    let digest = plain_client.text("DEBUG DIGEST");
    assert_eq!(client.text("DEBUG DIGEST"), digest);

    client.text("BGSAVE");
    let written = write_while_saving(&mut client);
    println!("{written} keys written while the child saved");
    assert!(written > PIPELINE, "the child was done before we were");
    write(&mut plain_client, (0..written).map(scattered), 1);
    let digest_after = plain_client.text("DEBUG DIGEST");
    assert_ne!(digest_after, digest);
    assert_eq!(client.text("DEBUG DIGEST"), digest_after);
    for key in [0, 1, VALUES / 2, VALUES - 1] {
        let name = format!("key:{key}");
        let words: [&[u8]; 2] = [b"GET", name.as_bytes()];
        assert_eq!(client.ask(&words), plain_client.ask(&words), "{name}");
    }
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    plain_client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    plain.running.success();
    server.running.success().assert_paged(LIMIT, 0);

    std::fs::rename(bench.path("paged.rdb"), bench.path("loaded.rdb")).unwrap();
    let mut loaded = Server::start(&bench, "loaded", Job::plain);
    assert_eq!(loaded.client().text("DEBUG DIGEST"), digest);
}
