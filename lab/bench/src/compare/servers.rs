//! Servers that keep a device's pages, on this machine.
//!
//! Owns: starting them for the rows of a device, and their end.
//! Invariants: a server listens on the loopback interface only. It and its files are gone when it
//! is dropped, and when this process ends without dropping anything.
//! Not here: servers on other machines, which `overspill-lab touch` under `run` measures.

use super::child::ending_with_us;
use super::kernel::Skipped;
use super::ways::Device;
use overspill::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Ends with `ready` once the server serves, and waits for it then. `ready` below is called until
/// it succeeds; `$directory` and `$server` are removed and ended however the script ends.
const SCRIPT: &str = r#"
# Before there is anything to be removed: we may be killed at any time.
directory='' server=''
trap '[ -z "$server" ] || { kill $server; wait $server; }; [ -z "$directory" ] || rm -rf "$directory"' EXIT
trap 'exit 1' TERM
directory=$(mktemp -d) || exit 1
serve &
server=$!
tries=0
until ready; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] && kill -0 $server || exit 1
    sleep 0.05
done
echo ready
wait $server
"#;

/// The port of the server is `$1`, the bytes it keeps `$2`; a cluster's servers have another port,
/// `$3`, for each other.
const NBD: &str = r#"
serve() { exec nbdkit -f -i 127.0.0.1 -p "$port" -P "$directory/pid" memory "$bytes"; }
ready() { [ -e "$directory/pid" ]; }
"#;
const REDIS: &str = r#"
serve() {
    exec redis-server --bind 127.0.0.1 --port "$port" --cluster-enabled yes --cluster-port "$other_port" \
        --save '' --dir "$directory" --logfile log --maxmemory "$((2 * bytes))"
}
ready() {
    redis-cli -p "$port" cluster addslotsrange 0 16383
    redis-cli -p "$port" cluster info | grep -q cluster_state:ok
} >/dev/null 2>&1
"#;
const ARGUMENTS: &str = "port=$1 bytes=$2 other_port=$3\n";

/// A running server.
pub(super) struct Server {
    child: Child,
    swap: String,
}

impl Server {
    /// Starts the server of `device`, which keeps `size`; none for a device that has none.
    pub(super) fn start(device: Device, size: Bytes) -> Result<Option<Self>, Skipped> {
        let (programs, script) = match device {
            Device::Nbd => (&["nbdkit"][..], NBD),
            Device::Redis => (&["redis-server", "redis-cli"][..], REDIS),
            Device::Zram | Device::Ramdisk | Device::File => return Ok(None),
        };
        if let Some(missing) = programs.iter().find(|program| !is_installed(program)) {
            return Err(format!("{missing} is not installed"));
        }
        let [port, other_port] = free_ports()?;
        let swap = match device {
            Device::Nbd => format!("nbd:127.0.0.1:{port}/"),
            _ => format!("redis+cluster:127.0.0.1:{port},size={}", size.0),
        };
        let words = [port.to_string(), size.0.to_string(), other_port.to_string()];
        let mut command = Command::new("sh");
        command.args(["-c", &[ARGUMENTS, script, SCRIPT].concat(), "sh"]).args(words);
        // The shell is told when we are killed, and tells the server.
        let mut command = ending_with_us(&command, "TERM");
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let spawned = command.spawn().map_err(|error| format!("cannot run setpriv: {error}"))?;
        let mut server = Self { child: spawned, swap };
        if server.is_ready() { Ok(Some(server)) } else { Err("its server does not start".into()) }
    }

    /// Waits until it serves; false if it has ended instead.
    fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        let output = self.child.stdout.take().map(BufReader::new);
        output.is_some_and(|mut output| output.read_line(&mut line).is_ok()) && line == "ready\n"
    }

    /// Returns what Overspill swaps to.
    pub(super) fn swap(&self) -> &str {
        &self.swap
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", program]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Finds ports that nobody listens on.
fn free_ports() -> Result<[u16; 2], Skipped> {
    let bound = || {
        TcpListener::bind(("127.0.0.1", 0))
            .and_then(|socket| Ok((socket.local_addr()?.port(), socket)))
    };
    let ports = || Ok::<_, std::io::Error>([bound()?, bound()?].map(|(port, _)| port));
    ports().map_err(|error| format!("no port is free: {error}"))
}
