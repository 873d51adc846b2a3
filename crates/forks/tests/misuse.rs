//! What `overspill-forks` does for those who are allowed to execute it, and nothing else: each
//! way to misuse it that we know.
//!
//! Needs root, which makes the userfaultfd and gives the copy of the program its capability.

use linux_raw_sys::general as raw;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NOBODY: u32 = 65534;
const FORKS: u32 = raw::UFFD_FEATURE_EVENT_FORK | raw::UFFD_FEATURE_EVENT_UNMAP;
const INVAL: i32 = 22;
const PERM: i32 = 1;

/// One at a time: a process that is forked while a copy is written has it open for writing, too,
/// until it executes, and so long the copy cannot be executed (ETXTBSY).
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy that everybody may execute.
struct Copy {
    directory: tempfile::TempDir,
}

impl Copy {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755));
        open(directory.path()).unwrap();
        let copy = Self { directory };
        std::fs::copy(env!("CARGO_BIN_EXE_overspill-forks"), copy.path()).unwrap();
        open(&copy.path()).unwrap();
        copy
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("overspill-forks")
    }

    /// Gives it CAP_SYS_PTRACE, permitted and effective, as setcap does (capabilities(7)).
    fn with_capability(self) -> Self {
        const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
        const SYS_PTRACE: u32 = 1 << 19;
        let words = [REVISION_2_EFFECTIVE, SYS_PTRACE, 0, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(self.path(), "security.capability", &bytes, flags).unwrap();
        self
    }

    /// Its status, called by somebody who has no rights.
    fn call(&self, arguments: &[&str], input: impl Into<Stdio>) -> i32 {
        let mut command = Command::new(self.path());
        command.args(arguments).stdin(input).uid(NOBODY).gid(NOBODY);
        command.status().unwrap().code().expect("it was not killed")
    }
}

fn is_possible() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/userfaultfd").exists();
    if !possible {
        println!("skipped: this takes root and /dev/userfaultfd");
    }
    possible
}

/// Made as an agent of a user would, who may open the device.
fn userfaultfd() -> OwnedFd {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd").unwrap();
    // SAFETY: USERFAULTFD_IOC_NEW takes flags and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), 0xaa00, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0);
    // SAFETY: it is nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn hex(features: u32) -> String {
    format!("{features:x}")
}

#[test]
fn a_user_gets_messages_of_forks_by_the_capability_alone() {
    if !is_possible() {
        return;
    }
    let _alone = alone();
    assert_eq!(Copy::new().call(&[&hex(FORKS)], userfaultfd()), PERM);
    let copy = Copy::new().with_capability();
    let fd = userfaultfd();
    assert_eq!(copy.call(&[&hex(FORKS)], fd.try_clone().unwrap()), 0);
    // It was set up, once and for all, and reports nothing yet.
    assert_eq!(copy.call(&[&hex(FORKS)], fd.try_clone().unwrap()), INVAL);
    assert_eq!(rustix::io::read(&fd, &mut [0; 32]), Err(Errno::AGAIN));
}

#[test]
fn it_does_nothing_else() {
    if !is_possible() {
        return;
    }
    let _alone = alone();
    let copy = Copy::new().with_capability();
    let forks = hex(FORKS);
    let arguments: [&[&str]; 9] = [
        &[],
        &[""],
        &["x"],
        &["-1"],
        &["10000000000000000"],
        &[&forks, &forks],
        &["--help"],
        // Faults by signals, of files, of what is there: what no keeper asks for.
        &[&hex(raw::UFFD_FEATURE_SIGBUS)],
        &[&hex(FORKS | raw::UFFD_FEATURE_MINOR_SHMEM)],
    ];
    for arguments in arguments {
        let fd = userfaultfd();
        assert_eq!(copy.call(arguments, fd.try_clone().unwrap()), INVAL, "{arguments:?}");
        // Nothing was done to it.
        assert_eq!(copy.call(&[&forks], fd), 0);
    }
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let inputs: [Stdio; 5] = [
        Stdio::null(),
        pipe.into(),
        event.into(),
        File::open("/proc/self/mem").unwrap().into(),
        // One that only has the name.
        File::create(copy.directory.path().join("anon_inode:[userfaultfd]")).unwrap().into(),
    ];
    for input in inputs {
        assert_eq!(copy.call(&[&forks], input), INVAL);
    }
}
