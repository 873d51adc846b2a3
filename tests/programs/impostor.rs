//! The name of a supervisor that has ended is free for everybody: who takes it gets nothing.

use overspill_programs::bench::Bench;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{accept, bind, listen, socket_with};
use std::time::Duration;

/// Goes to the background, and forks when there is a file `go`: long after its run has ended.
const DAEMON: &str = r#"
import os, sys, time
kept = [os.urandom(1 << 16) for _ in range(512)]
if os.fork(): os._exit(0)
os.setsid()
open("address", "w").write(os.environ["OVERSPILL_SESSION"])
while not os.path.exists("go"): time.sleep(0.01)
try:
    child = os.fork()
    if child == 0: os._exit(0)
    said = "forked"
except OSError as error:
    said = error.strerror
open("said.new", "w").write(said)
os.rename("said.new", "said")
"#;

#[test]
fn who_takes_the_name_of_a_dead_supervisor_gets_nothing() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let job = bench.job(&["/usr/bin/python3", "-c", DAEMON]).inside();
    job.paged(&["--memory", "16M", "--swap", "ram:64M", "--quiet"]).success();
    let wait_for = |name: &str| {
        for _ in 0..3000 {
            if let Ok(text) = std::fs::read_to_string(bench.path(name)) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("there is no {name}");
    };
    let address = wait_for("address");
    let name = format!("overspill-{}", address.split(':').next().unwrap());
    let listener = take(&name);
    bench.file("go", |_| {});
    assert_eq!(wait_for("said"), "Resource temporarily unavailable");
    assert_eq!(connections(&listener), 0);
}

/// Listens under a name when it is free.
fn take(name: &str) -> OwnedFd {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    for _ in 0..3000 {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, flags, None).unwrap();
        if bind(&socket, &address).is_ok() {
            listen(&socket, 8).unwrap();
            return socket;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the name is never free");
}

fn connections(listener: &OwnedFd) -> usize {
    (0..8).take_while(|_| accept(listener).is_ok()).count()
}
