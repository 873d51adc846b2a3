//! Swap on other machines' disks: servers that other people wrote, on this machine.

use crate::compressed::TREE;
use crate::encryption::{SECRETS, found_in};
use crate::served::works_elsewhere;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Ended, Job, MIB, Running, assert_same};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LIMIT: u64 = 16 * MIB;
const EXPORT_BYTES: u64 = 512 * MIB;

/// A server of one file.
struct Server {
    command: Command,
    port: u16,
    /// Where one listens that has no port.
    socket: PathBuf,
    /// Where one tells its number that goes into the background.
    pid: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// Starts `words`, in which PORT, FILE and NUMBER stand for those; the last is the file that
    /// gets the server's number.
    fn start(bench: &Bench, words: &[&str]) -> Self {
        let file = bench.path("export");
        std::fs::File::create(&file).unwrap().set_len(EXPORT_BYTES).unwrap();
        let port = free_port();
        std::fs::write(bench.path("config"), config(&file, port)).unwrap();
        let (socket, pid) = (bench.path("socket"), bench.path("pid"));
        let stand_ins = [
            ("PORT", port.to_string()),
            ("FILE", file.display().to_string()),
            // One that goes into the background leaves its directory.
            ("NUMBER", pid.display().to_string()),
        ];
        let fill = |word: &&str| {
            stand_ins.iter().fold(word.to_string(), |word, (name, value)| word.replace(name, value))
        };
        let mut command = Command::new(words[0]);
        command.args(words[1..].iter().map(fill)).current_dir(bench.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { command, port, socket, pid, child: None };
        server.go_on();
        server
    }

    /// Starts it (again), and waits until it listens.
    fn go_on(&mut self) {
        self.child = Some(self.command.spawn().unwrap());
        let begun = Instant::now();
        while !self.listens() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{:?} listens nowhere",
                self.command
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn listens(&self) -> bool {
        self.socket.exists() || TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let pid = std::fs::read_to_string(&self.pid).ok().and_then(|pid| pid.trim().parse().ok());
        // Perhaps it has ended by itself.
        let _ = pid.and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
    }

    fn swap(&self, export: &str) -> String {
        format!("nbd:127.0.0.1:{}/{export}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const NBDKIT: &[&str] = &["nbdkit", "-f", "-i", "127.0.0.1", "-p", "PORT", "file", "FILE"];
const NBDKIT_MEMORY: &[&str] = &["nbdkit", "-f", "-i", "127.0.0.1", "-p", "PORT", "memory", "512M"];
const QEMU: &[&str] = &[
    "qemu-nbd",
    "-t",
    "-f",
    "raw",
    "-b",
    "127.0.0.1",
    "-p",
    "PORT",
    "-e",
    "9",
    "-x",
    "disk",
    "FILE",
];
const NBD_SERVER: &[&str] = &["nbd-server", "-C", "config", "-p", "NUMBER"];

/// What nbd-server reads instead of options.
fn config(file: &Path, port: u16) -> String {
    let file = file.display();
    format!(
        "[generic]\nport = {port}\nlistenaddr = 127.0.0.1\n\
         [disk]\nexportname = {file}\n"
    )
}

fn tree(bench: &Bench) -> Job {
    bench.job(&["/usr/bin/python3", "-c", TREE])
}

fn start(job: &Job, swap: &str) -> Running {
    job.paged(&["--memory", &LIMIT.to_string(), "--swap", swap])
}

/// Runs a tree of processes over a server.
fn works(bench: &Bench, swap: &str) -> Ended {
    let plain = tree(bench).plain().success();
    let paged = start(&tree(bench), swap).success();
    assert_same(&plain.output, &paged.output);
    assert!(paged.stat("/summary/pages_in") > 10_000, "{swap}: {paged}");
    paged
}

#[test]
fn nbdkit_keeps_pages() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let server = Server::start(&bench, NBDKIT);
    let paged = works(&bench, &server.swap(""));
    assert!(paged.notes().contains("2 connections"), "{paged}");
    works(&bench, &format!("{},connections=4,discard=both,encrypt=off", server.swap("")));
    works_elsewhere(&bench, &server.swap(""));
}

#[test]
fn qemu_nbd_keeps_pages() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "qemu-nbd"]) else { return };
    let server = Server::start(&bench, QEMU);
    works(&bench, &server.swap("disk"));
}

#[test]
fn nbd_server_keeps_pages() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbd-server"]) else { return };
    let server = Server::start(&bench, NBD_SERVER);
    works(&bench, &server.swap("disk"));
}

#[test]
fn a_socket_of_this_machine_will_do() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let server = Server::start(&bench, &["nbdkit", "-f", "-U", "socket", "file", "FILE"]);
    works(&bench, &format!("nbd+unix:{}", bench.path("socket").display()));
    drop(server);
}

/// Kills a server again and again while a program swaps to it.
#[test]
fn a_server_that_is_killed_and_comes_back_costs_nothing_but_time() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let plain = tree(&bench).plain().success();
    let mut server = Server::start(&bench, NBDKIT);
    let running = start(&tree(&bench), &server.swap(""));
    let is_over = AtomicBool::new(false);
    let (paged, kills) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut kills = 0;
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(300));
                server.kill();
                std::thread::sleep(Duration::from_millis(50));
                server.go_on();
                kills += 1;
            }
            kills
        });
        let paged = running.end();
        is_over.store(true, Relaxed);
        (paged, killer.join().unwrap())
    });
    println!("{kills} kills: {paged}");
    assert!(paged.status.success() && kills > 3, "{paged}");
    assert_same(&plain.output, &paged.output);
    assert!(paged.errors.contains("pages wait until it is back"), "{paged}");
    assert!(paged.errors.contains("it is back"), "{paged}");
}

/// Of two servers that have the same pages, one dies or falls silent for good.
#[test]
fn a_mirror_goes_on_with_the_server_that_is_left() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let plain = tree(&bench).plain().success();
    for (strikes_first, signal) in [(true, Signal::KILL), (false, Signal::STOP)] {
        let [first, second] = [(); 2].map(|()| Server::start(&bench, NBDKIT_MEMORY));
        // Longer than the one that is left may wait for a CPU, beside keepers of other tests.
        let swap = format!("{},timeout=6,mirror={}", first.swap(""), second.swap(""));
        let running = start(&tree(&bench), &swap);
        std::thread::sleep(Duration::from_secs(1));
        let struck = if strikes_first { &first } else { &second };
        kill_process(Pid::from_child(struck.child.as_ref().unwrap()), signal).unwrap();
        let paged = running.end();
        println!("{signal:?}: {paged}");
        assert!(paged.status.success(), "{paged}");
        assert_same(&plain.output, &paged.output);
        assert!(paged.errors.contains("one of the two is left"), "{paged}");
    }
}

/// Runs a tree of processes that is not expected to keep its pages; `strike` does to the server
/// what it can after a second.
fn runs_into(bench: &Bench, options: &str, strike: impl FnOnce(&mut Server)) -> Ended {
    let mut server = Server::start(bench, NBDKIT);
    let limit = LIMIT.to_string();
    let (overspill, swap) = (overspill().display().to_string(), server.swap("") + options);
    let words =
        [&overspill, "run", "--memory", &limit, "--swap", &swap, "--", "python3", "-c", TREE];
    // Not as a paged job, for which nothing may be lost.
    let running = bench.job(&words).plain();
    std::thread::sleep(Duration::from_secs(1));
    strike(&mut server);
    running.end()
}

#[test]
fn a_server_that_comes_back_empty_is_named() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let ended = runs_into(&bench, "", |server| {
        server.kill();
        std::fs::File::create(bench.path("export")).unwrap().set_len(EXPORT_BYTES).unwrap();
        server.go_on();
    });
    assert!(!ended.status.success(), "{ended}");
    assert!(ended.errors.contains("or an empty one: what was there is lost"), "{ended}");
}

/// Where the server has stopped and the user has said how long to wait, a page is lost as on a bad
/// disk.
#[test]
fn a_silent_server_has_failed_after_the_time_given() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit"]) else { return };
    let ended = runs_into(&bench, ",timeout=2", |server| {
        let child = server.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    });
    assert!(!ended.status.success(), "{ended}");
    assert!(ended.errors.contains("said nothing within timeout="), "{ended}");
    assert!(ended.errors.contains("timed out"), "{ended}");
}

/// Passes connections on to `port`, and writes everything that is said to `file`.
fn tapped(port: u16, file: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let tap = Arc::new(std::fs::File::create(file).unwrap());
    let pass = |mut from: TcpStream, mut to: TcpStream, tap: Arc<std::fs::File>| {
        let mut bytes = [0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            (&*tap).write_all(&bytes[..n]).unwrap();
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        // Either side may be gone already.
        let _ = to.shutdown(Shutdown::Write);
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            [&client, &server].iter().for_each(|side| side.set_nodelay(true).unwrap());
            let (client_too, server_too) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (one, other) = (tap.clone(), tap.clone());
            std::thread::spawn(move || pass(client, server, one));
            std::thread::spawn(move || pass(server_too, client_too, other));
        }
    });
    own
}

#[test]
fn neither_the_network_nor_the_server_can_read_the_program() {
    let Some(bench) = Bench::with(&["overspill-server", "/usr/bin/python3", "nbdkit"]) else {
        return;
    };
    let job = bench.job(&["/usr/bin/python3", "-c", SECRETS]);
    let plain = job.plain().success();
    for (options, readable) in [("", false), (",encrypt=off", true)] {
        let server = Server::start(&bench, NBDKIT);
        let port = tapped(server.port, &bench.path("tap"));
        let paged = start(&job, &format!("nbd:127.0.0.1:{port}/{options}")).success();
        assert_same(&plain.output, &paged.output);
        assert!(paged.stat("/summary/pages_in") > 10_000, "{paged}");
        let found = [bench.path("tap"), bench.path("export")].map(|file| found_in(&file));
        assert_eq!(found.map(|found| found > 20), [readable; 2], "`{options}`: {found:?}");
        assert!(readable || found == [0, 0], "`{options}`: {found:?}");
    }
}

/// Starts a run that must be refused; returns why.
pub(crate) fn refusal(bench: &Bench, swap: &str) -> String {
    let refused = start(&bench.job(&["true"]), swap).end();
    assert_eq!(refused.status.code(), Some(125), "{refused}");
    assert_eq!(refused.errors.lines().count(), 1, "{refused}");
    refused.errors
}

#[test]
fn what_cannot_be_swapped_to_is_refused_in_one_line() {
    let Some(bench) = Bench::with(&["overspill-server", "nbdkit", "qemu-nbd"]) else { return };
    let nowhere = format!("nbd:127.0.0.1:{}", free_port());
    let qemu = Server::start(&bench, QEMU);
    let read_only = Server::start(&bench, &[NBDKIT, &["-r"]].concat());
    let small = Server::start(&bench, &["nbdkit", "-f", "-p", "PORT", "memory", "4k"]);
    let http = Server::start(&bench, &["python3", "-m", "http.server", "PORT", "-b", "127.0.0.1"]);
    let table = [
        (nowhere, "Connection refused"),
        (qemu.swap("disc"), "the server has no export `disc`, but `disk`"),
        (format!("{},tls=on", qemu.swap("disk")), "the server has no TLS"),
        (read_only.swap(""), "the export is read-only"),
        (small.swap(""), "no room for a page"),
        (http.swap(""), "does not say what it is"),
        ("nbd:no-such-host.invalid".into(), "no-such-host.invalid"),
        ("nbd+unix:/no/socket".into(), "No such file or directory"),
    ];
    for (swap, why) in table {
        let line = refusal(&bench, &swap);
        assert!(line.contains(why), "{swap}: {line}");
    }
    std::fs::write(bench.path("export"), vec![7; 1 << 20]).unwrap();
    assert!(refusal(&bench, &qemu.swap("disk")).contains("holds data"));
}

/// Makes an authority, and certificates that it signed.
const CERTIFICATES: &str = r#"
set -e
authority() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$1" -keyout "$1-key.pem" -out "$1-cert.pem"
}
sign() {
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout "$1-key.pem" -out "$1.csr"
    echo "subjectAltName = $3" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
        -extfile "$1.ext" -out "$1-cert.pem"
}
authority ca
authority other
sign server 127.0.0.1 IP:127.0.0.1
sign wrong elsewhere DNS:elsewhere
sign client client DNS:client
for directory in server wrong; do
    mkdir "$directory"
    cp ca-cert.pem "$directory"
    cp "$directory-cert.pem" "$directory/server-cert.pem"
    cp "$directory-key.pem" "$directory/server-key.pem"
done
mkdir known unknown stranger
cp ca-cert.pem client-cert.pem client-key.pem known
cp ca-cert.pem unknown
cp other-cert.pem stranger/ca-cert.pem
"#;

pub(crate) fn certificates(bench: &Bench) {
    bench.job(&["bash", "-c", CERTIFICATES]).plain().success();
}

fn with_tls(bench: &Bench, certificates: &str, more: &[&'static str]) -> Server {
    let directory = format!("--tls-certificates={}", bench.path(certificates).display());
    let words = [&["nbdkit", "--tls=require", &directory], more, &NBDKIT[1..]].concat();
    Server::start(bench, &words)
}

#[test]
fn connections_are_encrypted_and_servers_authenticated() {
    let Some(bench) = Bench::with(&["overspill-server", "python3", "nbdkit", "openssl"]) else {
        return;
    };
    certificates(&bench);
    let server = with_tls(&bench, "server", &[]);
    let swap = |server: &Server, directory: &str| {
        format!("{},tls={}/", server.swap(""), bench.path(directory).display())
    };
    works(&bench, &swap(&server, "known"));
    assert!(refusal(&bench, &server.swap("")).contains("wants TLS: add ,tls=on or ,tls=DIR"));
    assert!(refusal(&bench, &swap(&server, "stranger")).contains("certificate"));
    assert!(refusal(&bench, &swap(&server, "nothing")).contains("cannot read"));
    let system = refusal(&bench, &format!("{},tls=on", server.swap("")));
    assert!(system.contains("certificate") || system.contains("no authority"), "{system}");
    drop(server);
    let wrong = with_tls(&bench, "wrong", &[]);
    assert!(refusal(&bench, &swap(&wrong, "known")).contains("certificate"));
    drop(wrong);
    let picky = with_tls(&bench, "server", &["--tls-verify-peer"]);
    works(&bench, &swap(&picky, "known"));
    let stranger = refusal(&bench, &swap(&picky, "unknown"));
    assert!(stranger.contains("it may want a certificate of ours"), "{stranger}");
}
