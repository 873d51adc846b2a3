//! The calls that the agent can still make once it is set up.
//!
//! Owns: the list of them, and the filter that the kernel runs for it.
//! Invariants: what is not listed ends the agent, and it alone: it is a process of its own. With
//! ioctl, madvise and prctl only what is listed may be asked for.
//! Rejected: an error for what is not listed: whoever tries has taken the agent over.

use crate::calls::{self, Errno, number};

/// A call, and if not all of it may be asked for, which argument must have which value.
struct Allowed {
    call: usize,
    argument: Option<(usize, usize)>,
}

const ALLOWED: [Allowed; 30] = [
    only(number::IOCTL, 1, calls::UFFDIO_MOVE),
    only(number::IOCTL, 1, calls::UFFDIO_REGISTER),
    only(number::IOCTL, 1, calls::UFFDIO_UNREGISTER),
    only(number::MADVISE, 2, calls::MADV_DONTNEED),
    only(number::MADVISE, 2, calls::MADV_POPULATE_WRITE),
    only(number::MADVISE, 2, calls::MADV_GUARD_INSTALL),
    only(number::MADVISE, 2, calls::MADV_GUARD_REMOVE),
    all(number::MINCORE),
    all(number::MUNLOCK),
    only(number::MMAP, 3, calls::MAP_SHARED_FIXED),
    only(number::MPROTECT, 2, calls::PROT_NONE),
    only(number::MPROTECT, 2, calls::PROT_READ),
    only(number::MPROTECT, 2, calls::PROT_WRITE),
    only(number::MPROTECT, 2, calls::PROT_READ_WRITE),
    only(number::MPROTECT, 2, calls::PROT_EXECUTE),
    only(number::MPROTECT, 2, calls::PROT_READ | calls::PROT_EXECUTE),
    only(number::MPROTECT, 2, calls::PROT_WRITE | calls::PROT_EXECUTE),
    only(number::MPROTECT, 2, calls::PROT_ALL),
    only(number::PRCTL, 0, calls::PR_SET_THP_DISABLE),
    all(number::PREAD64),
    all(number::PWRITE64),
    all(number::RECVMSG),
    all(number::SENDTO),
    all(number::CLOSE),
    only(number::SCHED_SETAFFINITY, 0, 0),
    // To leave, and to end the program.
    all(number::MUNMAP),
    only(number::PIDFD_SEND_SIGNAL, 1, 9),
    all(number::PPOLL),
    all(number::EXIT),
    all(number::EXIT_GROUP),
];

const fn all(call: usize) -> Allowed {
    Allowed { call, argument: None }
}

const fn only(call: usize, argument: usize, value: usize) -> Allowed {
    Allowed { call, argument: Some((argument, value)) }
}

/// Instructions of one line of the list, and of what comes before and after.
const LINE: usize = 5;
const HEAD: usize = 3;
const LENGTH: usize = HEAD + ALLOWED.len() * LINE + 1;

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

/// Where the kernel has what is tested: number, processor, lower halves of arguments.
const NUMBER_AT: u32 = 0;
const AUDIT_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

const fn instruction(code: u16, if_so: u8, if_not: u8, value: u32) -> u64 {
    code as u64 | (if_so as u64) << 16 | (if_not as u64) << 24 | (value as u64) << 32
}

const fn line(allowed: &Allowed) -> [u64; LINE] {
    let (at, value) = match allowed.argument {
        Some((argument, value)) => (ARGUMENTS_AT + 8 * argument as u32, value),
        None => (NUMBER_AT, allowed.call),
    };
    [
        instruction(LOAD, 0, 0, NUMBER_AT),
        instruction(JUMP_IF_EQUAL, 0, 3, allowed.call as u32),
        instruction(LOAD, 0, 0, at),
        instruction(JUMP_IF_EQUAL, 0, 1, value as u32),
        instruction(RETURN, 0, 0, ALLOW),
    ]
}

const fn program() -> [u64; LENGTH] {
    let mut program = [instruction(RETURN, 0, 0, KILL_PROCESS); LENGTH];
    program[0] = instruction(LOAD, 0, 0, AUDIT_AT);
    program[1] = instruction(JUMP_IF_EQUAL, 1, 0, number::AUDIT);
    let mut at = 0;
    while at < ALLOWED.len() * LINE {
        program[HEAD + at] = line(&ALLOWED[at / LINE])[at % LINE];
        at += 1;
    }
    program
}

static PROGRAM: [u64; LENGTH] = program();

/// From here on, what is not listed ends the agent.
pub fn install() -> Result<usize, Errno> {
    calls::filter(&PROGRAM)
}
