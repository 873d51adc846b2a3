//! What depends on the processor.
//!
//! Owns: where the registers are that a system call takes and gives, how one is made and repeated,
//! and the instruction that makes it; for x86-64 and AArch64.
//! Invariants: registers are only ever changed for a call that is made inside, or to have a call
//! repeated that was interrupted by us; what a task had is put back whole.
//! Sources: `arch/x86/kernel/signal.c`, `arch/arm64/kernel/signal.c` (which call is repeated, and
//! how), `signal(7)` (which calls end with EINTR though no signal was handled).
//! Not here: the calls' effects.

use rustix::io::Errno;

/// The general registers of a task, in the kernel's order (NT_PRSTATUS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers(pub [u64; REGISTERS]);

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// A call that a task waits in: its number and its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
}

/// What the call of a task that was told to stop will do when it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interrupted {
    /// The task was in no call, or the call had ended.
    No,
    /// The kernel repeats it, and the program does not notice.
    Repeats,
    /// It would fail because of us.
    Fails(u64),
}

/// Calls that return EINTR whenever they are interrupted, and have done nothing then. (Of sockets
/// and files only those with a timeout of their own do; what they had transferred they return.)
const FAIL_WHEN_INTERRUPTED: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Returns true for a call that may be made again after EINTR.
pub(crate) fn can_be_repeated(number: u64) -> bool {
    FAIL_WHEN_INTERRUPTED.iter().any(|call| *call as u64 == number)
}

/// The errors that stand for a call to be repeated: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND,
/// ERESTART_RESTARTBLOCK. They never reach a program.
#[cfg(target_arch = "x86_64")]
const REPEATS: [i64; 4] = [-512, -513, -514, -516];
const EINTR: i64 = -(libc::EINTR as i64);

/// A task that asks its parent to trace it (`PTRACE_TRACEME`, of `linux/ptrace.h`) is refused while
/// we do.
#[cfg(target_arch = "x86_64")]
const EPERM: i64 = -(libc::EPERM as i64);
#[cfg(target_arch = "x86_64")]
const TRACE: u64 = libc::SYS_ptrace as u64;
#[cfg(target_arch = "x86_64")]
const TRACE_ME: u64 = 0;

/// The result of a call.
fn result_of(value: u64) -> Result<u64, Errno> {
    match value as i64 {
        error @ -4095..=-1 => Err(Errno::from_raw_os_error(-error as i32)),
        _ => Ok(value),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{Blocked, EINTR, EPERM, Interrupted, REPEATS, Registers, TRACE, TRACE_ME};
    use super::{can_be_repeated, result_of};
    use rustix::io::Errno;

    /// Registers there are, of `struct user_regs_struct`.
    pub(crate) const REGISTERS: usize = 27;
    /// The instruction that makes a call.
    pub(crate) const GATE: &[u8] = &[0x0f, 0x05];
    /// Where the addresses end that a program has without asking for higher ones.
    pub(crate) const HIGHEST: u64 = 1 << 47;
    /// Where it may start.
    pub(crate) const GATE_ALIGNMENT: usize = 1;
    /// A stop loses nothing that is needed to make a call again.
    pub(crate) const LOSES_FIRST_ARGUMENT: bool = false;

    const R10: usize = 7;
    const R9: usize = 8;
    const R8: usize = 9;
    const RAX: usize = 10;
    const RCX: usize = 11;
    const RDX: usize = 12;
    const RSI: usize = 13;
    const RDI: usize = 14;
    const ORIG_RAX: usize = 15;
    const RIP: usize = 16;
    const FLAGS: usize = 18;
    const RSP: usize = 19;
    const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, R10, R8, R9];
    /// Trap, direction, alignment check.
    const FLAGS_OFF: u64 = 1 << 8 | 1 << 10 | 1 << 18;
    const NO_CALL: u64 = u64::MAX;
    /// ERESTART_RESTARTBLOCK.
    const COUNTS_ON: i64 = -516;

    impl Registers {
        /// These registers, but about to make a call at `gate`.
        pub(crate) fn calling(&self, gate: u64, number: u64, arguments: [u64; 6]) -> Self {
            let mut registers = self.at_rest(gate);
            registers.0[RAX] = number;
            for (register, argument) in ARGUMENTS.into_iter().zip(arguments) {
                registers.0[register] = argument;
            }
            registers
        }

        /// These registers, but with the stack elsewhere.
        pub(crate) fn on_stack(&self, end: u64) -> Self {
            let mut registers = *self;
            registers.0[RSP] = end;
            registers
        }

        /// Where the stack is.
        pub(crate) fn stack(&self) -> u64 {
            self.0[RSP]
        }

        /// Where the next instruction is.
        pub(crate) fn instruction(&self) -> u64 {
            self.0[RIP]
        }

        /// The arguments of a call that waits for a time that counts on (ERESTART_RESTARTBLOCK).
        pub(crate) fn counting_on(&self) -> Option<[u64; 6]> {
            let counts = self.0[ORIG_RAX] != NO_CALL && self.0[RAX] as i64 == COUNTS_ON;
            counts.then(|| ARGUMENTS.map(|register| self.0[register]))
        }

        /// The arguments of one that the kernel has told to wait on, if it is at a call.
        pub(crate) fn about_to_count_on(&self) -> Option<[u64; 6]> {
            let waits_on = self.0[RAX] == libc::SYS_restart_syscall as u64;
            waits_on.then(|| ARGUMENTS.map(|register| self.0[register]))
        }

        /// These registers, but about to wait on, by a call that is made at `stub`.
        pub(crate) fn waiting_on(&self, stub: u64) -> Self {
            let mut registers = *self;
            registers.0[RAX] = libc::SYS_restart_syscall as u64;
            (registers.0[ORIG_RAX], registers.0[RIP]) = (NO_CALL, stub);
            registers
        }

        /// These registers, but behind the program's own call, which a stub has made; or before it
        /// if it was not made yet.
        pub(crate) fn behind(&self, call_end: u64, was_made: bool, own: Option<[u64; 6]>) -> Self {
            let mut registers = *self;
            for (register, argument) in ARGUMENTS.into_iter().zip(own.into_iter().flatten()) {
                registers.0[register] = argument;
            }
            if was_made {
                (registers.0[RIP], registers.0[RCX]) = (call_end, call_end);
            } else {
                registers.0[RIP] = call_end - GATE.len() as u64;
                registers.0[ORIG_RAX] = NO_CALL;
            }
            registers
        }

        /// These registers, but about to make the program's own call, of this number.
        pub(crate) fn about_to_make(&self, call_end: u64, number: u64, own: [u64; 6]) -> Self {
            let mut registers = self.behind(call_end, false, Some(own));
            registers.0[RAX] = number;
            registers
        }

        /// These registers, but behind the program's own call, which has returned a number.
        pub(crate) fn returned(&self, call_end: u64, result: u64, own: [u64; 6]) -> Self {
            let mut registers = self.behind(call_end, true, Some(own));
            (registers.0[RAX], registers.0[ORIG_RAX]) = (result, NO_CALL);
            registers
        }

        /// These registers, but in no call: at a call's entry this skips it.
        pub(crate) fn at_rest(&self, gate: u64) -> Self {
            let mut registers = *self;
            registers.0[RIP] = gate;
            registers.0[ORIG_RAX] = NO_CALL;
            registers.0[FLAGS] &= !FLAGS_OFF;
            registers
        }

        /// What a call has returned.
        pub(crate) fn result(&self) -> Result<u64, Errno> {
            result_of(self.0[RAX])
        }

        /// What the call of a task that was told to stop will do.
        pub(crate) fn interrupted(&self, _before: Option<Blocked>) -> Interrupted {
            let (number, result) = (self.0[ORIG_RAX], self.0[RAX] as i64);
            match result {
                _ if number == NO_CALL => Interrupted::No,
                result if REPEATS.contains(&result) => Interrupted::Repeats,
                EINTR if can_be_repeated(number) => Interrupted::Fails(number),
                EPERM if number == TRACE && self.0[RDI] == TRACE_ME => Interrupted::Fails(number),
                _ => Interrupted::No,
            }
        }

        /// These registers, but about to make the interrupted call again.
        pub(crate) fn repeating(&self, _before: Option<Blocked>) -> Self {
            let mut registers = *self;
            registers.0[RAX] = self.0[ORIG_RAX];
            registers.0[ORIG_RAX] = NO_CALL;
            registers.0[RIP] -= GATE.len() as u64;
            registers
        }

        /// These registers as they are put back after calls were made inside: the kernel looks at
        /// them as it did at the first stop.
        pub(crate) fn put_back(&self, _before: Option<Blocked>) -> Self {
            *self
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{Blocked, EINTR, Interrupted, Registers, can_be_repeated, result_of};
    use rustix::io::Errno;

    /// Registers there are, of `struct user_pt_regs`: x0 to x30, sp, pc, pstate.
    pub(crate) const REGISTERS: usize = 34;
    /// The instruction that makes a call.
    pub(crate) const GATE: &[u8] = &[0x01, 0x00, 0x00, 0xd4];
    /// Where the addresses end that a program has without asking for higher ones.
    pub(crate) const HIGHEST: u64 = 1 << 48;
    /// Where it may start.
    pub(crate) const GATE_ALIGNMENT: usize = 4;
    /// A call's result stands in the place of its first argument, which no stop shows: what the
    /// task waited in has to be read before it is told to stop.
    pub(crate) const LOSES_FIRST_ARGUMENT: bool = true;

    const X8: usize = 8;
    const PC: usize = 32;
    const INSTRUCTION_BYTES: u64 = 4;

    impl Registers {
        /// These registers, but about to make a call at `gate`.
        pub(crate) fn calling(&self, gate: u64, number: u64, arguments: [u64; 6]) -> Self {
            let mut registers = self.at_rest(gate);
            registers.0[X8] = number;
            registers.0[..arguments.len()].copy_from_slice(&arguments);
            registers
        }

        /// These registers, but in no call. (At a call's entry its number has to be changed, too,
        /// in NT_ARM_SYSTEM_CALL: `System::set_registers` does both.)
        pub(crate) fn at_rest(&self, gate: u64) -> Self {
            let mut registers = *self;
            registers.0[PC] = gate;
            registers
        }

        /// What a call has returned.
        pub(crate) fn result(&self) -> Result<u64, Errno> {
            result_of(self.0[0])
        }

        /// What the call of a task that was told to stop will do. Here the kernel has put its
        /// arguments back already when it will repeat it.
        pub(crate) fn interrupted(&self, before: Option<Blocked>) -> Interrupted {
            match before {
                Some(call) if !self.stands_in(call) => Interrupted::No,
                Some(call) if self.0[0] as i64 == EINTR && can_be_repeated(call.number) => {
                    Interrupted::Fails(call.number)
                }
                Some(call) if self.0[0] == call.arguments[0] => Interrupted::Repeats,
                _ => Interrupted::No,
            }
        }

        /// Returns true if the registers are those of the call: its number, and all arguments but
        /// the first.
        fn stands_in(&self, call: Blocked) -> bool {
            self.0[X8] == call.number && self.0[1..6] == call.arguments[1..]
        }

        /// These registers, but about to make the interrupted call again.
        pub(crate) fn repeating(&self, before: Option<Blocked>) -> Self {
            let mut registers = *self;
            if let Some(call) = before {
                registers.0[0] = call.arguments[0];
                registers.0[PC] -= INSTRUCTION_BYTES;
            }
            registers
        }

        /// These registers as they are put back after calls were made inside. The kernel repeats
        /// an interrupted call itself only at the first stop; a call with a timeout that counts on
        /// is repeated as `restart_syscall`.
        pub(crate) fn put_back(&self, before: Option<Blocked>) -> Self {
            let mut registers = *self;
            if self.interrupted(before) == Interrupted::Repeats && before.is_some_and(counts_on) {
                registers.0[X8] = libc::SYS_restart_syscall as u64;
            }
            registers
        }
    }

    /// Returns true for a call whose rest the kernel keeps when it is interrupted
    /// (ERESTART_RESTARTBLOCK): those that sleep for a time, and futexes that wait until one.
    fn counts_on(call: Blocked) -> bool {
        const WAIT: [u64; 2] = [0, 9];
        const COMMAND: u64 = 0x7f;
        let [first, second, _, fourth, ..] = call.arguments;
        match call.number as libc::c_long {
            libc::SYS_nanosleep => true,
            libc::SYS_clock_nanosleep => second & 1 == 0 && first != u64::MAX,
            libc::SYS_futex => WAIT.contains(&(second & COMMAND)) && fourth != 0,
            _ => false,
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn stopped_in(number: i64, result: i64) -> Registers {
        let mut registers = Registers([7; REGISTERS]);
        (registers.0[15], registers.0[10]) = (number as u64, result as u64);
        registers
    }

    /// Results at a stop, from the reference: which calls go on by themselves.
    #[test]
    fn what_an_interrupted_call_will_do() {
        let (sleep, epoll) = (libc::SYS_nanosleep, libc::SYS_epoll_wait);
        let cases = [
            ((sleep, -516), Interrupted::Repeats),
            ((libc::SYS_read, -512), Interrupted::Repeats),
            ((libc::SYS_ppoll, -514), Interrupted::Repeats),
            ((epoll, -4), Interrupted::Fails(epoll as u64)),
            // EINTR of these is not to be repeated: the descriptor is closed, the mask restored.
            ((libc::SYS_close, -4), Interrupted::No),
            ((libc::SYS_rt_sigsuspend, -4), Interrupted::No),
            ((libc::SYS_connect, -4), Interrupted::No),
            ((sleep, 0), Interrupted::No),
            ((-1, -4), Interrupted::No),
            // Another request than PTRACE_TRACEME.
            ((libc::SYS_ptrace, -1), Interrupted::No),
        ];
        for ((number, result), expected) in cases {
            assert_eq!(stopped_in(number, result).interrupted(None), expected, "{number}");
        }
        let mut refused = stopped_in(libc::SYS_ptrace, -1);
        refused.0[14] = TRACE_ME;
        assert_eq!(refused.interrupted(None), Interrupted::Fails(libc::SYS_ptrace as u64));
    }

    #[test]
    fn a_call_that_is_repeated_starts_at_its_instruction() {
        let repeated = stopped_in(libc::SYS_epoll_wait, -4).repeating(None);
        assert_eq!(repeated.0[16], 5);
        assert_eq!(repeated.0[10], libc::SYS_epoll_wait as u64);
        assert_eq!(repeated.interrupted(None), Interrupted::No);
    }

    #[test]
    fn results_are_values_or_errors() {
        assert_eq!(stopped_in(0, 12).result(), Ok(12));
        assert_eq!(stopped_in(0, -12).result(), Err(Errno::NOMEM));
        assert_eq!(stopped_in(0, -4096).result(), Ok(-4096_i64 as u64));
    }
}
