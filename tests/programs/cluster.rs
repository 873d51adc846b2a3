//! Swap on a cluster of Redis servers, on this machine: killed, stopped, resharded, full, flushed.

use crate::compressed::TREE;
use crate::encryption::{SECRETS, found_in_content};
use crate::network::{certificates, refusal};
use crate::served::works_elsewhere;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Ended, MIB, Running, assert_same, descendants, name_of};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: u64 = 16 * MIB;
const TOOLS: &[&str] = &["overspill-server", "/usr/bin/python3", "redis-server", "redis-cli"];
/// Servers notice a death within so long, once they know each other: on a busy machine they do not
/// get to know each other in this time, and `redis-cli` would wait for them for ever.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

struct Server {
    port: u16,
    directory: PathBuf,
    child: Option<Child>,
}

/// Servers that are a cluster, primaries first.
struct Cluster {
    servers: Vec<Server>,
    options: Vec<String>,
}

impl Server {
    fn new(bench: &Bench) -> Self {
        let port = free_port();
        let directory = bench.path(&format!("server-{port}"));
        std::fs::create_dir(&directory).unwrap();
        Self { port, directory, child: None }
    }

    /// Starts it (again), and waits until it answers.
    fn go_on(&mut self, options: &[String]) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--cluster-enabled", "yes", "--logfile", "log"]);
        command.args(["--repl-diskless-sync-delay", "0"]).args(options);
        command.current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        until("a server answers", || !self.ask(&["PING"]).contains("refused"));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// What `redis-cli` prints.
    fn ask(&self, words: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        let done = cli.args(["-p", &self.port.to_string()]).args(words).output().unwrap();
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    }

    fn is_well(&self) -> bool {
        let (cluster, replication) =
            (self.ask(&["CLUSTER", "INFO"]), self.ask(&["INFO", "replication"]));
        let is_synced =
            !replication.contains("role:slave") || replication.contains("master_link_status:up");
        cluster.contains("cluster_state:ok") && is_synced
    }

    fn become_impatient(&self) {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        self.ask(&["CONFIG", "SET", "cluster-node-timeout", &timeout]);
    }

    fn id(&self) -> String {
        self.ask(&["CLUSTER", "MYID"]).trim().to_owned()
    }

    fn is_primary(&self) -> bool {
        self.ask(&["ROLE"]).starts_with("master")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports that were looked at before.
static PORTS: AtomicU16 = AtomicU16::new(0);

/// A port for a server, with another one 10 000 above it by which servers know each other.
fn free_port() -> u16 {
    let is_free = |port: &u16| {
        [*port, port + 10_000].iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    };
    let first = 20_000 + (std::process::id() % 8000) as u16;
    std::iter::repeat_with(|| first + PORTS.fetch_add(1, Relaxed)).find(is_free).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} not within a minute");
        sleep(Duration::from_millis(20));
    }
}

/// Has `redis-cli` do something to a cluster.
fn manage(words: impl Iterator<Item = String>) {
    let done = Command::new("timeout").args(["60", "redis-cli"]).args(words).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

impl Cluster {
    /// Starts three shards, each with a replica, whose servers have `options` as well.
    fn of_six(bench: &Bench, options: &[&str]) -> Self {
        let cluster = Self::servers(bench, 6, options);
        let addresses = cluster.servers.iter().map(|s| format!("127.0.0.1:{}", s.port));
        let create = ["--cluster", "create", "--cluster-replicas", "1", "--cluster-yes"];
        manage(create.map(str::to_owned).into_iter().chain(addresses));
        cluster.wait_until_well();
        cluster.servers.iter().for_each(Server::become_impatient);
        cluster
    }

    /// Starts a server that has all keys.
    fn of_one(bench: &Bench, options: &[&str]) -> Self {
        let cluster = Self::servers(bench, 1, options);
        cluster.servers[0].ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        cluster.wait_until_well();
        cluster
    }

    fn servers(bench: &Bench, count: usize, options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let mut servers: Vec<_> = (0..count).map(|_| Server::new(bench)).collect();
        servers.iter_mut().for_each(|server| server.go_on(&options));
        Self { servers, options }
    }

    fn wait_until_well(&self) {
        until("the cluster is well", || self.servers.iter().all(Server::is_well));
    }

    fn swap(&self) -> String {
        format!("redis+cluster:127.0.0.1:{}", self.servers[0].port)
    }

    /// Kills a server, waits until the others have noticed, and has it come back.
    fn replace(&mut self, number: usize) {
        self.servers[number].kill();
        sleep(3 * NODE_TIMEOUT);
        self.servers[number].go_on(&self.options);
        self.wait_until_well();
        self.servers[number].become_impatient();
    }

    /// Cuts a server off, and has it come back.
    fn silence(&self, number: usize) {
        self.servers[number].signal(Signal::STOP);
        sleep(3 * NODE_TIMEOUT);
        self.servers[number].signal(Signal::CONT);
        self.wait_until_well();
    }

    /// Moves keys from one primary to another while they are used.
    fn reshard(&self) {
        let mut primaries = self.servers.iter().filter(|server| server.is_primary());
        let (from, to) = (primaries.next().unwrap(), primaries.next().unwrap());
        let (address, from, to) = (format!("127.0.0.1:{}", from.port), from.id(), to.id());
        let words = ["--cluster", "reshard", &address, "--cluster-from", &from, "--cluster-to"];
        let rest = [&to, "--cluster-slots", "2000", "--cluster-yes"];
        manage(words.into_iter().chain(rest).map(str::to_owned));
    }

    fn keys(&self) -> u64 {
        let count = |server: &Server| server.ask(&["DBSIZE"]).trim().parse::<u64>().unwrap();
        self.servers.iter().map(count).sum()
    }
}

/// A server that writes all to a file, and never anew: that would leave out what was deleted since.
const APPENDING: [&str; 6] =
    ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"];

fn start(bench: &Bench, program: &str, swap: &str) -> Running {
    let job = bench.job(&["/usr/bin/python3", "-c", program]);
    job.paged(&["--memory", &LIMIT.to_string(), "--swap", swap])
}

#[test]
fn a_cluster_keeps_pages_and_is_empty_afterwards() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_six(&bench, &["--maxmemory", "200mb"]);
    let plain = bench.job(&["/usr/bin/python3", "-c", TREE]).plain().success();
    let paged = start(&bench, TREE, &cluster.swap()).success();
    assert_same(&plain.output, &paged.output);
    assert!(paged.stat("/summary/pages_in") > 10_000, "{paged}");
    assert!(paged.notes().contains("3 shards, a page in 1 replicas besides"), "{paged}");
    works_elsewhere(&bench, &cluster.swap());
    assert_eq!(cluster.keys(), 0);
}

#[test]
fn neither_servers_nor_their_files_have_the_program() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let plain = bench.job(&["/usr/bin/python3", "-c", SECRETS]).plain().success();
    for (options, readable) in [("", false), (",encrypt=off", true)] {
        let cluster = Cluster::of_one(&bench, &APPENDING);
        let swap = format!("{},size=256M{options}", cluster.swap());
        let paged = start(&bench, SECRETS, &swap).success();
        assert_same(&plain.output, &paged.output);
        let found = found_below(&cluster.servers[0].directory);
        assert_eq!(found > 20, readable, "`{options}`: {found}");
        assert!(readable || found == 0, "`{options}`: {found}");
    }
}

/// As `found_in_content`, in all that lies in a directory and those in it. A server that goes on
/// renames and removes files: then all is looked at again.
fn found_below(directory: &Path) -> usize {
    for _ in 0..100 {
        match contents(directory) {
            Ok(contents) => return contents.iter().map(|content| found_in_content(content)).sum(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{}: {error}", directory.display()),
        }
    }
    panic!("{} never stood still", directory.display());
}

fn contents(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut contents = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => contents.extend(self::contents(&path)?),
            false => contents.push(std::fs::read(path)?),
        }
    }
    Ok(contents)
}

/// Changes blocks at random and checks each before, until there is a file `stop`; then says how
/// long it has waited at most.
const CHANGES: &str = r#"
import os, random, sys, time
chance, count = random.Random(7), 16384
def content(n, version): return b"%8d%8d" % (n, version) * 256
versions = [0] * count
blocks = [bytearray(content(n, 0)) for n in range(count)]
longest = 0
while not os.path.exists("stop"):
    for _ in range(200):
        n = chance.randrange(count)
        before = time.monotonic()
        assert blocks[n] == content(n, versions[n]), n
        longest = max(longest, time.monotonic() - before)
        versions[n] += 1
        blocks[n][:] = content(n, versions[n])
assert all(blocks[n] == content(n, versions[n]) for n in range(count))
print("%d changes, longest wait %.2f s" % (sum(versions), longest), file=sys.stderr)
print("right")
"#;

/// Runs `CHANGES` while `strike` does something to the cluster. Nothing may be lost.
fn survives(bench: &Bench, what: &str, cluster: &mut Cluster, strike: impl FnOnce(&mut Cluster)) {
    let stop = bench.path("stop");
    let running = start(bench, CHANGES, &cluster.swap());
    sleep(Duration::from_secs(2));
    let begun = Instant::now();
    strike(cluster);
    let took = begun.elapsed();
    sleep(Duration::from_secs(1));
    std::fs::write(&stop, b"").unwrap();
    let ended = running.success();
    std::fs::remove_file(&stop).unwrap();
    let longest = ended.errors.lines().find(|line| line.contains("longest wait")).unwrap();
    println!("{what}, in {took:.1?}: {longest}");
    assert_eq!(ended.text(), "right\n");
}

#[test]
fn deaths_silence_and_moves_cost_nothing_but_time() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let mut cluster = Cluster::of_six(&bench, &["--maxmemory", "200mb"]);
    survives(&bench, "a primary killed", &mut cluster, |cluster| cluster.replace(0));
    // The replica of some other shard: a killed primary comes back as one.
    survives(&bench, "a replica killed", &mut cluster, |cluster| {
        let replica = (1..6).find(|&n| !cluster.servers[n].is_primary()).unwrap();
        cluster.replace(replica);
    });
    survives(&bench, "a primary cut off", &mut cluster, |cluster| cluster.silence(1));
    survives(&bench, "keys moved", &mut cluster, |cluster| cluster.reshard());
    assert_eq!(cluster.keys(), 0);
}

/// Runs a program that is not expected to keep its pages; `strike` does to the cluster what it can.
fn runs_into(bench: &Bench, cluster: &Cluster, options: &str, strike: impl FnOnce()) -> Ended {
    let swap = format!("{},size=256M{options}", cluster.swap());
    let (overspill, limit) = (overspill().display().to_string(), LIMIT.to_string());
    let words = [&overspill, "run", "--memory", &limit, "--swap", &swap, "--", "python3", "-c"];
    // Not as a paged job, for which nothing may be lost.
    let running = bench.job(&[&words[..], &[CHANGES]].concat()).plain();
    sleep(Duration::from_secs(2));
    strike();
    std::fs::write(bench.path("stop"), b"").unwrap();
    running.end()
}

#[test]
fn what_a_cluster_loses_is_named() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_one(&bench, &[]);
    let ended = runs_into(&bench, &cluster, "", || {
        assert!(cluster.servers[0].ask(&["FLUSHALL"]).contains("OK"));
    });
    assert!(!ended.status.success(), "{ended}");
    assert!(ended.errors.contains("it has lost pages: somebody has removed its keys"), "{ended}");
}

#[test]
fn a_cluster_that_stays_away_has_failed_after_the_time_given() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_one(&bench, &[]);
    let ended = runs_into(&bench, &cluster, ",timeout=1", || {
        cluster.servers[0].signal(Signal::STOP);
    });
    cluster.servers[0].signal(Signal::CONT);
    assert!(!ended.status.success(), "{ended}");
    assert!(ended.errors.contains("timeout= is over"), "{ended}");
}

#[test]
fn a_full_cluster_is_followed_by_the_next_area() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_one(&bench, &["--maxmemory", "24mb"]);
    let full = format!("{},size=256M,pri=10", cluster.swap());
    let job = bench.job(&["/usr/bin/python3", "-c", TREE]);
    let plain = job.plain().success();
    let limit = LIMIT.to_string();
    let paged = job.paged(&["--memory", &limit, "--swap", &full, "--swap", "ram:512M"]).success();
    assert_same(&plain.output, &paged.output);
    assert!(
        paged.errors.contains("is full (at most 256.0 MiB): raise --swap-size or size="),
        "{paged}"
    );
}

/// The process that serves the cluster outlives the run, and tidies up.
#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_one(&bench, &[]);
    let running = start(&bench, CHANGES, &format!("{},size=256M,lease=600", cluster.swap()));
    until("there are keys", || cluster.keys() > 40);
    kill_process(Pid::from_raw(running.pid()).unwrap(), Signal::KILL).unwrap();
    running.end();
    until("the cluster is empty", || cluster.keys() == 0);
}

/// Kills a run with the process that serves it, and waits for its lease to end.
#[test]
fn a_dead_run_leaves_nothing_after_its_lease() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let cluster = Cluster::of_one(&bench, &[]);
    let running = start(&bench, CHANGES, &format!("{},size=256M,lease=10", cluster.swap()));
    // Half of the lease: keys that are not used must have been renewed at its third.
    sleep(Duration::from_secs(5));
    let names = cluster.servers[0].ask(&["KEYS", "overspill:*"]);
    assert!(names.lines().count() > 40, "{names}");
    for name in names.lines() {
        let left: u64 = cluster.servers[0].ask(&["PTTL", name]).trim().parse().unwrap();
        assert!((5500..=10_000).contains(&left), "{name}: {left} ms");
    }
    let processes = descendants(running.pid());
    let server = processes.into_iter().find(|&pid| name_of(pid) == "overspill-serve").unwrap();
    for process in [server, running.pid()] {
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    }
    running.end();
    let begun = Instant::now();
    until("the cluster is empty", || cluster.keys() == 0);
    let took = begun.elapsed();
    assert!((3..=12).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn what_cannot_be_swapped_to_is_refused_in_one_line() {
    let Some(bench) = Bench::with(TOOLS) else { return };
    let alone = Cluster::servers(&bench, 1, &["--cluster-enabled", "no"]);
    let one = Cluster::of_one(&bench, &[]);
    let forgetful = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let forgetful = Cluster::of_one(&bench, &forgetful);
    let guarded = Cluster::of_one(&bench, &["--maxmemory", "128mb"]);
    let may = "+eval +hset +pexpire +hmget +hdel +unlink +wait +ping +cluster +info";
    let acl = [&["ACL", "SETUSER", "me", "on", ">secret", "~overspill:*"][..], &[]].concat();
    let acl: Vec<&str> = acl.into_iter().chain(may.split(' ')).collect();
    assert!(guarded.servers[0].ask(&acl).contains("OK"));
    assert!(guarded.servers[0].ask(&["ACL", "SETUSER", "default", "off"]).contains("OK"));
    for (name, word, mode) in
        [("word", "secret\n", 0o600), ("wrong", "secrets\n", 0o600), ("known", "secret\n", 0o640)]
    {
        std::fs::write(bench.path(name), word).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(bench.path(name), mode).unwrap();
    }
    let with = |word: &str| {
        format!("{},user=me,password-file={}", guarded.swap(), bench.path(word).display())
    };
    let table = [
        (
            format!("redis+cluster:127.0.0.1:{}", free_port()),
            "start the servers, or say where they are",
        ),
        (alone.swap(), "no server there is part of a cluster"),
        (one.swap(), "say with size= how much to put there"),
        (format!("{},size=64M,replicas=1", one.swap()), "a shard has only 0"),
        (format!("{},size=64M,tls=on", one.swap()), "perhaps only one side wants TLS"),
        (forgetful.swap(), "maxmemory-policy allkeys-lru"),
        (guarded.swap(), "give the right user= and password-file="),
        (with("wrong"), "give the right user= and password-file="),
        (with("nowhere"), "cannot read"),
        (with("known"), "chmod 600 it"),
        (
            format!("redis+cluster:192.0.2.1:7000,password-file={}", bench.path("word").display()),
            "the password would go over the network in clear",
        ),
    ];
    for (swap, why) in table {
        let line = refusal(&bench, &swap);
        assert!(line.contains(why), "{swap}: {line}");
    }
    start(&bench, SECRETS, &with("word")).success();
}

#[test]
fn connections_are_encrypted_and_servers_authenticated() {
    let Some(bench) = Bench::with(&[TOOLS, &["openssl"]].concat()) else { return };
    certificates(&bench);
    let path = |name: &str| bench.path(name).display().to_string();
    let server = |certificate: &str| {
        let (certificate, key) =
            (path(&format!("{certificate}-cert.pem")), path(&format!("{certificate}-key.pem")));
        let port = free_port().to_string();
        let options = ["--tls-port", &port, "--tls-replication", "yes", "--tls-cluster", "yes"];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let trust = ["--tls-ca-cert-file", &path("ca-cert.pem")];
        let options = [&options[..], &files, &trust, &["--tls-auth-clients", "optional"]].concat();
        let cluster = Cluster::of_one(&bench, &options);
        (format!("redis+cluster:127.0.0.1:{port},size=128M"), cluster)
    };
    let (swap, _cluster) = server("server");
    let trusting = |swap: &str, directory: &str| format!("{swap},tls={}/", path(directory));
    start(&bench, SECRETS, &trusting(&swap, "known")).success();
    assert!(refusal(&bench, &trusting(&swap, "stranger")).contains("certificate"));
    assert!(refusal(&bench, &trusting(&swap, "nothing")).contains("cannot read"));
    let (swap, _other) = server("wrong");
    assert!(refusal(&bench, &trusting(&swap, "known")).contains("certificate"));
}
