//! A process in a program's address space.
//!
//! Owns: what the program may still do beside it, and what ends it.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::kernel::{CAP_SYS_ADMIN, needs_capability};
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::process::{Board, agent, fork};
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::uffd::{Uffd, flag};
use overspill_kernel_rules::{pages, until};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, setrlimit, test_kill_process};
use rustix::thread::UnshareFlags;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// kernel/fork.c, check_unshare_flags: a process beside is no thread, so the program may still
/// leave its user namespace; and its mount namespace, since they do not share `fs`.
#[test]
fn a_program_with_an_agent_may_leave_its_namespaces() {
    alone(|| {
        needs_capability(CAP_SYS_ADMIN, "CAP_SYS_ADMIN");
        fork(|| {
            let _agent = agent();
            unshared(UnshareFlags::NEWUSER).unwrap();
            unshared(UnshareFlags::NEWNS).unwrap();
        })
        .succeed();
    });
}

/// Beside a thread it may not.
#[test]
fn a_program_with_another_thread_may_not_leave_its_user_namespace() {
    alone(|| {
        fork(|| {
            let _thread = call(|| rustix::event::poll(&mut [], None));
            assert_eq!(unshared(UnshareFlags::NEWUSER), Err(Errno::INVAL));
        })
        .succeed();
    });
}

fn unshared(what: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: no descriptor or file table is unshared.
    unsafe { rustix::thread::unshare_unsafe(what) }
}

/// fs/coredump.c, zap_process: a dump ends and waits for the threads of one group. An agent lives
/// on, and with it the address space.
#[test]
fn an_agent_outlives_a_crash() {
    alone(|| {
        let board = Board::new();
        let program = fork(|| {
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            let agent = agent();
            board.set(0, agent.pid().as_raw_pid() as u64);
            std::process::abort();
        });
        assert_eq!(program.end().terminating_signal(), Some(libc::SIGABRT));
        let agent = Pid::from_raw(board.get(0) as i32).unwrap();
        until("an agent that sleeps", || {
            overspill_kernel_rules::threads::is_asleep(
                &board.get(0).to_string(),
                agent.as_raw_pid(),
            )
        });
        assert_eq!(test_kill_process(agent), Ok(()));
        rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
    });
}

/// What the program maps is the agent's too, and the other way round: one address space.
#[test]
fn an_agent_sees_what_the_program_maps() {
    alone(|| {
        let agent = agent();
        let page = Range::filled(1, 7);
        assert_eq!(pages::read_by_mem(&agent.name(), page), Ok(7));
    });
}

/// fs/exec.c, begin_new_exec: a program that becomes another leaves its address space to its agent,
/// with all that is in it. Only the agent's end makes the userfaultfd answer ESRCH.
#[test]
fn an_agent_keeps_the_address_space_of_a_program_that_has_become_another() {
    alone(|| {
        Uffd::needed(flag::EVENTS);
        let (board, range) = (Board::new(), Range::filled(2, 7));
        let program = fork(|| become_another(board, range.page(0)));
        let agent = Pid::from_raw(board.wait(1) as i32).unwrap();
        let uffd = Uffd::of_process(program.pid(), board.get(2) as i32);
        board.set(0, 1);
        program.succeed();
        assert_eq!(uffd.probe(range.page(0)), Errno::INVAL, "still registered");
        let name = agent.as_raw_pid().to_string();
        assert_eq!(pages::read_by_mem(&name, range.page(1)), Ok(7));
        rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
        until("the end of the address space", || uffd.probe(range.page(0)) == Errno::SRCH);
    });
}

/// A program with an agent and a userfaultfd, which becomes another when it is told to.
fn become_another(board: Board, registered: Range) {
    let uffd = Uffd::new(flag::EVENTS);
    uffd.watch(registered);
    let agent = agent();
    board.set(2, uffd.as_raw_fd() as u64);
    board.set(1, agent.pid().as_raw_pid() as u64);
    board.wait(0);
    agent.let_go();
    let error = Command::new("/proc/self/exe").arg("--list").stdout(Stdio::null()).exec();
    panic!("exec: {error}");
}
