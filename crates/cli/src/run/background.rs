//! `overspill attach --background`: a process that goes on without a terminal.
//!
//! Owns: starting it as this program once more, waiting until it is ready, and what that does then.
//! Invariant: what is refused is said, and is the status here, as in the foreground.
//! Rejected: a fork of this process: its words on the command line would show `--background`.

use crate::error::Error;
use rustix::fd::AsFd;
use rustix::fs::FileType;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read, Write, stderr, stdout};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

const OPTION: &str = "--background";
const READY: &str = "--ready";

/// Starts it; returns when it is ready, or the status with which it has refused.
///
/// # Errors
/// It does not start.
pub(super) fn start() -> Result<u8, Error> {
    let program = std::env::current_exe().map_err(Error::system("find this program"))?;
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| if word == OPTION { READY.into() } else { word });
    let started = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(if is_file(&stderr()) { Stdio::inherit() } else { Stdio::piped() })
        .spawn()
        .map_err(Error::system("start a process"))?;
    wait_until_ready(started).map_err(Error::system("wait for the process in the background"))
}

/// Passes on what it has said by then. Its keeper has the other end for as long as it goes on, so
/// its end is not waited for.
fn wait_until_ready(mut started: Child) -> io::Result<u8> {
    let mut ready = [0];
    let is_ready = started.stdout.take().expect("it is a pipe").read(&mut ready)? > 0;
    if let Some(mut said) = started.stderr.take() {
        rustix::io::ioctl_fionbio(&said, true)?;
        // Until nothing more is there.
        let _ = io::copy(&mut said, &mut stderr());
    }
    if is_ready {
        return Ok(0);
    }
    let status = started.wait()?;
    Ok(status.code().unwrap_or(128 + status.signal().unwrap_or(0)) as u8)
}

fn is_file(descriptor: &impl AsFd) -> bool {
    let status = rustix::fs::fstat(descriptor);
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_file())
}

/// Leaves the terminal's session.
pub(super) fn leave_session() {
    // Whoever leads its group already cannot, and has no terminal's job control either.
    let _ = rustix::process::setsid();
}

/// Says that it is ready. What is said later goes to standard error if that is a file, and nowhere
/// if somebody waits at its other end.
///
/// # Errors
/// Of writing, and of opening `/dev/null`.
pub(super) fn say_ready() -> io::Result<()> {
    writeln!(stdout(), "ready")?;
    stdout().flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    if !is_file(&stderr()) {
        dup2_stderr(&null)?;
    }
    Ok(())
}
