//! What is left, and what is not.

use super::*;
use overspill_device::Device;
use overspill_device::file::{OpenOptions, reserve_rings};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::{AddressFamily, SocketType, socket};
use std::fs::File;
use std::io::Read;
use std::process::Command;

const INSIDE: &str = "OVERSPILL_TEST_CONFINED";

/// In a process of its own: what is shut stays so.
fn alone(name: &str, inside: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("confined::tests::{name}"), "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn error<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Those in effect, as an open `status` of a thread has them.
fn capabilities_in(mut status: &File) -> u64 {
    let mut text = String::new();
    status.read_to_string(&mut text).unwrap();
    let bits = text.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(bits, 16).unwrap()
}

#[test]
fn a_keeper_opens_starts_and_traces_nothing() {
    alone("a_keeper_opens_starts_and_traces_nothing", || {
        let status = File::open("/proc/thread-self/status").unwrap();
        assert!(confine_keeper().is_empty());
        assert_eq!(error(File::open("/dev/null")), Some(libc::EPERM));
        assert_eq!(error(Command::new("/bin/true").spawn()), Some(libc::EPERM));
        // SAFETY: a copy would end at once.
        match unsafe { libc::fork() } {
            -1 => assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM)),
            // SAFETY: nothing is to be cleaned up.
            0 => unsafe { libc::_exit(0) },
            _ => panic!("a process was made"),
        }
        let inet = socket(AddressFamily::INET, SocketType::STREAM, None);
        assert_eq!(inet.unwrap_err(), Errno::PERM);
        let code = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: nobody uses it.
        let code = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, code, MapFlags::PRIVATE) };
        assert_eq!(code.unwrap_err(), Errno::PERM);
        // SAFETY: the call touches no memory of ours.
        let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, 1, 0, 0) };
        assert_eq!(
            (traced, error(Err::<(), _>(std::io::Error::last_os_error()))),
            (-1, Some(libc::EPERM))
        );
        assert_eq!(capabilities_in(&status) & !KEPT.bits(), 0);
        // What it does all the time.
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    });
}

/// A ring asks for files and sockets without a call that a filter sees. Those that there are cannot
/// be asked for that (`overspill_device`), and there are no others.
#[test]
fn nor_by_a_ring() {
    alone("nor_by_a_ring", || {
        if let Err(error) = io_uring::IoUring::new(2) {
            return println!("skipped: the kernel has no io_uring for us: {error}");
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let spec = format!("file:{}:1M", directory.path().display()).parse().unwrap();
        let device = Device::open(&spec, &OpenOptions::default()).unwrap();
        let has_rings = device.has_rings();
        let device = device.bare();
        reserve_rings(1, 4);
        assert!(confine_keeper().is_empty());
        let made = io_uring::IoUring::new(2).map(drop);
        assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // The first has the only ring that there is, and the second reads and writes without.
        let queues = [(); 2].map(|()| device.open_queue(2).unwrap());
        assert_eq!(queues.each_ref().map(|queue| queue.poll_fd().is_some()), [has_rings, false]);
        drop(queues);
        assert_eq!(
            device.open_queue(2).unwrap().poll_fd().is_some(),
            has_rings,
            "it was given back"
        );
    });
}

/// As in a container of which the profile refuses it.
#[test]
fn what_one_part_lacks_the_others_have() {
    alone("what_one_part_lacks_the_others_have", || {
        let status = File::open("/proc/thread-self/status").unwrap();
        let restricts = rules(&[libc::SYS_landlock_restrict_self], []);
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let profile = program(restricts, SeccompAction::Allow, refused).unwrap();
        seccompiler::apply_filter(&profile).unwrap();
        let lacks = confine_keeper();
        assert!(matches!(lacks[..], [Unconfined::Files(_)]), "{lacks:?}");
        assert_eq!(error(File::open("/dev/null")), Some(libc::EPERM));
        assert_eq!(capabilities_in(&status) & !KEPT.bits(), 0);
    });
}

#[test]
fn without_the_filter_files_stay_closed() {
    alone("without_the_filter_files_stay_closed", || {
        let restricts = rules(&[libc::SYS_seccomp], []);
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let profile = program(restricts, SeccompAction::Allow, refused).unwrap();
        seccompiler::apply_filter(&profile).unwrap();
        match confine_keeper()[..] {
            [Unconfined::Seccomp(_)] => {
                assert_eq!(error(File::open("/dev/null")), Some(libc::EACCES));
            }
            ref lacks => println!("skipped: the kernel has no Landlock: {lacks:?}"),
        }
    });
}
