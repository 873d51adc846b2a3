//! An agent at work: pages leave a program, and come back.
//!
//! Owns: the whole way once, from the attach to the detach, with what the keeper does in between;
//! what the agent is allowed; what becomes of the program when its keeper is gone.
//! Not here: eviction and its tables (`keeper`).

mod common;

use common::{
    Program, alone, assert_no_agents, attach_to, attach_with, compiled, detach_from, is_permitted,
    memory_file,
};
use overspill_agent::{Answer, PAGE_BYTES, Request, Run, kind, step};
use overspill_guest::userfault::{Abilities, GuestUserfault};
use overspill_guest::{Attached, ChannelError, Kernel, System, Tracer};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

const PAGES: usize = 16;
/// Of them one in some hundred meets what they are for, on two CPUs.
const AGING_ROUNDS: usize = 2000;
const WAIT: Duration = Duration::from_secs(5);
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const MISSING: u64 = 1;
const PAGEFAULT: u8 = 0x12;
/// EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP.
const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6;

fn start() -> Option<(Program, u64)> {
    let program = if is_permitted() { compiled("pages")? } else { return None };
    let mut pages = Program::start(&mut Command::new(program));
    let address = u64::from_str_radix(pages.line().trim_start_matches("0x"), 16).unwrap();
    Some((pages, address))
}

/// What the program has at an offset of its pages.
fn expected(at: usize) -> u8 {
    (at / PAGE_BYTES * 7 + at % 251 + 1) as u8
}

fn control<const N: usize>(userfaultfd: &OwnedFd, request: u64, mut words: [u64; N]) {
    let descriptor = userfaultfd.as_raw_fd();
    // SAFETY: the words are what the request reads and writes, and are borrowed for the call.
    let done = unsafe { libc::ioctl(descriptor, request as _, words.as_mut_ptr()) };
    assert_eq!(done, 0, "{request:#x}: {}", std::io::Error::last_os_error());
}

fn runs(kind: u32, runs: &[(u64, u64)]) -> Request {
    let mut request = Request::of(kind);
    request.count = runs.len() as u32;
    for (place, (address, pages)) in request.runs.iter_mut().zip(runs) {
        *place = Run { address: *address, pages: *pages as u32, protection: 0 };
    }
    request
}

fn ask(attached: &Attached, request: &Request) -> Result<Answer, ChannelError> {
    attached.agent.channel.ask(&Kernel::new(), request, &[], WAIT)
}

/// Registers the program's pages, and staging.
fn register(attached: &Attached, start: u64) {
    control(attached.userfaultfd.as_ref().unwrap(), UFFDIO_API, [0xaa, FEATURES, 0]);
    control(
        attached.userfaultfd.as_ref().unwrap(),
        UFFDIO_REGISTER,
        [start, page(PAGES), MISSING, 0],
    );
    ask(attached, &runs(kind::REGISTER, &[])).unwrap();
}

/// Moves runs, and waits until they are in the file.
fn batch(attached: &Attached, request: &[(u64, u64)]) -> Answer {
    let moved = ask(attached, &runs(kind::BATCH, request)).unwrap();
    let written = attached.agent.channel.await_answer(&Kernel::new(), WAIT).unwrap();
    assert_eq!(moved, written);
    moved
}

fn page(number: usize) -> u64 {
    (number * PAGE_BYTES) as u64
}

/// Reads the address of a fault.
fn next_fault(userfaultfd: &OwnedFd) -> u64 {
    assert!(Kernel::new().readable(userfaultfd.as_fd(), WAIT).unwrap(), "no fault");
    let mut message = [0; 32];
    assert_eq!(rustix::io::read(userfaultfd, &mut message).unwrap(), 32);
    assert_eq!(message[0], PAGEFAULT);
    let address = u64::from_ne_bytes(message[16..24].try_into().unwrap());
    address & !(PAGE_BYTES as u64 - 1)
}

/// Answers faults until all these pages have come back.
fn serve(
    userfaultfd: &OwnedFd,
    start: u64,
    mut content: impl FnMut(usize) -> Vec<u8>,
    count: usize,
) {
    for _ in 0..count {
        let address = next_fault(userfaultfd);
        let page = content((address - start) as usize / PAGE_BYTES);
        let words = [address, page.as_ptr() as u64, PAGE_BYTES as u64, 0, 0];
        control(userfaultfd, UFFDIO_COPY, words);
    }
}

#[test]
fn pages_move_out_and_come_back() {
    let _alone = alone();
    let Some((mut program, start)) = start() else { return };
    let (tracer, memory) = (Tracer::new(Kernel::new()), memory_file());
    let attached = attach_with(&tracer, program.pid(), &memory);
    let userfaultfd = attached.userfaultfd.as_ref().unwrap();
    register(&attached, start);

    // Two runs, and one that ends behind the mapping.
    let first = batch(&attached, &[(start, 5), (start + page(8), 4), (start + page(14), 3)]);
    let mut contents = vec![0; 11 * PAGE_BYTES];
    rustix::io::pread(&memory, &mut contents[..], 0).unwrap();
    // One that is out already, one that is not.
    let second = batch(&attached, &[(start, 1), (start + page(6), 1)]);
    let mut last = vec![0; PAGE_BYTES];
    rustix::io::pread(&memory, &mut last[..], 0).unwrap();
    contents.extend(last);

    assert_eq!(first.pages, 11);
    assert_eq!(
        first.runs[..2].iter().map(|run| (run.pages, run.errno)).collect::<Vec<_>>(),
        [(5, 0), (4, 0)]
    );
    assert_eq!(first.runs[2].pages, 2);
    assert_ne!(first.runs[2].errno, 0);
    assert_eq!(second.pages, 1);
    assert_eq!((second.runs[0].pages, second.runs[0].errno), (0, libc::ENOENT));
    assert_eq!((second.runs[1].pages, second.runs[1].errno), (1, 0));
    let moved: Vec<usize> = [0, 1, 2, 3, 4, 8, 9, 10, 11, 14, 15, 6].to_vec();
    let content = |number: usize| {
        let place = moved.iter().position(|page| *page == number).unwrap();
        let bytes = contents[place * PAGE_BYTES..][..PAGE_BYTES].to_vec();
        let right = (0..PAGE_BYTES).map(|at| expected(number * PAGE_BYTES + at));
        assert_eq!(bytes, right.collect::<Vec<u8>>(), "page {number} in the file");
        bytes
    };
    program.say("check");
    let unanswered = next_fault(userfaultfd);
    let abilities = Abilities { marks: false, poison: false, moves: true, forks: false };
    let fd = userfaultfd.try_clone().unwrap();
    GuestUserfault::agreed(fd, abilities, None).wake_all();
    assert!(Kernel::new().readable(userfaultfd.as_fd(), WAIT).unwrap(), "{unanswered:#x} is lost");
    serve(userfaultfd, start, content, 12);
    assert_eq!(program.line(), "0 wrong");

    let populated = ask(&attached, &runs(kind::POPULATE, &[(start, 16), (start + 1, 1)]));
    let populated = populated.unwrap();
    assert_eq!((populated.runs[0].pages, populated.runs[0].errno), (16, 0));
    assert_eq!(populated.runs[1].errno, libc::EINVAL);

    control(userfaultfd, UFFDIO_UNREGISTER, [start, page(PAGES)]);
    detach_from(&tracer, &attached);
    drop(attached);
    program.say("check");
    assert_eq!(program.line(), "0 wrong");
    program.end();
    assert_no_agents();
}

#[test]
fn staging_is_emptied_of_what_is_in_the_way() {
    let _alone = alone();
    let Some((program, start)) = start() else { return };
    let (tracer, memory) = (Tracer::new(Kernel::new()), memory_file());
    let attached = attach_with(&tracer, program.pid(), &memory);
    let userfaultfd = attached.userfaultfd.as_ref().unwrap();
    register(&attached, start);
    control(userfaultfd, UFFDIO_ZEROPAGE, [attached.agent.staging + page(2), page(1), 0, 0]);

    let [first, second] = [(); 2].map(|()| batch(&attached, &[(start, 5)]).runs[0]);
    assert_eq!((first.pages, first.errno), (2, libc::EEXIST));
    assert_eq!((second.pages, second.errno), (0, libc::ENOENT));
    control(userfaultfd, UFFDIO_ZEROPAGE, [attached.agent.staging, page(1), 0, 0]);
    let [first, second] = [(); 2].map(|()| batch(&attached, &[(start + page(2), 5)]).runs[0]);
    assert_eq!((first.pages, first.errno), (0, libc::EEXIST));
    assert_eq!((second.pages, second.errno), (5, 0));
    detach_from(&tracer, &attached);
    program.end();
}

#[test]
fn words_that_are_wrong_are_refused() {
    let _alone = alone();
    let Some((program, start)) = start() else { return };
    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, program.pid());
    let mut too_many = runs(kind::BATCH, &[]);
    too_many.count = 65;
    let wrong = [
        runs(kind::BATCH, &[(start, 65)]),
        runs(kind::BATCH, &[(start, 1), (start, u64::MAX)]),
        runs(99, &[]),
        // It is set up already.
        runs(kind::SET_UP, &[]),
        too_many,
    ];
    for request in wrong {
        let refused = ChannelError::Refused { step: step::WORDS, errno: Errno::INVAL };
        assert_eq!(ask(&attached, &request).unwrap_err(), refused, "{}", request.kind);
    }
    detach_from(&tracer, &attached);
    program.end();
}

/// Linux 6.18 does not count all that it moves while pages age (docs/kernel-report.md).
#[test]
fn pages_that_age_are_not_left_in_staging() {
    let _alone = alone();
    let Some((mut program, start)) = start() else { return };
    let (tracer, memory) = (Tracer::new(Kernel::new()), memory_file());
    let attached = attach_with(&tracer, program.pid(), &memory);
    register(&attached, start);
    program.say("age");
    assert_eq!(program.line(), "0 wrong");
    for _ in 0..AGING_ROUNDS {
        let moved = batch(&attached, &[(start, PAGES as u64)]);
        assert_ne!(moved.runs[0].errno, Errno::EXIST.raw_os_error(), "{:?}", moved.runs[0]);
        let mut contents = vec![0; moved.pages as usize * PAGE_BYTES];
        rustix::io::pread(&memory, &mut contents[..], 0).unwrap();
        assert!((0..contents.len()).all(|at| contents[at] == expected(at)));
        let content = |page| contents[page * PAGE_BYTES..][..PAGE_BYTES].to_vec();
        serve(attached.userfaultfd.as_ref().unwrap(), start, content, moved.pages as usize);
    }
    program.say("check");
    assert_eq!(program.line(), "0 wrong");
    detach_from(&tracer, &attached);
    program.end();
}

#[test]
fn the_agent_has_no_rights() {
    let _alone = alone();
    let Some((program, _)) = start() else { return };
    let tracer = Tracer::new(Kernel::new());
    let attached = attach_to(&tracer, program.pid());
    let agent = attached.agent.pid.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let expected = [
        "Name:\toverspill-agent",
        "TracerPid:\t0",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "Threads:\t1",
    ];
    for line in expected {
        assert!(status.lines().any(|found| found == line), "{line}: {status}");
    }
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    assert_eq!(blocked, "fffffffffffbfeff", "all but SIGKILL and SIGSTOP");
    let stat = std::fs::read_to_string(format!("/proc/{agent}/stat")).unwrap();
    let session: i32 =
        stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().parse().unwrap();
    assert_eq!(session, agent.get());
    // Its end of the channel, the program, the memory file, the userfaultfd.
    let descriptors = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap().count();
    assert_eq!(descriptors, 4);
    assert!(attached.threads.iter().all(|words| words.robust_list.is_some()
        && words.rseq.is_some()
        && words.clear_child_tid.is_some()));
    detach_from(&tracer, &attached);
    program.end();
}

/// Returns by which signal a program ends whose keeper has gone, and checks that its agent goes,
/// too.
fn ends_without_keeper(mut program: Program, attached: Attached) -> Option<i32> {
    drop(attached.agent.channel);
    let status = program.child.wait().unwrap();
    drop((attached.userfaultfd, attached.files));
    assert_no_agents();
    status.signal()
}

#[test]
fn a_program_ends_with_its_keeper() {
    let _alone = alone();
    let Some((program, _)) = start() else { return };
    let attached = attach_to(&Tracer::new(Kernel::new()), program.pid());
    assert_eq!(ends_without_keeper(program, attached), Some(libc::SIGKILL));
}

/// Its agent has not changed its user, and so may not send it a signal.
#[test]
fn a_program_that_has_dropped_its_rights_ends_with_its_keeper() {
    let _alone = alone();
    let Some((mut program, _)) = start() else { return };
    let attached = attach_to(&Tracer::new(Kernel::new()), program.pid());
    program.say("drop");
    assert_eq!(program.line(), "0 wrong");
    let signal = {
        // It waits for a line: it is when it has got one that it needs its memory.
        drop(attached.agent.channel);
        std::thread::sleep(Duration::from_millis(200));
        use std::io::Write;
        let _ = writeln!(program.input, "check");
        program.child.wait().unwrap().signal()
    };
    assert_eq!(signal, Some(libc::SIGSEGV));
    assert_no_agents();
}
