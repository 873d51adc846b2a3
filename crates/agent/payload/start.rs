//! The first instructions of the agent.
//!
//! Owns: the entry. What the program's thread has cloned for the injector begins there. This task
//! makes another, which is the agent, and ends: the agent is then an orphan, which no `wait` of the
//! program sees. In another PID namespace than ours the first task is the agent, because
//! an orphan there belongs to that namespace's init.
//! Invariants: no stack before the agent has it to itself; both tasks have the whole address space
//! in common. All signals are blocked, by what the thread had when it made the clone.
//! Not here: the reaping of the first task, which the injector has the thread do.

use crate::calls::{self, EPERM, number};
use crate::end::leave_quietly;
use crate::words::{ADDRESS_BYTES, AGENT_BYTES, MAILBOX_AT, Mailbox, state, step};
use crate::work::{Agent, NONE};
use crate::{At, Failed};
use core::arch::global_asm;

/// CLONE_VM alone, and no signal at its end.
const CLONE_VM: usize = 0x100;
const NAME: &[u8; 16] = b"overspill-agent\0";
/// How long the keeper may take from the start to its first request.
const FIRST_REQUEST_S: u64 = 10;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.entry, \"ax\"",
    ".globl overspill_agent_entry",
    "overspill_agent_entry:",
    "lea rbx, [rip + overspill_agent_entry]",
    "cmp dword ptr [rbx + {single}], 0",
    "jne 2f",
    "mov eax, {clone}",
    "mov edi, {flags}",
    "lea rsi, [rbx + {stack}]",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 2f",
    // The agent's number, or an error, whose lower bits say which.
    "sar rax, 63",
    "mov edi, eax",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    "2: mov rdi, rbx",
    "xor ebp, ebp",
    "call {agent}",
    "ud2",
    ".popsection",
    single = const MAILBOX_AT + core::mem::offset_of!(Mailbox, single),
    clone = const number::CLONE,
    flags = const CLONE_VM,
    stack = const AGENT_BYTES,
    exit = const number::EXIT,
    agent = sym agent,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.entry, \"ax\"",
    ".globl overspill_agent_entry",
    "overspill_agent_entry:",
    "adr x19, overspill_agent_entry",
    "mov x9, #{single}",
    "ldr w1, [x19, x9]",
    "cbnz w1, 2f",
    "mov x8, #{clone}",
    "mov x0, #{flags}",
    "mov x9, #{stack}",
    "add x1, x19, x9",
    "mov x2, #0",
    "mov x3, #0",
    "mov x4, #0",
    "svc #0",
    "cbz x0, 2f",
    "asr x0, x0, #63",
    "mov x8, #{exit}",
    "svc #0",
    "brk #1",
    "2: mov x0, x19",
    "mov x29, #0",
    "mov x30, #0",
    "bl {agent}",
    "brk #1",
    ".popsection",
    single = const MAILBOX_AT + core::mem::offset_of!(Mailbox, single),
    clone = const number::CLONE,
    flags = const CLONE_VM,
    stack = const AGENT_BYTES,
    exit = const number::EXIT,
    agent = sym agent,
);

/// What the entry calls, with where the agent's memory starts.
extern "C" fn agent(base: usize) -> ! {
    // SAFETY: the mailbox lies there, as the injector made it, and from here on it is this task's:
    // the injector reads it from outside, and what it needs is written by volatile stores.
    let mailbox = unsafe { &mut *((base + MAILBOX_AT) as *mut Mailbox) };
    match begin(mailbox) {
        Ok(program) => serve(base, mailbox, program),
        Err(Failed { step, errno }) => {
            (mailbox.step, mailbox.errno) = (step, errno);
            say(mailbox, state::FAILED);
            calls::exit()
        }
    }
}

/// Gives up what the agent does not need and makes its channel. Returns the program's pidfd.
fn begin(mailbox: &mut Mailbox) -> Result<i32, Failed> {
    // Nothing but manners depends on these.
    let _ = (calls::block_signals(), calls::set_sid(), calls::set_name(NAME));
    let _ = calls::leave_directory();
    calls::raise_limits();
    calls::close_all().at(step::DESCRIPTORS)?;
    match calls::no_core() {
        // 0 cannot be raised to 1, and is none but by a pipe.
        Err(EPERM) => {}
        done => _ = done.at(step::NO_NEW_RIGHTS)?,
    }
    calls::control(calls::PR_SET_NO_NEW_PRIVS, 1).at(step::NO_NEW_RIGHTS)?;
    if mailbox.keeps_rights == 0 {
        calls::drop_capabilities().at(step::CAPABILITIES)?;
    }
    let program = calls::open_process(mailbox.program).at(step::PROGRAM)?;
    match mailbox.address_bytes as usize {
        0 => _ = calls::socket_pair(&mut mailbox.sockets).at(step::CHANNEL)?,
        bytes => {
            let own = calls::connect(&mailbox.address, bytes.min(ADDRESS_BYTES));
            mailbox.sockets = [NONE, own.at(step::CHANNEL)?];
        }
    }
    Ok(program)
}

/// Says how far the agent has come; nothing that was written before comes later.
fn say(mailbox: &mut Mailbox, state: u32) {
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    // SAFETY: a field of a mailbox that is borrowed.
    unsafe { core::ptr::write_volatile(&mut mailbox.state, state) };
}

/// Waits for the first request, and serves. A keeper that does not come has changed nothing yet.
fn serve(base: usize, mailbox: &mut Mailbox, program: i32) -> ! {
    say(mailbox, state::READY);
    let [keepers, own] = mailbox.sockets;
    match calls::wait_readable(own, FIRST_REQUEST_S) {
        Ok(true) => {
            if keepers != NONE {
                let _ = calls::close(keepers);
            }
            Agent::new(base, mailbox, own, program).serve()
        }
        _ => leave_quietly(base),
    }
}
