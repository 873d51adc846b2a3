//! The work of shutting a gate and of opening it.
//!
//! Owns: what is written where in a process that stands still.
//! Invariants: of a thread what the gate changes is put into its slot first, and taken from there
//! when the gate is opened: nothing of it is kept outside.
//! Not here: whether it can be done, and when ([`super`]).

use super::{Catch, Gate, OURS, bit};
use crate::arch::Registers;
use crate::attach::{Site, filter_options};
use crate::error::{About, AttachError, Result};
use crate::hold::Held;
use crate::inject::{self, Inside, Usable};
use crate::process;
use crate::system::System;
use overspill_agent::gate::{
    Action, GATE_BYTES, GLOBALS_AT, Globals, HANDLER_AT, HOLDS_MAX, PASSES_AT, PIN_ROBUST,
    PIN_RSEQ, PIN_TASK, RESTORER_AT, RETURNS_AT, Return, SECOND_AT, SIGNALS, SLOT_AT, SLOT_BYTES,
    SLOTS_AT, STUB_AT, STUB_BYTES, STUBS_AT, STUBS_OF_PAGE, Slot, Span, THIRD_AT, THREADS_MAX,
};
use overspill_agent::{Barrier, GATE};
use rustix::process::Pid;
use std::mem::offset_of;

const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const MAP: u64 =
    (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE)
        as u64;
const NO_FILE: u64 = u64::MAX;
const MASK_BYTES: u64 = 8;
/// With which values calls are not caught, and are (`linux/prctl.h`).
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const OFF: u64 = 0;
const ON: u64 = 1;
const SA_RESTORER: u64 = 0x0400_0000;
/// What the kernel counts on after an interruption, and how that is asked for.
const SS_DISABLE: u64 = 2;
const SS_AUTODISARM: u64 = 1 << 31;
/// Of an area for restartable sequences, and of the head of a list of robust futexes with what libc
/// keeps of a thread around it.
const RSEQ_BYTES: u64 = 64;
const AROUND_ROBUST_LIST: u64 = 256;
/// Held behind each argument of a call that waits.
const WAITING_BYTES: u64 = 1 << 16;

/// The instruction that makes a call.
const CALL: [u8; 2] = [0x0f, 0x05];
/// A process that stands still, and its gate.
pub(super) struct Work<'w, 't, S: System> {
    pub(super) held: &'w Held<'t, S>,
    pub(super) site: &'w Site,
    pub(super) gate: Gate,
}

impl<S: System> Work<'_, '_, S> {
    fn system(&self) -> &S {
        &self.held.tracer.system
    }

    fn pid(&self) -> Pid {
        self.held.pid
    }

    fn at(&self, place: usize) -> u64 {
        self.gate.base + place as u64
    }

    fn slot_at(&self, slot: usize) -> u64 {
        self.at(SLOTS_AT + slot * SLOT_BYTES)
    }

    /// The start of the first slot's stack: what is in use of it is at its end.
    fn scratch(&self) -> u64 {
        self.slot_at(0)
    }

    fn read<T: bytemuck::Pod>(&self, at: u64) -> Result<T> {
        let mut value = T::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut value);
        let read = self.system().read_memory(self.site.memory(), at, bytes);
        read.about(self.pid(), "reading the gate of")?;
        Ok(value)
    }

    fn write<T: bytemuck::NoUninit>(&self, at: u64, value: &T) -> Result<()> {
        self.write_bytes(at, bytemuck::bytes_of(value))
    }

    fn write_bytes(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.system().write_memory(self.site.memory(), at, bytes);
        written.about(self.pid(), "writing the gate of")
    }

    /// A thread that makes calls where they pass.
    fn inside(&self, thread: Usable) -> Result<Inside<'_, S>> {
        self.inside_at(thread, self.gate.passes_at())
    }

    fn inside_at(&self, thread: Usable, place: u64) -> Result<Inside<'_, S>> {
        let options = filter_options(self.system(), self.pid(), thread.task)?;
        Inside::begin(self.held, thread, place, options)
    }

    // Its memory.

    pub(super) fn map(&self, threads: usize) -> Result<()> {
        let inside = self.inside_at(self.site.thread, self.site.open_gate)?;
        let all = [self.gate.base, GATE_BYTES as u64];
        let arguments = [all[0], all[1], READ_WRITE, MAP, NO_FILE, 0];
        inside.call("mmap", libc::SYS_mmap, arguments)?;
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP] {
            let advised = [all[0], all[1], advice as u64, 0, 0, 0];
            match inside.call("madvise", libc::SYS_madvise, advised) {
                // A kernel without huge pages.
                Err(AttachError::Inside { errno: rustix::io::Errno::INVAL, .. }) => {}
                advised => _ = advised?,
            }
        }
        let code = [all[0], RETURNS_AT as u64, READ_EXECUTE, 0, 0, 0];
        let done = inside.call("mprotect", libc::SYS_mprotect, code).and_then(|_| {
            self.write_bytes(self.gate.base, GATE)?;
            let stub = &GATE[STUB_AT..STUB_AT + STUB_BYTES];
            let pages = self.stub_pages(threads);
            self.write_bytes(self.at(STUBS_AT), &stub.repeat(pages * STUBS_OF_PAGE))
        });
        if done.is_err() {
            let _ = inside.surely("munmap", libc::SYS_munmap, [all[0], all[1], 0, 0, 0, 0]);
        }
        done
    }

    fn stub_pages(&self, threads: usize) -> usize {
        threads.div_ceil(STUBS_OF_PAGE)
    }

    // Shutting.

    pub(super) fn shut(&self, threads: &[Usable], catch: Catch) -> Result<()> {
        self.write_globals(threads.len(), catch)?;
        for (slot, thread) in threads.iter().enumerate() {
            self.seat(slot, *thread)?;
        }
        self.catch()?;
        for (slot, thread) in threads.iter().enumerate() {
            self.shut_for(slot, *thread)?;
        }
        Ok(())
    }

    fn write_globals(&self, threads: usize, catch: Catch) -> Result<()> {
        let globals = Globals {
            slots: threads as u32,
            barrier: Barrier::word(catch.barrier),
            hold_pages_max: catch.hold_pages_max,
            stub_pages: self.stub_pages(threads) as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        self.write(self.at(GLOBALS_AT), &globals)
    }

    /// Gives a thread its slot: its stack for signals is there from now on, and its calls are
    /// caught.
    fn seat(&self, slot: usize, thread: Usable) -> Result<()> {
        let (system, pid, task) = (self.system(), self.pid(), thread.task);
        let place = self.slot_at(slot);
        // Where `sigaltstack` finds the new stack and leaves the old one.
        let (new_at, old_at) = (place, place + 64);
        self.write(new_at, &[place, 0, SLOT_AT as u64])?;
        let inside = self.inside(thread)?;
        let end = place + SLOT_AT as u64;
        let arguments = [new_at, old_at, 0, 0, 0, 0];
        inside.call_on(end, "sigaltstack", libc::SYS_sigaltstack, arguments)?;
        let word_at = old_at + 64;
        let asked = [inject::PR_GET_TID_ADDRESS, word_at, 0, 0, 0, 0];
        let has_word = inside.call("prctl", libc::SYS_prctl, asked).is_ok();
        let passes = [self.at(PASSES_AT), (RETURNS_AT - PASSES_AT) as u64];
        let caught = [PR_SET_SYSCALL_USER_DISPATCH, ON, passes[0], passes[1], 0, 0];
        inside.call("prctl", libc::SYS_prctl, caught)?;
        drop(inside);
        let [stack, flags, bytes]: [u64; 3] = self.read(old_at)?;
        let word = if has_word { self.read(word_at)? } else { 0 };
        let status = process::status(system, pid, task)?;
        let mask = system.signal_mask(task).about(pid, "reading the signal mask of")?;
        let mut state: Slot = bytemuck::Zeroable::zeroed();
        state.task = status.own_task as u32;
        state.believed = mask & OURS;
        state.actions = self.at(GLOBALS_AT + offset_of!(Globals, actions));
        let is_off = flags & SS_DISABLE != 0;
        (state.stack, state.stack_bytes) = if is_off { (0, 0) } else { (stack, bytes) };
        state.stack_flags = flags & SS_AUTODISARM;
        let rseq = system.rseq(task).unwrap_or(0);
        let robust = system.robust_list(task).unwrap_or(0);
        state.pins[PIN_RSEQ] = around(rseq, 0, RSEQ_BYTES);
        state.pins[PIN_ROBUST] = around(robust, AROUND_ROBUST_LIST, AROUND_ROBUST_LIST);
        state.pins[PIN_TASK] = around(word, 0, size_of::<u32>() as u64);
        self.write(place + SLOT_AT as u64, &state)
    }

    /// Has the kernel call the gate for every signal that the program has a handler for, and for
    /// those that are always the gate's.
    fn catch(&self) -> Result<()> {
        let inside = self.inside(self.site.thread)?;
        let status = process::status(self.system(), self.pid(), self.site.thread.task)?;
        for signal in signals_of(status.caught | OURS) {
            let action = self.action(&inside, signal)?;
            let place = GLOBALS_AT + offset_of!(Globals, actions) + signal * size_of::<Action>();
            self.write(self.at(place), &action)?;
            self.set_action(&inside, signal, &self.gates(signal, action))?;
        }
        Ok(())
    }

    fn action(&self, inside: &Inside<'_, S>, signal: usize) -> Result<Action> {
        let arguments = [signal as u64, 0, self.scratch(), MASK_BYTES, 0, 0];
        inside.call("rt_sigaction", libc::SYS_rt_sigaction, arguments)?;
        self.read(self.scratch())
    }

    fn set_action(&self, inside: &Inside<'_, S>, signal: usize, action: &Action) -> Result<()> {
        self.write(self.scratch(), action)?;
        let arguments = [signal as u64, self.scratch(), 0, MASK_BYTES, 0, 0];
        inside.surely("rt_sigaction", libc::SYS_rt_sigaction, arguments)
    }

    /// What the kernel is to do in place of what the program wants, as `gate/signals.rs` has it.
    fn gates(&self, signal: usize, action: Action) -> Action {
        let defers = libc::SA_NODEFER as u64;
        let is_touch = OURS & !bit(libc::SIGSYS) & bit(signal as i32) != 0;
        let kept = match OURS & bit(signal as i32) {
            0 => action.flags & !defers,
            _ if is_touch => defers,
            _ => 0,
        };
        let on_slot = (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64 | SA_RESTORER;
        let mask = !(bit(libc::SIGSEGV) | bit(libc::SIGBUS));
        let [handler, restorer] = [HANDLER_AT, RESTORER_AT].map(|place| self.at(place));
        Action { handler, flags: kept | on_slot, restorer, mask }
    }

    /// Lets none of what is the gate's be blocked, and has a thread that waits do so in its stub.
    fn shut_for(&self, slot: usize, thread: Usable) -> Result<()> {
        let (system, pid, task) = (self.system(), self.pid(), thread.task);
        let mask = system.signal_mask(task).about(pid, "reading the signal mask of")?;
        let set = system.set_signal_mask(task, mask & !OURS);
        set.about(pid, "changing the signal mask of")?;
        let registers = system.registers(task).about(pid, "reading registers of")?;
        let at = registers.instruction();
        if let Some(arguments) = registers.counting_on() {
            self.wait_in_stub(slot, task, &registers, at, arguments)?;
        } else if let Some(arguments) = registers.about_to_count_on()
            && self.read(at).is_ok_and(|bytes: [u8; CALL.len()]| bytes == CALL)
        {
            let end = at + CALL.len() as u64;
            self.wait_in_stub(slot, task, &registers, end, arguments)?;
        }
        Ok(())
    }

    /// Has a thread wait on in its stub, and holds what its call may touch.
    fn wait_in_stub(
        &self,
        slot: usize,
        task: Pid,
        registers: &Registers,
        call_end: u64,
        arguments: [u64; 6],
    ) -> Result<()> {
        let mut back: Return = bytemuck::Zeroable::zeroed();
        (back.to, back.held) = (call_end, 1);
        let mut holds = [Span::default(); HOLDS_MAX];
        for (hold, argument) in holds.iter_mut().zip(arguments) {
            *hold = around(argument, 0, WAITING_BYTES);
        }
        let holds_at = self.slot_at(slot) + (SLOT_AT + offset_of!(Slot, holds)) as u64;
        self.write(holds_at, &holds)?;
        self.write(self.at(RETURNS_AT + slot * STUB_BYTES), &back)?;
        let waiting = registers.waiting_on(self.at(STUBS_AT + slot * STUB_BYTES));
        let set = self.system().set_registers(task, &waiting);
        set.about(self.pid(), "changing registers of")
    }

    // Opening.

    pub(super) fn open(&self, threads: &[Usable]) -> Result<()> {
        let globals: Globals = self.read(self.at(GLOBALS_AT))?;
        let away = threads.iter().map(|thread| self.way_out(thread.task));
        let away = away.collect::<Result<Vec<_>>>()?;
        for (thread, registers) in threads.iter().zip(&away) {
            self.open_for(*thread, registers.as_ref())?;
        }
        let inside = self.inside_at(self.site.thread, self.site.open_gate)?;
        let status = process::status(self.system(), self.pid(), self.site.thread.task)?;
        for signal in signals_of(status.caught | OURS) {
            let now = self.action(&inside, signal)?;
            if now.handler == self.at(HANDLER_AT) {
                self.set_action(&inside, signal, &globals.actions[signal])?;
            }
        }
        let all = [self.gate.base, GATE_BYTES as u64, 0, 0, 0, 0];
        inside.surely("munmap", libc::SYS_munmap, all)
    }

    /// Where a thread goes on without the gate; `None` if where it is.
    fn way_out(&self, task: Pid) -> Result<Option<Registers>> {
        let registers = self.system().registers(task);
        let registers = registers.about(self.pid(), "reading registers of")?;
        let Some(at) = registers.instruction().checked_sub(self.gate.base) else {
            return Ok(None);
        };
        let at = at as usize;
        if !(STUBS_AT..RETURNS_AT).contains(&at) {
            return Ok(None);
        }
        let (slot, inside) = ((at - STUBS_AT) / STUB_BYTES, (at - STUBS_AT) % STUB_BYTES);
        let back: Return = self.read(self.at(RETURNS_AT + slot * STUB_BYTES))?;
        let arguments = (inside >= THIRD_AT).then_some(back.arguments);
        let is_part = (THIRD_AT..SECOND_AT).contains(&inside);
        let own: Slot = self.read(self.slot_at(slot) + SLOT_AT as u64)?;
        if own.redo != 0 {
            return Ok(Some(registers.about_to_make(back.to, own.redo - 1, back.arguments)));
        }
        if is_part && own.transfer_done > 0 {
            return Ok(Some(registers.returned(back.to, own.transfer_done, back.arguments)));
        }
        let was_made = ![0, THIRD_AT, SECOND_AT].contains(&inside);
        Ok(Some(registers.behind(back.to, was_made, arguments)))
    }

    fn open_for(&self, thread: Usable, away: Option<&Registers>) -> Result<()> {
        let (system, pid, task) = (self.system(), self.pid(), thread.task);
        let inside = self.inside(thread)?;
        let off = [PR_SET_SYSCALL_USER_DISPATCH, OFF, 0, 0, 0, 0];
        inside.call("prctl", libc::SYS_prctl, off)?;
        let own_task = process::status(system, pid, task)?.own_task as u32;
        let found = self.slot_of(own_task)?;
        if let Some((place, slot)) = &found {
            let flags = if slot.stack_bytes == 0 { SS_DISABLE } else { slot.stack_flags };
            self.write(*place, &[slot.stack, flags, slot.stack_bytes])?;
            let arguments = [*place, 0, 0, 0, 0, 0];
            inside.call("sigaltstack", libc::SYS_sigaltstack, arguments)?;
        }
        drop(inside);
        if let Some((_, slot)) = found {
            let mask = system.signal_mask(task).about(pid, "reading the signal mask of")?;
            let set = system.set_signal_mask(task, mask & !OURS | slot.believed);
            set.about(pid, "changing the signal mask of")?;
        }
        if let Some(away) = away {
            system.set_registers(task, away).about(pid, "changing registers of")?;
        }
        Ok(())
    }

    /// A thread's slot, and where it is.
    fn slot_of(&self, task: u32) -> Result<Option<(u64, Slot)>> {
        let globals: Globals = self.read(self.at(GLOBALS_AT))?;
        for number in 0..(globals.slots as usize).min(THREADS_MAX) {
            let place = self.slot_at(number);
            let slot: Slot = self.read(place + SLOT_AT as u64)?;
            if slot.task == task {
                return Ok(Some((place, slot)));
            }
        }
        Ok(None)
    }
}

/// The numbers of the signals of a set.
fn signals_of(set: u64) -> impl Iterator<Item = usize> {
    (1..SIGNALS).filter(move |signal| set & bit(*signal as i32) != 0)
}

/// What lies around an address; nothing if there is none.
fn around(at: u64, before: u64, behind: u64) -> Span {
    match at {
        0 => Span::default(),
        at => Span { start: at.saturating_sub(before), end: at.saturating_add(behind) },
    }
}
