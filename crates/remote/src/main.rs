//! The `overspill-server` program: has a place open for a run, and serves it.
//!
//! `overspill run` starts it, and tells it on its standard input which place.
//! Invariants: it ends by itself, when the run has and nobody needs the place any more. A signal to
//! all processes of a service, or of a terminal, is for the program, which may need its pages to
//! end well.
//! Not here: a command line.

use overspill_device::served::apart;
use rustix::net::sockopt::socket_type;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::process::{getrlimit, set_dumpable_behavior, setpriority_process, setrlimit};
use std::os::fd::AsFd;
use std::process::ExitCode;

/// Memory that this may have of its own, beside what it shares with the run: a server that answers
/// without end ends this process, and not the machine.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// As of `overspill`: its own failures.
const FAILED: u8 = 125;

/// Signals that would end or stop it.
const IGNORED: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP, libc::SIGTTOU];

/// As urgent as the keeper, which waits for it.
const NICENESS: i32 = -15;

fn main() -> ExitCode {
    for signal in IGNORED {
        // SAFETY: no handler of ours, and no other thread yet.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    close_others();
    // Where that is not permitted, it takes its turn among the program's.
    let _ = setpriority_process(None, NICENESS);
    raise_limit_of_files();
    limit_memory();
    // It has passwords and keys of connections. Where that is not permitted, as without.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            say(&line);
            ExitCode::from(FAILED)
        }
    }
}

fn serve() -> Result<(), String> {
    let input = std::io::stdin();
    if socket_type(&input).is_err() {
        return Err("overspill-server is started by `overspill run`, and by nobody else".into());
    }
    let socket = input.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    apart::serve(&socket.into(), overspill_remote::open, say)
        .map_err(|error| format!("the process that serves a place cannot go on: {error}"))
}

/// Prints a line, in the run's name.
fn say(line: &str) {
    overspill_terminal::Program("overspill").say(line);
}

/// What its starter was given by others is no business of its own.
fn close_others() {
    // SAFETY: nobody here has them. Where the call is refused, what is left open does no harm but
    // to stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Each process of a run takes some.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    // What is less than all it may have is better than nothing.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn limit_memory() {
    let most = Some(MEMORY_BYTES_MAX);
    // Less than that it may have already.
    let _ = setrlimit(Resource::Data, Rlimit { current: most, maximum: most });
}
