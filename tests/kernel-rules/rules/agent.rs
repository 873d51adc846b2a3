//! A process in a program's address space.
//!
//! Owns: what the program may still do beside it, and what ends it.

use overspill_kernel_rules::alone::alone;
use overspill_kernel_rules::kernel::{CAP_SYS_ADMIN, needs_capability};
use overspill_kernel_rules::memory::Range;
use overspill_kernel_rules::process::{Board, agent, fork};
use overspill_kernel_rules::threads::call;
use overspill_kernel_rules::{pages, until};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, setrlimit, test_kill_process};
use rustix::thread::UnshareFlags;

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
            board.set(0, agent.pid().as_raw_nonzero().get() as u64);
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
        assert!(agent.is_alive());
    });
}
